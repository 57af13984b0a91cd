"""Real processes at one file: viewers, writers taking turns, forks, threads, replaced files.

Writers that are killed are in test_kill.py, all kinds of them at once in test_many.py.
"""

import contextlib
import fcntl
import itertools
import multiprocessing
import os
import pathlib
import signal
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mmapdict
from budget import slow_examples
from children import WITHOUT_MMAPDICT, Child, descriptors, fork, in_fork, join, run, wait_until
from mmapdict import Change, ClosedError, FormatError, store
from mmapdict import format as fmt
from judge import plain

# These tests are about many processes, most of them forked from the test's own.
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Gate:
    """Lets forked processes wait for each other: a pipe that its last writer closes."""

    def __init__(self):
        self.read, self.write = os.pipe()

    def open(self):
        os.close(self.write)
        os.close(self.read)

    def wait(self):
        """Wait, in a child, until `open` was called in the parent."""
        os.close(self.write)
        os.read(self.read, 1)
        os.close(self.read)


# --- a viewer beside a capture ---------------------------------------------------------------------------------------

VIEWER = """
with mmapdict.open(path, "r") as d:
    tell("open", len(d))
    while True:
        word, *rest = hear().split()
        if word == "wait":
            tell(d.wait(float(rest[0])))
        elif word == "list":
            tell(list(d))
        elif word == "seen":
            tell(int((d[rest[0]] != 0).sum()), "of", d[rest[0]].size)
        elif word == "keep":
            kept = d[rest[0]]
            tell(kept.shape)
        elif word == "kept":
            tell(kept.tolist())
        elif word == "value":
            tell(d.get(rest[0]))
        elif word == "end":
            break
"""


def test_a_viewer_follows_a_capture(path):
    with mmapdict.open(path, "x") as d, Child(path, VIEWER) as viewer:
        def ask(question):
            viewer.tell(question)
            return viewer.hear()

        assert viewer.hear() == "open 0"
        assert ask("wait 0") == ask("wait 0.01") == "False"
        frame = d.create("frame", (5, 4), "u2")
        assert ask("wait 60") == "True" and ask("wait 0") == "False"
        assert ask("list") == "['frame']" and ask("seen frame") == "0 of 20"
        assert ask("keep frame") == "(5, 4)"
        for line in range(5):
            frame[line] = line + 1
            assert ask("seen frame") == f"{4 * line + 4} of 20"
        assert ask("wait 0") == "False"         # elements are no commits
        assert ask("kept") == str([[n] * 4 for n in range(1, 6)])
        d["meta"] = {"exposure": 0.1}
        assert ask("value meta") == "{'exposure': 0.1}" and ask("wait 60") == "True"
        d["meta"] = {"exposure": 0.2}
        assert ask("value meta") == "{'exposure': 0.2}" and ask("list") == "['frame', 'meta']"
        del d["frame"]
        assert ask("value frame") == "None" and ask("list") == "['meta']" and ask("wait 60") == "True"
        d["frame"] = np.ones(3)
        assert ask("seen frame") == "3 of 3" and ask("wait 60") == "True"
        assert ask("kept") == str([[n] * 4 for n in range(1, 6)])
        d.clear()
        assert ask("list") == "[]" and ask("wait 60") == "True" and ask("wait 0") == "False"
        viewer.tell("end")
        viewer.finish()


def test_a_waiting_viewer_is_woken_by_each_kind_of_change(path):
    code = """
with mmapdict.open(path, "r") as d:
    changes = d.watch(timeout=60)
    tell("ready")
    for change in changes:
        tell(list(change))
        if "end" in change.added:
            break
"""
    with mmapdict.open(path, "x") as d, Child(path, code) as viewer:
        assert viewer.hear() == "ready"

        def hear():
            return eval(viewer.hear())

        d["a"] = 1
        assert hear() == [["a"], [], []]
        d["a"] = 2
        assert hear() == [[], ["a"], []]
        d.create(("h", 0), 3)
        assert hear() == [[("h", 0)], [], []]
        d.pop("a")
        assert hear() == [[], [], ["a"]]
        d.clear()
        assert hear() == [[], [], [("h", 0)]]
        with mmapdict.open(path, "w") as w:
            w["new"] = 1
            assert hear() == [["new"], [], []]
            w["end"] = 1
        assert hear() == [["end"], [], []]
        viewer.finish()


