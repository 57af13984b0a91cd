"""Bad input: the error that says what was found and where, and a file that is not touched.

A damaged file may be refused as a whole, or one of its values; what is handed out is right, or at least what plain
pickle reads from the same bytes. No damage makes the process crash, hang or ask for much memory.
"""

import json
import os
import pathlib
import pickle
import random
import resource
import socket
import stat
import struct
import threading
import zlib

import numpy as np
import pytest

import faults
import mmapdict
from budget import slow_examples
from mmapdict import CorruptError, FormatError, ReadOnlyError, UntrustedError
from operations import ARRAY, ITEMS, SHARED, content, prepare
from test_faults import descriptors, plain, run

pytestmark = pytest.mark.leaves_damaged_file
LEGACY = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "legacy"
LONG_AGO = 10**18               # ns


def state(path):
    """Everything of a file that opening it must not change."""
    status = os.lstat(path)
    data = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
    return data, status.st_mtime_ns, status.st_ino, status.st_mode


def check_refused(path, error, *words, modes=("r", "r+", "a")):
    """Opening raises `error` with the path and `words` in its text; file and folder stay as they are."""
    if path.is_file():
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
    before, names = state(path), os.listdir(path.parent)
    open_files = descriptors(collect=False)
    for mode in modes:
        with pytest.raises(error) as caught:
            mmapdict.open(path, mode)
        text = str(caught.value)
        assert os.fspath(path) in text
        for word in words:
            assert word in text
        assert caught.value.path == os.fspath(path)
        assert isinstance(caught.value, ValueError)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value) and str(again) == text
        del caught, again
    assert state(path) == before
    assert os.listdir(path.parent) == names
    assert descriptors(open_files) <= open_files


# -- files of others ----------------------------------------------------------------------------------------------

ANCESTOR = (b"\x80\x04\x95" + struct.pack("<Q", 13) + b"J\x01\x00\x00\x000J\x00\x00\x00\x000("
            + b"\x95" + struct.pack("<Q", 15) + b"\x8c\x03keyK\x05J\x00\x00\x00\x000\x880"
            + b"\x95" + struct.pack("<Q", 2) + b"d.")

