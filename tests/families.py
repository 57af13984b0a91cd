"""Values of every family that a handle reads by default, made by functions of no argument.

Needs nothing but what each family needs; a family whose library is not there is left out.
"""

import array
import builtins
import collections
import datetime
import decimal
import fractions
import importlib.util
import ipaddress
import pathlib
import time
import types
import uuid
import zoneinfo

import numpy as np


EXCEPTIONS = sorted({found for found in vars(builtins).values()
                     if isinstance(found, type) and issubclass(found, BaseException)}, key=str)


def standard():
    utc = datetime.timezone.utc
    odd = datetime.timezone(datetime.timedelta(hours=1, seconds=7), "odd")
    with_attributes = ValueError("a", 1)
    with_attributes.extra = [1, 2]
    ordered = collections.OrderedDict(a=1, b=[2])
    return {
        "plain": lambda: [None, True, 1, -1 << 99, 1.5, "text", b"bytes", (1, ("x", [2])), {"k": {1, 2}},
                          frozenset("ab")],
        "complex": lambda: complex(1.5, -0.0),
        "bytearray": lambda: [bytearray(), bytearray(b"abc"), bytearray(9000)],
        "slices": lambda: [slice(None), slice(1, "b", None), range(3), range(0, -9, -2)],
        "singletons": lambda: [Ellipsis, NotImplemented, None, type(None), type(Ellipsis), type(NotImplemented)],
        "classes": lambda: [int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset, object,
                            slice, range, type],
        "dates": lambda: [datetime.date(2024, 2, 29), datetime.time(1, 2, 3, 4, fold=1), datetime.timedelta(-1, 2, 3),
                          datetime.datetime(2024, 1, 2, 3, 4, 5, 6), datetime.datetime.max, utc, odd,
                          datetime.datetime(2024, 1, 2, tzinfo=odd), datetime.time(1, tzinfo=utc)],
        "zones": lambda: [zoneinfo.ZoneInfo("Europe/Zurich"), datetime.datetime(2024, 7, 1,
                                                                                tzinfo=zoneinfo.ZoneInfo("UTC"))],
        "decimals": lambda: [decimal.Decimal("1.50"), decimal.Decimal("1E+999999"), decimal.Decimal("Infinity")],
        "fractions": lambda: [fractions.Fraction(1, 3), fractions.Fraction(-7), fractions.Fraction(10 ** 50, 7)],
        "uuids": lambda: [uuid.UUID(int=7), uuid.UUID(int=1 << 127)],
        "ordered": lambda: [ordered, collections.OrderedDict(), collections.OrderedDict({("a", 1): 2})],
        "defaultdicts": lambda: [collections.defaultdict(list, a=[1]), collections.defaultdict(None, b=1),
                                 collections.defaultdict(int)],
        "deques": lambda: [collections.deque([1, 2], 3), collections.deque(), collections.deque("ab")],
        "counters": lambda: [collections.Counter("abca"), collections.Counter()],
        "chains": lambda: collections.ChainMap({"a": 1}, {"b": 2}),
        "users": lambda: [collections.UserDict(a=1), collections.UserList([1, 2]), collections.UserString("ab")],
        "paths": lambda: [pathlib.Path("a/b"), pathlib.Path(), pathlib.PurePosixPath("/x/y.z"),
                          pathlib.PureWindowsPath(r"c:\x")],
        "addresses": lambda: [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"),
                              ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_interface("fe80::1/64"),
                              ipaddress.ip_network("2001:db8::/32"), ipaddress.ip_interface("1.2.3.4/8")],
        "namespaces": lambda: [types.SimpleNamespace(), types.SimpleNamespace(a=1, b=[2])],
        "arrays of the standard library": lambda: [
            array.array("u", "ab"), *(array.array(c, [1, 2]) for c in "bBhHiIlLqQfd")],
        "times": lambda: time.struct_time((2024, 1, 2, 3, 4, 5, 6, 7, 0)),
        "exceptions": lambda: [with_attributes, *map(sample_exception, EXCEPTIONS)],
    }


