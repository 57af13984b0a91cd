"""Values that are not arrays <-> opcodes that can stand in the middle of another pickle.

They are pickled by the C pickler at protocol 4, with public numpy names only, and their opcodes rewritten: no
PROTO, FRAME or STOP, no memo entry that nothing fetches, the others with indices of their own.
"""
from __future__ import annotations

import copyreg
import io
import pickle
import pickletools
import re
import sys
from typing import Any, Union

import numpy as np

from . import format as fmt
from .arrays import array_order, dtype_spec, encode_dtype
from .errors import CorruptError
from .format import Buffer, Payload
from .literals import encode_literal
from .views import Root, memmap


# Scalars that their type makes again from the Python value that they equal.
_EXACT_SCALARS = frozenset((np.bool_, np.str_, np.bytes_, np.float16, np.float32, np.float64, np.complex64,
                            np.complex128, *(np.dtype(code).type for code in "bBhHiIlLqQ")))


class _Pickler(pickle.Pickler):
    """Protocol 4, with the same public numpy names whatever numpy runs."""

    def reducer_override(self, obj: Any) -> Any:
        """Give numpy's objects reductions that every numpy from 1.23 on loads."""
        if obj is np.ma.masked:
            return "masked"
        if isinstance(obj, np.ndarray):
            return _reduce_array(obj)
        if isinstance(obj, np.generic):
            return _reduce_scalar(obj)
        if isinstance(obj, np.dtype):
            return _reduce_dtype(obj)
        if obj is np.bool_:
            return "bool_"           # numpy 2 calls it "bool", which numpy 1.24 does not have
        return NotImplemented


def _reduce_dtype(dtype: np.dtype[Any]) -> Any:
    if encode_dtype(dtype) is not None:
        return np.dtype, (dtype_spec(dtype),)
    return NotImplemented            # numpy's own: numpy.dtype, and names of the types it is made of


def _reduce_scalar(x: np.generic) -> Any:
    t: Any = type(x)
    if t.__module__ != "numpy":
        return NotImplemented
    if t in _EXACT_SCALARS:
        return t, (x.item(),)
    # long doubles, dates, records: the element of an array, which numpy.take hands out as a scalar
    return np.take, (np.array([x], x.dtype), 0)


def _reduce_array(a: np.ndarray[Any, Any]) -> Any:
    t: Any = type(a)
    if t is memmap or t is np.memmap or t is Root:
        a, t = a.view(np.ndarray), np.ndarray
    if t is np.ma.MaskedArray and a._baseclass is np.ndarray:            # type: ignore[attr-defined]
        x: Any = a
        # nomask is the one numpy.bool_(False) there is, and comes back as that.
        return np.ma.MaskedArray, (x._data, x._mask, None, False, True, 0, x._fill_value, True, x._hardmask)
    if t is np.ndarray:
        ops = encode_dtype(a.dtype)
        if ops is not None and ops.foreign:
            # __setstate__ would turn the byte order into the native one.
            raw = np.frombuffer(a.tobytes("A"), np.uint8)
            return np.ndarray, (a.shape, a.dtype, raw, 0, None, array_order(a))
    reduced = a.__reduce_ex__(4)
    function = reduced[0]
    if getattr(function, "__name__", "") != "_reconstruct" or "numpy" not in function.__module__:
        return reduced               # the subclass has its own way
    if t is np.ndarray:
        return copyreg.__newobj__, (np.ndarray, (0,)), reduced[2]        # type: ignore[attr-defined]
    # What numpy's private function does is ndarray.__new__(subclass, (0,)); so does this old function of pickle's.
    return copyreg._reconstructor, (t, np.ndarray, (0,)), reduced[2]     # type: ignore[attr-defined]


# Length of the argument of each opcode; negative: minus the number of bytes that count what follows them.
_ARGUMENT: list[int] = [0] * 256
for _op in pickletools.opcodes:
    _n = 0 if _op.arg is None else _op.arg.n
    _ARGUMENT[ord(_op.code)] = {-1: -9, -2: -1, -3: -4, -4: -4, -5: -8}.get(_n, _n)
_BIG = (fmt.BINBYTES, fmt.BINBYTES8, fmt.BINUNICODE, fmt.BINUNICODE8, fmt.LONG4)

# Runs of opcodes that need no look: no memo, no frame, no counted argument. The C matcher skips a long list of
# numbers forty times faster than a loop would.
_PLAIN_RUN = re.compile(rb"(?s:G.{8}|K.|M..|J.{4}|[N\x88\x89()\]}taesu0Rb\x81\x85\x86\x87\x8f\x90\x91])+")


_INDEXED = (fmt.BINGET, fmt.LONG_BINGET, fmt.LONG_BINPUT)
_CHANGING = frozenset((fmt.MEMOIZE, fmt.PROTO, fmt.FRAME, fmt.STOP, *_INDEXED))
_PRIVATE = re.compile(rb"numpy\.")


