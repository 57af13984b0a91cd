"""The workloads whose subject is another process: a fresh one, one that holds arrays, one that follows a writer."""

from __future__ import annotations

import itertools
import random
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy

import mmapdict

from . import floors, fresh
from .bench import PATIENCE_S, Bench, case_of, offsets_of, remove, sleeps
from .data import SMALL, small_key
from .harness import (
    Child,
    Row,
    Samples,
    Target,
    alternate,
    clock,
    compare,
    memory,
    open_descriptors,
    run_child,
    say,
)
from .peers import Mmapdict

MOST_OPEN_MS = 3.0  # for import, open and one array, beyond the start of Python and numpy

# -- Opening -----------------------------------------------------------------------------------------------------------


def open_store(bench: Bench) -> Iterator[Row]:
    """Open, read one array: in fresh processes, all sizes in turn, and again in this one. Floor: pread, no library."""
    looks: dict[str, list[fresh.Fresh]] = {}
    sides: dict[str, Callable[[], float]] = {"alone": fresh.alone}
    pick = bench.random()

    def look(case: str, path: str, count: int) -> float:
        number = pick.randrange(count)
        found = fresh.look(Mmapdict.module, Mmapdict.look, path, small_key(number))
        if found.first != number:
            raise RuntimeError(f"{path} gave a wrong array")
        looks.setdefault(case, []).append(found)
        return found.whole

    def bare(path: str, offsets: list[int]) -> float:
        found = fresh.look("os", floors.LOOK, path, str(pick.choice(offsets)))
        looks.setdefault("floor", []).append(found)
        return found.whole

    for count in bench.sizes.keys:
        sides[case_of(count)] = partial(look, case_of(count), bench.store(count), count)
    least = bench.sizes.keys[0]
    sides["floor"] = partial(bare, bench.store(least), offsets_of(bench.store(least), least))
    whole = alternate(bench.sizes.starts, **sides)
    rounds = len(whole["alone"].values)
    medians = []
    for case in map(case_of, bench.sizes.keys):
        some = {"ours": looks[case][-rounds:], "floor": looks["floor"][-rounds:]}
        parts = {part: _parts(some, part) for part in ("beyond", "apart")}
        row = compare("open", f"{case}, fresh process, import included", "ms", parts["beyond"])
        medians.append(row.ours)
        yield row.with_target(Target(MOST_OPEN_MS, "value"))
        yield compare("open", f"{case}, fresh process, the import apart", "ms", parts["apart"])
        both = {"ours": whole[case], "floor": whole["alone"]}
        yield compare("open", f"{case}, whole process, against one with numpy only", "ms", both)
        pairs = zip(whole[case].values, whole["alone"].values, strict=True)
        less = Samples(tuple((with_us - alone) * 1e3 for with_us, alone in pairs))
        yield Row("open", f"{case}, whole process, less one with numpy only", "ms", max(0.0, less.median), None,
                  Target(MOST_OPEN_MS, "value"), {"ours": less})
    case = f"fresh process: {case_of(bench.sizes.keys[-1])} against {case_of(bench.sizes.keys[0])}"
    yield Row("open", case, "ms", medians[-1], medians[0], Target(1.5))
    yield from _open_again(bench)


def _parts(some: dict[str, list[fresh.Fresh]], part: str) -> dict[str, Samples]:
    return {side: Samples(tuple(getattr(one, part) for one in found)) for side, found in some.items()}


def _open_again(bench: Bench) -> Iterator[Row]:
    """Open, read one array, close, not for the first time. Floor: open, map, pread at the known place, close."""
    for count in bench.sizes.keys:
        path, pick = bench.store(count), bench.random()
        offsets = offsets_of(path, count)

        def ours(path: str = path, count: int = count, pick: random.Random = pick) -> float:
            key = small_key(pick.randrange(count))
            start = clock()
            with mmapdict.open(path, "r") as d:
                d[key]
            return clock() - start

        def floor(path: str = path, offsets: list[int] = offsets, pick: random.Random = pick) -> float:
            return floors.open_and_read(path, pick.choice(offsets), SMALL * 8)

        samples = alternate(bench.sizes.rounds, ours=ours, floor=floor)
        yield compare("open", f"{case_of(count)}, again in the same process", "us", samples)


def open_memory(bench: Bench) -> Iterator[Row]:
    """Growth of resident memory by opening, in a new process, before anything is read. Floor: open and map the file."""
    for count in bench.sizes.keys:
        path = bench.store(count)
        ours = [run_child(_open_memory, path, count, bench.sizes.gets) for _ in range(bench.sizes.tries)]
        floor = Samples(tuple(run_child(floors.map_memory, path) for _ in range(bench.sizes.tries)))
        for what, target in (("opened", Target(20, "value")), ("some read", None)):
            some = Samples(tuple(found[what] for found in ours))
            least = floor.median if what == "opened" else None
            case = case_of(count) if what == "opened" else f"{case_of(count)}, {ours[0]['read']:,.0f} of them read"
            yield Row("memory", case, "MiB", some.median, least, target, {"ours": some})


def _open_memory(path: str, count: int, gets: int) -> dict[str, float]:
    numbers = random.Random(1).sample(range(count), min(gets, count))
    before = memory("VmRSS")
    with mmapdict.open(path, "r") as d:
        opened = memory("VmRSS") - before
        total = sum(float(d[small_key(number)][0]) for number in numbers)
        read = memory("VmRSS") - before
    if total != sum(numbers):
        raise RuntimeError("wrong arrays")
    return {"opened": max(0.0, opened), "some read": max(0.0, read), "read": len(numbers)}


