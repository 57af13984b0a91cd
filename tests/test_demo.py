"""The demo: sources, the camera, the capture with its viewer, and Ctrl-C."""

import io
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import types
import zlib

import numpy as np
import pytest

import mmapdict
from mmapdict import capture, demo, sources
from mmapdict.camera import Camera, micrograph_camera
from mmapdict.cli import main
from mmapdict.sources import SourceError, arrange, open_envi, open_source, parse_envi_header

ROOT = os.path.dirname(os.path.dirname(mmapdict.__file__))


def cube_of(y=6, x=5, bands=4, dtype="u2"):
    """A small cube without equal lines."""
    return (np.arange(y * x * bands).reshape(y, x, bands) * 7 % 251 + 1).astype(dtype)


def save(path, array):
    np.save(path, array)
    return path


def everything(camera, step):
    """All lines of one time step."""
    return np.stack([camera.line(step, y) for y in range(camera.shape[0])])


# --- sources ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape, axes, expected, steps", [
    ((6, 5), None, (6, 5, 1), None),
    ((6, 5, 4), None, (6, 5, 4), None),
    ((3, 6, 5, 4), None, (6, 5, 4), 3),
    ((3, 6, 5), "tyx", (6, 5, 1), 3),
    ((4, 6, 5), "lyx", (6, 5, 4), None),
    ((6, 4, 5), "ylx", (6, 5, 4), None),
    ((4, 9), "lp", (3, 3, 4), None),
    ((2, 9), "tp", (3, 3, 1), 2),
])
def test_axes_of_a_npy_file(tmp_path, shape, axes, expected, steps):
    data = np.arange(math.prod(shape), dtype="i4").reshape(shape)
    source = open_source(save(tmp_path / "a.npy", data), axes)
    assert (source.shape, source.steps, source.dtype) == (expected, steps, np.dtype("i4"))
    for step in range(steps or 1):
        frame = source.frame(step)
        assert frame.shape == expected
        one = data if steps is None else data[step]
        assert sorted(frame.ravel()) == sorted(one.ravel())
    assert bool(source.notes) == (axes is None)


def test_axes_are_moved_not_mixed():
    data = np.arange(24).reshape(4, 2, 3)
    frame = arrange(data, "lyx", "it").frame(0)
    assert frame[1, 2, 3] == data[3, 1, 2]
    # Pixels stand column after column, as in the files of unmixing benchmarks.
    frame = arrange(data.reshape(4, 6), "lp", "it", picture=(2, 3)).frame(0)
    assert frame[1, 2, 3] == data.reshape(4, 6)[3, 2 * 2 + 1]


def test_a_npy_file_is_mapped_not_read(tmp_path):
    source = open_source(save(tmp_path / "a.npy", np.zeros((2, 3, 4, 5))))
    base = source.frame(1)
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


@pytest.mark.parametrize("array, axes", [
    (np.zeros(3), None), (np.zeros((1, 1, 1, 1, 1)), None), (np.zeros((0, 3)), None), (np.array([["a", "b"]]), None),
    (np.zeros((3, 4)), "yxl"), (np.zeros((3, 4)), "yy"), (np.zeros((3, 4)), "tl"), (np.zeros((3, 5)), "lp"),
])
def test_what_is_not_a_picture_is_refused(array, axes):
    with pytest.raises(SourceError):
        arrange(array, axes, "it")


@pytest.mark.parametrize("name, content", [
    ("a.npy", b"nonsense"), ("a.npy", b""), ("a.npy", b"\x93NUMPY\x01\x00"), ("a.npz", b"nonsense"),
    ("a.hdr", b"nonsense"), ("a.hdr", b""), ("a.xyz", b""),
    ("a.hdr", b"ENVI\nlines = 1\nsamples = 2\n"), ("a.hdr", b"ENVI\nwavelength = {1, 2"),
    ("a.hdr", b"ENVI\nlines=1\nsamples=2\nbands=x\ndata type=2"),
    ("a.hdr", b"ENVI\nlines=1\nsamples=2\nbands=3\ndata type=77"),
    ("a.hdr", b"ENVI\nlines=1\nsamples=2\nbands=3\ndata type=2"),
])
def test_unreadable_files_are_exit_2(tmp_path, capsys, name, content):
    (tmp_path / name).write_bytes(content)
    out = tmp_path / "out"
    assert main(["demo", str(out), "--source", str(tmp_path / name)], io.StringIO(), io.StringIO()) == 2
    message = capsys.readouterr().err
    assert message.startswith("mmapdict: demo: ") and name in message
    assert not out.exists()


