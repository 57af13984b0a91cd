"""Arrays and masked arrays <-> the opcodes of a record's body.

They have fixed recipes, which name only `numpy.ndarray`, `numpy.dtype` and `numpy.ma.MaskedArray` (the hidden
globals of format.GROUPS). They are read by their grammar, without an unpickler, and handed out as views of the
file.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, Optional, Union

import numpy as np

from . import format as fmt
from .errors import CorruptError
from .format import Buffer, Payload
from .literals import ARGUMENT_SIZES, decode_literal, encode_literal, shown, skip_filler
from .views import Root, map_array, map_masked, map_strided

Order = Literal["C", "F"]

_get = {i: bytes((fmt.BINGET, i)) for i in (fmt.NDARRAY, fmt.DTYPE, fmt.NO_ROWS, fmt.UINT8, fmt.MASKED_ARRAY,
                                            fmt.NOMASK)}
_NDARRAY = _get[fmt.NDARRAY]
# numpy.ndarray.__new__(numpy.ndarray, (0,)), then the state that __setstate__ takes: version 1, ...
_BUILD = _NDARRAY + _get[fmt.NO_ROWS] + b"\x81(K\x01"
_BUILT = b"tb"
_MASKED = _get[fmt.MASKED_ARRAY] + b"("
# dtype=None, copy=False, subok=True, ndmin=0
_MASKED_OPTIONS = b"N\x89\x88K\x00"
# Of a growable array: how it starts; what pushes the cell with the number of its rows; from there to its bytes.
GROWS = _NDARRAY + b"0"
COUNT = b"\x8a\x08"
BYTES_OF_ROWS = b"0" + fmt.BYTEARRAY
ROWS_HEAD = 64                  # bytes before the first row; the first cell of them is the mark


# -- dtypes -----------------------------------------------------------------------------------------------------

def dtype_spec(dtype: np.dtype[Any], aligned: bool = False) -> Any:
    """Return a description of plain Python types that `numpy.dtype` turns into `dtype` again.

    A text for simple types, ``(base, shape)`` for sub-arrays, a dict of names, formats, offsets, titles, item
    size and alignment for structured types. It is exact for every dtype that `exact_spec` accepts.

    Parameters
    ----------
    dtype : numpy.dtype
    aligned : bool
        Whether it is a field of an aligned structure. numpy would align it too, if it were given as a dict; it
        does not if the dict describes the fields of bytes: ``("|V16", dict)``. (And numpy 1 dies of a division
        by zero if a structure without fields is given as a dict there.)
    """
    if dtype.subdtype is not None:
        return dtype_spec(dtype.base, aligned), tuple(map(int, dtype.shape))
    if dtype.names is None:
        return dtype.str
    spec = structure_spec(dtype, lambda field: dtype_spec(field, dtype.isalignedstruct))
    return (f"|V{dtype.itemsize}", spec) if aligned and not (dtype.isalignedstruct and dtype.names) else spec


# Compiled, by `re` itself, for the first spec that is none of the most frequent ones.
_SIMPLE_SPEC = r"[|<>](?:[biufcSUV]\d{1,10}|[Mm]8(?:\[\d{0,10}[A-Za-z]{1,7}\])?)"
_FREQUENT_SPECS = frozenset("|b1 |i1 |u1 <i2 <u2 <i4 <u4 <i8 <u8 <f2 <f4 <f8 <c8 <c16".split())


def check_spec(spec: Any, aligned: bool = False) -> None:
    """Raise ValueError unless `spec` can be what `dtype_spec` returns.

    `numpy.dtype` takes much more, runs parsers of several kinds over texts, and does not survive everything.
    """
    if type(spec) is str:
        if spec not in _FREQUENT_SPECS and not re.fullmatch(_SIMPLE_SPEC, spec):
            raise ValueError(f"{shown(spec)} describes no simple dtype")
    elif type(spec) is tuple and len(spec) == 2:
        base, rest = spec
        if type(rest) is dict:
            if type(base) is not str or base[:2] != "|V":
                raise ValueError(f"fields of {shown(base)}")
            aligned = False
        elif type(rest) is not tuple or not all(type(n) is int and n >= 0 for n in rest):
            raise ValueError(f"{shown(rest)} is no shape of a sub-array")
        check_spec(base)
        check_spec(rest if type(rest) is dict else base, aligned)
    elif type(spec) is dict and spec.keys() <= {"names", "formats", "offsets", "itemsize", "titles", "aligned"}:
        names, formats = spec.get("names"), spec.get("formats")
        if type(names) is not list or type(formats) is not list or not (names or not aligned):
            raise ValueError("a structure without its fields")
        for part in formats:
            check_spec(part, aligned or spec.get("aligned") is True)
    else:
        raise ValueError(f"{shown(spec)} describes no dtype")


def structure_spec(dtype: np.dtype[Any], field_spec: Callable[[np.dtype[Any]], Any]) -> dict[str, Any]:
    """Return the description of a structured dtype, each of its fields described by `field_spec`."""
    assert dtype.names is not None and dtype.fields is not None
    fields: list[Any] = [dtype.fields[name] for name in dtype.names]
    spec: dict[str, Any] = {"names": list(map(str, dtype.names)), "formats": [field_spec(f[0]) for f in fields],
                            "offsets": [int(f[1]) for f in fields], "itemsize": int(dtype.itemsize)}
    if any(len(f) > 2 for f in fields):
        spec["titles"] = [f[2] if len(f) > 2 else None for f in fields]
    if dtype.isalignedstruct:
        spec["aligned"] = True
    return spec


def same_dtype(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether two dtypes agree in all that `repr`, fields and metadata show; ``==`` looks away from some.

    C's names for one and the same number (``long`` and ``long long``) are not told apart: pickles do not either.
    """
    if a is b:
        return True
    if a != b or a.str != b.str or a.itemsize != b.itemsize or a.metadata != b.metadata:
        return False
    if a.type is not b.type and (a.kind not in "iufc" or not a.type.__module__ == b.type.__module__ == "numpy"):
        return False
    if a.isalignedstruct != b.isalignedstruct or a.names != b.names:
        return False
    if a.subdtype is not None or b.subdtype is not None:
        return a.shape == b.shape and same_dtype(a.base, b.base)
    if a.fields is not None and b.fields is not None:
        return all(same_dtype(a.fields[n][0], b.fields[n][0]) and a.fields[n][1:] == b.fields[n][1:]
                   for n in a.fields)
    return True


