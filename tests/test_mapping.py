"""The mapping behaves as a dict does: each method beside a real dict, in every mode, and after `close`."""

import copy
import decimal
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import types
import warnings
from collections.abc import ItemsView, KeysView, MutableMapping, ValuesView

import numpy as np
import pytest

import judge
import mmapdict
from children import descriptors, in_fork
from mmapdict import BusyError, ClosedError, CorruptError, FormatError, MmapDict, ReadOnlyError, store, trust
from mmapdict.dictviews import equal
from judge import plain


@pytest.fixture
def d(path):
    with mmapdict.open(path, "x") as d:
        yield d


def check(d, model):
    """The mapping, plain `pickle.load` and the model agree in content, types and order, whatever way one asks."""
    expected = judge.fingerprint_items(model)
    judge.assert_same_items(judge.fingerprint_items(d), expected, "items")
    judge.assert_same_items(judge.fingerprint_items(plain(d.path)), expected, "pickle.load")
    assert len(d) == len(model) and bool(d) == bool(model)
    keys = list(map(repr, model))
    assert [repr(key) for key in d] == keys
    assert [repr(key) for key in reversed(d)] == keys[::-1]
    for key in model:
        assert key in d
        assert judge.fingerprint(d[key]) == judge.fingerprint(model[key])


def outcome(function, *arguments):
    """What a call returns, or the type of the exception that it raises."""
    try:
        return function(*arguments)
    except Exception as exc:
        return type(exc)


# --- side by side with a dict ----------------------------------------------------------------------------------------

def move(m, key, value):
    """Assign as the mapping does: a replaced item moves to the end, and keeps its first key object."""
    kept = next((k for k in m if k == key), key)
    m.pop(key, None)
    m[kept] = value


def reset(m, key, value):
    if isinstance(m, dict):
        move(m, key, value)
    else:
        m[key] = value


class Pairs:
    """Not a mapping, but with `keys`, which is all that `dict.update` asks for."""

    def keys(self):
        return ["k", "l"]

    def __getitem__(self, key):
        return key * 2


START = {"a": 1, 2: [1, "zwei"], (3, "c"): None, b"d": np.arange(3), 5.5: {"x": (1, 2)}, None: "nothing", "e": ""}
OPERATIONS = {
    "get": lambda m: (m.get("a"), m.get("zz"), m.get("zz", 7), m.get((3, "c"), 1), m.get(None), m.get(2)),
    "get of a missing key": lambda m: m["zz"],
    "get of an unhashable key": lambda m: m[[]],
    "get method with an unhashable key": lambda m: m.get([]),
    "in": lambda m: ("a" in m, "zz" in m, None in m, 2.0 in m, True in m, (3, "c") in m, (3,) in m),
    "in with an unhashable key": lambda m: {} in m,
    "set": lambda m: m.__setitem__("new", [1, 2]),
    "set of an unhashable key": lambda m: m.__setitem__([], 1),
    "set of a tuple with an unhashable part": lambda m: m.__setitem__((1, []), 1),
    "replace": lambda m: reset(m, "a", "other"),
    "replace the last": lambda m: reset(m, "e", 0),
    "delete": lambda m: m.__delitem__("a"),
    "delete by an equal key": lambda m: m.__delitem__(2.0),
    "delete a missing key": lambda m: m.__delitem__("zz"),
    "delete an unhashable key": lambda m: m.__delitem__([]),
    "delete and set again": lambda m: (m.__delitem__("a"), m.__setitem__("a", 2)),
    "pop": lambda m: m.pop("a"),
    "pop with a default": lambda m: (m.pop("a", 0), m.pop("a", 0), m.pop("zz", None)),
    "pop of a missing key": lambda m: m.pop("zz"),
    "pop of an unhashable key": lambda m: (m.setdefault("a", 1), m.pop([], 1)),
    "popitem": lambda m: (m.popitem(), m.popitem()),
    "popitem after a replacement": lambda m: (reset(m, "a", 3), m.popitem()),
    "popitem to the end": lambda m: [m.popitem() for _ in range(8)],
    "setdefault": lambda m: (m.setdefault("a", 5), m.setdefault("s", [5]), m.setdefault("t")),
    "setdefault with an array": lambda m: m.setdefault("s", np.ones(4)).tolist(),
    "setdefault with an unhashable key": lambda m: m.setdefault([], 5),
    "update": lambda m: m.update({"u": 1, "v": 2}),
    "update with pairs": lambda m: m.update([("u", 1), ["v", 2], "wx"]),
    "update with an iterator": lambda m: m.update(iter([("u", 1)])),
    "update with keywords": lambda m: m.update(u=1, self=2, other=3),
    "update with both": lambda m: m.update({"u": 1}, v=3),
    "update with keys": lambda m: m.update(Pairs()),
    "update with itself": lambda m: m.update(m),
    "update with its last items": lambda m: m.update(list(m.items())[-3:]),
    "update with nothing": lambda m: m.update(),
    "update with no mapping": lambda m: m.update(5),
    "update with short pairs": lambda m: m.update([(1,)]),
    "update that fails at once": lambda m: m.update([([], 2), ("v", 3)]),
    "update with two mappings": lambda m: m.update({}, {}),
    "clear": lambda m: m.clear(),
    "clear and go on": lambda m: (m.clear(), m.clear(), m.__setitem__("a", 1), len(m)),
    "|": lambda m: [list((m | {"a": 9, "z": 1}).items())[-2:], type(m | {})],
    "| with pairs": lambda m: m | [("a", 1)],
    "reflected |": lambda m: [list(({"z": 1, "a": 0} | m).items())[:2], type({} | m)],
    "|=": lambda m: m.__ior__({"u": [1]}) is m,
    "|= with pairs": lambda m: m.__ior__([("u", 1)]) is m,
    "==": lambda m: (m == {}, m == m, m != m, m == 5, m != {}, m == [1]),
    "copy": lambda m: (type(m.copy()), list(m.copy())),
    "bool and len": lambda m: (bool(m), len(m)),
    "hash": hash,
    "list": lambda m: (list(m), list(reversed(m)), list(m.keys()), list(reversed(m.keys()))),
    "unpacking": lambda m: ([*m], len({**m}), list({**m})),
    "dict": lambda m: list(dict(m)),
    "sorted items of text keys": lambda m: sorted(k for k in m if isinstance(k, str)),
    "views' lengths": lambda m: (len(m.keys()), len(m.values()), len(m.items())),
    "keys and sets": lambda m: (m.keys() & {"a", "q"}, m.keys() - {"a"}, m.keys() | {"q"}, m.keys() ^ {"a", "q"},
                                {"a", "q"} & m.keys(), {"a", "q"} - m.keys(), {"q"} | m.keys(), {"a"} ^ m.keys()),
    "keys and iterables": lambda m: (m.keys() & ["a"], m.keys() | iter("q"), m.keys() - ("a",), m.keys() ^ ["a", "q"]),
    "keys compared": lambda m: (m.keys() == set(m), m.keys() != set(m), m.keys() <= set(m), m.keys() < set(m),
                                m.keys() >= {"a"}, m.keys() > {"a"}, m.keys() == list(m), m.keys() == m.keys()),
    "keys disjoint": lambda m: (m.keys().isdisjoint("q"), m.keys().isdisjoint("a")),
    "in keys": lambda m: ("a" in m.keys(), "q" in m.keys(), 2.0 in m.keys()),
    "in items": lambda m: (("a", 1) in m.items(), ("a", 2) in m.items(), ("q", 1) in m.items(), ("a",) in m.items(),
                           "a" in m.items(), (2, [1, "zwei"]) in m.items()),
    "hash of a view": lambda m: hash(m.keys()),
    "items twice": lambda m: (lambda items: len(list(items)) == len(list(items)))(m.items()),
    "next of a view": lambda m: next(m.keys()),
    "reversed views": lambda m: ([k for k, _ in reversed(m.items())], list(reversed(m.values()))[0]),
    "fill again": lambda m: (m.clear(), m.update(a=1), m.popitem(), m.update(b=2), list(m)),
}


