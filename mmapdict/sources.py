"""Pictures for the demo: photographs from scikit-image's wheel, or a file of the user's own.

`open_source` turns a file into a `Source`: one cube (y, x, wavelength), or a series of them. Files are mapped or read
one time step at a time where their format allows it, so that a source may be larger than the memory.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
SUFFIXES = (".npy", ".npz", ".mat", ".tif", ".tiff", ".hdr", *IMAGE_SUFFIXES)

# Where the three channels of a colour photograph are put on the wavelength axis. A photograph does not say; these are
# round numbers inside the blue, green and red that cameras see.
BLUE_GREEN_RED_NM = (450.0, 550.0, 650.0)

ENVI_TYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 6: "c8", 9: "c16", 12: "u2", 13: "u4", 14: "i8", 15: "u8"}
ENVI_AXES = {"bip": "yxl", "bil": "ylx", "bsq": "lyx"}
ENVI_DATA_SUFFIXES = ("", ".raw", ".img", ".dat", ".bin", ".bil", ".bip", ".bsq", ".cube", ".envi")

# TIFF's letters for axes, as tifffile reports them, in ours. Z, I and Q are all "one picture after the other".
TIFF_AXES = {"Y": "y", "X": "x", "S": "l", "C": "l", "L": "l", "T": "t", "Z": "t", "I": "t", "Q": "t"}


class SourceError(ValueError):
    """Raised when a source cannot be read or is not a picture; the message is meant for the user."""


@dataclass
class Source:
    """A series of cubes (y, x, wavelength), read one time step at a time.

    Attributes
    ----------
    shape : tuple of int
        (y, x, wavelengths) of every cube.
    dtype : numpy.dtype
        The dtype of the cubes.
    steps : int or None
        How many time steps the source has; None if it is a single picture.
    frame : callable
        ``frame(t)`` returns the cube of time step `t`, a view where the file can be mapped.
    wavelengths : numpy.ndarray or None
        In nm, ascending; None if the source does not say.
    about : str
        What the source is, for people.
    notes : list of str
        What was assumed while reading it, for people.
    """

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    steps: int | None
    frame: Callable[[int], Array]
    wavelengths: Array | None
    about: str
    notes: list[str] = field(default_factory=list)


def open_source(path: str | os.PathLike[str], axes: str | None = None, variable: str | None = None) -> Source:
    """Open a user's file as a series of cubes.

    Parameters
    ----------
    path : path-like
        A ``.npy``, ``.npz``, ``.mat``, ``.tif``, ENVI ``.hdr`` or image file, or a folder of images of one size.
    axes : str, optional
        A letter for each axis of the array in the file: ``t`` time, ``y``, ``x``, ``l`` wavelength, ``p`` the pixels of
        a picture, column after column. By default taken from the file if it says, else from the number of axes.
    variable : str, optional
        Name of the array in a ``.npz`` or ``.mat`` file; by default the largest one that can be a picture.

    Returns
    -------
    Source

    Raises
    ------
    SourceError
        If the file cannot be read, or holds nothing that is a picture.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    try:
        if path.is_dir():
            return _open_images(path, sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES))
        if not path.exists():
            raise SourceError(f"{path}: no such file")
        if suffix in IMAGE_SUFFIXES:
            return _open_image(path)
        if suffix in (".tif", ".tiff"):
            return _open_tiff(path, axes)
        if suffix == ".hdr":
            return open_envi(path)
        if suffix == ".npy":
            return arrange(_load_npy(path), axes, f"{path.name}")
        if suffix == ".npz":
            return _open_npz(path, axes, variable)
        if suffix == ".mat":
            return _open_mat(path, axes, variable)
    except OSError as exc:
        raise SourceError(f"{path}: {exc.strerror or exc}") from exc
    known = " ".join(SUFFIXES)
    raise SourceError(f"{path}: cannot read files of this kind (known: {known}, or a folder of images)")


