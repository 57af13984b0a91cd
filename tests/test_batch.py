"""Batches: several changes that become one."""

import contextlib
import os
import pickle
import threading

import numpy as np
import pytest

import faults
import judge
import mmapdict
from children import in_fork
from mmapdict import BusyError, ClosedError, ReadOnlyError, index, mapping, writer
from operations import ARRAY


def plain(path):
    return pickle.loads(path.read_bytes())


def check(d, expected):
    """The handle, a new one, and plain pickle agree."""
    path = d.path
    items = judge.fingerprint_items(expected)
    judge.assert_same_items(judge.fingerprint_items(d), items, "the handle")
    with mmapdict.open(path, "r") as r:
        judge.assert_same_items(judge.fingerprint_items(r), items, "a new handle")
    with open(path, "rb") as file:
        judge.assert_same_items(judge.fingerprint_items(pickle.load(file)), items, "pickle.load")
    assert mmapdict.verify(path).faults == []


@pytest.fixture
def d(path):
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"], d["c"] = 1, np.arange(3), [2]
        yield d


@pytest.mark.parametrize("durable", [False, True])
def test_all_changes_appear_together(path, durable):
    with mmapdict.open(path, "x", durable=durable) as d, mmapdict.open(path, "r") as r:
        d["a"], d["b"], d["c"] = 1, np.arange(3), [2]
        before = plain(path)
        commit = d.commit
        with d.batch() as inside:
            assert inside is d
            d["a"] = 10
            del d["b"]
            d["d"] = np.arange(4)
            hole = d.create("h", (2, 2), "u1")
            hole[1] = 5
            assert dict(d).keys() == {"a", "c", "d", "h"} and len(d) == 4 and "b" not in d
            assert d["a"] == 10 and d["d"].tolist() == [0, 1, 2, 3] and d["h"].sum() == 10
            assert judge.fingerprint_items(plain(path)) == judge.fingerprint_items(before)
            assert list(r) == ["a", "b", "c"] and d.commit == commit
        assert d.commit > commit
        check(d, {"c": [2], "a": 10, "d": np.arange(4), "h": np.array([[0, 0], [5, 5]], "u1")})
        assert list(r) == list(d)
        hole[0] = 6
        assert r["h"].tolist() == [[6, 6], [5, 5]]


def test_an_exception_leaves_file_and_object_as_they_were(d, path):
    before = path.read_bytes()[:d.info()["used"]]
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            with d.batch():
                d["a"] = 10
                d["new"] = "x" * 10000
                d.clear()
                d["b"] = 1
                raise ZeroDivisionError
    assert path.read_bytes()[:len(before)] == before and d.info()["used"] == len(before)
    check(d, {"a": 1, "b": np.arange(3), "c": [2]})
    d["a"] = 3
    check(d, {"b": np.arange(3), "c": [2], "a": 3})


def test_arrays_of_a_batch_that_failed_keep_their_place(d):
    with pytest.raises(ZeroDivisionError):
        with d.batch():
            hole = d.create("h", 1000, "f8")
            d["x"] = np.arange(10)
            got = d["x"]
            raise ZeroDivisionError
    d["later"] = np.full(5000, 3)
    d.create("hole", 5000)
    hole[:] = 7
    got[:] = 8
    assert hole.sum() == 7000 and got.sum() == 80
    check(d, {"a": 1, "b": np.arange(3), "c": [2], "later": np.full(5000, 3), "hole": np.zeros(5000)})


def test_a_key_several_times_in_one_batch(d):
    with d.batch():
        d["a"] = 10
        d["a"] = np.arange(2)
        d["n"] = 1
        del d["n"]
        del d["b"]
        d["b"] = "again"
        del d["c"]
        d["c"] = 5
        del d["c"]
        assert d.pop("missing", "none") == "none"
        d[1] = "int"
        d[True] = "bool"
        d["k" * 5000] = 1
        del d["k" * 5000]
    check(d, {"a": np.arange(2), "b": "again", 1: "bool"})
    with d.batch():
        d["k" * 5000] = 2
        d["t", "y" * 5000] = 3
    with d.batch():
        del d["k" * 5000], d["t", "y" * 5000]
    check(d, {"a": np.arange(2), "b": "again", 1: "bool"})


def test_clear_and_popitem_inside(d):
    with d.batch():
        assert d.popitem() == ("c", [2])
        d["z"] = 1
        d.clear()
        assert len(d) == 0 and list(d) == []
        with pytest.raises(KeyError):
            d.popitem()
        d["a"] = 2
        del d["a"]
        d["n"] = 3
        assert d.setdefault("n", 4) == 3 and d.setdefault("m", 4) == 4
    check(d, {"n": 3, "m": 4})


