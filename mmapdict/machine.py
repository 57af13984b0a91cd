"""A pickle's opcodes, run without running anything: what they would import, how deep what they build is nested.

The stack is followed with integers for objects, so the cost is that of the opcodes that are there, never that of the
sizes that they declare, and a payload is passed over, not read.
"""
from __future__ import annotations

import codecs
import pickle
import pickletools
import re
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Optional

from . import format as fmt
from .errors import CorruptError
from .format import Buffer

# Length of the argument of each opcode; negative: minus the number of bytes that count what follows them.
# -9: a line, or two.
ARGUMENT_WIDTHS: list[int] = [0] * 256
for _op in pickletools.opcodes:
    _n = 0 if _op.arg is None else _op.arg.n
    ARGUMENT_WIDTHS[ord(_op.code)] = {-1: -9, -2: -1, -3: -4, -4: -4, -5: -8}.get(_n, _n)

# An unpickler's memo is an array up to the highest index. So many entries, and twice as many as there are objects
# to be memoised, are no bomb.
SPARSE_MEMO = 1 << 14
# A longer text is no name of a module or class.
NAME_MAX = 4096
TEXT_STEP = 1 << 20             # so much of a text is looked at at once
# Containers up to this size are taken in one step.
_BATCH = 1000

# What an opcode does to the stack. The order matters: the frequent ones come first, the six at the beginning and
# the four behind them are told from the rest by one comparison.
(_SHORT_TEXT, _LEAF, _SHORT_PUT, _LONG_GET, _SHORT_GET, _LINE_GET, _MARK, _CLOSE, _MAKE, _EMPTY, _SHORT, _STACK_GLOBAL,
 _LONG_PUT, _TEXT, _COUNTED, _POP, _POP_MARK, _LINE_PUT, _FRAME, _PROTO, _STOP, _DUP, _LINE, _TEXT_LINE, _GLOBAL, _OBJ,
 _EXTENSION, _NOTHING, _UNKNOWN) = range(29)
_KINDS = bytearray((_UNKNOWN,)) * 256
for _kind, _codes in (
        (_SHORT_TEXT, b"U\x8c"), (_LEAF, b"NKMJG\x88\x89\x97"), (_SHORT_PUT, b"q\x94"), (_LONG_PUT, b"r"),
        (_LONG_GET, b"j"), (_SHORT_GET, b"h"), (_LINE_GET, b"g"), (_LINE_PUT, b"p"), (_MARK, b"("),
        (_CLOSE, b"tldeu\x90\x91"),
        (_MAKE, b"\x85\x86\x87R\x81\x92Qasb"), (_EMPTY, b")]}\x8f"), (_SHORT, b"C\x8a"), (_STACK_GLOBAL, b"\x93"),
        (_TEXT, b"TX\x8d"), (_COUNTED, b"B\x8e\x8b\x96"), (_POP, b"0"), (_POP_MARK, b"1"), (_FRAME, b"\x95"),
        (_PROTO, b"\x80"), (_STOP, b"."), (_DUP, b"2"), (_LINE, b"ILFP"), (_TEXT_LINE, b"SV"), (_GLOBAL, b"ci"),
        (_OBJ, b"o"), (_EXTENSION, b"\x82\x83\x84"), (_NOTHING, b"\x98")):
    for _code in _codes:
        _KINDS[_code] = _kind
_TAKES = {0x85: 1, 0x86: 2, 0x87: 3, 0x52: 2, 0x81: 2, 0x92: 3, 0x51: 1, 0x61: 1, 0x73: 2, 0x62: 1}
_NAMES = {ord(op.code): op.name for op in pickletools.opcodes}

_SIZED = b"|".join(re.escape(bytes((n,))) + b".{%d}" % n for n in range(48))


def _items_of(sized: bytes) -> re.Pattern[bytes]:
    """Match a container from its MARK on, if there are but constants in it, and with a length those of `sized` alone.

    The group is the last one of an odd number: a dict has none.
    """
    item = rb"(?:K.|M..|[N\x88\x89]|J.{4}|G.{8}|[" + sized + b"](?:" + _SIZED + b"))"
    return re.compile(b"(?s:\\((?:%b%b){0,%d}(%b)?[tldeu\x90\x91])" % (item, item, _BATCH, item))


