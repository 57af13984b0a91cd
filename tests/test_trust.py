"""Reading a value runs nothing but what has a rule, what must come back does, and no value takes more than it may."""

import bz2
import collections
import copyreg
import dataclasses
import decimal
import enum
import gc
import io
import lzma
import os
import pickle
import re
import struct
import subprocess
import sys
import types
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attacks
import families
import judge
import strategies
from attacks import array, build, call, dtype, extend, fill, get, named, new, push, put
from mmapdict import CorruptError, pickling, trust
from mmapdict import format as fmt
from mmapdict.errors import UntrustedError
from mmapdict.trust import Trust

FAMILIES = [(library, kind) for library, kinds in families.FAMILIES.items() for kind in kinds]
DEFAULT = Trust()
TRUSTED = Trust(trusted=True)


def join(parts):
    return b"".join(part.head + bytes(part.data) if isinstance(part, fmt.Payload) else part for part in parts)


def encoded(value, check=None, base=64):
    return join(pickling.encode_pickled(value, base, check)[0])


def same(a, b):
    if type(a).__module__.partition(".")[0] in ("pandas", "scipy", "xarray", "collections", "ipaddress"):
        return type(a) is type(b) and shown(a) == shown(b)        # what they have noted for later is not kept
    try:
        return judge.fingerprint(a) == judge.fingerprint(b)
    except TypeError:           # of a class that the judge knows nothing of
        return type(a) is type(b) and shown(a) == shown(b)


def shown(x):
    return re.sub("0x[0-9a-fA-F]+", "", repr(x))


def refused(ops, match=None, by=DEFAULT):
    try:
        found = by.decode(bytes(ops))
    except (UntrustedError, CorruptError, ImportError) as exc:       # a library that is not here
        assert match is None or re.search(match, str(exc)), exc
        return exc
    raise AssertionError("it was read: %r" % type(found))


# -- what comes back -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("library, kind", FAMILIES)
@pytest.mark.filterwarnings("ignore")
def test_values_of_every_family_come_back_by_default(library, kind):
    values = families.FAMILIES[library][kind]()
    for value in values if type(values) is list else [values]:
        ops = encoded(value, DEFAULT.check)
        assert same(DEFAULT.decode(ops), TRUSTED.decode(ops))
    again = DEFAULT.decode(memoryview(encoded([values, values], DEFAULT.check, 100_000)))[0]
    assert type(again) is type(values)
    pairs = zip(again, values, strict=True) if type(values) is list else [(again, values)]
    # A set that was filled in another order shows its elements in another.
    assert all(shown(a) == shown(b) or same(a, b) for a, b in pairs)


@pytest.mark.parametrize("allow", ["decimal.Decimal", decimal.Decimal, 3])
def test_allow_is_a_list(allow):
    with pytest.raises(TypeError, match="a list of classes"):
        Trust(allow=allow)


@given(strategies.values())
def test_values_come_back_as_by_plain_pickle(value):
    try:
        ops = encoded(value, DEFAULT.check)
    except UntrustedError:
        return
    assert same(DEFAULT.decode(ops), TRUSTED.decode(ops))


@given(strategies.plain_values())
def test_plain_values_come_back(value):
    try:
        ops = encoded(value, DEFAULT.check)
    except UntrustedError as exc:
        assert exc.name == "builtins.len"
        return
    assert same(DEFAULT.decode(ops), value)
    assert same(trust._Machine(DEFAULT, ops).run(), value)


@pytest.mark.parametrize("value", [
    [(n, str(n)) for n in range(5000)], {(n, "t"): [n] for n in range(5000)}, [{"k" * 60: n} for n in range(3000)],
    [tuple(range(n)) for n in range(100)], [frozenset([(n, 1)]) for n in range(3000)], list(range(10_000))])
def test_big_plain_values_come_back(value):
    ops = encoded(value, DEFAULT.check)
    assert DEFAULT.decode(ops) == value


def test_plain_values_with_shared_parts_come_back():
    shared = (1, 2)
    found = DEFAULT.decode(encoded([shared, shared, {shared: [shared]}]))
    assert found[0] is found[1] is found[2][1, 2][0]
    assert DEFAULT.decode(encoded({(shared, shared): 1})) == {(shared, shared): 1}


def test_recursive_values_come_back():
    namespace = types.SimpleNamespace()
    namespace.own = [namespace]
    found = DEFAULT.decode(encoded(namespace))
    assert found.own[0] is found
    a = np.empty(1, object)
    a[0] = a
    found = DEFAULT.decode(encoded([a]))[0]
    assert found[0] is found
    ordered = collections.OrderedDict()
    ordered["own"] = ordered
    found = DEFAULT.decode(encoded(ordered))
    assert found["own"] is found


def test_high_memo_indices_are_numbered_anew():
    shared = np.arange(3)
    ops = encoded([shared, shared, None], base=1 << 31)
    found = DEFAULT.decode(ops)
    assert found[0] is found[1]
    assert DEFAULT.decode(b"]r\xff\xff\xff\x7f") == []
    inner = [1]
    found = DEFAULT.decode(encoded([inner, inner], base=(1 << 32) - 2))
    assert found[0] is found[1]


@pytest.mark.parametrize("pack", [zlib.compress, bz2.compress, lzma.compress])
def test_compressed_bytes_come_back(pack):
    module = pack.__module__.strip("_")
    data = os.urandom(5000) + bytes(100_000)
    assert DEFAULT.decode(call(named(module, "decompress"), pack(data))) == data


# -- what the caller allows ------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Point:
    x: int
    y: object = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int
    __slots__ = ("x",)

    def __getstate__(self):
        return None, {"x": self.x}

    def __setstate__(self, state):
        object.__setattr__(self, "x", state[1]["x"])


class Slots:
    __slots__ = ("a", "b")


Pair = collections.namedtuple("Pair", "left right")


class Color(enum.Enum):
    RED = 1
    GREEN = "g"


class Bits(enum.Flag):
    A = 1
    B = 2


class Number(enum.IntEnum):
    ONE = 1


class Outer:
    class Inner:
        def __init__(self):
            self.a = 1


class OwnArray(np.ndarray):
    pass


