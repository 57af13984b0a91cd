"""Makes the golden files of format version 1 with the mmapdict that can be imported.

    python tests/data/v1/make.py [FOLDER]       (its own folder, if none is given)

It writes, for each entry of `FILES`, ``NAME.mmapdict`` and ``NAME.dis.txt``, and ``expected.json`` with the
fingerprints of what the files hold, taken from the objects before they were stored. It overwrites nothing. File id and
boot id are fixed, so the same encoder makes the same bytes; tests/test_golden.py says if they are no longer the same.
"""

import contextlib
import datetime
import decimal
import json
import os
import pathlib
import sys
import unittest.mock

import numpy

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

import judge  # noqa: E402
import listing  # noqa: E402

import mmapdict  # noqa: E402
from mmapdict import birth, store  # noqa: E402

FILE_ID = bytes.fromhex("00112233445566778899aabbccddeeff")


@contextlib.contextmanager
def fixed_ids():
    """New files get `FILE_ID`, and zeros for the boot id."""
    with unittest.mock.patch.object(birth.os, "urandom", lambda n: FILE_ID[:n]), \
            unittest.mock.patch.object(birth, "boot_id", lambda: bytes(16)), \
            unittest.mock.patch.object(store, "boot_id", lambda: bytes(16)):
        yield


# -- writers that die --------------------------------------------------------------------------------------------

class Killed(BaseException):
    """Raised in place of a store: that one and all that would follow never happen."""


# What a one-byte or eight-byte store is, by its offset and value, as in docs/format.md.
STORES = {
    "begin": lambda offset, value: offset == 40 and value % 2 == 1,
    "publish": lambda offset, value: offset >= 256 and value == 0x28,
    "stop": lambda offset, value: offset == 48,
    "kill": lambda offset, value: offset >= 256 and value == 0x8e,
    "dead": lambda offset, value: offset == 64,
    "superseded or normal": lambda offset, value: offset == 88 and value != 1,
    "cell of rows": lambda offset, value: offset >= 256 and value not in (0x28, 0x8e),
    "commit": lambda offset, value: offset == 40,
}


@contextlib.contextmanager
def killed_before(store_name, number=1, handle=None):
    """Let the writer die inside the block, before the store of that name, or before the `number`-th of them."""
    left = [number]

    def die_if_due(offset, value):
        if STORES[store_name](offset, value):
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    store_byte, cell_store = store.File.store_byte, store.File.cell_store

    def dying_byte(self, offset, value):
        die_if_due(offset, value)
        store_byte(self, offset, value)

    def dying_cells(self, cells, start):
        store_cell = cell_store(self, cells, start)

        def store_or_die(cell, value):
            die_if_due(start + 8 * cell, value)
            store_cell(cell, value)
        return store_or_die

    with contextlib.ExitStack() as stack:
        stack.enter_context(unittest.mock.patch.object(store.File, "store_byte", dying_byte))
        stack.enter_context(unittest.mock.patch.object(store.File, "cell_store", dying_cells))
        if handle is not None:          # one that is open already
            file = handle._file
            stack.enter_context(unittest.mock.patch.object(file, "store_cell", dying_cells(file, file.cells, 0)))
        yield from dead(stack)


@contextlib.contextmanager
def killed_while_writing(size):
    """Let the writer die inside the block, when `size` bytes of its first long write are in the file."""
    def cut_write(self, offset, buffers):
        data = buffers if isinstance(buffers, bytes) else b"".join(map(bytes, buffers))
        os.pwrite(self.lock_fd, data[:size], offset)
        raise Killed

    with contextlib.ExitStack() as stack:
        stack.enter_context(unittest.mock.patch.object(store.File, "write", cut_write))
        yield from dead(stack)


def dead(stack):
    """Run the block; who dies there tidies up nothing."""
    stack.enter_context(unittest.mock.patch.object(store.File, "truncate", lambda self, size: None))
    try:
        yield
    except Killed:
        return
    raise AssertionError("the writer lived to the end of the block")


def cut_behind(path, size=0):
    """Cut a file `size` bytes behind its STOP: room that was made for later is no news."""
    stop = listing.walk(path.read_bytes())[1]
    os.truncate(path, stop + 1 + size)


