"""A machine whose power fails: what may be on its disk afterwards.

A `Disk` records what is stored into the files of a folder, and the barriers (`fsync` and `fdatasync`, of files and of
folders) in between: system calls, by standing in for `os` in mmapdict's modules, and stores into maps. It knows nothing
of mmapdict's own classes beyond `File.store_byte` and `File.cell_store`, so what does not go through them is seen too.

A `Platter` follows these events. At any of them the power can be cut. What was stored before the last barrier of a file
is on the disk. Of everything since, nothing is sure:

- Each piece of a file has a content that it had at some moment between the barrier and the cut: its own moment,
  whatever that of the others is. Pieces are pages (a page cache writes pages), sectors of 512 bytes (a disk writes
  sectors), cells of 8 bytes or single bytes (a sector is torn, or was changed while it was being sent). So everything
  is kept, dropped, torn and reordered, but no piece goes back behind the barrier. Only the cells that say how many rows
  there are, and how long, are always whole, as docs/format.md assumes.
- The file's size is that of some moment, and not that of its content.
- Sectors that got their place on the disk since the barrier may hold anything: what somebody else left there.
- A name leads to what it led to at some moment since the folder's barrier, or to nothing if there was such a moment.
  Each name has its own moment; the barrier of a file is none of its folder.

This is more than any one file system does. It takes from a disk no more than that a barrier is one, and that sectors
which are not written to stay as they are.
"""

import contextlib
import importlib
import os
import stat
import sys
from typing import NamedTuple

from mmapdict import store

# What is imported only later would keep what stands in for `os` and `boot_id` at that moment.
for _name in ("birth", "growables", "repair", "verify", "writer"):
    importlib.import_module("mmapdict." + _name)

SECTOR = 512
GRAINS = (4096, SECTOR, 8, 1)


class Event(NamedTuple):
    """What happened to the disk.

    Attributes
    ----------
    kind : str
        ``"write"``: `data` at `offset` of a file. ``"size"``: the file is `offset` bytes long from now on.
        ``"allocate"``: the bytes from `offset` to `end` have their place on the disk; where they had none, they are
        zeros. ``"sync"``: all of the file is on the disk. ``"names"``: what the names in `data`, a dict, lead to: the
        number of a file, or None. ``"folder"``: the names in the folder `data` are on the disk.
    file : int
        The file's number.
    whole : bool
        Whether it is a write of a cell that reaches the disk whole or not at all.
    """

    kind: str
    file: int = -1
    offset: int = 0
    data: object = b""
    end: int = 0
    whole: bool = False

    def __repr__(self):
        data = self.data if len(self.data) <= 16 else "%d bytes" % len(self.data)
        return "%s %d @%d %r" % (self.kind, self.file, self.offset, data)


def apply(content, event):
    """Make one event happen to a file's content, a bytearray; return from where to where it changed."""
    if event.kind == "write":
        end = event.offset + len(event.data)
        content += bytes(max(0, event.offset - len(content)))
        content[event.offset:end] = event.data
        return event.offset, end
    size = event.offset
    if event.kind == "allocate":
        size = max(len(content), event.end)
    elif event.kind != "size":
        return 0, 0
    before = len(content)
    content += bytes(max(0, size - before))
    del content[size:]
    return size, before


# -- recording --------------------------------------------------------------------------------------------------------


