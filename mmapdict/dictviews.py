"""The live views that `keys`, `values` and `items` give, and when two values are equal."""
from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from operator import itemgetter
from typing import Any

import numpy as np

_missing: Any = object()
_second = itemgetter(1)


class Keys(KeysView[Any]):
    _mapping: Any

    def __reversed__(self) -> Iterator[Any]:
        return iter(reversed(self._mapping))


class Values(ValuesView[Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[Any]:
        return map(_second, self._mapping._each())

    def __reversed__(self) -> Iterator[Any]:
        return map(_second, self._mapping._each(backwards=True))

    def __contains__(self, value: object) -> bool:
        return any(equal(value, mine) for mine in self)


class Items(ItemsView[Any, Any]):
    _mapping: Any

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
    """Whether two values are equal, arrays in them compared element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
            return False
        if isinstance(a, np.ma.MaskedArray) or isinstance(b, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(a)
            if not np.array_equal(mask, np.ma.getmaskarray(b)):
                return False
            if mask.dtype.names is None:
                return bool(np.array_equal(np.ma.getdata(a)[~mask], np.ma.getdata(b)[~mask]))
            return bool(np.array_equal(np.ma.getdata(a), np.ma.getdata(b)))
        return bool(np.array_equal(a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return len(a) == len(b) and all(k in b and equal(v, b[k]) for k, v in a.items())
    if type(a) in (list, tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)
