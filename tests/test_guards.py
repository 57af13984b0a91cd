"""What an operation costs, counted and not timed: system calls, bytes, records, maps; the same however many keys."""

import os

import numpy as np
import pytest

import mmapdict
from budget import slow_examples
from mmapdict import format as fmt
from mmapdict import store, table

ARRAY = np.arange(8.0)
SIZES = [100, 5000]
linux = pytest.mark.skipif(store.fcntl is None or not hasattr(os, "pwritev"), reason="other calls than on Linux")


class Calls:
    """Counts what is called."""

    def __init__(self, monkeypatch):
        self.names = []
        self.written = 0
        for name in ("pwrite", "pwritev", "pread", "open", "stat", "fstat", "ftruncate", "posix_fallocate",
                     "fdatasync"):
            self.watch(monkeypatch, os, name)
        self.watch(monkeypatch, store, "_flock", "flock")
        self.watch(monkeypatch, store.mmap, "mmap")
        self.watch(monkeypatch, fmt, "decode_record", "record")

    def watch(self, monkeypatch, where, name, called=None):
        real = getattr(where, name)

        def call(*arguments, **options):
            self.names.append(called or name)
            if name == "pwrite":
                self.written += len(arguments[1])
            return real(*arguments, **options)

        monkeypatch.setattr(where, name, call)

    def take(self):
        names, self.names, self.written = sorted(self.names), [], 0
        return names


@pytest.fixture(params=SIZES)
def path(request, tmp_path):
    with mmapdict.open(tmp_path / "file", "x") as d:
        d.update((f"key {i}", ARRAY) for i in range(request.param))
    return tmp_path / "file"


@linux
def test_changes(path, monkeypatch):
    with mmapdict.open(path, "r+") as d:
        if not d._file.in_place:
            pytest.skip("each store is a system call on this file system")
        for i in range(3):
            d[f"first {i}"] = ARRAY
        d.flush()
        with monkeypatch.context() as patch:
            calls = Calls(patch)
            # Giving the lock back and looking at the path are functions in C, bound when the file is opened.
            for i in range(5):
                d[f"new {i}"] = ARRAY
                assert calls.written <= 73 + ARRAY.nbytes + 5 + 16
                assert calls.take() == ["flock", "pwrite"]
                d[f"new {i}"] = ARRAY
                assert calls.take() == ["flock", "pwrite"]
                assert (d[f"new {i}"] == ARRAY).all()
                assert calls.take() == ["record"]
                assert (d[f"new {i}"] == ARRAY).all() and f"new {i}" in d and "none" not in d and len(d) > 100
                assert calls.take() == []
                del d[f"new {i}"]
                assert calls.written == 1
                assert calls.take() == ["flock", "pwrite"]


@linux
def test_many_small_values_are_written_together(path, monkeypatch):
    with mmapdict.open(path, "r+") as d:
        d["first"] = ARRAY
        with monkeypatch.context() as patch:
            calls = Calls(patch)
            d.update((f"more {i}", ARRAY) for i in range(3000))
            written = calls.written
            names = calls.take()
            assert names.count("pwrite") + names.count("pwritev") < 8 and names.count("flock") == 1
        # Each record once, and one new block.
        assert written < 3000 * (73 + 64 + 12) + 8 * (1 << 14) + 2000


@linux
def test_looking(path, monkeypatch):
    with monkeypatch.context() as patch:
        calls = Calls(patch)
        with mmapdict.open(path, "r") as r:
            assert (r["key 99"] == ARRAY).all() and "none" not in r and len(r) >= 100
            names = calls.take()
            assert names.count("mmap") == 1 and names.count("record") < 8 and len(names) < 20
            assert len(r._index.offsets) == 0
            n = len(list(r))
            assert calls.take() == [] and n == len(r)
        with mmapdict.open(path, "r+") as d:
            calls.take()
            d["first"] = ARRAY
            assert len(calls.take()) < 14 and len(d._index.offsets) == 0


def test_following(path, monkeypatch):
    with mmapdict.open(path, "r+") as d, mmapdict.open(path, "r") as r:
        d["first"] = ARRAY
        changes = r.watch(5)
        d["second"] = 1
        next(changes)
        with monkeypatch.context() as patch:
            calls = Calls(patch)
            d["new"] = ARRAY
            d["key 5"] = ARRAY
            del d["key 7"]
            told = next(changes)
            while "key 7" not in told.removed:
                told = next(changes)
            assert len([name for name in calls.take() if name == "record"]) < 12
            assert "key 7" not in r and (r["key 5"] == ARRAY).all() and len(r) == len(d)
            assert len([name for name in calls.take() if name == "record"]) < 3


