"""Index blocks: what they say, what becomes of them, and what happens when they are stale, missing or damaged."""

import errno
import os
import pickle
import random
import struct
import sys
import threading
from importlib import import_module

import faults
import numpy as np
import pytest
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


# -- what is stale, missing or damaged --------------------------------------------------------------------------------

def looks_right(path, model, may_lack=()):
    """What a reader sees is right, but for keys that it may not find; return those that it lacks."""
    with mmapdict.open(path, "r") as d:
        found = dict(d.items())
        lacks = [key for key in model if key not in d]
        assert all(d[key] == model[key] for key in model if key not in lacks) and "none" not in d
        assert set(lacks) <= set(may_lack) and set(model) - set(found) <= set(may_lack)
        assert found.items() <= model.items() and plain(path) == model
    return lacks


def index_faults(path):
    return [fault for fault in mmapdict.verify(path).faults if fault.kind == "index" or "index is" in fault.message]


def next_writer_mends(path, model):
    """The next writer stores, deletes and stores again; whole is the file then, with a block that has all keys."""
    model = dict(model)
    with mmapdict.open(path, "r+") as d:
        d["by the next"] = model["by the next"] = 1
        first = next(iter(model))
        del d[first], model[first]
        assert dict(d) == model and len(d) == len(model)
        d.update({n: n for n in range(20)})
        model.update({n: n for n in range(20)})
    looks_right(path, model)
    assert mmapdict.verify(path).faults == [] and has_slots(path, model)


def has_slots(path, model):
    """Whether the header's block covers the file, and leads to each key, by the text."""
    data = path.read_bytes()
    _, cells = the_block(path)
    with mmapdict.open(path, "r") as d:
        found = [d.entry(key).record in told_lookup(data, literal(key)) for key in model]
    return cells[3] == faults.cell(data, fmt.STOP_OFFSET) and all(found)


def literal(key):
    return b"\x8c" + bytes((len(key),)) + key.encode() if isinstance(key, str) else b"K" + bytes((key,))


def other_records(data):
    """Offsets of a dead record and of a live entry."""
    *found, _ = faults.records(data)
    return next(r[0] for r in found if not r[2]), next(r[0] for r in found if r[2] and r[3])


@pytest.mark.parametrize("what", [
    "missing", "odd", "far", "the end", "behind the end", "a dead record", "an entry", "inside", "the largest"])
def test_a_header_that_leads_to_no_block(path, tiny, what):
    model = fill(path, 40)
    with mmapdict.open(path, "r+") as d:
        del d["key 3"], model["key 3"]
    data = path.read_bytes()
    stop, (dead, entry) = faults.cell(data, fmt.STOP_OFFSET), other_records(data)
    at = {"missing": 0, "odd": 7, "far": 1 << 40, "the end": stop, "behind the end": stop + 8, "a dead record": dead,
          "an entry": entry, "inside": the_block(path)[0], "the largest": 2**64 - 1}[what]
    faults.overwrite(path, faults.with_cell(data, fmt.INDEX_OFFSET, at))
    looks_right(path, model)
    assert index_faults(path)
    next_writer_mends(path, model)


def test_a_block_that_is_older_than_the_file(path, tiny):
    """Entries behind upto are found by walking."""
    fill(path, 14)
    old = path.read_bytes()
    with mmapdict.open(path, "r+") as d:
        d["key 1"] = "new"
        del d["key 2"]
        d["more"] = 1
        model = dict(d)
    data = path.read_bytes()
    start, cells = block_at(data, faults.cell(data, fmt.INDEX_OFFSET))
    assert faults.cell(old, fmt.INDEX_OFFSET) == faults.cell(data, fmt.INDEX_OFFSET), "it had to grow"
    end = start + 8 * len(cells)
    faults.overwrite(path, data[:start] + old[start:end] + data[end:])
    looks_right(path, model)
    next_writer_mends(path, model)


