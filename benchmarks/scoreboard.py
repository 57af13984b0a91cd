"""What a comparison of several peers found: cells and lines, and these as tables and as JSON.

Smaller is better in every line, so that the smallest figure of a line wins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .harness import UNITS, Samples, amount, grid
from .peers import BARE, FLOOR, OURS, PEERS

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
    for name in in_order([*samples, *reasons]):
        if name in reasons:
            found[name] = Cell(reason=reasons[name])
        else:
            summary = samples[name].scaled(UNITS.get(unit, 1.0)).summary()
            found[name] = Cell(summary[by], summary=summary)
    return found


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of the peers: "h5py groups" behind "h5py", those that are no peers at the end."""
    order = {name: place for place, name in enumerate([*PEERS, *BARE])}
    return sorted(dict.fromkeys(names), key=lambda name: (order.get(name.split()[0], len(order)), name))


@dataclass(frozen=True)
class Report:
    """A whole run: where, with which peers, and what came out."""

    environment: Mapping[str, Any]
    peers: Mapping[str, str]  # name -> version
    skipped: Sequence[str]
    lines: Sequence[Line]
    took: Mapping[str, float] = field(default_factory=dict)  # workload -> seconds

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        plain = {"environment": self.environment, "peers": self.peers, "skipped": self.skipped}
        return {**plain, "took": self.took, "results": [line.as_json() for line in self.lines]}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Report:
        """Return the report of `as_json`."""
        lines = []
        for row in plain["results"]:
            found = {name: Cell(**cell) for name, cell in row["cells"].items()}
            lines.append(Line(row["table"], row["case"], row["unit"], found, row["n"]))
        return cls(plain["environment"], plain["peers"], plain["skipped"], lines, plain["took"])

    @classmethod
    def merged(cls, reports: Sequence[Report]) -> Report:
        """Return the parts of a run as one; a figure that was measured twice is the later one."""
        lines = {(line.table, line.case): line for report in reports for line in report.lines}
        titles = list(dict.fromkeys(title for title, _ in lines))
        ordered = sorted(lines.values(), key=lambda line: titles.index(line.table))
        dates = ", ".join(dict.fromkeys(str(report.environment.get("date")) for report in reports))
        took = {name: seconds for report in reports for name, seconds in report.took.items()}
        peers = {name: version for report in reports for name, version in report.peers.items()}
        skipped = [name for report in reports for name in report.skipped if name not in peers]
        environment = {**reports[0].environment, "date": dates}
        return cls(environment, peers, list(dict.fromkeys(skipped)), ordered, took)

    def tables(self) -> Iterator[tuple[str, list[Line]]]:
        """Yield the title and the lines of each table."""
        for title, lines in itertools.groupby(self.lines, lambda line: line.table):
            yield title, list(lines)


# -- Tables ------------------------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """Return the lines of one table in Markdown: a row for each peer, the best of each column bold, the reasons below.

    In brackets: ratio to mmapdict.
    """
    names = in_order([name for line in lines for name in line.cells])
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
    found = ratio(line.ratio(name))
    return text if not found or name == OURS else f"{text} ({found})"


def ratio(value: float | None) -> str:
    """Return a ratio as the tables say it; empty if there is none."""
    if value is None:
        return ""
    if 0 < value < 0.1:
        return f"1/{1 / value:,.0f}x"
    return f"{value:,.0f}x" if value >= 10 or not value else f"{value:.2f}x"


def overview(lines: Sequence[Line]) -> str:
    """Return a table with one row for each line: mmapdict, the best of the peers, and which of the two wins."""
    rows = [["workload", OURS, "best peer", "peer / mmapdict", "best"], ["---"] * 5]
    for line in lines:
        ranked = [(value, name) for value, name in line.ranked() if name != OURS]
        row = [f"{line.table}: {line.case}", "" if line.ours is None else amount(line.ours, line.unit)]
        row.append(f"{ranked[0][1]} {amount(ranked[0][0], line.unit)}" if ranked else "none can")
        row.append(ratio(line.ratio(ranked[0][1])) if ranked else "")
        row.append(", ".join(f"**{name}**" if name == OURS else name for name in line.winners))
        rows.append(row)
    return grid(rows)


def behind(lines: Sequence[Line]) -> str:
    """Return a list of the figures in which a peer is better than mmapdict, by table: who, and by how much.

    What is less than one percent better is as good.
    """
    items = []
    for title, some in itertools.groupby(lines, lambda line: line.table):
        found = []
        for line in some:
            ours = line.ours or 0.0
            names = [f"{name} {ratio(line.ratio(name))}" for value, name in line.ranked() if value < 0.99 * ours]
            if names:
                found.append(f"{line.case}: {', '.join(names)}")
        if found:
            items.append(f"- **{title}**: {'; '.join(found)}")
    return "\n".join(items) if items else "Nowhere in this run."
