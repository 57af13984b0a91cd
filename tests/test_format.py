"""The bytes of header and records: what is laid out is read back, loads by plain pickle, and damage is noticed."""

import pickle
import pickletools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapdict import CorruptError, FormatError
from mmapdict import format as fmt

FILE_ID, BOOT_ID = bytes(range(16)), bytes(range(100, 116))
TAG = fmt.file_tag(FILE_ID)
START = b"\x80\x04}q\x00"       # PROTO, and the dictionary as memo entry 0
STOP = b"."


def push(n):
    """Opcodes of exactly `n` bytes that push one object, and the object."""
    if n == 1:
        return b"N", None
    if n < 258:
        return fmt.bytes_head(n - 2) + b"x" * (n - 2), b"x" * (n - 2)
    return b"B" + struct.pack("<I", n - 5) + b"y" * (n - 5), b"y" * (n - 5)


def raw(piece):
    """The bytes of a piece or payload."""
    if isinstance(piece, fmt.Payload):
        return bytes(piece.nbytes) if piece.data is None else bytes(piece.data)
    return piece


def lay_out(offset, parts, entry=True, tag=TAG):
    """A whole record, from MARK to POP_MARK, and where each payload stands in the file."""
    pieces, end, plain = fmt.encode_record(offset, tag, parts, entry)
    assert plain == all(type(piece) is bytes for piece in pieces)
    record = bytes((fmt.MARK,)) + b"".join(map(raw, pieces))
    assert len(record) == end - offset
    return record


def run(*records):
    """What plain pickle makes of a file with these records."""
    return pickle.loads(START + b"".join(records) + STOP)


# -- the header -----------------------------------------------------------------------------------------------------

def test_header_is_an_empty_mapping_to_pickle():
    head = fmt.encode_header(FILE_ID, BOOT_ID)
    assert len(head) == fmt.HEADER_SIZE == 256
    assert pickle.loads(head + STOP) == {}
    pickletools.dis(head + STOP, out=open_nowhere())


def open_nowhere():
    class Nowhere:
        def write(self, text):
            return len(text)

    return Nowhere()


def test_header_is_read_back():
    head = fmt.encode_header(FILE_ID, BOOT_ID)
    assert fmt.check_header(head + STOP, len(head) + 1, "f") == FILE_ID


def test_cells_of_the_header_are_aligned_and_do_not_overlap():
    offsets = [fmt.MAGIC_OFFSET, fmt.VERSION_OFFSET, fmt.FILE_ID_OFFSET, fmt.COMMIT_OFFSET, fmt.STOP_OFFSET,
               fmt.LIVE_OFFSET, fmt.DEAD_OFFSET, fmt.MEMO_OFFSET, fmt.INDEX_OFFSET, fmt.STATE_OFFSET,
               fmt.BOOT_ID_OFFSET, fmt.SYNCED_OFFSET]
    assert all(offset % 8 == 0 for offset in offsets)
    assert offsets == sorted(set(offsets))
    assert fmt.SYNCED_OFFSET + 8 <= fmt.HEADER_SIZE - len(fmt.HEADER_TAIL)


@pytest.mark.parametrize("size", range(3, 257))
def test_header_that_was_cut_is_corrupt(size):
    head = fmt.encode_header(FILE_ID, BOOT_ID)[:size]
    with pytest.raises(CorruptError, match="cut inside the header") as caught:
        fmt.check_header(head, len(head), "the path")
    assert caught.value.path == "the path"


@pytest.mark.parametrize("head, said", [
    (b"", "empty"), (b"\x80\x04", "plain pickle"), (pickle.dumps({}), "plain pickle"),
    (pickle.dumps({}, 0), "plain pickle"), (pickle.dumps([1], 2), "plain pickle"),
    (pickle.dumps({1: "x" * 300}, 5), "plain pickle"),
    (b"\x80\x04\x95\x0d" + bytes(7) + b"J\x01\0\0\0", "mmappickle"), (b"\x93NUMPY\x01\0" + bytes(300), ".npy"),
    (b"PK\x03\x04" + bytes(300), "zip"), (b"\x89HDF\r\n\x1a\n" + bytes(300), "HDF5"),
    (b"SQLite format 3\0" + bytes(300), "SQLite"), (bytes(257), "zero bytes"), (b"hello world" * 30, "hello wo"),
    (b"\xff" * 300, "starts with")], ids=range(14))
