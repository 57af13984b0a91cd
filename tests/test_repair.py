"""Repair: every record that is whole comes back, nothing else does, the report names what was lost, and the damaged
file is not touched.

What is whole is judged by the bytes that were damaged, and by pickle: repair's own ways of finding records are not
used.
"""

import errno
import os
import pathlib
import pickle
import random
import re
import stat
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import faults
import judge
import mmapdict
from mmapdict import BusyError, CorruptError, FormatError, Lost, birth, repair
from budget import slow_examples
from fuzz import exercise, mutators
from mmapdict import format as fmt

pytestmark = pytest.mark.leaves_damaged_file
FOLDER = pathlib.Path(__file__).resolve().parent / "data" / "v1"
GOLDEN = {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.mmapdict"))}


FOREIGN = {
    "empty": (b"", "empty"), "one byte": (b"x", "starts with"), "zeros": (bytes(5000), "zero bytes"),
    "npy": (b"\x93NUMPY\x01\x00" + bytes(200), ".npy"), "sqlite": (b"SQLite format 3\x00" + bytes(300), "SQLite"),
    "noise": (random.Random(1).randbytes(1000), "not an mmapdict file"),
    "pickle": (pickle.dumps({"a": 1, "b": [1.5, "text"] * 50}, 4), "plain pickle"),
    "a newer version": (faults.with_cell(GOLDEN["example"], 16, 2), "format version 2")}


def run(code):
    """Run code in a process of its own; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Entry:
    """An entry of a file: where it is, and what it gives by itself."""

    def __init__(self, start, end, live, key, value):
        self.start, self.end, self.live, self.key, self.value = start, end, live, key, value


def entries(data):
    """All entries up to the STOP, each loaded by itself."""
    *found, _ = faults.records(data)
    hidden = b"".join(data[start:end] for start, end, live, entry in found
                      if live and not entry and b"numpy" in data[start:end])
    result = []
    for start, end, live, entry in found:
        if entry:
            one = pickle.loads(data[:256] + hidden + b"(G" + data[start + 2:end] + b".")
            (key, value), = judge.fingerprint_items(one)
            result.append(Entry(start, end, live, repr(key), value))
    return result


ENTRIES = {name: entries(data) for name, data in GOLDEN.items()}
ITEMS = {name: {repr(key): value for key, value in judge.fingerprint_items(judge.plain(FOLDER / (name + ".mmapdict")))}
         for name in GOLDEN}


class Damaged:
    """A damaged file and what repair made of it.

    Parameters
    ----------
    path : Path
    data : bytes
        The damaged bytes.
    thorough : bool
        Load the result by every unpickler.
    """

    def __init__(self, path, data, thorough=True):
        self.path = path
        self.output = path.with_name(path.stem + ".repaired" + path.suffix)
        self.output.unlink(missing_ok=True)
        faults.overwrite(path, data)
        self.data = bytes(data)
        self.report = repair(path)
        assert path.read_bytes() == self.data
        str(self.report), repr(self.report)
        assert self.report.whole == (self.report.output is None) != self.output.exists()
        self.items = (judge.load_every_way if thorough else judge.plain)(path if self.report.whole else self.output)
        assert list(self.items) == self.report.saved
        if thorough and not self.report.whole:
            built = self.output.read_bytes()
            faults.check_header(built)
            assert repair(self.output).whole

    def check(self, name, *spans):
        """Judge it: the bytes of a golden file in each of `spans` were changed."""
        def hit(start, end):
            return any(low < end and start < high for low, high in spans)

        cleared = [start for start, _, live, entry in list(faults.records(GOLDEN[name]))[:-1] if live and not entry
                   and b"dict.clear" in GOLDEN[name][start:start + 70]]
        clear_hit = any(hit(start, start + 56) for start in cleared)
        found = {repr(key): value for key, value in judge.fingerprint_items(self.items)}
        for key, value in ITEMS[name].items():
            entry = [e for e in ENTRIES[name] if e.key == key and e.live][-1]
            if not hit(entry.start, entry.end):
                assert found.get(key) == value, key
            elif key not in found and len(self.data) > 256 and name != "keys" and not hit(0, 256):
                assert any(lost.offset < entry.end for lost in self.report.lost)
        for key, value in found.items():
            made_of = [e for e in ENTRIES[name] if e.value == value and e.key == key]
            if made_of and any(e.live for e in made_of):
                assert key in ITEMS[name] or clear_hit
            elif made_of:                   # dead, and its Op became that of a live one
                assert any(hit(e.start, e.start + 2) for e in made_of)
            else:                           # in the bytes of a payload
                assert any(hit(e.start, e.end) for e in ENTRIES[name])


@pytest.fixture
def damaged(tmp_path):
    return lambda data, thorough=True: Damaged(tmp_path / "run.mmapdict", data, thorough)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_whole_file_is_left_alone(name, damaged):
    found = damaged(GOLDEN[name])
    assert found.report.whole and found.report.lost == [] and found.report.doubtful == []
    assert "whole" in str(found.report) and found.report.output is None
    assert list(found.path.parent.iterdir()) == [found.path]
    found.check(name)


@pytest.mark.parametrize("name", ["example", "changes", "cleared", "shared", "empty", "masked", "dead_in_clear"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_file_that_is_cut_anywhere(step, name, damaged):
    data = GOLDEN[name]
    for size in (*range(3), *range(3, len(data), step if len(data) < 1500 else 7 * step)):
        if size < 3:
            with pytest.raises(FormatError):
                damaged(data[:size])
            continue
        found = damaged(data[:size], size % 16 == 0)
        found.check(name, (size, len(data)))
        whole = size > list(faults.records(data))[-1]
        assert found.report.whole == whole
        cut = [e for e in ENTRIES[name] if e.start + 40 < size < e.end]
        if cut:
            lost, = (lost for lost in found.report.lost if lost.offset == cut[0].start)
            assert "cut off by the end" in lost.why


@pytest.mark.parametrize("mask", [1, 0x80, 0xFF])
@pytest.mark.parametrize("name", ["example", "changes"])
def test_every_byte_of_the_header(name, mask, damaged):
    data = GOLDEN[name]
    for at in range(256):
        bad = bytearray(data)
        bad[at] ^= mask
        if at == 16 and bad[16] <= 15 and bad[16] > 1:
            with pytest.raises(FormatError, match="format version"):
                damaged(bad)
            continue
        found = damaged(bad, at % 8 == 0)
        found.check(name)
        assert found.report.lost == [] or at in range(fmt.STOP_OFFSET, fmt.STOP_OFFSET + 8)
        opens = True
        try:
            mmapdict.open(found.path, "r").close()
        except (FormatError, CorruptError):
            opens = False
        assert opens or not found.report.whole
        if opens and (fmt.LIVE_OFFSET <= at < fmt.INDEX_OFFSET or fmt.BOOT_ID_OFFSET <= at < fmt.RESERVED_OFFSET):
            assert found.report.whole, "damage in what is only a hint is no damage"


@pytest.mark.parametrize("name", ["example", "changes", "dead_before_kill"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_the_records(step, name, damaged):
    data = GOLDEN[name]
    for at in range(256, len(data), step):
        bad = bytearray(data)
        bad[at] ^= 0x11
        damaged(bad, at % 16 == 0).check(name, (at, at + 1))


@pytest.mark.parametrize("size", [64, 512, 4096])
@pytest.mark.parametrize("name", GOLDEN)
def test_lost_sectors(name, size, damaged):
    data = GOLDEN[name]
    for start in range(0, len(data), size):
        bad = bytearray(data)
        bad[start:start + size] = bytes(len(bad[start:start + size]))
        try:
            found = damaged(bad)
        except FormatError:
            assert start == 0
        else:
            found.check(name, (start, start + size))


edits = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 1 << 16), st.integers(0, 7)),
    st.tuples(st.just("byte"), st.integers(0, 1 << 16), st.integers(0, 255)),
    st.tuples(st.just("cell"), st.integers(0, 1 << 13), st.sampled_from(
        [0, 1, 255, 256, 264, 2**31, 2**32 - 1, 2**47, 2**56, 2**63, 2**64 - 1])),
    st.tuples(st.just("length"), st.integers(0, 1 << 16), st.sampled_from([0, 8, 2**32, 2**64 - 1])),
    st.tuples(st.just("zeros"), st.integers(0, 1 << 16), st.sampled_from([8, 64, 512])),
    st.tuples(st.just("cut"), st.integers(256, 1 << 16), st.just(0)))


@given(name=st.sampled_from(sorted(GOLDEN)), changes=st.lists(edits, min_size=1, max_size=3))
@settings(max_examples=100)
def test_any_damage(name, changes, tmp_path_factory):
    data = GOLDEN[name]
    bad = bytearray(data)
    spans = []
    for kind, at, how in changes:
        at %= len(data)
        if kind == "cut":
            del bad[max(at, 257):]
            spans.append((max(at, 257), 1 << 40))
            continue
        if kind in ("cell", "length"):
            at -= at % 8
            if kind == "length":
                found = [start for start, *_ in list(faults.records(data))[:-1]] or [256]
                at = found[at % len(found)] + 2
            new = struct.pack("<Q", how)
        elif kind == "flip":
            new = bytes([data[at] ^ 1 << how])
        else:
            new = bytes([how]) if kind == "byte" else bytes(how)
        new = new[:max(0, len(bad) - at)]
        bad[at:at + len(new)] = new
        spans.append((at, at + len(new)))
    try:
        found = Damaged(tmp_path_factory.mktemp("any") / "run.mmapdict", bad)
    except FormatError:
        assert any(low < 256 for low, _ in spans)
    else:
        found.check(name, *spans)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_kind(name, tmp_path):
    data, word = FOREIGN[name]
    path = tmp_path / "run.mmapdict"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=word):
        repair(path)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == data


# -- what is not seen at a glance ---------------------------------------------------------------------------------

def stored(path, items, **options):
    with mmapdict.open(path, "w", **options) as d:
        d.update(items)
    return path.read_bytes()


def starts(data):
    """The offsets of the records, by key."""
    *found, stop = faults.records(data)
    groups = b"".join(data[start:end] for start, end, _, entry in found if not entry)
    return {next(iter(pickle.loads(data[:256] + groups + b"(G" + data[start + 2:end] + b"."))): (start, end)
            for start, end, _, entry in found if entry}


def test_the_report_names_what_was_saved_and_lost(damaged, path):
    data = bytearray(stored(path, {"a": 1, ("b", 2): [1, 2], "c": np.arange(10), "d": 4}))
    where = starts(data)
    data[where["b", 2][1] - 4] ^= 1
    found = damaged(data)
    start, end = where["b", 2]
    lost, = found.report.lost
    assert (lost.offset, lost.end, lost.key) == (start, end, ("b", 2)) and "check value" in lost.why
    assert found.report.saved == ["a", "c", "d"]
    text = str(found.report)
    for words in ("saved 3 keys", repr(found.report.output)[1:-1], "'a'", "lost 1", "('b', 2)", str(start)):
        assert words in text


def test_a_long_report_stays_short(damaged, path):
    data = bytearray(stored(path, {(n, "x" * 10_000): n for n in range(200)}))
    data[0] ^= 1
    report = damaged(data).report
    report.saved.insert(0, 1 << 40_000)         # has no repr
    text = str(report)
    assert "and 181 more" in text and "very large int" in text and len(text) < 10_000


def test_arrays_come_back_without_their_globals(damaged, path):
    masked = np.ma.array([1, 2], mask=[0, 1])
    data = bytearray(stored(path, {"a": np.arange(100.), "m": masked}))
    first, second = [r for r in list(faults.records(data))[:-1] if not r[3]]
    data[first[0] + 40] ^= 1
    data[second[0]:second[1]] = bytes(second[1] - second[0])
    found = damaged(data)
    assert np.array_equal(found.items["a"], np.arange(100.)) and len(found.report.lost) == 2
    assert found.items["m"].mask.tolist() == [False, True]


def test_dead_records_do_not_come_back(damaged, path):
    with mmapdict.open(path) as d:
        d["a"] = 1
        d["a"] = 2
        d["b"] = 3
        del d["b"]
        d["c"] = 4
    data = bytearray(path.read_bytes())
    data[40:256] = bytes(216)
    assert damaged(data).items == {"a": 2, "c": 4}


def test_an_older_value_of_a_damaged_one_comes_back_if_it_is_live(damaged, path):
    """As after a power cut: the newer is not whole, and the older was not killed because of that."""
    data = bytearray(stored(path, {"a": 1, "b": 2, "c": 3}))
    again = stored(path, {"a": 1, "b": 2, "c": 3, "z": 0})
    with mmapdict.open(path) as d:
        d["a"] = "newer"
    data = bytearray(path.read_bytes())
    assert data[257] == fmt.DEAD and again
    data[257] = fmt.LIVE
    assert damaged(data).items["a"] == "newer"
    *_, last, _ = faults.records(data)
    data[last[1] - 3] ^= 1
    found = damaged(data)
    assert found.items["a"] == 1 and found.report.lost[0].key == "a"


def test_a_batch_that_deletes(damaged, path):
    with mmapdict.open(path) as d:
        d.update(a=1, b=2, c=3)
        with d.batch():
            del d["a"]
            d["d"] = 4
    data = bytearray(path.read_bytes())
    data[257] = fmt.LIVE            # the writer died before the kill
    assert damaged(data).items == {"b": 2, "c": 3, "d": 4}
    data[0] ^= 1
    assert damaged(data).items == {"b": 2, "c": 3, "d": 4}


@pytest.mark.parametrize("lost", ["op", "mark"])
def test_the_bytes_that_say_whether_a_record_counts(lost, damaged, path):
    data = stored(path, {"a": 1, "b": 2, "c": 3})
    start, _ = starts(data)["b"]
    bad = bytearray(data)
    bad[start + (lost == "op")] = 0
    found = damaged(bad)
    assert found.items == {"a": 1, "b": 2, "c": 3} and not found.report.whole
    assert str(start) in str(found.report)
    with mmapdict.open(path) as d:
        del d["b"]
    bad = bytearray(path.read_bytes())
    bad[start + (lost == "op")] = 0
    assert damaged(bad).items == {"a": 1, "c": 3}


def test_a_value_that_no_unpickler_would_load_is_lost(damaged, path):
    """A text of more than 4096 bytes is not covered; if it is no UTF-8, the whole file could not be loaded."""
    data = bytearray(stored(path, {"a": 1, "t": ["é" * 5000, "end"], "z": 2}))
    start, _ = starts(data)["t"]
    at = data.index("é".encode() * 100, start)
    data[at + 1000] = 0xFF
    found = damaged(data)
    assert found.items == {"a": 1, "z": 2} and found.report.lost[0].key == "t"
    assert "UTF-8" in found.report.lost[0].why


@pytest.mark.parametrize("ops, words", [
    (b"", "push 0 objects"), (b"K\x01K\x02", "push 2 objects"), (b"K\x01.", "STOP"), (b"R", "too few"),
    (b"h\x00", "neither an array"), (b"NQ", "BINPERSID"), (b"K\x01\x8c\x01a\x93", "no constant texts"),
    (b"]r\x40\0\0\0r\x40\0\0\0", "put twice"), (b"]r\x40\0\0\0r\x42\0\0\0", "follow each other"),
    (b"q\x00", "may not"), (b"j\x41\0\0\0", "not put"), (b"\xff", "unknown"),
    (b"]r\x40\0\0\0r\xff\xff\xff\x7f", "memo"), (b"X\xff\xff\xff\xff", "runs"), (b"\x8d" + b"\xff" * 8, "runs"),
    (b"h\x01h\x03\x81(K\x01(J\0\0\0\x40th\x02\x8c\x03|u1\x85R\x89C\x01\x00tb", "needs"),
    (b"h\x01h\x03\x81(K\x01(" + b"K\x01" * 70 + b"th\x02\x8c\x03|u1\x85R\x89C\x01\x00tb", "."),
    (b"h\x01h\x03\x81(K\x01(\x8b\xa0\x0f\0\0" + b"\x01" * 4000 + b"th\x02\x8c\x03|u1\x85R\x89C\x01\x00tb", "."),
    (b"h\x01h\x03\x81(K\x01(K\x00\x8a\x09" + b"\xff" * 8 + b"\x00th\x02\x8c\x03|u1\x85R\x89C\x00tb", "shape"),
])
def test_whole_records_with_impossible_values(ops, words, damaged, path):
    data = stored(path, {"a": np.arange(3), "z": 2})
    stop = list(faults.records(data))[-1]
    pieces, end, _ = fmt.encode_record(stop, fmt.file_tag(data[24:40]), [b"\x8c\x01k" + ops])
    bad = data[:stop] + b"(" + b"".join(pieces) + b"."
    found = damaged(bad)
    assert list(found.items) == ["a", "z"]
    lost, = found.report.lost
    assert (lost.offset, lost.end, lost.key) == (stop, end, "k")
    assert re.search(words, lost.why)


@pytest.mark.parametrize("content", [b"\x8c\x05numpy\x8c\x06matrix\x93q\x01", b"h\x00NK\x05s", fmt.CLEAR + b"0",
                                     fmt.DROP + b"\x8c\x01z" + fmt.DROPPED + b"N", fmt.DROP + b"](et"])
def test_hidden_records_that_nobody_knows_are_left_out(content, damaged, path):
    data = stored(path, {"a": np.arange(3), "z": 2})
    stop = list(faults.records(data))[-1]
    pieces, _, _ = fmt.encode_record(stop, fmt.file_tag(data[24:40]), [content], False)
    found = damaged(data[:stop] + b"(" + b"".join(pieces) + b".")
    assert found.report.saved == ["a", "z"] and found.report.lost == []
    note, = found.report.notes
    assert note.startswith("a hidden record at offset %d was left out: " % stop)
    # One that only pushes constants is of a later version, and no damage.
    pieces, _, _ = fmt.encode_record(stop, fmt.file_tag(data[24:40]), [b"\x8c\x03newC\x01x0"], False)
    assert damaged(data[:stop] + b"(" + b"".join(pieces) + b".").report.whole


def test_what_verify_finds_is_damage(damaged, path):
    """All but hints in the header, which the next writer puts right."""
    data = stored(path, {"a": np.arange(3), "b": [[]] * 2})
    group = data.index(fmt.GROUPS[fmt.ARRAYS])
    start, = [start for start, end, _, _ in list(faults.records(data))[:-1] if start < group < end]
    bad = bytearray(data)
    bad[start + 1] = fmt.DEAD
    found = damaged(bad)
    assert found.items["a"].tolist() == [0, 1, 2] and "globals" in found.report.notes[0]
    bad = bytearray(data)
    bad[starts(data)["a"][1] - 4] = 1
    assert damaged(bad).report.saved == ["a", "b"] and "padding" in damaged(bad).report.notes[0]
    stop = list(faults.records(data))[-1]
    ops = b"\x8c\x01k]r\x40\0\0\0j\x40\0\0\0\x86"
    pieces, _, _ = fmt.encode_record(stop, fmt.file_tag(data[24:40]), [ops])
    found = damaged(data[:stop] + b"(" + b"".join(pieces) + b".")
    assert found.items["k"] == ([], []) and "memo" in found.report.notes[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the harness works in forked children")
@pytest.mark.parametrize("first, count", [(2_000_000, 60), *(pytest.param(2_000_000 + 500 * n, 500,
                                          marks=pytest.mark.slow) for n in range(1, slow_examples(40) + 1))])
def test_whatever_was_damaged_the_repaired_file_is_whole(first, count, tmp_path, monkeypatch):
    """By verify, by plain pickle, and by the mapping, which agree; but what a value names can fail when it is run."""
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    seeds = exercise.make_seeds(tmp_path)
    path, output = tmp_path / "run.mmapdict", tmp_path / "out.mmapdict"
    work = []
    for number in range(first, first + count):
        name, mutant = mutators.numbered(seeds, number)
        path.write_bytes(mutant.data)
        try:
            report = repair(path, output)
        except FormatError:
            continue
        if report.whole:
            kinds = {fault.kind for fault in mmapdict.verify(path).faults}
            assert kinds <= {"header", "order"}, (number, mutant.story)
        else:
            assert mmapdict.verify(output).faults == [], (number, mutant.story)
            work.append((number, mutators.Mutant(output.read_bytes(), "", True, mutant.story), None))
            output.unlink()
    assert len(work) > count / 5
    counts, wrong = exercise.run_all(work, tmp_path)
    # Only who looks a name up can tell whether it is a class, and what state that takes.
    assert [told for told in wrong if not re.search("says UnpicklingError: (NEWOBJ|.*state is not)", told[1])] == []
    assert not any(outcome.startswith("refused") for outcome in counts)


def test_nothing_of_the_file_is_run(damaged, path, tmp_path):
    target = tmp_path / "ran"
    data = stored(path, {"a": 1})
    stop = list(faults.records(data))[-1]
    command = ("touch %s" % target).encode()
    ops = b"\x8c\x05posix\x8c\x06system\x93" + b"X" + struct.pack("<I", len(command)) + command + b"\x85R"
    pieces, _, _ = fmt.encode_record(stop, fmt.file_tag(data[24:40]), [b"\x8c\x01k" + ops])
    bad = bytearray(data[:stop] + b"(" + b"".join(pieces) + b".")
    bad[8] ^= 1
    path.write_bytes(bad)
    report = repair(path)
    assert report.saved == ["a", "k"] and not target.exists()
    path.unlink()
    os.unlink(report.output)


# -- files inside a file ------------------------------------------------------------------------------------------

def outer_with(path, inner):
    """A file whose values hold `inner`, an older copy of itself, at several alignments, and with few records."""
    with mmapdict.open(path) as d:
        for n in range(3):
            d["outer", n] = bytes(n * 8) + inner
            d["array", n] = np.frombuffer(bytes(n * 8) + inner, np.uint8)
        d["last"] = 1
    return path.read_bytes()


@pytest.fixture
def nested(path):
    with mmapdict.open(path) as d:
        for n in range(300):
            d["inner", n] = n
    with mmapdict.open(path) as d:
        for n in range(300):
            del d["inner", n]
    with mmapdict.open(path) as d:
        for n in range(300):
            d["inner", n] = n
    inner = path.read_bytes()
    with mmapdict.open(path) as d:
        for n in range(300):
            del d["inner", n]
    return outer_with(path, inner)


OWN = {"last"} | {(kind, n) for kind in ("outer", "array") for n in range(3)}


def test_a_file_inside_a_file_is_a_value(nested, damaged):
    assert set(damaged(nested).items) == OWN
    for at in (0, 8, 24, 48, 255):
        bad = bytearray(nested)
        bad[at] ^= 0xFF
        assert set(damaged(bad).items) == OWN
    bad = bytearray(nested)
    bad[:256] = bytes(256)
    assert set(damaged(bad).items) == OWN


@pytest.mark.parametrize("header", ["whole", "id", "zeros"])
def test_records_in_a_value_whose_own_record_is_damaged_are_not_taken(header, nested, damaged):
    for key in sorted(OWN - {"last"}):
        start, end = starts(nested)[key]
        bad = bytearray(nested)
        bad[start:start + 64] = bytes(64)
        if header == "id":
            bad[24:32] = b"otherid!"
        elif header == "zeros":
            bad[:256] = bytes(256)
        found = damaged(bad)
        assert set(found.items) == OWN - {key}
        assert any(lost.offset <= start < lost.end for lost in found.report.lost)


# -- behind the STOP ----------------------------------------------------------------------------------------------

def test_leftovers_behind_the_stop_do_not_count(damaged, path):
    data = stored(path, {"a": 1, "b": 2})
    *_, last, stop = faults.records(data)
    tail = data[stop:]
    unpublished = data[:last[0]] + b"." + data[last[0] + 1:]
    unpublished = faults.with_cell(unpublished, faults.STOP, last[0])
    assert damaged(unpublished).items == {"a": 1} and damaged(unpublished).report.whole
    bad = bytearray(unpublished)
    bad[8] ^= 1                     # the header alone is damaged
    assert damaged(bad).items == {"a": 1}
    bad = bytearray(unpublished)
    bad[280] ^= 1                   # a record is, but the header says where the end is
    assert damaged(bad).items == {}
    assert tail == b"."


def test_records_behind_a_stop_that_is_older_than_they_are(damaged, path):
    """After a power cut: the header and the later records reached the disk, a MARK did not."""
    data = stored(path, {"a": 1, "b": 2, "c": np.arange(9), "d": 4})
    start, _ = starts(data)["b"]
    bad = bytearray(data)
    bad[start] = fmt.STOP
    assert pickle.loads(bad) == {"a": 1}
    found = damaged(bad)
    assert list(found.items) == ["a", "b", "c", "d"] and found.report.lost == []
    # and some of the records did not, either
    at, end = starts(data)["c"]
    bad[at:end] = bytes(end - at)
    found = damaged(bad)
    assert list(found.items) == ["a", "b", "d"]
    assert [(lost.offset, lost.end) for lost in found.report.lost] == [(at, end)]


def test_records_that_the_header_speaks_of_and_that_are_not_there(damaged, path):
    data = stored(path, {"a": 1, "b": 2})
    start, end = starts(data)["b"]
    bad = bytearray(data)
    bad[start:] = b"." + bytes(end - start)
    found = damaged(bad)
    assert found.items == {"a": 1}
    assert [(lost.offset, lost.end) for lost in found.report.lost] == [(start, end)]


def test_records_behind_damage_count_though_the_header_is_older(damaged, path):
    data = stored(path, {"a": 1, "b": 2, "c": 3, "d": 4})
    start, end = starts(data)["b"]
    bad = bytearray(faults.with_cell(data, faults.STOP, start))
    bad[start + 12:end] = bytes(end - start - 12)
    assert damaged(bad).items == {"a": 1, "c": 3, "d": 4}


# -- seals --------------------------------------------------------------------------------------------------------

def test_a_seal_tells_of_damage_inside_values(damaged, path):
    with mmapdict.open(path) as d:
        d.update(a=np.arange(1000), b=np.arange(1000), c=3)
        d.seal()
    data = bytearray(path.read_bytes())
    assert damaged(data).report.whole
    start, end = starts(data)["b"]
    data[end - 1000] ^= 1
    found = damaged(data)
    assert found.report.doubtful == ["b"] and set(found.items) == {"a", "b", "c"} and not found.report.lost
    assert "'b'" in str(found.report) and "sealed" in str(found.report)


def test_what_looks_deleted_in_a_sealed_file_is_brought_back(damaged, path):
    with mmapdict.open(path) as d:
        d.update(a=np.arange(1000), b=np.arange(1000), c=3)
        d.seal()
    data = bytearray(path.read_bytes())
    start, _ = starts(data)["b"]
    data[start + 1] = fmt.DEAD
    found = damaged(data)
    assert not found.report.whole and found.report.doubtful == ["b"] and not found.report.lost
    assert list(found.items) == ["a", "b", "c"] and "looked deleted" in str(found.report)


@pytest.mark.parametrize("size", [3, 8, 100, 255, 256])
def test_a_file_that_is_cut_inside_its_header_has_lost_everything(size, damaged):
    found = damaged(bytearray(GOLDEN["example"][:size]))
    (lost,) = found.report.lost
    assert not found.report.whole and found.items == {} and lost.offset == size and "inside its header" in lost.why


def test_what_the_header_speaks_of_is_lost_if_the_file_ends_before(damaged, path):
    with mmapdict.open(path) as d:
        d["a"] = 1
    size = path.stat().st_size
    with mmapdict.open(path) as d:
        d["b"] = 2
    found = damaged(path.read_bytes()[:size - 1] + b".")
    (lost,) = found.report.lost
    assert not found.report.whole and found.items == {"a": 1} and lost.offset == size - 1


@pytest.mark.leaves_damaged_file
@pytest.mark.parametrize("synced", [False, True])
def test_a_writer_does_not_go_on_where_the_records_end_too_early(synced, path):
    with mmapdict.open(path) as d:
        for i in range(4):
            d[i] = np.arange(100)
        if synced:
            d.sync()
    data = bytearray(path.read_bytes())
    start, _ = starts(data)[2]
    data[start] = fmt.STOP
    if synced:
        data[fmt.BOOT_ID_OFFSET] ^= 1           # power may have been cut, but what was synced was on the disk
    path.write_bytes(data)
    for mode in "r", "r+":
        with pytest.raises(CorruptError, match="some there are whole"):
            mmapdict.open(path, mode)
    assert path.read_bytes() == data
    report = repair(path)
    with mmapdict.open(report.output, "r") as d:
        assert list(d) == [0, 1, 2, 3]


def test_a_seal_that_is_damaged_itself_is_told_and_judges_nothing(damaged, path):
    with mmapdict.open(path) as d:
        d.update(a=np.arange(1000), b=np.arange(1000), c=3)
        d.seal()
    data = bytearray(path.read_bytes())
    start, end = max(starts(data).values(), key=lambda place: place[1])
    table = struct.pack("<Q", starts(data)["b"][0])             # of the seal's table, behind all entries
    data[data.index(table, end)] ^= 0x10
    found = damaged(data)
    assert set(found.items) == {"a", "b", "c"} and not found.report.lost and not found.report.doubtful
    assert not found.report.whole and "own checksum does not match" in str(found.report)
    assert "damage inside of values does not show" in str(found.report)


# -- where the result goes ----------------------------------------------------------------------------------------

@pytest.fixture
def bad(path):
    data = bytearray(stored(path, {"a": 1, "b": 2}))
    data[0] ^= 1
    path.write_bytes(data)
    return path


def test_an_output_of_ones_own(bad, tmp_path):
    target = tmp_path / "elsewhere"
    assert repair(os.fsencode(bad), target).output == os.fspath(target)
    assert judge.load_every_way(target) == {"a": 1, "b": 2}
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "file"]


def test_the_default_output_keeps_the_extension(bad, tmp_path):
    for name, expected in (("run.mmapdict", "run.repaired.mmapdict"), ("run", "run.repaired"),
                           (".hidden", ".hidden.repaired"), ("a.b.p", "a.b.repaired.p")):
        path = tmp_path / name
        path.write_bytes(bad.read_bytes())
        assert repair(path).output == os.fspath(tmp_path / expected)


def test_an_output_that_is_there_is_kept(bad, tmp_path):
    target = tmp_path / "file.repaired"
    target.write_text("mine")
    before = bad.read_bytes()
    for arguments in ((), (target,), (bad,)):
        with pytest.raises(FileExistsError):
            repair(bad, *arguments)
    assert target.read_text() == "mine" and bad.read_bytes() == before and len(os.listdir(tmp_path)) == 2


def test_replace_keeps_the_original(bad, tmp_path):
    before = bad.read_bytes()
    os.chmod(bad, 0o600)
    link = tmp_path / "link"
    link.symlink_to(bad.name)
    report = repair(link, replace=True)
    assert report.output == os.fspath(bad) and report.original == os.fspath(tmp_path / "file.damaged")
    assert judge.load_every_way(bad) == {"a": 1, "b": 2} and link.is_symlink()
    assert pathlib.Path(report.original).read_bytes() == before and report.original in str(report)
    assert stat.S_IMODE(bad.stat().st_mode) == 0o600
    assert repair(bad, replace=True).whole
    assert sorted(os.listdir(tmp_path)) == ["file", "file.damaged", "link"]
    bad.write_bytes(before)
    with pytest.raises(FileExistsError):
        repair(bad, replace=True)
    assert bad.read_bytes() == before
    with pytest.raises(TypeError):
        repair(bad, tmp_path / "x", replace=True)


def test_the_result_is_no_more_readable_than_the_original(bad):
    os.chmod(bad, 0o640)
    assert stat.S_IMODE(os.stat(repair(bad).output).st_mode) == 0o640


@pytest.mark.parametrize("replace", [False, True])
def test_a_full_disk_leaves_everything_as_it_was(bad, replace, tmp_path, monkeypatch):
    before = bad.read_bytes()
    fault = faults.Fault().install(monkeypatch)
    fault.lasting = True
    fault.arm()
    with pytest.raises(OSError) as caught:
        repair(bad, replace=replace)
    assert caught.value.errno == errno.ENOSPC and fault.raised
    assert os.listdir(tmp_path) == ["file"] and bad.read_bytes() == before


def test_a_replacement_that_fails_leaves_everything_as_it_was(bad, tmp_path, monkeypatch):
    before = bad.read_bytes()

    def refuse(*_):
        raise OSError(errno.EPERM, "refused")

    monkeypatch.setattr(birth.os, "replace", refuse)
    with pytest.raises(OSError):
        repair(bad, replace=True)
    assert bad.read_bytes() == before and os.listdir(tmp_path) == ["file"]


def test_a_writer_that_is_inside_is_waited_for_by_nobody(path):
    with mmapdict.open(path) as d, d.batch():
        d["a"] = 1
        with pytest.raises(BusyError):
            repair(path)


def test_what_was_lost_can_be_sent_to_another_process():
    lost = Lost(8, None, ("k", 1), "why")
    assert pickle.loads(pickle.dumps(lost)) == lost and "('k', 1)" in str(lost)


# -- hostile files ------------------------------------------------------------------------------------------------

GUARD = """
import resource
import mmapdict
limit = int(open("/proc/self/statm").read().split()[0]) * 4096 + (%d << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
report = mmapdict.repair(%r)
print(len(report.saved), len(report.lost))
"""


def hostile(count, tag, check):
    """A header, and `count` starts of records that bear the right tag, one every 32 bytes."""
    header = bytearray(fmt.encode_header(struct.pack("<QQ", tag, 0), bytes(16)))
    rows = np.zeros((count, 32), np.uint8)
    at = 256 + 32 * np.arange(count, dtype=np.uint64)
    rows[:, 0], rows[:, 1] = fmt.MARK, fmt.LIVE
    rows[:, 2:6] = np.frombuffer(struct.pack("<I", 16 * count), np.uint8)
    rows[:, 10], rows[:, 11] = fmt.SHORT_BINBYTES, 200
    rows[:, 12:20] = (at ^ np.uint64(tag)).view(np.uint8).reshape(-1, 8)
    rows[:, 25] = fmt.SPAN_MAX >> 8
    if check:
        rows[:, 12:20] = np.random.default_rng(1).integers(0, 256, (count, 8))
    return bytes(header) + rows.tobytes()


@pytest.mark.parametrize("kind", ["right tags", "other tags", "headers", "marks"])
def test_a_file_full_of_starts_takes_linear_time_and_little_memory(kind, path):
    def made(count):
        if kind == "headers":
            return fmt.encode_header(bytes(16), bytes(16)) * (count // 8)
        if kind == "marks":
            return fmt.encode_header(bytes(16), bytes(16)) + b"(G" * (16 * count)
        return hostile(count, 0x1122334455667788, kind == "other tags")

    checked = []

    def count_checked_bytes(n):
        path.write_bytes(made(n))
        checked.clear()
        report = repair(path, path.with_name("out"))
        os.unlink(report.output)
        return sum(checked)

    with pytest.MonkeyPatch.context() as patch:
        for module in (fmt, sys.modules["mmapdict.finding"]):
            patch.setattr(module, "crc32", lambda data, *a: (checked.append(len(data)), zlib.crc32(data, *a))[1])
        small, large = count_checked_bytes(1000), count_checked_bytes(8000)
    assert large <= 10 * small + 1000
    path.write_bytes(made(8000))
    assert run(GUARD % (64, os.fspath(path))).split()[0] == "0"


def test_declared_sizes_take_no_memory(path):
    data = stored(path, {"a": np.arange(10), "b": "text", 1 << 4000: b"x" * 5000, "z": 1})
    rng = random.Random(3)
    found = list(faults.records(data))[:-1]
    bad = bytearray(data)
    for start, *_ in found[1:-1]:
        for at in range(start + 2, start + 60):
            trial = bytearray(data)
            trial[at:at + 8] = rng.choice([b"\xff" * 8, b"\xff" * 7 + b"\x7f", struct.pack("<Q", 1 << 40)])
            bad[at:at + 8] = trial[at:at + 8]
            path.write_bytes(trial)
            report = repair(path, path.with_name("out"))
            if report.output:
                os.unlink(report.output)
    path.write_bytes(bad)
    assert run(GUARD % (64, os.fspath(path))).split()[0] != "0"


def test_a_repair_goes_into_a_file_or_in_place_and_not_both(path, tmp_path):
    with mmapdict.open(path) as d:
        d["a"] = 1
    before = path.read_bytes()
    with pytest.raises(TypeError, match="either an output, or replace=True"):
        mmapdict.repair(path, tmp_path / "out", replace=True)
    assert os.listdir(tmp_path) == [path.name] and path.read_bytes() == before
