"""How a file comes into being: whole, in one step, so that no process ever sees it empty or half written."""
from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Optional

from . import format as fmt
from .errors import CorruptError, FormatError
from .store import (HAVE_TMPFILE, O_BINARY, OPEN_PINS, File, ReplacedError, boot_id, check_regular, keep_attributes,
                    lock_now, sync_descriptor, sync_folder)

MODES = ("r", "r+", "a", "w", "x")
# What `link` says where there are none: FAT on Linux, on macOS, on Windows; FUSE; Android; a limit is reached.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EACCES, errno.EMLINK)
LITTER = r"\.[0-9a-f]{16}\.mmapdict-new"
LITTER_AGE_S = 60


def new_content() -> bytes:
    """Return the bytes of an empty file: header and STOP."""
    return fmt.encode_header(os.urandom(16), boot_id()) + bytes((fmt.STOP,))


def create_file(path: str, content: bytes, durable: bool = False) -> bool:
    """Create the file `path` with `content`, unless there is one. No process ever sees it empty.

    Parameters
    ----------
    path : str
    content : bytes
    durable : bool
        Whether `content` is on the disk before it gets its name (I15).

    Returns
    -------
    bool
        Whether it was created; False: the path is taken.

    Raises
    ------
    OSError
        With `path` as its filename; nothing is left.

    Notes
    -----
    A file without a name is filled and then linked into its place, which fails if the name is taken. Where
    that is not possible, a file of another name is linked; where there are no links, the file is created under
    its name and written at once.
    """
    if os.path.lexists(path):
        return False                # also where a new file could not be made at all
    try:
        return HAVE_TMPFILE and _link_nameless(path, content, durable) or _link_or_write(path, content, durable)
    except FileExistsError:
        return False
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, path) from exc


def _link_nameless(path: str, content: bytes, durable: bool) -> bool:
    """Fill a file without a name and link it; False: something was in the way, and another way will tell what."""
    try:
        fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR | O_BINARY, 0o666)
        try:
            _write_all(fd, content, durable)
            _link_open(fd, path)
            return True
        finally:
            os.close(fd)
    except FileExistsError:
        raise
    except OSError:
        return False


def _link_or_write(path: str, content: bytes, durable: bool) -> bool:
    temporary = _name_beside(path)
    try:
        _write_new(temporary, content, durable)
        os.link(temporary, path)
        return True
    except OSError as exc:
        if exc.errno not in NO_LINKS:
            raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    _write_new(path, content, durable)
    return True


def _name_beside(path: str) -> str:
    """Return a name that is not taken in the folder of `path`; not `path` and more, which could be too long."""
    return os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}.mmapdict-new")


def _write_new(path: str, content: bytes, durable: bool = False) -> None:
    """Write `content` to the file `path`, which must not exist; if that fails, nothing is left."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_BINARY, 0o666)
    try:
        _write_all(fd, content, durable)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _write_all(fd: int, content: bytes, durable: bool = False) -> None:
    while content:
        content = content[os.write(fd, content):]
    if durable:
        sync_descriptor(fd)


@contextmanager
def replacement(path: str, old: Optional[File], keep: Optional[str] = None) -> Iterator[File]:
    """Give a new, empty file that takes the place of the one at `path` when the block ends, in one step.

    If an exception ends the block, nothing has happened.

    Parameters
    ----------
    path : str
        Its symbolic links resolved.
    old : File, optional
        The file that is replaced, under its lock, if it is one of ours: it is marked, so that handles that
        have it open go on with the new one (I13).
    keep : str, optional
        A name that the file which is replaced gets; FileExistsError if it is taken.

    Notes
    -----
    The new file is on the disk before it takes the place, and so is its name when the block has ended.
    """
    marked = False
    with _unplaced(path) as (new, temporary):
        yield new
        if old is None:
            with _opened(path) as fd:
                keep_attributes(fd, new.fd)
        else:
            keep_attributes(old.fd, new.fd)
        new.sync()
        _name(new, temporary)
        kept = False
        try:
            if old is not None:
                # I13: marked before it is replaced. Who finds the mark and the path unchanged takes it off.
                marked = True
                _mark(old, fmt.REPLACING)
            if OPEN_PINS:
                # Neither may be open. Who else has the old one makes the next line fail; the next writer unmarks it.
                marked = False
                new.close()
                if old is not None:
                    old.close()
            if keep is not None:
                _link_or_rename(path, keep)
                kept = True
                sync_folder(os.path.dirname(path))      # else a power cut could take the one name and leave the other
            os.replace(temporary, path)
        finally:
            if keep is not None and kept and os.path.lexists(temporary):
                if os.path.lexists(path):
                    os.unlink(keep)             # the same file has both names
                else:
                    os.rename(keep, path)
            if old is not None and marked:
                _mark(old, fmt.NORMAL if os.path.lexists(temporary) else fmt.SUPERSEDED)
        sync_folder(os.path.dirname(path))


@contextmanager
def new_file(path: str, like: str) -> Iterator[File]:
    """Give a new, empty file that gets the name `path` when the block ends: on the disk, and in one step.

    Parameters
    ----------
    path : str
    like : str
        A file whose owner, mode and extended attributes it gets.

    Raises
    ------
    FileExistsError
        The path is taken. Nothing has happened.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    with _unplaced(path) as (new, temporary):
        yield new
        with _opened(like) as fd:
            keep_attributes(fd, new.fd)
        new.sync()
        _name(new, temporary)
        if OPEN_PINS:
            new.close()
        _link_or_rename(temporary, path)
        sync_folder(os.path.dirname(path))


