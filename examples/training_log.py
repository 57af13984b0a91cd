"""The log of a training run: write it row by row, read it, compare it with another, plot both.

    python examples/training_log.py [FOLDER [CSV]]

With a CSV, for example the results.csv of a YOLO run, its rows are logged too, as a run of their own.
"""
import math
import pathlib
import sys

import mmapdict


def train(path, epochs, rate):
    """Stands in for a training. What is logged is in the file when `add` returns, also if the next line crashes."""
    loss = 1.0
    with mmapdict.log(path, mode="w") as log:
        for epoch in range(epochs):
            loss *= 1 - rate
            tested = epoch % 5 == 4                     # all names from the first row on; NaN: not in this epoch
            log.add(epoch=epoch, loss=loss, rate=rate, accuracy=1 - loss if tested else math.nan)
        log.d["note"] = "done"                          # any other value, beside the log


def convert(csv, path):
    """Make a log of a CSV file."""
    with mmapdict.log(path, mode="w") as log:
        log.read_csv(csv)
        print(f"{csv}: {len(log)} rows of {', '.join(log.columns)}")
        return len(log), log.columns


def plot(curves, path):
    """Draw one line for each run, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    axes = (figure := Figure()).subplots()
    for name, (x, y) in curves.items():
        axes.plot(x, y, ".-", label=pathlib.Path(name).stem)
    axes.legend()
    figure.savefig(path)


def main(folder=".", csv=None, epochs=30):
    folder = pathlib.Path(folder)
    runs = {folder / f"rate{rate}.mmapdict": rate for rate in (0.05, 0.2)}
    for path, rate in runs.items():
        train(path, epochs, rate)
        with mmapdict.log(path, mode="r") as log:
            print(f"{path}: least loss {log.min('loss'):.4f}, last accuracy {log.last('accuracy')}")
    plot(mmapdict.compare(runs, "loss", x="epoch"), folder / "loss.png")
    return convert(csv, folder / "imported.mmapdict") if csv else None


if __name__ == "__main__":
    main(*sys.argv[1:3])
