"""Unpickling values of files that nobody vouches for: no code runs but that of constructors with a rule.

The C unpickler does the work, but none of the deeds. Before it runs a value's opcodes, each opcode that calls,
builds or hashes something (REDUCE, NEWOBJ, BUILD, SETITEMS, ...) is replaced by opcodes that pack its operands into
a tuple and hand them to `persistent_load`, which looks the rule up (`rules`, `libraries`) and refuses what has none.
So there is no guard that a file could get hold of, call with other arguments or rewrite: globals are inert there.
Plain values need no rule: without a global there is nothing to call. They go straight to the unpickler.
"""
from __future__ import annotations

import collections
import copyreg
import gc
import io
import pickle
import re
import sys
import time
import types
from array import array
from collections.abc import Iterable
from itertools import count
from operator import ne
from typing import Any, Optional

import numpy as np

from . import format as fmt
from . import libraries, rules
from .errors import CorruptError, UntrustedError
from .format import Buffer
from .machine import SPARSE_MEMO, opcodes_between
from .pickling import (BEFORE_VALUE, BEHIND_VALUE, EXTENSIONS, MORE, decode_pickled, indices_put, opcode_file,
                       public_name, shift_memo, the_value)
from .rules import Name, Refusal, Rule, Token

# What a value may take beyond the size of its opcodes, before a rule refuses: arrays and copies are bounded by a
# small multiple of them, unpacked bytes by what zlib and lzma can do at most.
FREE_BYTES = 1 << 26
COPIES = 64
RATIO = 1 << 13
FREE_STEPS, STEPS = 1 << 20, 8
HASH_DEPTH = 1000                   # a tuple's hash is computed by recursion in C
DTYPE_DEPTH, DTYPE_PARTS = rules.NESTED_SPEC, 10_000

# Opcodes that stay as they are: they push numbers, texts and containers, and name globals.
_SHORT_TEXT = rb"\x8c(?:" + b"|".join(re.escape(bytes((n,))) + b".{%d}" % n for n in range(48)) + b")"
_NUMBER = rb"G.{8}|K.|M..|J.{4}|j.{4}|" + _SHORT_TEXT
_inert_run = re.compile(b"(?s:" + _NUMBER + rb"|[N\x88\x89()\]}t012l\x85\x86\x87\x8f\x93])" + MORE).match
_named_run = re.compile(b"(?s:" + _NUMBER + rb"|h.|[N\x88\x89()\]}t012l\x85\x86\x87\x8f\x93\x94])" + MORE).match
NAME_MAX = 1000                     # an opcode that is longer pushes no name
# The operands of one of these become (operand, ..., action), or ((operand, operand, operand), action).
_ACTIONS = {
    pickle.REDUCE[0]: b"K\x00\x87Q", pickle.NEWOBJ[0]: b"K\x01\x87Q", pickle.BUILD[0]: b"K\x02\x87Q",
    pickle.APPEND[0]: b"K\x03\x87Q", pickle.APPENDS[0]: b"lK\x04\x87Q", pickle.SETITEMS[0]: b"lK\x05\x87Q",
    pickle.ADDITEMS[0]: b"lK\x06\x87Q", pickle.FROZENSET[0]: b"lK\x07\x86Q", pickle.DICT[0]: b"lK\x08\x86Q",
    pickle.NEWOBJ_EX[0]: b"\x87K\x09\x86Q", pickle.SETITEM[0]: b"\x87K\x0a\x86Q"}
_COUNTED = frozenset((fmt.SHORT_BINUNICODE, fmt.BINUNICODE, fmt.BINUNICODE8, fmt.SHORT_BINBYTES, fmt.BINBYTES,
                      fmt.BINBYTES8, fmt.LONG1, fmt.LONG4, fmt.LONG_BINPUT))

