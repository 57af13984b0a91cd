"""The command line: what the commands print, and how they fail."""

import ast
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import mmapdict
from children import Child, environment
from mmapdict.cli import main
from mmapdict.format import describe


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
    assert code == 0 and text.startswith(f"{path}: OK; 6 keys, ") and ", not sealed" in text
    code, text = run("verify", "--json", path)
    found = json.loads(text)
    assert code == 0 and found["ok"] and found["faults"] == [] and found["keys"] == 6
    assert found["size"] == path.stat().st_size and found["sealed"] is False


@pytest.mark.leaves_damaged_file
def test_verify_lists_faults_and_repair_leaves_them_out(path, tmp_path, capsys):
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
    assert code == 1 and text.endswith("\nnot sealed: `mmapdict repair` copies what is whole\n")
    assert path.read_bytes() == data
    code, text = run("seal", "--json", path)
    found = json.loads(text)
    assert code == 1 and not found["ok"] and not found["already"] and found["faults"][0]["kind"] == "record"

    code, text = run("repair", path)
    new = tmp_path / "some.repaired.mmapdict"
    assert code == 1 and str(new) in text and "lost 1" in text
    with mmapdict.open(new, "r") as d:
        assert "a" not in d and len(d) == 5
    assert run("verify", new)[0] == 0
    capsys.readouterr()
    assert run("repair", path)[0] == 2                                  # it does not write over a file
    assert capsys.readouterr().err == (f"mmapdict: {new}: File exists: remove it, or give another name (--output)\n")
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


INSIDE_A_BATCH = """
d = mmapdict.open(path)
with d.batch():
    d["x"] = 1
    tell("inside")
    hear()
"""


@pytest.mark.parametrize("command", ["vacuum", "seal"])
def test_a_command_does_not_wait_longer_than_asked_and_says_for_whom(path, capsys, command):
    with Child(path, INSIDE_A_BATCH) as child:
        assert child.hear() == "inside"
        code, text = run(command, "--timeout", "0", path)
        error = capsys.readouterr().err
        assert (code, text) == (2, "") and str(path) in error and f"process {child.process.pid}" in error
        assert "Errno" not in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("command", ["vacuum", "seal"])