def test_a_pickled_object_in_a_npy_file_is_not_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[{}, {}]], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError):
        open_source(tmp_path / "a.npy")


def test_the_largest_array_of_a_npz_file_is_taken(tmp_path):
    others = {"wavelengths": np.arange(999.0), "small": np.ones((2, 2)), "text": np.array(["a"])}
    np.savez(tmp_path / "a.npz", cube=cube_of(), **others)
    source = open_source(tmp_path / "a.npz")
    assert source.shape == (6, 5, 4)
    np.testing.assert_array_equal(source.frame(0), cube_of())
    assert open_source(tmp_path / "a.npz", variable="small").shape == (2, 2, 1)
    with pytest.raises(SourceError, match="no array 'none'"):
        open_source(tmp_path / "a.npz", variable="none")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".mat", ".tif", ".png"])
def test_a_damaged_file_is_an_error_of_the_source(tmp_path, suffix):
    path = tmp_path / ("a" + suffix)
    if suffix == ".npz":
        np.savez_compressed(path, cube=cube_of(20, 20, 20))
    elif suffix == ".npy":
        np.save(path, cube_of())
    elif suffix == ".mat":
        pytest.importorskip("scipy.io").savemat(path, {"cube": cube_of(20, 20, 20)}, do_compression=True)
    elif suffix == ".tif":
        pytest.importorskip("tifffile").imwrite(path, cube_of(3, 20, 20), photometric="minisblack", compression="zlib")
    else:
        pytest.importorskip("PIL.Image").fromarray(cube_of(20, 20, 1)[..., 0].astype("u1")).save(path)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 1 + len(whole) // 40):
        path.write_bytes(whole[:size])
        try:
            open_source(path).frame(0)
        except SourceError as exc:
            assert "a" + suffix in str(exc)


def write_envi(folder, cube, interleave, extra="byte order = 0\n", dtype="<u2", name="cube.raw", offset=0):
    axes = {"bip": (0, 1, 2), "bil": (0, 2, 1), "bsq": (2, 0, 1)}[interleave]
    (folder / name).write_bytes(b"\xff" * offset + cube.transpose(axes).astype(dtype).tobytes())
    header = folder / "cube.hdr"
    header.write_text(
        f"ENVI\n; a remark\ndescription = {{two\nlines}}\nlines = {cube.shape[0]}\nsamples = {cube.shape[1]}\n"
        f"bands = {cube.shape[2]}\nheader  offset = {offset}\ndata type = 12\nInterleave = {interleave.upper()}\n"
        f"{extra}")
    return header


@pytest.mark.parametrize("interleave", ["bip", "bil", "bsq"])
def test_envi_interleaves(tmp_path, interleave):
    source = open_envi(write_envi(tmp_path, cube_of(), interleave))
    assert (source.shape, source.notes) == ((6, 5, 4), [])
    np.testing.assert_array_equal(source.frame(0), cube_of())


def test_envi_without_byte_order_is_little_endian_and_says_so(tmp_path):
    source = open_envi(write_envi(tmp_path, cube_of(), "bil", extra=""))
    np.testing.assert_array_equal(source.frame(0), cube_of())
    assert any("byte order" in note for note in source.notes)


def test_envi_big_endian_with_offset_and_other_name(tmp_path):
    header = write_envi(tmp_path, cube_of(), "bsq", extra="byte order = 1\n", dtype=">u2", name="cube", offset=7)
    source = open_envi(header)
    assert source.dtype == np.dtype(">u2")
    np.testing.assert_array_equal(source.frame(0), cube_of())