def sample_exception(t):
    if issubclass(t, UnicodeError) and t is not UnicodeError:
        arguments = ("utf-8", "x" if t is not UnicodeDecodeError else b"x", 0, 1, "why")
        return t(*arguments) if t is not UnicodeTranslateError else t("x", 0, 1, "why")
    if t.__name__ in ("BaseExceptionGroup", "ExceptionGroup"):
        return t("several", [ValueError(1), KeyError("k")])
    if issubclass(t, OSError):
        return t(2, "no such file", "name")
    return t("message")


def deep_structure(n):
    dtype = np.dtype("<i4")
    for _ in range(n):
        dtype = np.dtype([("f", dtype)])
    return dtype


def masked_records():
    from numpy.ma import mrecords
    found = mrecords.fromarrays([np.array([1, 2]), np.array(["a", "b"])], names="n,t")
    found.mask[0] = (True, False)
    return found


def numpies():
    s = np.dtype([("a", "i4"), ("b", "f8", (2,))])
    strided = np.arange(24).reshape(2, 3, 4)[:, ::2]
    values = {
        "arrays": lambda: [[np.arange(3.0)], [np.zeros((2, 0, 3), "i2")], [np.array(5)], [strided],
                           [np.asfortranarray(np.arange(6).reshape(2, 3))]],
        "foreign arrays": lambda: [[np.arange(3, dtype=">f8")], [np.array(["a", "bc"], ">U2")]],
        "structures": lambda: [[np.zeros(3, s)], [np.zeros(2, [("x", "O"), ("y", "i4")])],
                               [np.zeros(2, np.dtype("i1,f8", align=True))]],
        "texts": lambda: [[np.array(["a", "bcd"])], [np.array([b"a", b"bcd"])], [np.zeros(2, "V5")]],
        "dates": lambda: [[np.array(["2024-01-01"], "M8[D]")], [np.arange(3).astype("m8[25us]")],
                          np.datetime64("2024-01-01T00:00"),
                          np.timedelta64(3, "h"), np.datetime64("NaT")],
        "object arrays": lambda: [np.array([1, "a", None, [2]], object), np.empty((0, 2), object),
                                  [np.array([[1, "x"], [(1, 2), {"k": 3}]], object)]],
        "scalars": lambda: [t(1) for t in (
            np.bool_, np.int8, np.uint64, np.float16, np.float32, np.float64, np.complex64, np.complex128,
            np.longdouble, np.clongdouble, np.int64, np.longlong)] + [
            np.float64("nan"), np.float32("nan"), np.str_("ab"), np.bytes_(b"ab"), np.void(b"abc"), np.zeros(2, s)[0]],
        "dtypes": lambda: [np.dtype(c) for c in ("f8", ">i4", "U7", "S0", "O", "M8[25s]", "V5", "g", "?")] + [
            s, np.dtype((np.record, s)), np.dtype("i1,f8", align=True), np.dtype(("f4", (2, 3))),
            np.dtype("f8", metadata={"unit": "K"}),
            np.dtype([("o", "O"), ("n", s)]), np.dtype([])],
        "classes": lambda: [np.float64, np.int8, np.bool_, np.str_, np.ndarray, np.dtype, np.generic, np.number,
                            np.void, np.record,
                            np.longdouble, np.datetime64, np.integer, np.floating, np.matrix, np.ma.MaskedArray],
        "ufuncs": lambda: [np.add, np.sqrt, np.logical_and, np.bitwise_count] if hasattr(np,
                                                                                         "bitwise_count") else [np.add],
        "masked": lambda: [[np.ma.array([1, 2], mask=[0, 1])], [np.ma.array([1.5, 2])], [np.ma.masked],
                           [np.ma.array([(1, [2, 3.0])], s, mask=[(1, [0, 1])])], [np.ma.array([1, 2], mask=[1, 0],
                                                                                               hard_mask=True)],
                           [np.ma.array([None, "a"], object, mask=[0, 1])],
                           np.ma.array(np.matrix([[1, 2]]), mask=[[0, 1]])],
        "matrices": lambda: [np.matrix([[1, 2], [3, 4]]), np.matrix([[1, 2], [3, 4]], dtype=">i4")],
        "records": lambda: [np.rec.array([(1, 2.5), (3, 4.5)], dtype="i4,f8"), np.rec.array([(1, 2.5)],
                                                                                            dtype="i4,f8")[0],
                            np.rec.array([(1, "x")], dtype="i4,O")],
        "deep structures": lambda: [deep_structure(120)],
        "masked records": lambda: [masked_records()],
        "character arrays": lambda: [np.char.array(["a", "bcd"])],
        "generators": lambda: [np.random.Generator(getattr(np.random, name)(7))
                               for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")],
        "bit generators": lambda: [getattr(np.random, name)(7) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox",
                                                                            "SFC64")],
        "random states": lambda: [np.random.RandomState(7), np.random.RandomState(np.random.PCG64(3))],
        "seeds": lambda: [np.random.SeedSequence(7), np.random.SeedSequence([1, 2], spawn_key=(3,))],
        "errors": lambda: [np.linalg.LinAlgError("singular")],
    }
    if hasattr(getattr(np, "dtypes", None), "StringDType"):
        strings = np.dtypes.StringDType
        nan, none = strings(na_object=float("nan")), strings(na_object=None)
        values["string dtypes"] = lambda: [strings(), strings(coerce=False), none, nan]
        values["string arrays"] = lambda: [[np.array(["a", "long " * 20], strings())], [np.array(["a", None], none)]]
        values["dtype classes"] = lambda: [np.dtypes.Float64DType, strings]
    return values