def test_an_update_is_all_or_nothing(d):
    d["a"] = 1
    for pairs in ([("u", 1), ([], 2), ("v", 3)], [("a", 2), ({}, 1)], [("a", 2), 5]):
        with pytest.raises((TypeError, ValueError, mmapdict.UntrustedError)):
            d.update(pairs)
        check(d, {"a": 1})
    d.update([("u", 1), ("a", 2)], v=d["a"])
    check(d, {"u": 1, "a": 2, "v": 1})
    with d.batch():
        d.update(w=1)
        d.update(d)
    check(d, {"u": 1, "a": 2, "v": 1, "w": 1})


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("empty", [False, True], ids=["filled", "empty"])
def test_an_operation_beside_the_same_on_a_dict(d, name, empty):
    model = {} if empty else dict(START)
    d.update(model)
    expected, found = outcome(OPERATIONS[name], model), outcome(OPERATIONS[name], d)
    assert judge.fingerprint(found) == judge.fingerprint(expected)
    check(d, model)
    with mmapdict.open(d.path, "r") as other:
        check(other, model)


def test_it_is_a_mutable_mapping_but_no_dict(d):
    assert isinstance(d, MutableMapping) and not isinstance(d, dict)
    assert isinstance(d.keys(), KeysView) and isinstance(d.values(), ValuesView) and isinstance(d.items(), ItemsView)
    d["x"] = 1
    match d:
        case {"x": found, **rest}:
            assert (found, rest) == (1, {})
    public = {name for name in dir(dict) if not name.startswith("_")}
    assert public - set(dir(d)) == {"fromkeys"}
    with pytest.raises(TypeError):
        {d: 1}


def test_views_are_live(d):
    keys, values, items = d.keys(), d.values(), d.items()
    assert not keys and not list(values) and len(items) == 0
    d["a"] = 1
    d["b"] = np.arange(2)
    assert list(keys) == ["a", "b"] and keys == {"a", "b"} and "b" in keys
    assert 1 in values and len(values) == 2 and list(values)[0] == 1
    assert ("a", 1) in items and list(items)[0] == ("a", 1)
    del d["a"]
    assert list(keys) == ["b"] and 1 not in values and ("a", 1) not in items
    for view in keys, values, items:
        assert isinstance(view.mapping, types.MappingProxyType) and list(view.mapping) == ["b"]


def test_items_with_arrays_are_found_by_their_elements(d):
    d["a"] = np.arange(3)
    d["s"] = np.zeros(2, [("x", "f4")])
    d["l"] = [np.arange(2), {"n": np.ones(2)}]
    d["o"] = np.array([None, np.arange(2), "x"], object)
    assert ("a", np.arange(3)) in d.items() and ("a", np.arange(4)) not in d.items()
    assert ("a", [0, 1, 2]) not in d.items() and ("a", np.array([0, 1, 3])) not in d.items()
    assert ("s", np.zeros(2, [("x", "f4")])) in d.items() and ("s", np.zeros(2, [("y", "f4")])) not in d.items()
    assert ("l", [np.arange(2), {"n": np.ones(2)}]) in d.items()
    assert ("l", [np.arange(2), {"n": np.zeros(2)}]) not in d.items()
    assert np.arange(3) in d.values() and np.arange(5) not in d.values()
    assert ("o", np.array([None, np.arange(2), "x"], object)) in d.items()


ARRAYS = [
    np.arange(3), np.arange(3.0), np.arange(3, dtype=">i2"), np.arange(3)[::-1], np.zeros(0), np.zeros((0, 3)),
    np.array(1),
    np.array(["a", "b", "c"]), np.array([b"a", b"b", b"c"]), np.array(["2000-01-01"] * 3, "M8[D]"),
    np.zeros(3, "m8[s]"),
    np.zeros(3, "V3"), np.zeros(3, "V4"), np.zeros(3, "i4,f4"), np.zeros(3, [("x", "i4")]), np.zeros(3, [("x", "U1")]),
    np.array([None, 1, "a"], object), np.array([True, False, True]), np.zeros((3, 2), [("x", "i4", 2)]),
    np.ma.array([0, 1, 2], mask=[0, 1, 0]), np.ma.array([0, 1, 2], mask=[1, 0, 0]),
    np.ma.array([0, 9, 2], mask=[0, 1, 0]),
    np.ma.array(np.zeros(3, "i4,f4"), mask=[(0, 1), (0, 0), (1, 1)]), np.ma.masked_all(3), np.ma.array(1, mask=True)]


@pytest.mark.parametrize("a", range(len(ARRAYS)))
@pytest.mark.filterwarnings("error")
def test_equality_of_any_two_arrays_is_an_answer(a):
    """Dtypes that numpy refuses to compare are not equal; masked elements are; each array is equal to its copy."""
    one = ARRAYS[a]
    assert equal(one, one.copy()) and not equal(one, one.tolist())
    for b, other in enumerate(ARRAYS):
        assert equal(one, other) is equal(other, one)
        if one.shape != other.shape or one.dtype.kind in "USVO" and other.dtype.kind != one.dtype.kind:
            assert not equal(one, other)
        if one.dtype.kind in "ifb" and other.dtype.kind in "ifb" and not {a, b} & {19, 20, 21, 23, 24}:
            assert equal(one, other) is (one.shape == other.shape and one.tolist() == other.tolist())
    assert equal(ARRAYS[19], ARRAYS[21]) and not equal(ARRAYS[19], ARRAYS[20])


def test_equal_mappings(d, tmp_path):
    d["a"] = np.arange(3)
    d["n"] = [1, (2.0, {"x": None})]
    d["m"] = np.ma.array([1, 2], mask=[0, 1])
    same = {"m": np.ma.array([1, 5], mask=[0, 1]), "n": [1, (2.0, {"x": None})], "a": np.array([0.0, 1.0, 2.0])}
    assert d == same and same == d and not d != same
    assert d == types.MappingProxyType(same)
    assert d == d.copy() and d.copy() == d
    for key, value in ("a", np.arange(4)), ("a", [0, 1, 2]), ("n", [1, (2.0, {"x": 0})]), ("x", 1):
        assert d != {**same, key: value}
    with mmapdict.open(tmp_path / "other", "x") as other:
        other.update(same)
        assert d == other and not d != other
        other["a"][0] = 1
        assert d != other
    d["nan"] = np.array([np.nan])
    assert d == d and d != d.copy()             # as for a dict: its own values are the same, others must be equal


