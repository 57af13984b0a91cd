"""The benchmarks run: each workload once, with sizes that make its figures meaningless. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the benchmarks measure against flock and /proc")

from benchmarks.__main__ import main  # noqa: E402
from benchmarks.harness import Row, Samples, Target, alternate, compare, run_child, table  # noqa: E402
from benchmarks.workloads import WORKLOADS, Sizes  # noqa: E402


def test_every_workload_gives_rows_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["--json", str(report), "--dir", str(tmp_path)], Sizes.tiny()) == 0
    printed = capsys.readouterr().out
    content = json.loads(report.read_text())
    assert {"python", "numpy", "mmapdict", "cpu", "file_system", "seed"} <= set(content["environment"])
    results = content["results"]
    titles = [f"{row['workload']}: {row['case']}" for row in results]
    assert len(set(titles)) == len(titles) >= len(WORKLOADS)
    for row, title in zip(results, titles, strict=True):
        assert title in printed
        assert row["ours"] >= 0
        assert (row["met"] is None) == (row["target"] is None)
    assert list(tmp_path.iterdir()) == [report]  # the run removed its files


def test_an_earlier_run_is_shown_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["bytes", "--json", str(report)], Sizes.tiny()) == 0
    assert main(["bytes", "--compare", str(report)], Sizes.tiny()) == 0
    assert "(+0%)" in capsys.readouterr().out


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "unknown workload nonsense" in capsys.readouterr().err


def test_ratio_and_target_follow_the_chosen_statistic() -> None:
    samples = {"ours": Samples((2.0, 6.0, 4.0)), "floor": Samples((1.0, 2.0, 8.0))}
    assert compare("w", "c", "s", samples, most=2.0).ratio == 2.0
    best = compare("w", "c", "ms", samples, by="best", per=2, most=1.9)
    assert (best.ours, best.floor, best.ratio, best.met) == (1000.0, 500.0, 2.0, False)
    assert Row("w", "c", "B", 80, target=Target(80, "value")).met is True
    assert Row("w", "c", "B", 80).met is None


def test_percentiles_are_measured_values() -> None:
    samples = Samples(tuple(float(number) for number in range(100, 0, -1)))
    assert [samples.percentile(share) for share in (0.0, 0.5, 0.9, 0.99, 1.0)] == [1.0, 50.0, 90.0, 99.0, 100.0]


def test_sides_take_turns_and_the_warm_up_is_not_counted() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = alternate(2, ours=lambda: side("ours"), floor=lambda: side("floor"))
    assert order == ["ours", "floor", "floor", "ours", "ours", "floor"]
    assert samples == {"ours": Samples((4.0, 5.0)), "floor": Samples((3.0, 6.0))}


def test_a_child_that_fails_is_reported() -> None:
    with pytest.raises(RuntimeError, match="ended with code 1 and no result"):
        run_child(table, 3)
