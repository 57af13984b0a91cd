"""Logs: `Log`, `log`, `compare`."""

import contextlib
import datetime
import itertools
import json
import math
import os
import pickle
import re
import threading

import numpy as np
import pytest

import judge
import mmapdict
from children import Child, fork, join
from judge import plain
from mmapdict import BusyError, ClosedError, Log, ReadOnlyError, compare
from mmapdict.arrays import Column

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def log(path):
    with mmapdict.log(path, mode="w") as made:
        yield made


@contextlib.contextmanager
def unchanged(log):
    """All bytes up to the STOP stay as they are."""
    def content():
        with open(log.d.path, "rb") as file:
            return file.read(log.d.info()["used"])

    before = content()
    yield
    assert content() == before


def columns(log):
    """The columns as lists, NaN as None; every unpickler finds the same."""
    loaded = judge.load_every_way(log.d.path).get(log.name, {})
    assert list(loaded) == log.columns
    for name, column in loaded.items():
        assert column.dtype == log[name].dtype and repr(column.tolist()) == repr(log[name].tolist())
    return {name: [None if isinstance(value, float) and math.isnan(value) else value for value in column.tolist()]
            for name, column in loaded.items()}


# -- values -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("value, dtype", [
    (1.5, "f8"), (3, "i8"), (-2**63, "i8"), (True, "?"), ("text", "U8"), ("x" * 9, "U16"), ("é\U0001f600", "U8"),
    (datetime.datetime(2020, 1, 2, 3, 4, 5, 6), "M8[us]"), (datetime.date(2020, 1, 2), "M8[D]"),
    (datetime.timedelta(days=1, microseconds=3), "m8[us]"), (np.float32(1.5), "f4"), (np.uint8(7), "u1"),
    (np.uint64(2**64 - 1), "u8"), (np.int16(-3), "i2"), (np.bool_(True), "?"), (1 + 2j, "c16"), (b"abc", "S3"),
    (np.datetime64("2020-01-01", "ns"), "M8[ns]"), (np.timedelta64(3, "h"), "m8[h]"), (np.array(4), "i8"),
    (np.str_("ab"), "U8"), (float("inf"), "f8"), (math.nan, "f8")], ids=repr)
def test_values(log, value, dtype):
    log.add(x=value)
    log.extend([{"x": value}] * 2)
    assert log["x"].dtype == dtype and log["x"].shape == (3,)
    expected = np.array(value, dtype).item()
    assert repr(log["x"].tolist()) == repr([expected] * 3)
    assert repr(log[1]) == repr(log[-1]) == repr(log.last())
    columns(log)


@pytest.mark.parametrize("value, dtype, shape", [
    ([1, 2, 3], "i8", (3,)), ([1.5, 2], "f8", (2,)), ((1, 2), "i8", (2,)), ([[1], [2]], "i8", (2, 1)),
    (np.ones((2, 3), "f4"), "f4", (2, 3)), ([True, False], "?", (2,)), (np.array([1, 2], ">i2"), "i2", (2,)),
    ([None, 1], "f8", (2,)), (np.array(["a", "bc"]), "U2", (2,)), (np.zeros(0), "f8", (0,))], ids=repr)
def test_arrays(log, value, dtype, shape):
    for i in range(3):
        log.add(i=i, x=value)
    assert log["x"].dtype == dtype and log["x"].shape == (3, *shape)
    expected = np.array(value, float) if None in value else np.asarray(value)
    assert repr(log["x"][2].tolist()) == repr(expected.tolist())
    assert repr([row["x"].tolist() for row in log]) == repr([expected.tolist()] * 3)
    columns(log)


def test_missing_values(log):
    log.add(f=1.5, t="a", d=datetime.date(2020, 1, 1), s=datetime.timedelta(1), i=None)
    log.add(f=None, t=None, d=None, s=None)
    log.add(f=2.5)
    assert log.columns == ["f", "t", "d", "s"] and len(log) == 3
    assert columns(log) == {"f": [1.5, None, 2.5], "t": ["a", "", ""], "d": [datetime.date(2020, 1, 1), None, None],
                            "s": [datetime.timedelta(1), None, None]}
    assert log[1]["d"] is None and log[1]["s"] is None and math.isnan(log[1]["f"]) and log[1]["t"] == ""
    assert [row["d"] for row in log] == [datetime.date(2020, 1, 1), None, None]


