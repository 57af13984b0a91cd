"""The rules for pandas, scipy.sparse and xarray, and what they take from dateutil and pytz.

The names were found by pickling one value of each kind (tests/families.py) with our own pickler, under

    pandas 3.1   scipy 1.17   xarray 2026.9   numpy 2.4
    pandas 2.2   scipy 1.10   xarray 2024.7   numpy 1.26
    pandas 1.5   scipy 1.10   xarray 2023.1   numpy 1.23

pandas 3 names most classes in ``pandas`` and ``pandas.arrays``; older ones name the modules that define them. A
library is imported only when a value names it. Objects are made as the library's own pickles make them, but what
its compiled code would take on trust (placements of blocks, codes, indices, shapes, units) is checked before the
object can be used: a file that says there are more rows than there are would read other memory.

    ============================================  ==================================================================
    names                                         why
    ============================================  ==================================================================
    DataFrame, Series                             themselves; state: the manager, names, flags, attrs
    BlockManager, SingleBlockManager,             what holds their columns
    _unpickle_block
    *Index, _new_Index, _new_DatetimeIndex, ...   labels; the functions call the class that they are given
    *Array, Categorical, and the two              columns that are no numpy arrays; __pyx_unpickle_* make the ones
    __pyx_unpickle_* of their base classes        that are compiled, their state follows
    IntIndex, BlockIndex                          where a SparseArray has values
    *Dtype                                        of these arrays
    Timestamp, Timedelta, Period, Interval, NaT,  scalars, by their functions
    NA
    offsets, relativedelta                        the frequency of an index
    pytz._p, pytz._UTC                            time zones before pandas 3
    scipy.sparse: csr, csc, bsr, coo, dia, lil,   matrices and arrays; indices are checked in full
    dok
    xarray: Dataset, DataArray, Variable,         themselves, and how they hold a pandas index
    IndexVariable, PandasIndex, ...
    ============================================  ==================================================================

Not here: values over pyarrow, dask and other libraries, which name much more and take memory as it comes.
"""
from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from .rules import PLAIN, VALUE, ZONE_NAME, Machine, Name, Rule, has_objects, is_array, names_of, need, new_empty

EXTENSION_ARRAYS = ("StringArray", "DatetimeArray", "TimedeltaArray", "PeriodArray", "Categorical", "IntegerArray",
                    "FloatingArray", "BooleanArray", "IntervalArray", "SparseArray", "NumpyExtensionArray",
                    "PandasArray")
INDICES = {"Index": "base", "RangeIndex": "range", "MultiIndex": "multi", "DatetimeIndex": "datetimes",
           "TimedeltaIndex": "timedeltas", "PeriodIndex": "period", "IntervalIndex": "interval",
           "CategoricalIndex": "category", "Int64Index": "numeric", "UInt64Index": "numeric", "Float64Index": "numeric"}


def _is(machine: Machine, x: Any, library: str, *names: str) -> bool:
    """Whether `x` is an object of one of a library's classes that has its state."""
    t = type(x)
    return t.__name__ in names and t.__module__.partition(".")[0] == library and machine.ready(x)


def _is_index(machine: Machine, x: Any) -> bool:
    return _is(machine, x, "pandas", *INDICES)


def _is_array(machine: Machine, x: Any) -> bool:
    return is_array(machine, x) or _is(machine, x, "pandas", *EXTENSION_ARRAYS)


# -- blocks ----------------------------------------------------------------------------------------------------------

def _placement(where: Any, values: Any, ndim: int) -> None:
    """Refuse a placement that has not one place for each row of the values."""
    need(type(ndim) is int and ndim in (1, 2) and values.ndim <= ndim, "of another number of dimensions")
    if type(where) is slice:
        need(all(type(n) in (int, np.int64) for n in (where.start, where.stop, where.step)) and where.step != 0 and
             where.start >= 0 and (where.stop >= 0 or where.stop == -1 and where.step < 0) and
             max(where.start, where.stop, abs(where.step)) < 1 << 40, "at places that are none")
        places = len(range(where.start, where.stop, where.step))
    else:
        need(type(where) is np.ndarray and where.ndim == 1 and where.dtype.kind == "i", "at places that are none")
        need(not where.size or where.min() >= 0, "at places that are none")
        places = where.size
    need(places == (len(values) if values.ndim == ndim else 1), "at another number of places")


def _block(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 3 and _is_array(machine, args[0]), "of no array")
    values, where, ndim = args
    _placement(where, values, ndim)
    return target(*args)