def test_foreign_files_are_named(head, said):
    with pytest.raises(FormatError) as caught:
        fmt.check_header(head[:257], len(head), "the path")
    assert not isinstance(caught.value, CorruptError)
    assert said in str(caught.value) and "the path" in str(caught.value)


@pytest.mark.parametrize("version", [2, 3, 2**63])
def test_newer_version_is_no_damage(version):
    head = bytearray(fmt.encode_header(FILE_ID, BOOT_ID) + STOP)
    struct.pack_into("<Q", head, fmt.VERSION_OFFSET, version)
    with pytest.raises(FormatError, match="version %d" % version):
        fmt.check_header(bytes(head), len(head), "f")


def test_each_flipped_bit_of_what_must_not_change_is_noticed():
    head = fmt.encode_header(FILE_ID, BOOT_ID) + STOP
    fixed = [*range(fmt.BLOCK_OFFSET), *range(fmt.MAGIC_OFFSET, fmt.FILE_ID_OFFSET), *range(252, 256)]
    for offset in fixed:
        for bit in range(8):
            damaged = bytearray(head)
            damaged[offset] ^= 1 << bit
            with pytest.raises((FormatError, CorruptError)):
                fmt.check_header(bytes(damaged), len(damaged), "f")


@given(st.binary(max_size=300), st.integers(0, 400))
def test_whatever_stands_there_the_header_check_says_so(head, size):
    try:
        fmt.check_header(head, size, "f")
    except (FormatError, CorruptError):
        pass


@given(st.data())
def test_header_with_damage_anywhere_is_read_or_refused(data):
    head = bytearray(fmt.encode_header(FILE_ID, BOOT_ID) + STOP)
    for offset in data.draw(st.lists(st.integers(0, 256), max_size=5)):
        head[offset] = data.draw(st.integers(0, 255))
    try:
        assert fmt.check_header(bytes(head), len(head), "f") == head[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET]
    except (FormatError, CorruptError):
        pass


# -- payloads -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", [0, 1, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, 1 << 40])
def test_bytes_are_pushed_by_the_shortest_opcode(n):
    head = fmt.bytes_head(n)
    expected = b"C" if n < 256 else b"B" if n < 1 << 32 else b"\x8e"
    assert head[:1] == expected and int.from_bytes(head[1:], "little") == n
    assert len(head) == {b"C": 2, b"B": 5, b"\x8e": 9}[expected]


@pytest.mark.parametrize("nbytes, itemalignment, alignment", [
    (0, 1, 16), (1023, 8, 16), (1023, 32, 32), (1024, 8, 64), ((1 << 20) - 1, 16, 64), (1 << 20, 8, 4096),
    (1 << 40, 16, 4096), (8, 128, 128)])
def test_alignment_of_array_data(nbytes, itemalignment, alignment):
    payload = fmt.array_payload(None, nbytes, itemalignment)
    assert (payload.alignment, payload.residue, payload.nbytes) == (alignment, 0, nbytes)
    assert payload.head == fmt.bytes_head(nbytes)


@given(st.integers(4097, 10**6))
def test_big_texts_end_on_a_multiple_of_8(n):
    payload = fmt.end_aligned(b"X" + struct.pack("<I", n), None, n)
    assert (payload.residue + n) % 8 == 0 and payload.alignment == 8


def test_parts_are_joined_where_they_meet():
    a, b = fmt.end_aligned(b"a", None, 1), fmt.end_aligned(b"b", None, 1)
    assert fmt.split_payloads([]) == [b""]
    assert fmt.split_payloads([b"x", b"y"]) == [b"xy"]
    assert fmt.split_payloads([a, b"x", b"y", b]) == [b"", a, b"xy", b, b""]
    assert fmt.split_payloads([a, b]) == [b"", a, b"", b, b""]
    assert fmt.join_parts([b"x"], [b"y"]) == [b"xy"]
    assert fmt.join_parts([b"x", a, b"y"], [b"z", b, b""]) == [b"x", a, b"yz", b, b""]
    first, second = [b"x"], [b"y"]
    fmt.join_parts(first, second)
    assert (first, second) == ([b"x"], [b"y"])


