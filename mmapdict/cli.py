"""The command line: ``mmapdict ls``, ``mmapdict verify``, ``mmapdict demo``, ...

Exit codes: 0 done; 1 done, with a bad result (faults, losses, names that are not allowed); 2 could not be done; 130
interrupted. Reading commands write nothing to a file. Errors are one line on stderr.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO, TypeVar

import mmapdict
from mmapdict import format as fmt
from mmapdict.errors import CorruptError, FormatError, MmapDictError
from mmapdict.scan import scan

EPILOG = """\
examples:
  mmapdict demo                         capture a time-lapse into ./timelapse.mmapdict
  mmapdict demo --source mine.npy       the same with an array of your own
  mmapdict ls timelapse.mmapdict        what is in it
  mmapdict info --json FILE             about the file, for programs
  mmapdict verify FILE                  is it whole? exit code 0: yes, 1: no
  mmapdict repair run.mmapdict          copies what is whole into run.repaired.mmapdict

exit codes:
  0    done
  1    done, and the result is bad: faults, losses, or names that are not allowed
  2    could not be done: wrong arguments, or FILE is missing, in use, foreign or (ls, info, vacuum) damaged
  130  interrupted by Ctrl-C
"""

DEMO_HELP = """\
Capture a time-lapse with a simulated line-scan camera, watch it from a second process while it is written, load it with
plain pickle.load in a third process without mmapdict, and compare the speed with a raw write. Ctrl-C ends the capture;
the file keeps everything.
"""

VIEWER = "demo-viewer"
CELL = 40  # a table's longest cell; programs use --json
WAIT = 10  # seconds, for those who write to the file
INT_BITS = 2048  # ints above are shown as hexadecimal digits: the least limit of those that Python prints is 640
INTERRUPTED = 130  # as shells have it: 128 + SIGINT
JSON_HELP = "for programs; keys are Python's text for them (ast.literal_eval reads it), errors stay text on stderr"

Number = TypeVar("Number", int, float)
Command = Callable[[argparse.Namespace, TextIO, TextIO], int]


def main(argv: Sequence[str] | None = None, stdin: TextIO | None = None, stdout: TextIO | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; by default those of the process.
    stdin, stdout : text file, optional
        By default those of the process.

    Returns
    -------
    int
        The exit code.

    Examples
    --------
    >>> main(["ls", "no-such-file"])
    2
    """
    stdin = sys.stdin if stdin is None else stdin
    stdout = sys.stdout if stdout is None else stdout
    if isinstance(stdout, io.TextIOWrapper):
        # A key may hold any character; a terminal or pipe that cannot show one gets its escape.
        stdout.reconfigure(errors="backslashreplace")
    argv = sys.argv[1:] if argv is None else list(argv)
    # `demo` starts its viewer by this; people are not told of it.
    parser = _viewer_parser() if argv[:1] == [VIEWER] else _parser()
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as exc:
        try:
            stdout.flush()
        except OSError:             # nobody reads the help
            _mute(stdout)
        return exc.code if isinstance(exc.code, int) else 2
    return _run(arguments, stdin, stdout)


