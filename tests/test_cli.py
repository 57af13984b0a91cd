"""The command line: what the commands print, and how they fail."""

import ast
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import mmapdict
from mmapdict.cli import main


@pytest.fixture
def path(tmp_path):
    """A file with an array, a hole and some values."""
    path = tmp_path / "some.mmapdict"
    with mmapdict.open(path, "w") as d:
        d["a"] = np.arange(6, dtype="<u2").reshape(2, 3)
        d.create(("scan", 0), (4, 5, 6), "f4")
        d["scan", 0, "meta"] = {"exposure": 0.1}
        d["gone"] = 1
        del d["gone"]
        d["\x1b[31m\u202e"] = "a key that would change the terminal"
        d[b"bytes"] = np.float64(2.5)
        d["scalar"] = np.array(7, "i8")
    return path


def run(*argv):
    """Run the command line and return its exit code and output."""
    out = io.StringIO()
    return main([os.fspath(arg) for arg in argv], io.StringIO(), out), out.getvalue()


def test_ls_lists_each_key_in_file_order(path):
    code, text = run("ls", path)
    assert code == 0
    head, *lines, total = text.splitlines()
    assert head.split() == ["key", "kind", "shape", "bytes", "offset", "dtype"]
    with mmapdict.open(path, "r") as d:
        assert len(lines) == len(d)
        for line, key in zip(lines, d):
            assert line.startswith(repr(key))
        entry = d.entry(("scan", 0))
        nbytes = sum(entry.nbytes for entry in d.entries())
    assert lines[1].split()[2:] == ["array", "4", "x", "5", "x", "6", "480", str(entry.offset), "float32"]
    assert total == f"total: 6 keys, {nbytes:,} bytes"


def test_ls_shortens_long_cells(tmp_path):
    path = tmp_path / "long.mmapdict"
    with mmapdict.open(path, "w") as d:
        d["a" * 300 + "end"] = 1
        d["deep"] = np.zeros((1,) * 32, "u1")
        d["wide"] = np.zeros(3, [(f"field_{i}", "<f8") for i in range(30)])
        d["key"] = np.zeros(3, "u1")
    code, text = run("ls", path)
    head, *lines, total = text.splitlines()
    assert code == 0 and len(lines) == 4 and total.startswith("total: 4 keys, ")
    assert max(map(len, lines)) < 160
    assert lines[0].startswith("'aaa") and "aaa...aaa" in lines[0] and "aend' " in lines[0]
    assert [len(line.split("  ")[0]) for line in lines] == [40, 6, 6, 5]
    assert lines[1].count("...") == 1 and lines[2].endswith("<f8')]") and lines[2].count("...") == 1
    assert lines[3].endswith("  uint8") and len(lines[3]) < 130
    keys = [ast.literal_eval(item["key"]) for item in json.loads(run("ls", "--json", path)[1])]
    assert keys[0] == "a" * 300 + "end"


def test_ls_prints_no_control_characters(path):
    _, text = run("ls", path)
    assert all(character.isprintable() for line in text.splitlines() for character in line)


def test_ls_json_holds_what_entries_say(path):
    code, text = run("ls", "--json", path)
    assert code == 0
    listed = json.loads(text)
    with mmapdict.open(path, "r") as d:
        entries = list(d.entries())
        assert [ast.literal_eval(item["key"]) for item in listed] == list(d)
    for item, entry in zip(listed, entries):
        assert item["kind"] == entry.kind
        assert item["shape"] == (None if entry.shape is None else list(entry.shape))
        assert item["dtype"] == (None if entry.dtype is None else str(entry.dtype))
        assert (item["nbytes"], item["offset"]) == (entry.nbytes, entry.offset)


def test_ls_of_an_empty_file_prints_head_and_total(tmp_path):
    mmapdict.open(tmp_path / "empty", "w").close()
    code, text = run("ls", tmp_path / "empty")
    assert (code, text.splitlines()[1:]) == (0, ["total: 0 keys, 0 bytes"])
    assert run("ls", "--json", tmp_path / "empty") == (0, "[]\n")


def test_info_shows_keys_and_bytes(path):
    code, text = run("info", path)
    assert code == 0
    with mmapdict.open(path, "r") as d:
        info = d.info()
    lines = text.splitlines()
    assert len(lines) == len(info)
    assert any(line.split() == ["keys", str(info["keys"])] for line in lines)
    assert str(path) in text


def test_info_json_can_be_read_back(path):
    code, text = run("info", "--json", path)
    assert code == 0
    found = json.loads(text)
    with mmapdict.open(path, "r") as d:
        info = d.info()
    assert found["keys"] == info["keys"]
    assert set(found) == set(info)


@pytest.mark.parametrize("command", ["ls", "info", "verify", "scan", "repair"])
def test_reading_changes_no_byte(path, command):
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert run(command, path)[0] == 0
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("command", ["ls", "info", "verify", "scan", "repair", "vacuum", "seal"])
@pytest.mark.parametrize("content", [None, b"", b"not a pickle", "folder"])
def test_a_file_that_cannot_be_read_is_exit_2(tmp_path, capsys, command, content):
    path = tmp_path / "bad"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    code, text = run(command, path)
    assert (code, text) == (2, "")
    message = capsys.readouterr().err
    assert message.startswith("mmapdict: ") and "bad" in message and len(message.splitlines()) == 1
    if isinstance(content, bytes):
        assert path.read_bytes() == content


def test_verify_says_ok(path):
    code, text = run("verify", path)
    assert code == 0 and text.startswith(f"{path}: OK; 6 keys, ") and text.endswith("not sealed\n")
    code, text = run("verify", "--json", path)
    found = json.loads(text)
    assert code == 0 and found["ok"] and found["faults"] == [] and found["keys"] == 6
    assert found["size"] == path.stat().st_size and found["sealed"] is False


