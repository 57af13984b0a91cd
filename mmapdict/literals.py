"""Plain Python objects as opcodes: keys, shapes and the descriptions of dtypes.

Containers are always written with their MARK, so that where a literal ends is known without looking past it.
"""
from __future__ import annotations

import codecs
import struct
from collections.abc import Iterable
from contextlib import suppress
from numbers import Number
from typing import Any, Union

import numpy as np

from .errors import CorruptError
from .format import (APPENDS, BIG_PAYLOAD, BINBYTES, BINBYTES8, BINFLOAT, BININT, BININT1, BININT2, BINUNICODE,
                     BINUNICODE8, EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, LONG1, LONG4, MARK, NEWFALSE, NEWTRUE, NONE,
                     POP, SETITEMS, SHORT_BINBYTES, SHORT_BINUNICODE, TUPLE, Buffer, Payload, bytes_head,
                     end_aligned, split_payloads)

KEY_DEPTH = 100


def encode_literal(obj: Any) -> bytes:
    """Return the opcodes that push `obj`, made of plain Python types.

    Parameters
    ----------
    obj : None, bool, int, float, str, bytes, or tuple, list, dict of these

    Examples
    --------
    >>> import pickle
    >>> pickle.loads(encode_literal(("scan", 7)) + b".")
    ('scan', 7)
    """
    t = type(obj)
    if t is str:
        b: bytes = obj.encode() if obj.isascii() else obj.encode("utf-8", "surrogatepass")
        n = len(b)
        if n < 256:
            return bytes((SHORT_BINUNICODE, n)) + b
        return b"X" + n.to_bytes(4, "little") + b if n < 1 << 32 else b"\x8d" + n.to_bytes(8, "little") + b
    if t is int:
        if 0 <= obj < 256:
            return bytes((BININT1, obj))
        if 0 <= obj < 65536:
            return b"M" + int.to_bytes(obj, 2, "little")
        if -0x80000000 <= obj < 0x80000000:
            return b"J" + int.to_bytes(obj, 4, "little", signed=True)
        n = obj.bit_length() // 8 + 1
        head = bytes((LONG1, n)) if n < 256 else b"\x8b" + n.to_bytes(4, "little")
        return bytes(head + obj.to_bytes(n, "little", signed=True))
    if t is tuple:
        return b"(" + b"".join(map(encode_literal, obj)) + b"t" if obj else b")"
    if t is bytes:
        return bytes_head(len(obj)) + bytes(obj)
    if t is float:
        return b"G" + struct.pack(">d", obj)
    if obj is None:
        return b"N"
    if t is bool:
        return b"\x88" if obj else b"\x89"
    if t is list:
        return b"](" + b"".join(map(encode_literal, obj)) + b"e"
    if t is dict:
        return b"}(" + b"".join(encode_literal(x) for kv in obj.items() for x in kv) + b"u"
    raise TypeError(f"{t.__name__} has no literal form")


def hash_form(key: Any) -> bytes:
    """Return the literal of a key in the form that it shares with all keys that are equal to it.

    A number that is an integer stands as one: ``1 == 1.0 == True``.

    Raises
    ------
    TypeError
        It is equal to no key, or has no hash.
    """
    return encode_literal(_integral(key))


def _integral(key: Any) -> Any:
    t = type(key)
    if t is str or t is int or t is bytes or key is None:
        return key
    if t is float:
        return int(key) if key.is_integer() else key
    if t is bool:
        return int(key)
    if isinstance(key, tuple):
        return tuple(map(_integral, key))
    if isinstance(key, np.generic):
        return _integral(exact_item(key)) if not isinstance(key, np.void) else _no_key(key)
    if isinstance(key, str):
        return str.__str__(key)
    plain: Any
    for plain in (bytes, int, float):
        if isinstance(key, plain):
            return _integral(plain.__new__(plain, key))
    if isinstance(key, complex) and not key.imag:
        return _integral(key.real)
    if isinstance(key, Number):                     # Decimal, Fraction
        for plain in (int, float):
            with suppress(TypeError, ValueError, OverflowError):
                plain_number = plain(key)
                if plain_number == key:
                    return _integral(plain_number)
    return _no_key(key)


