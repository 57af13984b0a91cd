"""What mmapdict has to reach beside its peers, measured in one run with them; the floors carry their own targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .harness import Row, Target
from .peers import OURS
from .scoreboard import Line

PUT, BATCH = "put a small array, the last of N", "put all N small arrays in batches"
GET, FIRST = "get a small array, read before", "first get of a small array"
OPEN = "open and read one in a new process, import included"
DELETE = "delete one key"
LOG = "add a row of 6 metrics to a log"


@dataclass(frozen=True)
class Goal:
    """The figure of mmapdict in the table `ours` is at most `most` times that of `rival` in `theirs`, at every N."""

    ours: str
    theirs: str
    rival: str
    most: float


GOALS = (
    Goal(OPEN, OPEN, "lmdb", 2.0),
    Goal(GET, GET, "lmdb", 1.0),
    Goal(BATCH, PUT, "lmdb", 1.0),  # a transaction for each key there
    Goal(DELETE, DELETE, "lmdb", 1.0),
    Goal(LOG, LOG, "sqlite3 defaults", 1 / 20),  # a commit, and a wait for the disk, for each row
    Goal(LOG, LOG, "json", 1 / 20),
)


def beside_peers(lines: Sequence[Line]) -> list[Row]:
    """Return a row for each goal and size that was measured."""
    rows = []
    found = {(line.table, line.case): line for line in lines}
    for goal in GOALS:
        for (title, case), line in found.items():
            rival = found.get((goal.theirs, case))
            cell = rival.cells.get(goal.rival) if rival else None
            if title == goal.ours and line.ours is not None and cell and cell.value is not None:
                other = "" if goal.theirs == goal.ours else f" in: {goal.theirs}"
                name = f"{case}, against {goal.rival}{other}"
                rows.append(Row(title, name, line.unit, line.ours, cell.value, Target(goal.most)))
    opened = [line for line in lines if line.table == OPEN and line.ours is not None]
    if len(opened) > 1:
        last, first = opened[-1], opened[0]
        rows.append(Row(OPEN, f"{last.case} against {first.case}, {OURS} both", "ms", last.ours or 0.0, first.ours,
                        Target(1.5)))
    return rows