def pandases():
    import pandas as pd
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [1.5, None, 3], "c": ["x", "y", None], "d": [True, False, True]})
    when = pd.date_range("2024-01-01", periods=3, freq="D")
    values = {
        "frames": lambda: [frame, pd.DataFrame(), frame.set_index("a"), frame.T, frame.set_index(["a", "c"]),
                           frame[["a"]].iloc[::2],
                           pd.DataFrame(np.arange(6).reshape(2, 3)), frame.set_axis(list("wxyz"), axis=1),
                           frame[["b", "a", "d"]]],
        "series": lambda: [frame["a"], frame["c"], pd.Series([1, 2], index=["u", "v"], name="n"),
                           pd.Series([], dtype=float),
                           pd.Series([1, "a", None], dtype=object), pd.Series(when), pd.Series(when - when[0])],
        "indices": lambda: [pd.RangeIndex(5), pd.RangeIndex(1, 9, 2, name="r"), pd.Index([3, 1]), pd.Index(["a", "b"]),
                            pd.Index([1.5]), pd.Index([True, False]), pd.Index([1, "a"], dtype=object),
                            pd.Index([], dtype=object)],
        "multi": lambda: [pd.MultiIndex.from_product([[1, 2], ["a", "b"]], names=["n", None]),
                          pd.MultiIndex.from_tuples([("a", 1)])],
        "times": lambda: [when, when.tz_localize("UTC"), when.tz_localize("Europe/Zurich"),
                          pd.DatetimeIndex(["2024-01-01", "NaT"]),
                          pd.to_timedelta([1, 2], "s"), pd.period_range("2024-01", periods=3, freq="M"),
                          pd.date_range("2024", periods=3, freq="MS"), pd.date_range("2024", periods=3, freq="h")],
        "zoned series": lambda: [pd.Series(when.tz_localize("Europe/Zurich")),
                                 pd.DataFrame({"t": when.tz_localize("UTC")}),
                                 pd.Series(pd.period_range("2024-01", periods=3, freq="M"))],
        "intervals": lambda: [pd.interval_range(0, 3), pd.Interval(0, 1), pd.Interval(1.5, 2, "both"),
                              pd.arrays.IntervalArray.from_breaks([0, 1, 2]),
                              pd.Series(pd.interval_range(0, 3))],
        "categories": lambda: [pd.Categorical(["a", "b", "a"]), pd.Series(["a", None], dtype="category"),
                               pd.CategoricalIndex(["u", "v"]),
                               pd.Categorical([1, 2], categories=[2, 1], ordered=True),
                               pd.DataFrame({"k": pd.Categorical(["a"])})],
        "nullable": lambda: [pd.array([1, None], "Int64"), pd.array([1, None], "UInt8"), pd.array([True, None],
                                                                                                  "boolean"),
                             pd.array([1.5, None], "Float64"), pd.Series([1, None], dtype="Int64"),
                             pd.DataFrame({"n": pd.array([1, None], "Int32")}),
                             pd.Index(pd.array([1, 2], "Int64"))],
        "strings": lambda: [pd.array(["a", None], "string"), pd.Series(["a", "b"], dtype="string"),
                            pd.Series(["a", "b"], dtype=pd.StringDtype("python"))],
        "sparse": lambda: [pd.arrays.SparseArray([0, 0, 1]), pd.Series(pd.arrays.SparseArray([0, 0, 1.5]))],
        "scalars": lambda: [pd.Timestamp("2024-01-02 03:04:05.678"), pd.Timestamp("2024-01-02", tz="Europe/Zurich"),
                            pd.Timedelta("1s"),
                            pd.Period("2024-01", "M"), pd.NaT, pd.NA, pd.Timestamp("2024-01-02", tz="UTC")],
        "dtypes": lambda: [pd.CategoricalDtype(["a", "b"]), pd.Int64Dtype(), pd.StringDtype("python"),
                           pd.DatetimeTZDtype("ns", "UTC"), pd.PeriodDtype("M"),
                           pd.IntervalDtype("int64"), pd.BooleanDtype(), pd.SparseDtype(float)],
        "offsets": lambda: [pd.offsets.Day(2), pd.offsets.MonthEnd(), pd.offsets.Hour(3), pd.DateOffset(months=2),
                            pd.offsets.BusinessDay()],
        "attributes": lambda: with_attributes(frame),
        "numpy arrays of pandas": lambda: [frame["a"].array, frame["a"].values, when.array,
                                           when.tz_localize("UTC").array, (when - when[0]).array,
                                           pd.period_range("2024-01", periods=3, freq="M").array],
    }
    return values


