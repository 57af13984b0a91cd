"""Write a set of files by mmapdict, under the numpy that runs this, and what they must hold.

    python write_files.py FOLDER

The folder receives the files and ``expected.json``: for each file the fingerprints of its keys and values, taken from
the objects in memory before they were stored.
"""

import collections
import datetime
import decimal
import fractions
import json
import pathlib
import sys
import uuid
import warnings

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import judge  # noqa: E402

import mmapdict  # noqa: E402

PLAIN_DTYPES = [
    "?", "i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8",
    "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16",
]
OTHER_DTYPES = [
    "S1", "S7", "<U1", ">U1", "<U5", ">U5", "V1", "V5",
    "<M8[D]", ">M8[D]", "<M8[ns]", "<M8[25us]", "<M8", "<m8[s]", ">m8[ms]", "<m8",
]


def counting(shape, dtype):
    """An array of the shape and dtype whose bytes all differ from zero and from their neighbours."""
    dtype = numpy.dtype(dtype)
    count = int(numpy.prod(shape, dtype=int))
    array = numpy.zeros(shape, dtype)
    if dtype.itemsize == 0:
        return array
    if dtype.kind == "U":
        array[...] = numpy.array(["\xe4%d" % n for n in range(count)], dtype).reshape(shape)
    elif dtype.kind == "S":
        array[...] = numpy.array([b"%d" % n for n in range(count)], dtype).reshape(shape)
    elif dtype.kind in "Mm":
        array[...] = numpy.arange(count, dtype="i8").reshape(shape).astype(dtype.newbyteorder("="))
    elif dtype.kind == "V":
        data = (numpy.arange(count * dtype.itemsize) % 251 + 1).astype("u1")
        array[...] = numpy.frombuffer(data.tobytes(), dtype).reshape(shape)
    elif dtype.kind == "c":
        array[...] = numpy.arange(count).reshape(shape) + 1j
    else:
        array[...] = numpy.arange(count).reshape(shape) % 2 if dtype.kind == "b" else numpy.arange(count).reshape(shape)
    return array


def structured_dtypes():
    """Structured dtypes by name: titles, offsets, alignment, nesting, sub-arrays, both byte orders."""
    return {
        "simple": numpy.dtype([("x", "<f4"), ("y", "<i2")]),
        "both byte orders": numpy.dtype([("x", ">f8"), ("y", "<u4"), ("z", ">i2")]),
        "all foreign": numpy.dtype([("x", ">f8"), ("y", ">u4")]),
        "offsets": numpy.dtype({"names": ["a", "b"], "formats": ["<i4", ">f8"], "offsets": [4, 16], "itemsize": 32}),
        "back to front": numpy.dtype({"names": ["a", "b"], "formats": ["<i4", "<f8"], "offsets": [8, 0]}),
        "titles": numpy.dtype({"names": ["a", "b"], "formats": ["<i4", "S3"], "titles": ["first", "the second"]}),
        "titles and offsets": numpy.dtype({"names": ["a", "b"], "formats": ["<i4", "S3"], "offsets": [1, 9],
                                           "titles": ["first", "second"], "itemsize": 13}),
        "aligned": numpy.dtype([("flag", "?"), ("value", "<f8"), ("small", "<i2")], align=True),
        "sub-arrays": numpy.dtype([("m", "<f4", (2, 3)), ("t", "<U4", (2,))]),
        "nested": numpy.dtype([("p", [("q", "<u1"), ("r", "<i8", (2,))]), ("s", "<M8[ns]")]),
        "unicode name": numpy.dtype([("λ", "<f8"), ("µm", "<i4")]),
        "aligned inside aligned": numpy.dtype(
            [("h", "i1"), ("n", numpy.dtype([("a", "i1"), ("b", ">f8")], align=True))], align=True),
        "packed inside aligned": numpy.dtype(
            [("h", "i1"), ("n", numpy.dtype([("a", "i1"), ("b", ">f8")]), (2,)), ("f", "<f4")], align=True),
        "empty inside aligned": numpy.dtype(
            [("a", "<i4"), ("e", numpy.dtype([], align=True)), ("z", "V0")], align=True),
        "no fields": numpy.dtype([]),
    }