def _run(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Run a command and turn its errors into a line and an exit code."""
    command: Command = arguments.command
    try:
        code = command(arguments, stdin, stdout)
        stdout.flush()
        return code
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _mute(stdout)
        return 0
    except FileExistsError as exc:
        other = command is _repair and not arguments.replace
        _complain(f"{_message(exc)}: remove it" + (", or give another name (--output)" if other else ""))
    except (CorruptError, FormatError) as exc:
        _complain(_message(exc) + _remedy(exc, command))
    except (MmapDictError, OSError, UserError) as exc:
        _complain(_message(exc))
    return 2


def _message(exc: Exception) -> str:
    """Return the message of an error without what only a program can use."""
    if isinstance(exc, OSError) and exc.strerror:
        where = "" if exc.filename is None else f"{os.fsdecode(exc.filename)}: "
        return f"{where}{exc.strerror}"
    return str(exc).replace(fmt.ANEW, "")       # there is no mode to choose here


def _remedy(exc: CorruptError | FormatError, command: Command) -> str:
    """Say what helps a file that mmapdict cannot open, unless this is what has just failed."""
    if command in (_repair, _scan, _verify) or "repair" in exc.message:
        return ""
    if isinstance(exc, CorruptError):
        return '; "mmapdict repair" copies what is whole'
    # Perhaps only its beginning is overwritten: who opens a file looks no further.
    return '; if it was one, "mmapdict repair" looks for what is behind' if fmt.UNKNOWN in exc.message else ""


def _complain(text: str) -> None:
    with suppress(BrokenPipeError):
        print(f"mmapdict: {text}", file=sys.stderr)


def _print(text: str, stdout: TextIO) -> None:
    """Print what a command has found. Its exit code is right also if nobody reads all of it ("| head")."""
    try:
        print(text, file=stdout)
        stdout.flush()
    except OSError as exc:
        _mute(stdout)
        if not isinstance(exc, BrokenPipeError):
            raise


def _mute(stdout: TextIO) -> None:
    """Let go of what could not be written, else Python tries it again at its end, and complains."""
    if stdout is sys.stdout:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stdout.fileno())
        os.close(null)


class UserError(Exception):
    """Raised by a command when it cannot do what it was asked; the message is meant for the user."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmapdict",
        description="Look into mmapdict files: dictionaries of memory-mapped arrays that are valid pickles.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mmapdict {mmapdict.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    ls = commands.add_parser("ls", help="list the keys: kind, shape, bytes, offset, dtype", description=_doc(_ls))
    info = commands.add_parser("info", help="about the file: keys, live and dead bytes, ...", description=_doc(_info))
    verify = commands.add_parser("verify", help="list every fault of a file, with its place", description=_doc(_verify))
    scanning = commands.add_parser("scan", help="what a plain pickle.load would import", description=_doc(_scan))
    repair = commands.add_parser("repair", help="copy what is whole into a new file", description=_doc(_repair))
    vacuum = commands.add_parser("vacuum", help="give back the space of replaced and deleted values",
                                 description=_doc(_vacuum))
    seal = commands.add_parser("seal", help="keep checksums of everything in the file", description=_doc(_seal))
    for command, function in ((ls, _ls), (info, _info), (verify, _verify), (scanning, _scan), (repair, _repair),
                              (vacuum, _vacuum), (seal, _seal)):
        command.add_argument("file", metavar="FILE")
        command.add_argument("--json", action="store_true", help=JSON_HELP)
        command.set_defaults(command=function)
    target = repair.add_mutually_exclusive_group()
    target.add_argument("--output", metavar="NEW",
                        help="the file to write (default: run.repaired.mmapdict for run.mmapdict, beside it)")
    target.add_argument("--replace", action="store_true",
                        help="put the new file in the place of FILE, which is kept as run.damaged.mmapdict")
    for command in vacuum, seal:
        command.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=WAIT,
                             help="how long to wait for those who write to FILE (default: %(default)s)")

    demo = commands.add_parser("demo", help="capture a time-lapse, with a viewer beside it", description=DEMO_HELP)
    demo.set_defaults(command=_demo)
    demo.add_argument("out", metavar="OUT", nargs="?", help="the file to write (default: timelapse.mmapdict)")
    demo.add_argument(
        "--source",
        metavar="FILE",
        help="a picture of your own: .npy, .npz, .mat, .tif, ENVI .hdr, .png, .jpg, or a folder of images "
        "(default: a micrograph from scikit-image)",
    )
    demo.add_argument(
        "--axes",
        metavar="LETTERS",
        type=_axes,
        help="axes of an array in .npy, .npz, .mat, .tif: t y x l, or p for all pixels",
    )
    demo.add_argument(
        "--variable", metavar="NAME", help="the array to take from a .npz or .mat file (default: the largest)"
    )
    demo.add_argument("--frames", metavar="N", type=_positive_int, help="time steps to capture, one scan each")
    demo.add_argument(
        "--rate",
        metavar="LINES_PER_S",
        type=_rate,
        help="lines per second, 0: as fast as possible (default: about 8 s in all)",
    )
    demo.add_argument("--shape", metavar="Y,X,L", type=_shape, help="lines, pixels and wavelengths of a scan")
    demo.add_argument("--force", action="store_true", help="replace OUT whatever it is")

    return parser


def _viewer_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mmapdict")
    parser.add_argument("viewer", choices=[VIEWER])
    parser.add_argument("file")
    parser.set_defaults(command=_demo_viewer)
    return parser


