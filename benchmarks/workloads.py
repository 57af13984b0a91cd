"""The workloads: mmapdict and its floor, in turn, in the same run.

Each is a function that takes a `Bench` and yields `Row` objects. The ones that look at memory or need a second
process call a function of this module, or of `floors`, in a child.
"""

from __future__ import annotations

import itertools
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

import mmapdict
from mmapdict.store import poll_delays

from . import floors
from .harness import (
    MIB,
    Child,
    Row,
    Samples,
    Target,
    alternate,
    clock,
    compare,
    memory,
    open_descriptors,
    reset_peak,
    run_child,
    say,
)

SPEED = 1 / 0.95  # "at least 0.95 of the speed", as a ratio of times
SMALL = 8  # float64 elements of a small array
PATIENCE_S = 30.0  # after this a reader that sees nothing gives up


@dataclass(frozen=True)
class Sizes:
    """How much each workload does; memory in bytes. The defaults are those of a full run."""

    keys: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000)
    rounds: int = 15
    few: int = 7  # rounds of what takes long
    tries: int = 3  # loads in one process
    gets: int = 10_000
    puts: int = 1_000
    deletes: int = 1_000
    syncs: int = 100
    publishes: int = 300
    interval_s: float = 0.005
    big: int = 1024 * MIB
    part: int = 64 * MIB
    hole: int = 512 * MIB
    frame: int = 2 * MIB

    @classmethod
    def quick(cls) -> Sizes:
        """For a look in a minute."""
        return cls(
            keys=(10, 100, 1_000, 10_000),
            rounds=7,
            few=3,
            gets=5_000,
            puts=300,
            deletes=300,
            syncs=30,
            publishes=60,
            big=128 * MIB,
            part=16 * MIB,
            hole=128 * MIB,
        )

    @classmethod
    def tiny(cls) -> Sizes:
        """For the test of the benchmarks themselves: everything once, the figures mean nothing."""
        return cls(
            keys=(4, 16),
            rounds=1,
            few=1,
            tries=1,
            gets=16,
            puts=4,
            deletes=4,
            syncs=2,
            publishes=3,
            interval_s=0.001,
            big=MIB,
            part=MIB // 4,
            hole=MIB,
            frame=MIB // 4,
        )

    def up_to(self, most_keys: int) -> Sizes:
        """Return the same with stores of at most, and once exactly, `most_keys` keys."""
        return replace(self, keys=(*(count for count in self.keys if count < most_keys), most_keys))


class Bench:
    """Sizes, seed and folder of one run, and the stores of small arrays that several workloads start from."""

    def __init__(self, sizes: Sizes, folder: Path, seed: int) -> None:
        self.sizes, self.folder, self.seed = sizes, folder, seed
        self._stores: dict[int, Path] = {}
        self._numbers = itertools.count()

    def random(self) -> random.Random:
        """Return a generator that starts from the seed, so that each workload can be repeated alone."""
        return random.Random(self.seed)

    def new_path(self) -> str:
        """Return a path in the folder that was not used before."""
        return str(self.folder / f"{next(self._numbers)}.pickle")

    def store(self, count: int) -> str:
        """Return the path of a closed store of `count` small arrays, made at first use; do not write to it."""
        if count not in self._stores:
            path = Path(self.new_path())
            with mmapdict.open(path, "x") as d:
                for number in range(count):
                    d[small_key(number)] = small_array(number)
            self._stores[count] = path
        return str(self._stores[count])

    def copied_store(self, count: int) -> str:
        """Return the path of a fresh copy of ``store(count)``."""
        return shutil.copyfile(self.store(count), self.new_path())


Workload = Callable[[Bench], Iterator[Row]]


def small_key(number: int) -> str:
    """Return the key of the small array `number`: seven characters."""
    return f"k{number:06d}"


def small_array(number: int) -> NDArray[numpy.float64]:
    """Return the small array `number`; that number is its first element."""
    return numpy.arange(number, number + SMALL, dtype=numpy.float64)


def remove(path: str) -> None:
    """Delete the file, off the clock."""
    Path(path).unlink()


