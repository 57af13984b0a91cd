"""Scan: what a plain unpickler would import, found without importing it."""

import collections
import copyreg
import datetime
import decimal
import io
import pathlib
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapdict
import strategies
from children import Child
from mmapdict import format as fmt
from mmapdict.errors import FormatError
from mmapdict.scan import scan

GOLDEN = sorted((pathlib.Path(__file__).parent / "data").glob("*/*.mmapdict"))


class Recorder(pickle._Unpickler):
    """A plain unpickler that notes what it imports."""

    def __init__(self, file):
        super().__init__(file)
        self.found = []

    def find_class(self, module, name):
        result = super().find_class(module, name)
        if self.proto < 3 and self.fix_imports:
            module, name = pickle._compat_pickle.NAME_MAPPING.get(
                (module, name), (pickle._compat_pickle.IMPORT_MAPPING.get(module, module), name))
        self.found.append((module, name))
        return result


def imported(path):
    with open(path, "rb") as file:
        recorder = Recorder(file)
        recorder.load()
    return recorder.found


def names(report):
    return [(found.module, found.name) for found in report.globals]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_files_import_what_an_unpickler_says_and_all_is_allowed(path):
    report = scan(path)
    expected = imported(path)
    assert set(names(report)) == set(expected) and sum(g.times for g in report.globals) == len(expected)
    assert report.is_mmapdict and report.fault is None
    refused = [g.full_name for g in report.globals if not g.allowed]
    assert refused == [] and report.ok, refused
    assert all(found.key is None for found in report.globals if not found.in_entries)


@given(st.dictionaries(strategies.keys(), strategies.values() | strategies.arrays(), max_size=5))
def test_files_import_what_an_unpickler_says(tmp_path_factory, items):
    path = tmp_path_factory.mktemp("scan") / "file"
    with mmapdict.open(path, "w", trusted=True) as d:
        d.update(items)
    report = scan(path)
    expected = imported(path)
    assert report.fault is None and sum(g.times for g in report.globals) == len(expected)
    assert set(names(report)) == set(expected)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [[1, {"a": 2.5}], np.arange(3), collections.OrderedDict(a=datetime.date(2020, 1, 1)),
                                   [decimal.Decimal(1)] * 3, (b"bytes", bytearray(b"x"), {1, 2}, range(3))])
def test_any_pickle_can_be_scanned(tmp_path, protocol, value):
    path = tmp_path / "plain"
    path.write_bytes(pickle.dumps(value, protocol) + b"more")
    report = scan(path)
    assert set(names(report)) == set(imported(path)) and not report.is_mmapdict
    assert report.end == path.stat().st_size - 4
    assert all(g.full_name in ("_codecs.encode", "numpy._core.numeric._frombuffer", "numpy.core.numeric._frombuffer")
               for g in report.globals if not g.allowed)


ATTACKS = {
    b"cos\nsystem\n(S'echo'\ntR.": ["os.system"],
    b"c__builtin__\neval\n(S'1'\ntR.": ["builtins.eval"],
    b"(S'echo'\nios\nsystem\n.": ["os.system"],
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R.": ["os.system"],
    b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x8c\x01x0h\x00h\x01\x93\x8c\x04echo\x85R.": ["posix.system"],
    b"S'os'\nS'sys'\nS'tem'\n\x862\x93.": ["?.?"],
    b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x930\x8c\x08operator\x8c\x0cmethodcaller\x93.":
        ["builtins.getattr", "operator.methodcaller"],
    b"\x80\x04\x8c\x05numpy\x8c\x06memmap\x93.": ["numpy.memmap"],
    b"\x80\x04\x95\x13\0\0\0\0\0\0\0\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R.": ["os.system"],
    b"\x80\x02\x82\x07.": ["copyreg.extension 7"],
    b"\x80\x04cos\nsystem\n0\x8c\x09functools\x8c\x07partial\x93.": ["os.system", "functools.partial"],
}


@pytest.mark.parametrize("stream, expected", ATTACKS.items())
def test_what_is_hidden_in_a_pickle_is_found_and_not_allowed(tmp_path, stream, expected):
    path = tmp_path / "bad"
    path.write_bytes(stream)
    report = scan(path)
    assert [found.full_name for found in report.globals] == expected
    assert not report.ok and not any(found.allowed for found in report.globals)
    text = str(report)
    assert "NOT ALLOWED" in text and text.count("\n") == len(expected) and "Traceback" not in text
    assert repr(report).endswith("not ok>")


@pytest.mark.parametrize("behind", [b"\xff", b"", b"h\x77.", b"\x95" + b"\xff" * 8, b"X\xff\xff\xff\xff."])
def test_what_is_imported_before_a_pickle_breaks_is_found(tmp_path, behind):
    path = tmp_path / "bad"
    path.write_bytes(b"cos\nsystem\n(S'echo'\ntR" + behind)
    report = scan(path)
    assert [found.full_name for found in report.globals] == ["os.system"] and not report.ok
    assert report.fault and report.fault_offset == len(b"cos\nsystem\n(S'echo'\ntR")
    assert "not followed beyond offset" in str(report)


def test_a_damaged_pickle_without_globals_is_not_ok(tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(pickle.dumps(list(range(1000)), 3)[:-1])
    report = scan(path)
    assert report.globals == [] and not report.ok and "STOP" in report.fault


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY\x01\x00", b"PK\x03\x04abc", bytes(100), b"\x80\x99."])
def test_what_is_no_pickle_is_an_error(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="no pickle") as caught:
        scan(path)
    assert caught.value.path == str(path)


def test_no_file_and_a_folder_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "none")
    with pytest.raises((FormatError, OSError)):
        scan(tmp_path)


