"""The benchmarks run: each workload once, with sizes that make its figures meaningless. No time is asserted."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

pytest.importorskip("resource", reason="the benchmarks measure against flock and /proc")

from benchmarks import field, fresh, page  # noqa: E402
from benchmarks.__main__ import against_peers, main  # noqa: E402
from benchmarks.adapter import Peer, Unable, size_of  # noqa: E402
from benchmarks.against import CONTESTS  # noqa: E402
from benchmarks.bench import Sizes  # noqa: E402
from benchmarks.data import CASES, SMALL, nested, plain_of, small_array, small_key  # noqa: E402
from benchmarks.field import Scale, race  # noqa: E402
from benchmarks.floors import Board, new_memmap, store_rows  # noqa: E402
from benchmarks.growers import (  # noqa: E402
    LOGS,
    NBYTES,
    PATHS,
    ROWS,
    SHAPE,
    SHELVES,
    WIDTH,
    Grower,
    Logs,
    Rows,
    Shelf,
    data_id,
    metrics,
    sample,
)
from benchmarks.harness import Row, Samples, Target, alternate, compare, run_child, table  # noqa: E402
from benchmarks.peers import BARE, PEERS, missing  # noqa: E402
from benchmarks.plots import draw  # noqa: E402
from benchmarks.scoreboard import Cell, Line, Report, behind, cells, in_order  # noqa: E402
from benchmarks.targets import BATCH, GET, LOG, OPEN, PUT, beside_peers  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402


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


# -- Beside other libraries --------------------------------------------------------------------------------------------


@pytest.fixture(params=[name for name in PEERS])
def peer(request: pytest.FixtureRequest) -> type[Peer]:
    if missing(request.param):
        pytest.skip(f"{request.param} is not installed")
    return PEERS[request.param]


def test_a_peer_stores_arrays_and_reads_them_back(peer: type[Peer], tmp_path: Path) -> None:
    arrays = {small_key(number): small_array(number) for number in range(6)}
    store = peer(tmp_path, "w")
    store.fill({key: arrays[key] for key in list(arrays)[:4]})
    for key in list(arrays)[4:]:
        store.put(key, arrays[key])
    store.close()
    store = peer(tmp_path, "a")
    store.delete(small_key(1))
    assert sum(1 for _ in store.prune([small_key(2), small_key(5)])) in (1, 2)
    try:
        store.compact()
    except Unable as exc:
        assert str(exc)
    store.close()
    assert size_of(tmp_path) >= 3 * SMALL * 8
    store = peer(tmp_path, "r")
    left = [small_key(number) for number in (0, 3, 4)]
    assert sorted(store.keys()) == left
    for found in (store.read_all(), store.load_all(), {key: store.get(key) for key in left}):
        assert sorted(found) == left
        for key, array in found.items():
            assert array.dtype == arrays[key].dtype and array.tolist() == arrays[key].tolist()
    assert store.find(small_key(1), 0.0) is None
    with pytest.raises(KeyError):
        store.get(small_key(2))
    del found, array  # lmdb's are views of its transaction
    store.close()
    assert fresh.look(peer.module, peer.look, str(tmp_path / "store"), small_key(3)).first == 3


def test_a_peer_keeps_other_values_and_other_arrays(peer: type[Peer], tmp_path: Path) -> None:
    values = {"nested": nested(3), "list": [1, "two", None], "image": numpy.arange(12, dtype="f4").reshape(3, 4)}
    store = peer(tmp_path, "w", known=False)
    store.fill(values)
    store.close()
    store = peer(tmp_path, "r", known=False)
    for found in (store.read_all(), store.load_all()):
        assert plain_of(found) == plain_of(values)
    store.close()


def test_a_masked_array_comes_back_or_is_refused(peer: type[Peer], tmp_path: Path) -> None:
    values = CASES["masked array"](0, 0, 1024)
    store = peer(tmp_path, "w", known=False)
    try:
        store.fill(values)
    except Unable as exc:
        assert str(exc) == "keeps no mask"
        store.close()
        return
    store.close()
    store = peer(tmp_path, "r", known=False)
    assert plain_of(store.load_all()) == plain_of(values)
    store.close()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the functions of child processes in this one: dozens of interpreters would take too long."""
    monkeypatch.setattr(field, "run_child", lambda function, *args: function(*args))


