"""What the comparison with other libraries stands on: how much is done, the stores, turns that a peer may lose.

What a peer cannot do, or does not do in the time that there is, becomes a reason in the place of the figure.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .adapter import Peer, Unable
from .data import small_array, small_key
from .harness import MIB, Samples, alternate, clock, run_child
from .peers import FLOOR, OURS, PEERS
from .scoreboard import STOPPED

CHUNK = 2_000  # keys that are stored at once between two looks at the clock
T = TypeVar("T")


class Failed(Exception):
    """What went wrong in a child process."""


@dataclass(frozen=True)
class Scale:
    """How much each workload does. The defaults are those of a full run."""

    keys: tuple[int, ...] = (100, 10_000, 100_000, 1_000_000)
    rounds: int = 7
    few: int = 3  # rounds of what takes long
    starts: int = 15  # fresh processes of one kind
    puts: int = 100  # in a round, as are the next three
    gets: int = 1_000
    firsts: int = 300
    deletes: int = 100
    followed: int = 1_000  # keys in the store before
    follows: int = 2_000  # keys added
    interval_s: float = 0.001
    patience_s: float = 6.0
    samples: int = 6_000
    appends: int = 1_000  # rows in a round; a tenth as many batches
    adds: int = 50  # in a round, to a log and to a store of samples
    logged: int = 1_000  # rows of the log before
    values: int = 10_000
    held: int = 100_000
    numbers: int = 1_000_000  # in a big dict, a big list
    parts: int = 100  # arrays of 128 KiB; ten times as many of 1 KiB, a twelfth of a quarter of `big`
    big: int = 64 * MIB  # bytes of a masked array, of all faces
    fill_s: float = 40.0  # for the making of a store
    cell_s: float = 4.0  # for all repeats of one figure of one peer

    @classmethod
    def quick(cls) -> Scale:
        """For a look in some minutes."""
        return cls(
            keys=(100, 1_000, 10_000), rounds=3, few=1, starts=3, puts=20, gets=200, firsts=50, deletes=20,
            followed=100, follows=200, patience_s=2.0, samples=300, appends=200, adds=10, values=1_000, held=3_000,
            numbers=50_000, parts=10, big=4 * MIB, fill_s=5.0, cell_s=1.0,
        )  # fmt: skip

    @classmethod
    def tiny(cls) -> Scale:
        """For the test of the benchmarks themselves: everything once, the figures mean nothing."""
        return cls(
            keys=(8, 16), rounds=1, few=1, starts=1, puts=2, gets=4, firsts=2, deletes=2, followed=4,
            follows=2, interval_s=0.001, patience_s=5.0, samples=5, appends=10, adds=2, logged=2, values=5, held=8,
            numbers=20, parts=2, big=MIB // 64, fill_s=5.0, cell_s=1.0,
        )  # fmt: skip

    def up_to(self, most_keys: int) -> Scale:
        """Return the same with stores of at most, and once exactly, `most_keys` keys."""
        keys = (*(count for count in self.keys if count < most_keys), most_keys)
        return replace(self, keys=keys, held=min(self.held, most_keys))


class Field:
    """The peers of one run, and their stores of small arrays that several workloads start from."""

    def __init__(self, scale: Scale, folder: Path, seed: int, names: Iterable[str]) -> None:
        self.scale, self.folder, self.seed = scale, folder, seed
        self.wanted = set(names)
        self.all = [name for name in PEERS if name in self.wanted]
        self.names = [name for name in self.all if name != FLOOR]
        self._stores: dict[tuple[str, int], Path] = {}
        self._took: dict[str, tuple[int, float]] = {}  # keys of the last store that was made, seconds
        self.filled: dict[tuple[str, int], float] = {}  # seconds to put the first keys of a store, in batches
        self._stopped: dict[str, dict[int, str]] = {name: {} for name in self.all}  # keys -> reason
        self._numbers = itertools.count()

    def random(self) -> random.Random:
        """Return a generator that starts from the seed, so that each workload can be repeated alone."""
        return random.Random(self.seed)

    def new_folder(self) -> Path:
        """Make an empty folder that was not used before."""
        folder = self.folder / str(next(self._numbers))
        folder.mkdir()
        return folder

    def stores(self, count: int, reasons: dict[str, str]) -> dict[str, Path]:
        """Return the folder of a closed store of `count` small arrays of each peer, made at first use.

        Peers that cannot make one in time go into `reasons`. Do not write to the stores.
        """
        found = {}
        for name in self.names:
            with noted(name, reasons):
                if (name, count) not in self._stores:
                    self.keep(self.make(name, count, count), count)
                found[name] = self._stores[name, count]
        return found

    def take(self, count: int, reasons: dict[str, str]) -> dict[str, Path]:
        """Return the same, to write to them; who needs such stores later gets new ones."""
        found = self.stores(count, reasons)
        for name in found:
            del self._stores[name, count]
        return found

    def make(self, name: str, count: int, now: int) -> Peer:
        """Return a new store of the first `now` of `count` small arrays, open to write.

        Raises
        ------
        Unable
            If it takes longer than ``scale.fill_s``, or would, judged by an earlier one of fewer keys.
        """
        most = self.scale.fill_s
        stopped = self._stopped[name]
        if fewer := [keys for keys in stopped if keys <= count]:
            raise Unable(stopped[max(fewer)])
        keys, seconds = self._took.get(name, (count, 0.0))
        expected = seconds * count / keys
        if expected > most and count > 1_000:
            stopped[count] = f"{STOPPED}: to fill {count:,} keys would take about {expected:,.0f} s"
            raise Unable(stopped[count])
        folder = self.new_folder()
        start = clock()
        store = PEERS[name](folder, "w")
        opened = clock()
        try:
            fill(store, ((small_key(number), small_array(number)) for number in range(now)), now, most)
        except Unable as exc:
            store.close()
            shutil.rmtree(folder)
            stopped[count] = f"{exc} of {count:,} keys"
            raise Unable(stopped[count]) from None
        self._took[name] = count, clock() - start
        self.filled[name, count] = clock() - opened
        return store

    def check_rewriting(self, name: str, count: int) -> None:
        """Raise Unable if a peer writes all of its file at each change, and that takes too long for `count` keys."""
        known = [keys for peer, keys in self.filled if peer == name and 1_000 <= keys <= count]
        if PEERS[name].whole and known:
            seconds = self.filled[name, max(known)] * count / max(known)
            if seconds > 2 * self.scale.cell_s:
                raise Unable(f"{STOPPED}: one change writes the whole file again, which takes about {seconds:,.0f} s")

    def keep(self, store: Peer, count: int) -> None:
        """Close a store of `count` small arrays, so that `stores` returns it."""
        store.close()
        self._stores[store.name, count] = store.folder


@contextlib.contextmanager
def noted(name: str, reasons: dict[str, str]) -> Iterator[None]:
    """Put the reason why the block failed into `reasons`; a failure of ours is raised."""
    try:
        yield
    except Unable as exc:
        reasons[name] = str(exc)
    except Exception as exc:
        if name == OURS:
            raise
        reasons[name] = str(exc) if isinstance(exc, Failed) else words(exc)


def words(exc: Exception) -> str:
    """Return an error as the tables say it."""
    return f"failed: {type(exc).__name__}: {exc}".splitlines()[0]


def fill(store: Peer, items: Iterable[tuple[str, Any]], count: int, most_s: float) -> None:
    """Store all of `items`, `count` of them; Unable if it takes longer than `most_s`."""
    step = count if store.whole else CHUNK
    deadline, done, rest = clock() + most_s, 0, iter(items)
    while some := dict(itertools.islice(rest, max(1, step))):
        store.fill(some)
        done += len(some)
        if done < count and clock() > deadline:
            raise Unable(f"{STOPPED}: after {most_s:,.0f} s it had stored {done:,}")


def race(
    rounds: int, most_s: float, sides: Mapping[str, Callable[[], float]], reasons: dict[str, str]
) -> dict[str, Samples]:
    """Run all sides in turn and return what each reported, as `alternate` does.

    A side that fails goes into `reasons`. One that has used up `most_s` is not called again; if that was in the
    warm-up, this first figure is taken.
    """
    spent, last = dict.fromkeys(sides, 0.0), dict[str, float]()

    def call(name: str, side: Callable[[], float]) -> float | None:
        if name in reasons or spent[name] > most_s:
            return None
        start = clock()
        with noted(name, reasons):
            last[name] = side()
        spent[name] += clock() - start
        return None if name in reasons else last[name]

    samples = alternate(rounds, **{name: partial(call, name, side) for name, side in sides.items()})
    return {name: some if some.values else Samples((last[name],)) for name, some in samples.items() if name in last}


def each(items: Iterable[T], most_s: float, work: Callable[[T], Any]) -> float:
    """Call `work` with each of the items, until `most_s` is over, at least once; return the seconds of one call."""
    start, done = clock(), 0
    deadline = start + most_s
    for done, item in enumerate(items, 1):  # noqa: B007
        work(item)
        if clock() > deadline:
            break
    return (clock() - start) / max(1, done)


def ask(function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Return the answer of an `answering` function in a process of its own; Unable or Failed if it had none."""
    return answer(run_child(function, *args))


def answer(result: dict[str, Any]) -> dict[str, Any]:
    """Return what an `answering` function returned, raise what it raised."""
    if "unable" in result:
        raise Unable(result["unable"])
    if "failed" in result:
        raise Failed(result["failed"])
    return result


def answering(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Let a function for a child process return its errors as a result."""

    @functools.wraps(function)
    def call(*args: Any) -> dict[str, Any]:
        try:
            return function(*args)
        except Unable as exc:
            return {"unable": str(exc)}
        except Exception as exc:
            return {"failed": words(exc)}

    return call


def close_all(stores: Iterable[Peer]) -> None:
    """Close the stores, the failed ones too."""
    for store in stores:
        with contextlib.suppress(Exception):
            store.close()