def open_micrograph() -> Source:
    """Return the picture that the demo uses by itself: a stained micrograph that ships inside scikit-image's wheel.

    Returns
    -------
    Source
        One cube with three channels, `uint8`.

    Raises
    ------
    SourceError
        If scikit-image is not installed.
    """
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise SourceError(
            "the demo's own picture comes with scikit-image, which is not installed: "
            "pip install scikit-image, or give a picture with --source FILE"
        )
    # The file is opened directly: skimage.data would look for it in a download cache as well.
    source = _open_image(Path(spec.origin).parent / "data" / "ihc.png")
    version = importlib.metadata.version("scikit-image")
    source.about = f"a real micrograph (stained tissue, in colour): ihc.png from scikit-image {version}"
    return source


def arrange(
    data: Array,
    axes: str | None,
    about: str,
    wavelengths: Array | None = None,
    picture: tuple[int, int] | None = None,
) -> Source:
    """Make a `Source` of an array with two to four axes.

    Parameters
    ----------
    data : numpy.ndarray
        Any order of axes; it is transposed, not copied.
    axes : str or None
        A letter for each axis, as for `open_source`; None: ``yx``, ``yxl`` or ``tyxl`` by the number of axes.
    about : str
        What the array is.
    wavelengths : numpy.ndarray, optional
        In nm, one for each place on axis ``l``.
    picture : (int, int), optional
        Rows and columns of the picture that axis ``p`` holds; by default it is taken to be square.

    Returns
    -------
    Source

    Raises
    ------
    SourceError
        If the array is not numeric, is empty, or the axes do not fit it.
    """
    if data.dtype.kind not in "biufc":
        raise SourceError(f"{about}: numbers are needed, this is dtype {data.dtype}")
    notes = []
    if axes is None:
        if not 2 <= data.ndim <= 4:
            raise SourceError(f"{about}: an array with 2, 3 or 4 axes is needed, this one has shape {data.shape}")
        axes = {2: "yx", 3: "yxl", 4: "tyxl"}[data.ndim]
        notes.append(f"shape {data.shape} is read as {_axis_names(axes)} (--axes says otherwise)")
    if len(axes) != data.ndim or len(set(axes)) != len(axes) or not set(axes) <= set("tyxlp"):
        raise SourceError(f"{about}: axes '{axes}' do not fit an array of shape {data.shape}")
    if "p" in axes:
        data, axes = _unfold_pixels(data, axes, picture, about)
    if not {"y", "x"} <= set(axes):
        raise SourceError(f"{about}: axes '{axes}' must name y and x (or p for both)")
    if data.size == 0:
        raise SourceError(f"{about}: the array is empty, shape {data.shape}")
    cubes = data.transpose([axes.index(letter) for letter in "tyxl" if letter in axes])
    if "l" not in axes:
        cubes = cubes[..., np.newaxis]
    if wavelengths is not None and len(wavelengths) != cubes.shape[-1]:
        notes.append(f"{len(wavelengths)} wavelengths for {cubes.shape[-1]} bands: not used")
        wavelengths = None
    order: Array | slice = slice(None)
    if wavelengths is not None and np.any(np.diff(wavelengths) <= 0):
        # Sorted as each time step is read: sorting here would read the whole file.
        order = np.argsort(wavelengths)
        wavelengths = wavelengths[order]
    if "t" in axes:
        steps, y, x, bands = cubes.shape
        return Source((y, x, bands), cubes.dtype, steps, lambda t: cubes[t][..., order], wavelengths, about, notes)
    y, x, bands = cubes.shape
    return Source((y, x, bands), cubes.dtype, None, lambda t: cubes[..., order], wavelengths, about, notes)


