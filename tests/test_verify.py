"""Verify: no fault in what a healthy writer made, and each fault at its place."""

import os
import pathlib
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import faults
import judge
import mmapdict
import strategies
from children import Child
from mmapdict import format as fmt
from mmapdict import literals
from mmapdict.errors import CorruptError, FormatError
from mmapdict.verify import Fault, Report, verify

GOLDEN = sorted((pathlib.Path(__file__).parent / "data").glob("*/*.mmapdict"))
CELLS = {"stop": 48, "live": 56, "dead": 64, "memo": 72, "index": 80, "state": 88, "synced": 112}

leaves_damaged_file = pytest.mark.leaves_damaged_file


@pytest.fixture
def made(path):
    """A file with an array, pickled values, a masked array, a dead record."""
    with mmapdict.open(path, "w") as d:
        d["a"] = np.arange(6, dtype="<u2")
        d["shared"] = [[1]] * 2
        d["gone"] = 1
        d["masked"] = np.ma.masked_equal(np.arange(5), 3)
        d["again"] = {"x": [[2]] * 2}
        d["text"] = "t" * 5000
        del d["gone"]
    return path


def found(path, data=None):
    """The faults of a file, after it was given other bytes."""
    if data is not None:
        path.write_bytes(data)
    report = verify(path)
    assert str(report).splitlines()[-1].startswith(str(path)) and repr(report)
    return report.faults


def only(path, data, kind, offset, message, key=None):
    """Assert that there is one fault, this one."""
    (fault,) = found(path, data)
    assert (fault.kind, fault.offset, fault.key) == (kind, offset, key) and message in fault.message, fault
    assert str(offset) in str(fault) and kind in str(fault)


def record_of(path, key):
    """Offset of a key's record, where its value starts, and its end."""
    with mmapdict.open(path, "r") as d:
        offset = d._index.offsets[key]
        record, _, at, _, _ = d._index.read_head(offset)
        return offset, at, record.end


def tag_of(data):
    return fmt.file_tag(data[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET])


def with_record(data, parts, entry=True, tag=None, live=None):
    """`data` with one more record at its end, and the header's cells right."""
    stop = faults.cell(data, faults.STOP)
    pieces, end, _ = fmt.encode_record(stop, tag_of(data) if tag is None else tag, parts, entry)
    body = b"".join(p if isinstance(p, bytes) else bytes(p.data) for p in pieces)
    data = data[:stop] + b"(" + body + b"."
    data = faults.with_cell(data, faults.STOP, end)
    live = faults.cell(data, faults.LIVE) + entry if live is None else live
    return faults.with_cell(data, faults.LIVE, live)


def with_value(data, ops, key="new"):
    return with_record(data, [literals.encode_literal(key) + ops])


def flipped(data, at, mask=1):
    data = bytearray(data)
    data[at] ^= mask
    return bytes(data)


# -- nothing to find ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_files_have_no_fault(path):
    report = verify(path)
    assert report.ok and report.faults == [] and not report.sealed
    assert report.size == path.stat().st_size
    assert str(report).endswith("not sealed") and ": OK; " in str(report)
    with mmapdict.open(path, "r") as d:
        assert report.keys == len(d)
    # A row that was not published is nothing to be mended.
    dead = path.stem.startswith("dead") and not path.stem.endswith(("count", "shortening"))
    assert any("died" in note for note in report.notes) == dead
    assert any("replaced" in note or "superseded" in note for note in report.notes) == \
        (path.stem in ("replacing", "superseded"))


@given(st.lists(st.tuples(strategies.keys(), strategies.values() | strategies.arrays() | strategies.masked_arrays()),
                max_size=6))
def test_what_the_mapping_writes_has_no_fault(tmp_path_factory, items):
    path = tmp_path_factory.mktemp("verify") / "file"
    with mmapdict.open(path, "w", trusted=True) as d:
        for key, value in items:
            d[key] = value
    assert found(path) == []


