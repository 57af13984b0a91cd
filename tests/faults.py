"""Files that record every store or make one of them fail, replays of what was recorded, and a look at the bytes.

The last part, which reads header and records, shares no code with mmapdict.
"""

import errno
import functools
import io
import os
import pickle
import pickletools
import struct
from typing import NamedTuple

from mmapdict import birth, store


def overwrite(path, data):
    """Make `data` the content of the file at `path`, fast: without cutting it to nothing first."""
    with open(path, "r+b" if os.path.exists(path) else "wb") as f:
        f.write(data)
        f.truncate()


# -- recording ----------------------------------------------------------------------------------------------------


class Store(NamedTuple):
    """One store into a file.

    Attributes
    ----------
    kind : str
        ``"write"``: `data` at `offset`, behind what counts. ``"byte"``, ``"cell"``: `data` (1 or 8 bytes) at
        `offset`, in one piece. ``"grow"``: the file is at least `offset` bytes long. ``"truncate"``: it is `offset`
        bytes long. ``"sync"``.
    """

    kind: str
    offset: int = 0
    data: bytes = b""


class Recorder:
    """Records the stores of all files that are opened while it is installed.

    Attributes
    ----------
    stores : list of Store
    watch : callable, optional
        Called after each store.
    """

    def __init__(self):
        self.stores = []
        self.watch = None

    def install(self, monkeypatch):
        install(monkeypatch, type("RecordingFile", (RecordingFile,), {"recorder": self}))
        return self

    def take(self):
        """Return what was recorded since the last call."""
        taken, self.stores = self.stores, []
        return taken


class RecordingFile(store.File):
    """A file that notes every store after it was made."""

    recorder = Recorder()

    def _note(self, *store):
        self.recorder.stores.append(Store(*store))
        if self.recorder.watch:
            self.recorder.watch()

    def write(self, offset, buffers):
        data = joined(buffers)
        super().write(offset, data if isinstance(buffers, bytes) else [data])
        self._note("write", offset, data)

    def reserve(self, start, end, sparse=False):
        super().reserve(start, end, sparse)
        self._note("grow", max(start, end))

    def allocate(self, start, end):
        super().allocate(start, end)
        self._note("grow", self.size)

    def truncate(self, size):
        super().truncate(size)
        self._note("truncate", size)

    def copy(self, offset, source, start, n):
        super().copy(offset, source, start, n)
        self._note("write", offset, self.read(offset, n))

    def store_byte(self, offset, value):
        super().store_byte(offset, value)
        self._note("byte", offset, bytes([value]))

    def store_rows(self, view, start, offset, rows):
        super().store_rows(view, start, offset, rows)
        self._note("write", offset, bytes(rows))

    def cell_store(self, cells, start):
        store = super().cell_store(cells, start)

        def noted(cell, value):
            store(cell, value)
            self._note("cell", start + 8 * cell, struct.pack("<Q", value))

        return noted

    def sync(self, folder=False):
        super().sync(folder)
        self._note("sync")


def joined(buffers):
    """The bytes of one or several buffers."""
    if isinstance(buffers, (bytes, memoryview)):
        return bytes(buffers)
    return b"".join(bytes(memoryview(b).cast("B")) for b in buffers)


def install(monkeypatch, file_class):
    """Let every handle that is opened from now on work on files of `file_class`, with little spare room."""
    monkeypatch.setattr(birth, "File", file_class)
    monkeypatch.setattr(store, "AHEAD_LEAST", 4096)


# -- replaying ----------------------------------------------------------------------------------------------------


def apply(data, store, cut=None):
    """Make one store into `data`, a bytearray; of a write only the first `cut` bytes."""
    if store.kind in ("grow", "truncate"):
        data += bytes(max(0, store.offset - len(data)))
        if store.kind == "truncate":
            del data[store.offset:]
    elif store.kind != "sync":
        piece = store.data[:cut]
        data += bytes(max(0, store.offset - len(data)))
        data[store.offset:store.offset + len(piece)] = piece


def replay(before, stores):
    """The bytes of a file after `stores`.

    Parameters
    ----------
    before : bytes
    stores : iterable of Store

    Returns
    -------
    bytes
    """
    data = bytearray(before)
    for one in stores:
        apply(data, one)
    return bytes(data)


