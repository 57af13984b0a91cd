"""One open file: descriptors, map windows, the writers' lock, and every store.

This is the only module that calls `os`, `mmap` and the locking functions. All stores into a file go through the
six operations `write`, `reserve`, `store_byte`, `cell_store`, `truncate` and `sync` of `File`, so that a class
that records them, or makes them fail, can stand in for it; but elements of arrays, which users store through maps,
and `File.fill`. Which store may come when is decided above, and said there with the invariant of docs/format.md that
it relies on.
"""
from __future__ import annotations

import errno
import functools
import mmap
import os
import stat
import struct
import sys
import time
import weakref
from _thread import get_ident          # as in threading, whose import takes half a millisecond
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Optional, Union

from . import format as fmt
from .errors import BusyError, CorruptError, FormatError
from .views import Root, make_root

fcntl: Any
msvcrt: Any
try:
    import fcntl
    _flock, _LOCK_EX, _LOCK_UN = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_UN
except ImportError:             # Windows
    fcntl = None
    import msvcrt

HAVE_PWRITEV = hasattr(os, "pwritev")
HAVE_PWRITE = hasattr(os, "pwrite")
# Only on Linux what is written shows in maps at once, and the other way round, on every file system.
HAVE_FILL = HAVE_PWRITE and sys.platform == "linux"
HAVE_FALLOCATE = hasattr(os, "posix_fallocate")
HAVE_TMPFILE = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")
NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)       # where the C library does not stand in for it
FULL_SYNC: Optional[int] = getattr(fcntl, "F_FULLFSYNC", None)      # macOS: fsync leaves it to the disk when to write
NO_SYNC = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)     # a file system that has no such thing
# Only on Linux does a sync include what was stored through maps; POSIX does not ask for it, Windows does not do it.
SYNC_TAKES_MAPS = sys.platform == "linux"
# Windows neither cuts off a part of a file that is mapped anywhere, nor lets another take the place of an open one.
OPEN_PINS = os.name == "nt"
O_BINARY: int = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)

PUNCH_FROM = 1 << 16            # bytes; fewer are not worth the call
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
FALLOCATE_FROM = 1 << 20        # below, the call costs more than it brings
WRITE_MAX = 1 << 30             # a single call writes at most 2 GiB on Linux, less than that on macOS
GROUP_MAX = 16 << 20            # pieces of an array that were copied do not pile up
OFFSET_MAX = (1 << 56) - 1       # of a byte in a file: the top byte of a cell is zero (I11)
GATHER_MAX = 512                # buffers in one pwritev; IOV_MAX is 1024
ZERO_STEP = 1 << 20
COPY_STEP = 4 << 20
FILL_STEP = 16 << 20            # the system keeps other writes to the file waiting meanwhile
AHEAD_LEAST = 4 << 20
AHEAD_ALLOCATED = 64 << 10      # where what is ahead has to be allocated
WINDOWS_MAX = 8
LOCK_BYTE = 1 << 62             # on Windows, where locks cover bytes: one far behind any data
SHARE_BYTE = LOCK_BYTE + 1      # read-locked by whoever may change bytes through a map
FLOCK = struct.Struct("hhqqi0q")            # struct flock, where offsets have 64 bits
HAVE_SHARES = hasattr(fcntl, "F_OFD_SETLK") and sys.maxsize > 1 << 32
NO_SHARES = (errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
HAVE_COPY_RANGE = hasattr(os, "copy_file_range")
HAVE_HOLES = hasattr(os, "SEEK_DATA")
NO_COPY_RANGE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EBADF)

# File systems that never have to find new blocks for a byte that has its block already, so that a store into
# the map cannot end in a bus error on a full disk. Elsewhere (copy on write, network) stores are pwrite calls.
IN_PLACE = frozenset(("ext2", "ext3", "ext4", "tmpfs"))
# These do so unless two files share the blocks.
IN_PLACE_UNSHARED = frozenset(("xfs", "ocfs2"))
# Local file systems, on which whole-file locks and byte locks are two different things.
LOCAL = IN_PLACE | {"xfs", "btrfs", "f2fs", "zfs", "overlay", "bcachefs", "ramfs"}
# Processors that show one core's stores to the others in their order, and that of a cell in one piece (a program of
# 32 bits makes two of it); elsewhere each store is a system call.
ORDERED = hasattr(os, "uname") and os.uname().machine in ("x86_64", "AMD64") and sys.maxsize > 1 << 32
# Files whose lock a batch of this process holds, and the thread that does.
_held: dict[tuple[int, int], int] = {}

_STOP = bytes((fmt.STOP,))

_Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def full_path(path: _Path) -> str:
    """Return `path` as an absolute str; it stays right when the working directory changes.

    Raises
    ------
    TypeError
        If it is no str, bytes or os.PathLike.
    FileNotFoundError
        If it is empty.
    """
    name = os.fsdecode(os.fspath(path))
    if not name:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return os.path.abspath(name)


