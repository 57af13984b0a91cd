"""Whatever is stored comes back equal, of the same type, and mapped if it is an array.

Everything goes through a real file, and is looked at by three readers: the handle that stored it, one that opens the
file anew, and plain `pickle.load`.
"""

import contextlib
import copyreg
import functools
import io
import mmap
import os
import pathlib
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import judge
import mmapdict
import strategies
from mmapdict import arrays, store, views

# The file is started anew by each example, so it does no harm that they share a folder.
reuse_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMPY_2 = strategies.NUMPY_2
PAGE = 4096

# Everything comes back that pickle can store, also what a file must not name unless its reader says so.
trusting = functools.partial(mmapdict.open, trusted=True)


def load(path):
    """What plain pickle gives."""
    with open(path, "rb") as file:
        return pickle.load(file)


def exact_dtype(dtype):
    """All that there is to a dtype; `==` overlooks titles, alignment and metadata."""
    about = (dtype.str, dtype.itemsize, max(1, dtype.alignment), dtype.isalignedstruct, dict(dtype.metadata or {}))
    if dtype.subdtype is not None:
        return ("sub", dtype.shape, exact_dtype(dtype.base), *about)
    if dtype.names is not None:
        fields = [(name, exact_dtype(dtype.fields[name][0]), *dtype.fields[name][1:]) for name in dtype.names]
        return ("fields", dtype.type, fields, *about)
    return ("simple", dtype.kind, dtype.type if dtype.kind == "V" else None, *about)


def as_stored(array):
    """A plain array with the elements of `array`, contiguous as it is stored."""
    array = array.view(np.ndarray)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return array
    whole = array.view("V%d" % array.dtype.itemsize) if array.dtype.names else array    # padding is copied too
    return np.ndarray(array.shape, array.dtype, bytearray(whole.copy().tobytes() or 1))


def assert_same_array(found, expected):
    """The elements, the dtype to its last detail, the shape and the order."""
    expected = as_stored(expected)
    assert exact_dtype(found.dtype) == exact_dtype(expected.dtype)
    assert found.shape == expected.shape
    if expected.nbytes:                                         # else the flags mean nothing
        assert found.flags.c_contiguous == expected.flags.c_contiguous
        assert found.flags.f_contiguous == expected.flags.f_contiguous
        assert judge.fingerprint(found.view(np.ndarray)) == judge.fingerprint(expected)
    if not expected.dtype.hasobject:
        assert found.tobytes("A") == expected.tobytes("A")      # padding too


def assert_same_masked(found, expected):
    """As for an array; also the mask, the fill value, and whether the mask is hard."""
    assert type(found) is type(expected) is np.ma.MaskedArray
    assert_same_array(np.ma.getdata(found), np.ma.getdata(expected))
    assert found.hardmask == expected.hardmask
    mask = np.ma.getmask(expected)
    if mask is np.ma.nomask:
        assert np.ma.getmask(found) is np.ma.nomask
    else:
        assert_same_array(np.ma.getmask(found), mask)
    assert judge.fingerprint(np.asarray(found.fill_value)) == judge.fingerprint(np.asarray(expected.fill_value))


def assert_same(found, expected):
    """Whatever kind of value it is."""
    if type(expected) is np.ma.MaskedArray and not expected.dtype.hasobject:
        assert_same_masked(found, expected)
    elif type(expected) in (np.ndarray, np.memmap):
        assert_same_array(found, expected)
    else:
        if isinstance(expected, np.dtype):
            assert exact_dtype(found) == exact_dtype(expected)
        elif isinstance(expected, (np.generic, np.ndarray)):
            assert type(found) is type(expected)
            assert exact_dtype(found.dtype) == exact_dtype(expected.dtype)
        assert judge.fingerprint(found) == judge.fingerprint(expected)


def assert_in_file(array, path, writeable, entry=None):
    """The array is a `numpy.memmap` of this file, and its bytes are those at its offset."""
    assert isinstance(array, np.memmap)
    assert array.filename == str(path)
    assert array.mode == ("r+" if writeable else "r")
    assert array.flags.writeable is writeable
    assert_bytes_in_file(array, path, array.offset)
    if entry is not None:
        assert entry == ("array", array.shape, array.dtype, array.offset, array.nbytes)


def assert_bytes_in_file(array, path, offset):
    least = 16 if array.nbytes < 1 << 10 else 64 if array.nbytes < 1 << 20 else PAGE
    assert offset % max(least, array.dtype.alignment) == 0
    with open(path, "rb") as file:
        file.seek(offset)
        assert file.read(array.nbytes) == array.tobytes("A")


def address(array):
    return array.__array_interface__["data"][0]


def round_trip(path, key, value, mapped=True):
    """Store a value in a new file and compare what the three readers give."""
    with trusting(path, "w") as d:
        d[key] = value
        check_mapped(d[key], value, d, key, path, True, mapped)
        assert_same(d[key], value)
    with trusting(path, "r") as d:
        assert list(d) == [key] and type(list(d)[0]) is type(key)
        found = d[key]
        check_mapped(found, value, d, key, path, False, mapped)
        assert_same(found, value)
    plain = load(path)
    assert list(plain) == [key]
    assert type(plain[key]) is (np.ndarray if type(value) is np.memmap else type(value))
    assert_same(plain[key], value)
    return found


def check_mapped(found, value, d, key, path, writeable, mapped):
    entry = d.entry(key)
    if type(value) in (np.ndarray, np.memmap) and mapped:
        assert_in_file(found, path, writeable)
        assert (entry.kind, entry.shape, entry.dtype) == ("array", found.shape, found.dtype)
        assert (entry.offset, entry.nbytes) == (found.offset, found.nbytes)
    elif type(value) is np.ma.MaskedArray and mapped:
        assert entry.kind == "masked"
        assert found._data.flags.writeable is writeable
        assert_bytes_in_file(found._data, path, entry.offset)
        if found._mask is np.ma.nomask:
            assert entry.mask_offset is None
        else:
            assert found._mask.flags.writeable is writeable
            assert_bytes_in_file(found._mask, path, entry.mask_offset)
    else:
        assert entry.kind == "value"


# -- anything at all ------------------------------------------------------------------------------------------------

@reuse_folder
@given(strategies.arrays())
def test_any_array_comes_back_mapped(tmp_path, array):
    round_trip(tmp_path / "f", "key", array)


@reuse_folder
@given(strategies.masked_arrays())
def test_any_masked_array_comes_back_mapped(tmp_path, array):
    round_trip(tmp_path / "f", "key", array)


@reuse_folder
@given(strategies.values())
def test_any_other_value_comes_back(tmp_path, value):
    round_trip(tmp_path / "f", "key", [value])
    assert_public_names(tmp_path / "f")


@reuse_folder
@given(strategies.plain_values())
def test_any_plain_value_comes_back(tmp_path, value):
    round_trip(tmp_path / "f", "key", value)


@reuse_folder
@given(strategies.keys(), st.sampled_from([None, np.arange(3.0), b"x" * 5000]))
def test_any_key_comes_back(tmp_path, key, value):
    round_trip(tmp_path / "f", key, value)


@reuse_folder
@given(st.lists(st.tuples(strategies.keys(), strategies.arrays() | strategies.masked_arrays() | strategies.values()),
                max_size=6))
def test_any_items_come_back_in_their_order(tmp_path, items):
    path = tmp_path / "f"
    expected = {}
    with trusting(path, "w") as d:
        for key, value in items:
            d[key] = value
            kept = next((k for k in expected if k == key), key)         # as in a dict, the first of equal keys stays
            expected.pop(kept, None)                                    # and a replaced item moves to the end
            expected[kept] = value
    judge.load_every_way(path)
    with trusting(path, "r") as d:
        for found in (d, load(path)):
            assert [judge.fingerprint(key) for key in found] == [judge.fingerprint(key) for key in expected]
            for key, value in expected.items():
                assert_same(found[key], value)


# -- every kind of array, one after the other -----------------------------------------------------------------------