def test_maps_of_a_file_that_grows(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    with mmapdict.open(tmp_path / "file", "x") as d:
        held = [d.create(i, 1 << 16, "u1") for i in range(300)]
        assert calls.take().count("mmap") < 20 and len(d._file.windows) <= store.WINDOWS_MAX
        for i in range(3000):
            d["small", i] = ARRAY
        assert calls.take().count("mmap") < 5 and len(held) == 300


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("n", [64, 100, 108, 109, 1000, 5000])
def test_bytes_of_the_index(tmp_path, n, together):
    sizes = []
    for least in (table.INDEX_FROM, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table, "INDEX_FROM", least)
            path = tmp_path / f"file {least}"
            with mmapdict.open(path, "x") as d:
                if together:
                    d.update((f"k{i:07}", ARRAY) for i in range(n))
                else:
                    for i in range(n):
                        d[f"k{i:07}"] = ARRAY
            sizes.append(os.path.getsize(path))
    with_index, without = sizes
    assert (with_index - without) / n < (28 if together else 46 if n < 200 else 39)
    assert without / n < 73 + 8 + ARRAY.nbytes + 10


def test_slots_that_are_looked_at():
    modulo = table.modulus(bytes(range(16)))
    for keys in (range(5000), [f"scan/{i:06}" for i in range(5000)], [("scan", i) for i in range(5000)]):
        hashes = [table.hash_key(key, modulo) for key in keys]
        n = 8192
        slots = table.arrange(table.make_slots(hashes, [256 + 8 * i for i in range(5000)], 33), n)
        places = np.flatnonzero(slots)
        away = (places - (slots[places] >> np.uint64(64 - 13)).astype(int)) % n
        assert away.mean() < 4 and away.max() < 80


# -- arrays that grow -------------------------------------------------------------------------------------------------


class Moved:
    """Counts system calls, and the bytes that are written or copied by them, without keeping a list of them."""

    def __init__(self, monkeypatch):
        self.calls = {}
        self.nbytes = 0
        for name in ("pwrite", "pwritev", "pread", "copy_file_range", "open", "stat", "fstat", "ftruncate",
                     "posix_fallocate", "fdatasync"):
            self.watch(monkeypatch, os, name)
        self.watch(monkeypatch, store, "_flock")
        self.watch(monkeypatch, store.mmap, "mmap")

    def watch(self, monkeypatch, where, name):
        real = getattr(where, name)

        def call(*arguments, **options):
            self.calls[name] = self.calls.get(name, 0) + 1
            result = real(*arguments, **options)
            if name in ("pwrite", "pwritev", "copy_file_range"):
                self.nbytes += result
            return result

        monkeypatch.setattr(where, name, call)


@linux
@pytest.mark.parametrize("n", [20_000, pytest.param(slow_examples(10**7), marks=pytest.mark.slow)])
def test_what_many_appends_cost(tmp_path, monkeypatch, n):
    """Rows are written once, and copied as often as doubling copies them; a block takes the lock once."""
    path, block = tmp_path / "file", 1000
    row = np.zeros((1, 2), "i8")
    with mmapdict.open(path, "x") as d:
        d.append("rows", row)
        moves, blocks, place = 0, 0, None
        with monkeypatch.context() as patch:
            counts = Moved(patch)
            for start in range(1, n, block):
                blocks += 1
                with d.exclusive():
                    for i in range(start, min(start + block, n)):
                        row[0] = i, -i
                        d.append("rows", row)
                moves += d.entry("rows").record != place
                place = d.entry("rows").record
            calls = counts.calls
        assert 2 < moves < 30
        writes = calls.get("pwrite", 0) + calls.get("pwritev", 0)
        others = sum(calls.values()) - writes - calls["_flock"]
        assert writes <= n + 20 * moves and others < 60 * moves and calls["_flock"] <= blocks + 5
        # What doubling copies is less than what there is in the end; a new place is written as zeros while it is small.
        assert counts.nbytes < 3 * n * row.nbytes + 20 * moves * (1 << 16)
        rows = d["rows"]
        assert rows.shape == (n, 2) and (rows[:, 0] == np.arange(n)).all() and (rows[:, 1] == -rows[:, 0]).all()
        assert d.info()["size"] < 8 * n * row.nbytes + (1 << 23)
    path.unlink()           # it is too large for the checks of files that are left


@linux
def test_what_an_append_costs_however_long_the_array_is(tmp_path, monkeypatch):
    counted = []
    for n in (100, 100_000):
        with mmapdict.open(tmp_path / f"file {n}", "x") as d:
            d.create_growable("rows", 2, "i8", capacity=n + 1000)
            d.append("rows", np.ones((n, 2), "i8"))
            d.append("rows", [1, 2])
            with monkeypatch.context() as patch:
                counts = Moved(patch)
                for _ in range(50):
                    d.append("rows", [1, 2])
                    d["rows"]
                d.resize("rows", n)
                counted.append((counts.calls, counts.nbytes))
    assert counted[0] == counted[1]
    calls, nbytes = counted[0]
    assert nbytes <= 50 * 16 + 8 * 51 * 3 and sum(calls.values()) <= 51 * 5
