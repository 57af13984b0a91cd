"""Arrays that grow: `create_growable`, `append`, `extend`, `resize`, `trim`, `exclusive`."""

import contextlib
import errno
import gc
import itertools
import mmap
import os
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import judge
import mmapdict
from children import fork, in_fork, join
from judge import plain
from mmapdict import BusyError, ClosedError, ReadOnlyError, store
from mmapdict.arrays import Column
from mmapdict.repair import repair

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

GAPS = np.dtype({"names": ["a", "b"], "formats": ["u1", ">f8"], "offsets": [3, 8], "itemsize": 24})
DTYPES = [np.dtype(given) for given in (
    "?", "i1", "u1", "<i2", ">u2", "<i4", ">i4", "i8", "u8", "f2", "<f4", ">f4", "f8", "c8", "c16", ">c16", "M8[s]",
    "M8[ns]", ">M8[D]", "m8[ms]", "U3", ">U3", "S1", "S5", "V3", "i4,>f4", [("x", "u2", (2,)), ("y", "U1")])] + [GAPS]
SHAPES = [(), (3,), (2, 3), (0,)]


def counted(shape, dtype, start=0):
    """An array whose elements mostly differ."""
    array = np.zeros(shape, dtype)
    flat, numbers = array.reshape(-1), np.arange(start, start + array.size) % 97
    if array.dtype.names:
        for name in array.dtype.names:
            flat[name] = counted(flat[name].shape, flat[name].dtype, start)
    elif array.dtype.kind == "?":
        flat[:] = numbers % 2
    elif array.dtype.kind == "V":
        flat[:] = [bytes([n, 1, n]) for n in numbers]
    elif array.dtype.kind in "US":
        flat[:] = [chr(97 + n % 26) for n in numbers]
    else:
        flat[:] = numbers.astype(array.dtype)
    return array


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert str(found.tolist()) == str(expected.tolist())


def checked(path, d, **expected):
    """Compare growable arrays as the handle and every unpickler find them."""
    loaded = judge.load_every_way(path)
    for key, rows in expected.items():
        same(d[key], rows)
        same(loaded[key], rows)


@contextlib.contextmanager
def unchanged(path, d):
    """All bytes up to the STOP stay as they are."""
    def content():
        with open(path, "rb") as file:
            return file.read(d.info()["used"])

    before = content()
    yield
    assert content() == before


@pytest.fixture
def d(path):
    with mmapdict.open(path, "w") as mapping:
        yield mapping


# -- shapes and dtypes ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dtypes_and_shapes(d, path, dtype, shape):
    expected = counted((40, *shape), dtype)
    first = d.create_growable("a", shape, dtype)
    assert first.shape == (0, *shape) and first.dtype == dtype
    d.append("a", expected[0])
    d.append("a", expected[1:1])
    d.append("a", expected[1:30])
    d.append("a", expected[30:31])
    with d.extend("a", 9) as rows:
        rows[...] = expected[31:]
    checked(path, d, a=expected)
    if expected.size:
        d.append("b", expected)
        checked(path, d, b=expected)
    d.resize("a", 7)
    d.append("a", expected[7:9])
    d.trim("a")
    d.append("a", expected[9:])
    checked(path, d, a=expected)
    with mmapdict.open(path, "r") as other:
        same(other["a"], expected)


@pytest.mark.parametrize("shape, axis", [((3,), 1), ((3,), -1), ((3,), -2), ((2, 3), 1), ((2, 3), 2), ((2, 3), -1),
                                         ((2, 3), -3), ((0, 2), 1), ((), 0), ((), -1)])
@pytest.mark.parametrize("dtype", ["u2", ">f8"])
def test_axes(d, path, shape, axis, dtype):
    place = axis % (len(shape) + 1)
    expected = counted((*shape[:place], 30, *shape[place:]), dtype)
    d.create_growable("a", shape, dtype, axis=axis)
    assert d["a"].shape == (*shape[:place], 0, *shape[place:])
    d.append("a", expected.take(0, place))
    d.append("a", expected.take(range(1, 20), place))
    with d.extend("a", 10) as rows:
        rows[...] = expected.take(range(20, 30), place)
    checked(path, d, a=expected)
    d.resize("a", 5)
    d.trim("a")
    checked(path, d, a=expected.take(range(5), place))


def test_sub_array_dtypes(d, path):
    d.create_growable("a", 2, np.dtype(("i4", (3,))))
    assert d["a"].shape == (0, 2, 3) and d["a"].dtype == "i4"
    d.append("a", np.ones((2, 3), "i4"))
    checked(path, d, a=np.ones((1, 2, 3), "i4"))


def test_first_rows_without_bytes(d):
    d.append("a", np.zeros((40, 0)))
    assert d["a"].shape == (40, 0)


def test_first_rows_say_shape_and_dtype(d, path):
    d.append("number", 5)
    d.append("numbers", [1.5, 2.5])
    d.append("lines", [[1, 2, 3]])
    d.append("lines", [4, 5, 6])
    d.append("none", np.zeros((0, 4), "u1"))
    d.append("fortran", np.asfortranarray(counted((4, 5), "i4")))
    d.append("strided", counted((8, 6), "i4")[::-2, ::2])
    checked(path, d, number=np.array([5]), numbers=np.array([1.5, 2.5]), lines=np.array([[1, 2, 3], [4, 5, 6]]),
            none=np.zeros((0, 4), "u1"), fortran=counted((4, 5), "i4"), strided=counted((8, 6), "i4")[::-2, ::2])
    assert {entry.kind for entry in d.entries()} == {"growable"}


def test_rows_of_any_layout(d, path):
    rows = counted((4, 2, 3), "i4")
    d.create_growable("a", (2, 3), "i4")
    for given in rows, np.asfortranarray(rows), np.flip(np.flip(rows).copy()), rows.tolist(), rows.astype(">i4"):
        d.append("a", given)
    checked(path, d, a=np.concatenate([rows] * 5))


def test_all_kinds_of_keys(d):
    keys = ["", b"k", 7, 2.5, None, ("a", (1, b"x")), "k" * 200]
    for key in keys:
        d.append(key, [1])
        d.append(key, [2])
    assert [(key, value.tolist()) for key, value in plain(d.path).items()] == [(key, [1, 2]) for key in keys]
    d.append(True, [1])
    d.append(1.0, [2])
    assert d[1].tolist() == [1, 2]