def test_the_whole_life_of_a_file_has_no_fault(path):
    with mmapdict.open(path, "w", durable=True) as d:
        for i in range(30):
            d[i % 7] = [i, [i]] * 2
            d["array", i % 5] = np.arange(i * 100)
            assert verify(path).ok
        with d.batch():
            d["both"] = 1
            del d[3]
            d["array", 0] = np.zeros(1000)
            assert verify(path).ok
        assert verify(path).ok and verify(path).keys == len(d)
        d.clear()
        assert verify(path).ok and verify(path).keys == 0
        d.create("hole", (5, 2000), "u1")
        d.sync()
    with mmapdict.open(path) as d:              # not durable: what it replaces stays live for a while
        d["hole"] = 2
        d.update({"x": 1, "y": np.ones((300, 300), order="F")})
        report = verify(path)
        assert report.ok and report.keys == 3
        d.seal()
        report = verify(path)
        assert report.ok and report.sealed and "; 3 keys" in str(report)
        d["z"] = 1
        report = verify(path)
        assert report.ok and not report.sealed and "taken off" in report.notes[0]
        d.vacuum()
        assert verify(path).ok and not verify(path).notes
    assert verify(path).ok


def test_reading_changes_nothing(made):
    before = made.read_bytes(), made.stat().st_mtime_ns
    verify(os.fsencode(made))
    assert (made.read_bytes(), made.stat().st_mtime_ns) == before


WRITER = """
n = 0
tell("go")
while True:
    with mmapdict.open(path) as d:
        for i in range(40):
            n += 1
            d[n % 13] = [[n]] * 2
            d["array", n % 5] = np.arange(n % 700)
            if n % 7 == 0:
                d.pop(n % 3, None)
            if n % 50 == 0:
                d.clear()
            if n % 11 == 0:
                with d.batch():
                    d["one"] = d["two"] = n
                    d.pop(n % 4, None)
        if n % 400 == 0:
            d.seal()
        if n % 1000 == 0:
            d.vacuum()
"""


def test_a_file_that_is_written_to_is_never_faulty(path):
    mmapdict.open(path, "w").close()
    with Child(path, WRITER) as writer:
        assert writer.hear() == "go"
        for _ in range(150):
            report = verify(path)
            assert report.faults == [], str(report)
        writer.kill()
    assert found(path) == []


# -- the header -----------------------------------------------------------------------------------------------------

@leaves_damaged_file
@pytest.mark.parametrize("at", range(256))
def test_each_byte_of_the_header_is_looked_at(made, at):
    data = made.read_bytes()
    for mask in (1, 0x80):
        if at == 16 and mask == 1:
            continue                            # version 0: below
        new = flipped(data, at, mask)
        if 41 <= at < 48 or 96 <= at < 112 or 32 <= at < 40:
            assert found(made, new) == []       # commit, boot id, the half of the id that no record bears
            continue
        if at == 40:
            made.write_bytes(new)
            report = verify(made)
            assert report.ok and bool(report.notes) == (mask == 1)
            continue
        if at == 88 and mask == 1:
            made.write_bytes(new)
            report = verify(made)
            assert report.ok and "about to be replaced" in report.notes[0]
            continue
        field = max(start for start in (0, 7, 8, 16, 24, *CELLS.values(), *range(120, 252), 252) if start <= at)
        if field == 72 and 66 <= faults.cell(new, 72) < 1000 or field == 112 and faults.cell(new, 112) < 1000:
            assert found(made, new) == []       # it may be
            continue
        (fault,) = found(made, new)
        assert (fault.kind, fault.offset) == ("header", field), fault


@leaves_damaged_file
def test_a_version_of_zero_or_nonsense_is_a_fault_and_a_newer_one_is_not_ours(made):
    data = made.read_bytes()
    only(made, faults.with_cell(data, 16, 0), "header", 16, "found 0")
    only(made, faults.with_cell(data, 16, 1 << 40), "header", 16, "expected format version 1")
    made.write_bytes(faults.with_cell(data, 16, 2))
    with pytest.raises(FormatError, match="upgrade"):
        verify(made)


@leaves_damaged_file
def test_a_header_that_is_gone_is_a_list_of_faults_if_records_are_there(made):
    data = made.read_bytes()
    with mmapdict.open(made) as d:
        d["inside"] = np.frombuffer(data * 2, "u1").copy()
    data = made.read_bytes()
    faults_found = found(made, bytes(256) + data[256:])
    assert {fault.offset for fault in faults_found} >= {0, 8, 16, 24, 252}
    assert all(fault.kind == "header" for fault in faults_found)
    assert verify(made).keys == 6


@leaves_damaged_file
@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x04N.", bytes(300), b"\x93NUMPY" + bytes(500)])
def test_other_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(FormatError, match="not an mmapdict file"):
        verify(path)


def test_no_file_and_a_folder_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "none")
    with pytest.raises((FormatError, OSError)):
        verify(tmp_path)


