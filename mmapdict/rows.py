"""Tables in a `MmapDict`: growable columns with one number of rows. What `Log` and `SampleStore` have in common.

A table is one item of the mapping: a (nested) dict of arrays over the same bytes, row behind row. So a row is written
by one write and published by one store, however many columns it has, and plain `pickle.load` gives a dict of columns.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Optional

import numpy as np

from . import growables
from .arrays import GrowableInfo, Tree
from .birth import MODES
from .blocks import Exclusive
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

    Attributes
    ----------
    d : MmapDict
    name : object
    """

    _what = "table"
    _caches: tuple[str, ...] = ("_known", "_checked")

    def __init__(self, where: Any, name: Any, mode: str = "a", **options: Any) -> None:
        self._own = not isinstance(where, MmapDict)
        if not self._own and (mode != "a" or options):
            raise ValueError(f"a {self._what} in an open file has the mode and the options of its handle")
        if self._own and type(name) is str and name in MODES:
            raise ValueError(f"{name!r} would be the name of the {self._what} in the file; write mode={name!r}")
        self.name = plain_key(name)
        self.d: MmapDict = open_file(where, mode, **options) if self._own else where
        self._known: Any = None                 # the columns, and the dtype of a row
        self._checked: Any = None               # columns that are those of such a table

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes it anew where it is unpickled, with a handle of its own."""
        return {**self.__dict__, **dict.fromkeys(self._caches), "_own": True}

    def __repr__(self) -> str:
        about = "closed" if self.d.closed else f"{len(self)} rows"
        return f"<{type(self).__name__} {self.name!r} in {self.d.path!r}: {about}>"

    # -- the file

    def _info(self) -> Optional[GrowableInfo]:
        """Return what the table is now; None: it has no rows yet. The caller holds the mutex."""
        try:
            info = self.d._growable(self.name)
        except TypeError:
            raise self._other() from None
        if info is not None and info.tree is not self._checked:
            if not self._is_mine(info.tree):
                raise self._other()
            self._checked = info.tree
        return info

    @staticmethod
    def _is_mine(tree: Tree) -> bool:
        """Whether a table with such columns is one of this class."""
        return isinstance(tree, dict)

    def _other(self) -> TypeError:
        offset = self.d._refresh().find(self.name)
        found = "" if offset is None else f", but a {self.d._summary(self.name, offset)}"
        return TypeError(f"{self.d.path}: the value of {self.name!r} is no {self._what}{found}")

    def _place(self) -> Any:
        """Return where the rows stand, or None."""
        with self.d._mutex:
            info = self._info()
            return None if info is None else (weakref.ref(self.d._file), info.start)

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

    def _alone(self) -> Exclusive:
        """Return a block in which nobody else changes the table."""
        return Exclusive(self.d, None, False)

    def _append(self, rows: Rows, capacity: int = 0) -> None:
        """Add rows of the `_row_dtype`; if they need another place, with room for `capacity` rows at least."""
        self.d._change(growables.append, self.name, rows.view(np.uint8), len(rows), None, capacity)
        self.d._grown.add(self.name)

    def _create(self, tree: Tree, capacity: int = 0) -> None:
        """Make the table, unless another has made it meanwhile."""
        encoded = growables.encode_growable(tree, capacity, memo=self.d._memo_mark())
        self.d._change(_put_new, self.name, key_parts(self.name), encoded)

    def _rearrange(self, tree: Tree, convert: Callable[[Rows, Rows], None], capacity: int = 0) -> None:
        """Give the rows other columns, and room for `capacity` rows at least."""
        self.d._change(growables.rearrange, self.name, tree, convert, capacity)

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
