"""Run the benchmarks: ``python -m benchmarks [names...] [--json FILE] [--n N] [--quick]``.

``python -m benchmarks peers [names...]`` runs mmapdict beside other libraries instead of beside its floors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .against import CONTESTS
from .bench import Bench, Sizes
from .field import Field, Scale
from .harness import Row, clock, environment, table
from .page import Floors, text, write
from .peers import BARE, FLOOR, OURS, PEERS, missing, version
from .plots import can_draw, draw
from .scoreboard import Line, Report
from .workloads import WORKLOADS


def main(argv: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    """Run the workloads named in `argv` (default: all), print the table, write the JSON; `sizes` overrides theirs."""
    if argv is None:
        argv = sys.argv[1:]
    if list(argv[:1]) == ["peers"]:
        return against_peers(argv[1:])
    parser = _parser("python -m benchmarks", WORKLOADS)
    parser.add_argument("--compare", type=Path, metavar="FILE", help="show the change against an earlier --json FILE")
    parser.add_argument("--n", type=int, help="most keys in a store (default: 1000000; --quick: 10000)")
    options = parser.parse_args(argv)
    _check_names(parser, "workload", options.names, WORKLOADS)
    sizes = sizes or (Sizes.quick() if options.quick else Sizes())
    if options.n is not None:
        if options.n < 1000:
            parser.error("--n must be at least 1000")
        sizes = sizes.up_to(options.n)
    before = _figures(options.compare) if options.compare else None
    with tempfile.TemporaryDirectory(prefix="mmapdict-benchmarks-", dir=options.dir) as name:
        bench = Bench(sizes, Path(name), options.seed)
        rows: list[Row] = []
        facts = environment(bench.folder, options.seed)
        for workload in options.names or WORKLOADS:
            with _announced(workload):
                rows += WORKLOADS[workload](bench)
            if options.json:  # what an interrupted run found so far
                _write_json(options.json, {"environment": facts, "results": [row.as_json() for row in rows]})
    print(", ".join(f"{key} {value}" for key, value in facts.items() if value is not None), end="\n\n")
    print(table(rows, before))
    return 0


def against_peers(argv: Sequence[str], scale: Scale | None = None) -> int:
    """Run the workloads named in `argv` with all peers that are installed; print and write what came out."""
    parser = _parser("python -m benchmarks peers", CONTESTS)
    known = [*PEERS, *BARE]
    parser.add_argument("--only", metavar="PEERS", help=f"of {','.join(known)}; default: all that are installed")
    parser.add_argument("--n", type=int, help="most keys in a store (default: 1000000; --quick: 10000)")
    parser.add_argument(
        "--seconds",
        type=float,
        help="most time for one figure of one peer; ten times as much to fill a store (default: 4; --quick: 1)",
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw how costs grow, as SVG (needs matplotlib)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write everything as a page of Markdown")
    parser.add_argument(
        "--load", type=Path, nargs="+", metavar="FILE", help="run nothing: take --json FILEs of earlier runs or parts"
    )
    parser.add_argument(
        "--floors", type=Path, nargs="+", default=[], metavar="FILE", help="show these --json FILEs without peers, too"
    )
    options = parser.parse_args(argv)
    _check_names(parser, "workload", options.names, CONTESTS)
    only = options.only.split(",") if options.only else known
    _check_names(parser, "peer", only, known)
    if options.load:
        report = Report.merged([Report.from_json(json.loads(path.read_text())) for path in options.load])
    else:
        scale = scale or (Scale.quick() if options.quick else Scale())
        if options.n is not None:
            if options.n < 100:
                parser.error("--n must be at least 100")
            scale = scale.up_to(options.n)
        if options.seconds is not None:
            scale = replace(scale, cell_s=options.seconds, fill_s=10 * options.seconds)
        report = _meet(options, scale, {OURS, FLOOR, *only})
    plots = []
    if options.plots and can_draw():
        plots = draw(report, options.plots)
    elif options.plots:
        print("no plots: matplotlib is not installed", file=sys.stderr)
    if options.json:
        _write_json(options.json, report.as_json())
    floors = _floors(options.floors)
    if options.markdown:
        write(options.markdown, report, floors, plots)
    print(text(report, floors))
    return 0


def _meet(options: argparse.Namespace, scale: Scale, wanted: set[str]) -> Report:
    """Run the workloads with those of the `wanted` peers that are installed."""
    skipped = [name for name in PEERS if name in wanted and missing(name)]
    names = [name for name in PEERS if name in wanted and name not in skipped]
    if skipped:
        print(f"skipped, not installed: {', '.join(skipped)}", file=sys.stderr)
    versions = {name: version(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="mmapdict-benchmarks-", dir=options.dir) as folder:
        field = Field(scale, Path(folder), options.seed, [*names, *wanted.intersection(BARE)])
        facts, lines, took = environment(field.folder, options.seed), list[Line](), dict[str, float]()
        facts["seconds_a_figure"] = scale.cell_s
        for workload in [name for name in CONTESTS if name in options.names or not options.names]:
            start = clock()
            with _announced(workload):
                lines += CONTESTS[workload](field)
            took[workload] = round(clock() - start, 1)
            report = Report(facts, versions, skipped, lines, took)
            if options.json:  # what an interrupted run found so far
                _write_json(options.json, report.as_json())
    return report


@contextlib.contextmanager
def _announced(workload: str) -> Iterator[None]:
    """Say that a workload runs, and how long it took."""
    print(f"{workload} ...", end="", file=sys.stderr, flush=True)
    start = clock()
    yield
    print(f" {clock() - start:,.0f} s", file=sys.stderr, flush=True)


def _floors(paths: Sequence[Path]) -> Floors | None:
    """Return environment and rows of runs without peers, the later of two where both have a row."""
    rows: dict[tuple[str, str], Row] = {}
    facts: dict[str, Any] = {}
    for path in paths:
        content = json.loads(path.read_text())
        dates = [facts.get("date"), content["environment"]["date"]]
        facts = {**content["environment"], "date": ", ".join(filter(None, dates))}
        for plain in content["results"]:
            rows[plain["workload"], plain["case"]] = Row.from_json(plain)
    return (facts, list(rows.values())) if rows else None


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def _parser(program: str, names: Collection[str]) -> argparse.ArgumentParser:
    """Return a parser of the options that all runs have."""
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write environment and figures to FILE")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: a look, not a result")
    parser.add_argument("--seed", type=int, default=1, help="for order of keys and pauses (default: %(default)s)")
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="FOLDER",
        help="where the files go for the time of the run (default: temporary folder)",
    )
    return parser


def _check_names(parser: argparse.ArgumentParser, kind: str, names: Collection[str], known: Collection[str]) -> None:
    if unknown := set(names) - set(known):
        parser.error(f"unknown {kind} {', '.join(sorted(unknown))}; there are {', '.join(known)}")


def _figures(path: Path) -> Mapping[tuple[str, str], float]:
    """Return our own figures of an earlier run, by workload and case."""
    results = json.loads(path.read_text())["results"]
    return {(row["workload"], row["case"]): row["ours"] for row in results}


if __name__ == "__main__":
    sys.exit(main())