@leaves_damaged_file
def test_cells_that_differ_from_the_records_are_named(made):
    data = made.read_bytes()
    for name, value, message in [("live", 9, "live is 9; the records say 5"), ("dead", 0, "dead is 0"),
                                 ("memo", 63, "memo is 63"), ("memo", 64, "memo is 64; the records say 66 to"),
                                 ("memo", 100_000, "memo is 100000; the records say 66"), ("index", 256, "index block"),
                                 ("state", 3, "no such state"), ("synced", len(data), "the records say 0 to")]:
        only(made, faults.with_cell(data, CELLS[name], value), "header", CELLS[name], message)
    end = faults.cell(data, faults.STOP)
    for stop in (256, 3):
        only(made, faults.with_cell(data, 48, stop), "header", 48, f"stop is {stop}; the records say {end}")
    for stop in (end + 8, len(data) + 7, 1 << 60):
        only(made, faults.with_cell(data, 48, stop), "header", 48, f"the records end at {end}: what was behind is lost")


@leaves_damaged_file
def test_a_header_that_is_older_than_the_records_is_no_fault_after_a_start_of_the_machine(made, monkeypatch):
    data = made.read_bytes()
    old = data
    for name in ("live", "dead", "memo", "synced"):
        old = faults.with_cell(old, CELLS[name], 66 if name == "memo" else 0)
    old = faults.with_cell(old, 48, 256)
    assert {fault.offset for fault in found(made, old)} == {48, CELLS["live"], CELLS["dead"]}
    monkeypatch.setattr(sys.modules["mmapdict.verify"], "boot_id", lambda: b"another boot ..!")
    report = verify(made)
    assert report.ok and len(report.notes) == 1
    assert f"live is 0; the records say {report.keys}" in report.notes[0]
    # More records than there are may have been lost, whatever happened.
    only(made, faults.with_cell(old, 48, len(data) + 7), "header", 48, "what was behind is lost")


# -- records --------------------------------------------------------------------------------------------------------

@leaves_damaged_file
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_cut_is_found(step, made):
    data = made.read_bytes()
    for size in range(3, len(data), step):
        (fault, *more) = found(made, data[:size])
        assert fault.kind == "cut" or more and more[-1].kind == "cut", (size, fault)
        assert all(f.kind in ("cut", "record") for f in (fault, *more))
    assert found(made, data + b"anything") == []


@leaves_damaged_file
def test_every_byte_but_those_that_have_no_checksum_is_found(made):
    data = made.read_bytes()
    *records, _ = faults.records(data)
    with mmapdict.open(made, "r") as d:
        free = {at for k in ("a", "masked") for at in range(d.entry(k).offset, d.entry(k).offset + d.entry(k).nbytes)}
        keys = {offset: key for key, offset in d._index.offsets.items()}
    missed = set()
    for start, end, live, _ in records:
        step = 1 if end - start < 1000 else 211
        for at in range(start, end, step):
            if not live and at >= start + 28 or at in free:
                continue
            report = found(made, flipped(data, at))
            if not report:
                missed.add(at)
                continue
            places = {fault.offset for fault in report if fault.kind in ("record", "value", "padding", "cut")}
            assert any(start <= place < end for place in places), (at, report)
            if start in keys and start + 60 < at:
                assert all(fault.key in (keys.get(start), None) for fault in report), (at - start, report)
    # The text's bytes; the mask's, and the zeros of a filler before it: seals are for them.
    where = {keys[max(start for start in keys if start <= at)]: at for at in missed}
    assert where.keys() == {"text", "masked"} and len(missed) < 60


@leaves_damaged_file
def test_what_stands_behind_damage_is_checked_too(made):
    data = made.read_bytes()
    for key in ("a", "shared", "masked", "again"):
        start, at, end = record_of(made, key)
        new = flipped(data, at - 2)
        (fault,) = found(made, new)
        assert (fault.kind, fault.offset) == ("record", start)
        report = verify(made)
        assert report.keys == 4 and f"bytes {start} to {end} belong to no whole record" in report.notes
        made.write_bytes(data)
    start, at, end = record_of(made, "shared")
    second, at_second, _ = record_of(made, "again")
    report = found(made, flipped(flipped(data, at), second + 2))
    assert [(f.kind, f.offset, f.key) for f in report] == [("record", start, "shared"), ("record", second, "again")]


@leaves_damaged_file
def test_a_mark_that_became_a_stop_is_told(made):
    data = bytearray(made.read_bytes())
    start, _, _ = record_of(made, "masked")
    data[start] = ord(".")
    (fault,) = found(made, bytes(data))
    assert (fault.kind, fault.offset, fault.key) == ("record", start, "masked")
    assert "STOP in place of MARK" in fault.message and verify(made).keys == 4


