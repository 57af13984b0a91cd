"""Switches that make this system behave like another: calls that are missing, refuse, do less, or get in the way.

Each is a function that takes ``change(module, name, value)``; `MISSING` as the value takes the name away. They work in
the test's own process (by pytest's monkeypatch, see `apply`) and in a child (`PRELUDE`), for every file opened later.
"""

import errno
import fcntl
import mmap
import os
import struct
import sys
import types

MISSING = object()
TESTS = os.path.dirname(os.path.abspath(__file__))

# Runs in a child in front of everything else; format it with the names of the switches.
PRELUDE = f"""
import sys
sys.path.insert(0, {TESTS!r})
import systems
systems.apply_here(%r)
from children import *
exec(WITH_MMAPDICT)
"""


class Proxy:
    """A module with some of its attributes replaced."""

    def __init__(self, module, **replaced):
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)


def refuse(number):
    """A call that fails with an errno."""
    def call(*arguments, **options):
        raise OSError(number, os.strerror(number))
    return call


def flags(**values):
    """Set flags of the store, in all modules that have them."""
    def switch(change):
        from mmapdict import birth, store
        for name, value in values.items():
            change(store, name, value)
            if hasattr(birth, name):
                change(birth, name, value)
    return switch


def call(name, function):
    """Put another function in the place of one of os."""
    return lambda change: change(os, name, function)


def together(*names):
    """Several switches as one."""
    def switch(change):
        for name in names:
            SWITCHES[name](change)
    return switch


def of_fcntl(command, function):
    """Let a function answer one command of fcntl."""
    def switch(change):
        from mmapdict import store
        real = store.fcntl.fcntl if store.fcntl else None

        def answer(fd, number, argument=0):
            return function(fd) if number == command else real(fd, number, argument)
        if real is not None:
            change(store, "fcntl", Proxy(store.fcntl, fcntl=answer))
    return switch


def byte_locks(change):
    """Locks of single bytes, not waited for, that belong to the descriptor: what Windows' C library offers."""
    from mmapdict import store
    held = set()

    def lock(fd, kind, at):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, at, 1, 0))

    def locking(fd, mode, n):
        at = os.lseek(fd, 0, os.SEEK_CUR)
        if n != 1 or at != store.LOCK_BYTE:
            raise OSError(errno.EINVAL, "another byte than that of the lock")
        try:
            if mode == module.LK_UNLCK:
                if fd not in held:
                    raise BlockingIOError
                held.discard(fd)
                lock(fd, fcntl.F_UNLCK, at)
            else:
                lock(fd, fcntl.F_WRLCK, at)
                held.add(fd)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None

    module = types.SimpleNamespace(LK_NBLCK=2, LK_UNLCK=0, locking=locking)
    change(store, "LOCK_BYTE", 1 << 42)             # the largest file of Linux ends before Windows'
    change(store, "HAVE_SHARES", False)
    change(store, "FULL_SYNC", None)
    change(store, "fcntl", None)
    change(store, "msvcrt", module)


def in_use(status, maps_only=False):
    """Whether this process has a file mapped, or open."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        for line in f:
            words = line.split()
            if len(words) > 5 and words[4] == str(status.st_ino):
                return True
    for fd in () if maps_only else os.listdir("/proc/self/fd"):
        try:
            other = os.stat("/proc/self/fd/" + fd)
        except OSError:
            continue
        if (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino):
            return True
    return False


def pins(change):
    """A file that is mapped is not cut, one that is open not replaced, renamed or removed: Windows' ways."""
    cut, replace, rename, unlink = os.ftruncate, os.replace, os.rename, os.unlink

    def ftruncate(fd, size):
        status = os.fstat(fd)
        if size < status.st_size and in_use(status, maps_only=True):
            raise PermissionError(errno.EACCES, "a user-mapped section is open")
        cut(fd, size)

    def check(*paths):
        for path in paths:
            if os.path.exists(path) and in_use(os.stat(path)):
                raise PermissionError(errno.EACCES, "the file is open", path)

    def replaced(source, target):
        check(source, target)
        replace(source, target)

    def renamed(source, target):
        check(source, target)
        if os.path.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        rename(source, target)

    def removed(path, **options):
        check(path)
        unlink(path, **options)

    change(os, "ftruncate", ftruncate)
    change(os, "replace", replaced)
    change(os, "rename", renamed)
    change(os, "unlink", removed)
    flags(OPEN_PINS=True, HAVE_SHARES=False, HAVE_TMPFILE=False)(change)


