"""Every exception of the package.

Each one is a `MmapDictError` and also the builtin that a caller would catch: a wrong or damaged file is a
`ValueError`, a lock that cannot be had an `OSError`, a write to a read-only handle an `io.UnsupportedOperation`.
A missing key is a plain `KeyError`, a key of a refused type a plain `TypeError`, and an error of the operating
system a plain `OSError` with its errno.
"""
from __future__ import annotations

import io
import pickle

__all__ = ["BusyError", "ClosedError", "CorruptError", "FormatError", "MmapDictError", "ReadOnlyError",
           "UntrustedError"]


class MmapDictError(Exception):
    """Root of the errors that are the package's own."""


class FileContentError(MmapDictError, ValueError):
    """What `FormatError` and `CorruptError` share: a message that says where.

    Parameters
    ----------
    message : str
        What was expected and what was found.
    path : str, optional
        The file.
    offset : int, optional
        Where in the file, in bytes from its start.
    """

    def __init__(self, message: str, path: str | None = None, offset: int | None = None) -> None:
        # All arguments go to the base class, else the error could not be pickled to another process.
        super().__init__(message, path, offset)
        self.message = message
        self.path = path
        self.offset = offset

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" (at offset {self.offset})"
        return f"{where}{self.message}{at}"


class FormatError(FileContentError):
    """Raised when a file is opened that is not an mmapdict file, or one of a newer format version."""


class CorruptError(FileContentError):
    """Raised when an mmapdict file breaks a rule of the format: it was cut short or overwritten."""


class BusyError(MmapDictError, OSError):
    """Raised when a file cannot be had: it is gone, or another process is in the way."""


class ReadOnlyError(MmapDictError, io.UnsupportedOperation):
    """Raised by every method that would change a file opened with mode ``"r"``."""


class ClosedError(MmapDictError, ValueError):
    """Raised when a handle is used after `close`. Arrays handed out before stay valid."""


class UntrustedError(MmapDictError, pickle.UnpicklingError):
    """Raised when a value names a class or function that the handle does not trust, at reading and at storing.

    Parameters
    ----------
    message : str
        What it names, what was to happen, and the remedy.
    name : str
        The global's full name, ``module.qualname``.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message, name)
        self.message = message
        self.name = name

    def __str__(self) -> str:
        return self.message