def _link_or_rename(path: str, name: str) -> None:
    """Give a file another name, in place of its own where there are no links; FileExistsError if it is taken."""
    try:
        os.link(path, name)
    except OSError as exc:
        if exc.errno not in NO_LINKS:
            raise OSError(exc.errno, exc.strerror, name) from None
        if os.path.lexists(name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
        os.rename(path, name)


@contextmanager
def _unplaced(path: str) -> Iterator[tuple[File, str]]:
    """Give a new, empty file in the folder of `path` that is gone with the block, and the name that `_name` gives it.

    It is locked, so that it can be told from one that a dead process left.
    """
    clear_litter(os.path.dirname(path))
    temporary = _name_beside(path)
    nameless = _open_nameless(temporary)
    try:
        try:
            if nameless is None:
                _write_new(temporary, new_content())
            else:
                _write_all(nameless, new_content())
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, path) from exc
        new = File(temporary if nameless is None else f"/proc/self/fd/{nameless}", True)
        try:
            new.lock()
            yield new, temporary
        finally:
            new.unlock()
            new.close()
    finally:
        if nameless is not None:
            os.close(nameless)
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _name(new: File, temporary: str) -> None:
    """Give a file of `_unplaced` its name, if it has none yet: a process that dies before leaves nothing."""
    if new.path != temporary:
        _link_open(new.fd, temporary)


def _open_nameless(temporary: str) -> Optional[int]:
    """Return the descriptor of a new file without a name, which can get the name `temporary`; None: not here."""
    if not HAVE_TMPFILE:
        return None
    flags = os.O_TMPFILE | os.O_RDWR | O_BINARY
    try:
        fd = os.open(os.path.dirname(temporary), flags, 0o666)
        try:
            _link_open(fd, temporary)           # shows whether it can be linked; once unlinked it could not be again
        finally:
            os.close(fd)
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        return os.open(os.path.dirname(temporary), flags, 0o666)
    except OSError:
        return None


def _link_open(fd: int, path: str) -> None:
    """Give a file without a name its name; FileExistsError if it is taken."""
    # Without a dir_fd Python calls link(), which does not follow. The path is absolute, so it is not used.
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | O_BINARY)
    try:
        yield fd
    finally:
        os.close(fd)


def clear_litter(folder: str) -> None:
    """Remove what processes that were killed have left in a folder: files that were to take another's place.

    One that is in the making is locked, or younger than a minute.
    """
    with suppress(PermissionError):             # a folder that may not be listed
        for name in filter(re.compile(LITTER).fullmatch, os.listdir(folder)):
            path = os.path.join(folder, name)
            with suppress(OSError):
                with _opened(path) as fd:
                    litter = time.time() - os.fstat(fd).st_mtime > LITTER_AGE_S and lock_now(fd)
                if litter:                      # closed before: Windows asks for that
                    os.unlink(path)


def _mark(old: File, state: int) -> None:
    old.store_cell(fmt.STATE_CELL, state)
    # Readers look at the counter only: move it, so that they look at the state. Even stays even (I5).
    old.store_cell(fmt.COMMIT_CELL, old.cells[fmt.COMMIT_CELL] + 2 & fmt.CELL_MAX)


def open_file(path: str, mode: str, timeout: Optional[float] = None, durable: bool = False) -> File:
    """Open, create or replace the file as the mode says.

    Parameters
    ----------
    path, mode : str
    timeout : float, optional
        How long to wait for others, in seconds.
    durable : bool
        Return when the file's name, and what is in it, are on the disk.
    """
    if mode == "w":
        _start_anew(path, timeout, durable)
    elif mode == "x" and not create_file(path, new_content(), durable):
        raise FileExistsError(17, "the file exists", path)
    while True:
        try:
            file = File(path, mode != "r", timeout)
        except FileNotFoundError:
            if mode != "a":
                raise
            create_file(os.path.realpath(path), new_content(), durable)
        except ReplacedError:
            continue            # between two system calls
        else:
            break
    if durable and file.writable:
        file.sync(folder=True)          # I15: whoever made it may not have done so
    return file


def _start_anew(path: str, timeout: Optional[float], durable: bool) -> None:
    path = os.path.realpath(path)
    while not create_file(path, new_content(), durable):
        try:
            old = File(path, True, timeout)
        except (FormatError, CorruptError):
            check_regular(os.stat(path), path)          # of other files nothing is lost but their bytes
            with replacement(path, None):
                return
        except (FileNotFoundError, ReplacedError):
            continue
        try:
            if old.lock():
                with replacement(path, old):
                    return
        finally:
            old.unlock()
            old.close()