def _no_key(key: Any) -> Any:
    hash(key)
    raise TypeError(f"{type(key).__name__} has no literal form")


# How many bytes count what follows an opcode.
ARGUMENT_SIZES = {SHORT_BINUNICODE: 1, BINUNICODE: 4, BINUNICODE8: 8, SHORT_BINBYTES: 1, BINBYTES: 4, BINBYTES8: 8,
                  LONG1: 1, LONG4: 4}
_FIXED = {BININT1: 1, BININT2: 2, BININT: 4, BINFLOAT: 8}
_STRINGS = (SHORT_BINUNICODE, BINUNICODE, BINUNICODE8)


def decode_literal(buf: Buffer, pos: int, end: int, depth: int = 0) -> tuple[Any, int]:
    """Read one literal that starts at `pos`; filler before any part of it is passed over.

    Returns
    -------
    (object, int)
        The object and the position behind it.

    Raises
    ------
    CorruptError
        If no literal stands there or it does not end before `end`; `offset` is a position in `buf`.
    """
    if depth > KEY_DEPTH + 8:
        raise CorruptError("a literal is nested too deep", None, pos)
    pos = skip_filler(buf, pos, end)
    if pos >= end:
        raise CorruptError("a literal is cut short", None, pos)
    op = buf[pos]
    pos += 1
    if op in ARGUMENT_SIZES:
        width = ARGUMENT_SIZES[op]
        n = int.from_bytes(buf[pos:pos + width], "little")
        start = pos + width
        pos = start + n
        if pos > end:
            raise CorruptError(f"a literal of {n} bytes runs past its record", None, start)
        raw = bytes(buf[start:pos])
        if op in _STRINGS:
            try:
                return raw.decode("utf-8", "surrogatepass"), pos
            except UnicodeDecodeError as exc:
                raise CorruptError("a text is not UTF-8", None, start) from exc
        return (int.from_bytes(raw, "little", signed=True) if op in (LONG1, LONG4) else raw), pos
    if op in _FIXED:
        n = _FIXED[op]
        raw = bytes(buf[pos:pos + n])
        pos += n
        if pos > end:
            raise CorruptError("a literal runs past its record", None, pos - n)
        if op == BINFLOAT:
            return struct.unpack(">d", raw)[0], pos
        return int.from_bytes(raw, "little", signed=op == BININT), pos
    if op == NONE:
        return None, pos
    if op == NEWTRUE or op == NEWFALSE:
        return op == NEWTRUE, pos
    if op == EMPTY_TUPLE:
        return (), pos
    if op == MARK:
        items, pos = _decode_items(buf, pos, end, TUPLE, depth)
        return tuple(items), pos
    if op == EMPTY_LIST and pos < end and buf[pos] == MARK:
        return _decode_items(buf, pos + 1, end, APPENDS, depth)
    if op == EMPTY_DICT and pos < end and buf[pos] == MARK:
        items, pos = _decode_items(buf, pos + 1, end, SETITEMS, depth)
        try:
            return dict(zip(items[::2], items[1::2], strict=True)), pos
        except (TypeError, ValueError) as exc:
            raise CorruptError("a dict literal has a key without a value or an unhashable key", None, pos) from exc
    raise CorruptError(f"opcode 0x{op:02x} where a literal was expected", None, pos - 1)