def test_a_loader_that_has_run_what_the_batch_deletes_loses_it_again(path):
    """The file as it is after the publish, before any kill."""
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"] = 1, 2
        before = bytearray(path.read_bytes())
        with d.batch():
            del d["a"]
            d["c"] = 3
    after = path.read_bytes()
    half_way = before[:faults.HEADER_SIZE] + after[faults.HEADER_SIZE:]
    for offset, _, live, entry in list(faults.records(after))[:-1]:
        if entry and not live:
            half_way[offset + 1:offset + 2] = b"G"
    assert pickle.loads(half_way) == {"b": 2, "c": 3}
    path.write_bytes(half_way)
    with mmapdict.open(path, "r") as r:
        assert dict(r) == {"b": 2, "c": 3}
    with mmapdict.open(path, "r+") as d:
        d["e"] = 5
        check(d, {"b": 2, "c": 3, "e": 5})


def test_nothing_changes_in_an_empty_batch(d):
    commit, used = d.commit, d.info()["used"]
    with d.batch():
        pass
    assert (d.commit, d.info()["used"]) == (commit, used)


def test_a_batch_in_a_batch_is_refused_and_the_outer_one_goes_on(d):
    with d.batch():
        d["x"] = 1
        with pytest.raises(BusyError, match="batch"):
            with d.batch():
                d["y"] = 1
        for method in d.vacuum, d.seal:
            with pytest.raises(BusyError, match="batch"):
                method()
        d.sync()
        d["z"] = 2
    check(d, {"a": 1, "b": np.arange(3), "c": [2], "x": 1, "z": 2})


def test_a_reader_has_no_batches(d, path):
    with mmapdict.open(path, "r") as r, pytest.raises(ReadOnlyError):
        r.batch().__enter__()


def test_another_handle_of_the_same_thread_does_not_wait_for_ever(d, path):
    with mmapdict.open(path, "r+") as other:
        with d.batch():
            d["x"] = 1
            with pytest.raises(BusyError, match="by another handle's batch"):
                other["y"] = 2
        other["y"] = 2
    check(d, {"a": 1, "b": np.arange(3), "c": [2], "x": 1, "y": 2})


def test_other_threads_wait_until_the_batch_ends(d):
    started, seen = threading.Event(), []

    def other():
        started.set()
        d["late"] = len(d)
        seen.append(list(d))

    thread = threading.Thread(target=other)
    with d.batch():
        d["x"] = 1
        thread.start()
        started.wait(10)
        thread.join(0.05)
        assert thread.is_alive() and not seen
        d["y"] = 2
    thread.join(10)
    assert seen == [["a", "b", "c", "x", "y", "late"]]


