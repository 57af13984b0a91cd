"""Clock, memory, child processes and result rows: everything that the workloads share.

Linux only (``/proc``). Imports nothing of mmapdict, so that a child process which stands for a user without
mmapdict can use it.
"""

from __future__ import annotations

import datetime
import gc
import importlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent
UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0}  # how many of them make a second

clock = time.perf_counter


# -- Samples and rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Samples:
    """Repeated measurements of one thing; `values` in the order they were taken."""

    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def percentile(self, share: float) -> float:
        """Return the smallest value that at least `share` (0..1) of the values do not exceed."""
        ordered = sorted(self.values)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    def scaled(self, factor: float) -> Samples:
        """Return the values in another unit."""
        return Samples(tuple(value * factor for value in self.values))

    def summary(self) -> dict[str, float]:
        """Return what the JSON says about the values."""
        return {
            "count": len(self.values),
            "best": self.best,
            "median": self.median,
            "p90": self.percentile(0.90),
            "p99": self.percentile(0.99),
            "max": max(self.values),
        }


@dataclass(frozen=True)
class Target:
    """The most that a row may show, either of its `ratio` to the floor or of our own `value`."""

    most: float
    of: str = "ratio"


@dataclass(frozen=True)
class Row:
    """One line of the table. Smaller is better in all of them: seconds, bytes, descriptors."""

    workload: str
    case: str
    unit: str
    ours: float
    floor: float | None = None
    target: Target | None = None
    samples: Mapping[str, Samples] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Ours divided by the floor."""
        return self.ours / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None if the row has none."""
        if self.target is None:
            return None
        value = self.ratio if self.target.of == "ratio" else self.ours
        return value is not None and value <= self.target.most

    def with_target(self, target: Target) -> Row:
        """Return the same row with another target."""
        return replace(self, target=target)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Row:
        """Return the row of `as_json`, without its samples."""
        target = plain["target"] and Target(**plain["target"])
        return cls(plain["workload"], plain["case"], plain["unit"], plain["ours"], plain["floor"], target)

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        plain = {name: getattr(self, name) for name in ("workload", "case", "unit", "ours", "floor", "ratio", "met")}
        samples = {side: values.summary() for side, values in self.samples.items()}
        return {**plain, "target": self.target and asdict(self.target), "samples": samples}


def compare(
    workload: str,
    case: str,
    unit: str,
    samples: Mapping[str, Samples],
    *,
    floor: str = "floor",
    by: str = "median",
    per: int = 1,
    most: float | None = None,
) -> Row:
    """Return the row of ``samples["ours"]`` against ``samples[floor]``.

    Parameters
    ----------
    samples
        Seconds of each side, from `alternate`.
    by : {"median", "best"}
        Which of the repeats stands for a side. "best" where the first touch of memory disturbs most repeats.
    per : int
        Operations in one sample.
    most : float, optional
        Target: the largest ratio.
    """
    scaled = {side: values.scaled(UNITS[unit] / per) for side, values in samples.items()}
    ours, least = (getattr(scaled[side], by) for side in ("ours", floor))
    return Row(workload, case, unit, ours, least, Target(most) if most else None, scaled)


def alternate(rounds: int, **sides: Callable[[], float | None]) -> dict[str, Samples]:
    """Run all sides in turn, `rounds` times after a warm-up, and return the seconds that each reported.

    A single round has no warm-up. None is not counted: a side says so that it gave up.

    A side times itself, so that it can prepare and clean up off the clock. The order is reversed in every second
    round. The objects made before are taken out of the garbage collector's sight, so that the tables of one
    side do not slow down the other; the collector stays on, as in real use.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    gc.collect()
    gc.freeze()
    try:
        for number in range(rounds + (rounds > 1)):
            for name in list(sides)[:: -1 if number % 2 else 1]:
                seconds = sides[name]()
                if seconds is not None and (number or rounds == 1):
                    taken[name].append(seconds)
    finally:
        gc.unfreeze()
    return {name: Samples(tuple(values)) for name, values in taken.items()}


# -- Memory and descriptors of this process ----------------------------------------------------------------------------


def memory(name: str) -> float:
    """Return a field of ``/proc/self/status`` in MiB.

    "VmRSS" is all that is resident, "RssAnon" the private part of it (pages of a shared map are not in it), and
    "VmHWM" the peak of VmRSS since `reset_peak`. VmHWM and not ``ru_maxrss``: the latter survives ``exec``, so a
    child would start with its parent's peak.
    """
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name + ":"):
                return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/self/status has no {name}")


def reset_peak() -> None:
    """Let "VmHWM" start again from the present resident memory."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def open_descriptors() -> int:
    """Return how many file descriptors this process holds (without the one that counting needs)."""
    return len(os.listdir("/proc/self/fd")) - 1