def boot_id() -> bytes:
    """Return 16 bytes that are the same until the machine starts anew, or zeros where there are none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as f:
            return bytes.fromhex(f.read().decode("ascii").strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def _file_system(fd: int) -> str:
    """Return the name of the kind of file system that a file is on, or "" if it is not known.

    Asked anew each time: the numbers of devices and mounts are used again.
    """
    try:
        # By the number of the mount: on btrfs, devices have other numbers there.
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as f:
            number = next((line.split()[1] for line in f if line.startswith("mnt_id:")), "")
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as f:
            return next((line.partition(" - ")[2].split()[0] for line in f if line.split()[0] == number), "")
    except (OSError, IndexError):
        return ""


def _stores_in_place(kind: str) -> bool:
    """Whether stores into a map of a file on such a file system cannot fail for want of disk space."""
    return kind in IN_PLACE


def _block_size(fd: int) -> int:
    """Return the size of the file system's blocks in bytes, or 0 where the system does not tell."""
    return os.fstatvfs(fd).f_bsize if hasattr(os, "fstatvfs") else 0


# A call that tells which file a path leads to, and its size, by Linux's statx: it can be asked for these alone.
# `os.stat` asks for the times too, and from Linux 6.13 on a file whose time was seen gets a new one, to the nanosecond,
# with its next write: that makes a put a quarter slower. Of the three, ``call(*arguments)`` is 0, or another number if
# it failed, perhaps because nothing is there; the third, of 8-byte cells, is what it answered last: ``cells[4]`` is the
# inode, ``cells[5]`` the size, ``cells[17]`` the device.
_Statx = tuple[Any, tuple[Any, ...], memoryview]

STATX_INO_SIZE = 0x100 | 0x200
AT_FDCWD = -100


def _make_statx(path: str) -> _Statx:
    import ctypes                       # not every Python has it

    buffer = ctypes.create_string_buffer(256)
    # PyDLL keeps the GIL: giving it up costs more than the call, on the local file systems it is used for.
    return (ctypes.PyDLL(None).statx,
            (ctypes.c_int(AT_FDCWD), ctypes.c_char_p(os.fsencode(path)), ctypes.c_int(0),
             ctypes.c_uint(STATX_INO_SIZE), ctypes.byref(buffer)), memoryview(buffer).cast("B").cast("Q"))


def _find_statx(path: str, inode: int, size: int) -> Optional[_Statx]:
    """Return a working `_Statx` for `path`, or None where the system has none."""
    try:
        found = _make_statx(path)
    except (ImportError, OSError, AttributeError, ValueError, TypeError):
        return None
    call, arguments, cells = found
    return found if not call(*arguments) and (cells[4], cells[5]) == (inode, size) else None


class _OtherOrderCells:
    """Stands in for the cast memoryview on a machine whose byte order is not the file's."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __getitem__(self, i: int) -> int:
        return int.from_bytes(self._view[8 * i:8 * i + 8], "little")

    def __setitem__(self, i: int, value: int) -> None:
        self._view[8 * i:8 * i + 8] = value.to_bytes(8, "little")


def ordered_cells(view: memoryview) -> Any:
    """Return bytes of a file as little-endian 8-byte cells."""
    return view.cast("Q") if sys.byteorder == "little" else _OtherOrderCells(view)


def header_cells(view: memoryview) -> Any:
    """Return the header as cells: ``cells[fmt.COMMIT_CELL]``."""
    return ordered_cells(view[:fmt.HEADER_SIZE])


def check_regular(status: os.stat_result, path: str) -> None:
    """Raise FormatError unless `status` is that of a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise FormatError("not an mmapdict file: it is a directory", path)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("not an mmapdict file: it is no regular file, but a device, a pipe or a socket", path)


class ReplacedError(BusyError):
    """Raised when another file takes the path while this one is being opened: open it again."""


class Window:
    """One map: bytes `start` up to `end` of the file.

    Attributes
    ----------
    root : Root
        What arrays are views of.
    view : memoryview
        The same bytes.
    """

    __slots__ = ("start", "end", "root", "view")

    def __init__(self, start: int, m: mmap.mmap, path: str, mode: str, identity: tuple[int, int]) -> None:
        self.start = start
        self.end = start + len(m)
        self.root: Root = make_root(m, start, path, mode, identity)
        self.view = memoryview(m)


def _release(path: str, descriptors: list[int]) -> None:
    """Close a file's descriptors. Maps go by themselves, each with the last array over it."""
    while descriptors:
        os.close(descriptors.pop())