class OwnMasked(np.ma.MaskedArray):
    pass


class OwnScalar(np.float64):
    pass


class OwnDict(dict):
    pass


class OwnList(list):
    pass


class OwnSet(set):
    pass


class OwnInt(int):
    pass


class Derived(Point):
    pass


class Reduced:
    def __reduce__(self):
        return make_reduced, (5,)


def make_reduced(n):
    found = Point(n)
    found.made = True
    return found


class Failing:
    def __setstate__(self, state):
        raise LookupError("of its own")


def filled_slots():
    made = Slots()
    made.a = [1]
    return made


def attributed(made):
    made.extra = "e"
    return made


ALLOWED = {
    "dataclass": ([Point], lambda: Point(1, [2])),
    "frozen dataclass with slots": ([Frozen], lambda: Frozen(1)),
    "slots": ([Slots], lambda: filled_slots().a),
    "namedtuple": ([Pair], lambda: Pair(1, Pair(2, 3))),
    "enum": ([Color], lambda: [Color.RED, Color.GREEN, Color]),
    "flag": ([Bits], lambda: [Bits.A, Bits.A | Bits.B, Bits(0)]),
    "int enum": ([Number], lambda: {Number.ONE: 1}),
    "nested": ([Outer.Inner], lambda: vars(Outer.Inner())),
    "array": ([OwnArray], lambda: np.arange(3).view(OwnArray)),
    "foreign array": ([OwnArray], lambda: np.arange(3, dtype=">i4").view(OwnArray)),
    "masked": ([OwnMasked], lambda: OwnMasked([1, 2], mask=[0, 1])),
    "scalar": ([OwnScalar], lambda: [OwnScalar(1.5)]),
    "dict": ([OwnDict], lambda: attributed(OwnDict(a=1, b=[2]))),
    "list": ([OwnList], lambda: attributed(OwnList([1, 2, 3]))),
    "set": ([OwnSet], lambda: OwnSet([1, 2])),
    "int": ([OwnInt], lambda: OwnInt(7)),
    "function": ([len], lambda: len),
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_allowed_classes_come_back_and_others_do_not(kind):
    allow, make = ALLOWED[kind]
    value = make()
    ops = encoded(value)
    found = Trust(allow=allow).decode(ops)
    assert type(found) is type(value) and repr(found) == repr(value)
    assert getattr(found, "extra", None) == getattr(value, "extra", None)
    Trust(allow=allow).check(original(value))
    if "test_trust" in repr(ops):
        for other in Trust(), Trust(allow=[Reduced]):
            error = refused(ops, "allow=", by=other)
            assert isinstance(error, UntrustedError) and error.name == f"test_trust.{allow[0].__qualname__}"
            with pytest.raises(UntrustedError, match="allow="):
                other.check(original(value))


def original(value):
    out = io.BytesIO()
    pickling._Pickler(out, 4).dump(value)
    return out.getvalue()


def test_an_object_with_slots_comes_back():
    found = Trust(allow=[Slots]).decode(encoded(filled_slots()))
    assert type(found) is Slots and found.a == [1] and not hasattr(found, "b")


def test_a_nested_class_comes_back():
    found = Trust(allow=[Outer.Inner]).decode(encoded(Outer.Inner()))
    assert type(found) is Outer.Inner and found.a == 1
    refused(encoded(Outer.Inner()), "Outer.Inner", by=Trust(allow=[Outer]))


def test_a_member_spelled_as_an_attribute_comes_back():
    ops = call(named("builtins", "getattr"), named("test_trust", "Color"), "RED")
    assert Trust(allow=[Color]).decode(ops) is Color.RED
    refused(ops)
    for name in ("__class__", "mro", "_member_map_", "BLUE", "__subclasses__"):
        refused(call(named("builtins", "getattr"), named("test_trust", "Color"), name), by=Trust(allow=[Color]))
    refused(call(named("builtins", "getattr"), named("test_trust", "Point"), "x"), by=Trust(allow=[Point]))


def test_subclasses_and_reducers_are_not_implied():
    refused(encoded(Derived(1)), "Derived", by=Trust(allow=[Point]))
    ops = encoded(Reduced())
    refused(ops, "make_reduced", by=Trust(allow=[Reduced]))
    refused(ops, "make_reduced")
    assert Trust(allow=[make_reduced]).decode(ops).made
    assert not hasattr(Trust(allow=[Point]).decode(encoded(Point(1))), "made")


def test_what_an_allowed_class_raises_is_its_own():
    ops = encoded(Failing)[:-1] + b"\x93)\x81K\x01b"
    with pytest.raises(LookupError, match="own"):
        Trust(allow=[Failing]).decode(ops)
    assert Trust(allow=[make_reduced]).decode(call(named("test_trust", "make_reduced"), 5)).x == 5
    with pytest.raises(TypeError):
        Trust(allow=[make_reduced]).decode(call(named("test_trust", "make_reduced"), 5, 6))


def test_a_class_itself_gets_no_state():
    by = Trust(allow=[Point, Color, Slots])
    for name in ("Point", "Color", "Slots"):
        refused(build(named("test_trust", name), (None, {"x": 5})), by=by)
        refused(build(named("test_trust", name), {"x": 5}), by=by)
    assert "x" not in vars(Point)
    refused(extend(named("test_trust", "Point"), [1]), by=by)


def test_an_object_does_not_change_its_class():
    by = Trust(allow=[Point, Slots])
    refused(build(new(named("test_trust", "Point")), (None, {"__class__": named("scipy.sparse", "csr_matrix")})), by=by)
    refused(build(new(named("test_trust", "Slots")), (None, {"__class__": named("test_trust", "Point")})), by=by)
    found = by.decode(build(new(named("test_trust", "Point")), {"__class__": 1, "x": 2}))
    assert type(found) is Point


@pytest.mark.parametrize("entry", ["Point", 1, None, Point(1), lambda: None, types.SimpleNamespace(), object(), os])
def test_only_what_can_be_imported_by_name_is_allowed(entry):
    with pytest.raises(TypeError, match="allow"):
        Trust(allow=[entry])


def test_a_class_of_another_place_is_not_allowed():
    class Local:
        pass
    with pytest.raises(TypeError, match="allow"):
        Trust(allow=[Local])
    imposter = type("Point", (), {"__module__": __name__})
    with pytest.raises(TypeError, match="allow"):
        Trust(allow=[imposter])


def test_allowing_a_guarded_class_takes_no_guard_away():
    by = Trust(allow=[np.ndarray, np.dtype, getattr, collections.defaultdict])
    refused(call(attacks.NDARRAY, (1 << 40,), dtype("|u1")), by=by)
    refused(call(named("builtins", "getattr"), named("builtins", "object"), "__subclasses__"), by=by)


def test_an_allowed_array_cannot_take_memory_that_its_record_does_not_pay_for():
    by = Trust(allow=[OwnArray])
    empty = call(named("copyreg", "_reconstructor"), named("test_trust", "OwnArray"), attacks.NDARRAY, (0,))
    assert type(by.decode(build(empty, (1, (1,), dtype("|u1"), False, b"x")))) is OwnArray
    refused(build(empty, (1, (1 << 40,), dtype("|O"), False, [])), by=by)
    refused(build(empty, (1, (1 << 40,), dtype("|u1"), False, b"")), by=by)
    refused(call(named("copyreg", "_reconstructor"), named("test_trust", "OwnArray"), attacks.NDARRAY, (1 << 40,)),
            by=by)


def test_trusted_is_plain_pickle():
    assert TRUSTED.decode(encoded(Reduced())).made
    TRUSTED.check(original(Reduced()))
    assert TRUSTED.decode(call(named("builtins", "eval"), "1 + 1")) == 2


# -- storing ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("value, name", [
    (os.system, "posix.system" if os.name == "posix" else "nt.system"), (Point(1), "test_trust.Point"),
    (Color.RED, "test_trust.Color"),
    ([1, {"k": Point}], "test_trust.Point"), (np.array([Point(1)], object), "test_trust.Point"),
    (np.mean, "numpy.mean"), (len, "builtins.len")])
