"""Seals: what is in them, and what they notice."""

import hashlib
import io
import pickle
import pickletools
import struct

import numpy as np
import pytest

import mmapdict
from mmapdict import format as fmt
from mmapdict import seals
from mmapdict.errors import CorruptError

N_BIG = 200


@pytest.fixture
def data(path):
    """The bytes of a file with entries of several kinds, and a dead one."""
    with mmapdict.open(path, "w") as d:
        d["a"] = np.arange(1000)
        d["b"] = {"x": [1, 2]}
        d["gone"] = 1
        d["masked"] = np.ma.masked_equal(np.arange(5), 3)
        d["text"] = "t" * 5000
        del d["gone"]
    return path.read_bytes()


def walk(data):
    """All records before the STOP."""
    view, tag = memoryview(data), fmt.file_tag(data[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET])
    at, found = fmt.HEADER_SIZE, []
    while view[at] != fmt.STOP:
        found.append(fmt.decode_record(view, 0, at, tag))
        at = found[-1].end
    return found, at


def alive(data):
    return [(r.offset, r.end) for r in walk(data)[0] if r.live]


def add(data, parts):
    """`data` with a hidden record of these parts at its end."""
    _, stop = walk(data)
    tag = fmt.file_tag(data[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET])
    pieces, end, _ = fmt.encode_record(stop, tag, parts, entry=False)
    pieces = [p if isinstance(p, bytes) else bytes(p.data) for p in pieces]
    return data[:stop] + b"(" + b"".join(pieces) + b"."


def sealed(data):
    """`data` with a seal at its end, and the seal."""
    new = add(data, seals.seal_parts(memoryview(data), alive(data)))
    records, _ = walk(new)
    return new, seals.decode_seal(memoryview(new), 0, records[-1])


def differences(data, seal):
    return list(seals.check(seal, memoryview(data), [r for r in alive(data) if r[0] < seal.offset]))


def test_a_sealed_file_is_the_same_pickle(data):
    new, _ = sealed(data)
    found, expected = pickle.loads(new), pickle.loads(data)
    assert list(found) == list(expected) and np.array_equal(found["a"], expected["a"])
    pickletools.dis(new, out=io.StringIO())


def test_a_seal_says_what_the_file_says_by_hand(data):
    new, seal = sealed(data)
    assert seal.offset == len(data) - 1
    rows = [(int(r["offset"]), int(r["end"]), r["digest"].tobytes()) for r in seal.table]
    assert rows == [(a, b, hashlib.sha256(data[a + 2:b]).digest()) for a, b in alive(data)]
    assert seal.header == hashlib.sha256(data[:40]).digest()
    content = pickle.loads(new[seal.offset + 10 + 3 + 14:new.rindex(b"1.")][new[seal.offset + 11] - 14:] + b".")
    assert content[:24] == struct.pack("<QQQ", 1, 1, len(rows))
    assert content[-32:] == hashlib.sha256(content[:-32]).digest()
    assert differences(new, seal) == []


def test_bytes_are_sealed_with_their_ends_at_multiples_of_8(path):
    with mmapdict.open(path, "w") as d:
        for i in range(N_BIG):
            d[i] = i
    data = path.read_bytes()
    for n in (0, 3, 4, 80, 84, 85, N_BIG):
        live = alive(data)[:n]
        new = add(data, seals.seal_parts(memoryview(data), live))
        record = walk(new)[0][-1]
        seal = seals.decode_seal(memoryview(new), 0, record)
        assert len(seal.table) == n
        end = record.covered + 24 + n * 48 + 64
        assert end % 8 == 0 and record.end % 8 == 0
        pickletools.dis(new, out=io.StringIO())


def test_every_byte_that_is_sealed_matters(data):
    new, seal = sealed(data)
    for offset, end in alive(data):
        for at in {offset + 2, offset + 9, end - 1, end - 9, (offset + end) // 2}:
            bad = bytearray(new)
            bad[at] ^= 1
            found = list(seals.check(seal, memoryview(bad), alive(data)))
            assert found == [seals.Difference("changed", offset, end)]
    for at in (0, 7, 8, 20, 39):
        bad = bytearray(new)
        bad[at] ^= 1
        assert [f.kind for f in seals.check(seal, memoryview(bad), alive(data))] == ["header"]
    for at in range(40, 256):
        bad = bytearray(new)
        bad[at] ^= 1
        assert list(seals.check(seal, memoryview(bad), alive(data))) == []


def test_records_that_died_or_came_are_told(data):
    new, seal = sealed(data)
    live = alive(data)
    kinds = list(seals.check(seal, memoryview(new), live[:2] + live[3:]))
    assert kinds == [seals.Difference("missing", *live[2])]
    dead = next((r.offset, r.end) for r in walk(data)[0] if not r.live)
    assert list(seals.check(seal, memoryview(new), live + [dead])) == [seals.Difference("added", *dead)]


def test_a_damaged_seal_is_refused_at_its_place(data):
    new, seal = sealed(data)
    records, _ = walk(new)
    record = records[-1]
    for at in (record.covered, record.covered + 30, record.covered + 24 + len(seal.table) * 48, record.covered + 8,
               record.covered + 24 + len(seal.table) * 48 + 63):
        bad = bytearray(new)
        bad[at] ^= 1
        with pytest.raises(CorruptError, match="own checksum") as caught:
            seals.decode_seal(memoryview(bytes(bad)), 0, record)
        assert caught.value.offset == record.covered


def made(head, rows=0):
    content = struct.pack("<QQQ", *head) + bytes(48 * rows) + bytes(32)
    content += hashlib.sha256(content).digest()
    return [fmt.SEAL, fmt.end_aligned(fmt.bytes_head(len(content)), content, len(content)), b""]


@pytest.mark.parametrize("parts, message", [
    (made((2, 1, 0)), "version 2 with algorithm 1"), (made((1, 9, 0)), "version 1 with algorithm 9"),
    (made((1, 1, 1)), "a seal of 1 records has 88 bytes"), (made((1, 1, 1 << 60)), "a seal of"),
    (made((1, 1, 1), 2), "a seal of 1 records"), ([fmt.SEAL], "without its checksums"),
    ([fmt.SEAL + b"K\x01"], "without its checksums"),
    ([fmt.SEAL + b"C\x03abc"], "without its checksums"),
])
def test_seals_that_make_no_sense_are_refused(data, parts, message):
    new = add(data, parts)
    with pytest.raises(CorruptError, match=message):
        seals.decode_seal(memoryview(new), 0, walk(new)[0][-1])


def test_other_records_are_no_seals(data):
    for record in walk(data)[0]:
        assert seals.decode_seal(memoryview(data), 0, record) is None


def test_a_seal_can_be_read_from_a_window(data):
    new, seal = sealed(data)
    base = seal.offset - 16
    found = seals.decode_seal(memoryview(new)[base:], base, walk(new)[0][-1])
    assert found.header == seal.header and found.table.tobytes() == seal.table.tobytes()


def test_a_digest_is_that_of_the_pieces_joined():
    assert seals.digest([b"ab", memoryview(b"c")]) == seals.digest([b"abc"]) == hashlib.sha256(b"abc").digest()
