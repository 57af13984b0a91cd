"""What may be made out of an untrusted value: a rule for each global that the standard library and numpy need.

A rule says what may happen to a global: nothing (it is only handed out), a call, a call of ``__new__``, and what
state its instances may be given. No rule runs what a file names beyond the one constructor that the rule is for,
and each looks at the arguments first: their exact types, and sizes against what the record can pay for.
"""
from __future__ import annotations

import array
import builtins
import bz2
import copyreg
import datetime
import importlib
import lzma
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional, Protocol

import numpy as np

from .arrays import check_spec
from .pickling import EXACT_SCALARS

Name = tuple[str, str]


class Refusal(Exception):
    """Raised by a rule: what was to be done with a global is not what it is there for."""


class Machine(Protocol):
    """What a rule may ask of the unpickler that runs it."""

    trust: Any

    def spend(self, nbytes: int) -> None:
        """Note memory that a constructor is about to take; Refusal if the record is too small to pay for it."""

    def unpack(self, nbytes: int) -> int:
        """Note unpacked bytes, and return how many more there may be."""

    def kinds(self, array: np.ndarray[Any, Any]) -> set[type]:
        """Return the types of the elements of an array of objects that got its state here."""

    def hashed(self, items: Iterable[Any]) -> None:
        """Note objects that will be hashed; Refusal if that could take for ever, or overflow the stack."""

    def fresh(self, made: Any) -> Any:
        """Return `made`, an object that may be given a state, once."""

    def ready(self, made: Any) -> bool:
        """Whether `made` does not wait for the state that it must have."""

    def rule(self, target: Any) -> Optional[Rule]:
        """Return the rule of a global, if it is one."""

    def weigh(self, dtype: np.dtype[Any]) -> None:
        """Refusal if a dtype is nested too deeply, or as large as a chain of doublings makes it."""


class Rule(NamedTuple):
    """What may happen to a global.

    Attributes
    ----------
    call : function of (machine, target, args), optional
        REDUCE.
    new : function of (machine, target, args, kwargs), optional
        NEWOBJ and NEWOBJ_EX.
    build : function of (machine, instance, state), optional
        BUILD of an instance; never of the global itself.
    grow : set of str
        Which of ``append``, ``setitem`` and ``add`` its instances take.
    free : bool
        The caller has allowed it: exceptions that it raises are its own.
    must : bool
        An instance that was given no state is none: its methods may do anything.
    """

    call: Optional[Callable[[Machine, Any, tuple[Any, ...]], Any]] = None
    new: Optional[Callable[[Machine, Any, tuple[Any, ...], dict[str, Any]], Any]] = None
    build: Optional[Callable[[Machine, Any, Any], None]] = None
    grow: frozenset[str] = frozenset()
    free: bool = False
    must: bool = False


VALUE = Rule()
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
APPEND, SETITEM = frozenset(("append",)), frozenset(("setitem",))


def need(condition: Any, why: str) -> None:
    """Raise Refusal unless `condition` holds."""
    if not condition:
        raise Refusal(why)


def is_array(machine: Machine, x: Any) -> bool:
    """Whether `x` is a plain array that has its state."""
    return type(x) is np.ndarray and machine.ready(x)


class Token:
    """Stands for a function that is not handed out; there is nothing in it that could be changed or called."""

    __slots__ = ("rule", "_text")

    def __init__(self, text: str, rule: Rule) -> None:
        self.rule = rule
        self._text = text

    def __repr__(self) -> str:
        return f"<{self._text}, not handed out>"


# -- rules of one kind -----------------------------------------------------------------------------------------------

