"""Filling holes: big assignments are written to the file, and nobody can tell but by the clock."""

import copy
import errno
import gc
import os
import pickle
import threading
import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import mmapdict
from children import Child, descriptors, in_fork
from mmapdict import store, views

SHAPE = (5, 200, 200)           # of "<f8": a frame has 320,000 bytes
FRAME = 320_000

pytestmark = pytest.mark.skipif(not store.HAVE_FILL, reason="nothing is written there")


@pytest.fixture
def writes(monkeypatch):
    """Offset and size of each write that an assignment made."""
    made = []
    fill = store.File.fill

    def count(self, offset, data):
        done = fill(self, offset, data)
        if done:
            made.append((offset, len(data)))
        return done

    monkeypatch.setattr(store.File, "fill", count)
    return made


@pytest.fixture
def d(path):
    with mmapdict.open(path, "x") as mapping:
        yield mapping


def frame(number, shape=SHAPE[1:], dtype="<f8"):
    return (np.arange(np.prod(shape)) % 97 + number).reshape(shape).astype(dtype)


class Own(np.ndarray):
    """A subclass as users have them."""


def is_hole(array):
    return type(array) is views.Hole


# -- what is written ------------------------------------------------------------------------------------------------

def test_frames_are_written(d, path, writes):
    a = d.create("a", SHAPE)
    for turn in range(2):
        for i in range(len(a)):
            a[i] = frame(i + turn)
            assert (d["a"][i] == frame(i + turn)).all() and (a[i] == d["a"][i]).all()
    # The second time the map is faster: its pages are there.
    assert writes == [(a.offset + i * FRAME, FRAME) for i in range(len(a))]
    with open(path, "rb") as file:
        assert (pickle.load(file)["a"] == np.array([frame(i + 1) for i in range(len(a))])).all()


def test_what_is_small_is_not_written(d, writes):
    a = d.create("a", (4, views.WRITE_FROM), "u1")
    a[0, 1:] = np.ones(views.WRITE_FROM - 1, "u1")
    a[0, 0] = 1
    assert not writes and a[0].all()
    a[1] = np.ones(views.WRITE_FROM, "u1")
    assert len(writes) == 1 and a[1].all() and not a[2:].any()


def test_small_and_masked_holes_are_as_others(d, writes):
    assert not is_hole(d.create("small", views.HOLE_FROM - 1, "u1"))
    assert is_hole(d.create("big", views.HOLE_FROM, "u1")) and type(d["big"]) is mmapdict.memmap
    a = d.create("a", SHAPE, mask=True)
    a[3] = frame(1)
    a[4] = np.ma.masked
    assert not writes and (d["a"][3] == frame(1)).all() and d["a"][4].mask.all()


def test_where_it_cannot_be(d, monkeypatch):
    monkeypatch.setattr(store, "HAVE_FILL", False)
    assert not is_hole(d.create("a", SHAPE))


VIEWER = """
with mmapdict.open(path) as r:
    a = r["a"]
    tell(float(a.sum()))
    while hear() != "end":
        tell(float(a.sum()), float(plain()["a"].sum()))
"""


def test_another_process_sees_it_at_once(d, path, writes):
    a = d.create("a", SHAPE)
    with Child(path, VIEWER) as viewer:
        assert viewer.hear() == "0.0"
        for i in range(3):
            a[i] = frame(i)
            a[i, 0, 0] = 1000 + i
            viewer.tell("look")
            assert viewer.hear() == f"{a.sum()} {a.sum()}"
        viewer.tell("end")
        viewer.finish()
    assert len(writes) == 3


# -- as numpy does --------------------------------------------------------------------------------------------------

