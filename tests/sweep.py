"""Random writers that are killed and frozen at random instants, and what must be in their file then.

What a writer does follows from a seed, so the process that kills it knows every state of the file without being told:
two counters in shared memory say how many operations the writer began and how many it has done. Runs in a process of
its own, from which writers are forked fast; the judge of their files is `pickle.load`.
"""

import contextlib
import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from typing import NamedTuple

import numpy as np

import mmapdict
from children import fork, wait_until
from judge import plain
from mmapdict import birth, growables, store
from mmapdict.format import COMMIT_OFFSET, MARK

BEGUN, DONE, VERIFIED = range(3)    # cells of the memory that a writer shares with its killer
GONE = object()
KEYS = [*(f"k{i}" for i in range(24)), *range(8), ("scan", 1), ("scan", (2, None)), b"bytes", 0.5, "", None]
GROWING = [f"rows {i}" for i in range(4)]
PAIR = "left", "right"              # always replaced together, by the same value
LARGE = 4 << 20                     # bytes; a file of this size is made small again
LIFE_S = 0.02                       # longest time between two looks at a writer, in seconds


class Hole(NamedTuple):
    """What is known of an array that was made by `create`: all elements are `n`, or, until it is whole, 0 or `n`."""

    n: int
    whole: bool

    def fits(self, found):
        return (isinstance(found, np.ndarray) and found.shape == (self.n % 3000,)
                and bool(((found == self.n) | (not self.whole and found == 0)).all()))


class Rows(NamedTuple):
    """What is known of an array that grows: all elements of a row are its number."""

    width: int
    numbers: tuple

    def fits(self, found):
        return (isinstance(found, np.ndarray) and found.shape == (len(self.numbers), self.width)
                and bool((found == np.array(self.numbers, "i8").reshape(-1, 1)).all()))


def make(n):
    """The value that stands for a number: what it is follows from the number, so a part of it is never taken for it."""
    kind = n % 10
    if n % 50 == 0:
        return np.full(30_000, n)
    if kind == 5:
        return np.full((3, n % 40), n, ">i4")
    if kind == 6:
        return np.ma.masked_less(np.arange(n % 300), 4)
    if kind == 7:
        return {"n": n, "list": [n] * (n % 20), "array": np.full(n % 30, n)}
    if kind == 8:
        return str(n) * (n % 700)
    if kind == 9:
        return n
    return np.full(n % 600, n)


def equal(found, expected):
    """Whether two values of `make` are equal."""
    if isinstance(expected, dict):
        return type(found) is dict and found.keys() == expected.keys() and all(
            equal(found[key], expected[key]) for key in expected)
    if isinstance(expected, np.ndarray):
        return (isinstance(found, np.ndarray) and found.dtype == expected.dtype and found.shape == expected.shape
                and np.ma.isMaskedArray(found) == np.ma.isMaskedArray(expected)
                and np.array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(expected))
                and np.array_equal(np.ma.getdata(found), np.ma.getdata(expected)))
    return type(found) is type(expected) and found == expected


def value_fits(found, expected):
    """Whether a value that was found may stand for what is known of it."""
    return expected.fits(found) if isinstance(expected, (Hole, Rows)) else equal(found, make(expected))


def differences(found, state):
    """The keys in which a mapping that was found is not the expected one."""
    return [key for key in {**found, **state}
            if key not in found or key not in state or not value_fits(found[key], state[key])]


def changed(state, changes):
    """The state after (key, value or GONE) pairs."""
    state = dict(state)
    for key, value in changes:
        if value is GONE:
            state.pop(key, None)
        else:
            state[key] = value
    return state