# Plain values: no globals. A tuple that is memoised can be put into another twice, that one too, and so on:
# hashing it would take for ever.
_PLAIN = b"(?s:" + _NUMBER + rb"|[N\x88\x89()\]}aesu\x8f\x90\x91]"
_plain_run = re.compile(_PLAIN + rb"|[t\x85\x86\x87](?!r))" + MORE).match
_plain_run_but_tuples = re.compile(_PLAIN + b")" + MORE).match
_TUPLES = frozenset(b"t\x85\x86\x87")
TUPLES_MAX, FEW_TUPLES = 2000, 50
# What must not stand in a small value, if it is not to be looked at: DUP, memo, extension codes, globals, frames; and
# GLOBAL, INST and PUT, whose arguments are lines.
_suspect = re.compile(rb"[2q\x80\x82-\x84\x93-\x97]").search
_line = re.compile(rb"[cip][^\n]*\n").search


class Trust:
    """What a handle may unpickle.

    Parameters
    ----------
    trusted : bool
        Everything: plain pickle.
    allow : iterable of classes and functions
        Besides what is always allowed: these exactly, not their subclasses. An Enum is allowed with its members.

    Raises
    ------
    TypeError
        If something in `allow` is no class or function that can be imported by its name.
    """

    __slots__ = ("trusted", "_allowed")

    def __init__(self, trusted: bool = False, allow: Iterable[Any] = ()) -> None:
        self.trusted = bool(trusted)
        self._allowed: dict[Name, Any] = {}
        if isinstance(allow, (str, type)) or not isinstance(allow, Iterable):
            raise TypeError(f"allow takes a list of classes and functions, not {allow!r}")
        for entry in allow:
            name: Any = (getattr(entry, "__module__", None), getattr(entry, "__qualname__", None))
            try:
                found = rules.resolve(name) if callable(entry) and all(type(n) is str for n in name) else None
            except (ImportError, AttributeError, ValueError):
                found = None
            if found is not entry or entry is None:
                raise TypeError(f"allow takes classes and functions that can be imported by their names, not {entry!r}")
            self._allowed[name] = entry
            self._allowed[public_name(*name)] = entry

    def decode(self, ops: Buffer) -> Any:
        """Unpickle a value's opcodes.

        Parameters
        ----------
        ops : buffer
            Without PROTO and STOP.

        Raises
        ------
        UntrustedError
            If they name something that is not allowed, or do with it what it is not there for. Nothing of it was run.
        CorruptError
            If they are no pickle, or hold what the class that it is meant for refuses.
        Exception
            Whatever the classes and functions of `allow` raise; ImportError or AttributeError if an allowed name is
            not there.

        Notes
        -----
        Plain values cost what they cost plain pickle and a scan, others about a microsecond more for each object.
        """
        if self.trusted:
            return decode_pickled(ops)
        data = bytes(ops)
        if (len(data) > TUPLES_MAX or b"r" in data or _suspect(data) or b"\n" in data and _line(data)) and \
                not _is_plain(data):
            return _Machine(self, data).run()
        try:
            found = pickle.loads(b"".join((BEFORE_VALUE, data, BEHIND_VALUE)))
        except MemoryError:
            indices_put(data)               # finds a damaged size
            raise
        except Exception as exc:
            raise CorruptError(f"a value's opcodes are damaged: {exc}") from exc
        return the_value(found)

    def check(self, stream: bytes) -> None:
        """Raise UntrustedError if `decode` would refuse a global of a pickle made by the C pickler.

        Parameters
        ----------
        stream : bytes
            Its raw output at protocol 4.
        """
        if not self.trusted:
            names = _Names(stream)
            names.load()
            for name in names.found:
                if self._rule(name) is None:
                    raise _untrusted(name, "could not be read back by this handle: it names {0}")

    def _rule(self, name: Name) -> Optional[Rule]:
        rule = rules.STANDARD.get(name) or rules.NUMPY.get(name) or libraries.NAMES.get(name)
        if rule is None and name in rules.HIDDEN:
            return rules.HIDDEN[name].rule
        if rule is None and name in self._allowed:
            return _FREE_CLASS if isinstance(self._allowed[name], type) else _FREE
        return rules.find(name) if rule is None else rule

    def find(self, name: Name) -> tuple[Any, Rule]:
        """Return what a name stands for, and its rule.

        Raises
        ------
        UntrustedError
        ImportError, AttributeError
            If it is not there.
        """
        known = _found.get(name)
        if known is not None:
            return known
        rule = self._rule(name)
        if rule is None:
            raise _untrusted(name, "would import {0}")
        if rule.free:
            return self._allowed[name], rule
        token = rules.HIDDEN.get(name)
        known = (token or rules.resolve(name), rule)
        _found[name] = known
        return known