@pytest.mark.parametrize("value", [7, True, np.uint8(7), np.int32(7)])
@pytest.mark.parametrize("how", ["later", "none", "left out", "together"])
def test_numbers_that_are_missing(log, value, how):
    """A column of ints or bools becomes one of floats when a value is missing."""
    if how == "later":
        log.add(y=1)
        log.add(y=1, x=value)
    elif how == "together":
        log.extend([{"y": 1}, {"y": 1, "x": value}])
    else:
        log.add(y=1, x=value)
        log.add(y=1, **({"x": None} if how == "none" else {}))
    assert log["x"].dtype == "f8"
    assert sorted(columns(log)["x"], key=repr) == sorted([None, float(value)], key=repr)


@pytest.mark.parametrize("values, dtype, expected", [
    ([1, 2.5], "f8", [1, 2.5]), (["a", "b" * 100], "U128", ["a", "b" * 100]),
    ([1, 2.5, 3], "f8", [1, 2.5, 3]), ([np.uint8(1), 300], "i8", [1, 300]), ([np.float32(0.5), 0.1], "f4", None),
    ([1, 2j], "c16", [1, 2j]), ([b"a", b"abc"], "S3", [b"a", b"abc"]), ([[1, 2], [0.5, 1]], "f8", [[1, 2], [0.5, 1]]),
    ([np.int8(1), np.uint8(200)], "i2", [1, 200]), ([1.5, True], "f8", [1.5, 1]),
    ([datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 2, 3)], "M8[us]",
     [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2, 3)])], ids=repr)
def test_wider_columns(log, values, dtype, expected):
    for value in values:
        log.add(x=value)
    assert log["x"].dtype == dtype
    if expected is not None:
        assert log["x"].tolist() == expected
    columns(log)
    log.d.clear()
    log.extend({"x": value} for value in values)
    assert log["x"].dtype == dtype


@pytest.mark.parametrize("values", [[True, 2], [2, True], [True, 2, False], [np.uint8(2), True]])
@pytest.mark.parametrize("together", [False, True])
def test_bools_among_ints(log, values, together):
    if together:
        log.extend({"x": value} for value in values)
    else:
        for value in [*values, True]:
            log.add(x=value)
    assert log["x"].tolist()[:len(values)] == values


def test_views_of_before_stay_when_columns_change(log):
    for i in range(2000):
        log.add(i=i)
    before, some = log["i"], log[10:20]
    log.add(i=0.5, t="new")
    log.add(i=1, t="x" * 50, **{"no identifier!": 3, "": 4, "é": 5})
    assert before.tolist() == list(range(2000)) and some["i"].tolist() == list(range(10, 20))
    assert log["i"].tolist() == [*range(2000), 0.5, 1] and log["t"].tolist()[-3:] == ["", "new", "x" * 50]
    assert log.columns == ["i", "t", "no identifier!", "", "é"] and log[-1]["no identifier!"] == 3
    columns(log)


def test_names(log):
    log.add({"a b": 1, "self": 2, "values": 3}, named=4)
    log.add({"named": 5, "a b": 6}, self=7, values=8)
    log.add({"named": 1}, named=2)
    assert log.columns == ["a b", "self", "values", "named"]
    assert log["named"].tolist() == [4, 5, 2] and log["self"].tolist()[:2] == [2, 7]
    assert "a b" in log and "b" not in log and 5 not in log


REFUSED = [
    (TypeError, {"x": {}}), (TypeError, {"x": ...}), (TypeError, {"x": 2**63}), (TypeError, {"x": ["a", None]}),
    (TypeError, {"x": np.ma.array([1, 2])}), (TypeError, {"x": "text"}), (TypeError, {"x": b"bytes"}),
    (TypeError, {"x": datetime.date(2020, 1, 1)}), (TypeError, {"t": 1}), (TypeError, {"t": b"x"}),
    (TypeError, {5: 1}), (TypeError, {"d": 1}), (TypeError, {"d": datetime.timedelta(1)}),
    (TypeError, {"d": datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)}), (TypeError, {"d": "2020"}),
    (ValueError, {"x": [1]}), (ValueError, {"a": 1}), (ValueError, {"a": [1, 2, 3]}), (ValueError, {"a": [[1, 2]]}),
    (ValueError, {"x": [[1], [2, 3]]}), (ValueError, {}), (TypeError, {"new": {}}),
    (TypeError, {"new": np.array([(1,)], [("x", "i4")])})]


@pytest.mark.parametrize("error, row", REFUSED, ids=repr)
def test_refused_values(log, error, row):
    log.add(x=1, t="a", d=datetime.date(2020, 1, 1), a=[1, 2])
    with unchanged(log):
        with pytest.raises(error):
            log.add(row)
        if row:
            with pytest.raises(error):
                log.add({"other": 1, **row})
            with pytest.raises(error):
                log.extend([{"x": 2}, {"x": 2.5, "t": "much longer text"}, row])
    log.add(x=2, t="b", d=datetime.date(2020, 1, 2), a=[3, 4])
    assert len(log) == 2 and log["x"].dtype == "i8"