SIMPLE = [
    "?", "i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8",
    "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "g", ">g", "<c8", ">c8", "<c16", ">c16", "G", ">G", "l", "q", "L", "Q",
    "S1", "S7", "S300", "<U1", ">U1", "<U5", ">U5", "<U300", "V1", "V5", "V16", "V300",
    "<M8[Y]", "<M8[D]", ">M8[D]", "<M8[ns]", "<M8[25us]", "<M8", ">M8", "<m8[s]", ">m8[ms]", "<m8[7W]", "<m8"]
STRUCTURED = {
    "simple": [("x", "<f4"), ("y", "<i2")],
    "both byte orders": [("x", ">f8"), ("y", "<u4"), ("z", ">i2")],
    "all foreign": [("x", ">f8"), ("y", ">u4")],
    "offsets": {"names": ["a", "b"], "formats": ["<i4", ">f8"], "offsets": [4, 16], "itemsize": 32},
    "back to front": {"names": ["a", "b"], "formats": ["<i4", "<f8"], "offsets": [8, 0]},
    "overlapping": {"names": ["whole", "low", "high"], "formats": ["<u4", "<u2", "<u2"], "offsets": [0, 0, 2]},
    "titles": {"names": ["a", "b"], "formats": ["<i4", "S3"], "titles": ["first", "the second"]},
    "one title": {"names": ["a", "b"], "formats": ["<i4", "S3"], "titles": [None, "second"]},
    "titles and offsets": {"names": ["a", "b"], "formats": ["<i4", "S3"], "offsets": [1, 9], "titles": ["1", "2"],
                           "itemsize": 13},
    "aligned": {"names": ["flag", "value", "small"], "formats": ["?", "<f8", "<i2"], "aligned": True},
    "aligned by hand": {"names": ["flag", "value"], "formats": ["?", "<f8"], "offsets": [0, 8], "itemsize": 16},
    "sub-arrays": [("m", "<f4", (2, 3)), ("t", "<U4", (2,)), ("one", "<i2", (1,))],
    "nested": [("p", [("q", "<u1"), ("r", "<i8", (2,))]), ("s", "<M8[ns]")],
    "nested sub-array": [("p", [("q", ">u2"), ("r", "S3")], (2, 2)), ("s", "V5")],
    "unicode": [("λ", "<f8"), ("µm \U0001f600", "<i4"), ("\udcff", "u1")],
    "no fields": [],
    "no fields but a size": {"names": [], "formats": [], "offsets": [], "itemsize": 12},
    "empty fields": [("a", "S0"), ("b", "<U0"), ("c", "V0"), ("d", "i1")],
    "many": [("field %d" % n, "<f4") for n in range(400)],
}
DTYPES = {**{text: np.dtype(text) for text in SIMPLE}, **{name: np.dtype(spec) for name, spec in STRUCTURED.items()}}
SHAPES = [(), (1,), (3,), (7,), (2, 3), (1, 5), (5, 1), (2, 0, 3), (0,), (3, 1, 2), (2,) + (1,) * 25 + (3, 1)]


@pytest.mark.parametrize("order", ["C", "F"])
def test_every_dtype_in_every_shape(tmp_path, order):
    path = tmp_path / "f"
    items = {(name, shape): np.array(strategies.filled(shape, dtype, 1), order=order)
             for name, dtype in DTYPES.items() for shape in SHAPES}
    with trusting(path, "x") as d:
        for key, array in items.items():
            d[key] = array
    plain = load(path)
    with trusting(path, "r") as d:
        assert list(d) == list(plain) == list(items)
        for key, array in items.items():
            assert_in_file(d[key], path, False)
            assert_same_array(d[key], array)
            assert_same_array(plain[key], array)


@pytest.mark.parametrize("dtype", ["S0", "<U0", ">U0", "V0"])
def test_elements_without_bytes(tmp_path, dtype):
    array = np.ndarray((2, 3), dtype, bytearray(1))
    assert array.dtype.itemsize == 0
    round_trip(tmp_path / "f", "key", array)
    round_trip(tmp_path / "f", "key", array.T)
    round_trip(tmp_path / "f", "key", array[0, 0:0])


@pytest.mark.parametrize("layout", strategies.LAYOUTS)
@pytest.mark.parametrize("dtype", ["<f8", ">i2", "<U3", "<M8[s]", "titles and offsets"])
def test_every_layout(tmp_path, layout, dtype):
    array = strategies.laid_out(strategies.filled((3, 4, 5), DTYPES[dtype] if dtype in DTYPES else dtype, 2), layout)
    found = round_trip(tmp_path / "f", "key", array)
    assert found.flags.c_contiguous or layout == "F"


@pytest.mark.parametrize("size", [0, 1, 15, 16, 255, 256, 1000, 1001, 1023, 1024, 4095, 4096, 4097, 4104, 65_535,
                                  65_536, 70_001, (1 << 20) - 1, 1 << 20, (1 << 20) + 3])
def test_every_size_class(tmp_path, size):
    round_trip(tmp_path / "f", "key", np.arange(size, dtype="u1"))
    round_trip(tmp_path / "f", "key", strategies.filled((size,), np.dtype(">u2"), 3))


@pytest.mark.parametrize("dimensions", sorted({0, 1, 31, 32, strategies.DIMENSIONS_MAX}))
def test_any_number_of_dimensions(tmp_path, dimensions):
    shape = tuple(2 if n % 10 == 0 else 1 for n in range(dimensions))
    array = strategies.filled(shape, np.dtype("<i4"), 4)
    round_trip(tmp_path / "f", "key", array)
    if dimensions > 1:
        assert not round_trip(tmp_path / "f", "key", array.T.copy("C").T).flags.c_contiguous


def test_long_elements_that_are_not_contiguous(tmp_path):
    """Elements longer than the pieces in which such an array is written."""
    texts = np.array(["a", "", "\U0001f600" * 3, "b"] * 2, "<U300000")[::2]
    found = round_trip(tmp_path / "f", "key", texts)
    assert list(found) == ["a", "\U0001f600" * 3] * 2
    del found


@pytest.mark.parametrize("shape, index", [
    ((3, 5, 40_000), np.s_[:, ::2]), ((2, 3, 300_001), np.s_[..., ::2]), ((1_000_000,), np.s_[::-3]),
    ((2, 2, 2, 70_000), np.s_[:, :, 1])])
def test_big_arrays_that_are_not_contiguous(tmp_path, shape, index):
    array = strategies.filled(shape, np.dtype("<f4"), 5)[index]
    assert array.nbytes > 1 << 20 and not array.flags.c_contiguous
    round_trip(tmp_path / "f", "key", array)
    round_trip(tmp_path / "f", "key", array.T)


def test_input_that_is_mapped_itself(tmp_path):
    raw = tmp_path / "raw"
    np.arange(100.0).tofile(raw)
    source = np.memmap(raw, "f8", "r")
    round_trip(tmp_path / "f", "key", source)
    round_trip(tmp_path / "f", "key", source[::3])
    with trusting(tmp_path / "f", "a") as d, trusting(tmp_path / "g", "w") as other:
        other["a"] = d["key"]
        other["b"] = d["key"][::-1]
        d["self"] = d["key"][2:5]
        d["key"] = d["key"]
        other["list"] = [d["key"], np.memmap(raw, "f8", "r")]
        other["masked"] = np.ma.array(d["key"], mask=d["key"] > 50)
        other["masked in a list"] = [np.ma.array(d["key"], mask=d["key"] > 50)]
        other["masked subclass"] = np.ma.array(d["key"], mask=d["key"] > 50).view(OwnMasked)
        other["subclass"] = d["key"].view(OwnArray)
        for mapping in (other, load(tmp_path / "g")):
            assert_same_array(mapping["a"], source[::3])
            assert_same_array(mapping["b"], source[::-3])
            assert type(mapping["list"][0]) is type(mapping["list"][1]) is np.ndarray
            assert type(mapping["masked"]._data) is type(mapping["masked in a list"][0]._data) is np.ndarray
            assert type(mapping["masked subclass"]) is OwnMasked and type(mapping["subclass"]) is OwnArray
            assert mapping["masked subclass"]._baseclass is np.ndarray
            assert mapping["masked subclass"].sum() == mapping["masked"].sum() and mapping["subclass"][1] == 3
            assert mapping["masked"].sum() == mapping["masked in a list"][0].sum() == source[::3][:17].sum()
    assert_public_names(tmp_path / "f")
    assert_public_names(tmp_path / "g")


