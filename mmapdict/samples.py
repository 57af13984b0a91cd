"""Per-sample stores: for each id the same nested dict of arrays, thousands of times, with next to no metadata.

One store is one item of a file. Each sample is one row, which has its id and all its arrays; plain `pickle.load` gives
a dict of the ids and of arrays of all samples.
"""
from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, Union

import numpy as np

from .arrays import TREE_DEPTH, Column, GrowableInfo, Tree
from .growables import as_dtype, check_column
from .rows import Rows, Table

IDS, VALUES = "ids", "values"
WIDTH_LEAST, WIDTH_STEP = 16, 8     # bytes: ids that are texts get so much room, and more in such steps
LAST_LEAST = 1 << 10            # ids that are not sorted yet

Nested = Mapping[str, Any]


class SampleStore(Table):
    """A store of samples: `store.add(id, nested dict of arrays)`.

    Made by `mmapdict.samples`. The first sample says which arrays there are, and their shapes and dtypes; all others
    have the same. An id is an int or a str, all of them of one kind.

    Parameters
    ----------
    where : path or MmapDict
    name : object
        Key of the store in the file.
    mode : str
    **options
        As for `mmapdict.open`.
    capacity : int
        How many samples to make room for.

    Notes
    -----
    In the file a sample has its id and the bytes of its arrays, nothing else. To open a store takes no time that grows
    with it. The first look for an id sorts them all, inside numpy.

    Examples
    --------
    >>> with SampleStore("doctest.mmapdict", mode="w") as store:
    ...     for i in range(3):
    ...         store.add(f"image {i}", {"fc1": {"grad": np.full(4, i, "f4")}, "loss": 0.5})
    ...     store["image 1"]["fc1"]["grad"], store.path("fc1", "grad").shape
    (memmap([1., 1., 1., 1.], dtype=float32), (3, 4))
    """

    _what = "store of samples"
    _caches = (*Table._caches, "_places")

    @staticmethod
    def _is_mine(tree: Tree) -> bool:
        return isinstance(tree, dict) and list(tree) == [IDS, VALUES] and isinstance(tree[IDS], Column) \
            and tree[IDS].dtype.kind in _KINDS and isinstance(tree[VALUES], dict)

    def __init__(self, where: Any, name: Any = "samples", *, mode: str = "a", capacity: int = 0,
                 **options: Any) -> None:
        super().__init__(where, name, mode, **options)
        self._capacity = capacity
        self._places: Optional[_Places] = None

    # -- writing ------------------------------------------------------------------------------------------------

    def add(self, data_id: Union[int, str], values: Nested, *, replace: bool = False) -> None:
        """Add a sample, in one step.

        Parameters
        ----------
        data_id : int or str
        values : mapping of str to array or such a mapping
        replace : bool
            Whether the id may be there already: then the arrays of its sample are set, as through ``store[id]``, not in
            one step.

        Raises
        ------
        KeyError
            The id is there already.
        ValueError
            An array has another shape than in the samples before, or one is missing or too many. Nothing is written.
        TypeError
            The id, or a dtype, does not fit.
        OSError, ReadOnlyError, BusyError
        """
        self._add([data_id], values, False, replace)

    def extend(self, data_ids: Iterable[Union[int, str]], values: Nested) -> None:
        """Add several samples, in one step.

        Parameters
        ----------
        data_ids : iterable of int or str
        values : mapping of str to array or such a mapping
            As for `add`, but each array has all samples: its first axis is theirs.

        Raises
        ------
        KeyError
            An id is there already, or twice among them.
        ValueError, TypeError, OSError, ReadOnlyError, BusyError
            As for `add`.

        Examples
        --------
        >>> with SampleStore("doctest.mmapdict", mode="w") as store:
        ...     store.extend(range(100, 164), {"fc1": {"grad": np.zeros((64, 10, 20), "f4")}})
        ...     len(store), store[101]["fc1"]["grad"].shape
        (64, (10, 20))
        """
        ids = list(data_ids)
        if ids:
            self._add(ids, values, True, False)

    def _add(self, data_ids: list[Any], values: Nested, many: bool, replace: bool) -> None:
        data_ids = [int(data_id) if isinstance(data_id, np.integer) else data_id for data_id in data_ids]
        kind = _id_dtype(data_ids[0])
        for data_id in data_ids[1:]:
            other = _id_dtype(data_id)
            if other.kind != kind.kind:
                raise TypeError(f"the id {data_id!r}: the others are {_KINDS[kind.kind]}")
            kind = max(kind, other, key=lambda dtype: dtype.itemsize)
        if len(set(data_ids)) < len(data_ids):
            twice = next(data_id for i, data_id in enumerate(data_ids) if data_id in data_ids[:i])
            raise KeyError(f"the id {twice!r} is there twice")
        n = len(data_ids) if many else None
        with self.d._mutex, self._alone():          # so that nobody adds the same id in between
            info = self._info()
            if info is None:
                tree = {IDS: Column((), 0, kind, 0), VALUES: _tree_of(values, (), n)}
                self._create(tree, max(self._capacity, len(data_ids)))
                info = self._info()
                assert info is not None
            ids: Column = info.tree[IDS]            # type: ignore[index]
            if ids.dtype.kind != kind.kind:
                raise TypeError(f"the id {data_ids[0]!r}: this store has {_KINDS[ids.dtype.kind]}")
            row = None
            for data_id in data_ids:
                row = self._find(data_id, info)
                if row is not None and not replace:
                    raise KeyError(f"a sample with the id {data_id!r} is there already; to set its arrays, add it with "
                                   "replace=True")
            block = self._encode(values, info, n)
            if row is not None:
                self.d._change(_without_seal)
                _set(self._tree()[VALUES], values, row)
                return
            if kind.itemsize > ids.dtype.itemsize:
                self._widen(info, kind)
                info = self._info()
                assert info is not None
                block = self._encode(values, info, n)
            block["0"] = [data_id.encode() for data_id in data_ids] if kind.kind == "S" else data_ids
            self._append(block, self._capacity)

    def _encode(self, values: Nested, info: GrowableInfo, n: Optional[int]) -> Rows:
        """Return rows as the file has them, but for their ids: one, or if `n` is not None so many."""
        tree: Any = info.tree
        block = np.zeros(n or 1, self._row_dtype(info))
        _fill(block, tree[VALUES], values, (), 1, n)
        return block

    def _widen(self, info: GrowableInfo, kind: np.dtype[Any]) -> None:
        """Give longer ids room, twice as much at least."""
        ids: Column = info.tree[IDS]            # type: ignore[index]
        width = max(kind.itemsize, 2 * ids.dtype.itemsize)
        values = info.tree[VALUES]              # type: ignore[index]
        tree = {IDS: Column((), 0, np.dtype(f"S{width}"), 0), VALUES: _copy(values)}

        def convert(rows: Rows, out: Rows) -> None:
            for name in rows.dtype.names or ():
                out[name] = rows[name]

        self._rearrange(tree, convert, self._capacity)

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def ids(self) -> Any:
        """The ids, in the order in which they came: a mapped array of ints, or an array of texts."""
        return _texts(self._tree().get(IDS, np.zeros(0, "i8")))

    def path(self, *names: str) -> Any:
        """Return one array of all samples: mapped, of shape (samples, ...).

        Raises
        ------
        KeyError
            There is no such array.
        """
        found = self._tree().get(VALUES, {})
        for i, name in enumerate(names):
            if not isinstance(found, dict) or name not in found:
                known = ", ".join(map(_named, self.paths))
                raise KeyError(f"no array at {_named(names[:i + 1])}; there are {known}")
            found = found[name]
        return found

    @property
    def paths(self) -> list[tuple[str, ...]]:
        """The names by which `path` finds arrays."""
        return list(_paths(self._tree().get(VALUES, {}), ()))

    def _find(self, data_id: Union[int, str], info: Optional[GrowableInfo]) -> Optional[int]:
        """Return the row of an id. The caller holds the mutex."""
        kind = _id_dtype(data_id).kind
        if info is None or info.tree[IDS].dtype.kind != kind:       # type: ignore[index]
            return None
        place = weakref.ref(self.d._file), info.start
        places = self._places
        if places is None or places.place != place or len(places) > info.count:
            places = self._places = _Places(place)
        if len(places) < info.count:
            places.take(np.asarray(self.d._rows(info, info.tree[IDS])))     # type: ignore[index]
        return places.find(data_id.encode() if isinstance(data_id, str) else int(data_id))

    def __contains__(self, data_id: object) -> bool:
        try:
            _id_dtype(data_id)
        except TypeError:
            return False
        with self.d._mutex:
            return self._find(data_id, self._info()) is not None        # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.ids.tolist())

    def __getitem__(self, data_id: Any) -> Any:
        """Return the sample of an id: the nested dict of its arrays, as views of the file."""
        with self.d._mutex:
            info = self._info()
            row = self._find(data_id, info)
            if row is None:
                raise KeyError(data_id)
            return _at(self.d._rows(info, info.tree[VALUES]), row)      # type: ignore[arg-type,index,union-attr]

    def get(self, data_id: Any, default: Any = None) -> Any:
        """Return the sample of an id, or the default if there is none."""
        try:
            return self[data_id]
        except KeyError:
            return default

    def rows(self, index: Any) -> Any:
        """Return samples by their numbers (an int, a slice, an array): a nested dict of arrays. Slices are views."""
        return _at(self._tree().get(VALUES, {}), index)

    def batches(self, size: int, *, shuffle: bool = False, seed: Optional[int] = None) -> Iterator[tuple[Any, Any]]:
        """Yield ids and the nested dict of arrays of `size` samples at a time; the last may be fewer.

        Parameters
        ----------
        size : int
        shuffle : bool
            In an order by chance; the arrays are copies then. Else they are views.
        seed : int, optional
            Of that order.
        """
        if size < 1:
            raise ValueError(f"batches of {size} samples")
        tree = self._tree()
        if not tree:
            return
        ids, values = _texts(tree[IDS]), tree[VALUES]
        n = len(ids)
        order = np.random.default_rng(seed).permutation(n) if shuffle else None
        for start in range(0, n, size):
            index: Any = slice(start, min(start + size, n)) if order is None else np.sort(order[start:start + size])
            yield ids[index], _at(values, index)