def open_envi(path: str | os.PathLike[str]) -> Source:
    """Map the raw file that an ENVI header describes.

    Parameters
    ----------
    path : path-like
        The ``.hdr`` file; the data are beside it, with another suffix or none.

    Returns
    -------
    Source

    Raises
    ------
    SourceError
        If the header is not ENVI's, lacks a size, or does not fit the data file.

    Notes
    -----
    A header without ``byte order`` is read as little-endian, and `notes` says so: several programs write such headers.
    """
    path = Path(path)
    header = parse_envi_header(path.read_text(encoding="utf-8", errors="replace"), str(path))
    sizes = [_envi_int(header, name, path) for name in ("lines", "samples", "bands")]
    code = _envi_int(header, "data type", path)
    interleave = header.get("interleave", "bsq").lower()
    if code not in ENVI_TYPES or interleave not in ENVI_AXES:
        raise SourceError(f"{path}: data type {code} with interleave {interleave} is not known")
    if min(sizes) < 1 or _envi_int(header, "header offset", path, default=0) < 0:
        raise SourceError(f"{path}: lines, samples and bands must be positive ({sizes}), and the header offset")
    notes = []
    if "byte order" not in header:
        notes.append("the header has no 'byte order' line: little-endian assumed")
    big_endian = _envi_int(header, "byte order", path, default=0) == 1
    dtype = np.dtype(ENVI_TYPES[code]).newbyteorder(">" if big_endian else "<")
    offset = _envi_int(header, "header offset", path, default=0)

    axes = ENVI_AXES[interleave]
    length = dict(zip("yxl", sizes, strict=True))
    shape = tuple(length[axis] for axis in axes)
    raw = _envi_data_file(path)
    needed = offset + math.prod(shape) * dtype.itemsize
    if raw.stat().st_size < needed:
        raise SourceError(f"{raw}: expected {needed} bytes by its header, found {raw.stat().st_size}")
    data = np.memmap(raw, dtype, "r", offset, shape)
    about = f"{raw.name}, an ENVI cube of {sizes[0]} lines x {sizes[1]} samples x {sizes[2]} bands, {dtype}"
    source = arrange(data, axes, about, _envi_wavelengths(header, notes))
    source.notes[:0] = notes
    return source


def parse_envi_header(text: str, name: str = "header") -> dict[str, str]:
    """Read the ``key = value`` lines of an ENVI header; values in braces may span lines.

    Parameters
    ----------
    text : str
        The whole header.
    name : str
        Shown in errors.

    Returns
    -------
    dict
        Keys in lower case with single spaces, values without braces.

    Raises
    ------
    SourceError
        If the text does not start with ``ENVI`` or a brace is not closed.

    Examples
    --------
    >>> parse_envi_header("ENVI\\nbands = 2\\nwavelength = {500.0,\\n 600.0}")
    {'bands': '2', 'wavelength': '500.0,\\n 600.0'}
    """
    lines = text.lstrip("\ufeff").splitlines()
    if not lines or lines[0].strip() != "ENVI":
        raise SourceError(f"{name}: not an ENVI header (its first line must be 'ENVI')")
    header: dict[str, str] = {}
    rest = iter(lines[1:])
    for line in rest:
        if line.lstrip().startswith(";") or "=" not in line:
            continue
        key, _, value = line.partition("=")
        value = value.strip()
        while value.startswith("{") and "}" not in value:
            more = next(rest, None)
            if more is None:
                raise SourceError(f"{name}: the brace after '{key.strip()}' is not closed")
            value += "\n" + more
        if value.startswith("{"):
            value = value[1 : value.index("}")].strip()
        header[" ".join(key.lower().split())] = value
    return header


def _envi_int(header: dict[str, str], name: str, path: Path, default: int | None = None) -> int:
    text = header.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        found = "it is missing" if text is None else f"found '{text}'"
        raise SourceError(f"{path}: '{name}' must be a whole number, {found}") from None


def _envi_data_file(path: Path) -> Path:
    # "cube.hdr" describes "cube.raw" or "cube", and "cube.raw.hdr" describes "cube.raw".
    for suffix in ENVI_DATA_SUFFIXES:
        for name in {path.stem + suffix, path.stem + suffix.upper()}:
            candidate = path.with_name(name)
            if candidate.is_file() and candidate != path:
                return candidate
    raise SourceError(f"{path}: no data file beside it ({path.stem}.raw, .img, .dat, ... or {path.stem})")


