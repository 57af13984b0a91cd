"""Arrays as opcodes: what is encoded is decoded, and whatever stands there instead is refused before numpy sees it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import judge
import mmapdict
import strategies
from mmapdict import CorruptError, arrays, literals
from mmapdict import format as fmt

BASE = 4096


def join(parts):
    """The opcodes of parts, payloads included, each payload at an aligned place; there are fillers before them."""
    ops = b""
    for n, part in enumerate(parts):
        if n % 2:
            gap = fmt._gap(len(ops), part)
            ops += fmt._filler(gap) + part.head + arrays.raw_bytes(part)
        else:
            ops += part
    return ops


def decode(ops):
    return arrays.decode_info(ops + b"s1.", BASE, BASE, BASE + len(ops))


def content(ops, info):
    """The bytes of an array that was decoded."""
    start = info.offset - BASE
    return ops[start:start + info.nbytes]


# -- there and back -------------------------------------------------------------------------------------------------

@given(strategies.arrays())
def test_what_is_encoded_is_decoded(array):
    parts = arrays.encode_array(array).parts
    ops = join(parts)
    info = decode(ops)
    assert (info.shape, info.order) == (array.shape, arrays.array_order(array))
    assert arrays.same_dtype(info.dtype, array.dtype)
    assert info.nbytes == array.nbytes and content(ops, info) == arrays.element_bytes(array)
    assert parts[1].nbytes % 8 == 0 or parts[1].nbytes <= fmt.BIG_PAYLOAD
    assert info.offset % parts[1].alignment == 0


@given(strategies.masked_arrays())
def test_what_is_encoded_of_a_masked_array_is_decoded(array):
    ops = join(arrays.encode_masked(array))
    info = decode(ops)
    assert content(ops, info.data) == arrays.element_bytes(array._data)
    assert info.hard_mask == array.hardmask
    if array._mask is np.ma.nomask:
        assert info.mask is None
    else:
        assert content(ops, info.mask) == arrays.element_bytes(array._mask)
        assert info.mask.order == arrays.array_order(array._mask)
    if array._fill_value is None:
        assert info.fill_value is None
    elif info.fill_value is not None:
        assert judge.fingerprint(info.fill_value) == judge.fingerprint(np.asarray(array._fill_value, array.dtype))


@given(strategies.arrays())
def test_bytes_of_any_layout(array):
    payload = arrays.encode_array(array).parts[1]
    data = arrays.raw_bytes(payload)
    assert len(data) == payload.nbytes
    plain = np.ndarray(array.shape, array.dtype, data or bytes(1), order=arrays.array_order(array))
    if array.nbytes:
        assert judge.fingerprint(plain) == judge.fingerprint(np.ndarray(
            array.shape, array.dtype, arrays.element_bytes(array), order=arrays.array_order(array)))
        assert (plain.view("V%d" % array.itemsize) == array.view("V%d" % array.itemsize)).all()


@pytest.mark.parametrize("array, order", [
    (np.zeros((2, 3)), "C"), (np.zeros((2, 3), order="F"), "F"), (np.zeros(3), "C"), (np.zeros(()), "C"),
    (np.zeros((0, 3), order="F"), "C"), (np.zeros((1, 3), order="F"), "C"), (np.zeros((4, 6))[::2, ::2], "C"),
    (np.zeros((2, 3)).T, "F"), (np.zeros((2, 3, 4)).transpose(1, 0, 2), "C")], ids=range(9))
def test_order_of_an_array(array, order):
    assert arrays.array_order(array) == order
    assert decode(join(arrays.encode_array(array).parts)).order == order


@pytest.mark.parametrize("dtype", ["O", [("a", "O")], [("a", [("b", "O", 2)])], np.dtype("f8", metadata={"a": 1}),
                                   np.dtype((np.record, [("a", "i4")]))], ids=range(5))
def test_dtypes_that_do_not_stand_in_array_records(dtype):
    assert not arrays.is_mappable(np.dtype(dtype))
    assert arrays.encode_array(np.zeros(3, dtype)) is None
    assert arrays.hole_parts((3,), np.dtype(dtype), "C") is None


# -- descriptions of dtypes -----------------------------------------------------------------------------------------

@given(strategies.dtypes())
def test_descriptions_are_exact_and_accepted(dtype):
    spec = arrays.exact_spec(dtype)
    assert spec is not None and arrays.is_mappable(dtype)
    arrays.check_spec(spec)
    made = np.dtype(spec)
    assert arrays.same_dtype(made, dtype)
    assert (made.itemsize, made.names, made.isalignedstruct) == (dtype.itemsize, dtype.names, dtype.isalignedstruct)


EMPTY = {"names": [], "formats": [], "offsets": [], "itemsize": 0}


def structure(part, **more):
    return {"names": ["a"], "formats": [part], "offsets": [0], "itemsize": 16, **more}


@pytest.mark.parametrize("spec", [
    "<f8", "|b1", "|S0", ">U12", "|V7", "<M8", ">M8[25us]", "<m8[s]", "<f16", ("<f8", (2, 3)), (("<f8", (2,)), (3,)),
    EMPTY, {**EMPTY, "itemsize": 9}, {**EMPTY, "aligned": True}, structure("<f8"), structure(("|V9", structure("<f8"))),
    structure(("|V0", EMPTY), aligned=True), structure((("|V0", EMPTY), (2,)), aligned=True),
    structure(structure("<f8", aligned=True), aligned=True, titles=["t"])], ids=repr)
def test_descriptions_that_are_accepted(spec):
    arrays.check_spec(spec)


@pytest.mark.parametrize("spec", [
    None, 0, 8, 1.5, b"<f8", True, (), [], ["<f8"], [("a", "<f8")], "", "O", "|O", "|O8", "f8", "=f8", "float", "int",
    "f8,f8", "<f8,<f8", "(2,)<f8", "(((<f8", "<f8 ", "<f", "<F8", "|T16", "<M8[", "<M8[s]]", "<M8[s]/2", "|V-1",
    "|S99999999999999999999", "datetime64[s]", ("<f8",), ("<f8", 2), ("<f8", (-1,)), ("<f8", (2.0,)), ("<f8", [2]),
    ("<f8", (2,), 3), ("<f8", "<f8"), ("<f8", structure("<f8")), (structure("<f8"), structure("<f8")), ("|O", (2,)),
    {}, {"a": ("<f8", 0)}, {"names": ["a"]}, {"names": "a", "formats": ["<f8"]}, {"names": ["a"], "formats": "<f8"},
    {"names": [], "formats": [], "else": 1}, structure("O"), structure(("|O8", (2,))), structure(structure("|O")),
    structure(EMPTY, aligned=True), structure({**EMPTY, "aligned": True}, aligned=True),
    structure((EMPTY, (2,)), aligned=True), structure(structure(EMPTY), aligned=True),
    structure((("|V0", EMPTY), ((2,),)))], ids=repr)
def test_descriptions_that_are_refused(spec):
    """Among them some that kill a process: numpy 1 divides by the alignment of an empty aligned structure."""
    with pytest.raises(ValueError):
        arrays.check_spec(spec)


def encoded_with(spec):
    """The opcodes of an array of 16 bytes, its dtype described by `spec`."""
    from mmapdict.literals import encode_literal

    ops = arrays._BUILD + encode_literal((1,)) + bytes((fmt.BINGET, fmt.DTYPE)) + encode_literal(spec) + b"\x85R\x89"
    return ops + b"C\x10" + bytes(16) + b"tb"


@pytest.mark.parametrize("spec", [
    "|O", "f8,f8", None, structure("|O"), ("<f8", (2,)), "|V99999999999", "<M8[nonsense]",
    structure("<f8", offsets=["a"]),
    structure("<f8", names=["a", "b"]), structure("<f8", itemsize=4), structure("<f8", names=[1]),
    structure("<f8", titles=["a"]), structure("<f8", offsets=[-8]), structure(EMPTY, aligned=True)], ids=repr)
def test_arrays_of_other_dtypes_are_damage(spec):
    with pytest.raises(CorruptError):
        decode(encoded_with(spec))
    assert decode(encoded_with("|V16")).nbytes == decode(encoded_with(structure("<f8"))).nbytes == 16


# -- damage ---------------------------------------------------------------------------------------------------------

small_arrays = strategies.arrays(layout=st.sampled_from(["C", "F"])).filter(lambda array: array.nbytes < 200)


@given(st.one_of(small_arrays.map(lambda array: arrays.encode_array(array).parts),
                 strategies.masked_arrays().filter(lambda x: x.nbytes < 200).map(arrays.encode_masked)), st.data())
def test_damaged_arrays_are_decoded_or_refused(parts, data):
    """What is decoded can be made: its bytes are inside, and it holds no object."""
    ops = bytearray(join(parts))
    for _ in range(data.draw(st.integers(1, 3))):
        ops[data.draw(st.integers(0, len(ops) - 1))] = data.draw(st.integers(0, 255))
    del ops[data.draw(st.integers(len(ops) - 3, len(ops)) | st.integers(0, len(ops))):]
    ops = bytes(ops)
    try:
        info = decode(ops)
    except CorruptError:
        return
    if info is None:
        return
    for part in (info,) if isinstance(info, arrays.ArrayInfo) else (info.data, info.mask):
        if part is not None:
            assert BASE <= part.offset and part.offset + part.nbytes <= BASE + len(ops)
            assert not part.dtype.hasobject and all(n >= 0 for n in part.shape)
            try:
                made = np.ndarray(part.shape, part.dtype, ops, part.offset - BASE, order=part.order)
            except ValueError:              # too many dimensions, or sizes whose product is 0
                assert len(part.shape) > 32 or part.nbytes == 0
            else:
                assert made.nbytes == part.nbytes


@given(st.binary(max_size=80), st.sampled_from([b"", arrays._BUILD, arrays._NDARRAY + b"(", arrays._MASKED]))
def test_whatever_stands_there_is_an_array_or_refused(ops, start):
    try:
        info = decode(start + ops)
    except CorruptError:
        return
    assert info is None or start


@given(small_arrays)
def test_arrays_that_were_cut_are_refused(array):
    ops = join(arrays.encode_array(array).parts)
    start = ops.index(arrays._NDARRAY) + len(arrays._BUILD) + 1
    for size in range(start, len(ops)):
        with pytest.raises(CorruptError):
            decode(ops[:size])
        with pytest.raises(CorruptError):
            arrays.decode_info(ops[:size], BASE, BASE, BASE + size)     # and the buffer ends there as well


def test_sizes_that_do_not_fit_are_refused():
    ops = join(arrays.encode_array(np.arange(3, dtype="<i4")).parts)
    for shape in (b"K\x02", b"K\x04", b"J\xff\xff\xff\xff", b"\x8a\x09" + bytes(8) + b"\x01", b"\x88", b"N",
                  b"G" + bytes(8)):
        with pytest.raises(CorruptError):
            decode(ops.replace(b"(K\x03t", b"(" + shape + b"t"))


def test_opcodes_behind_an_array_are_refused():
    ops = join(arrays.encode_array(np.arange(3)).parts)
    assert decode(ops + b"C\x00" + b"0").nbytes == 24                       # a filler
    for more in (b"N", b"0", b"K\x01", b"C\x01a"):
        with pytest.raises(CorruptError, match="behind"):
            decode(ops + more)


def test_a_mask_that_does_not_fit_is_refused():
    good = arrays.encode_masked(np.ma.array([1, 2, 3], mask=[0, 1, 0]))
    assert decode(join(good)).mask.shape == (3,)
    data, fill = arrays.encode_array(np.arange(3)).parts, [b"N"]
    for mask in (np.zeros(4, bool), np.zeros((3, 1), bool), np.zeros(3, "u1"), np.zeros(3, "?,?")):
        with pytest.raises(CorruptError, match="mask"):
            decode(join(arrays.masked_parts(data, arrays.encode_array(mask).parts, fill, False)))
    for value in (np.arange(1), np.array(1.5), np.array("a")):
        with pytest.raises(CorruptError, match="fill"):
            decode(join(arrays.masked_parts(data, None, arrays.encode_array(value).parts, False)))


def laid_out(array, key="k"):
    """The bytes of an array's record at offset 64, and what its head says."""
    parts = fmt.join_parts(literals.key_parts(key), arrays.encode_array(array).parts)
    pieces, end, _ = fmt.encode_record(64, 7, parts)
    data = b"(" + b"".join(pieces) + b"."
    record = fmt.decode_record(data, 64, 64, 7)
    _, at = literals.decode_literal(data, record.content - 64, record.body_end - 64)
    return bytearray(data), record, 64 + at