def test_names_of_one_number_give_the_same_dtype(tmp_path):
    """C has two names for an 8-byte integer; which one was used first makes no difference."""
    for names in (("q", "l"), ("l", "q")):
        with trusting(tmp_path / "f", "w") as d:
            for name in names:
                d[name] = np.arange(3, dtype=name)
                assert d.entry(name).kind == "array"
                assert d[name].dtype == np.dtype(name)


def test_renamed_fields(tmp_path):
    """A dtype's names can be changed in place."""
    array = np.zeros(3, [("a", "<i4"), ("b", [("c", "<i4")])])
    with trusting(tmp_path / "f", "w") as d:
        d["before"] = array
        d["flat, before"] = array["b"]
        array["b"].dtype.names = ("z",)
        d["inner"] = array
        array.dtype.names = ("x", "y")
        d["after"] = array
        d["flat, after"] = array["y"]
        assert d["before"].dtype == np.dtype([("a", "<i4"), ("b", [("c", "<i4")])])
        assert d["inner"].dtype == np.dtype([("a", "<i4"), ("b", [("z", "<i4")])])
        assert d["after"].dtype == np.dtype([("x", "<i4"), ("y", [("z", "<i4")])])
        assert (d["flat, before"].dtype.names, d["flat, after"].dtype.names) == (("c",), ("z",))


def test_a_type_of_its_own_is_not_taken_for_the_plain_one(tmp_path):
    """numpy.record without fields has the text of plain bytes."""
    record = np.dtype((np.record, "V4"))
    with trusting(tmp_path / "f", "w") as d:
        d["plain"] = np.zeros(3, "V4")
        d["record"] = np.zeros(3, record)
        d["plain again"] = np.zeros(3, "V4")
        for mapping in (d, load(tmp_path / "f")):
            assert [array.dtype.type for array in mapping.values()] == [np.void, np.record, np.void]


def test_offset_counts_from_the_start_of_the_file(tmp_path):
    """Also in an array that a reader sees through a map that starts further behind."""
    path = tmp_path / "f"
    with trusting(path, "x") as d, trusting(path, "r") as reader:
        starts = set()
        for n in range(4):
            d.create(n, 1 << 23, "u1", sparse=True)[7:10] = n + 1
            found = reader[n]
            assert found.offset == d.entry(n).offset and found[7:].offset == found.offset + 7
            starts.add(views.root_of(found).start)
            with open(path, "rb") as file:
                file.seek(found[7:].offset)
                assert file.read(4) == bytes([n + 1] * 3 + [0])
        assert starts > {0}
        del found
    path.unlink()


def test_long_fill_values_end_at_an_even_place():
    """As every payload that a loader may read past its buffer; a short one stands among the opcodes."""
    payloads = arrays.encode_masked(MASKED["long text"])[1::2]
    assert [payload.nbytes for payload in payloads] == [10_000, 2, 5000]
    assert payloads[2].alignment % 8 == 0 and payloads[2].residue == 0
    assert len(arrays.encode_masked(MASKED["fill value"])[1::2]) == 2


def test_renaming_the_fields_of_one_array_leaves_others_alone(tmp_path):
    with trusting(tmp_path / "f", "w") as d:
        d[0] = d[1] = np.zeros(3, [("a", "<i4"), ("b", "<i2")])
        first, again, other = d[0], d[0], d[1]
        first.dtype.names = ("x", "y")
        assert [array.dtype.names for array in (again, other, d[0], d[1])] == [("a", "b")] * 4


# -- masked arrays --------------------------------------------------------------------------------------------------

def test_fill_value_that_was_not_set_stays_so(tmp_path):
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = d["inside"] = np.ma.array([1, 2], mask=[0, 1])
        d["inside"] = [d["key"]]
        for mapping in (d, load(tmp_path / "f")):
            for array in (mapping["key"], mapping["inside"][0]):
                assert array._fill_value is None and array.fill_value == 999_999
                array.fill_value = 5                        # of this object, not of what is stored
        assert d["key"]._fill_value is None


def structured_masked():
    data = np.array([(1, 2.5), (3, 4.5), (5, 6.5)], [("a", "<i4"), ("b", "<f8")])
    return np.ma.array(data, mask=[(True, False), (False, True), (False, False)])