class Disk:
    """Records what happens to files.

    Attributes
    ----------
    events : list of Event
    before : dict of str to bytes
        What was there when the recording began: on the disk, with its names.
    deaf : callable, optional
        Called with each barrier before it is noted; if it returns True, the barrier does nothing. A mistake to find.
    """

    def __init__(self):
        self.events = []
        self.before = {}
        self.deaf = None
        self._files = {}            # (device, inode) -> number
        self._contents = []         # of each file, as it is now
        self._descriptors = []      # of each file: as long as they are open, an inode's number is not used again
        self._numbers = {}          # path -> number

    @property
    def now(self):
        """How many events there were."""
        return len(self.events)

    def close(self):
        """Close the files."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    # -- files that are met

    def met(self, fd, path=None):
        """Return the number of the file behind a descriptor; None: it is none that can be cut.

        What is met for the first time was there before, under this name.
        """
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        number = self._files.get((status.st_dev, status.st_ino))
        if number is None:
            number = self.born(fd)
            with open("/proc/self/fd/%d" % self._descriptors[number], "rb") as file:
                self._contents[number] += file.read()
            path = path or os.readlink("/proc/self/fd/%d" % fd)
            self.before[os.path.realpath(path)] = bytes(self._contents[number])
            self._numbers[os.path.realpath(path)] = number
        return number

    def watch(self, path):
        """Meet the file at a path, as it is on the disk now."""
        fd = os.open(path, os.O_RDONLY)
        self.met(fd, path)
        os.close(fd)

    def born(self, fd):
        """Note a file that was made just now, empty."""
        number = len(self._contents)
        status = os.fstat(fd)
        self._files[status.st_dev, status.st_ino] = number
        self._contents.append(bytearray())
        self._descriptors.append(os.open("/proc/self/fd/%d" % fd, os.O_RDONLY | os.O_CLOEXEC))
        return number

    def numbers_before(self):
        """Which numbers the files have that were there before, by path."""
        return {path: self._numbers[path] for path in self.before}

    # -- what happens

    def note(self, event):
        self.events.append(event)
        if event.file >= 0:
            apply(self._contents[event.file], event)

    def write(self, number, offset, data):
        if number is not None and data:
            self.note(Event("write", number, offset, bytes(data)))

    def names(self, changes):
        self.note(Event("names", data=changes))

    def look(self, number=None):
        """Note what was stored into a file, or into all, in ways that are not recorded: elements of arrays."""
        for i, descriptor in enumerate(self._descriptors):
            if number in (None, i):
                found, known = os.pread(descriptor, 1 << 30, 0), self._contents[i]
                if found == known:
                    continue
                if len(found) != len(known):
                    raise AssertionError("the size of file %d was changed unseen: %d, recorded %d"
                                         % (i, len(found), len(known)))
                for at in range(0, len(found), 8):
                    if found[at:at + 8] != known[at:at + 8]:
                        self.write(i, at, found[at:at + 8])

    def check_seen(self):
        """Raise AssertionError if a file is not as the events say."""
        count = self.now
        self.look()
        if self.now > count:
            raise AssertionError("stores that were not recorded: %r" % self.events[count:])

    def barrier(self, fd):
        """Note a barrier of the file or folder behind a descriptor."""
        number = self.met(fd)
        event = Event("sync", number) if number is not None \
            else Event("folder", data=os.readlink("/proc/self/fd/%d" % fd))
        if number is not None:
            self.look(number)
        if self.deaf is None or not self.deaf(event):
            self.note(event)


class Machine:
    """What mmapdict runs on in a test: it can be recorded, and started anew.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
        Barriers cost no time from now on.

    Attributes
    ----------
    disk : Disk or None
        What records at this moment.
    """

    def __init__(self, monkeypatch):
        self.disk = None
        self._boots = 0
        self._boot = bytes(16)
        proxy = _Os(self)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "mmapdict":
                if getattr(module, "os", None) is os:
                    monkeypatch.setattr(module, "os", proxy)
                if hasattr(module, "boot_id"):
                    monkeypatch.setattr(module, "boot_id", lambda: self._boot)
        monkeypatch.setattr(store, "AHEAD_LEAST", 4096)
        store_byte, cell_store, punch = store.File.store_byte, store.File.cell_store, store.File.punch
        store_rows = store.File.store_rows

        def byte(file, offset, value):
            store_byte(file, offset, value)
            self._in_map(file, offset, bytes([value]))

        def noting(file, cells, start):
            store_cell = cell_store(file, cells, start)

            def cell(number, value):
                store_cell(number, value)
                self._in_map(file, start + 8 * number, value.to_bytes(8, "little"))
                if len(cells) == 1 and self.disk is not None:
                    self.disk.events[-1] = self.disk.events[-1]._replace(whole=True)

            return cell

        def punching(file, start, end):
            punch(file, start, end)
            if self.disk is not None:
                self.disk.look(self.disk.met(file.fd))

        def stored_rows(file, view, start, offset, rows):
            store_rows(file, view, start, offset, rows)
            self._in_map(file, offset, bytes(rows))

        monkeypatch.setattr(store.File, "store_rows", stored_rows)
        monkeypatch.setattr(store.File, "store_byte", byte)
        monkeypatch.setattr(store.File, "punch", punching)
        monkeypatch.setattr(store.File, "cell_store", noting)
        self.start_anew()

    def _in_map(self, file, offset, data):
        if self.disk is not None and file.in_place:     # else it was a system call
            self.disk.write(self.disk.met(file.fd), offset, data)

    def start_anew(self):
        """Give the machine another boot id."""
        self._boots += 1
        self._boot = self._boots.to_bytes(16, "little")

    @contextlib.contextmanager
    def recording(self):
        """Record on a new disk within the block."""
        before, self.disk = self.disk, Disk()
        try:
            yield self.disk
        finally:
            self.disk.close()
            self.disk = before


class _Os:
    """Stands in for the module `os` where mmapdict uses it."""

    def __init__(self, machine):
        self._machine = machine

    def __getattr__(self, name):
        disk = self._machine.disk
        if disk is not None and hasattr(_Calls, name):
            return getattr(_Calls(disk), name)
        return (lambda fd: None) if name in ("fsync", "fdatasync") else getattr(os, name)


class _Calls:
    """The system calls that change what is on a disk, and tell it."""

    def __init__(self, disk):
        self._disk = disk

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        nameless = getattr(os, "O_TMPFILE", 0)
        nameless = bool(nameless) and flags & nameless == nameless
        new = nameless or flags & os.O_CREAT and not os.path.lexists(path)
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        if new:
            number = self._disk.born(fd)
            if not nameless:
                self._disk.names({os.path.realpath(path): number})
        else:
            number = self._disk.met(fd, None if os.fspath(path).startswith("/proc/") else path)
            if flags & os.O_TRUNC:
                self._disk.note(Event("size", number, 0))
        return fd

    def write(self, fd, data):
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        n = os.write(fd, data)
        self._disk.write(self._disk.met(fd), offset, bytes(memoryview(data).cast("B")[:n]))
        return n

    def pwrite(self, fd, data, offset):
        n = os.pwrite(fd, data, offset)
        self._disk.write(self._disk.met(fd), offset, bytes(memoryview(data).cast("B")[:n]))
        return n

    def pwritev(self, fd, buffers, offset, flags=0):
        n = os.pwritev(fd, buffers, offset, flags)
        data = b"".join(bytes(memoryview(b).cast("B")) for b in buffers)
        self._disk.write(self._disk.met(fd), offset, data[:n])
        return n

    def copy_file_range(self, src, dst, count, offset_src=None, offset_dst=None):
        at = os.lseek(dst, 0, os.SEEK_CUR) if offset_dst is None else offset_dst
        n = os.copy_file_range(src, dst, count, offset_src, offset_dst)
        self._disk.write(self._disk.met(dst), at, os.pread(self._disk._descriptors[self._disk.met(dst)], n, at))
        return n

    def ftruncate(self, fd, size):
        os.ftruncate(fd, size)
        self._disk.note(Event("size", self._disk.met(fd), size))

    def posix_fallocate(self, fd, offset, n):
        os.posix_fallocate(fd, offset, n)
        self._disk.note(Event("allocate", self._disk.met(fd), offset, end=offset + n))

    def fsync(self, fd):
        self._disk.barrier(fd)

    fdatasync = fsync

    def link(self, src, dst, **options):
        os.link(src, dst, **options)
        self._disk.names({os.path.realpath(dst): self._number_of(src)})

    def replace(self, src, dst, **options):
        number = self._number_of(src)
        self._number_of(dst)
        os.replace(src, dst, **options)
        self._disk.names({os.path.realpath(dst): number, os.path.realpath(src): None})

    rename = replace

    def unlink(self, path, **options):
        self._number_of(path)
        os.unlink(path, **options)
        self._disk.names({os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)): None})

    remove = unlink

    def _number_of(self, path):
        """The number of the file at a path; None: there is none."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return self._disk.met(fd, None if os.fspath(path).startswith("/proc/") else path)
        finally:
            os.close(fd)


