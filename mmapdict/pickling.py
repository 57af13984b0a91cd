"""Values that are not arrays <-> opcodes that can stand in the middle of another pickle.

They are pickled by the C pickler at protocol 4, with public numpy names only, and their opcodes rewritten: no
PROTO, FRAME or STOP, no memo entry that nothing fetches, the others with indices of their own.
"""
from __future__ import annotations

import copyreg
import io
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from operator import methodcaller
from os import urandom
from typing import Any, Optional, Union

import numpy as np

from . import format as fmt
from .arrays import array_order, element_bytes, exact_spec, fill_value, same_dtype, structure_spec
from .errors import CorruptError
from .format import Buffer, Payload
from .literals import encode_literal, exact_item
from .machine import ARGUMENT_WIDTHS, SPARSE_MEMO, opcodes_between
from .views import PLAIN_ARRAYS, Root


# Scalars that their type makes again from the Python value that they equal.
EXACT_SCALARS = frozenset((np.bool_, np.str_, np.bytes_, np.float16, np.float32, np.float64, np.complex64,
                           np.complex128, *(np.dtype(code).type for code in "bBhHiIlLqQ")))


# Types whose name is not the same in every numpy: 2.0 calls bool_ "bool", 1.23 calls longdouble "float128".
_LASTING_NAMES: dict[type, str] = {np.bool_: "bool_", np.longdouble: "longdouble", np.clongdouble: "clongdouble"}
_NUMPY = (np.ndarray, np.generic, np.dtype, np.ufunc)
_StringDType: Any = getattr(getattr(np, "dtypes", None), "StringDType", ())         # since numpy 2.0


class _Pickler(pickle.Pickler):
    """Protocol 4, with the same public numpy names whatever numpy runs.

    Attributes
    ----------
    ufuncs : bool
        Whether one of numpy's ufuncs was met: pickle looks for the module that offers it, and takes any.
    plain : bool
        Whether nothing was met that is pickled by naming a class or a function.
    """

    ufuncs = False
    plain = True

    def reducer_override(self, obj: Any) -> Any:
        """Give numpy's objects reductions that every numpy from 1.23 on loads."""
        self.plain = False
        if not isinstance(obj, _NUMPY):
            return _LASTING_NAMES.get(obj, NotImplemented) if type(obj) is type else NotImplemented
        if isinstance(obj, np.ndarray):
            return "masked" if obj is np.ma.masked else _reduce_array(obj)
        if isinstance(obj, np.generic):
            return _reduce_scalar(obj)
        if isinstance(obj, np.dtype):
            return _reduce_dtype(obj)
        self.ufuncs = True
        return NotImplemented


def _reduce_dtype(dtype: np.dtype[Any]) -> Any:
    spec = exact_spec(dtype)
    if spec is not None:
        return np.dtype, (spec,)
    if isinstance(dtype, _StringDType):
        options = {name: getattr(dtype, name) for name in ("coerce", "na_object") if hasattr(dtype, name)}
        return copyreg.__newobj_ex__, (type(dtype), (), options)         # type: ignore[attr-defined]
    for spec in _type_specs(dtype):
        # dtype, align, copy, metadata
        arguments = (spec, False, True, dict(dtype.metadata)) if dtype.metadata else (spec,)
        try:
            made = np.dtype(*arguments)
        except (TypeError, ValueError):
            continue
        if same_dtype(made, dtype):
            return np.dtype, arguments
    return NotImplemented            # numpy's own: numpy.dtype, and names of the types it is made of


def _type_specs(dtype: np.dtype[Any]) -> Iterator[Any]:
    """Yield descriptions that may make `dtype`, but for its metadata, and that hold types besides plain objects."""
    if dtype.subdtype is not None:
        yield _part_spec(dtype.base), tuple(map(int, dtype.shape))
    elif dtype.names is None:
        yield from (dtype.str, dtype.type, (dtype.type, dtype.str))
    else:
        spec = structure_spec(dtype, _part_spec)
        yield spec if dtype.type is np.void else (dtype.type, spec)      # numpy.record


def _part_spec(dtype: np.dtype[Any]) -> Any:
    """Return a description of a part of a dtype: where plain objects do not tell all, the part itself."""
    spec = exact_spec(dtype) if dtype.base.names is None else None
    return dtype if spec is None else spec