def test_long_keys(d):
    d.append("k" * 5000, [1, 2])
    assert d["k" * 5000].tolist() == [1, 2]


# -- what is refused --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape, rows", [
    ((), [[1]]), ((3,), 1), ((3,), [1, 2]), ((3,), [[1, 2]]), ((3,), [[[1, 2, 3]]]), ((2, 3), np.zeros((3, 2), "i4")),
    ((2, 3), np.zeros((1, 3, 2), "i4")), ((0,), [[1]]), ((3,), [])])
def test_wrong_shapes(d, path, shape, rows):
    d.create_growable("a", shape, "i4")
    with unchanged(path, d), pytest.raises(ValueError) as caught:
        d.append("a", np.array(rows, "i4"))
    assert str(shape) in str(caught.value) and str(np.shape(rows)) in str(caught.value)


@pytest.mark.parametrize("dtype, rows", [
    ("i4", [1.5]), ("i4", [2**31]), ("u1", [-1]), ("u1", [256]), ("i8", np.array([2**63], "u8")), ("u8", [-1]),
    ("?", [2]), ("f8", [1j]), ("f8", ["1"]), ("M8[s]", [5]), ("S2", [b"abc"]), ("U2", ["abc"]), ("S3", ["abc"]),
    ("i4", [None]), ("f8", [...]), ("i4", np.ma.array([1, 2], mask=[0, 1])), ("i4", np.ma.array([1, 2])),
    ("i4", np.array(["2020"], "M8[s]")), ("i4", np.array([(1,)], [("x", "i4")])), ("i4,i4", np.array([1], "M8[s]")),
    ("U3", [123456]),
    ("U2", np.array([b"abcdefgh"])),
    ([("x", "i4")], np.array([(2**40,)], [("x", "i8")])),
    ([("x", "i4")], [(2**40,)]),
    ([("x", "i4"), ("y", "i4")], np.array([(1, 2)], [("y", "i4"), ("x", "i4")])),
    ("M8[s]", np.array(["2020-01-01T00:00:00.5"], "M8[ms]")),
    ("f4", [1e300]),
], ids=repr)
def test_values_that_do_not_fit(d, path, dtype, rows):
    d.create_growable("a", (), dtype)
    with unchanged(path, d), pytest.raises(TypeError, match="'a'"):
        d.append("a", rows)
    assert len(d["a"]) == 0


def test_both_dtypes_are_named(d, path):
    d.append("a", np.zeros(1, "i4"))
    with unchanged(path, d), pytest.raises(TypeError, match=r"int32.*float64"):
        d.append("a", np.zeros(1))


@pytest.mark.parametrize("dtype, rows, expected", [
    ("f4", [0.1], [np.float32(0.1)]), ("f8", [1, 2], [1., 2.]), ("i8", [True], [1]), ("u1", [255], [255]),
    ("i2", np.array([7], "u8"), [7]), ("c16", [1.5], [1.5]), ("U4", ["ab"], ["ab"]), ("S4", [b"a"], [b"a"]),
    ("i8", [], []), ("?", [True], [True]), ("i4,f8", [(1, 2.5)], [(1, 2.5)])])
def test_values_that_fit(d, dtype, rows, expected):
    d.create_growable("a", (), dtype)
    d.append("a", rows)
    assert d["a"].tolist() == expected


@pytest.mark.parametrize("rows", [[None], [...], np.ma.array([1]), {"a": 1}, np.ma.masked], ids=repr)
def test_first_rows_that_cannot_be_mapped(d, path, rows):
    with unchanged(path, d), pytest.raises(TypeError):
        d.append("a", rows)
    assert "a" not in d


def test_arguments_of_create_growable(d, path):
    d["there"] = 1
    with unchanged(path, d):
        for error, arguments, options in [
                (ValueError, ("there",), {}), (ValueError, ("a", -1), {}), (ValueError, ("a",), {"capacity": -1}),
                (ValueError, ("a", (2,)), {"axis": 2}), (ValueError, ("a", (2,)), {"axis": -3}),
                (ValueError, ("a", (2**40, 2**40)), {}), (TypeError, ("a", (), object), {}),
                (TypeError, ("a", 1.5), {}), (TypeError, ("a",), {"axis": 0.5}), (TypeError, ("a",), {"capacity": 1.5}),
                (TypeError, (["a"],), {}), (OverflowError, ("a",), {"capacity": 2**60})]:
            with pytest.raises(error):
                d.create_growable(*arguments, **options)


def test_values_that_do_not_grow(d, path):
    d["array"], d["value"] = np.zeros(3), 1
    with unchanged(path, d):
        for key in "array", "value":
            for call in (lambda: d.append(key, [1.]), lambda: d.extend(key, 1), lambda: d.resize(key, 1),
                         lambda: d.trim(key)):
                with pytest.raises(TypeError, match="not growable"):
                    call()
        for call in lambda: d.extend("no", 1), lambda: d.resize("no", 1), lambda: d.trim("no"):
            with pytest.raises(KeyError):
                call()
    d.append("a", [1.])
    with unchanged(path, d):
        for call in lambda: d.extend("a", -1), lambda: d.resize("a", -1):
            with pytest.raises(ValueError):
                call()
        for call in lambda: d.extend("a", 1.5), lambda: d.resize("a", "2"):
            with pytest.raises(TypeError):
                call()
        for call in lambda: d.extend("a", 2**62), lambda: d.resize("a", 2**63):
            with pytest.raises((ValueError, OverflowError)):
                call()
    d.append("a", [2.])
    assert d["a"].tolist() == [1, 2]


@pytest.mark.parametrize("n", [2**63 - 1, 2**63])
def test_too_many_rows_without_bytes(d, path, n):
    d.create_growable("a", (0, 2), "i4")
    with contextlib.suppress(ValueError, OverflowError):
        d.resize("a", n)
        raise AssertionError("no error")
    plain(path)


def test_read_only_and_closed(d, path):
    d.append("a", [1])
    with mmapdict.open(path, "r") as reader:
        for call in (lambda: reader.append("a", [1]), lambda: reader.append("b", [1]), lambda: reader.extend("a", 1),
                     lambda: reader.resize("a", 0), lambda: reader.trim("a"), lambda: reader.create_growable("b"),
                     lambda: reader.exclusive().__enter__()):
            with pytest.raises(ReadOnlyError):
                call()
    with pytest.raises(ClosedError):
        reader.append("a", [1])