# -- operations -------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """What a writer does next.

    Attributes
    ----------
    steps : list of list
        The changes, (key, value or GONE), of each step that is seen whole or not at all.
    do : callable
        Called with the handle; returns another one to go on with, or None.
    """

    steps: list
    do: object


class Broken(Exception):
    """Ends a batch that shall not happen."""


def _number(rng):
    return rng.randrange(1, 1 << 30)


def _items(changes):
    return [(key, make(value)) for key, value in changes]


def _forget(result):
    """Let go of what a method returned."""


def store_one(rng, state):
    key, n = rng.choice(KEYS), _number(rng)
    return Operation([[(key, n)]], lambda d: d.__setitem__(key, make(n)))


def delete(rng, state):
    key = rng.choice([key for key in state if key not in PAIR] or KEYS)
    return Operation([[(key, GONE)]], lambda d: d.__delitem__(key) if key in state else d.pop(key, None))


def update(rng, state):
    changes = [(rng.choice(KEYS), _number(rng)) for _ in range(rng.randrange(6))]
    return Operation([[change] for change in changes], lambda d: d.update(_items(changes)))


def set_default(rng, state):
    key, n = rng.choice(KEYS), _number(rng)
    return Operation([] if key in state else [[(key, n)]], lambda d: _forget(d.setdefault(key, make(n))))


def clear(rng, state):
    return Operation([[(key, GONE) for key in state]], lambda d: d.clear())


def create_and_fill(rng, state):
    key, n = rng.choice(KEYS), _number(rng)

    def do(d):
        d.pop(key, None)
        d.create(key, n % 3000, "i8")[...] = n

    return Operation([[(key, GONE)], [(key, Hole(n, False))], [(key, Hole(n, True))]], do)


def fill_the_rest(rng, state):
    holes = [(key, value.n) for key, value in state.items() if isinstance(value, Hole)]
    if not holes:
        return create_and_fill(rng, state)
    key, n = rng.choice(holes)

    def do(d):
        d.unseal()                      # else the array is read-only
        d[key].fill(n)

    return Operation([[(key, Hole(n, True))]], do)


def grow(rng, state, times=1):
    """Change an array's number of rows, or several one after the other in an exclusive block."""
    steps, actions = [], []
    for _ in range(times):
        key = rng.choice(GROWING)
        known = state.get(key)
        kind = rng.choices(["append", "extend", "cancel", "resize", "trim", "delete"], [10, 4, 2, 4, 3, 0.5])[0]
        if not isinstance(known, Rows):
            known = Rows(rng.choice([0, 1, 5, 60]), ())
            steps.append([(key, GONE)])
            kind = rng.choice(["create", "first rows"])
        now, numbers = known.numbers, tuple([_number(rng)] * rng.choice([0, 1, 1, 2, 3, 50]))
        capacity, n = rng.choice([0, 1, 100]), max(0, len(now) + rng.choice([-30, -2, -1, 0, 1, 30]))
        if kind == "create":
            after = Rows(known.width, ())
        elif kind in ("append", "extend", "first rows"):
            after = Rows(known.width, now + numbers)
        elif kind == "resize":
            after = Rows(known.width, now[:n] + (0,) * (n - len(now)))
        else:
            after = GONE if kind == "delete" else known
        if after is not known:
            steps.append([(key, after)])
        state = changed(state, [(key, after)])
        rows = np.empty((len(numbers), known.width), "i8")
        rows[...] = np.reshape(numbers, (-1, 1))
        actions.append((kind, key, rows, capacity, n))
    return Operation(steps, lambda d: _grow(d, actions))


def _grow(d, actions):
    with d.exclusive() if len(actions) > 1 else contextlib.nullcontext():
        for kind, key, rows, capacity, n in actions:
            if kind in ("create", "first rows"):
                d.pop(key, None)
            if kind == "create":
                d.create_growable(key, rows.shape[1:], "i8", capacity=capacity)
            elif kind in ("append", "first rows"):
                d.append(key, rows)
            elif kind in ("extend", "cancel"):
                with contextlib.suppress(Broken), d.extend(key, len(rows)) as new:
                    new[...] = rows
                    if kind == "cancel":
                        raise Broken
            elif kind == "resize":
                d.resize(key, n)
            elif kind == "trim":
                d.trim(key)
            else:
                del d[key]


def grow_exclusively(rng, state):
    return grow(rng, state, rng.randrange(2, 8))


