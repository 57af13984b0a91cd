"""The two processes of the demo: a capture that fills a file, and a viewer that looks on. They share only the file.

The file, key by key:

``"description"``            what this is, for people
``"wavelengths"``            float64, nm; absent if the source has none
``"camera"``                 dict of settings
``"progress"``               int64 (time steps, 3): lines filled so far, and when the capture was about to publish the
                             two keys of that step (`clock`, in ns)
``("scan", t)``              the cube (y, x, wavelength): a hole at first, filled line by line through the map
``("scan", t, "meta")``      dict: times, exposure, position, lines, checksum
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import mmapdict
from mmapdict.camera import Camera
from mmapdict.sources import Array

MADE_BY = "mmapdict demo"
COMPARED_BYTES = 256 << 20  # of a capture, with raw files
LINES, ARRAY_CALL, META_CALL = 0, 1, 2  # columns of "progress"

#: The clock of both processes: monotonic, and the same for all processes of a machine.
clock = time.monotonic_ns

_TURNS = list(itertools.permutations(range(3)))
_NAP = 0.05  # longest sleep, so that a stop is noticed soon
_FILL_REPORT = 0.05  # seconds between two reports of the viewer about the same scan


@dataclass
class Scan:
    """What the capture knows about one scan: how many lines it filled, and the crc32 of their bytes."""

    step: int
    lines: int = 0
    crc32: int = 0


class Capture:
    """Take a time-lapse with `camera` into the open file `d`.

    Parameters
    ----------
    d : mmapdict.MmapDict
        Open for writing, empty.
    camera : Camera
        What delivers the lines.
    frames : int
        Time steps to take.
    rate : float
        Camera frames (lines) per second; 0 for as many as possible.
    about : str
        Goes into the file's description.
    on_line : callable, optional
        Called with the scan after each line.

    Attributes
    ----------
    stopping : bool
        Set it (from a signal handler, say) to end the capture after the line it is at.
    scans : list of Scan
        What has been captured.
    store_ns : int
        Time spent storing lines into the map.
    floors : Floors
        The same lines, stored without mmapdict.
    """

    def __init__(
        self,
        d: mmapdict.MmapDict,
        camera: Camera,
        frames: int,
        rate: float,
        about: str,
        on_line: Callable[[Scan], None] | None = None,
    ) -> None:
        self.d = d
        self.camera = camera
        self.frames = frames
        self.rate = rate
        self.stopping = False
        self.scans: list[Scan] = []
        self.store_ns = 0
        self.create_ns = 0
        self.seconds = 0.0
        self._about = about
        self._on_line = on_line
        self._due = 0.0
        self.floors = Floors(Path(d.path).parent, camera.shape, camera.dtype)

    def prepare(self) -> None:
        """Write what belongs to all time steps, before the first of them."""
        camera = self.camera
        self.d["description"] = f"{MADE_BY}: {self._about}"
        if camera.wavelengths is not None:
            self.d["wavelengths"] = np.asarray(camera.wavelengths, np.float64)
        self.d["camera"] = {
            "kind": "line-scan camera, simulated",
            "remarks": list(camera.remarks),
            "axes": ["y", "x", "wavelength"],
            "lines": camera.shape[0],
            "pixels": camera.shape[1],
            "bands": camera.shape[2],
            "lines_per_second": self.rate,
            "exposure_s": self._exposure(),
            "progress_columns": ["lines filled", "scan called at, ns", "meta called at, ns"],
        }
        self._progress = self.d.create("progress", (self.frames, 3), np.int64)

    def run(self) -> None:
        """Take the scans until all are taken or `stopping` is set; a scan that was begun gets its metadata."""
        start = self._due = time.perf_counter()
        for step in range(self.frames):
            if self.stopping:
                break
            self._take(step)
        self.seconds = time.perf_counter() - start

    def _take(self, step: int) -> None:
        camera, progress = self.camera, self._progress
        scan = Scan(step)
        started = time.time()
        progress[step, ARRAY_CALL] = clock()
        before = time.perf_counter_ns()
        cube = self.d.create(("scan", step), camera.shape, camera.dtype)
        self.create_ns += time.perf_counter_ns() - before
        self.scans.append(scan)
        self.floors.begin()
        for y in range(camera.shape[0]):
            if not self._wait_for_line():
                break
            line = camera.line(step, y)
            self.store_ns += self.floors.store(cube, y, line)
            # The count follows the line: who sees the count sees the line.
            progress[step, LINES] = scan.lines = y + 1
            scan.crc32 = zlib.crc32(line.data, scan.crc32)
            if self._on_line is not None:
                self._on_line(scan)
        meta = {
            "start": started,
            "stop": time.time(),
            "exposure_s": self._exposure(),
            "position_px": camera.position(step),
            "lines": scan.lines,
            "complete": scan.lines == camera.shape[0],
            "crc32": scan.crc32,
        }
        progress[step, META_CALL] = clock()
        self.d["scan", step, "meta"] = meta

    def _wait_for_line(self) -> bool:
        if self.rate:
            self._due += 1.0 / self.rate
            while not self.stopping and (left := self._due - time.perf_counter()) > 0:
                time.sleep(min(left, _NAP))
        return not self.stopping

    def _exposure(self) -> float | None:
        return 0.8 / self.rate if self.rate else None


class Floors:
    """Store the lines of a capture also without mmapdict, at the same moments, to compare: the floors of its speed.

    One floor is `os.pwrite`, the other a plain `numpy.memmap`, each into a file of its own for every scan that was
    allocated beforehand, has no name and so disappears by itself. Line by line, the three take turns. The files are
    kept until the end: else the floors would go on in memory that the system has at hand, and the capture in new.

    Parameters
    ----------
    folder : pathlib.Path
        Where the files are: on the same file system as the capture.
    shape : tuple of int
        (lines, pixels, bands) of a scan.
    dtype : numpy.dtype
        Of the lines.
    limit : int
        Bytes that are compared in all; further lines go to the capture only.

    Attributes
    ----------
    lines, line_bytes : int
        Lines compared so far, and the bytes of each.
    capture_ns, pwrite_ns, memmap_ns : int
        Time spent on these lines.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], dtype: np.dtype[Any], limit: int = COMPARED_BYTES) -> None:
        self.lines = 0
        self.line_bytes = math.prod(shape[1:]) * dtype.itemsize
        self.capture_ns = self.pwrite_ns = self.memmap_ns = 0
        self._folder = folder
        self._shape = shape
        self._left = max(1, limit // self.line_bytes)
        self._dtype = dtype
        self._kept: list[Any] = []
        self._raw: Any = None
        self._map: Array | None = None

    def begin(self) -> None:
        """Make new files for the next scan: as new as its hole, since a map is slow at first and faster later."""
        self._map = None
        lines = min(self._shape[0], self._left)
        if lines == 0:
            return
        self._left -= lines
        size = lines * self.line_bytes
        self._raw = _nameless(self._folder, size)
        with _nameless(self._folder, size) as file:
            self._map = np.memmap(file, self._dtype, "r+", 0, (lines, *self._shape[1:]))
        self._kept += (self._raw, self._map)

    def store(self, cube: Array, y: int, line: Array) -> int:
        """Store `line` in ``cube[y]`` and in the floors' files.

        Parameters
        ----------
        cube : numpy.ndarray
            The mapped array of the capture.
        y : int
            The place in it.
        line : numpy.ndarray
            C-contiguous.

        Returns
        -------
        int
            Time that the store into `cube` took, in ns.
        """
        if self._map is None or y >= len(self._map):
            before = time.perf_counter_ns()
            cube[y] = line
            return time.perf_counter_ns() - before
        took = [0, 0, 0]
        for who in _TURNS[self.lines % len(_TURNS)]:
            before = time.perf_counter_ns()
            if who == 0:
                cube[y] = line
            elif who == 1:
                self._pwrite(y, line)
            else:
                self._map[y] = line
            took[who] = time.perf_counter_ns() - before
        self.lines += 1
        self.capture_ns += took[0]
        self.pwrite_ns += took[1]
        self.memmap_ns += took[2]
        return took[0]

    def close(self) -> None:
        """Give the files' space back."""
        for kept in self._kept:
            if not isinstance(kept, np.memmap):
                kept.close()
        self._kept.clear()
        self._raw = self._map = None

    def _pwrite(self, y: int, line: Array) -> None:
        rest, offset = line.reshape(-1).view(np.uint8).data, y * self.line_bytes
        while rest:
            done = os.pwrite(self._raw.fileno(), rest, offset)
            rest, offset = rest[done:], offset + done


def view(path: str | os.PathLike[str], stdin: TextIO | None = None, stdout: TextIO | None = None) -> int:
    """Watch a capture and report what is seen as lines of JSON; the demo runs this in a process of its own.

    Parameters
    ----------
    path : path-like
        The file that a `Capture` is filling.
    stdin : text file, optional
        The viewer has a last look and ends when this one does.
    stdout : text file, optional
        Where the reports go.

    Returns
    -------
    int
        0
    """
    stdin = sys.stdin if stdin is None else stdin
    stdout = sys.stdout if stdout is None else stdout
    ended = threading.Event()

    def read_until_end() -> None:
        while stdin.read(1):
            pass
        ended.set()

    threading.Thread(target=read_until_end, daemon=True).start()
    with mmapdict.open(path, "r") as d:
        looker = _Looker(d, stdout)
        last = False
        while not last:
            last = ended.is_set()
            d.wait(_FILL_REPORT)
            looker.look()
        looker.end()
    return 0


class _Looker:
    """What the viewer has seen."""

    def __init__(self, d: mmapdict.MmapDict, stdout: TextIO) -> None:
        self._d = d
        self._stdout = stdout
        self._seen: set[Any] = set()
        self._cubes: list[Array] = []
        self._progress: Array = d["progress"]
        self._filled = 0
        self._reported_at = 0.0
        self._array_ns: list[int] = []
        self._meta_ns: list[int] = []
        # The keys that were there before are not new.
        self._seen.update(d)
        self._report("open", pid=os.getpid(), keys=len(d), commit=d.commit)

    def look(self) -> None:
        """Report keys that are new, and how far the newest scan is filled."""
        for key in list(self._d):
            if key not in self._seen:
                self._seen.add(key)
                self._see(key)
        now = time.monotonic()
        if self._cubes and now - self._reported_at >= _FILL_REPORT:
            lines = self._lines(len(self._cubes) - 1)
            if lines != self._filled:
                self._filled = lines
                self._reported_at = now
                self._report("fill", step=len(self._cubes) - 1, lines=lines, mean=self._mean(len(self._cubes) - 1))

    def end(self) -> None:
        """Report the sums."""
        self._report("end", keys=len(self._d), array_ns=self._array_ns, meta_ns=self._meta_ns)

    def _see(self, key: Any) -> None:
        now = clock()
        if len(key) == 2:
            step = key[1]
            took = now - int(self._progress[step, ARRAY_CALL])
            cube = self._d[key]
            self._cubes.append(cube)
            self._filled = 0
            self._array_ns.append(took)
            self._report("array", key=repr(key), step=step, ns=took, shape=cube.shape, dtype=str(cube.dtype))
        else:
            step = key[1]
            took = now - int(self._progress[step, META_CALL])
            meta = self._d[key]
            self._meta_ns.append(took)
            self._report("meta", key=repr(key), step=step, ns=took, lines=meta["lines"], mean=self._mean(step))

    def _lines(self, step: int) -> int:
        return int(self._progress[step, LINES])

    def _mean(self, step: int) -> float | None:
        """Mean of the newest line that is filled: read from the map, so from what the other process just stored."""
        lines = self._lines(step)
        return None if lines == 0 else float(np.abs(self._cubes[step][lines - 1]).mean())

    def _report(self, event: str, **values: Any) -> None:
        print(json.dumps({"event": event, **values}), file=self._stdout, flush=True)


def _nameless(folder: Path, size: int) -> Any:
    file = tempfile.TemporaryFile(dir=folder, buffering=0)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)
    return file
