"""Many processes at one file at the same time: no update is lost, nothing goes back, and nobody waits for ever."""

import mmap
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mmapdict
from budget import BUDGET
from children import Child, fork, in_fork, join, wait_until
from judge import plain
from mmapdict import BusyError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

KEEP = 8            # arrays of each writer that stay in the file
WIDTH = 200         # elements of a hole
VACUUM_S = 0.3      # how long between two vacuums


class Traffic:
    """Writers, readers, loaders, one that vacuums and one that kills, all at one file, each checking what it sees.

    Every process notes in shared memory what it was told to be done, so that all others know what must be there.

    Parameters
    ----------
    path : path-like
    writers : int
        The last of them is killed again and again.
    """

    NEWEST, ADDED, MOVED, FILLED, COLUMNS = range(5)    # what a writer has done

    def __init__(self, path, writers):
        self.path = path
        self.writers = writers
        self.cells = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self.done = [self.cells[8 * (w + 1):8 * (w + 1) + self.COLUMNS] for w in range(writers)]
        self.seen = {}

    end = property(lambda self: self.cells[0])
    pause = property(lambda self: self.cells[1])

    def column(self, column):
        """What each writer has done of one kind."""
        return [self.done[w][column] for w in range(self.writers)]

    # .. those that change the file

    def write(self, me, victim=False):
        """Change the file in every way until the end; now and then by a new handle."""
        rng = random.Random(os.getpid())
        while not self.end:
            wait_until(lambda: not self.pause or self.end)
            with mmapdict.open(self.path, "a", durable=rng.random() < 0.02) as d:
                if victim:
                    self.catch_up(d, me)
                for _ in range(rng.randrange(300)):
                    if self.pause or self.end:
                        break
                    rng.choice([self.store, self.add, self.fill, self.store if victim else self.move])(d, me)

    def catch_up(self, d, me):
        """Take note of what was done, though nobody heard of it, when this writer was killed."""
        done = self.done[me]
        for column, now in ((self.NEWEST, max((k[2] for k in d if k[:2] == ("array", me)), default=0)),
                            (self.ADDED, d.get(("part", me), 0)), (self.FILLED, d.get(("filled", me), 0))):
            assert done[column] <= now <= done[column] + 1, (column, now, done[column])
            done[column] = now
        for key in list(d):
            if key[0] == "hole" and key[1] == me and key[2] > done[self.FILLED]:
                del d[key]              # it was made, and perhaps not filled

    def store(self, d, me):
        n = self.done[me][self.NEWEST] + 1
        d["array", me, n] = np.full(n % 300, n)
        self.done[me][self.NEWEST] = n
        d.pop(("array", me, n - KEEP), None)

    def add(self, d, me):
        """Read, change and write, in two keys at once."""
        with d.batch():
            d["total"] = d["total"] + 1
            d["part", me] = d.get(("part", me), 0) + 1
        self.done[me][self.ADDED] += 1

    def move(self, d, me):
        """Take a number that only one can get, and give it back."""
        token = d.pop("token", None)
        if token is not None:
            d["token"] = token + 1
            self.done[me][self.MOVED] += 1

    def fill(self, d, me):
        n = self.done[me][self.FILLED] + 1
        d.create(("hole", me, n), WIDTH, "u1")[:] = n % 255 + 1
        d["filled", me] = n
        self.done[me][self.FILLED] = n
        d.pop(("hole", me, n - KEEP), None)

    def vacuum(self):
        """Vacuum now and then; it works only while nobody else could write."""
        while not self.end:
            time.sleep(VACUUM_S)
            self.cells[1] = 1
            while not self.end:
                try:
                    with mmapdict.open(self.path, "r+", timeout=1) as d:
                        d.vacuum()
                    self.cells[2] += 1
                    break
                except BusyError:
                    self.cells[3] += 1
                    time.sleep(0.001)
            self.cells[1] = 0

    def kill(self, me):
        """Let a writer work, kill it, and so on."""
        while not self.end:
            pid = fork(self.write, me, True)
            time.sleep(random.random() * 0.1)
            os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code == -signal.SIGKILL or code == 0 and self.end, code
            self.cells[4] += 1

    # .. those that look

    def load(self):
        while not self.end:
            told = self.told()
            self.check(plain(self.path), told)

    def read(self):
        """Follow the file, and keep arrays of it for a while."""
        kept = []
        with mmapdict.open(self.path, "r") as r:
            while not self.end:
                told = self.told()
                found = dict(r.items())
                self.check(found, told)
                kept = kept[-50:] + [(key, value) for key, value in found.items() if key[0] == "array"][:5]
                for (_, _, n), value in kept:
                    assert (value == n).all()
                r.wait(0.01)
                assert r.get("total", 0) >= sum(told[self.ADDED])

    def told(self):
        return [self.column(column) for column in range(self.COLUMNS)]

    def check(self, found, told):
        """Compare what was found with what had been told before the look began."""
        assert found["total"] == sum(found.get(("part", w), 0) for w in range(self.writers)), "half a batch"
        newest = [0] * self.writers
        for key, value in found.items():
            if key[0] == "array":
                assert value.shape == (key[2] % 300,) and (value == key[2]).all(), key
                newest[key[1]] = max(newest[key[1]], key[2])
            elif key[0] == "hole":
                n = key[2] % 255 + 1
                assert value.shape == (WIDTH,) and value.dtype == "u1" and ((value == 0) | (value == n)).all(), key
                # A load reads a hole's elements before the mark that says that they are set; a map shows them now.
                filled = told[self.FILLED][key[1]] if type(value) is np.ndarray else found.get(("filled", key[1]), 0)
                assert key[2] > filled or (value == n).all(), key
        now = {self.NEWEST: newest, self.ADDED: [found.get(("part", w), 0) for w in range(self.writers)],
               self.FILLED: [found.get(("filled", w), 0) for w in range(self.writers)]}
        for column, values in now.items():
            for w, value in enumerate(values):
                assert value >= told[column][w], f"writer {w} was told that {column} was done: {told[column][w]}"
                assert value >= self.seen.get((column, w), 0), f"{column} of writer {w} went back"
                self.seen[column, w] = value
        self.cells[5] += 1

    # .. all of it

    def run(self, readers, loaders, seconds):
        with mmapdict.open(self.path, "x") as d:
            d["total"], d["token"] = 0, 0
        patience = round(seconds) + 60
        victim = self.writers - 1
        pids = [*(fork(self.write, w, patience=patience) for w in range(victim)),
                fork(self.kill, victim, patience=patience), fork(self.vacuum, patience=patience),
                *(fork(self.read, patience=patience) for _ in range(readers)),
                *(fork(self.load, patience=patience) for _ in range(loaders))]
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline and not any(
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids):
                time.sleep(0.01)
        finally:
            self.cells[0] = 1
            join(*pids)
        with mmapdict.open(self.path, "r+") as d:
            self.catch_up(d, victim)
        found = plain(self.path)
        self.check(found, self.told())
        now = [found.get(("part", w), 0) for w in range(self.writers)]
        assert now == self.column(self.ADDED) and found["token"] == sum(self.column(self.MOVED))
        return {"changes": sum(map(sum, self.told())), "vacuums": self.cells[2], "busy": self.cells[3],
                "kills": self.cells[4], "looks": self.cells[5], "size": os.path.getsize(self.path)}