def test_copy_is_a_plain_dict_whose_arrays_are_views_of_the_file(d):
    d["a"], d["v"] = np.arange(3), [1]
    copied = d.copy()
    assert type(copied) is dict
    copied["a"][0] = 9
    copied["v"].append(2)
    copied["new"] = 1
    check(d, {"a": np.array([9, 1, 2]), "v": [1]})


def test_a_value_is_a_copy_and_an_array_a_view(d):
    d["v"], d["a"] = {"x": 1}, np.zeros(3)
    d["v"]["x"] = 2
    d["a"][1] = 5
    first, second = d["a"], d["a"]
    assert first is not second                  # so that what is done to one does not show in the other
    first.setflags(write=False)
    assert second.flags.writeable and d["a"].flags.writeable
    check(d, {"v": {"x": 1}, "a": np.array([0.0, 5.0, 0.0])})


def test_changing_while_iterating_does_no_harm(d):
    d.update({i: i for i in range(10)})
    seen = []
    for key in d:
        seen.append(key)
        del d[key]
        d[key + 100] = key
    assert seen == list(range(10)) and list(d) == [i + 100 for i in range(10)]
    for key, value in d.items():
        d[key] = value + 1
        d.pop(109, None)
    assert list(d.values()) == list(range(1, 10)) and 109 not in d
    for value in d.values():
        d.clear()
    assert not d


def test_an_iterator_gives_the_items_of_the_moment_when_it_was_made(d):
    d["a"], d["b"] = np.arange(3), "b"
    iterators = iter(d), iter(d.values()), iter(d.items()), reversed(d.items())
    d["a"] = "other"
    del d["b"]
    d["c"] = 1
    keys, values, items, backwards = map(list, iterators)
    assert keys == ["a", "b"]
    assert values[0].tolist() == [0, 1, 2] and values[1] == "b"
    assert [k for k, _ in items] == ["a", "b"] and [k for k, _ in backwards] == ["b", "a"]


def test_order_is_that_of_the_file_and_a_replaced_item_moves_to_the_end(d):
    for key in "zab":
        d[key] = 1
    d["z"] = np.zeros(5)
    assert list(d) == ["a", "b", "z"]
    del d["a"]
    d["a"] = 2
    d.create("h", 3)
    d["b"] = d["b"]
    assert list(d) == ["z", "a", "h", "b"] == list(plain(d.path)) == [e.key for e in d.entries()]
    assert d.popitem() == ("b", 1)


def test_popitem_after_changes_by_another_handle(d):
    d.update({key: key for key in "abcde"})
    with mmapdict.open(d.path, "r+") as other:
        del other["e"]
        other["b"] = "replaced"
        assert d.popitem() == ("b", "replaced") and d.popitem() == ("d", "d")
        other["a"] = d["c"] = "again"
        assert [d.popitem(), other.popitem()] == [("c", "again"), ("a", "again")]
        for handle in d, other:
            with pytest.raises(KeyError):
                handle.popitem()


# --- keys ------------------------------------------------------------------------------------------------------------

KEYS = [
    "", "a", "m/s", "/", ".", "..", "a\nb", "\0", "é漢\U0001f600", "a\udc80\ud800", os.fsdecode(b"caf\xe9.tif"),
    "k" * 255,
    "k" * 256, "k" * 4095, "k" * 4097, "k" * 10_000, "é" * 100_000, "\udfff" * 9_999, b"", b"a", b"\xff" * 256,
    b"x" * 10_001,
    b"y" * 100_000, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63, -2**64, 10**1000,
    0.5, -2.25, 1e300, 5e-324, float("inf"), -float("inf"), None, True, False, (), (1,), ("a", 1), ((), ((),)),
    (None, b"x", 2.5),
    ("scan", 0, ("t" * 5000, b"u" * 5001)), tuple(range(1000)), ("\ud800", -2**70), (True, "x")]


def test_keys_of_every_kind(d):
    model = {}
    for number, key in enumerate(KEYS):
        d[key] = model[key] = number
    check(d, model)
    with mmapdict.open(d.path, "r") as other:
        check(other, model)
    for number, key in enumerate(KEYS):
        move(model, key, [number])
        d[key] = [number]
    check(d, model)
    for key in KEYS[::2]:
        assert d.pop(key) == model.pop(key)
        d.create(key, 2, "u1")
        model[key] = np.zeros(2, "u1")
    check(d, model)
    for key in KEYS:
        del d[key]
    check(d, {})


def test_an_integer_too_long_to_be_printed_as_a_key(d):
    for key in 10**5000, (-10**5000,):
        for value in range(2):
            d[key] = value
            assert d[key] == value and plain(d.path) == {key: value}
        del d[key]


@pytest.mark.parametrize("keys", [
    (1, 1.0, True), (True, 1, 1.0), (1.0, True, 1), (0, False, 0.0, -0.0), (-0.0, 0.0), (2**60, float(2**60)),
    ((1, "a"), (1.0, "a"), (True, "a")), ((0.0,), (-0.0,)), ((), ())], ids=repr)
def test_equal_keys_are_one_key_and_the_first_object_stays(d, keys):
    first = keys[0]
    for number, key in enumerate(keys):
        d[key] = number
        assert len(d) == 1 and [d[k] for k in keys] == [number] * len(keys)
        assert repr(list(d)) == repr([first]) == repr(list(plain(d.path)))
    with mmapdict.open(d.path, "r+") as other:
        other[keys[-1]] = "other"
        assert repr(list(other)) == repr(list(d)) == repr([first])
    for key in keys[1:]:
        del d[first]
        d[key] = 1
        assert repr(list(d)) == repr([key]) == repr(list(plain(d.path)))
        with mmapdict.open(d.path, "r") as other:
            assert repr(list(other)) == repr([key])
        del d[key]
        d[first] = 1
    assert d.setdefault(keys[-1], 5) == 1 and d.pop(keys[-1]) == 1 and not d


def test_different_keys_are_not_mixed_up(d):
    keys = ["1", b"1", 1, (1,), ("1",), (b"1",), ((1,),), "", b"", (), None, 0, "None", "()"]
    d.update({key: number for number, key in enumerate(keys)})
    assert [d[key] for key in keys] == list(range(len(keys)))


@pytest.mark.parametrize("key, stored", [
    (np.int8(-3), -3), (np.uint64(2**64 - 1), 2**64 - 1), (np.float16(0.1), float(np.float16(0.1))),
    (np.bool_(True), True),
    (np.float32(0.1), float(np.float32(0.1))), (np.float64(0.1), 0.1), (np.str_("é"), "é"), (np.bytes_(b"x"), b"x"),
    ((np.int64(1), ("a", np.float64(2.5))), (1, ("a", 2.5))), ((np.str_("a"),), ("a",))], ids=repr)
def test_numpy_scalars_as_keys_are_stored_as_the_python_value_that_they_equal(d, key, stored):
    d[key] = "value"
    assert repr(list(d)) == repr(list(plain(d.path))) == repr([stored])
    assert d[key] == d[stored] == "value" and key in d and stored in d
    d[key] = "other"
    assert d.setdefault(key) == d.pop(key) == "other"
    d.create(key, 1)
    del d[key]
    assert not d


