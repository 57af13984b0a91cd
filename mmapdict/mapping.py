"""`MmapDict`: a dictionary in one file that is a valid pickle at every instant.

Thin: it joins the layers below, and keeps what belongs to one handle: its mode, its threads' mutex, and a cache
of what is needed to hand an array out again.
"""
from __future__ import annotations

import errno
import functools
import operator
import os
import time
import warnings
import weakref
from _thread import RLock              # as in threading, whose import takes half a millisecond
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Union

import numpy as np

from . import format as fmt
from . import store
from .arrays import (ArrayInfo, Column, EncodedArray, GrowableInfo, Info, MaskedInfo, Order, Tree, decode_info,
                     map_info, map_rows, same_dtype)
from .birth import MODES, open_file, replacement
from .blocks import Batch, Exclusive, Extension
from .errors import BusyError, ClosedError, CorruptError, FormatError, ReadOnlyError, UntrustedError
from .index import Index
from .literals import encode_literal, key_parts, plain_key
from .views import Hole, Root, make_hole, memmap, read_only, root_of

# Imported inside of functions too, where the comment is "later": a process that only reads arrays is not to wait for
# what it does not need.
if TYPE_CHECKING:
    from .dictviews import Entry
    from .notice import Noticing
    from .trust import Trust
    from .values import Encoded
    from .verify import Report
    from .watching import Change, Watcher
    from .writer import Writer

CACHED_ARRAYS = 1 << 17
PATH_CHECK_S = 0.1          # how often `wait` looks whether the path leads elsewhere

_COMMIT = fmt.COMMIT_CELL
_STATE = fmt.STATE_CELL
_MEMO = fmt.MEMO_CELL
_SYNCED = fmt.SYNCED_CELL
_new = np.ndarray.__new__
_missing: Any = object()
# Which file, and which commit of it.
_Moment = tuple[tuple[int, int, bytes], int]
_gone: Any = object()

# A value of `_seen`, which is else a commit or -1: an operation was broken off, and the index may be half true.
DOUBT = -2

