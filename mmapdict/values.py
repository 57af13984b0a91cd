"""Values <-> the opcodes of a record's body.

Arrays and masked arrays have fixed recipes, which name only `numpy.ndarray`, `numpy.dtype` and
`numpy.ma.MaskedArray`; `decode` reads them by their grammar, without an unpickler, and hands out views of the
file. Everything else is pickled at protocol 4, with public numpy names only, and its opcodes are rewritten so
that they can stand in the middle of another pickle: no PROTO, FRAME or STOP, memo indices of their own.
"""
from __future__ import annotations

import copyreg
import io
import pickle
import pickletools
import re
import sys
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from . import format as fmt
from .errors import CorruptError
from .format import Buffer, Payload
from .views import Root, map_array, map_masked, memmap

ARRAY, MASKED, VALUE = "array", "masked", "value"

_get = {i: bytes((fmt.BINGET, i)) for i in (fmt.NDARRAY, fmt.DTYPE, fmt.NO_ROWS, fmt.UINT8,
                                           fmt.MASKED_ARRAY, fmt.NOMASK)}
_NDARRAY = _get[fmt.NDARRAY]
# numpy.ndarray.__new__(numpy.ndarray, (0,)), then the state that __setstate__ takes: version 1, ...
_BUILD = _NDARRAY + _get[fmt.NO_ROWS] + b"\x81(K\x01"
_BUILT = b"tb"
_MASKED = _get[fmt.MASKED_ARRAY] + b"("
# dtype=None, copy=False, subok=True, ndmin=0
_MASKED_OPTIONS = b"N\x89\x88K\x00"


# -- dtypes -----------------------------------------------------------------------------------------------------

def dtype_spec(dtype: np.dtype[Any]) -> Any:
    """Return a description of plain Python types that `numpy.dtype` turns into `dtype` again.

    A text for simple types, ``(base, shape)`` for sub-arrays, a dict of names, formats, offsets, titles, item
    size and alignment for structured types. It is exact for every dtype that `is_mappable` accepts.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return dtype_spec(base), tuple(map(int, shape))
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]      # type: ignore[index]
    spec = {"names": list(dtype.names), "formats": [dtype_spec(f[0]) for f in fields],
            "offsets": [int(f[1]) for f in fields], "itemsize": int(dtype.itemsize)}
    if any(len(f) > 2 for f in fields):
        spec["titles"] = [f[2] if len(f) > 2 else None for f in fields]
    if dtype.isalignedstruct:
        spec["aligned"] = True
    return spec


def _same_dtype(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether two dtypes agree in all that `repr`, fields and metadata show; ``==`` looks away from some."""
    if a is b:
        return True
    if a != b or a.type is not b.type or a.str != b.str or a.itemsize != b.itemsize or a.metadata != b.metadata:
        return False
    if a.isalignedstruct != b.isalignedstruct or a.names != b.names:
        return False
    if a.subdtype is not None or b.subdtype is not None:
        return (a.subdtype is not None and b.subdtype is not None and a.subdtype[1] == b.subdtype[1]
                and _same_dtype(a.subdtype[0], b.subdtype[0]))
    if a.fields is not None and b.fields is not None:
        return all(_same_dtype(a.fields[n][0], b.fields[n][0]) and a.fields[n][1:] == b.fields[n][1:]
                   for n in a.fields)
    return True


class _DtypeOps(NamedTuple):
    ops: bytes           # push the dtype
    foreign: bool        # BUILD would turn its byte order into the native one
    alignment: int


_dtype_ops: dict[str, _DtypeOps] = {}


def _encode_dtype(dtype: np.dtype[Any]) -> Optional[_DtypeOps]:
    """Return how `dtype` is written, or None if it cannot stand in an array record."""
    simple = dtype.names is None and dtype.subdtype is None and dtype.metadata is None
    if simple:
        known = _dtype_ops.get(dtype.str)
        if known is not None and not dtype.hasobject:
            return known
    if dtype.hasobject:
        return None
    try:
        spec = dtype_spec(dtype)
        if not _same_dtype(np.dtype(spec), dtype):
            return None                  # metadata, numpy.record, user-defined types
        literal = fmt.encode_literal(spec)
    except (TypeError, ValueError):
        return None
    # numpy's __setstate__ looks at the dtype's own byte order only, and that of structures is "not applicable".
    foreign = dtype.byteorder not in "=|" and not dtype.isnative
    encoded = _DtypeOps(_get[fmt.DTYPE] + literal + b"\x85R", foreign, dtype.alignment)
    if simple:
        _dtype_ops[dtype.str] = encoded
    return encoded