MASKED = {
    "mask": np.ma.array(np.arange(6.0).reshape(2, 3), mask=[[0, 1, 0], [1, 0, 0]]),
    "nomask": np.ma.array(np.arange(6.0)),
    "a mask of False": np.ma.array(np.arange(6.0), mask=False),
    "fill value": np.ma.array(np.arange(6), mask=np.arange(6) > 3, fill_value=-7),
    "hard": np.ma.array(np.arange(6.0), mask=np.arange(6) > 3, hard_mask=True),
    "hard and fill value": np.ma.array(np.arange(6.0), mask=np.arange(6) > 3, hard_mask=True, fill_value=1e20),
    "F": np.ma.array(np.arange(6.0).reshape(2, 3, order="F"), mask=np.arange(6).reshape(2, 3, order="F") > 3),
    "F with a C mask": np.ma.array(np.arange(6.0).reshape(2, 3, order="F"), mask=np.arange(6).reshape(2, 3) > 3),
    "strided": np.ma.array(np.arange(12.0)[::2], mask=(np.arange(12) > 3)[::2]),
    "foreign": np.ma.array(np.arange(5, dtype=">i4"), mask=[0, 1, 0, 0, 1], fill_value=-1),
    "text": np.ma.array(["a", "bc", "def"], mask=[0, 1, 0], fill_value="?"),
    "long text": np.ma.array([b"a" * 5000, b""], mask=[0, 1], fill_value=b"N/A"),
    "time": np.ma.array(np.arange(3).astype("M8[s]"), mask=[0, 1, 0]),
    "0-d": np.ma.array(1.5, mask=True),
    "0-d, unmasked": np.ma.array(1.5, mask=False),
    "size 0": np.ma.array(np.zeros((0, 3)), mask=np.zeros((0, 3), bool)),
    "odd size": np.ma.array(np.arange(5001, dtype="u1"), mask=np.arange(5001) % 2 == 0),
    "big": np.ma.array(np.arange(200_000.0), mask=np.arange(200_000) % 2 == 0),
    "structured": structured_masked(),
    "structured, nomask": np.ma.array(np.zeros(2, [("a", "<i4"), ("b", "<f8")])),
    "nested": np.ma.array(np.zeros(2, [("p", [("q", "<u1"), ("r", "<i8", (2,))]), ("s", "<f4")])),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_arrays(tmp_path, name):
    round_trip(tmp_path / "f", "key", MASKED[name])
    expected = judge.fingerprint(np.ma.getdata(MASKED[name]).tolist())
    with trusting(tmp_path / "f", "r") as d:
        assert judge.fingerprint(d["key"].data.tolist()) == expected


@pytest.mark.parametrize("name", [name for name in MASKED if name != "strided"])
def test_masked_arrays_in_a_list(tmp_path, name):
    round_trip(tmp_path / "f", "key", [MASKED[name], 1])
    with trusting(tmp_path / "f", "r") as d:
        assert_same_masked(d["key"][0], MASKED[name])
    assert_same_masked(load(tmp_path / "f")["key"][0], MASKED[name])


def test_masked_arrays_that_cannot_be_mapped(tmp_path):
    values = {
        "object": np.ma.array(np.array([1, None, "a"], object), mask=[0, 1, 0]),
        "structured with objects": np.ma.array([(1, "a"), (2, None)], [("n", "<i4"), ("o", "O")],
                                               mask=[(0, 1), (0, 0)]),
        "subclass": structured_masked().view(OwnMasked),
        "element": structured_masked()[0],
        "metadata": np.ma.array(np.zeros(3, np.dtype("<f8", metadata={"unit": "m"})), mask=[0, 1, 0]),
        "another class inside": np.ma.array(np.arange(3.0).view(OwnArray), mask=[0, 1, 0]),
    }
    with trusting(tmp_path / "f", "x") as d:
        d.update(values)
    with trusting(tmp_path / "f", "r") as d:
        for mapping in (d, load(tmp_path / "f")):
            for key, value in values.items():
                assert type(mapping[key]) is type(value)
                assert type(mapping[key]._baseclass) is type(value._baseclass)
                if key == "element":                    # numpy's own pickles, too, give it another type of mask
                    value = pickle.loads(pickle.dumps(value))
                assert judge.fingerprint(mapping[key]) == judge.fingerprint(value), key
        assert {entry.kind for entry in d.entries()} == {"value"}


def test_masked_records(tmp_path):
    mrecords = pytest.importorskip("numpy.ma.mrecords")
    value = mrecords.fromarrays([np.array([1, 2]), np.array(["a", "b"])], names="n,t")
    value.mask[0] = (True, False)
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = value
        for found in (d["key"], load(tmp_path / "f")["key"]):
            assert type(found) is mrecords.MaskedRecords
            assert found.mask.tolist() == [(True, False), (False, False)]
            assert found.n.tolist() == [None, 2]


def test_masked_singleton_stays_the_one(tmp_path):
    with trusting(tmp_path / "f", "x") as d:
        d["alone"] = np.ma.masked
        d["inside"] = [np.ma.masked, {"x": np.ma.masked}]
        for mapping in (d, load(tmp_path / "f")):
            assert mapping["alone"] is np.ma.masked
            assert mapping["inside"][0] is mapping["inside"][1]["x"] is np.ma.masked


# -- writing in place -----------------------------------------------------------------------------------------------

@contextlib.contextmanager
def written_in_place(path, value):
    """Give the array to be changed; afterwards compare it with what two other readers see, before and after close."""
    d = trusting(path, "w")
    d["key"] = value
    reader = trusting(path, "r")
    reader["key"]                           # it is mapped before the change
    array = d["key"]
    yield array
    array = array if type(value) is np.ma.MaskedArray else np.asarray(array)
    for found in (reader["key"], load(path)["key"]):
        assert_same(found, array)
    d.close()
    for found in (reader["key"], load(path)["key"]):
        assert_same(found, array)
    reader.close()


def test_elements_and_slices_set_in_place_are_in_the_file(tmp_path):
    plain = np.zeros((4, 5))
    with written_in_place(tmp_path / "f", plain) as mapped:
        for array in (mapped, plain):
            array[0, 0] = 1.5
            array[1] = np.arange(5)
            array[2:, ::2] = 7
            array[array == 7] += 1
            array.T[4, 3] = -1
            array.reshape(-1)[6] = 99
            array[1:][0][1:3].view(np.ndarray)[1] = 11
            array += 1
            np.multiply(array, 2, out=array)
            array[0].fill(3)
            array.sort(axis=0)
        assert_same_array(mapped, plain)
        assert plain.any(axis=1).all()


def test_fields_set_in_place_are_in_the_file(tmp_path):
    with written_in_place(tmp_path / "f", np.zeros(4, DTYPES["nested"])) as array:
        array["p"]["q"] = 5
        array["p"]["r"][2, 1] = 6
        array[1]["s"] = np.datetime64("2024-02-29")
        array[3] = ((1, (2, 3)), 4)
        element = array[0]
        element["p"]["q"] = 200                 # an element of a structure is a view as well
        assert array["p"]["q"].tolist() == [200, 5, 5, 1]


@pytest.mark.parametrize("value", [
    np.zeros((), ">f8"), np.zeros((3, 4), "<U3"), np.zeros(5, ">M8[s]"), np.zeros(4001, "V3"),
    np.zeros((70, 80), "<c8", order="F"), np.zeros((2, 3), bool)], ids=lambda a: str(a.dtype))
def test_every_kind_of_recipe_is_writable_in_place(tmp_path, value):
    with written_in_place(tmp_path / "f", value) as array:
        array[...] = strategies.filled(value.shape, value.dtype, 6)
        assert array.tobytes() != bytes(array.nbytes)


def test_masking_and_unmasking_in_place_is_in_the_file(tmp_path):
    value = np.ma.array(np.arange(12.0).reshape(3, 4), mask=np.zeros((3, 4), bool))
    with written_in_place(tmp_path / "f", value) as x:
        x[0, 0] = np.ma.masked
        x[0, 1] = 100
        x[1] = np.ma.masked
        x[1, 2] = 7                             # unmasks
        x.mask[2, 3] = True
        x[2][0] = np.ma.masked
        x[2, 1:3] = np.ma.array([5, 6], mask=[True, False])
        assert x.mask.tolist() == [[True, False, False, False], [True, True, False, True], [True, True, False, True]]
    with written_in_place(tmp_path / "f", value) as x:
        x.mask = True
        assert x.count() == 0
    with written_in_place(tmp_path / "f", MASKED["mask"]) as x:
        x.mask = np.ma.nomask
        assert x.count() == 6
    with written_in_place(tmp_path / "f", MASKED["mask"]) as x:
        x[:] = np.ma.array(np.ones((2, 3)), mask=np.eye(2, 3))
        assert x.sum() == 4


def test_mask_stays_the_file_when_it_is_unshared(tmp_path):
    """numpy copies a mask that it believes to be shared before the first change of some kinds."""
    value = np.ma.array(np.arange(6.0), mask=[0, 1, 0, 0, 0, 0])
    with written_in_place(tmp_path / "f", value) as x:
        assert not x.sharedmask
        x.unshare_mask()
        x[0] = np.ma.masked
        x.unshare_mask()
        x.mask[2] = True
        assert x.mask.tolist() == [True, True, True, False, False, False]


def test_structured_masks_change_in_place(tmp_path):
    with written_in_place(tmp_path / "f", structured_masked()) as x:
        x["a"][2] = np.ma.masked
        x["b"][1] = 9.5
        x[0] = (8, 9)
        x.mask["b"][2] = True
        assert x.mask.tolist() == [(False, False), (False, False), (True, True)]


def test_hard_mask_holds_in_place(tmp_path):
    with written_in_place(tmp_path / "f", MASKED["hard"]) as x:
        x[:] = 50
        assert x.data.tolist() == [50, 50, 50, 50, 4, 5]
        assert x.mask.tolist() == [False] * 4 + [True] * 2


def test_copies_of_a_masked_array_are_not_the_file(tmp_path):
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = MASKED["mask"]
        for other in (d["key"].copy(), d["key"] + 0, np.ma.array(d["key"], copy=True)):
            other[...] = np.ma.masked
            other[0, 0] = 100
        assert_same_masked(d["key"], MASKED["mask"])


@pytest.mark.parametrize("change", [
    lambda x: x.__setitem__(0, 1), lambda x: x.__setitem__(0, np.ma.masked), lambda x: setattr(x, "mask", True),
    lambda x: x._data.fill(1), lambda x: x._mask.fill(1), lambda x: x.data.setflags(write=True),
    lambda x: x.mask.setflags(write=True), lambda x: x._mask.setflags(write=True)], ids=range(8))
def test_masked_arrays_are_read_only_in_mode_r(tmp_path, change):
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = MASKED["mask"]
    with trusting(tmp_path / "f", "r") as d:
        with pytest.raises(ValueError):
            change(d["key"])
        assert_same_masked(d["key"], MASKED["mask"])


@pytest.mark.parametrize("view", [
    lambda a: a, lambda a: a[1:], lambda a: a.T, lambda a: a.view(np.ndarray), np.asarray, lambda a: a["x"],
    lambda a: a.reshape(-1), lambda a: a.view(np.memmap), lambda a: np.frombuffer(a, np.uint8)], ids=range(9))
def test_arrays_are_read_only_in_mode_r(tmp_path, view):
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = np.zeros((2, 3), [("x", "<f8")])
    with trusting(tmp_path / "f", "r") as d:
        array = view(d["key"])
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array[...] = 1
        with pytest.raises(ValueError):
            array.setflags(write=True)
        with pytest.raises(ValueError):
            array.flags.writeable = True


def test_flush_of_arrays_and_their_parts(tmp_path):
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = np.zeros((300, 1000))
        d["empty"] = np.zeros((0, 3))
        array = d["key"]
        array[:] = 1
        for part in (array, array[5], array[::-1, ::7], array.T, array[:0], d["empty"], array.view(np.memmap)):
            part.flush()
        assert load(tmp_path / "f")["key"].sum() == 300_000
    with trusting(tmp_path / "f", "r") as d:
        d["key"].flush()
        (d["key"] + 1).sum()
        assert d["key"].sum() == 300_000


# -- values that are pickled ----------------------------------------------------------------------------------------

class OwnArray(np.ndarray):
    """A subclass without anything of its own."""


class ArrayWithState(np.ndarray):
    """A subclass that pickles an attribute of its own, in the usual way."""

    def __array_finalize__(self, obj):
        self.unit = getattr(obj, "unit", None)

    def __reduce__(self):
        function, arguments, state = super().__reduce__()
        return function, arguments, (*state, self.unit)

    def __setstate__(self, state):
        super().__setstate__(state[:-1])
        self.unit = state[-1]


class OwnMasked(np.ma.MaskedArray):
    """A subclass of a masked array."""


class OwnFloat(np.float64):
    """A subclass of a scalar."""


class OwnText(np.str_):
    """Another one."""


class OwnDouble(np.longdouble):
    """A subclass of a scalar that no Python value equals."""


class Point:
    """A class of the user's."""

    def __init__(self, x, y):
        self.x, self.y = x, y


class Slotted:
    __slots__ = ("value", "__dict__")

    def __init__(self, value):
        self.value = value


class OwnDict(dict):
    """A dict with an attribute."""


def names_in(path):
    """(module, name) of every global that the file names, dead records left out."""
    names, strings, memo = set(), [], {}
    with open(path, "rb") as file:
        data = file.read()
    for op, argument, _ in pickletools.genops(data):
        if op.name in ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"):
            strings.append(argument)
        elif op.name in ("BINGET", "LONG_BINGET"):
            strings.append(memo.get(argument))
        elif op.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = strings[-1] if strings else None
        elif op.name == "MEMOIZE":
            memo[len(memo)] = strings[-1]
        elif op.name == "STACK_GLOBAL":
            names.add(tuple(strings[-2:]))
            strings.append(None)
        elif op.name in ("GLOBAL", "INST"):
            raise AssertionError("%s %s" % (op.name, argument))
        elif op.name != "MARK":
            strings.append(None)
    return names


def assert_public_names(path):
    """Nothing of mmapdict, and of numpy only what it offers under this name to everybody."""
    for module, name in names_in(path):
        parts = module.split(".")
        assert parts[0] != "mmapdict"
        if parts[0] == "numpy":
            assert parts[1:2] != ["core"] and not any(part.startswith("_") for part in parts)
            found = __import__(module, fromlist=["x"])
            for part in name.split("."):
                found = getattr(found, part)


def test_names_are_found(tmp_path):
    """The check of names sees what it is meant to see."""
    path = tmp_path / "f"
    path.write_bytes(pickle.dumps([OwnFloat, len, [len, OwnFloat]], 4))
    assert names_in(path) == {("test_values", "OwnFloat"), ("builtins", "len")}
    assert_public_names(path)
    path.write_bytes(pickle.dumps(np.float64(1), 4))
    with pytest.raises(AssertionError):
        assert_public_names(path)


ARRAYS_INSIDE = {
    "C": np.arange(6.0).reshape(2, 3),
    "F": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "foreign": np.arange(5, dtype=">i4"),
    "foreign F": np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3)),
    "foreign, size 0": np.zeros((0, 3), ">i4"),
    "foreign, 0-d": np.array(7, ">i4"),
    "foreign text": np.array(["a", "bc"], ">U2"),
    "foreign subclass": np.arange(5, dtype=">i4").view(OwnArray),
    "foreign, metadata": np.zeros(3, np.dtype(">f8", metadata={"a": 1})),
    "big": np.arange(50_000, dtype="<u2"),
    "structured": strategies.filled((3,), DTYPES["titles and offsets"], 7),
    "aligned": strategies.filled((3,), DTYPES["aligned"], 7),
    "nested": strategies.filled((3,), DTYPES["nested"], 7),
    "time": np.arange(3).astype("M8[25us]"),
    "read-only": strategies.laid_out(np.arange(3.0), "read-only"),
    "object": np.array([1, "two", None, [3]], object),
    "object F": np.asfortranarray(np.array([[1, "a"], [2, "b"]], object)),
    "object, 0-d": np.array({"a": 1}, object),
    "object, size 0": np.zeros((0, 2), object),
    "structured with objects": np.array([(1, "a"), (2, [3])], np.dtype([("n", "<i4"), ("o", "O")], align=True)),
    "object sub-array": np.array([(1, ["a", None])], [("n", ">i4"), ("o", "O", (2,))]),
    "records": np.rec.array([(1, 2.5, "a"), (3, 4.5, "b")], [("n", "<i4"), ("x", ">f8"), ("t", "<U2")]),
    "record dtype": np.zeros(2, np.dtype((np.record, np.dtype([("a", "i1"), ("b", "<f8")], align=True)))),
    "metadata": np.zeros(2, np.dtype("<f8", metadata={"unit": "m"})),
    "field with metadata": np.zeros(2, [("a", np.dtype("<f8", metadata={"unit": "m"})), ("b", "i1")]),
    "subclass": np.arange(3.0).view(OwnArray),
    "array": np.array([OwnText("a")]),
}