def _check_manager(made: Any, ndim: int) -> None:
    """Refuse a manager whose blocks do not stand for each of its items once."""
    axes = made.axes
    need(len(axes) == ndim, "of another number of axes")
    shape = [len(axis) for axis in axes]
    if ndim == 1:
        need(len(made.blocks) == 1 and made.blocks[0].shape == (shape[0],), "whose block and axis differ in size")
        return
    seen = 0
    for block in made.blocks:
        need(block.shape[1:] == tuple(shape[1:]), "whose blocks and axes differ in size")
        seen += len(block.mgr_locs)
    need(seen == shape[0], "whose items are not in one block each")
    places = [np.asarray(block.mgr_locs.as_array) for block in made.blocks]
    if places:
        need(np.array_equal(np.sort(np.concatenate(places)), np.arange(shape[0])),
             "whose items are not in one block each")


def _manager(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 2 and type(args[0]) in (tuple, list) and type(args[1]) in (tuple, list), "of other arguments")
    need(len(args[1]) == 2 and all(_is_index(machine, axis) for axis in args[1]), "of axes that are none")
    need(all(type(block).__module__ == "pandas.core.internals.blocks" for block in args[0]), "of blocks that are none")
    machine.spend(64 * len(args[1][0]))
    made = target(tuple(args[0]), list(args[1]))
    _check_manager(made, 2)
    return made


def _single_manager_state(machine: Machine, made: Any, state: Any) -> None:
    need(type(state) is tuple and len(state) == 4 and type(state[3]) is dict, "a state that is none of a manager")
    told = state[3].get("0.14.1")
    need(type(told) is dict and type(told.get("axes")) is list and type(told.get("blocks")) is list,
         "a state that is none of a manager")
    axes, blocks = told["axes"], told["blocks"]
    need(len(axes) == 1 and _is_index(machine, axes[0]) and len(blocks) == 1 and type(blocks[0]) is dict and
         _is_array(machine, blocks[0].get("values")), "a state that is none of a manager")
    _placement(blocks[0].get("mgr_locs"), blocks[0]["values"], 1)
    made.__setstate__(state)
    _check_manager(made, 1)


def _frame_state(machine: Machine, made: Any, state: Any) -> None:
    frame = type(made).__name__ == "DataFrame"
    names_of(state, ("_mgr", "_data", "_typ", "_metadata", "attrs", "_attrs", "_flags", "_name", "name"))
    manager = state.get("_mgr", state.get("_data"))
    need(_is(machine, manager, "pandas", "BlockManager" if frame else "SingleBlockManager"),
         "a state without a manager")
    need(state.get("_typ") == ("dataframe" if frame else "series"), "the state of something else")
    metadata, flags = state.get("_metadata", []), state.get("_flags", {})
    need(type(metadata) is list and all(name in ("_name", "name") for name in metadata), "a state with other metadata")
    need(type(flags) is dict and flags.keys() <= {"allows_duplicate_labels"} and
         all(type(flag) is bool for flag in flags.values()), "a state with other flags")
    need(all(type(state.get(name, {})) in (dict, type(None)) for name in ("attrs", "_attrs")),
         "attributes that are none")
    machine.hashed([state.get("_name"), state.get("name")])
    made.__setstate__(state)


# -- indices ---------------------------------------------------------------------------------------------------------

_INDEX_NAMES = {"data", "name", "names", "start", "stop", "step", "dtype", "levels", "codes", "labels", "sortorder",
                "freq", "closed", "left", "right", "tz", "ordinal", "copy", "verify_integrity"}


def _index(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 2 and isinstance(args[0], type) and args[0].__name__ in INDICES and
         args[0].__module__.partition(".")[0] == "pandas", "of another class")
    cls = args[0]
    told: Any = dict(names_of(args[1], _INDEX_NAMES))
    for name, value in told.items():
        if name in ("data", "left", "right", "ordinal"):
            need(_is_array(machine, value) and value.ndim == 1 or name != "data" and _is_index(machine, value),
                 f"whose {name} are no array")
        elif name in ("levels", "codes", "labels"):
            need(type(value) in (list, tuple) and all(
                _is_index(machine, v) if name == "levels" else
                type(v) is np.ndarray and v.dtype.kind == "i" and v.ndim == 1 for v in value), f"whose {name} are none")
        elif name in ("name", "names"):
            machine.hashed(value if name == "names" else [value])
            need(name == "name" or type(value) in (list, tuple), "whose names are none")
        elif name == "freq":
            need(value is None or type(value) is str or _is_offset(value), "of another frequency")
        elif name == "dtype":
            need(isinstance(value, np.dtype) or _is(machine, value, "pandas", *_DTYPES), "of another dtype")
        else:
            need(type(value) in PLAIN, f"whose {name} is of another type")
    if cls.__name__ == "RangeIndex":
        need(all(type(told.get(name)) is int for name in ("start", "stop", "step")), "that is no range")
    elif cls.__name__ == "MultiIndex":
        codes = told.get("codes", told.get("labels"))
        need(type(told.get("levels")) in (list, tuple) and type(codes) in (list, tuple) and
             len(told["levels"]) == len(codes) > 0, "without levels and codes")
        need(len({len(code) for code in codes}) == 1, "whose codes are of different lengths")
        for level, code in zip(told["levels"], codes):
            need(not len(code) or -1 <= code.min() and code.max() < len(level), "whose codes stand for nothing")
    elif cls.__name__ == "IntervalIndex":
        if "left" in told:
            need(len(told["left"]) == len(told.get("right", ())), "whose ends are of different lengths")
    else:
        need("data" in told or "ordinal" in told, "without data")
    return target(cls, told)