_SIMPLE_ITEMS = _items_of(rb"\x8cC\x8a")
_SIMPLE_ITEMS_BUT_TEXTS = _items_of(rb"C\x8a")
_RUNS = {op: re.compile(rb"(?s:(?:%c.{%d}){1,%d})" % (op, ARGUMENT_WIDTHS[op], _BATCH)).match
         for op in b"NKMJG\x88\x89"}
_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from
_NEWLINE = re.compile(rb"\n")
_PAYLOADS = b"BX\x8d\x8eT\x8b"
_BYTES = b"CB\x8e"
_PAIRED = b"ud"                         # of what they take each second is a value
_GROWING = b"eu\x90asb"                 # what they take goes into what stands before it

# How an object stands on the symbolic stack: the depth of its nesting; or, if it is a text, ~offset of its opcode; or,
# if it was memoised and can still grow, this and its place in the list of the depths of such.
_SHARED = 1 << 62


class Trace:
    """What opcodes would do.

    Attributes
    ----------
    globals : list of (int, str or None, str or None)
        Offset of the opcode, module and name of each global that is looked up, in order. None: computed, or no
        name at all. An extension code is ``("copyreg", "extension <code>")``.
    depth : int
        The deepest nesting of what is built: 0 for a number, 1 for a list of numbers, ... What a call makes is
        one deeper than its arguments. Exact for tuples and frozensets in each other.
    late : int
        What was added to objects after they had been fetched from the memo: with that, no more than
        ``depth + late`` objects are nested in each other without a cycle.
    stack : int
        Objects and open MARKs left; 1 behind what pushes one object.
    marks : int
        How many of these are MARKs.
    end : int
        Offset behind the last opcode that was run.
    stopped : bool
        Whether that was STOP.
    proto : int
        The last protocol that PROTO named, or the one given.
    memo : set of int
        The memo indices that are put.
    memo_max : int
        The highest of them, or -1.
    repeated : int or None
        The first memo index that is put twice.
    payloads : list of (int, int, int)
        Of each text, bytes object and int longer than `BIG_PAYLOAD`: where its opcode stands, and where it itself
        starts and ends.
    fillers : list of (int, int)
        Where bytes objects start, opcodes included, that are thrown away at once, and where the POP ends that does
        it. Without them the other opcodes do the same.
    """

    __slots__ = ("globals", "depth", "late", "stack", "marks", "end", "stopped", "proto", "memo", "memo_max",
                 "repeated", "payloads", "fillers")

    def __init__(self) -> None:
        self.globals: list[tuple[int, Optional[str], Optional[str]]] = []
        self.depth = 0
        self.late = 0
        self.stack = self.marks = 0
        self.end = 0
        self.stopped = False
        self.proto = 4
        self.memo: set[int] = set()
        self.memo_max = -1
        self.repeated: Optional[int] = None
        self.payloads: list[tuple[int, int, int]] = []
        self.fillers: list[tuple[int, int]] = []


def opcodes_between(runs: Any, ops: Buffer, at: int = 0) -> Iterator[tuple[int, int, int, int]]:
    """Yield what a pattern's method `runs` does not match: offset, opcode, argument, and where the next opcode stands.

    The argument is a number: of what is counted, how many bytes; 0 if there is none.

    Raises
    ------
    CorruptError
        An opcode runs past the end, or its argument is a line.
    """
    widths, n = ARGUMENT_WIDTHS, len(ops)
    while at < n:
        run = runs(ops, at)
        if run:
            at = run.end()
            if at >= n:
                break
        op = ops[at]
        width = widths[op]
        argument, end = 0, at + 1
        if width == -1 and end < n:
            argument = ops[end]             # the same as below, for the most frequent ones
            end += 1 + argument
        elif width == -9:
            raise CorruptError(f"an opcode of an old protocol: 0x{op:02x}")
        elif width:
            end += abs(width)
            argument = int.from_bytes(ops[at + 1:end], "little")
            if width < 0:
                end += argument
        if end > n:
            raise CorruptError(f"a value's opcodes are damaged: one of {end - at} bytes runs past the value's end")
        yield at, op, argument, end
        at = end