def plain_arguments(*kinds: Any, most: int, least: int = 0) -> Any:
    """Return a rule's `call` that takes arguments of exactly these types."""
    allowed = frozenset(kinds)

    def call(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
        need(least <= len(args) <= most and allowed.issuperset(map(type, args)), "of other arguments")
        return target(*args)
    return call


def no_arguments(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(not args, "of other arguments")
    return machine.fresh(target())


def new_empty(machine: Machine, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    need(not args and not kwargs, "of other arguments")
    return machine.fresh(target.__new__(target))


def names_of(state: Any, known: Optional[Iterable[str]] = None) -> dict[str, Any]:
    """Return a state if it is a dict of attributes: texts, no special names, all of them `known`."""
    need(type(state) is dict, "a state that is no dict")
    for name in state:
        need(type(name) is str and not (name.startswith("__") and name.endswith("__")), "a state with special names")
    need(known is None or state.keys() <= set(known), "a state of other attributes")
    return state    # type: ignore[no-any-return]


def attributes(**kinds: Any) -> Any:
    """Return a rule's `build` that sets these attributes in the instance's dict, each of one of these types."""
    def build(machine: Machine, made: Any, state: Any) -> None:
        for name, value in names_of(state, kinds).items():
            need(type(value) in kinds[name], f"an attribute {name} of another type")
        made.__dict__.update(state)
    return build


def any_attributes(machine: Machine, made: Any, state: Any) -> None:
    made.__dict__.update(names_of(state))


# -- the standard library --------------------------------------------------------------------------------------------

def _bytearray(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) <= 1 and all(type(a) is bytes for a in args), "of other arguments")
    machine.spend(sum(map(len, args)))
    return target(*args)


def _same(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 1 and type(args[0]) is target, "of other arguments")
    return args[0]


def _items(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) <= 1 and all(type(a) in (list, tuple) or type(a) is target for a in args) and
         (target is not dict or all(type(a) is dict for a in args)), "of other arguments")
    for items in args:
        machine.spend(64 * len(items))
        if target in (set, frozenset):
            machine.hashed(items)
    return target(*args)


def _type(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 1 and any(args[0] is single for single in (None, Ellipsis, NotImplemented)), "of another object")
    return type(args[0])


def _anything(most: int) -> Any:
    def call(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
        need(len(args) <= most, "of other arguments")
        return target(*args)
    return call


def _exception(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    machine.hashed(args)                # OSError looks its first argument up
    return machine.fresh(target(*args))


_EXCEPTION_STATE = frozenset(("args", "name", "path", "obj", "name_from", "__notes__"))    # what they give themselves


def _exception_state(machine: Machine, made: Any, state: Any) -> None:
    need(type(state) is dict, "a state that is no dict")
    names_of({name: value for name, value in state.items() if name != "__notes__"})
    # Its C code trusts the types of the attributes that it has of its own.
    need(all(name in _EXCEPTION_STATE or not hasattr(type(made), name) for name in state), "an attribute of its own")
    need(type(state.get("args", ())) is tuple, "arguments that are none")
    made.__setstate__(state)


EXCEPTION = Rule(_exception, build=_exception_state)


_MOMENT = frozenset((int, bytes, str, type(None), datetime.timezone))


def _moment(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) <= 9 and (_MOMENT.issuperset(map(type, args)) or all(
        type(a) in _MOMENT or isinstance(a, datetime.tzinfo) for a in args)), "of other arguments")
    return target(*args)


def _timezone(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(1 <= len(args) <= 2 and type(args[0]) is datetime.timedelta and all(type(a) is str for a in args[1:]),
         "of other arguments")
    return target(*args)


FRACTION_BITS = 1 << 17             # more would take long to reduce
_FRACTION = re.compile(r"-?[0-9]{1,4300}(?:/[0-9]{1,4300})?")


def _fraction(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    # Its texts may have exponents: "1e999999999" is a number of a gigabyte.
    texts = len(args) == 1 and type(args[0]) is str and _FRACTION.fullmatch(args[0])
    need(texts or 1 <= len(args) <= 2 and all(type(a) is int and a.bit_length() <= FRACTION_BITS for a in args),
         "of other arguments")
    return target(*args)


def _uuid_state(machine: Machine, made: Any, state: Any) -> None:
    names = names_of(state, {"int", "is_safe"})
    need(type(names.get("int")) is int and 0 <= names["int"] < 1 << 128 and type(names.get("is_safe", 0)) is int,
         "a state that is none of a UUID")
    made.__setstate__(state)


def _defaultdict(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    # It is called by whoever looks a missing key up.
    need(len(args) <= 1 and all(a is None or isinstance(a, type) for a in args), "of another factory")
    return machine.fresh(target(*args))


def _deque(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) <= 2 and all(type(a) in (tuple, list) for a in args[:1]) and
         all(a is None or type(a) is int for a in args[1:]), "of other arguments")
    machine.spend(8 * sum(map(len, args[:1])))
    return target(*args)


def _counter(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) <= 1 and all(type(a) is dict for a in args), "of other arguments")
    machine.spend(64 * sum(map(len, args)))
    return machine.fresh(target(*args))


def _chain_state(machine: Machine, made: Any, state: Any) -> None:
    maps = names_of(state, {"maps"}).get("maps")
    need(type(maps) is list and maps and all(isinstance(m, dict) for m in maps), "a state of no dicts")
    made.__dict__.update(state)


def _user_string(machine: Machine, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    need(not kwargs and all(type(a) is str for a in args), "of other arguments")
    return machine.fresh(target.__new__(target))


ZONE_NAME = re.compile(r"[A-Za-z0-9_+\-]{1,64}(?:/[A-Za-z0-9_+\-]{1,64}){0,4}")


def _zone(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    # The key becomes the name of a file.
    need(1 <= len(args) <= 2 and type(args[0]) is str and ZONE_NAME.fullmatch(args[0]) and
         all(type(a) in (bool, int) for a in args[1:]), "of other arguments")
    return target(args[0]) if all(args[1:]) else target.no_cache(args[0])


ZONE = Rule(_zone)


def _getattr(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 2 and isinstance(args[0], type) and type(args[1]) is str, "of other arguments")
    owner, name = args
    rule = machine.rule(owner)
    if rule is ZONE and name == "_unpickle":
        return HIDDEN["zoneinfo", "ZoneInfo._unpickle"]
    members: Any = vars(owner).get("_member_map_") if rule is not None and rule.free else None
    need(type(members) is dict and name in members, f"of {owner.__qualname__}.{name}")
    return members[name]                # of an Enum that the caller allows


def _standard_array(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 4 and args[0] is array.array and type(args[1]) is str and len(args[1]) == 1 and
         type(args[2]) is int and 0 <= args[2] <= 30 and type(args[3]) is bytes, "of other arguments")
    machine.spend(8 * len(args[3]))
    return target(*args)


def _array_class(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 2 and type(args[0]) is str and type(args[1]) in (list, bytes), "of other arguments")
    machine.spend(8 * len(args[1]))
    return target(*args)


def _struct_time(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(1 <= len(args) <= 2 and type(args[0]) is tuple and all(type(a) is dict for a in args[1:]),
         "of other arguments")
    return target(*args)


_DECODERS: dict[Any, Any] = {zlib.decompress: zlib.decompressobj, bz2.decompress: bz2.BZ2Decompressor,
                             lzma.decompress: lambda: lzma.LZMADecompressor(memlimit=1 << 28)}


def _decompress(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 1 and type(args[0]) is bytes, "of other arguments")
    decoder = _DECODERS[target]()
    limit = machine.unpack(0)
    found: bytes = decoder.decompress(args[0], limit + 1)
    need(len(found) <= limit, "which unpacks to more than a record of this size may give")
    if not decoder.eof:
        raise ValueError("compressed data that is cut short")
    machine.unpack(len(found))
    return found


def _reconstructor(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 3 and isinstance(args[0], type) and isinstance(args[1], type) and issubclass(args[0], args[1]),
         "of other arguments")
    made, base, state = args
    rule = machine.rule(made)
    need(rule is not None, f"of {made.__qualname__}")
    assert rule is not None
    if base is np.ndarray:
        need(state == (0,) and type(state) is tuple, "of an array that is not empty")
        need(rule.free or rule.call is array_class, f"of {made.__qualname__}")
        return machine.fresh(np.ndarray.__new__(made, (0,)))
    if issubclass(base, np.generic):
        need(rule.free and type(state) is base, f"of {made.__qualname__}")
        return machine.fresh(base.__new__(made, state))
    if base is dict and rule.new is not None and type(state) is dict and not rule.free:
        found = rule.new(machine, made, (), {})
        dict.update(found, state)
        return found
    need(rule.free and base in _BASES, f"of {made.__qualname__}")
    need(base is object and state is None or type(state) is base, "of another state")
    return machine.fresh(copyreg._reconstructor(made, base, state))         # type: ignore[attr-defined]


_BASES = (object, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)


class _View(Token):
    """What ``operator.methodcaller("view", cls)`` stands for."""

    __slots__ = ()

    def __init__(self, cls: type) -> None:
        def call(machine: Machine, token: Any, args: tuple[Any, ...]) -> Any:
            need(len(args) == 1 and is_array(machine, args[0]), "of other arguments")
            return args[0].view(cls)
        super().__init__(f"view of {cls.__qualname__}", Rule(call))


TOKENS = (Token, _View)


def _methodcaller(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 2 and args[0] == "view" and type(args[0]) is str and isinstance(args[1], type) and
         issubclass(args[1], np.ndarray), "of another method")
    rule = machine.rule(args[1])
    need(rule is not None and (rule.free or rule.call is array_class), f"of {args[1].__qualname__}")
    return _View(args[1])


HIDDEN: dict[Name, Token] = {
    ("builtins", "getattr"): Token("builtins.getattr", Rule(_getattr)),
    ("copyreg", "_reconstructor"): Token("copyreg._reconstructor", Rule(_reconstructor)),
    ("operator", "methodcaller"): Token("operator.methodcaller", Rule(_methodcaller)),
    ("zoneinfo", "ZoneInfo._unpickle"): Token("zoneinfo.ZoneInfo._unpickle", Rule(
        lambda machine, token, args: _zone(machine, importlib.import_module("zoneinfo").ZoneInfo, args))),
}
_PATH = Rule(plain_arguments(str, most=10_000))
_ADDRESS = Rule(plain_arguments(str, int, most=1, least=1))

STANDARD: dict[Name, Rule] = {
    **{("builtins", found.__name__): Rule(_same) for found in (int, float, bool, str, bytes)},
    **{("builtins", found.__name__): Rule(_items) for found in (list, tuple, dict, set, frozenset)},
    ("builtins", "Ellipsis"): VALUE,
    ("builtins", "NotImplemented"): VALUE,
    **{("builtins", name): EXCEPTION for name, found in vars(builtins).items()
       if isinstance(found, type) and issubclass(found, BaseException)},
    ("builtins", "complex"): Rule(plain_arguments(float, int, most=2)),
    ("builtins", "bytearray"): Rule(_bytearray),
    ("builtins", "slice"): Rule(_anything(3)),
    ("builtins", "range"): Rule(plain_arguments(int, most=3, least=1)),
    ("builtins", "object"): Rule(no_arguments, new_empty),
    ("builtins", "type"): Rule(_type),
    ("datetime", "date"): Rule(plain_arguments(int, bytes, str, most=3, least=1)),
    ("datetime", "time"): Rule(_moment),
    ("datetime", "datetime"): Rule(_moment),
    ("datetime", "timedelta"): Rule(plain_arguments(int, float, most=3)),
    ("datetime", "timezone"): Rule(_timezone),
    ("zoneinfo", "ZoneInfo"): ZONE,
    ("decimal", "Decimal"): Rule(plain_arguments(str, most=1, least=1)),
    ("fractions", "Fraction"): Rule(_fraction),
    ("uuid", "UUID"): Rule(new=new_empty, build=_uuid_state),
    ("collections", "OrderedDict"): Rule(no_arguments, build=any_attributes, grow=SETITEM),
    ("collections", "defaultdict"): Rule(_defaultdict, grow=SETITEM),
    ("collections", "deque"): Rule(_deque, grow=APPEND),
    ("collections", "Counter"): Rule(_counter, build=any_attributes, grow=SETITEM),
    ("collections", "ChainMap"): Rule(new=new_empty, build=_chain_state),
    ("collections", "UserDict"): Rule(new=new_empty, build=attributes(data=(dict,))),
    ("collections", "UserList"): Rule(new=new_empty, build=attributes(data=(list,))),
    ("collections", "UserString"): Rule(new=_user_string, build=attributes(data=(str,))),
    **{(module, name): _PATH for module in ("pathlib", "pathlib._local") for name in (
        "Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")},
    **{("ipaddress", f"IPv{v}{kind}"): _ADDRESS for v in (4, 6) for kind in ("Address", "Network", "Interface")},
    ("types", "SimpleNamespace"): Rule(no_arguments, build=any_attributes),
    ("array", "array"): Rule(_array_class),
    ("array", "_array_reconstructor"): Rule(_standard_array),
    ("time", "struct_time"): Rule(_struct_time),
    ("zlib", "decompress"): Rule(_decompress),
    ("bz2", "decompress"): Rule(_decompress),
    ("lzma", "decompress"): Rule(_decompress),
}


# -- numpy -----------------------------------------------------------------------------------------------------------

NESTED_SPEC = 250
_SPEC = re.compile(r"[|<>=]?(?:[?biufcgGSUV]\d{0,10}|O8?|[Mm]8(?:\[\d{0,10}[A-Za-z]{1,7}\])?)")


def _check_spec(machine: Machine, spec: Any, aligned: bool = False, depth: int = 0) -> None:
    """Refuse what no reducer of ours gives `numpy.dtype`: it runs parsers over texts and does not survive everything.

    As `arrays.check_spec`, and besides: objects, dtypes that were made before, and types of numpy's scalars.
    """
    need(depth < NESTED_SPEC, "of a structure that is nested too deeply")
    if type(spec) is str:
        need(_SPEC.fullmatch(spec), "of a text that describes no simple dtype")
    elif isinstance(spec, np.dtype):
        machine.weigh(spec)
    elif isinstance(spec, type):
        need(issubclass(spec, np.generic), "of a type that is none of numpy's")
    elif type(spec) is tuple and len(spec) == 2:
        base, rest = spec
        if type(rest) is dict:
            need(type(base) is str and base[:2] == "|V" or isinstance(base, type), "of fields of something else")
            aligned = False
        elif type(rest) is str:
            need(isinstance(base, type), "of two texts")
        else:
            need(type(rest) is tuple and len(rest) <= 64 and all(type(n) is int and n >= 0 for n in rest),
                 "of a sub-array of no shape")
            _check_spec(machine, base, aligned, depth + 1)
        if type(base) is not tuple:
            _check_spec(machine, base, False, depth + 1)
        if type(rest) in (dict, str):
            _check_spec(machine, rest, aligned, depth + 1)
    else:
        need(type(spec) is dict and spec.keys() <= {"names", "formats", "offsets", "itemsize", "titles", "aligned"},
             "of something that describes no dtype")
        names, formats = spec.get("names"), spec.get("formats")
        need(type(names) is list and type(formats) is list and len(names) == len(formats) and
             all(type(n) is str for n in names) and (names or not aligned), "of a structure without its fields")
        need(all(type(t) in PLAIN for t in spec.get("titles") or ()), "of titles that are no texts")
        for part in formats:
            _check_spec(machine, part, aligned or spec.get("aligned") is True, depth + 1)


def _dtype(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    # dtype, align, copy, metadata
    need(1 <= len(args) <= 4 and all(type(a) in (bool, int) for a in args[1:3]) and
         all(type(a) is dict for a in args[3:]), "of other arguments")
    align = args[1] if len(args) > 1 else False
    need(not align, "of another alignment")
    try:
        check_spec(args[0])
    except (ValueError, RecursionError):
        _check_spec(machine, args[0])
    made = target(*args)
    machine.weigh(made)
    return made


def count(shape: Any) -> int:
    """Return how many elements an array of `shape` has; Refusal if it is no shape."""
    need(type(shape) is tuple and len(shape) <= 64, "of no shape")
    n = nonzero = 1
    for length in shape:
        need(type(length) is int and length >= 0, "of no shape")
        n *= length
        nonzero *= length or 1          # numpy multiplies in 64 bits, also beside a zero
    need(nonzero < 1 << 60, "of a size that is none")
    return n


def has_objects(dtype: Any) -> bool:
    """Whether arrays of `dtype` are made of a list of objects."""
    return bool(dtype.hasobject) or type(dtype).__name__ == "StringDType"


def check_array_state(machine: Machine, state: Any, extra: int = 0) -> None:
    """Refuse a state that is not (version, shape, dtype, is Fortran, data), its parts in agreement."""
    need(type(state) is tuple and len(state) == 5 + extra and state[0] == 1, "a state that is none of an array")
    shape, dtype, fortran, data = state[1:5]
    n = count(shape)
    need(isinstance(dtype, np.dtype) and type(fortran) in (bool, int), "a state that is none of an array")
    if has_objects(dtype):
        need(type(data) is list and len(data) == n, "a state of another number of objects")
        machine.hashed(data)            # by whoever makes an index of it
    else:
        need(type(data) is bytes and len(data) == n * dtype.itemsize, "a state of another size")
    machine.spend(n * dtype.itemsize)


def _array_state(machine: Machine, made: Any, state: Any) -> None:
    check_array_state(machine, state)
    np.ndarray.__setstate__(made, state)


def _new_array(machine: Machine, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    need(args == ((0,),) and not kwargs and type(args[0][0]) is int, "of an array that is not empty")
    return machine.fresh(np.ndarray.__new__(target, (0,)))


def _ndarray(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    if len(args) == 1:
        return _new_array(machine, target, args, {})
    need(3 <= len(args) <= 6, "of other arguments")
    rest: tuple[Any, ...] = (0, None, "C")
    shape, dtype, buffer, offset, strides, order = args + rest[len(args) - 3:]
    n = count(shape)
    need(isinstance(dtype, np.dtype) and not has_objects(dtype), "of a dtype with objects")
    need(type(buffer) in (bytes, bytearray) or is_array(machine, buffer) and not has_objects(buffer.dtype) and
         buffer.flags.c_contiguous, "over another buffer")
    size = buffer.nbytes if isinstance(buffer, np.ndarray) else len(buffer)
    need(type(offset) is int and offset >= 0 and strides is None and type(order) is str and order in ("C", "F"),
         "of other arguments")
    need(n * dtype.itemsize + offset <= size, "over a buffer that is too short")
    return target(shape, dtype, buffer, offset, None, order)


def array_class(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    """Refuse to call a subclass of ndarray: they are made by ``copyreg._reconstructor`` and as views."""
    raise Refusal("which is not how arrays are made")


ARRAY = Rule(array_class, build=_array_state, must=True)


def _take(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 2 and is_array(machine, args[0]) and args[0].shape == (1,) and type(args[1]) is int and
         args[1] == 0, "of other arguments")
    return target(*args)


def _scalar(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(target in EXACT_SCALARS and len(args) == 1 and type(args[0]) in PLAIN, "of other arguments")
    return target(*args)


SCALAR = Rule(_scalar)


def _old_scalar(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 2 and isinstance(args[0], np.dtype) and not has_objects(args[0]) and type(args[1]) is bytes and
         len(args[1]) == args[0].itemsize, "of other arguments")
    return target(*args)


def _old_array(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 3 and isinstance(args[0], type) and issubclass(args[0], np.ndarray) and
         args[1] == (0,) and type(args[1]) is tuple and args[2] in (b"b", "b"), "of other arguments")
    rule = machine.rule(args[0])
    need(rule is not None and (rule.free or rule.build is _array_state), f"of {args[0].__qualname__}")
    return machine.fresh(np.ndarray.__new__(args[0], (0,)))


def _masked(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    # data, mask, dtype, copy, subok, ndmin, fill value, keep mask, hard mask
    need(len(args) == 9 and args[2] is None and args[3] is False and args[4] is True and args[7] is False and
         type(args[5]) is int and args[5] == 0 and type(args[8]) is bool, "of other arguments")
    data, mask, fill = args[0], args[1], args[6]
    need(is_array(machine, data), "of no array")
    need(type(mask) is np.bool_ and not mask or is_array(machine, mask) and mask.shape == data.shape and
         mask.dtype == np.ma.make_mask_descr(data.dtype), "of a mask of another shape or type")
    need(fill is None or type(fill) is np.ndarray and fill.ndim == 0 and fill.dtype == data.dtype,
         "of a fill value of another type")
    machine.spend(data.size)
    return target(*args)


def _masked_empty(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 4 and args[2] == (0,) and type(args[2]) is tuple and args[3] in ("b", b"b"), "of other arguments")
    for cls, base in zip(args[:2], (np.ma.MaskedArray, np.ndarray)):
        rule = machine.rule(cls)
        need(isinstance(cls, type) and issubclass(cls, base) and rule is not None and
             (rule.free or rule.call in (array_class, _masked, _ndarray)), "of other classes")
    return machine.fresh(target(*args))


def _masked_records_state(machine: Machine, made: Any, state: Any) -> None:
    check_array_state(machine, state, 2)
    n = count(state[1]) * len(state[2].names or ())
    need(type(state[5]) is bytes and len(state[5]) == n, "a mask of another size")
    need(state[6] is None or is_array(machine, state[6]) and state[6].ndim == 0, "a fill value of another type")
    machine.spend(n)
    made.__setstate__(state)


def _masked_state(machine: Machine, made: Any, state: Any) -> None:
    # (version, shape, dtype, is Fortran, data, mask, fill value)
    check_array_state(machine, state, 2)
    mask, fill = state[5:]
    size = count(state[1]) * np.ma.make_mask_descr(state[2]).itemsize
    need(type(mask) is bytes and len(mask) == size, "a mask of another size")
    need(type(fill) in PLAIN or isinstance(fill, np.generic) or type(fill) is np.ndarray and fill.ndim == 0,
         "a fill value of another type")
    machine.spend(size)
    made.__setstate__(state)


def _string_dtype(machine: Machine, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    need(not args and kwargs.keys() <= {"coerce", "na_object"} and type(kwargs.get("coerce", True)) is bool,
         "of other arguments")
    missing = kwargs.get("na_object")
    need(type(missing) in PLAIN or type(missing).__name__ == "NAType", "of another object for what is missing")
    return target(**kwargs)


# -- numpy.random: its C code trusts a state -------------------------------------------------------------------------

_WORDS = {"MT19937": (("key", 624, np.uint32),), "Philox": (("counter", 4, np.uint64), ("key", 2, np.uint64)),
          "SFC64": (("state", 4, np.uint64),), "PCG64": (), "PCG64DXSM": ()}
BIT_GENERATORS = tuple(_WORDS)


def _words(found: Any, n: int, dtype: Any) -> bool:
    return type(found) is np.ndarray and found.shape == (n,) and found.dtype == dtype


def _whole(found: Any, bits: int) -> bool:
    return type(found) in (int, np.int64, np.uint64, np.int32, np.uint32) and 0 <= found < 1 << bits


def _check_random_state(state: Any, made: Any) -> None:
    need(type(state) is dict and type(state.get("state")) is dict, "a state that is none of a bit generator")
    kind = type(made).__name__
    need(kind in _WORDS and state.get("bit_generator") == kind, "the state of another bit generator")
    inner = state["state"]
    for name, n, dtype in _WORDS[kind]:
        need(_words(inner.get(name), n, dtype), f"a state with a wrong {name}")
    if kind == "MT19937":
        # numpy takes the next word from this place, wherever that is.
        need(_whole(inner.get("pos"), 10) and inner["pos"] <= 624 and inner.keys() == {"key", "pos"},
             "a state with a wrong position")
    elif kind == "Philox":
        need(_words(state.get("buffer"), 4, np.uint64) and _whole(state.get("buffer_pos"), 3) and
             state["buffer_pos"] <= 4, "a state with a wrong buffer")
    elif kind.startswith("PCG64"):
        need(_whole(inner.get("state"), 128) and _whole(inner.get("inc"), 128), "a state with a wrong number")
    if kind != "MT19937":
        need(_whole(state.get("has_uint32"), 1) and _whole(state.get("uinteger"), 32), "a state with a wrong number")


def _bit_generator_state(machine: Machine, made: Any, state: Any) -> None:
    if type(state) is tuple:            # since numpy 2.0 with the seeds
        need(len(state) == 2 and (state[1] is None or type(state[1]) is np.random.SeedSequence and
                                  machine.ready(state[1])), "a state that is none of a bit generator")
        _check_random_state(state[0], made)
    else:
        _check_random_state(state, made)
    made.__setstate__(state)


def _bit_generator(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) <= 1 and all(type(a) is str and a in BIT_GENERATORS or
                                isinstance(a, type) and a.__name__ in BIT_GENERATORS and
                                a.__module__.startswith("numpy.random.") for a in args), "of another bit generator")
    return machine.fresh(target(*args))


def _is_constructor(found: Any) -> bool:
    return getattr(found, "__name__", "") == "__bit_generator_ctor"


def _generator(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(1 <= len(args) <= 2 and all(map(_is_constructor, args[1:])), "of other arguments")
    bits = args[0]
    need(type(bits) is str and bits in BIT_GENERATORS or type(bits).__name__ in BIT_GENERATORS and
         isinstance(bits, np.random.BitGenerator), "of another bit generator")
    made = target(bits) if type(bits) is str and len(args) == 1 else target(*args)
    return machine.fresh(made)


def _generator_state(machine: Machine, made: Any, state: Any) -> None:
    if state is not None:               # before numpy 2.0: that of its bit generator
        _check_random_state(state, made.bit_generator)
        made.bit_generator.state = state


def _random_state_state(machine: Machine, made: Any, state: Any) -> None:
    _check_random_state(state, made._bit_generator)
    need(type(state.get("gauss", 0.0)) is float and _whole(state.get("has_gauss", 0), 1), "a state with a wrong number")
    made.__setstate__(state)


_SEEDS_FIELDS = 5


def _seeds(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    need(len(args) == 3 and args[0] is np.random.SeedSequence and type(args[1]) is int and args[2] is None,
         "of other arguments")
    return machine.fresh(target(*args))


def _seed_numbers(found: Any) -> bool:
    return type(found) is int and found >= 0 or found is None or type(found) in (list, tuple) and all(
        map(_seed_numbers, found))


def _seeds_state(machine: Machine, made: Any, state: Any) -> None:
    # entropy, how many were spawned, pool, its size, spawn key: in the order of their names
    need(type(state) is tuple and len(state) == _SEEDS_FIELDS, "a state that is none of seeds")
    entropy, spawned, pool, size, key = state
    need(_seed_numbers(entropy) and type(spawned) is int and 0 <= spawned < 1 << 31 and type(size) is int and
         type(pool) is np.ndarray and pool.dtype == np.uint32 and pool.shape == (size,) and size >= 4 and
         type(key) is tuple and all(map(_seed_numbers, key)), "a state that is none of seeds")
    made.__setstate__(state)


_BITS = Rule(build=_bit_generator_state)
_RECONSTRUCT = Rule(_old_array)

NUMPY: dict[Name, Rule] = {
    ("numpy", "ndarray"): Rule(_ndarray, _new_array, _array_state, must=True),
    ("numpy", "dtype"): Rule(_dtype),
    ("numpy", "take"): Rule(_take),
    ("numpy", "memmap"): VALUE,
    **{(module, name): ARRAY for module, name in (
        ("numpy", "matrix"), ("numpy", "recarray"), ("numpy.rec", "recarray"), ("numpy", "chararray"),
        ("numpy.char", "chararray"))},
    ("numpy.ma", "MaskedArray"): Rule(_masked, build=_masked_state, must=True),
    ("numpy.ma", "nomask"): VALUE,
    ("numpy.ma", "masked"): VALUE,
    ("numpy.ma.core", "_mareconstruct"): Rule(_masked_empty),
    ("numpy.ma.mrecords", "_mrreconstruct"): Rule(_masked_empty),
    ("numpy.ma.mrecords", "MaskedRecords"): Rule(array_class, build=_masked_records_state, must=True),
    ("numpy.linalg", "LinAlgError"): EXCEPTION,
    ("numpy.exceptions", "AxisError"): EXCEPTION,
    # What classes name that pickle arrays by numpy's own reducers.
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): Rule(_old_scalar),
    ("numpy._core.multiarray", "scalar"): Rule(_old_scalar),
    ("numpy.random._pickle", "__bit_generator_ctor"): Rule(_bit_generator),
    ("numpy.random._pickle", "__generator_ctor"): Rule(_generator),
    ("numpy.random._pickle", "__randomstate_ctor"): Rule(_generator),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"): Rule(_seeds),
    ("numpy.random", "SeedSequence"): Rule(build=_seeds_state, must=True),
    ("numpy.random.bit_generator", "SeedSequence"): Rule(build=_seeds_state, must=True),
    ("numpy.random", "Generator"): Rule(build=_generator_state),
    ("numpy.random", "RandomState"): Rule(build=_random_state_state),
    **{(module, name): _BITS for name in BIT_GENERATORS
       for module in ("numpy.random", f"numpy.random._{name.lower()}")},
    ("numpy.random._pcg64", "PCG64DXSM"): _BITS,
    ("numpy.dtypes", "StringDType"): Rule(new=_string_dtype),
}


def find(name: Name) -> Optional[Rule]:
    """Return the rule of a name of numpy's that stands for one of many: a scalar type, a dtype class, a ufunc."""
    module, attribute = name
    if module not in ("numpy", "numpy.dtypes") or "." in attribute:
        return None
    found = vars(importlib.import_module(module)).get(attribute)
    if isinstance(found, type) and issubclass(found, np.generic):
        return SCALAR
    if isinstance(found, np.ufunc) or isinstance(found, type) and issubclass(found, np.dtype):
        return VALUE
    return None


def resolve(name: Name) -> Any:
    """Return what a name stands for.

    Raises
    ------
    ImportError, AttributeError
        As pickle does, if it is not there.
    """
    module, qualname = name
    found: Any = importlib.import_module(module)
    for attribute in qualname.split("."):
        found = getattr(found, attribute)
    return found