@pytest.mark.parametrize("row", [{}, {"x": None}, {"x": {}}, {"x": 1, "y": ...}], ids=repr)
def test_a_first_row_that_is_refused(log, row):
    with unchanged(log), pytest.raises((TypeError, ValueError)):
        log.add(row)
    assert "log" not in log.d


@pytest.mark.parametrize("value", ["a\0", b"a\0"])
def test_zero_characters(log, value):
    with contextlib.suppress(TypeError, ValueError):
        log.add(x=value)
        assert log["x"].tolist() == [value]


BIG = 2**53 + 1


@pytest.mark.parametrize("first, row", [
    ({"id": BIG}, {"loss": .5}), ({"id": -BIG}, {"id": .5}), ({"id": np.uint64(2**63 + 1)}, {"x": 1}),
    ({"id": np.uint64(2**64 - 1)}, {"id": -1}), ({"id": .5}, {"id": np.int64(BIG)}), ({"id": .5}, {"id": BIG}),
    ({"id": .5}, {"id": 2**63 - 1})], ids=repr)
def test_ints_that_would_be_rounded_are_refused(log, first, row):
    log.add(first)
    before = log["id"].dtype
    for rows in [row], [first, row], [{"note": "a"}, row]:
        with unchanged(log), pytest.raises(TypeError, match="'id'"):
            log.extend(rows)
    assert log["id"].dtype == before and log.columns == ["id"] and log["id"].tolist() == [first["id"]]
    log.add({"id": first["id"], "loss": .5})
    assert log["id"].tolist() == [first["id"]] * 2


@pytest.mark.parametrize("first, value, dtype", [
    (np.float32(1), 1e300, "f8"), (np.float16(1), 70000., "f8"), (np.float16(1), np.float32(1e30), "f4"),
    (np.float32(1), 2**24 + 1, "f8"), (np.float32(1), 2**24, "f4"), (np.float32(1), .1, "f4"),
    (np.float32(1), math.inf, "f4"), (np.float16(1), 2049, "f8"), (np.int8(1), 127, "i1"), (np.int8(1), 128, "i8"),
    (np.uint8(1), -1, "i8"), (np.int16(1), np.int32(5), "i2"), (np.int16(1), np.int32(70000), "i4"), (1, True, "i8"),
    (1., True, "f8"), (1., 1j, "c16"), (1j, 2, "c16"), (1j, .5, "c16"), (np.complex64(1), 1e300, "c16")], ids=repr)
def test_a_column_becomes_wide_enough(log, first, value, dtype):
    log.add(x=first)
    log.add(x=value)
    assert log["x"].dtype == dtype and log["x"][0] == first
    assert log["x"][1] == value or log["x"].dtype == "f4" and log["x"][1] == np.float32(value)


LONG_AGO, PRECISE = datetime.date(9999, 1, 1), np.datetime64("2020-01-01T00:00:00.000000001", "ns")


@pytest.mark.parametrize("first, second", [
    (LONG_AGO, PRECISE), (PRECISE, LONG_AGO), (np.timedelta64(2**60, "s"), np.timedelta64(1, "ns")),
    (np.timedelta64(1, "ns"), np.timedelta64(2**60, "s")), (np.timedelta64(1, "M"), np.timedelta64(1, "s")),
    (np.timedelta64(1, "ns"), np.timedelta64(1, "Y"))], ids=repr)
def test_times_that_have_no_unit_in_common(log, first, second):
    log.add(t=first)
    with unchanged(log), pytest.raises(TypeError, match="'t'"):
        log.add(t=second)
    log.add(t=first)
    assert (log["t"] == first).all()


def test_texts_in_lists(log):
    log.add(t=["a", "bc"])
    for value in ["a", "b\0"], ("a\0", "b"):
        with unchanged(log), pytest.raises(TypeError):
            log.add(t=value)
    log.add(t=("abcd", ""))
    assert log["t"].tolist() == [["a", "bc"], ["abcd", ""]]