@pytest.mark.leaves_damaged_file            # `print` is no value that everybody may read
def test_the_key_of_an_entry_is_told_and_dead_records_are_passed_over(path):
    with mmapdict.open(path, "w", trusted=True) as d:
        d["a"] = 1
        d["date"] = [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]
        d["print"] = print
        d["gone"] = exec
        del d["gone"]
        d[7] = datetime.date(2021, 1, 1)
        d["array"] = np.arange(4)
        with d.batch():
            del d["a"]
        d.clear()
        d["array"] = np.arange(4)
        d["print"] = print
    report = scan(path)
    table = {(g.full_name, g.key): (g.times, g.in_entries, g.allowed) for g in report.globals}
    assert table == {("numpy.ndarray", None): (1, False, True), ("numpy.dtype", None): (1, False, True),
                     ("builtins.dict.pop", None): (1, False, True), ("builtins.dict.clear", None): (1, False, True),
                     ("builtins.print", "print"): (1, True, False)}
    assert not report.ok and "of key 'print'" in str(report) and "1 of 5 names not allowed" in str(report)
    assert all(path.read_bytes()[g.offset] == fmt.STACK_GLOBAL for g in report.globals)


@pytest.mark.leaves_damaged_file
def test_names_of_ours_in_hidden_records_that_are_not_ours_are_not_allowed(path):
    with mmapdict.open(path, "w") as d:
        d["a"] = np.arange(3)
    data = path.read_bytes()
    stop = int.from_bytes(data[fmt.STOP_OFFSET:fmt.STOP_OFFSET + 8], "little")
    tag = fmt.file_tag(data[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET])
    for content in (fmt.CLEAR + b"N", fmt.DROP + b"K\x01N\x87R0", fmt.DROP + b"]N\x87R"):
        pieces, _, _ = fmt.encode_record(stop, tag, [content], entry=False)
        path.write_bytes(data[:stop] + b"(" + b"".join(pieces) + b".")
        report = scan(path)
        assert not report.ok and report.globals[-1].module == "builtins" and not report.globals[-1].allowed


@pytest.mark.leaves_damaged_file
def test_a_damaged_file_of_ours_is_scanned_as_a_pickle(path):
    with mmapdict.open(path, "w", trusted=True) as d:
        d["a"] = np.arange(3)
        d["b"] = print
    data = bytearray(path.read_bytes())
    data[fmt.HEADER_SIZE + 14] ^= 1         # a check value: an unpickler does not look at it
    path.write_bytes(data)
    report = scan(path)
    assert {g.full_name for g in report.globals} >= {"builtins.print", "numpy.ndarray"} and not report.ok
    path.write_bytes(data[:-20])
    assert scan(path).fault is not None


def test_a_file_that_is_written_to_can_be_scanned(path):
    mmapdict.open(path, "w").close()
    code = ("import datetime\ntell('go')\nn = 0\nwhile True:\n    with mmapdict.open(path) as d:\n"
            "        for i in range(50):\n            n += 1\n            d[n % 7] = [datetime.date.today()] * 3\n"
            "            d['array', n % 3] = np.arange(n % 5000)\n            d.pop(n % 5, None)\n"
            "        if n % 500 == 0: d.vacuum()\n")
    with Child(path, code) as writer:
        assert writer.hear() == "go"
        for _ in range(100):
            report = scan(path)
            assert report.ok, str(report)
        writer.kill()


def test_nothing_is_imported_or_run(tmp_path):
    path = tmp_path / "bad"
    marker = tmp_path / "marker"
    path.write_bytes(b"cmodule_that_is_nowhere\nf\n(tR0cos\nsystem\n(S'touch %s'\ntR." % str(marker).encode())
    before = set(sys.modules)
    report = scan(path)
    assert [g.full_name for g in report.globals] == ["module_that_is_nowhere.f", "os.system"]
    assert not marker.exists() and "module_that_is_nowhere" not in set(sys.modules) - before


def test_many_names_are_counted_not_listed(tmp_path):
    path = tmp_path / "many"
    path.write_bytes(b"\x80\x04(" + b"cdecimal\nDecimal\n" * 50_000 + b"l.")
    (found,) = scan(path).globals
    assert (found.times, found.offset, found.allowed) == (50_000, 3, True)


def test_names_that_would_change_a_terminal_are_escaped(tmp_path):
    path = tmp_path / "names"
    path.write_bytes("c\x1b[31m\nsyst\u202eem\n.".encode())
    assert "\x1b" not in str(scan(path)) and "\u202e" not in str(scan(path))


def test_a_report_is_neither_true_nor_false(tmp_path):
    path = tmp_path / "plain"
    path.write_bytes(b"N.")
    report = scan(path)
    assert report.ok and "nothing is imported" in str(report)
    with pytest.raises(TypeError, match="report.ok"):
        bool(report)


def test_extension_codes_are_not_allowed_even_if_registered(tmp_path):
    path = tmp_path / "extension"
    copyreg.add_extension("decimal", "Decimal", 241)
    try:
        buffer = io.BytesIO()
        pickle.Pickler(buffer, 2).dump(decimal.Decimal)
    finally:
        copyreg.remove_extension("decimal", "Decimal", 241)
    path.write_bytes(buffer.getvalue())
    assert not scan(path).ok and names(scan(path)) == [("copyreg", "extension 241")]