_found: dict[Name, tuple[Any, Rule]] = {}


def _untrusted(name: Name, what: str) -> UntrustedError:
    """Return the error for a global: what would happen, and the remedy."""
    full = _shown(name)
    try:
        is_class = isinstance(_loaded(name), type)
    except AttributeError:
        is_class = False
    what_it_is = "you trust that class" if is_class else "it is a class or function that may be called"
    # As it is called where it was defined, if that is the script.
    remedy = f"Pass allow=[{full if name[0] != '__main__' else _shown(name[1:])}] if {what_it_is}"
    return UntrustedError(f"the value {what.format(full)}, which is not allowed. {remedy}, or trusted=True if you "
                          "trust whoever wrote the file.", full)


def _shown(name: Iterable[str]) -> str:
    """Return a name as text that is safe to print."""
    full = ".".join(name)
    return full if full.isprintable() and len(full) <= 200 else ascii(full[:200])


def _loaded(name: Name) -> Any:
    """Return what a name stands for if its module is imported already, without running anything."""
    found: Any = sys.modules.get(name[0])
    for part in name[1].split("."):
        found = vars(found)[part] if hasattr(found, "__dict__") and part in vars(found) else None
    return found


def _is_plain(data: bytes) -> bool:
    """Whether opcodes can be left to the C unpickler: no globals, nothing that takes for ever or overflows the stack.

    Raises
    ------
    CorruptError
        If their memo indices do not follow each other: an unpickler's memo is as long as the highest one.
    """
    run_of = _plain_run_but_tuples if len(data) > TUPLES_MAX else _plain_run
    at, tuples, puts = 0, 0, array("I")
    while True:
        for _, op, argument, at in opcodes_between(run_of, data, at):
            if op in _TUPLES:
                tuples += 1
                if tuples > TUPLES_MAX or data[at:at + 1] == b"r":
                    return False
                if tuples == FEW_TUPLES and sum(data.count(bytes((t,)), at) for t in _TUPLES) < TUPLES_MAX - tuples:
                    run_of = _plain_run         # at most so many of these bytes are opcodes
                    break
            elif op == fmt.LONG_BINPUT:
                puts.append(argument)
            elif op not in _COUNTED:
                return False
        else:
            return _first_put(puts) <= SPARSE_MEMO      # else to be numbered anew


def _first_put(puts: array[int]) -> int:
    """Return the first memo index, 0 if there is none; raise CorruptError if they do not follow each other."""
    first = puts[0] if puts else 0
    if any(map(ne, puts, count(first))):
        raise CorruptError("a value's opcodes are damaged: its memo indices do not follow each other")
    return first


def _disarm(data: bytes) -> list[Any]:
    """Return the pieces of opcodes that do as `data`, but leave every deed to `persistent_load`.

    Raises
    ------
    CorruptError
        If there are opcodes that no value has, or memo indices that do not follow each other.
    """
    pieces: list[Any] = [BEFORE_VALUE]
    view = memoryview(data)
    kept, puts = 0, array("I")
    for at, op, argument, end in opcodes_between(_inert_run, data):
        if op in _ACTIONS:
            pieces += (view[kept:at], _ACTIONS[op])
            kept = end
        elif op == fmt.LONG_BINPUT:
            puts.append(argument)
        elif op not in _COUNTED:
            raise CorruptError(f"a value's opcodes are damaged: none has the opcode 0x{op:02x}")
    first = _first_put(puts)
    if first > SPARSE_MEMO:
        return _disarm(_from_zero(data, first))
    pieces += (view[kept:], BEHIND_VALUE)
    return pieces