# -- room -------------------------------------------------------------------------------------------------------------

def test_capacity_is_where_rows_go(d):
    d.create_growable("a", (4,), "f8", capacity=1000)
    before = d.entry("a")
    assert 32_000 <= before.record_nbytes < 33_000
    for _ in range(10):
        d.append("a", np.ones((100, 4)))
    assert d.entry("a").record == before.record and d.entry("a").nbytes == 32_000
    d.append("a", np.ones(4))
    assert d.entry("a").record != before.record


def test_views_stay_valid(d):
    views = []
    for i in range(200):
        d.append("a", np.full((1, 50), i))
        views.append(d["a"])
    for n, view in enumerate(views, 1):
        assert view.shape == (n, 50) and (view == np.arange(n)[:, None]).all()
    views[-1][0] = 1000
    assert d["a"][0, 0] == 1000
    d.close()
    assert views[3][3, 0] == 3


def test_resize(d, path):
    rows = counted((20, 3), "i4")
    d.append("a", rows)
    before = d["a"]
    d.resize("a", 12)
    checked(path, d, a=rows[:12])
    d.resize("a", 15)
    longer = np.concatenate([rows[:12], np.zeros((3, 3), "i4")])
    checked(path, d, a=longer)
    d.resize("a", 15)
    d.append("a", rows[:2])
    checked(path, d, a=np.concatenate([longer, rows[:2]]))
    d.resize("a", 0)
    checked(path, d, a=rows[:0])
    d.append("a", rows[5])
    checked(path, d, a=rows[5:6])
    d.resize("a", 3000)
    checked(path, d, a=np.concatenate([rows[5:6], np.zeros((2999, 3), "i4")]))
    same(before, rows)


def test_a_broken_off_extension_leaves_no_rows_for_resize(d, path):
    d.append("a", [1, 2])
    with pytest.raises(ZeroDivisionError), d.extend("a", 3) as rows:
        rows[:] = 9
        1 / 0
    d.resize("a", 5)
    checked(path, d, a=np.array([1, 2, 0, 0, 0]))


def test_trim(d, path):
    rows = counted((10, 3), "i4")
    d.create_growable("a", 3, "i4", capacity=100_000)
    d.append("a", rows)
    freed = d.trim("a")
    assert 1_190_000 < freed <= 1_200_000
    assert d.trim("a") == 0
    checked(path, d, a=rows)
    assert not d.verify().faults
    d.append("a", rows)
    checked(path, d, a=np.concatenate([rows, rows]))
    d.resize("a", 1)
    d.trim("a")
    checked(path, d, a=rows[:1])
    d["other"] = 1
    d.append("a", rows)
    checked(path, d, a=np.concatenate([rows[:1], rows]))
    assert not d.verify().faults


def test_trim_of_nothing(d):
    d.create_growable("a", 3, "i4")
    d.create_growable("b", 0, "i4")
    assert d.trim("a") > 0 and d.trim("a") == 0 and d.trim("b") == 0
    d.append("a", [1, 2, 3])
    assert d["a"].tolist() == [[1, 2, 3]]


def test_close_gives_room_back(path):
    with mmapdict.open(path, "w") as d:
        d.create_growable("a", 1000, "f8", capacity=1000)
        d.append("a", np.ones((2, 1000)))
    with mmapdict.open(path, "r") as d:
        same(d["a"], np.ones((2, 1000)))
    assert os.stat(path).st_blocks * 512 < 100_000


def test_a_hundred_sessions(path):
    """The array moves now and then, and not each time."""
    places = set()
    for i in range(100):
        with mmapdict.open(path) as d:
            d.append("a", np.full((1, 128), i))
            places.add(d.entry("a").record)
    same(plain(path)["a"], np.repeat(np.arange(100), 128).reshape(100, 128))
    assert len(places) < 40
    assert os.stat(path).st_size < 100 * 100 * 1024 // 3


def test_vacuum(path):
    rows = counted((100, 3), "i4")
    with mmapdict.open(path, "w") as d:
        d.create_growable("a", 3, "i4", capacity=100_000)
        d.append("a", rows)
        d.create_growable("b", (), "f8", axis=-1)
        assert d.vacuum() > 0
        assert [entry.kind for entry in d.entries()] == ["growable"] * 2
        d.append("a", rows)
        d.append("b", 1.5)
        d.resize("a", 150)
        checked(path, d, a=np.concatenate([rows, rows[:50]]), b=np.array([1.5]))


def test_vacuum_beside_a_closed_handle(d, path):
    other = mmapdict.open(path)
    other.append("a", [1])
    other.close()
    d.vacuum()


@pytest.mark.parametrize("change", ["append", "extend", "resize", "shorter", "trim"])
def test_a_seal_comes_off(path, change):
    with mmapdict.open(path, "w") as d:
        d.create_growable("a", (), "i8", capacity=10_000)
        d.append("a", [1, 2])
        d.seal()
        assert d.sealed and not d["a"].flags.writeable
        if change == "append":
            d.append("a", [3])
        elif change == "extend":
            with d.extend("a", 1) as rows:
                rows[0] = 3
        elif change == "trim":
            assert d.trim("a") > 0
        else:
            d.resize("a", 1 if change == "shorter" else 3)
        assert not d.sealed and d["a"].flags.writeable
        d["a"][0] = 7
        assert d["a"].tolist() == {"append": [7, 2, 3], "extend": [7, 2, 3], "resize": [7, 2, 0], "shorter": [7],
                                   "trim": [7, 2]}[change]
        assert not d.verify().faults


# -- batches ----------------------------------------------------------------------------------------------------------

def test_no_rows_in_a_batch(d, path):
    d.append("a", [1, 2])
    with d.batch():
        d["b"] = 1
        for call in lambda: d.append("a", [3]), lambda: d.extend("a", 1), lambda: d.resize("a", 0), lambda: d.trim("a"):
            with pytest.raises(BusyError):
                call()
        d["c"] = 2
    assert (d["b"], d["c"]) == (1, 2)
    d.append("a", [3])
    checked(path, d, a=np.array([1, 2, 3]))