@pytest.mark.parametrize("writers, readers, seconds", [
    (3, 2, 3), pytest.param(5, 4, 60 * BUDGET, marks=pytest.mark.slow)], ids=["short", "long"])
def test_many_writers_readers_and_loaders_lose_nothing(path, writers, readers, seconds):
    counts = Traffic(path, writers).run(readers, 1, seconds)
    print(counts)
    assert counts["changes"] and counts["looks"] and counts["kills"] and counts["vacuums"]


# --- one holds the lock ----------------------------------------------------------------------------------------------

HOLDER = """
d = mmapdict.open(path, "a")
with d.batch():
    d["a"], d["new"] = "changed", np.arange(1000)
    del d["b"]
    tell("inside")
    hear()
tell("done")
hear()
d.close()
"""


@pytest.fixture
def held(path):
    """A file, and a process that is inside a batch of changes to it."""
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"], d["c"] = 1, 2, np.arange(3)
    with Child(path, HOLDER) as holder:
        assert holder.hear() == "inside"
        yield holder


def same(mapping, **expected):
    return mapping.keys() == expected.keys() and all(np.array_equal(mapping[key], expected[key]) for key in expected)


def test_nobody_sees_a_batch_before_its_end(path, held):
    with mmapdict.open(path, "r") as r, mmapdict.open(path, "a") as d:
        for mapping in r, d, plain(path):
            assert same(mapping, a=1, b=2, c=[0, 1, 2])
        assert not r.wait(0)
        held.tell("go on")
        assert r.wait(60)
        for mapping in r, d, plain(path):
            assert same(mapping, a="changed", c=[0, 1, 2], new=np.arange(1000))
        assert held.hear() == "done"
        held.tell("end")
        held.finish()