class _Names(pickle.Unpickler):
    """Runs a whole pickle without its deeds, to see which globals it names."""

    def __init__(self, stream: bytes) -> None:
        self.found: set[Name] = set()
        pieces: list[Any] = []
        view = memoryview(stream)
        kept = 0
        for at, op, argument, end in opcodes_between(_named_run, stream):
            if op in _ACTIONS:
                action = _ACTIONS[op]
            elif op == fmt.FRAME:
                action = b""
            elif op in EXTENSIONS:
                # The unpickler would keep what `find_class` gives, for everybody.
                self.find_class(*copyreg._inverted_registry[argument])      # type: ignore[attr-defined]
                action = b"N"
            elif end - at > NAME_MAX:
                action = b"N"
            else:
                continue
            pieces += (view[kept:at], action)
            kept = end
        pieces.append(view[kept:])
        super().__init__(opcode_file(pieces))

    def find_class(self, module: str, name: str) -> Any:
        self.found.add(public_name(module, name))

    def persistent_load(self, deed: Any) -> Any:
        return None


def _from_zero(data: bytes, first: int) -> bytes:
    try:
        return shift_memo(data, -first)
    except (OverflowError, pickle.PickleError) as exc:
        raise CorruptError(f"a value's opcodes are damaged: {exc}") from exc


