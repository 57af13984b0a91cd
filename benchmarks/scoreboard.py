"""What a comparison of several peers found: cells and lines, and these as tables, as JSON, as plots, as a page of docs.

Smaller is better in every line, so that the smallest figure of a line wins.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .harness import UNITS, Samples, amount, grid
from .peers import FLOOR, OURS, PEERS

STOPPED = "stopped"  # how a reason begins that is about time and not about what a peer can do


@dataclass(frozen=True)
class Cell:
    """The figure of one peer, or the reason why there is none."""

    value: float | None = None
    reason: str = ""
    summary: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """One figure of each peer: a column of the table `table`, a point of its plot if it is of stores of `n` keys."""

    table: str
    case: str
    unit: str
    cells: Mapping[str, Cell]
    n: int | None = None

    @property
    def ours(self) -> float | None:
        """The figure of mmapdict."""
        return self.cells[OURS].value if OURS in self.cells else None

    def ranked(self, but: str = FLOOR) -> list[tuple[float, str]]:
        """Return figure and name of all peers that have a figure, the best first, without the floor."""
        found = [(cell.value, name) for name, cell in self.cells.items() if name != but and cell.value is not None]
        return sorted(found)

    @property
    def winners(self) -> list[str]:
        """The names of all peers that have the smallest figure."""
        ranked = self.ranked()
        return [name for value, name in ranked if value == ranked[0][0]]

    def ratio(self, name: str) -> float | None:
        """Return the figure of a peer divided by ours; None without either, or if ours is zero."""
        value = self.cells[name].value
        return value / self.ours if value is not None and self.ours else None

    def as_json(self) -> dict[str, Any]:
        """Return the line as plain values."""
        ratios = {name: self.ratio(name) for name in self.cells}
        return {**asdict(self), "ratios": ratios, "winners": self.winners}


def cells(samples: Mapping[str, Samples], reasons: Mapping[str, str], unit: str, by: str = "median") -> dict[str, Cell]:
    """Return a cell for each name in `samples` (seconds, or what `unit` says) or `reasons`, in the order of the peers.

    Parameters
    ----------
    by : str
        Which of ``Samples.summary()`` stands for a peer.
    """
    found = {}
    for name in [peer for peer in PEERS if peer in samples or peer in reasons]:
        if name in reasons:
            found[name] = Cell(reason=reasons[name])
        else:
            summary = samples[name].scaled(UNITS.get(unit, 1.0)).summary()
            found[name] = Cell(summary[by], summary=summary)
    return found


@dataclass(frozen=True)
class Report:
    """A whole run: where, with which peers, and what came out."""

    environment: Mapping[str, Any]
    peers: Mapping[str, str]  # name -> version
    skipped: Sequence[str]
    lines: Sequence[Line]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        plain = {"environment": self.environment, "peers": self.peers, "skipped": self.skipped}
        return {**plain, "results": [line.as_json() for line in self.lines]}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Report:
        """Return the report of `as_json`."""
        lines = []
        for row in plain["results"]:
            found = {name: Cell(**cell) for name, cell in row["cells"].items()}
            lines.append(Line(row["table"], row["case"], row["unit"], found, row["n"]))
        return cls(plain["environment"], plain["peers"], plain["skipped"], lines)

    def tables(self) -> Iterator[tuple[str, list[Line]]]:
        """Yield the title and the lines of each table."""
        for title, lines in itertools.groupby(self.lines, lambda line: line.table):
            yield title, list(lines)


# -- Tables ------------------------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """Return the lines of one table in Markdown: a row for each peer, the best of each column bold, the reasons below.

    In brackets: ratio to mmapdict.
    """
    names = [name for name in PEERS if any(name in line.cells for line in lines)]
    reasons: dict[str, dict[str, list[str]]] = {}  # in the order of their marks: peer -> cases
    rows = [["peer", *(line.case for line in lines)], ["---"] * (1 + len(lines))]
    for name in names:
        row = [f"{name} (floor)" if name == FLOOR else name]
        for line in lines:
            row.append(_cell(line, name, reasons))
        rows.append(row)
    rows.append(["**best**", *(", ".join(line.winners) for line in lines)])
    notes = []
    for mark, (reason, found) in enumerate(reasons.items(), 1):
        where = []
        for cases, peers in itertools.groupby(found, lambda name: found[name]):
            named = ", ".join(peers)
            where.append(named if len(cases) == len(lines) else f"{named} ({', '.join(cases)})")
        notes.append(f"- ({mark}) {', '.join(where)}: {reason}")
    return "\n\n".join([grid(rows), "\n".join(notes)] if notes else [grid(rows)])


def _cell(line: Line, name: str, reasons: dict[str, dict[str, list[str]]]) -> str:
    """Return a figure and its ratio as text; put the reason for none into `reasons`."""
    cell = line.cells.get(name)
    if cell is None:
        return ""
    if cell.value is None:
        reasons.setdefault(cell.reason, {}).setdefault(name, []).append(line.case)
        word = STOPPED if cell.reason.startswith(STOPPED) else "no"
        return f"{word} ({list(reasons).index(cell.reason) + 1})"
    text = amount(cell.value, line.unit)
    if name in line.winners:
        text = f"**{text}**"
    ratio = line.ratio(name)
    return text if ratio is None or name == OURS else f"{text} ({_ratio(ratio)})"


def _ratio(ratio: float) -> str:
    if 0 < ratio < 0.1:
        return f"1/{1 / ratio:,.0f}x"
    return f"{ratio:,.0f}x" if ratio >= 10 or not ratio else f"{ratio:.2f}x"


def overview(lines: Sequence[Line]) -> str:
    """Return a table with one row for each line: mmapdict, the best of the peers, and which of the two wins."""
    rows = [["workload", OURS, "best peer", "peer / mmapdict", "best"], ["---"] * 5]
    for line in lines:
        ranked = [(value, name) for value, name in line.ranked() if name != OURS]
        row = [f"{line.table}: {line.case}", "" if line.ours is None else amount(line.ours, line.unit)]
        ratio = line.ratio(ranked[0][1]) if ranked else None
        row.append(f"{ranked[0][1]} {amount(ranked[0][0], line.unit)}" if ranked else "none can")
        row.append("" if ratio is None else _ratio(ratio))
        row.append(", ".join(f"**{name}**" if name == OURS else name for name in line.winners))
        rows.append(row)
    return grid(rows)


def text(report: Report, plots: Mapping[str, str] | None = None) -> str:
    """Return the whole report in Markdown; `plots` maps the titles of tables to the addresses of their plots."""
    facts = ", ".join(f"{key} {value}" for key, value in report.environment.items() if value is not None)
    parts = [facts, "Peers: " + ", ".join(f"{name} {version}" for name, version in report.peers.items()) + "."]
    if report.skipped:
        parts.append(f"Skipped, because not installed: {', '.join(report.skipped)}.")
    parts += [f"## Overview\n\nSmaller is better in every figure.\n\n{overview(report.lines)}"]
    for title, lines in report.tables():
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n{table(lines)}")
        if plots and title in plots:
            parts.append(f"![{title}, against the number of keys]({plots[title]})")
    remarks = [f"- {name}: {PEERS[name].remark}." for name in report.peers if PEERS[name].remark]
    if remarks:
        parts.append("## About the peers\n\n" + "\n".join(remarks))
    return "\n\n".join(parts)


HEAD = """\
# mmapdict and its peers