def test_the_batch_of_a_killed_process_never_happened_and_who_waited_goes_on(path, held):
    with mmapdict.open(path, "a") as d, mmapdict.open(path, "r") as r, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(d.__setitem__, "next", 1)
        time.sleep(0.05)                        # nothing tells that a thread waits for a lock
        assert not waiting.done() and list(r) == ["a", "b", "c"]
        held.kill()
        waiting.result()
        for mapping in r, d, plain(path):
            assert same(mapping, a=1, b=2, c=[0, 1, 2], next=1)


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_who_waits_for_too_long_gets_a_busy_error_and_may_try_again(path, held, timeout):
    with mmapdict.open(path, "a", timeout=timeout) as d:
        for change in (lambda: d.update(x=1), lambda: d.pop("a"), d.clear, lambda: d.create("h", 3), d.popitem,
                       lambda: d.setdefault("x", 1), d.batch().__enter__, d.vacuum, d.seal):
            with pytest.raises(BusyError) as told:
                change()
            assert isinstance(told.value, OSError) and str(path) in str(told.value)
            assert str(held.process.pid) in str(told.value)
        with pytest.raises(BusyError):
            mmapdict.open(path, "w", timeout=timeout)
        assert same(d, a=1, b=2, c=[0, 1, 2])
        held.tell("go on")
        assert held.hear() == "done"
        d["x"] = 1
        with d.batch():
            d["y"] = 2
        assert same(plain(path), a="changed", c=[0, 1, 2], new=np.arange(1000), x=1, y=2)


def test_a_timeout_says_how_long_at_most_and_nothing_waits_without_need(path):
    for timeout in 0, 5, 1e9, float("inf"), None:
        with mmapdict.open(path, "a", timeout=timeout) as d, mmapdict.open(path, "a", timeout=timeout) as other:
            d["a"] = timeout
            other["b"] = timeout
            assert d["b"] == other["a"] == timeout
    for timeout in -1, float("nan"), "1", True:
        with pytest.raises((ValueError, TypeError)):
            mmapdict.open(path, "a", timeout=timeout)


def test_one_thread_with_two_handles_does_not_wait_for_itself(path):
    link = path.parent / "link"
    link.symlink_to(path)
    with mmapdict.open(path, "a") as d, mmapdict.open(link, "a") as other, mmapdict.open(path, "r") as r:
        d["a"] = 1
        os.link(path, path.parent / "hard")
        with mmapdict.open(path.parent / "hard", "a") as third:
            with d.batch():
                d["a"] = 2
                for handle in other, third:
                    with pytest.raises(BusyError):
                        handle["b"] = 1
                    with pytest.raises(BusyError), handle.batch():
                        pass
                    assert handle["a"] == r["a"] == 1 and d["a"] == 2
            other["b"], third["c"] = 1, 1
            for mapping in d, other, third, r, plain(path):
                assert same(mapping, a=2, b=1, c=1)


@pytest.mark.parametrize("handles", [1, 3], ids=["one handle", "several handles"])
def test_threads_lose_no_update_in_batches(path, handles):
    opened = [mmapdict.open(path, "a") for _ in range(handles)]
    opened[0]["total"] = 0
    start = threading.Barrier(8)

    def work(me):
        d = opened[me % handles]
        start.wait()
        for n in range(30):
            with d.batch():
                d["total"] += 1
                d["part", me] = n + 1
                if n % 5 == 4:
                    del d["part", me]
            if n % 7 == me % 7:
                with pytest.raises(ZeroDivisionError), d.batch():
                    d["total"] = -1
                    d["part", me] = 1 // 0

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, me) for me in range(8)]:
            future.result()
    for mapping in *opened, plain(path):
        assert mapping["total"] == 240 and list(mapping) == ["total"]
    for d in opened:
        d.close()


# --- fork ------------------------------------------------------------------------------------------------------------