def test_what_is_missing(log):
    pandas = pytest.importorskip("pandas")
    log.add(x=1., t="a", d=datetime.datetime(2020, 1, 1), s=b"a", v=[1, 2])
    for missing in None, pandas.NaT, pandas.NA, np.datetime64("NaT"), np.timedelta64("NaT"):
        log.add(x=missing, t=missing, d=missing, s=missing, v=missing, never=missing)
    log.add(x=math.nan, t=math.nan, d=math.nan, s=math.nan)
    log.add(x=2., t="b", d=datetime.datetime(2020, 1, 2), s=b"b", v=[3, 4])
    assert log.columns == ["x", "t", "d", "s", "v"]
    for name, lacks in ("x", math.nan), ("t", ""), ("s", b""):
        assert repr(log[name].tolist()[1:-1]) == repr([lacks] * 6)
    assert np.isnat(log["d"][1:-1]).all() and np.isnan(log["v"][1:-1]).all()
    for missing in None, math.nan, pandas.NaT:
        for name in "xtdv":
            assert len(log.where({name: missing})["x"]) == 6, name
    assert len(log.where(t="a")["x"]) == len(log.where({"t": "b"}, x=2)["x"]) == 1
    log.extend(pandas.DataFrame({"x": [3., math.nan], "t": ["c", math.nan],
                                 "d": [pandas.Timestamp(2020, 1, 3), pandas.NaT]}))
    assert log["t"].tolist()[-2:] == ["c", ""]
    assert log["d"][-2] == np.datetime64("2020-01-03") and np.isnat(log["d"][-1])


def test_rows_in_other_forms(log):
    log.extend({"a": [1, 2], "b": ["x", "y"]})
    log.extend({"a": np.arange(2), "b": np.array(["z", "w"])})
    log.extend({"a": [], "b": []})
    assert log["a"].tolist() == [1, 2, 0, 1] and log["b"].tolist() == ["x", "y", "z", "w"]
    for rows, error in (({"a": [1], "b": []}, ValueError), ({"a": 1}, ValueError), ({"a": "text"}, ValueError),
                        ({"a": {"b": 1}}, ValueError), ([1], TypeError), (["a"], TypeError),
                        ([{"a": 1}, None], TypeError)):
        with unchanged(log), pytest.raises(error):
            log.extend(rows)
    assert list(log.rows(1)) == [{"a": 2, "b": "y"}] == list(log.rows(np.int64(-3)))


def test_conditions(log):
    log.extend({"a": range(5), "b": [0, 0, 1, 1, 1]})
    for condition in (lambda c: c["b"] == 1, lambda c: [2, 3, 4], lambda c: slice(2, None),
                      lambda c: (c["b"] == 1).tolist(), {"b": 1}):
        assert log.where(condition)["a"].tolist() == [2, 3, 4]
    for condition in (lambda c: True, lambda c: 1, lambda c: c["a"].max() > 1, lambda c: [True], lambda c: None,
                      lambda c: [.5], lambda c: "a", 3):
        with pytest.raises(TypeError):
            log.where(condition)
    for condition in {"no": 1}, lambda c: c["no"] == 1:
        with pytest.raises(KeyError):
            log.where(condition)


def test_modes(path):
    for mode in "r", "r+", "a", "w", "x":
        for make in mmapdict.log, mmapdict.samples, Log, mmapdict.SampleStore:
            with pytest.raises(ValueError, match=f"mode='{re.escape(mode)}'"):
                make(path, mode)
            with pytest.raises(TypeError):
                make(path, "name", mode)
    assert not path.exists()
    with mmapdict.open(path) as d:
        for make in mmapdict.log, mmapdict.samples:
            with pytest.raises(ValueError, match="handle"):
                make(d, mode="r")
            with pytest.raises(ValueError, match="handle"):
                make(d, durable=True)
            make(d, "r").close()
        d["a"] = 1


def test_other_values_under_the_name(path):
    with mmapdict.open(path) as d:
        log, store = mmapdict.log(d, "log"), mmapdict.samples(d, "store")
        log.add(x=1)
        store.add(1, {"x": {"y": 1}})
        d["value"], d["array"] = 1, np.zeros(3)
        d.append("grows", [1])
        for name in "store", "value", "array", "grows":
            other = mmapdict.log(d, name)
            for call in (lambda: len(other), lambda: other.add(x=1), lambda: other["x"], other.last,
                         lambda: repr(other)):
                with pytest.raises(TypeError, match=f"the value of '{name}' is no log, but a "):
                    call()
        for name in "log", "value", "array", "grows":
            other = mmapdict.samples(d, name)
            for call in (lambda: len(other), lambda: other.add(1, {"x": {"y": 1}}), lambda: other[1], lambda: other.ids,
                         lambda: 1 in other, lambda: other.extend([1], {"x": {"y": [1]}})):
                with pytest.raises(TypeError, match=f"the value of '{name}' is no store of samples, but a "):
                    call()
        assert repr(log) == f"<Log 'log' in {str(path)!r}: 1 rows>" and "SampleStore 'store'" in repr(store)
        assert d.entry("log").shape == (1,) and "'log': table of 1 rows" in repr(d)
    assert repr(log).endswith(": closed>")
    with pytest.raises(ClosedError):
        len(log)