def test_storing_what_could_not_be_read_back_is_refused(value, name):
    with pytest.raises(UntrustedError, match="allow=.*trusted=True") as caught:
        encoded(value, DEFAULT.check)
    assert caught.value.name == name and name in str(caught.value)
    restored = pickle.loads(pickle.dumps(caught.value))
    assert restored.name == name and str(restored) == str(caught.value)
    assert isinstance(restored, pickle.UnpicklingError)


def test_extension_codes_are_checked_by_the_name_that_they_stand_for():
    copyreg.add_extension(__name__, "Point", 0xABCDE)
    try:
        with pytest.raises(UntrustedError, match="Point"):
            encoded(Point(1), DEFAULT.check)
        ops = encoded(Point(1), Trust(allow=[Point]).check)
        assert pickle.loads(original(Point(1))) == Point(1)         # what they stand for was not forgotten
    finally:
        copyreg.remove_extension(__name__, "Point", 0xABCDE)
    assert Trust(allow=[Point]).decode(ops) == Point(1)


def test_plain_values_are_not_looked_at():
    def never(stream):
        raise AssertionError
    encoded([1, "a", {"b": (2.5, b"c", {3}, frozenset("d"), None, True)}], never)


# -- attacks ---------------------------------------------------------------------------------------------------------

MARKER = "/nonexistent/mmapdict-marker"


@pytest.mark.parametrize("what", [what for what, _ in attacks.touching(MARKER)])
def test_nothing_of_an_attack_runs(what, tmp_path, monkeypatch):
    def never(*args):
        raise AssertionError("it ran")
    marker = tmp_path / "marker"
    marker.write_bytes(b"")
    marker.unlink()
    monkeypatch.setattr(os, "system", never)
    ops = dict(attacks.touching(str(marker)))[what]
    before = dict(copyreg.dispatch_table), dict(copyreg._extension_registry)
    for form in (ops, push([ops]), push({"k": ops}), put(ops), ops + b"0" + push(1), push([b"x" * 3000, ops])):
        refused(form)
    assert not marker.exists()
    assert before == (dict(copyreg.dispatch_table), dict(copyreg._extension_registry))
    assert "antigravity" not in sys.modules


def test_a_cached_extension_code_is_no_way_in():
    copyreg.add_extension("os", "getpid", 0xABCDF)
    try:
        copyreg._extension_cache[0xABCDF] = os.getpid
        refused(b"\x84" + struct.pack("<i", 0xABCDF) + b")R")
        refused(b"\x84" + struct.pack("<i", 0xABCDF))
    finally:
        copyreg.remove_extension("os", "getpid", 0xABCDF)
        copyreg._extension_cache.pop(0xABCDF, None)


def test_the_module_of_a_refused_name_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "trap_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    refused(call(named("trap_module", "f")), "trap_module.f")
    refused(named("trap_module", "f"), "trap_module.f")
    assert "trap_module" not in sys.modules


def test_an_exception_keeps_what_its_compiled_code_relies_on():
    """With another object among its attributes, its text would be read from memory that is not its own."""
    for name, value in (("object", 5), ("start", 1 << 40), ("args", 5), ("__traceback__", None), ("__class__", 1)):
        refused(build(call(named("builtins", "UnicodeDecodeError"), "utf-8", b"x", 0, 1, "r"), {name: value}))
    found = DEFAULT.decode(build(call(named("builtins", "ValueError"), 1), {"mine": 2, "__notes__": ["n"]}))
    assert (found.args, found.mine, found.__notes__) == ((1,), 2, ["n"])


def test_what_an_error_says_is_fit_to_be_printed():
    for name in ("\x1b[2J", "a\nb", "\udc80", "x" * 100_000):
        for ops in (named("os", name), call(named(name, name))):
            text = str(refused(ops))
            assert text.isprintable() and len(text) < 1000 and "trusted=True" in text