def test_a_child_forked_inside_a_batch_is_not_in_it(path):
    with mmapdict.open(path, "a") as d:
        d["a"] = 1
        looked = os.pipe()

        def child():
            assert d["a"] == 1 and list(d) == ["a"]
            with pytest.raises(BusyError), mmapdict.open(path, "a", timeout=0) as own:
                own["b"] = 1                    # the parent has the lock
            os.write(looked[1], b"1")
            d["child"] = 1                      # waits until the parent's batch is over

        with d.batch():
            d["a"], d["parent"] = 2, 2
            pid = fork(child)
            os.close(looked[1])
            assert os.read(looked[0], 1)        # nothing, if the child died before
            time.sleep(0.05)                    # nothing tells that a process waits for a lock
            assert list(plain(path)) == ["a"]
        join(pid)
        os.close(looked[0])
        assert same(d, a=2, parent=2, child=1) and same(plain(path), a=2, parent=2, child=1)


def test_a_child_that_leaves_the_block_of_its_parents_batch_changes_nothing(path):
    with mmapdict.open(path, "a") as d:
        d["a"] = 1
        batch = d.batch()

        def child():
            with pytest.raises(BusyError):
                batch.__exit__(None, None, None)
            assert d["a"] == 1 and list(plain(path)) == ["a"]

        with batch:
            d["a"], d["b"] = 2, np.arange(5)
            in_fork(child)
            assert d["a"] == 2 and d["b"][4] == 4
        for mapping in d, plain(path):
            assert same(mapping, a=2, b=np.arange(5))


# --- vacuum ----------------------------------------------------------------------------------------------------------

def test_vacuum_waits_for_nobody_who_could_still_write(path):
    code = """
d = mmapdict.open(path, "r+")
array = d["a"]
tell("open"); hear()
d.close()
tell("closed"); hear()
array[0] = 7
del array
tell("gone"); hear()
"""
    with mmapdict.open(path, "x") as d:
        for n in range(100):
            d["a"] = np.arange(1000)
        with Child(path, code) as child, mmapdict.open(path, "r") as r:
            array, copy = r["a"], plain(path)["a"]
            for what in "open", "closed":       # the handle is, then only an array
                assert child.hear() == what
                with pytest.raises(BusyError) as told:
                    d.vacuum()
                assert str(child.process.pid) in str(told.value)
                assert (d["a"] == copy).all() and plain(path).keys() == {"a"}
                child.tell("go on")
            assert child.hear() == "gone"
            size = path.stat().st_size
            assert d.vacuum() > 0 and path.stat().st_size < size / 50
            d["a"][1] = 8
            assert array[:2].tolist() == [7, 1] and r["a"][:2].tolist() == [7, 8] == plain(path)["a"][:2].tolist()
            mine = d["a"]
            with pytest.raises(BusyError):
                d.vacuum()                      # it could be written to
            del mine
            d.vacuum()
            child.tell("end")
            child.finish()


def test_a_forked_child_that_has_a_writable_handle_keeps_vacuum_away(path):
    with mmapdict.open(path, "x") as d:
        d["a"] = 1
        d["a"] = np.arange(3)
        ready, told = os.pipe()
        wait, go = os.pipe()

        def child():
            os.close(go)
            os.write(told, b"x")
            os.read(wait, 1)

        pid = fork(child)
        os.read(ready, 1)
        with pytest.raises(BusyError):
            d.vacuum()
        os.close(go)
        join(pid)
        d.vacuum()
        assert same(d, a=[0, 1, 2]) and same(plain(path), a=[0, 1, 2])
        for descriptor in ready, told, wait:
            os.close(descriptor)


def test_a_file_with_two_names_is_not_vacuumed_and_one_behind_a_link_is(path):
    link, hard = path.parent / "link", path.parent / "hard"
    link.symlink_to(path)
    with mmapdict.open(link, "a") as d, mmapdict.open(path, "r") as r:
        d["a"] = np.arange(1000)
        d["a"] = 1
        os.link(path, hard)
        with pytest.raises(BusyError) as told:
            d.vacuum()
        assert "hard" in str(told.value)
        hard.unlink()
        d.vacuum()
        assert link.is_symlink() and not path.is_symlink() and path.stat().st_size < 1000
        d["b"] = 2
        for mapping in d, r, plain(path), plain(link):
            assert same(mapping, a=1, b=2)