def test_a_new_array_in_a_batch(d, path):
    with d.batch():
        d["x"] = [1]
        d.create_growable("a", (), "i8", capacity=3)
        assert d["a"].tolist() == []
        d["y"] = np.zeros(3)
    d.append("a", [1])
    with d.batch():
        d.append("b", [1, 2])
        assert d["b"].tolist() == [1, 2]
    d.append("b", [3])
    checked(path, d, a=np.array([1]), b=np.array([1, 2, 3]))


@pytest.mark.parametrize("make", [lambda d, key: d.create_growable(key, (), "i8"), lambda d, key: d.append(key, [7])],
                         ids=["create", "append"])
def test_two_new_arrays_in_a_batch(d, path, make):
    with d.batch():
        make(d, "a")
        make(d, "b")
    assert d["a"].tolist() == d["b"].tolist() == plain(path)["b"].tolist()


def test_a_big_new_array_in_a_batch(d):
    refused = False
    with d.batch():
        try:
            d.append("a", np.zeros(100_000))
        except BusyError:
            refused = True
    assert "a" not in d if refused else len(d["a"]) == 100_000


def test_a_big_new_array_appears_with_its_rows(d):
    before = d.commit
    d.append("small", np.zeros(10))
    one = d.commit - before
    before = d.commit
    d.append("big", np.zeros(100_000))
    assert d.commit - before == one


# -- extend -----------------------------------------------------------------------------------------------------------

def test_extend(d, path):
    d.append("a", [1])
    with d.extend("a", 2) as rows:
        assert rows.tolist() == [0, 0]
        rows[:] = 5, 6
        assert d["a"].tolist() == plain(path)["a"].tolist() == [1]
    checked(path, d, a=np.array([1, 5, 6]))
    rows[0] = 7
    assert d["a"].tolist() == [1, 7, 6]
    with d.extend("a", 0) as rows:
        assert len(rows) == 0
    extension = d.extend("a", 500)
    extension[:] = 8
    assert len(extension) == 500 and extension[3] == 8 and np.asarray(extension).sum() == 4000
    extension.commit()
    assert len(d["a"]) == 503
    with pytest.raises(BusyError):
        extension.commit()
    extension.cancel()
    assert len(d["a"]) == 503


@pytest.mark.parametrize("how", ["exception", "drop", "cancel"])
def test_extensions_that_are_given_up(d, path, how):
    d.append("a", [1])
    if how == "exception":
        with pytest.raises(ZeroDivisionError), d.extend("a", 2) as rows:
            rows[:] = 9
            1 / 0
    else:
        extension = d.extend("a", 2)
        extension[:] = 9
        if how == "cancel":
            extension.cancel()
            with pytest.raises(BusyError):
                extension.commit()
        del extension
        gc.collect()
    assert d["a"].tolist() == [1]
    with mmapdict.open(path, timeout=0) as other:
        other.append("a", [2])
    with d.extend("a", 1) as rows:
        assert rows.tolist() == [0]
    checked(path, d, a=np.array([1, 2, 0]))


def test_close_gives_up_an_extension(path):
    d = mmapdict.open(path, "w")
    d.append("a", [1])
    extension = d.extend("a", 2)
    extension[:] = 9
    d.close()
    extension[:] = 8
    with pytest.raises((BusyError, ClosedError)):
        extension.commit()
    extension.cancel()
    with mmapdict.open(path, timeout=0) as other:
        other.append("a", [2])
        checked(path, other, a=np.array([1, 2]))


def test_other_changes_while_an_extension_is_open(d, path):
    d.append("a", [1])
    d.append("b", [1])
    with d.extend("a", 2) as rows:
        rows[:] = 5, 6
        d.append("b", [2])
        d["c"] = 3
        with d.extend("b", 1) as more:
            more[:] = 4
        with d.exclusive():
            d.resize("b", 2)
        with pytest.raises(BusyError):
            d.vacuum()
        with pytest.raises(BusyError), d.batch():
            d.append("a", [3])
    checked(path, d, a=np.array([1, 5, 6]), b=np.array([1, 2]))


@pytest.mark.parametrize("change", [lambda d: d.append("a", [3]), lambda d: d.resize("a", 0), lambda d: d.trim("a"),
                                    lambda d: d.extend("a", 1)], ids=["append", "resize", "trim", "extend"])
def test_the_same_array_while_an_extension_is_open(d, path, change):
    d.append("a", [1])
    with d.extend("a", 2) as rows:
        rows[:] = 5, 6
        with pytest.raises(BusyError, match="not published"):
            change(d)
    checked(path, d, a=np.array([1, 5, 6]))


def test_the_same_array_twice_while_an_extension_is_open(d, path):
    d.append("a", [1])
    with d.extend("a", 2) as rows:
        rows[:] = 5, 6
        for _ in range(2):
            with pytest.raises(BusyError, match="not published"):
                d.append("a", [3])
    checked(path, d, a=np.array([1, 5, 6]))


@pytest.mark.parametrize("change", [lambda d: d.pop("a"), lambda d: d.update(a=1), lambda d: d.clear()])
def test_an_array_that_goes_away_while_an_extension_is_open(d, change):
    d.append("a", [1])
    extension = d.extend("a", 2)
    change(d)
    with pytest.raises(BusyError):
        extension.commit()


def test_an_array_that_is_made_anew_while_an_extension_is_open(d):
    d.append("a", [1])
    extension = d.extend("a", 2)
    del d["a"]
    d.create_growable("a", (), "i8")
    with pytest.raises(BusyError):
        extension.commit()
    assert len(d["a"]) == 0


# -- exclusive --------------------------------------------------------------------------------------------------------

def test_exclusive(d, path):
    with mmapdict.open(path, timeout=0) as other:
        with d.exclusive() as given:
            assert given is d
            with d.exclusive(timeout=1):
                d.append("a", [1])
            d["b"] = 2
            assert other["a"].tolist() == [1] and other["b"] == 2
            for call in (lambda: other.append("a", [2]), lambda: other.extend("a", 1), other.exclusive().__enter__,
                         other.exclusive(timeout=0.01).__enter__):
                with pytest.raises(BusyError):
                    call()
        other.append("a", [2])
        with pytest.raises(ZeroDivisionError), d.exclusive():
            1 / 0
        other.append("a", [3])
        with d.exclusive(), d.batch():
            d["c"] = 3
            with pytest.raises(BusyError):
                other["d"] = 4
        with pytest.raises(BusyError), d.batch(), d.exclusive():
            raise AssertionError
        with d.exclusive():
            with pytest.raises(KeyError):
                del d["no"]
            with pytest.raises(BusyError):
                d.vacuum()
            with pytest.raises(BusyError):
                other["d"] = 4
            d.append("a", [4])
        other["d"] = 4
    checked(path, d, a=np.array([1, 2, 3, 4]))
    for timeout in -1, "1", True:
        with pytest.raises(ValueError):
            d.exclusive(timeout)


