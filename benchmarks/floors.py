"""The floors: the same work by bare system calls, numpy or pickle, without any format around it.

Imports nothing of mmapdict: `load_pickle` stands for a user who does not have it.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import pickle
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from .harness import clock, memory, open_descriptors, reset_peak, say

LOOK = """\
with open(path, "rb") as file:
    value = numpy.frombuffer(os.pread(file.fileno(), 64, int(key)))
"""  # what a fresh process runs that knows where the array lies
_CELL = struct.Struct("=q")
_TIMES = 4095  # that a `Board` keeps


# -- Reading -----------------------------------------------------------------------------------------------------------


class View(numpy.memmap[Any, Any]):
    """A memmap whose views cost nothing extra: numpy's own looks for shared memory in each of them."""

    def __array_finalize__(self, obj: object) -> None:
        """Leave the new view as it is."""


Place = tuple[NDArray[numpy.uint8], tuple[int, ...], "numpy.dtype[Any]", int]


def places(path: str, offsets: dict[str, int], length: int) -> dict[str, Place]:
    """Map the file once, read-only; return for each key what a view of its `length` float64 needs."""
    descriptor = os.open(path, os.O_RDONLY)
    root = numpy.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), numpy.uint8)
    os.close(descriptor)
    dtype = numpy.dtype("f8")
    return {key: (root, (length,), dtype, offset) for key, offset in offsets.items()}


def get_views(table: dict[str, Place], keys: Iterable[str]) -> float:
    """Seconds for a dict look-up and a light memmap view for each of `keys`."""
    new = numpy.ndarray.__new__
    start = clock()
    for key in keys:
        root, shape, dtype, offset = table[key]
        new(View, shape, dtype, root, offset)
    return clock() - start


def get_memmaps(table: dict[str, Place], keys: Iterable[str]) -> float:
    """Seconds for a dict look-up and a complete numpy.memmap (with its four attributes) for each of `keys`."""
    new = numpy.ndarray.__new__
    start = clock()
    for key in keys:
        root, shape, dtype, offset = table[key]
        view: Any = new(numpy.memmap, shape, dtype, root, offset)
        view._mmap, view.filename, view.offset, view.mode = root.base, "file", offset, "r"
    return clock() - start


def get_rows(table: dict[str, int], keys: Iterable[str], arrays: dict[str, Any]) -> float:
    """Seconds for a dict look-up and a view of that row of each of `arrays`, for each of `keys`."""
    start = clock()
    for key in keys:
        row = table[key]
        {name: array[row] for name, array in arrays.items()}
    return clock() - start


def hold_views(path: str, offsets: Sequence[int], length: int) -> dict[str, float]:
    """Make one view per offset and keep all of them; return the seconds, descriptors and the sum of first elements."""
    start = clock()
    table = places(path, {str(number): offset for number, offset in enumerate(offsets)}, length)
    held = [numpy.ndarray.__new__(View, shape, dtype, root, offset) for root, shape, dtype, offset in table.values()]
    seconds = clock() - start
    return {"seconds": seconds, "descriptors": open_descriptors(), "sum": float(sum(array[0] for array in held))}


def open_and_read(path: str, offset: int, nbytes: int) -> float:
    """Seconds to open and map a file, read one array at a known place, and close it again."""
    start = clock()
    descriptor = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    numpy.frombuffer(os.pread(descriptor, nbytes, offset))
    mapped.close()
    os.close(descriptor)
    return clock() - start


def read_each(path: str, offsets: Iterable[int], nbytes: int) -> float:
    """Seconds to read the arrays at `offsets`, one after the other."""
    descriptor, read, view = os.open(path, os.O_RDONLY), os.pread, numpy.frombuffer
    start = clock()
    for offset in offsets:
        view(read(descriptor, nbytes, offset))
    seconds = clock() - start
    os.close(descriptor)
    return seconds


def map_memory(path: str) -> float:
    """Return the growth of resident memory, in MiB, by opening and mapping a file."""
    before = memory("VmRSS")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        return max(0.0, memory("VmRSS") - before)


def load_pickle(path: str, tries: int) -> dict[str, Any]:
    """Load `path` by ``pickle.load`` `tries` times; return the seconds of each, the peak in MiB, and the length."""
    before = memory("VmRSS")
    reset_peak()
    seconds = []
    for _ in range(tries):
        start = clock()
        with open(path, "rb") as file:
            loaded = pickle.load(file)
        seconds.append(clock() - start)
        length = len(loaded)
        del loaded
    return {"seconds": seconds, "peak": memory("VmHWM") - before, "length": length}


# -- Writing -----------------------------------------------------------------------------------------------------------