def test_envi_wavelengths_are_sorted_with_their_bands(tmp_path):
    extra = "byte order=0\nwavelength units = Micrometers\nwavelength = {0.7, 0.6,\n0.5, 0.4}\n"
    source = open_envi(write_envi(tmp_path, cube_of(), "bip", extra=extra))
    np.testing.assert_allclose(source.wavelengths, [400, 500, 600, 700])
    np.testing.assert_array_equal(source.frame(0), cube_of()[..., ::-1])


def test_envi_data_that_are_too_short_are_refused(tmp_path):
    header = write_envi(tmp_path, cube_of(), "bip")
    (tmp_path / "cube.raw").write_bytes(b"123")
    with pytest.raises(SourceError, match="expected 240 bytes by its header, found 3"):
        open_envi(header)


@pytest.mark.parametrize("line", ["lines = 0", "bands = -4", "header offset = -1"])
def test_envi_sizes_that_no_picture_has_are_refused(tmp_path, line):
    header = write_envi(tmp_path, cube_of(), "bip", extra=line + "\n")         # of two lines the last one counts
    with pytest.raises(SourceError, match="must be positive"):
        open_envi(header)


@pytest.mark.parametrize("wavelengths, note", [
    ("400, 500", "2 wavelengths for 4 bands: not used"), ("400, 500, 600, red", "not numbers: not used")])
def test_envi_wavelengths_that_are_of_no_use_are_left_out_with_a_note(tmp_path, wavelengths, note):
    header = write_envi(tmp_path, cube_of(), "bip", extra=f"byte order = 0\nwavelength = {{{wavelengths}}}\n")
    source = open_envi(header)
    assert source.wavelengths is None and note in source.notes[0]
    np.testing.assert_array_equal(source.frame(0), cube_of())


def test_envi_header_fields():
    assert parse_envi_header("ENVI\nA  b = 1\n;c = 2\nnothing\nx = {1,\n2}\n") == {"a b": "1", "x": "1,\n2"}


def test_mat_files(tmp_path):
    scipy_io = pytest.importorskip("scipy.io")
    cube = cube_of(3, 5, 4)
    unfolded = cube.transpose(2, 1, 0).reshape(4, 15)
    scipy_io.savemat(tmp_path / "a.mat", {"Y": unfolded, "nRow": 3, "nCol": 5, "name": "text"})
    np.testing.assert_array_equal(open_source(tmp_path / "a.mat").frame(0), cube)
    scipy_io.savemat(tmp_path / "b.mat", {"cube": cube})
    np.testing.assert_array_equal(open_source(tmp_path / "b.mat").frame(0), cube)
    (tmp_path / "c.mat").write_bytes(b"nonsense" * 40)
    with pytest.raises(SourceError):
        open_source(tmp_path / "c.mat")


def test_a_mat_file_that_is_hdf5_is_refused_with_a_way_out(tmp_path):
    pytest.importorskip("scipy.io")
    # The text, and where it ends the version 2.0 and the byte order, are all that MATLAB puts before the HDF5.
    (tmp_path / "a.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(512))
    with pytest.raises(SourceError, match="a MATLAB 7.3 file is HDF5; save it with -v7"):
        open_source(tmp_path / "a.mat")


def test_a_file_without_a_picture_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", wavelengths=np.arange(9.0), text=np.array([["a"]]))
    with pytest.raises(SourceError, match="no array with 2, 3 or 4 axes"):
        open_source(tmp_path / "a.npz")


def test_a_source_that_is_not_there_or_is_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(SourceError, match="a.npy: no such file"):
        open_source(tmp_path / "a.npy")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(SourceError, match="no images in this folder"):
        open_source(tmp_path)


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"byteorder": ">"}])
def test_tif_files(tmp_path, options):
    tifffile = pytest.importorskip("tifffile")
    series = cube_of(3, 8, 9)
    tifffile.imwrite(tmp_path / "a.tif", series, photometric="minisblack", **options)
    source = open_source(tmp_path / "a.tif")
    assert (source.shape, source.steps) == ((8, 9, 1), 3)
    for step in range(3):
        np.testing.assert_array_equal(source.frame(step)[..., 0], series[step])