def told(info):
    """All that a description of an array says."""
    return [getattr(info, name) for name in arrays.ArrayInfo.__slots__]


@pytest.mark.parametrize("array", [np.arange(8.0), np.arange(6, dtype=">i4"), np.zeros((0, 3), "u1"), np.array(1.5),
                                   np.asfortranarray(np.ones((2, 3))), np.zeros(2, "i4,f8"),
                                   np.arange(5001, dtype="u1")], ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_is_read_the_same_the_second_time(array, monkeypatch):
    """Opcodes that were read before are not read again; what stands behind the array is looked at all the same."""
    monkeypatch.setattr(arrays, "_heads", {})
    data, record, at = laid_out(array)
    places = 64, at, record.body_end
    first = arrays.decode_info(data, *places)
    assert arrays._heads == {}                                          # it was not told where to look
    for _ in range(3):
        assert told(arrays.decode_info(data, *places, record.covered)) == told(first)
    assert len(arrays._heads) == (array.dtype.names is None and array.dtype.isnative and array.nbytes != 5001)
    for behind in range(first.offset + first.nbytes - 64, record.body_end - 64):
        damaged = bytearray(data)
        damaged[behind] ^= 0xFF
        try:
            expected = arrays.decode_info(damaged, *places)
        except CorruptError:
            with pytest.raises(CorruptError):
                arrays.decode_info(damaged, *places, record.covered)
        else:
            assert told(arrays.decode_info(damaged, *places, record.covered)) == told(expected)


def test_no_window_reaches_behind_the_end_of_a_file(path):
    with mmapdict.open(path, "x") as d:
        d["a"] = 1
        size = path.stat().st_size
        assert len(d._file.window(0, size).view) >= size
        with pytest.raises(ValueError, match="behind the end of the file"):
            d._file.window(0, 1 << 30)