def no_proc(change):
    """Nothing can be read below /proc."""
    import builtins

    from mmapdict import store

    def opened(path, *arguments, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return builtins.open(path, *arguments, **options)

    change(store, "open", opened)
    flags(HAVE_TMPFILE=False)(change)


def no_boot_id(change):
    from mmapdict import birth, store
    for module in store, birth:
        change(module, "boot_id", lambda: bytes(16))


def no_ctypes(change):
    change(sys.modules, "ctypes", None)


def pages(size):
    def switch(change):
        from mmapdict import store
        change(store, "mmap", Proxy(mmap, PAGESIZE=size, ALLOCATIONGRANULARITY=size))
    return switch


def other_byte_order(change):
    from mmapdict import store
    change(store, "sys", Proxy(sys, byteorder="big"))


def short_writes(n):
    """The system writes at most `n` bytes at a time."""
    def joined(buffers):
        return b"".join(bytes(memoryview(b).cast("B")) for b in buffers)

    def switch(change):
        pwrite, write = os.pwrite, os.write
        change(os, "pwritev", lambda fd, buffers, at: pwrite(fd, joined(buffers)[:n], at))
        change(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:n], at))
        change(os, "write", lambda fd, data: write(fd, bytes(data)[:n]))
    return switch


def short_copies(change):
    """The system copies at most some bytes at a time, and then nothing more."""
    real, count = os.copy_file_range, [0]

    def copy(source, target, n, *offsets):
        count[0] += 1
        return real(source, target, min(n, 1000), *offsets) if count[0] % 5 else 0
    change(os, "copy_file_range", copy)


def interrupted_fallocate(change):
    real, count = os.posix_fallocate, [0]

    def fallocate(*arguments):
        count[0] += 1
        if count[0] % 3:
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
        return real(*arguments)
    change(os, "posix_fallocate", fallocate)


def full_sync(function):
    """What macOS has for a sync that reaches the disk."""
    def switch(change):
        flags(FULL_SYNC=51)(change)
        of_fcntl(51, function)(change)
    return switch


