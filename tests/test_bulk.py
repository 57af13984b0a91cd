"""Many entries at once: the same keys, places and arrays, and the same errors, as from one entry after the other."""

import struct
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import judge
import mmapdict
import strategies
from mmapdict import CorruptError, arrays, bulk, literals
from mmapdict import format as fmt

TAG = 0x7766554433221100
FAST_KEYS = [None, True, False, 0, 255, 256, 65_535, 65_536, -1, 2**31 - 1, -2**31, 2**31, -2**63, 2**100, 0.0, -0.0,
             1.5, float("inf"), -float("inf"), 5e-324, "", "a", "a\0b\0", "é日\U0001f600", "\ud800", "x" * 255, b"",
             b"a", b"\0", b"0", b"(t.0", bytes(range(256))[:255], (), (1,), ("scan", 7), ("a", b"b", 1.5, None, True),
             (1, 2, 3, 4, 5, 6, 7, 8), ((),), (b"0", b"00")]
SLOW_KEYS = ["x" * 256, "x" * 505, "y" * 5000, b"z" * 256, b"z" * 4097, 2**2100, (1, 2, 3, 4, 5, 6, 7, 8, 9), ((1,), 2),
             ("x" * 300,), ("x" * 250, "y" * 250, "z" * 250)]


@pytest.fixture(autouse=True)
def no_file_is_too_small(monkeypatch):
    """Let nothing be decoded alone only because there are few entries."""
    monkeypatch.setattr(bulk, "FEW", 0)


# -- files without a file -------------------------------------------------------------------------------------------

def value_parts(value):
    """The parts of an array, a masked array, or anything that has a literal form."""
    if isinstance(value, np.ma.MaskedArray):
        return arrays.encode_masked(value)
    if isinstance(value, np.ndarray):
        return arrays.encode_array(value).parts
    return [literals.encode_literal(value)]


def entry_parts(key, value):
    return fmt.join_parts(literals.key_parts(key), value_parts(value))


def record(offset, parts):
    """The bytes of a record."""
    pieces, _, _ = fmt.encode_record(offset, TAG, parts)
    return b"(" + b"".join(arrays.raw_bytes(p) if isinstance(p, fmt.Payload) else p for p in pieces)


def lay_out(entries, start=fmt.HEADER_SIZE):
    """A file of entries, each given by its parts, the bytes before `start` being of no account; and their offsets."""
    data = bytearray(start)
    offsets = []
    for parts in entries:
        offsets.append(len(data))
        data += record(len(data), parts)
    return data + b".", np.array(offsets, np.int64)


def entry_offsets(data, tag):
    """The offsets of all entries of a file, live and dead."""
    found = []
    at = fmt.HEADER_SIZE
    while data[at] != fmt.STOP:
        head = fmt.decode_record(data, 0, at, tag)
        if head.entry:
            found.append(at)
        at = head.end
    return np.array(found, np.int64)


# -- one after the other --------------------------------------------------------------------------------------------

def decode_slowly(view, base, offsets, tag):
    """What `decode_entries` has to return."""
    keys, at, covered, ends = [], [], [], []
    for offset in offsets.tolist():
        head = fmt.decode_record(view, base, offset, tag)
        try:
            key, pos = literals.decode_literal(view, head.content - base, head.body_end - base)
        except CorruptError as exc:
            raise CorruptError(exc.message, None, base + exc.offset) from exc
        try:
            literals.check_key(key)
        except TypeError as exc:
            raise CorruptError(str(exc), None, head.content) from exc
        keys.append(key)
        at.append(base + pos)
        covered.append(head.covered)
        ends.append(head.end)
    return bulk.Heads(keys, *np.array([at, covered, ends], np.int64).reshape(3, -1))


def describe_slowly(view, base, heads):
    """What `describe` has to return."""
    return [arrays.decode_info(view, base, at, end - 2, covered)
            for at, covered, end in zip(heads.at.tolist(), heads.covered.tolist(), heads.end.tolist())]