def exact_spec(dtype: np.dtype[Any]) -> Any:
    """Return the `dtype_spec` that makes exactly `dtype` again, or None if there is none.

    There is none for metadata, numpy.record, and types that are not numpy's.
    """
    try:
        spec = dtype_spec(dtype)
        return spec if same_dtype(np.dtype(spec), dtype) else None
    except (TypeError, ValueError, RecursionError):
        return None


class DtypeOps:
    """How a dtype is written in an array record."""

    __slots__ = ("ops", "foreign", "alignment")

    def __init__(self, ops: bytes, foreign: bool, alignment: int) -> None:
        self.ops = ops                  # push the dtype
        self.foreign = foreign          # BUILD would turn its byte order into the native one
        self.alignment = alignment


_dtype_ops: dict[tuple[type, str], DtypeOps] = {}


def encode_dtype(dtype: np.dtype[Any]) -> Optional[DtypeOps]:
    """Return how `dtype` is written, or None if it cannot stand in an array record."""
    if dtype.hasobject:
        return None
    simple = dtype.names is None and dtype.subdtype is None and dtype.metadata is None
    if simple:
        known = _dtype_ops.get((dtype.type, dtype.str))
        if known is not None:
            return known
    spec = exact_spec(dtype)
    if spec is None:
        return None
    try:
        literal = encode_literal(spec)
        if not simple:
            decode_literal(literal, 0, len(literal))
    except (TypeError, CorruptError):
        return None                      # a title that is no text, or structures that are nested too deep
    if len(literal) > fmt.BIG_PAYLOAD and any(n > fmt.BIG_PAYLOAD for n in _text_sizes(spec)):
        return None                      # a field's name that would have to be a payload of its own
    # numpy's __setstate__ looks at the dtype's own byte order only, and that of structures is "not applicable".
    foreign = dtype.byteorder not in "=|" and not dtype.isnative
    encoded = DtypeOps(_get[fmt.DTYPE] + literal + b"\x85R", foreign, dtype.alignment)
    if simple:
        _dtype_ops[dtype.type, dtype.str] = encoded
    return encoded