def _reduce_scalar(x: Any) -> Any:
    t: Any = type(x)
    if t.__reduce__ is not np.generic.__reduce__ or t.__reduce_ex__ is not object.__reduce_ex__:
        return NotImplemented        # it has its own way
    if t in EXACT_SCALARS:
        item = exact_item(x)
        if item == item:             # else there may be more in a NaN than its type takes from a float
            return t, (item,)
    base = x.dtype.type
    array = np.array([x], x.dtype)
    if x.dtype.names is not None and not x.dtype.hasobject:
        array = np.ndarray((1,), x.dtype, bytearray(max(1, x.dtype.itemsize)))      # nothing unknown in its gaps
        array[0] = x
    if t is not base and t.__module__ != "numpy":
        # A subclass: ndarray knows nothing of it. Made as pickle makes subclasses of plain types.
        return copyreg._reconstructor, (t, base, array[0])               # type: ignore[attr-defined]
    # long doubles, dates, records: the element of an array, which numpy.take hands out as a scalar
    return np.take, (array, 0)


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    a, t = array, type(array)
    if t in PLAIN_ARRAYS or t is Root:
        a, t = array.view(np.ndarray), np.ndarray
    if t is np.ma.MaskedArray and a._baseclass in PLAIN_ARRAYS:          # type: ignore[attr-defined]
        x: Any = a
        # nomask is the one numpy.bool_(False) there is, and comes back as that.
        data = np.asarray(x._data)
        return np.ma.MaskedArray, (data, x._mask, None, False, True, 0, fill_value(x), False, x._hardmask)
    foreign = a.dtype.byteorder not in "=|" and not a.dtype.isnative
    if t is not np.ndarray and _is_plain(t) and (foreign or not _can_be_empty(t)):
        return methodcaller("view", t), (a.view(np.ndarray),)
    if t is np.ndarray and foreign:
        # __setstate__ would turn the byte order into the native one.
        raw = np.frombuffer(element_bytes(a), np.uint8)
        return np.ndarray, (a.shape, a.dtype, raw, 0, None, array_order(a))
    flags = a.flags
    if not (flags.c_contiguous or flags.f_contiguous) and (a.dtype.names is not None or a.ndim > 32):
        if t is np.ndarray and a.nbytes and not a.dtype.hasobject:
            a = np.ndarray(a.shape, a.dtype, element_bytes(a))
    reduced = a.__reduce_ex__(4)
    function = reduced[0]
    if getattr(function, "__name__", "") != "_reconstruct" or "numpy" not in function.__module__:
        if isinstance(reduced, tuple) and type(reduced[1]) is tuple:
            # A masked array notes the class of the array that it was made of; that of a mapped one is none of a file's.
            plain = tuple(np.ndarray if any(x is mapped for mapped in PLAIN_ARRAYS) else x for x in reduced[1])
            reduced = (function, plain, *reduced[2:])
        return reduced               # the subclass has its own way
    if t is not np.ndarray:
        # What numpy's private function does is ndarray.__new__(subclass, (0,)); so does this old function of pickle's.
        return copyreg._reconstructor, (t, np.ndarray, (0,)), reduced[2]     # type: ignore[attr-defined]
    if type(array) is np.ndarray:
        return copyreg.__newobj__, (np.ndarray, (0,)), reduced[2]        # type: ignore[attr-defined]
    return np.ndarray, ((0,),), reduced[2]          # a memmap: pickle refuses to call another class's __new__ for it


def _is_plain(t: Any) -> bool:
    """Whether instances of `t`, a subclass of ndarray, are pickled by ndarray's own methods."""
    own = ("__reduce__", "__reduce_ex__", "__setstate__")
    return all(getattr(t, name) is getattr(np.ndarray, name) for name in own)


def _can_be_empty(t: Any) -> bool:
    """Whether `t`, a subclass of ndarray, puts up with an array of no numbers; numpy.chararray does not."""
    try:
        np.ndarray.__new__(t, (0,))
    except Exception:       # whatever its ``__array_finalize__`` raises
        return False
    return True


_BIG = (fmt.BINBYTES, fmt.BINBYTES8, fmt.BINUNICODE, fmt.BINUNICODE8, fmt.LONG4)

# One or more, without a way back: the matcher need not remember each of a million opcodes.
MORE = b"++" if sys.version_info >= (3, 11) else b"+"