def is_mappable(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of `dtype` are stored as raw bytes and handed out as views of the file."""
    return _encode_dtype(dtype) is not None


# -- encoding ---------------------------------------------------------------------------------------------------

class Encoded(NamedTuple):
    """A value, ready to be laid out in a record.

    Attributes
    ----------
    parts : list of (bytes, Payload, ..., bytes)
        The opcodes that push the value.
    groups : int
        Which groups of hidden globals it needs: ARRAYS, ARRAYS | MASKS or 0.
    memo : int
        How many memo indices it uses, from `base` on.
    kind : str
        ARRAY, MASKED or VALUE.
    """

    parts: list[Union[bytes, Payload]]
    groups: int
    memo: int
    kind: str
    base: int = 0


def encode(value: Any, base: int) -> Encoded:
    """Turn any picklable value into opcodes.

    Parameters
    ----------
    value : object
    base : int
        The first free memo index.

    Raises
    ------
    Exception
        Whatever pickling `value` raises.
    """
    t = type(value)
    if t is np.ndarray or t is memmap or t is np.memmap:
        dtype = _encode_dtype(value.dtype)
        if dtype is not None:
            return Encoded(_array_parts(np.asarray(value), dtype), fmt.ARRAYS, 0, ARRAY)
    elif t is np.ma.MaskedArray and value._baseclass is np.ndarray:
        encoded = _masked(value)
        if encoded is not None:
            return encoded
    return _pickled(value, base)


def encode_hole(shape: tuple[int, ...], dtype: np.dtype[Any], order: str, mask: bool) -> Encoded:
    """Turn a hole into opcodes: an array (or a masked one) whose bytes are zeros and are not given.

    Raises
    ------
    TypeError
        If the dtype holds objects or cannot be told exactly by plain text.
    """
    ops = _encode_dtype(dtype)
    if ops is None:
        why = "it holds Python objects" if dtype.hasobject else "it has metadata or a type of its own"
        raise TypeError(f"an array of dtype {dtype!r} cannot be mapped: {why}")
    data = _array_ops(shape, ops, order, dtype.itemsize, None)
    if not mask:
        return Encoded(data, fmt.ARRAYS, 0, ARRAY)
    mask_dtype = np.ma.make_mask_descr(dtype)
    mask_ops = _encode_dtype(mask_dtype)
    assert mask_ops is not None
    masks = _array_ops(shape, mask_ops, order, mask_dtype.itemsize, None)
    return Encoded(_masked_parts(data, masks, b"N", False), fmt.ARRAYS | fmt.MASKS, 0, MASKED)


def array_order(array: np.ndarray[Any, Any]) -> str:
    """Return ``"F"`` for an array that is contiguous in Fortran order only, else ``"C"``."""
    flags = array.flags
    return "F" if flags.f_contiguous and not flags.c_contiguous else "C"


def _array_parts(a: np.ndarray[Any, Any], dtype: _DtypeOps) -> list[Union[bytes, Payload]]:
    order = array_order(a)
    return _array_ops(a.shape, dtype, order, a.itemsize, a)


def _array_ops(shape: tuple[int, ...], dtype: _DtypeOps, order: str, itemsize: int,
               data: Optional[np.ndarray[Any, Any]]) -> list[Union[bytes, Payload]]:
    """Return the parts of an array; `data` None makes a hole."""
    nbytes = itemsize
    for n in shape:
        nbytes *= n
    literal = fmt.encode_literal(shape)
    if not dtype.foreign and (nbytes % 8 == 0 or nbytes <= fmt.BIG_PAYLOAD):
        flag = b"\x88" if order == "F" else b"\x89"
        payload = fmt.array_payload(data, nbytes, dtype.alignment)
        return [_BUILD + literal + dtype.ops + flag, payload, _BUILT]
    # BUILD would swap the bytes, or the payload would end at an odd place: a view of a padded uint8 array.
    padded = nbytes + -nbytes % 8
    payload = fmt.array_payload(data, padded, dtype.alignment)
    head = _NDARRAY + b"(" + literal + dtype.ops + _BUILD + b"(" + fmt.encode_literal(padded) + b"t"
    tail = _BUILT + (b"K\x00N\x8c\x01Ft\x81" if order == "F" else b"t\x81")
    return [head + _get[fmt.UINT8] + b"\x89", payload, tail]


def _masked(x: Any) -> Optional[Encoded]:
    """Return the recipe of a masked array, or None if its dtype cannot be mapped."""
    data = x._data
    dtype = _encode_dtype(data.dtype)
    if dtype is None:
        return None
    parts = _array_parts(data, dtype)
    mask: Any = None
    if x._mask is not np.ma.nomask:
        mask_ops = _encode_dtype(x._mask.dtype)
        assert mask_ops is not None          # booleans in the structure of a mappable dtype
        mask = _array_parts(np.asarray(x._mask, order=array_order(data)), mask_ops)     # type: ignore[call-overload]
    fill: bytes = b"N"
    if x._fill_value is not None:
        # A small 0-d array in one run of opcodes: it is copied, not mapped.
        pieces = _array_parts(np.asarray(x._fill_value, data.dtype), dtype)
        fill = b"".join(p if isinstance(p, bytes) else p.head + raw_bytes(p) for p in pieces)
    return Encoded(_masked_parts(parts, mask, fill, bool(x._hardmask)), fmt.ARRAYS | fmt.MASKS, 0, MASKED)


def _masked_parts(data: list[Any], mask: Optional[list[Any]], fill: bytes, hard: bool) -> list[Any]:
    parts: list[Any] = fmt.join_parts([_MASKED], data)
    parts = fmt.join_parts(parts, [_get[fmt.NOMASK]] if mask is None else mask)
    # ... fill_value, keep_mask=True, hard_mask
    return fmt.join_parts(parts, [_MASKED_OPTIONS + fill + b"\x88" + (b"\x88" if hard else b"\x89") + b"tR"])


PIECE = 1 << 20


def payload_pieces(payload: Payload) -> Any:
    """Yield the bytes of a payload as buffers; a contiguous array's memory is given as it is, not copied.

    Others are copied in pieces of about a megabyte, so that storing a large view needs no second array.
    """
    data = payload.data
    if not isinstance(data, np.ndarray):
        yield data
        return
    if data.flags.c_contiguous or data.flags.f_contiguous:
        flat = data.reshape(-1, order="A")       # type: ignore[call-overload]
        if data.nbytes:
            yield memoryview(flat.view(np.uint8))        # dates export no buffer of their own
    else:
        yield from _copied_pieces(data)
    if payload.nbytes > data.nbytes:
        yield bytes(payload.nbytes - data.nbytes)


def _copied_pieces(a: np.ndarray[Any, Any]) -> Any:
    """Yield a non-contiguous array's bytes in C order, in pieces of about `PIECE` bytes."""
    if a.nbytes <= PIECE or a.ndim == 0:
        if a.nbytes:
            yield a.tobytes()
        return
    row = a.nbytes // a.shape[0]
    step = max(1, PIECE // row)
    if step == 1 and row > PIECE:
        for part in a:
            yield from _copied_pieces(part)
        return
    for i in range(0, a.shape[0], step):
        yield a[i:i + step].tobytes()


def raw_bytes(payload: Payload) -> bytes:
    """Return a payload's bytes as one object."""
    return b"".join(payload_pieces(payload))


# -- pickling of everything else --------------------------------------------------------------------------------

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
    if is_mappable(dtype):
        return np.dtype, (dtype_spec(dtype),)
    return NotImplemented            # numpy's own: numpy.dtype, and names of the types it is made of


def _reduce_scalar(x: np.generic) -> Any:
    t: Any = type(x)
    if t.__module__ != "numpy":
        return NotImplemented
    if isinstance(x, (np.bool_, np.integer, np.str_, np.bytes_, np.float16, np.float32, np.float64,
                      np.complex64, np.complex128)) and not isinstance(x, np.timedelta64):
        return t, (x.item(),)
    if isinstance(x, np.object_):
        return NotImplemented
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
        ops = _encode_dtype(a.dtype)
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


def _pickled(value: Any, base: int) -> Encoded:
    out = io.BytesIO()
    _Pickler(out, 4).dump(value)
    parts, memo = rewrite(out.getbuffer(), base)
    return Encoded(parts, 0, memo, VALUE, base)


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
                new = fmt.encode_literal(spelled[index])
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
            pushed = [*pushed[-1:], (start, argument, [])]
        elif op.name in ("BINGET", "LONG_BINGET") and argument in texts:
            pushed = [*pushed[-1:], (start, texts[argument], [])]
        elif op.name == "MEMOIZE":
            if pushed:
                texts[memo] = pushed[-1][1]
                pushed[-1][2].append(memo)
            memo += 1
        elif op.name == "STACK_GLOBAL" and len(pushed) == 2:
            (first, module, made), (_, name, made_too) = pushed
            ops = fmt.encode_literal(_public_module(module, name)) + fmt.encode_literal(name)
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
    found = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)      # type: ignore[assignment]
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


# -- decoding ---------------------------------------------------------------------------------------------------

class ArrayInfo(NamedTuple):
    """Where an array stands in the file, and what it is.

    Attributes
    ----------
    shape, dtype, order : of the array; order is "C" or "F"
    offset, nbytes : int
        Of its first element, from the start of the file, and of all its elements.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str
    offset: int
    nbytes: int


class MaskedInfo(NamedTuple):
    """A masked array: its data, its mask (None: nomask), its fill value (None: not set) and hardness."""

    data: ArrayInfo
    mask: Optional[ArrayInfo]
    fill_value: Optional[np.ndarray[Any, Any]]
    hard_mask: bool


_dtypes: dict[bytes, np.dtype[Any]] = {}


class _Cursor:
    """Reads an array's opcodes one after the other; every read checks that it stays inside the record."""

    def __init__(self, buf: Buffer, base: int, pos: int, end: int) -> None:
        self.buf, self.base, self.pos, self.end = buf, base, pos - base, end - base

    def fail(self, what: str) -> CorruptError:
        return CorruptError(what, None, self.base + self.pos)

    def take(self, ops: bytes) -> bool:
        """Pass over `ops` if they stand here."""
        after = self.pos + len(ops)
        if after <= self.end and self.buf[self.pos:after] == ops:
            self.pos = after
            return True
        return False

    def need(self, ops: bytes) -> None:
        if not self.take(ops):
            raise self.fail(f"an array's opcodes are damaged: {ops!r} expected")

    def literal(self) -> Any:
        value, self.pos = fmt.decode_literal(self.buf, self.pos, self.end)
        return value

    def shape(self) -> tuple[int, ...]:
        shape = self.literal()
        if type(shape) is not tuple or not all(type(n) is int and n >= 0 for n in shape):
            raise self.fail(f"{shape!r} is not the shape of an array")
        return shape

    def dtype(self) -> np.dtype[Any]:
        start = self.pos
        self.need(_get[fmt.DTYPE])
        spec = self.literal()
        self.need(b"\x85R")
        ops = bytes(self.buf[start:self.pos])
        dtype = _dtypes.get(ops)
        if dtype is None:
            try:
                dtype = np.dtype(spec)
            except (TypeError, ValueError, KeyError, AttributeError) as exc:
                raise self.fail(f"{spec!r} is not a dtype: {exc}") from exc
            if dtype.hasobject:
                raise self.fail(f"an array of Python objects ({spec!r}) cannot be mapped")
            if len(_dtypes) < 4096:
                _dtypes[ops] = dtype
        return dtype

    def payload(self) -> tuple[int, int]:
        """Return position and size of the bytes object that stands here, and pass over it."""
        self.pos = fmt.skip_filler(self.buf, self.pos, self.end)
        op = self.buf[self.pos]
        if op not in (fmt.SHORT_BINBYTES, fmt.BINBYTES, fmt.BINBYTES8):
            raise self.fail("an array without its bytes")
        start = self.pos + 1 - _ARGUMENT[op]
        n = int.from_bytes(self.buf[self.pos + 1:start], "little")
        if start + n > self.end:
            raise self.fail(f"an array of {n} bytes runs past its record")
        self.pos = start + n
        return start, n

    def array(self) -> Optional[ArrayInfo]:
        """Return the array that starts here, or None if none does."""
        if self.take(_BUILD):
            shape, dtype = self.shape(), self.dtype()
            fortran = self.take(b"\x88")
            if not fortran:
                self.need(b"\x89")
            start, n = self.payload()
            self.need(_BUILT)
            slack = 0
        elif self.take(_NDARRAY + b"("):
            shape, dtype = self.shape(), self.dtype()
            self.need(_BUILD)
            padded = self.shape()
            self.need(_get[fmt.UINT8] + b"\x89")
            start, n = self.payload()
            self.need(_BUILT)
            fortran = self.take(b"K\x00N\x8c\x01F")
            self.need(b"t\x81")
            if padded != (n,):
                raise self.fail(f"an array's buffer of {n} bytes has the shape {padded}")
            slack = fmt.RECORD_ALIGNMENT - 1
        else:
            return None
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        if not nbytes <= n <= nbytes + slack:
            raise self.fail(f"an array of shape {shape}, dtype {dtype} needs {nbytes} bytes, and has {n}")
        return ArrayInfo(shape, dtype, "F" if fortran else "C", self.base + start, nbytes)

    def masked(self) -> Optional[MaskedInfo]:
        """Return the masked array that starts here, or None if none does."""
        if not self.take(_MASKED):
            return None
        data = self.array()
        if data is None:
            raise self.fail("a masked array without its data")
        mask = None if self.take(_get[fmt.NOMASK]) else self.array()
        self.need(_MASKED_OPTIONS)
        fill = None
        if not self.take(b"N"):
            info = self.array()
            if info is None or info.shape != () or info.dtype != data.dtype:
                raise self.fail("a masked array's fill value is damaged")
            start = info.offset - self.base
            raw = bytes(self.buf[start:start + info.nbytes])
            fill = np.ndarray((), info.dtype, raw).copy()
        self.need(b"\x88")
        hard = self.take(b"\x88")
        if not hard:
            self.need(b"\x89")
        self.need(b"tR")
        if mask is not None and (mask.shape != data.shape or mask.dtype != np.ma.make_mask_descr(data.dtype)):
            raise self.fail("a mask does not fit its array")
        return MaskedInfo(data, mask, fill, hard)


def decode_info(buf: Buffer, base: int, pos: int, end: int) -> Union[ArrayInfo, MaskedInfo, None]:
    """Read what array a value is, without touching its elements; None: it is none, but a pickled value.

    Parameters
    ----------
    buf : buffer
        Bytes of the file from offset `base` on.
    base, pos, end : int
        Where the buffer starts, and the value's opcodes start and end, in bytes from the start of the file.

    Raises
    ------
    CorruptError
        If it starts as an array and does not go on as one, or its size is not that of its bytes.
    """
    cursor = _Cursor(buf, base, pos, end)
    info: Union[ArrayInfo, MaskedInfo, None] = cursor.array()
    if info is None:
        info = cursor.masked()
        if info is None:
            return None
    cursor.pos = fmt.skip_filler(buf, cursor.pos, cursor.end)
    if cursor.pos != cursor.end:
        raise cursor.fail("opcodes behind an array that are not its own")
    return info


def map_info(info: Union[ArrayInfo, MaskedInfo], root: Root) -> Any:
    """Return the array described by `info` as a view of `root`, which holds all its bytes."""
    if isinstance(info, ArrayInfo):
        return map_array(root, info.offset - root.start, info.shape, info.dtype, info.order)
    data, mask = info.data, info.mask
    masks: Any = np.ma.nomask
    if mask is not None:
        masks = np.ndarray(mask.shape, mask.dtype, root, mask.offset - root.start, None, mask.order)
    return map_masked(root, data.offset - root.start, data.shape, data.dtype, data.order, masks,
                      None if info.fill_value is None else info.fill_value.copy(), info.hard_mask)


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