@pytest.mark.parametrize("name", ARRAYS_INSIDE)
def test_arrays_inside_values(tmp_path, name):
    array = ARRAYS_INSIDE[name]
    round_trip(tmp_path / "f", "key", {"it": array, "again": array, "other": [1]})
    with trusting(tmp_path / "f", "r") as d:
        mapped = d["key"]
    for found in (load(tmp_path / "f")["key"], mapped):
        assert found["it"] is found["again"]
        assert type(found["it"]) is type(array)
        assert exact_dtype(found["it"].dtype) == exact_dtype(array.dtype)
        assert found["it"].flags.fnc == array.flags.fnc and found["it"].flags.writeable
    assert_public_names(tmp_path / "f")


@pytest.mark.parametrize("name", ARRAYS_INSIDE)
def test_arrays_alone_that_may_not_be_mapped(tmp_path, name):
    array = ARRAYS_INSIDE[name]
    plain = type(array) is np.ndarray and not array.dtype.hasobject
    mapped = plain and "metadata" not in name and "record" not in name
    round_trip(tmp_path / "f", "key", array, mapped)
    assert_public_names(tmp_path / "f")


def test_arrays_inside_values_that_are_not_contiguous(tmp_path):
    base = np.arange(60).reshape(3, 4, 5)
    arrays = [base[:, ::2], base[::-1], base.T[1:], np.broadcast_to(np.arange(3.0), (4, 3)), base.astype(">i4")[::2]]
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = arrays
        for found in (d["key"], load(tmp_path / "f")["key"]):
            for array, expected in zip(found, arrays, strict=True):
                assert_same_array(array, expected)


