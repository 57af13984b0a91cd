"""What the workloads store: small arrays, named arrays, nested dicts, and what joblib measures itself with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

SMALL = 8  # float64 elements of a small array


def small_key(number: int) -> str:
    """Return the key of the small array `number`: seven characters."""
    return f"k{number:06d}"


def small_array(number: int) -> NDArray[numpy.float64]:
    """Return the small array `number`; that number is its first element."""
    return numpy.arange(number, number + SMALL, dtype=numpy.float64)


def named_arrays(count: int) -> dict[str, NDArray[numpy.float64]]:
    """Return `count` samples, each of three named arrays."""
    parts = {"image": 16, "spectrum": 8, "label": 4}
    return {
        f"s{number:05d}.{part}": numpy.full(length, float(number))
        for number in range(count)
        for part, length in parts.items()
    }


def least_nbytes(items: Mapping[str, NDArray[Any]]) -> int:
    """Return the bytes of data and keys alone."""
    return sum(value.nbytes + len(key) for key, value in items.items())


def nested(number: int) -> dict[str, Any]:
    """Return a small dict of mixed values."""
    return {
        "name": f"sample {number}",
        "taken": number / 7,
        "flags": [number % 2 == 0, None, number],
        "place": {"stage": (number % 100, number // 100), "gain": 1.5, "raw": b"\x00\xff" * 4},
    }


def faces(nbytes: int) -> dict[str, Any]:
    """Return made-up face images, each a smooth oval with shades, as a data set of such is: the images and a text."""
    count, side = max(2, nbytes // (2 * 64 * 64 * 4)), 64
    random_ = numpy.random.default_rng(1)
    shades = numpy.kron(random_.random((count, 8, 8), numpy.float32), numpy.ones((8, 8), numpy.float32))
    y, x = numpy.mgrid[-1:1:side * 1j, -1:1:side * 1j]
    images = (shades * (x**2 / 0.6 + y**2 < 1)).astype(numpy.float32)
    people = random_.integers(0, 40, count)
    return {"images": images, "data": images.reshape(count, -1).copy(), "target": people, "about": "faces " * 200}


def three_sizes(parts: int, nbytes: int) -> dict[str, Any]:
    """Return arrays of 1 KiB, ten times as many as `parts`, of 128 KiB, and some of a quarter of `nbytes`."""
    lengths = [128] * 10 * parts + [16 * 1024] * parts + [nbytes // 32] * max(1, parts // 12)
    return {f"a{number}": numpy.arange(number, number + length, dtype=float) for number, length in enumerate(lengths)}


def masked(nbytes: int) -> dict[str, Any]:
    """Return a masked array of `nbytes` without its mask."""
    data = numpy.arange(nbytes // 8, dtype=float).reshape(-1, 64)
    return {"value": numpy.ma.array(data, mask=data % 7 == 0)}


CASES: dict[str, Callable[[int, int, int], dict[str, Any]]] = {  # from numbers, parts, big
    "big dict": lambda numbers, parts, big: {"value": {f"key {n}": n / 3 for n in range(numbers)}},
    "big list": lambda numbers, parts, big: {"value": [n if n % 3 else str(n) for n in range(numbers)]},
    "arrays of three sizes": lambda numbers, parts, big: three_sizes(parts, big),
    "masked array": lambda numbers, parts, big: masked(big),
    "face images": lambda numbers, parts, big: faces(big),
}


def plain_of(items: dict[str, Any]) -> list[Any]:
    """Return something that is equal for equal items: arrays as bytes, with their masks."""
    plain: list[Any] = []
    for _, value in sorted(items.items()):
        if isinstance(value, numpy.ma.MaskedArray):
            plain.append((value.shape, value.data.tobytes(), numpy.ma.getmaskarray(value).tobytes()))
        elif isinstance(value, numpy.ndarray):
            plain.append((value.shape, value.dtype.str, value.tobytes()))
        else:
            plain.append(value)
    return plain