# -- the files ---------------------------------------------------------------------------------------------------

def store_all(path, items):
    """Assign all items, in order."""
    with mmapdict.open(path, "x") as d:
        for key, value in items.items():
            d[key] = value
    return items


def empty(path):
    """Never had a key."""
    return store_all(path, {})


def example(path):
    """The file that docs/format.md shows: a number, a dead record, the hidden globals and a small array."""
    with mmapdict.open(path, "x") as d:
        d["answer"] = 42
        d["draft"] = None
        d["x"] = numpy.arange(3, dtype="<i2")
        del d["draft"]
    return {"answer": 42, "x": numpy.arange(3, dtype="<i2")}


def keys(path):
    """Every kind of key and every opcode that writes one."""
    found = ["", "a", "with/slash", "\xe9", "\u65e5\u672c", "\U0001f600", "\ud800", "x" * 300, "y" * 5001, b"", b"a",
             b"\x00\xff" * 200, 0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63, -2**2100,
             0.5, -1e300, float("inf"), None, (), (1,), ("a", b"a"), (1, (2, (3, (None, 0.25, True)))),
             ("z" * 4500, b"w" * 4500, 1)]
    return store_all(path, {key: number for number, key in enumerate(found)})


def equal_keys(path):
    """Keys that are equal to one that is there keep its form, as in a dict."""
    with mmapdict.open(path, "x") as d:
        for key, value in [(1, "int"), (0.0, "float"), ((True, 2), "tuple"), (1.0, "replaced"), (False, "replaced"),
                           ((1.0, 2.0), "replaced")]:
            d[key] = value
    return {1: "replaced", 0.0: "replaced", (True, 2): "replaced"}


def values(path):
    """Values that are not arrays."""
    return store_all(path, {
        "none": None, "true": True, "int": -7, "big int": 10**30, "float": 2.5, "inf": float("-inf"), "complex": 1 - 2j,
        "text": "\xe4\u65e5\ud800", "bytes": bytes(range(256)), "bytearray": bytearray(b"abc"),
        "empty": [(), [], {}, ""],
        "list": [1, [2.5, [None]]], "tuple": (1, (2, 3), (4, 5, 6, 7)), "set": {1}, "frozenset": frozenset([2]),
        "dict": {"a": 1, 2: {"b": ()}},
        "longer than its check covers": [letter * 250 for letter in "abcdefghijklmnopq"],
        "range": range(1, 10, 2), "date": datetime.date(2000, 2, 29), "span": datetime.timedelta(1, 2, 3),
        "time": datetime.datetime(2024, 2, 29, 12, 30, 1, 5), "decimal": decimal.Decimal("1.10")})


def shared(path):
    """References inside a value: the memo."""
    part = [1, 2]
    return store_all(path, {"twice": [part, part], "none": 1, "tuples": ((part,), (part,)),
                            "pairs": {n: (m, m) for n, m in enumerate([[0], [1], [2]])},
                            "again": {"a": part, "b": [part]}})


def numpy_values(path):
    """numpy's objects inside other values: only public names, whatever numpy."""
    array = numpy.arange(6, dtype="<f8").reshape(2, 3)
    return store_all(path, {
        "scalars": [numpy.float32(2.5), numpy.int64(-3), numpy.bool_(True), numpy.str_("s"), numpy.bytes_(b"b"),
                    numpy.complex64(1j), numpy.datetime64("2024-02-29"), numpy.timedelta64(5, "ms")],
        "dtypes": [numpy.dtype("<u2"), numpy.dtype(">f8"), numpy.dtype([("x", "<f4"), ("y", ">i2", (2,))])],
        "arrays": {"c": array, "f": numpy.asfortranarray(array), "foreign": array.astype(">f8"), "the same": array,
                   "text": numpy.array(["a", "bc"], "<U2"), "bool": numpy.array([True, False])},
        "masked": [numpy.ma.array(array, mask=array > 3)],
        "object": numpy.array([1, "two", None], object),
        "types": [numpy.ndarray, numpy.float64]})