class Text(str):
    pass


class Number(int):
    __hash__ = int.__hash__


REFUSED = {
    "list": [], "dict": {}, "set": set(), "frozenset": frozenset(), "bytearray": bytearray(b"x"), "array": np.arange(2),
    "0-d array": np.array(1), "object": object(), "complex": 1j, "ellipsis": ..., "range": range(3), "type": int,
    "function": len, "str subclass": Text("q"), "int subclass": Number(3), "NaN": float("nan"),
    "numpy NaN": np.float64("nan"),
    "date": np.datetime64("2000-01-01"), "NaT": np.datetime64("NaT", "s"), "timedelta": np.timedelta64(1, "s"),
    "numpy complex": np.complex128(1j), "void": np.zeros(1, "i4,i4")[0], "named tuple": sys.version_info,
    "tuple with a list": (1, []), "tuple with NaN": (1, float("nan")),
    "tuple with a tuple with NaN": ((float("nan"),),),
    "tuple with numpy NaN": (np.float32("nan"),), "tuple with an object": (object(),), "memoryview": memoryview(b"a")}
NESTED = ()
for _ in range(150):
    NESTED = (NESTED,)
REFUSED["too deep"] = NESTED


@pytest.mark.parametrize("name", REFUSED)
def test_a_key_that_is_refused_changes_nothing(d, name):
    key = REFUSED[name]
    d["a"] = 1
    before, commit = pathlib.Path(d.path).read_bytes(), d.commit
    for change in (lambda: d.__setitem__(key, 1), lambda: d.create(key, 3), lambda: d.setdefault(key, 1),
                   lambda: d.update([(key, 1)])):
        with pytest.raises(TypeError):
            change()
    assert pathlib.Path(d.path).read_bytes() == before and d.commit == commit
    d["b"] = 2
    check(d, {"a": 1, "b": 2})


def test_a_value_that_cannot_be_pickled_changes_nothing(d):
    class Interrupt:
        def __reduce__(self):
            raise KeyboardInterrupt

    d["a"] = 1
    before, commit = pathlib.Path(d.path).read_bytes(), d.commit
    for value, error in (lambda: 0, Exception), (open, None), ([np.zeros(10**6), Interrupt()], KeyboardInterrupt):
        if error is not None:
            for change in (lambda: d.__setitem__("b", value), lambda: d.setdefault("b", value),
                           lambda: d.update(a=value)):
                with pytest.raises(error):
                    change()
    assert pathlib.Path(d.path).read_bytes() == before and d.commit == commit
    check(d, {"a": 1})
    d["b"] = 2
    check(d, {"a": 1, "b": 2})


class Strange:
    """Equal to "a", but no str."""

    def __hash__(self):
        return hash("a")

    def __eq__(self, other):
        return other == "a"


def test_looking_with_a_key_that_could_not_be_stored(d):
    d["a"], d[1] = "text", "one"
    assert d[Text("a")] == "text" and Text("a") in d and d.get(Text("b")) is None
    assert d[1 + 0j] == "one" and d[Strange()] == "text"
    assert object() not in d and float("nan") not in d and (float("nan"),) not in d and 1j not in d
    with pytest.raises(KeyError):
        d[float("nan")]
    assert d.pop(Strange()) == "text"
    del d[1 + 0j]
    check(d, {})


# --- values that touch the mapping itself ----------------------------------------------------------------------------

def copied(array):
    """As it is laid out in the file: what is not contiguous is written in C order."""
    return array.copy("F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C")


def test_storing_an_array_of_the_same_file(d):
    d["a"] = np.arange(1000)
    d["f"] = np.asfortranarray(np.arange(600.0).reshape(20, 30))
    d["m"] = np.ma.array(np.arange(50), mask=np.arange(50) % 3 == 0)
    model = {key: copied(value) for key, value in d.items()}
    for source in "afm":
        d["copy", source] = d[source]
        model["copy", source] = copied(model[source])
        d["part", source] = d[source][::-2]
        model["part", source] = model[source][::-2].copy()
        check(d, model)
        d["copy", source][...] = 5
        model["copy", source][...] = 5
        check(d, model)
        d[source] = d[source][:-1]
        move(model, source, copied(model[source][:-1]))
        check(d, model)
    d["list"] = [d["a"], d["f"][0], d["a"]]
    assert [v.tolist() for v in d["list"]] == [model["a"].tolist(), model["f"][0].tolist(), model["a"].tolist()]


def test_storing_the_very_array_that_a_key_holds_changes_nothing(d):
    """Neither the order nor the commit: ``d[key] += 1`` works in place."""
    d["a"], d["f"], d[1] = np.arange(1000), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.zeros(0)
    d["m"], d["z"] = np.ma.array([1, 2]), "z"
    used, commit, address = d.info()["used"], d.commit, d["a"].offset
    d["a"] += 1
    d["f"] *= 2
    d["f"] = d["f"]
    d[True] = d[1.0]
    d.update({"a": d["a"]})
    with mmapdict.open(d.path, "r") as other:
        d["f"] = other["f"]
    assert (d.info()["used"], d.commit, d["a"].offset) == (used, commit, address)
    model = {"a": np.arange(1, 1001), "f": np.asfortranarray(np.arange(0, 12, 2.0).reshape(2, 3)), 1: np.zeros(0),
             "m": np.ma.array([1, 2]), "z": "z"}
    check(d, model)
    # All else is stored anew: another shape, part, type or byte order over the same bytes, a masked array.
    for key, view in [("a", lambda a: a.reshape(10, 100)), ("a", lambda a: a.T), ("a", lambda a: a[:9]),
                      ("a", lambda a: a[0]), ("f", lambda a: a.T), ("f", lambda a: a.view("i8")),
                      ("f", lambda a: a.view(">i8")), ("f", lambda a: a.view("V8")), ("m", lambda a: a)]:
        value = view(d[key])
        move(model, key, copied(value))
        d[key] = value
        check(d, model)


class Writer:
    """A value that does something while it is pickled."""

    def __init__(self, action):
        self.action = action

    def __reduce__(self):
        self.action()
        return complex, (1, 2)


def test_a_value_that_changes_the_mapping_while_it_is_pickled(d):
    shared = ["shared"]
    d["a"], d["b"], d["arr"] = 1, [shared, shared], np.arange(5)
    model = {"a": 1, "b": [shared, shared], "arr": np.arange(5)}
    actions = {
        "set": (lambda m: reset(m, "x", [shared, shared]), "k"),
        "the same key": (lambda m: reset(m, "k", "inner"), "k"),
        "delete": (lambda m: m.pop("a"), "k"), "clear": (lambda m: m.clear(), "k2"),
        "create": (lambda m: m.create("h", 3) if m is d else move(m, "h", np.zeros(3)), "k3")}
    for action, key in actions.values():
        d[key] = [Writer(lambda: action(d)), shared, shared]
        action(model)
        move(model, key, [1 + 2j, shared, shared])
        check(d, model)
    d.setdefault("s", Writer(lambda: d.update(t=[shared, shared])))
    model.update(t=[shared, shared], s=1 + 2j)
    check(d, model)
    # Another who sets the key in between comes first.
    assert d.setdefault("u", Writer(lambda: d.update(u="inner"))) == "inner"
    model["u"] = "inner"
    check(d, model)
    with pytest.raises(ZeroDivisionError):
        d["v"] = Writer(lambda: (d.update(w=1), 1 / 0))
    model["w"] = 1
    check(d, model)


