"""A simulated line-scan (push-broom) camera: it looks at a `Source` and delivers one camera frame after the other.

Such a camera sees one line of the scene at a time, spread into its spectrum; the scene moves under it. A scan is a cube
(y, x, wavelength) and arrives as y camera frames of shape (x, wavelength). A time-lapse is one scan per time step.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mmapdict.sources import Array, Source, SourceError, open_micrograph

# The demo's own picture: scan size, bands, and 12-bit counts made of its 8-bit values.
MICROGRAPH_SHAPE = (320, 400, 120)
MICROGRAPH_GAIN = 16.0

_NOISE_SAMPLES = 1 << 20


class Camera:
    """The camera: `line` gives what it delivers.

    A source with time steps is delivered as it is, one time step per scan. A single picture drifts a little between
    the time steps, by whole pixels, so that its numbers stay what they were. A picture is cut, or mirrored at its
    edges, to the wanted size; bands are interpolated when another number of them is wanted.

    Parameters
    ----------
    source : Source
        What the camera looks at.
    shape : (int, int, int), optional
        Lines, pixels and bands of a scan; by default the source's.
    gain : float
        Counts per unit of the source. With the default of 1 the numbers of the source are kept.
    noise : bool
        Add shot noise, as if a count was one photon.
    dtype : data-type, optional
        By default the source's.

    Attributes
    ----------
    shape, dtype, wavelengths
        Of a scan. `wavelengths` is None if the source has none.
    remarks : list of str
        What the camera does to the picture, for people.

    Raises
    ------
    SourceError
        If more bands are wanted from a source with only one.
    """

    def __init__(
        self,
        source: Source,
        shape: tuple[int, int, int] | None = None,
        *,
        gain: float = 1.0,
        noise: bool = False,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.source = source
        self.shape = source.shape if shape is None else shape
        self.dtype = np.dtype(source.dtype if dtype is None else dtype)
        self.wavelengths = source.wavelengths
        self.remarks: list[str] = []
        self._gain = gain
        self._work = np.result_type(source.dtype, np.float32)
        self._weights = self._interpolation()
        self._noise: Array | None = None
        if noise:
            # A fixed pool, read at a place that depends on the line: drawing new samples would cost more than storing.
            self._noise = np.random.default_rng(1).standard_normal(_NOISE_SAMPLES, dtype=np.float32)
        self._drift = self._drift_range()
        if source.steps is None:
            moves = f"between time steps it moves by up to {max(self._drift)} pixels"
            self.remarks.append(f"the picture stays the same, {moves} (simulated)")
        if any(want > have for want, have in zip(self.shape[:2], source.shape[:2], strict=True)):
            self.remarks.append("larger than the picture: mirrored at the edges")
        if noise:
            self.remarks.append("shot noise is added")
        self._step = -1
        self._cube: Array = np.empty((0, 0, 0), self.dtype)
        self._rows: Array = np.empty(0, np.intp)
        self._columns: Array = np.empty(0, np.intp)

    def line(self, step: int, y: int) -> Array:
        """Return camera frame `y` of time step `step`.

        Parameters
        ----------
        step : int
            Time step; a source with fewer steps starts again from its first.
        y : int
            Line, from 0.

        Returns
        -------
        numpy.ndarray, shape (pixels, bands), C-contiguous
            A new array; the same numbers each time it is asked for.
        """
        if step != self._step:
            self._aim(step)
        pixels: Array = self._cube[self._rows[y]][self._columns]
        if self._weights is None and self._gain == 1.0 and self._noise is None:
            return np.ascontiguousarray(pixels, self.dtype)
        values: Array = pixels.astype(self._work)
        if self._weights is not None:
            values = values @ self._weights
        if self._gain != 1.0:
            values *= self._gain
        if self._noise is not None:
            values += np.sqrt(values) * self._noise_for(step, y, values.size).reshape(values.shape)
        if self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            np.clip(np.rint(values, out=values), limits.min, limits.max, out=values)
        return values.astype(self.dtype, order="C")

    def position(self, step: int) -> tuple[int, int]:
        """Return by how many pixels (y, x) the picture has moved at time step `step`.

        Parameters
        ----------
        step : int
            Time step.

        Returns
        -------
        tuple of int
        """
        if self.source.steps is not None:
            return 0, 0
        dy, dx = self._drift
        return round(dy * math.sin(0.9 * step)), round(dx * math.sin(0.53 * step))

    def _aim(self, step: int) -> None:
        source = self.source
        self._cube = source.frame(step % source.steps if source.steps else step)
        dy, dx = self.position(step)
        self._rows = _window(source.shape[0], self.shape[0], dy)
        self._columns = _window(source.shape[1], self.shape[1], dx)
        self._step = step

    def _drift_range(self) -> tuple[int, int]:
        # Within the margin if the picture is larger than the scan, else a little over its edge.
        margins = [(have - want) // 2 for have, want in zip(self.source.shape[:2], self.shape[:2], strict=True)]
        sizes = self.shape[:2]
        drift = [min(m, size // 8) if m > 0 else -(-size // 20) for m, size in zip(margins, sizes, strict=True)]
        return drift[0], drift[1]

    def _interpolation(self) -> Array | None:
        """Weights (source bands, bands), or None if the bands are taken as they are."""
        have, want = self.source.shape[2], self.shape[2]
        if have == want:
            return None
        if have == 1:
            raise SourceError(f"the source has one band, {want} cannot be made of it (--shape Y,X,1)")
        if self.wavelengths is None:
            places = np.arange(have, dtype=float)
        else:
            places = self.wavelengths
        wanted = np.linspace(places[0], places[-1], want) if want > 1 else np.array([(places[0] + places[-1]) / 2])
        if self.wavelengths is not None:
            self.wavelengths = wanted
        self.remarks.append(f"{want} bands are interpolated between the {have} of the source")
        return np.stack([np.interp(wanted, places, row) for row in np.eye(have)]).astype(self._work)

    def _noise_for(self, step: int, y: int, count: int) -> Array:
        assert self._noise is not None
        start = (step * 7919 + y) * 104729 % _NOISE_SAMPLES
        return np.take(self._noise, np.arange(start, start + count), mode="wrap")


def micrograph_camera(shape: tuple[int, int, int] | None = None) -> Camera:
    """Return a camera over the demo's own picture.

    Parameters
    ----------
    shape : (int, int, int), optional
        Lines, pixels, bands of a scan.

    Returns
    -------
    Camera

    Raises
    ------
    SourceError
        If scikit-image is not installed.
    """
    return Camera(open_micrograph(), shape or MICROGRAPH_SHAPE, gain=MICROGRAPH_GAIN, noise=True, dtype=np.uint16)


def _window(have: int, want: int, shift: int) -> Array:
    """Indices of `want` pixels around the middle of `have`, moved by `shift`, mirrored at the edges."""
    index = np.arange(want) + (have - want) // 2 + shift
    index %= 2 * have
    return np.where(index < have, index, 2 * have - 1 - index)