def test_close_in_an_exclusive_block(path):
    d = mmapdict.open(path, "w")
    with d.exclusive():
        d.append("a", [1])
        d.close()
        with pytest.raises(ClosedError):
            d.append("a", [2])
    with mmapdict.open(path, timeout=0) as other:
        other.append("a", [3])
        checked(path, other, a=np.array([1, 3]))


@needs_fork
@pytest.mark.parametrize("what", ["exclusive", "extend"])
def test_fork_in_a_block(path, what):
    with mmapdict.open(path, "w", timeout=0) as d, mmapdict.open(path, timeout=0) as other:
        d.append("a", [1])
        block = d.exclusive() if what == "exclusive" else d.extend("a", 1)

        def child():
            assert d["a"].tolist() == [1]
            with pytest.raises(BusyError):
                d.append("a", [2])
            if what == "extend":
                with pytest.raises(BusyError):
                    block.commit()
            else:
                block.__exit__(None, None, None)
            with pytest.raises(BusyError):
                d.append("a", [2])

        with block:
            in_fork(child)
            with pytest.raises(BusyError):
                other.append("a", [3])
            d.append("b", [4])
        other.append("a", [5])
        assert d["a"].tolist() == ([1, 5] if what == "exclusive" else [1, 0, 5])

        def later():
            d.append("a", [6])

        in_fork(later)
        assert d["a"][-1] == 6


def test_threads_share_a_handle(d):
    def work(number):
        for i in range(100):
            with d.exclusive():
                n = len(d["a"])
                d.append("a", [number, i])
                assert len(d["a"]) == n + 1

    d.create_growable("a", 2, "i8")
    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(tuple, d["a"].tolist())) == list(itertools.product(range(3), range(100)))


# -- as items of a dict -----------------------------------------------------------------------------------------------

def test_changes_in_place_keep_it_growable(d, path):
    d.append("a", [1, 2])
    place = d.entry("a")
    d["a"] += 1
    d["a"] = d["a"]
    assert d.entry("a") == place
    d.append("a", [4])
    checked(path, d, a=np.array([2, 3, 4]))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_first_rows_are_another_value(d, n):
    d.append("a", [1, 2, 3])
    d["a"] = d["a"][:n]
    assert d["a"].tolist() == [1, 2, 3][:n]


def test_replace_and_remove(d, path):
    for key in "abcdef":
        d.append(key, [1, 2])
    d["a"] = np.array([3])
    with pytest.raises(TypeError):
        d.append("a", [4])
    d["b"] = d["c"][::-1]
    del d["c"]
    popped = d.pop("d")
    key, last = d.popitem()
    assert (key, last.tolist(), popped.tolist()) == ("b", [2, 1], [1, 2])
    d.append("c", [5.5])
    d["e2"] = d["e"]
    d.append("e", [3])
    assert {k: (entry.kind, entry.shape) for k, entry in zip(d, d.entries())} == {
        "e": ("growable", (3,)), "f": ("growable", (2,)), "a": ("array", (1,)), "c": ("growable", (1,)),
        "e2": ("array", (2,))}
    checked(path, d, e=np.array([1, 2, 3]), f=np.array([1, 2]), a=np.array([3]), c=np.array([5.5]), e2=np.array([1, 2]))
    d.clear()
    d.append("e", [1])
    assert plain(path)["e"].tolist() == [1]
    assert d.setdefault("e", 5).tolist() == [1]


def test_growing_keeps_a_key_in_its_place_or_moves_it_as_plain_load_does(d, path):
    for key in "abc":
        d.append(key, [0])
    d.append("a", np.arange(5000))
    assert list(d) == list(plain(path))


def test_entries_copies_and_equality(d):
    d.create_growable("a", (2, 3), ">i4", axis=1, capacity=5)
    d.append("a", np.ones((2, 4, 3), ">i4"))
    entry = d.entry("a")
    assert (entry.kind, entry.shape, entry.dtype, entry.order, entry.nbytes) == ("growable", (2, 4, 3), ">i4", "C", 96)
    assert d.entries() == [entry] and entry.record_nbytes >= 120 and d.info()["keys"] == 1
    assert d == {"a": np.ones((2, 4, 3))} and d != {"a": np.ones((2, 5, 3))} and d == d.copy()
    copy = d.copy()
    d.append("a", np.ones((2, 1, 3), ">i4"))
    assert copy["a"].shape == (2, 4, 3) and d != copy
    assert "growable" in repr(d) or "array (2, 5, 3)" in repr(d)
    assert [value.shape for value in d.values()] == [(2, 5, 3)]


def test_commit_and_wait(d, path):
    with mmapdict.open(path, "r") as reader:
        before = reader.commit
        d.append("a", [1])
        assert reader.commit > before and reader.wait(0) and not reader.wait(0)
        for change in (lambda: d.append("a", [1]), lambda: d.resize("a", 0), lambda: d.append("a", [2])):
            change()
            assert reader.wait(0) and reader["a"].tolist() == d["a"].tolist()


# -- several handles and processes ------------------------------------------------------------------------------------

def test_two_handles_take_turns(d, path):
    with mmapdict.open(path) as other, mmapdict.open(path, "r") as reader:
        expected = []
        d.create_growable("a", 2, "i8")
        for i in range(300):
            (d, other)[i % 2].append("a", [i, -i])
            expected.append([i, -i])
            if i % 50 == 17:
                other.resize("a", len(expected) - 3)
                del expected[-3:]
            if i % 50 == 30:
                d.trim("a")
            if i % 50 == 40:
                with other.extend("a", 2) as rows:
                    rows[:] = i
                expected += [[i, i]] * 2
            assert reader["a"].tolist() == expected
        assert d["a"].tolist() == other["a"].tolist() == expected
    checked(path, d, a=np.array(expected))


def writer(path, number, n):
    with mmapdict.open(path) as d:
        for i in range(n):
            d.append("a", np.array([number, i, *[number * 1000 + i] * 6]))


