"""`mmapdict demo`: capture a time-lapse, with a viewer in a second process and a plain `pickle.load` in a third.

Every line that is printed comes from something that happened in this run; what is simulated is said to be.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import mmapdict
from mmapdict.camera import Camera, micrograph_camera
from mmapdict.capture import COMPARED_BYTES, MADE_BY, Capture, Scan, view
from mmapdict.errors import MmapDictError
from mmapdict.sources import SourceError, open_source

__all__ = ["DEFAULT_OUT", "DemoError", "Options", "run", "view"]

DEFAULT_OUT = "timelapse.mmapdict"
DEFAULT_STEPS = 6
DEFAULT_SECONDS = 8.0  # for the capture, if no rate is given
DEFAULT_BYTES = 400_000_000  # a longer series is cut to this, if no number of time steps is given
SPARE_BYTES = 32 << 20
DETAILED_STEPS = 12  # of a longer series, the viewer shows one report per scan
VIEWER_PATIENCE = 30.0  # seconds for its start, and for its end

# The third process: nothing but the standard library and numpy. Importing mmapdict fails in it.
PLAIN_LOAD = """
import json, pickle, sys, time, zlib
sys.modules["mmapdict"] = None
import numpy
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    d = pickle.load(file)
seconds = time.perf_counter() - start
scans = []
for key, cube in d.items():
    if isinstance(key, tuple) and len(key) == 2 and key[0] == "scan":
        lines = d[(*key, "meta")]["lines"]
        filled = numpy.ascontiguousarray(cube[:lines]).reshape(-1).view("u1")
        scans.append([key[1], lines, zlib.crc32(filled), type(cube) is numpy.ndarray and not cube[lines:].any()])
print(json.dumps({"type": type(d).__name__, "keys": len(d), "seconds": seconds, "numpy": numpy.__version__,
                  "python": sys.version.split()[0], "scans": scans}))