# -- Opening and reading -----------------------------------------------------------------------------------------------


def open_store(bench: Bench) -> Iterator[Row]:
    """Open, read one array, close. Floor: open, map, pread at the known place, close."""
    for count in [n for n in bench.sizes.keys if n >= 100] or bench.sizes.keys:
        path, pick = bench.store(count), bench.random()
        with mmapdict.open(path, "r") as d:
            offsets = [d.entry(small_key(number)).offset for number in range(count)]

        def ours(path: str = path, count: int = count, pick: random.Random = pick) -> float:
            key = small_key(pick.randrange(count))
            start = clock()
            with mmapdict.open(path, "r") as d:
                d[key]
            return clock() - start

        def floor(path: str = path, offsets: list[int] = offsets, pick: random.Random = pick) -> float:
            return floors.open_and_read(path, pick.choice(offsets), SMALL * 8)

        samples = alternate(bench.sizes.rounds, ours=ours, floor=floor)
        yield compare("open", f"{count:,} keys", "us", samples)


def get(bench: Bench) -> Iterator[Row]:
    """Warm get of a small array, in random order. Floor: dict look-up and a light memmap view over one map."""
    for count in bench.sizes.keys[-2:]:
        keys = [small_key(number) for number in range(count)]
        bench.random().shuffle(keys)
        d = mmapdict.open(bench.store(count), "r")
        table = floors.places(bench.store(count), {key: d.entry(key).offset for key in keys}, SMALL)
        first = sum(float(d[key][0]) for key in keys)  # touches all keys
        if first != count * (count - 1) / 2:
            raise RuntimeError(f"the store of {count} keys gave wrong arrays")
        some = keys[: bench.sizes.gets]

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
        yield compare("get", f"{count:,} keys", "us", samples, per=len(some), most=2.5)
        yield compare(
            "get", f"{count:,} keys, against a full numpy.memmap", "us", samples, floor="memmap", per=len(some)
        )


def hold(bench: Bench) -> Iterator[Row]:
    """Hold the arrays of all keys at once, at most 64 descriptors allowed. Floor: views over one map."""
    count = bench.sizes.keys[-1]
    path, most, runs = bench.store(count), 64, []
    with mmapdict.open(path, "r") as d:
        offsets = [d.entry(small_key(number)).offset for number in range(count)]

    def ours() -> float:
        runs.append(run_child(_hold_all, path, most))
        return float(runs[-1]["seconds"])

    offsets_file = bench.new_path()
    numpy.asarray(offsets, numpy.int64).tofile(offsets_file)

    def floor() -> float:
        result = run_child(_hold_floor, path, offsets_file)
        if result["sum"] != runs[-1]["sum"]:
            raise RuntimeError("mmapdict and the floor did not read the same")
        return float(result["seconds"])

    samples = alternate(bench.sizes.few, ours=ours, floor=floor)
    yield Row("hold", f"{count:,} arrays at once", "descriptors", runs[-1]["descriptors"], None, Target(most, "value"))
    yield compare("hold", f"{count:,} arrays, open and get all", "ms", samples)


def _hold_all(path: str, most: int) -> dict[str, float]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    start = clock()
    with mmapdict.open(path, "r") as d:
        held = list(d.values())
        seconds = clock() - start
        descriptors = open_descriptors()
    if not all(isinstance(array, numpy.memmap) for array in held):
        raise RuntimeError("an array came back that is not mapped")
    return {"seconds": seconds, "descriptors": descriptors, "sum": float(sum(array[0] for array in held))}


def _hold_floor(path: str, offsets_file: str) -> dict[str, float]:
    return floors.hold_views(path, numpy.fromfile(offsets_file, numpy.int64).tolist(), SMALL)


# -- Small changes -----------------------------------------------------------------------------------------------------