def _ls(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """List the keys of a file, in file order, with what is known of each value without reading it.

    What is longer than 40 characters is shown with "..."; --json gives all of it. No value is unpickled. Exit code 0:
    done, 2: it cannot be read, or is damaged.
    """
    with mmapdict.open(arguments.file, "r") as d:
        entries = list(d.entries())
    if arguments.json:
        _print_json([_entry_dict(entry) for entry in entries], stdout)
        return 0
    # The dtype comes last: it is text of any length, and nothing has to stand in line behind it.
    rows: list[Sequence[str]] = [("key", "kind", "shape", "bytes", "offset", "dtype")]
    for entry in entries:
        shape = "" if entry.shape is None else " x ".join(str(n) for n in entry.shape) or "()"
        dtype = "" if entry.dtype is None else str(entry.dtype)
        cells = _literal(entry.key), entry.kind, shape, str(entry.nbytes), str(entry.offset), dtype
        rows.append([_short(cell) for cell in cells])
    number = f"{len(entries):,} key" + ("" if len(entries) == 1 else "s")
    total = f"total: {number}, {sum(entry.nbytes for entry in entries):,} bytes"
    _print("\n".join([*_table(rows, right=(3, 4)), total]), stdout)
    return 0


def _short(text: str) -> str:
    """Return a text, or its beginning and end if it is long: keys often differ in their ends."""
    return text if len(text) <= CELL else text[:CELL - 15] + "..." + text[-12:]


def _info(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Show what the file's header says: number of keys, live and dead bytes, commits, ...

    Exit code 0: done, 2: it cannot be read, or is damaged.
    """
    with mmapdict.open(arguments.file, "r") as d:
        info = d.info()
    if arguments.json:
        _print_json(info, stdout)
        return 0
    rows = [(name.replace("_", " "), _text(value)) for name, value in info.items()]
    _print("\n".join(_table(rows, right=())), stdout)
    return 0


def _verify(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """List every fault of a file, with its place, then "OK" or their number.

    Another process may write to the file meanwhile. Bytes of arrays, and of texts and bytes objects over 4096 bytes,
    have no checksums, unless the file is sealed. Exit code 0: no fault, 1: faults, 2: it cannot be read.
    """
    report = mmapdict.verify(arguments.file)
    if arguments.json:
        _print_json({"path": report.path, "ok": report.ok, "faults": _faults(report), "notes": report.notes,
                     "keys": report.keys, "records": report.records, "size": report.size, "sealed": report.sealed},
                    stdout)
    else:
        _print(str(report), stdout)
    return 0 if report.ok else 1


def _faults(report: mmapdict.Report) -> list[dict[str, Any]]:
    return [{**fault._asdict(), "key": _key(fault.key)} for fault in report.faults]


def _scan(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """List what a plain pickle.load of a file would import, and so may run. Any pickle will do, of any protocol.

    Nothing of it is imported, called or unpickled to find out. Exit code 0: all that is named is allowed, 1: something
    is not, or the file could not be followed to its end, 2: it is no pickle.
    """
    report = scan(arguments.file)
    if arguments.json:
        found = [{**item._asdict(), "key": _literal(item.key) if item.in_entries else None} for item in report.globals]
        _print_json({"path": report.path, "ok": report.ok, "globals": found, "fault": report.fault,
                     "fault_offset": report.fault_offset}, stdout)
    else:
        _print(str(report), stdout)
    return 0 if report.ok else 1


def _repair(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Copy what is whole in a damaged file into a new one, and say what was saved and what was lost.

    The damaged file is only read. Nothing is written if it is whole. Exit code 0: nothing was lost, 1: something was,
    or is not as it was sealed, 2: it could not be done.
    """
    report = mmapdict.repair(arguments.file, arguments.output, replace=arguments.replace)
    if arguments.json:
        _print_json({"path": report.path, "whole": report.whole, "output": report.output, "original": report.original,
                     "saved": [_literal(key) for key in report.saved],
                     "doubtful": [_literal(key) for key in report.doubtful],
                     "lost": [{**lost._asdict(), "key": _key(lost.key)} for lost in report.lost],
                     "notes": report.notes}, stdout)
    else:
        _print(str(report), stdout)
    return 1 if report.lost or report.doubtful else 0


def _vacuum(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Give back the space of replaced and deleted values: copy the others into a new file, which takes FILE's place.

    Nobody else may have the file open to write. Exit code 0: done, 2: it is in use, sealed, damaged, or cannot be read;
    then nothing has happened.
    """
    with mmapdict.open(arguments.file, "r+", timeout=arguments.timeout) as d:
        freed = d.vacuum()
        path = d.path
    if arguments.json:
        _print_json({"path": path, "freed": freed}, stdout)
    else:
        what = f"{freed:,} bytes freed" if freed >= 0 else f"{-freed:,} bytes longer, by its index"
        _print(f"{path}: {what}", stdout)
    return 0


def _seal(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Keep checksums of everything in the file, which "verify" compares.

    Nobody else may have the file open to write. Exit code 0: it is sealed, 1: it has faults, and was left as it is, 2:
    it is in use, or cannot be read.
    """
    report = mmapdict.verify(arguments.file)
    path, keys = report.path, report.keys
    if report.ok:
        with mmapdict.open(arguments.file, "r+", timeout=arguments.timeout) as d:
            d.seal()
            path, keys = d.path, len(d)
    if arguments.json:
        _print_json({"path": path, "ok": report.ok, "faults": _faults(report), "keys": keys, "already": report.sealed},
                    stdout)
    elif report.ok:
        _print(f"{path}: {'was sealed' if report.sealed else 'sealed'}, {keys:,} keys", stdout)
    else:
        what = "sealed before, and no longer as sealed" if report.sealed else "not sealed"
        _print(f"{report}\n{what}: `mmapdict repair` copies what is whole", stdout)
    return 0 if report.ok else 1


def _key(key: Any) -> str | None:
    return None if key is None else _literal(key)


def _literal(key: Any) -> str:
    """Return what `ast.literal_eval` makes the key of; JSON has no tuples or bytes.

    `repr` gives that, but for infinity, which has no literal of its own, and ints of more digits than Python prints.
    """
    if type(key) is tuple:
        return "(" + ", ".join(map(_literal, key)) + ("," if len(key) == 1 else "") + ")"
    if type(key) is float and abs(key) == float("inf"):
        return "1e999" if key > 0 else "-1e999"
    return hex(key) if type(key) is int and key.bit_length() > INT_BITS else repr(key)


def _print_json(value: Any, stdout: TextIO) -> None:
    _print(json.dumps(value, indent=1, default=_plain), stdout)


def _demo(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    # Imported here: `ls` shall start at once.
    from mmapdict import demo

    options = demo.Options(
        out=arguments.out or demo.DEFAULT_OUT,
        source=arguments.source,
        frames=arguments.frames,
        rate=arguments.rate,
        shape=arguments.shape,
        axes=arguments.axes,
        variable=arguments.variable,
        force=arguments.force,
    )
    try:
        return demo.run(options, stdout)
    except demo.DemoError as exc:
        raise UserError(f"demo: {exc}") from exc


def _demo_viewer(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    from mmapdict.capture import view

    return view(arguments.file, stdin, stdout)


def _entry_dict(entry: Any) -> dict[str, Any]:
    return {
        "key": _literal(entry.key),
        "kind": entry.kind,
        "shape": None if entry.shape is None else list(entry.shape),
        "dtype": None if entry.dtype is None else str(entry.dtype),
        "nbytes": entry.nbytes,
        "offset": entry.offset,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _text(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(_plain(value))


def _table(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.rjust(width) if column in right else text.ljust(width)
                      for column, (text, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]


def _doc(function: Callable[..., Any]) -> str:
    return function.__doc__ or ""


def _positive_int(text: str) -> int:
    value = _number(int, text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def _rate(text: str) -> float:
    value = _number(float, text)
    if value is None or not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines per second")
    return value


def _seconds(text: str) -> float:
    value = _number(float, text)
    if value is None or not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _shape(text: str) -> tuple[int, int, int]:
    parts = [_number(int, part) for part in text.replace("x", ",").split(",")]
    sizes = [n for n in parts if n is not None and n > 0]
    if len(parts) != 3 or len(sizes) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} must be three positive whole numbers, as 320,400,120")
    return sizes[0], sizes[1], sizes[2]


def _number(kind: Callable[[str], Number], text: str) -> Number | None:
    """Return the number that a text gives, if any: argparse's own message would name our function."""
    try:
        return kind(text)
    except ValueError:
        return None


def _axes(text: str) -> str:
    from mmapdict.sources import parse_axes

    try:
        return parse_axes(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