class _Places:
    """Which row an id is in: of most by numpy's search in the sorted ones, of those that came since by a dict.

    Parameters
    ----------
    place : object
        Where the rows are.
    """

    def __init__(self, place: Any) -> None:
        self.place = place
        self._ids: Any = np.zeros(0, "i8")
        self._order: Any = self._ids
        self._last: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._ids) + len(self._last)

    def take(self, ids: Any) -> None:
        """Take note of all ids, in their order, of which those up to `len` are known."""
        n = len(self)
        if len(ids) - len(self._ids) > LAST_LEAST + len(self._ids) // 4:
            self._order = np.argsort(ids, kind="stable")
            self._ids = ids[self._order]
            self._last = {}
        else:
            self._last.update(zip(ids[n:].tolist(), range(n, len(ids))))

    def find(self, wanted: Any) -> Optional[int]:
        """Return the row of an id."""
        place = int(self._ids.searchsorted(wanted)) if len(self._ids) else 0
        if place < len(self._ids) and self._ids[place] == wanted:
            return int(self._order[place])
        return self._last.get(wanted)


_KINDS = {"i": "ints as ids", "S": "texts as ids"}


def samples(where: Any, name: Any = "samples", *, mode: str = "a", capacity: int = 0, **options: Any) -> SampleStore:
    """Open, or begin, the store of samples of a file; see `SampleStore`.

    Parameters
    ----------
    where : path or MmapDict
    name : object
        Its key in the file.
    mode : str
        As for `mmapdict.open`.
    capacity : int
        How many samples to make room for, if it is new, or when it needs another place.
    **options
        As for `mmapdict.open`.
    """
    return SampleStore(where, name, mode=mode, capacity=capacity, **options)