def outcome(function, *args):
    """What a call returns or raises, comparable."""
    try:
        found = function(*args)
    except CorruptError as exc:
        return "CorruptError", exc.message, exc.path, exc.offset
    if isinstance(found, bulk.Heads):
        return judge.fingerprint(found.keys), *(places.tolist() for places in found[1:])
    return [(type(info), told(info)) for info in found]


def told(info):
    """All that is in a description, comparable."""
    if isinstance(info, arrays.MaskedInfo):
        fill = None if info.fill_value is None else judge.fingerprint(info.fill_value)
        return told(info.data), told(info.mask), fill, info.hard_mask
    return info and (info.shape, judge.describe_dtype(info.dtype), info.order, info.offset, info.nbytes)


def check_same(data, offsets, base=0, tag=TAG):
    """Compare the quick way with the slow one, and return what the quick one found, or None if both refuse."""
    view = memoryview(data)[base:]
    expected = outcome(decode_slowly, view, base, offsets, tag)
    assert outcome(bulk.decode_entries, view, base, offsets, tag) == expected
    if expected[0] == "CorruptError":
        return None
    heads = decode_slowly(view, base, offsets, tag)
    assert outcome(bulk.describe, view, base, heads) == outcome(describe_slowly, view, base, heads)
    return heads


@pytest.fixture
def alone(monkeypatch):
    """The offsets of entries that are decoded alone."""
    found = []
    decode_one = bulk._decode_one

    def noted(view, base, offset, tag):
        found.append(offset)
        return decode_one(view, base, offset, tag)

    monkeypatch.setattr(bulk, "_decode_one", noted)
    return found


@pytest.fixture
def described_alone(monkeypatch):
    """Where the values start of which `decode_info` is asked."""
    found = []

    def noted(view, base, at, end, covered):
        found.append(at)
        return arrays.decode_info(view, base, at, end, covered)

    monkeypatch.setattr(bulk, "decode_info", noted)
    return found


# -- the same results -----------------------------------------------------------------------------------------------

values = st.one_of(st.none(), st.integers(), strategies.texts, strategies.big_texts, strategies.arrays(),
                   strategies.masked_arrays(), st.builds(np.zeros, st.integers(0, 300), st.sampled_from(["f4", ">f4"])))


@given(st.lists(st.tuples(strategies.keys() | st.sampled_from(FAST_KEYS), values), max_size=8),
       st.sampled_from([256, 4096]))
def test_random_entries(entries, base):
    data, offsets = lay_out([entry_parts(key, value) for key, value in entries], base)
    heads = check_same(data, offsets, base if base == 4096 else 0)
    assert judge.fingerprint(heads.keys) == judge.fingerprint([key for key, _ in entries])


@pytest.mark.parametrize("value", [None, "long " * 60, "longer " * 400, "longest " * 1000, np.arange(3),
                                   np.zeros(200_000)], ids=str)
def test_quick_keys(value, alone):
    data, offsets = lay_out([entry_parts(key, value) for key in FAST_KEYS])
    heads = check_same(data, offsets)
    assert judge.fingerprint(heads.keys) == judge.fingerprint(FAST_KEYS)
    assert alone == []


def test_slow_keys(alone):
    keys = [key for pair in zip(SLOW_KEYS, FAST_KEYS) for key in pair]
    data, offsets = lay_out([entry_parts(key, 1) for key in keys])
    assert judge.fingerprint(check_same(data, offsets).keys) == judge.fingerprint(keys)
    assert alone == offsets[::2].tolist()


def test_few_entries_are_decoded_alone(alone, described_alone, monkeypatch):
    monkeypatch.setattr(bulk, "FEW", 3)
    data, offsets = lay_out([entry_parts(n, np.arange(3)) for n in range(3)])
    check_same(data, offsets)
    assert alone == [] and len(described_alone) == 1
    check_same(data, offsets[:2])
    assert alone == offsets[:2].tolist() and len(described_alone) == 3