def _envi_wavelengths(header: dict[str, str], notes: list[str]) -> Array | None:
    if "wavelength" not in header:
        return None
    try:
        values = np.array([float(item) for item in header["wavelength"].split(",") if item.strip()])
    except ValueError:
        notes.append("the header's wavelengths are not numbers: not used")
        return None
    if header.get("wavelength units", "").lower() in ("micrometers", "micrometer", "um", "µm"):
        values = values * 1000.0
    return values


def _open_image(path: Path) -> Source:
    image = _read_image(path)
    return _image_source(image, None, lambda t: image, f"{path.name}, a {_image_kind(image)}")


def _open_images(folder: Path, files: list[Path]) -> Source:
    if not files:
        raise SourceError(f"{folder}: no images in this folder ({' '.join(IMAGE_SUFFIXES)})")
    first = _read_image(files[0])

    def frame(t: int) -> Array:
        image = _read_image(files[t])
        if image.shape != first.shape or image.dtype != first.dtype:
            raise SourceError(f"{files[t]} is a {_image_kind(image)}, but {files[0].name} is a {_image_kind(first)}")
        return image

    about = f"{len(files)} images in {folder.name}/, each a {_image_kind(first)}"
    return _image_source(first, len(files), frame, about)


def _image_source(image: Array, steps: int | None, frame: Callable[[int], Array], about: str) -> Source:
    rows, columns, channels = image.shape
    wavelengths = np.array(BLUE_GREEN_RED_NM) if channels == 3 else None
    return Source((rows, columns, channels), image.dtype, steps, frame, wavelengths, about)


def _image_kind(image: Array) -> str:
    kind = "colour photograph" if image.shape[2] == 3 else "grey image"
    return f"{kind} ({image.shape[0]} x {image.shape[1]} {image.dtype})"


def _read_image(path: Path) -> Array:
    pillow = _extra("PIL.Image", "images", "pillow")
    with _reading(path, "an image"), pillow.open(path) as image:
        if image.mode not in ("L", "I;16", "I", "F", "RGB"):
            image = image.convert("RGB")
        pixels: Array = np.asarray(image)
    if pixels.ndim == 2:
        return pixels[:, :, np.newaxis]
    return pixels[:, :, ::-1]  # red, green, blue -> ascending wavelength


def _open_tiff(path: Path, axes: str | None) -> Source:
    tifffile = _extra("tifffile", ".tif files", "tifffile")
    with _reading(path, "a TIFF file"), tifffile.TiffFile(path) as tif:
        series = tif.series[0]
        found = "".join(TIFF_AXES.get(letter, "?") for letter in series.axes)
        # Uncompressed files are mapped; others are decoded into a temporary file that is mapped, never into memory.
        if series.dataoffset is not None:
            data = tifffile.memmap(path, series=0, mode="r")
        else:
            data = series.asarray(out="memmap")
    if axes is None and "?" not in found and len(found) == data.ndim:
        axes = found
    source = arrange(data, axes, f"{path.name}, TIFF {data.shape} {data.dtype}")
    if source.shape[2] == 3 and series.axes.endswith("S"):
        cubes = source.frame
        source.frame = lambda t: cubes(t)[..., ::-1]
        source.wavelengths = np.array(BLUE_GREEN_RED_NM)
    return source


def _load_npy(path: Path) -> Array:
    with _reading(path, "a .npy file"):
        data: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return data


def _open_npz(path: Path, axes: str | None, variable: str | None) -> Source:
    with _reading(path, "a .npz file"), zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.endswith(".npy")]
        shapes = {name.removesuffix(".npy"): _npy_header(archive, name) for name in members}
        name = _pick_variable(shapes, variable, path)
        with archive.open(name + ".npy") as member:
            data: Array = np.lib.format.read_array(member, allow_pickle=False)
    return arrange(data, axes, f"'{name}' in {path.name}, {data.shape} {data.dtype}")