def test_a_value_that_changes_the_mapping_through_another_handle(d):
    """No code of a value's own runs while the writers' lock is held, else this would wait for ever."""
    with mmapdict.open(d.path, "r+") as other:
        d["a"] = Writer(lambda: other.update(x=1))
        d.setdefault("b", Writer(lambda: other.update(y=2)))
        assert list(d.items()) == list(other.items()) == [("x", 1), ("a", 1 + 2j), ("y", 2), ("b", 1 + 2j)]


CALLED = []


def called(*arguments):
    """Take the place of a value when it is loaded."""
    for function in CALLED:
        function()
    return "loaded"


class Loader:
    def __reduce__(self):
        return called, ()


def test_a_value_that_changes_the_mapping_while_it_is_loaded(path):
    with mmapdict.open(path, "w", allow=[called]) as d, mmapdict.open(d.path, "r+", allow=[called]) as other:
        d["a"], d["l"] = 1, Loader()
        CALLED[:] = [lambda: other.update(x=1), lambda: d.update(y=2)]
        try:
            assert d["l"] == "loaded" and d.pop("l") == "loaded"
            assert list(d) == list(other) == ["a", "x", "y"]
            d["l"] = Loader()
            CALLED[:] = [lambda: (CALLED.clear(), other.pop("l"))]
            assert d.pop("l", "it is gone") == "it is gone"         # the other one removed it first
            d["l"] = Loader()
            CALLED[:] = [lambda: (CALLED.clear(), other.update(z=3))]
            assert d.popitem() == ("z", 3)
            assert d.popitem() == ("l", "loaded")
        finally:
            CALLED.clear()
        check(d, {"a": 1, "x": 1, "y": 2})


def test_one_value_that_cannot_be_loaded_does_not_stop_the_others(path):
    d = mmapdict.open(path, "w", trusted=True)

    class Gone:
        def __reduce__(self):
            return getattr, (dict, "no such name")

    class NoKey:
        def __reduce__(self):
            return dict.__getitem__, ({}, "its own key")

    d["a"], d["gone"], d["no key"], d["b"] = np.arange(3), Gone(), NoKey(), 1
    for look in (lambda: d["gone"], lambda: d.get("gone"), lambda: d.pop("gone"), lambda: list(d.items()), d.copy):
        with pytest.raises(AttributeError):
            look()
    with pytest.raises(KeyError, match="its own key"):
        d.get("no key", "not the default")
    assert list(d) == ["a", "gone", "no key", "b"] and d["a"].sum() == 3 and d["b"] == 1 and "gone" in d
    assert "value" in repr(d)
    del d["gone"], d["no key"]
    check(d, {"a": np.arange(3), "b": 1})
    d.close()


# --- create ----------------------------------------------------------------------------------------------------------

def test_create(d):
    model = {}
    for number, (shape, dtype, order, mask, sparse) in enumerate([
            (3, "f8", "C", False, False), ((2, 3), "u2", "F", False, False), ((), ">i4", "C", False, False),
            ([4, 5], "M8[s]", "C", True, False), ((0, 3), "i1", "C", False, False),
            (np.int32(7), "U3", "C", False, True),
            ((np.int64(2), 3), "i4,f4", "F", True, True), (100_000, "u1", "C", False, False),
            (1, "?", "C", True, False),
            (range(2, 4), ("f4", 2), "C", False, False)]):
        hole = d.create(("hole", number), shape, dtype, order=order, mask=mask, sparse=sparse)
        shape = shape if np.iterable(shape) else (shape,)
        expected = np.zeros(tuple(shape), dtype, order)
        if mask:
            expected = expected.view(np.ma.MaskedArray)
            expected._mask = np.zeros(expected.shape, np.ma.make_mask_descr(expected.dtype), order)
        model["hole", number] = expected
        assert type(hole) is (np.ma.MaskedArray if mask else mmapdict.memmap)
        assert hole.flags.writeable and hole.dtype == expected.dtype
        check(d, model)
    d["hole", 1][1, 2] = model["hole", 1][1, 2] = 9
    d["hole", 3][0] = model["hole", 3][0] = np.ma.masked
    d["hole", 6][1, 1] = model["hole", 6][1, 1] = (3, 0.5)
    check(d, model)


def test_create_refuses(d):
    d["a"] = 1
    before, commit = pathlib.Path(d.path).read_bytes()[:d.info()["used"]], d.commit
    for arguments, error in {
            ("a", 3): ValueError, ("b", -1): ValueError, ("b", (2, -3)): ValueError, ("b", 2.5): TypeError,
            ("b", "xy"): TypeError,
            ("b", (2.0,)): TypeError, ("b", None): TypeError, ("b", 3, object): TypeError, ("b", 3, "O,i4"): TypeError,
            ("b", (1,) * 65): ValueError, ("b", 3, "nonsense"): TypeError, ("b", (0, 2**62, 2**62)): ValueError,
            ("b", (0, 2**63)): ValueError, ("b", 2**63): ValueError, ("b", (2**62, 2**62)): ValueError,
            ("b", 2**62, "u1"): (OSError, ValueError)}.items():
        for options in {}, {"sparse": True}, {"mask": True}:
            with pytest.raises(error):
                d.create(*arguments, **options)
    with pytest.raises(ValueError, match="order"):
        d.create("b", 3, order="A")
    with pytest.raises(TypeError):
        d.create("b", 3, np.dtype("i4", metadata={"some": "thing"}))
    assert pathlib.Path(d.path).read_bytes()[:len(before)] == before and d.commit == commit
    d.create("b", 2)
    check(d, {"a": 1, "b": np.zeros(2)})


def test_entry_entries_and_info(d):
    d["a"] = np.arange(6, dtype="<u2").reshape(2, 3)
    d["f"] = np.asfortranarray(np.zeros((4, 5)))
    d["m"] = np.ma.array([1, 2], mask=[0, 1], dtype="i8")
    d["n"] = np.ma.array([1.5])
    d["v"] = {"x": 1}
    data = pathlib.Path(d.path).read_bytes()
    a, f, m, n, v = d.entries()
    assert [e.key for e in d.entries()] == list(d) and [d.entry(k) for k in d] == d.entries()
    assert a[:5] == ("a", "array", (2, 3), np.dtype("<u2"), "C") and (a.nbytes, a.mask_offset) == (12, None)
    assert data[a.offset:a.offset + a.nbytes] == np.arange(6, dtype="<u2").tobytes()
    assert f[:5] == ("f", "array", (4, 5), np.dtype("f8"), "F") and d["f"].offset == f.offset
    assert m[:3] == ("m", "masked", (2,)) and data[m.mask_offset:m.mask_offset + 2] == b"\0\1"
    assert n.kind == "masked" and n.offset % 16 == 0
    assert v[:5] == ("v", "value", None, None, None) and v.offset + v.nbytes <= v.record + v.record_nbytes
    for entry in d.entries():
        assert entry.record < entry.offset < entry.record + entry.record_nbytes
    info = d.info()
    assert (info["keys"], info["path"], info["mode"]) == (5, d.path, "x")
    assert info["dead_bytes"] == 0 and info["size"] >= info["used"] and info["version"] == 1
    del d["v"]
    d["a"] = 1
    changed = d.info()
    assert changed["dead_bytes"] == v.record_nbytes + a.record_nbytes and changed["commit"] == info["commit"] + 2
    for key in "v", "missing":
        with pytest.raises(KeyError):
            d.entry(key)


