"""Vacuum: a file as small as its content, with the same content in the same order, or nothing at all."""

import errno
import os
import pickle
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import faults
import judge
import mmapdict
import strategies
from mmapdict import CorruptError
from mmapdict import format as fmt
from mmapdict.store import File

BIG = np.arange(1 << 19)


def checked(path):
    """The content of a file as a list of fingerprints, its header and everything else being right."""
    data = path.read_bytes()
    faults.check_header(data)
    assert faults.used(data) == data
    return judge.fingerprint_items(judge.load_every_way(path))


def vacuumed(path):
    """Vacuum a file; return what is in it, the same as before."""
    before = judge.fingerprint_items(judge.plain(path))
    with mmapdict.open(path, "r+") as d:
        size = os.path.getsize(path)
        freed = d.vacuum()
        assert judge.fingerprint_items(d) == before
    assert checked(path) == before
    assert freed <= size
    return path.read_bytes()


def test_only_what_counts_is_copied(path):
    with mmapdict.open(path) as d:
        for n in range(100):
            d["a"] = [n, ["shared"]] * 2
            d["b", n] = np.arange(n)
            d["c"] = BIG
        for n in range(50):
            del d["b", n]
        d["m"] = np.ma.array(BIG, mask=BIG % 2 == 0, fill_value=3)
        d["t"] = ["x" * 5000, b"y" * (1 << 20), {"z": "é" * 70_000}]
    data = vacuumed(path)
    assert all(live for _, _, live, _ in list(faults.records(data))[:-1])
    assert len(data) < 2 * BIG.nbytes + BIG.size + (2 << 20)


def test_memo_indices_start_anew(path):
    value = [["x"]] * 2
    with mmapdict.open(path) as d:
        for n in range(1000):
            d["k"] = value
        d["l"] = value
    assert faults.cell(path.read_bytes(), faults.MEMO) > 1000
    assert faults.cell(vacuumed(path), faults.MEMO) == 66


def test_commit_goes_on_and_everything_is_said_to_be_on_the_disk(path):
    with mmapdict.open(path) as d:
        for n in range(10):
            d["k"] = n
    commit = faults.cell(path.read_bytes(), faults.COMMIT)
    data = vacuumed(path)
    assert faults.cell(data, faults.COMMIT) > commit
    assert faults.cell(data, fmt.SYNCED_OFFSET) == faults.cell(data, faults.STOP)


def test_a_vacuumed_file_is_the_same_after_another_vacuum_but_for_its_id(path):
    with mmapdict.open(path) as d:
        d.update(a=1, b=BIG, c=[["x"]] * 2, d=np.arange(3), e="y" * 5000, f=np.ma.array([1, 2]))
    first = vacuumed(path)
    second = vacuumed(path)
    assert len(first) == len(second)
    assert [r[:2] for r in list(faults.records(first))[:-1]] == [r[:2] for r in list(faults.records(second))[:-1]]


def test_an_empty_file_and_a_cleared_one(path):
    mmapdict.open(path).close()
    assert len(vacuumed(path)) == 257
    with mmapdict.open(path) as d:
        d["a"] = BIG
        d.clear()
    assert len(vacuumed(path)) == 257


@given(items=st.dictionaries(strategies.keys(), st.one_of(
    strategies.arrays(), strategies.masked_arrays(), strategies.values()), max_size=5), again=st.booleans())
