"""`MmapDict`: a dictionary in one file that is a valid pickle at every instant.

Thin: it joins the layers below, and keeps what belongs to one handle: its mode, its threads' mutex, and a cache
of what is needed to hand an array out again.
"""
from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Optional, Union

import numpy as np

from . import format as fmt
from . import store, values
from .arrays import ArrayInfo, MaskedInfo, Order, decode_info, map_info
from .birth import MODES, open_file
from .dictviews import Items, Keys, Values, equal
from .errors import BusyError, ClosedError, CorruptError, FormatError, ReadOnlyError
from .index import Index
from .literals import key_parts, plain_key
from .pickling import decode_pickled
from .views import memmap

CACHED_ARRAYS = 1 << 17
PATH_CHECK_S = 0.1          # how often `wait` looks whether the path leads elsewhere

_COMMIT = fmt.COMMIT_OFFSET >> 3
_STATE = fmt.STATE_OFFSET >> 3
_MEMO = fmt.MEMO_OFFSET >> 3
_new = np.ndarray.__new__
_missing: Any = object()

_handles: dict[int, weakref.ref[MmapDict]] = {}


class Entry(NamedTuple):
    """What is known of an item without loading its value.

    Attributes
    ----------
    key : object
    kind : str
        ``"array"``, ``"masked"`` (both mapped) or ``"value"`` (pickled).
    shape : tuple of int, or None for a value
    dtype : numpy.dtype, or None for a value
    order : str, or None for a value
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


class Change(NamedTuple):
    """What happened between two looks: lists of keys, each in the order of the file."""

    added: list[Any]
    replaced: list[Any]
    removed: list[Any]


class _Closed:
    """Stands in for the header of a closed handle."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getitem__(self, i: int) -> NoReturn:
        raise ClosedError(f"{self.path} is closed; arrays that it handed out stay valid")