@leaves_damaged_file
def test_sectors_of_zeros_are_found(path):
    with mmapdict.open(path, "w") as d:
        d.update((i, "x" * i) for i in range(200))      # in one step, else there would be index blocks that are dead
    data = path.read_bytes()
    for at in range(512, len(data) - 512, 4096 + 512):
        torn = data[:at] + bytes(512) + data[at + 512:]
        report = found(path, torn)
        assert bool(report) == (torn != data) and all(at - 512 <= fault.offset < at + 512 for fault in report)
        assert 180 < verify(path).keys <= 200
    report = found(path, data[:512] + bytes(len(data) - 512))
    assert report[-1].kind == "cut" and verify(path).keys < 10


@leaves_damaged_file
def test_a_file_inside_a_file_is_not_taken_for_its_records(made):
    inner = made.read_bytes()
    with mmapdict.open(made) as d:
        d["copy"] = np.frombuffer(inner, "u1").copy()
        d["end"] = 1
    data = made.read_bytes()
    start, at, end = record_of(made, "copy")
    (fault,) = found(made, flipped(data, at))
    assert (fault.kind, fault.offset, fault.key) == ("record", start, "copy")
    assert f"bytes {start} to {end} belong to no whole record" in verify(made).notes


@leaves_damaged_file
def test_many_records_that_are_none_take_no_longer(path):
    with mmapdict.open(path, "w") as d:
        d["x"] = 1
        d["hostile"] = np.zeros(1 << 20, "u1")
        offset = d.entry("hostile").offset
    data = bytearray(path.read_bytes())
    tag = tag_of(data)
    for at in range(offset, offset + (1 << 18), 8 * 8):
        body = b"C\x0e" + struct.pack("<QIH", at ^ tag, 0, 4096) + b"0"
        data[at:at + 10 + len(body)] = b"(G" + struct.pack("<Q", 1 << 15) + body
        data[at + 10 + (1 << 15)] = ord("1")
    start, at, _ = record_of(path, "hostile")
    (fault,) = found(path, bytes(data[:start + 20]) + b"\xff" + bytes(data[start + 21:]))
    assert fault.kind == "record" and fault.offset == start