def batch(rng, state):
    n = GONE if rng.random() < 0.2 else _number(rng)
    changes = [(key, n) for key in PAIR]
    for _ in range(rng.randrange(5)):
        key = rng.choice([*KEYS, *state])
        if key not in PAIR:
            changes.append((key, GONE if rng.random() < 0.4 else _number(rng)))
    rng.shuffle(changes)
    broken = rng.random() < 0.1

    def do(d):
        try:
            with d.batch():
                for key, value in changes:
                    if value is GONE:
                        d.pop(key, None)
                    else:
                        d[key] = make(value)
                if broken:
                    raise Broken
        except Broken:
            pass

    return Operation([] if broken else [changes], do)


def sync(rng, state):
    return Operation([], lambda d: d.sync())


def seal(rng, state):
    return Operation([], lambda d: d.seal())


def vacuum(rng, state):
    return Operation([], lambda d: (d.unseal(), _forget(d.vacuum()))[1])


def open_anew(rng, state):
    """Close, and open again; a new file is durable or not."""
    return Operation([], lambda d: (d.close(), mmapdict.open(d.path, "a"))[1])


def start_anew(rng, state):
    return Operation([[(key, GONE) for key in state]], lambda d: mmapdict.open(d.path, "w").close())


WEIGHTS = {store_one: 40, delete: 12, update: 6, set_default: 4, create_and_fill: 8, fill_the_rest: 3, clear: 0.3,
           batch: 20, grow: 40, grow_exclusively: 6, sync: 0.5, seal: 0.3, vacuum: 0.5, open_anew: 1, start_anew: 0.1}


def operations(seed, state, large):
    """Yield (operation, state before it) for ever: all that the writer with this seed does.

    Parameters
    ----------
    seed : str
    state : dict
        What is in the file.
    large : bool
        Make the file small first.
    """
    rng = random.Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        kind = vacuum if large else rng.choices(kinds, weights)[0]
        large = False
        operation = kind(rng, state)
        yield operation, state
        for changes in operation.steps:
            state = changed(state, changes)


# -- writers and their killer -----------------------------------------------------------------------------------------


class SlowFile(store.File):
    """Pauses between its stores now and then, so that a writer is often killed there."""

    def write(self, offset, buffers):
        super().write(offset, buffers)
        pause()

    def store_byte(self, offset, value):
        super().store_byte(offset, value)
        pause()

    def store_rows(self, view, start, offset, rows):
        super().store_rows(view, start, offset, rows)
        pause()

    def cell_store(self, cells, start):
        store = super().cell_store(cells, start)

        def slow(cell, value):
            store(cell, value)
            pause()

        return slow


def pause():
    if random.random() < 0.3:
        time.sleep(random.random() * 3e-4)


class EarlyFile(SlowFile):
    """Wrong: publishes records before they are written (I2)."""

    held = ()

    def write(self, offset, buffers):
        self.held = *self.held, (offset, bytes(buffers) if isinstance(buffers, (bytes, memoryview)) else list(buffers))

    def store_byte(self, offset, value):
        super().store_byte(offset, value)
        for write in self.held:
            super().write(*write)
        self.held = ()


def publish_early():
    birth.File = EarlyFile


class LateFile(SlowFile):
    """Wrong: publishes records after what they replace is dead (I6)."""

    held = None

    def store_byte(self, offset, value):
        if value == MARK:
            self.held = offset
        else:
            super().store_byte(offset, value)

    def cell_store(self, cells, start):
        store = super().cell_store(cells, start)

        def late(cell, value):
            if start + 8 * cell == COMMIT_OFFSET and not value & 1 and self.held is not None:
                SlowFile.store_byte(self, self.held, MARK)
                self.held = None
            store(cell, value)

        return late


def publish_late():
    birth.File = LateFile


def make_batches_one_by_one():
    """Wrong: a batch is seen before it is whole."""
    mmapdict.MmapDict.batch = contextlib.nullcontext