# Runs of opcodes that need no look: no memo, no frame, no counted argument. The C matcher skips a long list of
# numbers forty times faster than a loop would.
_PLAIN_RUN = re.compile(rb"(?s:G.{8}|K.|M..|J.{4}|[N\x88\x89()\]}taesu0Rb\x81\x85\x86\x87\x8f\x90\x91])" + MORE)
# The same, and short texts and fetching from the memo, as they stand in rewritten opcodes.
_READING_RUN = re.compile(
    rb"(?s:G.{8}|K.|M..|J.{4}|j.{4}|[N\x88\x89()\]}taesu0Rb\x81\x85\x86\x87\x8f\x90\x91\x93]|\x8c(?:"
    + b"|".join(re.escape(bytes((n,))) + b".{%d}" % n for n in range(48)) + b"))" + MORE)


_INDEXED = (fmt.BINGET, fmt.LONG_BINGET, fmt.LONG_BINPUT)
EXTENSIONS = (0x82, 0x83, 0x84)
_CHANGING = frozenset((fmt.MEMOIZE, fmt.PROTO, fmt.FRAME, fmt.STOP, *_INDEXED, *EXTENSIONS))
_PRIVATE = re.compile(rb"numpy\.")


def encode_pickled(value: Any, base: int,
                   check: Optional[Callable[[bytes], None]] = None) -> tuple[list[Union[bytes, Payload]], int]:
    """Return the opcodes that push `value`, and how many memo indices from `base` on they use.

    Parameters
    ----------
    value : object
    base : int
        The first memo index to use.
    check : function of the whole pickle, optional
        Raises if the value is not to be stored.
    """
    out = io.BytesIO()
    pickler = _Pickler(out, 4)
    pickler.dump(value)
    stream = out.getvalue()
    if check is not None and not pickler.plain:
        check(stream)
    return rewrite(stream, base, pickler.ufuncs)


def rewrite(stream: Buffer, base: int, spell: bool = False) -> tuple[list[Union[bytes, Payload]], int]:
    """Make the opcodes of a whole pickle fit to stand inside another.

    PROTO, FRAME and STOP go; so do the memo entries that nothing fetches; the others are renumbered from
    `base` on; names of private numpy modules become the public ones, and extension codes the names they stand for.

    Parameters
    ----------
    stream : buffer
        A pickle made by `pickle.Pickler` at protocol 4.
    base : int
        The first memo index to use.
    spell : bool
        Whether to look at every global, even if none seems to be of a private module.

    Returns
    -------
    parts : list of (bytes, Payload, ..., bytes)
        Texts and bytes objects longer than `BIG_PAYLOAD` are payloads.
    memo : int
        How many memo indices are used.
    """
    data = memoryview(stream)
    edits, spelled = _spell_globals(data) if spell or _PRIVATE.search(data) else ([], {})
    events = list(_interesting(data, edits))
    used = {index for _, _, op, index in events if op == fmt.BINGET or op == fmt.LONG_BINGET} - spelled.keys()
    renumbered = {old: base + new for new, old in enumerate(sorted(used))}
    if renumbered and base + len(renumbered) > fmt.MEMO_END:
        raise OverflowError("the file has no memo indices left; copy its items into a new file")
    replacements = [(start, end, text) for start, end, text in edits]
    for start, end, op, index in events:
        new: Any = b""              # PROTO, FRAME, STOP and what nothing fetches
        if op == fmt.MEMOIZE:
            if index in used:
                new = bytes((fmt.LONG_BINPUT,)) + renumbered[index].to_bytes(4, "little")
        elif op == fmt.BINGET or op == fmt.LONG_BINGET:
            if index in spelled:
                new = encode_literal(spelled[index])
            else:
                new = bytes((fmt.LONG_BINGET,)) + renumbered[index].to_bytes(4, "little")
        elif op in EXTENSIONS:
            # A code of copyreg's registry means nothing in another process.
            code = int.from_bytes(data[start + 1:end], "little")
            module, name = copyreg._inverted_registry[code]             # type: ignore[attr-defined]
            new = encode_literal(module) + encode_literal(name) + bytes((fmt.STACK_GLOBAL,))
        elif op in _BIG:
            head = start + 1 - ARGUMENT_WIDTHS[op]
            new = fmt.end_aligned(bytes(data[start:head]), data[head:end], end - head)
        replacements.append((start, end, new))
    if edits:
        replacements.sort(key=lambda r: r[0])
    pieces: list[Union[bytes, Payload]] = []
    kept = 0                        # from here on the opcodes stay as they are
    for start, end, new in replacements:
        if start > kept:
            pieces.append(bytes(data[kept:start]))
        if new:
            pieces.append(new)
        kept = end
    return fmt.split_payloads(pieces), len(renumbered)