def _decode_items(buf: Buffer, pos: int, end: int, closing: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while True:
        pos = skip_filler(buf, pos, end)
        if pos < end and buf[pos] == closing:
            return items, pos + 1
        item, pos = decode_literal(buf, pos, end, depth + 1)
        items.append(item)


def skip_filler(buf: Buffer, pos: int, end: int) -> int:
    """Return the position behind the fillers (a bytes object and POP) that start at `pos`, if any."""
    while pos + 1 < end:
        op = buf[pos]
        if op == SHORT_BINBYTES:
            after = pos + 2 + buf[pos + 1]
        elif op == BINBYTES:
            after = pos + 5 + int.from_bytes(buf[pos + 1:pos + 5], "little")
        else:
            break
        if after >= end or buf[after] != POP:
            break                       # a bytes object that is not thrown away
        pos = after + 1
    return pos


_PUSHING = frozenset((*ARGUMENT_SIZES, *_FIXED, NONE, NEWTRUE, NEWFALSE))


def check_inert(buf: Buffer, pos: int, end: int) -> None:
    """Raise CorruptError unless the opcodes from `pos` to `end` only push plain constants, and drop them again.

    So a record of a kind that this version does not know changes neither the mapping nor what others fetch.
    """
    pushed = after = 0
    while pos < end:
        op = buf[pos]
        if op == POP:
            pushed -= 1
            after = pos + 1
        elif op in _PUSHING:
            pushed += 1
            start = after = pos + 1 + ARGUMENT_SIZES.get(op, _FIXED.get(op, 0))
            if op in ARGUMENT_SIZES:
                after += int.from_bytes(buf[pos + 1:start], "little")
                if op in _STRINGS and after <= end:
                    try:
                        codecs.decode(buf[start:after], "utf-8", "surrogatepass")       # an unpickler does so too
                    except UnicodeDecodeError:
                        pushed = -1
        else:
            pushed = -1
        if pushed < 0 or after > end:
            raise CorruptError("a hidden record of an unknown kind that does more than to push constants")
        pos = after


def check_key(key: Any, depth: int = 0) -> None:
    """Raise unless `key` can be a key: str, bytes, int, float but NaN, bool, None, or a tuple of these.

    Raises
    ------
    TypeError
        For any other type, for tuples nested more than 100 deep, and for NaN, which is not even equal to itself.
    """
    t = type(key)
    if t is str or t is int or t is bytes or t is bool or key is None:
        return
    if t is float:
        if key != key:
            raise TypeError("NaN cannot be a key: it is not equal to itself")
        return
    if t is tuple:
        if depth >= KEY_DEPTH:
            raise TypeError(f"a key may be nested at most {KEY_DEPTH} tuples deep")
        for item in key:
            check_key(item, depth + 1)
        return
    raise TypeError(f"keys are str, bytes, int, float, bool, None or tuples of these, not {t.__name__}")


def key_parts(key: Any) -> list[Union[bytes, Payload]]:
    """Return the opcodes that push `key`, its big texts as end-aligned payloads.

    Parameters
    ----------
    key : object
        That `check_key` accepts.
    """
    ops = encode_literal(key)
    if len(ops) <= BIG_PAYLOAD:
        return [ops]
    return split_payloads(_key_pieces(key))


def _key_pieces(key: Any) -> Iterable[Union[bytes, Payload]]:
    if type(key) is tuple and key:
        yield b"("
        for item in key:
            yield from _key_pieces(item)
        yield b"t"
        return
    ops = encode_literal(key)
    if len(ops) > BIG_PAYLOAD:
        head = 1 + ARGUMENT_SIZES[ops[0]]
        yield end_aligned(ops[:head], ops[head:], len(ops) - head)
    else:
        yield ops


def exact_item(x: Any) -> Any:
    """Return the Python value of a numpy scalar. numpy's own `item` leaves out zeros at the end of a text."""
    if isinstance(x, np.str_):
        return str.__str__(x)
    if isinstance(x, np.bytes_):
        return bytes.__getitem__(x, slice(None))
    return x.item()


def plain_key(key: Any, depth: int = 0) -> Any:
    """Return the key as it is stored: numpy scalars become the Python value that they equal.

    Raises
    ------
    TypeError
        If it can be no key.
    """
    t = type(key)
    if t is str or t is int:
        return key
    if t is tuple:
        if depth <= KEY_DEPTH and any(type(k) is tuple or isinstance(k, np.generic) for k in key):
            key = tuple(plain_key(k, depth + 1) for k in key)
    elif isinstance(key, np.generic) and not isinstance(key, (np.void, np.datetime64, np.timedelta64)):
        item = exact_item(key)
        if item == key:
            key = item
    check_key(key, depth)
    return key


def shown(value: Any) -> str:
    """Return a short text of a key, a shape or a dtype's description, to stand in a message.

    An int of many digits has no `repr`, and not every text can be printed.
    """
    try:
        text = repr(value).encode("utf-8", "backslashreplace").decode("utf-8")
    except ValueError:
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:70]}... ({len(text)} characters)"
