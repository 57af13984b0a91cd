"""A comparison with peers, and what the floors showed, as one text of Markdown: the page of the documentation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .harness import Row, grid, table as rows_table
from .peers import PEERS
from .plots import stem
from .scoreboard import Report, behind, overview, table
from .targets import beside_peers

Floors = tuple[Mapping[str, Any], Sequence[Row]]  # environment and rows of a run against the floors

HEAD = """\
# What mmapdict costs

Made by `python -m benchmarks`; [how it is measured](../benchmarks/README.md). Nothing here was written by hand.
"""
HOW = """\
- Smaller is better in every figure. The ratio in brackets is to mmapdict: above 1x the peer takes more, below it less.
- The best of each column is bold. A cell without a figure has a number, and the reason for it is below its table:
  "no" is what a peer cannot do, "stopped" what it did not do in the time that there was for it.
- All peers run in turn in the same run, without fsync, the page cache warm. Medians of the rounds.
- Both axes of the plots are logarithmic: a flat line is a cost that does not grow with the number of keys.
- Figures of another machine are other ones; the ratios are less so."""
TARGETS = """\
What was set as a goal, and what was measured. *Against* is the floor of the same run (the least that the system can do
for the same work, [what each is](../benchmarks/README.md#workloads)), a smaller store, or a peer."""
WINS = "By at least one percent. The ratio is the peer's figure to that of mmapdict; the best is named first."
FLOORS = "The same work beside the least that the system needs for it; these have no target."


def text(report: Report, floors: Floors | None = None, plots: Mapping[str, str] | None = None) -> str:
    """Return the whole report in Markdown.

    Parameters
    ----------
    floors
        Of a run against the floors, to be shown with it.
    plots
        The addresses of the plots, by titles of tables.
    """
    rows = [row for row in (floors[1] if floors else ())]
    aimed = [row for row in rows if row.target] + beside_peers(report.lines)
    parts = ["## Where", _facts("Beside the peers", report.environment)]
    if floors:
        parts.append(_facts("Against the floors", floors[0]))
    parts.append("Peers: " + ", ".join(f"{name} {version}" for name, version in report.peers.items()) + ".")
    if report.skipped:
        parts.append(f"Skipped, because not installed: {', '.join(report.skipped)}.")
    parts += ["## How to read it", HOW]
    if aimed:
        missed = [row for row in aimed if not row.met]
        found = f"{len(aimed) - len(missed)} of {len(aimed)} were reached."
        parts += ["## Targets", TARGETS, found, rows_table(aimed, against="against")]
    parts += ["## Where a peer wins", WINS, behind(report.lines)]
    parts += ["## Overview", overview(report.lines)]
    for title, lines in report.tables():
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n{table(lines)}")
        if plots and title in plots:
            parts.append(f"![{title}, against the number of keys]({plots[title]})")
    if others := [row for row in rows if not row.target]:
        parts += ["## More against the floors", FLOORS, rows_table(others)]
    remarks = [f"- {name}: {PEERS[name].remark}." for name in report.peers if PEERS[name].remark]
    if remarks:
        parts += ["## About the peers", "\n".join(remarks)]
    return "\n\n".join(parts)


def _facts(title: str, environment: Mapping[str, Any]) -> str:
    facts = [[key.replace("_", " "), str(value)] for key, value in environment.items() if value is not None]
    return grid([[title, ""], ["---", "---"], *facts])


def write(path: Path, report: Report, floors: Floors | None = None, plots: Sequence[Path] = ()) -> None:
    """Write the report as a page of the documentation; `plots` are the files that `draw` returned."""
    found = {plot.stem: plot for plot in plots}
    links = {}
    for title, _ in report.tables():
        if plot := found.get(stem(title)):
            links[title] = os.path.relpath(plot, path.parent).replace(os.sep, "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEAD}\n{text(report, floors, links)}\n", encoding="utf-8")