def with_attributes(frame):
    frame = frame.copy()
    frame.attrs["unit"] = "K"
    return frame


SPARSE = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]


def sparses():
    from scipy import sparse
    dense = np.array([[0, 1.5, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0], [0, 0, 4, 0]])
    values = {}
    for name in SPARSE:
        values[name + "_matrix"] = lambda name=name: [getattr(sparse, name + "_matrix")(dense),
                                                      getattr(sparse, name + "_matrix")((3, 2))]
        if hasattr(sparse, name + "_array"):
            values[name + "_array"] = lambda name=name: [getattr(sparse, name + "_array")(dense),
                                                         getattr(sparse, name + "_array")((3, 2))]
    values["used"] = lambda: [used(sparse.csr_matrix(dense)), sparse.random(50, 40, 0.1, "csr", random_state=1),
                              sparse.csc_matrix(dense.astype(complex))]
    return values


def used(matrix):
    """A matrix that has noted whether its indices are sorted."""
    assert matrix.has_sorted_indices and matrix.has_canonical_format
    return matrix


def xarrays():
    import pandas as pd
    import xarray as xr
    a = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("x", "y"), coords={"x": [10, 20], "y": ["a", "b", "c"],
                                                                            "s": 3},
                     name="n", attrs={"unit": "m"})
    times = pd.date_range("2024-01-01", periods=2)
    return {
        "data arrays": lambda: [a, xr.DataArray(5), a[0], a.isel(x=0, drop=True)],
        "datasets": lambda: [a.to_dataset(), xr.Dataset(), xr.Dataset({"v": ("t", [1, 2])}, {"t": times},
                                                                      {"title": "T"}),
                             xr.Dataset({"a": a, "b": a.astype("i4")})],
        "variables": lambda: [xr.Variable(("x",), [1, 2], {"u": "s"}), a["x"].variable, a["y"].variable],
        "multi": lambda: a.stack(z=("x", "y")),
        "encodings": lambda: encoded(a.copy()),
    }


def encoded(a):
    a.encoding["dtype"] = np.dtype("i2")
    return a


FAMILIES = {"standard": standard(), "numpy": numpies()}
for library, made in (("pandas", pandases), ("scipy", sparses), ("xarray", xarrays)):
    if importlib.util.find_spec(library):
        FAMILIES[library] = made()