def counting(dtype, shape=(3,)):
    """A small array whose elements differ."""
    dtype = numpy.dtype(dtype)
    count = int(numpy.prod(shape, dtype=int))
    if dtype.kind in "SU":
        return numpy.array(["%dx" % n for n in range(count)], dtype).reshape(shape)
    if dtype.kind in "Mm":
        return numpy.arange(count).astype(dtype.newbyteorder("=")).astype(dtype).reshape(shape)
    if dtype.kind == "V":
        data = (numpy.arange(count * dtype.itemsize) % 251).astype("u1").tobytes()
        return numpy.frombuffer(data, dtype).reshape(shape)
    if dtype.kind == "b":
        return (numpy.arange(count) % 2).astype(dtype).reshape(shape)
    return numpy.arange(count).astype(dtype).reshape(shape)


def dtypes(path):
    """Arrays of simple dtypes in both byte orders."""
    found = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16",
             ">i2", ">u4", ">f8", ">c16", "S3", "<U3", ">U3", "V5", "<M8[ns]", "<M8[25us]", ">M8[D]", "<m8[s]",
             ">m8[ms]", "S0"]
    return store_all(path, {dtype: counting(dtype) for dtype in found})


def structured(path):
    """Arrays of structured dtypes."""
    found = {
        "simple": numpy.dtype([("x", "<f4"), ("y", "<i2")]),
        "both byte orders": numpy.dtype([("x", ">f8"), ("y", "<u4"), ("z", ">i2")]),
        "offsets": numpy.dtype({"names": ["a", "b"], "formats": ["<i4", ">f8"], "offsets": [4, 16], "itemsize": 32}),
        "back to front": numpy.dtype({"names": ["a", "b"], "formats": ["<i4", "<f8"], "offsets": [8, 0]}),
        "titles": numpy.dtype({"names": ["a", "b"], "formats": ["<i4", "S3"], "titles": ["first", "the second"]}),
        "aligned": numpy.dtype([("flag", "?"), ("value", "<f8"), ("small", "<i2")], align=True),
        "sub-arrays": numpy.dtype([("m", "<f4", (2, 3)), ("t", "<U4", (2,))]),
        "nested": numpy.dtype([("p", [("q", "u1"), ("r", "<i8", (2,))]), ("s", "<M8[ns]")]),
        "no fields": numpy.dtype([]),
    }
    items = {}
    for name, dtype in found.items():
        items[name] = numpy.zeros(2, dtype)
        for field in dtype.names:
            if dtype[field].names is None:
                items[name][field] = counting(dtype[field].base, items[name][field].shape)
    return store_all(path, items)


def shapes(path):
    """Shapes, orders and memory layouts."""
    cube = numpy.arange(24, dtype="<i4").reshape(2, 3, 4)
    items = {
        "0-d": numpy.array(1.5, "<f8"), "0-d foreign": numpy.array(2, ">i4"), "size 0": numpy.zeros((3, 0, 2), "<f4"),
        "size 0 foreign": numpy.zeros((0, 2), ">f4"), "one": numpy.ones((1, 1), "<u2"), "C": cube,
        "F": numpy.asfortranarray(cube), "F foreign": numpy.asfortranarray(cube.astype(">i4")),
        "32-d": numpy.arange(4, dtype="<u1").reshape((2,) + (1,) * 30 + (2,)),
        "strided": cube[:, ::2, 1:], "reversed": cube[::-1], "transposed": cube.transpose(1, 2, 0),
    }
    store_all(path, items)
    return {key: numpy.array(value, order="K" if value.flags.f_contiguous else "C") for key, value in items.items()}


def masked(path):
    """Masked arrays."""
    data = numpy.arange(6, dtype="<f8").reshape(2, 3)
    flat = numpy.array([(1, 2.5), (3, 4.5)], [("a", "<i4"), ("b", "<f8")])
    return store_all(path, {
        "mask": numpy.ma.array(data, mask=data % 2 == 0), "nomask": numpy.ma.array(data),
        "fill value": numpy.ma.array(data, mask=data > 3, fill_value=-7.5),
        "hard": numpy.ma.array(data, mask=data > 3, hard_mask=True),
        "F": numpy.ma.array(numpy.asfortranarray(data), mask=numpy.asfortranarray(data > 3)),
        "foreign": numpy.ma.array(numpy.arange(3, dtype=">i4"), mask=[0, 1, 0], fill_value=-1),
        "text": numpy.ma.array(["a", "bc"], "<U2", mask=[0, 1], fill_value="?"),
        "0-d": numpy.ma.array(1.5, "<f8", mask=True),
        "structured": numpy.ma.array(flat, mask=[(True, False), (False, True)])})


