"""Index blocks: what they say, what becomes of them, and what happens when they are stale, missing or damaged."""

import errno
import os
import pickle
import random
import struct
import sys

import faults
import numpy as np
import pytest
from children import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapdict
from mmapdict import format as fmt
from mmapdict import index, store, table, writer

BOOT = sys.modules["mmapdict.store"].boot_id()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.fixture
def tiny(monkeypatch):
    """A block from the first key on, that has to grow all the time."""
    monkeypatch.setattr(table, "INDEX_FROM", 1)
    monkeypatch.setattr(table, "SLOTS_MIN", 8)


def fill(path, n=200, mode="x"):
    with mmapdict.open(path, mode) as d:
        d.update((f"key {i}", i) for i in range(n))
    return {f"key {i}": i for i in range(n)}


def plain(path):
    with open(path, "rb") as f:
        return pickle.load(f)


# -- what docs/format.md says of the bytes, without mmapdict ----------------------------------------------------------

def block_at(data, at):
    """The cells of the block whose record is at `at`."""
    start = data.index(b"\x8c\x0emmapdict index", at) + 16
    n = {0x42: 4, 0x8e: 8}[data[start]]
    size = int.from_bytes(data[start + 1:start + 1 + n], "little")
    assert size % 8 == 0 and (start + 1 + n) % 64 == 0
    return start + 1 + n, list(struct.unpack_from(f"<{size // 8}Q", data, start + 1 + n))


def the_block(path):
    data = path.read_bytes()
    return block_at(data, faults.cell(data, fmt.INDEX_OFFSET))


def told_hash(literal, file_id):
    m = int.from_bytes(file_id[8:], "little") >> 3 | 1 << 60 | 1
    h = int.from_bytes(literal, "little") % m
    return (h ^ h >> 29) * 0x9E3779B97F4A7C15 % 2**64


def told_lookup(data, literal):
    """Offsets of the entries that the block may have for a key, as the text says."""
    _, cells = block_at(data, faults.cell(data, fmt.INDEX_OFFSET))
    bits, n, slots = cells[0], cells[1], cells[64:]
    h = told_hash(literal, data[24:40])
    i, found = h >> 64 - n.bit_length() + 1, []
    while slots[i]:
        if slots[i] >> bits == h >> bits:
            found.append(slots[i] % 2**bits * 8)
        i = (i + 1) % n
    return found


def test_the_block_is_as_the_text_says(path):
    items = fill(path)
    data = path.read_bytes()
    start, cells = the_block(path)
    bits, n, used, upto, total, waits, hidden, arrays, masks, inode, deaths = cells[:11]
    slots = cells[64:]
    assert (bits, n, len(slots)) == (33, 512, 512) and used == sum(map(bool, slots)) == 200
    assert upto == faults.cell(data, fmt.STOP_OFFSET) and total == sum(slots) % 2**64
    assert (waits, hidden, arrays, masks, deaths) == (0, 0, 0, 0, 0) and not any(cells[11:64])
    assert inode == os.stat(path).st_ino
    for key in items:
        (offset,) = told_lookup(data, b"\x8c" + bytes((len(key),)) + key.encode())
        assert data[offset:offset + 2] == b"(G" and key.encode() in data[offset:offset + 60]
    assert told_lookup(data, b"\x8c\x04none") == []


def test_equal_keys_have_one_hash(path, tiny):
    keys = [1, 2.0, True, (1, 2.5), (True, (0.0, "x")), 2**70, float(2**70), -0.0, 1e300, float("inf"), None, b"1", "1"]
    with mmapdict.open(path, "x") as d:
        model = {}
        for i, key in enumerate(keys):
            kept = next((k for k in model if k == key), key)
            model.pop(key, None)
            d[key] = model[kept] = i
        for key in (1.0, True, 1, 2, 2.0, (1.0, 2.5), (1, (0, "x")), (1.0, (False, "x")), 1 << 70, 0, np.int8(1),
                    np.float64(2), np.str_("1"), complex(2)):
            assert d[key] == model[key] and key in d
        for key in (3, "2", b"2", (1, 2), 1.5, float("nan"), frozenset(), object(), complex(2, 1)):
            assert key not in d and d.get(key) is None
        for key in ([], {}, ([],)):
            with pytest.raises(TypeError):
                d.get(key)
        assert dict(d) == model and list(map(repr, d)) == list(map(repr, model))
    assert mmapdict.verify(path).ok