def test_a_log_in_a_batch(log):
    log.add(x=1)
    with pytest.raises(BusyError, match="batch"), log.d.batch():
        log.add(x=2)
    assert len(log) == 1


def test_pickled_logs_open_the_file_anew(log):
    log.add(x=1)
    again = pickle.loads(pickle.dumps(log))
    again.add(x=2)
    again.close()
    assert again.d.closed and log["x"].tolist() == [1, 2]


def test_follow_a_log_that_is_started_anew(path):
    with mmapdict.log(path, mode="w") as log:
        log.extend({"x": [0, 1, 2], "t": ["a", "b", "c"]})
    with mmapdict.log(path, mode="r") as reader:
        rows = reader.follow(timeout=0.05)
        assert next(rows)["x"].tolist() == [0, 1, 2]
        for again in range(2):
            with mmapdict.log(path, mode="w") as log:
                log.extend({"x": [100, 101, 102, 103, 104], "t": [f"{again}"] * 5})
            assert next(rows)["x"].tolist() == [100, 101, 102, 103, 104]
        with mmapdict.log(path) as log:
            log.add(x=105)
            assert next(rows)["x"].tolist() == [105]
            log.add(x=106, new=1.5)                         # other columns: the same log
            assert next(rows)["x"].tolist() == [106]
            log.add(x=.5, t="a longer text")
            assert next(rows)["x"].tolist() == [.5]
            log.d.vacuum()
            log.add(x=1)
            assert next(rows)["x"].tolist() == [1]
            del log.d["log"]
            log.add(x=7)
            assert next(rows)["x"].tolist() == [7]
            with pytest.raises(StopIteration):
                next(rows)
        assert [part["x"].tolist() for part in reader.follow(0, first=1)] == []
        assert [part["x"].tolist() for part in reader.follow(0, first=0)] == [[7]]
        rows = reader.follow(0.05, first=1)
        with mmapdict.log(path) as log:
            log.add(x=8)
        assert next(rows)["x"].tolist() == [8]


def test_kinds_of_csv(tmp_path):
    (tmp_path / "a.csv").write_text("i;f;b;d;t;n\n1;1;True;2020-01-02;a;007\n"
                                    "-2;.5;False;2020-01-02 03:04:05;;10\n;;;;x;0\n")
    with mmapdict.log(tmp_path / "log") as log:
        log.read_csv(tmp_path / "a.csv", delimiter=";")
        assert log["i"].tolist()[:2] == [1, -2] and log["f"].tolist()[:2] == [1, .5] and log["b"].tolist()[:2] == [1, 0]
        assert log["d"].tolist() == [datetime.datetime(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5), None]
        assert log["t"].tolist() == ["a", "", "x"] and log["n"].tolist() == ["007", "10", "0"]
        log.to_csv(tmp_path / "b.csv")
    with mmapdict.log(tmp_path / "log2") as again:
        again.read_csv(tmp_path / "b.csv")
        for name in "ifbdtn":
            assert again[name].dtype.kind == log_kind(tmp_path / "log", name)


def log_kind(path, name):
    return plain(path)["log"][name].dtype.kind


def test_extend_is_one_step(log):
    log.extend([])
    assert len(log) == 0 and "log" not in log.d
    log.add(x=0)
    before = log.d.commit
    log.extend({"x": i} for i in range(1, 100))
    assert log.d.commit == before + 1
    log.extend({"x": i} for i in range(100, 1000))
    assert log["x"].tolist() == list(range(1000))
    with pytest.raises(ZeroDivisionError):
        log.extend({"x": 1 / i} for i in (1, 0))
    assert len(log) == 1000


# -- reading ----------------------------------------------------------------------------------------------------------

def test_an_empty_log(path):
    with Log(path) as log:
        assert (len(log), log.columns, list(log), log.last(), log[:], log.where()) == (0, [], [], None, {}, {})
        assert "x" not in log
        for index, error in ("x", KeyError), (0, IndexError), (-1, IndexError):
            with pytest.raises(error):
                log[index]
        assert log.last("x") is log.min("x") is log.max("x") is None
        with pytest.raises(KeyError):
            log.where(x=1)
        assert list(log.follow(timeout=0)) == []
    assert plain(path) == {}
    with Log(path, mode="r") as log:
        assert len(log) == 0