@pytest.mark.parametrize("name", ["matrix", "chararray", "state"])
def test_subclasses_with_a_way_of_their_own(tmp_path, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")             # some are going out of use
        value = {"matrix": lambda: np.matrix([[1.0, 2.0]]), "state": lambda: np.arange(3.0).view(ArrayWithState),
                 "chararray": lambda: np.char.array(["a", "bc"])}[name]()
        if name == "state":
            value.unit = "mm"
        with trusting(tmp_path / "f", "x") as d:
            d["alone"] = value
            d["inside"] = [value]
            for mapping in (d, load(tmp_path / "f")):
                for found in (mapping["alone"], mapping["inside"][0]):
                    assert type(found) is type(value) and found.dtype == value.dtype
                    assert found.tolist() == value.tolist()
                    assert name != "state" or found.unit == "mm"
            assert_public_names(tmp_path / "f")
            d.clear()                               # so that nobody loads them without this filter of warnings


def test_recursive_object_array(tmp_path):
    array = np.empty(2, object)
    array[:] = [array, [array]]
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = array
        for found in (d["key"], load(tmp_path / "f")["key"]):
            assert found[0] is found and found[1][0] is found


@pytest.mark.skipif(not NUMPY_2, reason="numpy 1 has no texts of variable width")
def test_texts_of_variable_width(tmp_path):
    from numpy.dtypes import StringDType

    missing = StringDType(na_object=np.nan)
    arrays = [np.array(["a", "é" * 9000, ""], StringDType()), np.array([["a", None]], StringDType(na_object=None)),
              np.array(["a", np.nan, "b"], missing), np.array(["x"], StringDType(coerce=False)),
              np.zeros((0, 2), StringDType())]
    with trusting(tmp_path / "f", "x") as d:
        d.update(enumerate(arrays))
        d["inside"] = arrays
        d["dtype"] = [missing]
        for mapping in (d, load(tmp_path / "f")):
            for n, array in enumerate(arrays):
                for found in (mapping[n], mapping["inside"][n]):
                    assert type(found) is np.ndarray and found.shape == array.shape
                    assert repr(found.dtype) == repr(array.dtype)
                    assert list(map(repr, found.ravel())) == list(map(repr, array.ravel()))
            assert repr(mapping["dtype"]) == repr([missing])
        assert {entry.kind for entry in d.entries()} == {"value"}
    assert_public_names(tmp_path / "f")
    assert ("numpy.dtypes", "StringDType") in names_in(tmp_path / "f")


SCALARS = [np.dtype(code).type(1) for code in "?bBhHiIlLqQefdgFDG"] + [
    np.longdouble(1) / 3, np.clongdouble(1 + 2j) / 3, np.float64(-0.0), np.float32("nan"), np.float64("-inf"),
    np.array([0x7FA00001], "u4").view("f4")[0],             # a NaN that a conversion to a Python float would change
    np.array([0xFFF4000000000123], "u8").view("f8")[0], np.complex64(complex("nan+infj")), np.uint64(2**64 - 1),
    np.str_("text \U0001f600"), np.str_("zero\0"), np.str_(""),
    np.bytes_(b"\0\xff!"), np.bytes_(b"zero\0"), np.bytes_(b""), np.void(b"\0\1\2"),
    np.datetime64("2024-02-29T12:00:00.123456789"), np.datetime64("NaT", "s"), np.datetime64("20", "Y"),
    np.array([-2**63]).view("M8")[0],
    np.datetime64("NaT", "25us"), np.timedelta64(5, "ms"), np.timedelta64(-3, "D"), np.arange(3).view("m8")[2],
    *(np.zeros(1, dtype)[0] for dtype in DTYPES.values() if dtype.names),
    np.zeros(1, [("o", "O")])[0], np.rec.array([(1, "a")], [("n", "<i4"), ("t", "<U2")])[0],
    np.zeros(1, np.dtype((np.record, np.dtype([("a", "i1"), ("b", ">f8")], align=True))))[0],
    np.array([1], ">i4")[0], np.array(["a"], ">U2")[0], OwnFloat(1.5), OwnText("own"), OwnDouble(1.25)]


def test_scalars_of_every_kind(tmp_path):
    with trusting(tmp_path / "f", "x") as d:
        d["together"] = SCALARS
        d.update(enumerate(SCALARS))
        for mapping in (d, load(tmp_path / "f")):
            for n, scalar in enumerate(SCALARS):
                for found in (mapping[n], mapping["together"][n]):
                    assert type(found) is type(scalar)
                    assert exact_dtype(found.dtype) == exact_dtype(scalar.dtype)
                    assert judge.fingerprint(found) == judge.fingerprint(scalar)
                    if isinstance(scalar, (str, bytes)):
                        assert len(found) == len(scalar)        # numpy hides zeros at the end of texts
    assert_public_names(tmp_path / "f")


def dtypes_to_pickle():
    with_metadata = np.dtype("<f8", metadata={"unit": "m"})
    aligned = np.dtype([("a", "i1"), ("b", ">f8")], align=True)
    yield from DTYPES.values()
    yield from map(np.dtype, ["O", "S", "U", "V", "S0", ">U0"])
    yield np.dtype((">f8", (2, 3)))
    yield np.dtype((np.dtype([("a", "<i4")]), (2,)))
    yield np.dtype((np.record, aligned))
    yield np.dtype((np.record, DTYPES["titles and offsets"]))
    yield np.dtype((np.record, "V4"))
    yield np.dtype([("r", np.dtype((np.record, [("a", "<i4")])), (2,)), ("o", "O")])
    yield np.dtype([("o", "O"), ("i", "i1")], align=True)
    yield with_metadata
    yield np.dtype(">M8[s]", metadata={1: [2]})
    yield np.dtype([("a", with_metadata), ("b", with_metadata, (2,))], metadata={"all": None})
    yield np.dtype((np.record, [("a", with_metadata)]), metadata={"x": aligned})
    yield np.dtype(aligned, metadata={"x": 1})
    yield np.dtype("O", metadata={"vlen": str})                 # h5py's
    yield np.dtype({"names": ["a"], "formats": ["i4"], "titles": [("no", "text")]})


def test_dtypes_of_every_kind(tmp_path):
    dtypes = list(dtypes_to_pickle())
    with trusting(tmp_path / "f", "x") as d:
        d["together"] = dtypes
        d.update(enumerate(dtypes))
        for mapping in (d, load(tmp_path / "f")):
            for n, dtype in enumerate(dtypes):
                assert exact_dtype(mapping[n]) == exact_dtype(dtype)
                assert exact_dtype(mapping["together"][n]) == exact_dtype(dtype)
    assert_public_names(tmp_path / "f")


def test_dtypes_are_never_written_as_the_state_of_one_numpy(tmp_path):
    """The state that numpy 2 gives to aligned structures does not load under numpy 1."""
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = list(dtypes_to_pickle())
    with open(tmp_path / "f", "rb") as file:
        assert "BUILD" not in {op.name for op, _, _ in pickletools.genops(file)}


def test_titles_that_are_no_texts(tmp_path):
    array = np.zeros(3, {"names": ["a"], "formats": ["<i4"], "titles": [("a", "tuple")]})
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = array
        with pytest.raises(TypeError):
            d.create("hole", 3, {"names": ["a"], "formats": ["<i4"], "titles": [1.5j]})
    round_trip(tmp_path / "f", "key", array, d_kind(tmp_path / "f", "key") == "array")


def d_kind(path, key):
    with trusting(path, "r") as d:
        return d.entry(key).kind


def test_structures_that_are_nested_very_deep(tmp_path):
    dtype = np.dtype("<i4")
    for _ in range(120):
        dtype = np.dtype([("f", dtype)])
    round_trip(tmp_path / "f", "key", np.zeros(3, dtype), mapped=False)
    shallow = np.dtype("<i4")
    for _ in range(20):
        shallow = np.dtype([("f", shallow)])
    round_trip(tmp_path / "f", "key", np.zeros(3, shallow))


def test_field_names_that_are_very_long(tmp_path):
    """They are stored, but not in an array record: a long text has to end at an even place."""
    round_trip(tmp_path / "f", "key", np.zeros(3, [("n" * 5000, "<i4")]), mapped=False)
    round_trip(tmp_path / "f", "key", np.zeros(3, [("n" * 1000, "<i4")]))


def test_ufuncs_are_named_by_numpy_even_if_another_module_has_them(tmp_path):
    """pickle takes the first module in `sys.modules` that has it."""
    (tmp_path / "comes_first.py").write_text("from numpy import arctan2, sin\n")
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import comes_first
import mmapdict
with mmapdict.open(sys.argv[2], "x") as d:
    d["key"] = [comes_first.sin, comes_first.arctan2, comes_first.sin]
"""
    root = str(pathlib.Path(mmapdict.__file__).parent.parent)
    subprocess.run([sys.executable, "-c", script, str(tmp_path), str(tmp_path / "f")], check=True,
                   env={**os.environ, "PYTHONPATH": root})
    assert names_in(tmp_path / "f") == {("numpy", "sin"), ("numpy", "arctan2")}
    assert load(tmp_path / "f")["key"] == [np.sin, np.arctan2, np.sin]


def test_functions_and_types_of_numpy(tmp_path):
    value = [np.add, np.sin, np.sum, np.linalg.norm, np.fft.fft, np.ndarray, np.dtype, np.bool_, np.longdouble,
             np.clongdouble, np.longlong, np.object_,
             np.ma.MaskedArray, np.recarray, np.record, np.random.RandomState, np.poly1d,
             np.ma.masked_where, np.polynomial.Polynomial, np.polynomial.Polynomial([1, 2])]
    with trusting(tmp_path / "f", "x") as d:
        d["key"] = value
        for found in (d["key"], load(tmp_path / "f")["key"]):
            assert all(a is b for a, b in zip(found[:-1], value[:-1], strict=True))
            assert found[-1] == value[-1]
    assert_public_names(tmp_path / "f")


def test_classes_of_the_user(tmp_path):
    shared = [1, np.arange(3)]
    point = Point(shared, {"again": shared})
    own = OwnDict(a=1)
    own.note = Slotted(own)
    with trusting(tmp_path / "f", "x") as d:
        d["point"] = point
        d["own"] = own
        for mapping in (d, load(tmp_path / "f")):
            found = mapping["point"]
            assert type(found) is Point and found.x is found.y["again"] and found.x[1].tolist() == [0, 1, 2]
            assert type(mapping["own"]) is OwnDict and mapping["own"].note.value is mapping["own"] or mapping is d
            assert judge.fingerprint(mapping["own"]) == judge.fingerprint(own)


def test_references_inside_a_value_are_kept_and_between_values_are_not(tmp_path):
    shared, text = [1, 2], "not interned " * 500
    recursive = {"self": None, "list": [shared, shared, text, text]}
    recursive["self"] = recursive
    with trusting(tmp_path / "f", "x") as d:
        d["a"] = recursive
        d["b"] = shared
        d["c"] = [text, text]
        for mapping in (d.copy(), load(tmp_path / "f")):
            a = mapping["a"]
            assert a["self"] is a and a["list"][0] is a["list"][1] and a["list"][2] is a["list"][3]
            assert mapping["b"] == shared and mapping["b"] is not a["list"][0]
            assert mapping["c"][0] is mapping["c"][1]


def test_texts_and_bytes_longer_than_a_frame(tmp_path):
    """Frames of the pickler end at 64 KiB; what is longer stands outside of any."""
    value = ["é" * 70_000, b"\x00." * 70_000, bytearray(b"x" * 70_000),
             ["t" * n for n in (4095, 4096, 4097, 65_535, 65_536)],
             2**40_000, {"x" * 5000: "x" * 5000}, list(range(40_000)), [str(n) for n in range(20_000)]]
    round_trip(tmp_path / "f", "key", value + value)
    round_trip(tmp_path / "f", "key", value[0])
    round_trip(tmp_path / "f", "key", value[1])


def test_shared_references_around_long_texts_survive_another_writer(tmp_path):
    """A value is pickled before the lock is taken; its memo moves if another handle stored one meanwhile."""
    class Meanwhile:
        def __reduce__(self):
            with trusting(path, "r+") as other:
                other["other"] = [other_shared, other_shared]
            return str, ("stored",)

    other_shared, shared = [8], [9]
    path = tmp_path / "f"
    with trusting(path, "x") as d:
        d["key"] = [shared, "long" * 2000, shared, Meanwhile(), b"x" * 5000, shared, (shared, "y" * 9000, shared)]
        for mapping in (d, load(path)):
            value = mapping["key"]
            assert all(item is value[0] for item in (value[2], value[5], value[6][0], value[6][2]))
            assert value[3] == "stored" and value[0] == [9]
            assert mapping["other"][0] is mapping["other"][1] or mapping is d
    judge.load_every_way(path)


def test_values_that_are_too_deep_or_cannot_be_pickled_change_nothing(tmp_path):
    path = tmp_path / "f"

    class Local:
        pass

    with trusting(path, "x") as d:
        d["kept"] = 1
        for value, error in ((strategies.nested(100_000), RecursionError), (lambda: 0, Exception), (Local(), Exception),
                             ([1, io.BytesIO, open(os.devnull)], TypeError), (np.array([Local()], object), Exception)):
            before = path.read_bytes()
            with pytest.raises(error):
                d["kept"] = value
            with pytest.raises(error):
                d["new"] = value
            assert path.read_bytes() == before
            if type(value) is list and len(value) == 3:
                value[2].close()
        assert dict(d) == {"kept": 1}
        d["after"] = 2
    assert load(path) == {"kept": 1, "after": 2}


@pytest.mark.parametrize("levels", [50, 250])
def test_nested_values(tmp_path, levels):
    round_trip(tmp_path / "f", "key", strategies.nested(levels))


def test_values_with_very_many_shared_objects(tmp_path):
    """More memo entries than one byte can name, and a mark so high that a reader numbers them anew."""
    with trusting(tmp_path / "f", "x") as d:
        for n in range(3):
            parts = [[i] for i in range(7000)]
            d[n] = parts + parts[::-1]
        assert d.info()["memo"] > 1 << 14
        for mapping in (d, load(tmp_path / "f")):
            for n in range(3):
                value = mapping[n]
                assert len(value) == 14_000 and value[6999] == [6999]
                assert all(a is b for a, b in zip(value, value[::-1]))


def test_extension_codes_are_not_used(tmp_path):
    """A code of copyreg's registry would mean nothing in another process."""
    copyreg.add_extension("test_values", "Point", 0x7FFF0001)
    try:
        with trusting(tmp_path / "f", "x") as d:
            d["key"] = Point(1, 2)
    finally:
        copyreg.remove_extension("test_values", "Point", 0x7FFF0001)
    assert names_in(tmp_path / "f") == {("test_values", "Point")}


# -- holes ----------------------------------------------------------------------------------------------------------

@reuse_folder
@given(strategies.dtypes(), st.data(), st.sampled_from("CF"), st.booleans())
def test_any_hole(tmp_path, dtype, data, order, sparse):
    path = tmp_path / "f"
    shape = data.draw(strategies.shapes(dtype))
    expected = np.zeros(shape, dtype, order)
    with trusting(path, "w") as d:
        hole = d.create("key", shape, dtype, order=order, sparse=sparse)
        assert_in_file(hole, path, True)
        assert_same_array(hole, expected)
        assert_same_array(load(path)["key"], expected)
        content = strategies.filled(shape, hole.dtype, 8)
        hole[...] = expected[...] = content
        assert_same_array(d["key"], hole)
    with trusting(path, "r") as d:
        assert_same_array(d["key"], hole)
    assert_same_array(load(path)["key"], hole)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">u2", "<U3", "simple", "nested"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (70, 90)])
