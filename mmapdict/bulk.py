"""Many entries at once: their keys, and what arrays their values are.

What `format.decode_record`, `literals.decode_literal` and `arrays.decode_info` do with one entry, this does with numpy
for thousands of them, with all their checks. What it does not understand, or what fails a check, it gives to them,
entry by entry: so results and errors are always theirs.
"""
from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Optional
from zlib import crc32

import numpy as np

from . import format as fmt
from .arrays import _BUILD, _BUILT, ArrayInfo, Info, Order, decode_info
from .errors import CorruptError
from .literals import check_key, decode_literal

_Array = np.ndarray[Any, np.dtype[Any]]
_Info = Optional[Info]

CHUNK = 1 << 14                 # entries that are looked at together; all that is made of them is a few megabytes
FEW = 48                        # fewer are done sooner one by one
WINDOWS_MAX = 1 << 21           # bytes of windows that are copied out of the file together
NARROW, WIDE = 128, 512         # widths of windows for short and for long opcodes; longer keys are decoded alone
ITEMS_MAX = 8                   # of a tuple
HEAD_MAX = 64                   # bytes of an array's opcodes up to its elements

# The start of an entry. The check's size and tag are in one of two places, as its opcode says.
_CHECK_AT = fmt.RECORD_HEAD + len(fmt.ROOT)
_SHORT_TAG, _LONG_TAG = _CHECK_AT + 2, _CHECK_AT + 5
_START = np.dtype({
    "names": ["mark", "op", "length", "root", "check", "short", "long", "short tag", "long tag"],
    "formats": ["u1", "u1", "<u8", "<u2", "u1", "u1", "<u4",
                [("tag", "<u8"), ("crc", "<u4"), ("span", "<u2")], [("tag", "<u8"), ("crc", "<u4"), ("span", "<u2")]],
    "offsets": [0, 1, 2, fmt.RECORD_HEAD, _CHECK_AT, _CHECK_AT + 1, _CHECK_AT + 1, _SHORT_TAG, _LONG_TAG]})