def _id_dtype(data_id: Any) -> np.dtype[Any]:
    if isinstance(data_id, str):
        if "\0" in data_id:
            raise TypeError(f"the id {data_id!r} has a zero character")
        try:
            n = max(WIDTH_LEAST, len(data_id.encode()))
        except UnicodeEncodeError as exc:
            raise TypeError(f"the id {data_id!r} is no text that UTF-8 can hold") from exc
        return np.dtype(f"S{n + -n % WIDTH_STEP}")
    if isinstance(data_id, (int, np.integer)) and not isinstance(data_id, bool):
        if not -2**63 <= data_id < 2**63:
            raise TypeError(f"the id {data_id} has more than 64 bits")
        return np.dtype("i8")
    raise TypeError(f"an id is an int or a str, not {data_id!r}")


def _without_seal(index: Any) -> None:
    if index.sealed:
        index.unseal()                          # I16


def _texts(ids: Any) -> Any:
    """Return ids as a user has them."""
    if ids.dtype.kind != "S":
        return ids
    try:
        return np.asarray(ids).astype(f"U{ids.dtype.itemsize}")         # ten times as fast, if they are ASCII
    except UnicodeDecodeError:
        return np.char.decode(ids, "utf-8")


def _tree_of(values: Any, path: tuple[str, ...], n: Optional[int]) -> Any:
    """Return the columns that the first sample, or the first `n`, ask for."""
    if isinstance(values, Mapping):
        if not values or len(path) >= TREE_DEPTH:
            raise ValueError(f"nothing at {_named(path)}" if not values else "dicts that are nested too deep")
        for name in values:
            if type(name) is not str:
                raise TypeError(f"a name is a text, not {name!r}")
        return {name: _tree_of(value, (*path, name), n) for name, value in values.items()}
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"the array at {_named(path)} is masked; store its mask as an array of its own")
    array = _array(values, path)
    if n is not None and array.shape[:1] != (n,):
        raise ValueError(f"the array at {_named(path)} has the shape {array.shape}, for {n} samples")
    try:
        return check_column(array.shape if n is None else array.shape[1:], array.dtype)
    except TypeError as exc:
        raise TypeError(f"the value at {_named(path)}: {exc}") from exc


