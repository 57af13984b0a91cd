"""Tables in a `MmapDict`: growable columns with one number of rows. What `Log` and `SampleStore` have in common.

A table is one item of the mapping: a (nested) dict of arrays over the same bytes, row behind row. So a row is written
by one write and published by one store, however many columns it has, and plain `pickle.load` gives a dict of columns.
"""
from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Optional

import numpy as np

from . import growables
from .arrays import GrowableInfo, Tree
from .literals import key_parts, plain_key
from .mapping import MmapDict
from .mapping import open as open_file

Rows = np.ndarray[Any, np.dtype[Any]]


class Table:
    """One table of a file.

    Parameters
    ----------
    where : str, bytes, os.PathLike or MmapDict
        The file, or a handle of it, which stays open when the table is closed.
    name : object
        The key of the table.
    mode : str
        As for `mmapdict.open`, if `where` is a path.
    **options
        As well.
    """

    def __init__(self, where: Any, name: Any, mode: str = "a", **options: Any) -> None:
        self._own = not isinstance(where, MmapDict)
        self.d: MmapDict = open_file(where, mode, **options) if self._own else where
        self.name = plain_key(name)
        self._known: Any = None                 # where rows stand and how long they are, and their dtype

    # -- the file

    def _info(self) -> Optional[GrowableInfo]:
        """Return what the table is now; None: it has no rows yet. The caller holds the mutex."""
        info = self.d._growable(self.name)
        if info is not None and not isinstance(info.tree, dict):
            raise TypeError(f"{self.d.path}: the value of {self.name!r} is a growable array, and no table")
        return info

    def _tree(self) -> Any:
        """Return the columns as a (nested) dict of arrays: of one moment."""
        with self.d._mutex:
            info = self._info()
            return {} if info is None else self.d._rows(info, info.tree)

    def _row_dtype(self, info: GrowableInfo) -> np.dtype[Any]:
        if self._known is None or self._known[0] is not info.tree:
            self._known = info.tree, growables.row_dtype(info.tree, info.row_nbytes)
        dtype: np.dtype[Any] = self._known[1]
        return dtype

    def _append(self, rows: Rows) -> None:
        """Add rows of the `_row_dtype`."""
        self.d._change(growables.append, self.name, rows.view(np.uint8), len(rows))
        self.d._grown.add(self.name)

    def _create(self, tree: Tree, capacity: int = 0) -> None:
        """Make the table, unless another has made it meanwhile."""
        encoded = growables.encode_growable(tree, capacity, memo=self.d._memo_mark())
        self.d._change(_put_new, self.name, key_parts(self.name), encoded)

    def _rearrange(self, tree: Tree, convert: Callable[[Rows, Rows], None]) -> None:
        """Give the rows other columns."""
        self.d._change(growables.rearrange, self.name, tree, convert)

    def __len__(self) -> int:
        with self.d._mutex:
            info = self._info()
            return 0 if info is None else info.count

    def sync(self) -> None:
        """Return when all rows survive a power cut."""
        self.d.sync()

    def close(self) -> None:
        """Close the file, if this opened it. Arrays that were handed out stay valid."""
        if self._own:
            self.d.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()


def _put_new(index: Any, key: Any, parts: Any, encoded: Any) -> None:
    if index.find(key) is None:
        index.put(key, parts, encoded)
