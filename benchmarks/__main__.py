"""Run the benchmarks: ``python -m benchmarks [names...] [--json FILE] [--n N] [--quick]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .harness import Row, environment, table
from .workloads import WORKLOADS, Bench, Sizes


def main(argv: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    """Run the workloads named in `argv` (default: all), print the table, write the JSON; `sizes` overrides theirs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write environment and figures to FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="show the change against an earlier --json FILE")
    parser.add_argument("--n", type=int, help="most keys in a store (default: 100000; --quick: 10000)")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: a look, not a result")
    parser.add_argument("--seed", type=int, default=1, help="for order of keys and pauses (default: %(default)s)")
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="FOLDER",
        help="where the files go for the time of the run (default: temporary folder)",
    )
    options = parser.parse_args(argv)
    if unknown := set(options.names) - set(WORKLOADS):
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
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
            print(f"{workload} ...", file=sys.stderr, flush=True)
            rows += WORKLOADS[workload](bench)
    print(", ".join(f"{key} {value}" for key, value in facts.items() if value is not None), end="\n\n")
    print(table(rows, before))
    if options.json:
        report = {"environment": facts, "results": [row.as_json() for row in rows]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _figures(path: Path) -> Mapping[tuple[str, str], float]:
    """Return our own figures of an earlier run, by workload and case."""
    results = json.loads(path.read_text())["results"]
    return {(row["workload"], row["case"]): row["ours"] for row in results}


if __name__ == "__main__":
    sys.exit(main())