class LockedFile:
    """A file for small writes under a lock: a new one whose end is far ahead of them, or one that is there."""

    def __init__(self, path: str, nbytes: int = 0) -> None:
        self.descriptor = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if nbytes else 0))
        if nbytes:
            os.ftruncate(self.descriptor, nbytes)
        self.mapped = mmap.mmap(self.descriptor, nbytes)
        self.end = 0

    def close(self) -> None:
        """Close map and file."""
        self.mapped.close()
        os.close(self.descriptor)

    def write(self, record: bytes, count: int) -> float:
        """Seconds for `count` times lock, one pwrite of `record` behind the one before, unlock."""
        descriptor, lock, step = self.descriptor, fcntl.flock, len(record)
        offsets = range(self.end, self.end + count * step, step)
        self.end = offsets.stop
        start = clock()
        for offset in offsets:
            lock(descriptor, fcntl.LOCK_EX)
            os.pwrite(descriptor, record, offset)
            lock(descriptor, fcntl.LOCK_UN)
        return clock() - start

    def commit(self, record: bytes, count: int) -> float:
        """Seconds for `count` times: lock, `record` on the disk, then one byte before it, unlock."""
        descriptor, lock = self.descriptor, fcntl.flock
        start = clock()
        for offset in range(self.end, self.end + count * len(record), len(record)):
            lock(descriptor, fcntl.LOCK_EX)
            os.pwrite(descriptor, record, offset)
            os.fdatasync(descriptor)
            self.mapped[offset - 1] = 0x28
            os.fdatasync(descriptor)
            lock(descriptor, fcntl.LOCK_UN)
        return clock() - start

    def flip(self, offsets: Iterable[int]) -> float:
        """Seconds for lock, a one-byte store into the map, unlock at each of `offsets`."""
        descriptor, lock, mapped = self.descriptor, fcntl.flock, self.mapped
        start = clock()
        for offset in offsets:
            lock(descriptor, fcntl.LOCK_EX)
            mapped[offset] = 0x8E
            lock(descriptor, fcntl.LOCK_UN)
        return clock() - start


def write_array(path: str, array: NDArray[Any], allocate: bool) -> float:
    """Seconds to write `array` to a new file (its space taken first if `allocate`), closing included."""
    start = clock()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    data, done = array.data.cast("B"), 0
    if allocate:
        os.posix_fallocate(descriptor, 0, len(data))
    while done < len(data):  # Linux stops one call just below 2 GiB
        done += os.pwritev(descriptor, [data[done:]], done)
    os.close(descriptor)
    return clock() - start


def fill_memmap(path: str, frame: NDArray[Any], count: int) -> float:
    """Seconds to allocate a new file and fill it with `count` copies of `frame` through a numpy.memmap."""
    start = clock()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.posix_fallocate(descriptor, 0, count * frame.nbytes)
    os.close(descriptor)
    cube = numpy.memmap(path, frame.dtype, "r+", shape=(count, *frame.shape))
    for number in range(count):
        cube[number] = frame
    del cube
    return clock() - start


def new_memmap(path: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a numpy.memmap of a new file whose space is taken."""
    nbytes = math.prod(shape) * numpy.dtype(dtype).itemsize
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.posix_fallocate(descriptor, 0, nbytes)
    os.close(descriptor)
    return numpy.memmap(path, dtype, "r+", shape=shape)


def store_rows(array: Any, rows: Iterable[Any], step: int = 1) -> float:
    """Seconds to store rows, `step` of them at a time, one behind the other from the start of `array`."""
    end = 0
    start = clock()
    for row in rows:
        array[end : end + step] = row
        end += step
    return clock() - start


def dump_pickle(path: str, value: object) -> None:
    """Write `value` as a native pickle, protocol 4."""
    with open(path, "wb") as file:
        pickle.dump(value, file, protocol=4)


# -- A number in a shared map, polled ----------------------------------------------------------------------------------


class Board:
    """A counter and the times of its steps in a small mapped file: the least that one process can tell another."""

    def __init__(self, path: str) -> None:
        with open(path, "a+b") as file:
            os.ftruncate(file.fileno(), 8 * (1 + _TIMES))
            self.mapped = mmap.mmap(file.fileno(), 8 * (1 + _TIMES))

    def publish(self, number: int) -> None:
        """Store the time, then the number that a reader polls."""
        _CELL.pack_into(self.mapped, 8 + number % _TIMES * 8, time.monotonic_ns())
        _CELL.pack_into(self.mapped, 0, number)

    def number(self) -> int:
        """Return the number published last."""
        return int(_CELL.unpack_from(self.mapped, 0)[0])

    def age(self, number: int) -> float:
        """Seconds since `number` was published, one of the last few thousand."""
        return (time.monotonic_ns() - int(_CELL.unpack_from(self.mapped, 8 + number % _TIMES * 8)[0])) / 1e9


def watch_board(path: str, count: int, delays: list[float], patience: float) -> list[float]:
    """Poll a `Board` until it reached `count`; return the latency of each number.

    After each change it sleeps for the first of `delays` between two looks, then the next, at last for the last.
    """
    board, seen, looks, latencies = Board(path), 0, 0, list[float]()
    say("ready")
    deadline = clock() + patience
    while seen < count and clock() < deadline:
        number = board.number()
        if number == seen:
            time.sleep(delays[min(looks, len(delays) - 1)])
            looks += 1
            continue
        latencies += [board.age(new) for new in range(seen + 1, number + 1)]
        seen, looks = number, 0
    return latencies


def follow_board(path: str, count: int, delays: list[float]) -> dict[str, Any]:
    """Return the latencies of `watch_board` and the share of a core, in percent, that it took."""
    burned, start = time.process_time(), clock()
    latencies = watch_board(path, count, delays, 2 * count / 1000 + 5)
    return {"latencies": latencies, "cpu": (time.process_time() - burned) / (clock() - start) * 100}


def idle_board(path: str, seconds: float, delays: list[float]) -> float:
    """Look at a `Board` that nobody changes; return the share of a core, in percent."""
    board, looks = Board(path), 0
    burned, start = time.process_time(), clock()
    while clock() < start + seconds:
        board.number()
        time.sleep(delays[min(looks, len(delays) - 1)])
        looks += 1
    return (time.process_time() - burned) / (clock() - start) * 100
