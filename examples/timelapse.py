"""A time-lapse of unknown length: every frame is a row of one array, which others can look at while it grows.

    python examples/timelapse.py [FOLDER]

Start it again after it was killed: it goes on behind the last frame that is whole.
"""
import pathlib
import pickle
import sys
import time

import numpy as np

import mmapdict


def camera(first, frames, shape):
    """Stands in for a camera that fills a buffer which it is given."""
    rng = np.random.default_rng(first)
    for i in range(first, first + frames):
        def shoot(buffer, level=i):
            buffer[...] = rng.integers(0, 100, shape) + level
        yield shoot


def record(path, frames, shape):
    """The capture. A frame and the time when it was taken are one step each; the times come second."""
    with mmapdict.open(path) as d:
        if "frames" not in d:                           # each by itself: it may have died between the two
            d.create_growable("frames", shape, "u2", capacity=frames)       # a guess; it may become more
        if "times" not in d:
            d.create_growable("times", (), "f8", capacity=frames)
        done = len(d["times"])
        d.resize("frames", done)                        # a capture that died before the time left one frame too many
        for shoot in camera(done, frames, shape):
            with d.extend("frames", 1) as rows:         # nobody sees the frame until it is whole
                shoot(rows[0])
            d.append("times", time.time())


def look(path):
    """A viewer, in any process: how many frames there are, and the mean of each tenth. It takes no lock."""
    with mmapdict.open(path, "r") as r:
        frames = r["frames"]                            # mapped: what is not looked at is not read
        return len(frames), [float(frame.mean()) for frame in frames[::10]]


def main(folder=".", frames=50, shape=(120, 160)):
    path = pathlib.Path(folder) / "timelapse.mmapdict"
    record(path, frames, shape)
    n, means = look(path)
    print(f"{path}: {n} frames, means {[round(mean, 1) for mean in means]}")
    with open(path, "rb") as file:                      # whoever gets the file needs Python and numpy, nothing else
        assert pickle.load(file)["frames"].shape == (n, *shape)
    return n


if __name__ == "__main__":
    main(*sys.argv[1:2])