ALL = np.stack([frame(i) for i in range(5)])
CASES = {       # index, value, whether it is written
    "int": (3, frame(1), True),
    "negative": (-1, frame(1), True),
    "numpy's int": (np.uint8(3), frame(1), True),
    "slice": (slice(2, 4), ALL[:2], True),
    "all": (slice(None), ALL, True),
    "ellipsis": (..., ALL, True),
    "tuple": ((4, slice(None), ...), frame(1), True),
    "empty tuple": ((), ALL, True),
    "new axis": ((4, None), frame(1)[None], True),
    "part of a frame": ((4, slice(0, 180)), frame(1)[:180], True),
    "nan": (3, np.full(SHAPE[1:], np.nan), True),
    "read-only value": (3, np.frombuffer(frame(1).tobytes()).reshape(SHAPE[1:]), True),
    "empty": (slice(3, 3), ALL[:0], False),
    "other byte order": (3, frame(1, dtype=">f8"), False),
    "cast": (3, frame(1, dtype="i4"), False),
    "cast to less": (3, frame(1, dtype="c16"), False),
    "same size": (3, frame(1, dtype="i8"), False),
    "broadcast": (3, np.arange(200.0), False),
    "broadcast to many": (slice(2, 4), frame(1), False),
    "no strides": (3, np.broadcast_to(1.5, SHAPE[1:]), False),
    "more dimensions": (3, frame(1)[None], False),
    "scalar": (3, 5, False),
    "list": (3, frame(1).tolist(), False),
    "object": (3, frame(1).astype(object), False),
    "F order": (3, np.asfortranarray(frame(1)), False),
    "backwards value": (3, frame(1)[::-1], False),
    "backwards": (slice(3, 1, -1), ALL[:2], False),
    "every other": (slice(0, 5, 2), ALL[:3], False),
    "columns": ((slice(None), slice(None), slice(0, 100)), ALL[:, :, :100].copy(), False),
    "masked": (3, np.ma.array(frame(1), mask=frame(1) % 2), False),
    "subclass": (3, frame(1).view(Own), False),
    "fancy": ([1, 3], ALL[:2], False),
    "array": (np.array([3]), ALL[:1], False),
    "mask": (np.arange(5) == 3, ALL[:1], False),
    "True": (True, ALL, False),
    "element": ((1, 2, 3), 4.5, False),
    "element, array": ((1, 2, 3), np.array(4.5), False),
    "element, big array": ((1, 2, 3), frame(1), False),
    "out of bounds": (5, frame(1), False),
    "wrong shape": (3, np.ones((201, 200)), False),
    "no index": ("x", frame(1), False),
    "too many": ((1, 2, 3, 4), frame(1), False),
    "two ellipses": ((..., ...), frame(1), False),
    "float index": (1.0, frame(1), False),
    "step 0": (slice(0, 5, 0), frame(1), False),
    "string": (3, np.full((200, 200), "abc"), False),
}


def outcome(array, index, value):
    """What an assignment raises, in type and words, or None."""
    try:
        array[index] = value
    except Exception as exc:
        return type(exc), str(exc)
    return None


@pytest.mark.filterwarnings("ignore")           # complex to real, as numpy warns
def test_as_numpy(d, writes):
    a, model = d.create("a", SHAPE), np.zeros(SHAPE)
    assert is_hole(a)
    for case, (index, value, written) in CASES.items():
        a[...] = model[...] = -1
        a._written_to = 0
        assert outcome(a, index, value) == outcome(model, index, value), case
        np.testing.assert_array_equal(np.asarray(a), model, case)
        np.testing.assert_array_equal(np.asarray(d["a"]), model, case)
        assert len(writes) == written, case
        writes.clear()


SIZES = (6, 8, 10)
slices = st.slices(7)
INDICES = st.one_of(
    st.integers(-7, 7), slices, st.just(...), st.none(), st.booleans(), st.lists(st.integers(-6, 5), max_size=3),
    st.integers(0, 5).map(np.uint16), st.integers(0, 5).map(np.array), st.just(np.arange(6) % 2 == 0),
    st.lists(st.one_of(st.integers(-7, 7), slices, slices, st.just(slice(None)), st.just(...), st.none()),
             max_size=4).map(tuple))
