"""What joblib measures itself with, for mmapdict and its peers: write, read, map, memory and disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from .adapter import Unable, size_of
from .data import CASES, plain_of
from .field import Field, answering, ask, race
from .harness import MIB, Samples, clock, memory, reset_peak
from .peers import PEERS
from .scoreboard import Line, cells


def persistence(field: Field) -> Iterator[Line]:
    """Write and read what joblib's own benchmarks do: time, peak memory, size. Floor: pickle."""
    scale = field.scale
    for case in CASES:
        made = [scale.numbers, scale.parts, scale.big]
        folders: dict[str, Path] = {}
        peaks: dict[str, dict[str, list[float]]] = {"write": {}, "load": {}}

        def run(what: str, name: str, case: str = case, made: Any = made, folders: Any = folders,
                peaks: Any = peaks) -> float:
            if what == "write":
                if name in folders:
                    shutil.rmtree(folders.pop(name))
                folder = field.new_folder()
            else:
                folder = folders[name]
            result = ask(JOBS[what], name, str(folder), case, *made)
            folders[name] = folder
            if what in peaks:
                peaks[what].setdefault(name, []).append(result["peak"])
            return float(result["seconds"])

        title = f"persistence: {case}"
        failed: dict[str, str] = {}
        for what in JOBS:
            if what == "map" and case.startswith("big"):  # no array in it
                continue
            reasons = dict(failed)
            sides = {name: partial(run, what, name) for name in field.all if name not in failed}
            samples = race(scale.few, scale.cell_s / 2, sides, reasons)
            yield Line(title, {"map": "open, touch all"}.get(what, what), "ms", cells(samples, reasons, "ms"))
            if what in peaks:
                found = {name: Samples(tuple(peaks[what][name])) for name in samples if name not in reasons}
                yield Line(title, f"{what}: peak memory", "MiB", cells(found, reasons, "MiB"))
            if what == "write":
                failed = reasons
        sizes = {name: Samples((size_of(folder) / MIB,)) for name, folder in folders.items()}
        yield Line(title, "on disk", "MiB", cells(sizes, failed, "MiB"))
        for folder in folders.values():
            shutil.rmtree(folder)


@answering
def write_case(name: str, folder: str, case: str, *made: int) -> dict[str, Any]:
    """Write the values of `case` to a new store; return the seconds and the growth of the peak in MiB."""
    items = CASES[case](*made)
    __import__(PEERS[name].module)
    before = memory("VmRSS")
    reset_peak()
    start = clock()
    store = PEERS[name](Path(folder), "w", known=False)
    store.fill(items)
    store.close()
    return {"seconds": clock() - start, "peak": max(0.0, memory("VmHWM") - before)}


@answering
def load_case(name: str, folder: str, case: str, *made: int) -> dict[str, Any]:
    """Read everything to memory; return the seconds and the growth of the peak in MiB."""
    __import__(PEERS[name].module)
    before = memory("VmRSS")
    reset_peak()
    start = clock()
    store = PEERS[name](Path(folder), "r", known=False)
    found = store.load_all()
    seconds, peak = clock() - start, max(0.0, memory("VmHWM") - before)
    expected = CASES[case](*made)
    if list(sorted(found)) != sorted(expected) or plain_of(found) != plain_of(expected):
        raise RuntimeError(f"{name} gave other values")
    store.close()
    return {"seconds": seconds, "peak": peak}


@answering
def map_case(name: str, folder: str, case: str, *made: int) -> dict[str, Any]:
    """Open a store, get all arrays mapped and touch one element of each; return the seconds."""
    __import__(PEERS[name].module)
    start = clock()
    store = PEERS[name](Path(folder), "r", known=False)
    if not store.maps:
        store.close()
        raise Unable("its arrays are not mapped here")
    found = store.read_all()
    for value in found.values():
        if isinstance(value, numpy.ndarray):
            value.item(0)
    seconds = clock() - start
    store.close()
    return {"seconds": seconds}


JOBS = {"write": write_case, "load": load_case, "map": map_case}
