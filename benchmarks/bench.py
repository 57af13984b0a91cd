"""What the workloads against floors share: how much is done, the folder of a run, the stores of small arrays."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import mmapdict
from mmapdict.store import poll_delays

from .data import small_array, small_key
from .harness import MIB, Row

PATIENCE_S = 30.0  # after this a reader that sees nothing gives up


@dataclass(frozen=True)
class Sizes:
    """How much each workload does; memory in bytes. The defaults are those of a full run."""

    keys: tuple[int, ...] = (100, 10_000, 100_000, 1_000_000)
    rounds: int = 15
    few: int = 7  # rounds of what takes long
    tries: int = 3  # loads in one process
    gets: int = 10_000
    puts: int = 1_000
    deletes: int = 1_000
    syncs: int = 100
    publishes: int = 300
    interval_s: float = 0.005
    follows: int = 3_000
    follow_interval_s: float = 0.001
    idle_s: float = 3.0  # of waiting for nothing
    starts: int = 25  # fresh processes of one kind
    firsts: int = 1_000
    samples: int = 6_000  # of three arrays
    appends: int = 10_000  # rows in a round, of an array or a log
    grown: int = 10_000_000  # rows of one long run
    nested: int = 10_000  # small dicts
    big: int = 1024 * MIB
    part: int = 64 * MIB
    hole: int = 512 * MIB
    frame: int = 2 * MIB

    @classmethod
    def quick(cls) -> Sizes:
        """For a look in a minute."""
        return cls(
            keys=(100, 1_000, 10_000),
            rounds=7,
            few=3,
            gets=5_000,
            puts=300,
            deletes=300,
            syncs=30,
            publishes=60,
            follows=500,
            idle_s=1.0,
            starts=7,
            firsts=300,
            samples=1_000,
            appends=2_000,
            grown=300_000,
            nested=2_000,
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
            follows=5,
            idle_s=0.02,
            starts=1,
            firsts=4,
            samples=5,
            appends=100,
            grown=40,
            nested=5,
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


def case_of(count: int) -> str:
    """Return how the tables name a store of `count` keys."""
    return f"{count:,} keys"


def offsets_of(path: str, count: int) -> list[int]:
    """Return where the data of each array of ``Bench.store(count)`` lie."""
    with mmapdict.open(path, "r") as d:
        return [d.entry(small_key(number)).offset for number in range(count)]


def sleeps() -> list[float]:
    """Return how long `wait` sleeps between its first looks; the last of them stands for all that follow."""
    return list(itertools.islice(poll_delays(), 256))


def remove(path: str) -> None:
    """Delete the file, off the clock."""
    Path(path).unlink()