def fill_structured(array):
    """Fill every field, at any depth, of a structured array."""
    for name in array.dtype.names:
        field = array[name]
        if field.dtype.names is not None:
            fill_structured(field)
        else:
            field[...] = counting(field.shape, field.dtype)
    return array


def plain_arrays():
    yield from (((text, "1-d"), counting((7,), text)) for text in PLAIN_DTYPES + OTHER_DTYPES)
    yield from (((text, "2-d"), counting((3, 5), text)) for text in PLAIN_DTYPES + OTHER_DTYPES)
    yield from (((text, "0-d"), counting((), text)) for text in PLAIN_DTYPES + OTHER_DTYPES)
    yield from (((text, "F"), numpy.asfortranarray(counting((3, 4, 5), text))) for text in PLAIN_DTYPES + OTHER_DTYPES)
    yield from (((text, "size 0"), numpy.zeros((3, 0, 2), text)) for text in PLAIN_DTYPES + OTHER_DTYPES)
    for name, kind in [("longdouble", numpy.longdouble), ("clongdouble", numpy.clongdouble)]:
        yield (name, "1-d"), numpy.arange(5).astype(kind) / 3
        yield (name, "F"), numpy.asfortranarray(numpy.arange(6).reshape(2, 3).astype(kind))
        yield (name, "foreign"), (numpy.arange(5).astype(kind) / 3).astype(numpy.dtype(kind).newbyteorder())
    yield "nan and inf", numpy.array([numpy.nan, -numpy.inf, -0.0, 5e-324])
    yield "not a time", numpy.array(["NaT", "2020-02-29"], "M8[D]")
    yield "32 dimensions", numpy.arange(4.0).reshape((2,) + (1,) * 30 + (2,))
    yield "big", (numpy.arange(700_001) % 251).astype("u1")
    yield "big, foreign", numpy.arange(100_001).astype(">f8")
    yield "zero-width text", numpy.zeros(3, "S0")


def written_as_c():
    base = numpy.arange(60).reshape(3, 4, 5)
    yield "strided", base[:, ::2, 1:]
    yield "reversed", base[::-1]
    yield "transposed", base.transpose(1, 2, 0)
    yield "repeated", numpy.broadcast_to(numpy.arange(3.0), (4, 3))
    read_only = numpy.arange(5)
    read_only.setflags(write=False)
    yield "read-only", read_only


def structured_arrays():
    for name, dtype in structured_dtypes().items():
        yield (name, "1-d"), fill_structured(numpy.zeros(4, dtype))
        yield (name, "0-d"), fill_structured(numpy.zeros((), dtype))
        yield (name, "F"), numpy.asfortranarray(fill_structured(numpy.zeros((2, 3), dtype)))
        yield (name, "size 0"), numpy.zeros((0, 2), dtype)


def masked_arrays():
    data = numpy.arange(12.0).reshape(3, 4)
    yield "mask", numpy.ma.array(data, mask=data % 3 == 0)
    yield "nomask", numpy.ma.array(data)
    yield "full mask of False", numpy.ma.array(data, mask=False)
    yield "fill value", numpy.ma.array(data, mask=data > 5, fill_value=-7.5)
    yield "hard mask", numpy.ma.array(data, mask=data > 5, hard_mask=True)
    yield "hard mask and fill value", numpy.ma.array(data, mask=data > 5, hard_mask=True, fill_value=1e20)
    yield "F", numpy.ma.array(numpy.asfortranarray(data), mask=numpy.asfortranarray(data > 3))
    yield "integers", numpy.ma.array(numpy.arange(5, dtype="<i4"), mask=[0, 1, 0, 0, 1], fill_value=-1)
    yield "foreign", numpy.ma.array(numpy.arange(5, dtype=">i4"), mask=[0, 1, 0, 0, 1], fill_value=-1)
    yield "text", numpy.ma.array(["a", "bc", "def"], mask=[0, 1, 0], fill_value="?")
    yield "time", numpy.ma.array(numpy.arange(3).astype("M8[s]"), mask=[0, 1, 0])
    yield "0-d", numpy.ma.array(1.5, mask=True)
    yield "size 0", numpy.ma.array(numpy.zeros((0, 3)), mask=numpy.zeros((0, 3), bool))
    flat = numpy.array([(1, 2.5), (3, 4.5)], [("a", "<i4"), ("b", "<f8")])
    yield "structured", numpy.ma.array(flat, mask=[(True, False), (False, True)])
    yield "structured, fill value", numpy.ma.array(flat, mask=[(True, False), (False, True)], fill_value=(-1, -2.0))
    yield "structured, F", numpy.ma.array(numpy.zeros((2, 3), flat.dtype, "F"), mask=numpy.ones((2, 3), "?,?", "F"))
    yield "long fill value", numpy.ma.array([b"a" * 5000, b""], mask=[0, 1], fill_value=b"N/A")
    nested = numpy.zeros(2, [("p", [("q", "<u1"), ("r", "<i8", (2,))]), ("s", "<f4")])
    mask = numpy.zeros(2, numpy.ma.make_mask_descr(nested.dtype))
    mask["p"]["q"][0] = mask["p"]["r"][0, 1] = mask["s"][1] = True
    yield "structured, nested", numpy.ma.array(nested, mask=mask)