def test_wait_and_its_timeouts(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        assert not r.wait(0) and not r.wait(-1) and not r.wait(0.002)
        d["a"] = 1
        assert r.wait(0) and not r.wait(0) and d.wait(0) and not d.wait(0)
        commit = r.commit
        d["a"] = 2
        assert "a" in r and r.commit == commit + 1
        assert r.wait(0) and not r.wait(0)      # to look is not to wait
        with pytest.raises(KeyError):
            del d["b"]
        d.pop("b", None)
        assert r.commit == commit + 1 and not r.wait(0)
        thread = threading.Timer(0.02, d.update, [{"c": 1}])
        thread.start()
        assert r.wait()
        thread.join()


def test_wait_tells_of_a_file_that_took_the_place_even_at_an_equal_commit(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"] = 1
        assert r.wait(0)
        with mmapdict.open(path, "w") as w:
            w["b"] = 1
            assert w.commit == 1
            assert r.wait(60) and list(r) == ["b"] and not r.wait(0)
        with mmapdict.open(path.parent / "other", "x") as other:
            other["c"] = 1
            os.replace(path.parent / "other", path)
            assert r.wait(60) and list(r) == ["c"] and not r.wait(0.3)


def test_several_watchers_at_one_handle_each_see_everything(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        changes = r.watch(0), r.watch(0)
        for one in changes:
            assert list(one) == []
        seen = {}

        def follow(number, watcher):
            seen[number] = []
            for change in watcher:
                seen[number] += change.added
                if "end" in change.added:
                    return

        threads = [threading.Thread(target=follow, args=[n, r.watch(60)]) for n in range(3)]
        for thread in threads:
            thread.start()
        for n in range(20):
            d[n] = n
        d["end"] = 1
        for thread in threads:
            thread.join()
        for names in seen.values():
            assert names == [*range(20), "end"]


def test_watch_tells_each_change_once_and_ends_after_its_timeout(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"], d["b"] = 1, 2
        watcher = r.watch(0.3)
        thread = threading.Timer(0.05, d.update, [{"c": 3, "a": 4}])
        thread.start()
        changes = list(watcher)
        thread.join()
        assert [k for c in changes for k in c.added] == ["c"] and [k for c in changes for k in c.replaced] == ["a"]
        assert all(type(c) is Change and not c.removed for c in changes) and list(r.watch(0)) == []
        watcher = r.watch(60)
        d.close()
        r.close()
        with pytest.raises(ClosedError):
            next(watcher)


def test_close_ends_a_wait_in_another_thread(path):
    mmapdict.open(path, "x").close()
    r = mmapdict.open(path, "r")
    result = []

    def wait():
        try:
            r.wait()
        except ClosedError as exc:
            result.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    r.close()
    thread.join()
    assert len(result) == 1


def test_plain_pickle_load_needs_no_mmapdict_at_any_moment_of_a_capture(path):
    code = """
while hear() == "load":
    d = plain()
    tell(len(d), sum(int(v.sum()) for v in d.values()))
"""
    with mmapdict.open(path, "x") as d, Child(path, code, prelude=WITHOUT_MMAPDICT) as loader:
        for t in range(10):
            frame = d.create(("scan", t), (2, 3, 100), "u2")
            frame[0] = 1
            loader.tell("load")
            assert loader.hear() == f"{t + 1} {600 * t + 300}"
            frame[1] = 1
        loader.tell("end")
        loader.finish()


# --- readers leave no trace ------------------------------------------------------------------------------------------

def test_a_reader_writes_nothing_and_takes_no_lock(path):
    with mmapdict.open(path, "x") as d:
        d["a"], d["v"], d["m"] = np.arange(1000), [1, 2], np.ma.array([1, 2], mask=[0, 1])
        d["gone"] = 1
        del d["gone"]
    before, times = path.read_bytes(), path.stat()
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)        # a writer is at work, and goes on being at work
        output = run(path, """
with mmapdict.open(path, "r") as r:
    tell(r["a"].sum(), r["v"], list(r), len(r), r == plain(), r.wait(0), r.info()["keys"], len(repr(r)) > 0)
    r.flush(), r.sync()
""")
    assert output == "499500 [1, 2] ['a', 'v', 'm'] 3 True False 3 True\n"
    after = path.stat()
    assert path.read_bytes() == before and os.listdir(path.parent) == ["file"]
    for what in "st_mtime_ns", "st_ctime_ns", "st_blocks", "st_size":
        assert getattr(after, what) == getattr(times, what)


def test_reading_needs_nothing_but_read_permission():
    # Not below the test runner's own folder, which is closed to others.
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)
        folder = pathlib.Path(outer) / "folder"
        folder.mkdir()
        path = folder / "file"
        with mmapdict.open(path, "x") as d:
            d["a"] = np.arange(4)
        path.chmod(0o444)
        folder.chmod(0o555)

        def look():
            if os.getuid() == 0:                # root may do everything
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                if not os.access(outer, os.X_OK):
                    return
            with mmapdict.open(path, "r") as r:
                assert r["a"].sum() == 6 and not r["a"].flags.writeable
            for mode in "r+", "a", "w":
                with pytest.raises(PermissionError):
                    mmapdict.open(path, mode)
            with pytest.raises((PermissionError, FileExistsError)):
                mmapdict.open(path, "x")
            with pytest.raises(PermissionError):
                mmapdict.open(folder / "new", "a")
            assert os.listdir(folder) == ["file"] and plain(path)["a"].sum() == 6

        in_fork(look)
        folder.chmod(0o755)


def test_a_reader_works_while_a_writer_is_inside_a_change(path):
    """The writer stops between its stores: at the odd counter, before and after the publish, before the kill."""
    code = """
from mmapdict import store
class Slow(store.File):
    def store_byte(self, offset, value):
        tell("byte", value); hear()
        super().store_byte(offset, value)
from mmapdict import birth
birth.File = Slow
d = mmapdict.open(path, "r+")
tell("open")
while (word := hear()) != "end":
    exec(word)
    tell("done")
d.close()
"""
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"] = np.arange(3), "old"
    with Child(path, code) as writer, mmapdict.open(path, "r") as r:
        assert writer.hear() == "open"
        writer.tell("d['b'] = 'new'")
        assert writer.hear().startswith("byte")         # it is about to publish
        assert r["b"] == "old" and list(r) == ["a", "b"] and plain(path)["b"] == "old" and len(r) == 2
        writer.tell("go on")
        assert writer.hear().startswith("byte")         # it is about to kill the old one
        assert r["b"] == "new" and len(r) == 2 and dict(r).keys() == plain(path).keys() and plain(path)["b"] == "new"
        assert list(r) == list(plain(path))
        with mmapdict.open(path, "r") as other:
            assert other["b"] == "new" and list(other) == list(plain(path))
        writer.tell("go on")
        assert writer.hear() == "done"
        assert list(r.items())[1] == ("b", "new")
        writer.tell("d.clear()")
        assert writer.hear().startswith("byte")
        assert list(r) == ["a", "b"]
        writer.tell("go on")
        assert writer.hear().startswith("byte")         # published: from here on the file is empty
        assert list(r) == [] == list(plain(path)) and "a" not in r and len(r) == 0
        writer.tell("go on")
        assert writer.hear().startswith("byte")
        assert list(r) == [] == list(plain(path))
        writer.tell("go on")
        assert writer.hear() == "done"
        writer.tell("end")
        writer.finish()


# --- several writers -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["a", "w", "x"])
def test_many_processes_create_the_same_file_at_once(path, mode):
    gate = Gate()
    n = 8

    def create(number):
        gate.wait()
        for round in range(5):
            try:
                with mmapdict.open(f"{path}{round}", mode) as d:
                    d[number] = np.full(10, number)
                    if mode == "a":
                        assert d[number][9] == number
            except FileExistsError:
                assert mode == "x"

    def look():
        """No process ever sees a file that is not whole."""
        gate.wait()
        for round in range(5):
            wait_until(lambda: os.path.exists(f"{path}{round}"))
            for _ in range(20):
                for number, array in plain(f"{path}{round}").items():
                    assert (array == number).all()
                mmapdict.open(f"{path}{round}", "r").close()

    pids = [fork(create, number) for number in range(n)] + [fork(look)]
    gate.open()
    join(*pids)
    for round in range(5):
        keys = sorted(plain(f"{path}{round}"))
        assert keys == list(range(n)) if mode == "a" else len(keys) == 1 if mode == "x" else len(keys) <= n
    assert len(os.listdir(path.parent)) == 5


def test_two_processes_taking_turns_see_each_others_keys(path):
    code = """
with mmapdict.open(path, "a") as d:
    for i in range(10):
        number = int(hear())
        assert list(d)[-1:] == ([("parent", number)] if number else []), list(d)
        d["child", number] = d.pop(("parent", number), None)
        tell(len(d))
"""
    with mmapdict.open(path, "a") as d, Child(path, code) as child:
        for i in range(10):
            if i:
                d["parent", i] = np.full(5, i)
            child.tell(i)
            assert child.hear() == str(i + 1)
            assert list(d) == [("child", n) for n in range(i + 1)]
            assert i == 0 or (d["child", i] == i).all()
        child.finish()


def test_the_lock_dies_with_its_holder(path):
    code = """
d = mmapdict.open(path, "a")
d["a"] = 1
assert d._file.lock()
tell("locked")
hear()
"""
    with Child(path, code) as child, mmapdict.open(path, "a") as d, mmapdict.open(path, "r") as r:
        assert child.hear() == "locked"
        assert d["a"] == r["a"] == 1 and plain(path) == {"a": 1}
        writing = threading.Thread(target=d.__setitem__, args=["b", 2])
        writing.start()
        writing.join(0.05)                      # nothing tells that a thread waits for a lock
        assert writing.is_alive() and list(r) == ["a"]
        child.kill()
        writing.join()
        assert plain(path) == r == {"a": 1, "b": 2}


def test_a_stopped_writer_does_not_stop_readers(path):
    """Not even between two stores: here it is stopped for good, wherever it is."""
    def write():
        with mmapdict.open(path, "a") as d:
            for i in range(10**6):
                d[i % 50] = i

    mmapdict.open(path, "x").close()
    pid = fork(write)
    try:
        with mmapdict.open(path, "r") as r:
            wait_until(lambda: len(r) == 50)
            for _ in range(30):
                os.kill(pid, signal.SIGSTOP)
                loaded = plain(path)
                assert r == loaded and list(r) == list(loaded) and len(r) == 50
                with mmapdict.open(path, "r") as other:
                    assert other == loaded
                os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# --- files that are replaced, deleted, linked ------------------------------------------------------------------------

def test_readers_and_writers_follow_a_file_that_mode_w_replaces(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r, Child(path, VIEWER) as viewer:
        def ask(question):
            viewer.tell(question)
            return viewer.hear()

        d["a"], d["old"] = np.arange(1000), 1
        viewer.hear()
        assert ask("keep a") == "(1000,)"
        mine, read_only = d["a"], r["a"]
        before = descriptors()
        for round in range(12):
            run_in_fork = fork(lambda: mmapdict.open(path, "w").close() or mmapdict.open(path, "r+").update(new=round))
            join(run_in_fork)
            assert list(r) == ["new"] and r["new"] == round and "old" not in r and len(r) == 1
            assert ask("list") == "['new']" and ask("value new") == str(round)
            assert list(d) == ["new"]
            d["mine", round] = [round]
            assert list(r) == list(plain(path)) == ["new", ("mine", round)] and d["mine", round] == [round]
        assert mine[999] == 999 and read_only[999] == 999
        mine[0] = 77                            # into the old file, which nobody can open any more
        assert read_only[0] == 77 and d.get("a") is None
        assert ask("kept") == str([77, *range(1, 1000)])
        assert descriptors() <= before + 2
        viewer.tell("end")
        viewer.finish()
    assert os.listdir(path.parent) == ["file"]


def test_iterators_over_a_replaced_file_do_not_mix_the_two(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"], d["b"] = "old a", "old b"
        for look in iter(r.items()), reversed(r.items()), iter(r.values()), iter(r):
            late = iter(r.items())
            with mmapdict.open(path, "w") as w:
                w["b"], w["c"] = "new b", "new c"
                assert len(r) == 2 and list(late) == [("b", "new b")]
                assert list(look) in ([("b", "new b")], ["new b"], ["a", "b"])
                assert list(r.items()) == list(w.items())
            with mmapdict.open(path, "w") as w:
                w["a"], w["b"] = "old a", "old b"
            assert list(r) == ["a", "b"]


def test_threads_and_processes_at_a_file_that_is_replaced_all_the_time(path):
    mmapdict.open(path, "x").close()
    stop = threading.Event()

    def replace():
        for i in range(60):
            with mmapdict.open(path, "w") as d:
                d["x"] = np.full(1000, i)
                d["y"] = i

    def write():
        with mmapdict.open(path, "a") as d:
            while not stop.is_set():
                d["w"] = [1]
                assert d.get("w", [1]) == [1] and len(d) <= 3

    def read():
        with mmapdict.open(path, "r") as d:
            while not stop.is_set():
                for key, value in list(d.items()):
                    assert key in ("x", "y", "w")
                    assert key != "x" or (value == value[0]).all()
                assert len(repr(d)) and set(d.copy()) <= {"x", "y", "w"}
                assert d.get("y", 0) < 120 and len(d.entries()) < 4

    pids = [fork(replace), fork(replace)]
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(f) for f in (write, read, read)]
        try:
            join(*pids)
        finally:
            stop.set()
        for future in futures:
            future.result()
    assert os.listdir(path.parent) == ["file"]


def test_another_file_that_is_renamed_into_the_place(path):
    other = path.parent / "other"
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"] = np.arange(5)
        array = d["a"]
        assert r.wait(0) and not r.wait(0)
        with mmapdict.open(other, "x") as o:
            o["b"] = "other"
        os.replace(other, path)
        d["c"] = 1                              # a writer notices under the lock
        assert list(d) == ["b", "c"] == list(plain(path)) and array[4] == 4
        assert r.wait(60) and list(r) == ["b", "c"]
        # A file that is none of ours is not touched, and the handle keeps what it has.
        path.unlink()
        path.write_bytes(b"something else")
        with pytest.raises(FormatError):
            d["d"] = 1
        assert list(d) == list(r) == ["b", "c"] and not r.wait(0.3) and path.read_bytes() == b"something else"


def test_a_deleted_file(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"], d["v"] = np.arange(5), [1]
        path.unlink()
        for handle in d, r:
            assert handle["a"].sum() == 10 and handle["v"] == [1] and list(handle) == ["a", "v"] and len(handle) == 2
            assert handle.wait(0) and not handle.wait(0.15) and handle == {"a": np.arange(5), "v": [1]}
        before = descriptors()
        for change in (lambda: d.update(b=1), lambda: d.pop("a"), d.clear, lambda: d.create("h", 3), d.popitem):
            with pytest.raises(FileNotFoundError) as told:
                change()
            assert isinstance(told.value, OSError) and str(path) in str(told.value)
        d["a"][0] = 5
        assert r["a"][0] == 5 and not path.exists() and descriptors() == before
        with mmapdict.open(path, "a") as new:   # it is there again: go on with it
            new["n"] = 1
            d["m"] = 2
            assert list(d) == list(new) == ["n", "m"]
            assert r.wait(60) and list(r) == ["n", "m"]


def test_a_file_that_was_superseded_and_then_deleted(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"] = 1
        assert list(r) == ["a"]
        d["b"] = 2
        mmapdict.open(path, "w").close()
        path.unlink()
        assert list(r) == ["a", "b"] and r["b"] == 2 and "a" in r and len(r) == 2


def test_symbolic_and_hard_links(tmp_path):
    real, link, hard = tmp_path / "real", tmp_path / "link", tmp_path / "hard"
    link.symlink_to("real")
    with mmapdict.open(link, "a") as d:         # through a link that leads nowhere yet
        assert real.is_file() and link.is_symlink()
        d["a"] = np.arange(3)
        os.link(real, hard)
        with mmapdict.open(hard, "a") as h, mmapdict.open(real, "a") as r:
            h["h"], r["r"], d["d"] = 1, 2, 3
            h["a"][0] = 9
            assert list(h) == list(r) == list(d) == list(plain(link)) == ["a", "h", "r", "d"] and d["a"][0] == 9
            with mmapdict.open(link, "w") as w:  # replaces the file, not the link
                assert link.is_symlink() and real.samefile(link) and not hard.samefile(real)
                w["w"] = 1
                d["d"], r["r"] = 1, 1
                assert list(w) == list(d) == list(r) == ["w", "d", "r"]
                h["more"] = 1                   # the old file has a name of its own still
                assert list(h) == list(plain(hard)) == ["a", "h", "r", "d", "more"]
    with mmapdict.open(hard, "r") as h, mmapdict.open(hard, "r+") as again:
        again["again"] = 1
        assert list(h)[-1] == "again"
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for mode in "r", "r+", "a", "w", "x":
        with pytest.raises(OSError):
            mmapdict.open(loop, mode)


# --- fork, spawn -----------------------------------------------------------------------------------------------------

def test_parent_and_forked_child_write_through_the_same_handle(path):
    with mmapdict.open(path, "x") as d:
        d["a"] = np.arange(10)
        array, iterator = d["a"], iter(d.items())

        def child():
            before = descriptors()
            assert d["a"].sum() == 45 and list(d) == ["a"] and next(iterator)[0] == "a"
            array[0] = 5
            d["child"] = {"pid": 1}
            d.create("hole", 3)[1] = 7
            assert list(d) == ["a", "child", "hole"] and descriptors() <= before + 1
            d.close()
            assert array[0] == 5

        in_fork(child)
        assert array[0] == 5 and d["child"] == {"pid": 1} and d["hole"][1] == 7 and next(iterator)[0] == "a"
        d["parent"] = 1
        assert list(d) == list(plain(path)) == ["a", "child", "hole", "parent"]


def test_parent_and_forked_children_write_at_the_same_time(path):
    gate, n, rounds = Gate(), 3, 50
    with mmapdict.open(path, "x") as d:
        def write(who):
            for i in range(rounds):
                d[who, i] = np.full(20, i)
                assert (d[who, i] == i).all()
                d[who] = i

        def child(who):
            gate.wait()
            write(who)

        pids = [fork(child, who) for who in range(n)]
        gate.open()
        write("parent")
        join(*pids)
        keys = {(who, i) for who in (*range(n), "parent") for i in range(rounds)} | {*range(n), "parent"}
        assert set(d) == set(plain(path)) == keys and d == plain(path)


def test_fork_while_another_thread_is_inside_an_operation(path):
    with mmapdict.open(path, "x") as d:
        d["a"] = np.arange(3)
        stop = threading.Event()

        def work():
            while not stop.is_set():
                d["t"] = d.get("t", 0) + 1
                list(d.items())

        def child(number):
            assert d["a"].sum() == 3
            d["child", number] = number
            assert d["child", number] == number

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(25):
                in_fork(child, number)
                d["parent", number] = number
        finally:
            stop.set()
            thread.join()
        keys = {"a", "t"} | {(who, number) for who in ("child", "parent") for number in range(25)}
        assert set(d) == set(plain(path)) == keys


def test_a_child_forked_while_the_lock_is_held_does_not_share_it(path):
    with mmapdict.open(path, "x") as d:
        assert d._file.lock()
        read, told = os.pipe()

        def child():
            os.write(told, b"x")
            d["child"] = 1                      # waits for the parent's lock, and does not give it back
            d.close()

        pid = fork(child)
        os.read(read, 1)
        time.sleep(0.05)                        # nothing tells that a process waits for a lock
        assert list(plain(path)) == []
        d._file.unlock()
        join(pid)
        d["parent"] = 1
        assert list(d) == ["child", "parent"]
        os.close(read)
        os.close(told)


def test_a_closed_and_a_deleted_file_after_fork(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"] = 1
        closed = mmapdict.open(path)
        closed.close()
        path.unlink()

        def child():
            with pytest.raises(ClosedError):
                closed["a"]
            assert r["a"] == 1 and d["a"] == 1 and list(r) == list(d) == ["a"]
            with pytest.raises(FileNotFoundError):
                d["b"] = 1
            mmapdict.open(path).close()
            d["b"] = 1
            assert list(d) == ["b"] == list(plain(path))

        in_fork(child)
        d["c"] = 1
        assert list(d) == ["b", "c"]


def work_on(d, number):
    """In a worker of a pool: the handle came by pickle, or is the parent's own that was inherited."""
    with d:
        d[number] = np.full(100, number)
        return d["a"].sum() + d[number].sum()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_workers_with_a_pickled_handle(path, method):
    with mmapdict.open(path, "x") as d:
        d["a"] = np.arange(10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)     # the test runner's threads do no harm in a child
            pool = multiprocessing.get_context(method).Pool(2)
        with pool:
            totals = pool.starmap(work_on, [(d, n) for n in range(6)])
        assert totals == [45 + 100 * n for n in range(6)]
        assert sorted(k for k in d if k != "a") == list(range(6)) and d == plain(path)


# --- threads ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("handles", [1, 4], ids=["one handle", "several handles"])
def test_threads(path, handles):
    mmapdict.open(path, "x").close()
    open_handles = [mmapdict.open(path, "a") for _ in range(handles)]
    start = threading.Barrier(8)

    def work(number):
        d = open_handles[number % handles]
        start.wait()
        for i in range(40):
            d[number, i] = np.full(20, i)
            assert (d[number, i] == i).all()
            d["shared"] = [number, i]
            assert len(d["shared"]) == 2
            if i % 4 == 0:
                assert d.pop((number, i))[3] == i
                with pytest.raises(KeyError):
                    d[number, i]
            if i % 5 == 0:
                hole = d.create(("hole", number, i), (50, 50), "u1")
                hole[:] = number + 1
                assert (d["hole", number, i] == number + 1).all()
            if i % 10 == 0:
                for key, value in d.items():
                    assert key[0] != "hole" or value.shape == (50, 50)
                assert len(list(d)) and len(repr(d)) and len(d) and d.commit

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, number) for number in range(8)]:
            future.result()
    loaded = plain(path)
    expected = {(n, i) for n in range(8) for i in range(40) if i % 4} | {"shared"}
    expected |= {("hole", n, i) for n in range(8) for i in range(0, 40, 5)}
    assert set(loaded) == expected
    for d in open_handles:
        assert set(d) == expected and d == loaded and len(d) == len(expected)
        d.close()


def test_threads_that_make_holes_and_fill_them_at_the_same_time(path):
    with mmapdict.open(path, "x") as d, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: d.create(i, (1000,), "i4").fill(i), range(200)))
        assert sorted(d) == list(range(200))
        for loaded in d, plain(path):
            assert all((loaded[i] == i).all() for i in range(200))


def test_close_while_other_threads_work(path):
    """They get a ClosedError, whatever they were doing, and no descriptor is used after it was closed."""
    for round in range(15):
        d = mmapdict.open(path, "a")
        d["a"], d["v"] = np.arange(100), [1] * 100
        working = threading.Barrier(4)

        def work():
            working.wait()
            try:
                while True:
                    assert d["a"].sum() == 4950 and d["v"] and len(list(d.items())) >= 2
                    d["w"] = round
                    d.pop("x", d.setdefault("y", 1))
                    d.wait(0)
            except ClosedError:
                pass

        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(work) for _ in range(3)]
            working.wait()
            for _ in range(round):
                d["a"]
                d["z"] = 1
            d.close()
            for future in futures:
                future.result()
        assert plain(path)["v"] == [1] * 100


def test_a_killed_parent_with_a_living_child_does_not_keep_the_lock(path):
    """A forked child has the parent's descriptor of the lock, and would keep it locked for as long as it lives."""
    mmapdict.open(path, "x").close()
    with Child(path, """
d = mmapdict.open(path, "r+")
ready, go = os.pipe()
if not (child := os.fork()):
    os.close(go)
    tell("child", os.getpid())
    os.read(ready, 1)                   # until the parent is gone and the test says so
    hear()
    os._exit(0)
os.close(ready)
hear()
d._file.lock()
tell("locked")
time.sleep(100)
""") as parent:
        orphan = int(parent.hear().split()[1])
        parent.tell("lock it")
        assert parent.hear() == "locked"
        parent.process.kill()
        parent.process.wait()
        os.kill(orphan, 0)              # it lives
        with mmapdict.open(path, "r+") as d:
            d["a"] = 1
        assert plain(path) == {"a": 1}
        os.kill(orphan, signal.SIGKILL)


# --- another program ------------------------------------------------------------------------------------------------

@pytest.mark.leaves_damaged_file
def test_a_file_that_was_turned_into_another_version_is_not_written(path):
    with mmapdict.open(path, "x") as d:
        d["a"] = 1
        version = fmt.VERSION_OFFSET >> 3
        d._file.cells[version] = fmt.VERSION + 1                # by another program, under the lock
        d._file.cells[fmt.COMMIT_OFFSET >> 3] += 2
        before = path.read_bytes()
        for change in (lambda: d.__setitem__("b", 2), lambda: d.__delitem__("a"), d.clear):
            with pytest.raises(FormatError, match="was turned into format version 2 by another program"):
                change()
        assert path.read_bytes() == before
        d._file.cells[version] = fmt.VERSION
        d["b"] = 2
        assert plain(path) == {"a": 1, "b": 2}


@pytest.mark.parametrize("batch", [False, True])
def test_memo_indices_that_are_used_up_are_an_error_and_nothing_happens(path, monkeypatch, batch):
    shared = [[1]] * 2                                          # the second one is fetched from the memo
    with mmapdict.open(path, "x") as d:
        d["a"] = shared
        monkeypatch.setattr(fmt, "MEMO_END", fmt.MEMO_START + 1)        # else it takes a file of 20 GB
        with pytest.raises(OverflowError, match="no memo indices left; copy its items into a new file"):
            with d.batch() if batch else contextlib.nullcontext():
                d["b"] = shared
        d["c"] = 3                                              # needs none
        assert plain(path) == {"a": shared, "c": 3}


# --- how it is waited -----------------------------------------------------------------------------------------------

def test_waiting_does_not_end_by_itself(path, monkeypatch):
    """The loop over the delays has no other end than the change, or the timeout."""
    assert all(0 < delay < 1 for delay in itertools.islice(store.poll_delays(), 10_000))
    with mmapdict.open(path, "x") as d:
        monkeypatch.setattr(store, "poll_delays", lambda: iter([0.0001] * 3))
        assert d.wait(0) is False


# --- arrays that grow, and logs ---------------------------------------------------------------------------------------

WIDTH = 12


def numbered(number, first, n):
    """Rows that can be told from parts of others."""
    rows = np.empty((n, WIDTH), "i8")
    rows[:, 0], rows[:, 1] = number, np.arange(first, first + n)
    rows[:, 2:] = (rows[:, 0] * 1_000_003 + rows[:, 1])[:, None]
    return rows


def whole(rows):
    return bool((rows[:, 2:] == (rows[:, 0] * 1_000_003 + rows[:, 1])[:, None]).all())


def change_length(path, number, steps):
    """Add rows, take some away, give room back: the array moves many times."""
    rng = np.random.default_rng(number)
    with mmapdict.open(path) as d:
        for i in range(steps):
            with d.exclusive() if i % 3 == 0 else contextlib.nullcontext():
                n, kind = int(rng.integers(1, 30)), rng.choice(["append", "extend", "fewer", "zeros", "trim"])
                if kind == "append":
                    d.append("rows", numbered(number, i, n))
                elif kind == "extend":
                    with d.extend("rows", n) as rows:
                        rows[...] = numbered(number, i, n)
                elif kind == "fewer":
                    d.resize("rows", max(0, len(d["rows"]) - 2 * n))
                elif kind == "zeros":
                    d.resize("rows", len(d["rows"]) + n)
                else:
                    d.trim("rows")
    with mmapdict.open(path) as d:
        d["done", number] = True


def watch_length(path, load, writers):
    """See whole rows until the writers are done; arrays that were seen stay what they were."""
    held, seen = [], set()
    with mmapdict.open(path, "r") as d:
        while not all(("done", number) in d for number in range(writers)):
            rows = plain(path)["rows"] if load else d["rows"]
            assert whole(rows)
            seen.add(len(rows))
            if len(held) < 100:
                held.append((rows, rows.copy()))
        assert len(d["rows"]) == len(plain(path)["rows"])
    assert all((rows == copy).all() for rows, copy in held) and len(seen) > 1


@pytest.mark.parametrize("steps", [250, pytest.param(slow_examples(20_000), marks=pytest.mark.slow)])
def test_readers_see_whole_rows_of_an_array_that_changes_its_length_and_place(path, steps):
    with mmapdict.open(path, "x") as d:
        d.create_growable("rows", WIDTH, "i8")
        place = d.entry("rows").record
    patience = 60 + steps // 10
    join(*(fork(watch_length, path, load, 2, patience=patience) for load in (False, True)),
         *(fork(change_length, path, number, steps, patience=patience) for number in range(2)))
    with mmapdict.open(path, "r") as d:
        assert whole(d["rows"]) and d.entry("rows").record != place
        assert d.free_bytes > 20 * d.entry("rows").record_nbytes, "it has hardly moved"


def log_into_groups(path, number, n):
    """Log into a group of its own, and into one that all have."""
    with mmapdict.Log(path, ("group", number)) as own, mmapdict.Log(own.d, "shared") as shared:
        for i in range(n):
            values = {"i": i, "rank": number, "check": number * 1_000_003 + i, "text": f"{number} {i}"}
            own.add(values if i < n // 2 else {**values, "late": float(i)})
            shared.add(values)


def check_group(rows, first):
    """The rows of one group from one on."""
    i = np.arange(first, first + len(rows["i"]))
    assert (rows["i"] == i).all() and (rows["check"] == rows["rank"] * 1_000_003 + i).all()
    assert rows["text"].tolist() == [f"{rank} {n}" for rank, n in zip(rows["rank"].tolist(), i.tolist())]
    late = rows.get("late", np.full(len(i), np.nan))
    assert all(np.isnan(late) | (late == i))
    return len(i)


def follow_group(path, number, n):
    with mmapdict.Log(path, ("group", number), mode="r") as log:
        seen = 0
        for rows in log.follow(timeout=60):
            seen += check_group(rows, seen)
            if seen == n:
                break
    assert seen == n


def load_groups(path, groups, n):
    seen = [0] * groups
    while min(seen) < n:
        loaded = plain(path)
        for number in range(groups):
            if ("group", number) in loaded:
                now = check_group(loaded["group", number], 0)
                assert now >= seen[number]
                seen[number] = now


@pytest.mark.parametrize("n", [150, pytest.param(slow_examples(5000), marks=pytest.mark.slow)])
def test_processes_that_log_into_groups_of_one_file_and_others_that_follow(path, n):
    groups, patience = 3, 60 + n // 10
    mmapdict.open(path, "x").close()
    join(*(fork(follow_group, path, number, n, patience=patience) for number in range(groups)),
         fork(load_groups, path, groups, n, patience=patience),
         *(fork(log_into_groups, path, number, n, patience=patience) for number in range(groups)))
    with mmapdict.Log(path, "shared", mode="r") as shared:
        assert sorted((row["rank"], row["i"]) for row in shared) == list(itertools.product(range(groups), range(n)))
        assert all(row["text"] == f"{row['rank']} {row['i']}" for row in shared)