Made by `python -m benchmarks peers`; [how it is measured](../benchmarks/README.md). All run in turn in the same run,
without fsync, the page cache warm. Ratios are to mmapdict: above 1 the peer takes more. The best of each column is
bold; a figure that is missing has its reason below the table.
"""


def write_markdown(path: Path, report: Report, plots: Sequence[Path] = ()) -> None:
    """Write the report as a page of the documentation; `plots` are the files that `draw` returned."""
    found = {path.stem: path for path in plots}
    links = {}
    for title, _ in report.tables():
        if plot := found.get(_stem(title)):
            links[title] = os.path.relpath(plot, path.parent).replace(os.sep, "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEAD}\n{text(report, links)}\n", encoding="utf-8")


# -- Plots -------------------------------------------------------------------------------------------------------------


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(report: Report, folder: Path) -> list[Path]:
    """Draw how each cost grows with the number of keys, one SVG for each table that shows it; return their paths."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    styles = {name: (f"C{number % 10}", "os^vD<>ph*X"[number % 11]) for number, name in enumerate(PEERS)}
    for title, lines in report.tables():
        if len({line.n for line in lines if line.n is not None}) < 2:
            continue
        with matplotlib.rc_context({"svg.hashsalt": "mmapdict", "svg.fonttype": "none"}):
            figure = figures.Figure(figsize=(7, 4.5), layout="constrained")
            axes = figure.add_subplot()
            for name, (color, marker) in styles.items():
                points = [(line.n, line.cells[name].value) for line in lines if name in line.cells]
                points = [(n, value) for n, value in points if n is not None and value]
                if points:
                    bold = name == OURS
                    axes.plot(
                        *zip(*points, strict=True),
                        label=name,
                        color="black" if bold else color,
                        marker=marker,
                        markersize=4,
                        linewidth=3 if bold else 1.2,
                        zorder=3 if bold else 2,
                    )
            axes.set(xscale="log", yscale="log", xlabel="keys in the store", ylabel=lines[0].unit, title=title)
            axes.grid(True, which="major", alpha=0.3)
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small")
            paths.append(folder / f"{_stem(title)}.svg")
            figure.savefig(paths[-1], metadata={"Date": None})
    return paths


def _stem(title: str) -> str:
    """Return the name of the plot of a table, without suffix."""
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())