def _interesting(data: memoryview, edits: Any = ()) -> Any:
    """Yield (start, end, opcode, memo index) of the opcodes of a C pickler's stream that may have to change.

    Parameters
    ----------
    data : memoryview
        A whole pickle of protocol 4, or a run of its opcodes.
    edits : sequence of (start, end, anything)
        Ranges whose opcodes are passed over; their MEMOIZE count all the same.
    """
    plain = _PLAIN_RUN.match
    lengths = ARGUMENT_WIDTHS
    at, n, memo = 0, len(data), 0
    ranges = iter([*edits, (n + 1, n + 1, b"")])
    skip, resume, _ = next(ranges)
    while at < n:
        run = plain(data, at)
        if run:
            at = run.end()
            if at >= n:
                return
        op = data[at]
        length = lengths[op]
        while at >= resume:
            skip, resume, _ = next(ranges)
        if length >= 0:
            end = at + 1 + length
            index = memo
            if op == fmt.MEMOIZE:
                memo += 1
            elif op in _INDEXED:
                index = int.from_bytes(data[at + 1:end], "little")
            if at < skip and op in _CHANGING:
                yield at, end, op, index
        elif length == -9:
            raise pickle.PicklingError(f"an opcode of an old protocol (0x{op:02x}) in a pickle of protocol 4")
        else:
            counted = int.from_bytes(data[at + 1:at + 1 - length], "little")
            end = at + 1 - length + counted
            if counted > fmt.BIG_PAYLOAD and op in _BIG and at < skip:
                yield at, end, op, 0
        at = end


def _spell_globals(data: memoryview) -> tuple[list[tuple[int, int, bytes]], dict[int, str]]:
    """Return the edits that give every global of a pickle its public name, spelled out.

    STACK_GLOBAL takes two texts, which the pickler pushes just before it, each spelled out and memoised or
    fetched from the memo.

    Returns
    -------
    edits : list of (start, end, bytes)
        Each replaces the opcodes from the module's text to STACK_GLOBAL.
    spelled : dict of int to str
        The memo entries that go with them; whoever fetches one of these must spell out its text.
    """
    edits: list[tuple[int, int, bytes]] = []
    spelled: dict[int, str] = {}
    texts: dict[int, slice] = {}                        # memo index -> where its text stands
    pushed: list[tuple[int, slice, list[int]]] = []     # the last texts: start, where, memo indices made

    def text(where: slice) -> str:
        return bytes(data[where]).decode("utf-8", "surrogatepass")

    behind, memo = 0, 0
    for start, op, argument, at in opcodes_between(_PLAIN_RUN.match, data):
        if start > behind:
            pushed = []
        behind = at
        if op == fmt.SHORT_BINUNICODE or op == fmt.BINUNICODE:
            pushed = [*pushed[-1:], (start, slice(at - argument, at), [])]
        elif op == fmt.MEMOIZE:
            if pushed:
                texts[memo] = pushed[-1][1]
                pushed[-1][2].append(memo)
            memo += 1
        elif op == fmt.STACK_GLOBAL and len(pushed) == 2:
            (first, where, made), (_, where_too, made_too) = pushed
            module, name = text(where), text(where_too)
            ops = encode_literal(_public_module(module, name)) + encode_literal(name)
            edits.append((first, at, ops + bytes((fmt.STACK_GLOBAL,))))
            spelled.update((i, text(texts[i])) for i in (*made, *made_too))
            pushed = []
        elif op == fmt.BINGET or op == fmt.LONG_BINGET:
            pushed = [*pushed[-1:], (start, texts[argument], [])] if argument in texts else []
        elif op != fmt.PROTO and op != fmt.FRAME:
            pushed = []
    return edits, spelled


def public_name(module: str, qualname: str) -> tuple[str, str]:
    """Return the name by which a file names what a pickle names."""
    return _public_module(module, qualname), qualname


def _public_module(module: str, qualname: str) -> str:
    """Return the public module of numpy that offers what `module` calls `qualname`, if one does, else `module`."""
    found = _attribute(module, qualname)
    if found is None or qualname.startswith("_"):
        return module
    if not module.startswith("numpy.") and not isinstance(found, np.ufunc):
        return module
    parts = module.split(".")
    public = "numpy"
    for part in (*parts[1:], ""):
        if _attribute(public, qualname) is found:
            return public
        if not part or part.startswith("_") or part == "core":
            break
        public = f"{public}.{part}"
    return module