FOREIGN = {
    "text": (b"wavelengths 400 500 600\n", "starts with"),
    "one byte": (b"x", "starts with"),
    "zeros": (bytes(5000), "zero bytes"),
    "empty": (b"", "empty"),
    "ancestor": (ANCESTOR, "mmappickle 1.x"),
    "npy": (b"\x93NUMPY\x01\x00" + bytes(200), ".npy"),
    "npz": (b"PK\x03\x04" + bytes(300), ".npz"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(300), "HDF5"),
    "sqlite": (b"SQLite format 3\x00" + bytes(300), "SQLite"),
    "noise": (random.Random(1).randbytes(1000), "not an mmapdict file"),
    **{"pickle of protocol %d" % p: (pickle.dumps({"a": 1, "b": [1.5, "text"] * 50}, p), "plain pickle")
       for p in range(6)},
    "short pickle": (pickle.dumps({}, 4), "plain pickle"),
    "pickle of a long bytes object": (pickle.dumps(bytes(245), 4), "plain pickle"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_not_ours(name, tmp_path):
    data, word = FOREIGN[name]
    path = tmp_path / "file"
    faults.overwrite(path, data)
    check_refused(path, FormatError, "not an mmapdict file", word)
    with pytest.raises(FileExistsError):
        mmapdict.open(path, "x")
    assert path.read_bytes() == data


def test_the_ancestor_file_is_one():
    assert pickle.loads(ANCESTOR) == {"key": 5}


@pytest.mark.parametrize("source", sorted(LEGACY.glob("*.mmdpickle")) + sorted(LEGACY.glob("*.p*kl")),
                         ids=lambda path: path.name)
def test_files_that_the_ancestor_left(source, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(source.read_bytes())
    words = ["not an mmapdict file"]
    if source.suffix == ".mmdpickle" and source.stat().st_size >= 12:
        words.append("mmappickle 1.x")
    check_refused(path, FormatError, *words)


def test_a_directory(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    check_refused(folder, FormatError, "directory", modes=("r", "r+", "a", "w"))
    with pytest.raises(FileExistsError):
        mmapdict.open(folder, "x")


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.relpath(path))


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError:
        pytest.skip("making a device is not permitted here")


@pytest.mark.parametrize("make", [make_pipe, make_socket, make_device])
def test_what_is_no_regular_file(make, tmp_path, monkeypatch):
    """No mode replaces it, not even "w"; and opening it waits for nobody."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "node")
    check_refused(tmp_path / "node", FormatError, "no regular file", modes=("r", "r+", "a", "w"))
    (tmp_path / "link").symlink_to("node")
    check_refused(tmp_path / "node", FormatError, modes=("w",))
    with pytest.raises(FormatError):
        mmapdict.open(tmp_path / "link", "w")
    assert not stat.S_ISREG(os.stat(tmp_path / "link").st_mode)


# -- our files, damaged as a whole --------------------------------------------------------------------------------

SMALL = {**ITEMS, 3: np.arange(3, dtype=">u2"), "text": "t" * 300}


@pytest.fixture
def small(tmp_path):
    """A small file with values of all kinds, some of them dead."""
    path = tmp_path / "file"
    prepare(path, {"dead": 1, **SMALL})
    with mmapdict.open(path) as d:
        del d["dead"]
        d["b"] = ARRAY
    return path


def with_bytes(path, data):
    faults.overwrite(path, data)
    return path


@pytest.mark.parametrize("version", [2, 3, 2**32, 2**64 - 1])
def test_a_newer_format_version(version, small):
    data = faults.with_cell(small.read_bytes(), 16, version)
    check_refused(with_bytes(small, data), FormatError, "version %d" % version, "upgrade")
    assert len(plain(small)) == len(SMALL)


def test_format_version_0(small):
    check_refused(with_bytes(small, faults.with_cell(small.read_bytes(), 16, 0)), CorruptError, "version 0")


def test_a_file_that_was_cut_anywhere(small):
    data = small.read_bytes()
    cut = small.parent / "cut"
    for n in range(len(data)):
        with_bytes(cut, data[:n])
        error = FormatError if n < 3 else CorruptError
        if n % 97 == 3:
            check_refused(cut, error)
        else:
            with pytest.raises(error):
                mmapdict.open(cut, "r")


def test_a_file_that_was_cut_at_a_page(tmp_path):
    """Where the map would end exactly."""
    path = tmp_path / "file"
    prepare(path, {"a": 1, "b": np.arange(10000)})
    data = path.read_bytes()
    for n in range(4096, len(data), 4096):
        check_refused(with_bytes(path, data[:n]), CorruptError, "cut short")
    prepare(path, {})
    with mmapdict.open(path) as d:
        while len(faults.used(path.read_bytes())) <= 4096:
            d[f"key {len(d):020}"] = 1      # 64 bytes each
        *_, last, stop = faults.records(path.read_bytes())
    assert stop == 4096
    check_refused(with_bytes(path, path.read_bytes()[:4096]), CorruptError, "STOP")


def test_bytes_behind_the_stop_do_not_count(small):
    data = small.read_bytes()
    for junk in (b".", bytes(5000), b"(G" * 100, data[256:]):
        with_bytes(small, data + junk)
        with mmapdict.open(small, "r") as d:
            assert content(d) == content(SMALL)
    with mmapdict.open(small, "r+") as d:
        d["more"] = 1
    assert content(plain(small)) == content({**SMALL, "more": 1})


def test_a_header_whose_opcodes_are_overwritten(small):
    data = small.read_bytes()
    for i in [*range(0, 7), *range(252, 256)]:
        for value in (0, data[i] ^ 1, 255):
            broken = data[:i] + bytes([value]) + data[i + 1:]
            if broken != data:
                check_refused(with_bytes(small, broken), CorruptError, "header", modes=("r", "r+"))


@pytest.mark.parametrize("value", [0, 1, 2, 300, 2**31, 2**32, 2**63, 2**64 - 2, 2**64 - 1])
@pytest.mark.parametrize("offset", range(8, 248, 8))
def test_nonsense_in_a_cell_of_the_header(offset, value, small):
    """It never makes the content wrong; the next writer puts it right."""
    data = faults.with_cell(small.read_bytes(), offset, value)
    with_bytes(small, data)
    if offset == 8:
        check_refused(small, CorruptError, "magic is overwritten")
    elif offset == 16 and value != 1:
        check_refused(small, (FormatError, CorruptError), "version %d" % value)
    elif offset == 24:
        check_refused(small, CorruptError, "belongs to another place or file")
    else:
        check_mended(small, data)


def check_mended(path, data):
    expected = dict(SMALL)
    with mmapdict.open(path, "r") as d:
        assert content(d) == content(expected)
        assert len(d) == len(expected) and list(d) == list(plain(path)) and "dead" not in d
        repr(d), d.info(), d.entries()
        with pytest.raises(KeyError):
            d["dead"]
    with mmapdict.open(path, "r+") as d:                # opening alone does no harm
        assert content(d) == content(expected)
    assert path.read_bytes() == data
    with mmapdict.open(path, "r") as reader, mmapdict.open(path, "r+") as d:
        d["memo"] = expected["memo"] = [SHARED, SHARED]
        check_header(path)
        del d["a"], expected["a"]
        d["b"] = expected["b"] = ARRAY + 1
        d["memo 2"] = expected["memo 2"] = {"x": SHARED, "y": SHARED}
        assert content(d) == content(reader) == content(plain(path)) == content(expected)
        check_header(path)


def check_header(path):
    data = path.read_bytes()
    faults.check_header(data)
    assert faults.cell(data, faults.MEMO) < 1000


def test_nonsense_in_several_cells(small):
    rng = random.Random(2)
    good = small.read_bytes()
    for _ in range(40):
        data = good
        for offset in rng.sample(range(40, 120, 8), 4):
            value = rng.choice([0, 1, rng.randrange(2**64), rng.randrange(1000), 2**64 - 1])
            data = faults.with_cell(data, offset, value)
        check_mended(with_bytes(small, data), data)


def test_a_stop_field_that_points_into_the_data_does_not_cut_the_file(tmp_path):
    path = tmp_path / "file"
    prepare(path, {"dots": b"." * 100, "last": 1})
    data = path.read_bytes()
    broken = faults.with_cell(data, faults.STOP, data.index(b"....") + 4)
    with_bytes(path, broken + bytes(5000))
    with mmapdict.open(path, "r+") as d:
        assert list(d) == ["dots", "last"]
    assert path.read_bytes() == broken


# -- damage inside ------------------------------------------------------------------------------------------------

KINDS = {**SMALL, "big": b"x" * 5000, "after": [b"y" * 5000, SHARED, SHARED, {"k": SHARED, 1.5: np.float32(2)}],
         "inner": {"array": ARRAY, "z": np.full(700, 2.5)}, ("k" * 5000, 1): np.ones(4), "wide": np.ones(600, ">i4"),
         "odd": np.ones(5001, "u1"), "ma": np.ma.array(np.full(5001, 7, "u1"), mask=[1, 0] * 2500 + [1])}
MEMORY = 3 << 30


def damaged(data, places, rng):
    """Yield copies of `data`, each with one byte changed."""
    for i in places:
        for value in {data[i] ^ 255, data[i] ^ 1 << rng.randrange(8), rng.choice(b"(.G\x8e01rBCJKMRbhjqst\x93\0\xff")}:
            if value != data[i]:
                yield i, data[:i] + bytes([value]) + data[i + 1:]


def judge(path, data, right):
    """Return what is wrong with how mmapdict reads a damaged file, or None."""
    faults.overwrite(path, data)
    try:
        d = mmapdict.open(path, "r")
    except (FormatError, CorruptError) as exc:
        return None if os.fspath(path) in str(exc) else "no path in %r" % exc
    with d:
        found = {}
        for key in d:
            try:
                found.update(content({key: d[key]}))
            except (CorruptError, UntrustedError) as exc:
                if os.fspath(path) not in str(exc):
                    return "no path in %r" % exc
        repr(d)
        wrong = {key for key, value in found.items() if right.get(key) != value}
        if wrong or len(d) != len(right):
            same = pickle.loads(data)
            if type(same) is not dict:
                return "plain pickle finds %r; mmapdict reads %r" % (same, wrong)
            if list(d) != list(same):
                return "other keys than plain pickle: %r" % list(d)
            if any(content({0: native(d[key])}) != content({0: native(same[key])}) for key in wrong):
                return "another value than plain pickle: %r" % wrong
    return None


def native(value):
    """A value whose dtype was damaged may say the other byte order, which plain pickle turns into the native one."""
    plain_array = isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)
    return value.astype(value.dtype.newbyteorder("=")) if plain_array else value


def judge_all(path, seed, places):
    """In a process of its own: damage a file at all places, and print what is wrong with how it is read."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    path = pathlib.Path(path)
    data = path.read_bytes()
    right = content(pickle.loads(data))
    wrong = []
    rng = random.Random(seed)
    for i, broken in damaged(data, places(data, rng), rng):
        try:
            with stopwatch(60):
                found = judge(path, broken, right)
        except Exception as exc:
            found = None if exc.args and exc.args == plain_error(broken) else "%s: %s" % (type(exc).__name__, exc)
        if found:
            wrong.append((i, broken[i], found))
    print(json.dumps(wrong))


def plain_error(data):
    """The arguments of what plain pickle raises: a value may name another class, or do something else to one."""
    try:
        pickle.loads(data)
    except MemoryError:
        return None
    except Exception as exc:
        return exc.args
    return None


class stopwatch:
    """Ends the process if what it guards does not end."""

    def __init__(self, seconds):
        self.timer = threading.Timer(seconds, os._exit, [99])
        self.timer.daemon = True

    def __enter__(self):
        self.timer.start()

    def __exit__(self, *error):
        self.timer.cancel()


def varied(data, rng):
    """All places but for the inside of long runs of the same eight bytes, of which there are a few."""
    inside = {rng.randrange(len(data)) for _ in range(50)}
    return sorted(inside | {i for i in range(len(data)) if data[i - 8:i] != data[i:i + 8]})


def everywhere(data, rng):
    return range(len(data))


def run_judge(path, items, seed, places):
    prepare(path, items)
    with mmapdict.open(path) as d:
        d["dead"] = 1
        del d["dead"]
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import test_corrupt
test_corrupt.judge_all(sys.argv[2], int(sys.argv[3]), getattr(test_corrupt, sys.argv[4]))
"""
    done = run(code, os.path.dirname(__file__), path, str(seed), places)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("seed", range(2))
def test_each_byte_of_a_small_file_changed(seed, tmp_path):
    run_judge(tmp_path / "file", SMALL, seed, "everywhere")


def test_bytes_of_a_file_with_values_of_all_kinds_changed(tmp_path):
    run_judge(tmp_path / "file", KINDS, 3, "varied")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(slow_examples(30)))
def test_more_bytes_of_a_file_with_values_of_all_kinds_changed(seed, tmp_path):
    run_judge(tmp_path / "file", KINDS, 100 + seed, "varied")


# -- sizes that cannot be -----------------------------------------------------------------------------------------


def u64(n):
    return struct.pack("<Q", n)


def u32(n):
    return struct.pack("<I", n)


def text(s):
    return b"\x8c" + bytes([len(s)]) + s.encode()


def forge(data, content, payload=b"", tail=b"", check_head=None, length=None):
    """Append an entry whose check value is right.

    Parameters
    ----------
    data : bytes
        A file without spare room.
    content, payload, tail : bytes
        Key and value up to the first payload, which the check value covers, and what follows.
    check_head : bytes, optional
        Instead of the opcode and size of the check value.
    length : int, optional
        Instead of the record's.
    """
    stop = len(faults.used(data)) - 1
    span = min(len(content), 4096)
    size = 14
    n = 2 + len(check_head or b"C.") + size + 1 + len(content) + len(payload) + len(tail) + 1
    length = n if length is None else length
    tag = stop ^ int.from_bytes(data[24:32], "little")
    crc = zlib.crc32(content[:span], zlib.crc32(struct.pack("<QQH", length, tag, span)))
    check = (check_head or b"C" + bytes([size])) + struct.pack("<QIH", tag, crc, span) + b"0"
    return data[:stop] + b"(G" + u64(length) + b"h\0" + check + content + payload + tail + b"s1."


KEY = text("forged")
NDARRAY, DTYPE = b"h\x01h\x03\x81(K\x01", b"h\x02"
SIXTEEN = b"\x10" * 16


def array(shape, dtype=text("|u1"), head=b"C\x10", fortran=b"\x89"):
    return KEY + NDARRAY + shape + DTYPE + dtype + b"\x85R" + fortran + head


def number(n):
    return b"\x8a\x09" + n.to_bytes(9, "little", signed=True)


def dims(*sizes):
    return b"(" + b"".join(map(number, sizes)) + b"t"


def fields(names, formats, more=b""):
    return b"}(" + text("names") + b"](" + names + b"e" + text("formats") + b"](" + formats + b"e" + more + b"u"


ARRAYS = {
    "right": array(dims(16)), "right 2": array(dims(2, 8)),
    "fewer bytes": array(dims(17)), "more bytes": array(dims(15)), "negative": array(dims(-1)),
    "negatives": array(dims(-4, -4)), "2**62": array(dims(2**62)), "overflow to 16": array(dims(2**60 + 1, 16)),
    "overflow to 0": array(dims(2**32, 2**32), head=b"C\x00"), "huge and nothing": array(dims(2**40, 2**40, 0)),
    "65 dimensions": array(dims(*[1] * 64, 16)), "2000 dimensions": array(b"(" + b"K\x01" * 2000 + b"K\x10t"),
    "a float": array(b"(G" + struct.pack(">d", 16) + b"t"), "a bool": array(b"(\x88K\x10t"),
    "no tuple": array(b"K\x10"), "a list": array(b"](K\x10e"),
    "BINBYTES8 of 2**64-1": array(dims(2**64 - 1), head=b"\x8e" + u64(2**64 - 1)),
    "BINBYTES8 of 2**63": array(dims(2**63), head=b"\x8e" + u64(2**63)),
    "BINBYTES8 of 2**62": array(dims(2**62), head=b"\x8e" + u64(2**62)),
    "BINBYTES of 2**32-1": array(dims(2**32 - 1), head=b"B" + u32(2**32 - 1)),
    "one too many": array(dims(22), head=b"C\x16"),
    "no payload": array(dims(16), head=b"X" + u32(16)), "flag": array(dims(16), fortran=b"N"),
    **{"dtype %s" % spec: array(dims(n), text(spec)) for spec, n in {
        "|O": 2, "O": 2, "i4,O": 1, "V2147483647": 16, "S99999999999": 1, "U1000000000": 1, "(1000000000,)i4": 1,
        "(2,2)i4": 1, "": 16, "bogus": 16, "M8[bogus]": 2, "M8[25s/7]": 2, "f8" + " " * 50: 2, "{}": 16, "T": 1,
        "i1," * 80: 1, "\udc80".encode("utf-8", "surrogateescape").decode("latin-1"): 1, "|V0": 0}.items()},
    "dtype None": array(dims(2), b"N"), "dtype 5": array(dims(2), b"K\x05"), "dtype ()": array(dims(2), b")"),
    "dtype bytes": array(dims(2), b"C\x02f8"), "dtype {}": array(dims(2), b"}(u"), "dtype []": array(dims(2), b"](e"),
    "dtype deep": array(dims(2), b"(" * 90 + text("f8") + b"t" * 90),
    "dtype deep fields": array(dims(16), b"](" + (text("a") + b"](") * 40 + text("a") + text("u1") + b"t" + b"et" * 40
                               + b"e"),
    "dtype dict of objects": array(dims(2), fields(text("a"), text("O"))),
    "dtype far away": array(dims(1), fields(text("a"), text("u1"), text("offsets") + b"](" + number(2**62) + b"e")),
    "dtype itemsize": array(dims(1), fields(b"", b"", text("itemsize") + number(-1))),
    "dtype itemsize 2**62": array(dims(0), fields(b"", b"", text("itemsize") + number(2**62)), head=b"C\x00"),
}
KEYS = {
    "BINUNICODE8": b"\x8d" + u64(2**64 - 1) + b"abc", "BINUNICODE8 of 2**63": b"\x8d" + u64(2**63),
    "BINUNICODE": b"X" + u32(2**32 - 1), "BINBYTES8": b"\x8e" + u64(2**62), "LONG4": b"\x8b" + u32(2**32 - 1),
    "LONG1": b"\x8a\xff", "a list": b"](e", "a dict": b"}(u",
    "nested": b"(" * 100000, "nested and closed": b"(" * 5000 + b"t" * 5000, "not UTF-8": b"\x8c\x02\xff\xff",
    "no key": b"", "opcode": b"R", "cut float": b"G\0", "tuple without end": b"(K\x01", "list in tuple": b"(](et",
    "bytearray": b"\x96" + u64(3) + b"abc", "fetched": b"h\x00",
}
VALUES = {
    "LONG_BINPUT": b"]r" + u32(2**32 - 1), "two LONG_BINPUT": b"]r" + u32(2**31) + b"(]r" + u32(1) + b"e",
    "BINBYTES8": b"\x8e" + u64(2**64 - 1), "BINBYTES8 of 2**40": b"\x8e" + u64(2**40),
    "BINBYTES": b"B" + u32(2**32 - 1), "BINUNICODE8": b"\x8d" + u64(2**63), "BYTEARRAY8": b"\x96" + u64(2**40),
    "BYTEARRAY8 of 2**64": b"\x96" + u64(2**64 - 1), "FRAME": b"\x95" + u64(2**63) + b"N",
    "LONG4": b"\x8b" + u32(2**32 - 1), "LONG4 of 2**31-1": b"\x8b" + u32(2**31 - 1),
    "fetched": b"h\x50", "stop": b"N.N", "two": b"NN", "none": b"", "POP": b"00", "mark": b"(", "old": b"I5\n",
    "persistent": b"\x8c\x01aQ", "protocol": b"\x80\xffN", "next buffer": b"\x97", "opcode": b"\xff",
}


def forged(kind, name, good):
    if kind == "array":
        return forge(good, ARRAYS[name], SIXTEEN, b"tb")
    if kind == "key":
        return forge(good, KEYS[name], b"", b"N")
    if kind == "value":
        return forge(good, KEY + VALUES[name])
    if kind == "check":
        return forge(good, KEY + b"N", check_head=b"B" + u32(int(name)))
    return forge(good, KEY + b"N", length=int(name))


FORGED = [*(("array", name) for name in ARRAYS), *(("key", name) for name in KEYS),
          *(("value", name) for name in VALUES),
          *(("check", n) for n in ("0", "13", "15", "4294967295")),
          *(("length", str(n)) for n in (0, 1, 17, 18, 1000, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 11, 2**64 - 1))]


def judge_forged(path):
    """In a process of its own: read forged entries; print what is wrong with how it is done."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    path = pathlib.Path(path)
    good = path.read_bytes()
    right = content(pickle.loads(good))
    wrong = []
    for kind, name in FORGED:
        try:
            with stopwatch(60):
                faults.overwrite(path, forged(kind, name, good))
                found = judge_one_forged(path, right)
        except BaseException as exc:
            same = exc.args and exc.args == plain_error(path.read_bytes())
            found = "refused" if same else "%s: %s" % (type(exc).__name__, exc)
        if found != ("read" if name.startswith("right") else "refused") and (found, name) not in ODD:
            wrong.append((kind, name, found))
    print(json.dumps(wrong))


# What looks odd, and may be read, as plain pickle reads it.
ODD = [("read", "dtype None"), ("read", "dtype bytes"), ("read", "old")]


def judge_one_forged(path, right):
    try:
        with mmapdict.open(path, "r") as d:
            keys = list(d)
            found = content({key: d[key] for key in right})
            if found != right:
                return "other values are read wrong"
            try:
                [d[key] for key in keys]
            except CorruptError as exc:
                return "refused" if os.fspath(path) in str(exc) else "no path in %r" % exc
            found = content(d)
            try:
                return "read" if found == content(plain(path)) else "plain pickle reads something else"
            except MemoryError:
                return "refused"                # by plain pickle
    except CorruptError as exc:
        return "refused" if os.fspath(path) in str(exc) else "no path in %r" % exc


def test_forged_entries_are_refused(small):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import test_corrupt
test_corrupt.judge_forged(sys.argv[2])
"""
    done = run(code, os.path.dirname(__file__), small)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("commit", [100, 101])
def test_one_damaged_value_stops_nobody(commit, small):
    """All others can be read and written, also by a writer that must mend the file; it can be replaced and deleted."""
    data = forge(small.read_bytes(), ARRAYS["fewer bytes"], SIXTEEN, b"tb")
    data = faults.with_cell(data, faults.COMMIT, commit)
    for get_rid in (lambda d: d.__delitem__("forged"), lambda d: d.__setitem__("forged", 1), lambda d: d.clear()):
        faults.overwrite(small, data)
        with mmapdict.open(small, "r+") as d:
            assert "forged" in d and "damaged" in repr(d)
            for use in (lambda: d["forged"], lambda: d.pop("forged"), d.popitem, d.copy, lambda: d.entry("forged")):
                with pytest.raises(CorruptError) as caught:
                    use()
                assert os.fspath(small) in str(caught.value)
            d["b"] = ARRAY + 1
            assert content({key: d[key] for key in SMALL}) == content({**SMALL, "b": ARRAY + 1})
            get_rid(d)
            d["more"] = [SHARED, SHARED]
            assert content(d) == content(plain(small))
            faults.check_header(small.read_bytes())


# -- what is refused to be stored ---------------------------------------------------------------------------------


class Explodes:
    """Cannot be pickled."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


class Interrupted(BaseException):
    pass


class Meddles:
    """Uses the mapping while it is pickled for it."""

    def __init__(self, d):
        self.d = d

    def __reduce__(self):
        self.d["meddled"] = len(self.d)
        return str, ("meddler",)


def deep(n):
    value = []
    for _ in range(n):
        value = [value]
    return value


BAD_VALUES = {
    "function": (lambda: (lambda: 0), (pickle.PicklingError, AttributeError)),
    "generator": (lambda: (i for i in ()), TypeError),
    "lock": (threading.Lock, TypeError),
    "behind an array": (lambda: [np.zeros(3000), bytes(5000), threading.Lock()], TypeError),
    "in an object array": (lambda: np.array([threading.Lock()], object), TypeError),
    "in a masked object array": (lambda: np.ma.array([threading.Lock()], object, mask=[1]), TypeError),
    "own error": (lambda: Explodes(ZeroDivisionError("x")), ZeroDivisionError),
    "interrupt": (lambda: {"a": SHARED, "b": Explodes(Interrupted())}, Interrupted),
    "memory": (lambda: Explodes(MemoryError()), MemoryError),
    "too deep": (lambda: deep(100000), RecursionError),
}


class Unhashable(str):
    __hash__ = None


BAD_KEYS = [[1], {"a": 1}, {1}, frozenset([1]), bytearray(b"a"), np.zeros(2), float("nan"), (1, float("nan")), 1j,
            object(), (1, [2]), ("a", ("b", {})), ..., range(3), np.datetime64("2020"), Unhashable("a"),
            Explodes(None), int, b"a".join]


def untouched(path):
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    return state(path)


def test_values_that_cannot_be_pickled_change_nothing(small):
    with mmapdict.open(small, "r+") as d:
        before = untouched(small)
        for name, (make, error) in BAD_VALUES.items():
            for change in (lambda v: d.__setitem__("new", v), lambda v: d.__setitem__("b", v),
                           lambda v: d.setdefault("new", v), lambda v: d.update({"new": v}), lambda v: d.update(b=v)):
                with pytest.raises(error):
                    change(make())
                assert state(small) == before, name
        assert content(d) == content(SMALL)
        d["new"] = 1
        assert content(d) == content(plain(small)) == content({**SMALL, "new": 1})
    faults.check_header(small.read_bytes())


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: type(key).__name__)
def test_keys_that_are_refused_change_nothing(key, small):
    with mmapdict.open(small, "r+") as d:
        before = untouched(small)
        changes = [lambda: d.__setitem__(key, 1), lambda: d.setdefault(key, 1), lambda: d.create(key, 3),
                   lambda: d.update([(key, 1)])]
        for change in changes:
            with pytest.raises(TypeError):
                change()
            assert state(small) == before
        try:
            hash(key)
        except TypeError:
            for look in (lambda: d[key], lambda: d.get(key), lambda: key in d, lambda: d.pop(key),
                         lambda: d.pop(key, 1), lambda: d.__delitem__(key), lambda: d.entry(key)):
                with pytest.raises(TypeError):
                    look()
        else:
            assert key not in d and d.get(key, 5) == 5 and d.pop(key, 6) == 6
            for look in (lambda: d[key], lambda: d.pop(key), lambda: d.__delitem__(key), lambda: d.entry(key)):
                with pytest.raises(KeyError):
                    look()
        assert state(small) == before
        d["new"] = 1
        assert content(d) == content(plain(small)) == content({**SMALL, "new": 1})


BAD_HOLES = {
    "objects": (("new", 3, object), TypeError), "objects inside": (("new", 3, "i4,O"), TypeError),
    "metadata": (("new", 3, np.dtype("f8", metadata={"a": 1})), TypeError),
    "no dtype": (("new", 3, "bogus"), TypeError), "negative": (("new", (2, -1), "u1"), ValueError),
    "no shape": (("new", "ab", "u1"), (TypeError, ValueError, AttributeError)),
    "a float": (("new", 2.5, "u1"), (TypeError, AttributeError)),
    "65 dimensions": (("new", (1,) * 65, "u1"), ValueError), "exists": (("b", 3, "u1"), ValueError),
    "2**70 bytes": (("new", 2**70, "u1"), (ValueError, OverflowError, OSError)),
    "2**63 bytes": (("new", 2**63, "u1"), (ValueError, OverflowError, OSError)),
    "2**62 bytes": (("new", 2**62, "u1"), (ValueError, OverflowError, OSError)),
    "2**62 and 2**62": (("new", (2**62, 2**62), "u1"), (ValueError, OverflowError, OSError)),
    "nothing, but huge": (("new", (2**62, 2**62, 0), "u1"), (ValueError, OverflowError)),
}


@pytest.mark.parametrize("options", [{}, {"mask": True}, {"sparse": True}, {"order": "F"}], ids=str)
@pytest.mark.parametrize("name", BAD_HOLES)
def test_holes_that_are_refused_change_nothing(name, options, small):
    arguments, error = BAD_HOLES[name]
    with mmapdict.open(small, "r+") as d:
        before = small.read_bytes()
        with pytest.raises(error):
            d.create(*arguments, **options)
        assert faults.used(small.read_bytes()) == faults.used(before)
        assert content(d) == content(plain(small)) == content(SMALL)
        d.create("new", 3)[:] = 1
        assert content(d) == content(plain(small)) == content({**SMALL, "new": np.ones(3)})
        faults.check_header(small.read_bytes())
    assert small.stat().st_size < 10000


def test_an_order_that_does_not_exist(small):
    with mmapdict.open(small, "r+") as d:
        before = untouched(small)
        for order in ("A", "K", None, "c"):
            with pytest.raises(ValueError):
                d.create("new", 3, order=order)
        assert state(small) == before


CHANGES = {
    "set": lambda d: d.__setitem__("a", 1), "set a bad value": lambda d: d.__setitem__("a", Explodes(ValueError())),
    "delete": lambda d: d.__delitem__("a"), "delete a missing key": lambda d: d.__delitem__("missing"),
    "create": lambda d: d.create("new", 3), "pop": lambda d: d.pop("a"),
    "pop with default": lambda d: d.pop("missing", 1), "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(), "update": lambda d: d.update(a=1),
    "setdefault": lambda d: d.setdefault("new", 1), "setdefault of what is there": lambda d: d.setdefault("a", 1),
    "ior": lambda d: d.__ior__({"a": 1}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_write_to_a_read_only_handle(name, small):
    before = untouched(small)
    with mmapdict.open(small, "r") as d:
        with pytest.raises(ReadOnlyError) as caught:
            CHANGES[name](d)
        assert isinstance(caught.value, OSError) and isinstance(caught.value, ValueError)
        assert os.fspath(small) in str(caught.value)
        with pytest.raises(ValueError):
            d["b"][0, 0] = 5
        assert content(d) == content(SMALL)
        d.flush()
        d.sync()
    assert state(small) == before


def test_reading_and_closing_leave_a_file_as_it_is(small):
    for mode in ("r", "r+", "a"):
        before = untouched(small)
        with mmapdict.open(small, mode) as d:
            content(d), len(d), repr(d), d.entries(), d.info(), "x" in d, d == SMALL, d.commit
            d.wait(0)
        assert state(small) == before


def test_a_value_that_uses_the_mapping_while_it_is_pickled(small):
    with mmapdict.open(small, "r+") as d:
        n = len(d)
        d["new"] = [SHARED, SHARED, Meddles(d)]
        assert d["meddled"] == n and d["new"] == [SHARED, SHARED, "meddler"]
        d["new"] = Meddles(d)
        assert content(d) == content(plain(small))
        faults.check_header(small.read_bytes())


# -- paths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "x"])
def test_a_path_in_a_folder_that_is_missing(mode, tmp_path):
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        mmapdict.open(path, mode)
    assert caught.value.filename == os.fspath(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "x"])
def test_a_path_below_a_file(mode, small):
    with pytest.raises(NotADirectoryError) as caught:
        mmapdict.open(small / "file", mode)
    assert caught.value.filename == os.fspath(small / "file")


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_is_missing(mode, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        mmapdict.open(tmp_path / "file", mode)
    assert caught.value.filename == os.fspath(tmp_path / "file")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", ["a", "w"])
def test_a_dangling_link_is_followed_where_a_file_may_be_created(mode, tmp_path):
    """As by the builtin `open`."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    with mmapdict.open(tmp_path / "link", mode) as d:
        d["a"] = 1
    assert plain(folder / "file") == {"a": 1}
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("mode", ["r", "r+", "x", "a", "w"])
def test_a_link_that_leads_nowhere(mode, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("missing/file")
    with pytest.raises(FileExistsError if mode == "x" else FileNotFoundError):
        mmapdict.open(link, mode)
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(OSError):
        mmapdict.open(loop, mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "loop"]


def test_a_link_that_exists_is_not_replaced(small):
    link = small.parent / "link"
    link.symlink_to(small.name)
    with mmapdict.open(link, "w") as d:
        d["a"] = 1
    assert link.is_symlink() and plain(small) == {"a": 1}
    with pytest.raises(FileExistsError):
        mmapdict.open(link, "x")


def test_a_name_as_long_as_the_system_allows(tmp_path):
    path = tmp_path / ("n" * 255)
    for mode in ("x", "w", "a"):
        with mmapdict.open(path, mode) as d:
            d["a"] = 1
    assert plain(path) == {"a": 1}
    for mode in ("x", "w", "a", "r"):
        with pytest.raises(OSError):
            mmapdict.open(tmp_path / ("n" * 256), mode)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may do everything")
def test_no_permission(small):
    small.chmod(0o400)
    before = untouched(small)
    with mmapdict.open(small, "r") as d:
        assert content(d) == content(SMALL)
    for mode in ("r+", "a", "w"):
        with pytest.raises(PermissionError) as caught:
            mmapdict.open(small, mode)
        assert caught.value.filename == os.fspath(small)
    small.parent.chmod(0o500)
    try:
        for mode in ("a", "w", "x"):
            with pytest.raises(PermissionError) as caught:
                mmapdict.open(small.parent / "new", mode)
            assert caught.value.filename == os.fspath(small.parent / "new")
    finally:
        small.parent.chmod(0o700)
    assert state(small) == before


@pytest.mark.parametrize("path", [None, 5, 1.5, ["a"], "a\0b", b"a\0b"], ids=repr)
def test_what_is_no_path(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for mode in ("r", "a", "w", "x"):
        with pytest.raises((TypeError, ValueError)):
            mmapdict.open(path, mode)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", ["", "rb", "W", "r+w", "c", None, 5])
def test_what_is_no_mode(mode, tmp_path):
    with pytest.raises((ValueError, TypeError)):
        mmapdict.open(tmp_path / "file", mode)
    assert os.listdir(tmp_path) == []


# -- starting anew over what is there, and files that change hands ------------------------------------------------


@pytest.mark.parametrize("name", FOREIGN)
def test_mode_w_starts_anew_over_a_file_of_others(name, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(FOREIGN[name][0])
    path.chmod(0o640)
    with mmapdict.open(path, "w") as d:
        d["a"] = 1
    assert plain(path) == {"a": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("damage", [
    lambda data: data[:100], lambda data: data[:400], lambda data: faults.with_cell(data, 16, 99),
    lambda data: data[:300] + b"\xff" * 50 + data[350:], lambda data: faults.with_cell(data, 40, 7),
    lambda data: faults.with_cell(data, 88, 2)])
def test_mode_w_starts_anew_over_a_damaged_file(damage, small):
    faults.overwrite(small, damage(small.read_bytes()))
    with mmapdict.open(small, "w") as d:
        assert dict(d) == {}
        d["a"] = 1
    assert plain(small) == {"a": 1}
    faults.check_header(small.read_bytes())
    assert os.listdir(small.parent) == ["file"]


def test_a_file_of_others_that_takes_the_place_of_an_open_one(small):
    """What was open stays readable; it is written to neither; when one of ours is there again, that one is used."""
    other = small.parent / "other"
    other.write_bytes(b"a file of others")
    with mmapdict.open(small, "r+") as d, mmapdict.open(small, "r") as reader:
        held = d["b"]
        os.link(small, small.parent / "kept")
        kept = small.read_bytes()
        os.replace(other, small)
        before = untouched(small)
        for change in (lambda: d.__setitem__("new", 1), lambda: d.pop("a"), d.clear, lambda: d.create("hole", 3)):
            with pytest.raises(FormatError):
                change()
        assert state(small) == before
        assert (small.parent / "kept").read_bytes() == kept
        assert content(d) == content(reader) == content(SMALL)
        assert (held == ARRAY).all()
        small.unlink()
        with pytest.raises(OSError):
            d["new"] = 1
        assert content(d) == content(SMALL)
        prepare(small, {"another": 1})
        d["new"] = 1
        assert content(d) == content(plain(small)) == content({"another": 1, "new": 1})
        assert (held == ARRAY).all()


def test_a_damaged_file_that_takes_the_place_of_an_open_one(small):
    with mmapdict.open(small, "r+") as d:
        other = small.parent / "other"
        other.write_bytes(small.read_bytes()[:300])
        os.replace(other, small)
        before = untouched(small)
        for _ in range(3):
            with pytest.raises(CorruptError):
                d["new"] = 1
        assert state(small) == before
        assert content(d) == content(SMALL)