def holes(path):
    """Arrays that were created empty; some are filled, in part."""
    items = {}
    with mmapdict.open(path, "x") as d:
        for key, shape, dtype, order in [("frame", (4, 5), "<u2", "C"), ("F", (4, 5), "<f4", "F"),
                                         ("foreign", (3, 3), ">i4", "C"), ("kilobyte", (20, 30), "<u2", "C")]:
            hole, items[key] = d.create(key, shape, dtype, order=order), numpy.zeros(shape, dtype, order)
            hole[1] = items[key][1] = 7
        d.create("untouched", (2, 2), "<f8")
        items["untouched"] = numpy.zeros((2, 2))
        d.create("sparse", (2, 2), "<f8", sparse=True)
        items["sparse"] = numpy.zeros((2, 2))
        items["masked"] = numpy.ma.array(numpy.zeros((2, 3), "<f4"), mask=numpy.zeros((2, 3), bool))
        for array in (d.create("masked", (2, 3), "<f4", mask=True), items["masked"]):
            array[0] = 2.5
            array[1, 2] = numpy.ma.masked
    return items


def changes(path):
    """Replaced and deleted keys, by two handles one after the other."""
    items = {}
    with mmapdict.open(path, "x") as d:
        for n in range(8):
            d[n] = numpy.arange(n, dtype="<u4")
        del d[0], d[5]
        d["text"] = "first"
    with mmapdict.open(path, "r+") as d:
        d[3] = "three"
        d["text"] = "second"
        d["gone"] = [1]
        del d["gone"]
        d["gone"] = d.pop(7)
    for n in (1, 2, 4, 6):
        items[n] = numpy.arange(n, dtype="<u4")
    return {**items, 3: "three", "text": "second", "gone": numpy.arange(7, dtype="<u4")}


def cleared(path):
    """Emptied, and used again."""
    with mmapdict.open(path, "x") as d:
        for n in range(3):
            d[n] = numpy.arange(n, dtype="<u4")
        d.clear()
        d[1] = "after"
        d["x"] = numpy.arange(2, dtype="<u4")
    return {1: "after", "x": numpy.arange(2, dtype="<u4")}


def big_texts(path):
    """Texts and bytes that are longer than a reader's buffer may be: they end on a multiple of 8."""
    return store_all(path, {"text": "\xe4" * 2100, "bytes": b"\x00\x01\x02" * 1501, "in a list": ["a" * 4097, 1]})


def big_arrays(path):
    """Arrays whose bytes are padded because their size is no multiple of 8, and one aligned to 64."""
    return store_all(path, {
        "odd": (numpy.arange(4099) % 251).astype("u1"), "at 64": numpy.arange(150, dtype="<f8"),
        "odd F": numpy.asfortranarray((numpy.arange(37 * 37) % 13).astype("S3").reshape(37, 37))})


def growable(path):
    """Arrays that grow: as they are made, full and moved, shortened, with room that was given back, of nothing."""
    lines = numpy.moveaxis(counting("<u2", (5, 3, 4)), 0, 1)        # line behind line, as in the file
    structures = numpy.zeros(3, [("x", "<i4"), ("y", ">f8"), ("z", "<U2")])
    structures["x"], structures["y"], structures["z"] = [1, 2, 3], [0.5, 1.5, 2.5], ["a", "bc", ""]
    with mmapdict.open(path, "x") as d:
        d.create_growable("axis 0", (2, 3), "<f4", capacity=4)
        d.append("axis 0", counting("<f4", (3, 2, 3)))
        d.create_growable("axis 1", (3, 4), "<u2", axis=1, capacity=6)
        d.append("axis 1", lines[:, 0])
        d.append("axis 1", lines[:, 1:])
        d.append("structured", structures[:2])
        d.append("structured", structures[2])
        d.append("moved", counting(">i4", (10, 2)))
        with d.extend("moved", 15) as rows:
            rows[...] = -7
        d.create_growable("shortened", (), "<i8", capacity=8)
        d.append("shortened", numpy.arange(8))
        d.resize("shortened", 3)
        d.create_growable("room given back", (), "<i4", capacity=400)
        d.append("room given back", numpy.arange(5, dtype="<i4"))
        d.trim("room given back")
        d.create_growable("given back twice", (), "<f8", capacity=400)
        d.append("given back twice", numpy.arange(60.0))
        d.trim("given back twice")
        d.resize("given back twice", 2)
        d.resize("given back twice", 0)
        d.create_growable("no rows", (2,), "S3", capacity=1)
        d.create_growable("rows of nothing", (0, 2), "<f4")
        d.resize("rows of nothing", 300)
    return {"axis 0": counting("<f4", (3, 2, 3)), "axis 1": lines, "structured": structures,
            "moved": numpy.concatenate([counting(">i4", (10, 2)), numpy.full((15, 2), -7)]).astype(">i4"),
            "shortened": numpy.arange(3), "room given back": numpy.arange(5, dtype="<i4"),
            "given back twice": numpy.zeros(0), "no rows": numpy.zeros((0, 2), "S3"),
            "rows of nothing": numpy.zeros((300, 0, 2), "<f4")}