"""


class DemoError(Exception):
    """Raised when the demo cannot run; the message is meant for the user."""


@dataclass
class Options:
    """What the command line says.

    Attributes
    ----------
    out : str
        The file to write.
    source : str or None
        A user's own picture; None for the one of scikit-image.
    frames : int or None
        Time steps; None for what the source has, or a few.
    rate : float or None
        Lines per second; None for a capture of some seconds, 0 for as many as possible.
    shape : (int, int, int) or None
        Lines, pixels and bands of a scan.
    axes, variable : str or None
        How to read the source, see `mmapdict.sources.open_source`.
    force : bool
        Replace `out` whatever it is.
    """

    out: str = DEFAULT_OUT
    source: str | None = None
    frames: int | None = None
    rate: float | None = None
    shape: tuple[int, int, int] | None = None
    axes: str | None = None
    variable: str | None = None
    force: bool = False


def run(options: Options, stdout: TextIO | None = None, stderr: TextIO | None = None) -> int:
    """Run the demo.

    Parameters
    ----------
    options : Options
        What to capture, and where to.
    stdout, stderr : text file, optional
        The report, and the progress bar (only on a terminal).

    Returns
    -------
    int
        0 if all that was captured was seen and loaded; 1 if not; 130 if it was interrupted outside the capture.

    Raises
    ------
    DemoError
        If it cannot start.
    """
    console = Console(sys.stdout if stdout is None else stdout, sys.stderr if stderr is None else stderr)
    out = Path(options.out).absolute()
    check_target(out, options.force)
    try:
        if options.source is None:
            camera = micrograph_camera(options.shape)
        else:
            camera = Camera(open_source(options.source, options.axes, options.variable), options.shape)
    except SourceError as exc:
        raise DemoError(str(exc)) from exc
    scan_bytes = math.prod(camera.shape) * camera.dtype.itemsize
    steps = options.frames or default_steps(camera, scan_bytes)
    rate = steps * camera.shape[0] / DEFAULT_SECONDS if options.rate is None else options.rate
    _introduce(console, camera, steps, rate, scan_bytes, out)
    try:
        return _Demo(console, camera, steps, rate, out).run()
    except KeyboardInterrupt:
        console.clear()
        console.say("interrupted" + (f"; {out} is whole" if out.exists() else ""))
        return 130


def check_target(out: Path, force: bool) -> None:
    """Refuse to replace a file that is not an earlier run's.

    Parameters
    ----------
    out : pathlib.Path
        The file to write.
    force : bool
        Replace other regular files too.

    Raises
    ------
    DemoError
        If `out` must not or cannot be written.
    """
    if not out.parent.is_dir():
        raise DemoError(f"{out.parent}: no such folder")
    if not out.exists():
        return
    if not out.is_file():
        raise DemoError(f"{out} exists and is not a regular file")
    if force:
        return
    try:
        with mmapdict.open(out, "r") as d:
            description = d.get("description")
    except (MmapDictError, OSError):
        raise DemoError(f"{out} exists and is not an mmapdict file: --force replaces it") from None
    if not isinstance(description, str) or not description.startswith(MADE_BY):
        raise DemoError(f"{out} exists and was not made by this demo: --force replaces it")


def default_steps(camera: Camera, scan_bytes: int) -> int:
    """Return how many time steps to take if the user does not say.

    Parameters
    ----------
    camera : Camera
        What is captured.
    scan_bytes : int
        Bytes of one scan.

    Returns
    -------
    int
    """
    return max(1, min(camera.source.steps or DEFAULT_STEPS, DEFAULT_BYTES // scan_bytes))


class Console:
    """Lines on `stdout`, and under them a progress bar on `stderr` if that is a terminal."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._live = stderr.isatty()
        self._lock = threading.Lock()
        self._bar = ""
        self._drawn_at = 0.0
        self._start = time.monotonic()

    def say(self, text: str = "") -> None:
        """Print a line above the bar."""
        with self._lock:
            self._erase()
            print(text, file=self._stdout, flush=True)
            self._draw()

    def event(self, who: str, text: str) -> None:
        """Print what `who` did or saw, with the time since the start."""
        self.say(f"{time.monotonic() - self._start:7.2f} s  {who:<8} {text}")

    def restart_clock(self) -> None:
        """Let the times of `event` count from now."""
        self._start = time.monotonic()

    def bar(self, fraction: float, left: str, right: str) -> None:
        """Show progress, at most 20 times a second."""
        now = time.monotonic()
        if not self._live or now - self._drawn_at < 0.05:
            return
        width = max(10, min(40, shutil.get_terminal_size().columns - len(left) - len(right) - 6))
        full = round(width * fraction)
        with self._lock:
            self._drawn_at = now
            self._bar = f"{left} [{'#' * full}{'.' * (width - full)}] {right}"
            self._draw()

    def clear(self) -> None:
        """Remove the bar."""
        with self._lock:
            self._erase()
            self._bar = ""

    def _erase(self) -> None:
        if self._live and self._bar:
            print("\r\x1b[K", end="", file=self._stderr, flush=True)

    def _draw(self) -> None:
        if self._live and self._bar:
            text = self._bar[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[K{text}", end="", file=self._stderr, flush=True)


class _Demo:
    """One run: it holds the three processes together."""

    def __init__(self, console: Console, camera: Camera, steps: int, rate: float, out: Path) -> None:
        self._console = console
        self._camera = camera
        self._steps = steps
        self._rate = rate
        self._out = out
        self._viewer: Viewer | None = None
        self._capture: Capture | None = None

    def run(self) -> int:
        console = self._console
        try:
            problem, synced = self._take()
        finally:
            if self._viewer is not None:
                self._viewer.finish()
        capture, viewer = self._capture, self._viewer
        assert capture is not None and viewer is not None
        failures = [problem] if problem else []
        plain = self._load_plainly(capture, failures)
        self._check_viewer(capture, viewer, failures)
        self._conclude(capture, viewer, synced, plain)
        for failure in failures:
            console.say(f"FAILED: {failure}")
        return 1 if failures else 0

    def _take(self) -> tuple[str | None, float]:
        """Capture, with the viewer beside it. Return what went wrong, if anything, and the seconds of the sync."""
        console, problem = self._console, None
        with mmapdict.open(self._out, "w") as d:
            capture = Capture(d, self._camera, self._steps, self._rate, self._camera.source.about, self._on_line)
            self._capture = capture
            with _stop_on_signals(capture):
                capture.prepare()
                console.restart_clock()
                console.event("capture", f"shared metadata written: {', '.join(repr(key) for key in d)}")
                self._viewer = Viewer(self._out, console, in_detail=self._steps <= DETAILED_STEPS)
                self._viewer.wait_until_open()
                try:
                    capture.run()
                except (OSError, MmapDictError, SourceError) as exc:
                    problem = f"the capture ended early: {exc} (all until then is kept)"
                console.clear()
                if capture.stopping:
                    last = capture.scans[-1] if capture.scans else Scan(0)
                    where = f"in scan {last.step} after line {last.lines}"
                    console.event("capture", f"capture stopped {where}; the file keeps everything")
                start = time.perf_counter()
                d.sync()
                synced = time.perf_counter() - start
            console.event("capture", f"{len(d)} keys, on the disk after another {synced:.2f} s of sync")
        self._viewer.finish()
        capture.floors.close()
        return problem, synced

    def _on_line(self, scan: Scan) -> None:
        capture, lines = self._capture, self._camera.shape[0]
        assert capture is not None and self._viewer is not None
        done = scan.step * lines + scan.lines
        left = f"scan {scan.step + 1}/{self._steps}"
        seen = self._viewer.filled.get(scan.step, 0)
        right = f"line {scan.lines}/{lines}, the viewer sees {seen}"
        self._console.bar(done / (self._steps * lines), left, right)

    def _load_plainly(self, capture: Capture, failures: list[str]) -> str:
        """Load the file in a process without mmapdict and compare with what the capture knows."""
        size = self._out.stat().st_size
        memory = _memory_bytes()
        if memory is not None and size > memory // 2:
            return f"left out: a plain pickle.load reads all {_amount(size)} into memory ({_amount(memory)})"
        done = subprocess.run([sys.executable, "-c", PLAIN_LOAD, str(self._out)], capture_output=True, text=True)
        if done.returncode != 0:
            failures.append(f"plain pickle.load: {done.stderr.strip().splitlines()[-1]}")
            return "failed"
        found = json.loads(done.stdout)
        wanted = [[scan.step, scan.lines, scan.crc32, True] for scan in capture.scans]
        if found["type"] != "dict" or found["scans"] != wanted:
            failures.append(f"plain pickle.load gave {found['scans']}, captured was {wanted}")
        versions = f"Python {found['python']}, numpy {found['numpy']}"
        text = f"pickle.load without mmapdict ({versions}): {found['keys']} keys in {found['seconds']:.2f} s"
        self._console.event("plain", text)
        equal = sum(scan in found["scans"] for scan in wanted)
        return f"{equal} of {len(wanted)} scans have the checksum that the capture computed"

    def _check_viewer(self, capture: Capture, viewer: Viewer, failures: list[str]) -> None:
        if viewer.summary is None:
            failures.append(f"the viewer ended early: {viewer.error}")
        elif len(viewer.summary["array_ns"]) != len(capture.scans):
            failures.append(f"the viewer saw {len(viewer.summary['array_ns'])} of {len(capture.scans)} scans")

    def _conclude(self, capture: Capture, viewer: Viewer, synced: float, plain: str) -> None:
        say, floors = self._console.say, capture.floors
        line_bytes = floors.line_bytes
        lines = sum(scan.lines for scan in capture.scans)
        say()
        amount = f"{len(capture.scans)} scans, {lines} lines, {_amount(lines * line_bytes)}"
        say(f"capture   {amount} in {capture.seconds:.1f} s")
        stores, holes = _duration(capture.store_ns), _duration(capture.create_ns)
        say(f"          of that {stores} to store the lines through the map, {holes} to reserve the holes")
        if viewer.summary is not None:
            say(f"viewer    {_latencies('scans', viewer.summary['array_ns'], 'call of create()')}")
            say(f"          {_latencies('metadata', viewer.summary['meta_ns'], 'assignment')}")
        say(f"plain     {plain}")
        if floors.lines:
            measured = (floors.capture_ns, floors.pwrite_ns, floors.memmap_ns)
            ours, raw, mapped = (floors.lines * line_bytes / ns * 1e9 for ns in measured)
            say(f"speed     {_amount(ours):>9}/s  {floors.lines} lines through the map, {_amount(line_bytes)} each")
            for floor, how in ((raw, "os.pwrite into raw files"), (mapped, "numpy.memmap of raw files")):
                say(f"          {_amount(floor):>9}/s  the same lines by {how} (ratio {ours / floor:.2f})")
        say(f"file      {self._out} ({_amount(self._out.stat().st_size)})")


class Viewer:
    """The second process: started, listened to, ended.

    Parameters
    ----------
    path : pathlib.Path
        The file to watch.
    console : Console
        Where its reports are shown.
    in_detail : bool
        Show three reports for each scan, instead of the last one.

    Attributes
    ----------
    filled : dict
        Time step: lines that the viewer has seen filled.
    summary : dict or None
        Its last report.
    error : str
        What it wrote to stderr last, once it has ended.
    """

    def __init__(self, path: Path, console: Console, in_detail: bool) -> None:
        self.filled: dict[int, int] = {}
        self.summary: dict[str, Any] | None = None
        self.error = ""
        self._finished = False
        self._lines: dict[int, int] = {}
        self._halves: set[int] = set()
        self._console = console
        self._in_detail = in_detail
        self._opened = threading.Event()
        # Its own session: Ctrl-C is for the capture; the viewer ends when its stdin does, also if we are killed.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mmapdict", "demo-viewer", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=_environment(),
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def wait_until_open(self) -> None:
        """Wait until the viewer has opened the file, or has failed."""
        self._opened.wait(VIEWER_PATIENCE)

    def finish(self) -> None:
        """Let the viewer have a last look, and end; `error` says why if there is no summary."""
        process = self._process
        if self._finished:
            return
        self._finished = True
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # a viewer that died has closed its end already
            process.stdin.close()
        self._thread.join(VIEWER_PATIENCE)
        if self._thread.is_alive():
            process.kill()
            self._thread.join()
        process.wait()
        self.error = (process.stderr.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        process.stdout.close()
        process.stderr.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._hear(json.loads(line))
        self._opened.set()

    def _hear(self, report: dict[str, Any]) -> None:
        event, step = report["event"], report.get("step", 0)
        if event == "open":
            self._opened.set()
            self._say(f"process {report['pid']} reads the file, without a lock: {report['keys']} keys")
        elif event == "array":
            self._lines[step] = report["shape"][0]
            size = " x ".join(str(n) for n in report["shape"])
            took = _duration(report["ns"])
            if self._in_detail:
                self._say(f"{report['key']}: {size} {report['dtype']}, {took} after create() was called")
        elif event == "fill":
            self.filled[step] = report["lines"]
            if self._in_detail and step not in self._halves and report["lines"] * 2 >= self._lines[step]:
                self._halves.add(step)
                newest = f"mean of line {report['lines'] - 1} is {report['mean']:.6g}"
                self._say(f"('scan', {step}): {self._share(report)} % full, {newest}")
        elif event == "meta":
            self.filled[step] = report["lines"]
            took = _duration(report["ns"])
            self._say(f"{report['key']}: {took} after it was assigned; scan {self._share(report)} % full")
        elif event == "end":
            self.summary = report

    def _share(self, report: dict[str, Any]) -> int:
        return int(100 * report["lines"] / self._lines[report["step"]])

    def _say(self, text: str) -> None:
        self._console.event("viewer", text)


@contextlib.contextmanager
def _stop_on_signals(capture: Capture) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the capture after the line it is at, instead of raising somewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        capture.stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _introduce(console: Console, camera: Camera, steps: int, rate: float, scan_bytes: int, out: Path) -> None:
    source, (lines, pixels, bands) = camera.source, camera.shape
    console.say(f"picture   {source.about}")
    for note in [*source.notes, *camera.remarks]:
        console.say(f"          - {note}")
    if camera.wavelengths is not None and bands > 1:
        console.say(f"          - wavelengths {camera.wavelengths[0]:.0f} to {camera.wavelengths[-1]:.0f} nm")
    if source.steps is not None:
        kept = "the first time step again after the last" if steps > source.steps else f"{steps} are captured"
        console.say(f"          - {source.steps} time steps, {kept}")
    console.say("camera    a simulated line-scan camera looks at it: one line, all its bands, at a time")
    size = f"{lines} lines x {pixels} pixels x {bands} bands"
    console.say(f"          - {size}, {camera.dtype}: {_amount(scan_bytes)} a scan")
    speed = f"{rate:.4g} lines/s, {_duration(steps * lines / rate * 1e9)} in all" if rate else "as fast as possible"
    console.say(f"          - {steps} scans, {_amount(steps * scan_bytes)}; {speed}")
    console.say(f"file      {out}; Ctrl-C ends the capture, and the file keeps everything")
    console.say()
    needed = steps * scan_bytes + SPARE_BYTES + 2 * min(steps * scan_bytes, COMPARED_BYTES)
    free = shutil.disk_usage(out.parent).free
    if needed > free:
        advice = "take fewer --frames or a smaller --shape"
        raise DemoError(f"{_amount(needed)} are needed in {out.parent}, {_amount(free)} are free: {advice}")


def _latencies(what: str, values: list[int], since: str) -> str:
    if not values:
        return f"{what}: none seen"
    low, middle, high = (_duration(ns) for ns in (min(values), statistics.median(values), max(values)))
    return f"{len(values)} {what} seen: min {low}, median {middle}, max {high} after the {since}"


def _duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns / 1e3:.0f} us"


def _amount(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _memory_bytes() -> int | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _environment() -> dict[str, str]:
    """Return the environment for a child that must find this same mmapdict, wherever it was imported from."""
    paths = [str(Path(mmapdict.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    # Safe path: a folder called mmapdict in the current folder is not it.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "PYTHONSAFEPATH": "1"}