@pytest.mark.leaves_damaged_file
def test_verify_lists_faults_and_repair_leaves_them_out(path, tmp_path):
    with mmapdict.open(path, "r") as d:
        at = d.entry("a").offset - 30
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    code, text = run("verify", path)
    fault, *notes, verdict = text.splitlines()
    assert code == 1 and "record" in fault and "1 fault;" in verdict and notes[0].startswith("note: bytes")
    code, text = run("verify", "--json", path)
    (found,) = json.loads(text)["faults"]
    assert code == 1 and found["kind"] == "record" and str(found["offset"]) in fault
    code, text = run("seal", path)
    assert code == 1 and "not sealed: repair it first" in text and path.read_bytes() == data

    code, text = run("repair", path)
    new = tmp_path / "some.repaired.mmapdict"
    assert code == 1 and str(new) in text and "lost 1" in text
    with mmapdict.open(new, "r") as d:
        assert "a" not in d and len(d) == 5
    assert run("verify", new)[0] == 0
    assert run("repair", path)[0] == 2                                  # it does not write over a file
    code, text = run("repair", "--json", "--output", tmp_path / "other", path)
    found = json.loads(text)
    assert code == 1 and found["output"] == str(tmp_path / "other") and len(found["saved"]) == 5
    assert len(found["lost"]) == 1 and not found["whole"]
    code, text = run("repair", "--replace", path)
    assert code == 1 and (tmp_path / "some.damaged.mmapdict").read_bytes() == data
    assert run("verify", path)[0] == 0 and run("repair", path)[0] == 0
    assert run("repair", "--replace", "--output", "x", path)[0] == 2


def test_scan_says_what_is_imported(path, tmp_path):
    code, text = run("scan", path)
    assert code == 0 and "numpy.ndarray" in text and text.endswith("names, all allowed\n")
    found = json.loads(run("scan", "--json", path)[1])
    assert found["ok"] and {"numpy.ndarray", "numpy.dtype"} <= {
        f"{item['module']}.{item['name']}" for item in found["globals"] if item["key"] is None}
    other = tmp_path / "other.pickle"
    other.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    code, text = run("scan", other)
    assert code == 1 and text.startswith("NOT ALLOWED  os.system")
    code, text = run("scan", "--json", other)
    assert code == 1 and json.loads(text)["globals"][0]["allowed"] is False


def test_vacuum_gives_space_back_and_seal_seals(path):
    with mmapdict.open(path) as d:
        d["a"] = np.zeros(100_000, "u1")
        d["a"] = 1
        items = list(d)
    size = path.stat().st_size
    code, text = run("vacuum", path)
    assert code == 0 and text == f"{path}: {size - path.stat().st_size:,} bytes freed\n"
    assert path.stat().st_size < size - 90_000
    code, text = run("vacuum", "--json", path)
    assert code == 0 and json.loads(text) == {"path": str(path), "freed": 0}
    code, text = run("seal", path)
    assert (code, text) == (0, f"{path}: sealed, 6 keys\n")
    assert run("verify", path)[1].endswith(" sealed\n")
    assert json.loads(run("seal", "--json", path)[1])["already"] is True
    with mmapdict.open(path, "r") as d:
        assert list(d) == items and d.sealed


def test_a_file_that_another_writes_to_is_not_vacuumed(path, capsys):
    with mmapdict.open(path):
        assert run("vacuum", path)[0] == 2
        assert run("seal", path)[0] == 2
    assert "another handle may write" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [
    [], ["nonsense"], ["ls"], ["verify"], ["repair", "--replace", "--output", "x", "y"], ["demo", "--frames", "0"],
    ["demo", "--frames", "x"], ["demo", "--shape", "3,4"], ["demo", "--shape", "3,4,-1"], ["demo", "--rate", "-1"],
    ["demo", "--rate", "nan"], ["demo", "--axes", "yz"]])
def test_wrong_arguments_are_exit_2(argv, capsys):
    assert main(argv) == 2
    assert "usage: mmapdict" in capsys.readouterr().err


@pytest.mark.parametrize("option, text, message", [
    ("--frames", "x", "'x' is not a positive whole number"), ("--frames", "0", "'0' is not a positive whole number"),
    ("--rate", "fast", "'fast' is not a number of lines per second"),
    ("--shape", "3,4,x", "'3,4,x' must be three positive whole numbers")])
def test_the_message_says_what_was_expected(option, text, message, capsys):
    assert main(["demo", option, text]) == 2
    error = capsys.readouterr().err
    assert message in error and "_" not in error.splitlines()[-1]


def test_no_arguments_print_the_help(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "commands:" in captured.err and "examples:" in captured.err


def test_the_viewer_of_the_demo_is_not_offered(capsys):
    assert main(["nonsense"]) == 2
    error = capsys.readouterr().err
    assert "ls" in error and "demo-viewer" not in error


def test_help_lists_the_commands_and_not_the_viewer(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "demo" in text and "ls" in text and "info" in text and "demo-viewer" not in text


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mmapdict {mmapdict.__version__}\n"


def test_python_m_runs_and_a_closed_pipe_is_no_error(path):
    command = [sys.executable, "-m", "mmapdict", "ls", os.fspath(path)]
    root = os.path.dirname(os.path.dirname(mmapdict.__file__))
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONPATH": root, "PYTHONIOENCODING": "ascii"}
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    done = subprocess.run(command, capture_output=True, env=env)
    assert done.returncode == 0
    assert b"('scan', 0)" in done.stdout