def tables(path):
    """Growable arrays that share their number of rows: a log whose columns changed, and a store of samples."""
    with mmapdict.open(path, "x") as d:
        log = mmapdict.log(d)
        for epoch in range(3):
            log.add(epoch=epoch, loss=1 / (epoch + 1), flag=numpy.True_, vector=[epoch, -epoch])
        log.add(epoch=3, loss=2.5, note="late")
        d.trim("log")
        store = mmapdict.samples(d, "samples", capacity=4)
        for number in (7, 5):
            store.add(number, {"first": {"weight": counting("<f4", (2, 2)) + number, "bias": numpy.uint8(number)},
                               "loss": 0.25})
    columns = {"epoch": numpy.arange(4), "loss": numpy.array([1, 1 / 2, 1 / 3, 2.5]),
               "flag": numpy.array([1, 1, 1, numpy.nan]),
               "vector": numpy.array([[0, 0], [1, -1], [2, -2], [numpy.nan] * 2]),
               "note": numpy.array(["", "", "", "late"], "<U8")}
    weights = numpy.stack([counting("<f4", (2, 2)) + number for number in (7, 5)])
    samples = {"ids": numpy.array([7, 5]), "values": {
        "first": {"weight": weights, "bias": numpy.array([7, 5], "u1")}, "loss": numpy.array([0.25, 0.25])}}
    return {"log": spread(columns), "samples": spread(samples)}


def spread(tree):
    """Columns of which one element does not follow the other, as in a table."""
    if isinstance(tree, dict):
        return {name: spread(part) for name, part in tree.items()}
    return numpy.stack([tree, tree], 1)[:, 0]


def before(path):
    """What the files of dead writers hold before the operation in which they die."""
    return store_all(path, {"a": 1, "b": [1, 2], "c": numpy.arange(3, dtype="<i4")})


SHARED = [[0], [0]]
SHARED[1] = SHARED[0]


def unpublished(path):
    """A whole record, which uses the memo, stands behind the STOP: the writer died before it began to publish it."""
    items = before(path)
    with mmapdict.open(path, "r+") as d, killed_before("begin", handle=d):
        d["d"] = SHARED
    data = path.read_bytes()
    stop = listing.walk(data)[1]
    cut_behind(path, 10 + int.from_bytes(data[stop + 2:stop + 10], "little") + 1)
    return items


def torn(path):
    """A part of a record stands behind the STOP: the writer died while it wrote it."""
    items = before(path)
    with mmapdict.open(path, "r+") as d, killed_while_writing(37):
        d["d"] = numpy.arange(9, dtype="<i4")
    cut_behind(path, 37)
    return items


def dead_before_publish(path):
    """The counter is odd and the memo mark is raised, but the record was not published."""
    items = before(path)
    with mmapdict.open(path, "r+") as d, killed_before("publish", handle=d):
        d["d"] = SHARED
    cut_behind(path)
    return items


def dead_after_publish(path):
    """A new key was published; the header knows nothing of it."""
    items = before(path)
    with mmapdict.open(path, "r+") as d, killed_before("stop", handle=d):
        d["d"] = SHARED
    cut_behind(path)
    return {**items, "d": SHARED}


