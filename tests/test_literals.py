"""Plain objects as opcodes: what is encoded is decoded, pickle agrees about every byte, and damage is refused."""

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import judge
import strategies
from mmapdict import CorruptError, literals
from mmapdict import format as fmt

leaves = st.one_of(strategies.integers, st.floats(), strategies.texts, strategies.big_texts, strategies.big_bytes,
                   st.binary(max_size=20), st.none(), st.booleans())
plain_objects = st.recursive(leaves, lambda part: st.one_of(
    st.lists(part, max_size=4), st.lists(part, max_size=4).map(tuple),
    st.dictionaries(leaves.filter(lambda key: key == key), part, max_size=4)), max_leaves=12)


def same(a, b):
    return judge.fingerprint(a) == judge.fingerprint(b)


def decode(ops):
    """Decode the whole of `ops`."""
    found, end = literals.decode_literal(ops, 0, len(ops))
    assert end == len(ops)
    return found


def loads(ops):
    return pickle.loads(b"\x80\x04" + ops + b".")


# -- there and back -------------------------------------------------------------------------------------------------

@given(plain_objects)
def test_what_is_encoded_is_decoded_and_pickle_agrees(obj):
    ops = literals.encode_literal(obj)
    assert same(decode(ops), obj)
    assert same(loads(ops), obj)


@given(plain_objects, st.binary(max_size=20), st.binary(max_size=20))
def test_literals_end_where_they_end_whatever_stands_around_them(obj, before, behind):
    ops = literals.encode_literal(obj)
    buf = before + ops + b"N" + behind
    found, end = literals.decode_literal(buf, len(before), len(buf))
    assert same(found, obj) and end == len(before) + len(ops)


@pytest.mark.parametrize("obj, ops", [
    (None, "4e"), (True, "88"), (False, "89"), (0, "4b00"), (255, "4bff"), (256, "4d0001"), (65_535, "4dffff"),
    (65_536, "4a00000100"), (-1, "4affffffff"), (2**31 - 1, "4affffff7f"), (-2**31, "4a00000080"),
    (2**31, "8a050000008000"), (2**63, "8a09000000000000008000"), (-2**31 - 1, "8a05ffffff7fff"),
    ({}, "7d2875"), (1.0, "473ff0000000000000"), (-0.0, "478000000000000000"), ("", "8c00"), ("é", "8c02c3a9"),
    ("\udcff", "8c03edb3bf"),
    (b"", "4300"), (b"\xff", "4301ff"), ((), "29"), ((None,), "284e74"), ([], "5d2865"), ([1], "5d284b0165"),
    ({"a": None}, "7d288c01614e75")])
def test_opcodes_of_literals(obj, ops):
    assert literals.encode_literal(obj) == bytes.fromhex(ops)
    assert same(decode(bytes.fromhex(ops)), obj)


@pytest.mark.parametrize("n, text, data", [(255, b"\x8c\xff", b"C\xff"), (256, b"X\0\1\0\0", b"B\0\1\0\0"),
                                           (65_536, b"X\0\0\1\0", b"B\0\0\1\0")])
def test_long_texts_and_bytes_take_the_longer_opcode(n, text, data):
    assert literals.encode_literal("x" * n) == text + b"x" * n
    assert literals.encode_literal(b"x" * n) == data + b"x" * n


@pytest.mark.parametrize("bits", [2039, 2040, 2047, 2048, 100_000])
def test_huge_integers(bits):
    for n in (1 << bits, -1 << bits, (1 << bits) - 1, -(1 << bits) - 1):
        ops = literals.encode_literal(n)
        assert ops[0] == (fmt.LONG1 if len(ops) < 258 else fmt.LONG4)
        assert decode(ops) == loads(ops) == n


@pytest.mark.parametrize("obj", [
    1j, {1}, bytearray(b"a"), np.float64(1), np.int64(1), np.str_("a"), object(), int, range(3), Ellipsis,
    type("T", (tuple,), {})((1,)), type("I", (int,), {})(1), [1j], {"a": {1}}, {1j: 1}], ids=range(15))
def test_other_types_have_no_literal_form(obj):
    with pytest.raises(TypeError, match="literal"):
        literals.encode_literal(obj)


# -- what decoding accepts ------------------------------------------------------------------------------------------

@given(st.one_of(st.binary(max_size=30), plain_objects.map(literals.encode_literal)), st.data())
def test_pickle_agrees_about_damaged_literals(ops, data):
    """Two readers of one file must never disagree; what is no literal is refused, and nothing else is raised."""
    damaged = bytearray(ops)
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            at = data.draw(st.integers(0, min(40, len(damaged) - 1)))
            opcodes = st.sampled_from(b"NK(t)]e}u0CBX\x8c\x8a\x8bJMG\x88")
            damaged[at] = data.draw(st.integers(0, 255) | opcodes)
    damaged = bytes(damaged)
    try:
        found, end = literals.decode_literal(damaged, 0, len(damaged))
    except CorruptError:
        return
    assert end <= len(damaged)
    assert same(loads(damaged[:end]), found)