class File:
    """An open file.

    Parameters
    ----------
    path : str
        Absolute.
    writable : bool
    timeout : float, optional
        How long to wait for others, in seconds; None: for ever.

    Attributes
    ----------
    cells : memoryview of 8-byte cells
        The header, as it is in the file at this moment.
    file_id : bytes
    store_cell : function of (int, int)
        Stores the header's cell of that number: a `cell_store`.
    tag : int
        Combined with an offset it makes a record's tag.
    identity : (int, int)
        Device and inode.
    fingerprint : tuple
        The identity and the file id: another for every file, also for a copy and for one whose inode is used again.
    boot : (int, int)
        What the header's boot id is, as two cells, if the file was changed since the system started.

    Raises
    ------
    OSError
        The file cannot be opened.
    BusyError
        It was replaced meanwhile, or somebody has it for himself for longer than `timeout`.
    FormatError, CorruptError
        It is not an mmapdict file, or its header is damaged.
    """

    def __init__(self, path: str, writable: bool, timeout: Optional[float] = None) -> None:
        self.path = path
        self.writable = writable
        self.timeout = timeout
        self._descriptors: list[int] = []
        self.close_files = weakref.finalize(self, _release, path, self._descriptors)
        self.close_files.atexit = False
        # Whether this file was made longer than its content: then its end is cut off also if nobody calls `close`.
        self._ahead: list[bool] = []
        self._fills: list[None] = []        # one for each `fill` that goes on
        try:
            self._open()
        except BaseException:
            self.close_files()
            raise

    def _open(self) -> None:
        check_regular(os.stat(self.path), self.path)        # to open a device can be an act of its own
        flags = (os.O_RDWR if self.writable else os.O_RDONLY) | O_BINARY
        self.fd = os.open(self.path, flags | getattr(os, "O_NONBLOCK", 0))
        self._descriptors.append(self.fd)
        status = os.fstat(self.fd)
        check_regular(status, self.path)
        self.identity = (status.st_dev, status.st_ino)
        self.size = status.st_size
        self.file_id = fmt.check_header(self.read(0, fmt.HEADER_SIZE + 1), self.size, self.path)
        self.tag = fmt.file_tag(self.file_id)
        self.fingerprint = (*self.identity, self.file_id)
        self.windows: list[Window] = []
        self._roots: list[weakref.ref[Root]] = []
        # A map need not keep a descriptor of its own, which arrays then keep for as long as they live.
        self._map_options: dict[str, Any] = {} if self.writable or sys.version_info < (3, 13) else {"trackfd": False}
        self.epoch = 0              # moves when windows were let go
        self.holding = False        # a block keeps the lock for many changes
        self._kind = _file_system(self.fd) if self.writable else ""
        # With blocks smaller than a page, a store into a page needs the blocks of all the page, up to the file's end.
        self.whole_pages = self.writable and _block_size(self.fd) >= mmap.PAGESIZE
        self.in_place = self.whole_pages and ORDERED and _stores_in_place(self._kind)
        self._statx = _find_statx(self.path, status.st_ino, status.st_size) if self.in_place else None
        if self._statx is not None:
            self._statx_device = self._statx[2][17]
        self.boot: tuple[int, int] = struct.unpack("<2Q", boot_id())
        if self.writable:
            self._shares = HAVE_SHARES and fcntl is not None and self._kind in LOCAL
            self._share()
            self._open_lock()
            self._left = weakref.finalize(self, _trim_left, self.path, self.identity, self._ahead)
        self._map_header()

    def _map_header(self) -> None:
        self.cells: Any = header_cells(self.map_window(0).view)
        self.store_cell: Any = self.cell_store(self.cells, 0) if self.writable else None

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, offset: int, n: int) -> bytes:
        """Return up to `n` bytes at `offset`, by a system call: never a bus error."""
        if HAVE_PWRITE:
            return os.pread(self.fd, n, offset)
        os.lseek(self.fd, offset, os.SEEK_SET)
        return os.read(self.fd, n)

    def status(self) -> os.stat_result:
        """Return the file's status, the size now included."""
        return os.fstat(self.fd)

    def window(self, start: int, end: int) -> Window:
        """Return a map that holds bytes `start` up to `end` whole; ValueError if the file ends before."""
        for w in reversed(self.windows):
            if w.start <= start and end <= w.end:
                return w
        w = self.map_window(start)
        if end > w.end:
            raise ValueError(f"offset {end} is behind the end of the file, {w.end}")
        return w

    def map_window(self, start: int) -> Window:
        """Map the file from `start` (rounded down) to its end.

        Once there are `WINDOWS_MAX` windows, one over the whole file takes their place: every map costs a
        descriptor. Those that arrays were made over live on with them.
        """
        many = len(self.windows) >= WINDOWS_MAX
        if many:
            start = 0
        start -= start % mmap.ALLOCATIONGRANULARITY
        access = mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ
        mode = "r+" if self.writable else "r"
        for _ in range(100):
            size = os.fstat(self.fd).st_size - start
            if size <= 0:
                raise ValueError(f"offset {start} is behind the end of the file")
            try:
                m = mmap.mmap(self.fd, size, access=access, offset=start, **self._map_options)
            except ValueError:
                continue            # a writer cut the unused end off in between
            except (OSError, OverflowError) as exc:
                # ENODEV: a file system without maps; OverflowError: too long for a process of 32 bits.
                number = exc.errno if isinstance(exc, OSError) else errno.ENOMEM
                raise OSError(number, f"the file cannot be mapped: {exc}", self.path) from exc
            w = Window(start, m, self.path, mode, self.identity)
            if many:
                self.windows.clear()
                self.epoch += 1
                self._roots = [root for root in self._roots if root() is not None]
            self.windows.append(w)
            self._roots.append(weakref.ref(w.root))
            return w
        raise BusyError(errno.EAGAIN, "the file's size does not keep still", self.path)

    def byte(self, offset: int) -> int:
        """Return the byte at `offset`, which is not behind the STOP."""
        w = self.window(offset, offset + 1)
        return w.view[offset - w.start]

    def record(self, offset: int, first: int = fmt.MARK) -> tuple[fmt.Record, Window]:
        """Return the record at `offset`, which starts with the byte `first`, and a map that holds it whole.

        Raises
        ------
        CorruptError
            There is none.
        """
        try:
            w = self.window(offset, offset + fmt.RECORD_HEAD)
        except ValueError as exc:
            raise CorruptError("no record: the file ends before", self.path, offset) from exc
        try:
            return fmt.decode_record(w.view, w.start, offset, self.tag, first), w
        except CorruptError:
            if w.end >= self.status().st_size:
                raise
        w = self.map_window(offset)                     # it may run past what was mapped
        return fmt.decode_record(w.view, w.start, offset, self.tag, first), w

    # -- the stores ---------------------------------------------------------------------------------------------

    def write(self, offset: int, buffers: Union[bytes, memoryview, Iterable[Any]]) -> None:
        """Write buffers one behind the other from `offset` on, all of them or an error.

        Only ever behind the STOP (I3), or where a growable array has room that it has not taken (I18). A generator is
        taken piece by piece. A memoryview is one of bytes.
        """
        if isinstance(buffers, (bytes, memoryview)):
            done = os.pwrite(self.lock_fd, buffers, offset) if HAVE_PWRITE and len(buffers) < WRITE_MAX else 0
            if done < len(buffers):
                self._write_one(offset + done, memoryview(buffers)[done:])
            return
        group: list[Any] = []
        size = 0
        pieces: Iterable[Any] = buffers
        for buffer in pieces:
            n = len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
            if len(group) >= GATHER_MAX or size + n > GROUP_MAX:
                offset = self._write_group(offset, group)
                group, size = [], 0
            group.append(buffer)
            size += n
        self._write_group(offset, group)

    def _write_group(self, offset: int, buffers: list[Any]) -> int:
        """Write up to `GATHER_MAX` buffers, going on after short counts; return the offset behind them."""
        if not buffers:
            return offset
        if not HAVE_PWRITEV:
            for buffer in buffers:
                offset = self._write_one(offset, memoryview(buffer).cast("B"))
            return offset
        total = sum(len(b) if type(b) is bytes else memoryview(b).nbytes for b in buffers)
        if total > WRITE_MAX:
            done = 0
        else:
            done = os.pwritev(self.lock_fd, buffers, offset)
            if done == total:
                return offset + done
        views = [memoryview(b).cast("B") for b in buffers]
        for view in views:
            if done >= len(view):
                done -= len(view)
                offset += len(view)
                continue
            offset = self._write_one(offset + done, view[done:])
            done = 0
        return offset

    def _write_one(self, offset: int, view: memoryview) -> int:
        return _write_all(self.lock_fd, self.path, offset, view)

    def reserve(self, start: int, end: int, sparse: bool = False) -> None:
        """Make bytes `start` up to `end`, all behind the STOP (I3), zeros that have their place on the disk.

        What a dead writer left there is cut off first; `sparse` leaves the zeros without a place.

        Raises
        ------
        OSError
            ENOSPC, EFBIG, ...: there is no room. The file is as before, but for bytes behind the STOP.
        """
        if end > OFFSET_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self.path)
        if self.size > start:
            try:
                self.truncate(start)
            except OSError:
                if not OPEN_PINS:
                    raise
                self._write_zeros(start, min(end, self.size))
        if end <= start:
            return
        if sparse:
            if end > self.size:
                self.truncate(end)
        elif not self._fallocate(start, end):
            self._write_zeros(start, end)
        self.size = max(self.size, end)

    def _write_zeros(self, start: int, end: int) -> None:
        for i in range(start, end, ZERO_STEP):
            self._write_one(i, memoryview(bytes(min(ZERO_STEP, end - i))))

    def allocate(self, start: int, end: int) -> None:
        """Find room for a big write behind the STOP (I3) beforehand: faster, and a full disk is noticed first."""
        if end - start >= FALLOCATE_FROM and self._fallocate(start, end):
            self.size = max(self.size, end)

    def _fallocate(self, start: int, end: int) -> bool:
        """Find room; False: the system or the file system cannot do that."""
        while HAVE_FALLOCATE:
            try:
                os.posix_fallocate(self.lock_fd, start, end - start)
                return True
            except InterruptedError:
                continue
            except OSError as exc:
                if exc.errno in NO_FALLOCATE:
                    break
                raise OSError(exc.errno, exc.strerror, self.path) from None
        return False

    def fill(self, offset: int, data: memoryview) -> bool:
        """Write elements of an array that was handed out (I3 excepts them), instead of storing them through a map.

        A first store into a page of a map is a fault, in which the system clears the page that is then overwritten: a
        write does neither. On Linux a file's maps are the pages that are written, so they show it at once.

        Returns
        -------
        bool
            False: the file is closed, or a write failed, perhaps after others. Then store all of it through the map.
        """
        self._fills.append(None)        # as long as there is one, `close` leaves the descriptors open
        try:
            while data:
                if self.fd not in self._descriptors:    # closed. The lock's would be the parent's in a forked child.
                    return False
                n = os.pwrite(self.fd, data[:FILL_STEP], offset)
                if n == 0:
                    return False
                data, offset = data[n:], offset + n
            return True
        except OSError:
            return False
        finally:
            self._fills.pop()
            if self.cells is None and not self._fills:
                self.close_files()

    def store_byte(self, offset: int, value: int) -> None:
        """Store one byte: a publish, or the Op of a record (I1)."""
        if self.in_place:
            w = self.windows[-1]
            if not w.start <= offset < w.end:
                w = self.window(offset, offset + 1)
            w.view[offset - w.start] = value
        else:
            self._write_one(offset, memoryview(bytes((value,))))

    def own_blocks(self, start: int, end: int) -> bool:
        """See to it that bytes that nobody uses have blocks on the disk; return whether `store_rows` cannot fail then.

        Room that was reserved may be a hole of the file all the same: in a copy of it.
        """
        try:
            return self.in_place and self._fallocate(start, end)
        except OSError:             # who writes there is told
            return False

    def own_pages(self, start: int, end: int) -> None:
        """See to it that bytes that are about to be handed out in a map have blocks: all of their pages, where these
        have more than one.

        Raises
        ------
        OSError
            There is no room.
        """
        if self.writable and not self.whole_pages:
            page = mmap.PAGESIZE
            self._fallocate(start - start % page, min(end + -end % page, self.size))

    def store_rows(self, view: memoryview, start: int, offset: int, rows: Union[bytes, memoryview]) -> None:
        """Store rows through a map, where a growable array has room that it has not taken (I18); see `own_blocks`.

        Faster than `write` for a few bytes, but who waits for the file is not told. The map `view` begins at `start`.
        """
        at = offset - start
        view[at:at + len(rows)] = rows

    def tell(self, stop: int) -> None:
        """Tell who waits for the file that it has changed: stores through a map are not told.

        The STOP is written where it stands. If that fails, they notice a little later.
        """
        if self.in_place:
            with suppress(OSError):
                os.pwrite(self.lock_fd, _STOP, stop)

    def cell_store(self, cells: Any, start: int) -> Callable[[int, int], Any]:
        """Return the function that stores 8-byte cells: of the header (I1), or of an index block (I17).

        Parameters
        ----------
        cells : memoryview
            Aligned cells of this file.
        start : int
            The offset of the first of them.

        Returns
        -------
        function of (int, int)
            Called with the number of a cell and its new value.
        """
        if self.in_place:
            return cells.__setitem__            # type: ignore[no-any-return]   # a change stores some ten
        return functools.partial(_write_cell, self.lock_fd, self.path, start)

    def truncate(self, size: int) -> None:
        """Set the file's size to `size`, behind the STOP (I3)."""
        os.ftruncate(self.lock_fd, size)
        self.size = size

    def sync(self, folder: bool = False) -> None:
        """Return when all that was stored, through maps too, is on the disk; with `folder`, its name as well."""
        if not SYNC_TAKES_MAPS:
            for w in self.windows:
                m: Any = w.view.obj
                m.flush()
        sync_descriptor(self.fd)
        if folder:
            sync_folder(os.path.dirname(os.path.realpath(self.path)))

    def is_sparse(self, end: int) -> bool:
        """Whether the file has fewer blocks than it has bytes before the offset `end`."""
        blocks = getattr(self.status(), "st_blocks", None)
        return blocks is not None and blocks * 512 < end

    def data_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of the bytes `start` up to `end` that may be no zeros: the others are holes."""
        while start < end and HAVE_HOLES:
            try:
                data = os.lseek(self.fd, start, os.SEEK_DATA)
                hole = os.lseek(self.fd, data, os.SEEK_HOLE)
            except OSError as exc:
                if exc.errno == errno.ENXIO:        # a hole up to the end
                    return
                break
            if data >= end:
                return
            yield data, min(hole, end)
            start = hole
        if start < end:
            yield start, end

    def copy(self, offset: int, source: File, start: int, n: int) -> None:
        """Copy `n` bytes at `start` of another file to `offset` of this one, behind the STOP (I3), all or an error.

        Inside the kernel where it can do that; file systems may share the blocks, but for those that store in place
        only what is not shared.
        """
        while n and HAVE_COPY_RANGE and self._kind not in IN_PLACE_UNSHARED:
            try:
                done = os.copy_file_range(source.fd, self.lock_fd, min(n, WRITE_MAX), start, offset)
            except OSError as exc:
                if exc.errno not in NO_COPY_RANGE:
                    raise OSError(exc.errno, exc.strerror, self.path) from None
                break
            if not done:
                break
            offset, start, n = offset + done, start + done, n - done
        while n:
            data = source.read(start, min(n, COPY_STEP))
            if not data:
                raise OSError(errno.EIO, "the file that is copied ends too early", source.path)
            self._write_one(offset, memoryview(data))
            offset, start, n = offset + len(data), start + len(data), n - len(data)

    def punch(self, start: int, end: int) -> None:
        """Give back the room on the disk of bytes that are of no use any more; they become zeros.

        In a live record too (I18), where they are in a bytes object that is thrown away. Where the system cannot do it
        they keep their room.
        """
        if sys.platform != "linux" or self._kind in IN_PLACE_UNSHARED | {""} or end - start < PUNCH_FROM:
            return
        import ctypes                       # not every Python has it

        with suppress(ImportError, OSError, AttributeError):
            fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
            fallocate.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
            fallocate(self.lock_fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, start, end - start)

    def make_room(self, end: int) -> None:
        """See to it that the file reaches beyond `end`, by a good piece, so that one map serves many records.

        The piece is a hole behind the STOP (I3): `ls` shows it, `du` does not, no unpickler reads it.
        """
        if end <= self.size:
            return
        if end > OFFSET_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self.path)
        self._ahead[:] = [True]
        if not self.whole_pages and self._fallocate_pages(end):
            return
        ahead = end + max(AHEAD_LEAST, end // 4)
        try:
            self.truncate(max(end, ahead - ahead % mmap.PAGESIZE))
        except OSError:             # a limit of the process or the file system
            self.truncate(end)

    def _fallocate_pages(self, end: int) -> bool:
        """Where blocks are smaller than pages, find room up to the end of a page, so that none is in part a hole.

        Setting an element there through the map would need a block, and a full disk would be a bus error.
        """
        pages = -end % mmap.PAGESIZE + end
        for size in (pages + AHEAD_ALLOCATED, pages):
            with suppress(OSError):
                if not self._fallocate(self.size, size):
                    return False
                self.size = size
                return True
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    # -- the writers' lock --------------------------------------------------------------------------------------

    def _open_lock(self) -> None:
        """Open the descriptor that carries the lock and takes the writes.

        A description of its own that is never mapped: a map keeps its description alive, and a lock with it.
        """
        self.lock_fd = os.open(self.path, os.O_RDWR | O_BINARY)
        self._descriptors.append(self.lock_fd)
        # Gives the lock back, explicitly: closing would not, while a forked child has the descriptor too. A function
        # in C: an exception that a signal handler raises can come after it, but not between call and system call.
        self.unlock: Callable[[], Any] = self._unlock_byte if fcntl is None \
            else functools.partial(_flock, self.lock_fd, _LOCK_UN)
        status = os.fstat(self.lock_fd)
        if (status.st_dev, status.st_ino) != self.identity:
            raise ReplacedError(errno.EAGAIN, "the file was replaced while it was being opened", self.path)

    def lock(self) -> bool:
        """Wait for the lock.

        Returns
        -------
        bool
            Whether the path still leads to this file. If not, another has taken its place (or none), and this
            one must not be written to any more.

        Raises
        ------
        BusyError
            The timeout is over; or this thread would wait for itself, because it holds the lock by another handle.
        """
        if _held and _held.get(self.identity) == get_ident():
            raise BusyError(errno.EDEADLK, "this thread has the file locked by another handle's batch; make the "
                            "change by that handle", self.path)
        if fcntl is not None and self.timeout is None:
            _flock(self.lock_fd, _LOCK_EX)
        else:
            self._wait_for(self.try_lock, "another process or handle has the file locked", _lock_holders)
        # I13: who replaces a file marks it first, but a rename or a removal by others must be noticed too.
        if self._statx is not None:
            call, arguments, cells = self._statx
            if not call(*arguments):
                self.size = cells[5]
                return cells[4] == self.identity[1] and cells[17] == self._statx_device
        try:
            return self.check_path()
        except BaseException:
            self.unlock()
            raise

    def check_path(self) -> bool:
        """Whether the path still leads to this file; the file's size is read anew."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return False
        self.size = status.st_size
        if (status.st_dev, status.st_ino) != self.identity:
            return False
        # overlayfs copies a file of an image when it is first opened for writing: then only new descriptors lead to
        # the copy, and the map stays the old one. A map that shows the file is never behind what was read before.
        commit = fmt.COMMIT_OFFSET
        return self.writable or struct.unpack("<Q", self.read(commit, 8))[0] <= self.cells[commit >> 3]

    def try_lock(self) -> bool:
        """Take the lock if it is free; say whether."""
        try:
            if fcntl is not None:
                fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                os.lseek(self.lock_fd, LOCK_BYTE, os.SEEK_SET)
                msvcrt.locking(self.lock_fd, msvcrt.LK_NBLCK, 1)
            return True
        except OSError as exc:
            if exc.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                raise
            return False

    def _wait_for(self, attempt: Callable[[], bool], what: str,
                  holders: Callable[[tuple[int, int]], list[int]]) -> None:
        """Attempt something until it succeeds, or raise BusyError when the timeout is over."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        for delay in poll_delays():
            if attempt():
                return
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BusyError(errno.EAGAIN, f"{what}{_named(holders(self.identity))}; waited "
                                    f"{self.timeout:g} s", self.path)
                delay = min(delay, left)
            time.sleep(delay)

    def hold(self, on: bool) -> None:
        """Take note that this thread keeps the lock for long, or (`on` is False) that it does so no more."""
        if on:
            _held[self.identity] = get_ident()
        else:
            _held.pop(self.identity, None)

    def _unlock_byte(self) -> None:
        os.lseek(self.lock_fd, LOCK_BYTE, os.SEEK_SET)
        with suppress(OSError):     # it was not locked
            msvcrt.locking(self.lock_fd, msvcrt.LK_UNLCK, 1)

    # -- who may change bytes through a map ---------------------------------------------------------------------

    def _lock_share(self, fd: int, kind: int) -> bool:
        """Lock or unlock the far byte for the description of `fd`; False: somebody else's lock is in the way."""
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, SHARE_BYTE, 1, 0))
            return True
        except OSError as exc:
            if exc.errno in NO_SHARES:
                self._shares = False            # gVisor, WSL 1, a kernel without
                return True
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False

    def _share(self) -> None:
        """Say, for as long as this handle or an array of it lives, that bytes may change through its maps.

        A map has a duplicate of the descriptor, so the lock goes with the last of them.
        """
        if self._shares:
            self._wait_for(lambda: self._lock_share(self.fd, fcntl.F_RDLCK),
                           "another process has the file for itself (it vacuums or seals it)", _lock_holders)

    def claim(self) -> None:
        """Keep everybody else from changing the file, through maps too, until `disclaim`. The caller has the lock.

        All windows are let go.

        Raises
        ------
        BusyError
            Somebody could: another handle that may write, or an array of one, this one's included.
        """
        self.windows.clear()
        self.epoch += 1
        self._roots = [root for root in self._roots if root() is not None]
        try:
            if self._roots:
                raise BusyError(errno.EBUSY, "arrays of this handle are alive, which may be written to; let go of "
                                "them (del), or copy them", self.path)
            if self._shares:
                self._lock_share(self.fd, fcntl.F_UNLCK)
                if not self._lock_share(self.lock_fd, fcntl.F_WRLCK):
                    self._lock_share(self.fd, fcntl.F_RDLCK)
                    raise BusyError(errno.EBUSY, "another handle may write to the file, or an array of one is alive"
                                    + _named(_writers(self.identity)) + "; close it, and let go of its arrays (del)",
                                    self.path)
        finally:
            self._map_header()

    @property
    def sees_others(self) -> bool:
        """Whether `claim` notices maps of other processes: not on every system and file system."""
        return self._shares

    def disclaim(self) -> None:
        """Undo `claim`."""
        if self._shares:
            self._lock_share(self.lock_fd, fcntl.F_UNLCK)
            self._lock_share(self.fd, fcntl.F_RDLCK)

    def drop_lock(self) -> None:
        """In a forked child: close the descriptor of the lock, which is the parent's.

        Closing it does not unlock; but while a child keeps it, the lock of a parent that was killed is not freed.
        """
        if self.writable and self.lock_fd in self._descriptors:
            self._descriptors.remove(self.lock_fd)
            os.close(self.lock_fd)
            if self._shares:
                # The share is the parent's as well, who may give it up.
                with suppress(OSError):
                    fd = os.open(self.path, os.O_RDWR | O_BINARY)
                    self._descriptors.append(fd)
                    self._lock_share(fd, fcntl.F_RDLCK)

    def trim(self, stop: int) -> None:
        """Cut off what `make_room` added behind the STOP (I3), unless another holds the lock at this moment.

        Parameters
        ----------
        stop : int
            Its offset, found by walking: the header's is a hint only (I4). If a record stands there by now, its
            writer will cut the file.
        """
        if OPEN_PINS:
            self._let_go()          # nothing is cut off that is mapped; an array that is alive keeps its map
        with suppress(OSError):     # room that stays is no loss
            if not self.try_lock():
                return
            try:
                if stop + 1 < self.status().st_size and self.read(stop, 1) == bytes((fmt.STOP,)):
                    self.truncate(stop + 1)
            finally:
                self.unlock()

    def _let_go(self) -> None:
        """Let go of the maps; those that arrays are over live on with them."""
        self.windows = []
        self.cells = self.store_cell = None

    def close(self) -> None:
        """Close the descriptors and let go of the maps: each of them has one too. Arrays keep theirs."""
        self._let_go()
        if self.writable:
            self.unlock = _nothing          # the descriptor is gone, and its number may be another's soon
            self._left.detach()
        if not self._fills:             # else the last of them does it: the number must not become another file's
            self.close_files()


