"""The programs in examples/ run, with small sizes, and leave files that others can read."""

import importlib.util
import pathlib
import pickle

import numpy as np
import pytest

import mmapdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REAL = ROOT.parent / "shared" / "data" / "logs" / "yolov5_small_results.csv"
CSV = """epoch,      train/box_loss, metrics/mAP_0.5, note
0, 0.105, 0.125, first
1, 0.093,, later
"""


def load(name):
    """An example, as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(path):
    """What `pickle.load` makes of a file."""
    with open(path, "rb") as file:
        return pickle.load(file)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short_and_documented(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert text.startswith('"""') and f"python examples/{path.name}" in text
    assert 'if __name__ == "__main__":' in text


def test_all_examples_are_tested():
    assert [path.stem for path in EXAMPLES] == ["gradient_store", "timelapse", "training_log"]


def test_timelapse(tmp_path, capsys):
    example = load("timelapse")
    assert example.main(tmp_path, frames=5, shape=(4, 6)) == 5
    assert example.main(tmp_path, frames=5, shape=(4, 6)) == 10         # it goes on
    found = plain(tmp_path / "timelapse.mmapdict")
    assert found["frames"].shape == (10, 4, 6) and found["frames"].dtype == np.uint16
    assert found["times"].shape == (10,) and (np.diff(found["times"]) >= 0).all()
    assert "10 frames" in capsys.readouterr().out


def test_timelapse_goes_on_after_a_death_between_frame_and_time(tmp_path):
    example = load("timelapse")
    example.main(tmp_path, frames=3, shape=(4, 6))
    with mmapdict.open(tmp_path / "timelapse.mmapdict") as d:
        d.append("frames", np.ones((4, 6), "u2"))
    assert example.main(tmp_path, frames=2, shape=(4, 6)) == 5
    assert len(plain(tmp_path / "timelapse.mmapdict")["times"]) == 5


def test_timelapse_goes_on_after_a_death_between_its_two_arrays(tmp_path):
    example = load("timelapse")
    with mmapdict.open(tmp_path / "timelapse.mmapdict") as d:
        d.create_growable("frames", (4, 6), "u2")
    assert example.main(tmp_path, frames=2, shape=(4, 6)) == 2
    assert len(plain(tmp_path / "timelapse.mmapdict")["times"]) == 2


def test_the_camera_of_the_timelapse_goes_on(tmp_path):
    example = load("timelapse")
    for _ in range(2):
        example.main(tmp_path, frames=100, shape=(4, 6))
    means = plain(tmp_path / "timelapse.mmapdict")["frames"].mean(axis=(1, 2))
    assert means[:50].max() < 150 < means[150:].min()


def test_training_log(tmp_path, capsys):
    (tmp_path / "results.csv").write_text(CSV, encoding="utf-8")
    found = load("training_log").main(tmp_path, tmp_path / "results.csv", epochs=6)
    assert found == (2, ["epoch", "train/box_loss", "metrics/mAP_0.5", "note"])
    run = plain(tmp_path / "rate0.2.mmapdict")
    log = run["log"]
    assert np.isclose(log["loss"].min(), 0.8 ** 6) and log["epoch"].tolist() == [0, 1, 2, 3, 4, 5]
    assert np.flatnonzero(~np.isnan(log["accuracy"])).tolist() == [4] and run["note"] == "done"
    imported = plain(tmp_path / "imported.mmapdict")["log"]
    assert imported["train/box_loss"].tolist() == [0.105, 0.093] and np.isnan(imported["metrics/mAP_0.5"][1])
    shown = capsys.readouterr().out
    assert "least loss 0.2621" in shown and "2 rows of epoch, train/box_loss" in shown and "None" not in shown
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "loss.png").stat().st_size > 0


@pytest.mark.skipif(not REAL.exists(), reason="the log of a real run is not there")
def test_training_log_of_a_real_run(tmp_path):
    n, columns = load("training_log").main(tmp_path, REAL, epochs=5)
    lines = REAL.read_text(encoding="utf-8").splitlines()
    assert n == len(lines) - 1 and columns == [name.strip() for name in lines[0].split(",")]
    with mmapdict.log(tmp_path / "imported.mmapdict", mode="r") as log:
        assert list(log[-1].values()) == [float(cell) for cell in lines[-1].split(",")]


def test_gradient_store(tmp_path, capsys):
    example = load("gradient_store")
    assert example.main(tmp_path, samples=9, inputs=3, width=2) == 9
    assert example.main(tmp_path, samples=12, inputs=3, width=2) == 12         # those that are missing
    store = plain(tmp_path / "gradients.mmapdict")["samples"]
    assert store["values"]["fc1"]["weight"].shape == (12, 3, 2) and len(store["ids"]) == 12
    shown = capsys.readouterr().out
    assert "of 12 samples pull the other way" in shown and "largest gradients: image 0" in shown