def test_all_contests_give_lines_json_and_a_page(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, report_page = tmp_path / "report.json", tmp_path / "docs" / "page.md"
    names = [name for name in CONTESTS if name != "follow"]
    files = ["--json", str(report), "--markdown", str(report_page), "--dir", str(tmp_path)]
    arguments = ["--only", "npy,npz,sqlite3", *files]
    assert against_peers([*names, *arguments], Scale.tiny()) == 0
    printed = capsys.readouterr().out
    content = json.loads(report.read_text())
    assert list(content["peers"]) == ["mmapdict", "npy", "npz", "sqlite3", "pickle"]
    titles = [(row["table"], row["case"]) for row in content["results"]]
    assert len(set(titles)) == len(titles)
    for row in content["results"]:
        assert row["table"][1:] in printed and row["case"] in printed
        assert row["cells"]["mmapdict"]["value"] is not None
        best = min(cell["value"] for name, cell in row["cells"].items() if name != "pickle" and not cell["reason"])
        assert all(row["cells"][name]["value"] == best for name in row["winners"]) and row["winners"]
        for cell in row["cells"].values():
            assert (cell["value"] is None) == bool(cell["reason"])
            assert not cell["reason"].startswith("failed")
    assert "keeps no mask" in printed
    assert report_page.read_text().endswith(printed)
    assert "## Where a peer wins" in printed and f"{OPEN}: 16 keys against 8 keys" in printed
    assert set(content["took"]) == set(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "report.json"]
    assert against_peers(["--load", str(report)]) == 0
    assert capsys.readouterr().out == printed


def test_a_reader_follows_a_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert against_peers(["follow", "--only", "sqlite3,shelve", "--dir", str(tmp_path)], Scale.tiny()) == 0
    printed = capsys.readouterr().out
    assert "failed" not in printed and "no (1)" in printed
    assert PEERS["shelve"].follows in printed


def test_a_peer_that_is_not_installed_is_skipped_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PEERS["zarr"], "module", "no_such_module_as_this")
    report = tmp_path / "report.json"
    assert against_peers(["put", "--only", "npy,zarr", "--json", str(report)], Scale.tiny()) == 0
    printed = capsys.readouterr()
    assert "not installed: zarr" in printed.out and "not installed: zarr" in printed.err
    content = json.loads(report.read_text())
    assert content["skipped"] == ["zarr"] and "zarr" not in content["peers"]


def test_a_peer_that_takes_too_long_is_stopped_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(field, "CHUNK", 1)

    def slow(self: Peer, items: dict[str, object]) -> None:
        time.sleep(0.02)

    monkeypatch.setattr(PEERS["npy"], "fill", slow)
    scale = replace(Scale.tiny(), fill_s=0.05)
    assert against_peers(["first", "--only", "npy"], scale) == 0
    printed = capsys.readouterr().out
    assert "stopped (1)" in printed and "of 8 keys" in printed


def test_what_a_peer_cannot_do_is_a_reason_and_our_failure_is_an_error() -> None:
    def fail() -> float:
        raise OSError("broken")

    def refuse() -> float:
        raise Unable("never")

    reasons: dict[str, str] = {}
    samples = race(1, 1.0, {"mmapdict": lambda: 2.0, "npz": fail, "zarr": refuse, "lmdb": lambda: 1.0}, reasons)
    found = cells(samples, reasons, "s")
    assert [(name, cell.value, cell.reason) for name, cell in found.items()] == [
        ("mmapdict", 2.0, ""),
        ("npz", None, "failed: OSError: broken"),
        ("zarr", None, "never"),
        ("lmdb", 1.0, ""),
    ]
    line = Line("t", "c", "s", found)
    assert (line.winners, line.ratio("lmdb"), line.ratio("npz")) == (["lmdb"], 0.5, None)
    with pytest.raises(OSError, match="broken"):
        race(1, 1.0, {"mmapdict": fail}, {})


