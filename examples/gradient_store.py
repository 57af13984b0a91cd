"""Gradients of each sample of a data set, in one file: written one by one, read by sample, by layer, or in batches.

    python examples/gradient_store.py [FOLDER]
"""
import pathlib
import sys

import numpy as np

import mmapdict


def gradients(weights, x, y):
    """Gradients of a small network's squared error, for one sample: x -> tanh -> number."""
    hidden = np.tanh(x @ weights["fc1"])
    error = hidden @ weights["fc2"] - y
    back = error * weights["fc2"] * (1 - hidden ** 2)
    return {"fc1": {"weight": np.outer(x, back), "bias": back}, "fc2": {"weight": error * hidden},
            "loss": 0.5 * error ** 2}


def main(folder=".", samples=200, inputs=16, width=8):
    rng = np.random.default_rng(0)
    weights = {"fc1": rng.normal(size=(inputs, width)), "fc2": rng.normal(size=width)}
    xs, ys = rng.normal(size=(samples, inputs)), rng.normal(size=samples)
    path = pathlib.Path(folder) / "gradients.mmapdict"

    with mmapdict.samples(path, capacity=samples) as store:
        for i, (x, y) in enumerate(zip(xs, ys)):
            if f"image {i:05}" not in store:            # started again: what is there is not computed again
                store.add(f"image {i:05}", gradients(weights, x, y))

    with mmapdict.samples(path, mode="r") as store:
        one = store["image 00003"]                      # a nested dict of arrays, mapped
        print("one sample:", one["fc1"]["weight"].shape, "loss", round(float(one["loss"]), 3))

        norms = np.linalg.norm(store.path("fc1", "weight"), axis=(1, 2))    # one array of all samples
        ids = store.ids                                 # all of them, in the order of the rows: ask once
        print("largest gradients:", ", ".join(ids[np.argsort(norms)[-3:]]))

        total = np.zeros((inputs, width))
        for _, batch in store.batches(64):              # ids and arrays: views, 64 samples at a time
            total += batch["fc1"]["weight"].sum(axis=0)
        mean = total / len(store)

        flat = store.path("fc1", "weight").reshape(len(store), -1)
        against = ids[flat @ mean.ravel() < 0]
        print(f"{len(against)} of {len(store)} samples pull the other way")
    return len(norms)


if __name__ == "__main__":
    main(*sys.argv[1:2])