def trace(buf: Buffer, start: int = 0, end: Optional[int] = None, *, proto: int = 4, given: Iterable[int] = (),
          refuse: bytes = b"", sparse: bool = False, texts: bool = False,
          found: Optional[list[tuple[int, Optional[str], Optional[str]]]] = None) -> Trace:
    """Run opcodes on a symbolic stack.

    Parameters
    ----------
    buf : buffer
        Of bytes. Nothing of it is copied but names.
    start, end : int
        Where the opcodes stand in it: a whole pickle, up to its STOP, or some opcodes without PROTO and STOP.
    proto : int
        The protocol, if no PROTO tells: below 3 the names of Python 2's modules become those of Python 3.
    given : iterable of int
        Memo indices that were put before.
    refuse : bytes
        Opcodes that may not occur.
    sparse : bool
        Let memo indices be as high as they like.
    texts : bool
        Look at texts, too. That takes twice as long.
    found : list, optional
        Becomes `Trace.globals`: what was found up to an error is in it.

    Raises
    ------
    CorruptError
        With the offset in `buf`: an unknown opcode or one that is refused, an argument that runs past the end or
        out of its frame, too few objects on the stack, no MARK, a memo index that was not put, or one that is out
        of proportion: an unpickler takes 16 bytes for each index below it. With `texts`, a text that is not UTF-8.

    Notes
    -----
    A few tenths of a microsecond an opcode; but a container of up to 2000 numbers and short texts costs as much as
    one or two of them, and so do 1000 numbers of one size. A `bytes` object is faster than a `memoryview`.
    """
    data = buf
    n = len(data) if end is None else end
    if not 0 <= start <= n <= len(data):
        raise ValueError(f"no range of a buffer of {len(data)} bytes: {start} to {n}")
    kinds = _kinds_but(refuse) if refuse else _KINDS
    widths = ARGUMENT_WIDTHS
    simple_items = (_SIMPLE_ITEMS_BUT_TEXTS if texts else _SIMPLE_ITEMS).match
    unpack = _U32
    result = Trace()
    if found is not None:
        result.globals = found
    stack: list[int] = []
    marks: list[int] = []
    floor = 0                           # objects below belong to an outer MARK
    shared: list[int] = []              # depths of memoised objects
    fetched: set[int] = set()           # those that were fetched, or doubled
    memo: dict[int, int] = dict.fromkeys(given, 0)
    strangers = frozenset(memo)
    puts = 0
    base = 0 if start < n and data[start] == fmt.PROTO else -1
    deep = late = 0
    at = last = start
    limit = n
    frame_end = -1
    names: dict[int, Optional[str]] = {}
    loose: list[int] = []               # where the bytes objects start that end, without a gap, at `loose_end`
    loose_end = -1

    def text(element: int) -> Optional[str]:
        if element >= 0:
            return None
        if element not in names:
            names[element] = _read_text(data, ~element, n)
        return names[element]

    def note(offset: int, module: Optional[str], name: Optional[str]) -> None:
        if proto < 3 and module is not None and name is not None:
            if (module, name) in NAME_MAPPING:
                module, name = NAME_MAPPING[module, name]
            elif module in IMPORT_MAPPING:
                module = IMPORT_MAPPING[module]
        result.globals.append((offset, module, name))

    while True:
        if at >= limit:
            if at == frame_end < n:
                limit, frame_end = n, -1
                continue
            if at > limit:
                raise _too_long(data, last, at, limit, limit < n)
            break
        last = at
        op = data[at]
        kind = kinds[op]
        if kind <= _LINE_GET:
            if kind == _SHORT_TEXT:
                stack.append(~at)
                at += 2
                if at <= limit:
                    at += data[at - 1]
                    if texts and at <= limit:
                        _check_text(data, last, last + 2, at)
                continue
            if kind == _LEAF:
                width = widths[op]
                at += 1 + width
                if at < limit and data[at] == op and op in _RUNS:
                    run = _RUNS[op](data, at, limit)
                    if run:
                        stack += [0] * ((run.end() - at) // (1 + width))
                        at = run.end()
                stack.append(0)
                continue
            if kind >= _LONG_GET:
                if kind == _LONG_GET:
                    at += 5
                    index = unpack(data, last + 1)[0] if at <= limit else -1
                elif kind == _SHORT_GET:
                    at += 2
                    index = data[last + 1] if at <= limit else -1
                else:
                    index, at = _read_index(data, at, limit)
                if index not in memo:
                    if index < 0:
                        continue
                    raise CorruptError(f"{_NAMES[op]} of memo index {index}, which was not put", None, last)
                element = memo[index]
                if element >= _SHARED:
                    fetched.add(element)
                stack.append(element)
                continue
            # _SHORT_PUT
            if op == fmt.MEMOIZE:
                index = len(memo)
                at += 1
            else:
                at += 2
                index = data[last + 1] if at <= limit else 0
        elif kind <= _EMPTY:
            if kind == _EMPTY:
                stack.append(1)
                deep = deep or 1
                at += 1
                continue
            if kind == _MARK:
                run = simple_items(data, at, limit)
                if run is None:
                    at += 1
                    marks.append(floor)
                    floor = len(stack)
                    continue
                at = run.end()
                last = at - 1
                op = data[last]
                if op in _PAIRED and run.end(1) >= 0:
                    raise CorruptError(f"{_NAMES[op]} with a key that has no value", None, last)
                depth = 1
            else:
                if kind == _MAKE:
                    left = len(stack) - _TAKES[op]
                    if left < floor:
                        raise _underflow(op, at)
                    items = stack[left:]
                    del stack[left:]
                elif not marks:
                    raise CorruptError(f"{_NAMES[op]} without its MARK", None, at)
                else:
                    items = stack[floor:]
                    del stack[floor:]
                    floor = marks.pop()
                    if op in _PAIRED and len(items) & 1:
                        raise CorruptError(f"{_NAMES[op]} with a key that has no value", None, last)
                at += 1
                depth = max(items, default=0)
                if depth >= _SHARED:
                    depth = max([shared[e - _SHARED] if e >= _SHARED else e for e in items])
                depth = depth + 1 if depth > 0 else 1
            if depth > deep:
                deep = depth
            if op not in _GROWING:
                stack.append(depth)
                continue
            if len(stack) <= floor:
                raise _underflow(op, last)
            element = stack[-1]
            if element < _SHARED:
                if depth > element:
                    stack[-1] = depth
            elif depth > shared[element - _SHARED]:
                if element in fetched:
                    late += depth - shared[element - _SHARED]
                shared[element - _SHARED] = depth
            continue
        elif kind == _SHORT:
            stack.append(0)
            at += 2
            if at <= limit:
                at += data[at - 1]
                if op == fmt.SHORT_BINBYTES:
                    if loose_end != last:
                        loose.clear()
                    loose.append(last)
                    loose_end = at
            continue
        elif kind == _STACK_GLOBAL:
            if len(stack) - 2 < floor:
                raise _underflow(op, at)
            name = text(stack.pop())
            note(at, text(stack.pop()), name)
            stack.append(0)
            at += 1
            continue
        elif kind == _LONG_PUT:
            at += 5
            index = unpack(data, last + 1)[0] if at <= limit else 0
        elif kind <= _COUNTED:                      # _TEXT or _COUNTED
            stack.append(~at if kind == _TEXT else 0)
            at += 1 - widths[op]
            if at <= limit:
                size = unpack(data, last + 1)[0] if widths[op] == -4 else _U64(data, last + 1)[0]
                if size >> 31 and op in b"T\x8b":
                    raise CorruptError(f"{_NAMES[op]} with a negative size", None, last)
                if size > fmt.BIG_PAYLOAD and op in _PAYLOADS:
                    result.payloads.append((last, at, at + size))
                at += size
                if op in _BYTES:
                    if loose_end != last:
                        loose.clear()
                    loose.append(last)
                    loose_end = at
                if texts and at <= limit and kind == _TEXT:
                    _check_text(data, last, at - size, at)
            continue
        elif kind == _POP:
            if len(stack) > floor:
                stack.pop()
                if loose and loose_end == at:
                    thrown = loose.pop()
                    while result.fillers and result.fillers[-1][0] > thrown:
                        result.fillers.pop()
                    result.fillers.append((thrown, at + 1))
                    loose_end = at + 1
            elif marks:
                floor = marks.pop()         # an unpickler's POP takes a MARK, too
            else:
                raise _underflow(op, at)
            at += 1
            continue
        elif kind == _POP_MARK:
            if not marks:
                raise CorruptError("POP_MARK without its MARK", None, at)
            del stack[floor:]
            floor = marks.pop()
            at += 1
            continue
        elif kind == _LINE_PUT:
            index, at = _read_index(data, at, limit)
        elif kind == _FRAME:
            at += 9
            if at > limit:
                continue
            if at < frame_end:
                raise CorruptError("FRAME inside of a frame", None, last)
            size = _U64(data, last + 1)[0]
            if size > n - at:
                raise CorruptError(f"FRAME of {size} bytes, {n - at} left", None, last)
            limit = frame_end = at + size
            continue
        elif kind == _PROTO:
            at += 2
            if at <= limit:
                proto = data[at - 1]
                if proto > pickle.HIGHEST_PROTOCOL:
                    raise CorruptError(f"PROTO {proto}: no such protocol", None, last)
            continue
        elif kind == _STOP:
            if len(stack) <= floor:
                raise _underflow(op, at)
            at += 1
            result.stopped = True
            break
        elif kind == _DUP:
            if len(stack) <= floor:
                raise _underflow(op, at)
            element = stack[-1]
            if 0 < element < _SHARED:
                shared.append(element)
                element = stack[-1] = _SHARED + len(shared) - 1
            if element >= _SHARED:
                fetched.add(element)
            stack.append(element)
            at += 1
            continue
        elif kind == _LINE or kind == _TEXT_LINE:
            stack.append(~at if kind == _TEXT_LINE else 0)
            at = _read_line(data, at + 1, limit, at)
            continue
        elif kind == _GLOBAL or kind == _OBJ:
            if op != 0x6F:                          # GLOBAL or INST
                middle = _read_line(data, at + 1, limit, at)
                at = _read_line(data, middle, limit, at)
                note(last, _name(data, last + 1, middle - 1), _name(data, middle, at - 1))
                if op == 0x63:
                    stack.append(0)
                    continue
            if not marks:
                raise CorruptError(f"{_NAMES[op]} without its MARK", None, last)
            items = stack[floor:]
            del stack[floor:]
            floor = marks.pop()
            if op == 0x6F:
                if not items:
                    raise _underflow(op, at)
                at += 1
            depth = 1 + max([0, *(shared[e - _SHARED] if e >= _SHARED else e for e in items)])
            deep = max(deep, depth)
            stack.append(depth)
            continue
        elif kind == _EXTENSION:
            at += 1 + widths[op]
            if at <= limit:
                code = int.from_bytes(data[last + 1:at], "little")
                result.globals.append((last, "copyreg", f"extension {code}"))
                stack.append(0)
            continue
        elif kind == _NOTHING:
            if len(stack) <= floor:
                raise _underflow(op, at)
            at += 1
            continue
        elif op in refuse:
            raise CorruptError(f"{_NAMES.get(op, hex(op))} may not stand here", None, at)
        else:
            raise CorruptError(f"unknown opcode 0x{op:02x}", None, at)
        # An object is memoised.
        if len(stack) <= floor:
            raise _underflow(op, last)
        if at > limit:
            continue
        if puts == 0 and base < 0:
            base = index
        puts += 1
        if index - base > 2 * puts + SPARSE_MEMO and not sparse:
            raise CorruptError(f"{_NAMES[op]} to memo index {index}, with {puts} objects memoised: an unpickler "
                               f"would take {16 * index} bytes for its memo", None, last)
        if index in memo and result.repeated is None:
            result.repeated = index
        element = stack[-1]
        if 0 < element < _SHARED:
            shared.append(element)
            element = stack[-1] = _SHARED + len(shared) - 1
        memo[index] = element
    result.depth, result.late = deep, late
    result.stack, result.marks = len(stack) + len(marks), len(marks)
    result.end = at
    result.proto = proto
    result.memo = set(memo).difference(strangers)
    result.memo_max = max(result.memo, default=-1)
    return result


@lru_cache(64)
def _kinds_but(refuse: bytes) -> bytearray:
    return bytearray(_UNKNOWN if op in refuse else kind for op, kind in enumerate(_KINDS))


def _check_text(data: Buffer, op_at: int, start: int, end: int) -> None:
    """Raise CorruptError if a text is none."""
    encoding = "ascii" if data[op_at] in b"TU" else "utf-8"         # those two are of protocol 1
    try:
        if end - start <= TEXT_STEP:
            str(data[start:end], encoding, "surrogatepass")
            return
        decoder: Any = codecs.getincrementaldecoder(encoding)("surrogatepass")
        for i in range(start, end, TEXT_STEP):
            decoder.decode(bytes(data[i:min(i + TEXT_STEP, end)]), i + TEXT_STEP >= end)
    except UnicodeDecodeError as exc:
        raise CorruptError(f"{_NAMES[data[op_at]]} of a text that is not {encoding.upper()}", None, op_at) from exc


def _underflow(op: int, at: int) -> CorruptError:
    return CorruptError(f"{_NAMES[op]} with too few objects on the stack", None, at)


def _too_long(data: Buffer, at: int, after: int, limit: int, framed: bool) -> CorruptError:
    where = "out of its frame" if framed else "past the end"
    return CorruptError(f"{_NAMES[data[at]]} of {after - at} bytes runs {where}, {limit - at} left", None, at)


def _read_line(data: Buffer, at: int, limit: int, op_at: int) -> int:
    """Return the offset behind the line that starts at `at`."""
    m = _NEWLINE.search(data, at, limit)
    if m is None:
        raise CorruptError(f"{_NAMES[data[op_at]]} without the end of its line", None, op_at)
    return m.end()


def _read_index(data: Buffer, at: int, limit: int) -> tuple[int, int]:
    """Return the memo index of GET or PUT, and the offset behind it."""
    after = _read_line(data, at + 1, limit, at)
    digits = bytes(data[at + 1:min(after - 1, at + 21)])
    if not digits.isdigit() or after - at > 21:
        raise CorruptError(f"{_NAMES[data[at]]} without a memo index", None, at)
    return int(digits), after


def _name(data: Buffer, start: int, end: int) -> Optional[str]:
    if end - start > NAME_MAX:
        return None
    try:
        return bytes(data[start:end]).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _read_text(data: Buffer, at: int, n: int) -> Optional[str]:
    """Return the text that the opcode at `at` pushes, if it can be a name."""
    op = data[at]
    if ARGUMENT_WIDTHS[op] != -9:
        start = at + 1 - ARGUMENT_WIDTHS[op]
        end = start + int.from_bytes(data[at + 1:start], "little")
        return _name(data, start, end)
    line = slice(at + 1, _read_line(data, at + 1, n, at) - 1)
    if line.stop - line.start > NAME_MAX:
        return None
    raw = bytes(data[line])
    try:
        if op == 0x56:                      # UNICODE
            return raw.decode("raw-unicode-escape")
        raw = raw.strip()
        if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
            return None
        return raw[1:-1].decode("unicode-escape")
    except UnicodeDecodeError:
        return None