def test_plots_show_lines_that_grow(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = [
        Line("get", f"{n} keys", "us", {"mmapdict": Cell(n / 2), "zarr": Cell(reason="stopped: too long")}, n)
        for n in (10, 100)
    ]
    report = Report({"python": "3"}, {"mmapdict": "1"}, [], [*lines, Line("size", "all", "B", {"mmapdict": Cell(1.0)})])
    plots = draw(report, tmp_path / "plots")
    assert [path.name for path in plots] == ["get.svg"]
    assert "mmapdict" in plots[0].read_text() and "zarr" not in plots[0].read_text()
    page.write(tmp_path / "page.md", report, plots=plots)
    assert "](plots/get.svg)" in (tmp_path / "page.md").read_text()


def test_parts_of_a_run_and_its_floors_make_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts, floors = [tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "floors.json"
    for part, workload in zip(parts, ("metadata", "put"), strict=True):
        assert against_peers([workload, "--only", "npy", "--json", str(part)], Scale.tiny()) == 0
    assert main(["bytes", "--json", str(floors)], Sizes.tiny()) == 0
    capsys.readouterr()
    assert against_peers(["--load", *map(str, parts), "--floors", str(floors)]) == 0
    printed = capsys.readouterr().out
    for part in ("Against the floors", "bytes: record of a small array", "reload the list", PUT[1:], BATCH[1:]):
        assert part in printed


def test_a_figure_that_was_measured_again_is_the_later_one() -> None:
    def report(value: float, *titles: str) -> Report:
        lines = [Line(title, "all", "us", {"mmapdict": Cell(value)}) for title in titles]
        return Report({"date": value}, {"mmapdict": "1"}, [], lines, {titles[0]: value})

    merged = Report.merged([report(1.0, "a", "b"), report(2.0, "c", "a")])
    assert [(line.table, line.ours) for line in merged.lines] == [("a", 2.0), ("b", 1.0), ("c", 2.0)]
    assert (merged.environment["date"], merged.took) == ("1.0, 2.0", {"a": 1.0, "c": 2.0})


def test_the_targets_beside_peers_are_found_in_the_figures() -> None:
    figures = {GET: (2.0, 1.0), PUT: (9.0, 4.0), BATCH: (3.0, 1.0)}
    lines = [
        Line(title, "8 keys", "us", {"mmapdict": Cell(ours), "lmdb": Cell(other)}, 8)
        for title, (ours, other) in figures.items()
    ]
    rows = {row.workload: row for row in beside_peers(lines)}
    assert set(rows) == {GET, BATCH}
    assert (rows[GET].ratio, rows[GET].met, rows[BATCH].ratio, rows[BATCH].met) == (2.0, False, 0.75, True)
    assert "**get" in behind(lines) and "8 keys: lmdb 0.50x" in behind(lines)
    assert Row.from_json(json.loads(json.dumps(rows[GET].as_json()))) == rows[GET]


# -- Data that grow ----------------------------------------------------------------------------------------------------


def installed(kind: type[Grower]) -> type[Grower]:
    name = kind.name.split()[0]
    if name not in BARE and missing(name):
        pytest.skip(f"{name} is not installed")
    return kind


@pytest.mark.parametrize("kind", ROWS.values(), ids=list(ROWS))
def test_rows_are_appended_one_by_one_and_at_once(kind: type[Rows], tmp_path: Path) -> None:
    rows = numpy.arange(12 * WIDTH, dtype="f4").reshape(-1, WIDTH)
    store = installed(kind)(tmp_path, most=len(rows))
    assert isinstance(store, Rows)
    store.append(rows[0])
    store.extend(rows[1:4])
    try:
        store.run(list(rows[4:]))
    except Unable:
        store.extend(rows[4:])
    assert store.read().tolist() == rows.tolist()
    store.close()
    assert size_of(tmp_path) >= rows.nbytes


@pytest.mark.parametrize("kind", LOGS.values(), ids=list(LOGS))
def test_a_log_has_the_rows_that_were_added(kind: type[Logs], tmp_path: Path) -> None:
    log = installed(kind)(tmp_path)
    assert isinstance(log, Logs)
    log.fill([metrics(number) for number in range(3)])
    log.add(metrics(3))
    log.add(metrics(4))
    assert log.losses() == [metrics(number)["loss"] for number in range(5)]
    log.close()


@pytest.mark.parametrize("kind", SHELVES.values(), ids=list(SHELVES))
def test_samples_are_found_by_their_ids_and_by_the_names_of_arrays(kind: type[Shelf], tmp_path: Path) -> None:
    store = installed(kind)(tmp_path, most=5)
    assert isinstance(store, Shelf)
    store.fill([(data_id(number), sample(number)) for number in range(3)])
    store.add(data_id(3), sample(3))
    store.fill([(data_id(4), sample(4))])
    store.close()
    assert size_of(tmp_path) >= 5 * len(PATHS) * NBYTES
    store = kind(tmp_path, "r")
    for number in range(5):
        found = store.get(data_id(number))
        assert {path: array.tolist() for path, array in found.items()} == {
            path: array.tolist() for path, array in sample(number).items()
        }
    column = store.column(PATHS[1], [data_id(number) for number in range(5)])
    assert column.shape == (5, *SHAPE) and column[:, 0, 0].tolist() == list(range(5))
    del found, column  # some are views of a transaction or of a map
    store.close()


def test_growing_data_of_all_peers_give_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert against_peers(["append", "log", "samples", "--json", str(report), "--dir", str(tmp_path)], Scale.tiny()) == 0
    printed = capsys.readouterr().out
    assert "failed" not in printed and f"{LOG}: 2 are there, against json" in printed
    results = json.loads(report.read_text())["results"]
    assert len({(row["table"], row["case"]) for row in results}) == len(results) == 10
    for row in results:
        names = [name for name, cell in row["cells"].items() if cell["value"] is not None]
        assert names[0] == "mmapdict" and len(names) >= 3
        assert list(row["cells"]) == in_order(reversed(row["cells"]))
    assert list(tmp_path.iterdir()) == [report]


def test_only_the_wanted_grow(capsys: pytest.CaptureFixture[str]) -> None:
    assert against_peers(["log", "samples", "--only", "json"], Scale.tiny()) == 0
    printed = capsys.readouterr().out
    assert "json compact" in printed
    assert "sqlite3" not in printed and "csv" not in printed


def test_variants_stand_behind_their_peers_and_bare_ones_at_the_end() -> None:
    mixed = ["json compact", "memmap", "sqlite3 defaults", "h5py groups", "json", "sqlite3", "mmapdict", "h5py", "json"]
    assert in_order(mixed) == [
        "mmapdict", "h5py", "h5py groups", "sqlite3", "sqlite3 defaults", "memmap", "json", "json compact"
    ]  # fmt: skip


def test_the_floor_of_rows_stores_them_one_behind_the_other(tmp_path: Path) -> None:
    array = new_memmap(str(tmp_path / "rows"), (4, 2), "f4")
    rows = numpy.arange(8, dtype="f4").reshape(4, 2)
    assert store_rows(array, [rows[:2], rows[2:]], 2) >= 0
    assert array.tolist() == rows.tolist()


def test_a_fresh_process_reads_and_says_what_broke() -> None:
    found = fresh.look("os", "value = [float(key)]", "nothing", "7")
    assert found.first == 7.0 and 0 <= found.apart <= found.beyond < found.whole
    with pytest.raises(fresh.Broken, match="KeyError: 'nothing'"):
        fresh.look("os", "value = {}[path]", "nothing", "7")


def test_a_board_tells_the_age_of_each_number(tmp_path: Path) -> None:
    board = Board(str(tmp_path / "board"))
    for number in (1, 2):
        board.publish(number)
    assert board.number() == 2 and board.age(1) >= board.age(2) >= 0