def test_close_inside_gives_the_batch_up(path):
    d = mmapdict.open(path, "x")
    d["a"] = 1
    with pytest.raises(ClosedError, match="inside its batch"):
        with d.batch():
            d["b"] = 2
            d.close()
    assert d.closed and plain(path) == {"a": 1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_end_its_parents_batch(d):
    with d.batch():
        d["x"] = 1

        def child():
            assert list(d) == ["a", "b", "c"]
            with pytest.raises(BusyError, match="forked"):
                d._end_batch(d._mutex, True)

        in_fork(lambda: d._mutex.acquire() and child())
        d["y"] = 2
    check(d, {"a": 1, "b": np.arange(3), "c": [2], "x": 1, "y": 2})


def test_a_change_that_is_broken_off_half_way_gives_the_batch_up(d, monkeypatch):
    """As by Ctrl-C: what was written is not what the index knows."""
    def interrupted(self, key):
        raise KeyboardInterrupt

    with pytest.raises(BusyError, match="half way"):
        with d.batch():
            d["x"] = 1
            with monkeypatch.context() as patch:
                patch.setattr(index.Index, "forget", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    d["x"] = 2
    check(d, {"a": 1, "b": np.arange(3), "c": [2]})


def test_an_error_of_a_value_inside_does_not_end_the_batch(d):
    with d.batch():
        d["x"] = 1
        for wrong in (lambda: d.__setitem__("f", lambda: 0), lambda: d.__setitem__([], 1), lambda: d.create("x", 3),
                      lambda: d.__delitem__("missing"), lambda: d.create("y", -1)):
            with pytest.raises((TypeError, ValueError, KeyError, AttributeError, pickle.PicklingError)):
                wrong()
        d["y"] = 2
    check(d, {"a": 1, "b": np.arange(3), "c": [2], "x": 1, "y": 2})


@pytest.mark.parametrize("how", ["before", "part", "after"])
@pytest.mark.parametrize("durable", [False, True])
def test_any_store_of_a_batch_may_fail(tmp_path, monkeypatch, how, durable):
    """Then all of it happened, or nothing, and the handle goes on."""
    fault = faults.Fault(how=how).install(monkeypatch)
    before = {"a": 1, "b": np.arange(3), "c": [2]}
    after = {"c": [2], "a": np.arange(700), "h": np.zeros(600), "d": "text"}
    failed = n = 0
    while n == 0 or fault.raised:
        path = tmp_path / f"{n}"
        with mmapdict.open(path, "x", durable=durable) as d:
            d.update(before)
            fault.at = n
            fault.arm()
            try:
                with d.batch():
                    d["a"] = np.arange(700)
                    d.create("h", 600)
                    del d["b"]
                    d["d"] = "text"
            except OSError:
                failed += 1
            fault.disarm()
            n += 1
            found = judge.fingerprint_items(plain(path))
            # Where a key stands depends on which of the old records are dead by now.
            assert sorted(found) in (sorted(judge.fingerprint_items(before)), sorted(judge.fingerprint_items(after))), n
            judge.assert_same_items(judge.fingerprint_items(d), found, "the handle")
            d["more"] = 1
            assert list(d)[-1] == "more" and len(d) == len(found) + 1
        faults.check_header(path.read_bytes())
        path.unlink()
    assert failed > 15 and n > failed


def test_the_disk_is_full_inside_and_the_batch_goes_on(d, monkeypatch):
    real = type(d._file).write

    def full(self, offset, buffers):
        raise OSError(28, "No space left on device")

    with d.batch():
        d["x"] = 1
        monkeypatch.setattr(type(d._file), "write", full)
        with pytest.raises(OSError):
            d["y"] = np.zeros(100_000)
        monkeypatch.setattr(type(d._file), "write", real)
        d["z"] = 2
    check(d, {"a": 1, "b": np.arange(3), "c": [2], "x": 1, "z": 2})


def test_an_array_that_was_looked_up_before_is_not_the_old_one_inside(d):
    assert d["b"].tolist() == [0, 1, 2]
    with d.batch():
        d["b"] = np.arange(5)
        assert d["b"].tolist() == [0, 1, 2, 3, 4]
        del d["b"]
        with pytest.raises(KeyError):
            d["b"]
    assert "b" not in d and type(mapping.Batch(d)) is mmapdict.Batch


# -- errors that the block catches, and goes on -----------------------------------------------------------------------


@pytest.mark.parametrize("function", ["_note", "_length", "forget", "is_live"])
@pytest.mark.parametrize("operation", [
    lambda d: d.clear(), lambda d: d.pop("a"), lambda d: assign_both(d, "a"), lambda d: assign_both(d, "new")])
def test_an_interrupt_that_the_block_catches_breaks_the_batch_or_did_nothing(path, function, operation, monkeypatch):
    with mmapdict.open(path, "w") as d:
        d.update({"a": ARRAY, "b": 1})
        d.sync()
        interrupted = False
        real = getattr(writer.Writer, function)

        def interrupt(self, *arguments):
            nonlocal interrupted
            interrupted = True
            monkeypatch.undo()
            raise KeyboardInterrupt

        expected = {"a": ARRAY, "b": 1}
        with contextlib.suppress(BusyError), d.batch():
            d["new"] = ARRAY
            monkeypatch.setattr(writer.Writer, function, interrupt)
            try:
                operation(d)
            except KeyboardInterrupt:
                d["more"] = 2
            monkeypatch.setattr(writer.Writer, function, real)
        if not interrupted:
            return
        check(d, expected)
        d["afterwards"] = 3
        check(d, {**expected, "afterwards": 3})


def assign_both(d, key):
    d[key] = ARRAY + 1


def test_what_a_batch_wrote_and_cleared_while_it_waits_is_killed_by_the_next_sync_of_another(path):
    with mmapdict.open(path, "w") as a, mmapdict.open(path, "r+") as b:
        a.update((i, ARRAY) for i in range(100))
        a["a"] = 1
        a.sync()
        with a.batch():
            a["a"] = 2
            a.clear()
        b.sync()
        b["b"] = 1
        assert mmapdict.verify(path).faults == [] and dict(b) == {"b": 1}


def test_a_hole_that_is_made_in_a_batch_of_a_sealed_file_can_be_filled(path):
    with mmapdict.open(path, "w") as d:
        d["a"] = ARRAY
        d.seal()
        with d.batch():
            hole = d.create("hole", 3, "i8")
            hole[...] = 5
            assert not d["a"].flags.writeable
        assert d["hole"].tolist() == [5, 5, 5] and not d.sealed
