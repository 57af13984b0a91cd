"""The command line: ``mmapdict ls``, ``mmapdict verify``, ``mmapdict demo``, ...

Exit codes: 0 done; 1 done, with a bad result (faults, losses, names that are not allowed); 2 could not be done. Reading
commands write nothing to a file.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar

import mmapdict
from mmapdict.errors import MmapDictError
from mmapdict.scan import scan

EPILOG = """\
examples:
  mmapdict demo                         capture a time-lapse into ./timelapse.mmapdict
  mmapdict demo --source mine.npy       the same with an array of your own
  mmapdict ls timelapse.mmapdict        what is in it
  mmapdict info --json FILE             about the file, for programs
  mmapdict verify FILE                  is it whole? exit code 0: yes, 1: no
  mmapdict repair FILE                  copies what is whole into FILE's name + ".repaired"
"""

DEMO_HELP = """\
Capture a time-lapse with a simulated line-scan camera, watch it from a second process while it is written, load it with
plain pickle.load in a third process without mmapdict, and compare the speed with a raw write. Ctrl-C ends the capture;
the file keeps everything.
"""

VIEWER = "demo-viewer"
CELL = 40  # a table's longest cell; programs use --json
WAIT = 10  # seconds, for those who use the file

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
        return exc.code if isinstance(exc.code, int) else 2
    command: Command = arguments.command
    try:
        return command(arguments, stdin, stdout)
    except BrokenPipeError:
        # The reader of our output has enough ("| head"). What is still buffered must not be flushed at exit.
        if stdout is sys.stdout:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        return 0
    except (MmapDictError, OSError, UserError) as exc:
        print(f"mmapdict: {exc}", file=sys.stderr)
        return 2


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
        command.add_argument("--json", action="store_true", help="for programs")
        command.set_defaults(command=function)
    target = repair.add_mutually_exclusive_group()
    target.add_argument("--output", metavar="NEW", help="the file to write (default: beside FILE)")
    target.add_argument("--replace", action="store_true",
                        help='put the new file in the place of FILE, which gets ".damaged" into its name')

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

    What is longer than 40 characters is shown with "..."; --json gives all of it.
    """
    with mmapdict.open(arguments.file, "r") as d:
        entries = list(d.entries())
    if arguments.json:
        print(json.dumps([_entry_dict(entry) for entry in entries], indent=1), file=stdout)
        return 0
    # The dtype comes last: it is text of any length, and nothing has to stand in line behind it.
    rows: list[Sequence[str]] = [("key", "kind", "shape", "bytes", "offset", "dtype")]
    for entry in entries:
        shape = "" if entry.shape is None else " x ".join(str(n) for n in entry.shape) or "()"
        dtype = "" if entry.dtype is None else str(entry.dtype)
        cells = repr(entry.key), entry.kind, shape, str(entry.nbytes), str(entry.offset), dtype
        rows.append([_short(cell) for cell in cells])
    _print_table(rows, right=(3, 4), stdout=stdout)
    number = f"{len(entries):,} key" + ("" if len(entries) == 1 else "s")
    print(f"total: {number}, {sum(entry.nbytes for entry in entries):,} bytes", file=stdout)
    return 0


def _short(text: str) -> str:
    """Return a text, or its beginning and end if it is long: keys often differ in their ends."""
    return text if len(text) <= CELL else text[:CELL - 15] + "..." + text[-12:]


def _info(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Show what the file's header says: number of keys, live and dead bytes, commits, ..."""
    with mmapdict.open(arguments.file, "r") as d:
        info = d.info()
    if arguments.json:
        print(json.dumps(info, indent=1, default=_plain), file=stdout)
        return 0
    rows = [(name.replace("_", " "), _text(value)) for name, value in info.items()]
    _print_table(rows, right=(), stdout=stdout)
    return 0


def _verify(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """List every fault of a file, with its place, then "OK" or their number.

    Another process may write to the file meanwhile. Bytes of arrays have no checksums, unless the file is sealed.
    Exit code 0: no fault, 1: faults, 2: it cannot be read.
    """
    report = mmapdict.verify(arguments.file)
    if arguments.json:
        faults = [{**fault._asdict(), "key": _key(fault.key)} for fault in report.faults]
        _print_json({"path": report.path, "ok": report.ok, "faults": faults, "notes": report.notes, "keys": report.keys,
                     "records": report.records, "size": report.size, "sealed": report.sealed}, stdout)
    else:
        print(report, file=stdout)
    return 0 if report.ok else 1


def _scan(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """List what a plain pickle.load of a file would import, and so may run. Any pickle will do, of any protocol.

    Nothing of it is imported, called or unpickled to find out. Exit code 0: all that is named is allowed, 1: something
    is not, or the file could not be followed to its end, 2: it is no pickle.
    """
    report = scan(arguments.file)
    if arguments.json:
        found = [{**item._asdict(), "key": repr(item.key) if item.in_entries else None} for item in report.globals]
        _print_json({"path": report.path, "ok": report.ok, "globals": found, "fault": report.fault,
                     "fault_offset": report.fault_offset}, stdout)
    else:
        print(report, file=stdout)
    return 0 if report.ok else 1


def _repair(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Copy what is whole in a damaged file into a new one, and say what was saved and what was lost.

    The damaged file is only read. Nothing is written if it is whole. Exit code 0: nothing was lost, 1: something was,
    2: it could not be done.
    """
    report = mmapdict.repair(arguments.file, arguments.output, replace=arguments.replace)
    if arguments.json:
        _print_json({"path": report.path, "whole": report.whole, "output": report.output, "original": report.original,
                     "saved": [repr(key) for key in report.saved], "doubtful": [repr(key) for key in report.doubtful],
                     "lost": [{**lost._asdict(), "key": _key(lost.key)} for lost in report.lost],
                     "notes": report.notes}, stdout)
    else:
        print(report, file=stdout)
    return 1 if report.lost or report.doubtful else 0


def _vacuum(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Give back the space of replaced and deleted values: copy the others into a new file, which takes FILE's place.

    Nobody else may write to the file at that time.
    """
    with mmapdict.open(arguments.file, "r+", timeout=WAIT) as d:
        freed = d.vacuum()
        path = d.path
    if arguments.json:
        _print_json({"path": path, "freed": freed}, stdout)
    else:
        print(f"{path}: {freed:,} bytes freed", file=stdout)
    return 0


def _seal(arguments: argparse.Namespace, stdin: TextIO, stdout: TextIO) -> int:
    """Keep checksums of everything in the file, which "verify" compares.

    Nobody else may write to the file at that time. A file with a fault is not sealed: exit code 1.
    """
    report = mmapdict.verify(arguments.file)
    if not report.ok:
        print(f"{report}\nnot sealed: repair it first", file=stdout)
        return 1
    with mmapdict.open(arguments.file, "r+", timeout=WAIT) as d:
        d.seal()
        path, keys = d.path, len(d)
    if arguments.json:
        _print_json({"path": path, "keys": keys, "already": report.sealed}, stdout)
    else:
        print(f"{path}: {'was sealed' if report.sealed else 'sealed'}, {keys:,} keys", file=stdout)
    return 0


def _key(key: Any) -> str | None:
    return None if key is None else repr(key)


def _print_json(value: Any, stdout: TextIO) -> None:
    print(json.dumps(value, indent=1), file=stdout)


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
    # JSON has no tuples or bytes: the key is given as Python's text for it (ast.literal_eval reads it).
    return {
        "key": repr(entry.key),
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


def _print_table(rows: Sequence[Sequence[str]], right: Sequence[int], stdout: TextIO) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), file=stdout)


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