def _array(values: Any, path: tuple[str, ...]) -> Any:
    try:
        return np.asarray(values)
    except Exception as exc:                    # whatever the object's own class raises
        raise TypeError(f"the value at {_named(path)} is no array: {exc}") from exc


def _copy(tree: Any) -> Any:
    if isinstance(tree, Column):
        return Column(tree.shape, 0, tree.dtype, 0)
    return {name: _copy(part) for name, part in tree.items()}


def _fill(block: Rows, tree: Any, values: Any, path: tuple[str, ...], number: int, n: Optional[int]) -> int:
    """Set the columns of rows, from that with this number on; return the number of the next one."""
    if isinstance(tree, Column):
        if isinstance(values, Mapping):
            raise ValueError(f"{_named(path)} is an array in the samples before, and a dict in this one")
        array = as_dtype(values if isinstance(values, np.ndarray) else _array(values, path), tree.dtype, _named(path))
        shape = tree.shape if n is None else (n, *tree.shape)
        if array.shape != shape:
            one = "in this one" if n is None else f"for {n} samples"
            raise ValueError(f"the array at {_named(path)} has the shape {tree.shape} in the samples before, and "
                             f"{array.shape} {one}")
        block[str(number)][:] = array
        return number + 1
    if not isinstance(values, Mapping) or values.keys() != tree.keys():
        found = sorted(map(str, values)) if isinstance(values, Mapping) else "an array"
        raise ValueError(f"{_named(path)} has {sorted(tree)} in the samples before, and {found} in this one")
    for name, part in tree.items():
        number = _fill(block, part, values[name], (*path, name), number, n)
    return number


def _set(tree: Any, values: Any, row: int) -> None:
    if isinstance(tree, dict):
        for name, part in tree.items():
            _set(part, values[name], row)
    else:
        tree[row] = values


def _at(tree: Any, index: Any) -> Any:
    return {name: _at(part, index) for name, part in tree.items()} if isinstance(tree, dict) else tree[index]


def _paths(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield from _paths(part, (*path, name))
    else:
        yield path


def _named(path: tuple[str, ...]) -> str:
    return "/".join(path) if path else "the top"