class _Machine(pickle.Unpickler):
    """Runs one value's opcodes, its deeds by the rules."""

    def __init__(self, trust: Trust, data: bytes) -> None:
        super().__init__(opcode_file(_disarm(data)))
        self.trust = trust
        self._rules: dict[int, tuple[Any, Rule]] = {}       # id of a global -> itself and its rule
        self._fresh: dict[int, Any] = {}                    # id of an object without a state yet -> itself
        self._dtypes: dict[int, tuple[Any, int, int]] = {}  # id of a dtype -> itself, depth, parts
        self._last: set[type] = set()                       # types of the last objects to be hashed
        self._kinds: Optional[tuple[Any, set[type]]] = None     # the last array of objects, and their types
        self._own: Optional[BaseException] = None           # raised by what the caller allows
        self._nested: list[Any] = []                        # objects that are freed by recursion, in their order
        size = len(data)
        self._bytes = FREE_BYTES + COPIES * size
        self._unpacked = FREE_BYTES + RATIO * size
        self._steps = FREE_STEPS + STEPS * size

    def run(self) -> Any:
        """Return the value."""
        error: Optional[BaseException] = None
        try:
            found = the_value(self.load())
            for made in self._fresh.values():
                rule = self.rule(type(made))
                if rule is not None and rule.must:
                    raise CorruptError(f"a value holds an object of {type(made).__qualname__} without its state")
            if len(self._nested) > NESTED_MAX and _is_too_deep(self._nested):
                raise CorruptError("a value's objects are nested too deeply, or in circles")
            return found
        except (UntrustedError, CorruptError, MemoryError) as exc:
            error = exc
        except Exception as exc:
            error = exc
            if exc is not self._own:
                error = CorruptError(f"a value's opcodes are damaged: {type(exc).__name__}: {exc}")
                error.__cause__ = exc
        if len(self._nested) > NESTED_MAX:
            # What the tracebacks hold would be freed by recursion.
            found = made = None
            last: Optional[BaseException] = error
            while last is not None:
                last.__traceback__, last = None, last.__cause__ or last.__context__
            super().__init__(io.BytesIO())              # drops its stack and memo
            self._fresh.clear()
            _take_apart(self._nested)
        try:
            raise error
        finally:
            # A frame that holds its own exception is a cycle: what was made would live until the collector runs.
            del error
            self._own = None

    # -- what the unpickler asks for ----------------------------------------------------------------------------------

    def find_class(self, module: str, name: str) -> Any:
        try:
            found, rule = self.trust.find((module, name))
        except (ImportError, AttributeError) as exc:
            self._own = exc
            raise
        self._rules[id(found)] = found, rule
        return found

    def persistent_load(self, deed: tuple[Any, ...]) -> Any:
        return _DEEDS[deed[-1]](self, *deed[:-1])

    def _reduce(self, target: Any, args: Any) -> Any:
        known = self._rules.get(id(target))
        rule = known[1] if known is not None else target.rule if type(target) in rules.TOKENS else None
        if rule is None or rule.call is None or type(args) is not tuple:
            raise self._refused(target, "would call")
        try:
            return self._note(rule.call(self, target, args))
        except Refusal as exc:
            raise self._refused(target, "would call", exc) from None
        except Exception as exc:
            if rule.free:
                self._own = exc
            raise

    def _new(self, target: Any, args: Any, kwargs: Any = None) -> Any:
        known = self._rules.get(id(target))
        if known is None or known[1].new is None or type(args) is not tuple or type(kwargs) not in (dict, type(None)):
            raise self._refused(target, "would make an object of")
        try:
            return known[1].new(self, target, args, kwargs or {})
        except Refusal as exc:
            raise self._refused(target, "would make an object of", exc) from None
        except Exception as exc:
            if known[1].free:
                self._own = exc
            raise

    def _new_ex(self, operands: tuple[Any, Any, Any]) -> Any:
        return self._new(*operands)

    def _build(self, made: Any, state: Any) -> Any:
        # An object gets its state once: numpy frees the memory of an array that gets another, whoever looks at it.
        if self._fresh.pop(id(made), None) is not made:
            raise self._refused(made if id(made) in self._rules else type(made), "would set the state of", Refusal(
                "which has one, or is no object that was made for it"))
        rule = self.rule(type(made))
        if rule is None or rule.build is None:
            raise self._refused(type(made), "would set the state of")
        try:
            rule.build(self, made, state)
        except Refusal as exc:
            raise self._refused(type(made), "would set the state of", exc) from None
        except Exception as exc:
            if rule.free:
                self._own = exc
            raise
        if type(made) is np.ndarray and made.dtype.hasobject:
            self._kinds = made, self._last
        return self._note(made)

    def _note(self, made: Any) -> Any:
        if type(made) in _NESTED or isinstance(made, (np.ndarray, np.void)) and made.dtype.hasobject:
            self._nested.append(made)
        return made

    def _append(self, target: Any, item: Any) -> Any:
        return self._appends(target, [item])

    def _appends(self, target: Any, items: list[Any]) -> Any:
        if type(target) is list:
            target.extend(items)
        else:
            self._grow(target, "append", lambda: _extend(target, items))
        return target

    def _setitem(self, operands: tuple[Any, Any, Any]) -> Any:
        return self._setitems(operands[0], [operands[1], operands[2]])

    def _setitems(self, target: Any, items: list[Any]) -> Any:
        keys = items[::2]
        if len(items) % 2:
            raise CorruptError("a value's opcodes are damaged: a key without a value")
        self._hash_all(keys)
        if type(target) is dict:
            target.update(zip(keys, items[1::2]))
        else:
            def fill() -> None:
                for key, value in zip(keys, items[1::2]):
                    target[key] = value
            self._grow(target, "setitem", fill)
        return target

    def _additems(self, target: Any, items: list[Any]) -> Any:
        self._hash_all(items)
        if type(target) is set:
            target.update(items)
        else:
            def fill() -> None:
                for item in items:
                    target.add(item)
            self._grow(target, "add", fill)
        return target

    def _frozenset(self, items: list[Any]) -> Any:
        self._hash_all(items)
        return frozenset(items)

    def _dict(self, items: list[Any]) -> Any:
        return self._setitems({}, items)

    def _grow(self, target: Any, how: str, fill: Any) -> None:
        rule = self.rule(type(target))
        if id(target) in self._rules or rule is None or how not in rule.grow:
            raise self._refused(type(target), "would put items into an object of")
        try:
            fill()
        except Exception as exc:
            if rule.free:
                self._own = exc
            raise

    def _refused(self, target: Any, what: str, why: Optional[Refusal] = None) -> UntrustedError:
        if isinstance(target, Token):
            return UntrustedError(f"the value {what} {target!r}, {why or 'which is not there for it'}. Pass "
                                  "trusted=True if you trust whoever wrote the file.", repr(target))
        if not isinstance(target, type) and id(target) not in self._rules:
            target = type(target)
        name = (str(getattr(target, "__module__", "?")), str(getattr(target, "__qualname__", target)))
        if why is None and self.rule(target) is None:
            return _untrusted(name, what + " {0}")
        full = _shown(name)
        return UntrustedError(f"the value {what} {full} {why or 'which is not there for it'}. Pass trusted=True if you "
                              "trust whoever wrote the file.", full)

    # -- what the rules ask for ---------------------------------------------------------------------------------------

    def rule(self, target: Any) -> Optional[Rule]:
        known = self._rules.get(id(target))
        if known is not None:
            return known[1]
        if isinstance(target, type):
            # Not named itself: made by a function that was.
            module, name = target.__module__, target.__qualname__
            while module:
                if self.trust._rule((module, name)) is not None:
                    try:
                        found, rule = self.trust.find((module, name))
                    except (ImportError, AttributeError):
                        break
                    if found is target:
                        self._rules[id(found)] = found, rule
                        return rule
                module = module.rpartition(".")[0]
        return None

    def fresh(self, made: Any) -> Any:
        self._fresh[id(made)] = made
        return made

    def ready(self, made: Any) -> bool:
        if id(made) not in self._fresh:
            return True
        rule = self.rule(type(made))
        return rule is not None and not rule.must

    def spend(self, nbytes: int) -> None:
        self._bytes -= nbytes
        if self._bytes < 0:
            raise Refusal("which would take more memory than a record of this size may")

    def unpack(self, nbytes: int) -> int:
        self._unpacked -= nbytes
        return self._unpacked

    def _hash_all(self, items: list[Any]) -> None:
        if not _ATOMS.issuperset(map(type, items)):
            try:
                self.hashed(items)
            except Refusal as exc:
                raise CorruptError(f"a value holds keys that cannot be hashed: {exc}") from None

    def kinds(self, array: np.ndarray[Any, Any]) -> set[type]:
        known = self._kinds
        return known[1] if known is not None and known[0] is array else set(map(type, array.ravel("K").tolist()))

    def hashed(self, items: Iterable[Any]) -> None:
        kinds = set(map(type, items))
        self._last = kinds
        if kinds <= _ATOMS:
            return
        pending: list[tuple[Any, int]] = [(items, 0)]
        steps = 0
        while pending:
            part, depth = pending.pop()
            for item in part:
                steps += 1
                if type(item) in _ATOMS:
                    continue
                if isinstance(item, tuple):
                    pending.append((item, depth + 1))
                elif type(item) is slice:
                    pending.append(((item.start, item.stop, item.step), depth + 1))
                elif isinstance(item, np.void) and item.dtype.hasobject:
                    raise Refusal("it holds records of objects")
            if steps > self._steps or depth > HASH_DEPTH:
                raise Refusal("its tuples are nested too deeply, or one into another again and again")
        self._steps -= steps

    def weigh(self, dtype: np.dtype[Any]) -> None:
        self._steps -= self._weight(dtype)[1]
        if self._steps < 0:
            raise Refusal("which would take too long")

    def _weight(self, dtype: np.dtype[Any], above: int = 0) -> tuple[int, int]:
        known = self._dtypes.get(id(dtype))
        if known is not None:
            return known[1:]
        depth, parts = 0, 1
        below = [] if dtype.base is dtype else [dtype.base]
        if dtype.fields is not None:
            below += [dtype.fields[name][0] for name in dtype.names or ()]
        if above > DTYPE_DEPTH:
            raise Refusal("of a structure that is nested too deeply")
        for part in below:
            found = self._weight(part, above + 1)
            depth, parts = max(depth, found[0] + 1), parts + found[1]
        if depth > DTYPE_DEPTH or parts > DTYPE_PARTS:
            raise Refusal("of a structure of too many parts")
        self._dtypes[id(dtype)] = dtype, depth, parts
        return depth, parts