# -- arrays ----------------------------------------------------------------------------------------------------------

def _pyx_empty(*names: str) -> Any:
    """Return a rule's `call` for what a compiled base class makes its subclasses by: (class, checksum, no state)."""
    def call(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
        need(len(args) == 3 and isinstance(args[0], type) and args[0].__name__ in names and
             args[0].__module__.partition(".")[0] == "pandas" and type(args[1]) is int and args[2] is None,
             "of other arguments")
        return machine.fresh(target(*args))
    return call


def _backed_state(machine: Machine, made: Any, state: Any) -> None:
    # (dtype, array[, attributes])
    need(type(state) is tuple and 2 <= len(state) <= 3, "a state that is none of an array")
    first, second = state[:2]
    dtype, values = (second, first) if type(first) is np.ndarray else (first, second)
    need(type(values) is np.ndarray and machine.ready(values), "a state without an array")
    kind = type(made).__name__
    if kind == "Categorical":
        need(_is(machine, dtype, "pandas", "CategoricalDtype"), "another dtype")
        categories = dtype.categories
        top = -1 if categories is None else len(categories)
        need(values.dtype.kind == "i" and (not values.size or -1 <= values.min() and values.max() < max(top, 0)),
             "codes that stand for nothing")
    elif kind == "StringArray":
        need(values.dtype == object and _is(machine, dtype, "pandas", "StringDtype"), "another dtype")
        machine.spend(8 * values.size)
        need(all(kind in (str, float, type(None)) or kind.__name__ == "NAType" for kind in machine.kinds(values)),
             "items that are no texts")
    elif kind == "PeriodArray":
        need(values.dtype == np.int64 and _is(machine, dtype, "pandas", "PeriodDtype"), "another dtype")
    elif kind in ("DatetimeArray", "TimedeltaArray"):
        need(values.dtype.kind == ("M" if kind[0] == "D" else "m") and values.dtype.isnative and
             values.dtype.str[4:] in ("s]", "ms]", "us]", "ns]"), "another dtype")
        need(dtype == values.dtype if isinstance(dtype, np.dtype) else kind[0] == "D" and
             _is(machine, dtype, "pandas", "DatetimeTZDtype") and np.dtype(f"M8[{dtype.unit}]") == values.dtype,
             "another dtype")
    else:
        told = dtype if isinstance(dtype, np.dtype) else getattr(dtype, "numpy_dtype", None)
        need(told == values.dtype, "another dtype")
    extra = {}
    told = names_of(state[2], ("_cache", "_readonly", "_freq", "_flags")) if len(state) == 3 else {}
    for name, value in told.items():
        if name == "_freq":
            need(value is None or _is_offset(value), "another frequency")
            extra[name] = value
        elif name == "_readonly":
            need(type(value) is bool, "an attribute of another type")
            extra[name] = value
    made.__setstate__((*state[:2], extra) if len(state) == 3 else state)


def _is_missing(item: Any) -> bool:
    return item is None or type(item) is float and item != item or type(item).__name__ == "NAType"


def _nullable_state(machine: Machine, made: Any, state: Any) -> None:
    names_of(state, ("_data", "_mask", "_dtype", "_cache", "_readonly"))
    values, mask = state.get("_data"), state.get("_mask")
    kinds = {"IntegerArray": "iu", "FloatingArray": "f", "BooleanArray": "b"}[type(made).__name__]
    need(type(values) is np.ndarray and type(mask) is np.ndarray and values.dtype.kind in kinds and
         values.dtype.isnative and values.dtype.itemsize <= 8 and mask.dtype == bool and mask.shape == values.shape and
         machine.ready(values) and machine.ready(mask), "a state that is none of an array")
    need("_dtype" not in state or type(made).__name__ == "BooleanArray" and
         _is(machine, state["_dtype"], "pandas", "BooleanDtype"), "another dtype")
    need(type(state.get("_readonly", False)) is bool, "an attribute of another type")
    made.__dict__.update((name, value) for name, value in state.items() if name != "_cache")


def _interval_state(machine: Machine, made: Any, state: Any) -> None:
    need(type(state) is tuple and len(state) == 1, "a state that is none of an array")
    told = names_of(state[0], ("_left", "_right", "_dtype", "_cache", "_closed", "_readonly"))
    left: Any = told.get("_left")
    right: Any = told.get("_right")
    need(all(_is_array(machine, side) or _is_index(machine, side) for side in (left, right)) and
         type(left) is type(right) and left.ndim == 1 and len(left) == len(right) and left.dtype == right.dtype,
         "other ends")
    need("_dtype" not in told or _is(machine, told["_dtype"], "pandas", "IntervalDtype"), "another dtype")
    need(all(type(told.get(name, "")) in (str, bool) for name in ("_closed", "_readonly")),
         "an attribute of another type")
    made.__setstate__(({name: value for name, value in told.items() if name != "_cache"},))


def _sparse_index(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(2 <= len(args) <= 3 and type(args[0]) is int and 0 <= args[0] < 1 << 31 and
         all(type(a) is np.ndarray and a.dtype == np.int32 and a.ndim == 1 for a in args[1:]), "of other arguments")
    starts, lengths = (args[1], 1) if len(args) == 2 else args[1:]
    ends = starts.astype(np.int64) + lengths
    need((len(args) == 3) == (target.__name__ == "BlockIndex") and starts.shape == ends.shape, "of other arguments")
    need(not starts.size or starts[0] >= 0 and ends[-1] <= args[0] and bool((ends[:-1] <= starts[1:]).all()) and
         bool((ends > starts).all()), "at places that are none")
    return target(*args)


def _sparse_array_state(machine: Machine, made: Any, state: Any) -> None:
    names_of(state, ("_sparse_index", "_sparse_values", "_dtype", "_cache", "_readonly"))
    where, values = state.get("_sparse_index"), state.get("_sparse_values")
    need(_is(machine, where, "pandas", "IntIndex", "BlockIndex") and type(values) is np.ndarray and values.ndim == 1 and
         values.size == where.npoints and _is(machine, state.get("_dtype"), "pandas", "SparseDtype") and
         state["_dtype"].subtype == values.dtype, "a state that is none of an array")
    need(type(state.get("_readonly", False)) is bool, "an attribute of another type")
    made.__setstate__({name: value for name, value in state.items() if name != "_cache"})


# -- dtypes, scalars, offsets ----------------------------------------------------------------------------------------

_NULLABLE_DTYPES = ("BooleanDtype", *(f"{kind}{bits}Dtype" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)),
                    "Float32Dtype", "Float64Dtype")
_DTYPES = ("CategoricalDtype", "DatetimeTZDtype", "PeriodDtype", "IntervalDtype", "SparseDtype", "StringDtype",
           "NumpyEADtype", "PandasDtype", *_NULLABLE_DTYPES)


def _no_state(machine: Machine, made: Any, state: Any) -> None:
    names_of(state, ("_cache",))        # which it fills again


def _subtype(machine: Machine, x: Any) -> bool:
    return x is None or isinstance(x, np.dtype) or _is(machine, x, "pandas", "DatetimeTZDtype")


def _dtype_state(machine: Machine, made: Any, state: Any) -> None:
    told = names_of(state, ("categories", "ordered", "unit", "tz", "subtype", "closed", "_dtype", "_fill_value",
                            "storage", "_na_value", "na_value", "_cache", "freq"))
    for name, value in told.items():
        if name == "categories":
            need(value is None or _is_index(machine, value), "categories that are no index")
        elif name == "tz":
            need(isinstance(value, datetime.tzinfo), "another time zone")
        elif name in ("subtype", "_dtype"):
            need(_subtype(machine, value), "another dtype")
        elif name == "freq":
            need(_is_offset(value), "another frequency")
        elif name == "storage":
            need(value == "python", "another storage")
        elif name == "unit":
            need(value in ("s", "ms", "us", "ns"), "another unit")
        elif name != "_cache":
            need(type(value) in PLAIN or isinstance(value, np.generic) or _is_scalar(value), f"another {name}")
    told = {name: value for name, value in told.items() if name != "_cache"}
    needed = {"CategoricalDtype": {"categories", "ordered"}, "DatetimeTZDtype": {"unit", "tz"},
              "SparseDtype": {"_dtype", "_fill_value"}, "IntervalDtype": {"subtype", "closed"},
              "NumpyEADtype": {"_dtype"}, "PandasDtype": {"_dtype"}}.get(type(made).__name__, {"storage"})
    need(needed <= told.keys(), "a state that is not all of it")
    need(type(told.get("ordered")) in (bool, type(None)) and type(told.get("closed")) in (str, type(None)),
         "an attribute of another type")
    if hasattr(type(made), "__setstate__"):
        made.__setstate__(told)
    else:
        made.__dict__.update(told)


def _string_dtype(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(1 <= len(args) <= 2 and args[0] == "python" and all(_is_missing(a) for a in args[1:]), "of another storage")
    return target(*args)


def _period_dtype(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 1 and (type(args[0]) is str and len(args[0]) < 64 or _is_offset(args[0])), "of other arguments")
    return target(*args)


def _unit(x: Any) -> bool:
    return type(x) is int and 7 <= x <= 10              # s, ms, us, ns


def _is_int64(x: Any) -> bool:
    return type(x) in (int, np.int64) and -1 << 63 <= x < 1 << 63


def _timestamp(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(3 <= len(args) <= 4 and _is_int64(args[0]) and (args[1] is None or _is_offset(args[1])) and
         (args[2] is None or isinstance(args[2], datetime.tzinfo)) and all(map(_unit, args[3:])), "of other arguments")
    return target(*args)


def _timedelta(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 2 and _is_int64(args[0]) and _unit(args[1]), "of other arguments")
    return target(*args)


def _nat(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(args == (None,), "of other arguments")
    return target(None)


def _period(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 3 and args[0] is None and (_is_offset(args[1]) or type(args[1]) is str) and _is_int64(args[2]),
         "of other arguments")
    return target(*args)


def _is_scalar(x: Any) -> bool:
    return type(x).__name__ in ("Timestamp", "Timedelta", "NaTType", "NAType", "Period", "Interval") and \
        type(x).__module__.partition(".")[0] == "pandas"


def _interval(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 3 and all(type(a) in (int, float) or isinstance(a, np.number) or
                                _is_scalar(a) and type(a).__name__ in ("Timestamp", "Timedelta") for a in args[:2]) and
         type(args[2]) is str, "of other arguments")
    return target(*args)


def _is_offset(x: Any) -> bool:
    return type(x).__module__.startswith("pandas.") and type(x).__name__ in (*OFFSETS, "DateOffset")


def _offset(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) <= 4 and all(type(a) in (int, bool, str, type(None), datetime.timedelta) for a in args) and
         all(abs(a) < 1 << 40 for a in args if type(a) is int), "of other arguments")
    return machine.fresh(target(*args))


_DATE_PARTS = {"years", "months", "weeks", "days", "leapdays", "hours", "minutes", "seconds", "microseconds",
               "milliseconds", "nanoseconds", "year", "month", "day", "weekday", "hour", "minute", "second",
               "microsecond", "nanosecond", "_has_time"}


def _offset_state(machine: Machine, made: Any, state: Any) -> None:
    names_of(state, _DATE_PARTS | {"_offset", "_use_relativedelta", "n", "normalize", "_cache"})
    for name, value in state.items():
        need(type(value) in (int, bool, float, type(None), datetime.timedelta) or
             name == "_offset" and _is(machine, value, "dateutil", "relativedelta") or name == "_cache" and value == {},
             f"another {name}")
    need(type(made).__name__ == "DateOffset", "which has none")
    made.__setstate__(state)


def _relativedelta_state(machine: Machine, made: Any, state: Any) -> None:
    names_of(state, _DATE_PARTS)
    need(all(type(value) in (int, float, type(None)) for value in state.values()), "an attribute of another type")
    made.__dict__.update(state)


def _pytz(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) <= 4 and all(type(a) in (str, int, type(None)) for a in args) and
         all(ZONE_NAME.fullmatch(a) for a in args[:1] if a is not None), "of other arguments")
    return target(*args)


OFFSETS = ("Day", "Hour", "Minute", "Second", "Milli", "Micro", "Nano", "BusinessDay", "BDay",
           "BusinessHour", "MonthBegin", "MonthEnd", "BusinessMonthBegin", "BusinessMonthEnd", "SemiMonthBegin",
           "SemiMonthEnd", "Week", "WeekOfMonth", "LastWeekOfMonth", "QuarterBegin", "QuarterEnd", "BQuarterBegin",
           "BQuarterEnd", "YearBegin", "YearEnd", "BYearBegin", "BYearEnd", "Easter", "FY5253", "FY5253Quarter")
_OFFSET = Rule(_offset, build=_offset_state)
_INDEX = Rule(_index)
_FRAME = Rule(new=new_empty, build=_frame_state, must=True)
_BACKED = Rule(build=_backed_state, must=True)
_NULLABLE = Rule(new=new_empty, build=_nullable_state, must=True)
_INTERVALS = Rule(build=_interval_state, must=True)
_SPARSE = Rule(new=new_empty, build=_sparse_array_state, must=True)
_SIMPLE_DTYPE = Rule(new=new_empty, build=_no_state)
_DTYPE = Rule(new=new_empty, build=_dtype_state, must=True)
_STRING = Rule(_string_dtype, new_empty, _dtype_state, must=True)
_PERIOD_DTYPE = Rule(_period_dtype)
_c = "pandas.core."
_t = "pandas._libs.tslibs."

PANDAS: dict[Name, Rule] = {
    **{(m, "DataFrame"): _FRAME for m in ("pandas", _c + "frame")},
    **{(m, "Series"): _FRAME for m in ("pandas", _c + "series")},
    (_c + "internals.managers", "BlockManager"): Rule(_manager),
    (_c + "internals.managers", "SingleBlockManager"): Rule(new=new_empty, build=_single_manager_state, must=True),
    ("pandas._libs.internals", "_unpickle_block"): Rule(_block),
    **{(m, name): VALUE for name, where in INDICES.items() for m in ("pandas", _c + "indexes." + where)},
    (_c + "indexes.base", "_new_Index"): _INDEX,
    (_c + "indexes.datetimes", "_new_DatetimeIndex"): _INDEX,
    (_c + "indexes.timedeltas", "_new_TimedeltaIndex"): _INDEX,
    (_c + "indexes.interval", "_new_IntervalIndex"): _INDEX,
    ("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked"): Rule(_pyx_empty(
        "StringArray", "DatetimeArray", "TimedeltaArray", "PeriodArray", "Categorical", "NumpyExtensionArray",
        "PandasArray")),
    ("pandas._libs.interval", "__pyx_unpickle_IntervalMixin"): Rule(_pyx_empty("IntervalArray")),
    **{(m, name): _BACKED for name, where in (
        ("StringArray", "string_"), ("DatetimeArray", "datetimes"), ("TimedeltaArray", "timedeltas"),
        ("PeriodArray", "period"), ("Categorical", "categorical"), ("NumpyExtensionArray", "numpy_"),
        ("PandasArray", "numpy_")) for m in ("pandas.arrays", "pandas", _c + "arrays." + where)},
    **{(m, name): _NULLABLE for name, where in (
        ("IntegerArray", "integer"), ("FloatingArray", "floating"), ("BooleanArray", "boolean"))
       for m in ("pandas.arrays", _c + "arrays." + where)},
    **{(m, "IntervalArray"): _INTERVALS for m in ("pandas.arrays", _c + "arrays.interval")},
    **{(m, "SparseArray"): _SPARSE for m in ("pandas.arrays", _c + "arrays.sparse.array")},
    ("pandas._libs.sparse", "IntIndex"): Rule(_sparse_index),
    ("pandas._libs.sparse", "BlockIndex"): Rule(_sparse_index),
    **{(m, name): _SIMPLE_DTYPE for name in _NULLABLE_DTYPES
       for m in ("pandas", *(_c + "arrays." + where for where in ("boolean", "integer", "floating")))},
    **{(m, name): _DTYPE for name in ("CategoricalDtype", "DatetimeTZDtype", "IntervalDtype", "SparseDtype",
                                      "NumpyEADtype", "PandasDtype")
       for m in ("pandas", _c + "dtypes.dtypes", _c + "arrays.sparse.dtype")},
    **{(m, "PeriodDtype"): _PERIOD_DTYPE for m in ("pandas", _c + "dtypes.dtypes")},
    **{(m, "StringDtype"): _STRING for m in ("pandas", _c + "arrays.string_")},
    (_t + "timestamps", "_unpickle_timestamp"): Rule(_timestamp),
    (_t + "timedeltas", "_timedelta_unpickle"): Rule(_timedelta),
    (_t + "nattype", "_nat_unpickle"): Rule(_nat),
    (_t + "nattype", "__nat_unpickle"): Rule(_nat),
    **{(m, "Period"): Rule(_period) for m in ("pandas", _t + "period")},
    **{(m, "Interval"): Rule(_interval) for m in ("pandas", "pandas._libs.interval")},
    **{(m, "NA"): VALUE for m in ("pandas", "pandas._libs.missing")},
    ("pandas", "NaT"): VALUE,
    ("pandas", "Timestamp"): VALUE,
    ("pandas", "Timedelta"): VALUE,
    **{(m, name): _OFFSET for name in OFFSETS for m in (_t + "offsets", "pandas.offsets", "pandas.tseries.offsets")},
    **{(m, "DateOffset"): Rule(_offset, new_empty, _offset_state, must=True) for m in ("pandas", _t + "offsets")},
    ("dateutil.relativedelta", "relativedelta"): Rule(new=new_empty, build=_relativedelta_state, must=True),
    ("pytz", "_p"): Rule(_pytz),
    ("pytz", "_UTC"): Rule(_pytz),
}


# -- scipy.sparse ----------------------------------------------------------------------------------------------------

def _indices(x: Any, ndim: int = 1) -> bool:
    return type(x) is np.ndarray and x.ndim == ndim and x.dtype.kind in "iu" and x.dtype.isnative


def _in_range(x: Any, end: int) -> bool:
    return not x.size or 0 <= x.min() and x.max() < end


def _check_compressed(told: dict[str, Any], rows: int, columns: int, blocks: bool) -> None:
    """Refuse index arrays that point outside: the compiled code follows them as they are.

    As ``check_format(full_check=True)``, which lets the pointers of a matrix without elements pass, and changes it.
    """
    data, indices, pointers = told["data"], told["indices"], told["indptr"]
    if blocks:
        need(data.ndim == 3 and data.shape[1] and data.shape[2] and not rows % data.shape[1] and
             not columns % data.shape[2], "blocks of another shape")
        rows, columns = rows // data.shape[1], columns // data.shape[2]
    else:
        need(data.ndim == 1, "data of another shape")
    need(_indices(indices) and _indices(pointers) and indices.dtype == pointers.dtype and len(indices) == len(data) and
         len(pointers) == rows + 1, "index arrays of other sizes")
    need(pointers[0] == 0 and pointers[-1] <= len(indices) and bool((pointers[1:] >= pointers[:-1]).all()) and
         _in_range(indices, columns), "indices that point outside")


def _sparse_state(machine: Machine, made: Any, state: Any) -> None:
    kind = type(made).__name__[:3]
    told = names_of(state, ("_shape", "maxprint", "data", "indices", "indptr", "offsets", "row", "col", "coords",
                            "rows", "dtype", "_dict", "has_canonical_format", "_has_canonical_format",
                            "_has_sorted_indices"))
    # What its arrays are like is looked up again.
    told = {name: value for name, value in told.items() if "_has" not in name}
    shape: Any = told.get("_shape")
    need(type(shape) is tuple and 1 <= len(shape) <= 64 and
         all(type(n) in (int, np.int64, np.int32) and 0 <= n < 1 << 62 for n in shape), "no shape")
    need(all(type(told.get(name, 0)) in (int, bool) for name in ("maxprint", "has_canonical_format")),
         "an attribute of another type")
    rows, columns = (1, *shape)[-2:]
    for name in ("data", "indices", "indptr", "offsets", "row", "col", "rows"):
        need(name not in told or is_array(machine, told[name]), f"{name} that are no array")
    if kind in ("csr", "csc", "bsr", "coo", "dia"):
        need("data" in told and not has_objects(told["data"].dtype) and told["data"].dtype.isnative, "no data")
    if kind in ("csr", "csc", "bsr"):
        need(told.keys() >= {"data", "indices", "indptr"} and len(shape) <= 2, "a state that is not all of it")
        if kind == "csc":
            rows, columns = columns, rows
        _check_compressed(told, rows, columns, kind == "bsr")
    elif kind == "coo":
        places: Any = told.get("coords", (told.get("row"), told.get("col")))
        need(type(places) is tuple and len(places) == len(shape) and all(
            _indices(where) and len(where) == told["data"].size and _in_range(where, n)
            for where, n in zip(places, shape)) and told["data"].ndim == 1, "indices that point outside")
    elif kind == "dia":
        need(len(shape) == 2 and told["data"].ndim == 2 and _indices(told.get("offsets", None)) and
             len(told["offsets"]) == len(told["data"]) == len(np.unique(told["offsets"])) and
             _in_range(told["offsets"].astype(np.int64) + (1 << 30), 1 << 31), "offsets that are none")
    elif kind == "lil":
        lists: Any = told.get("rows"), told.get("data")
        need(len(shape) == 2 and isinstance(told.get("dtype"), np.dtype) and all(
            type(x) is np.ndarray and x.dtype == object and x.shape == (rows,) and all(type(y) is list for y in x)
            for x in lists), "rows that are no lists")
        need(all(len(where) == len(what) and all(_is_place(n, (columns,)) for n in where)
                 for where, what in zip(*lists)), "indices that point outside")
        # Whoever wrote the file may go on to append to the lists.
        for name in ("rows", "data"):
            told[name] = told[name].copy()
            for n, items in enumerate(told[name]):
                told[name][n] = list(items)
    else:
        need(isinstance(told.get("dtype"), np.dtype) and type(told.get("_dict", {})) is dict,
             "a state that is none of it")
        if "_dict" in told:
            told["_dict"] = dict(told["_dict"])
        items = [*told.get("_dict", ()), *(dict.keys(made) if isinstance(made, dict) else ())]
        need(all(_is_place(place, shape) for place in items), "indices that point outside")
    need(not hasattr(type(made), "__setstate__") or kind == "coo", "which has another")
    if hasattr(type(made), "__setstate__"):
        made.__setstate__(told)
    else:
        made.__dict__.update(told)


def _is_place(place: Any, shape: tuple[int, ...]) -> bool:
    numbers = place if type(place) is tuple else (place,)
    return len(numbers) == len(shape) and all(type(n) in (int, np.int32, np.int64) and 0 <= n < end
                                              for n, end in zip(numbers, shape))


_MATRIX = Rule(new=new_empty, build=_sparse_state, must=True)
_FORMATS = ("csr", "csc", "bsr", "coo", "dia", "lil", "dok")

SCIPY: dict[Name, Rule] = {
    (module, f"{name}_{kind}"): _MATRIX for name in _FORMATS for kind in ("matrix", "array")
    for module in ("scipy.sparse", f"scipy.sparse._{name}", f"scipy.sparse.{name}", "scipy.sparse._arrays")}


# -- xarray ----------------------------------------------------------------------------------------------------------

_XARRAY_SLOTS: dict[str, frozenset[str]] = {
    "DataArray": frozenset(("_close", "_coords", "_indexes", "_name", "_variable", "_cache")),
    "Dataset": frozenset(("_attrs", "_close", "_coord_names", "_dims", "_encoding", "_indexes", "_variables",
                          "_cache")),
    "Variable": frozenset(("_attrs", "_data", "_dims", "_encoding")),
    "IndexVariable": frozenset(("_attrs", "_data", "_dims", "_encoding")),
    "PandasIndex": frozenset(("coord_dtype", "dim", "index")),
    "PandasMultiIndex": frozenset(("coord_dtype", "dim", "index", "level_coords_dtype")),
    "PandasIndexingAdapter": frozenset(("_dtype", "array")),
    "PandasMultiIndexingAdapter": frozenset(("_dtype", "array", "adapter", "level")),
}
_XARRAY_INDICES = ("PandasIndex", "PandasMultiIndex")
_XARRAY_ADAPTERS = ("PandasIndexingAdapter", "PandasMultiIndexingAdapter")


def _is_dict_of(machine: Machine, x: Any, *names: str) -> bool:
    return type(x) is dict and all(_is(machine, value, "xarray", *names) for value in x.values())


def _xarray_value(machine: Machine, name: str, value: Any) -> bool:
    if name in ("_coords", "_variables"):
        return _is_dict_of(machine, value, "Variable", "IndexVariable")
    if name == "_indexes":
        return value is None or _is_dict_of(machine, value, *_XARRAY_INDICES)
    if name == "_variable":
        return _is(machine, value, "xarray", "Variable", "IndexVariable")
    if name in ("_attrs", "_encoding", "level_coords_dtype"):
        return value is None or type(value) is dict
    if name == "_data":
        return (_is_array(machine, value) or isinstance(value, np.generic) or
                _is(machine, value, "xarray", *_XARRAY_ADAPTERS))
    if name in ("array", "index"):
        return _is_index(machine, value)
    if name in ("_dtype", "coord_dtype"):
        return value is None or isinstance(value, np.dtype) or _is(machine, value, "pandas", *_DTYPES)
    if name == "_close":
        return value is None
    if name == "_cache":
        return value == {} and type(value) is dict
    if name == "_dims":
        return type(value) is tuple or type(value) is dict
    if name == "_coord_names":
        return type(value) is set
    if name == "adapter":
        return value is None or _is(machine, value, "xarray", *_XARRAY_ADAPTERS)
    return type(value) in PLAIN or isinstance(value, tuple)         # names


def _xarray_state(machine: Machine, made: Any, state: Any) -> None:
    need(type(state) is tuple and len(state) == 2 and state[0] is None, "a state that is none of it")
    names_of(state[1], _XARRAY_SLOTS[type(made).__name__])
    for name, value in state[1].items():
        need(_xarray_value(machine, name, value), f"another {name}")
        machine.hashed([value] if isinstance(value, tuple) else ())
    for name, value in state[1].items():
        setattr(made, name, value)


_X = Rule(new=new_empty, build=_xarray_state, must=True)

XARRAY: dict[Name, Rule] = {
    **{(f"xarray.core.{module}", name): _X for module, names in (
        ("dataarray", ("DataArray",)), ("dataset", ("Dataset",)), ("variable", ("Variable", "IndexVariable")),
        ("indexes", _XARRAY_INDICES), ("indexing", _XARRAY_ADAPTERS)) for name in names},
    **{("xarray", name): _X for name in ("DataArray", "Dataset", "Variable", "IndexVariable")},
}

NAMES: dict[Name, Rule] = {**PANDAS, **SCIPY, **XARRAY}