# --- modes, paths ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "x"])
def test_modes_with_a_file_and_without(path, mode):
    if mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError):
            mmapdict.open(path, mode)
        assert not path.exists()
    else:
        with mmapdict.open(path, mode) as d:
            assert d.mode == mode and not d and plain(path) == {}
            d["new"] = 1
        assert plain(path) == {"new": 1}
    with mmapdict.open(path, "w") as d:
        d["a"] = np.arange(3)
    before = path.read_bytes()
    if mode == "x":
        with pytest.raises(FileExistsError):
            mmapdict.open(path, mode)
    else:
        with mmapdict.open(path, mode) as d:
            assert list(d) == ([] if mode == "w" else ["a"])
            if mode == "r":
                assert not d["a"].flags.writeable and d["a"].mode == "r"
                with pytest.raises(ValueError):
                    d["a"][0] = 1
            elif mode != "w":
                assert d["a"].flags.writeable and d["a"].mode == "r+"
    assert (path.read_bytes() == before) is (mode != "w")
    assert os.listdir(path.parent) == [path.name]


def test_mode_r_refuses_every_change(path):
    with mmapdict.open(path, "w") as d:
        d["a"] = 1
    before = path.read_bytes(), path.stat().st_mtime_ns
    with mmapdict.open(path, "r") as r:
        for change in CHANGES.values():
            with pytest.raises(ReadOnlyError):
                change(r)
        r.flush()
        r.sync()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("mode", ["", "rb", "w+", "c", "R", None, 5, b"r"])
def test_other_modes_are_refused(path, mode):
    with pytest.raises(ValueError):
        mmapdict.open(path, mode)
    assert not path.exists()


def test_every_kind_of_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = str(tmp_path / "file é")

    class Path:
        def __fspath__(self):
            return os.fsencode(text)

    for number, path in enumerate([text, os.fsencode(text), pathlib.Path(text), Path(), "file é", "./x/../file é"]):
        (tmp_path / "x").mkdir(exist_ok=True)
        with mmapdict.open(path) as d:
            assert d.path == text
            d[number] = number
    assert list(plain(text)) == list(range(6))
    strange = os.fsencode(tmp_path) + b"/\xff\xfe"
    with MmapDict(strange, "x") as d:
        d["a"] = np.arange(2)
        assert os.fsencode(d.path) == strange == os.fsencode(d["a"].filename)
    with mmapdict.open(os.fsdecode(strange), "r") as d:
        assert d["a"][1] == 1
    for wrong in 3, None, [text], b"a\0b":
        with pytest.raises((TypeError, ValueError)):
            mmapdict.open(wrong)
    with pytest.raises(OSError):
        mmapdict.open(tmp_path / "no folder" / "file")


def test_a_relative_path_stays_right_after_chdir(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with mmapdict.open("file", "x") as d, mmapdict.open(pathlib.Path("file"), "r") as r:
        monkeypatch.chdir("elsewhere")
        d["a"] = np.arange(3)
        assert r["a"][2] == 2 and d["a"].filename == str(tmp_path / "file")
        with mmapdict.open(tmp_path / "file", "w") as w:
            w["b"] = 1
        assert list(r) == list(d) == ["b"]
        with pickle.loads(pickle.dumps(d)) as other:
            assert other["b"] == 1
        d["c"] = 1
    assert plain(tmp_path / "file") == {"b": 1, "c": 1}


# --- close -----------------------------------------------------------------------------------------------------------

CHANGES = {
    "set": lambda d: d.__setitem__("b", 1), "delete": lambda d: d.__delitem__("a"),
    "create": lambda d: d.create("b", 3),
    "setdefault": lambda d: d.setdefault("b", 1), "pop": lambda d: d.pop("a"),
    "pop a missing key": lambda d: d.pop("b", 1),
    "popitem": lambda d: d.popitem(), "clear": lambda d: d.clear(), "update": lambda d: d.update(b=1),
    "update with nothing": lambda d: d.update(), "|=": lambda d: d.__ior__({"b": 1}),
    "batch": lambda d: d.batch().__enter__(), "vacuum": lambda d: d.vacuum(), "seal": lambda d: d.seal(),
    "unseal": lambda d: d.unseal(), "create_growable": lambda d: d.create_growable("b"),
    "append": lambda d: d.append("b", [1]), "extend": lambda d: d.extend("a", 1), "resize": lambda d: d.resize("a", 1),
    "trim": lambda d: d.trim("a"), "exclusive": lambda d: d.exclusive().__enter__()}
LOOKS = {
    "get": lambda d: d["a"], "get method": lambda d: d.get("a"), "in": lambda d: "a" in d, "len": len, "iter": iter,
    "reversed": reversed, "bool": bool, "keys": lambda d: d.keys(), "values": lambda d: d.values(),
    "items": lambda d: d.items(),
    "copy": lambda d: d.copy(), "==": lambda d: d == {}, "!=": lambda d: d != {}, "|": lambda d: d | {},
    "reflected |": lambda d: {} | d,
    "entry": lambda d: d.entry("a"), "entries": lambda d: d.entries(), "info": lambda d: d.info(),
    "commit": lambda d: d.commit,
    "wait": lambda d: d.wait(0), "watch": lambda d: next(d.watch(0)), "flush": lambda d: d.flush(),
    "sync": lambda d: d.sync(), "verify": lambda d: d.verify(), "sealed": lambda d: d.sealed,
    "free_bytes": lambda d: d.free_bytes,
    "with": lambda d: d.__enter__(), "dict": dict, "list": list}


def test_every_public_name_is_tried_after_close():
    """A method that is added must be added to the tables above too."""
    inherited = {name for name in dir(dict) if not name.startswith("_")}
    own = {name for name in vars(MmapDict) if not name.startswith("_")}
    tried = {"update", "create", "setdefault", "pop", "popitem", "clear", "get", "keys", "values", "items", "copy",
             "entry", "entries", "info", "commit", "wait", "watch", "flush", "sync", "batch", "vacuum", "seal",
             "unseal", "sealed", "verify", "free_bytes", "create_growable", "append", "extend", "resize", "trim",
             "exclusive"}
    assert (inherited | own) - tried == {"fromkeys", "close", "closed", "path", "mode"}


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
@pytest.mark.parametrize("name", [*LOOKS, *CHANGES])
def test_use_after_close_is_a_closed_error(path, mode, name):
    with mmapdict.open(path, "w") as d:
        d["a"] = np.arange(3)
    d = mmapdict.open(path, mode)
    array, views, iterator = d["a"], (d.keys(), d.values(), d.items()), iter(d.items())
    d.close()
    d.close()
    with pytest.raises(ClosedError, match="closed"):
        {**LOOKS, **CHANGES}[name](d)
    for view in views:
        for look in list, len, reversed:
            with pytest.raises(ClosedError):
                list(look(view))
    with pytest.raises(ClosedError):
        next(iterator)
    assert issubclass(ClosedError, ValueError)
    assert d.closed and d.mode == mode and d.path == str(path) and "closed" in repr(d)
    assert array.tolist() == [0, 1, 2]
    check_left = plain(path)
    assert check_left["a"].tolist() == [0, 1, 2] and list(check_left) == ["a"]


def test_with_closes_whatever_happens(path):
    with mmapdict.open(path) as d:
        assert not d.closed
    assert d.closed
    with pytest.raises(ZeroDivisionError):
        with mmapdict.open(path) as d:
            d["a"] = 1
            raise ZeroDivisionError
    assert d.closed and plain(path) == {"a": 1}
    with mmapdict.open(path) as d:
        with d:
            pass
        assert d.closed


def test_close_gives_back_the_spare_room_of_the_file(path):
    with mmapdict.open(path) as d:
        d["a"] = 1
        used = d.info()["used"]
    assert path.stat().st_size == used
    with mmapdict.open(path) as d, mmapdict.open(path) as other:
        d["b"] = np.arange(10)
        other["c"] = 1
        d.close()
        other["d"] = [1]
        used = other.info()["used"]
    assert path.stat().st_size == used and list(plain(path)) == ["a", "b", "c", "d"]


def test_an_unclosed_handle_is_told_of_and_a_closed_one_is_not(path):
    d = mmapdict.open(path)
    with pytest.warns(ResourceWarning, match="unclosed.*file"):
        del d
        gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        d = mmapdict.open(path)
        d["a"] = np.arange(3)
        array = d["a"]
        d.close()
        del d
        with mmapdict.open(path, "r") as r:
            r["a"]
        del r
        with pytest.raises(FileExistsError):
            mmapdict.open(path, "x")
        gc.collect()
    assert not told and array[2] == 2


# --- repr, copies ----------------------------------------------------------------------------------------------------

def test_repr(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with mmapdict.open("file") as d:
        assert repr(d) == "MmapDict('file', 'a'): {}"
        d["a"], d[("m", 1)], d[b"v"] = np.zeros((2, 3), "<f4"), np.ma.array([1, 2], dtype="i8"), "text"
        assert repr(d) == "MmapDict('file', 'a'): {'a': array (2, 3) float32, ('m', 1): masked array (2,) int64, " \
                          f"b'v': value of {d.entry(b'v').nbytes} bytes}}"
        d.update({i: i for i in range(1000)})
        assert repr(d).endswith(", ... 993 more}") and len(repr(d)) < 1000
        assert "file" in str(d) and "'a'" in repr(d.keys())
    assert repr(d) == "MmapDict('file', 'a'): closed"
    with mmapdict.open(tmp_path / "file", "r") as d:
        assert repr(d).startswith(f"MmapDict({str(tmp_path / 'file')!r}, 'r'): {{")


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, *(
    lambda d, protocol=protocol: pickle.loads(pickle.dumps(d, protocol)) for protocol in range(6))])