@pytest.mark.leaves_damaged_file
def test_each_byte_of_the_cells_in_front_damaged(path, tiny):
    model = fill(path, 12)
    data, (start, cells) = path.read_bytes(), the_block(path)
    for at in range(8 * 12):
        cell = at // 8
        for bits in 0xFF, 1 << at % 8:
            torn = bytearray(data)
            torn[start + at] ^= bits
            faults.overwrite(path, bytes(torn))
            looks_right(path, model)
            number = struct.unpack_from("<Q", torn, start + 8 * cell)[0]
            # What sum was counts only as long as nothing was stored since the last sync.
            wrong = cell in (0, 1, 2, 7, 8) or cell == 3 and (number > cells[3] or number % 8 or number < 256)
            assert bool(index_faults(path)) == wrong, (cell, at, bits)
            if bits == 0xFF and at % 8 < 2:
                next_writer_mends(path, model)


def passes(data, cells, key, place):
    """Whether the search for a key comes by a slot."""
    n = cells[1]
    home = told_hash(literal(key), data[24:40]) >> 64 - n.bit_length() + 1
    while cells[64 + home] and home != place:
        home = (home + 1) % n
    return home == place


@pytest.mark.leaves_damaged_file
@pytest.mark.parametrize("how", ["zero", "flip", "elsewhere", "another entry", "behind the end", "far behind"])
def test_each_slot_damaged(path, tiny, tmp_path, how):
    """No reader finds anything wrong, none lacks another key than those whose search comes by; all is told of."""
    model = fill(path, 13)
    data, (start, cells) = path.read_bytes(), the_block(path)
    stop, low = faults.cell(data, fmt.STOP_OFFSET), 2**cells[0] - 1
    entries = [r[0] for r in list(faults.records(data))[:-1] if r[2] and r[3]]
    rng = random.Random(how)
    for place in range(cells[1]):
        slot = cells[64 + place]
        if not slot:
            continue
        there = (slot & low) * 8
        new = {"zero": 0, "flip": slot ^ 1 << rng.randrange(64), "elsewhere": slot & ~low | there // 8 + 1,
               "another entry": slot & ~low | rng.choice([o for o in entries if o != there]) // 8,
               "behind the end": slot & ~low | stop // 8 + 1, "far behind": slot | low}[how]
        faults.overwrite(path, faults.with_cell(data, start + 8 * (64 + place), new))
        may_lack = [key for key in model if passes(data, cells, key, place)]
        lacks = looks_right(path, model, may_lack)
        if how in ("elsewhere", "behind the end", "far behind"):
            assert not lacks                    # no record is there: the walk takes over
        found = index_faults(path)
        assert found and all(start <= fault.offset < start + 8 * len(cells) for fault in found)
        report = mmapdict.repair(path, tmp_path / "repaired")
        looks_right(tmp_path / "repaired" if not report.whole else path, model)
        assert mmapdict.verify(report.output).faults == []
        os.unlink(report.output)
    faults.overwrite(path, data)


@pytest.mark.leaves_damaged_file
def test_a_block_without_a_free_slot(path, tiny):
    model = fill(path, 10)
    data, (start, cells) = path.read_bytes(), the_block(path)
    full = [slot or max(cells[64:]) for slot in cells[64:]]
    faults.overwrite(path, data[:start + 512] + struct.pack(f"<{cells[1]}Q", *full) + data[start + 8 * len(cells):])
    looks_right(path, model)
    assert index_faults(path)


# -- others who write, and readers that were there before -------------------------------------------------------------

def leave_blocks_alone(monkeypatch):
    """Let all handles be like a program that passes over index blocks."""
    monkeypatch.setattr(index.Index, "_follow_table", lambda self: None)
    monkeypatch.setattr(writer.Writer, "begin", lambda self: self.walk())
    monkeypatch.setattr(table, "INDEX_FROM", 1 << 60)


def test_what_a_program_stores_that_leaves_blocks_alone_gets_its_slots_from_the_next_writer(path, monkeypatch):
    model = fill(path, 80)
    before = the_block(path)[1]
    with monkeypatch.context() as patch:
        leave_blocks_alone(patch)
        with mmapdict.open(path, "r+") as d:
            for i in range(70, 90):
                model.pop(f"key {i}", None)
                d[f"key {i}"] = model[f"key {i}"] = "another's"
            del d["key 4"], model["key 4"]
    assert the_block(path)[1][2:5] == before[2:5]
    looks_right(path, model)
    assert not has_slots(path, model)
    with mmapdict.open(path, "r+") as d, mmapdict.open(path, "r") as r:
        d["more"] = model["more"] = 1
        assert list(d.items()) == list(r.items()) == list(model.items())
    assert has_slots(path, model) and mmapdict.verify(path).faults == []


def test_what_a_program_changes_that_leaves_blocks_alone_is_told_of(path, monkeypatch):
    fill(path, 80)
    with mmapdict.open(path, "r") as r:
        known, changes = dict(r), r.watch(0)
        with monkeypatch.context() as patch:
            leave_blocks_alone(patch)
            with mmapdict.open(path, "r+") as d:
                del d["key 4"]
                d["key 5"] = "new"
                d["more"] = 1
        for change in changes:
            follow(known, change, r)
        assert known == dict(r.items()) == plain(path)


def test_a_reader_that_was_there_before_several_blocks(path):
    model = fill(path, 65)
    with mmapdict.open(path, "r") as r, mmapdict.open(path, "r") as idle, mmapdict.open(path, "r+") as d:
        assert r["key 64"] == 64 and dict(idle) == model
        blocks = {faults.cell(path.read_bytes(), fmt.INDEX_OFFSET)}
        for n in range(5000):
            d[n] = model[n] = n
            if n % 500 == 499:
                blocks.add(faults.cell(path.read_bytes(), fmt.INDEX_OFFSET))
                assert r[n] == n and n + 1 not in r and r["key 1"] == 1 and len(r) == len(model)
        assert len(blocks) > 4 and list(r.items()) == list(idle.items()) == list(model.items())
        assert all(r[key] == model[key] for key in model)
    _, cells = the_block(path)
    assert cells[1] == 8192 and mmapdict.verify(path).faults == []


def test_all_keys_are_those_that_a_walk_finds(path):
    rng = random.Random(0)
    with mmapdict.open(path, "x") as d:
        d.update((n, n) for n in range(3000))
        for key in rng.sample(range(3000), 500):
            del d[key]
        for key in rng.sample(range(3000), 500):
            d[key] = "again"
        items = index.Index(d._file, whole=True)
        assert d._index.snapshot() == items.snapshot()
        with mmapdict.open(path, "r") as r:
            assert r._index.snapshot() == items.snapshot() and len(r) == len(d) == len(items.snapshot())
            assert list(r) == list(plain(path))


# -- another start of the system --------------------------------------------------------------------------------------

@pytest.fixture
def restart(monkeypatch):
    """A function after which the system has been started anew."""
    def restart():
        for module in store, sys.modules["mmapdict.birth"], import_module("mmapdict.verify"):
            monkeypatch.setattr(module, "boot_id", lambda: b"another boot ..!")
    return restart


@pytest.fixture
def decoded(monkeypatch):
    """A list that grows by one with each record that is walked over."""
    calls, real = [], fmt.decode_record

    def decode(view, base, offset, *arguments):
        calls.append(offset)
        return real(view, base, offset, *arguments)
    monkeypatch.setattr(fmt, "decode_record", decode)
    return calls


@pytest.mark.parametrize("sync", ["never", "before the last", "at the end", "durable"])
def test_after_a_start_of_the_system_a_block_is_used_if_it_was_synced(path, restart, decoded, sync):
    model = fill(path, 100)
    with mmapdict.open(path, "r+", durable=sync == "durable") as d:
        if sync == "before the last":
            d.sync()
        d["last"] = model["last"] = 1
        if sync == "at the end":
            d.sync()
    decoded.clear()
    with mmapdict.open(path, "r") as d:
        assert d["key 50"] == 50 and len(decoded) < 5           # the same boot: nothing is walked
    restart()
    decoded.clear()
    with mmapdict.open(path, "r") as d:
        assert d["key 50"] == 50 and d["last"] == 1
        assert len(decoded) < 10 if sync in ("at the end", "durable") else len(decoded) > 100
        assert dict(d) == model and len(d) == len(model)
    next_writer_mends(path, model)


def test_a_block_that_a_power_cut_has_torn(path, restart):
    fill(path, 120)
    with mmapdict.open(path, "r+") as d:
        d.sync()
        old = path.read_bytes()
        for n in range(60):
            d[n] = n
        for n in range(20):
            d[f"key {n}"] = "new"
        model = dict(d)
        data = path.read_bytes()
    start, cells = block_at(data, faults.cell(data, fmt.INDEX_OFFSET))
    assert faults.cell(old, fmt.INDEX_OFFSET) == faults.cell(data, fmt.INDEX_OFFSET), "it had to grow"
    end = start + 8 * len(cells)
    restart()
    sectors = range(start // 512, -(-end // 512))
    rng = random.Random(0)
    some = [rng.sample(sectors, rng.randrange(1, len(sectors))) for _ in range(20)]
    for torn in [*([sector] for sector in sectors), sectors, *some]:
        left = bytearray(data)
        for sector in torn:
            part = slice(max(start, 512 * sector), min(end, 512 * sector + 512))
            left[part] = old[part]
        faults.overwrite(path, bytes(left))
        looks_right(path, model)
        with mmapdict.open(path, "r+") as d:
            d["by the next"] = 1
            assert dict(d) == {**model, "by the next": 1} and len(d) == len(model) + 1
        assert mmapdict.verify(path).faults == []


# -- no room, and large offsets ---------------------------------------------------------------------------------------

def refuse_blocks(monkeypatch):
    """Let there be no room for index blocks; return a list of the offsets at which one was refused."""
    write, refused = store.File.write, []

    def refuse(self, offset, buffers):
        buffers = bytes(buffers) if isinstance(buffers, (bytes, memoryview)) else list(buffers)
        if b"mmapdict index" in faults.joined(buffers):
            refused.append(offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, offset, buffers)
    monkeypatch.setattr(store.File, "write", refuse)
    return refused


def test_no_room_for_a_larger_block(path, tiny, monkeypatch):
    """What is stored is stored, then and later; when there is room again, there is a block again."""
    model = fill(path, 5)
    with mmapdict.open(path, "r+") as d, mmapdict.open(path, "r") as r:
        refused = refuse_blocks(monkeypatch)
        for n in range(100):
            d[n] = model[n] = n
            if n % 3 == 0:
                del d[n], model[n]
            assert len(d) == len(r) == len(model) and r.get(n) == model.get(n)
        assert refused and list(r.items()) == list(d.items()) == list(model.items())
        looks_right(path, model)
        assert mmapdict.verify(path).faults == []
        monkeypatch.undo()
        for n in range(100, 400):
            d[n] = model[n] = n
        assert list(r.items()) == list(d.items()) == list(model.items())
    looks_right(path, model)
    assert mmapdict.verify(path).faults == []
    assert faults.cell(path.read_bytes(), fmt.INDEX_OFFSET)


def test_offsets_that_need_more_bits(path, tiny, monkeypatch):
    monkeypatch.setattr(table, "BITS_MIN", 8)
    monkeypatch.setattr(table, "_ROOM", 1 << 10)
    bits, model = [], {}
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        for n in range(12):
            d[n] = model[n] = n
            bits += [the_block(path)[1][0]] if n else []
            hole = d.create(f"hole {n}", (256 << n,), "u1", sparse=True)
            hole[0] = n
            model[f"hole {n}"] = n
            assert {k: v if isinstance(v, int) else v[0] for k, v in r.items()} == model
            assert all(key in r for key in model) and "none" not in r
            del hole
            if n % 2:
                d[n - 1] = model[n - 1] = -n
    assert bits == sorted(bits) and bits[-1] > bits[0] + 4
    assert mmapdict.verify(path).faults == []
    with mmapdict.open(path, "r") as r:
        assert {k: v if isinstance(v, int) else v[0] for k, v in r.items()} == model


# -- batches, seals, vacuums, copies ----------------------------------------------------------------------------------

def live_blocks(path):
    data = path.read_bytes()
    return [r[0] for r in list(faults.records(data))[:-1]
            if r[2] and not r[3] and b"\x8c\x0emmapdict index" in data[r[0]:min(r[1], r[0] + 110)]]


@pytest.mark.parametrize("durable", [False, True])
def test_a_batch_brings_its_block_along(path, durable):
    model = fill(path, 100)
    with mmapdict.open(path, "r+", durable=durable) as d, mmapdict.open(path, "r") as r:
        before = path.read_bytes()[:d.info()["used"]]
        with pytest.raises(ZeroDivisionError), d.batch():
            d.update((n, n) for n in range(300))
            1 / 0
        assert path.read_bytes()[:len(before)] == before and dict(d) == dict(r) == model
        with d.batch():
            for n in range(200):
                d[n] = model[n] = n
            for n in range(50):
                del d[n], model[n]
                d[f"key {n}"] = "new"
                del model[f"key {n}"]
                model[f"key {n}"] = "new"
            assert dict(r) == plain(path) != model
        assert list(d.items()) == list(r.items()) == list(model.items())
        with d.batch():
            d.clear()
            d.update((n, -n) for n in range(200))
        model = {n: -n for n in range(200)}
        assert dict(d) == dict(r) == model
    assert live_blocks(path) == [faults.cell(path.read_bytes(), fmt.INDEX_OFFSET)]
    assert mmapdict.verify(path).faults == [] and has_slots(path, model)


def test_a_sealed_file_stays_sealed_until_something_changes(path, tmp_path):
    model = fill(path, 100)
    with mmapdict.open(path, "r+") as d:
        d.seal()
    data = path.read_bytes()
    copy = tmp_path / "copy"
    copy.write_bytes(data)                      # another inode
    for file in path, copy:
        with mmapdict.open(file, "r+") as d:
            assert d.sealed and len(d) == 100 and dict(d) == model
            d.pop("none", None)
        report = mmapdict.verify(file)
        assert report.sealed and report.faults == []
        with mmapdict.open(file, "r+") as d:
            del d["key 7"]
            assert not d.sealed
            d["new"] = 1
        changed = {**model, "new": 1}
        del changed["key 7"]
        looks_right(file, changed)
        assert mmapdict.verify(file).faults == [] and has_slots(file, changed)


def test_a_vacuumed_file_has_one_block_that_is_right(path):
    fill(path, 500)
    with mmapdict.open(path, "r+") as d, mmapdict.open(path, "r") as r:
        for n in range(400):
            del d[f"key {n}"]
        d["key 450"] = "new"
        model = dict(d)
        d.vacuum()
        assert list(d.items()) == list(r.items()) == list(model.items()) and len(r) == 100
        d["more"] = model["more"] = 1
    (at,) = live_blocks(path)
    assert at == faults.cell(path.read_bytes(), fmt.INDEX_OFFSET) and has_slots(path, model)
    assert mmapdict.verify(path).faults == [] and the_block(path)[1][9] == os.stat(path).st_ino


def test_a_copy_is_counted_and_mended(path, tmp_path):
    """Its header may be older than what it has."""
    model = fill(path, 100)
    copy = tmp_path / "copy"
    copy.write_bytes(faults.with_cell(path.read_bytes(), faults.LIVE, 7))
    with mmapdict.open(copy, "r") as d:
        assert len(d) == 100 and dict(d) == model
    with mmapdict.open(copy, "r+") as d:
        assert len(d) == 100
        d["more"] = model["more"] = 1
        assert len(d) == 101
    assert the_block(copy)[1][9] == os.stat(copy).st_ino != os.stat(path).st_ino
    looks_right(copy, model)
    assert mmapdict.verify(copy).faults == [] and has_slots(copy, model)


# -- watching ---------------------------------------------------------------------------------------------------------

def delete_some(d, n):
    with d.batch():
        for key in list(d)[:n]:
            del d[key]


CHANGES = {
    "add": lambda d, n: d.update(((n, i), n) for i in range(30)),
    "one": lambda d, n: d.__setitem__((n, "one"), n),
    "replace one": lambda d, n: d.__setitem__((0, 3), n),
    "replace": lambda d, n: d.update((key, n) for key in list(d)[::3][:40]),
    "delete one": lambda d, n: d.popitem() if d else None,
    "delete 10": lambda d, n: delete_some(d, 10),
    "delete 200": lambda d, n: delete_some(d, 200),
    "ten by one": lambda d, n: [d.pop(key) for key in list(d)[:10]],
    "delete and add again": lambda d, n: [(d.pop(key), d.__setitem__(key, n)) for key in list(d)[:5]],
    "sync": lambda d, n: d.sync(),
    "clear": lambda d, n: d.clear(),
    "vacuum": lambda d, n: d.vacuum(),
}
ODDS = [8, 8, 4, 4, 6, 4, 1, 2, 4, 1, 0.3, 0.3]


def follow_keys(known, change):
    """Do to a set of keys what a change says, to itself and its place in the order of things."""
    assert set(change.removed) <= known and not set(change.added) & known
    known.difference_update(change.removed)
    assert set(change.replaced) <= known
    known.update(change.added)


@settings(max_examples=30, deadline=None)
@given(kinds=st.lists(st.sampled_from(list(CHANGES)), max_size=25), every=st.integers(1, 4),
       keys=st.sampled_from([0, 10, 300]))
def test_changes_that_are_told_lead_to_the_mapping(tmp_path_factory, kinds, every, keys):
    path = tmp_path_factory.mktemp("watched") / "file"
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d.update(((0, i), 0) for i in range(keys))
        known = dict(r)
        changes = r.watch(0)
        for n, kind in enumerate(kinds, 1):
            CHANGES[kind](d, n)
            if n % every == 0 or n == len(kinds):
                for change in changes:
                    follow(known, change, r)
                changes = r.watch(0)
                assert known == dict(d) == dict(r)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_changes_that_are_told_while_a_writer_goes_on_lead_to_the_mapping(path, seed, small, monkeypatch):
    if small:
        monkeypatch.setattr(table, "INDEX_FROM", 1)
        monkeypatch.setattr(table, "SLOTS_MIN", 8)
    rng = random.Random(seed)
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        d.update(((0, i), 0) for i in range(300))
        changes = r.watch(60)
        known, keys = dict(r), set(r)

        def write():
            try:
                for n in range(1, 300):
                    CHANGES[rng.choices(list(CHANGES), ODDS)[0]](d, n)
            finally:
                d["end"] = 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for change in changes:
                follow_keys(keys, change)
                for key in change.removed:
                    del known[key]
                known.update((key, r.get(key)) for key in [*change.added, *change.replaced])
                if "end" in change.added:
                    break
        finally:
            thread.join()
        assert known == dict(r) == dict(d) == plain(path)


def test_what_waits_and_is_cleared_is_killed_once(path, tiny):
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r+") as other:
        d["a"], d["b"] = 1, 2
        d.sync()
        d["a"] = 3                              # the first waits for the disk
        other.clear()
        d.sync()
        assert d.free_bytes == d.info()["free_bytes"] and dict(d) == dict(other) == plain(path) == {}
        faults.check_header(path.read_bytes())


@pytest.mark.parametrize("size", [1, 100_000])
def test_no_room_for_the_block_of_a_batch(path, tiny, monkeypatch, size):
    monkeypatch.setattr(table, "SLOTS_MIN", 16)
    model = fill(path, 11)
    real = store.File.write

    def full(file, offset, buffers):
        if isinstance(buffers, bytes) and b"mmapdict index" in buffers:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, offset, buffers)

    monkeypatch.setattr(store.File, "write", full)
    with mmapdict.open(path, "r+") as d, mmapdict.open(path, "r") as r:
        with d.batch():
            d["a"] = d["b"] = d["c"] = bytes(size)
        model.update(a=bytes(size), b=bytes(size), c=bytes(size))
        assert dict(d) == dict(r) == plain(path) == model and mmapdict.verify(path).faults == []
        monkeypatch.setattr(store.File, "write", real)
        d["more"] = model["more"] = 1
        assert dict(d) == dict(r) == plain(path) == model and mmapdict.verify(path).faults == []


@pytest.mark.parametrize("length", [4090, 4097, 5000, 70000])
def test_a_key_that_is_a_payload_gets_its_small_array(path, length):
    with mmapdict.open(path, "w") as d:
        d.update((i, np.zeros(3)) for i in range(100))
        d["x" * length] = np.arange(3)
        d.update({"y" * length: np.arange(4)})
        with d.batch():
            d["z" * length] = np.arange(5)
        assert d["x" * length].tolist() == [0, 1, 2] and len(d["z" * length]) == 5
    assert len(plain(path)["y" * length]) == 4 and len(plain(path)) == 103
    assert mmapdict.verify(path).faults == []


def damage_slots(d, path, value):
    """Let every slot of the index block be another number, behind the back of the handle `d`."""
    block = d._index.table
    with open(path, "r+b") as f:
        f.seek(block.start + 8 * table.FIRST_SLOT)
        f.write(struct.pack("<Q", value) * (block.mask + 1))


def test_an_index_block_without_a_free_slot_breaks_a_batch_and_nothing_else(path):
    with mmapdict.open(path, "w") as d:
        d.update((i, np.full(3, i)) for i in range(100))
        with pytest.raises(mmapdict.CorruptError, match="nothing of the batch is stored"), d.batch():
            d["first"] = 1
            damage_slots(d, path, 33)
            d["second"] = 2
        assert len(d) == 100 and "first" not in d and d[7].tolist() == [7, 7, 7]
        d["after"] = 3
        assert len(d) == len(plain(path)) == 101


def test_a_listing_that_the_header_does_not_agree_with_is_made_by_walking(path):
    with mmapdict.open(path, "w") as d:
        d.update((i, np.full(3, i)) for i in range(100))
        damage_slots(d, path, 0)
        with mmapdict.open(path, "r") as other:
            assert list(other) == list(range(100)) and [entry.key for entry in other.entries()] == list(range(100))


def test_a_follower_waits_for_a_writer_that_is_kept_waiting_inside(path):
    fill(path)
    with mmapdict.open(path, "r+") as d, mmapdict.open(path, "r") as r:
        file, commit = d._index.file, fmt.COMMIT_OFFSET >> 3
        assert r._index.moment() is not None
        file.store_cell(commit, file.cells[commit] + 1)
        assert r._index.moment() is None
        timer = threading.Timer(1e-3, lambda: file.store_cell(commit, file.cells[commit] + 1))
        timer.start()
        try:
            assert r._index.moment(100_000) is not None
        finally:
            timer.join()
