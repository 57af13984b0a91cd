"""How costs grow with the number of keys, drawn: one SVG for each table that shows it. Needs matplotlib."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from .peers import OURS, PEERS
from .scoreboard import Report


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
            paths.append(folder / f"{stem(title)}.svg")
            figure.savefig(paths[-1], metadata={"Date": None})
    return paths


def stem(title: str) -> str:
    """Return the name of the plot of a table, without suffix."""
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())