@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_ctrl_c_while_a_command_waits_is_one_line_and_exit_130(path, command):
    with Child(path, INSIDE_A_BATCH) as child:
        assert child.hear() == "inside"
        code = ("import sys, time\nfrom mmapdict import cli, store\n"
                "def sleep(seconds, real=time.sleep):\n    print('waits', flush=True)\n    real(60)\n"
                "store.time.sleep = sleep\nsys.exit(cli.main(sys.argv[1:]))")
        waiting = subprocess.Popen([sys.executable, "-c", code, command, os.fspath(path)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=environment())
        with waiting:
            assert waiting.stdout.readline() == b"waits\n"
            waiting.send_signal(signal.SIGINT)
            assert waiting.communicate(timeout=60)[1] == b"mmapdict: interrupted\n"
        assert waiting.returncode == 130


@pytest.mark.parametrize("error, code, line", [
    (KeyboardInterrupt(), 130, "interrupted"),
    (FileNotFoundError(2, "No such file or directory", "there"), 2, "there: No such file or directory"),
    (FileNotFoundError(2, "No such file or directory", b"there"), 2, "there: No such file or directory"),
    (OSError(28, "No space left on device"), 2, "No space left on device"), (OSError("no number"), 2, "no number"),
    (mmapdict.BusyError(11, "a batch holds it", "there"), 2, "there: a batch holds it"),
    (mmapdict.ReadOnlyError("it is sealed"), 2, "it is sealed"), (mmapdict.ClosedError("closed"), 2, "closed"),
    (mmapdict.UntrustedError("it names os.system"), 2, "it names os.system"),
    (mmapdict.FormatError("not ours", "there"), 2, "there: not ours"),
    (mmapdict.CorruptError("cut", "there", 8), 2, 'there: cut (at offset 8); "mmapdict repair" copies what is whole')])
def test_every_error_is_one_line_and_an_exit_code(monkeypatch, capsys, error, code, line):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(mmapdict, "open", fail)
    for command in "ls", "info", "vacuum":
        assert run(command, "file") == (code, "")
        assert capsys.readouterr() == ("", f"mmapdict: {line}\n")


class Mine:
    """Of a class that no file may name without being asked."""


@pytest.fixture
def untrusted(tmp_path):
    path = tmp_path / "untrusted.mmapdict"
    with mmapdict.open(path, "w", trusted=True) as d:
        d["mine"] = Mine()
        d["a"] = np.arange(3)
        del d["a"]
    with mmapdict.open(path, "r") as d, pytest.raises(mmapdict.UntrustedError):
        d["mine"]
    return path


@pytest.mark.parametrize("command", ["ls", "info", "verify", "repair", "vacuum", "seal"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_values_that_are_not_allowed_are_in_nobodys_way(untrusted, command, options):
    code, text = run(command, *options, untrusted)
    assert code == 0
    assert command != "ls" or "'mine'" in text
    with mmapdict.open(untrusted, "r", trusted=True) as d:
        assert type(d["mine"]) is Mine


def test_scan_tells_of_values_that_are_not_allowed(untrusted):
    code, text = run("scan", untrusted)
    assert code == 1 and "NOT ALLOWED  test_cli.Mine" in text


def test_each_key_in_json_is_a_literal(tmp_path):
    keys = [10**5000, -10**5000, 2**2048, float("inf"), (float("-inf"), ("x", b"\0")), (), ("one",), -0.5, None, True,
            "\ud800", "inf", "\n'\"", -2**63]
    path = tmp_path / "keys.mmapdict"
    with mmapdict.open(path, "w") as d:
        for key in keys:
            d[key] = 1
    code, text = run("ls", "--json", path)
    found = [ast.literal_eval(item["key"]) for item in json.loads(text)]
    assert code == 0 and found == keys and list(map(type, found)) == list(map(type, keys))
    code, text = run("ls", path)
    assert code == 0 and len(text.splitlines()) == len(keys) + 2
    path.unlink()           # pickletools, which looks at what tests leave, cannot print such ints


def test_an_empty_file_is_described_without_a_mode(tmp_path, capsys):
    path = tmp_path / "empty"
    path.touch()
    for command in "ls", "info", "verify", "repair", "vacuum", "seal":
        assert run(command, path)[0] == 2
        assert capsys.readouterr().err == f"mmapdict: {path}: not an mmapdict file: it is empty (0 bytes)\n"
    with pytest.raises(mmapdict.FormatError, match='mode "w" starts it anew'):
        mmapdict.open(path)


@pytest.mark.leaves_damaged_file
def test_a_file_whose_header_is_lost_is_sent_to_repair(path, capsys):
    path.write_bytes(bytes(256) + path.read_bytes()[256:])
    for command in "ls", "info", "vacuum":
        assert run(command, path)[0] == 2
        assert capsys.readouterr().err.endswith('; if it was one, "mmapdict repair" looks for what is behind\n')
    code, text = run("repair", path)
    assert "saved 6 keys" in text


@pytest.mark.leaves_damaged_file
def test_a_seal_that_no_longer_holds_is_said_to_be_one(path):
    with mmapdict.open(path) as d:
        d.seal()
        at = d.entry("a").offset
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    code, text = run("seal", path)
    assert code == 1 and text.endswith("\nsealed before, and no longer as sealed: "
                                       "`mmapdict repair` copies what is whole\n")
    assert json.loads(run("seal", "--json", path)[1])["already"] is True
    code, text = run("repair", path)
    assert code == 1 and "not as they were sealed, 1:" in text


def zipped(path, name):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"content")
    return path.read_bytes()[:256]


def test_files_of_others_are_described(tmp_path):
    path = tmp_path / "archive"
    torch = "it looks like a zip file, of torch perhaps: it holds a data.pkl"
    for head, text in ((zipped(path, "archive/data.pkl"), torch),
                       (zipped(path, "arr_0.npy"), "it looks like a .npz file"),
                       (zipped(path, "mimetype"), "it looks like a .npz or other zip file"),
                       (b"\x1f\x8b\x08\x00", "it looks like a file that gzip has compressed: decompress it first"),
                       (b"\x93NUMPY\x01\x00", "it looks like a .npy file"), (bytes(9), "it starts with 9 zero bytes"),
                       (b"columns a b", "it starts with b'columns '"), (b"", "it is empty (0 bytes)")):
        assert describe(head, len(head)) == text


def test_who_is_told_of_pickle_load_is_told_of_scan(tmp_path, capsys):
    path = tmp_path / "other.pickle"
    path.write_bytes(pickle.dumps({"a": 1}))
    assert run("ls", path)[0] == 2
    assert "(`mmapdict scan FILE` first: pickle.load can run any code)" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [
    [], ["nonsense"], ["ls"], ["verify"], ["repair", "--replace", "--output", "x", "y"], ["demo", "--frames", "0"],
    ["demo", "--frames", "x"], ["demo", "--shape", "3,4"], ["demo", "--shape", "3,4,-1"], ["demo", "--rate", "-1"],
    ["demo", "--rate", "nan"], ["demo", "--axes", "yz"], ["vacuum", "--timeout", "-1", "x"],
    ["seal", "--timeout", "nan", "x"], ["ls", "--timeout", "1", "x"]])
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


def command_help(command, capsys):
    assert main([command, "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["ls", "info", "verify", "scan", "repair", "vacuum", "seal"])
def test_each_help_gives_the_exit_codes(command, capsys):
    text = command_help(command, capsys)
    assert re.search(r"Exit code 0: .*2: ", text) and "ast.literal_eval" in text


def test_the_help_names_the_file_that_repair_makes(path, tmp_path, capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"repair run\.mmapdict +copies what is whole into run\.repaired\.mmapdict", text)
    text = command_help("repair", capsys)
    assert "run.repaired.mmapdict" in text and "run.damaged.mmapdict" in text and "as it was sealed" in text


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mmapdict {mmapdict.__version__}\n"


def python_m(*argv, stdout=subprocess.PIPE):
    """Run the command line in a process of its own."""
    return subprocess.run([sys.executable, "-m", "mmapdict", *map(os.fspath, argv)], stdout=stdout,
                          stderr=subprocess.PIPE, env={**environment(), "PYTHONIOENCODING": "ascii"})


def test_python_m_runs(path):
    done = python_m("ls", path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"('scan', 0)" in done.stdout


@pytest.mark.leaves_damaged_file
@pytest.mark.parametrize("argv, code", [(["ls"], 0), (["info", "--json"], 0), (["verify"], 1), (["--help"], 0)])
def test_a_closed_pipe_is_no_error_and_hides_none(path, argv, code):
    if code:
        path.write_bytes(path.read_bytes()[:-1])
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = python_m(*argv, path, stdout=closed)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_output_that_cannot_be_written_is_exit_2(path):
    with open("/dev/full", "wb") as full:
        done = python_m("ls", path, stdout=full)
    assert (done.returncode, done.stderr) == (2, b"mmapdict: No space left on device\n")


def test_a_file_that_gets_an_index_becomes_longer_and_says_so(tmp_path, capsys):
    path = tmp_path / "file"
    with mmapdict.open(path, "x") as d:
        for i in range(64):
            d[i] = i
        assert d.free_bytes == 0 and d._index.table is None
    before = path.stat().st_size
    assert main(["vacuum", str(path)]) == 0
    longer = path.stat().st_size - before
    assert longer > 0 and f"{longer:,} bytes longer, by its index" in capsys.readouterr().out
    with mmapdict.open(path) as d:
        assert d._index.table is not None and d.free_bytes == 0 and dict(d) == {i: i for i in range(64)}
