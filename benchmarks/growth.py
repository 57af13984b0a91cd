"""Data that grow, beside peers: rows of one array, rows of a log, a store of samples.

The adapters are those of `growers`. Each is there if its peer takes part: "h5py groups" if h5py does.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy

from .adapter import size_of
from .field import Field, each, noted, race
from .growers import (
    LOGS,
    NBYTES,
    PATHS,
    ROWS,
    SHELVES,
    WIDTH,
    Grower,
    Rows,
    Shelf,
    data_id,
    metrics,
    sample,
)
from .harness import Samples, clock
from .scoreboard import Line, cells
from .targets import LOG

BATCH = 100  # rows
G = TypeVar("G", bound=Grower)


def _those(field: Field, growers: Mapping[str, type[G]]) -> dict[str, type[G]]:
    """Return the adapters that take part."""
    return {name: kind for name, kind in growers.items() if name.split()[0] in field.wanted}


def append(field: Field) -> Iterator[Line]:
    """Append rows to a new array; ten times as many as one by one where they share a lock, or come in batches."""
    scale = field.scale
    title = f"append a row of {WIDTH} float32 to one array"
    rows = numpy.arange(scale.appends * WIDTH, dtype=numpy.float32).reshape(-1, WIDTH)
    ways = {
        "one by one": _one_by_one,
        "one by one in one lock or transaction": _in_a_run,
        f"in batches of {min(BATCH, len(rows))}": _in_batches,
    }
    for case, way in ways.items():
        reasons: dict[str, str] = {}

        def side(kind: type[Rows], way: Callable[[Rows, Any, float], float] = way) -> float:
            folder = field.new_folder()
            with contextlib.closing(kind(folder, most=10 * len(rows))) as store:
                seconds = way(store, rows, scale.cell_s / (scale.rounds + 1))
                found = store.read()
                if not len(found) or (found != numpy.resize(rows, found.shape)).any():
                    raise RuntimeError(f"{kind.name} gave wrong rows")
            shutil.rmtree(folder)
            return seconds

        sides = {name: partial(side, kind) for name, kind in _those(field, ROWS).items()}
        yield Line(title, case, "us", cells(race(scale.rounds, scale.cell_s, sides, reasons), reasons, "us"))


def _one_by_one(store: Rows, rows: Any, most_s: float) -> float:
    return each(list(rows), most_s, store.append)


def _in_a_run(store: Rows, rows: Any, most_s: float) -> float:
    some = list(rows) * 10
    start = clock()
    store.run(some)
    return (clock() - start) / len(some)


def _in_batches(store: Rows, rows: Any, most_s: float) -> float:
    size = min(BATCH, len(rows))
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    return each(batches * 10, most_s, store.extend) / size


def log(field: Field) -> Iterator[Line]:
    """Add rows of metrics to a log that has some."""
    scale = field.scale
    reasons: dict[str, str] = {}

    def side(name: str) -> float:
        folder = field.new_folder()
        with contextlib.closing(LOGS[name](folder)) as store:
            store.fill([metrics(number) for number in range(scale.logged)])
            rows = [metrics(scale.logged + number) for number in range(scale.adds)]
            seconds = each(rows, scale.cell_s / (scale.rounds + 1), store.add)
            losses = store.losses()
            if losses != [metrics(number)["loss"] for number in range(len(losses))] or len(losses) <= scale.logged:
                raise RuntimeError(f"{name} gave wrong rows")
        shutil.rmtree(folder)
        return seconds

    sides = {name: partial(side, name) for name in _those(field, LOGS)}
    found = race(scale.rounds, scale.cell_s, sides, reasons)
    yield Line(LOG, f"{scale.logged:,} are there", "us", cells(found, reasons, "us"))


def samples(field: Field) -> Iterator[Line]:
    """Write samples of three small arrays, the last of them one by one; read them again."""
    scale, count = field.scale, field.scale.samples
    a_round = max(1, min(scale.adds, count // 2 // (scale.rounds + 1)))
    first = count - a_round * (scale.rounds + 1)
    reasons: dict[str, str] = {}
    stores: dict[str, Shelf] = {}
    rest: dict[str, deque[int]] = {}
    folders: dict[str, Path] = {}
    filled: dict[str, Samples] = {}
    for name, kind in _those(field, SHELVES).items():
        with noted(name, reasons):
            folders[name] = field.new_folder()
            stores[name] = store = kind(folders[name], most=count)
            items = [(data_id(number), sample(number)) for number in range(first)]
            start = clock()
            store.fill(items)
            filled[name] = Samples(((clock() - start) / first,))
            rest[name] = deque(range(first, count))

    def add(name: str) -> float:
        items = [(data_id(number), sample(number)) for number in list(rest[name])[:a_round]]
        return each(items, scale.cell_s / (scale.rounds + 1), partial(_add_one, stores[name], rest[name]))

    sides: dict[str, Callable[[], float]] = {name: partial(add, name) for name in rest}
    title = f"{count:,} samples of {len(PATHS)} arrays of {NBYTES} bytes"
    yield Line(title, "add one of many at once", "us", cells(filled, reasons, "us"))
    added = race(scale.rounds, scale.cell_s, sides, reasons)
    yield Line(title, "add one, the last", "us", cells(added, reasons, "us"))
    for name, store in stores.items():
        with noted(name, reasons):
            if rest[name]:
                store.fill([(data_id(number), sample(number)) for number in rest[name]])
            store.close()
    least = count * (len(PATHS) * NBYTES + len(data_id(0)))
    sizes = {name: Samples(((size_of(folder) - least) / count,)) for name, folder in folders.items()}
    yield Line(title, "bytes beyond data and id", "B", cells(sizes, reasons, "B"))
    ids = [data_id(number) for number in range(count)]
    some = field.random().sample(range(count), min(scale.gets, count))
    jobs = {
        "open and get one": ("ms", partial(_open, pick=field.random(), count=count)),
        "get one": ("us", partial(_get, some=some, most_s=scale.cell_s / (scale.rounds + 1))),
        "one array of all, summed": ("ms", partial(_column, ids=ids)),
    }
    for case, (unit, job) in jobs.items():
        failed = dict(reasons)
        readers = {name: partial(job, SHELVES[name], folders[name]) for name in folders if name not in reasons}
        yield Line(title, case, unit, cells(race(scale.rounds, scale.cell_s, readers, failed), failed, unit))


def _add_one(store: Shelf, rest: deque[int], item: tuple[str, Any]) -> None:
    store.add(*item)
    rest.popleft()


def _open(kind: type[Shelf], folder: Path, pick: Any, count: int) -> float:
    """Seconds to open a store, be ready to look up any sample, and get one."""
    number = pick.randrange(count)
    wanted = data_id(number)
    start = clock()
    store = kind(folder, "r")
    found = store.get(wanted)
    seconds = clock() - start
    _check(kind, found, number)
    del found
    store.close()
    return seconds


def _get(kind: type[Shelf], folder: Path, some: list[int], most_s: float) -> float:
    """Seconds to get one sample of an open store."""
    store = kind(folder, "r")
    _check(kind, store.get(data_id(some[0])), some[0])
    seconds = each([data_id(number) for number in some], most_s, store.get)
    store.close()
    return seconds


def _check(kind: type[Shelf], found: Mapping[str, Any], number: int) -> None:
    if set(found) != set(PATHS) or any((found[path] != sample(number)[path]).any() for path in PATHS):
        raise RuntimeError(f"{kind.name} gave a wrong sample")


def _column(kind: type[Shelf], folder: Path, ids: list[str]) -> float:
    """Seconds to open a store and sum up one array of all its samples."""
    start = clock()
    store = kind(folder, "r")
    total = float(store.column(PATHS[1], ids).sum(dtype=float))
    seconds = clock() - start
    store.close()
    if total != sample(0)[PATHS[1]].size * len(ids) * (len(ids) - 1) / 2:
        raise RuntimeError(f"{kind.name} gave wrong arrays")
    return seconds