@needs_fork
def test_four_processes_append(path):
    with mmapdict.open(path, "w") as d:
        d.create_growable("a", 8, "i8")
    join(*(fork(writer, path, number, 300) for number in range(4)))
    with mmapdict.open(path, "r") as d:
        rows = np.array(d["a"])
    assert (rows[:, 2:] == (rows[:, 0] * 1000 + rows[:, 1])[:, None]).all()
    assert sorted(map(tuple, rows[:, :2].tolist())) == list(itertools.product(range(4), range(300)))
    for number in range(4):
        assert (np.diff(rows[rows[:, 0] == number, 1]) == 1).all()


def hammer(path, total, load):
    """Look at the rows until all are there."""
    n = 0
    with mmapdict.open(path, "r") as d:
        while n < total:
            rows = plain(path)["a"] if load else d["a"]
            assert len(rows) >= n
            n = len(rows)
            assert (rows[:, 2:] == (rows[:, 0] * 1000 + rows[:, 1])[:, None]).all()


@needs_fork
@pytest.mark.parametrize("load", [False, True])
def test_readers_see_whole_rows(path, load):
    with mmapdict.open(path, "w") as d:
        d.create_growable("a", 8, "i8")
    join(fork(hammer, path, 1000, load), fork(writer, path, 3, 1000))


@pytest.mark.parametrize("key", ["b", 5])
def test_another_handle_takes_the_memo_index_first(d, path, key):
    original = d._memo_mark
    with mmapdict.open(path) as other:
        d._memo_mark = lambda: (original(), other.append(key, [1]))[0]
        d.create_growable("a", (), "i8")
        del d._memo_mark
    d.append("a", [2])
    checked(path, d, a=np.array([2]))


@pytest.mark.parametrize("change, one, several", [
    (lambda e: e.append("a", [7, 7]), [[0, 0], [7, 7], [1, 1]], [[0, 0], [7, 7], [1, 1]]),
    (lambda e: e.resize("a", 0), [[1, 1]], [[1, 1]]),
    (lambda e: e.trim("a"), [[0, 0], [1, 1]], [[0, 0], [1, 1]]),
    (lambda e: e.pop("a"), [1, 1], [[1, 1]]),
    (lambda e: (e.pop("a"), e.append("a", np.zeros((1, 2), "i8"))), [[0, 0], [1, 1]], [[0, 0], [1, 1]]),
    (lambda e: (e.pop("a"), e.create_growable("a", 2, "f4")), [[1, 1]], [[1, 1]]),
    (lambda e: (e.pop("a"), e.create_growable("a", 2, "i8", axis=1)), [[1], [1]], ValueError),
    (lambda e: (e.pop("a"), e.create_growable("a", (), "i8")), [1, 1], ValueError),
    (lambda e: (e.pop("a"), e.create_growable("a", 3, "i8")), ValueError, ValueError),
    (lambda e: (e.pop("a"), e.create_growable("a", 2, "U1")), TypeError, TypeError),
    (lambda e: e.update(a=np.zeros((1, 2), "i8")), TypeError, TypeError),
    (lambda e: mmapdict.log(e, "other").add(x=1) or e.update(a=1), TypeError, TypeError),
])
@pytest.mark.parametrize("known", [True, False])
def test_another_changes_the_array_just_before_the_lock(d, path, change, one, several, known):
    for rows, expected in (np.ones(2, "i8"), one), (np.ones((1, 2), "i8"), several):
        d["a"] = 0                                          # so that it is made anew
        del d["a"]
        d.append("a", np.zeros((1, 2), "i8"))
        if not known:
            d["b"] = 1
        with mmapdict.open(path) as other:
            original, used = d._change, []

            def late(*arguments):
                if not used:
                    change(other)
                    used.append(path.read_bytes()[:other.info()["used"]])
                return original(*arguments)

            d._change = late
            if isinstance(expected, list):
                d.append("a", rows)
                assert d["a"].tolist() == plain(path)["a"].tolist() == expected and used
            else:
                with pytest.raises(expected):
                    d.append("a", rows)
                assert path.read_bytes().startswith(used[0])
            d._change = original
    judge.load_every_way(path)


def noted(monkeypatch, name):
    """Let the calls of a method of files be noted."""
    calls, original = [], getattr(store.File, name)
    monkeypatch.setattr(store.File, name, lambda *arguments: (calls.append(arguments[1:]), original(*arguments))[1])
    return calls


@pytest.mark.skipif(not store.ORDERED, reason="stores of this processor are system calls")
def test_rows_in_an_exclusive_block_are_stored_through_the_map(path, d, monkeypatch):
    if not d._file.in_place:
        pytest.skip("this file system may have to find blocks")
    d.append("a", np.zeros((9, 4)))
    d.resize("a", 1)
    d.append("a", np.zeros(4))                          # makes room
    d.resize("a", 2)
    stored, written = noted(monkeypatch, "store_rows"), noted(monkeypatch, "write")
    d.append("a", np.ones(4))
    assert not stored and len(written) == 1             # who waits for the file is told
    with d.exclusive():
        d.append("a", np.full(4, 2))
        d.append("a", np.full((3, 4), 3.0))
        assert len(stored) == 2 and len(written) == 1 and plain(path)["a"].sum() == 4 + 8 + 36
        d.create_growable("large", 10_000)
        d.append("large", np.ones((2, 10_000)))         # faster written
        assert len(stored) == 2
    checked(path, d, a=np.repeat([0.0, 0, 1, 2, 3, 3, 3], 4).reshape(7, 4), large=np.ones((2, 10_000)))


@pytest.mark.parametrize("why", ["not in place", "no blocks"])
def test_rows_are_written_where_a_store_could_fail(path, monkeypatch, why):
    """On other file systems, or in a copy whose room is a hole, on a full disk: a store would be a bus error."""
    if why == "not in place":
        monkeypatch.setattr(store, "_stores_in_place", lambda kind: False)
    with mmapdict.open(path, "w") as d:
        d.append("a", np.zeros((1, 4)))
        if why == "no blocks":
            def full(*arguments):
                raise OSError(errno.ENOSPC, "full")

            monkeypatch.setattr(store.File, "_fallocate", full)
        stored = noted(monkeypatch, "store_rows")
        with d.exclusive():
            for i in range(3):
                d.append("a", np.full(4, i))
        assert not stored
        checked(path, d, a=np.repeat([0.0, 0, 1, 2], 4).reshape(4, 4))