def test_keys_whose_hashes_collide(path, tiny, monkeypatch):
    for module in table, index, writer:
        monkeypatch.setattr(module, "hash_ops", lambda ops, modulo: 0xFEDCBA9876543210)
    model = {}
    with mmapdict.open(path, "x") as d:
        for i in range(60):
            d[i % 40] = model[i % 40] = i
            model[i % 40] = model.pop(i % 40)
        del d[3], model[3]
        assert list(d.items()) == list(model.items()) and all(d[key] == model[key] for key in model)
        assert 3 not in d and 99 not in d
    assert plain(path) == model and mmapdict.verify(path).ok
    with mmapdict.open(path, "r") as d:
        assert list(d.items()) == list(model.items()) and d[39] == 39 and 3 not in d


KEYS = st.one_of(st.integers(0, 12), st.sampled_from(["a", "b", b"a", (), (1, "x"), True, 2.0, None, 0.5]))
STEPS = st.lists(st.tuples(st.sampled_from(["set", "set", "set", "delete", "batch", "sync", "other", "anew", "vacuum",
                                            "durable", "clear", "popitem", "seal"]), KEYS), max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_a_growing_block_beside_a_dict(tmp_path_factory, tiny, steps):
    path = tmp_path_factory.mktemp("growing") / "file"
    model = {}
    handles = [mmapdict.open(path, "x"), mmapdict.open(path, "r+")]
    look = mmapdict.open(path, "r")
    changes = look.watch(0)
    known = {}

    def put(d, key):
        value = len(model)
        d[key] = value
        kept = next((k for k in model if k == key), key)
        model.pop(key, None)
        model[kept] = value

    for what, key in steps:
        d = handles[0]
        if what == "set":
            put(d, key)
        elif what == "delete" and key in model:
            del d[key], model[key]
        elif what == "batch":
            with d.batch():
                for k in (key, 1, key, 2):
                    put(d, k)
                if 1 in model:
                    del d[1], model[1]
        elif what == "sync":
            d.sync()
        elif what == "seal":
            for handle in handles:
                handle.close()
            with mmapdict.open(path, "r+") as alone:
                alone.seal()
            handles = [mmapdict.open(path, "r+") for _ in handles]
        elif what == "other":
            handles.reverse()
        elif what in ("anew", "durable"):
            d.close()
            handles[0] = mmapdict.open(path, "r+", durable=what == "durable")
        elif what == "vacuum" and not d.sealed:
            handles[1].close()
            d.vacuum()
            handles[1] = mmapdict.open(path, "r+")
        elif what == "clear":
            d.clear()
            model.clear()
        elif what == "popitem" and model:
            assert d.popitem() == model.popitem()
        with mmapdict.open(path, "r") as fresh:
            for handle in (*handles, look, fresh):
                assert list(map(repr, handle.items())) == list(map(repr, model.items())) and len(handle) == len(model)
                assert all(handle[k] == model[k] for k in model) and "none" not in handle
        assert list(map(repr, plain(path).items())) == list(map(repr, model.items()))
        assert mmapdict.verify(path).faults == []
        for change in changes:
            follow(known, change, look)
        changes = look.watch(0) if what == "vacuum" else changes
        known = dict(model) if what == "vacuum" else known
        changes, before = look.watch(0), dict(known)
        assert before == model
    for handle in (*handles, look):
        handle.close()


def follow(known, change, d):
    """Do to `known` what a change says."""
    for key in change.removed:
        del known[key]
    for key in change.replaced:
        assert key in known
        known[key] = d[key]
    for key in change.added:
        assert key not in known
        known[key] = d[key]