def test_an_object_gets_its_state_once():
    """numpy frees an array's memory when it gets another state, whoever still looks at it."""
    a = put(array((4,), "<u4", bytes(16)))
    again = (1, (1,), dtype("<u4"), False, bytes(4))
    refused(build(a, again), "state")
    refused(push([a, build(get(), again)]), "state")
    refused(push([put(array((1,), "|O", [1])), build(get(), again)]), "state")
    view = call(attacks.NDARRAY, (4,), dtype("<u4"), get(), 0, None, "C")
    refused(push([put(array((16,), "|u1", bytes(16))), view, build(get(), again)]), "state")
    refused(build(call(attacks.NDARRAY, (4,), dtype("<u4"), bytes(16)), again), "state")
    refused(push([put(new(attacks.NDARRAY, (0,))), view]))
    refused(put(new(attacks.NDARRAY, (0,))), "state")


HUGE = 1 << 62
BAD_ARRAYS = {
    "objects from bytes": array((2,), "|O", bytes(16)),
    "objects from numbers": call(attacks.NDARRAY, (1,), dtype("|O"), bytes(8)),
    "objects in a field from bytes": array((1,), {"names": ["a"], "formats": ["|O"], "offsets": [0], "itemsize": 8},
                                           bytes(8)),
    "objects without data": call(attacks.NDARRAY, (5,), dtype("|O")),
    "memory without data": call(attacks.NDARRAY, (1 << 34,)),
    "memory without data of a dtype": call(attacks.NDARRAY, (1 << 34,), dtype("f8")),
    "memory by new": new(attacks.NDARRAY, (1 << 34,)),
    "too little data": array((3,), "<f8", bytes(16)),
    "too much data": array((3,), "<f8", bytes(32)),
    "huge": array((HUGE,), "<f8", b""),
    "overflow to zero": array((1 << 32, 1 << 32), "<f8", b""),
    "overflow beside zero": array((0, 1 << 40, 1 << 40), "<f8", b""),
    "overflow": array((HUGE, 4), "<f8", b""),
    "negative": array((-1,), "<f8", b""),
    "negative twice": array((-2, -2), "<i8", bytes(32)),
    "no tuple": array([1], "<f8", bytes(8)),
    "booleans": array((True,), "<f8", bytes(8)),
    "too many dimensions": array((1,) * 65, "<f8", bytes(8)),
    "few objects": array((3,), "|O", [1, 2]),
    "many objects": array((1,), "|O", [1, 2]),
    "objects of no list": array((2,), "|O", (1, 2)),
    "version": array((1,), "<f8", bytes(8), version=2),
    "no dtype": build(new(attacks.NDARRAY, (0,)), (1, (1,), "f8", False, bytes(8))),
    "the class of a dtype": build(new(attacks.NDARRAY, (0,)), (1, (1,), named("numpy", "float64"), False, bytes(8))),
    "a short buffer": call(attacks.NDARRAY, (9,), dtype("<f8"), bytes(16)),
    "strides": call(attacks.NDARRAY, (2,), dtype("<u1"), bytes(2), 0, (1 << 30,)),
    "an offset": call(attacks.NDARRAY, (1,), dtype("<u1"), bytes(2), 100),
    "a negative offset": call(attacks.NDARRAY, (1,), dtype("<u1"), bytes(2), -100),
    "a view of objects": call(attacks.NDARRAY, (1,), dtype("<u8"), array((1,), "|O", [1])),
    "a masked array of memory": call(named("numpy.ma.core", "_mareconstruct"), named("numpy.ma", "MaskedArray"),
                                     attacks.NDARRAY, (1 << 34,), "b"),
    "a masked array of another class": call(named("numpy.ma.core", "_mareconstruct"), named("numpy.ma", "MaskedArray"),
                                            named("numpy", "memmap"), (0,), "b"),
    "a mask of another size": build(call(named("numpy.ma.core", "_mareconstruct"), named("numpy.ma", "MaskedArray"),
                                         attacks.NDARRAY, (0,), "b"), (1, (2,), dtype("<i4"), False, bytes(8), b"",
                                                                       None)),
    "a scalar of objects": call(named("numpy._core.multiarray", "scalar"), dtype("|O"), bytes(8)),
    "a scalar that is short": call(named("numpy._core.multiarray", "scalar"), dtype("<f8"), bytes(4)),
    "void of a size": call(named("numpy", "void"), 1 << 40),
    "void by new": new(named("numpy", "void"), 1 << 40),
    "a text of a size": call(named("numpy", "str_"), [1]),
    "an array by reconstruct": call(named("numpy._core.multiarray", "_reconstruct"), attacks.NDARRAY, (1 << 34,), b"b"),
    "a matrix by a call": call(named("numpy", "matrix"), "1 2; 3 4"),
    "a recarray by a call": call(named("numpy", "recarray"), (1 << 34,)),
    "take": call(named("numpy", "take"), array((2,), "<f8", bytes(16)), [0] * 100),
    "numpy.zeros": call(named("numpy", "zeros"), 1 << 40),
    "memory of records": array((1,), {"names": ["a", "b"], "formats": ["|O", "|V2000000000"], "offsets": [0, 8],
                                      "itemsize": 2000000008}, [(1, b"")]),
    "an element of an array": fill(array((1,), "|O", [1]), {0: 2}),
    "append to an array": extend(array((1,), "|O", [1]), [2]),
}


@pytest.mark.parametrize("what", BAD_ARRAYS)
def test_arrays_that_are_none_are_refused(what):
    refused(BAD_ARRAYS[what])
    refused(push([BAD_ARRAYS[what], 1]))


BAD_DTYPES = ["i4,O", "O,O", "(3000000000,)i4", "(2,2)i4,f8", "M8[25s/7]", "f8" + " " * 5, "S" + "9" * 30,
              "i4," * 20_000, "",
              "f8,", "a" * 100_000, "<M8[" + "1" * 50 + "s]", 5, ("f8",), ("f8", -1), ("f8", (-1,)), ("f8", 3),
              [("a", "f8")],
              ("O", "f8"), {"names": ["a"]}, {"names": [], "formats": [], "aligned": True, "x": 1},
              {"names": "ab", "formats": "ff"},
              {"names": ["a"], "formats": []}, ("f8", {"names": ["a"], "formats": ["O"]}), {"names": ["a"],
                                                                                            "formats": [{}]},
              ("|V8", {"names": ["a"], "formats": ["O"], "offsets": [1]}), {"names": ["a"], "formats": ["f8"],
                                                                            "offsets": [-8]},
              {"names": ["a"], "formats": ["O"], "offsets": [1 << 40]}, {"a": ("f8", 0)}, None,
              named("builtins", "object"),
              named("builtins", "int"), named("pathlib", "Path"), {"names": ["a"], "formats": ["|O"], "offsets": [0],
                                                                   "itemsize": 1}]