# -- Child processes ---------------------------------------------------------------------------------------------------

_CHILD = "from benchmarks.harness import _child_main; _child_main()"


class Child:
    """A function of an importable module, running in a Python process of its own.

    It may `say` things while it runs; what it returns is the last thing that is heard. All of it is JSON.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.name = f"{function.__module__}:{function.__qualname__}"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, self.name, json.dumps(args)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def hear(self) -> Any:
        """Return the next thing that the child says; RuntimeError if it ended without a word."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"child {self.name} ended with code {self._end()} and no result")
        return json.loads(line)

    def result(self) -> Any:
        """Return what the function returned, after the process has ended."""
        value = self.hear()
        if code := self._end():
            raise RuntimeError(f"child {self.name} ended with code {code}")
        return value

    def _end(self) -> int:
        """Wait for the end of the process and return its exit code."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()


def run_child(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function(*args)`` in a new process and return its (JSON) result."""
    return Child(function, *args).result()


def say(value: Any) -> None:
    """Send `value` to the process that started this one."""
    print(json.dumps(value), flush=True)


def _child_main() -> None:
    module, name = sys.argv[1].split(":")
    say(getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2])))


# -- What the figures were measured on ---------------------------------------------------------------------------------


def environment(folder: Path, seed: int) -> dict[str, Any]:
    """Return what a reader must know to judge the figures: versions, machine, file system, how it was measured."""
    modules = {name: importlib.import_module(name).__version__ for name in ("numpy", "mmapdict")}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **modules,
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(folder),
        "sync": "no fsync",
        "cache": "page cache warm",
        "seed": seed,
    }


def _commit() -> str | None:
    """Return the commit of the working tree, "+changes" behind it if there are any; None without git."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+changes" if status.stdout else "")


def _cpu() -> str:
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`: the longest mount point above it, the last of equals."""
    home, found = folder.resolve(), ("", "unknown")
    with open("/proc/mounts") as mounts:
        for line in mounts:
            _, point, kind = line.split()[:3]
            if home.is_relative_to(point) and len(point) >= len(found[0]):
                found = (point, kind)
    return found[1]


# -- The table ---------------------------------------------------------------------------------------------------------

def table(
    rows: Sequence[Row], before: Mapping[tuple[str, str], float] | None = None, against: str = "floor"
) -> str:
    """Return `rows` as a Markdown table; `before` adds the change against earlier figures of ours."""
    titles = ["workload", "ours", against, "ratio", "target", "met?"] + (["before"] if before is not None else [])
    lines = [titles, ["---"] * len(titles)]
    for row in rows:
        cells = [f"{row.workload}: {row.case}", amount(row.ours, row.unit)]
        cells.append("" if row.floor is None else amount(row.floor, row.unit))
        cells.append("" if row.ratio is None else f"{row.ratio:.2f}x")
        cells.append(_goal(row))
        cells.append({None: "", True: "yes", False: "NO"}[row.met])
        if before is not None:
            earlier = before.get((row.workload, row.case))
            cells.append(f"{amount(earlier, row.unit)} ({row.ours / earlier - 1:+.0%})" if earlier else "")
        lines.append(cells)
    return grid(lines)


def grid(lines: list[list[str]]) -> str:
    """Return cells as a Markdown table; the second of `lines` is the rule under the titles."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines[1] = ["-" * width for width in widths]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


def amount(value: float, unit: str) -> str:
    """Return a figure as text, with about three digits."""
    digits = 0 if value >= 1000 or value == int(value) else 1 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} {unit}".rstrip()


def _goal(row: Row) -> str:
    if row.target is None:
        return ""
    if row.target.of == "ratio":
        return f"<= {row.target.most:.2f}x"
    return f"<= {amount(row.target.most, row.unit)}"