def scalars():
    """numpy scalars of every kind."""
    found = [numpy.dtype(text).type(1) for text in PLAIN_DTYPES if not text.startswith(">")]
    found += [numpy.longdouble(1) / 3, numpy.clongdouble(1j)]
    found += [numpy.str_("text ä"), numpy.bytes_(b"\x00\xff!"), numpy.void(b"\x00\x01\x02")]
    found += [numpy.str_("zero\0"), numpy.bytes_(b"zero\0"), numpy.array([0x7FA00001], "u4").view("f4")[0]]
    found += [numpy.datetime64("2024-02-29T12:00:00.123456789"), numpy.datetime64("NaT", "s")]
    found += [numpy.datetime64("20", "Y")]
    found += [numpy.timedelta64(5, "ms"), numpy.timedelta64(-3, "D"), numpy.arange(8).view("m8")[7]]
    found += [numpy.zeros(1, dtype)[0] for dtype in structured_dtypes().values() if dtype.names]
    found += [numpy.float64("nan"), numpy.float32("-inf"), numpy.uint64(2**64 - 1), numpy.int64(-2**63)]
    return found


def other_values():
    yield "none", None
    yield "numbers", [0, -1, 255, 2**31, 2**64, -10**100, 1.5, float("inf"), -0.0, 1 + 2j, True, False]
    yield "text", ["", "a", "é", "日本", "\U0001f600", "\ud800", "\x00", "x" * 100_000]
    yield "bytes", [b"", b"\x00\xff", bytes(range(256)) * 500, bytearray(b"abc")]
    yield "containers", {"list": [1, [2]], "tuple": (1, (2, ())), "set": {1, 2}, "frozen": frozenset("ab"),
                         "dict": {1: {}}}
    yield "standard library", [
        datetime.datetime(2024, 2, 29, 12, 30, 1, 5), datetime.date(2000, 1, 1), datetime.timedelta(1, 2, 3),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc), decimal.Decimal("1.10"), fractions.Fraction(1, 3),
        uuid.UUID(int=5), range(1, 10, 2), slice(1, None, 2), collections.OrderedDict(a=1),
        collections.deque([1, 2], 5), collections.Counter("aab"), Ellipsis]
    yield "numpy scalars", scalars()
    yield "numpy scalar alone", numpy.float32(2.5)
    yield "numpy structured scalar alone", numpy.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")])[0]
    yield "numpy scalars as keys", {numpy.int64(3): "three", numpy.str_("s"): numpy.bytes_(b"b")}
    yield "numpy dtypes", [*map(numpy.dtype, PLAIN_DTYPES + OTHER_DTYPES), *structured_dtypes().values()]
    yield "numpy dtype alone", numpy.dtype(">f8")
    yield "object dtype", numpy.dtype("O")
    aligned = numpy.dtype([("a", "i1"), ("b", ">f8")], align=True)
    yield "other dtypes", [
        numpy.dtype([("o", "O"), ("i", "i1")], align=True), numpy.dtype((numpy.record, aligned)),
        numpy.dtype((numpy.record, structured_dtypes()["titles and offsets"])), numpy.dtype((">f8", (2, 3))),
        numpy.dtype([("r", numpy.dtype((numpy.record, aligned)), (2,)), ("o", "O")]), numpy.dtype("q"),
        numpy.dtype("<f8", metadata={"unit": "m"}), numpy.dtype(aligned, metadata={"unit": "m"}),
        numpy.dtype([("a", numpy.dtype(">f8", metadata={"unit": "m"}))])]
    yield "numpy types", [numpy.float64, numpy.int32, numpy.ndarray, numpy.bool_, numpy.longdouble, numpy.clongdouble,
                          numpy.str_, numpy.object_, numpy.longlong, numpy.ma.MaskedArray, numpy.recarray, numpy.record]
    yield "numpy ufuncs", [numpy.sin, numpy.add]
    yield "nested arrays", {
        "c": numpy.arange(6).reshape(2, 3), "f": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
        "foreign": numpy.arange(5, dtype=">i4"),
        "foreign f": numpy.asfortranarray(numpy.arange(6, dtype=">f8").reshape(2, 3)),
        "foreign text": numpy.array(["ab", "c"], ">U2"), "0-d": numpy.array(1.5), "size 0": numpy.zeros((0, 2), "<f4"),
        "big": numpy.arange(50_000, dtype="<u2"), "structured": structured_arrays_of("titles and offsets"),
        "nested structured": structured_arrays_of("nested"), "text": numpy.array(["a", "bc"]),
        "time": numpy.arange(3).astype("M8[s]"), "object": numpy.array([1, "two", None], object)}
    yield "nested masked arrays", list(value for _, value in masked_arrays())
    yield "one array alone in a list", [numpy.arange(3.0)]
    shared = [1, 2]
    array = numpy.arange(4.0)
    yield "shared", {"a": shared, "b": shared, "array": array, "the same array": array}
    recursive = [1]
    recursive.append({"self": recursive})
    yield "recursive", recursive
    looped = numpy.empty(2, object)
    looped[0], looped[1] = "x", [looped]
    yield "recursive object array", looped
    yield "object array", numpy.array([[1, "two"], [None, numpy.arange(3)]], object)
    yield "object array, F", numpy.asfortranarray(numpy.array([[1, "a"], [2, "b"]], object))
    yield "object array, 0-d", numpy.array({"a": 1}, object)
    yield "structured with objects", numpy.array([(1, "a"), (2, [3])], [("n", "<i4"), ("o", "O")])
    yield "structured with objects, aligned", numpy.array(
        [("a", 1)], numpy.dtype([("o", "O"), ("n", "i1")], align=True))
    yield "array of records", numpy.zeros(2, numpy.dtype((numpy.record, aligned)))
    yield "array with metadata", numpy.arange(3, dtype=numpy.dtype(">f8", metadata={"unit": "m"}))
    yield "element of a recarray", numpy.zeros(2, numpy.dtype((numpy.record, aligned)))[1]
    yield "masked singleton", [numpy.ma.masked, numpy.ma.masked]
    yield "masked array of objects", numpy.ma.array(numpy.array([1, None, "a"], object), mask=[0, 1, 0])
    yield "recarray", numpy.rec.array([(1, 2.5, "a"), (3, 4.5, "b")], dtype=[("n", "<i4"), ("x", "<f8"), ("t", "<U2")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # it is only here as an example of a subclass
        yield "matrix", numpy.matrix([[1.0, 2.0], [3.0, 4.0]])


def structured_arrays_of(name):
    """A filled structured array of one of the dtypes."""
    return fill_structured(numpy.zeros(3, structured_dtypes()[name]))


def keys():
    return ["", "a", "with/slash", "é", "日本語", "\U0001f600", "\ud800", "x" * 70_000, b"", b"a", b"\x00\xff" * 200, 0, 1,
            -1, 255, 256, 65_536, 2**31, -2**31 - 1, 2**63, -2**2100, 0.5, -1e300, float("inf"), None, (), (1,),
            ("a", b"a"), (1, (2, (3, (None, 0.25, True)))), tuple(range(300)), ("",) * 4]


def write_values(path, items, allow=()):
    """Store the items; what is expected are the objects themselves."""
    expected = []
    with mmapdict.open(path, "x", allow=allow) as mapping:
        for key, value in items:
            expected.append([judge.fingerprint(key), judge.fingerprint(value)])
            mapping[key] = value
    return expected


def write_as_c(path):
    """Store arrays that are not contiguous: the same values in C order are expected."""
    items = list(written_as_c())
    with mmapdict.open(path, "x") as mapping:
        for key, value in items:
            mapping[key] = value
    return judge.fingerprint_items({key: numpy.ascontiguousarray(value) for key, value in items})


def write_holes(path):
    """Create arrays and fill some of them through the map."""
    expected = {}
    with mmapdict.open(path, "x") as mapping:
        mapping["wavelengths"] = expected["wavelengths"] = [400.0, 500.0]
        for dtype in ["<u2", ">u2", "<f8", "?", "S5", "<U3", ">U3", "<M8[ns]"]:
            for order in "CF":
                key = ("filled", dtype, order)
                expected[key] = numpy.array(counting((3, 4, 5), dtype), order=order)
                mapping.create(key, (3, 4, 5), dtype, order=order)[...] = expected[key]
                key = ("empty", dtype, order)
                expected[key] = numpy.zeros((3, 4, 5), dtype, order)
                mapping.create(key, (3, 4, 5), dtype, order=order)
        for name, dtype in structured_dtypes().items():
            expected[name] = numpy.zeros(3, dtype)
            mapping.create(name, (3,), dtype)
        expected["partly"] = numpy.zeros((100, 100), "<f4")
        expected["partly"][:50] = 1.5
        mapping.create("partly", (100, 100), "<f4")[:50] = 1.5
        expected["0-d"] = numpy.zeros((), "<f8")
        mapping.create("0-d", (), "<f8")
        expected["size 0"] = numpy.zeros((0, 3), "<f8")
        mapping.create("size 0", (0, 3), "<f8")
        expected["masked"] = numpy.ma.array(numpy.zeros((4, 5), "<f4"), mask=numpy.zeros((4, 5), bool))
        hole = mapping.create("masked", (4, 5), "<f4", mask=True)
        for array in (expected["masked"], hole):
            array[1] = 2.5
            array[2, 3] = numpy.ma.masked
        expected["sparse"] = numpy.zeros((50, 50), "<i4")
        mapping.create("sparse", (50, 50), "<i4", sparse=True)
    return judge.fingerprint_items(expected)


def write_changes(path):
    """Replace and delete keys, also after the file was opened again."""
    expected = {}
    with mmapdict.open(path, "x") as mapping:
        for n in range(40):
            mapping["key", n] = expected["key", n] = numpy.arange(n * 10)
        for n in range(0, 40, 3):
            del mapping["key", n], expected["key", n]
    with mmapdict.open(path, "r+") as mapping:
        for n in range(1, 40, 6):
            mapping["key", n] = numpy.arange(n * 20.0)
            expected["key", n] = numpy.arange(n * 20.0)
        mapping[1] = expected[1] = "one"
        mapping["again"] = "old"
        del mapping["again"]
        mapping["again"] = expected["again"] = {"new": numpy.arange(3, dtype=">i2")}
        mapping["popped"] = 1
        mapping.pop("popped")
        mapping.create("hole", (10,), "<i4")
        del mapping["hole"]
        order = list(mapping)
    # Where a replaced key stands is not fixed here; the reader checks that pickle gives the same order.
    if set(order) != set(expected):
        raise AssertionError("the mapping has the keys %r, expected %r" % (order, list(expected)))
    return judge.fingerprint_items({key: expected[key] for key in order})


def write_cleared(path):
    """Clear a mapping and begin again."""
    with mmapdict.open(path, "x") as mapping:
        for n in range(20):
            mapping[n] = numpy.arange(n)
        mapping.clear()
        mapping["after"] = numpy.arange(3.5)
        mapping[3] = "three"
    return judge.fingerprint_items({"after": numpy.arange(3.5), 3: "three"})


def write_growable(path):
    """Arrays that got their rows one by one, lost some, and were moved and trimmed."""
    expected = {}
    with mmapdict.open(path, "x") as mapping:
        for dtype in [*PLAIN_DTYPES, *OTHER_DTYPES]:
            if numpy.dtype(dtype) != numpy.dtype("V1"):
                rows = expected[dtype] = counting((7, 2), dtype)
                mapping.create_growable(dtype, 2, dtype, capacity=3)
                mapping.append(dtype, rows[0])
                mapping.append(dtype, rows[1:])
        for name, dtype in structured_dtypes().items():
            expected["structured", name] = rows = fill_structured(numpy.zeros(4, dtype))
            mapping.create_growable(("structured", name), (), dtype, capacity=100)
            mapping.append(("structured", name), rows)
            mapping.trim(("structured", name))
        lines = numpy.moveaxis(counting((6, 3, 4), "<u2"), 0, 1)
        expected["lines"] = lines[:, :5]
        mapping.create_growable("lines", (3, 4), "<u2", axis=1, capacity=6)
        with mapping.extend("lines", 6) as rows:
            rows[...] = lines
        mapping.resize("lines", 5)
        expected["nothing"] = numpy.zeros((0, 3))
        mapping.create_growable("nothing", 3)
        expected["rows of nothing"] = numpy.zeros((5, 0, 3), "f4")
        mapping.append("rows of nothing", numpy.zeros((5, 0, 3), "f4"))
        order = list(mapping)       # what got a new place stands behind
    return judge.fingerprint_items({key: expected[key] for key in order})


def write_log(path):
    """A log whose columns changed, and a store of samples."""
    with mmapdict.log(path, mode="x") as log:
        for n in range(50):
            log.add(epoch=n, loss=n / 7, note="x" * (n // 7), when=datetime.datetime(2024, 1, 1, n % 24),
                    vector=[n, -n], **({"late": n} if n > 30 else {}))
        log.d["value"] = 1
        with mmapdict.samples(log.d, "samples") as samples:
            for n in range(3):
                samples.add(10 - n, {"a": {"b": counting((2, 2), "<f4") + n}, "c": numpy.uint8(n)})
    columns = {
        "epoch": numpy.arange(50), "loss": numpy.arange(50) / 7,
        "note": numpy.array(["x" * (n // 7) for n in range(50)], "U8"),
        "when": numpy.array([datetime.datetime(2024, 1, 1, n % 24) for n in range(50)], "M8[us]"),
        "vector": numpy.stack([numpy.arange(50), -numpy.arange(50)], 1),
        "late": numpy.array([numpy.nan] * 31 + list(range(31, 50)))}
    values = {"a": {"b": numpy.stack([counting((2, 2), "<f4") + n for n in range(3)])},
              "c": numpy.arange(3, dtype="u1")}
    samples = {"ids": numpy.array([10, 9, 8]), "values": values}
    return judge.fingerprint_items({"log": spread(columns), "value": 1, "samples": spread(samples)})


def spread(tree):
    """Columns of which one element does not follow the other, as in a table."""
    if isinstance(tree, dict):
        return {name: spread(part) for name, part in tree.items()}
    return numpy.stack([tree, tree], 1)[:, 0]


def write_empty(path):
    """A mapping that never had a key."""
    mmapdict.open(path, "x").close()
    return []


def main(folder):
    """Write all files and ``expected.json`` into `folder`, which must exist."""
    folder = pathlib.Path(folder)
    files = {
        "arrays": lambda path: write_values(path, plain_arrays()),
        "structured": lambda path: write_values(path, structured_arrays()),
        "masked": lambda path: write_values(path, masked_arrays()),
        "values": lambda path: write_values(path, other_values()),
        "functions": lambda path: write_values(path, [("numpy", judge.NUMPY_FUNCTIONS)], judge.NUMPY_FUNCTIONS),
        "keys": lambda path: write_values(path, [(key, number) for number, key in enumerate(keys())]),
        "keys_of_arrays": lambda path: write_values(path, [(key, numpy.arange(3)) for key in keys()]),
        "as_c": write_as_c,
        "holes": write_holes,
        "changes": write_changes,
        "cleared": write_cleared,
        "growable": write_growable,
        "log": write_log,
        "empty": write_empty,
    }
    expected = {}
    for name, write in files.items():
        expected[name] = write(folder / (name + ".pickle"))
    about = {"numpy": numpy.__version__, "python": sys.version.split()[0], "files": expected}
    (folder / "expected.json").write_text(json.dumps(about, indent=1), encoding="ascii")
    print("wrote %d files with %d values" % (len(expected), sum(len(items) for items in expected.values())))


if __name__ == "__main__":
    main(*sys.argv[1:])