# -- records --------------------------------------------------------------------------------------------------------

sizes = st.one_of(st.integers(0, 40), st.sampled_from(
    [239, 240, 241, 250, 255, 256, 257, 1000, 1023, 1024, 4000, 4095, 4096, 4097, 5000, 9001]))
offsets = st.one_of(st.integers(32, 600), st.integers(32, 1 << 50)).map(lambda n: 8 * n)


@st.composite
def payloads(draw):
    """A payload of some bytes, and the object that it is."""
    n = draw(sizes)
    data = (b"%d|" % n * n)[:n]
    kind = draw(st.sampled_from(["array", "end", "hole"]))
    if kind == "end":
        return fmt.end_aligned(fmt.bytes_head(n), data, n), data
    if kind == "hole":
        return fmt.array_payload(None, n, 8), bytes(n)
    payload = fmt.array_payload(data, n, draw(st.sampled_from([1, 8, 16, 32, 64, 4096])))
    return payload, data


@st.composite
def record_parts(draw):
    """(parts, objects): opcodes and payloads in turn that push a key and a tuple of the objects."""
    ops, key = push(draw(st.one_of(st.integers(3, 300), sizes.map(lambda n: n + 3))))
    ops += b"("
    parts, objects = [], []
    for _ in range(draw(st.integers(0, 4))):
        payload, value = draw(payloads())
        parts += [ops, payload]
        objects.append(value)
        ops = b""
        for _ in range(draw(st.integers(0, 2))):
            more, value = push(draw(st.sampled_from([1, 2, 3, 9, 300])))
            ops += more
            objects.append(value)
    return [*parts, ops + b"t"], {key: tuple(objects)}


@given(offsets, record_parts())
def test_entries_are_laid_out_by_the_rules(offset, drawn):
    parts, expected = drawn
    record = lay_out(offset, parts)
    end = offset + len(record)
    assert end % 8 == 0
    assert record[:2] == bytes((fmt.MARK, fmt.LIVE)) and record[-2:] == bytes((fmt.SETITEM, fmt.POP_MARK))
    assert struct.unpack("<Q", record[2:10]) == (len(record) - 11,)

    # Each payload at its place; the big ones end on a multiple of 8.
    pieces, _, _ = fmt.encode_record(offset, TAG, parts)
    payloads_given = [part for part in parts if isinstance(part, fmt.Payload)]
    at, seen = offset + 1 + sum(map(len, pieces[:6])), 0
    for piece in pieces[6:]:
        if isinstance(piece, fmt.Payload) or any(piece is payload.data for payload in payloads_given):
            payload = payloads_given[seen]
            assert at % payload.alignment == payload.residue
            assert payload.nbytes <= fmt.BIG_PAYLOAD or payload.nbytes % 8 or (at + payload.nbytes) % 8 == 0
            if payload.residue or payload.head[:1] == b"X":
                assert (at + payload.nbytes) % 8 == 0
            seen += 1
        at += len(raw(piece))
    assert (seen, at) == (len(payloads_given), end)

    # It reads as pickle says, live and dead.
    assert run(record) == expected
    dead = record[:1] + bytes((fmt.DEAD,)) + record[2:]
    assert run(dead) == {}
    assert run(record, dead, record) == expected
    pickletools.dis(START + record + dead + STOP, out=open_nowhere())

    # And it is read back.
    for live, text in ((True, record), (False, dead)):
        buf = b"before" + text + STOP
        found = fmt.decode_record(buf, offset - 6, offset, TAG)
        assert (found.offset, found.end, found.live, found.entry) == (offset, end, live, True)
        assert record[found.content - offset:].startswith(parts[0])
        assert record[found.body_end - offset:] == b"s1"