@leaves_damaged_file
def test_damage_in_a_file_that_somebody_has_locked_is_found_before_its_stop(made):
    fcntl = pytest.importorskip("fcntl")
    data = made.read_bytes()
    start, at, _ = record_of(made, "a")
    made.write_bytes(flipped(data, at - 1))
    with open(made, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        report = verify(made)
    assert [(f.kind, f.offset) for f in report.faults] == [("record", start)] and report.keys == 4
    assert "a writer was inside all the time" in report.notes[-1]


@leaves_damaged_file
@pytest.mark.parametrize("source", ["values", "masked", "big_texts", "changes", "dead_after_publish", "cleared"])
@given(st.data())
def test_whatever_is_damaged_no_other_error_is_raised_and_what_is_whole_is_what_pickle_loads(
        tmp_path_factory, source, data):
    (golden,) = [path for path in GOLDEN if path.stem == source]
    content = bytearray(golden.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        what = data.draw(st.sampled_from(["set", "huge", "cut", "zeros", "more"]))
        if what == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif what == "huge":
            content[at:at + 8] = struct.pack("<Q", data.draw(st.sampled_from([2**64 - 1, 2**63, 2**32, len(content)])))
        elif what == "cut":
            del content[at:at + data.draw(st.sampled_from([1, 8, 512]))]
        elif what == "zeros":
            content[at:at + 64] = bytes(64)
        else:
            content[at:at] = content[:data.draw(st.integers(1, 300))]
        content = content or bytearray(b"x")
    path = tmp_path_factory.mktemp("damaged") / "file"
    path.write_bytes(content)
    try:
        report = verify(path)
    except FormatError:
        return
    assert str(report)
    if report.ok:
        with mmapdict.open(path, "r") as d:
            assert list(d) == list(judge.plain(path)) and len(d) == report.keys


# -- entries --------------------------------------------------------------------------------------------------------

@leaves_damaged_file
@pytest.mark.parametrize("ops, message", [
    (b"K\x01K\x02", "push 2 objects"), (b"", "push 0 objects"), (b"K\x010", "push 0 objects"), (b"(K\x01", "push"),
    (b"K\x01\xff", "unknown opcode 0xff"), (b"N\x86", "too few objects"), (b"X\xff\xff\xff\x7fabc", "runs past"),
    (b"h\x00", "neither an array nor"), (b"Nh\x000", "BINGET may not stand here"), (b"N.", "STOP may not"),
    (b"N\x94", "MEMOIZE may not"), (b"Nq\x50", "BINPUT may not"), (b"I1\n", "INT may not stand here"),
    (b"cos\nsystem\n", "GLOBAL may not"), (b"\x82\x01", "EXT1 may not"), (b"NQ", "BINPERSID may not"),
    (b"\x80\x04N", "PROTO may not"), (b"\x97", "NEXT_BUFFER may not"),
    (b"j\x40\0\0\0", "LONG_BINGET of memo index 64, which was not put"),
    (b"Nr\x50\0\0\0r\x50\0\0\0", "memo index 80 is put twice"),
    (b"Nr\x50\0\0\0r\xff\xff\xff\xff", "would take"),
    (b"N" + b"(" * 3, "push 4 objects"), (b"(", "push a mark"),
])
def test_values_that_no_unpickler_would_load_are_found(made, ops, message):
    data = faults.with_cell(made.read_bytes(), CELLS["memo"], 1000)
    new = with_value(data, ops)
    stop = faults.cell(data, faults.STOP)
    (fault,) = found(made, new)
    assert (fault.kind, fault.key) == ("value", "new") and message in fault.message
    assert stop < fault.offset < len(new)


@leaves_damaged_file
def test_values_that_name_whatever_are_no_fault(made):
    data = made.read_bytes()
    assert found(made, with_value(data, b"\x8c\x02os\x8c\x06system\x93")) == []


@leaves_damaged_file
@pytest.mark.parametrize("ops", [
    b"h\x01K\x01", b"h\x01h\x03\x81(K\x01", b"h\x08(", b"h\x01h\x03\x81(K\x01(K\x03th\x02\x8c\x03<i2\x85R\x89C\x02aatb",
    b"h\x01h\x03\x81(K\x01(K\x01th\x02\x8c\x02|O\x85R\x89C\x08aaaaaaaatb", b"h\x09",
])
def test_arrays_that_are_none_are_found(made, ops):
    data = made.read_bytes()
    (fault,) = [f for f in found(made, with_value(data, ops)) if f.kind != "alignment"]
    assert (fault.kind, fault.key) == ("value", "new") and fault.offset > faults.cell(data, faults.STOP)


@leaves_damaged_file
@pytest.mark.parametrize("key", [b"]", b"\x93", b"h\x00", b"G\x7f\xf8" + bytes(6), b"\x8c\x01\xff",
                                 b"X\xff\xff\xff\xff", b"(" * 150 + b"t" * 150])
def test_keys_that_are_none_are_found(made, key):
    data = made.read_bytes()
    stop = faults.cell(data, faults.STOP)
    new = with_record(data, [key + b"N"], live=faults.cell(data, faults.LIVE))
    (fault,) = found(made, new)
    assert fault.kind in ("key", "value") and fault.offset > stop


@leaves_damaged_file
def test_memo_indices_are_judged(made):
    data = faults.with_cell(made.read_bytes(), CELLS["memo"], 1000)

    def put(index):
        return b"]r" + struct.pack("<I", index)

    stop = faults.cell(data, faults.STOP)
    only(made, with_value(data, put(7)), "memo", stop, "index 7 is reserved", "new")
    only(made, with_value(data, put(64)), "memo", stop, "index 64 is put also by the record at", "new")
    only(made, with_value(data, put(999) + put(1000)[1:]), "header", CELLS["memo"],
         "memo is 1000; the records say 1001 to")
    assert found(made, with_value(data, put(999))) == []
    one = with_value(data, put(100) + put(101)[1:], "one")
    new = with_value(one, put(101) + put(102)[1:], "two")
    only(made, new, "memo", faults.cell(one, faults.STOP), "index 101", "two")


@leaves_damaged_file
@pytest.mark.parametrize("group", fmt.GROUPS)
def test_what_a_group_puts_is_put_once(made, group):
    data = made.read_bytes()
    new = with_record(data, [fmt.GROUPS[group]], entry=False)
    only(made, new, "memo", faults.cell(data, faults.STOP), "is put also by the record at")


@leaves_damaged_file
@pytest.mark.parametrize("lost", ["arrays", "masks"])
def test_arrays_whose_globals_are_gone_are_found(made, lost):
    data = made.read_bytes()
    group = {"arrays": fmt.ARRAYS, "masks": fmt.MASKS}[lost]
    at = data.index(fmt.GROUPS[group])
    (start, end), = [r[:2] for r in list(faults.records(data))[:-1] if r[0] < at < r[1]]
    new = bytearray(faults.with_cell(data, faults.DEAD, faults.cell(data, faults.DEAD) + end - start))
    new[start + 1] = fmt.DEAD
    report = found(made, bytes(new))
    assert {(f.kind, f.key) for f in report} == \
        ({("globals", "masked")} if lost == "masks" else {("globals", "a"), ("globals", "masked")})
    assert all(lost in f.message for f in report)


@leaves_damaged_file
@pytest.mark.parametrize("nbytes, unit", [(100, 16), (2000, 64), (1 << 20, 4096)])
def test_payloads_at_wrong_places_are_found(made, nbytes, unit):
    data = made.read_bytes()
    head = b"h\x01h\x03\x81(K\x01(" + literals.encode_literal(nbytes) + b"th\x02\x8c\x03|u1\x85R\x89"
    right = fmt.array_payload(bytes(nbytes), nbytes, 1)
    wrong = fmt.Payload(right.head, right.data, nbytes, unit, unit // 2)
    key = literals.encode_literal("new")
    assert found(made, with_record(data, [key + head, right, b"tb"])) == []
    (fault,) = found(made, with_record(data, [key + head, wrong, b"tb"]))
    assert (fault.kind, fault.key) == ("alignment", "new") and f"no multiple of {unit}" in fault.message
    assert fault.offset % unit == unit // 2


@leaves_damaged_file
def test_ends_at_wrong_places_are_found(made):
    data = made.read_bytes()
    key = literals.encode_literal("new")
    for wrong in (fmt.Payload(fmt.bytes_head(5000), bytes(5000), 5000, 8, 3),
                  fmt.Payload(b"X" + struct.pack("<I", 5000), b"t" * 5000, 5000, 8, 3)):
        (fault,) = found(made, with_record(data, [key, wrong, b""]))
        assert fault.kind == "alignment" and "5000 bytes ends at" in fault.message
    (fault,) = found(made, with_record(data, [b"", wrong, b"N"]))
    assert fault.kind == "alignment" and fault.key == "t" * 5000
    head = key + b"h\x01h\x03\x81(K\x01(M\x89\x13th\x02\x8c\x03|u1\x85R\x89"       # 5001 bytes
    payload = fmt.array_payload(bytes(5001), 5001, 1)
    (fault,) = found(made, with_record(data, [head, payload, b"tb"]))
    assert fault.kind == "alignment" and "5001 bytes of an array end" in fault.message


@leaves_damaged_file
def test_paddings_that_are_not_zero_are_found(made):
    data = made.read_bytes()
    padded = [r[0] for r in list(faults.records(data))[:-1] if r[2] and r[3] and data[r[0] + 13] > 15]
    assert padded
    for start in padded:
        only(made, flipped(data, start + 14 + 15), "padding", start + 14 + 15, "not all zero")


@leaves_damaged_file
def test_a_memo_index_that_asks_for_gigabytes_is_found(made):
    new = with_value(made.read_bytes(), b"]r\0\0\0\x80")
    assert ("memo", "new") in {(fault.kind, fault.key) for fault in found(made, new)}


@leaves_damaged_file
def test_an_entry_that_should_be_dead_is_found(made):
    with mmapdict.open(made) as d:
        d["a"] = 1
    data = bytearray(made.read_bytes())
    starts = [r[0] for r in list(faults.records(bytes(data)))[:-1] if not r[2] and r[3]]
    for start in starts:
        new = bytearray(data)
        new[start + 1] = fmt.LIVE
        report = found(made, bytes(new))
        kinds = {(f.kind, f.offset) for f in report}
        assert ("header", CELLS["dead"]) in kinds
        is_a = any(f.kind == "order" for f in report)
        assert kinds - {("header", CELLS["dead"])} == {("order", start) if is_a else ("header", CELLS["live"])}


@leaves_damaged_file
@pytest.mark.parametrize("ops, message", [
    (b"NQ", "BINPERSID"), (b"K\x01\x8c\x05range\x93", "no constant texts"),
    (b"\x8c\x03sys(\x8c\x04path\x93", "too few"),
    (b"\x8c\x03sys\x8c\x04path\x85\x93", "no constant texts"), (b"]r\x41\0\0\0r\x41\0\0\0", "put twice"),
    (b"]r\x41\0\0\0r\x43\0\0\0", "follow each other"), (b"\x8c\x02\xff\xff", "UTF-8"), (b"\x97", "NEXT_BUFFER"),
    (b"h\x01h\x03\x81(K\x01(" + b"K\0" * 70 + b"th\x02\x8c\x03|u1\x85R\x89C\0tb", "shape"),
])
def test_values_that_cannot_be_loaded_are_found(made, ops, message):
    data = made.read_bytes()
    (fault,) = found(made, with_value(data, ops))
    assert (fault.kind, fault.key) == ("value", "new") and message in fault.message


@leaves_damaged_file
@pytest.mark.parametrize("ops", [
    b"(C\x01%b0K\x01tN", b"\x8c\x01k](NC\x01%b0Ne", b"C\x01%b0\x8c\x01kN", b"\x8c\x01kNC\x01%b0",
    b"\x8c\x01kh\x01h\x03\x81(K\x01(C\x01%b0K\x00th\x02\x8c\x03|u1\x85R\x89C\x00tb",
    b"\x8c\x01kh\x01h\x03\x81(K\x01(K\x00th\x02\x8c\x03|u1\x85R\x89C\x01%b0C\x00tb",
    b"\x8c\x01kh\x01h\x03\x81(K\x01(K\x00th\x02\x8c\x03|u1\x85R\x89C\x00tbC\x01%b0",
])
def test_fillers_of_anything_but_zeros_are_found(made, ops):
    data = made.read_bytes()
    assert found(made, with_record(data, [ops % b"\0"])) == []
    (fault,) = found(made, with_record(data, [ops % b"x"]))
    assert fault.kind == "padding" and made.read_bytes()[fault.offset:fault.offset + 1] == b"x"


def test_bytes_that_pickle_throws_away_are_no_filler(path):
    value = []
    value.append((value, b"abc", "x"))
    with mmapdict.open(path) as d:
        d["recursive"] = value[0]
    assert b"000j" in path.read_bytes() and found(path) == []


# -- hidden records -------------------------------------------------------------------------------------------------

@leaves_damaged_file
def test_hidden_records_that_are_not_known_may_push_constants(made):
    data = made.read_bytes()
    for content in (b"N", b"", b"NNN", b"N0K\x01", b"C\x03abc0", b"\x8c\x05index\x8c\x01x"):
        assert found(made, with_record(data, [content], entry=False)) == []


@leaves_damaged_file
@pytest.mark.parametrize("content, message", [
    *((content, "more than to push") for content in (
        b"(N", b"N.", b"\x80\x03", b"1", b"\xff", b"N\x94", b"K\x01q\x3f", b"h\x00", b"j\x40\0\0\0", b"h\0NK\x05s",
        b"\x8c\x02os\x8c\x06system\x93", b"NP0\n", b"\x97", b"N00", b"\x8c\x01\xff", fmt.CLEAR + b"0",
        b"\x8c\x05numpy\x8c\x06matrix\x93q\x01", fmt.GROUPS[fmt.ARRAYS] + b"N", fmt.SEAL + b"R")),
    (fmt.DROP + b"K", "runs past"),
    (fmt.DROP + b"K\x01NN\x87R", "does not end behind its key"),
    (fmt.DROP + b"K\x01" + fmt.DROPPED + b"N", "does not end"),
    (fmt.DROP + b"](et", "list"),
])
def test_hidden_records_that_do_more_are_found(made, content, message):
    data = made.read_bytes()
    (fault,) = found(made, with_record(data, [content], entry=False))
    assert fault.kind == "hidden" and message in fault.message
    assert fault.offset > faults.cell(data, faults.STOP)


@leaves_damaged_file
def test_what_takes_keys_out_counts(made):
    data, at = made.read_bytes(), record_of(made, "a")[0]
    drop = fmt.drop_parts(literals.key_parts("a"))
    new = with_record(data, drop, entry=False, live=4)
    assert found(made, new) == []               # it waits for the disk
    new = faults.with_cell(new, faults.SYNCED, faults.cell(new, faults.STOP))
    only(made, new, "order", at, "takes its place", "a")
    assert verify(made).keys == 4
    new = with_record(data, [fmt.CLEAR], entry=False, live=0)
    made.write_bytes(faults.with_cell(new, faults.SYNCED, faults.cell(new, faults.STOP)))
    report = verify(made)
    assert report.keys == 0 and {f.kind for f in report.faults} == {"order"} and len(report.faults) == 5
    made.write_bytes(with_record(data, fmt.drop_parts(literals.key_parts("absent")), entry=False))
    assert verify(made).ok


# -- seals ----------------------------------------------------------------------------------------------------------

@pytest.fixture
def sealed(made):
    with mmapdict.open(made) as d:
        d.seal()
    return made


@leaves_damaged_file
def test_a_sealed_file_shows_every_changed_byte(sealed):
    report = verify(sealed)
    assert report.ok and report.sealed and str(report).endswith(" sealed")
    data = sealed.read_bytes()
    *records, stop = faults.records(data)
    with mmapdict.open(sealed, "r") as d:
        keys = {offset: key for key, offset in d._index.offsets.items()}
    for start, end, live, _ in records:
        for at in range(start + 2, end, max(1, (end - start) // 40)):
            report = found(sealed, flipped(data, at))
            if live:
                assert any(start <= fault.offset < end for fault in report), at
            if start in keys and at > start + 50:
                assert any(fault.kind == "seal" and fault.key == keys[start] and fault.offset == start
                           for fault in report)
    for at in range(32, 40):
        only(sealed, flipped(data, at), "seal", 0, "not those that were sealed")


@leaves_damaged_file
def test_payload_bytes_that_changed_are_named_by_key_and_offset(sealed):
    data = sealed.read_bytes()
    with mmapdict.open(sealed, "r") as d:
        at, start = d.entry("a").offset, d._index.offsets["a"]
    only(sealed, flipped(data, at + 3), "seal", start, "not those that were sealed", "a")


@leaves_damaged_file
def test_records_that_died_behind_the_seals_back_are_named(sealed):
    data = bytearray(sealed.read_bytes())
    start, _, end = record_of(sealed, "a")
    data[start + 1] = fmt.DEAD
    report = found(sealed, bytes(data))
    assert ("seal", start, "a") in {(f.kind, f.offset, f.key) for f in report}
    assert {f.kind for f in report} == {"seal", "header"}


@leaves_damaged_file
def test_a_damaged_seal_is_named(sealed):
    data = sealed.read_bytes()
    *records, stop = faults.records(data)
    (fault,) = found(sealed, flipped(data, records[-1][1] - 100))
    assert fault.kind == "seal" and "own checksum" in fault.message
    assert verify(sealed).sealed


# -- the report -----------------------------------------------------------------------------------------------------

def test_a_report_is_neither_true_nor_false(made):
    with pytest.raises(TypeError, match="report.ok"):
        bool(verify(made))


def test_the_text_of_a_report_is_short():
    report = Report("here")
    report.faults = [Fault(i, "value", "broken", "k" * 500) for i in range(1000)]
    lines = str(report).splitlines()
    assert len(lines) == 102 and all(len(line) < 200 for line in lines)
    assert "... and 900 more faults" in lines[-2] and "1,000 faults" in lines[-1]
    assert "a very large int" in str(Fault(1, "key", "x", 1 << 100_000))


# -- the same files, opened -----------------------------------------------------------------------------------------

@leaves_damaged_file
@pytest.mark.parametrize("content, message", [
    (b"K\x01q\x3f", "more than to push"), (fmt.DROP + b"K", "runs past"), (fmt.DROP + b"](et", "list"),
    (fmt.DROP + b"K\x01NN\x87R", "does not end behind its key"),
])
def test_hidden_records_that_do_more_are_refused_at_their_place(made, content, message):
    data = made.read_bytes()
    made.write_bytes(with_record(data, [content], entry=False))
    for mode in "r", "r+":
        with pytest.raises(CorruptError, match=message) as caught:
            mmapdict.open(made, mode)
        assert caught.value.offset == faults.cell(data, faults.STOP) and "5 keys" in str(caught.value)


@leaves_damaged_file
def test_arrays_that_numpy_cannot_make_are_found_and_refused(made):
    """No size of the shape is too large, and it needs no byte; numpy multiplies all sizes but the zero."""
    sizes = b"".join(b"\x8a\x06" + n.to_bytes(6, "little") for n in (0, 1 << 40, 1 << 40))
    ops = b"h\x01h\x03\x81(K\x01(" + sizes + b"th\x02\x8c\x03|u1\x85R\x89C\0tb"
    (fault,) = found(made, with_value(made.read_bytes(), ops))
    assert (fault.kind, fault.key) == ("value", "new") and "no such array" in fault.message
    with mmapdict.open(made, "r") as d:
        with pytest.raises(CorruptError, match="an array that numpy cannot make"):
            d["new"]
        assert d["a"].tolist() == list(range(6))
