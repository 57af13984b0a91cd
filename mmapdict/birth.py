"""How a file comes into being: whole, in one step, so that no process ever sees it empty or half written."""
from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from typing import Optional

from . import format as fmt
from .errors import BusyError, CorruptError, FormatError
from .store import HAVE_TMPFILE, O_BINARY, File, boot_id, check_regular

MODES = ("r", "r+", "a", "w", "x")


def new_content() -> bytes:
    """Return the bytes of an empty file: header and STOP."""
    return fmt.encode_header(secrets.token_bytes(16), boot_id()) + bytes((fmt.STOP,))


def create_file(path: str, content: bytes) -> bool:
    """Create the file `path` with `content`, unless there is one. No process ever sees it empty.

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
    try:
        return HAVE_TMPFILE and _link_nameless(path, content) or _link_or_write(path, content)
    except FileExistsError:
        return False
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, path) from exc


def _link_nameless(path: str, content: bytes) -> bool:
    """Fill a file without a name and link it; False: something was in the way, and another way will tell what."""
    try:
        fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR | O_BINARY, 0o666)
        try:
            _write_all(fd, content)
            # Without a dir_fd Python calls link(), which does not follow. The path is absolute, so it is not used.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
            return True
        finally:
            os.close(fd)
    except FileExistsError:
        raise
    except OSError:
        return False


def _link_or_write(path: str, content: bytes) -> bool:
    temporary = _name_beside(path)
    try:
        _write_named(temporary, content)
        os.link(temporary, path)
        return True
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    _write_new(path, content)
    return True


def _name_beside(path: str) -> str:
    """Return a name that is not taken in the folder of `path`; not `path` and more, which could be too long."""
    return os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.mmapdict-new")


def _write_named(path: str, content: bytes) -> None:
    """Write `content` to the file `path`, which must not exist."""
    if not (HAVE_TMPFILE and _link_nameless(path, content)):
        _write_new(path, content)


def _write_new(path: str, content: bytes) -> None:
    """Write `content` to the file `path`, which must not exist; if that fails, nothing is left."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_BINARY, 0o666)
    try:
        _write_all(fd, content)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content):]


def replace_file(path: str, content: bytes, old: Optional[File]) -> None:
    """Put a new file in the place of the one at `path`, in one step.

    Parameters
    ----------
    path : str
        Its symbolic links resolved.
    old : File, optional
        The file that is replaced, under its lock, if it is one of ours: it is marked, so that handles that
        have it open go on with the new one (I13).
    """
    temporary = _name_beside(path)
    marked = False
    try:
        _write_named(temporary, content)
        with suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        if old is not None:
            # I13: marked before it is replaced. Who finds the mark and the path unchanged takes it off.
            marked = True
            _mark(old, fmt.REPLACING)
        os.replace(temporary, path)
    finally:
        failed = os.path.lexists(temporary)
        try:
            if old is not None and marked:
                _mark(old, fmt.NORMAL if failed else fmt.SUPERSEDED)
        finally:
            if failed:
                os.unlink(temporary)


def _mark(old: File, state: int) -> None:
    old.store_cell(fmt.STATE_OFFSET, state)
    # Readers look at the counter only: move it, so that they look at the state. Even stays even (I5).
    old.store_cell(fmt.COMMIT_OFFSET, old.cells[fmt.COMMIT_OFFSET >> 3] + 2)


def open_file(path: str, mode: str) -> File:
    """Open, create or replace the file as the mode says."""
    if mode == "w":
        _start_anew(path)
    elif mode == "x" and not create_file(path, new_content()):
        raise FileExistsError(17, "the file exists", path)
    while True:
        try:
            return File(path, mode != "r")
        except FileNotFoundError:
            if mode != "a":
                raise
            create_file(os.path.realpath(path), new_content())
        except BusyError:
            continue            # it was replaced between two system calls


def _start_anew(path: str) -> None:
    path = os.path.realpath(path)
    while not create_file(path, new_content()):
        try:
            old = File(path, True)
        except (FormatError, CorruptError):
            check_regular(os.stat(path), path)          # of other files nothing is lost but their bytes
            replace_file(path, new_content(), None)
            return
        except (FileNotFoundError, BusyError):
            continue
        try:
            if old.lock():
                replace_file(path, new_content(), old)
                return
        finally:
            old.unlock()
            old.close()
