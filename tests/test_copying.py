"""Entries laid out anew for another place: the same values, and for the same place the same bytes."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import faults
import judge
import strategies
from mmapdict import CorruptError, birth, copying
from mmapdict import format as fmt
from mmapdict.arrays import array_order, decode_info, dtype_spec, hole_parts, masked_parts, payload_pieces
from mmapdict.literals import decode_literal, encode_literal, key_parts
from mmapdict.store import File
from mmapdict.values import encode, encode_hole

TAG = 0x1122334455667788
KINDS = {"array": strategies.arrays(), "masked array": strategies.masked_arrays(), "value": strategies.values(),
         "plain value": strategies.plain_values()}
BIG = {
    "array": np.arange(1 << 18), "odd size": np.arange((1 << 20) + 3, dtype="u1").reshape(1, -1),
    "foreign": np.arange(5000, dtype=">u4"), "fortran": np.asfortranarray(np.arange(30000.).reshape(100, -1)),
    "masked": np.ma.array(np.arange(20000), mask=np.arange(20000) % 3 == 0, fill_value=-1),
    "structured": np.zeros(3000, {"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [3, 8], "itemsize": 24}),
    "texts": ["x" * 5000, "é" * 70_000, b"y" * 4097, "short", {"z": "w" * 4096}],
    "shared": [[b"y" * 5000] * 3, "x" * 300_000], "long int": 1 << 100_000, "many": list(range(100_000)),
    "array in a value": {"a": np.arange(100_000), "b": [np.arange(9)] * 2},
}
BIG["recursive"] = [BIG["texts"]]
BIG["recursive"].append((BIG["recursive"], b"\0\0\0"))


def laid_out(offset, parts):
    """The bytes of an entry at `offset`."""
    pieces, end, _ = fmt.encode_record(offset, TAG, parts)
    data = b"(" + b"".join(b"".join(bytes(b) for b in payload_pieces(p)) if isinstance(p, fmt.Payload) else p
                           for p in pieces)
    assert offset + len(data) == end
    return data


def cut(data, offset, memo):
    """The entry whose bytes, at `offset`, are `data`, as parts; its key too."""
    view = memoryview(data)
    record = fmt.decode_record(view, offset, offset, TAG)
    key, at = decode_literal(view, record.content - offset, record.body_end - offset)
    return key, copying.stored_parts(view, offset, record, key, at + offset, memo)


def loaded(data):
    """What an unpickler makes of an entry."""
    return pickle.loads(b"\x80\x04}q\x00" + b"".join(b"(" + ops + b"1" for ops in fmt.GROUPS.values()) + data + b".")


def check(key, value, offset, other, memo, other_memo):
    encoded = encode(value, memo)
    data = laid_out(offset, fmt.join_parts(key_parts(key), encoded.parts))
    found, same = cut(data, offset, memo)
    assert judge.fingerprint(found) == judge.fingerprint(key)
    assert laid_out(offset, same.parts) == data
    assert same.groups == encoded.groups and same.memo == encoded.memo
    moved = cut(data, offset, other_memo)[1]
    again = laid_out(other, moved.parts)
    assert judge.fingerprint_items(loaded(again)) == judge.fingerprint_items(loaded(data))
    # and there it is what storing the value there would have made
    expected = encode(value, other_memo)
    assert again == laid_out(other, fmt.join_parts(key_parts(key), expected.parts))


offsets = st.integers(32, 4096).map(lambda n: 8 * n)
memos = st.sampled_from([64, 65, 1000, 1 << 20])


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data(), key=strategies.keys(), offset=offsets, other=offsets, memo=memos, other_memo=memos)
def test_every_entry_can_be_moved(kind, data, key, offset, other, memo, other_memo):
    check(key, data.draw(KINDS[kind]), offset, other, memo, other_memo)


@pytest.mark.parametrize("key", ["k", ("x" * 5000, b"y" * 9000, 1)], ids=["short key", "long key"])
@pytest.mark.parametrize("name", sorted(BIG))
def test_big_entries_can_be_moved(name, key):
    for offset, other in ((256, 264), (4088, 256), (1000, 99_992)):
        check(key, BIG[name], offset, other, 64, 70)


def test_the_bytes_of_big_payloads_are_not_copied():
    value = {"array": np.arange(1 << 17), "text": "x" * 100_000}
    for part in value.values():
        data = laid_out(256, fmt.join_parts(key_parts("k"), encode(part, 64).parts))
        payload, = (p for p in cut(data, 256, 64)[1].parts if isinstance(p, fmt.Payload))
        assert type(payload.data) is memoryview and payload.data.obj is data


def test_an_array_that_this_writer_would_not_write_is_pickled():
    """Another program may write a dtype whose text would be a payload of its own."""
    dtype = np.dtype([("n" * 5000, "<i4"), ("b", "<f8")])
    array = np.ones((2, 3), dtype, order="F")
    for value in (array, np.ma.array(array, mask=[[(1, 0)] * 3, [(0, 1)] * 3], hard_mask=True)):
        stored = value.data if isinstance(value, np.ma.MaskedArray) else value
        simple = hole_parts(stored.shape, np.dtype("V12"), array_order(stored))
        head = simple[0].replace(b"\x8c\x04|V12", encode_literal(dtype_spec(dtype)))
        assert head != simple[0]
        parts = [head, fmt.array_payload(stored.tobytes("A"), stored.nbytes, 1), simple[2]]
        if value is not stored:
            mask = value._mask
            masks = hole_parts(mask.shape, np.dtype("V2"), array_order(mask))
            head = masks[0].replace(b"\x8c\x03|V2", encode_literal(dtype_spec(mask.dtype)))
            parts = masked_parts(parts, [head, fmt.array_payload(mask.tobytes("A"), mask.nbytes, 1), masks[2]],
                                 [b"N"], True)
        data = laid_out(256, fmt.join_parts(key_parts("k"), parts))
        moved = laid_out(1024, cut(data, 256, 64)[1].parts)
        assert judge.fingerprint_items(loaded(moved)) == judge.fingerprint_items(loaded(data))


@pytest.mark.parametrize("ops, words", [
    (b"X\xff\xff\xff\xffabc" + b"r\x40\0\0\0", "runs past the end"),
    (b"cos\nsystem\n" + b"r\x40\0\0\0", "may not stand here"),
    (b"j\x00\0\0\0" + b"](r\x40\0\0\0e", "not put"),
])
def test_a_damaged_value_is_refused(ops, words):
    data = laid_out(256, [b"K\x01" + ops])
    with pytest.raises(CorruptError, match=words):
        cut(data, 256, 64) if b"j" not in ops else cut(data, 256, 1)


@pytest.mark.parametrize("ops, clean", [
    (b"K\x07C\x03abc0", b"K\x07"), (b"C\x03abc0K\x07", b"K\x07"), (b"(C\x03abc0NC\x000t", b"(Nt"),
    (b"NC\x01aC\x01b00", b"N"), (b"\x8c\x010", b"\x8c\x010"), (b"](B\x88\x13\0\0" + b"x" * 5000 + b"0Ne", b"](Ne"),
    (b"]r\x40\0\0\0C\x01a0j\x40\0\0\0\x86", b"]r\x45\0\0\0j\x45\0\0\0\x86"),
])
def test_what_is_thrown_away_is_left_out(ops, clean):
    """A filler's zeros could be anything in a file that somebody made, and repair shall not copy that."""
    entry = cut(laid_out(256, [b"K\x01" + ops]), 256, 69)[1]
    assert entry.parts == [b"K\x01" + clean]


