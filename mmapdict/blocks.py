"""What `MmapDict` gives to `with` statements: batches, exclusive blocks, and rows that are about to be published."""
from __future__ import annotations

from types import TracebackType
from typing import Any, Optional

import numpy as np


class Batch:
    """What `MmapDict.batch` returns: the context manager of one batch."""

    def __init__(self, mapping: Any) -> None:
        self._mapping = mapping
        self._mutex: Any = None

    def __enter__(self) -> Any:
        self._mapping._begin_batch()
        self._mutex = self._mapping._mutex          # a forked child gets another
        return self._mapping

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self._mapping._end_batch(self._mutex, kind is None)


class Exclusive:
    """What `MmapDict.exclusive` returns: the context manager of a block in which the handle keeps the lock."""

    def __init__(self, mapping: Any, timeout: Any, many: bool = True) -> None:
        self._mapping = mapping
        self._timeout = timeout
        self._many = many
        self._mutex: Any = None

    def __enter__(self) -> Any:
        self._mapping._begin_exclusive(self._timeout, self._many)
        self._mutex = self._mapping._mutex          # a forked child gets another
        return self._mapping

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self._mapping._end_exclusive(self._mutex)


class Extension:
    """New rows of a growable array, which nobody sees until they are published: what `MmapDict.extend` returns.

    In a `with` statement it gives the array of them, and publishes them if the block ends without an exception. Else
    set its elements, and call `commit`. What is not published is forgotten.

    Attributes
    ----------
    rows : numpy.memmap
        Writable; its place in the file is where the rows will be.
    """

    def __init__(self, mapping: Any, key: Any, rows: Any, first: int, n: int, offset: int) -> None:
        self._mapping = mapping
        self._key = key
        self._first = first
        self._n = n
        self._offset = offset
        self._mutex: Any = mapping._mutex           # a forked child gets another
        self._open = True
        self.rows = rows

    def commit(self) -> None:
        """Publish the rows, all in one step.

        Raises
        ------
        BusyError
            It was committed or cancelled, or the array was deleted, replaced or changed in length meanwhile.
        """
        self._mapping._end_extension(self, True)

    def cancel(self) -> None:
        """Forget the rows. After `commit` it does nothing."""
        if self._open:
            self._mapping._end_extension(self, False)

    def __enter__(self) -> Any:
        return self.rows

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if kind is not None:
            self.cancel()
        elif self._open:
            self.commit()

    def __del__(self) -> None:
        if self._open:
            self.cancel()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.rows[index] = value

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        return np.array(self.rows, dtype) if copy else np.asarray(self.rows, dtype)
