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
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest

import faults
import mmapdict
from budget import slow_examples
from mmapdict import CorruptError, FormatError, ReadOnlyError
from test_crash import ARRAY, ITEMS, MASKED, SHARED, content, prepare
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
    before, names, open_files = state(path), os.listdir(path.parent), descriptors()
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
    assert descriptors() == open_files


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
        if n % 16 in (0, 3):
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
            d[len(d)] = 1
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
        check_refused(small, FormatError, "not an mmapdict file")
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
            data = faults.with_cell(data, offset, rng.choice([0, 1, rng.randrange(2**64), rng.randrange(1000), 2**64 - 1]))
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
            except CorruptError as exc:
                if os.fspath(path) not in str(exc):
                    return "no path in %r" % exc
        with suppress(CorruptError):
            repr(d)
        wrong = {key for key, value in found.items() if right.get(key) != value}
        if wrong or len(d) != len(right):
            same = content(pickle.loads(data))
            if list(d) != list(same):
                return "other keys than plain pickle: %r" % list(d)
            if any(found[key] != same[key] for key in found):
                return "another value than plain pickle: %r" % wrong
    return None


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
            found = "%s: %s" % (type(exc).__name__, exc)
        if found:
            wrong.append((i, broken[i], found))
    print(json.dumps(wrong))


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
@pytest.mark.parametrize("seed", range(slow_examples(10)))
def test_each_byte_of_a_file_with_values_of_all_kinds_changed(seed, tmp_path):
    run_judge(tmp_path / "file", KINDS, 100 + seed, "everywhere")