VALUES = st.tuples(st.sampled_from(["<i4", "<i4", "<i4", ">i4", "u1", "f8"]), st.sampled_from("CCF"),
                   st.sampled_from(["whole", "whole", "whole", "last", "scalar", "turned", "more"]))


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """Two holes, in C and in Fortran order, whose assignments are written however small they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "HOLE_FROM", 0)
        patch.setattr(views, "WRITE_FROM", 0)
        with mmapdict.open(tmp_path_factory.mktemp("twins") / "file", "x") as d:
            yield {order: d.create(order, SIZES, "<i4", order=order) for order in "CF"}


@hypothesis.given(INDICES, VALUES, st.sampled_from("CF"), st.integers(0, 1000))
@hypothesis.settings(max_examples=300)
def test_any_index_and_value(twins, index, value, order, seed):
    hole = twins[order]
    assert is_hole(hole)
    model = np.array(hole, order="K")
    dtype, value_order, kind = value
    try:
        target = model[index]
    except IndexError:
        target = model
    shape = {"whole": target.shape, "last": target.shape[-1:], "scalar": (), "turned": target.shape[::-1],
             "more": (1, *target.shape)}[kind]
    array = np.asarray(np.random.default_rng(seed).integers(0, 100, shape), dtype, order=value_order)
    assert outcome(hole, index, array) == outcome(model, index, array)
    np.testing.assert_array_equal(np.asarray(hole), model)


def test_types(d, writes, monkeypatch):
    monkeypatch.setattr(views, "HOLE_FROM", 0)
    monkeypatch.setattr(views, "WRITE_FROM", 0)
    for dtype in "?", "u1", ">u2", "<f4", "c16", "g", "S5", "<U3", ">U3", "V7", "M8[ns]", "m8[s]":
        value = np.frombuffer(np.random.default_rng(1).bytes(np.dtype(dtype).itemsize * 50), "u1") % 2
        a = d.create(dtype, (3, 50), dtype)
        a[1] = value = value.view(dtype)
        assert len(writes) == 1 and a[1].tobytes() == value.tobytes() and not any(a[::2].tobytes())
        writes.clear()


def test_structured_values_are_copied(d, writes):
    dtype = np.dtype([("x", "i1"), ("y", "<f8")], align=True)
    a = d.create("a", (3, 1 << 17), dtype)
    a[1] = np.ones(1 << 17, dtype)
    a["y"][2] = np.ones(1 << 17)
    a["y"] = np.ones((3, 1 << 17))
    assert writes == [] and (a[1] == np.ones((), dtype)).all() and (a["y"] == 1).all()


def test_fortran_order(d, writes):
    a = d.create("a", SHAPE[::-1], order="F")
    a[..., 3] = frame(1).T
    assert len(writes) == 1 and (a[..., 3] == frame(1).T).all() and a.sum() == frame(1).sum()
    a[..., 4] = frame(1)        # in C order: each element has another place
    assert len(writes) == 1 and (d["a"][..., 4] == frame(1)).all()
    a[...] = np.asfortranarray(np.ones(SHAPE[::-1]))
    assert len(writes) == 1 and (d["a"] == 1).all()
    d.create("b", SHAPE[::-1], order="F")[...] = np.asfortranarray(np.ones(SHAPE[::-1]))
    assert len(writes) == 2 and (d["b"] == 1).all()


def test_source_and_target_overlap(d, writes):
    a, model = d.create("a", SHAPE), np.zeros(SHAPE)
    a[...] = model[...] = ALL
    plain = np.asarray(a)
    a[1:] = plain[:-1]
    a[1:] = a[:-1]
    a[...] = plain[::-1]
    a[...] = a
    model[1:] = model[:-1]
    model[1:] = model[:-1]
    model[...] = model[::-1]
    assert len(writes) == 1 and (a == model).all()


def test_mapped_values(d, writes, tmp_path):
    d["source"] = frame(7)
    a = d.create("a", SHAPE)
    b = d.create("b", (1000, 200))
    b[:200] = frame(7)
    raw = np.memmap(tmp_path / "raw", "f8", "w+", shape=SHAPE[1:])
    raw[...] = frame(7)
    for i, value in enumerate((d["source"], np.asarray(d["source"]), b[:200], raw)):
        a[i] = value
    a[4] = np.asarray(d["a"])[2]
    a[0] = a[3]                             # shares memory, though no element
    assert len(writes) >= 5 and (d["a"] == frame(7)).all()


def test_in_place(d, writes):
    a, model = d.create("a", SHAPE), np.zeros(SHAPE)
    for i in range(len(a)):
        a[i] = model[i] = frame(i)
        a[i] -= 3
        model[i] -= 3
        a[i, :, 3] = model[i, :, 3] = 7
        np.sqrt(np.abs(a[i]), out=a[i])
        model[i] = np.sqrt(np.abs(model[i]))
    a += 1
    model += 1
    assert is_hole(a) and (d["a"] == model).all() and len(writes) == len(a)


# -- the object -----------------------------------------------------------------------------------------------------

def test_it_is_a_memmap_as_others(d):
    a = d.create("a", SHAPE)
    other = d["a"]
    assert is_hole(a) and repr(type(a)) == repr(type(other)) and repr(a) == repr(other)
    assert isinstance(a, np.memmap) and isinstance(a, mmapdict.memmap)
    assert (a.filename, a.offset, a.mode) == (other.filename, other.offset, other.mode)
    a.flush()
    for view in (a[1], a[1:], a.T, a.view(), a.reshape(-1), a[..., None], a.ravel(), np.squeeze(a[:1]), a[1:][1:],
                 next(iter(a)), np.moveaxis(a, 0, 1), a.view("u1"), a[()]):
        assert type(view) is mmapdict.memmap and view.filename == other.filename and view.offset >= a.offset
    for result in (a + 1, a[[1, 2]], a[a > 1], copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), a.copy(),
                   np.asarray(a), np.array(a)):
        assert type(result) is np.ndarray
    assert type(a[1, 2, 3]) is np.float64 and type(a.sum()) is np.float64
    empty = np.empty_like(a)
    assert not is_hole(empty) and empty.filename is None
    empty[3] = frame(1)


def test_masked_arrays_over_it(d, writes):
    a = d.create("a", SHAPE)
    masked = np.ma.array(a, mask=frame(1, SHAPE) % 2, copy=False)
    masked[1] = frame(1)
    assert (a[1] == frame(1)).all() and b"mmapdict" not in pickle.dumps(masked.data)
    d["masked"] = masked
    d["list"] = [masked, a]
    for found in (pickle.loads(pickle.dumps(masked)), copy.deepcopy(masked), d["masked"], d["list"][0]):
        assert type(found) is np.ma.MaskedArray and (found.mask == masked.mask).all() and (found == masked).all()
    assert type(d["list"][1]) is np.ndarray


def test_storing_the_hole(d):
    a = d.create("a", SHAPE)
    entries = d.info()
    d["a"] = a                              # the very array that is there
    a += 1
    d["a"] = a
    d["a"] += 1
    assert d.info() == entries and (a == 2).all()
    d["b"] = a
    a[0] = frame(1)
    assert (d["b"] == 2).all() and d.entry("b").kind == "array"


def test_a_changed_shape(d, writes):
    a = d.create("a", SHAPE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)     # since numpy 2.5
        a.shape = (10, 100, 200)
    a[2:6] = np.ones((4, 100, 200))
    assert (d["a"][1:3] == 1).all() and d["a"].sum() == 2 * 200 * 200 and len(writes) == 1


def test_read_only(d, writes):
    a = d.create("a", SHAPE)
    a.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        a[3] = frame(1)
    with pytest.raises(ValueError, match="read-only"):
        a[3, 1, 1] = 1
    assert not writes and not d["a"].any()


# -- lifetime -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.filterwarnings("ignore:unclosed")
def test_after_the_handle_is_gone(path, writes, dropped):
    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        d = mmapdict.open(path, "x")
        a = d.create("a", SHAPE)
        a[0] = frame(0)
        if not dropped:
            d.close()
        del d
        assert is_hole(a) and len(writes) == 1 and descriptors() <= before + 1      # that of the map
        a[1] = frame(1)
        assert len(writes) == 1
        del a
        assert descriptors() == before
    finally:
        gc.enable()
    with mmapdict.open(path) as d:
        assert (d["a"][0] == frame(0)).all() and (d["a"][1] == frame(1)).all()


def test_closed_while_a_thread_writes(path, monkeypatch):
    """The descriptor stays as long as somebody writes by it: its number could become another file's."""
    gc.collect()
    inside, go, before, pwrite = threading.Event(), threading.Event(), descriptors(), os.pwrite

    def slow(fd, data, offset):
        if len(data) == FRAME:
            inside.set()
            assert go.wait(60)
        return pwrite(fd, data, offset)

    d = mmapdict.open(path, "x")
    a = d.create("a", SHAPE)
    monkeypatch.setattr(os, "pwrite", slow)
    thread = threading.Thread(target=a.__setitem__, args=(1, frame(1)))
    thread.start()
    assert inside.wait(60)
    d.close()
    others = [os.open(os.devnull, os.O_RDWR) for _ in range(20)]
    go.set()
    thread.join()
    assert (a[1] == frame(1)).all()
    for fd in others:
        os.close(fd)
    del a, thread
    assert descriptors() == before