@given(plain_objects)
def test_literals_that_were_cut_are_refused(obj):
    ops = literals.encode_literal(obj)
    cuts = range(len(ops)) if len(ops) < 100 else [*range(50), len(ops) - 1, len(ops) // 2]
    for size in cuts:
        with pytest.raises(CorruptError):
            literals.decode_literal(ops[:size], 0, size)                # the buffer ends
        with pytest.raises(CorruptError):
            literals.decode_literal(ops, 0, size)                       # the record ends, the buffer goes on


@pytest.mark.parametrize("ops, said", [
    (b"", "cut short"), (b"0", "opcode 0x30"), (b".", "opcode 0x2e"), (b"\x94", "opcode 0x94"), (b"h\0", "opcode 0x68"),
    (b"cos\nsystem\n", "opcode 0x63"), (b"I1\n", "opcode"), (b"\x85", "opcode"), (b"t", "opcode"), (b"]", "opcode"),
    (b"}", "opcode"), (b"]N", "opcode"), (b"\x8c\x01\xff", "UTF-8"),
    (b"X\x02\0\0\0\xc3(", "UTF-8"), (b"\x8c\x05ab", "runs past"),
    (b"X\xff\xff\xff\xffab", "runs past"), (b"\x8d" + b"\xff" * 8, "runs past"), (b"\x8b\xff\xff\xff\x7f", "runs past"),
    (b"J\0\0", "runs past"), (b"G\0", "runs past"), (b"K", "runs past"), (b"(N", "cut short"), (b"](N", "cut short"),
    (b"}(Nu", "key without a value"), (b"}(](eNu", "unhashable"), (b"}(}(uNu", "unhashable"), (b"(C\1a", "cut short")])
def test_what_is_no_literal_is_refused(ops, said):
    with pytest.raises(CorruptError, match=said):
        literals.decode_literal(ops, 0, len(ops))


def test_the_place_of_the_damage_is_told():
    with pytest.raises(CorruptError) as caught:
        literals.decode_literal(b"....(NN.", 4, 8)
    assert caught.value.offset == 7


@pytest.mark.parametrize("opening, closing", [(b"(", b"t"), (b"](", b"e"), (b"}(N", b"u")])
def test_literals_that_are_nested_too_deep_are_refused(opening, closing):
    for depth in (1, 50, 100):
        ops = opening * depth + b"N" + closing * depth
        assert same(decode(ops), loads(ops))
    for depth in (200, 100_000):
        with pytest.raises(CorruptError, match="deep"):
            literals.decode_literal(opening * depth + b"N" + closing * depth, 0, 10**7)


def test_keys_as_deep_as_allowed_are_decoded():
    key = ()
    for _ in range(literals.KEY_DEPTH - 1):
        key = (key,)
    literals.check_key(key)
    assert decode(literals.encode_literal(key)) == key
    with pytest.raises(TypeError, match="nested"):
        literals.check_key((key,))


# -- filler ---------------------------------------------------------------------------------------------------------

FILLERS = [b"C\0000", b"C\x030000", b"B\0\0\0\0000", b"B\x05\0\0\0zzzzz0", b"C\x02aa0C\x01b0"]


@pytest.mark.parametrize("filler", FILLERS)
def test_filler_is_passed_over(filler):
    for ops, obj in ((b"N", None), (b"K\x05", 5), (b"C\x01a", b"a"),
                     (b"(N" + filler + b"K\x01" + filler + b"t", (None, 1)), (b"](" + filler + b"e", []),
                     (b"}(" + filler + b"NN" + filler + b"u", {None: None})):
        assert decode(filler + ops) == loads(filler + ops) == obj
    assert literals.skip_filler(b"x" + filler + b"N", 1, 2 + len(filler)) == 1 + len(filler)


@pytest.mark.parametrize("ops", [
    b"N", b"C\x01aN", b"B\1\0\0\0aN", b"C\xff0", b"B\xff\xff\xff\xff0", b"C\x01", b"C", b"B\0\0", b"C\x01a",
    b"\x8c\x01a0", b"\x8e\x01" + bytes(7) + b"a0", b""])
def test_what_is_no_filler_is_not_passed_over(ops):
    assert literals.skip_filler(ops, 0, len(ops)) == 0
    assert literals.skip_filler(b"C\x00" + b"0" + ops, 0, 3 + len(ops)) == 3


@given(st.binary(max_size=40), st.integers(0, 45))
def test_skipping_stays_inside(buf, end):
    end = min(end, len(buf))
    assert 0 <= literals.skip_filler(buf, 0, end) <= end


# -- keys -----------------------------------------------------------------------------------------------------------

@given(strategies.keys())
def test_parts_of_a_key_push_it(key):
    literals.check_key(key)
    assert same(literals.plain_key(key), key)
    parts = literals.key_parts(key)
    assert all(isinstance(part, fmt.Payload) == bool(n % 2) for n, part in enumerate(parts))
    ops = b"".join(part.head + part.data if isinstance(part, fmt.Payload) else part for part in parts)
    assert same(loads(ops), key) and same(decode(ops), key)
    assert ops == literals.encode_literal(key)
    for part in parts[1::2]:
        assert part.nbytes == len(part.data) > 4000 and (part.residue + part.nbytes) % 8 == 0
    assert all(len(part) <= 70_000 for part in parts[::2])


@pytest.mark.parametrize("key, payloads", [
    ("x" * 4000, 0), ("x" * 5000, 1), (b"x" * 5000, 1), (2**40_000, 1), (("a", "x" * 5000, b"y" * 5000, 1), 2),
    ((("x" * 5000,),), 1), (tuple(range(3000)), 0), (tuple("x" * 4000 for _ in range(3)), 0), ("é" * 2500, 1)],
    ids=range(9))
def test_only_long_texts_become_payloads(key, payloads):
    parts = literals.key_parts(key)
    assert len(parts) == 1 + 2 * payloads
    assert loads(b"".join(part.head + part.data if isinstance(part, fmt.Payload) else part for part in parts)) == key


@pytest.mark.parametrize("key", [
    "", "a", b"a", 0, -1, 2**100, 1.5, float("inf"), -0.0, True, None, (), ("a", 1), ((None,), (b"", (True, 0.5))),
    "\ud800"])
def test_keys_that_are_allowed(key):
    literals.check_key(key)
    assert literals.plain_key(key) is key or same(literals.plain_key(key), key)


@pytest.mark.parametrize("key", [
    float("nan"), ("a", float("nan")), ((float("nan"),),), 1j, frozenset(), bytearray(b"a"), [], {}, ["a"], ("a", []),
    ("a", {1}), object(), int, Ellipsis, range(3), type("S", (str,), {})("a"), type("T", (tuple,), {})(("a",)),
    type("I", (int,), {})(1), np.array(1), np.array("a"), np.void(b"a"), np.float64("nan"),
    np.datetime64("2024-01-01"), np.timedelta64(1, "s"),
    np.complex64(1), ("a", np.float32("nan")), (np.datetime64("NaT", "s"),), np.longdouble(1) / 3], ids=range(28))
def test_keys_that_are_refused(key):
    with pytest.raises(TypeError):
        literals.plain_key(key)
    with pytest.raises(TypeError):
        literals.check_key(key)


@pytest.mark.parametrize("key, plain", [
    (np.str_("a"), "a"), (np.bytes_(b"a"), b"a"), (np.int8(-3), -3), (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float64(0.5), 0.5), (np.float32(0.5), 0.5), (np.float16(2), 2.0), (np.bool_(True), True), (np.longlong(5), 5),
    (("a", np.int64(1), (np.str_("b"), None)), ("a", 1, ("b", None))), ((np.int64(1),), (1,)),
    (np.str_("\ud800"), "\ud800")], ids=range(12))
def test_numpy_scalars_become_the_value_that_they_equal(key, plain):
    found = literals.plain_key(key)
    assert same(found, plain) and found == key and hash(found) == hash(key)


def test_numpy_texts_with_zeros_at_their_end_stay_the_key_that_they_equal():
    """numpy's `item` hides such zeros; the text without them is another key."""
    for key, plain in ((np.str_("a\0"), "a\0"), (np.bytes_(b"a\0"), b"a\0")):
        found = literals.plain_key(key)
        assert same(found, plain) and found == key and hash(found) == hash(key)


def test_a_float_that_numpy_rounded_is_the_float_that_it_is():
    assert literals.plain_key(np.float32(0.1)) == float(np.float32(0.1)) != 0.1


def test_keys_that_are_nested_without_end_are_refused():
    for levels in (100, 101, 102, 500, 100_000):
        key = ()
        for _ in range(levels):
            key = (key,)
        with pytest.raises(TypeError, match="nested"):
            literals.plain_key(key)
    key = np.int64(1)
    for _ in range(100):
        key = (key,)
    assert literals.plain_key(key) == key


def test_integers_wider_than_their_shortest_form_are_read():
    """pickle reads them too; what decides is the value."""
    for ops, value in ((b"\x8a\x00", 0), (b"\x8a\x02\x05\x00", 5), (b"\x8b\x01\0\0\0\xff", -1), (b"\x8b\0\0\0\0", 0),
                       (b"M\x05\0", 5), (b"J\x05\0\0\0", 5), (b"X\x01\0\0\0a", "a"),
                       (b"\x8d\x01" + bytes(7) + b"a", "a"),
                       (b"\x8e\x01" + bytes(7) + b"a", b"a"), (b"()t", ((),))):
        assert decode(ops) == loads(ops) == value


def test_floats_are_big_endian_as_pickle_has_them():
    for value in (1.5, -2.5e-300, float("inf")):
        assert literals.encode_literal(value) == b"G" + struct.pack(">d", value)
    ops = b"G\x7f\xf4\0\0\0\0\x01\x23"                     # a NaN with something in it
    assert struct.pack(">d", decode(ops)) == struct.pack(">d", loads(ops))