def test_rows_and_slices(log):
    log.extend({"i": i, "t": f"text {i}", "v": [i, -i]} for i in range(10))
    assert log[3]["t"] == log[-7]["t"] == log[np.int64(3)]["t"] == "text 3" and type(log[3]["i"]) is int
    for index in 10, -11:
        with pytest.raises(IndexError):
            log[index]
    part = log[2:5]
    assert part["i"].tolist() == [2, 3, 4] and part["v"].shape == (3, 2)
    part["i"][0] = 100
    assert log["i"][2] == 100 and np.shares_memory(part["i"], part["i"][:1])
    assert log[log["i"] > 8]["t"].tolist() == ["text 2", "text 9"]
    assert log[[0, -1]]["i"].tolist() == [0, 9]
    rows = log.rows(slice(8, None))
    assert [(row["i"], row["t"], row["v"].tolist()) for row in rows] == [(8, "text 8", [8, -8]), (9, "text 9", [9, -9])]
    assert [row["i"] for row in log] == log["i"].tolist()


def test_last_min_max(log):
    log.add(f=3.0, i=5, t="b", d=datetime.date(2020, 1, 2), b=True, n=math.nan, a=[1, 2])
    log.add(f=1.0, i=7, t="", d=None, b=False, n=None, a=[3, 0])
    log.add(f=math.nan, i=6, t="", d=datetime.date(2020, 1, 1), b=False, n=None, a=[2, 2])
    assert (log.min("f"), log.max("f"), log.last("f")) == (1, 3, 1)
    assert (log.min("i"), log.max("i"), log.last("i")) == (5, 7, 6) and type(log.min("i")) is int
    assert log.last("t") == "b" and log.last("b") is False
    assert (log.min("d"), log.max("d")) == (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2))
    assert log.min("n") is log.max("n") is log.last("n") is None
    assert log.last()["i"] == 6 and log.last("a").tolist() == [2, 2] and log.max("a") == 3


def test_least_text(log):
    log.extend({"t": t} for t in "bac")
    assert (log.min("t"), log.max("t")) == ("a", "c")


def test_where(log):
    log.extend({"i": i, "t": "ab"[i % 2], "f": i / 2} for i in range(10))
    assert log.where(t="a")["i"].tolist() == [0, 2, 4, 6, 8]
    assert log.where(lambda c: c["f"] > 2, t="b")["i"].tolist() == [5, 7, 9]
    assert log.where(lambda c: np.argsort(-c["i"])[:2])["i"].tolist() == [9, 8]
    assert log.where(t="a", i=4)["f"].tolist() == [2] and log.where(t="c")["i"].tolist() == []
    assert len(log.where()["i"]) == 10
    for wrong in {"no": 1}, {"t": "a", "no": 1}:
        with pytest.raises(KeyError):
            log.where(**wrong)


def test_mode_r(path):
    with Log(path) as log:
        log.add(x=1)
    with Log(path, mode="r") as log:
        assert log["x"].tolist() == [1] and log[0] == {"x": 1}
        for call in (lambda: log.add(x=2), lambda: log.extend([{"x": 2}]), lambda: log.add(y=2)):
            with pytest.raises(ReadOnlyError):
                call()
    with pytest.raises(ClosedError):
        log.add(x=2)
    with pytest.raises(FileNotFoundError):
        Log(path.with_name("no"), mode="r")


def test_logs_beside_other_items(path):
    with mmapdict.open(path, "w") as d:
        d["array"], d["value"] = np.zeros(3), 1
        d.append("grows", [1])
        train, test = Log(d, "train"), mmapdict.log(d, ("test", 1))
        train.add(x=1)
        test.add(y="a")
        train.add(x=2)
        with test:
            pass
        assert not d.closed and d.entry("train").kind == "table" and d.entry("train").nbytes == 16
        for name in "array", "value", "grows":
            with unchanged(train), pytest.raises(TypeError):
                Log(d, name).add(x=1)
        with pytest.raises(TypeError, match="table"):
            d.append("train", [1])
        assert d == {"array": np.zeros(3), "value": 1, "grows": np.array([1]), "train": {"x": np.array([1, 2])},
                     ("test", 1): {"y": np.array(["a"])}}
        d.trim("train")
        d.vacuum()
        train.add(x=3)
        d.resize("train", 2)
        train.sync()
        assert columns(train) == {"x": [1, 2]}
        with d.batch(), pytest.raises(BusyError):
            train.add(x=3)
        with d.exclusive():
            train.add(x=4)
        assert columns(train) == {"x": [1, 2, 4]} and d.verify().ok
        del d["train"]
        train.add(z=1)
        assert columns(train) == {"z": [1]}


# -- others at the file -----------------------------------------------------------------------------------------------