SWITCHES = {
    "no pwritev": flags(HAVE_PWRITEV=False),
    "no pwrite": flags(HAVE_PWRITEV=False, HAVE_PWRITE=False),
    "no fallocate": flags(HAVE_FALLOCATE=False),
    "fallocate not supported": call("posix_fallocate", refuse(errno.EOPNOTSUPP)),
    "fallocate refused": call("posix_fallocate", refuse(errno.EINVAL)),
    "fallocate interrupted": interrupted_fallocate,
    "no nameless files": flags(HAVE_TMPFILE=False),
    "no links (FAT)": call("link", refuse(errno.EPERM)),
    "no links (macOS)": call("link", refuse(errno.ENOTSUP)),
    "no links (Windows)": call("link", refuse(errno.EINVAL)),
    "no links (FUSE)": call("link", refuse(errno.ENOSYS)),
    "no links (Android)": call("link", refuse(errno.EACCES)),
    "locks of bytes": byte_locks,
    "no shares": flags(HAVE_SHARES=False),
    "shares refused": of_fcntl(fcntl.F_OFD_SETLK, refuse(errno.EINVAL)),
    "no copying inside the kernel": flags(HAVE_COPY_RANGE=False),
    "copying refused": call("copy_file_range", refuse(errno.EXDEV)),
    "short copies": short_copies,
    "no statx": flags(_find_statx=lambda *arguments: None),
    "no ctypes": no_ctypes,
    "blocks that move": flags(_stores_in_place=lambda device: False),
    "a processor that changes the order": flags(ORDERED=False),
    "no boot id": no_boot_id,
    "no /proc": no_proc,
    "blocks smaller than pages": flags(_block_size=lambda fd: 1024),
    "no sizes of blocks": flags(_block_size=lambda fd: 0),
    "pages of 16 KiB": pages(1 << 14),
    "pages of 64 KiB": pages(1 << 16),
    "syncs that leave maps out": flags(SYNC_TAKES_MAPS=False),
    "F_FULLFSYNC": full_sync(os.fsync),
    "F_FULLFSYNC refused": full_sync(refuse(errno.ENOTSUP)),
    "no fdatasync": call("fdatasync", MISSING),
    "no owners": call("fchown", MISSING),
    "owners refused": call("fchown", refuse(errno.EINVAL)),
    "no modes": call("fchmod", MISSING),
    "modes refused": call("fchmod", refuse(errno.EPERM)),
    "no extended attributes": call("listxattr", MISSING),
    "extended attributes refused": call("listxattr", refuse(errno.EOPNOTSUPP)),
    "folders that are not synced": call("fsync", refuse(errno.EINVAL)),
    "open files stay": pins,
    "another byte order": other_byte_order,
    "short writes": short_writes(1000),
    "small groups": flags(GATHER_MAX=2, WRITE_MAX=4096, GROUP_MAX=1024, ZERO_STEP=1000, COPY_STEP=1000),
    "few maps": flags(WINDOWS_MAX=1, AHEAD_LEAST=0),
    "no fork hook": call("register_at_fork", MISSING),
}

# Many together, as the systems have them.
SWITCHES["macOS"] = together(
    "no fallocate", "no nameless files", "no shares", "no copying inside the kernel", "no statx", "blocks that move",
    "no boot id", "no /proc", "pages of 16 KiB", "syncs that leave maps out", "F_FULLFSYNC", "no fdatasync",
    "no extended attributes")
SWITCHES["Windows"] = together(
    "no pwrite", "no fallocate", "no nameless files", "locks of bytes", "no copying inside the kernel", "no statx",
    "blocks that move", "no boot id", "no /proc", "no sizes of blocks", "pages of 64 KiB", "syncs that leave maps out",
    "no fdatasync", "no owners", "no modes", "no extended attributes", "open files stay", "no fork hook")
SWITCHES["a sandbox"] = together(
    "fallocate not supported", "no nameless files", "shares refused", "copying refused", "no statx", "blocks that move",
    "no boot id", "no /proc", "owners refused", "extended attributes refused")
SWITCHES["nothing at all"] = together(
    "no pwrite", "no fallocate", "no nameless files", "no links (FUSE)", "locks of bytes",
    "no copying inside the kernel", "no statx", "blocks that move", "a processor that changes the order", "no boot id",
    "no /proc", "syncs that leave maps out", "no fdatasync", "no owners", "no modes", "no extended attributes",
    "small groups", "few maps", "short writes", "no fork hook")
FORKLESS = {"no fork hook", "Windows", "nothing at all"}


def apply(monkeypatch, *names):
    """Make this process's system another until the test is over."""
    def change(module, name, value):
        if isinstance(module, dict):
            monkeypatch.setitem(module, name, value)
        elif value is MISSING:
            monkeypatch.delattr(module, name, raising=False)
        else:
            monkeypatch.setattr(module, name, value, raising=False)
    for name in names:
        SWITCHES[name](change)


def apply_here(names):
    """Make the system of a child another, for good."""
    if FORKLESS.intersection(names):
        import numpy.random  # noqa: F401           it needs modules that ask for the hook without a look

        del os.register_at_fork                     # before mmapdict is imported

    def change(module, name, value):
        if isinstance(module, dict):
            module[name] = value
        elif value is not MISSING:
            setattr(module, name, value)
        elif hasattr(module, name):
            delattr(module, name)
    for name in names:
        SWITCHES[name](change)