def test_masked_holes(tmp_path, order, dtype, shape):
    path = tmp_path / "f"
    dtype = DTYPES.get(dtype, dtype)
    with trusting(path, "x") as d:
        hole = d.create("key", shape, dtype, order=order, mask=True)
        assert type(hole) is np.ma.MaskedArray
        assert hole._mask.dtype == np.ma.make_mask_descr(np.dtype(dtype))
        assert_same_array(hole._data, np.zeros(shape, dtype, order))
        assert not hole._mask.tobytes().strip(b"\0")
        for found in (d["key"], load(path)["key"]):
            assert_same_masked(found, hole)
        hole._mask[...] = True
        hole._data[...] = strategies.filled(shape, hole.dtype, 9)
        for found in (d["key"], load(path)["key"]):
            assert_same_masked(found, hole)


def test_sizes_of_a_hole_may_be_numpy_integers(tmp_path):
    with trusting(tmp_path / "f", "x") as d:
        assert d.create(1, np.int64(3)).shape == (3,)
        assert d.create(2, (np.uint8(3), np.int16(2)), np.float32).shape == (3, 2)
        assert d.create(3, np.array([2, 3]), "u1").shape == (2, 3)
        assert d.create(4, []).shape == ()
        assert d.create(5, range(3), order="F").shape == (0, 1, 2)
        assert [d[key].dtype for key in (1, 2, 4)] == [np.dtype(float), np.dtype("f4"), np.dtype(float)]
    assert [array.shape for array in load(tmp_path / "f").values()] == [(3,), (3, 2), (2, 3), (), (0, 1, 2)]