def encode_pickled(value: Any, base: int) -> tuple[list[Union[bytes, Payload]], int]:
    """Return the opcodes that push `value`, and how many memo indices from `base` on they use."""
    out = io.BytesIO()
    _Pickler(out, 4).dump(value)
    return rewrite(out.getvalue(), base)


def rewrite(stream: Buffer, base: int) -> tuple[list[Union[bytes, Payload]], int]:
    """Make the opcodes of a whole pickle fit to stand inside another.

    PROTO, FRAME and STOP go; so do the memo entries that nothing fetches; the others are renumbered from
    `base` on; names of private numpy modules become the public ones.

    Parameters
    ----------
    stream : buffer
        A pickle made by `pickle.Pickler` at protocol 4.
    base : int
        The first memo index to use.

    Returns
    -------
    parts : list of (bytes, Payload, ..., bytes)
        Texts and bytes objects longer than `BIG_PAYLOAD` are payloads.
    memo : int
        How many memo indices are used.
    """
    data = memoryview(stream)
    edits, spelled = _spell_globals(data) if _PRIVATE.search(data) else ([], {})
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
        elif op in _BIG:
            head = start + 1 - _ARGUMENT[op]
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
    lengths = _ARGUMENT
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
    texts: dict[int, str] = {}
    pushed: list[tuple[int, str, list[int]]] = []       # the last texts: start, text, memo indices made
    memo = 0
    for op, argument, at in pickletools.genops(io.BytesIO(data)):
        start = at or 0
        if op.name in ("SHORT_BINUNICODE", "BINUNICODE"):
            pushed = [*pushed[-1:], (start, str(argument), [])]
        elif op.name in ("BINGET", "LONG_BINGET") and argument in texts:
            pushed = [*pushed[-1:], (start, texts[argument], [])]
        elif op.name == "MEMOIZE":
            if pushed:
                texts[memo] = pushed[-1][1]
                pushed[-1][2].append(memo)
            memo += 1
        elif op.name == "STACK_GLOBAL" and len(pushed) == 2:
            (first, module, made), (_, name, made_too) = pushed
            ops = encode_literal(_public_module(module, name)) + encode_literal(name)
            edits.append((first, start + 1, ops + bytes((fmt.STACK_GLOBAL,))))
            spelled.update((i, texts[i]) for i in (*made, *made_too))
            pushed = []
        elif op.name not in ("PROTO", "FRAME"):
            pushed = []
    return edits, spelled


def _public_module(module: str, qualname: str) -> str:
    """Return the public module of numpy that offers the object `qualname` of a private module, if one does."""
    if not module.startswith("numpy.") or module in ("numpy.ma", "numpy.random"):
        return module
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    for public in ("numpy", "numpy.ma"):
        candidate: Any = sys.modules.get(public)
        for name in qualname.split("."):
            candidate = getattr(candidate, name, None)
        if candidate is not None and candidate is found:
            return public
    return module


def shift_memo(ops: bytes, delta: int) -> bytes:
    """Return rewritten opcodes with every memo index raised by `delta`; their length stays the same.

    A value is pickled before the lock is taken, and the memo index that it may start at can have moved by then.
    """
    if delta == 0 or bytes((fmt.LONG_BINPUT,)) not in ops:
        return ops
    out = bytearray(ops)
    for start, end, op, index in _interesting(memoryview(ops)):
        if op in _INDEXED:
            out[start + 1:end] = (index + delta).to_bytes(end - start - 1, "little")
    return bytes(out)


SPARSE_MEMO = 1 << 14


def decode_pickled(ops: Buffer, memo: int) -> Any:
    """Unpickle a value's opcodes.

    Parameters
    ----------
    ops : buffer
        Without PROTO and STOP.
    memo : int
        The file's memo high-water mark.

    Raises
    ------
    CorruptError
        If they are no pickle.
    Exception
        Whatever the value's own classes raise: one that cannot be imported, AttributeError or ImportError.
    """
    if memo > SPARSE_MEMO:
        # An unpickler's memo is an array as long as the highest index: number them from 0 again.
        ops = bytes(ops)
        if bytes((fmt.LONG_BINPUT,)) in ops:
            indices = [index for _, _, op, index in _interesting(memoryview(ops)) if op in _INDEXED]
            ops = shift_memo(ops, -min(indices)) if indices else ops
    try:
        return pickle.loads(b"".join((b"\x80\x04", ops, b".")))
    except (pickle.UnpicklingError, EOFError) as exc:
        raise CorruptError(f"a value's opcodes are damaged: {exc}") from exc


def highest_memo(ops: Buffer) -> int:
    """Return the first memo index above all that a value's opcodes set, or 0 if they set none."""
    data = bytes(ops)
    if bytes((fmt.LONG_BINPUT,)) not in data:
        return 0
    return max((index + 1 for _, _, op, index in _interesting(memoryview(data)) if op == fmt.LONG_BINPUT), default=0)