def test_follow_in_another_thread(path):
    with Log(path, mode="w") as log:
        log.add(x=0)
        seen, started = [], threading.Event()

        def follow():
            with Log(path, mode="r") as reader:
                for rows in reader.follow(timeout=30):
                    assert all(len(column) == len(rows["x"]) for column in rows.values())
                    seen.extend(rows["x"].tolist())
                    started.set()
                    if 499 in seen:
                        return

        thread = threading.Thread(target=follow)
        thread.start()
        assert started.wait(30)
        for i in range(1, 500):
            log.add(x=i, **({"y": 0.5} if i > 200 else {}))
        thread.join()
    assert seen == list(range(500))


def test_follow_ends(log):
    log.add(x=1)
    assert [rows["x"].tolist() for rows in log.follow(timeout=0)][:1] == [[1]]


def work(path, name, number, n):
    with Log(path, name) as log:
        for i in range(n):
            log.add(number=number, i=i, check=f"{number} {i}", vector=[number * i] * 3)


@needs_fork
@pytest.mark.parametrize("names", [["log"] * 3, [0, 1, 2]], ids=["one group", "groups"])
def test_processes_that_log(path, names):
    with mmapdict.open(path, "w") as d:
        for name in set(names):         # test_another_handle_takes_the_memo_index_first
            Log(d, name)._create({"number": Column((), 0, np.dtype("i8"), 0)})
    join(*(fork(work, path, name, number, 200) for number, name in enumerate(names)))
    with mmapdict.open(path, "r") as d:
        rows = [row for name in set(names) for row in Log(d, name)]
    assert sorted((row["number"], row["i"]) for row in rows) == list(itertools.product(range(3), range(200)))
    for row in rows:
        assert row["check"] == f"{row['number']} {row['i']}" and (row["vector"] == row["number"] * row["i"]).all()


def between(log, method, action):
    """Let something happen, once, right before a method of the log is called."""
    original = getattr(log, method)

    def call(*arguments):
        setattr(log, method, original)
        action()
        return original(*arguments)

    setattr(log, method, call)


@pytest.mark.parametrize("method", ["_append", "_rearrange", "_create"])
def test_nobody_changes_the_columns_while_a_row_is_added(log, path, method):
    refused = []

    def other():
        with Log(path, timeout=0) as handle:
            try:
                handle.add(x=0.5, z=1)
            except mmapdict.BusyError:
                refused.append(method)

    def elsewhere():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    if method != "_create":
        log.add(x=1)
    between(log, method, elsewhere)
    log.add(x=7, y=9)
    assert refused == [method] and log[-1] == {"x": 7, "y": 9}


KILLED = """
log = mmapdict.Log(path)
i = 0
while True:
    log.add(i=i, t=str(i), **({"late": i / 2} if i > 40 else {}))
    tell(i)
    i += 1
"""


def test_a_killed_writer_loses_no_row(path):
    with Child(path, KILLED) as child:
        for _ in range(100):
            child.hear()
        child.kill()
        last = int((child.rest() or ["99"])[-1])
    for mode in "r", "a":
        with Log(path, mode=mode) as log:
            assert len(log) in (last + 1, last + 2)
            assert log["i"].tolist() == list(range(len(log))) and log["t"][last] == str(last)
            assert log["late"][last] == last / 2
            if mode == "a":
                log.add(i=-1)
                assert columns(log)["i"][-1] == -1


# -- other forms ------------------------------------------------------------------------------------------------------