def test_holes_take_dtypes_as_numpy_zeros_does(tmp_path):
    with trusting(tmp_path / "f", "x") as d:
        for n, dtype in enumerate([str, bytes, "S", "U", int, bool, complex, ("<f4", (2, 3)), "i4,f8", np.void, "M8[s]",
                                   None]):
            hole, expected = d.create(n, (3,), dtype), np.zeros((3,), dtype)
            assert (hole.dtype, hole.shape) == (expected.dtype, expected.shape)
            assert_same_array(hole, expected)


@pytest.mark.parametrize("arguments, error", [
    (((3,), object), TypeError), (((3,), [("a", "O")]), TypeError), (((3,), [("a", [("b", "O", 2)])]), TypeError),
    (((3,), np.dtype("f8", metadata={"a": 1})), TypeError), (((3,), np.dtype((np.record, [("a", "i4")]))), TypeError),
    (((3,), "no dtype"), TypeError), ((-1,), ValueError), (((3, -1),), ValueError), ((2.5,), TypeError),
    (("3",), TypeError),
    (((1,) * (strategies.DIMENSIONS_MAX + 1),), ValueError), ((0, 2**62, 4), TypeError), (((0, 2**62, 4),), ValueError),
    (((2**62, 2**62),), ValueError), (((2**70,),), ValueError), (((3,), [("a", "i4"), ("a", "i4")]), ValueError),
    (((1,) * strategies.DIMENSIONS_MAX, ("f8", (2,))), ValueError)], ids=range(17))
def test_holes_that_cannot_be_are_refused_and_nothing_is_written(tmp_path, arguments, error):
    path = tmp_path / "f"
    with trusting(path, "x") as d:
        d["kept"] = np.arange(3)
        before = path.read_bytes()
        for keywords in ({}, {"order": "F"}, {"mask": True}, {"sparse": True}):
            with pytest.raises(error):
                d.create("key", *arguments, **keywords)
        assert path.read_bytes() == before
        assert list(d) == ["kept"]


def test_masked_holes_that_numpy_cannot_make_are_refused_and_nothing_is_written(tmp_path):
    """Of some structures numpy can make no masked array: there is no fill value for them."""
    dtype = np.dtype([("t", "M8", (2,))])
    try:
        np.ma.zeros(3, dtype)
    except Exception:
        refused = True
    else:
        refused = False
    with trusting(tmp_path / "f", "x") as d:
        before = (tmp_path / "f").read_bytes()
        if refused:
            with pytest.raises(TypeError):
                d.create("key", 3, dtype, mask=True)
            assert (tmp_path / "f").read_bytes() == before
        else:
            d.create("key", 3, dtype, mask=True)
        assert d.create("plain", 3, dtype).shape == (3,)


def test_hole_of_more_than_4_gib(tmp_path):
    """Checked through the map and by walking the bytes; plain pickle would need the memory."""
    path = tmp_path / "f"
    n = (1 << 32) + 4096
    try:
        with trusting(path, "x") as d:
            d["before"] = 1
            hole = d.create("big", n, "u1", sparse=True)
            hole[0], hole[1 << 32], hole[-1] = 1, 2, 3
            d["after"] = np.arange(3)
            offset, record = hole.offset, d.entry("big").record
            del hole
        with trusting(path, "r") as d:
            assert list(d) == ["before", "big", "after"]
            array = d["big"]
            assert (array.shape, array.offset, array[:2].tolist()) == ((n,), offset, [1, 0])
            assert (array[1 << 32], array[-1], array[-2]) == (2, 3, 0)
            assert array[-1:].offset == offset + n - 1
            assert d["after"].tolist() == [0, 1, 2]
            del array
        with open(path, "rb") as file:
            file.seek(record)
            mark, op, length = struct.unpack("<ccQ", file.read(10))
            assert (mark, op) == (b"(", b"G") and length > n
            file.seek(offset - 9)
            assert file.read(9) == b"\x8e" + struct.pack("<Q", n)
            for at, byte in ((offset, 1), (offset + (1 << 32), 2), (offset + n - 1, 3)):
                file.seek(at)
                assert file.read(1) == bytes((byte,))
            file.seek(record + 10 + length)
            assert file.read(2) == b"1("
        assert os.stat(path).st_blocks * 512 < 1 << 20
    finally:
        path.unlink()


# -- what writing costs ---------------------------------------------------------------------------------------------

class Written:
    """Notes what is given to `File.write`."""

    def __init__(self, monkeypatch):
        self.views = []
        write = store.File.write

        def noting(file, offset, buffers):
            write(file, offset, self.note(buffers))

        monkeypatch.setattr(store.File, "write", noting)

    def note(self, buffers):
        for buffer in buffers:
            view = memoryview(buffer)
            if view.nbytes > 1 << 16:
                self.views.append(np.frombuffer(view, np.uint8))
            yield buffer


@pytest.mark.parametrize("make", [
    lambda: np.arange(1 << 17, dtype="<f8"), lambda: np.zeros((400, 500), ">f8"),
    lambda: np.zeros((400, 500), "<f4", order="F"), lambda: np.zeros(1 << 17, "M8[s]"),
    lambda: np.zeros(1 << 16, DTYPES["nested"]), lambda: np.zeros(1_000_001, "u1"), lambda: np.zeros(1 << 17, "<U3"),
    lambda: strategies.laid_out(np.zeros(1 << 17), "read-only"),
    lambda: strategies.laid_out(np.zeros(1 << 17), "unaligned"),
    lambda: np.zeros((1 << 17, 2))[::2].reshape(1, -1, 2)[:, :, :].copy()[0].T], ids=range(10))
def test_memory_of_a_big_array_is_written_as_it_is(tmp_path, monkeypatch, make):
    array = make()
    with trusting(tmp_path / "f", "x") as d:
        written = Written(monkeypatch)
        d["key"] = array
        assert sum(view.nbytes for view in written.views) == array.nbytes
        assert all(np.shares_memory(view, array.reshape(-1, order="A").view(np.uint8)) for view in written.views)
        monkeypatch.undo()


def test_memory_of_a_big_masked_array_is_written_as_it_is(tmp_path, monkeypatch):
    for mask_order in "CF":
        array = np.ma.array(np.zeros((400, 500)), mask=np.zeros((400, 500), bool, order=mask_order))
        with trusting(tmp_path / "f", "w") as d:
            written = Written(monkeypatch)
            d["key"] = array
            assert sum(view.nbytes for view in written.views) == array._data.nbytes + array._mask.nbytes
            assert all(np.shares_memory(view, array._data) or np.shares_memory(view, array._mask)
                       for view in written.views)
            monkeypatch.undo()


@pytest.mark.parametrize("make", [
    lambda: np.zeros((32, 2, 1 << 20), "u1")[:, 0], lambda: np.zeros((2, 1 << 24), "u1")[:, ::2].T,
    lambda: np.broadcast_to(np.zeros(1 << 10), (1 << 12, 1 << 10)), lambda: np.zeros(32 << 20, "u1"),
    lambda: np.ma.array(np.zeros((32, 2, 1 << 20), "u1")[:, 0], mask=np.zeros((32, 2, 1 << 20), bool)[:, 1])],
    ids=range(5))
def test_storing_a_big_array_takes_little_memory(tmp_path, make):
    array = make()
    with trusting(tmp_path / "f", "x") as d:
        d["warm"] = np.arange(3)
        tracemalloc.start()
        try:
            d["key"] = array
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert array.nbytes >= 1 << 24 and taken < 20 << 20
        assert d["key"].nbytes == array.nbytes
        del d["key"]
    (tmp_path / "f").unlink()


def test_creating_a_hole_takes_no_memory(tmp_path):
    with trusting(tmp_path / "f", "x") as d:
        tracemalloc.start()
        try:
            hole = d.create("key", (1 << 26,), "u1")
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert taken < 1 << 20
        assert os.stat(tmp_path / "f").st_blocks * 512 >= 1 << 26           # its place on the disk is taken
        assert hole.offset % mmap.PAGESIZE == 0
        del hole, d["key"]
    (tmp_path / "f").unlink()
