"""What is on the disk stays there until its successor is: records that wait, and how they are seen."""

import errno
import io
import os
import pickle

import pytest

import faults
import judge
import mmapdict
from mmapdict import store


def live_entries(path):
    return [r[0] for r in list(faults.records(path.read_bytes()))[:-1] if r[2] and r[3]]


class Interrupted(io.RawIOBase):
    """A file that is read byte by byte; before the byte at offset `at` something happens."""

    def __init__(self, path, at, action):
        super().__init__()
        self.path, self.at, self.action, self.position = path, at, action, 0

    def readable(self):
        return True

    def read(self, n=-1):
        data = b""
        while len(data) < n:
            if self.position >= self.at and self.action:
                self.action()
                self.action = None
            with open(self.path, "rb") as f:
                f.seek(self.position)
                data += f.read(1)
            self.position += 1
        return data


def test_a_synced_value_stays_until_its_successor_is_synced(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"], d["b"] = 1, 2
        d.sync()
        first = d.entry("a").record
        d["a"] = 10
        assert first in live_entries(path)
        second = d.entry("a").record
        d["a"] = 11                     # what took the first one out may be on the disk: the second waits as well
        assert {first, second} <= set(live_entries(path))
        for mapping in d, r, pickle.loads(path.read_bytes()):
            assert dict(mapping) == {"b": 2, "a": 11} and list(mapping) == ["b", "a"]
        assert d.free_bytes > d.info()["dead_bytes"]
        d.sync()
        assert first not in live_entries(path)
        assert len(live_entries(path)) == len(d) == 2 and mmapdict.verify(path).faults == []


@pytest.mark.parametrize("end", ["close", "another handle", "another handle syncs"])
def test_what_waits_is_dead_after_the_last_handle(path, end):
    d = mmapdict.open(path, "x")
    d["a"] = 1
    d.sync()
    d["a"] = 2
    if end == "close":
        d.close()
    else:
        with mmapdict.open(path, "r+") as other:
            other["c"] = 1
            assert len(live_entries(path)) == 3         # it leaves alone what waits
            del other["c"]
            if end == "another handle syncs":
                other.sync()
                assert len(live_entries(path)) == 1
        d.close()
    assert len(live_entries(path)) == 1 and pickle.loads(path.read_bytes()) == {"a": 2}


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_a_loader_that_has_run_a_value_that_waits_loses_it_when_the_key_is_deleted(path, sync, batch):
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"] = "old", 0
        d.sync()
        if batch:
            with d.batch():
                d["a"] = "new"
        else:
            d["a"] = "new"

        def delete():
            if sync:
                d.sync()
            del d["a"]

        found = pickle._Unpickler(Interrupted(path, d.entry("a").record, delete)).load()
    assert found == {"b": 0}


def test_a_deletion_waits_as_well(path):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d["a"], d["b"] = 1, 2
        d.sync()
        d["a"] = 10
        waiting = set(live_entries(path))
        del d["a"]                      # else the death of the second could reach the disk, and that of the first not
        assert set(live_entries(path)) == waiting and mmapdict.verify(path).faults == []
        for mapping in d, r, pickle.loads(path.read_bytes()):
            assert dict(mapping) == {"b": 2}
        assert "a" not in d and len(d) == len(r) == 1
        d.sync()
        assert len(live_entries(path)) == 1


def test_a_deletion_waits_no_more_once_all_deaths_are_on_the_disk(path):
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"] = 1, 2
        d.sync()
        d["a"] = 10
        d.sync()
    with mmapdict.open(path, "r+") as d:
        n = len(list(faults.records(path.read_bytes())))
        d.sync()
        del d["a"]                      # by one byte
        assert len(list(faults.records(path.read_bytes()))) == n
        assert dict(d) == pickle.loads(path.read_bytes()) == {"b": 2}


def test_what_is_replaced_twice_in_a_batch_waits_as_well(path):
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"] = "synced", 1
        d.sync()
        with d.batch():
            d["a"] = "second"
            assert d["a"] == "second"       # what was gathered is written before it is read
            before = path.read_bytes()
            cut = d._index.batch.end
            d["a"] = "third"
            second = d._index.batch.older
            assert any(offset >= d._index.end for offset in second)     # live: the third may not reach the disk
        assert dict(d) == pickle.loads(path.read_bytes()) == {"b": 1, "a": "third"}
        assert len(live_entries(path)) == 4 and mmapdict.verify(path).faults == []
        with d.batch():
            d["a"] = "fourth"
            del d["a"]
        assert dict(d) == pickle.loads(path.read_bytes()) == {"b": 1} and mmapdict.verify(path).faults == []
        end = d._index.end
        d.sync()
        assert len(live_entries(path)) == 1
    # As if only the first of the batch had reached the disk.
    start = faults.cell(before, faults.STOP)
    assert start < cut < end
    torn = bytearray(before)
    torn[start:start + 1] = b"("
    assert pickle.loads(torn) == {"b": 1, "a": "second"}


def test_a_deletion_needs_no_room_though_it_has_to_wait(path, monkeypatch):
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"] = 1, 2
        d.sync()
        d["a"] = 10
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def fail(*args, **options):
            raise full

        monkeypatch.setattr(store.File, "write", fail)
        del d["a"]
        assert len(live_entries(path)) == 1
        monkeypatch.undo()
        assert dict(d) == pickle.loads(path.read_bytes()) == {"b": 2}


def test_a_deletion_of_what_a_durable_handle_has_just_replaced_waits(path):
    with mmapdict.open(path, "x", durable=True) as d, mmapdict.open(path, "r+") as other:
        d["a"] = 1
        d["a"] = 2
        n = len(list(faults.records(path.read_bytes())))
        del other["a"]                  # the death of the first may not be on the disk
        assert len(list(faults.records(path.read_bytes()))) == n + 1 and len(live_entries(path)) == 1
        d["b"] = 3                      # now it is, and that of the second too
        assert len(live_entries(path)) == 1 and dict(other) == pickle.loads(path.read_bytes()) == {"b": 3}
        assert mmapdict.verify(path).faults == []


def test_a_deleted_key_does_not_come_back(path):
    with mmapdict.open(path, "x") as d:
        d["a"], d["b"] = 1, 2
        d.sync()
        d["a"] = 10
        with d.batch():
            d["b"] = 20
        del d["a"]
        del d["b"]
        d["c"] = 3
        assert dict(d) == pickle.loads(path.read_bytes()) == {"c": 3}
        with mmapdict.open(path, "r+") as other:
            other["d"] = 4
            assert dict(other) == {"c": 3, "d": 4}
        d.sync()
        assert len(live_entries(path)) == 2 and mmapdict.verify(path).faults == []


def test_the_next_start_of_the_system_is_noticed_and_takes_what_is_there_for_synced(path, monkeypatch):
    with mmapdict.open(path, "x") as d:
        d["a"] = 1
    monkeypatch.setattr(store, "boot_id", lambda: b"another boot ..!")
    with mmapdict.open(path, "r+") as d:
        d["a"] = 2
        assert len(live_entries(path)) == 2             # the old one was on the disk
        assert faults.cell(path.read_bytes(), faults.SYNCED) == d._index.file.cells[faults.SYNCED >> 3] > 256
    assert len(live_entries(path)) == 1
    assert path.read_bytes()[96:112] == b"another boot ..!"


def test_nothing_waits_in_a_durable_file(path):
    with mmapdict.open(path, "x", durable=True) as d:
        for i in range(3):
            d["a"] = i
            assert len(live_entries(path)) == 1
        with d.batch():
            d["a"], d["b"] = 5, 6
        assert len(live_entries(path)) == 2
        d.clear()
        assert live_entries(path) == []
        judge.load_every_way(path)