@given(offsets, record_parts())
def test_hidden_records_leave_nothing_behind(offset, drawn):
    parts, _ = drawn
    record = lay_out(offset, parts, entry=False)
    assert (offset + len(record)) % 8 == 0 and record[-1:] == b"1"
    assert run(record) == {}
    found = fmt.decode_record(record + STOP, offset, offset, TAG)
    assert (found.end, found.live, found.entry) == (offset + len(record), True, False)
    assert record[found.content - offset:].startswith(parts[0]) and found.body_end == found.end - 1


@given(st.lists(st.tuples(record_parts(), st.booleans()), max_size=4), st.integers(32, 2000))
def test_records_one_behind_the_other(drawn, start):
    records, expected, offset = [], {}, 8 * start
    for (parts, items), entry in drawn:
        records.append(lay_out(offset, parts, entry))
        expected.update(items if entry else {})
        offset += len(records[-1])
    assert run(*records) == expected
    at = 8 * start
    buf = b"".join(records) + STOP
    for record in records:
        at = fmt.decode_record(buf, 8 * start, at, TAG).end
    assert at == offset


@given(st.integers(0, 70), st.integers(0, 4))
def test_check_value_is_as_short_as_it_can_be(n, phase):
    """Without a payload no record has more than 7 bytes that say nothing."""
    ops, _ = push(n + 3)
    offset = 256 + 8 * phase
    record = lay_out(offset, [ops + b"N"])
    least = 10 + 2 + 2 + fmt.CHECK.size + 1 + len(ops) + 1 + 2
    assert least <= len(record) < least + 8


@given(offsets, st.integers(0, 255), st.integers(0, 300), st.integers(0, 30), st.sampled_from([16, 32, 64]))
def test_small_records_are_the_same_whoever_lays_them_out(offset, nbytes, n, m, alignment):
    ops, data, tail = push(n + 3)[0] + b"(", b"d" * nbytes, push(m + 1)[0] + b"t"
    template = fmt.array_payload(None, nbytes, alignment)
    payload = fmt.array_payload(data, nbytes, alignment)
    for place in (offset, offset + 8, offset):
        record, end = fmt.encode_small(place, TAG, ops + template.head, template, data, tail)
        assert b"(" + record[:-1] == lay_out(place, [ops, payload, tail])
        assert record[-1:] == STOP and end == place + len(record)


def sample():
    """A record with a payload and one without, as (offset, bytes)."""
    with_payload = lay_out(4096, [b"\x8c\x03key", fmt.array_payload(b"data" * 500, 2000, 8), b"]a"])
    return [(4096, with_payload), (512, lay_out(512, [b"\x8c\x03keyK\x07"])), (512, lay_out(512, [b"K\x07"], False)),
            (512, lay_out(512, [b"\x8c\x03key", fmt.array_payload(b"d" * 1100, 1100, 512), b""]))]


@pytest.mark.parametrize("n", range(4))
def test_each_flipped_bit_of_head_check_and_key_is_noticed(n):
    offset, record = sample()[n]
    found = fmt.decode_record(record + STOP, offset, offset, TAG)
    span = fmt.CHECK.unpack_from(record, record.index(struct.pack("<Q", offset ^ TAG)))[2]
    zeros = range(record.index(struct.pack("<Q", offset ^ TAG)) + fmt.CHECK.size, found.content - offset - 1)
    assert span and not any(record[at] for at in zeros)
    ends = [len(record) - 1, *([len(record) - 2] if found.entry else [])]
    for at in [*range(found.content - offset + span), *ends]:
        for bit in range(8):
            damaged = bytearray(record + STOP)
            damaged[at] ^= 1 << bit
            if at in zeros:                                 # they say nothing
                assert fmt.decode_record(damaged, offset, offset, TAG).content == found.content
                continue
            with pytest.raises(CorruptError) as caught:
                fmt.decode_record(damaged, offset, offset, TAG)
            assert caught.value.offset == offset


def test_record_of_another_place_or_file_is_noticed():
    offset, record = sample()[0]
    for place, tag in ((offset + 8, TAG), (offset, TAG ^ 1), (offset, fmt.file_tag(bytes(16))), (0, TAG)):
        with pytest.raises(CorruptError, match="another place or file"):
            fmt.decode_record(record + STOP, place, place, tag)
    assert fmt.decode_record(record + STOP, offset, offset, TAG)