class MmapDict(MutableMapping[Any, Any]):
    """A dictionary of arrays and other values, kept in one file.

    The file is a valid pickle after every single store: ``pickle.load`` reads it at any moment, also while it
    is being written and after its writer was killed. Arrays are handed out as views of the mapped file.

    Parameters
    ----------
    path : str, bytes or os.PathLike
        The file. Nothing else is left beside it.
    mode : str
        ``"r"``: read only, takes no lock and writes nothing. ``"r+"``: the file must exist. ``"a"``: it is
        created if missing. ``"w"``: it starts anew; a file that is there is replaced in one step. ``"x"``: it
        must not exist.

    Raises
    ------
    FormatError, CorruptError
        The file is not an mmapdict file, or damaged. It is not touched.
    OSError
        FileNotFoundError, FileExistsError, PermissionError, ... as `open` raises them.
    ValueError
        For another mode.

    Notes
    -----
    Every method of `dict` is there, but for `fromkeys`. By task:

    - change: ``d[k] = v``, ``del d[k]``, `create`, `update`, `setdefault`, `pop`, `popitem`, `clear`
    - look: ``d[k]``, `get`, ``in``, ``len``, `keys`, `values`, `items`, `copy`, `entry`, `entries`, `info`
    - follow others: `commit`, `wait`, `watch`
    - disk: `flush`, `sync`, `close`

    Keys are str, bytes, int, float, bool, None and tuples of them; ``1 == 1.0 == True`` is one key. The order
    is that of the file, the same that ``pickle.load`` gives: a replaced item moves to the end.

    What survives: once an assignment has returned, other processes see it, and a killed process cannot take it
    back. `sync` makes it survive a power cut.

    A value that is not an array is a copy: changing it does not change the file; assign it again. It is read
    by `pickle`, so open only files that you trust. Arrays are read without.

    Threads may share a handle. A forked child may go on using its parent's.

    Examples
    --------
    >>> d = MmapDict("doctest.mmapdict", "w")
    >>> d["wavelengths"] = np.linspace(400, 1000, 5)
    >>> frame = d.create(("scan", 0), (2, 3), "u2")
    >>> frame[0] = 7
    >>> d
    MmapDict('doctest.mmapdict', 'w'): {'wavelengths': array (5,) float64, ('scan', 0): array (2, 3) uint16}
    >>> d.close()
    >>> import pathlib, pickle
    >>> pickle.loads(pathlib.Path("doctest.mmapdict").read_bytes())[("scan", 0)]
    array([[7, 7, 7],
           [0, 0, 0]], dtype=uint16)
    """

    __hash__ = None     # type: ignore[assignment]

    def __init__(self, path: Union[str, bytes, Any], mode: str = "a") -> None:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}: expected one of {', '.join(map(repr, MODES))}")
        self._given = path if isinstance(path, str) else store.full_path(path)
        self._path = store.full_path(path)
        self._mode = mode
        self._writable = mode != "r"
        self._mutex = threading.RLock()
        self._depth = 0
        self._closed = False
        self._forked = False
        self._attach(open_file(self._path, mode))
        self._waited = self._cells[_COMMIT]
        self._unclosed = weakref.finalize(self, _warn_unclosed, self._path)
        self._unclosed.atexit = False           # the end of the interpreter is no reason for a warning
        _handles[id(self)] = weakref.ref(self)
        weakref.finalize(self, _handles.pop, id(self), None).atexit = False

    def _attach(self, file: store.File) -> None:
        """Begin to work on `file`."""
        try:
            index = Index(file)
            seen = file.cells[_COMMIT]
            index.walk()
        except BaseException:
            file.close()
            raise
        self._file = file
        self._index = index
        self._cells: Any = file.cells
        self._seen = -1 if seen & 1 else seen
        self._fresh = True          # no writer's lock was taken yet
        # Key -> [commit at which it was known to be live, arguments of ndarray.__new__, offset of the record]
        self._arrays: dict[Any, list[Any]] = {}
        self._epoch = file.epoch

    # -- coming up to date --------------------------------------------------------------------------------------

    def _refresh(self) -> Index:
        """Take note of what others changed; return the index. The caller holds the mutex."""
        commit = self._cells[_COMMIT]               # raises when closed
        if self._forked:
            self._reopen()
        elif commit != self._seen or commit & 1:
            state = self._cells[_STATE]
            if state != fmt.NORMAL and not self._file.check_path():
                self._follow()
            else:
                self._index.walk()
                # I5: odd means that a writer is inside, or died there: look again at the next access. So does
                # any mark (I13): who set it may die before it moves the counter again.
                self._seen = commit if state == fmt.NORMAL and not commit & 1 else -1
        if self._file.epoch != self._epoch:
            self._epoch = self._file.epoch          # windows were let go: do not hold on to them here
            self._arrays.clear()
        return self._index

    def _follow(self) -> bool:
        """Go on with the file that is at the path now; False: there is none, and the old one is kept."""
        try:
            file = open_file(self._path, "r+" if self._writable else "r")
        except FileNotFoundError:
            return False
        old = self._file
        self._attach(file)
        old.close()
        return True

    def _reopen(self) -> None:
        """In a forked child: descriptors, and with them the lock, are shared with the parent; get own ones."""
        if not self._follow():
            raise BusyError(2, "the file is gone, and a forked process cannot open it anew", self._path)
        self._forked = False

    def _after_fork(self) -> None:
        # Another thread of the parent may have held the mutex, or been inside an operation.
        self._mutex = threading.RLock()
        self._depth = 0
        self._forked = True

    # -- reading ------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        known = self._arrays.get(key)
        if known is not None and known[0] == self._cells[_COMMIT]:
            return _new(memmap, *known[1])
        return self._get(key)

    def _get(self, key: Any) -> Any:
        with self._mutex:
            index = self._refresh()
            offset = index.find(key)
            if offset is None:
                raise KeyError(key)
            known = self._arrays.get(key)
            if known is not None and known[2] == offset:
                known[0] = self._seen
                return _new(memmap, *known[1])
            return self._load(offset, key)

    def _load(self, offset: int, key: Any = _missing) -> Any:
        """Return the value of the record at `offset`; with a key, remember what its array needs."""
        info, record, at, view, base = self._info(offset)
        if info is None:
            ops = view[at - base:record.body_end - base]
            try:
                return decode_pickled(ops, self._cells[_MEMO])
            except CorruptError as exc:
                raise CorruptError(exc.message, self._path, at) from exc
        root = self._file.window(record.offset, record.end).root
        try:
            array = map_info(info, root)
        except (ValueError, TypeError) as exc:
            raise CorruptError(f"an array that numpy cannot make: {exc}", self._path, offset) from exc
        if key is not _missing and isinstance(info, ArrayInfo):
            if len(self._arrays) >= CACHED_ARRAYS:
                self._arrays.clear()
            arguments = (info.shape, info.dtype, root, info.offset - root.start, None, info.order)
            self._arrays[key] = [self._seen, arguments, offset]
        return array

    def _info(self, offset: int) -> tuple[Union[ArrayInfo, MaskedInfo, None], fmt.Record, int, memoryview, int]:
        try:
            record, _, at, view, base = self._index.read_head(offset)
            return decode_info(view, base, at, record.body_end), record, at, view, base
        except CorruptError as exc:
            raise CorruptError(exc.message, self._path, exc.offset) from exc

    def __contains__(self, key: object) -> bool:
        with self._mutex:
            return self._refresh().find(key) is not None

    def __len__(self) -> int:
        with self._mutex:
            return self._refresh().count()

    def snapshot(self) -> list[tuple[Any, int]]:
        with self._mutex:
            return self._refresh().snapshot()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the keys as they are now: changing the mapping meanwhile does no harm."""
        return iter([key for key, _ in self.snapshot()])

    def __reversed__(self) -> Iterator[Any]:
        return iter([key for key, _ in reversed(self.snapshot())])

    def each(self, snapshot: Iterable[tuple[Any, int]]) -> Iterator[tuple[Any, Any]]:
        """Yield items of a snapshot; values that were replaced or deleted since are still in the file."""
        file = self._file
        for key, offset in snapshot:
            with self._mutex:
                self._cells[_COMMIT]                # raises when closed
                if self._file is not file:          # the file was replaced as a whole
                    value = self.get(key, _missing)
                    if value is _missing:
                        continue
                else:
                    value = self._load(offset)
            yield key, value

    def keys(self) -> KeysView[Any]:
        """Return a live view of the keys, in the order of the file."""
        return Keys(self)

    def values(self) -> ValuesView[Any]:
        """Return a live view of the values, in the order of the file. Arrays are mapped, not loaded."""
        return Values(self)

    def items(self) -> ItemsView[Any, Any]:
        """Return a live view of the items, in the order of the file."""
        return Items(self)

    def copy(self) -> dict[Any, Any]:
        """Return a plain dict of the values: arrays in it are views of the file."""
        return dict(self.items())

    def entry(self, key: Any) -> Entry:
        """Return what is known of an item without loading its value.

        Raises
        ------
        KeyError
            There is no such key.

        Notes
        -----
        O(1), no byte of an array is read.
        """
        with self._mutex:
            offset = self._refresh().find(key)
            if offset is None:
                raise KeyError(key)
            return self._entry(key, offset)

    def _entry(self, key: Any, offset: int) -> Entry:
        info, record, at, _, _ = self._info(offset)
        size = record.end - record.offset
        if info is None:
            return Entry(key, values.VALUE, None, None, None, at, record.body_end - at, None, offset, size)
        if isinstance(info, MaskedInfo):
            data, mask = info.data, info.mask
            return Entry(key, values.MASKED, data.shape, data.dtype, data.order, data.offset, data.nbytes,
                         None if mask is None else mask.offset, offset, size)
        return Entry(key, values.ARRAY, info.shape, info.dtype, info.order, info.offset, info.nbytes, None, offset,
                     size)

    def entries(self) -> list[Entry]:
        """Return the `entry` of every item, in the order of the file. O(n)."""
        with self._mutex:
            return [self._entry(key, offset) for key, offset in self._refresh().snapshot()]

    def info(self) -> dict[str, Any]:
        """Return facts about the file.

        Returns
        -------
        dict
            ``path``, ``mode``; format ``version``; number of ``keys``; ``commit``; ``size`` of the file in
            bytes; ``used`` bytes, up to the STOP; of these ``live_bytes`` in the records of items and
            ``dead_bytes`` in replaced and deleted ones, which plain ``pickle.load`` reads and drops; next ``memo`` index; ``file_id`` as hexadecimal digits.
        """
        with self._mutex:
            index = self._refresh()
            cells = self._cells
            dead = cells[fmt.DEAD_OFFSET >> 3]
            return {"path": self._path, "mode": self._mode, "version": cells[fmt.VERSION_OFFSET >> 3],
                    "keys": index.count(), "commit": self.commit, "size": self._file.status().st_size,
                    "used": index.end + 1, "live_bytes": index.end - fmt.HEADER_SIZE - dead, "dead_bytes": dead,
                    "memo": cells[fmt.MEMO_OFFSET >> 3], "file_id": self._file.file_id.hex()}

    def __eq__(self, other: object) -> bool:
        """Whether `other` is a mapping of equal keys and values; arrays are equal element by element."""
        if not isinstance(other, Mapping):
            return NotImplemented
        mine = self.copy()
        return equal(mine, other)

    def __or__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        if not isinstance(other, Mapping):
            return NotImplemented
        return {**self.copy(), **other}

    def __ror__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        if not isinstance(other, Mapping):
            return NotImplemented
        return {**other, **self.copy()}

    def __ior__(self, other: Any) -> MmapDict:      # type: ignore[misc]
        self.update(other)
        return self

    def __repr__(self) -> str:
        if self._closed:
            return f"MmapDict({self._given!r}, {self._mode!r}): closed"
        with self._mutex:
            snapshot = self._refresh().snapshot()
            shown = [f"{key!r}: {_summary(self._entry(key, offset))}" for key, offset in snapshot[:10]]
        if len(snapshot) > 10:
            shown.append(f"... {len(snapshot) - 10} more")
        return f"MmapDict({self._given!r}, {self._mode!r}): {{{', '.join(shown)}}}"

    # -- changing -----------------------------------------------------------------------------------------------

    def _need_writable(self) -> None:
        commit = self._cells[_COMMIT]               # raises when closed
        if not self._writable:
            raise ReadOnlyError(f'{self._path} was opened with mode "r" (at commit {commit >> 1}); open it with '
                                '"r+" or "a" to change it')

    def _begin(self) -> Index:
        """Take the mutex and the writers' lock and come up to date; `_end` or `_abandon` must follow."""
        if not self._writable or self._closed:
            self._need_writable()
        self._mutex.acquire()
        try:
            if not self._depth:
                if self._forked:
                    self._reopen()
                while not self._file.lock():
                    self._file.unlock()
                    if not self._follow():
                        raise BusyError(2, "the file was deleted or moved away under this handle", self._path)
                cells = self._cells
                if cells[_COMMIT] != self._seen or self._fresh or cells[_STATE] != fmt.NORMAL:
                    self._come_up_to_date()
            self._depth += 1
        except BaseException:
            self._mutex.release()
            raise
        return self._index

    def _come_up_to_date(self) -> None:
        """Under a fresh lock, see what others did."""
        try:
            self._index.begin()
            self._fresh = False
            self._seen = self._cells[_COMMIT]
        except BaseException:
            self._file.unlock()
            raise

    def _end(self) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                self._seen = self._cells[_COMMIT]
                self._file.unlock()
        finally:
            self._mutex.release()

    def _abandon(self) -> None:
        """After an exception: what this handle knows may be half true; ask the file anew.

        If it happened inside a sequence of stores, the counter is odd, and the next writer mends the file (I9).
        """
        self._depth -= 1
        try:
            self._index = Index(self._file)
            self._arrays.clear()
            self._seen = -1
            if self._depth == 0:
                self._file.unlock()
        finally:
            self._mutex.release()

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self._writable:
            self._need_writable()
        key = plain_key(key)
        parts = key_parts(key)
        memo = self._cells[_MEMO]
        if not fmt.MEMO_START <= memo < fmt.MEMO_END:
            memo = fmt.MEMO_START                   # nonsense, which `_begin` will mend
        encoded = values.encode(value, memo)
        index = self._begin()
        try:
            index.put(key, parts, encoded)
        except BaseException:
            self._abandon()
            raise
        self._end()

    def __delitem__(self, key: Any) -> None:
        index = self._begin()
        try:
            offset = index.find(key)
            if offset is not None:
                index.remove(key, offset)
                self._arrays.pop(key, None)
        except BaseException:
            self._abandon()
            raise
        self._end()
        if offset is None:
            raise KeyError(key)

    def create(self, key: Any, shape: Union[int, Iterable[int]], dtype: Any = float, *, order: Order = "C",
               mask: bool = False, sparse: bool = False) -> Any:
        """Make a hole: an array of zeros, to be filled through the map.

        Parameters
        ----------
        key : object
            Must not exist yet.
        shape : int or iterable of int
        dtype : dtype
            Without Python objects.
        order : {"C", "F"}
        mask : bool
            Make it a masked array, no element masked.
        sparse : bool
            False: its bytes get their place on the disk now, so that filling cannot fail. True: when they are
            written; on a full disk that ends the process (SIGBUS).

        Returns
        -------
        numpy.memmap or numpy.ma.MaskedArray
            Writable. Other processes see the key at once, and its elements as they are set.

        Raises
        ------
        ValueError
            The key exists, or the shape or the order makes no sense.
        TypeError
            The key is refused, or the dtype holds objects.
        OSError
            There is no room (ENOSPC); the file is as before.

        Notes
        -----
        Costs no memory and writes no element. A reader cannot tell zero from not yet filled.

        Examples
        --------
        >>> with MmapDict("doctest.mmapdict", "w") as d:
        ...     a = d.create("frame", (480, 640), "u2")
        ...     a[10] = 3
        ...     int(d["frame"].sum())
        1920
        """
        self._need_writable()
        key = plain_key(key)
        parts = key_parts(key)
        sizes = _shape(shape)
        if order not in ("C", "F"):
            raise ValueError(f'order {order!r}: expected "C" or "F"')
        encoded = values.encode_hole(sizes, np.dtype(dtype), order, mask)
        index = self._begin()
        try:
            exists = index.find(key) is not None
            if not exists:
                offset = index.put(key, parts, encoded, sparse)
        except BaseException:
            self._abandon()
            raise
        self._end()
        if exists:
            raise ValueError(f"the key {key!r} exists; delete it first, or assign to it to replace it")
        with self._mutex:
            hole = self._load(offset)
            entry = self._entry(key, offset)
            self._file.advise_fill(entry.record, entry.record + entry.record_nbytes)
        return hole

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return ``self[key]``, after setting it to `default` if it was missing, in one step."""
        index = self._begin()
        try:
            if index.find(key) is None:
                self[key] = default
            value = self._get(key)
        except BaseException:
            self._abandon()
            raise
        self._end()
        return value

    def pop(self, key: Any, default: Any = _missing) -> Any:
        """Remove a key and return its value; an array stays valid. Missing: `default`, or KeyError."""
        index = self._begin()
        value = default
        try:
            offset = index.find(key)
            if offset is not None:
                value = self._load(offset)
                index.remove(key, offset)
                self._arrays.pop(key, None)
        except BaseException:
            self._abandon()
            raise
        self._end()
        if value is _missing:
            raise KeyError(key)
        return value

    def popitem(self) -> tuple[Any, Any]:
        """Remove the last item, in the order of the file, and return it; KeyError if there is none."""
        index = self._begin()
        item: Any = None
        try:
            snapshot = index.snapshot()
            if snapshot:
                key, offset = snapshot[-1]
                item = key, self._load(offset)
                index.remove(key, offset)
                self._arrays.pop(key, None)
        except BaseException:
            self._abandon()
            raise
        self._end()
        if item is None:
            raise KeyError("popitem(): the mapping is empty")
        return item     # type: ignore[no-any-return]

    def clear(self) -> None:
        """Remove all items, in one step. Arrays that were handed out stay valid."""
        index = self._begin()
        try:
            index.clear()
            self._arrays.clear()
        except BaseException:
            self._abandon()
            raise
        self._end()

    # -- following others ---------------------------------------------------------------------------------------

    @property
    def commit(self) -> int:
        """How often the file was changed; elements set through a map do not count. Two equal: no change."""
        commit: int = self._cells[_COMMIT]
        return commit >> 1

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until keys were added, replaced or removed since the last call (the first: since opening).

        Parameters
        ----------
        timeout : float, optional
            In seconds; None: for ever.

        Returns
        -------
        bool
            Whether there was a change. False: the time is over.

        Notes
        -----
        Looks at one mapped number, every 0.1 ms at first and every 1 ms after a while. Takes no lock. Changes
        by this handle count too.
        """
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        check_path = now + PATH_CHECK_S
        for delay in store.poll_delays():
            commit = self._cells[_COMMIT]
            if commit != self._waited or commit & 1:
                with self._mutex:
                    self._refresh()                 # it may lead to another file, with its own counter
                    commit = self._cells[_COMMIT]
                if commit != self._waited:
                    self._waited = commit
                    return True
            now = time.monotonic()
            if now >= check_path:
                check_path = now + PATH_CHECK_S
                if not self._file.check_path() and self._replaced():
                    return True
            if deadline is not None and now >= deadline:
                return False
            time.sleep(delay if deadline is None else max(0.0, min(delay, deadline - now)))
        raise AssertionError("unreachable: the delays never end")

    def _replaced(self) -> bool:
        """Go on with the file that took this one's place, if one did; say whether."""
        with self._mutex:
            try:
                followed = self._follow()
            except FormatError:
                return False                        # not one of ours: keep the old one
            if followed:
                self._waited = self._cells[_COMMIT]
            return followed

    def watch(self, timeout: Optional[float] = None) -> Iterator[Change]:
        """Yield what changes, as it changes.

        Parameters
        ----------
        timeout : float, optional
            In seconds: end when nothing happened for so long. None: go on for ever.

        Yields
        ------
        Change
            Keys that were added, replaced (their records are others) and removed since the last one. What is
            in the file when iteration begins is not reported.

        Notes
        -----
        Costs O(keys) at each change.
        """
        file, before = self._file, dict(self.snapshot())
        while self.wait(timeout):
            after = dict(self.snapshot())
            same = self._file is file
            change = Change([k for k in after if k not in before],
                            [k for k in after if k in before and not (same and after[k] == before[k])],
                            [k for k in before if k not in after])
            file, before = self._file, after
            if any(change):
                yield change

    # -- disk, life and death -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when all data, elements set through maps included, are on the disk.

        Other processes need no flush: they see everything at once.
        """
        with self._mutex:
            self._cells[_COMMIT]                    # raises when closed
            if self._writable:
                self._file.sync()

    def sync(self) -> None:
        """Return when all that was stored so far, and the file's name in its folder, survive a power cut.

        Raises
        ------
        OSError
            The disk reports an error: do not count on what was stored since the last `sync`.
        """
        with self._mutex:
            self._cells[_COMMIT]                    # raises when closed
            if self._writable:
                self._file.sync(folder=True)

    def close(self) -> None:
        """Close the handle. Arrays that it handed out stay valid, and writable if they were.

        Calling it again does nothing. It waits for nobody.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._unclosed.detach()
            self._cells = _Closed(self._path)
            self._arrays = {}
            try:
                if self._writable and not self._forked:
                    with suppress(CorruptError):
                        self._index.walk()
                    self._file.trim(self._index.end)
            finally:
                self._file.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def path(self) -> str:
        """Absolute path of the file."""
        return self._path

    @property
    def mode(self) -> str:
        """The mode that the file was opened with."""
        return self._mode

    def __enter__(self) -> MmapDict:
        self._cells[_COMMIT]                        # raises when closed
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Pickle and copy by reference: the copy opens the path anew."""
        return MmapDict, (self._path, "r+" if self._writable else "r")


def open(path: Union[str, bytes, Any], mode: str = "a") -> MmapDict:
    """Open a file as a dictionary. See `MmapDict` for parameters and errors.

    Examples
    --------
    >>> with open("doctest.mmapdict", "w") as d:
    ...     d["answer"] = 42
    >>> with open("doctest.mmapdict", "r") as d:
    ...     dict(d)
    {'answer': 42}
    """
    return MmapDict(path, mode)


def _shape(shape: Union[int, Iterable[int]]) -> tuple[int, ...]:
    """Return a shape as a tuple of Python ints."""
    try:
        sizes: tuple[int, ...] = (int(shape.__index__()),)      # type: ignore[union-attr]
    except AttributeError:
        sizes = tuple(int(n.__index__()) for n in shape)    # type: ignore[union-attr]
    if any(n < 0 for n in sizes):
        raise ValueError(f"negative sizes in the shape {sizes}")
    if len(sizes) > 64:
        raise ValueError(f"{len(sizes)} dimensions; numpy has at most 64 (32 before numpy 2)")
    return sizes


def _summary(entry: Entry) -> str:
    if entry.kind == values.VALUE:
        return f"value of {entry.nbytes} bytes"
    kind = "array" if entry.kind == values.ARRAY else "masked array"
    return f"{kind} {entry.shape} {entry.dtype}"


def _warn_unclosed(path: str) -> None:
    warnings.warn(f"unclosed mmapdict file {path}", ResourceWarning, stacklevel=2)


def _renew_handles() -> None:
    for reference in list(_handles.values()):
        handle = reference()
        if handle is not None:
            handle._after_fork()


store.after_fork_in_child(_renew_handles)
