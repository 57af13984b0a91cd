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

from . import fresh, growth
from .adapter import Peer, Unable, size_of
from .bench import sleeps
from .data import SMALL, least_nbytes, named_arrays, nested, small_array, small_key
from .field import Failed, Field, answer, answering, ask, close_all, each, fill, noted, race
from .harness import Child, Samples, clock, memory, open_descriptors, say
from .peers import PEERS
from .persistence import persistence
from .scoreboard import STOPPED, Line, cells
from .targets import BATCH, DELETE, FIRST, GET, OPEN, PUT

# -- Stores of N small arrays ------------------------------------------------------------------------------------------


def put(field: Field) -> Iterator[Line]:
    """Put small arrays one by one into a store, the last of its N keys; all before them are put in batches."""
    scale, batches = field.scale, []
    for count in scale.keys:
        a_round = max(1, min(scale.puts, count // 2 // (scale.rounds + 1)))
        now = count - a_round * (scale.rounds + 1)
        unmade: dict[str, str] = {}
        slow: dict[str, str] = {}
        stores: dict[str, Peer] = {}
        for name in field.names:
            with noted(name, slow):
                field.check_rewriting(name, count)
            with noted(name, unmade):
                stores[name] = field.make(name, count, count if name in slow else now)
        rest = {name: iter(() if name in slow else range(now, count)) for name in stores}
        filled = {n: Samples((field.filled[n, count] / (count if n in slow else now),)) for n in stores}
        batches.append(Line(BATCH, f"{count:,} keys", "us", cells(filled, unmade, "us"), count))
        reasons = {**slow, **unmade}

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
        yield Line(PUT, f"{count:,} keys", "us", cells(samples, reasons, "us"), count)
    yield from batches


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
        yield Line(GET, f"{count:,} keys", "us", cells(samples, reasons, "us"), count)


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
        yield Line(FIRST, f"{count:,} keys", "us", cells(samples, reasons, "us"), count)


def open_one(field: Field) -> Iterator[Line]:
    """Open a store in a new process and read one small array.

    From the end of ``import numpy`` in that process to the array: the start of Python and numpy is not in it, the
    import of the library is. Then the same without that import.
    """
    scale = field.scale
    titles = {"beyond": OPEN, "apart": "open and read one in a new process, the import apart"}
    lines: dict[str, list[Line]] = {part: [] for part in titles}
    for count in scale.keys:
        reasons: dict[str, str] = {}
        looks: dict[str, list[fresh.Fresh]] = {}
        pick = field.random()

        def side(name: str, folder: Path, count: int = count, looks: Any = looks, pick: Any = pick) -> float:
            number, peer = pick.randrange(count), PEERS[name]
            try:
                found = fresh.look(peer.module, peer.look, str(folder / "store"), small_key(number))
            except fresh.Broken as exc:
                raise Failed(f"failed: {exc}") from None
            if found.first != number:
                raise RuntimeError(f"{name} gave a wrong array")
            looks.setdefault(name, []).append(found)
            return found.whole

        sides = {name: partial(side, name, folder) for name, folder in field.stores(count, reasons).items()}
        whole = race(scale.starts, scale.cell_s, sides, reasons)
        found: dict[str, dict[str, Samples]] = {part: {} for part in titles}
        for name, some in whole.items():
            last = looks[name][-len(some.values) :]
            for part in titles:
                found[part][name] = Samples(tuple(getattr(look, part) for look in last))
        for part, title in titles.items():
            lines[part].append(Line(title, f"{count:,} keys", "ms", cells(found[part], reasons, "ms"), count))
    for part in titles:
        yield from lines[part]


def delete(field: Field) -> Iterator[Line]:
    """Delete keys one by one, then up to half of all, then compact."""
    scale = field.scale
    titles = {
        "one": (DELETE, "us"),
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
                field.check_rewriting(name, count)
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
                seconds = _prune(store, left, scale.fill_s) * (1 if store.whole else len(half) / len(left))
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
    scale = field.scale
    reasons: dict[str, str] = {}
    found: dict[str, dict[str, Samples]] = {case: {} for case in ("latency", "cpu", "missed")}
    for name in field.names:
        with noted(name, reasons):
            if PEERS[name].follows:
                raise Unable(PEERS[name].follows)
            store = PEERS[name](field.new_folder(), "w")
            items = ((f"old{number}", small_array(number)) for number in range(scale.followed))
            fill(store, items, scale.followed, scale.fill_s)
            seen = _follow(field, store)
            store.close()
            if not seen["latencies"]:
                raise Unable(f"{STOPPED}: saw nothing in {scale.patience_s:,.0f} s")
            found["latency"][name] = Samples(tuple(seen["latencies"]))
            found["cpu"][name] = Samples((seen["cpu"],))
            found["missed"][name] = Samples((scale.follows - len(seen["latencies"]),))
    title = f"follow a writer that puts {1 / scale.interval_s:,.0f} keys a second"
    for by in ("median", "p99"):
        yield Line(title, f"from a put to the array, {by}", "ms", cells(found["latency"], reasons, "ms", by))
    yield Line(title, "the reader's share of a core", "%", cells(found["cpu"], reasons, "%"))
    case = f"of {scale.follows:,} keys, not put and seen in {scale.patience_s:g} s"
    yield Line(title, case, "", cells(found["missed"], reasons, ""))


def _follow(field: Field, store: Peer) -> dict[str, Any]:
    """Put keys at a steady rate, as far as the store can; return what a reader of them says."""
    scale = field.scale
    reader = Child(follow_store, store.name, str(store.folder), scale.follows, sleeps(), scale.patience_s)
    answer(reader.hear())
    start = time.monotonic()
    for number in range(scale.follows):
        while (rest := start + number * scale.interval_s - time.monotonic()) > 0:
            time.sleep(rest)
        if rest < -scale.patience_s:
            break
        store.put(f"new{number}", numpy.full(SMALL, time.monotonic_ns(), numpy.float64))
    return answer(reader.result())


@answering
def follow_store(name: str, folder: str, count: int, delays: list[float], most_s: float) -> dict[str, Any]:
    """Wait for keys, one after the other, whose arrays hold their time of birth; return how old each was, and CPU."""
    store = PEERS[name](Path(folder), "r")
    latencies: list[float] = []
    say({})
    looks, burned, start = 0, time.process_time(), clock()
    while len(latencies) < count and clock() < start + most_s:
        born = store.find(f"new{len(latencies)}", min(1.0, most_s))
        if born is None or not born[0] or (born != born[0]).any():
            time.sleep(delays[min(looks, len(delays) - 1)])
            looks += 1
            continue
        latencies.append((time.monotonic_ns() - int(born[0])) / 1e9)
        looks = 0
    cpu = (time.process_time() - burned) / (clock() - start) * 100
    store.close()
    return {"latencies": latencies, "cpu": cpu}


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
    scale = field.scale
    items = named_arrays(scale.samples)
    parts, least = ("image", "spectrum", "label"), least_nbytes(items)
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


CONTESTS: dict[str, Callable[[Field], Iterator[Line]]] = {
    "put": put,
    "get": get,
    "first": first,
    "open": open_one,
    "hold": hold,
    "delete": delete,  # after all that use the same stores: it uses them up
    "follow": follow,
    "metadata": metadata,
    "append": growth.append,
    "log": growth.log,
    "samples": growth.samples,
    "values": values,
    "persistence": persistence,
}