def _text_sizes(spec: Any) -> Iterator[int]:
    if type(spec) is str:
        yield 4 * len(spec)
    elif type(spec) is dict:
        for part in spec.values():
            yield from _text_sizes(part)
    elif type(spec) in (list, tuple):
        for part in spec:
            yield from _text_sizes(part)


def is_mappable(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of `dtype` are stored as raw bytes and handed out as views of the file."""
    return encode_dtype(dtype) is not None


# -- encoding ---------------------------------------------------------------------------------------------------

def array_order(array: np.ndarray[Any, Any]) -> Order:
    """Return ``"F"`` for an array that is contiguous in Fortran order only, else ``"C"``."""
    flags = array.flags
    return "F" if flags.f_contiguous and not flags.c_contiguous else "C"


class _Template:
    """All that stands around an array's bytes, the same for arrays of one dtype, shape and order."""

    __slots__ = ("dtype", "names", "head", "payload", "tail", "nbytes", "ops", "small")

    def __init__(self, dtype: np.dtype[Any], head: bytes, payload: Payload, tail: bytes, nbytes: int) -> None:
        self.dtype = dtype              # kept, so that its identity is not another's
        self.names = dtype.names        # ``array.dtype.names = ...`` changes a dtype in place
        self.head = head
        self.payload = payload          # without data
        self.tail = tail
        self.nbytes = nbytes
        self.ops = head + payload.head
        # Whether format.encode_small can lay it out, behind a key of up to KEY_MAX bytes.
        self.small = (nbytes <= COPY_MAX and payload.alignment <= fmt.SMALL_ALIGNMENT
                      and len(self.ops) + KEY_MAX <= fmt.SPAN_MAX)


_templates: dict[tuple[int, tuple[int, ...], bool], _Template] = {}
TEMPLATES_MAX = 1 << 10
# Smaller arrays are copied into the one buffer that is written; of larger ones the memory itself is.
COPY_MAX = 1 << 14
KEY_MAX = 1 << 10


def _template(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> Optional[_Template]:
    key = (id(dtype), shape, fortran)
    template = _templates.get(key)
    if template is None or template.names is not dtype.names:
        ops = encode_dtype(dtype)
        if ops is None:
            return None
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        literal = encode_literal(shape)
        if not ops.foreign and (nbytes % 8 == 0 or nbytes <= fmt.BIG_PAYLOAD):
            payload = fmt.array_payload(None, nbytes, ops.alignment)
            head, tail = _BUILD + literal + ops.ops + (b"\x88" if fortran else b"\x89"), _BUILT
        else:
            # BUILD would swap the bytes, or the payload would end at an odd place: a view of a padded uint8 array.
            padded = nbytes + -nbytes % 8
            payload = fmt.array_payload(None, padded, ops.alignment)
            head = (_NDARRAY + b"(" + literal + ops.ops + _BUILD + b"(" + encode_literal(padded) + b"t"
                    + _get[fmt.UINT8] + b"\x89")
            tail = _BUILT + (b"K\x00N\x8c\x01Ft\x81" if fortran else b"t\x81")
        template = _Template(dtype, head, payload, tail, nbytes)
        if len(_templates) >= TEMPLATES_MAX:
            _templates.clear()
        if dtype.fields is None or all(field[0].base.names is None for field in dtype.fields.values()):
            _templates[key] = template
    return template


class EncodedArray:
    """An array, ready to be laid out in a record.

    Attributes
    ----------
    template : _Template
    data : bytes or numpy.ndarray
        Its bytes, if it is small, else itself.
    groups, memo, base : int
        As in `values.Encoded`.
    """

    __slots__ = ("template", "data")
    groups = fmt.ARRAYS
    memo = base = 0
    fill = None

    def __init__(self, template: _Template, data: Any) -> None:
        self.template = template
        self.data = data

    @property
    def parts(self) -> list[Union[bytes, Payload]]:
        """The opcodes that push it, and its payload."""
        template = self.template
        payload = template.payload
        return [template.head, Payload(payload.head, self.data, payload.nbytes, payload.alignment), template.tail]


def element_bytes(a: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of an array's elements, in the order of `array_order`."""
    flags = a.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        if a.dtype.names is not None and a.nbytes:
            # numpy copies structures field by field, and leaves in the gaps between them whatever was in memory.
            a = a.view(f"V{a.dtype.itemsize}")
        if a.ndim > 32:
            a = a.copy()            # `tobytes` of some numpys cannot do it
    return a.tobytes("A")


def encode_array(a: np.ndarray[Any, Any]) -> Optional[EncodedArray]:
    """Return an array ready to be stored, or None if its dtype cannot stand in an array record."""
    template = _template(a.dtype, a.shape, a.flags.fnc)
    if template is None:
        return None
    nbytes = template.nbytes
    if nbytes > COPY_MAX:
        return EncodedArray(template, a)
    data = a.tobytes("A") if template.names is None and a.ndim <= 32 else element_bytes(a)
    padding = template.payload.nbytes - nbytes
    return EncodedArray(template, data + bytes(padding) if padding else data)


def hole_parts(shape: tuple[int, ...], dtype: np.dtype[Any], order: Order) -> Optional[list[Union[bytes, Payload]]]:
    """Return the parts of an array whose bytes are not given, or None if its dtype cannot stand in a record."""
    # An array that is contiguous both ways is a C array.
    fortran = order == "F" and sum(n != 1 for n in shape) > 1 and 0 not in shape
    template = _template(dtype, shape, fortran)
    return None if template is None else [template.head, template.payload, template.tail]


def fill_value(x: Any) -> Optional[np.ndarray[Any, Any]]:
    """Return the fill value of a masked array, shape () and of its dtype, or None if it was not set.

    One of another dtype is numpy's default, noted when somebody looked at it. It can be none that could be set:
    999999 for bytes, the text "?" for some times.
    """
    fill: np.ndarray[Any, Any] = np.asarray(x._fill_value)
    if x._fill_value is None or not np.can_cast(fill.dtype, x.dtype, "equiv"):
        return None
    if x.dtype.hasobject:
        return fill
    # Not by numpy.zeros, which changes some dtypes; and zeros, so that nothing unknown is in the gaps of a structure.
    value: np.ndarray[Any, Any] = np.ndarray((), x.dtype, bytearray(max(1, x.dtype.itemsize)))
    value[...] = fill
    return value


def encode_masked(x: Any) -> Optional[list[Union[bytes, Payload]]]:
    """Return the parts of a masked array, or None if its dtype cannot be mapped."""
    data = np.asarray(x._data)
    encoded = encode_array(data)
    if encoded is None:
        return None
    mask: Any = None
    if x._mask is not np.ma.nomask:
        mask = encode_array(np.asarray(x._mask))
        mask = mask.parts       # booleans in the structure of a mappable dtype are mappable too
    fill: Any = [b"N"]
    value = fill_value(x)
    if value is not None:
        fill = encode_array(value)
        fill = fill.parts
        if fill[1].nbytes <= fmt.BIG_PAYLOAD:
            # A 0-d array in one run of opcodes: it is copied, not mapped, and needs no place of its own.
            fill = [b"".join(p if isinstance(p, bytes) else p.head + raw_bytes(p) for p in fill)]
    return masked_parts(encoded.parts, mask, fill, bool(x._hardmask))


def masked_parts(data: list[Any], mask: Optional[list[Any]], fill: list[Any], hard: bool) -> list[Any]:
    """Return the parts of a masked array, made of those of its data, its mask (None: nomask) and its fill value."""
    parts: list[Any] = fmt.join_parts([_MASKED], data)
    parts = fmt.join_parts(parts, [_get[fmt.NOMASK]] if mask is None else mask)
    parts = fmt.join_parts(parts, fmt.join_parts([_MASKED_OPTIONS], fill))
    # ... keep_mask=False: the mask itself, and not what numpy makes of it and of the data's; hard_mask
    return fmt.join_parts(parts, [b"\x89" + (b"\x88" if hard else b"\x89") + b"tR"])


PIECE = 1 << 20


def payload_pieces(payload: Payload) -> Iterator[Any]:
    """Yield the bytes of a payload as buffers; a contiguous array's memory is given as it is, not copied.

    Others are copied in pieces of about a megabyte, so that storing a large view needs no second array.
    """
    data = payload.data
    if not isinstance(data, np.ndarray):
        yield data
        return
    if data.flags.c_contiguous or data.flags.f_contiguous:
        flat: Any = data.reshape(-1, order="A")
        if data.nbytes:
            yield memoryview(flat.view(np.uint8))        # dates export no buffer of their own
    else:
        yield from _copied_pieces(data)
    if payload.nbytes > data.nbytes:
        yield bytes(payload.nbytes - data.nbytes)


def _copied_pieces(a: np.ndarray[Any, Any]) -> Iterator[bytes]:
    """Yield a non-contiguous array's bytes in C order, in pieces of about `PIECE` bytes."""
    if a.nbytes <= PIECE or a.ndim == 0:
        if a.nbytes:
            yield element_bytes(a)
        return
    row = a.nbytes // a.shape[0]
    step = max(1, PIECE // row)
    if row > PIECE and a.ndim > 1:
        for part in a:
            yield from _copied_pieces(part)
        return
    for i in range(0, a.shape[0], step):
        yield element_bytes(a[i:i + step])


def raw_bytes(payload: Payload) -> bytes:
    """Return a payload's bytes as one object."""
    return b"".join(payload_pieces(payload))


# -- decoding ---------------------------------------------------------------------------------------------------

class ArrayInfo:
    """Where an array stands in the file, and what it is.

    Attributes
    ----------
    shape, dtype, order : of the array; order is "C" or "F"
    offset, nbytes : int
        Of its first element, from the start of the file, and of all its elements.
    """

    __slots__ = ("shape", "dtype", "order", "offset", "nbytes")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], order: Order, offset: int, nbytes: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.order: Order = order
        self.offset = offset
        self.nbytes = nbytes


class MaskedInfo:
    """A masked array: its data, its mask (None: nomask), its fill value (None: not set) and hardness."""

    __slots__ = ("data", "mask", "fill_value", "hard_mask")

    def __init__(self, data: ArrayInfo, mask: Optional[ArrayInfo], fill_value: Optional[np.ndarray[Any, Any]],
                 hard_mask: bool) -> None:
        self.data = data
        self.mask = mask
        self.fill_value = fill_value
        self.hard_mask = hard_mask


class Column:
    """One of the arrays of a growable value: what a row has of it.

    Attributes
    ----------
    shape : tuple of int
        Of its part of one row.
    axis : int
        Which axis of the array the rows are.
    dtype : numpy.dtype
    offset : int
        Of its first element, from the start of a row, in bytes.
    """

    __slots__ = ("shape", "axis", "dtype", "offset")

    def __init__(self, shape: tuple[int, ...], axis: int, dtype: np.dtype[Any], offset: int) -> None:
        self.shape, self.axis, self.dtype, self.offset = shape, axis, dtype, offset

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a row."""
        nbytes = self.dtype.itemsize
        for n in self.shape:
            nbytes *= n
        return nbytes

    def shape_of(self, count: int) -> tuple[int, ...]:
        """Return the shape of the array of so many rows."""
        return (*self.shape[:self.axis], count, *self.shape[self.axis:])

    def strides(self, row_nbytes: int) -> tuple[int, ...]:
        """Return the strides of the array: inside a row it is contiguous, as in C."""
        strides = []
        step = self.dtype.itemsize
        for n in reversed(self.shape):
            strides.append(step)
            step *= n
        strides.reverse()
        return (*strides[:self.axis], row_nbytes, *strides[self.axis:])


# A column, or columns and further trees by their names.
Tree = Union[Column, dict[str, Any]]


class GrowableInfo:
    """Arrays that grow row by row, all over the same bytes: one, or several in nested dicts.

    Attributes
    ----------
    tree : Column, or dict of str to Column or such a dict
    count : int
        How many rows they have: what its cell held.
    count_at : int
        The offset of that cell, from the start of the file.
    capacity_at : int
        That of the cell with the number of bytes that rows and `ROWS_HEAD` have.
    start : int
        That of the first row.
    room : int
        How many bytes rows can take.
    row_nbytes : int
        Bytes of one row.
    mark : int
        This many rows have been seen, so that nothing else may be written to their places.
    memo : int
        The first of two memo indices.
    tail : (int, int)
        Where the opcodes behind the rows stand, in bytes from the start of the file.
    body_end : int
        `Record.body_end`.
    """

    __slots__ = ("tree", "count", "count_at", "capacity_at", "start", "room", "row_nbytes", "mark", "memo", "tail",
                 "body_end")

    def __init__(self, tree: Tree, count: int, count_at: int, capacity_at: int, start: int, room: int, row_nbytes: int,
                 mark: int, memo: int, tail: tuple[int, int], body_end: int) -> None:
        self.tree, self.count, self.count_at, self.capacity_at = tree, count, count_at, capacity_at
        self.start, self.room, self.row_nbytes, self.mark = start, room, row_nbytes, mark
        self.memo, self.tail, self.body_end = memo, tail, body_end

    @property
    def capacity(self) -> int:
        """How many rows there is room for."""
        return self.room // self.row_nbytes if self.row_nbytes else fmt.CELL_MAX >> 8


def columns_of(tree: Tree) -> Iterator[Column]:
    """Yield the columns of a tree."""
    if isinstance(tree, Column):
        yield tree
    else:
        for part in tree.values():
            yield from columns_of(part)


_dtypes: dict[bytes, np.dtype[Any]] = {}
TREE_DEPTH = 50


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
        value, self.pos = decode_literal(self.buf, self.pos, self.end)
        return value

    def shape(self) -> tuple[int, ...]:
        shape = self.literal()
        # The bound also keeps the product of the sizes short: numpy has at most 64 dimensions, and no larger sizes.
        if type(shape) is not tuple or len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            raise self.fail(f"{shown(shape)} is not the shape of an array")
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
                check_spec(spec)
                dtype = np.dtype(spec)
            except Exception as exc:        # numpy's parsers raise whatever they stumble over
                raise self.fail(f"{shown(spec)} is not a dtype: {exc}") from exc
            if dtype.hasobject or dtype.subdtype is not None:
                raise self.fail(f"an array of dtype {shown(spec)} cannot be mapped")
            if dtype.names is None and len(_dtypes) < 4096:
                # Fields can be renamed in place, so that each array of a structured dtype gets one of its own.
                _dtypes[ops] = dtype
        return dtype

    def payload(self) -> tuple[int, int]:
        """Return position and size of the bytes object that stands here, and pass over it."""
        self.pos = skip_filler(self.buf, self.pos, self.end)
        op = self.buf[self.pos] if self.pos < self.end else -1
        if op not in (fmt.SHORT_BINBYTES, fmt.BINBYTES, fmt.BINBYTES8):
            raise self.fail("an array without its bytes")
        start = self.pos + 1 + ARGUMENT_SIZES[op]
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

    def number(self, size: int = 8) -> int:
        """Return the little-endian number of so many bytes that stands here, and pass over it."""
        start, self.pos = self.pos, self.pos + size
        if self.pos > self.end:
            raise self.fail("an array that runs past its record")
        return int.from_bytes(self.buf[start:self.pos], "little")

    def cell(self) -> tuple[int, int]:
        """Return the cell that stands here, and its offset in the file."""
        at = self.base + self.pos
        value = self.number()
        if at % 8 or value >= 1 << 56:
            raise self.fail("a cell of a growable array is damaged")
        return value, at

    def growable(self) -> Optional[GrowableInfo]:
        """Return the growable array that starts here, or None if none does."""
        if not self.take(GROWS):
            return None
        self.pos = skip_filler(self.buf, self.pos, self.end)
        self.need(COUNT)
        count, count_at = self.cell()
        self.need(b"r")
        memo = self.number(4)
        if memo >= fmt.MEMO_END - 1:
            raise self.fail(f"a growable array with the memo index {memo}")
        self.need(BYTES_OF_ROWS)
        self.pos = skip_filler(self.buf, self.pos, self.end)
        self.need(b"\x8e")
        size, capacity_at = self.cell()
        start = self.pos + ROWS_HEAD
        if size < ROWS_HEAD or size % 8 or self.pos + size > self.end:
            raise self.fail(f"a growable array of {size} bytes runs past its record, or has an odd size")
        mark, _ = self.cell()
        room = size - ROWS_HEAD
        tail = self.pos = start + room
        row_nbytes, tree = self.grown_tree(memo)
        behind = self.base + self.pos
        self.given_back()
        if count and any(column.offset + column.nbytes > row_nbytes for column in columns_of(tree)) \
                or max(count, mark) * row_nbytes > room or any(column.offset > room for column in columns_of(tree)):
            raise self.fail(f"a growable array of {count} rows of {row_nbytes} bytes has room for {room} bytes")
        return GrowableInfo(tree, count, count_at, capacity_at, self.base + start, room, row_nbytes, mark, memo,
                            (self.base + tail, behind), self.base + self.end)

    def grown_tree(self, memo: int) -> tuple[int, Tree]:
        """Return the columns that stand behind the rows, and how many bytes a row has."""
        start, rest = self.pos, b""
        if self.end - start <= TAIL_MAX:
            rest = bytes(self.buf[start:self.end])
            known = _tails.get((memo, rest))
            if known is not None:
                self.pos += known[0]
                return known[1]
        self.need(b"\x85Rr" + (memo + 1).to_bytes(4, "little") + b"0")
        found = self.tree(memo)
        # A structured dtype is not kept: its names can be changed in place, through the arrays that are handed out.
        if rest and all(column.dtype.names is None for column in columns_of(found[1])):
            if len(_tails) >= HEADS_MAX:
                _tails.clear()
            _tails[memo, rest] = self.pos - start, found
        return found

    def given_back(self) -> None:
        """Pass over the room that was given back: a bytes object that is thrown away."""
        if self.take(b"\x8e"):
            n = self.number()
            if n >= self.end - self.pos:
                raise self.fail("a growable array runs past its record")
            self.pos += n
            self.need(b"0")

    def tree(self, memo: int, depth: int = 0) -> tuple[int, Tree]:
        """Return the columns that stand here, and how many bytes a row has."""
        if not self.take(b"}("):
            return self.column(memo)
        tree: dict[str, Any] = {}
        sizes = set()
        while not self.take(b"u"):
            name = self.literal()
            if type(name) is not str or name in tree or depth >= TREE_DEPTH:
                raise self.fail(f"{shown(name)} is no name of a column, or there twice, or nested too deeply")
            size, tree[name] = self.tree(memo, depth + 1)
            sizes.add(size)
        if len(sizes) != 1:
            raise self.fail(f"columns with rows of {sorted(sizes)} bytes")
        return sizes.pop(), tree

    def column(self, memo: int) -> tuple[int, Column]:
        """Return the column that stands here, and how many bytes a row has."""
        self.need(_NDARRAY + b"((")
        sizes: list[int] = []
        axis = -1
        count = b"j" + memo.to_bytes(4, "little")
        while not self.take(b"t"):
            if axis < 0 and self.take(count):
                axis = len(sizes)
                continue
            n = self.literal()
            if type(n) is not int or not 0 <= n < 1 << 63 or len(sizes) > 64:
                raise self.fail("that is not the shape of a growable array")
            sizes.append(n)
        dtype = self.dtype()
        self.need(b"j" + (memo + 1).to_bytes(4, "little"))
        offset, strides = self.literal(), self.literal()
        self.need(b"t\x81")
        if axis < 0 or type(strides) is not tuple or len(strides) <= axis or type(offset) is not int \
                or any(type(stride) is not int for stride in strides):
            raise self.fail("a growable array without its rows")
        column, row_nbytes = Column(tuple(sizes), axis, dtype, offset - ROWS_HEAD), strides[axis]
        if strides != column.strides(row_nbytes) or column.offset < 0 or row_nbytes < 0 \
                or column.offset + column.nbytes > row_nbytes:
            raise self.fail(f"rows of {row_nbytes} bytes do not fit shape and dtype of a growable array")
        return row_nbytes, column

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
        self.need(b"\x89")
        hard = self.take(b"\x88")
        if not hard:
            self.need(b"\x89")
        self.need(b"tR")
        if mask is not None and (mask.shape != data.shape or mask.dtype != np.ma.make_mask_descr(data.dtype)):
            raise self.fail("a mask does not fit its array")
        return MaskedInfo(data, mask, fill, hard)


# Opcodes of a BUILD up to the array's bytes -> what they say, but for the offset.
_heads: dict[bytes, ArrayInfo] = {}
HEADS_MAX = 1 << 10
# What stands behind the rows of growable arrays, as far as it was decoded: how long it is, and what it says.
_tails: dict[tuple[int, bytes], tuple[int, tuple[int, Tree]]] = {}
TAIL_MAX = 1 << 12              # bytes of it


Info = Union[ArrayInfo, MaskedInfo, GrowableInfo]


def decode_info(buf: Buffer, base: int, pos: int, end: int, covered: int = 0) -> Optional[Info]:
    """Read what array a value is, without touching its elements; None: it is none, but a pickled value.

    Parameters
    ----------
    buf : buffer
        Bytes of the file from offset `base` on.
    base, pos, end : int
        Where the buffer starts, and the value's opcodes start and end, in bytes from the start of the file.
    covered : int
        Where the array's bytes may start, `Record.covered`: if the same opcodes stood before those of another
        array, they are not read again.

    Raises
    ------
    CorruptError
        If it starts as an array and does not go on as one, or its size is not that of its bytes.
    """
    head = bytes(buf[pos - base:covered - base]) if covered > pos else b""
    known = _heads.get(head)
    if known is not None:
        behind, last = covered - base + known.nbytes + len(_BUILT), end - base
        if behind <= last and buf[behind - len(_BUILT):behind] == _BUILT and skip_filler(buf, behind, last) == last:
            return ArrayInfo(known.shape, known.dtype, known.order, covered, known.nbytes)
    cursor = _Cursor(buf, base, pos, end)
    info: Optional[Info] = cursor.growable() or cursor.array() or cursor.masked()
    if info is None:
        return None
    behind = cursor.pos
    cursor.pos = skip_filler(buf, behind, cursor.end)
    if cursor.pos != cursor.end:
        raise cursor.fail("opcodes behind an array that are not its own")
    # A structured dtype is not kept: its names can be changed in place, through the arrays that are handed out.
    if isinstance(info, ArrayInfo) and info.offset == covered and info.dtype.names is None \
            and behind == covered - base + info.nbytes + len(_BUILT) and len(_heads) < HEADS_MAX:
        _heads[head] = info
    return info


def map_info(info: Info, root: Root, start: int) -> Any:
    """Return the array described by `info` as a view of `root`, which holds all its bytes, from offset `start` on."""
    if isinstance(info, GrowableInfo):
        return map_rows(info, info.tree, 0, info.count, root, start)
    if isinstance(info, ArrayInfo):
        return map_array(root, info.offset - start, info.shape, info.dtype, info.order)
    data, mask = info.data, info.mask
    masks: Any = np.ma.nomask
    if mask is not None:
        masks = np.ndarray(mask.shape, mask.dtype, root, mask.offset - start, None, mask.order)
    return map_masked(root, data.offset - start, data.shape, data.dtype, data.order, masks,
                      None if info.fill_value is None else info.fill_value.copy(), info.hard_mask)


def map_rows(info: GrowableInfo, tree: Tree, first: int, stop: int, root: Root, start: int) -> Any:
    """Return the rows from `first` up to `stop` of a growable array, or a dict of such arrays, as `map_info`."""
    if not isinstance(tree, Column):
        return {name: map_rows(info, part, first, stop, root, start) for name, part in tree.items()}
    row = info.row_nbytes
    return map_strided(root, info.start - start + first * row + tree.offset, tree.shape_of(stop - first), tree.dtype,
                       tree.strides(row))