# -- nesting ---------------------------------------------------------------------------------------------------------

NESTED_MAX = 500
_NESTED = frozenset((slice, collections.deque, collections.defaultdict, time.struct_time))
_LEAVES = (type, str, bytes, int, float, np.dtype, np.ufunc, Token, types.ModuleType, types.FunctionType,
           types.BuiltinFunctionType)


def _parts(x: Any) -> list[Any]:
    """Return the objects that `x` holds."""
    if isinstance(x, np.void):
        return list(x.item()) if x.dtype.hasobject else []
    held = gc.get_referents(x)
    if isinstance(x, np.ndarray) and x.dtype.hasobject:
        held += x.view(np.ndarray).ravel().tolist()
    return held


def _is_too_deep(nested: list[Any]) -> bool:
    """Whether more than `NESTED_MAX` of these objects stand one in another, or one in itself.

    Python frees lists, tuples and dicts with a bounded stack, however deep they are; not so numpy's arrays of objects,
    deques, slices and some others, each of which frees what it holds before it returns.
    """
    own = {id(x) for x in nested}
    depths: dict[int, int] = {}             # -1: under way
    kept: list[Any] = []                    # so that no identity is used twice
    path: list[list[Any]] = []              # each an object, its parts to come, the depth of those that came

    def enter(x: Any) -> None:
        depths[id(x)] = -1
        kept.append(_parts(x))
        path.append([x, iter(kept[-1]), 0])

    for start in nested:
        if id(start) not in depths:
            enter(start)
        while path:
            top = path[-1]
            for part in top[1]:
                if part is None or isinstance(part, _LEAVES):
                    continue
                known = depths.get(id(part))
                if known is None:
                    enter(part)
                    break
                if known < 0:
                    return True
                top[2] = max(top[2], known)
            else:
                depth = top[2] + (id(top[0]) in own)
                if depth > NESTED_MAX:
                    return True
                depths[id(top[0])] = depth
                path.pop()
                if path:
                    path[-1][2] = max(path[-1][2], depth)
    return False