def test_who_waits_is_told_of_rows_stored_in_a_block(path, d):
    d.append("a", [0])
    with mmapdict.open(path, "r") as reader:
        with d.exclusive():
            d.append("a", [1])
            assert reader.wait(10) and reader["a"].tolist() == [0, 1]
            d.append("a", [2])
        assert reader.wait(10) and reader["a"].tolist() == [0, 1, 2]
        assert not reader.wait(0)


# -- tables without rows ----------------------------------------------------------------------------------------------

def damage_and_repair(d):
    d["other"] = 1
    d.close()
    with open(d.path, "r+b") as file:
        file.seek(file.read().index(b"other"))
        file.write(b"?")
    repair(d.path, replace=True)


@pytest.mark.leaves_damaged_file
@pytest.mark.parametrize("act, never", [
    (lambda d: d.vacuum(), False), (lambda d: d.vacuum(), True), (lambda d: d.trim("log"), True),
    (damage_and_repair, False), (damage_and_repair, True)],
    ids=["vacuum, rows gone", "vacuum", "trim", "repair, rows gone", "repair"])
def test_a_table_without_rows_has_room_enough_for_numpy_to_make_its_columns(path, act, never):
    with mmapdict.open(path, "x") as d:
        log = mmapdict.Log(d)
        if never:
            log._create({name: Column((), 0, np.dtype("f8"), 0) for name in "xyz"})
        else:
            log.add(x=1.0, y=2.5, z=0.0)
            d.resize("log", 0)
        act(d)
    assert {name: column.shape for name, column in plain(path)["log"].items()} == dict.fromkeys("xyz", (0,))
    with mmapdict.Log(path) as log:
        log.add(x=1.0, y=2.5, z=0.0)
    assert plain(path)["log"]["z"].tolist() == [0]


@pytest.mark.parametrize("rows", [np.int64(7), np.array([7, 8])], ids=["row", "rows"])
@pytest.mark.parametrize("copies", [1, 2])
def test_the_file_is_replaced_by_a_copy_of_itself(path, d, rows, copies):
    d.append("a", np.arange(3))
    d.resize("a", 2)
    d.append("a", np.int64(5))                              # now the handle knows the array
    known = path.read_bytes()
    for _ in range(copies):
        path.with_name("copy").write_bytes(known)
        os.replace(path.with_name("copy"), path)
    expected = [0, 1, 5]
    for _ in range(2):
        d.append("a", np.asarray(rows))
        expected += np.atleast_1d(rows).tolist()
        assert d["a"].tolist() == plain(path)["a"].tolist() == expected
    with d.exclusive():
        d.append("a", np.int64(9))
    assert plain(path)["a"].tolist() == [*expected, 9]


@pytest.mark.parametrize("what", ["exclusive", "extend", "forgotten"])
def test_close_inside_a_block_writes_into_no_other_file(path, what):
    d = mmapdict.open(path, "w")
    d.append("a", np.zeros(3))
    others = []

    def close():
        d.close()
        others.extend(open(path.with_name(f"other{i}"), "w+b") for i in range(20))      # with the descriptors

    if what == "forgotten":
        forgotten = [d.extend("a", 1)]
        close()
        forgotten.clear()
    else:
        with contextlib.suppress(BusyError, ClosedError), d.exclusive() if what == "exclusive" else d.extend("a", 1):
            close()
    gc.collect()
    for other in others:
        other.close()
        assert os.stat(other.name).st_size == 0


@pytest.mark.parametrize("where", ["tell", "hold"])
def test_an_interrupt_at_the_end_of_a_block_gives_the_lock_back(path, d, monkeypatch, where):
    d.append("a", [1])

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), d.exclusive():
        d.append("a", [2])
        patch.setattr(store.File, where, interrupt)
    d._file.hold(False)                                     # if that was interrupted, this thread cannot use others
    with mmapdict.open(path, timeout=0) as other:
        other.append("a", [3])
    done = []
    thread = threading.Thread(target=lambda: done.append(d.append("a", [4])), daemon=True)
    thread.start()
    thread.join(10)
    assert done and plain(path)["a"].tolist()[:2] == [1, 2]


def test_an_extension_that_the_collector_finds_during_a_change(path, d):
    d.append("a", [1])
    with mmapdict.open(path, timeout=0) as other:
        forgotten = [d.extend("a", 1)]

        def change(index):
            forgotten.clear()
            gc.collect()
            with pytest.raises(BusyError):
                other["x"] = 1

        d._change(change)
        other["x"] = 1
        d.append("a", [3])
    checked(path, d, a=np.array([1, 3]))


TYPE = np.dtype([("a", "i4"), ("b", "f4"), ("c", "U2"), ("d", "m8[ns]"), ("e", "u1", (2,))])


def test_tuples_as_records(path, d):
    d.create_growable("a", (), TYPE)
    good = 1, .5, "ab", np.timedelta64(3, "s"), [1, 2]
    d.append("a", good)
    d.append("a", [good, (2, .25, "", np.timedelta64("NaT", "ns"), (3, 4))])
    d.create_growable("grid", 2, TYPE)
    d.append("grid", [good, good])
    d.append("grid", [[good, good]] * 2)
    for bad in ((1.5,), (1, 1e300), (1, 1, "long"), (1, 1, "a", np.timedelta64(1, "M")), (1, 1, "a", good[3], [1, 256]),
                (2**40,)):
        row = (*bad, *good[len(bad):])
        for rows in row, [row], [good, row]:
            with unchanged(path, d), pytest.raises(TypeError, match="in the field"):
                d.append("a", rows)
    for row in good[:4], (*good, 1):
        with unchanged(path, d), pytest.raises(TypeError, match="5 fields"):
            d.append("a", row)
    value = np.array(good, TYPE)
    assert (d["a"][:2] == value).all() and np.isnat(d["a"]["d"][2]) and d["a"]["e"][2].tolist() == [3, 4]
    assert d["grid"].shape == (3, 2) and (d["grid"] == value).all()


