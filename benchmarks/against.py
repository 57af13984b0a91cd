"""The workloads that mmapdict and its peers run side by side: ``python -m benchmarks peers [names...]``.

Each is a function that takes a `Field` and yields `Line` objects, one figure of each peer.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from .field import (
    SMALL,
    Field,
    answer,
    answering,
    ask,
    close_all,
    each,
    fill,
    noted,
    race,
    small_array,
    small_key,
)
from .harness import MIB, Child, Samples, clock, memory, open_descriptors, reset_peak, run_child, say
from .peers import PEERS, Peer, Unable, size_of
from .scoreboard import STOPPED, Line, cells

# -- Stores of N small arrays ------------------------------------------------------------------------------------------


def put(field: Field) -> Iterator[Line]:
    """Put small arrays one by one into a store, the last of its N keys."""
    scale = field.scale
    for count in scale.keys:
        a_round = max(1, min(scale.puts, count // 2 // (scale.rounds + 1)))
        now = count - a_round * (scale.rounds + 1)
        reasons: dict[str, str] = {}
        stores: dict[str, Peer] = {}
        for name in field.names:
            with noted(name, reasons):
                stores[name] = field.make(name, count, now)
        rest = {name: iter(range(now, count)) for name in stores}

        def side(name: str, stores: dict[str, Peer] = stores, rest: Any = rest, a_round: int = a_round) -> float:
            store = stores[name]
            items = [(small_key(number), small_array(number)) for number in itertools.islice(rest[name], a_round)]
            stop = scale.cell_s / (scale.rounds + 1)
            start, done = clock(), 0
            for key, value in items:
                store.put(key, value)
                done += 1
                if clock() - start > stop:
                    break
            seconds = clock() - start
            rest[name] = itertools.chain([int(value[0]) for _, value in items[done:]], rest[name])
            return seconds / done

        samples = race(scale.rounds, scale.cell_s, {name: partial(side, name) for name in stores}, reasons)
        for name, store in stores.items():
            with noted(name, reasons):
                if some := {small_key(number): small_array(number) for number in rest[name]}:
                    store.fill(some)
                field.keep(store, count)
        yield Line("put a small array, the last of N", f"{count:,} keys", "us", cells(samples, reasons, "us"), count)


def get(field: Field) -> Iterator[Line]:
    """Get small arrays that were read before, in random order."""
    scale = field.scale
    for count in scale.keys:
        reasons: dict[str, str] = {}
        some = field.random().sample(range(count), min(scale.gets, count))
        stores: dict[str, Peer] = {}
        touched: dict[str, list[str]] = {}
        for name, folder in field.stores(count, reasons).items():
            with noted(name, reasons):
                stores[name] = PEERS[name](folder, "r")
                touched[name] = []
                each(some, scale.cell_s / scale.rounds, partial(_touch, stores[name], touched[name]))

        def side(store: Peer, keys: list[str]) -> float:
            get = store.get
            start = clock()
            for key in keys:
                get(key)
            return (clock() - start) / len(keys)

        sides = {name: partial(side, stores[name], touched[name]) for name in stores if name not in reasons}
        samples = race(scale.rounds, scale.cell_s, sides, reasons)
        close_all(stores.values())
        yield Line("get a small array, read before", f"{count:,} keys", "us", cells(samples, reasons, "us"), count)


def _touch(store: Peer, touched: list[str], number: int) -> None:
    """Get one small array, look whether it is right, and note its key."""
    array = store.get(small_key(number))
    if len(array) != SMALL or array[0] != number:
        raise RuntimeError(f"{store.name} gave a wrong array")
    touched.append(small_key(number))


def first(field: Field) -> Iterator[Line]:
    """Get small arrays for the first time since the store was opened (one other was read before)."""
    scale = field.scale
    for count in scale.keys:
        reasons: dict[str, str] = {}
        pick = {name: field.random() for name in field.names}

        def side(name: str, folder: Path, count: int = count, pick: Any = pick) -> float:
            numbers = pick[name].sample(range(count), min(scale.firsts, count - 1) + 1)
            keys = [small_key(number) for number in numbers]
            store = PEERS[name](folder, "r")
            store.get(keys[0])
            seconds = each(keys[1:], scale.cell_s / scale.rounds, store.get)
            store.close()
            return seconds

        sides = {name: partial(side, name, folder) for name, folder in field.stores(count, reasons).items()}
        samples = race(scale.rounds, scale.cell_s, sides, reasons)
        yield Line("first get of a small array", f"{count:,} keys", "us", cells(samples, reasons, "us"), count)


def open_one(field: Field) -> Iterator[Line]:
    """Open a store in a new process and read one small array; with import and end of process, and without.

    The first is the time of the whole process, the best of the rounds, less that of one that only starts Python and
    imports numpy; zero is what cannot be told from it.
    """
    scale = field.scale
    alone, lines = "an interpreter with numpy", []
    for count in scale.keys:
        reasons: dict[str, str] = {}
        inner: dict[str, list[float]] = {}
        pick = field.random()

        def side(name: str, folder: Path, count: int = count, inner: Any = inner, pick: Any = pick) -> float:
            key = small_key(pick.randrange(count))
            start = clock()
            result = ask(open_and_read, name, str(folder), key)
            seconds = clock() - start
            inner.setdefault(name, []).append(result["seconds"])
            return seconds

        sides = {name: partial(side, name, folder) for name, folder in field.stores(count, reasons).items()}
        samples = race(scale.rounds, scale.cell_s, {alone: _start_alone, **sides}, reasons)
        start = samples.pop(alone).best
        beyond = {name: Samples(tuple(max(0.0, v - start) for v in some.values)) for name, some in samples.items()}
        inside = {name: Samples(tuple(values)) for name, values in inner.items()}
        title, case = "open and read one in a new process, import included", f"{count:,} keys"
        yield Line(title, case, "ms", cells(beyond, reasons, "ms", "best"), count)
        lines.append(Line("open and read one, the import apart", case, "ms", cells(inside, reasons, "ms"), count))
    yield from lines


def _start_alone() -> float:
    start = clock()
    run_child(do_nothing)
    return clock() - start


def do_nothing() -> None:
    """Let a child do nothing but start, with all that this module imports."""


@answering
def open_and_read(name: str, folder: str, key: str) -> dict[str, Any]:
    """Open a store and read one array; return the seconds without the import."""
    __import__(PEERS[name].module)
    start = clock()
    store = PEERS[name](Path(folder), "r")
    value = float(store.get(key)[0])
    seconds = clock() - start
    if value != int(key[1:]):
        raise RuntimeError(f"{name} gave a wrong array")
    store.close()
    return {"seconds": seconds}


def delete(field: Field) -> Iterator[Line]:
    """Delete keys one by one, then up to half of all, then compact."""
    scale = field.scale
    titles = {
        "one": ("delete one key", "us"),
        "half": ("delete half of the keys", "ms"),
        "compact": ("compact after deleting half", "ms"),
        "bytes": ("bytes on disk per key left after that", "B"),
    }
    lines: dict[str, list[Line]] = {which: [] for which in titles}
    for count in scale.keys:
        reasons: dict[str, dict[str, str]] = {which: {} for which in titles}
        samples: dict[str, dict[str, Samples]] = {which: {} for which in titles}
        stores: dict[str, Peer] = {}
        for name, folder in field.take(count, reasons["one"]).items():
            with noted(name, reasons["one"]):
                stores[name] = PEERS[name](folder, "a")
        half = field.random().sample(range(count), count // 2)
        rest = {name: iter([small_key(number) for number in half]) for name in stores}
        a_round = max(1, min(scale.deletes, len(half) // 2 // (scale.rounds + 1)))

        def side(name: str, stores: dict[str, Peer] = stores, rest: Any = rest, a_round: int = a_round) -> float:
            some = itertools.islice(rest[name], a_round)
            return each(some, scale.cell_s / (scale.rounds + 1), stores[name].delete)

        sides = {name: partial(side, name) for name in stores}
        samples["one"] = race(scale.rounds, scale.cell_s, sides, reasons["one"])
        for name, store in stores.items():
            with noted(name, reasons["half"]):
                if name in reasons["one"]:
                    raise Unable(reasons["one"][name])
                left = list(rest[name])
                seconds = _prune(store, left, scale.cell_s) * (1 if store.whole else len(half) / len(left))
                samples["half"][name] = Samples((seconds,))
            with noted(name, reasons["compact"]):
                if name in reasons["half"]:
                    raise Unable(reasons["half"][name])
                start = clock()
                store.compact()
                samples["compact"][name] = Samples((clock() - start,))
            close_all([store])
            if name in reasons["half"]:
                reasons["bytes"][name] = reasons["half"][name]
            else:
                samples["bytes"][name] = Samples((size_of(store.folder) / (count - len(half)),))
            shutil.rmtree(store.folder)
        for which in ("half", "compact", "bytes"):
            reasons[which] = {**{n: r for n, r in reasons["one"].items() if n not in stores}, **reasons[which]}
        for which, (title, unit) in titles.items():
            found = cells(samples[which], reasons[which], unit)
            lines[which].append(Line(title, f"{count:,} keys", unit, found, count))
    for which in titles:
        yield from lines[which]


def _prune(store: Peer, keys: list[str], most_s: float) -> float:
    """Return the seconds to delete all of `keys`; Unable if it takes longer than `most_s`."""
    start, done = clock(), 0
    with contextlib.closing(store.prune(keys)) as steps:
        for _ in steps:
            done += 1
            if clock() - start > most_s and done < len(keys) and not store.whole:
                raise Unable(f"{STOPPED}: after {most_s:,.0f} s it had deleted {done:,} of {len(keys):,}")
    return clock() - start


# -- Other processes ---------------------------------------------------------------------------------------------------


def follow(field: Field) -> Iterator[Line]:
    """From just before a put to the array in the hands of a reader process, which looks for the next key.

    All but mmapdict, which has `wait`, look again after the sleeps of that.
    """
    from mmapdict.store import poll_delays

    scale, pick = field.scale, field.random()
    pauses = [scale.interval_s * (0.5 + pick.random()) for _ in range(scale.follows)]
    delays = list(itertools.islice(poll_delays(), 64))
    reasons: dict[str, str] = {}
    seen: dict[str, list[float]] = {}
    stores: dict[str, Peer] = {}
    for name in field.names:
        with noted(name, reasons):
            if PEERS[name].follows:
                raise Unable(PEERS[name].follows)
            stores[name] = PEERS[name](field.new_folder(), "w")
            items = ((f"old{number}", small_array(number)) for number in range(scale.followed))
            fill(stores[name], items, scale.followed, scale.fill_s)
    parts = 3 if scale.follows >= 30 else 1
    for part, name in itertools.product(range(parts), list(stores)):
        if name not in reasons:
            with noted(name, reasons):
                names = [f"new{number}" for number in range(part, len(pauses), parts)]
                seen.setdefault(name, []).extend(_follow(field, stores[name], names, pauses[part::parts], delays))
                if not seen[name]:
                    raise Unable(f"{STOPPED}: saw nothing in {scale.patience_s:,.0f} s")
    close_all(stores.values())
    samples = {name: Samples(tuple(values)) for name, values in seen.items()}
    for by in ("median", "p99"):
        case = f"{by} of {len(pauses):,} keys"
        yield Line("from a put to the array in another process", case, "ms", cells(samples, reasons, "ms", by))


def _follow(field: Field, store: Peer, keys: list[str], pauses: list[float], delays: list[float]) -> list[float]:
    """Put `keys` and return after how many seconds a reader had each of them; fewer if it took too long."""
    most = field.scale.patience_s
    reader = Child(follow_store, store.name, str(store.folder), keys, delays, most)
    answer(reader.hear())
    deadline = clock() + most
    for key, pause in zip(keys, pauses, strict=True):
        time.sleep(pause)
        if clock() > deadline:
            break
        store.put(key, numpy.full(SMALL, time.monotonic_ns(), numpy.float64))
    return list(answer(reader.result())["latencies"])


@answering
def follow_store(name: str, folder: str, keys: list[str], delays: list[float], most_s: float) -> dict[str, Any]:
    """Wait for `keys`, one after the other, whose arrays hold their time of birth; return how old each was."""
    store = PEERS[name](Path(folder), "r")
    latencies: list[float] = []
    say({})
    looks, deadline = 0, clock() + most_s
    while len(latencies) < len(keys) and clock() < deadline:
        born = store.find(keys[len(latencies)], 1.0)
        if born is None or not born[0] or (born != born[0]).any():
            time.sleep(delays[min(looks, len(delays) - 1)])
            looks += 1
            continue
        latencies.append((time.monotonic_ns() - int(born[0])) / 1e9)
        looks = 0
    store.close()
    return {"latencies": latencies}


def hold(field: Field) -> Iterator[Line]:
    """Get all arrays of a store and keep them, in a new process."""
    scale = field.scale
    reasons: dict[str, str] = {}
    found: dict[str, dict[str, Any]] = {}

    def side(name: str, folder: Path) -> float:
        found[name] = ask(hold_all, name, str(folder), scale.held)
        return float(found[name]["seconds"])

    sides = {name: partial(side, name, folder) for name, folder in field.stores(scale.held, reasons).items()}
    samples = race(scale.few, scale.cell_s, sides, reasons)
    title = f"hold {scale.held:,} arrays at once"
    yield Line(title, "time", "ms", cells(samples, reasons, "ms"))
    for case, unit in (("descriptors", ""), ("private memory", "MiB"), ("resident memory", "MiB")):
        figures = {name: Samples((found[name][case],)) for name in samples if name not in reasons}
        yield Line(title, case, unit, cells(figures, reasons, unit))


@answering
def hold_all(name: str, folder: str, count: int) -> dict[str, Any]:
    """Open a store and hold all its arrays; return seconds, and the growth of descriptors and memory in MiB."""
    __import__(PEERS[name].module)
    before = open_descriptors(), memory("RssAnon"), memory("VmRSS")
    start = clock()
    store = PEERS[name](Path(folder), "r")
    held = store.read_all()
    total = sum(float(array[0]) for array in held.values())
    seconds = clock() - start
    result = {
        "seconds": seconds,
        "descriptors": max(0, open_descriptors() - before[0]),
        "private memory": max(0.0, memory("RssAnon") - before[1]),
        "resident memory": max(0.0, memory("VmRSS") - before[2]),
    }
    del held
    store.close()
    if total != count * (count - 1) / 2:
        raise RuntimeError(f"{name} gave wrong arrays")
    return result


# -- Metadata and values -----------------------------------------------------------------------------------------------


def metadata(field: Field) -> Iterator[Line]:
    """A list of samples, each of three named arrays: bytes beyond data and keys, and the way back to the list."""
    scale, parts = field.scale, {"image": 16, "spectrum": 8, "label": 4}
    items = {
        f"s{number:05d}.{part}": numpy.full(length, float(number))
        for number in range(scale.samples)
        for part, length in parts.items()
    }
    least = sum(value.nbytes + len(key) for key, value in items.items())
    reasons: dict[str, str] = {}
    folders: dict[str, Path] = {}
    for name in field.names:
        with noted(name, reasons):
            folders[name] = folder = field.new_folder()
            store = PEERS[name](folder, "w")
            fill(store, items.items(), len(items), scale.fill_s)
            store.close()

    def reload(name: str) -> float:
        start = clock()
        store = PEERS[name](folders[name], "r")
        values = store.read_all()
        samples = [{part: values[f"s{number:05d}.{part}"] for part in parts} for number in range(scale.samples)]
        seconds = clock() - start
        if samples[-1]["image"][-1] != scale.samples - 1:
            raise RuntimeError(f"{name} gave wrong arrays")
        del samples, values
        store.close()
        return seconds

    sides = {name: partial(reload, name) for name in folders if name not in reasons}
    samples = race(scale.few, scale.cell_s, sides, reasons)
    sizes = {name: Samples(((size_of(folders[name]) - least) / len(items),)) for name in sides}
    title = f"{scale.samples:,} samples of {len(parts)} named arrays"
    yield Line(title, "bytes of an array beyond data and key", "B", cells(sizes, reasons, "B"))
    yield Line(title, "reload the list", "ms", cells(samples, reasons, "ms"))


def nested(number: int) -> dict[str, Any]:
    """Return a small dict of mixed values."""
    return {
        "name": f"sample {number}",
        "taken": number / 7,
        "flags": [number % 2 == 0, None, number],
        "place": {"stage": (number % 100, number // 100), "gain": 1.5, "raw": b"\x00\xff" * 4},
    }


def values(field: Field) -> Iterator[Line]:
    """Small nested dicts: write all, read all back. Floor: one pickle of all of them."""
    scale = field.scale
    items = {small_key(number): nested(number) for number in range(scale.values)}
    reasons: dict[str, str] = {}
    folders: dict[str, Path] = {}

    def write(name: str) -> float:
        if name in folders:
            shutil.rmtree(folders.pop(name))
        folder = field.new_folder()
        start = clock()
        store = PEERS[name](folder, "w", known=False)
        fill(store, items.items(), len(items), scale.fill_s)
        store.close()
        seconds = clock() - start
        folders[name] = folder
        return seconds

    def read(name: str, way: Callable[[Peer], dict[str, Any]]) -> float:
        start = clock()
        store = PEERS[name](folders[name], "r", known=False)
        found = way(store)
        seconds = clock() - start
        store.close()
        if found != items:
            raise RuntimeError(f"{name} gave other values")
        return seconds

    title = f"{scale.values:,} small nested dicts"
    jobs: dict[str, Callable[[str], float]] = {
        "write": write,
        "load all": lambda name: read(name, lambda store: store.load_all()),
        "get each": lambda name: read(name, lambda store: {key: store.get(key) for key in store.keys()}),
    }
    for what, job in jobs.items():
        sides = {name: partial(job, name) for name in field.all if name not in reasons}
        samples = race(scale.few, scale.cell_s, sides, reasons)
        yield Line(title, what, "ms", cells(samples, reasons, "ms"))
    sizes = {name: Samples((size_of(folder) / len(items),)) for name, folder in folders.items()}
    yield Line(title, "bytes of a dict", "B", cells(sizes, reasons, "B"))


# -- What joblib measures itself with ----------------------------------------------------------------------------------


def _faces(nbytes: int) -> dict[str, Any]:
    """Return made-up face images, each a smooth oval with shades, as a data set of such is: the images and a text."""
    count, side = max(2, nbytes // (2 * 64 * 64 * 4)), 64
    random_ = numpy.random.default_rng(1)
    shades = numpy.kron(random_.random((count, 8, 8), numpy.float32), numpy.ones((8, 8), numpy.float32))
    y, x = numpy.mgrid[-1:1:side * 1j, -1:1:side * 1j]
    images = (shades * (x**2 / 0.6 + y**2 < 1)).astype(numpy.float32)
    people = random_.integers(0, 40, count)
    return {"images": images, "data": images.reshape(count, -1).copy(), "target": people, "about": "faces " * 200}


def _sizes(parts: int, nbytes: int) -> dict[str, Any]:
    lengths = [128] * 10 * parts + [16 * 1024] * parts + [nbytes // 32] * max(1, parts // 12)
    return {f"a{number}": numpy.arange(number, number + length, dtype=float) for number, length in enumerate(lengths)}


def _masked(nbytes: int) -> dict[str, Any]:
    data = numpy.arange(nbytes // 8, dtype=float).reshape(-1, 64)
    return {"value": numpy.ma.array(data, mask=data % 7 == 0)}


CASES: dict[str, Callable[[int, int, int], dict[str, Any]]] = {  # from numbers, parts, big
    "big dict": lambda numbers, parts, big: {"value": {f"key {n}": n / 3 for n in range(numbers)}},
    "big list": lambda numbers, parts, big: {"value": [n if n % 3 else str(n) for n in range(numbers)]},
    "arrays of three sizes": lambda numbers, parts, big: _sizes(parts, big),
    "masked array": lambda numbers, parts, big: _masked(big),
    "face images": lambda numbers, parts, big: _faces(big),
}


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
            samples = race(scale.few, scale.cell_s, sides, reasons)
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


def plain_of(items: dict[str, Any]) -> list[Any]:
    """Return something that is equal for equal items: arrays as bytes, with their masks."""
    plain: list[Any] = []
    for _, value in sorted(items.items()):
        if isinstance(value, numpy.ma.MaskedArray):
            plain.append((value.shape, value.data.tobytes(), numpy.ma.getmaskarray(value).tobytes()))
        elif isinstance(value, numpy.ndarray):
            plain.append((value.shape, value.dtype.str, value.tobytes()))
        else:
            plain.append(value)
    return plain


JOBS = {"write": write_case, "load": load_case, "map": map_case}

CONTESTS: dict[str, Callable[[Field], Iterator[Line]]] = {
    "put": put,
    "get": get,
    "first": first,
    "open": open_one,
    "hold": hold,
    "delete": delete,  # after all that use the same stores: it uses them up
    "follow": follow,
    "metadata": metadata,
    "values": values,
    "persistence": persistence,
}