def _take_apart(nested: list[Any]) -> None:
    """Free objects that are nested deeply, one by one: all of them are in the list, and nothing else holds any."""
    for x in nested:
        if isinstance(x, (collections.deque, dict)):
            x.clear()
        elif isinstance(x, np.ndarray):
            x.view(np.ndarray)[...] = np.zeros((), x.dtype)
    x = None                # else the last, which may hold all others, would be freed at once, by recursion
    # Those that cannot be changed hold only older ones.
    while nested:
        nested.pop()


_ATOMS = frozenset((*rules.PLAIN, frozenset, *(np.dtype(code).type for code in "?bBhHiIlLqQefdFDSUMm")))
_DEEDS = (_Machine._reduce, _Machine._new, _Machine._build, _Machine._append, _Machine._appends, _Machine._setitems,
          _Machine._additems, _Machine._frozenset, _Machine._dict, _Machine._new_ex, _Machine._setitem)


def _extend(target: Any, items: list[Any]) -> None:
    extend = getattr(target, "extend", None)
    if extend is not None:
        extend(items)
    else:
        for item in items:
            target.append(item)


# -- what the caller allows ------------------------------------------------------------------------------------------

def _free_call(machine: Any, target: Any, args: tuple[Any, ...]) -> Any:
    return _free_fresh(machine, target(*args))


def _free_new(machine: Any, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _free_fresh(machine, target.__new__(target, *args, **kwargs))


def _free_fresh(machine: Any, made: Any) -> Any:
    if isinstance(made, type):
        return made
    rule = machine.rule(type(made))
    return machine.fresh(made) if rule is not None and rule.free else made


def _free_build(machine: Any, made: Any, state: Any) -> None:
    """Give an instance of an allowed class its state as pickle does, but for its special names.

    ``__class__`` among its slots would make it an instance of another class, whose rule has checked nothing.
    """
    setstate = getattr(type(made), "__setstate__", None)
    if setstate is np.ndarray.__setstate__:
        rules.check_array_state(machine, state)
    if setstate is not None:
        setstate(made, state)
        return
    slots = None
    if type(state) is tuple and len(state) == 2:
        state, slots = state
    if state:
        rules.need(isinstance(state, dict), "a state that is no dict")
        made.__dict__.update(state)
    for name, value in rules.names_of(slots).items() if slots else ():
        setattr(made, name, value)


_FREE = Rule(_free_call, free=True)
_FREE_CLASS = Rule(_free_call, _free_new, _free_build, frozenset(("append", "setitem", "add")), True)