def _npy_header(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    return shape if dtype.kind in "biufc" else ()


def _open_mat(path: Path, axes: str | None, variable: str | None) -> Source:
    scipy_io = _extra("scipy.io", ".mat files", "scipy")
    with _reading(path, "a MATLAB file"):
        try:
            listed = scipy_io.whosmat(path)
        except NotImplementedError as exc:          # how scipy says that the file is HDF5
            raise SourceError(f"{path}: a MATLAB 7.3 file is HDF5; save it with -v7, or as .npy") from exc
        others = ("cell", "struct", "char", "object", "sparse")
        numeric = {name: shape for name, shape, kind in listed if kind not in others}
        name = _pick_variable(numeric, variable, path)
        # Files of unmixing benchmarks hold (bands, pixels) and say the picture's size in these two.
        sizes = [key for key in ("nRow", "nCol") if numeric.get(key) == (1, 1)]
        loaded = scipy_io.loadmat(path, variable_names=[name, *sizes])
        data: Array = loaded[name]
    about = f"'{name}' in {path.name}, {data.shape} {data.dtype}"
    if axes is None and data.ndim == 2 and len(sizes) == 2:
        rows, columns = (int(loaded[key][0, 0]) for key in sizes)
        if data.shape[1] == rows * columns:
            source = arrange(data, "lp", about, picture=(rows, columns))
            said = f"each of the {len(data)} rows is a picture of {rows} x {columns}, as nRow and nCol say"
            source.notes.append(said)
            return source
    return arrange(data, axes, about)


def _pick_variable(shapes: dict[str, tuple[int, ...]], variable: str | None, path: Path) -> str:
    if variable is not None:
        if variable not in shapes:
            raise SourceError(f"{path}: no array '{variable}' in it (there are: {', '.join(shapes) or 'none'})")
        return variable
    pictures = {name: math.prod(shape) for name, shape in shapes.items() if 2 <= len(shape) <= 4}
    if not pictures:
        raise SourceError(f"{path}: no array with 2, 3 or 4 axes in it")
    return max(pictures, key=pictures.__getitem__)


def _unfold_pixels(data: Array, axes: str, picture: tuple[int, int] | None, about: str) -> tuple[Array, str]:
    """Split axis ``p`` into the columns and rows of a picture."""
    at = axes.index("p")
    count = data.shape[at]
    rows, columns = picture or (math.isqrt(count), math.isqrt(count))
    if rows * columns != count:
        raise SourceError(f"{about}: {count} pixels are not a picture of {rows} x {columns}")
    shape = (*data.shape[:at], columns, rows, *data.shape[at + 1 :])
    return data.reshape(shape), axes.replace("p", "xy")


def _axis_names(axes: str) -> str:
    names = {"t": "time", "y": "y", "x": "x", "l": "wavelength", "p": "pixels"}
    return "(" + ", ".join(names[letter] for letter in axes) + ")"


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a parser raises into a `SourceError`: on a damaged file that may be any exception."""
    try:
        yield
    except (SourceError, OSError):
        raise
    except Exception as exc:
        raise SourceError(f"{path}: not {what} that can be read ({type(exc).__name__}: {exc})") from exc


def _extra(module: str, what: str, package: str) -> Any:
    """Import a package of the extra `demo`, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise SourceError(f"reading {what} needs {package}: pip install {package}") from exc


def parse_axes(text: str) -> str:
    """Check the letters given to ``--axes``.

    Parameters
    ----------
    text : str
        For example ``tyx``.

    Returns
    -------
    str
        In lower case.

    Raises
    ------
    ValueError
        If there are other letters than t, y, x, l, p.
    """
    axes = text.lower()
    if not re.fullmatch("[tyxlp]{2,4}", axes):
        raise ValueError(f"'{text}' is not made of the letters t, y, x, l, p")
    return axes