# -- what is left -----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Something that has a content of its own after a cut.

    Attributes
    ----------
    kind : str
        ``"data"``, ``"size"`` or ``"name"``.
    file : int
        Its number; of a name: -1.
    start, end : int
        Of data: the bytes that it has.
    junk : bool
        Whether anything may stand there.
    """

    kind: str
    file: int = -1
    start: int = 0
    end: int = 0
    junk: bool = False


class _File:
    """A file on the platter: what it was at its last barrier, and what happened since."""

    def __init__(self, content=b""):
        self.content = bytearray(content)
        self.allocated = set(range(-(-len(content) // SECTOR)))     # sectors that have their place on the disk
        self.effects = []

    def sync(self):
        for event in self.effects:
            if event.kind == "size":
                self.allocated = {s for s in self.allocated if s * SECTOR < event.offset}
            else:
                self.allocated.update(_sectors(event))
            apply(self.content, event)
        self.effects = []

    def sizes(self):
        sizes, content = [len(self.content)], bytearray(self.content)
        for event in self.effects:
            apply(content, event)
            sizes.append(len(content))
        return sizes

    def versions(self, grain):
        """Return the whole file at its barrier, as long as it ever was, and of each piece that changed its contents.

        A piece is named by where it starts.
        """
        now, found = bytearray(self.content), {}
        longest = -(-max(self.sizes()) // grain) * grain
        start = bytes(self.content).ljust(longest, b"\0")
        whole = {event.offset for event in self.effects if event.whole}
        for event in self.effects:
            low, high = apply(now, event)
            for at in range(low // grain * grain, high, grain):
                end = at + grain
                if at // 8 * 8 in whole and grain < 8:
                    at, end = at // 8 * 8, at // 8 * 8 + 8
                data = bytes(now[at:end]).ljust(end - at, b"\0")
                known = found.setdefault(at, [start[at:end].ljust(end - at, b"\0")])
                if data != known[-1]:
                    known.append(data)
        return start, {at: data for at, data in found.items() if len(data) > 1}

    def loose(self):
        """Return the sectors that got their place since the barrier, by being written to."""
        written = {sector for event in self.effects if event.kind == "write" for sector in _sectors(event)}
        reserved = {sector for event in self.effects if event.kind == "allocate" for sector in _sectors(event)}
        return written - self.allocated - reserved


def _sectors(event):
    end = event.end if event.kind == "allocate" else event.offset + len(event.data)
    return range(event.offset // SECTOR, -(-end // SECTOR))


class Platter:
    """The disk after some of the events.

    Parameters
    ----------
    events : list of Event
    before : dict of str to bytes
    numbers : dict of str to int
        The numbers of the files that were there before.
    """

    def __init__(self, events, before=(), numbers=()):
        self.events = events
        self.done = 0
        self.files = {number: _File(before[path]) for path, number in dict(numbers).items()}
        self.names = {path: [number] for path, number in dict(numbers).items()}    # what each led to since its barrier
        self._cache = {}

    @classmethod
    def of(cls, disk):
        return cls(disk.events, disk.before, disk.numbers_before())

    def step(self):
        """Let one more event happen."""
        event = self.events[self.done]
        self.done += 1
        self._cache = {}
        if event.kind == "names":
            for path, number in event.data.items():
                self.names.setdefault(path, [None]).append(number)
                self.files.setdefault(number, _File())
        elif event.kind == "folder":
            for path, led_to in self.names.items():
                if os.path.dirname(path) == event.data:
                    del led_to[:-1]
        elif event.kind == "sync":
            self.files.setdefault(event.file, _File()).sync()
        else:
            self.files.setdefault(event.file, _File()).effects.append(event)

    def advance(self, count):
        """Let events happen until there were `count`."""
        while self.done < count:
            self.step()
        return self

    def pending(self):
        """Return the events that are not on the disk for sure."""
        return [event for file in self.files.values() for event in file.effects]

    def cut(self, choose, grain=SECTOR):
        """Return what is on the disk after a cut at this moment.

        Parameters
        ----------
        choose : callable
            ``choose(place, contents)`` returns one of the contents that a place had since its barrier; the first is
            that at the barrier, the last that of now.
        grain : int
            How many bytes have a moment of their own.

        Returns
        -------
        dict of str to bytes
            The files by their paths.
        """
        image = {}
        for path, led_to in sorted(self.names.items()):
            number = led_to[0] if len(led_to) == 1 else choose(Place("name"), led_to)
            if number is not None:
                image[path] = self._content(number, choose, grain)
        return image

    def _content(self, number, choose, grain):
        file = self.files[number]
        if not file.effects:
            return bytes(file.content)
        known = self._cache.get((number, grain))
        if known is None:
            known = self._cache[number, grain] = (*file.versions(grain), file.sizes(), file.loose())
        start, versions, sizes, loose = known
        content = bytearray(start)
        for at, contents in versions.items():
            end = at + len(contents[0])
            place = Place("data", number, at, end, grain == SECTOR and at // SECTOR in loose)
            content[at:end] = choose(place, contents)
        del content[choose(Place("size", number), sizes):]
        return bytes(content)


# -- choices ----------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """One way in which a disk can look after a cut.

    Attributes
    ----------
    name : str
        For messages.
    grain : int
    choose : callable
    """

    name: str
    grain: int
    choose: object


def dropped(place, contents):
    """Nothing since the barrier is on the disk."""
    return contents[0]


def kept(place, contents):
    """Everything is."""
    return contents[-1]


def _one(event, inside, outside):
    """Choose by `inside` for what an event changed, and by `outside` for the rest."""
    low, high = (event.offset, event.offset + len(event.data)) if event.kind == "write" else (0, 0)

    def choose(place, contents):
        if place.file != event.file:
            return outside(place, contents)
        hit = low < place.end and place.start < high if place.kind == "data" \
            else place.kind == "size" and event.kind != "write"
        return (inside if hit else outside)(place, contents)
    return choose


def _by_kind(kind, inside, outside):
    return lambda place, contents: (inside if place.kind == kind else outside)(place, contents)


def _header(inside, outside, size=256):
    return lambda place, contents: (inside if place.kind == "data" and place.end <= size else outside)(place, contents)


def corners(platter):
    """Yield the cuts that somebody would think of.

    All dropped, all kept; only names, only sizes, only the header, only what one store changed: kept, or dropped.
    """
    yield Cut("all dropped", SECTOR, dropped)
    yield Cut("all kept", SECTOR, kept)
    for what, choice in (("name", _by_kind("name", dropped, kept)), ("size", _by_kind("size", dropped, kept)),
                         ("header", _header(dropped, kept))):
        yield Cut("%s dropped" % what, 8, choice)
    for what, choice in (("name", _by_kind("name", kept, dropped)), ("size", _by_kind("size", kept, dropped)),
                         ("header", _header(kept, dropped))):
        yield Cut("%s kept" % what, 8, choice)
    for event in platter.pending():
        grain = 1 if len(event.data) == 1 else 8
        yield Cut("only %r kept" % (event,), grain, _one(event, kept, dropped))
        yield Cut("only %r dropped" % (event,), grain, _one(event, dropped, kept))


JUNK = (b"\xff", b"\0", b"(", b".", b"(G" + bytes(6), b"0123456789abcdef")


def random_cut(rng):
    """Return a random cut; the same for an equal `rng`, a random.Random."""
    grain = rng.choice(GRAINS)
    share = rng.choice((None, 0.02, 0.3, 0.7, 0.98))       # of the places that are as now; None: any moment
    names = rng.choice((None, 0.5))                        # None: as the rest
    junk = rng.random() < 0.5

    def choose(place, contents):
        if place.junk and junk and rng.random() < 0.3:
            filler = rng.choice(JUNK)
            return (filler * SECTOR)[:SECTOR]
        likely = names if place.kind == "name" and names else share
        if likely is None or rng.random() < 0.1:
            return rng.choice(contents)
        return contents[-1] if rng.random() < likely else contents[0]
    return Cut("random cut, grain %d, kept %r, junk %r" % (grain, share, junk), grain, choose)
