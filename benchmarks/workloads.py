"""The workloads of one process: mmapdict and its floor, in turn, in the same run.

Each is a function that takes a `Bench` and yields `Row` objects. The ones that look at memory call a function of this
module, or of `floors`, in a child; those whose subject is another process are in `processes`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy

import mmapdict

from . import floors, growing, processes
from .bench import Bench, Workload, case_of, offsets_of, remove
from .data import SMALL, least_nbytes, named_arrays, nested, small_array, small_key
from .harness import MIB, Row, Samples, Target, alternate, clock, compare, memory, reset_peak, run_child

SPEED = 1 / 0.95  # "at least 0.95 of the speed", as a ratio of times
GROWTH = 1.05  # "does not grow": what the noise of a run may add

# -- Reading -----------------------------------------------------------------------------------------------------------


def get(bench: Bench) -> Iterator[Row]:
    """Warm get of a small array, in random order. Floor: dict look-up and a light memmap view over one map."""
    for count in bench.sizes.keys:
        keys = [small_key(number) for number in range(count)]
        bench.random().shuffle(keys)
        d = mmapdict.open(bench.store(count), "r")
        table = floors.places(bench.store(count), {key: d.entry(key).offset for key in keys}, SMALL)
        first = sum(float(d[key][0]) for key in keys)  # touches all keys
        if first != count * (count - 1) / 2:
            raise RuntimeError(f"the store of {count} keys gave wrong arrays")
        some = keys[: bench.sizes.gets]
        some *= max(1, min(1_000, bench.sizes.gets) // len(some))

        def ours(d: Any = d, some: list[str] = some) -> float:
            start = clock()
            for key in some:
                d[key]
            return clock() - start

        samples = alternate(
            bench.sizes.rounds,
            ours=ours,
            floor=partial(floors.get_views, table, some),
            memmap=partial(floors.get_memmaps, table, some),
        )
        d.close()
        case, per = case_of(count), len(some)
        yield compare("get", case, "us", samples, per=per, most=2.0)
        yield compare("get", f"{case}, against a full numpy.memmap", "us", samples, floor="memmap", per=per)


def first(bench: Bench) -> Iterator[Row]:
    """First get of a key since the store was opened; another was read before. Floor: pread at the known place."""
    for count in bench.sizes.keys:
        path, pick = bench.store(count), bench.random()
        offsets, many = offsets_of(path, count), min(bench.sizes.firsts, count - 1)

        def ours(path: str = path, count: int = count, pick: random.Random = pick, many: int = many) -> float:
            keys = [small_key(number) for number in pick.sample(range(count), many + 1)]
            with mmapdict.open(path, "r") as d:
                d[keys.pop()]
                start = clock()
                for key in keys:
                    d[key]
                return clock() - start

        def floor(
            path: str = path, offsets: list[int] = offsets, pick: random.Random = pick, many: int = many
        ) -> float:
            return floors.read_each(path, pick.sample(offsets, many), SMALL * 8)

        samples = alternate(bench.sizes.rounds, ours=ours, floor=floor)
        row = compare("first get", case_of(count), "us", samples, per=many)
        yield row.with_target(Target(10, "value"))


# -- Small changes -----------------------------------------------------------------------------------------------------


def put_small(bench: Bench) -> Iterator[Row]:
    """Put new small arrays into a store of N keys, all sizes in turn. Floor: lock, pwrite of as many bytes, unlock."""
    sizes = bench.sizes
    record = bytes(_record_nbytes(bench))
    raw = floors.LockedFile(bench.new_path(), 256 * MIB)
    times = sizes.rounds + (sizes.rounds > 1)
    at_once = max(1, min(sizes.puts, 256 * MIB // len(record) // times))

    def ours(count: int) -> float:
        timed, seconds = min(sizes.puts, max(2, count // 2)), 0.0  # more would make a small store a larger one
        stores = max(1, min(10, sizes.puts // timed))
        for _ in range(stores):
            path = bench.copied_store(count)
            values = [(f"n{number:06d}", small_array(number)) for number in range(timed)]
            with mmapdict.open(path, "r+") as d:
                for number in range(3):  # the first put after opening also makes room and maps the file
                    d[f"w{number}"] = small_array(number)
                start = clock()
                for key, value in values:
                    d[key] = value
                seconds += clock() - start
            remove(path)
        return seconds / stores / timed

    sides = {case_of(count): partial(ours, count) for count in sizes.keys}
    samples = alternate(sizes.rounds, **sides, floor=lambda: raw.write(record, at_once) / at_once)
    raw.close()
    rows = [_of_side("put small", side, samples, samples["floor"], 4.0) for side in sides]
    yield from rows
    case, growth = f"growth: {rows[-1].case} against {rows[0].case}", rows[-1].ours / rows[0].ours
    yield Row("put small", case, "x", growth, None, Target(GROWTH, "value"))
    yield from _fill_small(bench, record)


def _of_side(workload: str, case: str, samples: dict[str, Samples], floor: Samples, most: float) -> Row:
    """Return the row of one store size of those that ran in turn."""
    return compare(workload, case, "us", {"ours": samples[case], "floor": floor}, most=most)


def _fill_small(bench: Bench, record: bytes) -> Iterator[Row]:
    """Put all keys into a new store and close it: the mean holds what a short run may miss."""
    count = min(bench.sizes.keys[-1], 100_000)

    def ours() -> float:
        path, values = bench.new_path(), [(small_key(number), small_array(number)) for number in range(count)]
        start = clock()
        with mmapdict.open(path, "x") as d:
            for key, value in values:
                d[key] = value
        seconds = clock() - start
        remove(path)
        return seconds

    def floor() -> float:
        path = bench.new_path()
        raw = floors.LockedFile(path, count * len(record))
        seconds = raw.write(record, count)
        raw.close()
        remove(path)
        return seconds

    samples = alternate(bench.sizes.few, ours=ours, floor=floor)
    yield compare("put small", f"0 to {count:,} keys and close, mean", "us", samples, per=count, most=4.0)


def batch(bench: Bench) -> Iterator[Row]:
    """Put all keys into a new store in one batch. Floor: lock, one pwrite of as many bytes, unlock."""
    step = _record_nbytes(bench)
    for count in bench.sizes.keys:
        rounds = bench.sizes.few if count >= 100_000 else bench.sizes.rounds

        def ours(count: int = count) -> float:
            path, values = bench.new_path(), {small_key(number): small_array(number) for number in range(count)}
            with mmapdict.open(path, "x") as d:
                start = clock()
                with d.batch():
                    d.update(values)
                seconds = clock() - start
            remove(path)
            return seconds

        def floor(count: int = count) -> float:
            path = bench.new_path()
            raw = floors.LockedFile(path, count * step)
            seconds = raw.write(bytes(count * step), 1)
            raw.close()
            remove(path)
            return seconds

        row = compare("batch", case_of(count), "us", alternate(rounds, ours=ours, floor=floor), per=count)
        yield row.with_target(Target(4, "value"))


def _record_nbytes(bench: Bench) -> int:
    """Return the bytes from one small record to the next."""
    with mmapdict.open(bench.new_path(), "x") as d:
        for number in range(3):
            d[small_key(number)] = small_array(number)
        return int(d.entry(small_key(2)).offset - d.entry(small_key(1)).offset)


def delete(bench: Bench) -> Iterator[Row]:
    """Delete keys at random, all sizes in turn. Floor: lock, a one-byte store at the same places of a map, unlock."""
    sizes = bench.sizes
    sides: dict[str, Callable[[], float]] = {}
    for count in sizes.keys:
        many = min(sizes.deletes, max(1, count // 2))
        stores = max(1, min(10, sizes.deletes // many))
        offsets, pick = offsets_of(bench.store(count), count), bench.random()

        def ours(count: int = count, many: int = many, stores: int = stores, pick: random.Random = pick) -> float:
            seconds = 0.0
            for _ in range(stores):
                keys = [small_key(number) for number in pick.sample(range(count), many)]
                path = bench.copied_store(count)
                with mmapdict.open(path, "r+") as d:
                    d["warm"] = small_array(0)
                    del d["warm"]
                    start = clock()
                    for key in keys:
                        del d[key]
                    seconds += clock() - start
                remove(path)
            return seconds / stores / many

        def floor(count: int = count, many: int = many, stores: int = stores, offsets: list[int] = offsets,
                  pick: random.Random = pick) -> float:
            seconds = 0.0
            for _ in range(stores):
                path = bench.copied_store(count)
                raw = floors.LockedFile(path)
                seconds += raw.flip(pick.sample(offsets, many))
                raw.close()
                remove(path)
            return seconds / stores / many

        sides |= {case_of(count): ours, f"floor of {case_of(count)}": floor}
    samples = alternate(sizes.rounds, **sides)
    rows = [_of_side("delete", c, samples, samples[f"floor of {c}"], 3.0) for c in map(case_of, sizes.keys)]
    yield from rows
    growth, least = rows[-1].ours / rows[0].ours, (rows[-1].floor or 0.0) / (rows[0].floor or 1.0)
    yield Row("delete", f"growth: {rows[-1].case} against {rows[0].case}", "x", growth, least, Target(GROWTH))


def vacuum(bench: Bench) -> Iterator[Row]:
    """Vacuum after half of the keys were deleted. Floor: copy as many bytes to a new file in its place."""
    for count in bench.sizes.keys:
        path = bench.copied_store(count)
        with mmapdict.open(path, "r+") as d, d.batch():
            for number in range(0, count, 2):
                del d[small_key(number)]
        source, left = bench.new_path(), Path(path).stat().st_size // 2
        Path(source).write_bytes(bytes(left))

        def ours(path: str = path) -> float:
            copy = shutil.copyfile(path, bench.new_path())
            with mmapdict.open(copy, "r+") as d:
                start = clock()
                d.vacuum()
                seconds = clock() - start
            remove(copy)
            return seconds

        def floor(source: str = source) -> float:
            copy = bench.new_path()
            start = clock()
            shutil.copyfile(source, copy)
            seconds = clock() - start
            remove(copy)
            return seconds

        yield compare("vacuum", f"{case_of(count)}, half of them deleted", "ms",
                      alternate(bench.sizes.few, ours=ours, floor=floor))
        remove(path)
        remove(source)


def put_durable(bench: Bench) -> Iterator[Row]:
    """Put with ``durable=True``: new keys, and one key again and again.

    Floor: lock, write, fdatasync, one byte, fdatasync, unlock.
    """
    sizes = bench.sizes
    for case, nbytes in (("64 B", 64), ("64 KiB", MIB // 16)):
        value = numpy.zeros(nbytes, "u1")
        for kind in ("new keys", "one key"):

            def ours(value: Any = value, kind: str = kind) -> float:
                path = bench.new_path()
                with mmapdict.open(path, "x", durable=True) as d:
                    d["k"] = value  # makes room ahead
                    start = clock()
                    for number in range(sizes.syncs):
                        d[number if kind == "new keys" else "k"] = value
                    seconds = clock() - start
                remove(path)
                return seconds

            def floor(nbytes: int = nbytes + 128) -> float:
                path = bench.new_path()
                raw = floors.LockedFile(path, 4 * MIB + 2 * nbytes * sizes.syncs)
                raw.write(bytes(nbytes), 1)
                seconds = raw.commit(bytes(nbytes), sizes.syncs)
                raw.close()
                remove(path)
                return seconds

            samples = alternate(sizes.few, ours=ours, floor=floor)
            yield compare("durable put", f"{case}, {kind}", "us", samples, per=sizes.syncs, most=1.3)


def size_small(bench: Bench) -> Iterator[Row]:
    """Bytes of a small array beyond its data and its key: of one record, and of the closed file with its index."""
    beyond, most = SMALL * 8 + len(small_key(0)), Target(112, "value")
    limit = Target(80, "value")
    yield Row("bytes", "record of a small array, beyond data and key", "B", _record_nbytes(bench) - beyond, None, limit)
    for count in bench.sizes.keys:
        nbytes = Path(bench.store(count)).stat().st_size / count - beyond
        target = most if count >= 10_000 else None  # the header is shared out, and in a small file it is much
        yield Row("bytes", f"file of {count:,}, header and index included", "B", nbytes, None, target)
    items = named_arrays(bench.sizes.samples)
    path = bench.new_path()
    with mmapdict.open(path, "x") as d:
        for key, value in items.items():
            d[key] = value
    nbytes = (Path(path).stat().st_size - least_nbytes(items)) / len(items)
    yield Row("bytes", f"file of {bench.sizes.samples:,} samples of 3 arrays, all included", "B", nbytes, None, most)


def nested_dicts(bench: Bench) -> Iterator[Row]:
    """Small nested dicts: write, and read back by plain ``pickle.load``. Floor: a native pickle of all of them."""
    count = bench.sizes.nested
    items = {small_key(number): nested(number) for number in range(count)}

    def write(batched: bool) -> float:
        path = bench.new_path()
        start = clock()
        with mmapdict.open(path, "x") as d:
            if batched:
                with d.batch():
                    d.update(items)
            else:
                for key, value in items.items():
                    d[key] = value
        seconds = clock() - start
        remove(path)
        return seconds

    def floor() -> float:
        path = bench.new_path()
        start = clock()
        floors.dump_pickle(path, items)
        seconds = clock() - start
        remove(path)
        return seconds

    samples = alternate(bench.sizes.rounds, ours=partial(write, True), single=partial(write, False), floor=floor)
    case = f"{count:,} small dicts"
    yield compare("nested", f"{case}, write", "ms", samples, most=3.0)
    yield compare("nested", f"{case}, write one by one", "ms", {**samples, "ours": samples["single"]})
    yield from _load(bench, "nested", f"{case}, pickle.load", items, 1.2, None)


# -- Big arrays --------------------------------------------------------------------------------------------------------


def put_big(bench: Bench) -> Iterator[Row]:
    """Put one big array from memory into a new file, closing included. Floor: pwritev, with and without fallocate."""
    nbytes = bench.sizes.big
    sides = run_child(_put_big, str(bench.folder), nbytes, bench.sizes.few)
    samples = {side: Samples(tuple(seconds)) for side, seconds in sides.items()}
    case = f"{nbytes // MIB:,} MiB"
    yield compare("put big", f"{case}, against fallocate + pwritev", "ms", samples, by="best", most=SPEED)
    yield compare("put big", f"{case}, against pwritev alone", "ms", samples, by="best", floor="unallocated")
    growth = run_child(_put_big_memory, str(bench.folder), nbytes)
    yield Row("put big", f"{case}, growth of peak RSS", "MiB", growth, None, Target(32, "value"))


def _put_big(folder: str, nbytes: int, rounds: int) -> dict[str, Any]:
    array, path = numpy.full(nbytes // 8, 1.5), folder + "/big.pickle"

    def ours() -> float:
        start = clock()
        with mmapdict.open(path, "x") as d:
            d["big"] = array
        seconds = clock() - start
        remove(path)
        return seconds

    def raw(allocate: bool) -> float:
        seconds = floors.write_array(path, array, allocate)
        remove(path)
        return seconds

    samples = alternate(rounds, ours=ours, floor=partial(raw, True), unallocated=partial(raw, False))
    return {side: values.values for side, values in samples.items()}


def _put_big_memory(folder: str, nbytes: int) -> float:
    array, path = numpy.full(nbytes // 8, 1.5), folder + "/big.pickle"
    before = memory("VmRSS")
    reset_peak()
    with mmapdict.open(path, "x") as d:
        d["big"] = array
        growth = memory("VmHWM") - before
    remove(path)
    return growth


def fill_hole(bench: Bench) -> Iterator[Row]:
    """Create a hole and fill it frame by frame. Floor: the same through numpy.memmap, on a fallocated file.

    The pages of a shared map count as resident, but they are page cache which the system takes back when it needs
    to; so the memory that filling costs is the anonymous part alone.
    """
    sizes = bench.sizes
    result = run_child(_fill_hole, str(bench.folder), sizes.hole // sizes.frame, sizes.frame, sizes.few)
    samples = {side: Samples(tuple(result[side])) for side in ("ours", "floor")}
    case = f"{sizes.hole // MIB:,} MiB in frames of {sizes.frame / MIB:g} MiB"
    yield compare("hole", case, "ms", samples, by="best", most=1.0)
    yield Row("hole", "growth of anonymous memory", "MiB", result["anonymous"], None, Target(32, "value"))


def _fill_hole(folder: str, count: int, nbytes: int, rounds: int) -> dict[str, Any]:
    frame, path = numpy.full(nbytes // 4, 1.5, numpy.float32), folder + "/hole.pickle"
    before, most = memory("RssAnon"), 0.0

    def ours() -> float:
        nonlocal most
        start = clock()
        with mmapdict.open(path, "x") as d:
            cube = d.create("cube", (count, frame.size), frame.dtype)
            for number in range(count):
                cube[number] = frame
            most = max(most, memory("RssAnon"))
            del cube
        seconds = clock() - start
        remove(path)
        return seconds

    def floor() -> float:
        seconds = floors.fill_memmap(path, frame, count)
        remove(path)
        return seconds

    samples = alternate(rounds, ours=ours, floor=floor)
    return {**{side: values.values for side, values in samples.items()}, "anonymous": max(0.0, most - before)}


# -- Plain pickle.load -------------------------------------------------------------------------------------------------


def load(bench: Bench) -> Iterator[Row]:
    """``pickle.load`` of a whole file, big arrays and small ones. Floor: of a native protocol-4 pickle of the same."""
    sizes = bench.sizes
    big = {f"big{part}": numpy.full(sizes.part // 8, float(part)) for part in range(sizes.big // sizes.part)}
    yield from _load(bench, "load", f"{sizes.big // MIB:,} MiB of big arrays", big, 1.05, 1.1)
    del big
    count = min(sizes.keys[-1], 100_000)
    small = {small_key(number): small_array(number) for number in range(count)}
    yield from _load(bench, "load", f"{count:,} small arrays", small, 1.0, None)


def _load(
    bench: Bench, workload: str, case: str, value: dict[str, Any], most: float, most_peak: float | None
) -> Iterator[Row]:
    paths = {"ours": bench.new_path(), "floor": bench.new_path()}
    with mmapdict.open(paths["ours"], "x") as d:
        d.update(value)
    floors.dump_pickle(paths["floor"], value)
    peaks: dict[str, list[float]] = {side: [] for side in paths}

    def side(name: str) -> float:
        result = run_child(floors.load_pickle, paths[name], bench.sizes.tries)
        if result["length"] != len(value):
            raise RuntimeError(f"{paths[name]} gave {result['length']} keys instead of {len(value)}")
        peaks[name].append(result["peak"])
        return float(min(result["seconds"]))

    samples = alternate(bench.sizes.few, ours=partial(side, "ours"), floor=partial(side, "floor"))
    yield compare(workload, case, "ms", samples, by="best", most=most)
    peak = {name: Samples(tuple(values)) for name, values in peaks.items()}
    target = Target(most_peak) if most_peak else None
    yield Row(workload, f"{case}, peak memory", "MiB", peak["ours"].median, peak["floor"].median, target, peak)
    for path in paths.values():
        remove(path)


WORKLOADS: dict[str, Workload] = {
    "open": processes.open_store,
    "memory": processes.open_memory,
    "hold": processes.hold,
    "get": get,
    "first": first,
    "put_small": put_small,
    "batch": batch,
    "durable": put_durable,
    "delete": delete,
    "vacuum": vacuum,
    "bytes": size_small,
    "nested": nested_dicts,
    "put_big": put_big,
    "hole": fill_hole,
    "load": load,
    "append": growing.append,
    "grow": growing.grow,
    "log": growing.log,
    "samples": growing.samples,
    "publish": processes.publish,
    "follow": processes.follow,
    "idle": processes.idle,
}