@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "x"])
def test_a_copied_or_pickled_handle_opens_the_path_anew(path, how, mode):
    if mode in ("r", "r+", "a"):
        mmapdict.open(path, "x").close()
    with mmapdict.open(path, mode) as d:
        if mode != "r":
            d["a"] = np.zeros(1000)
        with how(d) as other:
            assert other is not d and type(other) is MmapDict
            assert other.path == d.path and other.mode == ("r" if mode == "r" else "r+")
            assert list(other) == list(d)
            if mode != "r":
                other["b"] = 1
                other["a"][3] = 5
                assert d["b"] == 1 and d["a"][3] == 5
    assert len(pickle.dumps(d)) < 1000


class Child(MmapDict):
    """A user's subclass."""

    def total(self):
        return sum(array.sum() for array in self.values())


def test_a_subclass_stays_one(path):
    with Child(path) as d:
        d.update(a=np.arange(3), b=np.ones(2))
        assert d.total() == 5 and repr(d).startswith("MmapDict")
        with pickle.loads(pickle.dumps(d)) as other:
            assert type(other) is Child and other.total() == 5


# --- bad files -------------------------------------------------------------------------------------------------------

@pytest.mark.leaves_damaged_file
@pytest.mark.parametrize("content, error", [
    (b"", FormatError), (b"not a pickle", FormatError), (pickle.dumps({"a": 1}), FormatError),
    (bytes(1000), FormatError),
    (pickle.dumps({"a": 1}, 2), FormatError), ("cut in the header", CorruptError), ("cut in a record", CorruptError),
    ("newer", FormatError), ("damaged", CorruptError)], ids=range(9))
def test_a_bad_file_is_told_of_and_not_touched(path, content, error):
    if isinstance(content, str):
        with mmapdict.open(path) as d:
            d["a"], d["b"] = np.arange(3), 1
        whole = path.read_bytes()
        content = {"cut in the header": whole[:100], "cut in a record": whole[:-20],
                   "newer": whole[:16] + b"\xff" + whole[17:], "damaged": whole[:300] + b"?" + whole[301:]}[content]
    path.write_bytes(content)
    before = descriptors()
    kept = []
    for mode in "r", "r+", "a":
        with pytest.raises(error, match="file") as told:
            mmapdict.open(path, mode)
        kept.append(told.value)
        assert told.value.path == str(path) and pickle.loads(pickle.dumps(told.value)).args == told.value.args
    with pytest.raises(FileExistsError):
        mmapdict.open(path, "x")
    assert path.read_bytes() == content and descriptors() == before
    with mmapdict.open(path, "w") as d:
        d["a"] = 1
    assert plain(path) == {"a": 1}


@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "x"])
def test_a_folder_is_no_file(tmp_path, mode):
    with pytest.raises((FormatError, FileExistsError)):
        mmapdict.open(tmp_path, mode)
    assert os.listdir(tmp_path) == []


# --- an exception at any instant -------------------------------------------------------------------------------------

class Stop(BaseException):
    pass


def stopped(function, count):
    """Call a function, and raise `Stop` at the `count`-th place where the interpreter could run a signal handler.

    These are the beginnings of Python functions and the returns from C functions. Return whether it came so far.
    """
    def profile(frame, event, argument):
        nonlocal count
        if event == "call" or event == "c_return":
            count -= 1
            if count < 0:
                sys.setprofile(None)
                raise Stop

    sys.setprofile(profile)
    try:
        function()
    except Stop:
        pass
    finally:
        sys.setprofile(None)
    return count < 0


def can_lock(path):
    """Whether nobody holds the writers' lock."""
    fcntl = pytest.importorskip("fcntl")
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