def _attribute(module: str, qualname: str) -> Any:
    first, *rest = qualname.split(".")
    found: Any = getattr(sys.modules.get(module), "__dict__", {}).get(first)       # asks no ``__getattr__`` that warns
    for name in rest:
        found = getattr(found, name, None)
    return found


def shift_memo(ops: bytes, delta: int, least: int = 0) -> bytes:
    """Return rewritten opcodes with every memo index from `least` on raised by `delta`; their length stays the same.

    A value is pickled before the lock is taken, and the memo index that it may start at can have moved by then.
    """
    # A part behind a payload may fetch, and set nothing.
    if delta == 0 or bytes((fmt.LONG_BINPUT,)) not in ops and bytes((fmt.LONG_BINGET,)) not in ops:
        return ops
    out = bytearray(ops)
    for start, end, op, index in _interesting(memoryview(ops)):
        if op in _INDEXED and index >= least:
            out[start + 1:end] = (index + delta).to_bytes(end - start - 1, "little")
    return bytes(out)


LOOK_AHEAD = 1 << 17
# Stand around a value's opcodes when they are run. If the sentinel, which no file can know, is not there behind them,
# one of them was a STOP.
_SENTINEL = urandom(16).hex()
BEFORE_VALUE = b"\x80\x04" + encode_literal(_SENTINEL)
BEHIND_VALUE = b"\x86."


def decode_pickled(ops: Buffer) -> Any:
    """Unpickle a value's opcodes.

    Parameters
    ----------
    ops : buffer
        Without PROTO and STOP.

    Raises
    ------
    CorruptError
        If they are no pickle.
    Exception
        Whatever the value's own classes raise: one that cannot be imported, AttributeError or ImportError.
    """
    try:
        ops = bytes(ops)
        if bytes((fmt.LONG_BINPUT,)) in ops:
            # An unpickler's memo is an array as long as the highest index: a damaged one may ask for gigabytes.
            indices = indices_put(ops)
            if indices and max(indices) - min(indices) >= len(indices):
                raise CorruptError("a value's opcodes are damaged: its memo indices do not follow each other")
            if indices and max(indices) > SPARSE_MEMO:
                ops = shift_memo(ops, -min(indices))            # number them from 0 again
            # The memo lives until `the_value` has looked.
            unpickler = pickle.Unpickler(opcode_file((BEFORE_VALUE, ops, BEHIND_VALUE)))
            found = unpickler.load()
        else:
            found = pickle.loads(b"".join((BEFORE_VALUE, ops, BEHIND_VALUE)))
    except MemoryError:
        indices_put(bytes(ops))            # finds a damaged size
        raise
    except (pickle.PickleError, EOFError, IndexError, OverflowError, UnicodeDecodeError) as exc:
        raise CorruptError(f"a value's opcodes are damaged: {exc}") from exc
    return the_value(found)


def opcode_file(pieces: Iterable[Buffer]) -> Any:
    """Return a file for an unpickler, which reads byte by byte where it cannot look ahead."""
    data = b"".join(pieces)
    return io.BufferedReader(io.BytesIO(data), min(len(data), LOOK_AHEAD))


def the_value(found: Any) -> Any:
    """Return the value whose opcodes were run between `BEFORE_VALUE` and `BEHIND_VALUE`.

    Opcodes that reach below the value would find the key in the file, and the sentinel here. Then that is gone, or
    something holds it: the value, or the memo, which must not be freed before.

    Raises
    ------
    CorruptError
        They did not push one object, and that alone.
    """
    if type(found) is not tuple or len(found) != 2 or type(found[0]) is not str or found[0] != _SENTINEL \
            or _count(found) != _ALONE:
        raise CorruptError("a value's opcodes are damaged: they do not push one object")
    return found[1]


def _count(found: Any) -> int:
    return sys.getrefcount(found[0])


_ALONE = _count(pickle.loads(BEFORE_VALUE + b"N" + BEHIND_VALUE))


def highest_memo(ops: Buffer) -> int:
    """Return the first memo index above all that a value's opcodes set, or 0 if they set none."""
    return max(indices_put(bytes(ops)), default=-1) + 1


def indices_put(ops: bytes) -> list[int]:
    """Return the memo indices that rewritten opcodes set."""
    return [index for _, op, index, _ in opcodes_between(_READING_RUN.match, ops) if op == fmt.LONG_BINPUT]
