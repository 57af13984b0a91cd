"""The golden files of tests/data: they load by every unpickler, the mapping reads and changes them, and today's encoder
still makes the same bytes."""

import json
import pathlib
import pickletools
import shutil
import stat
import struct
import sys

import numpy
import pytest

import judge
import listing
import mmapdict
from test_docs import load_maker

FOLDER = pathlib.Path(__file__).resolve().parent / "data" / "v1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="ascii"))
NAMES = sorted(EXPECTED)
FILE_SIZE, ALL_SIZES = 20_000, 200_000
# How numpy's objects inside other values are reduced, and which columns and how much room a log or a store takes, is no
# part of the format, and may change.
FIXED = [name for name in NAMES if name not in ("numpy_values", "tables")]
GROUPS = {  # hidden records that memoise numpy's classes: first memo index, content
    1: bytes.fromhex("8c056e756d70798c076e6461727261799371018c056e756d70798c056474797065937102284b00748571036802"
                     "8c037c753185527104"),
    8: bytes.fromhex("8c086e756d70792e6d618c0b4d61736b656441727261799371088c086e756d70792e6d618c066e6f6d61736b937109"),
}


@pytest.fixture(scope="module")
def maker():
    return load_maker()


def golden(name):
    return FOLDER / (name + ".mmapdict")


def test_every_file_is_expected_and_small(maker):
    assert set(NAMES) == set(maker.FILES) == {path.stem for path in FOLDER.glob("*.mmapdict")}
    assert {path.name.partition(".")[0] for path in FOLDER.glob("*.dis.txt")} == set(NAMES)
    sizes = [golden(name).stat().st_size for name in NAMES]
    assert max(sizes) < FILE_SIZE and sum(sizes) < ALL_SIZES


@pytest.mark.parametrize("name", NAMES)
def test_every_unpickler_loads_what_was_stored(name):
    found = judge.fingerprint_items(judge.load_every_way(golden(name)))
    judge.assert_same_items(found, EXPECTED[name], name)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_sees_what_was_stored_and_leaves_no_trace(name):
    before = golden(name).read_bytes(), golden(name).stat().st_mtime_ns
    with mmapdict.open(golden(name), "r") as d:
        assert len(d) == len(EXPECTED[name])
        judge.assert_same_items(judge.fingerprint_items(d), EXPECTED[name], name)
        assert [judge.fingerprint(entry.key) for entry in d.entries()] == [key for key, _ in EXPECTED[name]]
    assert before == (golden(name).read_bytes(), golden(name).stat().st_mtime_ns)


def copy_of(name, folder):
    path = folder / golden(name).name
    shutil.copyfile(golden(name), path)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return path


def after_writer(name, path):
    """Change a copy of a golden file: add, replace, delete; return the fingerprints that are expected then."""
    expected = {json.dumps(key): value for key, value in EXPECTED[name]}
    added = numpy.arange(5.0)
    with mmapdict.open(path, "r+") as d:
        first = next(iter(d), None)
        d["added"] = added
        d["added"] = [added, added]
        d["added twice"] = added
        if first is not None:
            del d[first]
            del expected[json.dumps(judge.fingerprint(first))]
    expected[json.dumps(judge.fingerprint("added"))] = judge.fingerprint([added, added])
    expected[json.dumps(judge.fingerprint("added twice"))] = judge.fingerprint(added)
    return expected