def count_early():
    """Wrong: rows count before they are written (I18)."""
    def append(index, key, rows, n, *known):
        growing = growables.reserve(index, key, n)
        at = growing.info.start + growing.info.count * growing.info.row_nbytes
        growables.publish(index, growing, growing.info.count + n)
        pause()
        index.file.write(at, growables.bytes_of(rows))

    growables.append = append


# What a sweep must find to be wrong.
MISTAKES = {f.__name__: f for f in (publish_early, publish_late, make_batches_one_by_one, count_early)}


class Sweep:
    """One file, and one writer after the other, each of which is killed at a random instant.

    Parameters
    ----------
    path : str
    seed : int
    mistake : str, optional
        What the writers do wrong.
    """

    def __init__(self, path, seed, mistake=None):
        self.path = path
        self.seed = seed
        self.rng = random.Random(seed)
        self.mistake = mistake
        if mistake:
            MISTAKES[mistake]()
        self.cells = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self.state = {}
        self.counts = dict.fromkeys(("states", "kills", "copies", "inside", "odd", "verified", "operations"), 0)
        mmapdict.open(path, "x").close()

    def run(self, states):
        """Go on until so many states of the file were looked at; return the counts."""
        while self.counts["states"] < states:
            self.round()
        with mmapdict.open(self.path, "a") as d:
            assert not differences(d, self.state)
        return self.counts

    def round(self):
        """Let a writer live for a while, freeze it now and then, and kill it."""
        seed = f"{self.seed}.{self.counts['kills']}"
        slow, durable = self.rng.random() < 0.3, self.rng.random() < 0.07
        self.plan = operations(seed, self.state, os.stat(self.path).st_size > LARGE)
        self.passed = []                # (operation, state before it): those that began, as far as was looked
        self.cells[BEGUN] = self.cells[DONE] = self.cells[VERIFIED] = 0
        pid = fork(self.write, seed, slow, durable)
        try:
            if self.rng.random() < 0.8:     # else it is often killed while it opens the file
                wait_until(lambda: self.cells[VERIFIED]
                           or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
            for _ in range(self.rng.choice([0, 0, 0, 1, 2])):
                time.sleep(self.rng.random() * LIFE_S)
                if self.rng.random() < 0.3:
                    self.copy_running(seed)
                else:
                    self.copy_frozen(pid, seed)
            time.sleep(self.rng.random() * LIFE_S)
        finally:
            os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == -signal.SIGKILL, f"the writer {seed} ended by itself: {code}"
        self.counts["kills"] += 1
        self.counts["verified"] += self.cells[VERIFIED]
        self.counts["operations"] += self.cells[DONE]
        self.clear_litter()
        self.state = self.look(self.path, seed)

    def clear_litter(self):
        """Remove what a killed writer left beside the file: nothing but files that were to take its place."""
        folder, name = os.path.split(self.path)
        for other in os.listdir(folder):
            if other != name:
                assert other.startswith(".") and other.endswith(".mmapdict-new"), other
                os.unlink(os.path.join(folder, other))

    # .. the writer

    def write(self, seed, slow, durable):
        """Open the file, find there what must be in it, and work until the end."""
        if slow and not self.mistake:
            birth.File = SlowFile
        d = mmapdict.open(self.path, "a", durable=durable)
        wrong = differences(d, self.state)
        assert not wrong, f"the next writer finds others: {wrong}"
        self.cells[VERIFIED] = 1
        for number, (operation, state) in enumerate(self.plan, 1):
            self.cells[BEGUN] = number
            after = operation.do(d)
            d = d if after is None else after
            self.cells[DONE] = number
            if number % 16 == 1:
                assert len(d) == len(changed(state, sum(operation.steps, [])))

    # .. its killer

    def copy_frozen(self, pid, seed):
        """Freeze the writer, copy the file, let it go on; then look at the copy, and be the next writer there."""
        os.kill(pid, signal.SIGSTOP)
        what = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert what.si_code == os.CLD_STOPPED, f"the writer {seed} ended by itself"
        copy = self.copy()
        cells = self.cells[BEGUN], self.cells[DONE]
        os.kill(pid, signal.SIGCONT)
        state = self.look(copy, seed, cells)
        self.go_on(copy, state, seed)
        self.counts["copies"] += 1

    def copy_running(self, seed):
        """Copy the file while the writer goes on; what it did not touch meanwhile must be in the copy."""
        done = self.cells[DONE]
        copy = self.copy()
        self.advance(self.cells[BEGUN])
        self.counts["states"] += 1
        self.counts["copies"] += 1
        found = plain(copy)
        state = self.passed[done][1] if done < len(self.passed) else self.after(done)
        touched = {key for operation, _ in self.passed[done:] for changes in operation.steps for key, _ in changes}
        wrong = set(differences(found, state)) - touched
        assert not wrong, f"writer {seed}, operations {done} to {len(self.passed)}: {wrong} in a copy of a running file"
        assert found.get(PAIR[0]) is None and found.get(PAIR[1]) is None or equal(found[PAIR[0]], found[PAIR[1]])
        for key in touched & found.keys():
            known = [state[key] for state in self.states(done) if key in state]
            assert any(value_fits(found[key], value) for value in known), (
                f"writer {seed}, operations {done} to {len(self.passed)}: {key!r} is none of {known}, but "
                f"{found[key]!r:.200}")
        self.go_on(copy, None, seed)

    def copy(self):
        """Copy the file from front to back, as `cp` does."""
        copy = self.path + ".copy"
        with open(self.path, "rb") as source, open(copy, "wb") as target:
            while data := source.read(1 << 16):
                target.write(data)
        return copy

    def advance(self, begun):
        """Find out what the operations are that the writer began."""
        while len(self.passed) < begun:
            self.passed.append(next(self.plan))

    def after(self, done):
        """The state after so many operations."""
        return self.state if not done else changed(self.passed[done - 1][1], sum(self.passed[done - 1][0].steps, []))

    def states(self, done):
        """Yield the states that may be seen once so many operations were done."""
        state = self.after(done)
        yield state
        for operation, _ in self.passed[done:]:
            for changes in operation.steps:
                state = changed(state, changes)
                yield state

    def look(self, path, seed, cells=None):
        """Load a file of which nobody knows where its writer was; return which of the possible states it has."""
        begun, done = cells or (self.cells[BEGUN], self.cells[DONE])
        self.advance(begun)
        self.counts["states"] += 1
        self.counts["inside"] += begun != done
        with open(path, "rb") as file:
            self.counts["odd"] += struct.unpack_from("<Q", file.read(48), 40)[0] & 1
        found = plain(path)
        wrong = []
        for state in self.states(done):
            wrong.append(differences(found, state))
            if not wrong[-1]:
                break
        else:
            raise AssertionError(f"writer {seed}, done {done}, begun {begun}: the file is in none of the states that "
                                 f"it may have; other keys than in each of these: {wrong}; the last operations: "
                                 f"{[(o.do.__qualname__, o.steps) for o, _ in self.passed[max(0, done - 2):]]}")
        with mmapdict.open(path, "r") as r:
            assert not differences(r, state) and len(r) == len(state) and list(r) == list(found)
        return state

    def go_on(self, copy, state, seed):
        """Be the next writer at a copy: nothing is lost, and nothing comes back."""
        found = plain(copy) if state is None else state
        with mmapdict.open(copy, "r+") as d:
            assert d.keys() == found.keys()
            for key in list(d)[::self.rng.choice([1, 5])]:
                del d[key]
            d["last"] = 1
            left = set(d)
            assert len(d) == len(left)
        loaded = plain(copy)
        assert loaded.keys() == left and left <= found.keys() | {"last"}, f"a copy of the file of writer {seed}"
        os.unlink(copy)


def main(path, seed, states, mistake=None):
    """Run one sweep and print its counts, or what was wrong."""
    sweep = Sweep(path, seed, mistake)
    try:
        print(json.dumps(sweep.run(states)))
    except Exception as exc:
        if not mistake:
            raise
        print(json.dumps({**sweep.counts, "wrong": repr(exc)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