def test_anything_that_can_be_stored(items, again, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "file"
    with mmapdict.open(path, trusted=True) as d:
        for _ in range(1 + again):
            for key, value in items.items():
                d[key] = value
    before = judge.fingerprint_items(judge.plain(path))
    with mmapdict.open(path, trusted=True) as d:
        d.vacuum()
    assert checked(path) == before


def test_the_order_is_that_of_the_file(path):
    with mmapdict.open(path) as d:
        for n in range(20):
            d[n] = n
        d[3] = "moved"
        del d[5]
    data = vacuumed(path)
    assert list(pickle.loads(data)) == [n for n in range(20) if n not in (3, 5)] + [3]


# -- room ---------------------------------------------------------------------------------------------------------

def allocated(path):
    return path.stat().st_blocks * 512


def test_the_room_of_holes_is_taken_in_the_new_file_too(path):
    with mmapdict.open(path) as d:
        hole = d.create("hole", (4 << 20,), "u1")
        hole[1 << 20:][:3] = 7
        del hole
    assert allocated(path) >= 4 << 20
    data = vacuumed(path)
    assert allocated(path) >= 4 << 20 and pickle.loads(data)["hole"].sum() == 21


def test_a_sparse_file_stays_sparse(path):
    with mmapdict.open(path) as d:
        hole = d.create("hole", (64 << 20,), "u1", sparse=True)
        hole[32 << 20] = 5
        del hole
        d["end"] = 1
    if allocated(path) > 32 << 20:
        pytest.skip("the file system has no holes")
    with mmapdict.open(path) as d:
        d.vacuum()
        assert d["hole"][32 << 20] == 5 and d["hole"].sum() == 5 and d["end"] == 1
    assert allocated(path) < 8 << 20


def test_big_payloads_are_copied_by_the_kernel(path, monkeypatch):
    copied, written = [], []
    copy, write = File.copy, File.write
    monkeypatch.setattr(File, "copy", lambda self, offset, source, start, n: (
        copied.append(n), copy(self, offset, source, start, n)))
    monkeypatch.setattr(File, "write", lambda self, offset, data: (
        written.append(data), write(self, offset, data)))
    with mmapdict.open(path) as d:
        d.update(a=BIG, b=np.ma.array(BIG, mask=BIG > 3), c=[b"x" * (1 << 21)], d="small")
        written.clear()
        d.vacuum()
    assert sum(copied) >= 2 * BIG.nbytes + (2 << 20)
    assert sum(len(data) for data in written if isinstance(data, bytes)) < BIG.size + (1 << 16)


def test_mode_and_extended_attributes_stay(path):
    with mmapdict.open(path) as d:
        d["a"] = 1
    os.chmod(path, 0o640)
    try:
        os.setxattr(path, "user.mmapdict.test", b"value")
    except (OSError, AttributeError):
        pytest.skip("no extended attributes here")
    vacuumed(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.getxattr(path, "user.mmapdict.test") == b"value"


# -- when it fails ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["before", "part", "after"])
def test_a_full_disk_leaves_everything_as_it_was(how, path, tmp_path, monkeypatch):
    fault = faults.Fault(how=how).install(monkeypatch)
    with mmapdict.open(path) as d:
        d.update(a=1, b=BIG[:1 << 17], c="x" * (1 << 20))
        d["a"] = 2
        for at in range(100):
            fault.at = at
            fault.arm()
            try:
                d.vacuum()
            except OSError as exc:
                assert exc.errno == errno.ENOSPC and fault.raised
            else:
                assert not fault.raised or how == "after"
                break
            finally:
                fault.disarm()
            assert d["a"] == 2 and len(d["c"]) == 1 << 20 and np.array_equal(d["b"], BIG[:1 << 17])
            assert os.listdir(tmp_path) == ["file"]
            assert list(judge.plain(path)) == ["b", "c", "a"]
        assert at > 5
        d["d"] = 1
    assert set(judge.load_every_way(path)) == {"a", "b", "c", "d"}


@pytest.mark.leaves_damaged_file
def test_a_damaged_value_stops_it_and_is_named(path, tmp_path):
    with mmapdict.open(path) as d:
        d.update(a=1, b=["x" * 5000, 2], c=3)
    data = bytearray(path.read_bytes())
    at = data.index(b"x" * 5000) + 5000
    data[at:at + 2] = b"X\xff"
    path.write_bytes(data)
    with mmapdict.open(path) as d:
        with pytest.raises(CorruptError, match="repair") as caught:
            d.vacuum()
        assert caught.value.path == os.fspath(path) and caught.value.offset is not None
        assert d["a"] == 1 and d["c"] == 3
    assert os.listdir(tmp_path) == ["file"] and path.read_bytes() == data


def test_a_sealed_file_is_not_vacuumed(path):
    """The copy would not be sealed, and damage that the seal shows would be hidden."""
    with mmapdict.open(path, "x") as d:
        d["a"] = np.arange(1000)
        d["b"] = 1
        del d["b"]
        d.seal()
        before = path.read_bytes()
        with pytest.raises(mmapdict.ReadOnlyError, match="unseal"):
            d.vacuum()
        assert d.sealed and path.read_bytes() == before and d.info()["sealed"]
        d.unseal()
        assert d.vacuum() > 0 and not d.sealed and d.free_bytes == d.info()["free_bytes"] == 0
        d.seal()
        assert d.free_bytes == 0


def test_a_commit_that_is_nonsense_wraps_around(tmp_path):
    path = tmp_path / "file"
    with mmapdict.open(path, "x") as d:
        d["a"] = 1
    with open(path, "r+b") as f:
        f.seek(fmt.COMMIT_OFFSET)
        f.write((2**64 - 2).to_bytes(8, "little"))
    with mmapdict.open(path) as d:
        d.vacuum()
        d["b"] = 2
        assert dict(d) == {"a": 1, "b": 2}