def test_a_folder_of_images_is_a_series(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    for t in range(3):
        pillow.fromarray(np.full((4, 5), t, "u1")).save(tmp_path / f"{t}.png")
    source = open_source(tmp_path)
    assert (source.shape, source.steps) == ((4, 5, 1), 3)
    assert source.frame(2).max() == 2
    pillow.fromarray(np.zeros((4, 6), "u1")).save(tmp_path / "2.png")
    with pytest.raises(SourceError, match="2.png"):
        source.frame(2)


@pytest.mark.parametrize("other", [np.zeros((4, 6, 1), "u1"), np.zeros((4, 5, 1), "u2"), np.zeros((4, 5, 3), "u1")])
def test_images_of_one_series_are_of_one_kind(tmp_path, monkeypatch, other):
    # Their pixels are given here: nothing that reads images needs to be installed.
    pixels = {"0.png": np.zeros((4, 5, 1), "u1"), "1.png": np.ones((4, 5, 1), "u1"), "2.png": other}
    monkeypatch.setattr(sources, "_read_image", lambda path: pixels[path.name])
    for name in pixels:
        (tmp_path / name).touch()
    source = open_source(tmp_path)
    assert (source.shape, source.steps, source.frame(1).max()) == ((4, 5, 1), 3, 1)
    with pytest.raises(SourceError, match=r"2\.png is a .*, but 0\.png is a grey image \(4 x 5 uint8\)"):
        source.frame(2)


def test_colours_are_ordered_by_wavelength(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.full((4, 5, 3), [10, 20, 30], "u1")).save(tmp_path / "a.png")
    source = open_source(tmp_path / "a.png")
    np.testing.assert_array_equal(source.frame(0)[0, 0], [30, 20, 10])
    assert list(source.wavelengths) == sorted(source.wavelengths)


def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    (tmp_path / "a.mat").write_bytes(b"")
    with pytest.raises(SourceError, match="needs scipy: pip install scipy"):
        open_source(tmp_path / "a.mat")


def test_the_own_picture_needs_scikit_image(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match="pip install scikit-image"):
        micrograph_camera()


def test_the_own_picture_is_real():
    pytest.importorskip("skimage")
    camera = micrograph_camera((16, 20, 7))
    lines = everything(camera, 1)
    assert (lines.shape, lines.dtype) == ((16, 20, 7), np.dtype("u2"))
    assert lines.std() > 0 and lines.max() < 2**13
    assert camera.wavelengths[0] == 450 and camera.wavelengths[-1] == 650


# --- the camera ------------------------------------------------------------------------------------------------------

def test_a_series_is_delivered_as_it_is():
    data = np.stack([cube_of(), cube_of() + 1])
    camera = Camera(arrange(data, "tyxl", "it"))
    for step in range(3):
        np.testing.assert_array_equal(everything(camera, step), data[step % 2])
        assert camera.position(step) == (0, 0)


def test_a_single_picture_moves_and_keeps_its_numbers():
    cube = cube_of(40, 30, 2)
    camera = Camera(arrange(cube, "yxl", "it"), (20, 16, 2))
    assert len({camera.position(step) for step in range(4)}) == 4
    for step in range(4):
        dy, dx = camera.position(step)
        wanted = cube[10 + dy: 30 + dy, 7 + dx: 23 + dx]
        np.testing.assert_array_equal(everything(camera, step), wanted)


def test_a_picture_that_is_too_small_is_mirrored():
    cube = cube_of(2, 3, 1)
    camera = Camera(arrange(cube, "yxl", "it"), (6, 3, 1))
    lines = everything(camera, 0)
    np.testing.assert_array_equal(lines, cube[[1, 0, 0, 1, 1, 0]])
    assert any("mirrored" in remark for remark in camera.remarks)


def test_bands_are_interpolated():
    cube = np.zeros((2, 2, 2), "f4")
    cube[..., 1] = 8
    camera = Camera(arrange(cube, "yxl", "it", np.array([100.0, 200.0])), (2, 2, 5))
    np.testing.assert_allclose(camera.line(0, 0)[0], [0, 2, 4, 6, 8])
    np.testing.assert_allclose(camera.wavelengths, [100, 125, 150, 175, 200])
    assert Camera(arrange(cube, "yxl", "it"), (2, 2, 1)).line(0, 0)[0, 0] == 4
    with pytest.raises(SourceError):
        Camera(arrange(cube[..., :1], "yxl", "it"), (2, 2, 5))


@pytest.mark.parametrize("dtype", [">u2", "i1", "f2", "f8", "c8", "?"])
def test_the_dtype_of_the_source_is_kept(dtype):
    camera = Camera(arrange(cube_of(dtype=dtype), "yxl", "it"))
    assert camera.line(0, 0).dtype == np.dtype(dtype)
    assert camera.line(0, 0).flags.c_contiguous


# --- the capture -----------------------------------------------------------------------------------------------------

def run_demo(*argv):
    """Run the demo and return its exit code and what it printed."""
    out = io.StringIO()
    return main(["demo", *(os.fspath(arg) for arg in argv)], io.StringIO(), out), out.getvalue()


def check_file(path, scans):
    """Compare a file with the lines that its camera delivered: pairs of (array, number of lines)."""
    with open(path, "rb") as file:
        d = pickle.load(file)
    assert d["description"].startswith(demo.MADE_BY)
    for step, (wanted, lines) in enumerate(scans):
        cube, meta = d["scan", step], d["scan", step, "meta"]
        assert (cube.shape, cube.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(cube[:lines], wanted[:lines])
        assert not cube[lines:].any()
        assert (meta["lines"], meta["complete"]) == (lines, lines == len(wanted))
        assert meta["crc32"] == zlib.crc32(np.ascontiguousarray(wanted[:lines]).tobytes())
        assert d["progress"][step, 0] == lines
    assert ("scan", len(scans)) not in d


@pytest.mark.parametrize("dtype", ["<u2", ">f8", "u1"])
def test_the_demo_captures_a_series(tmp_path, dtype):
    data = np.stack([cube_of(dtype=dtype), cube_of(dtype=dtype)[::-1]])
    out = tmp_path / "out.mmapdict"
    code, text = run_demo(out, "--source", save(tmp_path / "a.npy", data), "--rate", "0")
    assert code == 0, text
    check_file(out, [(data[0], 6), (data[1], 6)])
    assert "2 of 2 scans have the checksum" in text
    assert "2 scans seen: min" in text and "2 metadata seen: min" in text
    assert "os.pwrite" in text and str(out) in text


def test_the_viewer_sees_a_scan_while_it_is_filled(tmp_path):
    out = tmp_path / "out.mmapdict"
    source = save(tmp_path / "a.npy", cube_of(40, 5, 4))
    code, text = run_demo(out, "--source", source, "--rate", "100", "--frames", "1", "--shape", "40,5,4")
    assert code == 0, text
    lines = text.splitlines()
    steps = ["create() was called", "mean of line", "100 %"]
    found = [next(i for i, line in enumerate(lines) if step in line) for step in steps]
    assert found == sorted(found)


def test_the_own_picture_is_captured(tmp_path):
    pytest.importorskip("skimage")
    out = tmp_path / "out.mmapdict"
    code, text = run_demo(out, "--frames", "2", "--shape", "10,12,5", "--rate", "0")
    assert code == 0, text
    camera = micrograph_camera((10, 12, 5))
    check_file(out, [(everything(camera, step), 10) for step in range(2)])
    assert "scikit-image" in text and "simulated" in text


def test_an_earlier_run_is_replaced_and_other_files_are_not(tmp_path, capsys):
    out = tmp_path / "out"
    source = save(tmp_path / "a.npy", cube_of())
    arguments = (out, "--source", source, "--rate", "0", "--frames", "1")
    assert run_demo(*arguments)[0] == 0
    assert run_demo(*arguments)[0] == 0
    out.write_bytes(b"precious")
    assert run_demo(*arguments) == (2, "")
    assert "not an mmapdict file: --force replaces it" in capsys.readouterr().err
    assert out.read_bytes() == b"precious"
    with mmapdict.open(out, "w") as d:
        d["description"] = "also precious"
    assert run_demo(*arguments)[0] == 2
    assert "not made by this demo: --force replaces it" in capsys.readouterr().err
    assert run_demo(*arguments, "--force")[0] == 0
    assert run_demo(tmp_path, *arguments[1:], "--force")[0] == 2
    assert run_demo(tmp_path / "none" / "out", *arguments[1:])[0] == 2


def test_a_capture_that_is_too_big_for_the_disk_is_refused(tmp_path, capsys):
    out = tmp_path / "out"
    source = save(tmp_path / "a.npy", cube_of())
    assert run_demo(out, "--source", source, "--frames", str(10**15))[0] == 2
    assert "are free" in capsys.readouterr().err
    assert not out.exists()


def test_a_source_that_breaks_ends_the_capture_and_keeps_the_rest(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path / "images"
    folder.mkdir()
    for t in range(3):
        pillow.fromarray(np.full((4, 5), t + 1, "u1")).save(folder / f"{t}.png")
    (folder / "1.png").write_bytes(b"nonsense")
    code, text = run_demo(tmp_path / "out", "--source", folder, "--rate", "0")
    assert code == 1
    assert "FAILED: the capture ended early" in text
    with open(tmp_path / "out", "rb") as file:
        d = pickle.load(file)
    assert d["scan", 0].all() and d["scan", 0, "meta"]["complete"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_scan_keeps_everything(tmp_path, number):
    data = np.stack([cube_of(40), cube_of(40)[::-1]])
    out = tmp_path / "out.mmapdict"
    command = [sys.executable, "-m", "mmapdict", "demo", str(out), "--rate", "200",
               "--source", str(save(tmp_path / "a.npy", data))]
    env = {**os.environ, "PYTHONPATH": ROOT}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "('scan', 1)" in line and number is not None:
                process.send_signal(number)
                number = None
        assert process.wait() == 0, "".join(seen)
    text = "".join(seen)
    assert "capture stopped" in text and "2 of 2 scans have the checksum" in text
    with mmapdict.open(out, "r") as d:
        lines = d["scan", 1, "meta"]["lines"]
    assert 0 <= lines < 40
    check_file(out, [(data[0], 40), (data[1], lines)])


def test_a_viewer_that_dies_does_not_stop_the_capture(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_environment", lambda: {"PYTHONPATH": str(tmp_path)})
    (tmp_path / "mmapdict.py").write_text("raise SystemExit('no viewer today')")
    monkeypatch.chdir(tmp_path)  # the first place where `python -m` looks
    out = tmp_path / "out.mmapdict"
    code, text = run_demo(out, "--source", save(tmp_path / "a.npy", cube_of()), "--rate", "0", "--frames", "1")
    assert code == 1
    assert "FAILED: the viewer ended early: no viewer today" in text
    assert "1 of 1 scans have the checksum" in text


def test_a_wrong_checksum_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(capture, "zlib", types.SimpleNamespace(crc32=lambda data, value=0: 1))
    source = save(tmp_path / "a.npy", cube_of())
    code, text = run_demo(tmp_path / "o", "--source", source, "--rate", "0", "--frames", "1")
    assert code == 1
    assert "FAILED: plain pickle.load" in text and "0 of 1 scans" in text


def test_ctrl_c_outside_the_capture_is_exit_130(tmp_path, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo._Demo, "run", interrupted)
    out, source = tmp_path / "out", save(tmp_path / "a.npy", cube_of())
    code, text = run_demo(out, "--source", source)
    assert code == 130 and text.endswith("interrupted\n")
    mmapdict.open(out, "x").close()
    code, text = run_demo(out, "--source", source, "--force")
    assert code == 130 and text.endswith(f"interrupted; {out} is whole\n")


def test_a_frame_that_cannot_be_read_ends_the_capture_and_keeps_the_rest(tmp_path, monkeypatch):
    whole = arrange(np.ones((3, 4, 5, 1), "u1"), "tyxl", "it")
    frames = whole.frame

    def frame(step):
        if step:
            raise SourceError("the disk is gone")
        return frames(step)

    whole.frame = frame
    monkeypatch.setattr(demo, "open_source", lambda *arguments: whole)
    code, text = run_demo(tmp_path / "out", "--source", "camera", "--rate", "0")
    assert code == 1
    assert "FAILED: the capture ended early: the disk is gone (all until then is kept)" in text
    with open(tmp_path / "out", "rb") as file:
        d = pickle.load(file)
    assert d["scan", 0].all() and d["scan", 0, "meta"]["complete"]


def test_a_file_larger_than_half_of_the_memory_is_not_loaded_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_memory_bytes", lambda: 1000)
    source = save(tmp_path / "a.npy", cube_of())
    code, text = run_demo(tmp_path / "out", "--source", source, "--rate", "0", "--frames", "1")
    assert code == 0
    assert "left out: a plain pickle.load reads all" in text and "(1 kB)" in text


class Ending:
    """An stdin for the viewer that ends when told to."""

    def __init__(self):
        self.end = threading.Event()

    def read(self, count):
        self.end.wait()
        return ""


def test_the_viewer_reports_what_it_sees(tmp_path):
    with mmapdict.open(tmp_path / "f", "w") as d:
        camera = Camera(arrange(cube_of(), "yxl", "it"))
        running = capture.Capture(d, camera, 2, 0, "it")
        running.prepare()
        stdin, stdout = Ending(), io.StringIO()
        thread = threading.Thread(target=capture.view, args=(tmp_path / "f", stdin, stdout))
        thread.start()
        while not stdout.getvalue():
            thread.join(0.001)
        running.run()
        running.floors.close()
        stdin.end.set()
        thread.join()
    reports = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert [report["event"] for report in reports if report["event"] != "fill"] == [
        "open", "array", "meta", "array", "meta", "end"]
    assert reports[-1]["keys"] == 7
    assert len(reports[-1]["array_ns"]) == len(reports[-1]["meta_ns"]) == 2
    assert min(reports[-1]["array_ns"] + reports[-1]["meta_ns"]) > 0


def test_floors_store_the_same_lines(tmp_path):
    cube = np.zeros((5, 3, 2), "u2")
    lines = cube_of(5, 3, 2)
    floors = capture.Floors(tmp_path, (5, 3, 2), lines.dtype, limit=4 * 12)
    floors.begin()
    for y in range(5):
        assert floors.store(cube, y, lines[y]) > 0
    np.testing.assert_array_equal(cube, lines)
    np.testing.assert_array_equal(floors._map, lines[:4])
    assert os.pread(floors._raw.fileno(), 1000, 0) == lines[:4].tobytes()
    assert floors.lines == 4
    assert min(floors.capture_ns, floors.pwrite_ns, floors.memmap_ns) > 0
    floors.close()
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_is_drawn_on_terminals_only():
    for stderr, drawn in ((io.StringIO(), False), (Terminal(), True)):
        stdout = io.StringIO()
        console = demo.Console(stdout, stderr)
        console.bar(0.5, "left", "right")
        console.say("a line")
        console.clear()
        assert stdout.getvalue() == "a line\n"
        assert ("left [####" in stderr.getvalue()) == drawn
        assert stderr.getvalue().endswith("\x1b[K") == drawn


@pytest.mark.parametrize("value, text", [(300, "0 us"), (5_400, "5 us"), (2_500_000, "2.5 ms"), (3e9, "3 s")])
def test_durations(value, text):
    assert demo._duration(value) == text


@pytest.mark.parametrize("value, text", [(12, "12 B"), (1500, "1.5 kB"), (30_720_000, "30.7 MB"), (2e9, "2 GB")])
def test_amounts(value, text):
    assert demo._amount(value) == text