def hold(bench: Bench) -> Iterator[Row]:
    """Hold the arrays of all keys at once, at most 64 descriptors allowed. Floor: views over one map."""
    count = min(bench.sizes.keys[-1], 100_000)
    path, most, runs = bench.store(count), 64, []
    offsets = offsets_of(path, count)

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


# -- Following a writer ------------------------------------------------------------------------------------------------


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
    reader = Child(floors.watch_board, path, len(pauses), sleeps(), PATIENCE_S)
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


def follow(bench: Bench) -> Iterator[Row]:
    """Another process follows 1,000 puts a second, by `wait` and by `watch`, in a small store and in a large one.

    Floor: the same numbers in a shared map, polled with the same sleeps.
    """
    sizes = bench.sizes
    for count, how in itertools.product((sizes.keys[0], sizes.keys[-1]), ("wait", "watch")):
        path = bench.copied_store(count)
        with mmapdict.open(path, "r+") as d:
            d["first"] = 0  # who writes first into a copied file walks it
            found = _follow(partial(_put_arrays, d), bench, follow_store, path, sizes.follows, how)
        remove(path)
        board = bench.new_path()
        put = partial(_put_numbers, floors.Board(board))
        floor = _follow(put, bench, floors.follow_board, board, sizes.follows, sleeps())
        samples = {"ours": _ms(found["latencies"]), "floor": _ms(floor["latencies"])}
        case = f"{case_of(count)}, by {how}"
        missed = sizes.follows - len(found["latencies"])
        yield Row("follow", f"{case}, of {sizes.follows:,} not seen in time", "keys", missed, None, Target(0, "value"))
        median, p99 = (_at(samples, name) for name in ("median", "p99"))
        yield Row("follow", f"{case}, median", "ms", *median, None, samples)
        beyond = max(0.0, median[0] - median[1])
        yield Row("follow", f"{case}, median beyond the polling", "ms", beyond, None, Target(0.3, "value"))
        yield Row("follow", f"{case}, p99", "ms", *p99, Target(2.0, "value"), samples)
        yield Row("follow", f"{case}, of a core", "%", found["cpu"], floor["cpu"], Target(3.0, "value"))


def _at(samples: dict[str, Samples], name: str) -> tuple[float, float]:
    ours, floor = (samples[side].summary()[name] for side in ("ours", "floor"))
    return ours, floor


def _ms(latencies: list[float]) -> Samples:
    return Samples(tuple(latencies) or (PATIENCE_S,)).scaled(1e3)


def _follow(put: Callable[[int], None], bench: Bench, reader: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Let a child read while `put` is called for 0, 1, ... at a steady rate; return what the child said."""
    child = Child(reader, *args)
    child.hear()
    start, step = time.monotonic(), bench.sizes.follow_interval_s
    for number in range(bench.sizes.follows):
        while (rest := start + number * step - time.monotonic()) > 0:
            time.sleep(rest)
        put(number)
    return dict(child.result())


def _put_arrays(d: Any, number: int) -> None:
    d[f"new{number}"] = numpy.full(SMALL, time.monotonic_ns())


def _put_numbers(board: floors.Board, number: int) -> None:
    board.publish(number + 1)


def follow_store(path: str, count: int, how: str) -> dict[str, Any]:
    """Get arrays that hold their time of birth, as they come; return how old each was, and the share of a core."""
    latencies: list[float] = []
    with mmapdict.open(path, "r") as d:
        changes = _watched(d) if how == "watch" else _waited(d, count)
        say("ready")
        burned, start = time.process_time(), clock()
        for change in changes:
            for key in change:
                born = d[key]
                latencies.append((time.monotonic_ns() - int(born[0])) / 1e9)
            if len(latencies) >= count or clock() > start + PATIENCE_S:
                break
        return {"latencies": latencies, "cpu": (time.process_time() - burned) / (clock() - start) * 100}


def _watched(d: Any) -> Iterator[list[str]]:
    """Return an iterator over the keys that are added from now on; it ends when nothing comes."""
    return (change.added for change in d.watch(timeout=PATIENCE_S / 3))


def _waited(d: Any, count: int) -> Iterator[list[str]]:
    """Yield the keys that came since the last time, waiting for them; ends when nothing comes."""
    number = 0
    while d.wait(PATIENCE_S / 3):
        keys = []
        while number < count and (key := f"new{number}") in d:
            keys.append(key)
            number += 1
        yield keys


def idle(bench: Bench) -> Iterator[Row]:
    """CPU of a process that waits while nothing happens. Floor: sleeps as long, looks at a number in a shared map."""
    for count in (bench.sizes.keys[0], bench.sizes.keys[-1]):
        ours = [run_child(_idle, bench.store(count), bench.sizes.idle_s) for _ in range(bench.sizes.tries)]
        floor = [run_child(floors.idle_board, bench.new_path(), bench.sizes.idle_s, sleeps())
                 for _ in range(bench.sizes.tries)]
        samples = {"ours": Samples(tuple(ours)), "floor": Samples(tuple(floor))}
        medians = _at(samples, "median")
        yield Row("idle", f"{case_of(count)}, of a core", "%", *medians, Target(1.0, "value"), samples)


def _idle(path: str, seconds: float) -> float:
    with mmapdict.open(path, "r") as d:
        burned, start = time.process_time(), clock()
        if d.wait(seconds):
            raise RuntimeError("a change came where nobody wrote")
        return (time.process_time() - burned) / (clock() - start) * 100