def test_no_entries():
    nothing = np.zeros(0, np.int64)
    for data in b"", b".":
        heads = bulk.decode_entries(memoryview(data), 0, nothing, TAG)
        assert heads.keys == [] and [places.shape for places in heads[1:]] == [(0,)] * 3
        assert bulk.describe(memoryview(data), 0, heads) == []


@pytest.mark.parametrize("chunk", [1, 2, 7, 38, 39, 40])
def test_borders_of_chunks_and_windows(chunk, alone, monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", chunk)
    monkeypatch.setattr(bulk, "WINDOWS_MAX", 3 * bulk.WIDE)
    entries = [(key, np.arange(n % 4)) for n, key in enumerate(FAST_KEYS + FAST_KEYS)]
    data, offsets = lay_out([entry_parts(key, value) for key, value in entries])
    assert judge.fingerprint(check_same(data, offsets).keys) == judge.fingerprint(FAST_KEYS + FAST_KEYS)
    assert alone == []


def test_any_order_and_repeated_offsets():
    data, offsets = lay_out([entry_parts(n, np.arange(n % 3)) for n in range(50)])
    heads = check_same(data, np.concatenate((offsets[::-1], offsets[10:30])))
    assert heads.keys == [*range(49, -1, -1), *range(10, 30)]


def test_spans_of_all_lengths(alone):
    sizes = [*range(600), *range(4070, 4110)]
    data, offsets = lay_out([entry_parts("key", b"x" * n) for n in sizes])
    assert check_same(data, offsets).keys == ["key"] * len(sizes)
    assert alone == []


def test_views_that_end_with_the_last_record(alone):
    # Windows that run past the end of the view are cut there.
    for n in range(1, 40):
        data, offsets = lay_out([entry_parts(i, None) for i in range(n)])
        assert check_same(data[:-1], offsets).keys == list(range(n))
        assert alone == []
        assert check_same(data[:-2], offsets) is None
        assert alone.pop() == offsets[-1] and not alone


def test_a_file_with_everything(path, alone):
    items = {key: n for n, key in enumerate(FAST_KEYS + SLOW_KEYS)}
    items.update({("array", n): np.arange(n % 5).astype(dtype) for n, dtype in enumerate(["f4", ">f4", "M8[s]"] * 9)})
    items.update({"big": np.ones(1 << 18), "masked": np.ma.masked_array([1.5, 2, 3], [0, 1, 0], fill_value=7),
                  "structured": np.zeros(3, [("a", "i4"), ("b", "f8")]), "set": {1, 2}, "text": "x" * 100_000,
                  "fortran": np.asfortranarray(np.ones((3, 4))), "list": list(range(3000))})
    with mmapdict.open(path, "w") as d:
        with d.batch():
            for key, value in items.items():
                d[key] = value
        for key in list(d)[::3]:
            del d[key]
        left = list(d)
    view = memoryview(path.read_bytes())
    tag = fmt.file_tag(bytes(view[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET]))
    offsets = entry_offsets(view, tag)
    alone.clear()                   # the mapping has read its keys too
    check_same(view, offsets, tag=tag)
    assert len(alone) < len(SLOW_KEYS) + 3
    live = offsets[[view[at + 1] == fmt.LIVE for at in offsets.tolist()]]
    heads = check_same(view, live, tag=tag)
    assert judge.fingerprint(sorted(heads.keys, key=repr)) == judge.fingerprint(sorted(left, key=repr))
    assert len(live) < len(offsets)
    for base in range(4096, 3 * 4096, 4096):
        check_same(view, offsets[offsets >= base], base, tag)


# -- arrays ---------------------------------------------------------------------------------------------------------

def test_equal_arrays_are_described_once(described_alone):
    shapes = [(3,), (2, 2), (), (0,), (300,), (5, 1), (2, 3, 4)]
    entries = [(n, np.ones(shapes[n % 7], "<f4" if n % 2 else "u1")) for n in range(140)]
    data, offsets = lay_out([entry_parts(key, value) for key, value in entries])
    heads = check_same(data, offsets)
    infos = bulk.describe(memoryview(data), 0, heads)
    assert len(described_alone) == 2 * 14           # by check_same and here
    assert all(type(info) is arrays.ArrayInfo for info in infos)
    assert [(info.shape, info.dtype) for info in infos] == [(value.shape, value.dtype) for _, value in entries]


def test_values_that_are_no_arrays_are_not_looked_at(described_alone):
    data, offsets = lay_out([entry_parts(n, n) for n in range(50)])
    heads = check_same(data, offsets)
    assert bulk.describe(memoryview(data), 0, heads) == [None] * 50
    assert described_alone == []


def test_arrays_with_equal_hashes_are_told_apart(monkeypatch):
    monkeypatch.setattr(bulk, "_FACTORS", np.zeros_like(bulk._FACTORS))
    data, offsets = lay_out([entry_parts(n, np.ones(n % 5, "f4" if n % 3 else "f8")) for n in range(60)])
    check_same(data, offsets)


def describe_both(ops, covered):
    """Compare descriptions of values given by their opcodes, and how many of each are covered; return them."""
    data, offsets = lay_out([[b"K\x01" + value] for value in ops])
    heads = decode_slowly(memoryview(data), 0, offsets, TAG)
    heads.covered[:] = heads.at + covered
    view = memoryview(data)
    expected = outcome(describe_slowly, view, 0, heads)
    assert outcome(bulk.describe, view, 0, heads) == expected
    return expected


def test_a_longer_head_is_not_a_shorter_one_with_zeros():
    head = arrays.encode_array(np.zeros(3, "u1")).template.ops
    right, wrong = head + b"\0\1\2tb", head + b"\0\1\2ttb"
    assert len(describe_both([right] * 3, [len(head)] * 3)) == 3
    assert describe_both([right, wrong, right], [len(head), len(head) + 1, len(head)])[0] == "CorruptError"


def test_elements_start_where_the_opcodes_say_not_where_nothing_is_covered():
    head = arrays.encode_array(np.zeros(3, "u1")).template.ops
    value = head + b"\0\1\2tb" + b"C\x05tbC\x01x0"
    for more in range(-9, 10):
        describe_both([value] * 3, [len(head) + more] * 3)


def test_the_order_of_a_buffer_is_said_behind_its_elements():
    build = arrays.encode_array(np.zeros(15, "u1")).template.head
    head = (b"h\x01(" + literals.encode_literal((2, 4)) + arrays.encode_dtype(np.dtype("u1")).ops
            + build[:build.index(b"h\x02")] + b"h\x04\x89C\x0f")
    values = []
    for order in b"", b"K\x00N\x8c\x01F":
        tail = b"tb" + order + b"t\x81" + b"C" + bytes((10 - len(order),)) + bytes(10 - len(order)) + b"0"
        values.append(head + bytes(8) + b"tbC" + bytes((3 + len(tail) - 1,)) + b"\0\0\0" + tail)
    assert [info[1][2] for info in describe_both(values * 2, [len(head)] * 4)] == ["C", "F", "C", "F"]


def test_structured_arrays_do_not_share_their_dtype():
    # A short description, as other writers may make it: that of this one is longer than what is compared.
    plain = arrays.encode_array(np.zeros(3, "u1")).template.ops
    ops = plain.replace(b"\x8c\x03|u1", literals.encode_literal({"names": ["a"], "formats": ["|u1"]}))
    assert ops != plain and len(ops) <= bulk.HEAD_MAX
    data, offsets = lay_out([[b"K\x01" + ops + b"\0\1\2tb"]] * 3)
    heads = decode_slowly(memoryview(data), 0, offsets, TAG)
    heads.covered[:] = heads.at + len(ops)
    infos = bulk.describe(memoryview(data), 0, heads)
    assert all(info.dtype.names == ("a",) for info in infos)
    assert len({id(info.dtype) for info in infos}) == 3


@pytest.mark.parametrize("change", [b"tb", b"C\x00", b"0s1", b"s1", b"\x00\x00\x00"])
def test_what_stands_behind_an_array_is_looked_at(change):
    data, offsets = lay_out([entry_parts(n, np.arange(n % 9, dtype="u1")) for n in range(40)])
    view = memoryview(data)
    heads = decode_slowly(view, 0, offsets, TAG)
    for at in range(int(heads.covered[20]), int(heads.end[20])):
        damaged = bytearray(data)
        damaged[at:at + len(change)] = change
        view = memoryview(damaged)
        assert outcome(bulk.describe, view, 0, heads) == outcome(describe_slowly, view, 0, heads)


def test_a_damaged_first_array_is_named_only_if_no_damaged_one_stands_before_it():
    # The second kind of array is damaged too, but behind the first kind's third one.
    kinds = [np.zeros(3, "u1"), np.zeros(4, "u2")]
    data, offsets = lay_out([entry_parts(n, kinds[n > 2]) for n in range(30)])
    heads = decode_slowly(memoryview(data), 0, offsets, TAG)
    for n in 2, 3:
        data[int(heads.covered[n]) + kinds[n > 2].nbytes] = 0
        view = memoryview(data)
        found = outcome(bulk.describe, view, 0, heads)
        assert found == outcome(describe_slowly, view, 0, heads)
        assert found[0] == "CorruptError" and heads.at[2] < found[3] < heads.end[2]


# -- damage ---------------------------------------------------------------------------------------------------------

def sign(data, offset):
    """Set the check value of an entry right, if there is one."""
    body = offset + fmt.RECORD_HEAD
    at = body + 2 + {fmt.SHORT_BINBYTES: 2, fmt.BINBYTES: 5}.get(data[body + 2], 2)
    n = data[body + 3] if data[body + 2] == fmt.SHORT_BINBYTES else int.from_bytes(data[body + 3:body + 7], "little")
    tagged, _, span = fmt.CHECK.unpack_from(data, at)
    content = at + n + 1
    crc = crc32(data[content:content + span], crc32(data[offset + 2:offset + 10] + struct.pack("<QH", tagged, span)))
    data[at + 8:at + 12] = crc.to_bytes(4, "little")


def small_file():
    entries = [entry_parts(1, 2), entry_parts("é\0", np.arange(3, dtype="u1")), entry_parts((b"0", 1.5), None),
               entry_parts(-1, np.ones((2, 2), "u2", order="F"))]
    return lay_out(entries)


def mutations():
    """Each byte of each record, with each of its bits flipped, and as some opcodes and other bytes."""
    data, offsets = small_file()
    ends = [*offsets[1:].tolist(), len(data) - 1]
    for n, (start, end) in enumerate(zip(offsets.tolist(), ends)):
        for at in range(start, end):
            for byte in {data[at] ^ 1 << bit for bit in range(8)} | set(b"0\xff"):
                if byte != data[at]:
                    yield n, at, byte


@pytest.mark.parametrize("signed", [False, True])
def test_each_changed_byte_has_the_same_effect(signed):
    data, offsets = small_file()
    fine = 0
    for n, at, byte in mutations():
        old, crc = data[at], bytes(data)
        data[at] = byte
        if signed:
            sign(data, int(offsets[n]))
        fine += check_same(data, offsets) is not None
        data[:] = crc
        assert data[at] == old
    assert 0 < fine


@given(st.data())
def test_several_changed_bytes_have_the_same_effect(choices):
    data, offsets = small_file()
    for _ in range(choices.draw(st.integers(1, 6))):
        at = choices.draw(st.integers(fmt.HEADER_SIZE, len(data) - 1))
        data[at] = choices.draw(st.integers(0, 255) | st.sampled_from(b"(tC0GsKhb1\x8e\x8c"))
    for offset in choices.draw(st.sets(st.sampled_from(offsets.tolist()))):
        sign(data, offset)
    check_same(data, offsets)


@pytest.mark.parametrize("length", [0, 17, 18, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**63 + 40, 2**64 - 11,
                                    2**64 - 10, 2**64 - 1])
def test_hostile_lengths(length):
    data, offsets = small_file()
    for offset in offsets.tolist():
        damaged = bytearray(data)
        struct.pack_into("<Q", damaged, offset + 2, length)
        sign(damaged, offset)
        assert check_same(damaged, offsets) is None
        assert check_same(damaged, np.array([offset] * 3)) is None


def test_lengths_around_the_right_one():
    data, offsets = small_file()
    for offset in offsets.tolist():
        length = int.from_bytes(data[offset + 2:offset + 10], "little")
        for other in range(max(0, length - 60), length + 60):
            damaged = bytearray(data)
            struct.pack_into("<Q", damaged, offset + 2, other)
            sign(damaged, offset)
            check_same(damaged, offsets)


@pytest.mark.parametrize("n", [0, 13, 14, 255, 256, 4097, 2**31 - 1, 2**31, 2**32 - 1])
def test_hostile_sizes_of_check_values(n):
    data, offsets = lay_out([entry_parts(n, np.zeros(200_000)) for n in range(3)])
    offset = int(offsets[1])
    assert data[offset + 12] == fmt.BINBYTES
    fine = bytes(data)
    struct.pack_into("<I", data, offset + 13, n)
    assert check_same(data, offsets) is None
    for op in fmt.BINUNICODE, fmt.BINBYTES8, n & 0xFF:
        data[:] = fine
        data[offset + 12] = op
        check_same(data, offsets)
    data, offsets = small_file()
    for offset in offsets.tolist():
        damaged = bytearray(data)
        damaged[offset + 13] = n & 0xFF
        check_same(damaged, offsets)


@pytest.mark.parametrize("n", range(14))
def test_check_values_that_are_too_short(n):
    # What stands behind the cut one, its own last bytes first, looks like POP, key and value.
    data, offsets = lay_out([entry_parts("x" * 20, "y" * 60_000) for _ in range(3)])
    at = int(offsets[1]) + fmt.RECORD_HEAD + len(fmt.ROOT) + 2
    data[at - 1] = n
    for span in [0x3000, 0x4E30, 0x4E4E] if n < 12 else [0x3000, 0x4E30]:
        data[at + 12:at + 16] = span.to_bytes(2, "little") + b"NN"
        sign(data, int(offsets[1]))
        if n in (12, 13):
            assert data[at + n] == fmt.POP or span != {12: 0x4E30, 13: 0x3000}[n]
        assert check_same(data, offsets) is None


@pytest.mark.parametrize("span", [0, 1, 2, 3, 4, 16, 124, 125, 126, 127, 128, 255, 4096, 32_768, 65_535])
def test_hostile_spans(span):
    data, offsets = lay_out([entry_parts(n, "x" * size) for n in range(3) for size in (0, 200, 80_000)])
    for offset in offsets.tolist():
        damaged = bytearray(data)
        struct.pack_into("<H", damaged, offset + fmt.RECORD_HEAD + len(fmt.ROOT) + 2 + 12, span)
        sign(damaged, offset)
        check_same(damaged, offsets)


@pytest.mark.parametrize("ops", [
    b"", b"K", b"K\x01", b"M\x01", b"J\x01\x02\x03", b"G" + b"\0" * 7, b"C\x01", b"C\x05abc", b"\x8c\xffabc", b"(K\x01",
    b"(", b"(t", b"((tt", b"(K\x01t", b"(" + b"K\x01" * 9 + b"t", b"t", b"0", b".", b"cos\nsystem\n", b"](K\x01e",
    b"}(u", b")", b"(]t", b"G\x7f\xf8" + bytes(6), b"G\xff\xf8" + bytes(6), b"G\x7f\xf0\0\0\0\0\0\x01",
    b"(G\x7f\xf8" + bytes(6) + b"t", b"C\x010K\x01", b"C\x0000K\x01", b"C\x000K\x01", b"C\x000", b"C\x0000",
    b"(C\x000K\x01t", b"(K\x01C\x000t", b"(C\x00C\x00t", b"B\x01\0\0\x0000K\x01", b"C\x010K\x01C\x010", b"C\x02001",
    b"\x8c\x01\xff", b"\x8c\x03\xed\xa0\x80", b"\x8c\x02\xc0\x80", b"(\x8c\x01\xfft", b"X\x01\0\0\0a", b"\x8a\x00",
    b"\x8a\x01\xff", b"\x8a\x09" + b"\xff" * 8 + b"\x7f", b"\x8b\x01\0\0\0\x05", b"\x8d\x01" + bytes(7) + b"a",
    b"\x8b\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8 + b"a", b"N", b"(NN\x88\x89t", b"q\x00", b"h\x00", b"\x94",
    b"\x80\x04"],
    ids=repr)
def test_keys_of_all_kinds_of_opcodes(ops):
    for value in b"", b"N", b"C\x010", b"0", b"0K\x01" + b"N" * 130, b"N" * 600:
        data, offsets = lay_out([entry_parts(1, 2), [ops + value], entry_parts("a", "b"), [ops + value]])
        check_same(data, offsets)
        check_same(data, offsets[::2])


def test_the_first_damaged_entry_is_named():
    data, offsets = lay_out([entry_parts(n, n) for n in range(100)])
    for n in 60, 59, 90, 3:
        data[int(offsets[n]) + 22] ^= 1
        with pytest.raises(CorruptError) as caught:
            bulk.decode_entries(memoryview(data), 0, offsets, TAG)
        assert caught.value.offset == offsets[59 if n == 90 else n]


def test_a_text_that_is_not_utf_8_is_named(alone):
    parts = [entry_parts(n, n) for n in range(20)]
    parts[7] = [b"\x8c\x02\xc0\x80N"]
    data, offsets = lay_out(parts)
    assert check_same(data, offsets) is None
    assert alone == offsets[:8].tolist()


def test_errors_count_from_the_start_of_the_file():
    data, offsets = lay_out([entry_parts(1, 2), [b"}N"]], 8192)
    with pytest.raises(CorruptError) as caught:
        bulk.decode_entries(memoryview(data)[4096:], 4096, offsets, TAG)
    assert data[caught.value.offset] == ord("}")


def test_what_is_stored_meanwhile_is_not_run(monkeypatch, alone):
    # A writer who means harm puts other opcodes where a key stood that was looked at already.
    keys = ["posix\nsystem\n", "b" * 14]
    data, offsets = lay_out([entry_parts(key, None) for key in keys])
    literal = literals.encode_literal(keys[0])
    key_sizes = bulk._key_sizes

    def look_and_store(windows, rooms):
        sizes = key_sizes(windows, rooms)
        at = data.index(literal)
        data[at:at + len(literal)] = b"cposix\nabort\n0"[:len(literal)].ljust(len(literal), b"0")
        return sizes

    monkeypatch.setattr(bulk, "_key_sizes", look_and_store)
    assert bulk.decode_entries(memoryview(data), 0, offsets, TAG).keys == keys
    assert alone == []


def test_offsets_that_are_no_multiples_of_8():
    data, offsets = lay_out([entry_parts(1, np.arange(3)), entry_parts("a", "b")], 259)
    assert check_same(data, offsets).keys == [1, "a"]
    assert check_same(data, offsets + 1) is None
    assert check_same(data, np.array([len(data) - 1])) is None