def after_each(before, stores):
    """Yield what a file is before, and after each of the stores."""
    data = bytearray(before)
    yield before
    for one in stores:
        apply(data, one)
        yield bytes(data)


def cuts(n):
    """Places to cut a write of `n` bytes: in steps of 8 if it is short, behind the first and before the last byte."""
    step = 8 if n <= 512 else max(8, n // 12)
    return sorted({1, n - 1, *range(step, n, step)} & set(range(1, n)))


def prefixes(before, stores):
    """Yield what a process leaves that is killed anywhere within `stores`.

    Yields
    ------
    done : int
        How many stores were made whole.
    cut : int or None
        How many bytes of the next one, a write, were made.
    data : bytes
        The file.
    """
    data = bytearray(before)
    yield 0, None, bytes(data)
    for done, one in enumerate(stores):
        if one.kind == "write":
            for cut in cuts(len(one.data)):
                torn = bytearray(data)
                apply(torn, one, cut)
                yield done, cut, bytes(torn)
        apply(data, one)
        if one.kind != "sync":
            yield done + 1, None, bytes(data)


class LiveBytes(io.RawIOBase):
    """A raw file over bytes that change while it is read.

    Parameters
    ----------
    before, after : bytes
    pause : int
        Before which read (counted from 0) the bytes become those of `after`.

    Attributes
    ----------
    paused_at : int or None
        The position at which that read began.
    reads : int
        How many there were.
    """

    def __init__(self, before, after, pause):
        super().__init__()
        self._data, self._after, self._pause = before, after, pause
        self._at = 0
        self.paused_at, self.reads = None, 0

    def readable(self):
        return True

    def readinto(self, buffer):
        if self.reads == self._pause:
            self._data, self.paused_at = self._after, self._at
        self.reads += 1
        piece = self._data[self._at:self._at + len(buffer)]
        buffer[:len(piece)] = piece
        self._at += len(piece)
        return len(piece)


# -- mistakes -----------------------------------------------------------------------------------------------------


def is_publish(store):
    return store.kind == "byte" and store.data == b"("


def is_kill(store):
    return store.kind == "byte" and store.data == b"\x8e"


def moved(stores, chosen, place):
    """`stores` with the one that `chosen` finds put before the one that `place` finds."""
    rest = [s for s in stores if not chosen(s)]
    at = next(i for i, s in enumerate(rest) if place(s))
    return rest[:at] + [s for s in stores if chosen(s)] + rest[at:]


def killed_first(stores):
    return moved(stores, is_kill, is_publish)


def published_first(stores):
    return moved(stores, is_publish, lambda s: s.kind in ("write", "truncate"))


def without_stop(stores):
    return [s._replace(data=s.data[:-1]) if s.kind == "write" else s for s in stores]


def without_publish(stores):
    return [s for s in stores if not is_publish(s)]


def without_body(stores):
    return [s for s in stores if s.kind != "write"]


# -- failing ------------------------------------------------------------------------------------------------------


class Fault:
    """When a store fails, and how.

    Parameters
    ----------
    at : int
        Which store, counted from 0 since the last `arm`.
    how : str
        ``"before"``: nothing of it is stored. ``"part"``: of a write the first half is, of other stores nothing.
        ``"after"``: all of it is, and then the error is raised.
    error : type
        OSError (ENOSPC) or KeyboardInterrupt.
    lasting : bool
        All stores from then on fail, not only the one.
    """

    def __init__(self, at=0, how="before", error=OSError, lasting=False):
        self.at, self.how, self.error, self.lasting = at, how, error, lasting
        self.armed = False
        self.count = 0
        self.raised = 0

    def install(self, monkeypatch):
        install(monkeypatch, type("FailingFile", (FailingFile,), {"fault": self}))
        return self

    def arm(self):
        self.armed, self.count, self.raised = True, 0, 0

    def disarm(self):
        self.armed = False

    def due(self):
        """Whether the store that begins now fails."""
        self.count += 1
        return self.armed and (self.count - 1 == self.at or self.lasting and self.count > self.at)

    def fail(self):
        self.raised += 1
        if self.error is OSError:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise self.error()


class FailingFile(store.File):
    """A file whose stores fail as its `fault` says."""

    fault = Fault()

    def _store(self, method, *arguments, part=None):
        fault = self.fault
        if not fault.due():
            return method(*arguments)
        armed, fault.armed = fault.armed, False             # the stores that it is made of do not fail by themselves
        try:
            if fault.how == "after":
                method(*arguments)
            elif fault.how == "part" and part:
                method(*part)
        finally:
            fault.armed = armed
        return fault.fail()

    def write(self, offset, buffers):
        data = joined(buffers)
        self._store(super().write, offset, data, part=(offset, data[:len(data) // 2]))

    def reserve(self, start, end, sparse=False):
        self._store(super().reserve, start, end, sparse, part=(start, (start + end) // 2, sparse))

    def allocate(self, start, end):
        self._store(super().allocate, start, end)

    def truncate(self, size):
        self._store(super().truncate, size)

    def copy(self, offset, source, start, n):
        self._store(super().copy, offset, source, start, n, part=(offset, source, start, n // 2))

    def store_byte(self, offset, value):
        self._store(super().store_byte, offset, value)

    def store_rows(self, view, start, offset, rows):
        self._store(super().store_rows, view, start, offset, rows,
                    part=(view, start, offset, rows[:len(rows) // 2]))

    def cell_store(self, cells, start):
        return functools.partial(self._store, super().cell_store(cells, start))

    def sync(self, folder=False):
        self._store(super().sync, folder)


# -- the bytes of a file, read without mmapdict -------------------------------------------------------------------

HEADER_SIZE = 256
COMMIT, STOP, LIVE, DEAD, MEMO, STATE, SYNCED = 40, 48, 56, 64, 72, 88, 112


def cell(data, offset):
    """The 8-byte number at `offset`."""
    return struct.unpack_from("<Q", data, offset)[0]


def with_cell(data, offset, value):
    """`data` with another number at `offset`."""
    return data[:offset] + struct.pack("<Q", value) + data[offset + 8:]


def records(data):
    """Yield (offset, end, whether live, whether an entry) of all records, and at last the STOP's offset."""
    at = HEADER_SIZE
    while data[at:at + 1] == b"(":
        live, length = data[at + 1:at + 2] == b"G", cell(data, at + 2)
        end = at + 10 + length + 1
        if data[end - 1:end] != b"1" or not live and data[at + 1:at + 2] != b"\x8e":
            raise AssertionError("no record at %d" % at)
        yield at, end, live, data[at + 10:at + 12] == b"h\0"
        at = end
    if data[at:at + 1] != b".":
        raise AssertionError("no STOP at %d" % at)
    yield at


def used(data):
    """The bytes up to the STOP: all that counts."""
    *_, stop = records(data)
    return data[:stop + 1]


def check_header(data):
    """Raise AssertionError unless the header's fields say what the records say."""
    *found, stop = records(data)
    alive = [r for r in found if r[2] and r[3]]
    loaded = pickle.loads(data)
    memo = 64
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("BINPUT", "LONG_BINPUT"):
            memo = max(memo, argument + 1)
    said = {"stop": cell(data, STOP), "live": cell(data, LIVE), "dead": cell(data, DEAD), "state": cell(data, STATE)}
    true = {"stop": stop, "live": len(loaded), "dead": sum(r[1] - r[0] for r in found if not r[2]), "state": 0}
    if said != true or cell(data, COMMIT) % 2 or cell(data, MEMO) < memo:
        raise AssertionError("header %r, commit %d, memo %d; the records say %r, even, at least %d"
                             % (said, cell(data, COMMIT), cell(data, MEMO), true, memo))
    if len(alive) != len(loaded):
        # An entry that no longer counts stays live for as long as what took its place is not on the disk.
        newest = {key_of(data, found, r): r for r in alive}
        left = [r[0] for r in alive if newest[key_of(data, found, r)] != r or key_of(data, found, r) not in loaded]
        if left and cell(data, SYNCED) >= stop or len(alive) - len(left) != len(loaded):
            raise AssertionError("%d live entries, %d items, and of the entries %r do not count; synced: %d"
                                 % (len(alive), len(loaded), left, cell(data, SYNCED)))


def key_of(data, found, record):
    """The key of an entry, one of the records that were `found`: what a file holds that has this entry alone."""
    hidden = b"".join(data[start:end] for start, end, live, entry in found if not entry and end <= record[0])
    (key,) = pickle.loads(data[:HEADER_SIZE] + hidden + data[record[0]:record[1]] + b".")
    return key