def dead_before_kill(path):
    """A replacement was published; the record that it replaces is still live."""
    items = before(path)
    with mmapdict.open(path, "r+") as d, killed_before("kill", handle=d):
        d["a"] = "new"
    cut_behind(path)
    return {**items, "a": "new"}


def dead_after_kill(path):
    """A record was killed; the counter is odd."""
    items = before(path)
    with mmapdict.open(path, "r+") as d, killed_before("dead", handle=d):
        del d["b"]
    cut_behind(path)
    return {key: value for key, value in items.items() if key != "b"}


def dead_before_clear(path):
    """The record that empties the dictionary was published; everything before it is still live."""
    before(path)
    with mmapdict.open(path, "r+") as d, killed_before("kill", handle=d):
        d.clear()
    cut_behind(path)
    return {}


def dead_in_clear(path):
    """The record that empties the dictionary was published; one of three entries before it was killed."""
    before(path)
    with mmapdict.open(path, "r+") as d, killed_before("kill", 2, handle=d):
        d.clear()
    cut_behind(path)
    return {}


def rows_before(path):
    """What the files of writers hold that die while they change an array's length."""
    with mmapdict.open(path, "x") as d:
        d.create_growable("a", (2,), "<i4", capacity=8)
        d.append("a", counting("<i4", (3, 2)))
    return counting("<i4", (3, 2))


def dead_before_count(path):
    """Rows were written, and do not count."""
    rows = rows_before(path)
    with mmapdict.open(path, "r+") as d, killed_before("cell of rows"):
        d.append("a", rows)
    cut_behind(path)
    return {"a": rows}


def dead_after_count(path):
    """Rows count; the counter of changes does not say so."""
    rows = rows_before(path)
    with mmapdict.open(path, "r+") as d, killed_before("commit", handle=d):
        d.append("a", rows)
    cut_behind(path)
    return {"a": numpy.concatenate([rows, rows])}


def dead_in_shortening(path):
    """The mark was stored, and the count was not."""
    rows = rows_before(path)
    with mmapdict.open(path, "r+") as d, killed_before("cell of rows", 2):
        d.resize("a", 1)
    cut_behind(path)
    return {"a": rows}


def replacing(path):
    """Marked as about to be replaced by a writer that died before it did so."""
    items = before(path)
    with unittest.mock.patch.object(birth.os, "replace", side_effect=Killed), \
            killed_before("superseded or normal"):
        mmapdict.open(path, "w")
    return items


def superseded(path):
    """Another file took its place."""
    items = before(path)
    kept = path.with_name(path.name + ".kept")
    os.link(path, kept)
    mmapdict.open(path, "w").close()
    os.replace(kept, path)
    return items


FILES = {function.__name__: function for function in (
    empty, example, keys, equal_keys, values, shared, numpy_values, dtypes, structured, shapes, masked, holes, changes,
    cleared, big_texts, big_arrays, unpublished, torn, dead_before_publish, dead_after_publish, dead_before_kill,
    dead_after_kill, dead_before_clear, dead_in_clear, replacing, superseded, growable, tables, dead_before_count,
    dead_after_count, dead_in_shortening)}


def make(name, path):
    """Make one file.

    Parameters
    ----------
    name : str
        One of `FILES`.
    path : pathlib.Path
        Must not exist.

    Returns
    -------
    list of [list of str, list of str]
        Fingerprints of what it holds, in order.
    """
    with fixed_ids():
        return judge.fingerprint_items(FILES[name](path))


def main(folder=HERE):
    """Make all files, or none if one of them exists."""
    folder = pathlib.Path(folder)
    names = [name + suffix for name in FILES for suffix in (".mmapdict", ".dis.txt")] + ["expected.json"]
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        print("refused: golden files are never overwritten, and %s exist(s)" % ", ".join(taken), file=sys.stderr)
        return 1
    expected = {}
    for name in FILES:
        path = folder / (name + ".mmapdict")
        expected[name] = make(name, path)
        text = "\n".join(listing.dis(path.read_bytes())) + "\n"
        (folder / (name + ".dis.txt")).write_text(text, encoding="ascii")
    (folder / "expected.json").write_text(json.dumps(expected, indent=0), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
