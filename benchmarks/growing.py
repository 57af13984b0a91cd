"""The workloads of data that grow, against floors: rows of an array, a long run of them, a log, a store of samples."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy

import mmapdict

from . import floors
from .bench import Bench, remove
from .growers import NBYTES, PATHS, SHAPE, WIDTH, data_id, metrics, sample
from .harness import Row, Samples, Target, alternate, clock, compare

BATCH = 100  # rows
EACH_SPEED = 1 / 0.8  # "at least 0.8 of the speed", as a ratio of times
GROWTH = 1.2  # a row of a long array beside one of a short one
RECORD = numpy.dtype([(name, "f8" if place else "i8") for place, name in enumerate(metrics(0))])
SHUFFLED = 256  # samples of a batch

# -- Rows of an array --------------------------------------------------------------------------------------------------


def append(bench: Bench) -> Iterator[Row]:
    """Append rows to an array that has room for them.

    Floors: lock, pwrite, unlock; without a lock, and in batches, stores into a memmap of the final size.
    """
    count = bench.sizes.appends
    rows = numpy.arange(count * WIDTH, dtype=numpy.float32).reshape(-1, WIDTH)
    singles = list(rows)
    batches = [rows[start : start + BATCH] for start in range(0, count, BATCH)] * 10

    def ours(some: list[Any], many: int, exclusive: bool) -> float:
        path = bench.new_path()
        with mmapdict.open(path, "x") as d:
            d.create_growable("rows", (WIDTH,), "f4", capacity=many)
            if exclusive:
                with d.exclusive():
                    seconds = _append_each(d, some)
            else:
                seconds = _append_each(d, some)
            if len(d["rows"]) != many or (d["rows"][-1] != rows[-1]).any():
                raise RuntimeError("the array has wrong rows")
        remove(path)
        return seconds

    def locked() -> float:
        path = bench.new_path()
        raw = floors.LockedFile(path, rows.nbytes)
        seconds = raw.write(rows[0].tobytes(), count)
        raw.close()
        remove(path)
        return seconds

    def stores(some: list[Any], many: int, step: int) -> float:
        path = bench.new_path()
        seconds = floors.store_rows(floors.new_memmap(path, (many, WIDTH), "f4"), some, step)
        remove(path)
        return seconds

    case, rounds = f"a row of {WIDTH} float32", bench.sizes.rounds
    samples = alternate(rounds, ours=partial(ours, singles, count, False), floor=locked)
    yield compare("append", case, "us", samples, per=count).with_target(Target(12, "value"))
    sides = {"ours": partial(ours, singles, count, True), "floor": partial(stores, singles, count, 1)}
    row = compare("append", f"{case}, exclusive", "us", alternate(rounds, **sides), per=count)
    yield row.with_target(Target(4, "value"))
    sides = {"ours": partial(ours, batches, 10 * count, True), "floor": partial(stores, batches, 10 * count, BATCH)}
    case = f"{BATCH} such rows, exclusive"
    yield compare("append", case, "us", alternate(rounds, **sides), per=len(batches), most=EACH_SPEED)


def _append_each(d: Any, rows: list[Any]) -> float:
    start = clock()
    for row in rows:
        d.append("rows", row)
    return clock() - start


def grow(bench: Bench) -> Iterator[Row]:
    """Append many small rows to an array that was given no room, all of its moves included.

    The last tenth beside the first tenth; and all of them beside stores into a memmap of the final size.
    """
    count = bench.sizes.grown
    block, rounds = count // 40, 1 if count > 1_000_000 else bench.sizes.few
    value = numpy.float32(1.5)
    tenths: list[tuple[float, float]] = []

    def ours() -> float:
        path, times = bench.new_path(), []
        with mmapdict.open(path, "x") as d:
            for _ in range(40):
                with d.exclusive():
                    times.append(_append_each(d, [value] * block))
            if len(d["rows"]) != 40 * block:
                raise RuntimeError("the array has not all rows")
        remove(path)
        tenths.append((sum(times[:4]), sum(times[-4:])))
        return sum(times)

    def floor() -> float:
        path = bench.new_path()
        array = floors.new_memmap(path, (40 * block,), "f4")
        seconds = sum(floors.store_rows(array[start:], [value] * block) for start in range(0, 40 * block, block))
        remove(path)
        return seconds

    samples = alternate(rounds, ours=ours, floor=floor)
    first, last = (Samples(some) for some in zip(*tenths[-rounds:], strict=True))
    case = f"0 to {40 * block:,} float32"
    sides = {"ours": last, "floor": first}
    yield compare("grow", f"{case}: last tenth against first", "us", sides, per=4 * block, most=GROWTH)
    yield compare("grow", f"{case}: all, mean", "us", samples, per=40 * block)


# -- Logs --------------------------------------------------------------------------------------------------------------


def log(bench: Bench) -> Iterator[Row]:
    """Add rows of six numbers to a log. Floor: lock, pwrite of as many bytes, unlock; a store into a memmap."""
    count = bench.sizes.appends
    rows = [metrics(number) for number in range(count)]

    def ours(exclusive: bool) -> float:
        path = bench.new_path()
        with mmapdict.open(path, "x") as d:
            added = mmapdict.log(d)
            if exclusive:
                with d.exclusive():
                    seconds = _add_each(added, rows)
            else:
                seconds = _add_each(added, rows)
            if added[-1] != rows[-1] or len(added) != count:
                raise RuntimeError("the log has wrong rows")
        remove(path)
        return seconds

    def locked() -> float:
        path = bench.new_path()
        raw = floors.LockedFile(path, count * RECORD.itemsize)
        seconds = raw.write(bytes(RECORD.itemsize), count)
        raw.close()
        remove(path)
        return seconds

    def stores() -> float:
        path = bench.new_path()
        seconds = floors.store_rows(floors.new_memmap(path, (count,), RECORD), [tuple(row.values()) for row in rows])
        remove(path)
        return seconds

    case = f"a row of {len(rows[0])} numbers"
    samples = alternate(bench.sizes.few, ours=partial(ours, False), floor=locked)
    yield compare("log", case, "us", samples, per=count)
    samples = alternate(bench.sizes.few, ours=partial(ours, True), floor=stores)
    yield compare("log", f"{case}, exclusive", "us", samples, per=count)


def _add_each(added: Any, rows: list[dict[str, float]]) -> float:
    start = clock()
    for row in rows:
        added.add(row)
    return clock() - start


# -- Samples -----------------------------------------------------------------------------------------------------------


def samples(bench: Bench) -> Iterator[Row]:
    """A store of samples of three small arrays: add, bytes, open, look up, batches."""
    count = bench.sizes.samples
    items = [(data_id(number), sample(number)) for number in range(count)]
    case = f"{count:,} of {len(PATHS)} arrays of {NBYTES} bytes"
    raw = len(PATHS) * NBYTES + len(data_id(0))

    def add(path: str, capacity: int) -> float:
        with mmapdict.samples(path, mode="x", capacity=capacity) as store:
            start = clock()
            for name, values in items:
                store.add(name, values)
            return clock() - start

    def ours() -> float:
        path = bench.new_path()
        seconds = add(path, count)
        remove(path)
        return seconds

    def floor() -> float:
        path = bench.new_path()
        locked = floors.LockedFile(path, count * raw)
        seconds = locked.write(bytes(raw), count)
        locked.close()
        remove(path)
        return seconds

    yield compare("samples", f"{case}: add", "us", alternate(bench.sizes.few, ours=ours, floor=floor), per=count)
    paths = {"room for all": bench.new_path(), "no room ahead": bench.new_path()}
    for kind, path in paths.items():
        add(path, count if kind == "room for all" else 0)
        beyond = Path(path).stat().st_size / count - raw
        target = Target(12, "value") if kind == "room for all" and count >= 1_000 else None  # the header is shared out
        yield Row("samples", f"{case}: bytes of a sample beyond data and id, {kind}", "B", beyond, None, target)
    remove(paths.pop("no room ahead"))
    (path,) = paths.values()
    yield from _read_samples(bench, path, case)
    remove(path)


def _read_samples(bench: Bench, path: str, case: str) -> Iterator[Row]:
    """Floors: a plain open; views of three memmaps at a known place; rows of these, in the order of the file."""
    count, rounds = bench.sizes.samples, bench.sizes.rounds

    def reload() -> float:
        start = clock()
        with mmapdict.samples(path, mode="r") as store:
            array, ids = store.path(PATHS[0]), store.ids
            seconds = clock() - start
        if array.shape != (count, *SHAPE) or len(ids) != count:
            raise RuntimeError("the store has not all samples")
        return seconds

    def open_only() -> float:
        start = clock()
        with mmapdict.open(path, "r"):
            return clock() - start

    found = alternate(rounds, ours=reload, floor=open_only)
    row = compare("samples", f"{case}: open, one array of all, all ids", "ms", found)
    yield row
    beyond = row.ours - (row.floor or 0.0)
    yield Row("samples", f"{case}: the same, less a plain open", "ms", beyond, None, Target(1, "value"))
    spare = bench.new_path()
    stacked = {name: floors.new_memmap(f"{spare}.{name}", (count, *SHAPE), "f4") for name in PATHS}
    with mmapdict.samples(path, mode="r") as store:
        for name, array in stacked.items():
            array[:] = store.path(name)
        pick = bench.random()
        some = [pick.randrange(count) for _ in range(bench.sizes.firsts)]
        wanted = [data_id(number) for number in some]
        table = {data_id(number): number for number in range(count)}

        def look_up() -> float:
            start = clock()
            for name in wanted:
                store[name]
            return clock() - start

        if any((store[name][PATHS[-1]] != number).any() for name, number in zip(wanted, some, strict=True)):
            raise RuntimeError("the store gave a wrong sample")
        found = alternate(rounds, ours=look_up, floor=partial(floors.get_rows, table, wanted, stacked))
        yield compare("samples", f"{case}: one by its id", "us", found, per=len(wanted))
        size = min(SHUFFLED, count)

        def batches() -> float:
            start, seen = clock(), 0
            for ids, _ in store.batches(size, shuffle=True, seed=bench.seed):
                seen += len(ids)
            if seen != count:
                raise RuntimeError("the batches have not all samples")
            return clock() - start

        found = alternate(rounds, ours=batches, floor=partial(_take, stacked, size, bench.random()))
        number = -(-count // size)
        yield compare("samples", f"{case}: a shuffled batch of {size}", "us", found, per=number)
    del array, stacked
    for name in PATHS:
        remove(f"{spare}.{name}")


def _take(arrays: dict[str, Any], size: int, pick: random.Random) -> float:
    """Seconds to take all rows of all arrays in random batches, each in the order of the file."""
    count = len(next(iter(arrays.values())))
    start = clock()
    order = numpy.random.default_rng(pick.randrange(1 << 32)).permutation(count)
    for begin in range(0, count, size):
        index = numpy.sort(order[begin : begin + size])
        [array[index] for array in arrays.values()]
    return clock() - start
