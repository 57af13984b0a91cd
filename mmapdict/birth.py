"""How a file comes into being: whole, in one step, so that no process ever sees it empty or half written."""
from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import Optional

from . import format as fmt
from .errors import BusyError, CorruptError, FormatError
from .store import HAVE_TMPFILE, O_BINARY, File, boot_id

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

    Notes
    -----
    A file without a name is filled and then linked into its place, which fails if the name is taken. Where
    that is not possible, a file of another name is linked; where there are no links, the file is created under
    its name and written at once.
    """
    folder = os.path.dirname(path)
    if HAVE_TMPFILE:
        try:
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | O_BINARY, 0o666)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
        else:
            try:
                os.write(fd, content)
                os.link(f"/proc/self/fd/{fd}", path, follow_symlinks=True)
                return True
            except FileExistsError:
                return False
            except OSError as exc:
                if exc.errno not in (errno.ENOENT, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
                    raise
            finally:
                os.close(fd)
    temporary = _write_beside(path, content)
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
    finally:
        os.unlink(temporary)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_BINARY, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
    return True


def _write_beside(path: str, content: bytes, mode: int = 0o666) -> str:
    """Write `content` to a new file in the folder of `path` and return its name."""
    temporary = f"{path}.{secrets.token_hex(8)}.new"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_BINARY, mode)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
    return temporary


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
    temporary = _write_beside(path, content)
    try:
        if os.path.exists(path):
            os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        if old is not None:
            # I13: marked before it is replaced. Who finds the mark and the path unchanged takes it off.
            old.store_cell(fmt.STATE_OFFSET, fmt.REPLACING)
        os.replace(temporary, path)
    except BaseException:
        if old is not None:
            old.store_cell(fmt.STATE_OFFSET, fmt.NORMAL)
        os.unlink(temporary)
        raise
    if old is not None:
        old.store_cell(fmt.STATE_OFFSET, fmt.SUPERSEDED)
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
            if mode != "a" or os.path.islink(path):
                raise
            create_file(path, new_content())
        except BusyError:
            continue            # it was replaced between two system calls


def _start_anew(path: str) -> None:
    path = os.path.realpath(path)
    while not create_file(path, new_content()):
        try:
            old = File(path, True)
        except (FormatError, CorruptError):
            if os.path.isdir(path):
                raise
            replace_file(path, new_content(), None)
            return
        except FileNotFoundError:
            continue
        try:
            if old.lock():
                replace_file(path, new_content(), old)
                return
        finally:
            old.unlock()
            old.close()