def test_forked_child(d, writes):
    a = d.create("a", SHAPE)
    a[0] = frame(0)

    def child():
        a[1] = frame(1)
        assert len(writes) == 2
        a[0] = frame(5)                         # through the map
        b = d.create("b", SHAPE)
        b[1] = frame(3)
        a[2] = frame(4)                         # by now the handle has a file of its own
        assert (d["b"][1] == frame(3)).all() and len(writes) == 3

    in_fork(child)
    assert all((a[i] == frame(n)).all() for i, n in enumerate((5, 1, 4))) and (d["b"][1] == frame(3)).all()
    a[1] = frame(2)
    assert (d["a"][1] == frame(2)).all() and len(writes) == 2


def test_vacuum(d, writes):
    a = d.create("a", SHAPE)
    a[0] = frame(0)
    d["b"] = frame(1)
    del d["b"]
    if not d._file.sees_others:
        pytest.skip("nothing can take the file's place here")
    with pytest.raises(mmapdict.BusyError):
        d.vacuum()
    del a
    d.vacuum()
    a = d.create("c", SHAPE)
    a[1] = frame(1)
    assert len(writes) == 2 and (d["a"][0] == frame(0)).all() and (d["c"][1] == frame(1)).all()


def test_a_replaced_file(d, path, writes):
    a = d.create("a", SHAPE)
    a[0] = frame(0)
    with mmapdict.open(path, "w") as other:
        other["a"] = 5
        a[1] = frame(1)                         # the file that it is of has no name any more
        assert other["a"] == d["a"] == 5
        a[2] = frame(2)                         # by now its handle has the new file
        assert len(writes) == 2 and all((a[i] == frame(i)).all() for i in range(3))
        assert dict(other) == {"a": 5}