def test_ints_that_floats_cannot_hold(path, d):
    for dtype, most in ("f2", 2**11), ("f4", 2**24), ("f8", 2**53), ("c8", 2**24), ("c16", 2**53):
        d.create_growable(dtype, (), dtype)
        d.append(dtype, [most, -most, 2 * most + 4])
        for rows in most + 1, [0, -most - 1], np.uint64(2**63 + 1):
            with unchanged(path, d), pytest.raises(TypeError):
                d.append(dtype, rows)


def test_blocks_are_asked_for_a_piece_at_a_time(path, d, monkeypatch):
    """Room that is a hole, in a copy, does not take all of the disk because one row is stored."""
    if not d._file.in_place:
        pytest.skip("rows are written here")
    d.create_growable("a", 100, capacity=100_000)
    asked = noted(monkeypatch, "_fallocate")
    row = np.ones(100)
    with d.exclusive():
        for _ in range(4000):
            d.append("a", row)
    assert 3 <= len(asked) <= 5 and max(end - start for start, end in asked) <= 1 << 20
    assert (plain(path)["a"] == 1).all()


def test_rows_that_are_handed_out_have_all_of_their_pages(path, d, monkeypatch):
    d.create_growable("a", 100, "u1", capacity=1000)
    asked = noted(monkeypatch, "_fallocate")
    with d.extend("a", 3):
        assert asked == []
    d._file.whole_pages = False                             # blocks of 1 KiB
    with d.extend("a", 3) as rows:
        assert asked and asked[0][0] % mmap.PAGESIZE == 0
        assert asked[0][0] <= rows.offset < rows.offset + rows.nbytes <= asked[0][1] <= os.stat(path).st_size


def test_tables_are_not_extended_by_zeros(path, d):
    store_of_samples = mmapdict.samples(d, "s")
    store_of_samples.extend([1, 2, 3], {"x": np.arange(3)})
    for call in (lambda: d.extend("s", 1), lambda: d.resize("s", 4), lambda: d.append("s", 1)):
        with unchanged(path, d), pytest.raises(TypeError, match="table"):
            call()
    d.resize("s", 2)
    assert list(store_of_samples) == [1, 2]


# -- random sequences -------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", ("c", 1)])
SPECS = st.tuples(st.sampled_from(SHAPES), st.integers(-3, 2), st.sampled_from(DTYPES), st.integers(0, 30))


class Machine(RuleBasedStateMachine):
    """A file beside plain arrays. After every step handles and unpicklers agree with them."""

    def __init__(self, folder):
        super().__init__()
        self.path = folder / "file"
        self.model, self.axis, self.number = {}, {}, 0

    @initialize()
    def begin(self):
        self.d, self.other = mmapdict.open(self.path, "w"), mmapdict.open(self.path)

    def teardown(self):
        if hasattr(self, "d"):
            self.d.close()
            if self.other is not None:
                self.other.close()

    def rows(self, key, n):
        array, axis = self.model[key], self.axis[key]
        self.number += 1
        return counted((*array.shape[:axis], n, *array.shape[axis + 1:]), array.dtype, self.number)

    def add(self, key, rows):
        joined = np.concatenate([self.model[key], rows], self.axis[key])
        self.model[key] = joined.astype(self.model[key].dtype)

    @rule(key=KEYS, spec=SPECS)
    def create(self, key, spec):
        shape, axis, dtype, capacity = spec
        if not -1 - len(shape) <= axis <= len(shape):
            axis = 0
        if key in self.model:
            with pytest.raises(ValueError, match="exists"):
                self.d.create_growable(key, shape, dtype)
            return
        self.d.create_growable(key, shape, dtype, axis=axis, capacity=capacity)
        self.axis[key] = axis % (len(shape) + 1)
        self.model[key] = np.zeros((*shape[:self.axis[key]], 0, *shape[self.axis[key]:]), dtype)

    @rule(key=KEYS, n=st.sampled_from([0, 1, 2, 5, 40, 300]), other=st.booleans())
    def append(self, key, n, other):
        d = self.other if other else self.d
        if key not in self.model:
            self.axis[key] = 0
            self.model[key] = counted((n, 2), "i4", self.number)
            d.append(key, self.model[key])
            return
        rows = self.rows(key, n)
        d.append(key, rows)
        self.add(key, rows)

    @rule(key=KEYS)
    def append_one(self, key):
        if key in self.model:
            rows = self.rows(key, 1)
            self.d.append(key, rows.take(0, self.axis[key]))
            self.add(key, rows)

    @rule(key=KEYS, n=st.integers(0, 30), good=st.booleans())
    def extend(self, key, n, good):
        if key in self.model:
            rows = self.rows(key, n)
            extension = self.d.extend(key, n)
            extension.rows[...] = rows
            if good:
                extension.commit()
                self.add(key, rows)
            else:
                extension.cancel()

    @rule(key=KEYS, n=st.sampled_from([0, 1, 3, 30, 400]), other=st.booleans())
    def resize(self, key, n, other):
        if key in self.model:
            (self.other if other else self.d).resize(key, n)
            old, axis = self.model[key], self.axis[key]
            have = old.shape[axis]
            self.model[key] = old.take(range(min(n, have)), axis).astype(old.dtype)
            if n > have:
                self.add(key, np.zeros_like(self.rows(key, n - have)))

    @rule(key=KEYS, other=st.booleans())
    def trim(self, key, other):
        if key in self.model:
            d = self.other if other else self.d
            assert d.trim(key) >= 0
            assert d.trim(key) == 0

    @rule()
    def reopen(self):
        self.d.close()
        self.d = mmapdict.open(self.path)

    @rule()
    def vacuum(self):
        self.other.close()
        self.other = None               # test_vacuum_beside_a_closed_handle
        self.d.vacuum()
        self.other = mmapdict.open(self.path)

    @rule(key=KEYS)
    def delete(self, key):
        if key in self.model:
            del self.d[key], self.model[key], self.axis[key]

    @invariant()
    def all_agree(self):
        if not hasattr(self, "d"):
            return
        for found in judge.load_every_way(self.path), self.d, self.other:
            assert set(found) == set(self.model)
            for key, rows in self.model.items():
                same(found[key], rows)
        assert {entry.key: (entry.kind, entry.shape) for entry in self.other.entries()} == {
            key: ("growable", rows.shape) for key, rows in self.model.items()}


def test_random_sequences(tmp_path):
    run_state_machine_as_test(lambda: Machine(tmp_path), settings=settings(
        max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)))
    assert mmapdict.verify(tmp_path / "file").ok