@pytest.mark.parametrize("n", range(len(BAD_DTYPES)))
def test_dtypes_that_are_none_are_refused(n):
    refused(dtype(BAD_DTYPES[n]))
    refused(array((1,), dtype(BAD_DTYPES[n]), bytes(8)))


def test_dtypes_that_double_again_and_again_are_refused():
    ops = put(dtype({"names": [], "formats": [], "offsets": [], "itemsize": 0}))
    for n in range(60):
        spec = {"names": ["a", "b"], "formats": [get(n), get(n)], "offsets": [0, 0], "itemsize": 0}
        ops += put(dtype(spec), n + 1)
    refused(b"(" + ops + b"t", "structure")


def test_dtypes_that_are_nested_deeply_are_refused():
    ops = put(dtype("f8"))
    for n in range(400):
        ops += put(dtype({"names": ["a"], "formats": [get(n)], "offsets": [0], "itemsize": 8}), n + 1)
    refused(b"(" + ops + b"t", "nested|parts")
    spec = "f8"
    for _ in range(300):
        spec = attacks.Ops(push((spec, (1,))))
    refused(dtype(spec))
    spec = "f8"
    for _ in range(260):
        spec = attacks.Ops(push({"names": ["a"], "formats": [spec], "offsets": [0], "itemsize": 8}))
    refused(dtype(spec))