def test_a_file_inside_a_value_is_not_taken_for_records():
    """A value that is itself such a file: its records have another tag."""
    inner = lay_out(256, [b"\x8c\x03key", fmt.array_payload(b"x" * 64, 64, 8), b""], tag=fmt.file_tag(b"other" * 4))
    outer = lay_out(256, [b"\x8c\x03key", fmt.array_payload(inner, len(inner), 8), b""])
    at = outer.index(inner)
    with pytest.raises(CorruptError):
        fmt.decode_record(outer + STOP, 256, 256 + at, TAG)


@pytest.mark.parametrize("n", range(4))
def test_record_that_was_cut_is_noticed(n):
    offset, record = sample()[n]
    for size in range(len(record)):
        with pytest.raises(CorruptError):
            fmt.decode_record(record[:size], offset, offset, TAG)


@given(st.data())
def test_damaged_records_are_read_or_refused(data):
    offset, record = data.draw(st.sampled_from(sample()))
    damaged = bytearray(record + STOP)
    for at in data.draw(st.lists(st.integers(0, min(60, len(record))), min_size=1, max_size=6)):
        damaged[at] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))):]
    try:
        found = fmt.decode_record(damaged, offset, offset, TAG)
    except CorruptError:
        return
    assert offset < found.content <= found.body_end < found.end <= offset + len(damaged)


@given(st.binary(max_size=200), st.integers(0, 1 << 60), st.integers(0, (1 << 64) - 1))
def test_whatever_stands_there_is_a_record_or_refused(buf, offset, tag):
    for start in (b"", b"(G", b"(G" + struct.pack("<Q", max(0, len(buf) - 1)) + b"h\0C"):
        with pytest.raises(CorruptError):
            fmt.decode_record(start + buf, offset, offset, tag)


def test_sizes_that_lie_cost_nothing():
    for length in (1 << 40, (1 << 64) - 1):
        with pytest.raises(CorruptError, match="cut short"):
            fmt.decode_record(b"(G" + struct.pack("<Q", length) + bytes(100), 256, 256, TAG)


# -- hidden globals -------------------------------------------------------------------------------------------------

def test_groups_memoise_what_their_indices_say():
    import numpy

    expected = {fmt.NDARRAY: numpy.ndarray, fmt.DTYPE: numpy.dtype, fmt.NO_ROWS: ((0,),), fmt.UINT8: numpy.dtype("u1"),
                fmt.MASKED_ARRAY: numpy.ma.MaskedArray, fmt.NOMASK: numpy.ma.nomask}
    hidden = [lay_out(256, [ops], entry=False) for ops in fmt.GROUPS.values()]
    for index, value in expected.items():
        assert index < fmt.MEMO_START
        found = pickle.loads(START + b"".join(hidden) + bytes((fmt.BINGET, index)) + STOP)
        assert found == value if isinstance(value, (tuple, numpy.dtype)) else found is value


def test_clear_empties_the_dictionary():
    entry = lay_out(256, [b"K\x01K\x02"])
    clear = lay_out(256, [fmt.CLEAR], entry=False)
    assert run(entry, clear) == {}
    assert run(entry, clear, lay_out(256, [b"K\x03K\x04"])) == {3: 4}


@pytest.mark.parametrize("key", [b"\x8c\x01k", b"\x8c\x03kkk", b"\x8c\x08abcdefgh", b"K\x01"])
def test_the_padding_before_aligned_data_is_never_a_big_payload_itself(key):
    """Else a reader's buffer could start anew at its end, which is at no multiple of 8."""
    for offset in range(8, 2 * 4096, 8):
        pieces, end, _ = fmt.encode_record(offset, 1, [key, fmt.array_payload(None, 1 << 20, 8), b""])
        at = offset + 1
        for piece in pieces:
            if isinstance(piece, fmt.Payload):
                assert at % 4096 == 0
                at += piece.nbytes
            else:
                assert len(piece) <= fmt.BIG_PAYLOAD + 32
                at += len(piece)
        check = pieces[2]
        assert at == end and end % 8 == 0 and int.from_bytes(check[1:], "little") <= fmt.BIG_PAYLOAD