def test_json(log, tmp_path):
    log.add(f=0.1, i=2**60, t='é "x"\n', d=datetime.datetime(2020, 1, 2, 3, 4, 5), v=[1, 2])
    log.add(f=None, i=-3, t="", d=None, v=[3, 4])
    log.to_json(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {
        "f": [0.1, None], "i": [2**60, -3], "t": ['é "x"\n', ""], "d": ["2020-01-02T03:04:05.000000", None],
        "v": [[1, 2], [3, 4]]}
    with Log(log.d, "again") as again:
        again.read_json(tmp_path / "x.json")
        assert {k: v for k, v in columns(again).items() if k != "d"} \
            == {k: v for k, v in columns(log).items() if k != "d"}
    (tmp_path / "y.json").write_text('[{"i": 1}, {"f": 2.5, "new": "a"}]')
    log.read_json(tmp_path / "y.json")
    assert columns(log)["new"] == ["", "", "", "a"] and columns(log)["f"] == [0.1, None, None, 2.5]
    for text in "[]", "{}", '{"i": []}':
        (tmp_path / "y.json").write_text(text)
        with unchanged(log):
            log.read_json(str(tmp_path / "y.json"))


@pytest.mark.parametrize("text", ["", "{", "1", '"x"', "null", "[1]", '{"i": 1}', '{"i": [1], "f": [1, 2]}',
                                  '[{"i": 1}, 2]', '{"i": [1], "f": 2}', '{"i": [{"a": 1}]}', '[{"i": "text"}]'])
def test_json_that_is_no_log(log, tmp_path, text):
    log.add(i=1)
    (tmp_path / "x.json").write_text(text)
    with unchanged(log), pytest.raises((ValueError, TypeError)) as caught:
        log.read_json(tmp_path / "x.json")
    assert str(caught.value)


def test_broken_json_names_the_file(log, tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match="x.json"):
        log.read_json(tmp_path / "x.json")


def test_csv(log, tmp_path):
    log.add(f=0.1, i=2**60, t='é, "x"\nnext', n=1)
    log.add(f=None, i=-3, t="", n=None)
    log.add(f=1e300, i=0, t="b", n=2)
    log.to_csv(tmp_path / "x.csv")
    with Log(log.d, "again") as again:
        again.read_csv(tmp_path / "x.csv")
        assert columns(again) == columns(log)
        assert [again[name].dtype for name in again.columns] == ["f8", "i8", "U16", "f8"]
    (tmp_path / "y.csv").write_text("\ufeff a , b,c\n\n 1 , x y ,\n2.5,,\n", encoding="utf-8")
    with Log(log.d, "third") as third:
        third.read_csv(str(tmp_path / "y.csv"))
        assert columns(third) == {"a": [1, 2.5], "b": ["x y", ""]}
        (tmp_path / "y.csv").write_text("a,b\n")
        with unchanged(third):
            third.read_csv(tmp_path / "y.csv")


@pytest.mark.parametrize("text", ["a\rb", "a\r\nb"])
def test_csv_of_carriage_returns(log, tmp_path, text):
    log.add(i=1, t=text)
    log.to_csv(tmp_path / "x.csv")
    with Log(log.d, "again") as again:
        again.read_csv(tmp_path / "x.csv")
        assert again["t"].tolist() == [text]


@pytest.mark.parametrize("text, words", [
    ("", "no line of names"), ("\n\n", "no line of names"), ("a,a\n1,2\n", "twice"), ("a,b\n1\n", "line 2"),
    ("a,b\n1,2\n1,2,3\n", "line 3")])
def test_csv_that_is_no_log(log, tmp_path, text, words):
    log.add(a=1)
    (tmp_path / "x.csv").write_text(text)
    with unchanged(log), pytest.raises(ValueError, match=words) as caught:
        log.read_csv(tmp_path / "x.csv")
    assert "x.csv" in str(caught.value)


def test_compare(tmp_path):
    paths = [tmp_path / f"run{i}" for i in range(4)]
    for i, path in enumerate(paths[:3]):
        with Log(path) as log:
            log.extend({"epoch": e, "loss": e + i / 2, **({"rare": 1} if i == 1 else {})} for e in range(3))
    with Log(paths[2], "other") as log:
        log.add(loss=5)
    with mmapdict.open(paths[3]) as d:
        d["x"] = 1
    found = compare(paths, "loss")
    assert {path: loss.tolist() for path, loss in found.items()} == {
        str(path): [i / 2, 1 + i / 2, 2 + i / 2] for i, path in enumerate(paths[:3])}
    assert list(compare(map(str, paths), "rare")) == [str(paths[1])]
    epochs, losses = compare(paths, "loss", "epoch")[str(paths[0])]
    assert epochs.tolist() == [0, 1, 2] and losses.tolist() == [0, 1, 2]
    assert compare([], "loss") == {} and compare(paths[3:], "loss") == {}
    for arguments in ("los",), ("loss", "no"), ("no", "epoch"):
        with pytest.raises(KeyError, match=r"'epoch', 'loss', 'rare'"):
            compare(paths, *arguments)
    for one in paths[0], str(paths[0]):
        with pytest.raises(TypeError):
            compare(one, "loss")
    assert list(compare(paths, "loss", name="other")) == [str(paths[2])]
    with pytest.raises(FileNotFoundError):
        compare([tmp_path / "no"], "loss")


def test_to_pandas(log):
    pytest.importorskip("pandas")
    assert log.to_pandas().shape == (0, 0)
    log.extend({"i": i, "t": "ab"[i], "d": datetime.date(2020, 1, 1 + i), "v": [i, 1]} for i in range(2))
    frame = log.to_pandas()
    assert frame.shape == (2, 4) and list(frame) == ["i", "t", "d", "v"] and frame["i"].tolist() == [0, 1]
    assert frame["t"].tolist() == ["a", "b"] and frame["v"][1].tolist() == [1, 1]
