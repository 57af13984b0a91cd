"""What the adapters of mmapdict and its peers have in common: `Peer`, and what a store of bytes or of arrays keeps."""

from __future__ import annotations

import abc
import os
import pickle
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy

PROTOCOL = 5


class Unable(Exception):
    """The peer cannot do this; the argument says why, in the words of the table."""


class Peer(abc.ABC):
    """A store of values under text keys, in a folder of its own.

    Parameters
    ----------
    folder : path of an existing folder
        All that the store keeps lies below it.
    mode : {"w", "a", "r"}
        A new store; an existing one, to read and write; an existing one, to read.
    known : bool
        Whether the caller knows that all values are one-dimensional float64 arrays. A store of bytes then keeps bare
        bytes; else it keeps pickles.
    """

    name: ClassVar[str]
    module: ClassVar[str]  # without which the peer is skipped
    look: ClassVar[str]  # what a user types to read `key` of the store at `path`, after ``import module``
    whole: ClassVar[bool] = False  # every change writes all of the store again
    maps: bool = False  # arrays come back as maps of the file, not as copies
    follows: ClassVar[str] = ""  # why a reader cannot follow a writer; empty if it can
    compacts: ClassVar[str] = "space is given back at once"  # why there is no `compact`
    remark: ClassVar[str] = ""  # what a reader of the tables must know

    def __init__(self, folder: Path, mode: str, known: bool = True) -> None:
        self.folder, self.mode, self.known = folder, mode, known
        self.path = folder / "store"
        self.open()

    @abc.abstractmethod
    def open(self) -> None:
        """Open what `path` and `mode` say."""

    def close(self) -> None:
        """Close the store; everything is in the folder then."""

    @abc.abstractmethod
    def put(self, key: str, value: Any) -> None:
        """Store one value."""

    def fill(self, items: Mapping[str, Any]) -> None:
        """Store many values at once, in the fastest way there is."""
        for key, value in items.items():
            self.put(key, value)

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Remove one key."""

    def prune(self, keys: Iterable[str]) -> Generator[None, None, None]:
        """Remove many keys in the fastest way there is; each step yields, so that the caller may stop."""
        for key in keys:
            self.delete(key)
            yield

    def compact(self) -> None:
        """Give the space of deleted values back."""
        raise Unable(self.compacts)

    @abc.abstractmethod
    def get(self, key: str) -> Any:
        """Return the value of `key`, mapped if the peer can; KeyError if there is none."""

    def find(self, key: str, timeout_s: float) -> Any:
        """Return the value of `key` as other processes see it, None if it is not there; may wait for `timeout_s`."""
        try:
            return self.get(key)
        except KeyError:
            return None

    @abc.abstractmethod
    def keys(self) -> list[str]:
        """Return all keys."""

    def read_all(self) -> dict[str, Any]:
        """Return everything, mapped if the peer can."""
        return {key: self.get(key) for key in self.keys()}

    def load_all(self) -> dict[str, Any]:
        """Return everything, in memory."""
        values = self.read_all()
        return {key: in_memory(value) for key, value in values.items()} if self.maps else values


def in_memory(value: Any) -> Any:
    """Return a copy of a mapped array, anything else as it is."""
    if isinstance(value, numpy.ma.MaskedArray):
        return numpy.ma.array(numpy.array(value.data), mask=numpy.array(value.mask))
    if isinstance(value, numpy.ndarray) and not value.flags.owndata:
        return numpy.array(value)
    return value


def size_of(folder: Path) -> int:
    """Return the bytes of all files below `folder`."""
    total = 0
    for parent, _, names in os.walk(folder):
        total += sum(os.stat(os.path.join(parent, name)).st_size for name in names)
    return total


def to_bytes(value: Any, known: bool) -> Any:
    """Return what a store of bytes keeps: the bare data if type and shape are `known`, else a pickle."""
    return value.tobytes() if known else pickle.dumps(value, PROTOCOL)


def from_bytes(data: Any, known: bool) -> Any:
    """Return the value of `to_bytes`; a view of `data` if it is a known array."""
    return numpy.frombuffer(data) if known else pickle.loads(data)


def to_array(value: Any) -> Any:
    """Return what a store of arrays keeps: an array as it is, the pickle of another value as a vector of bytes."""
    if isinstance(value, numpy.ma.MaskedArray):
        raise Unable("keeps no mask")
    if isinstance(value, numpy.ndarray):
        return value
    return numpy.frombuffer(pickle.dumps(value, PROTOCOL), numpy.uint8)


def from_array(array: Any) -> Any:
    """Return the value of `to_array`."""
    return pickle.loads(array.tobytes()) if array.dtype == numpy.uint8 and array.ndim == 1 else array


def as_object(value: Any) -> Any:
    """Return an array as it is, another value as a 0-d array of objects: what numpy.save pickles."""
    if isinstance(value, numpy.ma.MaskedArray):
        raise Unable("keeps no mask")
    if isinstance(value, numpy.ndarray):
        return value
    array = numpy.empty((), object)
    array[()] = value
    return array


def from_object(array: Any) -> Any:
    """Return the value of `as_object`."""
    return array[()] if array.dtype == object and array.ndim == 0 else array