_ROOT = int.from_bytes(fmt.ROOT, "little")
_BUILT_WORD = int.from_bytes(_BUILT, "little")
_CLOSE = len("s1")              # SETITEM and POP_MARK
_U16 = np.uint64(0xFFFF)
_SIGN, _INFINITY = np.uint64(1 << 63), np.uint64(0x7FF << 52)       # bits of a double
# Which bits of eight-byte words belong to the first bytes, by their number; and what a hash multiplies the words by.
_MASKS: _Array = (np.where(np.arange(HEAD_MAX) < np.arange(HEAD_MAX + 1)[:, None], 0xFF, 0)
                  .astype(np.uint8).view("<u8"))
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, i, 1 << 64) for i in range(1, HEAD_MAX // 8 + 1)], np.uint64)

# How many bytes a literal takes; 0: none of those that are decoded here. In some, a byte says how many more follow.
_SIZES = np.zeros(256, np.int64)
for _op, _size in {fmt.NONE: 1, fmt.NEWTRUE: 1, fmt.NEWFALSE: 1, fmt.EMPTY_TUPLE: 1, fmt.BININT1: 2, fmt.BININT2: 3,
                   fmt.BININT: 5, fmt.BINFLOAT: 9, fmt.LONG1: 2, fmt.SHORT_BINUNICODE: 2,
                   fmt.SHORT_BINBYTES: 2}.items():
    _SIZES[_op] = _size
_COUNTED = np.zeros(256, np.int64)
_COUNTED[[fmt.LONG1, fmt.SHORT_BINUNICODE, fmt.SHORT_BINBYTES]] = 1


class Heads(NamedTuple):
    """What the heads of entries say, one element for each entry.

    Attributes
    ----------
    keys : list
    at, covered, end : numpy.ndarray of int64
        Where the value's opcodes start, `Record.covered` and `Record.end`: in bytes from the start of the file.
    """

    keys: list[Any]
    at: _Array
    covered: _Array
    end: _Array

    @property
    def body_end(self) -> _Array:
        """`Record.body_end`."""
        ends: _Array = self.end - _CLOSE
        return ends


def decode_entries(view: memoryview, base: int, offsets: _Array, tag: int) -> Heads:
    """Read the heads of published entries, live or dead, and check them.

    Parameters
    ----------
    view : memoryview
        Bytes of the file from offset `base` on.
    base : int
    offsets : numpy.ndarray of int64
        Of the entries' MARKs, each inside the view; in bytes from the start of the file, in any order.
    tag : int
        `file_tag` of the file.

    Raises
    ------
    CorruptError
        As `decode_record`, `decode_literal` and `check_key` make it of the first entry, in the order given, that is
        no whole entry or has no key. `offset` counts from the start of the file.

    Notes
    -----
    About 0.4 µs an entry with a short text as its key, and 5 µs one that is decoded alone.
    """
    n = len(offsets)
    keys: list[Any] = []
    places = np.empty((3, n), np.int64)
    for start in range(0, n, CHUNK):
        stop = start + CHUNK
        keys += _decode_chunk(view, base, offsets[start:stop], tag, places[:, start:stop])
    return Heads(keys, *places)


def _decode_chunk(view: memoryview, base: int, offsets: _Array, tag: int, places: _Array) -> list[Any]:
    """Return the keys of a few entries, and set their `places`: at, covered and end."""
    n = len(offsets)
    keys: list[Any] = [None] * n
    alone = np.ones(n, np.bool_)
    if n >= FEW:
        buf = np.frombuffer(view, np.uint8)
        starts = _check_starts(buf, base, offsets, tag)
        for rows, content, width in starts.pieces():
            windows = _windows(buf, content, width)
            spans = starts.spans[rows]
            states = _prefix_states(starts.prefixes[:, rows])
            crcs = (_crcs(states, windows, spans) if width <= NARROW
                    else _long_crcs(states, view, content, spans))
            # A key that ends before what is covered does has something of the entry behind it, SETITEM at least.
            sizes = _key_sizes(windows, np.minimum(spans, width - 2))
            good = (crcs == starts.crcs[rows]) & (sizes > 0)
            rows, sizes = rows[good], sizes[good]
            found = _unpickle(windows[good], sizes)
            if found is None:
                continue
            where = starts.rows[rows]
            alone[where] = False
            content = starts.content[rows] + base
            places[0, where] = content + sizes
            places[1, where] = content + starts.spans[rows]
            places[2, where] = starts.ends[rows] + base
            if len(found) == n:
                keys = found
            else:
                for i, key in zip(where.tolist(), found):
                    keys[i] = key
    for i in np.flatnonzero(alone).tolist():
        keys[i], places[0, i], places[1, i], places[2, i] = _decode_one(view, base, int(offsets[i]), tag)
    return keys


def _decode_one(view: memoryview, base: int, offset: int, tag: int) -> tuple[Any, int, int, int]:
    """Return key, at, covered and end of one entry."""
    record = fmt.decode_record(view, base, offset, tag)
    try:
        key, at = decode_literal(view, record.content - base, record.body_end - base)
        check_key(key)
    except CorruptError as exc:
        where = record.content if exc.offset is None else base + exc.offset
        raise CorruptError(exc.message, exc.path, where) from exc
    except TypeError as exc:
        raise CorruptError(str(exc), None, record.content) from exc
    return key, base + at, record.covered, record.end


# -- bytes of the file ----------------------------------------------------------------------------------------------

def _every(buf: _Array, dtype: Any) -> _Array:
    """Return what stands at each byte of `buf`, read as `dtype`: a view, of as many elements as fit."""
    dtype = np.dtype(dtype)
    return np.ndarray((max(0, buf.size - dtype.itemsize + 1),), dtype, buf, 0, (1,))


def _windows(buf: _Array, at: _Array, width: int) -> _Array:
    """Return copies of the `width` bytes from each position on, zeros behind the end of `buf`; shape (n, width)."""
    kind = f"V{width}"              # numpy copies these in one piece
    last = buf.size - width
    over = at > last
    if not over.any():
        found = _every(buf, kind)[at]
    else:
        first = max(0, last + 1)
        end = np.concatenate((buf[first:], np.zeros(width, np.uint8)))
        found = np.empty(len(at), kind)
        found[~over] = _every(buf, kind)[at[~over]]
        found[over] = _every(end, kind)[at[over] - first]
    return found.view(np.uint8).reshape(len(at), width)


# -- records --------------------------------------------------------------------------------------------------------

class _Starts(NamedTuple):
    """The entries of a chunk that are whole, but for their check value. Positions count from the view's start."""

    rows: _Array                # which of the chunk they are
    content: _Array
    ends: _Array                # behind the record
    spans: _Array
    crcs: _Array
    prefixes: _Array            # what a crc covers first: length, tag, span; shape (9, n), in numbers of two bytes

    def pieces(self) -> Iterator[tuple[_Array, _Array, int]]:
        """Yield indices, the contents' positions and the width of windows that hold the covered bytes, or enough."""
        narrow = self.spans <= NARROW - 2
        for rows, width_max in ((np.flatnonzero(narrow), NARROW), (np.flatnonzero(~narrow), WIDE)):
            for start in range(0, len(rows), WINDOWS_MAX // width_max):
                piece = rows[start:start + WINDOWS_MAX // width_max]
                width = min((int(self.spans[piece].max()) + 1) // 8 * 8 + 8, width_max)     # the span, and 2 or more
                yield piece, self.content[piece], width


def _check_starts(buf: _Array, base: int, offsets: _Array, tag: int) -> _Starts:
    """Make all checks of `decode_record` but that of the crc; leave out what fails one."""
    size = buf.size
    at = offsets - base
    rows = np.flatnonzero((at >= 0) & (at <= size - _START.itemsize))
    at = at[rows]
    start = _windows(buf, at, _START.itemsize).view(_START)[:, 0]
    check = start["check"]
    short = check == fmt.SHORT_BINBYTES
    length = start["length"]
    # Compared as it is, without a sign: it may be 2**64 - 1. From then on no sum of positions is near 2**63.
    good = (length > fmt.CHECK.size + 3) & (length < np.uint64(size))
    close = at + fmt.RECORD_HEAD + np.where(good, length, np.uint64(0)).astype(np.int64)
    n = np.where(short, start["short"], start["long"]).astype(np.int64)
    content = at + np.where(short, _SHORT_TAG, _LONG_TAG) + n + 1
    tags, long_tags = start["short tag"], start["long tag"]
    tagged = np.where(short, tags["tag"], long_tags["tag"])
    crcs = np.where(short, tags["crc"], long_tags["crc"])
    spans = np.where(short, tags["span"], long_tags["span"]).astype(np.int64)
    good &= (start["mark"] == fmt.MARK) & ((start["op"] == fmt.LIVE) | (start["op"] == fmt.DEAD))
    good &= (start["root"] == _ROOT) & (short | (check == fmt.BINBYTES)) & (n >= fmt.CHECK.size)
    good &= tagged == (offsets[rows].astype(np.uint64) ^ np.uint64(tag))
    good &= (close < size) & (content < close - 1) & (content + spans <= close)
    # Only now are these positions known to be inside.
    inside = np.flatnonzero(good)
    good[inside] = ((buf[content[inside] - 1] == fmt.POP) & (buf[close[inside] - 1] == fmt.SETITEM)
                    & (buf[close[inside]] == fmt.POP_MARK))
    prefixes = np.empty((9, len(rows)), "<u2")
    for i in range(4):
        prefixes[i] = length >> np.uint64(16 * i) & _U16
        prefixes[i + 4] = tagged >> np.uint64(16 * i) & _U16
    prefixes[8] = spans
    if not good.all():
        rows, content, close, spans, crcs, prefixes = (
            rows[good], content[good], close[good], spans[good], crcs[good], prefixes[:, good])
    return _Starts(rows, content, close + 1, spans, crcs, prefixes)


# -- check values ---------------------------------------------------------------------------------------------------

@lru_cache(maxsize=1)
def _crc_tables() -> tuple[_Array, _Array]:
    """Return what a CRC-32 becomes by one byte, and by two: for each of its lowest bits, the others being 0."""
    zero = crc32(b"\0")
    one = np.array([crc32(bytes((i,))) ^ zero for i in range(256)], np.uint32)
    two = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        two = one[two & 0xFF] ^ (two >> 8)
    return one, two


def _prefix_states(prefixes: _Array) -> _Array:
    """Return the states of the crcs behind the bytes that each of them covers first."""
    _, two = _crc_tables()
    state = np.full(prefixes.shape[1], 0xFFFFFFFF, np.uint32)
    for column in prefixes:
        state = two[state.astype(np.uint16) ^ column] ^ (state >> 16)
    return state


def _crcs(states: _Array, windows: _Array, spans: _Array) -> _Array:
    """Return the crcs, as of `zlib.crc32`, of the first bytes of each window, going on from `states`.

    Two bytes at a time of all windows: for short spans that takes a third of the time of calls for each of them.
    """
    one, two = _crc_tables()
    order = np.argsort(-spans.astype(np.int16), kind="stable")      # longest first: the others are ready before them
    windows, spans, state = windows[order], spans[order], states[order]
    columns = windows.view("<u2").T
    pairs = spans >> 1
    counts = np.searchsorted(-pairs, -np.arange(pairs[0]))          # how many go on
    for column, count in zip(columns, counts.tolist()):
        part = state[:count]
        state[:count] = two[part.astype(np.uint16) ^ column[:count]] ^ (part >> 16)
    odd = np.flatnonzero(spans & 1)
    last = windows[odd, spans[odd] - 1]
    state[odd] = one[state[odd].astype(np.uint8) ^ last] ^ (state[odd] >> 8)
    crcs = np.empty_like(state)
    crcs[order] = ~state
    return crcs


def _long_crcs(states: _Array, view: memoryview, content: _Array, spans: _Array) -> _Array:
    """Return the crcs of the bytes at `content`, going on from `states`."""
    return np.array([crc32(view[start:end], crc) for start, end, crc
                     in zip(content.tolist(), (content + spans).tolist(), (~states).tolist())], np.uint32)


# -- keys -----------------------------------------------------------------------------------------------------------

def _key_sizes(windows: _Array, rooms: _Array) -> _Array:
    """Return how many bytes the key takes that stands at the start of each window; 0: it is to be decoded alone.

    Parameters
    ----------
    windows : numpy.ndarray, shape (n, width), uint8
    rooms : numpy.ndarray of int64
        In how many bytes of each the key has to end, and one more; less than ``width - 1``.
    """
    n, width = windows.shape
    flat = windows.reshape(-1)
    first = np.arange(n) * width
    limit = first + rooms
    end = _literal_ends(flat, first, limit)
    rows = np.flatnonzero(flat[first] == fmt.MARK)
    pos = first[rows] + 1
    for _ in range(ITEMS_MAX + 1):
        if not len(rows):
            break
        closing = flat[pos] == fmt.TUPLE
        end[rows[closing]] = pos[closing] + 1
        rows = rows[~closing]
        pos = _literal_ends(flat, pos[~closing], limit[rows])
        going = pos >= 0
        rows, pos = rows[going], pos[going]
    sizes: _Array = np.where((end >= 0) & (end < limit), end - first, 0)
    return sizes


def _literal_ends(flat: _Array, pos: _Array, limit: _Array) -> _Array:
    """Return where the literals end that start at `pos`; -1: not before `limit`, or none of those known here."""
    op = flat[pos]
    end: _Array = pos + _SIZES[op] + _COUNTED[op] * flat[pos + 1]
    end[(end >= limit) | (end == pos)] = -1
    rows = np.flatnonzero(op == fmt.SHORT_BINBYTES)
    if len(rows):
        rows = rows[flat[end[rows]] == fmt.POP]         # a filler; if it is -1 already, it does no harm
        end[rows] = -1
    rows = np.flatnonzero((op == fmt.BINFLOAT) & (end >= 0))
    if len(rows):
        bits = _every(flat, ">u8")[pos[rows] + 1] & ~_SIGN
        end[rows[bits > _INFINITY]] = -1                # NaN
    return end


def _unpickle(windows: _Array, sizes: _Array) -> Optional[list[Any]]:
    """Return the keys at the starts of windows, or None if a text in them is not UTF-8.

    The unpickler is given nothing but literals and the MARKs and TUPLEs around them, which call nothing and name no
    globals. `windows` must be the copy that was looked at to find the sizes: in the file, somebody may have stored
    other opcodes meanwhile.
    """
    n, width = windows.shape
    if not n:
        return []
    ends = np.cumsum(sizes)
    steps = np.ones(int(ends[-1]), np.int64)
    steps[0] = 0
    steps[ends[:-1]] = width - sizes[:-1] + 1
    ops = windows.reshape(-1)[np.cumsum(steps)].tobytes()
    try:
        keys: list[Any] = pickle.loads(b"\x80\x04(" + ops + b"l.")
    except UnicodeDecodeError:
        return None
    return keys


# -- values ---------------------------------------------------------------------------------------------------------

class _Known(NamedTuple):
    """What arrays with the same opcodes have in common."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Order
    nbytes: int


_UNKNOWN = _Known((), np.dtype("u1"), "C", -1)


def describe(view: memoryview, base: int, heads: Heads) -> list[_Info]:
    """Return what array each value is; None: it is none, but a pickled value.

    Parameters
    ----------
    view : memoryview
        Bytes of the file from offset `base` on.
    base : int
    heads : Heads
        Of entries that are inside the view.

    Raises
    ------
    CorruptError
        As `decode_info` makes it of the first of them whose opcodes start an array and do not go on as one.

    Notes
    -----
    About 0.6 µs an array, if many are alike; masked and structured ones, and those whose byte order is not the
    machine's, are decoded alone.
    """
    infos: list[_Info] = []
    for start in range(0, len(heads.keys), CHUNK):
        stop = start + CHUNK
        infos += _describe_chunk(view, base, heads.at[start:stop], heads.covered[start:stop], heads.end[start:stop])
    return infos


def _describe_chunk(view: memoryview, base: int, at: _Array, covered: _Array, end: _Array) -> list[_Info]:
    n = len(at)
    infos: list[_Info] = [None] * n
    alone = np.ones(n, np.bool_)
    if n >= FEW:
        buf = np.frombuffer(view, np.uint8)
        inside = np.flatnonzero((base <= at) & (at < end - _CLOSE) & (end <= base + buf.size))
        starts = buf[at[inside] - base] == fmt.BINGET
        alone[inside] = starts
        rows = inside[starts]
        lengths = covered[rows] - at[rows]
        rows = rows[(lengths > 0) & (lengths <= HEAD_MAX)]
        if len(rows):
            known, groups = _group(view, buf, base, at[rows], covered[rows], end[rows])
            _fill(infos, alone, buf, base, rows, covered[rows], end[rows], known, groups)
    for i in np.flatnonzero(alone).tolist():
        infos[i] = decode_info(view, base, int(at[i]), int(end[i]) - _CLOSE, int(covered[i]))
    return infos


def _group(view: memoryview, buf: _Array, base: int, at: _Array, covered: _Array,
           end: _Array) -> tuple[list[_Known], _Array]:
    """Return what arrays there are, and for each value the index of its own; of `_UNKNOWN`, if it may be any.

    `covered` is behind `at`, by `HEAD_MAX` at most.
    """
    lengths = covered - at
    count = (int(lengths.max()) + 7) // 8
    words = _windows(buf, at - base, 8 * count).view("<u8") & _MASKS[lengths, :count]
    hashes = words @ _FACTORS[:count]
    if (hashes == hashes[0]).all():
        firsts, groups = np.zeros(1, np.int64), np.zeros(len(at), np.int64)
    else:
        _, firsts, groups = np.unique(hashes, return_index=True, return_inverse=True)
    known = [_know(view, base, int(at[i]), int(covered[i]), int(end[i])) for i in firsts.tolist()]
    # Others with the same hash are not taken for the first of them.
    first = firsts[groups]
    groups[(lengths != lengths[first]) | (words != words[first]).any(axis=1)] = len(known)
    return [*known, _UNKNOWN], groups


def _know(view: memoryview, base: int, at: int, covered: int, end: int) -> _Known:
    """Return what holds for all arrays with the opcodes of this one, up to where its elements start."""
    if view[at - base:at - base + len(_BUILD)] != _BUILD:
        return _UNKNOWN             # of a buffer, the order is said behind the elements
    try:
        info = decode_info(view, base, at, end - _CLOSE, covered)
    except CorruptError:
        return _UNKNOWN             # another entry before it may be damaged too: that one is to be named
    # Fields can be renamed in place, so that each array of a structured dtype gets one of its own.
    if not isinstance(info, ArrayInfo) or info.offset != covered or info.dtype.names is not None:
        return _UNKNOWN
    return _Known(info.shape, info.dtype, info.order, info.nbytes)


def _fill(infos: list[_Info], alone: _Array, buf: _Array, base: int, rows: _Array, covered: _Array, end: _Array,
          known: list[_Known], groups: _Array) -> None:
    """Set the `infos` of all `rows` that are as what is known of them says, also behind their elements."""
    nbytes = np.array([k.nbytes for k in known], np.int64)[groups]
    last = end - base - _CLOSE
    behind = covered - base + nbytes + len(_BUILT)
    fits = np.flatnonzero((nbytes >= 0) & (behind <= last))
    behind, last = behind[fits], last[fits]
    filler = ((buf[behind] == fmt.SHORT_BINBYTES) & (behind + 3 + buf[behind + 1] == last)
              & (buf[last - 1] == fmt.POP))
    fits = fits[(_every(buf, "<u2")[behind - len(_BUILT)] == _BUILT_WORD) & (filler | (behind == last))]
    rows = rows[fits]
    alone[rows] = False
    for i, group, offset in zip(rows.tolist(), groups[fits].tolist(), covered[fits].tolist()):
        shape, dtype, order, size = known[group]
        infos[i] = ArrayInfo(shape, dtype, order, offset, size)