def _write_all(fd: int, path: str, offset: int, view: memoryview) -> int:
    """Write bytes, going on after short counts; return the offset behind them."""
    while view:
        if HAVE_PWRITE:
            n = os.pwrite(fd, view[:WRITE_MAX], offset)
        else:
            os.lseek(fd, offset, os.SEEK_SET)
            n = os.write(fd, view[:WRITE_MAX])
        if n == 0:
            raise OSError(errno.EIO, "a write stored nothing", path)
        view = view[n:]
        offset += n
    return offset


def _write_cell(fd: int, path: str, start: int, cell: int, value: int) -> None:
    _write_all(fd, path, start + 8 * cell, memoryview(struct.pack("<Q", value)))


def _nothing() -> None:
    pass


def _trim_left(path: str, identity: tuple[int, int], ahead: list[bool]) -> None:
    """Cut off the unused end of a file whose handle was dropped, or is open when the interpreter ends.

    Under a lock of its own: a thread that still writes has the handle's.
    """
    if fcntl is None or not ahead:
        return
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR | O_BINARY)
        try:
            status = os.fstat(fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            cells = struct.unpack_from("<32Q", os.pread(fd, fmt.HEADER_SIZE, 0))
            stop = cells[fmt.STOP_CELL]
            # I4: the header was right when this handle made the file longer, and even means that it is now (I5).
            if (status.st_dev, status.st_ino) == identity and not cells[fmt.COMMIT_CELL] & 1 \
                    and stop + 1 < status.st_size and os.pread(fd, 1, stop) == bytes((fmt.STOP,)):
                os.ftruncate(fd, stop + 1)          # I3
        finally:
            os.close(fd)


def lock_now(fd: int) -> bool:
    """Lock a whole file if nobody else has it locked; say whether. Closing the descriptor unlocks it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


@contextmanager
def raw_bytes(path: str, alone: bool = False) -> Iterator[memoryview]:
    """Give the bytes of a whole file as they are, damaged or not, mapped for reading.

    Parameters
    ----------
    path : str
    alone : bool
        Keep writers out meanwhile.

    Raises
    ------
    FormatError
        It is no regular file.
    BusyError
        `alone`, and a writer is inside.
    OSError
    """
    check_regular(os.stat(path), path)
    fd = os.open(path, os.O_RDONLY | O_BINARY | getattr(os, "O_NONBLOCK", 0))
    try:
        check_regular(os.fstat(fd), path)
        if alone and not lock_now(fd):
            raise BusyError(errno.EAGAIN, "a writer has the file locked at this moment", path)
        if not os.fstat(fd).st_size:
            yield memoryview(b"")
            return
        m = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        view = memoryview(m)
        try:
            yield view
        finally:
            with suppress(BufferError):     # somebody keeps a part of it: then the map goes with that
                view.release()
                m.close()
    finally:
        os.close(fd)


def sync_descriptor(fd: int, names: bool = False) -> None:
    """Return when what was written to a file, or with `names` to a folder, is on the disk."""
    if FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, FULL_SYNC)
            return
        except OSError as exc:
            if exc.errno not in NO_SYNC:            # SMB and others have only the weaker one
                raise
    if names or not hasattr(os, "fdatasync"):
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def sync_folder(folder: str) -> None:
    """Return when the names in `folder` are on the disk, where the system can do that."""
    if os.name != "posix":
        return
    try:
        fd = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return                              # names may be made in it, but not listed
    try:
        sync_descriptor(fd, names=True)
    except OSError as exc:
        if exc.errno not in NO_SYNC:                # on some network file systems it is the server's business
            raise
    finally:
        os.close(fd)


def keep_attributes(source: int, target: int) -> None:
    """Give the file of descriptor `target` the owner, the mode and the extended attributes of that of `source`.

    What this process may not give away stays its own; the mode never lets in more than before.
    """
    status = os.fstat(source)
    if hasattr(os, "fchown"):
        try:
            os.fchown(target, status.st_uid, status.st_gid)
        except OSError:                     # EPERM; in a container EINVAL: an owner that is none there
            with suppress(OSError):
                os.fchown(target, -1, status.st_gid)
    if hasattr(os, "fchmod"):
        mode = stat.S_IMODE(status.st_mode)
        if os.fstat(target).st_gid != status.st_gid:
            mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3      # another group gets what everybody has
        if stat.S_IMODE(os.fstat(target).st_mode) != mode:  # FAT refuses even what changes nothing
            os.fchmod(target, mode)
    if hasattr(os, "listxattr"):
        with suppress(OSError):             # the file system has none
            for name in os.listxattr(source):
                with suppress(OSError):     # one that only the system may set
                    os.setxattr(target, name, os.getxattr(source, name))


def forget_frames(error: Optional[BaseException]) -> None:
    """Make an error, and those that caused it, let go of what the frames of its traceback hold: maps, for instance."""
    import traceback            # half a millisecond, and only after an error

    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def after_fork_in_child(function: Any) -> None:
    """Have `function` called in every forked child, where processes fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def _named(pids: list[int]) -> str:
    """Return the processes' numbers in brackets, or nothing if none is known."""
    own = os.getpid()
    names = ["this process" if pid == own else f"process {pid}" for pid in sorted(set(pids))]
    return f" ({', '.join(names)})" if names else ""


def _lock_holders(identity: tuple[int, int]) -> list[int]:
    """Return the processes that the system names as holders of a whole-file lock; none where it does not tell."""
    pids = []
    with suppress(OSError, ValueError), open("/proc/locks", encoding="ascii") as f:
        for line in f:
            if "->" in line:            # one that waits
                continue
            _, kind, _, _, pid, inode, *_ = line.split()
            major, minor, number = inode.split(":")
            if kind == "FLOCK" and int(pid) > 0 and int(number) == identity[1] \
                    and os.makedev(int(major, 16), int(minor, 16)) == identity[0]:
                pids.append(int(pid))
    return pids


def _writers(identity: tuple[int, int]) -> list[int]:
    """Return the processes that have the file open for writing, as far as the system shows their descriptors."""
    pids = []
    with suppress(OSError):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    if (status.st_dev, status.st_ino) == identity \
                            and os.stat(f"/proc/{pid}/fd/{fd}", follow_symlinks=False).st_mode & stat.S_IWUSR:
                        pids.append(int(pid))
                        break
    own = os.getpid()
    others = [pid for pid in pids if pid != own]
    return others or pids


after_fork_in_child(_held.clear)


def poll_delays() -> Iterator[float]:
    """Yield how long to sleep between looks, in seconds: 0.1 ms first, slowly up to 1 ms."""
    delay = 1e-4
    while True:
        yield delay
        delay = min(delay * 1.02, 1e-3)