def test_given_up_with_its_batch(d, writes):
    with pytest.raises(KeyboardInterrupt), d.batch():
        a = d.create("a", SHAPE)
        a[0] = frame(0)
        raise KeyboardInterrupt
    d["b"] = frame(1)
    a[1] = frame(2)
    assert len(writes) == 2 and list(d) == ["b"] and (d["b"] == frame(1)).all() and (a[1] == frame(2)).all()


# -- errors ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("failure", [OSError(errno.EFBIG, "limit"), OSError(errno.EBADF, "gone"), 0])
def test_otherwise_the_map_is_used(d, monkeypatch, failure):
    a = d.create("a", SHAPE)
    pwrite, calls = os.pwrite, []

    def fail(fd, data, offset):
        calls.append(offset)
        if len(calls) == 1:
            return pwrite(fd, data[:1000], offset)
        if isinstance(failure, OSError):
            raise failure
        return failure

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        a[1] = frame(1)
    assert calls == [a[1].offset, a[1].offset + 1000] and (d["a"][1] == frame(1)).all()
    a[2] = frame(2)
    assert (d["a"][2] == frame(2)).all()


def test_short_writes(d, monkeypatch):
    a, pwrite, calls = d.create("a", SHAPE), os.pwrite, []

    def short(fd, data, offset):
        calls.append(len(data))
        return pwrite(fd, data[:100_000], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", short)
        patch.setattr(store, "FILL_STEP", 150_000)
        a[1] = frame(1)
    assert calls == [150_000, 150_000, 120_000, 20_000] and (d["a"][1] == frame(1)).all() and not a[2].any()