# -- whole files --------------------------------------------------------------------------------------------------

def build(path, items, source=None, sparse=False):
    """A new file made of entries that were stored in another one."""
    with birth.new_file(os.fspath(path), os.fspath(path.parent)) as new:
        builder = copying.Builder(new, source, sparse)
        for key, value in items:
            encoded = value if hasattr(value, "parts") else encode(value, builder.memo)
            parts = fmt.join_parts(key_parts(key), encoded.parts)
            builder.add(key, copying.Stored(parts, encoded.groups, encoded.memo))
        builder.finish(8)
    return path.read_bytes()


def test_a_built_file_is_like_any_other(path):
    items = [("a", 1), ("b", np.arange(10)), ("c", BIG["shared"]), ("m", BIG["masked"]), ("d", [1, [2]] * 2),
             ("e", BIG["array"]), ("f", "end")]
    data = build(path, items)
    faults.check_header(data)
    assert faults.used(data) == data and faults.cell(data, faults.COMMIT) == 8
    assert judge.fingerprint_items(judge.load_every_way(path)) == judge.fingerprint_items(dict(items))
    hidden = [r for r in list(faults.records(data))[:-1] if not r[3]]
    assert len(hidden) == 2


def test_a_built_file_of_nothing_is_a_new_file(path):
    data = build(path, [])
    faults.check_header(data)
    assert len(data) == 257 and judge.load_every_way(path) == {}


def test_until_it_is_finished_a_file_is_empty(path, tmp_path):
    with pytest.raises(ZeroDivisionError):
        with birth.new_file(os.fspath(path), os.fspath(tmp_path)) as new:
            builder = copying.Builder(new)
            for n in range(5):
                encoded = encode(np.arange(1 << 17), builder.memo)
                data = laid_out(256, fmt.join_parts(key_parts(n), encoded.parts))
                builder.add(*cut(data, 256, builder.memo))
                with open(new.path, "rb") as f:
                    assert pickle.load(f) == {}
            1 / 0
    assert list(tmp_path.iterdir()) == []


def test_many_small_entries_are_written_together(path, monkeypatch):
    calls = []
    monkeypatch.setattr(File, "write", lambda self, offset, data, write=File.write: (
        calls.append(offset), write(self, offset, data)))
    build(path, [(n, n) for n in range(5000)])
    assert len(calls) < 3


def test_groups_and_decoding_agree():
    """What is cut again finds its array where the first record's covered opcodes end."""
    hole = encode_hole((1 << 18,), np.dtype("u2"), "C", False)
    offset = 256
    pieces, end, _ = fmt.encode_record(offset, TAG, fmt.join_parts(key_parts("h"), hole.parts))
    data = b"(" + b"".join(bytes(p.nbytes) if isinstance(p, fmt.Payload) else p for p in pieces)
    record = fmt.decode_record(data, offset, offset, TAG)
    _, at = decode_literal(data, record.content - offset, record.body_end - offset)
    info = decode_info(data, offset, at + offset, record.body_end, record.covered)
    assert info.offset == record.covered and info.offset % 64 == 0 and end == offset + len(data)
