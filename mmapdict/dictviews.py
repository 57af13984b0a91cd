"""What a mapping says of its items: `Entry`, the live views that `keys`, `values` and `items` give, what is equal."""
from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import numpy as np

from .arrays import Column, GrowableInfo, Info, MaskedInfo
from .values import ARRAY, GROWABLE, MASKED, TABLE, VALUE

_missing: Any = object()
_value = itemgetter(1)

SHOWN = 10          # keys, in a repr


class Entry(NamedTuple):
    """What is known of an item without loading its value.

    Attributes
    ----------
    key : object
    kind : str
        ``"array"``, ``"masked"``, ``"growable"``, ``"table"`` (growable arrays with one number of rows), all of them
        mapped, or ``"value"`` (pickled).
    shape : tuple of int, or None for a value or a table
    dtype : numpy.dtype, or None for a value or a table
    order : str, or None for a value or a table
        ``"C"`` or ``"F"``.
    offset : int
        Of the array's first element, or of the value's opcodes, in bytes from the start of the file.
    nbytes : int
        Of the elements, or of the opcodes.
    mask_offset : int or None
        Of a masked array's mask; None: it has none.
    record : int
        Offset of the whole record.
    record_nbytes : int
        What the item takes in the file, all in all.
    """

    key: Any
    kind: str
    shape: Optional[tuple[int, ...]]
    dtype: Optional[np.dtype[Any]]
    order: Optional[str]
    offset: int
    nbytes: int
    mask_offset: Optional[int]
    record: int
    record_nbytes: int


def entry_of(key: Any, offset: int, info: Optional[Info], at: int, body_end: int, size: int) -> Entry:
    """Return the entry of the record of `size` bytes at `offset`, whose value, `info`, starts at `at`."""
    if info is None:
        return Entry(key, VALUE, None, None, None, at, body_end - at, None, offset, size)
    if isinstance(info, GrowableInfo):
        column = info.tree if isinstance(info.tree, Column) else None
        nbytes = info.count * info.row_nbytes
        if column is None:
            return Entry(key, TABLE, (info.count,), None, None, info.start, nbytes, None, offset, size)
        shape = column.shape_of(info.count)
        return Entry(key, GROWABLE, shape, column.dtype, "C", info.start, nbytes, None, offset, size)
    if isinstance(info, MaskedInfo):
        data, mask = info.data, info.mask
        return Entry(key, MASKED, data.shape, data.dtype, data.order, data.offset, data.nbytes,
                     None if mask is None else mask.offset, offset, size)
    return Entry(key, ARRAY, info.shape, info.dtype, info.order, info.offset, info.nbytes, None, offset, size)


class _View:
    _mapping: Any

    @property
    def mapping(self) -> MappingProxyType[Any, Any]:
        """The mapping that this is a view of; it cannot be changed through it."""
        return MappingProxyType(self._mapping)


class Keys(_View, KeysView[Any]):
    def __repr__(self) -> str:
        if self._mapping.closed:
            return super().__repr__()
        keys = list(self._mapping)
        shown = [*map(repr, keys[:SHOWN]), *([f"... {len(keys) - SHOWN} more"] if len(keys) > SHOWN else [])]
        return f"Keys([{', '.join(shown)}])"

    def __reversed__(self) -> Iterator[Any]:
        keys: Iterator[Any] = reversed(self._mapping)
        return keys


class Values(_View, ValuesView[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(_value, self._mapping._each())

    def __reversed__(self) -> Iterator[Any]:
        return map(_value, self._mapping._each(backwards=True))

    def __contains__(self, value: object) -> bool:
        return any(equal(mine, value) for mine in self)


class Items(_View, ItemsView[Any, Any]):
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        items: Iterator[tuple[Any, Any]] = self._mapping._each()
        return items

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        items: Iterator[tuple[Any, Any]] = self._mapping._each(backwards=True)
        return items

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        value = self._mapping.get(item[0], _missing)
        return value is not _missing and equal(value, item[1])


def equal(a: Any, b: Any) -> bool:
    """Whether two values are equal, arrays in them compared element by element.

    As for `dict`, a value is equal to itself, even if it holds NaN. Masked elements are equal whatever they hide.
    """
    if a is b:
        return True
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and _equal_arrays(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return len(a) == len(b) and all(k in b and equal(v, b[k]) for k, v in a.items())
    if type(a) in (list, tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def _equal_arrays(a: Any, b: Any) -> bool:
    if not isinstance(a, np.ma.MaskedArray) and not isinstance(b, np.ma.MaskedArray):
        return _equal_elements(np.asarray(a), np.asarray(b), None)
    mask = np.ma.getmaskarray(a)
    return _equal_elements(mask, np.ma.getmaskarray(b), None) \
        and _equal_elements(np.ma.getdata(a, False), np.ma.getdata(b, False), mask)


def _equal_elements(a: Any, b: Any, mask: Optional[Any]) -> bool:
    """Compare two plain arrays but for masked elements; dtypes that numpy refuses to compare are not equal."""
    if a.shape != b.shape or a.dtype.names != b.dtype.names:
        return False
    if a.dtype.names is not None:
        return all(_equal_elements(a[name], b[name], None if mask is None else mask[name]) for name in a.dtype.names)
    if mask is not None and mask.any():
        a, b = a[~mask], b[~mask]
    if a.dtype.hasobject or b.dtype.hasobject:
        return all(map(equal, a.ravel().tolist(), b.ravel().tolist()))
    kinds = {a.dtype.kind, b.dtype.kind}
    if len(kinds) > 1 and not kinds <= set("biufc"):
        return False
    if kinds == {"V"}:
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    return bool(np.array_equal(a, b))