def put_small(bench: Bench) -> Iterator[Row]:
    """Put new small arrays into a store of N keys. Floor: lock, one pwrite of as many bytes, unlock."""
    sizes, rows = bench.sizes, []
    record = bytes(_record_nbytes(bench))
    raw = floors.LockedFile(bench.new_path(), 256 * MIB)
    for count in [n for n in sizes.keys if n != 100]:
        timed = max(10, min(sizes.puts, count))
        # few puts fit into a small store before it is a larger one: take more of such stores
        rounds = sizes.rounds * max(1, min(20, sizes.puts // timed))
        values = [(f"n{number:06d}", small_array(number)) for number in range(timed)]

        def ours(count: int = count, values: list[tuple[str, Any]] = values) -> float:
            path = bench.copied_store(count)
            with mmapdict.open(path, "r+") as d:
                for number in range(3):  # the first put after opening also reads the index and maps the file
                    d[f"w{number}"] = small_array(number)
                start = clock()
                for key, value in values:
                    d[key] = value
                seconds = clock() - start
            remove(path)
            return seconds

        samples = alternate(
            rounds,
            ours=ours,
            floor=partial(raw.write, record, timed),
        )
        rows.append(compare("put small", f"{count:,} keys", "us", samples, per=timed, most=5.0))
        yield rows[-1]
    raw.close()
    last, first = rows[-1], rows[0]
    yield Row("put small", f"growth: {last.case} against {first.case}", "us", last.ours, first.ours, Target(1.25))
    yield from _fill_small(bench, record)


def _fill_small(bench: Bench, record: bytes) -> Iterator[Row]:
    """Put all keys into a new store and close it: the mean holds what a short run may miss."""
    count = bench.sizes.keys[-1]
    values = [(small_key(number), small_array(number)) for number in range(count)]

    def ours() -> float:
        path = bench.new_path()
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
    yield compare("put small", f"0 to {count:,} keys and close, mean", "us", samples, per=count, most=5.0)


def _record_nbytes(bench: Bench) -> int:
    """Return the bytes from one small record to the next."""
    with mmapdict.open(bench.new_path(), "x") as d:
        for number in range(3):
            d[small_key(number)] = small_array(number)
        return int(d.entry(small_key(2)).offset - d.entry(small_key(1)).offset)


def delete(bench: Bench) -> Iterator[Row]:
    """Delete keys at random. Floor: lock, a one-byte store into a map, unlock."""
    count = bench.sizes.keys[-2]
    keys = bench.random().sample([small_key(number) for number in range(count)], min(bench.sizes.deletes, count))
    raw = floors.LockedFile(bench.new_path(), MIB)
    step = MIB // len(keys)

    def ours() -> float:
        path = bench.copied_store(count)
        with mmapdict.open(path, "r+") as d:
            d["warm"] = small_array(0)
            del d["warm"]
            start = clock()
            for key in keys:
                del d[key]
            seconds = clock() - start
        remove(path)
        return seconds

    samples = alternate(bench.sizes.rounds, ours=ours, floor=partial(raw.flip, range(0, step * len(keys), step)))
    raw.close()
    yield compare("delete", f"{len(keys):,} of {count:,} keys", "us", samples, per=len(keys))


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
    beyond = SMALL * 8 + len(small_key(0))
    limit = Target(80, "value")
    yield Row("bytes", "record of a small array, beyond data and key", "B", _record_nbytes(bench) - beyond, None, limit)
    count = bench.sizes.keys[-1]
    nbytes = Path(bench.store(count)).stat().st_size / count - beyond
    yield Row("bytes", f"file of {count:,}, header and index included", "B", nbytes)


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
    """Create a hole and fill it frame by frame through the map. Floor: the same over numpy.memmap on a fallocated file.

    The pages of a shared map count as resident, but they are page cache which the system takes back when it needs
    to; so the memory that filling costs is the anonymous part alone.
    """
    sizes = bench.sizes
    result = run_child(_fill_hole, str(bench.folder), sizes.hole // sizes.frame, sizes.frame, sizes.few)
    samples = {side: Samples(tuple(result[side])) for side in ("ours", "floor")}
    case = f"{sizes.hole // MIB:,} MiB in frames of {sizes.frame / MIB:g} MiB"
    yield compare("hole", case, "ms", samples, by="best", most=SPEED)
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


# -- Other processes ---------------------------------------------------------------------------------------------------


def publish(bench: Bench) -> Iterator[Row]:
    """From just before a put to the value in the hands of a polling reader in another process.

    Floor: a number in a shared map, polled with the same sleeps.
    """
    sizes, pick = bench.sizes, bench.random()
    pauses = [sizes.interval_s * (0.5 + pick.random()) for _ in range(sizes.publishes)]
    parts = 3 if sizes.publishes >= 30 else 1
    ours: list[float] = []
    floor: list[float] = []
    for part in range(parts):
        some = pauses[part::parts]
        ours += _publish_ours(bench.new_path(), some)
        floor += _publish_floor(bench.new_path(), some)
    samples = {"ours": Samples(tuple(ours)).scaled(1e3), "floor": Samples(tuple(floor)).scaled(1e3)}
    case = f"{len(ours):,} of {len(pauses):,} seen"
    for name, target in (("median", Target(1.0, "value")), ("p99", None)):
        ours_ms, floor_ms = (samples[side].summary()[name] for side in ("ours", "floor"))
        yield Row("publish to seen", f"{case}, {name}", "ms", ours_ms, floor_ms, target, samples)


def _publish_ours(path: str, pauses: list[float]) -> list[float]:
    with mmapdict.open(path, "x") as d:
        reader = Child(watch_store, path, len(pauses))
        reader.hear()
        for number, pause in enumerate(pauses):
            time.sleep(pause)
            d[small_key(number)] = numpy.full(SMALL, time.monotonic_ns())
        return list(reader.result())


def _publish_floor(path: str, pauses: list[float]) -> list[float]:
    board = floors.Board(path)
    reader = Child(floors.watch_board, path, len(pauses), list(itertools.islice(poll_delays(), 64)), PATIENCE_S)
    reader.hear()
    for number, pause in enumerate(pauses, 1):
        time.sleep(pause)
        board.publish(number)
    return list(reader.result())


def watch_store(path: str, count: int) -> list[float]:
    """Wait for small arrays that hold their time of birth; return how old each was when it had been read."""
    latencies: list[float] = []
    deadline = clock() + PATIENCE_S
    with mmapdict.open(path, "r") as d:
        say("ready")
        while len(latencies) < count and clock() < deadline:
            key = small_key(len(latencies))
            if key not in d:
                d.wait(1.0)
                continue
            born = d[key]
            latencies.append((time.monotonic_ns() - int(born[0])) / 1e9)
            if (born != born[0]).any():
                raise RuntimeError(f"{key} was seen half written")
    return latencies


# -- Plain pickle.load -------------------------------------------------------------------------------------------------


def load(bench: Bench) -> Iterator[Row]:
    """``pickle.load`` of a whole file, big arrays and small ones. Floor: of a native protocol-4 pickle of the same."""
    sizes = bench.sizes
    big = {f"big{part}": numpy.full(sizes.part // 8, float(part)) for part in range(sizes.big // sizes.part)}
    yield from _load(bench, f"{sizes.big // MIB:,} MiB of big arrays", "ms", big, 1.05, 1.1)
    del big
    count = sizes.keys[-1]
    small = {small_key(number): small_array(number) for number in range(count)}
    yield from _load(bench, f"{count:,} small arrays", "ms", small, 1.0, None)


def _load(
    bench: Bench, case: str, unit: str, value: dict[str, Any], most: float, most_peak: float | None
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
    yield compare("load", case, unit, samples, by="best", most=most)
    peak = {name: Samples(tuple(values)) for name, values in peaks.items()}
    target = Target(most_peak) if most_peak else None
    yield Row("load", f"{case}, peak memory", "MiB", peak["ours"].median, peak["floor"].median, target, peak)
    for path in paths.values():
        remove(path)


WORKLOADS: dict[str, Workload] = {
    "open": open_store,
    "get": get,
    "hold": hold,
    "put_small": put_small,
    "durable": put_durable,
    "delete": delete,
    "bytes": size_small,
    "put_big": put_big,
    "hole": fill_hole,
    "publish": publish,
    "load": load,
}