BOMBS = {
    "bytearray of a size": call(named("builtins", "bytearray"), 1 << 40),
    "bytes of a size": call(named("builtins", "bytes"), 1 << 40),
    "a list of a range": call(named("builtins", "list"), call(named("builtins", "range"), 1 << 40)),
    "a set of a range": call(named("builtins", "set"), call(named("builtins", "range"), 1 << 40)),
    "a deque of a range": call(named("collections", "deque"), call(named("builtins", "range"), 1 << 40)),
    "a counter of a range": call(named("collections", "Counter"), call(named("builtins", "range"), 1 << 40)),
    "extend by nothing that is a list": push([]) + call(named("builtins", "range"), 1 << 40) + b"Ke",
    "Fraction with an exponent": call(named("fractions", "Fraction"), "1e999999999"),
    "Fraction of a long text": call(named("fractions", "Fraction"), "1" * 100_000),
    "Fraction of long numbers": call(named("fractions", "Fraction"), 1 << 2_000_000, 3),
    "int of a text": call(named("builtins", "int"), "9" * 1_000_000),
    "a text times a number": call(named("operator", "mul"), "x", 1 << 40),
    "str.ljust": call(named("builtins", "str.ljust"), "x", 1 << 40),
    "array of a size": call(named("array", "array"), "d", call(named("builtins", "range"), 1 << 40)),
    "Decimal of a tuple": call(named("decimal", "Decimal"), (0, (1,), 1 << 40)),
    "array times": call(named("operator", "imul"), call(named("array", "array"), "d", [1]), 1 << 40),
    "itertools": call(named("itertools", "repeat"), 1),
    "random bits": call(named("numpy.random", "bytes"), 1 << 40),
    "a size that is not there": b"B\xff\xff\xff\xff",
    "a size of 2^60": b"\x8e" + struct.pack("<Q", 1 << 60) + b"0N",
    "a text of 2^60": b"\x8d" + struct.pack("<Q", 1 << 60) + b"0N",
    "a bytearray of 2^60": b"\x96" + struct.pack("<Q", 1 << 60) + b"0N",
    "a negative long": b"\x8b" + struct.pack("<i", -5) + b"0N",
    "memo indices": push([put([], 0), put([], 1 << 27)]),
    "memo indices that fall": push([put([], 5), put([], 4)]),
    "a memo index of text": b"]p1000000000\n",
    "a short memo index": b"]q\x05",
    "memoised": b"]\x94",
    "another frame": b"\x95" + struct.pack("<Q", 1 << 60) + b"N",
    "another protocol": b"\x80\x05N",
    "a stop": b"N.",
    "an early stop": b"N.N",
    "a buffer": b"\x97",
    "cut short": call(named("zlib", "decompress"), zlib.compress(b"abc")[:-1]),
    "no compressed data": call(named("lzma", "decompress"), b"abc"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_bombs_are_refused(what):
    refused(BOMBS[what])


def test_compressed_data_cannot_give_more_than_its_record_may(monkeypatch):
    free = 1 << 24
    monkeypatch.setattr(trust, "FREE_BYTES", free)
    bomb = bz2.compress(bytes(free * 4))
    assert len(bomb) < 1000
    refused(call(named("bz2", "decompress"), bomb), "unpacks")
    quarter = bz2.compress(bytes(free // 4))
    ops = push([put(quarter), *[call(named("bz2", "decompress"), get()) for _ in range(6)]])
    monkeypatch.setattr(trust, "RATIO", 0)
    refused(ops, "unpacks")
    twice = zlib.compress(zlib.compress(bytes(1 << 25), 9), 9)
    refused(call(named("zlib", "decompress"), call(named("zlib", "decompress"), twice)), "unpacks")


def test_copies_of_one_list_cannot_take_more_than_their_record_may():
    objects = [None] * 50_000
    arrays = [build(new(attacks.NDARRAY, (0,)), (1, (50_000,), get(1), False, get(0))) for _ in range(2000)]
    refused(push([put(objects), put(dtype("|O"), 1), *arrays]), "memory")


def run_alone(code, *args):
    """Run code in a process of its own, which may crash, with 2 GiB of memory and a minute."""
    limits = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n" if os.name == "posix" else ""
    head = f"import sys; sys.path[:0] = {sys.path!r}\n{limits}from attacks import *\nfrom mmapdict.trust import Trust\n"
    return subprocess.run([sys.executable, "-c", head + code, *args], capture_output=True, text=True, timeout=120)


DEEP = {
    "a key of tuples": "b'}' + b')' + b'\\x85' * 1_000_000 + b'Ns'",
    "an element of tuples": "b'\\x8f(' + b')' + b'\\x85' * 1_000_000 + b'\\x90'",
    "a frozen element of tuples": "b'(' + b')' + b'\\x85' * 1_000_000 + b'\\x91'",
    "keys of tuples with marks": "b'}' + b'(' * 1_000_000 + b't' * 1_000_000 + b'Ns'",
    "keys that double": "b'})' + b''.join(b'\\x85r' + struct.pack('<I', 64 + n) + b'0j' + struct.pack('<I', 64 + n) "
                        "+ b'j' + struct.pack('<I', 64 + n) + b'\\x86' for n in range(64)) + b'Ns'",
    "keys that double by DUP": "b'})' + b'2\\x86' * 64 + b'Ns'",
    "elements of an array that double": "array((1,), '|O', [Ops(b')' + b'2\\x86' * 64)])",
    "a shared key": "b'(' + put((1,) * 100_000) + b'}' + b''.join(get() + b'Ns' for _ in range(100_000)) + b't'",
    "lists": "b']' * 1_000_000 + b'a' * 999_999",
    "dicts": "b'}N' * 1_000_000 + b'N' + b's' * 1_000_000",
    "tuples": "b')' + b'\\x85' * 1_000_000",
}


# Each level: fetch the function, then, around what is inside, a tuple of arguments and REDUCE.
def nested(function, before, after, n=300_000):
    first = put(function) + b"0"
    return f"{first!r} + ({get() + before!r}) * {n} + b'N' + {after!r} * {n}"


DEEP["slices"] = nested(named("builtins", "slice"), b"", b"\x85R")
DEEP["exceptions"] = nested(named("builtins", "ValueError"), b"", b"\x85R")
DEEP["times"] = nested(named("time", "struct_time"), b"((", b"K\0" * 8 + b"ttR")
DEEP["deques"] = nested(named("collections", "deque"), b")R", b"a")
DEEP["default dicts"] = nested(named("collections", "defaultdict"), b")RK\0", b"s")
DEEP["namespaces"] = nested(named("types", "SimpleNamespace"), b")R}X\1\0\0\0a", b"sb")


@pytest.mark.parametrize("what", DEEP)
def test_nothing_crashes_or_takes_for_ever(what):
    found = run_alone(f"ops = {DEEP[what]}\ntry:\n    x = Trust().decode(ops)\n    del x\n    print('read')\n"
                      "except Exception as exc:\n    print(type(exc).__name__)\n    del exc\n"
                      "import gc; gc.collect()\nprint('end')")
    assert found.returncode == 0, (found.returncode, found.stderr[-500:])
    words = found.stdout.split()
    assert words[-1] == "end" and words[0] in ("read", "CorruptError", "UntrustedError")
    if what.startswith(("a key", "an element", "a frozen", "keys", "elements", "slices", "deques", "default", "times")):
        assert words[0] != "read"


def test_arrays_of_objects_nested_deeply_do_not_crash():
    found = run_alone("""
head = put(NDARRAY) + put(dtype('|O'), 1) + put((0,), 2)
inner = b'N'
n = 100_000
ops = head + b'000' + (get(0) + get(2) + b'\\x85\\x81(K\\1(K\\1t' + get(1) + b'\\x89](') * n + b'N' + b'etb' * n
try:
    Trust().decode(ops)
    print('read')
except Exception as exc:
    print(type(exc).__name__)
print('end')
""")
    assert (found.returncode, found.stdout.split()) == (0, ["CorruptError", "end"]), found.stderr[-500:]


def test_many_objects_that_are_not_nested_come_back():
    value = [slice(n) for n in range(3000)] + [np.array([n, None], object) for n in range(3000)]
    found = DEFAULT.decode(encoded(value))
    assert found[:3000] == value[:3000] and found[-1].tolist() == [2999, None]
    inner = value[-1]
    for _ in range(100):
        outer = np.empty(1, object)
        outer[0] = inner
        inner = outer
    found = DEFAULT.decode(encoded([value, inner]))
    for _ in range(100):
        found = found[0] if type(found) is np.ndarray else found[1]
    assert type(found) is np.ndarray


# -- libraries -------------------------------------------------------------------------------------------------------

def swapped(value, old, new):
    """The opcodes of a value, with some bytes of them exchanged for others."""
    ops = encoded(value)
    assert ops.count(old) >= 1
    return ops.replace(old, new)


def test_sparse_matrices_whose_indices_point_outside_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.array([[0, 1.5, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0], [0, 0, 4, 0]])
    four = struct.pack("<4i", 1, 0, 3, 2)
    for bad in ((1, 0, 4, 2), (1, 0, -1, 2), (1, 0, 1 << 30, 2)):
        refused(swapped(sparse.csr_matrix(dense), four, struct.pack("<4i", *bad)))
        refused(swapped(sparse.csr_array(dense), four, struct.pack("<4i", *bad)))
        refused(swapped(sparse.coo_matrix(dense), four, struct.pack("<4i", *bad)))
    pointers = struct.pack("<5i", 0, 1, 3, 3, 4)
    for bad in ((0, 1, 3, 3, 5), (0, 1, 0, 3, 4), (1, 1, 3, 3, 4), (0, -1, 3, 3, 4), (0, 5, -5, 3, 0)):
        refused(swapped(sparse.csr_matrix(dense), pointers, struct.pack("<5i", *bad)))
    refused(swapped(sparse.csr_matrix(dense), push((4, 4))[:0] + b"K\x04K\x04\x86", b"K\x04K\x03\x86"))
    refused(swapped(sparse.csc_matrix(dense), b"K\x04K\x04\x86", b"K\x03K\x04\x86"))
    refused(swapped(sparse.lil_matrix(dense), b"K\x00K\x03e", b"K\x00K\x04e"))
    refused(swapped(sparse.dok_matrix(dense), b"K\x04K\x04\x86", b"K\x03K\x04\x86"))


def test_lists_of_a_sparse_matrix_do_not_change_behind_its_back():
    sparse = pytest.importorskip("scipy.sparse")
    module = sparse.lil_matrix.__module__
    rows = array((1,), "|O", [put([0], 0)])
    data = array((1,), "|O", [put([1.0], 1)])
    matrix = build(new(named(module, "lil_matrix")), {"_shape": (1, 1), "dtype": dtype("<f8"), "rows": rows,
                                                      "data": data})
    found = DEFAULT.decode(push([matrix, extend(get(0), [1 << 40])]))
    assert found[0].rows[0] == [0] and found[1] == [0, 1 << 40]


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


def test_codes_that_stand_for_nothing_are_refused(pandas):
    for bad in (3, -2, 127):
        refused(swapped(pandas.Categorical(["a", "b", "a"]), b"C\x03\x00\x01\x00",
                        b"C\x03\x00" + struct.pack("b", bad) + b"\0"))
        multi = pandas.MultiIndex.from_product([[1, 2], ["a", "b"]])
        refused(swapped(multi, b"\x00\x01\x00\x01", b"\x00" + struct.pack("b", bad) + b"\x00\x01"))


def test_frames_whose_blocks_do_not_fit_are_refused(pandas):
    frame = pandas.DataFrame({"a": np.arange(3), "b": np.arange(3) / 2})
    one = b"K\x00K\x01K\x01\x87R"
    assert one in encoded(frame)
    for bad in (b"K\x01K\x02K\x01\x87R", b"K\x00K\x02K\x01\x87R", b"K\x05K\x06K\x01\x87R", b"K\x00K\x00K\x01\x87R",
                b"K\x01K\x00K\x01\x87R"):
        refused(swapped(frame, one, bad))
    rows = encoded(pandas.Series([1, 2, 3]))
    assert rows.count(b"K\x03\x8c\x04step") == 1
    refused(rows.replace(b"K\x03\x8c\x04step", b"K\x04\x8c\x04step"))


def text_of(s):
    return b"\x8c" + bytes((len(s),)) + s.encode()


def test_compiled_objects_without_their_state_are_refused(pandas):
    ops = encoded(pandas.array(["a"], dtype=pandas.StringDtype("python")))
    at = ops.index(b"N\x87R") + 3
    refused(ops[:at], "without its state")
    refused(new(named(pandas.DataFrame.__module__, "DataFrame")), "without its state")


def test_random_states_that_point_outside_are_refused():
    """numpy takes the next word of MT19937 from a position that it does not check."""
    ops = encoded(np.random.MT19937(1))
    assert ops.count(b"M\x70\x02") == 1         # 624
    assert same_draws(DEFAULT.decode(ops), np.random.MT19937(1))
    for bad in (b"M\x71\x02", b"M\xff\xff", b"J\xff\xff\xff\xff"):
        refused(ops.replace(b"M\x70\x02", bad))
    refused(encoded(np.random.Philox(1)).replace(text_of("buffer_pos") + b"K\x04", text_of("buffer_pos") + b"K\xff"))


def same_draws(a, b):
    return np.array_equal(np.random.Generator(a).random(5), np.random.Generator(b).random(5))


# -- the rules agree with the libraries ------------------------------------------------------------------------------

@pytest.mark.filterwarnings("ignore")
def test_every_name_of_the_standard_library_and_numpy_is_there():
    from mmapdict import rules
    missing = []
    for name in {**rules.STANDARD, **rules.NUMPY}:
        try:
            rules.resolve(name)
        except (ImportError, AttributeError):
            missing.append(name)
    old = {"numpy.core.multiarray", "numpy._core.multiarray", "pathlib._local", "numpy.exceptions", "numpy.rec",
           "numpy.char"}
    assert {module for module, _ in missing} <= old | {"numpy.random._pcg64dxsm", "numpy.dtypes", "numpy"}
    assert [name for module, name in missing if module == "numpy"] in ([], ["chararray"])


# -- anything at all -------------------------------------------------------------------------------------------------

ATOMS = st.sampled_from([push(v) for v in (
    None, True, 0, 1, 64, -1, 1 << 40, 1.5, "", "a", "f8", "|O", "u1", "view", "name", "data", b"", bytes(8),
    bytes(16), (), (0,), (1,),
    (0, 1), [], {}, [None], {"a": 1}, ((0,),), (1, 2, 3))])
NAMED = [("builtins", "bytearray"), ("builtins", "getattr"), ("builtins", "slice"), ("builtins", "range"),
         ("builtins", "set"),
         ("builtins", "ValueError"), ("builtins", "OSError"), ("builtins", "object"), ("builtins", "type"),
         ("collections", "OrderedDict"),
         ("collections", "deque"), ("collections", "defaultdict"), ("collections", "Counter"), ("collections",
                                                                                                "ChainMap"),
         ("types", "SimpleNamespace"), ("copyreg", "_reconstructor"), ("operator", "methodcaller"),
         ("numpy", "ndarray"),
         ("numpy", "dtype"), ("numpy", "take"), ("numpy", "matrix"), ("numpy", "recarray"), ("numpy", "float64"),
         ("numpy", "void"),
         ("numpy", "add"), ("numpy.ma", "MaskedArray"), ("numpy.ma", "nomask"), ("numpy.ma.core", "_mareconstruct"),
         ("uuid", "UUID"),
         ("datetime", "datetime"), ("datetime", "timezone"), ("decimal", "Decimal"), ("fractions", "Fraction"),
         ("array", "array"),
         ("array", "_array_reconstructor"), ("zlib", "decompress"), ("pathlib", "PurePosixPath"), ("time",
                                                                                                   "struct_time"),
         ("numpy.random._pickle", "__bit_generator_ctor"), ("numpy.random", "PCG64"), ("numpy.random", "MT19937"),
         ("os", "system"), ("subprocess", "Popen"), ("builtins", "eval"), ("test_trust", "Point"), ("test_trust",
                                                                                                    "Color")]
GLOBALS = st.sampled_from([named(*name) for name in NAMED])
GETS = st.integers(0, 6).map(get)
DEEDS = st.sampled_from([b"R", b"\x81", b"\x92", b"b", b"a", b"e", b"s", b"u", b"\x90", b"\x91", b"d", b"l", b"(",
                         b"t", b"\x85",
                         b"\x86", b"\x87", b"0", b"1", b"2", b"\x8f", b"\x93"])
GOOD = st.sampled_from([dtype("<f8"), dtype("|O"), array((2,), "<f8", bytes(16)), array((2,), "|O", [1, "a"]),
                        new(attacks.NDARRAY, (0,)),
                        new(named("uuid", "UUID")), call(named("types", "SimpleNamespace")),
                        call(named("collections", "deque")),
                        call(named("collections", "OrderedDict"))])


def numbered(pieces):
    """Put marks of the memo where None stands, under the numbers that follow."""
    n, out = 0, []
    for piece in pieces:
        if piece is None:
            piece = b"r" + struct.pack("<I", attacks.MEMO + n)
            n += 1
        out.append(piece)
    return b"".join(out)


PROGRAMS = st.lists(st.one_of(ATOMS, GLOBALS, GETS, DEEDS, DEEDS, GOOD, st.none()), max_size=40).map(numbered)
CALLS = st.recursive(st.one_of(ATOMS, GLOBALS, GOOD), lambda parts: st.one_of(
    st.tuples(GLOBALS, st.lists(parts, max_size=5), st.sampled_from([b"R", b"\x81"])).map(
        lambda t: t[0] + b"(" + b"".join(t[1]) + b"t" + t[2]),
    st.tuples(parts, parts).map(lambda t: t[0] + t[1] + b"b"),
    st.lists(parts, max_size=4).map(lambda t: b"(" + b"".join(t) + b"t"),
    st.lists(parts, max_size=4).map(lambda t: b"](" + b"".join(t) + b"e")), max_leaves=12)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=500)
@given(st.one_of(PROGRAMS, CALLS))
@pytest.mark.filterwarnings("ignore")
def test_no_program_does_anything_but_give_a_value_or_be_refused(ops):
    ran = []
    for by in DEFAULT, Trust(allow=[Point, Color]):
        try:
            found = by.decode(ops)
        except (UntrustedError, CorruptError, MemoryError):
            continue
        except Exception:
            assert by is not DEFAULT        # of the allowed classes
            continue
        try:
            repr(found)
        except (TypeError, AttributeError, ValueError, RecursionError, UnicodeError):
            pass
    assert ran == []


ENCODED = {}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([(library, kind) for library, kind in FAMILIES if library in ("standard", "numpy")]), st.data())
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_value_is_refused_or_is_another_value(family, data):
    if family not in ENCODED:
        ENCODED[family] = encoded(families.FAMILIES[family[0]][family[1]]())
    ops = bytearray(ENCODED[family])
    for _ in range(data.draw(st.integers(1, 3))):
        ops[data.draw(st.integers(0, len(ops) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = DEFAULT.decode(bytes(ops))
        repr(found)
    except (UntrustedError, CorruptError, MemoryError):
        pass
    except (TypeError, AttributeError, ValueError, KeyError, RecursionError, OverflowError, ImportError, SystemError):
        pass        # of repr
    gc.collect(0)


def test_a_library_that_is_not_here_is_an_import_error(monkeypatch):
    monkeypatch.setattr(trust, "_found", {})            # nothing of it was read before
    monkeypatch.setitem(sys.modules, "decimal", None)
    ops = call(named("decimal", "Decimal"), "1.5")
    assert isinstance(refused(ops, "decimal"), ModuleNotFoundError)
    monkeypatch.undo()
    assert str(DEFAULT.decode(bytes(ops))) == "1.5"


@pytest.mark.parametrize("by", [DEFAULT, TRUSTED])
def test_too_little_memory_for_a_good_value_is_no_damage(monkeypatch, by):
    def no_memory(data):
        raise MemoryError

    monkeypatch.setattr(pickle, "loads", no_memory)
    with pytest.raises(MemoryError):
        by.decode(b"](K\x01K\x02e")
    with pytest.raises(CorruptError, match="past the value's end"):         # a damaged size asked for so much
        by.decode(b"B\xff\xff\xff\x7fabc")


def test_what_a_class_of_the_users_raises_comes_through_while_it_is_filled():
    opened = Trust(allow=[Picky])
    assert opened.decode(extend(new(named(__name__, "Picky")), [1, 2])) == [1, 2]
    with pytest.raises(RuntimeError, match="no more than two"):
        opened.decode(extend(new(named(__name__, "Picky")), [1, 2, 3]))


class Picky(list):
    def extend(self, items):
        for item in items:
            self.append(item)

    def append(self, item):
        if len(self) == 2:
            raise RuntimeError("no more than two")
        super().append(item)


def test_dtypes_that_are_looked_at_again_and_again_are_refused():
    ops = put(dtype("u1"))
    for n in range(12):             # each has twice the parts of the one before
        spec = {"names": ["a", "b"], "formats": [get(n), get(n)], "offsets": [0, 0], "itemsize": 1}
        ops += put(dtype(spec), n + 1)
    DEFAULT.decode(b"(" + ops + call(attacks.DTYPE, get(12)) * 10 + b"t")
    refused(b"(" + ops + call(attacks.DTYPE, get(12)) * 400 + b"t", "too long")


def test_a_dtype_is_weighed_however_deep_numpy_made_it():
    machine = trust._Machine(DEFAULT, b"N")
    deep = np.dtype("u1")
    for _ in range(trust.DTYPE_DEPTH):
        deep = np.dtype([("a", deep)])
    machine.weigh(deep)
    with pytest.raises(trust.Refusal, match="nested too deeply|too many parts"):
        machine.weigh(np.dtype([("a", deep)]))
    for _ in range(3):
        deep = np.dtype([("a", deep)])
    with pytest.raises(trust.Refusal, match="nested too deeply"):
        trust._Machine(DEFAULT, b"N").weigh(deep)


def test_records_of_objects_are_not_hashed():
    """numpy hashes them by what they hold, which may be anything, and deeper than the stack is."""
    machine = trust._Machine(DEFAULT, b"N")
    machine.hashed([slice(1, 2), (1, slice(None)), np.zeros((), "u1,f4")[()]])
    with pytest.raises(trust.Refusal, match="records of objects"):
        machine.hashed([(1, slice(np.zeros((), "u1,O")[()], None))])