@pytest.mark.parametrize("name", NAMES)
def test_a_writer_goes_on_with_it(name, tmp_path):
    path = copy_of(name, tmp_path)
    expected = after_writer(name, path)
    loaded = judge.fingerprint_items(judge.load_every_way(path))
    assert {json.dumps(key): value for key, value in loaded} == expected
    with mmapdict.open(path, "r") as d:
        judge.assert_same_items(judge.fingerprint_items(d), loaded, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_writer_leaves_all_records_where_they_are(name, tmp_path):
    """I12, I6, I7, I10: of what was published only Op bytes change, and only from live to dead."""
    before = golden(name).read_bytes()
    records, stop = listing.walk(before)
    path = copy_of(name, tmp_path)
    after_writer(name, path)
    after = path.read_bytes()
    allowed = {offset + 1 for offset, _, _ in records} | {stop}
    for at in range(256, stop + 1):
        if after[at] != before[at]:
            assert at in allowed
            assert (before[at], after[at]) == ((0x2e, 0x28) if at == stop else (0x47, 0x8e))
    for offset, op, _ in records:
        if op == 0x47 and before[offset + 10:offset + 12] != b"h\x00":
            assert after[offset + 1] == 0x47, "a hidden record was killed"
    assert before[16:40] == after[16:40]


@pytest.mark.parametrize("name", NAMES)
def test_listing(name):
    text = "\n".join(listing.dis(golden(name).read_bytes())) + "\n"
    assert text == (FOLDER / (name + ".dis.txt")).read_text(encoding="ascii")


@pytest.mark.skipif(sys.byteorder != "little", reason="there, the other byte order is the foreign one")
@pytest.mark.parametrize("name", FIXED)
def test_the_encoder_makes_the_same_bytes(name, maker, tmp_path):
    path = tmp_path / (name + ".mmapdict")
    assert maker.make(name, path) == EXPECTED[name]
    assert [left.name for left in tmp_path.iterdir()] == [path.name]
    made, kept = path.read_bytes(), golden(name).read_bytes()
    if made != kept:
        assert listing.dis(made) == listing.dis(kept)
    assert made == kept


def test_making_them_again_is_refused(maker, tmp_path, capsys):
    (tmp_path / "empty.mmapdict").write_bytes(b"kept")
    assert maker.main(tmp_path) == 1
    assert "never overwritten" in capsys.readouterr().err
    assert (tmp_path / "empty.mmapdict").read_bytes() == b"kept"
    assert len(list(tmp_path.iterdir())) == 1


# -- what docs/format.md says of the bytes, checked without mmapdict ----------------------------------------------

def contents(name):
    """Pairs of (offset, Op, end, where the content starts) of a golden file's records."""
    data = golden(name).read_bytes()
    for offset, op, end in listing.walk(data)[0]:
        at = offset + 10 + (2 if data[offset + 10:offset + 12] == b"h\x00" else 0)
        size, head = (data[at + 1], 2) if data[at] == 0x43 else (struct.unpack_from("<I", data, at + 1)[0], 5)
        yield offset, op, end, at + head + size + 1


@pytest.mark.parametrize("name", NAMES)
def test_records_and_payloads_are_aligned(name):
    """I11."""
    data = golden(name).read_bytes()
    for offset, op, end, _ in contents(name):
        assert offset % 8 == end % 8 == 0
        if op == 0x8e:
            assert (end - 1) % 8 == 7       # a loader's next read starts there; the top byte of every cell is zero
    assert all(data[at + 7] == 0 for at in range(40, 96, 8))
    opcodes = list(pickletools.genops(data))
    for (code, argument, at), (_, _, after) in zip(opcodes, opcodes[1:]):
        big = isinstance(argument, (bytes, str)) and after - at > 4096 + 9
        if big and not (code.name == "BINBYTES8" and data[at - 1] == 0x28):
            assert after % 8 == 0, at


@pytest.mark.parametrize("name", NAMES)
def test_mapped_arrays_are_aligned(name):
    """I11."""
    with mmapdict.open(golden(name), "r") as d:
        for entry in d.entries():
            if entry.kind == "value":
                continue
            if entry.kind == "table":
                assert [column.__array_interface__["data"][0] % column.dtype.alignment
                        for column in leaves(d[entry.key])] == [0] * len(leaves(d[entry.key]))
                continue
            padded = entry.nbytes + (-entry.nbytes % 8 if entry.nbytes > 4096 else 0)
            least = 64 if entry.kind == "growable" or 1024 <= padded < 1 << 20 else 16 if padded < 1024 else 4096
            assert entry.offset % least == 0 and entry.offset % entry.dtype.alignment == 0
            if entry.nbytes > 4096:
                assert (entry.offset + padded) % 8 == 0


def leaves(tree):
    """The arrays of a table."""
    return [leaf for part in tree.values() for leaf in leaves(part)] if isinstance(tree, dict) else [tree]


def growables(data):
    """Of each growable value: offset, value of its count and size cells, offset and value of the mark, first row."""
    opcodes = list(pickletools.genops(data))
    for i, (code, argument, at) in enumerate(opcodes):
        if code.name == "LONG1" and data[at + 1] == 8 and data[at - 3:at] == b"h\x01" + b"0":
            size = next(at for code, _, at in opcodes[i:] if code.name == "BINBYTES8") + 1
            mark = size + 8
            yield [(place, struct.unpack_from("<Q", data, place)[0]) for place in (at + 2, size, mark)]


def test_cells_of_growable_values_are_aligned_and_rows_too():
    """I11, I18."""
    found = {name: list(growables(golden(name).read_bytes())) for name in NAMES}
    assert {name: len(values) for name, values in found.items() if values} == {
        "growable": 9, "tables": 2, "dead_before_count": 1, "dead_after_count": 1, "dead_in_shortening": 1}
    for (count_at, count), (size_at, size), (mark_at, mark) in sum(found.values(), []):
        assert count_at % 8 == size_at % 8 == size % 8 == mark_at % 8 == 0 and size >= 64
        assert (mark_at + 64) % 64 == 0
    assert [(value[0][1], value[2][1]) for value in found["growable"]] == [
        (3, 0), (5, 0), (3, 0), (25, 0), (3, 8), (5, 0), (0, 60), (0, 0), (300, 0)]
    assert [(found[name][0][0][1], found[name][0][2][1]) for name in sorted(found) if name.startswith("dead")
            and found[name]] == [(6, 0), (3, 0), (3, 3)]


def test_rows_that_do_not_count_are_in_the_file():
    """What `dead_before_count` is for."""
    data = golden("dead_before_count").read_bytes()
    ((_, count), _, (mark_at, _)), = growables(data)
    assert data[mark_at + 64:mark_at + 112] == 2 * numpy.arange(6, dtype="<i4").tobytes() and count == 3


@pytest.mark.parametrize("name", ["growable", "tables", "dead_before_count", "dead_after_count", "dead_in_shortening"])
def test_a_writer_goes_on_with_rows(name, tmp_path):
    path = copy_of(name, tmp_path)
    expected = judge.plain(path)
    with mmapdict.open(path, "r+") as d:
        for key, value in expected.items():
            if isinstance(value, numpy.ndarray):
                axis = 1 if key == "axis 1" else 0
                more = numpy.zeros_like(value, shape=(*value.shape[:axis], 2, *value.shape[axis + 1:]))
                d.append(key, more)
                expected[key] = numpy.concatenate([value, more], axis)
        if name == "tables":
            mmapdict.log(d).add(epoch=4, loss=0.0)
            mmapdict.samples(d, "samples").add(1, mmapdict.samples(d, "samples")[7])
            assert d["log"]["epoch"].tolist() == [0, 1, 2, 3, 4] and d["samples"]["ids"].tolist() == [7, 5, 1]
            assert mmapdict.samples(d, "samples")[1]["first"]["weight"].tolist() == [[7, 8], [9, 10]]
        else:
            assert {key: value.tolist() for key, value in d.items()} == {
                key: value.tolist() for key, value in expected.items()}
    assert mmapdict.verify(path).ok


@pytest.mark.parametrize("name", NAMES)
def test_globals_stand_before_the_arrays_that_need_them(name):
    """I10: each group once, live, byte by byte what the specification says."""
    data = golden(name).read_bytes()
    seen = {}
    for offset, op, end, content in contents(name):
        for index, ops in GROUPS.items():
            if data[content:end - 1] == ops:
                assert op == 0x47 and index not in seen
                seen[index] = offset
    for code, argument, at in pickletools.genops(data):
        if code.name == "BINGET" and argument:
            group = 1 if argument < 8 else 8
            assert at > seen[group]


@pytest.mark.parametrize("name", NAMES)
def test_memo_indices_are_put_once_and_below_the_mark(name):
    """I8."""
    data = golden(name).read_bytes()
    mark = struct.unpack_from("<Q", data, 72)[0]
    put = [argument for code, argument, _ in pickletools.genops(data) if code.name in ("BINPUT", "LONG_BINPUT")]
    assert len(put) == len(set(put))
    assert all(index < mark for index in put) and mark >= 64
    assert not {code.name for code, _, _ in pickletools.genops(data)} & {"MEMOIZE", "FRAME", "PUT", "GET"}