STOPPED = {
    "set": (lambda d: d.__setitem__("n", [1]), lambda m: m.update(n=[1]), 1),
    "replace": (lambda d: d.__setitem__("b", np.arange(9)), lambda m: m.update(b=np.arange(9)), 1),
    "delete": (lambda d: d.__delitem__("b"), lambda m: m.pop("b"), 1),
    "pop": (lambda d: d.pop("b"), lambda m: m.pop("b"), 1),
    "popitem": (lambda d: d.popitem(), lambda m: m.popitem(), 3),
    "clear": (lambda d: d.clear(), lambda m: m.clear(), 1),
    "setdefault": (lambda d: d.setdefault("n", 5), lambda m: m.update(n=5), 3),
    "create": (lambda d: d.create("n", 99, "u1"), lambda m: m.update(n=np.zeros(99, "u1")), 3),
    "look": (lambda d: (d["a"], d["b"], len(d), list(d.items()), d.wait(0)), lambda m: None, 5),
    "close": (lambda d: d.close(), lambda m: None, 1),
}


@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_at_any_instant_leaves_file_handle_and_lock_sound(path, name):
    """Ctrl-C in the middle of anything: others can write at once, and so can this handle."""
    operation, on_model, step = STOPPED[name]
    before = {"a": np.arange(600), "b": [1, [2]], "c": "x"}
    after = dict(before)
    on_model(after)
    count, came_so_far = 0, True
    while came_so_far:
        with mmapdict.open(path, "w") as d:
            d.update(before)
            came_so_far = stopped(lambda: operation(d), count)
            count += step
            assert can_lock(path)
            found = plain(path)
            assert equal(found, before) or equal(found, after)
            if not d.closed:
                assert equal(dict(d), found) and len(d) == len(found)
                d["z"] = 1
                assert equal(dict(d), {**found, "z": 1}) and equal(plain(path), {**found, "z": 1})
            with mmapdict.open(path, "r+") as other:
                other["y"] = 2
                assert d.closed or d["y"] == 2
    assert count > 10


def test_a_signal_handler_cannot_change_the_mapping_in_the_middle_of_a_change(d):
    """Instead of writing two records to one place it is refused, and the change that goes on is not disturbed."""
    def handler(frame, event, argument):
        nonlocal told
        if event == "call" and frame.f_code.co_name == "_publish":
            sys.setprofile(None)
            with pytest.raises(BusyError):
                d["handler"] = 1
            with pytest.raises(BusyError):
                d.clear()
            told = list(d), d["a"]

    told = None
    d["a"] = 1
    sys.setprofile(handler)
    try:
        d["b"] = [2]
    finally:
        sys.setprofile(None)
    assert told == (["a"], 1)
    check(d, {"a": 1, "b": [2]})


def test_a_finalizer_cannot_change_the_mapping_in_the_middle_of_a_change(d, monkeypatch):
    """As above, and where it is said: a function that is called inside stands for the collector's."""
    def finalizer(file, *byte):
        monkeypatch.undo()
        with pytest.raises(BusyError, match="a signal handler or finalizer .* let it set a flag"):
            d["finalizer"] = 1
        file.store_byte(*byte)

    monkeypatch.setattr(store.File, "store_byte", finalizer)
    d["a"] = 1
    check(d, {"a": 1})


@pytest.mark.parametrize("then_raise", [False, True])
def test_a_signal_handler_may_close_in_the_middle_of_a_change(path, then_raise):
    def handler(frame, event, argument):
        if event == "call" and frame.f_code.co_name == "_publish":
            sys.setprofile(None)
            d.close()
            assert d.closed
            if then_raise:
                raise SystemExit

    before = descriptors()
    d = mmapdict.open(path)
    d["a"] = 1
    sys.setprofile(handler)
    try:
        d["b"] = [2]
    except SystemExit:
        assert then_raise
    finally:
        sys.setprofile(None)
    assert descriptors() == before and can_lock(path)
    assert plain(path) == ({"a": 1} if then_raise else {"a": 1, "b": [2]})
    with pytest.raises(ClosedError):
        d["c"] = 1


# --- big and many ----------------------------------------------------------------------------------------------------

def test_big_values_of_every_kind(d):
    model = {"bytes": bytes(range(256)) * 20_000, "text": "é" * 2_000_000, "array": np.arange(500_000), "empty": b"",
             "list": list(range(100_000)), "shared": [bytes(70_000)] * 3}
    d.update(model)
    check(d, model)


def test_many_keys(path):
    n = 3000
    with mmapdict.open(path) as d:
        for i in range(n):
            d["key", i] = i
        for i in range(0, n, 2):
            del d["key", i]
        for i in range(0, n, 3):
            d["key", i] = -i
        model = {("key", i): i for i in range(n) if i % 2 and i % 3}
        model.update({("key", i): -i for i in range(0, n, 3)})
        assert list(d.items()) == list(model.items()) == list(plain(path).items()) and len(d) == len(model)
    with mmapdict.open(path, "r") as d:
        assert list(d.items()) == list(model.items()) and len(d) == len(model)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_package_is_quiet_when_warnings_are_errors(path):
    def child():
        warnings.simplefilter("error")
        with mmapdict.open(path, "w") as d:
            d["a"], d["m"], d["s"] = np.arange(3), np.ma.array([1], mask=[1]), np.float32(1)
            d.create("h", (2, 2), mask=True)[0] = np.ma.masked
            assert d == d.copy() and len(repr(d)) and len(d.entries()) == 4
            assert [k for k in d.watch(0)] == []
        gc.collect()

    in_fork(child)


def test_the_package_imports_nothing_but_numpy():
    code = "import sys, mmapdict; print([m for m in ('scipy', 'skimage', 'asyncio', 'argparse') if m in sys.modules])"
    root = os.path.dirname(os.path.dirname(mmapdict.__file__))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": root})
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_storing_the_array_of_a_copy_of_the_file(d, tmp_path):
    """It has the same file id, and its array the same place; it is another array all the same."""
    d["x"] = np.zeros(4)
    copy = tmp_path / "copy"
    copy.write_bytes(pathlib.Path(d.path).read_bytes())
    d["x"][:] = 7
    with mmapdict.open(copy, "r+") as other:
        other["x"] = d["x"]
        assert other["x"].tolist() == plain(copy)["x"].tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("path", ["", b""])
def test_an_empty_path_is_no_file(path):
    with pytest.raises(FileNotFoundError):
        mmapdict.open(path)


@pytest.mark.parametrize("mask", [None, 1, np.True_, np.zeros(3, bool)])
def test_the_mask_of_a_hole_is_true_or_false(path, mask):
    with mmapdict.open(path) as d:
        with pytest.raises(TypeError, match="mask is True or False"):
            d.create("a", 3, "u1", mask=mask)
        assert len(d) == 0


def test_a_value_whose_module_is_not_installed_is_named_and_stays(path, monkeypatch):
    value = decimal.Decimal("1.5")
    with mmapdict.open(path) as d:
        d["price"], d["other"] = value, 1
        monkeypatch.setattr(trust, "_found", {})            # nothing of it was read before
        monkeypatch.setitem(sys.modules, "decimal", None)
        with pytest.raises(ModuleNotFoundError, match="'price' needs the module decimal, which is not installed here"):
            d["price"]
        assert d["other"] == 1
        monkeypatch.undo()
        assert d["price"] == value