_handles: dict[int, weakref.ref[MmapDict]] = {}


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
        The file. Nothing else is left beside it, but by a process that was killed while it put a new file in its place.
    mode : str
        ``"r"``: read only, takes no lock and writes nothing. ``"r+"``: the file must exist. ``"a"``: it is
        created if missing. ``"w"``: it starts anew; a file that is there is replaced in one step. ``"x"``: it
        must not exist. Captures want ``"a"`` or ``"x"``: ``"w"`` also takes the file from a running writer.
    durable : bool
        Each change is on the disk, and survives a power cut, when the call returns. It costs two waits for the
        disk. Elements that are set through a map need `flush` or `sync`.
    timeout : float, optional
        How long a change waits for other writers, in seconds, before it raises BusyError. None: for ever.
    trusted : bool
        Unpickle whatever values name, which can run any code: for files of people whom you trust like their programs.
    allow : iterable of classes and functions
        What values may name besides what is always allowed. See Notes.

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

    - change: ``d[k] = v``, ``del d[k]``, `create`, `update`, `setdefault`, `pop`, `popitem`, `clear`; `batch`: several
      changes in one step
    - look: ``d[k]``, `get`, ``in``, ``len``, `keys`, `values`, `items`, `copy`, `entry`, `entries`, `info`
    - follow others: `commit`, `wait`, `watch`
    - disk: `flush`, `sync`, `close`
    - upkeep: `free_bytes`, `vacuum`, `verify`, `seal`, `sealed`, `unseal`

    Keys are str, bytes, int, float, bool, None and tuples of them; ``1 == 1.0 == True`` is one key. numpy scalars
    that equal one of these are stored as that. The order is that of the file, the same that ``pickle.load`` gives:
    a replaced item moves to the end.

    What survives: once an assignment has returned, other processes see it, and a killed process cannot take it
    back. `sync` makes it survive a power cut.

    A value that is not an array is a copy: changing it does not change the file; assign it again.

    Reading a file runs no code that it names. Arrays are decoded by their grammar; other values may be made of
    Python's own types, what the standard library has for values (datetime, decimal, pathlib, collections, ...), numpy,
    pandas, scipy.sparse and xarray. More is named by `allow`: ``allow=[MyClass]``. Reading, or storing, any
    other value raises UntrustedError. ``pickle.load`` has no such guard, and needs every value to unpickle where it
    runs: keep to arrays and builtin types in files for others.

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

    def __init__(self, path: Union[str, bytes, Any], mode: str = "a", *, durable: bool = False,
                 timeout: Optional[float] = None, trusted: bool = False, allow: Iterable[Any] = ()) -> None:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}: expected one of {', '.join(map(repr, MODES))}")
        self._given = path if isinstance(path, str) else store.full_path(path)
        self._path = store.full_path(path)
        self._mode = mode
        self._durable = bool(durable)
        self._timeout = _seconds(timeout)
        self._allow = tuple(allow)
        self._trusted = bool(trusted)
        if self._allow:
            self._trust                             # raises if it is no list of classes and functions
        self._writable = mode != "r"
        self._mutex = RLock()
        self._busy = False          # inside an operation that changes the file
        self._closed = False
        self._forked = False
        self._given_up: list[Extension] = []
        self._exclusive = 0         # so many blocks of `exclusive`, one in the other, keep the lock
        self._attach(open_file(self._path, mode, self._timeout, self._durable))
        self._waited = self._moment()
        self._unclosed = weakref.finalize(self, _warn_unclosed, self._path)
        self._unclosed.atexit = False           # the end of the interpreter is no reason for a warning
        _handles[id(self)] = weakref.ref(self)
        weakref.finalize(self, _handles.pop, id(self), None).atexit = False

    @functools.cached_property
    def _trust(self) -> Trust:
        from .trust import Trust                    # later: with the first value that is no array
        return Trust(self._trusted, self._allow)

    def _make_index(self, file: store.File) -> Writer:
        if not self._writable:
            return Index(file)                      # type: ignore[return-value]  # nothing of a Writer's is called
        # Later: with the first handle that may write, and all of it. A child that is forked while another thread
        # imports a module would wait for it for ever.
        from . import pickling, trust               # noqa: F401
        from .writer import Writer

        return Writer(file, self._durable)

    def _attach(self, file: store.File) -> None:
        """Begin to work on `file`."""
        try:
            index = self._make_index(file)
            seen = file.cells[_COMMIT]
            index.walk()
            index.check_end()
        except BaseException as exc:
            file.close()
            store.forget_frames(exc)            # else the error would hold the map, and with it a descriptor
            raise
        self._file = file
        self._index = index
        self._cells: Any = file.cells
        self._seen = -1 if seen & 1 else seen
        self._fresh = True          # no writer's lock was taken yet
        # Key -> [commit at which it was known to be live, arguments of ndarray.__new__, offset of the record]
        self._arrays: dict[Any, list[Any]] = {}
        self._epoch = file.epoch
        self._noticing: Optional[Noticing] = None
        self._grown: set[Any] = set()       # keys of arrays to which this handle added rows

    # -- coming up to date --------------------------------------------------------------------------------------

    def _refresh(self) -> Writer:
        """Take note of what others changed; return the index. The caller holds the mutex."""
        commit = self._cells[_COMMIT]               # raises when closed
        if commit != self._seen or commit & 1:
            if self._seen == DOUBT:
                self._ask_anew()
            state = self._cells[_STATE]
            if state == fmt.NORMAL or self._file.check_path() or not self._follow():
                if self._index.seal is not None:
                    self._arrays.clear()            # perhaps they may be written to by now
                self._index.walk()
                # I5: odd means that a writer is inside, or died there: look again at the next access. So does
                # any mark (I13): who set it may die before it moves the counter again.
                self._seen = commit if state == fmt.NORMAL and not commit & 1 else -1
        if self._file.epoch != self._epoch:
            self._epoch = self._file.epoch          # windows were let go: do not hold on to them here
            self._arrays.clear()
        return self._index

    def _ask_anew(self) -> None:
        """Forget what this handle knows of the keys; the next walk finds it again."""
        reserved = self._index.reserved if self._writable else set()
        self._index = self._make_index(self._file)
        if reserved:
            self._index.reserved = reserved         # `extend` has handed them out
        self._arrays.clear()
        self._seen = -1

    def _follow(self) -> bool:
        """Go on with the file that is at the path now; False: there is none, and the old one is kept."""
        try:
            file = open_file(self._path, "r+" if self._writable else "r", self._timeout, self._durable)
        except FileNotFoundError:
            return False
        old = self._file
        self._attach(file)
        self._forked = False
        old.close()
        return True

    def _after_fork(self) -> None:
        # Another thread of the parent may have held the mutex, or been inside an operation. Descriptors, and with
        # them the lock, are shared with the parent: good enough to read, but to write the child needs its own.
        if self._busy or not self._mutex.acquire(blocking=False):
            self._seen = DOUBT
        if self._index.batch is not None:
            self._index.batch = None                # it is the parent's
            self._seen = DOUBT
        if self._exclusive:
            self._exclusive = 0                     # the lock is the parent's
            self._seen = DOUBT
        self._mutex = RLock()
        self._noticing = None
        self._busy = False
        if self._writable and not self._forked and not self._closed:
            self._file.drop_lock()
        self._forked = self._writable

    def _moment(self) -> _Moment:
        """Return what tells one state of the file from any other: which file it is, and its commit."""
        return self._file.fingerprint, self._file.cells[_COMMIT]

    # -- reading ------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        """Return the value of a key: of an array a view of the file, of anything else a copy.

        Raises
        ------
        KeyError
            There is no such key.
        UntrustedError, CorruptError
            The value names what is not allowed, or is damaged. Only this value is refused.
        """
        known = self._arrays.get(key)
        if known is not None and known[0] == self._cells[_COMMIT]:
            return _new(memmap, *known[1])
        return self._get(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return ``self[key]``, or `default` if there is no such key."""
        return self._get(key, default)      # a KeyError that loading the value raises comes through

    def _get(self, key: Any, default: Any = _missing) -> Any:
        with self._mutex:
            index = self._refresh()
            offset = index.find(key)
            if offset is None:
                if default is _missing:
                    raise KeyError(key)
                return default
            known = self._arrays.get(key)
            if known is not None and known[2] == offset:
                known[0] = self._seen
                return _new(memmap, *known[1])
            return self._load(offset, key)

    def _load(self, offset: int, key: Any = _missing) -> Any:
        """Return the value of the record at `offset`; with a key, remember what its array needs."""
        info, record, at, view, base = self._info(offset, encode_literal(key) if type(key) is str else b"")
        if info is None:
            ops = view[at - base:record.body_end - base]
            try:
                return self._trust.decode(ops)
            except CorruptError as exc:
                raise CorruptError(exc.message, self._path, at) from exc
            except UntrustedError as exc:
                key = self._index.read_head(offset)[1]
                raise UntrustedError(f"{self._path}: the value of {key!r}: {exc.message}", exc.name) from exc
            except ModuleNotFoundError as exc:
                key = self._index.read_head(offset)[1]
                raise ModuleNotFoundError(f"{self._path}: the value of {key!r} needs the module {exc.name}, which is "
                                          "not installed here", name=exc.name) from exc
            except Exception as exc:
                self._note(exc, "reading", self._index.read_head(offset)[1])
                raise
        root, start = self._root(record.offset, record.end)
        try:
            array = map_info(info, root, start)
        except (ValueError, TypeError) as exc:
            raise CorruptError(f"an array that numpy cannot make: {exc}", self._path, offset) from exc
        # A structured dtype is not shared between the arrays handed out: its names can be changed in place.
        batch = self._index.batch
        if batch is not None:
            batch.handed_out = batch.handed_out or offset >= self._index.end
        elif key is not _missing and isinstance(info, ArrayInfo) and info.dtype.names is None:
            if len(self._arrays) >= CACHED_ARRAYS:
                self._arrays.clear()
            arguments = (info.shape, info.dtype, root, info.offset - start, None, info.order)
            self._arrays[key] = [self._seen, arguments, offset]
        return array

    def _root(self, start: int, end: int) -> tuple[Root, int]:
        """Return what the array in a piece of a record is a view of, and the offset of its first byte."""
        root = self._file.window(start, end).root
        index = self._index                         # in a batch there may be records behind the seal
        keep = self._writable and index.sealed and start < index.end
        return (read_only(root) if keep else root), root.start

    def _rows(self, info: GrowableInfo, tree: Tree) -> Any:
        """Return a part of the columns of a growable value as arrays. The caller holds the mutex."""
        root, start = self._root(info.start, info.body_end)
        try:
            return map_rows(info, tree, 0, info.count, root, start)
        except (ValueError, TypeError) as exc:
            raise CorruptError(f"an array that numpy cannot make: {exc}", self._path, info.count_at) from exc

    def _info(self, offset: int, ops: bytes = b"") -> tuple[Optional[Info], fmt.Record, int, memoryview, int]:
        try:
            record, _, at, view, base = self._index.read_head(offset, ops)
            info = decode_info(view, base, at, record.body_end, record.covered)
            # I10: an unpickler must find the globals that the recipe fetches, so they stand before it.
            groups = () if info is None else (fmt.ARRAYS, fmt.MASKS) if isinstance(info, MaskedInfo) else (fmt.ARRAYS,)
            if any(self._index.groups.get(group, offset) >= offset for group in groups):
                raise CorruptError("an array without the globals that it needs: their record is dead or damaged",
                                   None, offset)
            return info, record, at, view, base
        except CorruptError as exc:
            raise CorruptError(exc.message, self._path, exc.offset) from exc

    def __contains__(self, key: object) -> bool:
        with self._mutex:
            return self._refresh().find(key) is not None

    def __len__(self) -> int:
        with self._mutex:
            return self._refresh().count()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the keys as they are now: changing the mapping meanwhile does no harm."""
        return iter([key for key, _ in self._snapshot()[1]])

    def __reversed__(self) -> Iterator[Any]:
        return iter([key for key, _ in reversed(self._snapshot()[1])])

    def _ipython_key_completions_(self) -> list[str]:
        return [key for key in self if isinstance(key, str)]

    def _snapshot(self) -> tuple[store.File, list[tuple[Any, int]]]:
        """Return all keys and the offsets of their records, in order, and the file that these belong to."""
        with self._mutex:
            snapshot = self._refresh().snapshot()
            return self._file, snapshot

    def _each(self, backwards: bool = False) -> Iterator[tuple[Any, Any]]:
        """Return an iterator over the items as they are at this moment (not at its first step)."""
        file, snapshot = self._snapshot()
        return self._values_of(file, snapshot[::-1] if backwards else snapshot)

    def _values_of(self, file: store.File, snapshot: list[tuple[Any, int]]) -> Iterator[tuple[Any, Any]]:
        # Values that were replaced or deleted since are still in the file.
        for key, offset in snapshot:
            with self._mutex:
                self._cells[_COMMIT]                # raises when closed
                if self._file is not file:          # the file was replaced as a whole
                    value = self._get(key, _gone)
                    if value is _gone:
                        continue
                else:
                    value = self._load(offset)
            yield key, value

    def keys(self) -> KeysView[Any]:
        """Return a live view of the keys, in the order of the file."""
        from .dictviews import Keys         # later

        self._cells[_COMMIT]                        # raises when closed
        return Keys(self)

    def values(self) -> ValuesView[Any]:
        """Return a live view of the values, in the order of the file. Arrays are mapped, not loaded."""
        from .dictviews import Values       # later

        self._cells[_COMMIT]                        # raises when closed
        return Values(self)

    def items(self) -> ItemsView[Any, Any]:
        """Return a live view of the items, in the order of the file."""
        from .dictviews import Items        # later

        self._cells[_COMMIT]                        # raises when closed
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
        from .dictviews import entry_of             # later

        info, record, at, _, _ = self._info(offset)
        return entry_of(key, offset, info, at, record.body_end, record.end - record.offset)

    def entries(self) -> list[Entry]:
        """Return the `entry` of every item, in the order of the file. O(n)."""
        from .dictviews import entry_of             # later

        with self._mutex:
            index = self._refresh()
            snapshot = index.snapshot()
            described = None if index.batch is not None else index.describe([offset for _, offset in snapshot])
            if described is None:
                return [self._entry(key, offset) for key, offset in snapshot]
            heads, infos = described
            return [entry_of(key, offset, info, at, body_end, end - offset)
                    for (key, offset), info, at, body_end, end
                    in zip(snapshot, infos, heads.at.tolist(), heads.body_end.tolist(), heads.end.tolist())]

    def info(self) -> dict[str, Any]:
        """Return facts about the file.

        Returns
        -------
        dict
            ``path``, ``mode``; format ``version``; number of ``keys``; ``commit``; ``size`` of the file in
            bytes; ``used`` bytes, up to the STOP; of these ``live_bytes`` in live records and
            ``dead_bytes`` in replaced and deleted ones, which plain ``pickle.load`` reads and drops, and ``free_bytes``
            that `vacuum` would give back; whether it is ``sealed``; next ``memo`` index; ``file_id`` as hexadecimal
            digits.
        """
        with self._mutex:
            index = self._refresh()
            cells = self._cells
            dead = cells[fmt.DEAD_CELL]
            return {"path": self._path, "mode": self._mode, "version": cells[fmt.VERSION_OFFSET >> 3],
                    "keys": index.count(), "commit": self.commit, "size": self._file.status().st_size,
                    "used": index.end + 1, "live_bytes": index.end - fmt.HEADER_SIZE - dead, "dead_bytes": dead,
                    "free_bytes": index.waste(), "sealed": index.sealed, "memo": cells[fmt.MEMO_CELL],
                    "file_id": self._file.file_id.hex()}

    def __eq__(self, other: object) -> bool:
        """Whether `other` is a mapping of equal keys and values; arrays are equal element by element."""
        from .dictviews import equal                # later

        if not isinstance(other, Mapping):
            return NotImplemented
        mine = self.copy()
        return other is self or equal(mine, other)

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
            shown = [f"{key!r}: {self._summary(key, offset)}" for key, offset in snapshot[:10]]
        if len(snapshot) > 10:
            shown.append(f"... {len(snapshot) - 10} more")
        return f"MmapDict({self._given!r}, {self._mode!r}): {{{', '.join(shown)}}}"

    def _summary(self, key: Any, offset: int) -> str:
        try:
            entry = self._entry(key, offset)
        except CorruptError:
            return "damaged"
        if entry.kind == "table":
            return f"table of {entry.shape[0]} rows"        # type: ignore[index]
        if entry.dtype is None:
            return f"value of {entry.nbytes} bytes"
        kind = {"array": "array", "masked": "masked array"}.get(entry.kind, "growable array")
        return f"{kind} {entry.shape} {entry.dtype}"

    # -- changing -----------------------------------------------------------------------------------------------

    def _need_writable(self) -> None:
        self._cells[_COMMIT]                        # raises when closed
        if not self._writable:
            raise ReadOnlyError(f'{self._path} was opened with mode "r"; open it with "r+" or "a" to change it')

    def _change(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Return ``operation(index, *args)``, called under the mutex and the writers' lock.

        No code of the user's may run inside: it could wait for another who waits for the lock.

        An exception can come between any two steps, Ctrl-C for instance. Then what this handle knows is in doubt,
        and if it came inside a sequence of stores, the counter is odd, and the next writer mends the file (I9).
        Mutex and lock are given back by functions written in C: such an exception cannot come before they ran.
        """
        with self._mutex:
            if not self._writable or self._closed:
                self._need_writable()
            if self._busy:
                raise BusyError(errno.EDEADLK, "a signal handler or finalizer that came in the middle of a change "
                                "cannot make another; let it set a flag", self._path)
            if self._exclusive or self._index.batch is not None:
                return self._change_inside(operation, *args)
            try:
                self._busy = True
                file = self._lock()
                if self._index.seal is not None:
                    self._arrays.clear()            # they are read-only
                result = operation(self._index, *args)
                self._seen = file.cells[_COMMIT]
                return result
            except BaseException:
                self._seen = DOUBT
                raise
            finally:
                self._busy = False
                self._file.unlock()
                if self._closed:
                    self._shut()                    # a signal handler called `close`

    def _lock(self) -> store.File:
        """Take the writers' lock and come up to date; return the file. The caller has the mutex, and unlocks."""
        file = self._file
        if self._exclusive:
            if self._seen == DOUBT:
                self._ask_anew()
                self._index.begin()
            return file
        while self._forked or not file.lock():
            if not self._forked:
                file.unlock()
            if not self._follow():
                raise FileNotFoundError(errno.ENOENT, "the file is gone, and a forked process cannot open it anew"
                                        if self._forked else "the file was deleted or moved away under this handle",
                                        self._path)
            file = self._file
        cells = file.cells
        if cells[_COMMIT] != self._seen or self._fresh or cells[_STATE] != fmt.NORMAL:
            if self._seen == DOUBT:
                self._ask_anew()
            self._index.begin()
            self._fresh = False
        return file

    def _change_inside(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Do as `_change`, inside a batch or an exclusive block, which holds the lock."""
        batch = self._index.batch
        try:
            self._busy = True
            if batch is not None:
                return operation(self._index, *args)
            file = self._lock()
            if self._index.seal is not None:
                self._arrays.clear()
            result = operation(self._index, *args)
            self._seen = file.cells[_COMMIT]
            return result
        except BaseException as exc:
            if batch is None:
                self._seen = DOUBT
            elif not batch.whole or not isinstance(exc, Exception) or isinstance(exc, CorruptError):
                # The index may know half of what was done. Errors that come before anything is written are no harm.
                batch.broken = True
            raise
        finally:
            self._busy = False
            while self._given_up:
                self._leave_extension(self._given_up.pop())
            if self._closed:
                self._shut()

    def batch(self) -> Batch:
        """Return a context manager in whose block all changes by this handle become one.

        They appear together when the block ends, to `pickle.load` too, and survive together. If an exception ends
        it, or the process dies before, none of them happened.

        Returns
        -------
        Batch
            ``with d.batch():`` gives `d` itself.

        Raises
        ------
        ReadOnlyError
        BusyError
            In a block of this handle's already, or other writers had the lock for longer than `timeout`.

        Notes
        -----
        Values are written to the file at once, behind its end, so that a batch costs no memory. This handle sees
        the changes in the block. Until it ends other writers wait, and so do other threads that use this handle.
        Elements set through a map, of arrays that were there before, are no part of it.

        Examples
        --------
        >>> with MmapDict("doctest.mmapdict", "w") as d:
        ...     with d.batch():
        ...         d["mean"], d["std"] = 1.0, 0.5
        ...     list(d)
        ['mean', 'std']
        """
        return Batch(self)

    def _begin_batch(self) -> None:
        self._mutex.acquire()
        try:
            self._need_writable()
            if self._busy or self._index.batch is not None:
                raise BusyError(errno.EDEADLK, "this handle is inside a change or a batch already", self._path)
            try:
                self._seen = self._lock().cells[_COMMIT]
                self._index.begin_batch()
                self._arrays.clear()                # they would be taken for up to date as long as commit stays
                self._file.hold(True)
            except BaseException:
                self._index.batch = None
                self._seen = DOUBT
                if not self._exclusive:
                    self._file.unlock()
                raise
        except BaseException:
            self._mutex.release()
            raise

    def _end_batch(self, mutex: Any, good: bool) -> None:
        index, file = self._index, self._file
        try:
            if index.batch is None:
                if self._closed:
                    raise ClosedError(f"{self._path} was closed inside its batch, of which nothing is stored")
                raise BusyError(errno.ECHILD, "this process was forked inside a batch, which is its parent's",
                                self._path)
            if good and not index.batch.broken:
                index.commit()
                self._seen = file.cells[_COMMIT]
            elif good:
                raise BusyError(errno.EINTR, "an exception broke off a change of this batch half way, so nothing of "
                                "the batch is stored", self._path)
        except BaseException:
            self._seen = DOUBT
            raise
        finally:
            try:
                if index.batch is not None:
                    self._seen = DOUBT              # the index knows what is given up now
                    if index.batch.end != index.end:
                        index.abandon()
                    index.batch = None
            finally:
                if not self._forked and not self._exclusive:
                    file.hold(False)
                    file.unlock()
                mutex.release()

    def exclusive(self, timeout: Optional[float] = None) -> Exclusive:
        """Return a context manager in whose block this handle keeps the writers' lock.

        Each change is visible as it happens, as without the block; but nobody else's comes in between, and they are
        faster, most of all `append`.

        Parameters
        ----------
        timeout : float, optional
            How long to wait for other writers, in seconds; None: as long as the handle's own timeout says.

        Returns
        -------
        Exclusive
            ``with d.exclusive():`` gives `d` itself. Blocks may stand in each other.

        Raises
        ------
        BusyError
            Others had the lock for longer; or in a batch.
        ReadOnlyError

        Notes
        -----
        Until the block ends other writers wait, and other threads that use this handle.

        Examples
        --------
        >>> with MmapDict("doctest.mmapdict", "w") as d:
        ...     with d.exclusive():
        ...         for i in range(3):
        ...             d.append("squares", i * i)
        ...     d["squares"].tolist()
        [0, 1, 4]
        """
        return Exclusive(self, _seconds(timeout))

    def _begin_exclusive(self, timeout: Optional[float] = None, many: bool = False) -> None:
        """Take the lock for several changes; for `many`, rows are stored through the map.

        The first store into a page there can cost a millisecond.
        """
        self._mutex.acquire()
        try:
            self._need_writable()
            if self._index.batch is not None:
                raise BusyError(errno.EDEADLK, "not inside a batch: rows appear at once, and so do all changes of an "
                                "exclusive block", self._path)
            if self._busy:
                raise BusyError(errno.EDEADLK, "this handle is inside a change already", self._path)
            if not self._exclusive:
                file = self._file
                try:
                    if timeout is not None:
                        file.timeout = timeout
                    self._seen = self._lock().cells[_COMMIT]
                    self._file.hold(True)
                except BaseException:
                    self._seen = DOUBT
                    self._file.unlock()
                    raise
                finally:
                    file.timeout = self._timeout
            self._exclusive += 1
            if many:
                self._file.holding = True
        except BaseException:
            self._mutex.release()
            raise

    def _end_exclusive(self, mutex: Any) -> None:
        # An exception of a signal handler can come behind any call: what is nested here runs all the same.
        try:
            last = self._exclusive == 1             # 0: this is a forked child, or the handle was closed
            try:
                if last and self._file.holding and self._seen != DOUBT and not self._closed:
                    self._file.tell(self._index.end)        # of rows that were stored through the map
            finally:
                try:
                    if last:
                        self._file.holding = False
                        self._file.hold(False)
                finally:
                    if self._exclusive:
                        self._exclusive -= 1
                        if last:
                            self._file.unlock()
        finally:
            mutex.release()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store a value; an array is copied into the file. A key that exists gets it, and moves to the end.

        Raises
        ------
        TypeError
            For keys of other types than str, bytes, int, float, bool, None and tuples of them, and NaN.
        UntrustedError
            This handle could not read the value back. The message says what to do.
        OSError
            There is no room on the disk. Nothing has happened.
        ReadOnlyError, ClosedError, BusyError
        """
        if not self._writable:
            self._need_writable()
        key = plain_key(key)
        parts = key_parts(key)
        if type(value) in (memmap, Hole) and self._holds(key, value):
            return
        self._change(type(self._index).put, key, parts, self._encode(key, value, self._memo_mark()))

    def _memo_mark(self) -> int:
        memo: int = self._cells[_MEMO]
        # Nonsense is mended by `_begin`.
        return memo if fmt.MEMO_START <= memo < fmt.MEMO_END else fmt.MEMO_START

    def _encode(self, key: Any, value: Any, memo: int) -> Union[Encoded, EncodedArray]:
        """Return the opcodes of `value`; an error says for which key."""
        try:
            return self._index.encode(value, memo, self._check)
        except UntrustedError as exc:
            raise UntrustedError(f"{self._path}: the value for {key!r}: {exc.message}", exc.name) from exc
        except Exception as exc:
            self._note(exc, "storing", key)
            raise

    def _check(self, stream: bytes) -> None:
        self._trust.check(stream)

    def _note(self, exc: Exception, doing: str, key: Any) -> None:
        """Add to an error what was being done, where there are notes."""
        if hasattr(exc, "add_note"):                # since Python 3.11
            exc.add_note(f"{doing} the value of {key!r} in {self._path}")

    def _holds(self, key: Any, array: memmap) -> bool:
        """Whether `array` is the very array that is stored under `key`, as after ``d[key] += 1``."""
        root = root_of(array)
        if root is None or root.identity != self._file.identity:
            return False
        with self._mutex:
            offset = self._refresh().find(key)
            info = None if offset is None else self._info(offset)[0]
        if isinstance(info, GrowableInfo):
            column = info.tree
            return (isinstance(column, Column) and info.start == array.offset
                    and array.dtype == column.dtype and array.shape == column.shape_of(info.count)
                    and array.strides == column.strides(info.row_nbytes))
        return (isinstance(info, ArrayInfo) and info.offset == array.offset and info.shape == array.shape
                and same_dtype(info.dtype, array.dtype)
                and (array.flags.c_contiguous if info.order == "C" else array.flags.f_contiguous))

    def __delitem__(self, key: Any) -> None:
        self._need_writable()
        hash(key)                                   # as a dict: TypeError, and nothing is touched
        if not self._change(_remove, key):
            raise KeyError(key)
        self._arrays.pop(key, None)

    def update(self, other: Any = (), /, **kwargs: Any) -> None:
        """Set items from a mapping or pairs, then from keyword arguments, in one step, as in a `batch`.

        They appear together, and an error, of the iteration too, leaves everything as it was. While it goes on others
        wait who want to change the file.
        """
        self._need_writable()
        with self._mutex:                           # another thread's batch ends first
            with nullcontext() if self._index.batch is not None else self.batch():
                super().update(() if other is self else other, **kwargs)

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

        Assign big parts, as whole frames, of the hole's dtype: on Linux they are written by a system call, which is
        faster the first time. For elements set one by one, or anew, ``d[key]`` is faster: all goes through the map.

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
        if type(mask) is not bool:
            raise TypeError(f"mask is True or False, not {mask!r}: set elements of the masked array that is returned")
        if order not in ("C", "F"):
            raise ValueError(f'order {order!r}: expected "C" or "F"')
        encoded = self._index.encode_hole(sizes, np.dtype(dtype), order, mask)
        with self._mutex:                           # until it is loaded, no other file can take this one's place
            _, offset = self._change(_put_new, key, parts, encoded, sparse)
            if offset is None:
                raise ValueError(f"the key {key!r} exists; delete it first, or assign to it to replace it")
            array = self._load(offset)
            return make_hole(array, self._file) if store.HAVE_FILL else array

    # -- arrays that grow ---------------------------------------------------------------------------------------

    def create_growable(self, key: Any, row_shape: Union[int, Iterable[int]] = (), dtype: Any = float, *, axis: int = 0,
                        capacity: int = 0) -> Any:
        """Make an array that has no rows yet, and gets them by `append` or `extend`.

        Parameters
        ----------
        key : object
            Must not exist yet.
        row_shape : int or iterable of int
            Of one row; ``()``: a number.
        dtype : dtype
            Without Python objects.
        axis : int
            Which axis of ``d[key]`` the rows are: for a line scanner whose lines stand in the middle, 1.
        capacity : int
            How many rows to make room for now. What they do not take is given back by `trim`, `close` and `vacuum`.

        Returns
        -------
        numpy.memmap
            ``d[key]``, of 0 rows.

        Raises
        ------
        ValueError
            The key exists, or shape, axis or capacity make no sense.
        TypeError
            The key is refused, or the dtype holds objects.
        OSError
            There is no room (ENOSPC); the file is as before.

        Notes
        -----
        An array that is full gets a new place, with more room: twice as much up to 64 MiB, half as much again for
        larger ones. Arrays that were handed out stay valid, and show the old place. What was copied there stays in
        the file until `vacuum`, so that a good `capacity` saves room as well as time. `pickle.load` reads the room too.

        Examples
        --------
        >>> with MmapDict("doctest.mmapdict", "w") as d:
        ...     _ = d.create_growable("frames", (480, 640), "u2", capacity=100)
        ...     d.append("frames", np.ones((480, 640), "u2"))
        ...     d["frames"].shape
        (1, 480, 640)
        """
        from .growables import check_column, encode_growable        # later

        self._need_writable()
        key = plain_key(key)
        parts = key_parts(key)
        column = check_column(_shape(row_shape), np.dtype(dtype), operator.index(axis))
        rows = operator.index(capacity)
        if rows < 0:
            raise ValueError(f"capacity {rows}: expected 0 rows or more")
        encoded = encode_growable(column, rows, memo=self._memo_mark())
        with self._mutex:
            _, offset = self._change(_put_new, key, parts, encoded)
            if offset is None:
                raise ValueError(f"the key {key!r} exists; delete it first, or assign to it to replace it")
            self._grown.add(key)
            return self._load(offset)

    def append(self, key: Any, rows: Any) -> None:
        """Add one row, or several, to a growable array, in one step.

        Parameters
        ----------
        key : object
            If it is missing, a growable array is made of these rows.
        rows : array_like
            Several rows: an array as ``d[key]``, but for their number. One row: an array with one axis less. If
            the key is missing, its first axis counts the rows; a number is one row.

        Raises
        ------
        ValueError
            The shape does not fit; both are named.
        TypeError
            The dtype does not fit (numbers are taken if nothing gets lost, floats also if they are rounded), or the
            value is not growable.
        BusyError
            In a batch, or rows that `extend` gave are not published.
        OSError
            There is no room (ENOSPC). Nothing has happened.

        Notes
        -----
        Rows and their number appear together, to other processes, to `pickle.load` and after a crash. Costs as much as
        the rows: some 10 µs for a small one, less in `exclusive`, less for each of many at once.

        Examples
        --------
        >>> with MmapDict("doctest.mmapdict", "w") as d:
        ...     d.append("track", [[1.0, 2.0]])
        ...     d.append("track", [3.0, 4.0])
        ...     d["track"]
        memmap([[1., 2.],
                [3., 4.]])
        """
        growables = self._growables
        with self._mutex:
            if not self._writable or self._closed:
                self._need_writable()
            self._grown.add(key)
            growing = self._index.growing.get(key)
            # One row of an array that this handle knows: whether it is right is asked once, under the lock.
            if growing is None or not growables.is_row(rows, growing.info.tree) \
                    or not self._change(growables.append_to, key, growing.info.tree, rows, 1, growing):
                while not self._append(key, rows):
                    continue                        # others changed what the array is meanwhile

    def _append(self, key: Any, rows: Any) -> bool:
        growables = self._growables
        info = self._growable(key)
        if info is None:
            key = plain_key(key)
            column, array, n = growables.first_rows(rows)
            made: bool = self._change(growables.create_from, key, key_parts(key), column, array, n)
            return made
        if not isinstance(info.tree, Column):
            raise TypeError(f"the value of {key!r} is a table: add rows to it by what made it")
        array, n = growables.as_rows(rows, info.tree, key)
        done: bool = self._change(growables.append_to, key, info.tree, array, n)
        return done

    def extend(self, key: Any, n: int) -> Extension:
        """Return `n` new rows of a growable array, to be filled before anybody sees them.

        Parameters
        ----------
        key : object
        n : int

        Returns
        -------
        Extension
            ``with d.extend(key, n) as rows:`` publishes them at the end of the block. Until then, or until `commit`,
            this handle keeps the writers' lock. If an exception ends the block, or the process dies, there are none.

        Raises
        ------
        KeyError, TypeError
            There is no such array, or it is not growable.
        ValueError
            `n` is negative.
        OSError, BusyError, ReadOnlyError

        Examples
        --------
        >>> with MmapDict("doctest.mmapdict", "w") as d:
        ...     _ = d.create_growable("lines", (4,), "u2")
        ...     with d.extend("lines", 2) as rows:
        ...         rows[0] = 7
        ...         before = len(d["lines"])
        ...     before, d["lines"].tolist()
        (0, [[7, 7, 7, 7], [0, 0, 0, 0]])
        """
        from . import growables                     # later

        n = operator.index(n)
        if n < 0:
            raise ValueError(f"{n} rows: expected 0 or more")
        self._begin_exclusive()
        try:
            growing = self._change(growables.reserve_zeros, key, n)
            info, file = growing.info, self._file
            w = file.window(growing.offset, info.body_end)
            rows = map_rows(info, info.tree, info.count, info.count + n, w.root, w.start)
            self._index.reserved.add(key)
            self._grown.add(key)
            if store.HAVE_FILL:
                rows = make_hole(rows, file)
            return Extension(self, key, rows, info.count, n, growing.offset)
        except BaseException:
            self._end_exclusive(self._mutex)
            raise

    def _end_extension(self, extension: Extension, good: bool) -> None:
        if not extension._open:
            raise BusyError(errno.EALREADY, "these rows were published, or given up", self._path)
        extension._open = False
        if self._busy:                              # the garbage collector came in the middle of a change
            self._given_up.append(extension)
            return
        self._leave_extension(extension, good)

    def _leave_extension(self, extension: Extension, good: bool = False) -> None:
        try:
            self._index.reserved.discard(extension._key)
            if good:
                if not self._exclusive:
                    raise BusyError(errno.ECHILD, "this process was forked, or the handle closed, before the rows were "
                                    "published", self._path)
                publish = self._growables.publish_rows
                self._change(publish, extension._key, extension._offset, extension._first, extension._n)
        finally:
            self._end_exclusive(extension._mutex)

    def resize(self, key: Any, n: int) -> None:
        """Let a growable array have `n` rows: rows are taken from its end, or zeros are added there.

        Arrays that were handed out keep the rows that they have. Room of rows that were taken away is not used again:
        the next row that is added gives the array a new place.

        Raises
        ------
        KeyError, TypeError
            There is no such array, or it is not growable.
        ValueError
            `n` is negative.
        OSError, BusyError, ReadOnlyError
        """
        from . import growables                     # later

        n = operator.index(n)
        if n < 0:
            raise ValueError(f"{n} rows: expected 0 or more")
        self._change(growables.resize, key, n)
        self._grown.add(key)

    def trim(self, key: Any) -> int:
        """Give back the room that a growable array has and its rows do not take.

        `close` does so too, for arrays to which this handle has added rows, but leaves room for a quarter more, or for
        an eighth of 64 MiB and more.

        Returns
        -------
        int
            How many bytes: on the disk, and for `pickle.load` to hold. `vacuum` makes the file shorter as well.

        Raises
        ------
        KeyError, TypeError
            There is no such array, or it is not growable.
        OSError, BusyError, ReadOnlyError
        """
        from . import growables                     # later

        freed: int = self._change(growables.trim, key)
        return freed

    @functools.cached_property
    def _growables(self) -> Any:
        from . import growables                     # later
        return growables

    def _growable(self, key: Any) -> Optional[GrowableInfo]:
        """Return what a growable array is; None: there is no such key. The caller holds the mutex."""
        if self._writable:
            growing = self._index.growing.get(key)
            if growing is not None and growing.is_right(self._file):
                info: GrowableInfo = growing.info
                return info
        offset = self._refresh().find(key)
        if offset is None:
            return None
        found = self._info(offset)[0]
        if not isinstance(found, GrowableInfo):
            raise TypeError(f"the value of {key!r} is not growable: create_growable, or append to a key that is "
                            "missing, makes one that is")
        return found

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return ``self[key]``, after setting it to `default` if it was missing, in one step."""
        self._need_writable()
        hash(key)                                   # as a dict: TypeError, and nothing is touched
        with self._mutex:
            offset = self._change(Index.find, key)
            if offset is not None:
                return self._load(offset)
        key = plain_key(key)
        parts = key_parts(key)
        encoded = self._encode(key, default, fmt.MEMO_START)
        with self._mutex:
            old, new = self._change(_put_new, key, parts, encoded)
            return self._load(old if new is None else new)

    def pop(self, key: Any, default: Any = _missing) -> Any:
        """Remove a key and return its value; an array stays valid. Missing: `default`, or KeyError."""
        self._need_writable()
        hash(key)                                   # as a dict: TypeError, and nothing is touched
        with self._mutex:
            while True:
                offset = self._change(Index.find, key)
                if offset is None:
                    break
                value = self._load(offset)
                if self._change(_remove, key, self._file, offset):
                    self._arrays.pop(key, None)
                    return value
        if default is _missing:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Any, Any]:
        """Remove the last item, in the order of the file, and return it; KeyError if there is none."""
        self._need_writable()
        with self._mutex:
            while True:
                last = self._change(Index.last)
                if last is None:
                    raise KeyError("popitem(): the mapping is empty")
                key, offset = last
                value = self._load(offset)
                if self._change(_remove, key, self._file, offset, True):
                    self._arrays.pop(key, None)
                    return key, value

    def clear(self) -> None:
        """Remove all items, in one step. Arrays that were handed out stay valid."""
        self._change(_clear)
        self._arrays.clear()

    # -- following others ---------------------------------------------------------------------------------------

    @property
    def commit(self) -> int:
        """How often the file was changed; elements set through a map do not count. Two equal: no change."""
        commit: int = self._cells[_COMMIT]
        return commit >> 1

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until something changed since the last call (the first: since opening): keys, or rows of arrays.

        If that has happened already, it returns at once.

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
        Takes no lock. On Linux it sleeps until the file is written to; elsewhere it looks at one mapped number, every
        0.1 ms at first and every 1 ms after a while. It returns at most every 1.5 ms. Changes by this handle count too.
        """
        moment = self._wait(self._waited, timeout)
        if moment is None:
            return False
        self._waited = moment
        return True

    def _wait(self, known: _Moment, timeout: Optional[float]) -> Optional[_Moment]:
        """Wait until the file is at another moment than the `known` one; return it, or None: the time is over."""
        if self._noticing is None:
            from .notice import Noticing                # later
            self._noticing = Noticing(self._path)
        noticing = self._noticing
        rests = noticing.rests()
        next(rests)
        now = time.monotonic()
        deadline = float("inf") if timeout is None else now + timeout
        check_path = now + PATH_CHECK_S
        while True:
            commit = self._cells[_COMMIT]
            if commit != known[1] or commit & 1 or self._file.fingerprint != known[0]:
                with self._mutex:
                    self._refresh()                 # it may lead to another file
                    moment = self._moment()
                if moment != known:
                    noticing.seen_at = time.monotonic()
                    return moment
            now = time.monotonic()
            if now >= check_path:
                check_path = now + PATH_CHECK_S
                with self._mutex, suppress(FormatError):    # if it is not one of ours: keep the old one
                    self._cells[_COMMIT]            # raises when closed
                    if not self._file.check_path() and self._follow():
                        continue
            if now >= deadline:
                return None
            rests.send(min(deadline, check_path) - now)

    def watch(self, timeout: Optional[float] = None) -> Iterator[Change]:
        """Yield what changes, as it changes.

        Parameters
        ----------
        timeout : float, optional
            In seconds: end when nothing happened for so long. None: go on for ever.

        Yields
        ------
        Change
            Keys that were added, replaced (their records are others) and removed since the last one, the first
            time since `watch` was called.

        Notes
        -----
        Rows that a growable array gets are no change of its key: `wait` returns for them.

        Call it before you look at the keys that are there, and iterate after that: so no key is missed, and one
        that comes in between is seen twice. What it costs grows with the changes, and not with the keys: but for who
        looks so rarely that more than 53 keys were replaced or removed meanwhile, and for `clear` and `vacuum`.
        """
        from .watching import Watcher               # later

        with self._mutex:
            return self._changes(Watcher(self._refresh()), self._moment(), timeout)

    def _changes(self, watcher: Watcher, moment: _Moment, timeout: Optional[float]) -> Iterator[Change]:
        while True:
            next_moment = self._wait(moment, timeout)
            if next_moment is None:
                return
            moment = next_moment
            with self._mutex:
                change = watcher.update(self._refresh())
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
        BusyError
            Other writers had the lock for longer than `timeout`.
        """
        with self._mutex:
            self._cells[_COMMIT]                    # raises when closed
            if not self._writable:
                return
            index = self._refresh()
            file, end = self._file, index.covered()
            all_dead = not index.waits_for_disk() and not file.cells[_COMMIT] & 1
            file.sync(folder=True)
            if index.batch is None and (end > file.cells[_SYNCED] or index.waits_for_disk()):
                self._change(_settle, file, end)
            elif all_dead:
                index.deaths_are_on_disk()

    @property
    def free_bytes(self) -> int:
        """About how many bytes shorter `vacuum` would make the file: those of records that do not count any more.

        Room that growable arrays have not taken is not among them; `trim` gives it back.
        """
        with self._mutex:
            return self._refresh().waste()

    def vacuum(self) -> int:
        """Make the file as small as its content: copy the live records into a new one, which takes its place.

        Handles that read go on with the new file at their next access; arrays that they have stay valid. Mode,
        owner and extended attributes of the file stay, as far as the system lets this process set them. A symbolic
        link stays one.

        Returns
        -------
        int
            By how many bytes the file got shorter; less than 0 if it got an index, which files of 64 keys have.

        Raises
        ------
        BusyError
            What is written to the old file could get lost: another handle may write to it, or an array that may
            be written to is alive, one of this handle included; the message names the processes, where the system
            does. Or the file has a second name, which would keep the old content.
        ReadOnlyError
            The file is sealed, or was opened with mode ``"r"``.
        CorruptError
            A record is damaged; `repair` copies the others.
        OSError
            There is no room for the live records beside the old file. Nothing has happened.

        Notes
        -----
        `watch` of others then reports all keys as replaced: their records are others. Needs the live records' size as
        free space on the disk, and no memory. Where the file system can, blocks
        are shared and not copied. The new file is on the disk before it takes the place. O(live bytes).
        """
        with self._mutex:
            self._no_batch("vacuum")
            self._arrays.clear()
            freed: int = self._change(_vacuum, self._path)
            self._follow()
            return freed

    @property
    def sealed(self) -> bool:
        """Whether the file has checksums of all that is in it (`seal`), and nothing has changed since."""
        with self._mutex:
            return self._refresh().sealed

    def seal(self) -> None:
        """Keep checksums (SHA-256) of all records in the file, which `verify` compares, and put it on the disk.

        As long as it is sealed, arrays that are handed out are read-only. Storing or deleting anything unseals it,
        and so does `unseal`.

        Raises
        ------
        BusyError
            As for `vacuum`: somebody could go on writing to an array.

        Notes
        -----
        It reads all of the file. `pickle.load` does not notice. Reading compares nothing: who gets a sealed file calls
        `verify`. A file that is sealed already is left as it is, and not checked again.
        """
        with self._mutex:
            self._no_batch("seal")
            self._arrays.clear()
            self._change(_seal)

    def verify(self) -> Report:
        """Check the whole file, opcode by opcode, and its checksums if it is sealed; see `mmapdict.verify`."""
        from .verify import verify                  # later

        self._cells[_COMMIT]                        # raises when closed
        return verify(self._path)

    def unseal(self) -> None:
        """Take the seal off, so that arrays handed out from now on can be written to."""
        self._change(_unseal)
        self._arrays.clear()

    def _no_batch(self, what: str) -> None:
        self._need_writable()
        if self._exclusive or self._index.batch is not None:
            raise BusyError(errno.EDEADLK, f"{what} is not possible inside a batch or an exclusive block", self._path)

    def close(self) -> None:
        """Close the handle. Arrays that it handed out stay valid, and writable if they were.

        Calling it again does nothing. It waits for nobody.
        """
        with self._mutex:
            if self._closed:
                return
            if self._index.batch is not None:
                self._index.abandon()               # the block that goes on will say so
            self._closed = True
            self._unclosed.detach()
            self._cells = _Closed(self._path)
            self._arrays = {}
            if not self._busy:                      # else the change that goes on at this moment will do it
                self._shut()

    def _shut(self) -> None:
        try:
            if self._writable and not self._forked:
                if self._seen == DOUBT:
                    self._ask_anew()
                with suppress(CorruptError, OSError):       # no room for a map
                    if self._grown:
                        self._trim_grown()
                    self._index.walk()
                    if self._index.waits_for_disk() and self._file.try_lock():
                        self._index.walk()
                        if self._index.waits_for_disk():        # else somebody died meanwhile: the next one mends it
                            self._file.sync()
                            self._index.settle(self._index.end)
                self._index.let_go()
                self._file.trim(self._index.end)
        finally:
            self._noticing = None
            self._index.let_go()
            self._file.close()

    def _trim_grown(self) -> None:
        """Give back what arrays do not need, if nobody else holds the lock at this moment."""
        from . import growables                     # later

        index, file = self._index, self._file
        if index.batch is not None or not self._exclusive and not file.try_lock():
            return
        try:
            if file.check_path() and file.cells[_STATE] == fmt.NORMAL:
                index.begin()
                for key in self._grown:
                    with suppress(KeyError, TypeError, BusyError):      # it is another value by now
                        growables.trim(index, key, True)
        finally:
            if not self._exclusive:
                file.unlock()

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
        options: dict[str, Any] = {"durable": self._durable, "timeout": self._timeout,
                                   "trusted": self._trusted, "allow": self._allow}
        return functools.partial(type(self), **options), (self._path, "r+" if self._writable else "r")


def open(path: Union[str, bytes, Any], mode: str = "a", *, durable: bool = False, timeout: Optional[float] = None,
         trusted: bool = False, allow: Iterable[Any] = ()) -> MmapDict:
    """Open a file as a dictionary.

    Parameters
    ----------
    path : str, bytes or os.PathLike
    mode : str
        ``"r"``: read only. ``"r+"``: the file must exist. ``"a"``: it is created if missing. ``"w"``: it starts anew.
        ``"x"``: it must not exist.
    durable : bool
        Each change is on the disk when the call returns.
    timeout : float, optional
        How long to wait for other writers, in seconds; None: for ever.
    trusted : bool
        Whether values may name, and run, anything.
    allow : iterable of classes and functions
        What values may name besides what is always allowed.

    Returns
    -------
    MmapDict
        Whose help says more of all this, and of the errors.

    Examples
    --------
    >>> with open("doctest.mmapdict", "w") as d:
    ...     d["answer"] = 42
    >>> with open("doctest.mmapdict", "r") as d:
    ...     dict(d)
    {'answer': 42}
    """
    return MmapDict(path, mode, durable=durable, timeout=timeout, trusted=trusted, allow=allow)


def _seconds(timeout: Optional[float]) -> Optional[float]:
    """Return a timeout in seconds; None: for ever."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ValueError(f"timeout {timeout!r}: expected a number of seconds, 0 or more, or None: wait for ever")
    return None if timeout == float("inf") else float(timeout)


def _shape(shape: Union[int, Iterable[int]]) -> tuple[int, ...]:
    """Return a shape as a tuple of Python ints."""
    sizes: tuple[int, ...]
    if isinstance(shape, bool) or not (hasattr(shape, "__index__") or hasattr(shape, "__iter__")):
        raise TypeError(f"a shape is an int or several, not {shape!r}")
    try:
        sizes = (operator.index(shape),)                # type: ignore[arg-type]
    except TypeError:
        sizes = tuple(map(operator.index, shape))       # type: ignore[arg-type]
    if any(n < 0 for n in sizes):
        raise ValueError(f"negative sizes in the shape {sizes}")
    if len(sizes) > 64:
        raise ValueError(f"{len(sizes)} dimensions; numpy has at most 64 (32 before numpy 2)")
    return sizes


def _clear(index: Writer) -> None:
    index.clear()


def _unseal(index: Writer) -> None:
    index.unseal()


def _put_new(index: Writer, key: Any, *args: Any) -> tuple[Optional[int], Optional[int]]:
    """Put an entry if there is none. Return the offset of the one that was there, and of the new one."""
    old = index.find(key)
    return old, index.put(key, *args) if old is None else None


def _remove(index: Writer, key: Any, file: Optional[store.File] = None, expected: int = 0, last: bool = False) -> bool:
    """Remove a key; with `file`, if its record is the expected one of that file (and the last); say whether."""
    if file is not None and index.file is not file:
        return False
    offset = index.find(key)
    if offset is None or file is not None and offset != expected or last and index.last() != (key, offset):
        return False
    index.remove(key, offset)
    return True


def _vacuum(index: Writer, path: str) -> int:
    """Put a new file with the live records in the place of the index's file; return how much shorter it is."""
    from .vacuum import copy_live           # later

    file = index.file
    path = os.path.realpath(path)
    if index.sealed:
        raise ReadOnlyError(f"{path} is sealed, and a copy would not be: call unseal() first, or leave it as it is")
    if file.status().st_nlink > 1:
        raise BusyError(errno.EMLINK, f"the file has {file.status().st_nlink} names (hard links), and the others would "
                        "keep the old content", path)
    if not file.sees_others:
        raise BusyError(errno.ENOTSUP, "it cannot be told here whether others may write to the file through a map, so "
                        "nothing can take its place; copy its items into a new file", path)
    file.claim()
    try:
        before = index.end + 1
        with replacement(path, file) as new:
            copy_live(index, new)
            after = new.status().st_size
    finally:
        file.disclaim()
    return before - after


def _seal(index: Writer) -> None:
    """Seal the file, unless it is."""
    from .seals import seal_parts           # later

    if index.sealed:
        return
    file = index.file
    file.claim()
    try:
        file.sync()                     # I14: so that nothing that does not count stays live
        index.settle(index.end)
        live = [(record.offset, record.end) for record in Index(file, whole=True).walk() if record.live]
        index.add_seal(seal_parts(file.window(0, index.end).view, live))
        file.sync(folder=True)
    finally:
        file.disclaim()


def _settle(index: Writer, file: store.File, end: int) -> None:
    """Take note that all records of `file` before the offset `end` are on the disk."""
    if index.file is file:
        index.settle(end)


def _warn_unclosed(path: str) -> None:
    warnings.warn(f"unclosed mmapdict file {path}", ResourceWarning, stacklevel=2)


def _renew_handles() -> None:
    for reference in list(_handles.values()):
        handle = reference()
        if handle is not None:
            handle._after_fork()


store.after_fork_in_child(_renew_handles)
