"""The bytes of a file: constants, and pure functions from and to the header and the records.

The normative text is docs/format.md; names and numbers here are checked against its tables by a test.

    File    :=  Header  Record*  STOP  [ignored bytes]
    Header  :=  PROTO 4 · BINBYTES 245 <block> · POP · EMPTY_DICT · BINPUT 0               256 bytes
    Record  :=  MARK · Op · <u64 length of Body> · Body · POP_MARK                         multiple of 8 bytes
    Op      :=  BINFLOAT (live)  |  BINBYTES8 (dead)
    Body    :=  BINGET 0 · Check · key · value · SETITEM        an entry
             |  Check · anything                                hidden: POP_MARK throws it away
    Check   :=  (SHORT_BINBYTES | BINBYTES) <tag, crc, span, zeros> · POP

Nothing in this module touches a file.
"""
from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Union
from zlib import crc32

from .errors import CorruptError, FormatError

Buffer = Union[bytes, bytearray, memoryview]

# -- opcodes, named as in pickletools ---------------------------------------------------------------------------
PROTO, MARK, STOP, POP, POP_MARK = 0x80, 0x28, 0x2E, 0x30, 0x31
BINFLOAT, BINBYTES8, BINBYTES, SHORT_BINBYTES = 0x47, 0x8E, 0x42, 0x43
BINGET, LONG_BINGET, BINPUT, LONG_BINPUT, MEMOIZE, FRAME = 0x68, 0x6A, 0x71, 0x72, 0x94, 0x95
SETITEM, EMPTY_DICT, STACK_GLOBAL = 0x73, 0x7D, 0x93
NONE, NEWTRUE, NEWFALSE = 0x4E, 0x88, 0x89
BININT1, BININT2, BININT, LONG1, LONG4 = 0x4B, 0x4D, 0x4A, 0x8A, 0x8B
SHORT_BINUNICODE, BINUNICODE, BINUNICODE8 = 0x8C, 0x58, 0x8D
EMPTY_TUPLE, TUPLE, EMPTY_LIST, APPENDS, SETITEMS = 0x29, 0x74, 0x5D, 0x65, 0x75
TUPLE1, TUPLE3, REDUCE = 0x85, 0x87, 0x52

LIVE, DEAD = BINFLOAT, BINBYTES8
CELL_MAX = (1 << 64) - 1

# -- header -----------------------------------------------------------------------------------------------------
VERSION = 1
MAGIC = b"mmapdict"
HEADER_SIZE = 256
BLOCK_OFFSET = 7
BLOCK_SIZE = HEADER_SIZE - BLOCK_OFFSET - 4
HEADER_HEAD = bytes((PROTO, 4, BINBYTES)) + BLOCK_SIZE.to_bytes(4, "little")
HEADER_TAIL = bytes((POP, EMPTY_DICT, BINPUT, 0))

# Offsets of the fields. What changes is an aligned 8-byte little-endian cell; the two ids are 16 bytes.
MAGIC_OFFSET = 8
VERSION_OFFSET = MAGIC_OFFSET + 8
FILE_ID_OFFSET = VERSION_OFFSET + 8
COMMIT_OFFSET = FILE_ID_OFFSET + 16
STOP_OFFSET = COMMIT_OFFSET + 8
LIVE_OFFSET = STOP_OFFSET + 8
DEAD_OFFSET = LIVE_OFFSET + 8
MEMO_OFFSET = DEAD_OFFSET + 8
INDEX_OFFSET = MEMO_OFFSET + 8
STATE_OFFSET = INDEX_OFFSET + 8
BOOT_ID_OFFSET = STATE_OFFSET + 8
SYNCED_OFFSET = BOOT_ID_OFFSET + 16
RESERVED_OFFSET = SYNCED_OFFSET + 8
# The same as numbers of cells.
COMMIT_CELL, STOP_CELL, LIVE_CELL, DEAD_CELL, MEMO_CELL, INDEX_CELL, STATE_CELL, BOOT_CELL, SYNCED_CELL = (
    offset >> 3 for offset in (COMMIT_OFFSET, STOP_OFFSET, LIVE_OFFSET, DEAD_OFFSET, MEMO_OFFSET, INDEX_OFFSET,
                               STATE_OFFSET, BOOT_ID_OFFSET, SYNCED_OFFSET))

NORMAL, REPLACING, SUPERSEDED = 0, 1, 2

# -- records ----------------------------------------------------------------------------------------------------
RECORD_HEAD = 10          # MARK, Op, length
RECORD_ALIGNMENT = 8
RECORD = struct.Struct("<BBQ")
CHECK = struct.Struct("<QIH")      # tag, crc32, span
LENGTH_TAG_SPAN = struct.Struct("<QQH")
SPAN_MAX = 4096
ROOT = bytes((BINGET, 0))

# A payload longer than this may be read past a reader's buffer, which then goes on from the payload's end: it
# ends on a multiple of 8, so that no aligned cell is ever split between two reads (I11).
BIG_PAYLOAD = 4096
SMALL_ALIGNMENT = 64

# Memo indices: 0 is the dictionary, those below MEMO_START belong to hidden globals, values use those above.
MEMO_START = 64
MEMO_END = 1 << 32


def _text(s: str) -> bytes:
    b = s.encode("ascii")
    return bytes((SHORT_BINUNICODE, len(b))) + b


def _global(module: str, name: str) -> bytes:
    return _text(module) + _text(name) + bytes((STACK_GLOBAL,))


# Hidden globals, memoised once in a file. A group is written before the first entry that needs it.
NDARRAY, DTYPE, NO_ROWS, UINT8 = 1, 2, 3, 4
MASKED_ARRAY, NOMASK = 8, 9
ARRAYS, MASKS = 1, 2
GROUPS: dict[int, bytes] = {
    ARRAYS: (_global("numpy", "ndarray") + bytes((BINPUT, NDARRAY))
             + _global("numpy", "dtype") + bytes((BINPUT, DTYPE))
             + b"(K\x00t\x85" + bytes((BINPUT, NO_ROWS))                      # ((0,),)
             + bytes((BINGET, DTYPE)) + _text("|u1") + b"\x85R" + bytes((BINPUT, UINT8))),
    MASKS: (_global("numpy.ma", "MaskedArray") + bytes((BINPUT, MASKED_ARRAY))
            + _global("numpy.ma", "nomask") + bytes((BINPUT, NOMASK))),
}
# What makes the bytes of a growable array.
BYTEARRAY = _global("builtins", "bytearray")
# Empties the dictionary: what stands before it in the file no longer counts.
CLEAR = _global("builtins", "dict.clear") + ROOT + bytes((TUPLE1, REDUCE))
# Around a key: takes it out of the dictionary. What stands before it in the file no longer counts for that key. Which
# of the two ends says whether the key is deleted, or its next entry follows at once.
DROP = _global("builtins", "dict.pop") + ROOT
DROPPED = bytes((NONE, TUPLE3, REDUCE))
REPLACED = bytes((NEWFALSE, TUPLE3, REDUCE))
# Starts a hidden record that holds checksums of all records before it.
SEAL = _text("mmapdict seal")
# Starts a hidden record that tells where the records of keys are.
INDEX = _text("mmapdict index")

# How files of others start.
_FOREIGN = ((b"\x93NUMPY", "a .npy file"), (b"\x89HDF\r\n", "an HDF5 file"), (b"SQLite format 3", "an SQLite database"),
            (b"\x1f\x8b", "a file that gzip has compressed: decompress it first"),
            (b"BZh", "a file that bzip2 has compressed: decompress it first"),
            (b"\xfd7zXZ\0", "a file that xz has compressed: decompress it first"))
UNKNOWN = "it starts with"          # of a file of which no more can be said
ANEW = '; mode "w" starts it anew'


def file_tag(file_id: bytes) -> int:
    """Return the number that is combined with a record's offset to make its tag."""
    return int.from_bytes(file_id[:8], "little")


def encode_header(file_id: bytes, boot_id: bytes) -> bytes:
    """Return the first 256 bytes of a new, empty file. STOP follows them.

    Parameters
    ----------
    file_id : bytes, 16 bytes
        Random; makes the tags of this file's records its own.
    boot_id : bytes, 16 bytes
        Of the running system, or zeros.
    """
    block = bytearray(HEADER_SIZE)
    block[:BLOCK_OFFSET] = HEADER_HEAD
    block[MAGIC_OFFSET:VERSION_OFFSET] = MAGIC
    struct.pack_into("<Q", block, VERSION_OFFSET, VERSION)
    block[FILE_ID_OFFSET:COMMIT_OFFSET] = file_id
    struct.pack_into("<Q", block, STOP_OFFSET, HEADER_SIZE)
    struct.pack_into("<Q", block, MEMO_OFFSET, MEMO_START)
    block[BOOT_ID_OFFSET:SYNCED_OFFSET] = boot_id
    block[-len(HEADER_TAIL):] = HEADER_TAIL
    return bytes(block)


def check_header(head: bytes, size: int, path: str) -> bytes:
    """Return the file id, if `head` is the header of a file that this version reads.

    Parameters
    ----------
    head : bytes
        The first `HEADER_SIZE` + 1 bytes, or fewer if the file is shorter.
    size : int
        Of the file, in bytes.
    path : str
        For the message.

    Raises
    ------
    FormatError
        Not an mmapdict file, or one of a newer format version; the message says what it looks like.
    CorruptError
        An mmapdict file whose header is damaged or cut.
    """
    if head[:BLOCK_OFFSET] != HEADER_HEAD or head[MAGIC_OFFSET:VERSION_OFFSET] != MAGIC:
        if HEADER_HEAD.startswith(head[:BLOCK_OFFSET]) and 2 < size < HEADER_SIZE:
            raise CorruptError(f"cut inside the header: {size} bytes", path)
        if head[MAGIC_OFFSET:VERSION_OFFSET] == MAGIC:
            raise CorruptError("the header's opcodes are overwritten", path, 0)
        if head[:BLOCK_OFFSET] == HEADER_HEAD and head[HEADER_SIZE - 4:HEADER_SIZE] == HEADER_TAIL:
            raise CorruptError("the header's magic is overwritten", path, MAGIC_OFFSET)
        what = _pickled(head) or describe(head, size) + ("" if size else ANEW)
        raise FormatError(f"not an mmapdict file: {what}", path)
    if size <= HEADER_SIZE:
        raise CorruptError(f"cut inside the header: {size} bytes, at least {HEADER_SIZE + 1} expected", path)
    version = int.from_bytes(head[VERSION_OFFSET:FILE_ID_OFFSET], "little")
    if version > VERSION:
        raise FormatError(f"has format version {version}; this mmapdict reads versions up to {VERSION}: "
                          "upgrade mmapdict, or load it with pickle.load", path, VERSION_OFFSET)
    if version < 1:
        raise CorruptError(f"nonsense in the header: format version {version}", path, VERSION_OFFSET)
    if head[HEADER_SIZE - 4:HEADER_SIZE] != HEADER_TAIL:
        raise CorruptError("the header's closing opcodes are overwritten", path, HEADER_SIZE - 4)
    return bytes(head[FILE_ID_OFFSET:COMMIT_OFFSET])


def _pickled(head: bytes) -> str:
    """Say what helps a file that looks like a pickle; "" for all others."""
    first = "(`mmapdict scan FILE` first: pickle.load can run any code)"
    if head[:2] == b"\x80\x04" and head[2:11] == b"\x95\x0d" + bytes(7) and head[11:12] == b"J":
        return ("it was made by mmappickle 1.x; load it with pickle.load under numpy < 2.3 and store the items "
                f"with update() in a new mmapdict file {first}")
    if head[:1] == b"\x80" and head[1:2] <= b"\x05" or head[:1] in (b"(", b"}", b"]", b"c"):
        return ("it looks like a plain pickle; to turn a pickled dictionary into an mmapdict file, store what "
                f"pickle.load gives with update() in a new one {first}")
    return ""


def describe(head: bytes, size: int) -> str:
    """Say what a file looks like that is neither an mmapdict file nor a pickle.

    Parameters
    ----------
    head : bytes
        How it starts: `HEADER_SIZE` bytes, or fewer if it is shorter.
    size : int
        Of the file, in bytes.
    """
    if size == 0:
        return "it is empty (0 bytes)"
    if head.startswith(b"PK\x03\x04"):
        first = head[30:30 + int.from_bytes(head[26:28], "little")]     # the name of the first file in it
        if first.endswith(b"data.pkl"):
            return "it looks like a zip file, of torch perhaps: it holds a data.pkl"
        return "it looks like a .npz file" if first.endswith(b".npy") else "it looks like a .npz or other zip file"
    for magic, name in _FOREIGN:
        if head.startswith(magic):
            return f"it looks like {name}"
    if not any(head):
        return f"{UNKNOWN} {len(head)} zero bytes"
    return f"{UNKNOWN} {head[:8]!r}"


# -- payloads and records ---------------------------------------------------------------------------------------

def bytes_head(n: int) -> bytes:
    """Return opcode and length of a bytes object of `n` bytes, in the shortest form."""
    if n < 256:
        return bytes((SHORT_BINBYTES, n))
    return b"B" + n.to_bytes(4, "little") if n < 1 << 32 else b"\x8e" + n.to_bytes(8, "little")


class Payload:
    """Bytes that stand in a record at a place that their reader may rely on.

    Parameters
    ----------
    head : bytes
        The opcode that pushes them, and their number.
    data : buffer or None
        Exactly `nbytes` bytes, or None: they are reserved in the file as zeros, and filled later.
    nbytes : int
    alignment, residue : int
        The first byte's offset in the file is `residue` modulo `alignment`.
    """

    __slots__ = ("head", "data", "nbytes", "alignment", "residue")

    def __init__(self, head: bytes, data: Any, nbytes: int, alignment: int, residue: int = 0) -> None:
        self.head = head
        self.data = data
        self.nbytes = nbytes
        self.alignment = alignment
        self.residue = residue


def array_payload(data: Any, nbytes: int, itemalignment: int) -> Payload:
    """Return the payload that holds an array's bytes, aligned by its size.

    A multiple of 16 (or the dtype's own alignment, if larger) below 1 KiB, of 64 below 1 MiB, of a page above.
    """
    least = 16 if nbytes < 1 << 10 else 64 if nbytes < 1 << 20 else 4096
    return Payload(bytes_head(nbytes), data, nbytes, max(least, itemalignment))


def end_aligned(head: bytes, data: Any, nbytes: int) -> Payload:
    """Return the payload of a big bytes or text object: its *end* is a multiple of 8."""
    return Payload(head, data, nbytes, RECORD_ALIGNMENT, -nbytes % RECORD_ALIGNMENT)


Parts = Sequence[Union[bytes, Payload]]


def _filler(n: int) -> bytes:
    """Return a filler of exactly `n` bytes; n is 0 or at least 3."""
    if n == 0:
        return b""
    if n <= 258:
        return bytes((SHORT_BINBYTES, n - 3)) + bytes(n - 3) + b"0"
    return b"B" + (n - 6).to_bytes(4, "little") + bytes(n - 6) + b"0"


_END_FILLERS = [_filler(n + RECORD_ALIGNMENT if 0 < n < 3 else n) for n in range(RECORD_ALIGNMENT)]
_SHORT_HEADS = [bytes_head(n) for n in range(256)]
_OP_LENGTH = struct.Struct("<BQ")
_HIDDEN_START = RECORD_HEAD + 3 + CHECK.size
_ENTRY_START = _HIDDEN_START + len(ROOT)


def _gap(position: int, payload: Payload) -> int:
    """Return how many bytes of filler make `payload`, whose opcode would stand at `position`, aligned."""
    gap = (payload.residue - position - len(payload.head)) % payload.alignment
    return gap + payload.alignment if 0 < gap < 3 else gap


# What two small entries have in common whose parts have equal lengths and whose places equal remainders: the length;
# Op, length, BINGET 0, the head of the check; the pad of the check, and its POP; filler, SETITEM, POP_MARK, STOP; the
# size.
_Layout = tuple[int, bytes, bytes, bytes, int]

_layouts: dict[tuple[int, int, int, int], _Layout] = {}
LAYOUTS_MAX = 1 << 12


def encode_small(offset: int, tag: int, ops: bytes, payload: Payload, data: bytes, tail: bytes) -> tuple[bytes, int]:
    """Lay out an entry with one small payload: the same bytes as `encode_record`, in a third of the time.

    Parameters
    ----------
    offset, tag : int
        As for `encode_record`.
    ops : bytes, at most `SPAN_MAX`
        Up to the payload's bytes.
    payload : Payload
        Of `data`: aligned to `SMALL_ALIGNMENT` at most.
    data, tail : bytes

    Returns
    -------
    record : bytes
        From Op, behind the MARK, to the STOP behind the record.
    end : int
        The offset of that STOP.
    """
    span = len(ops)
    key = (offset % SMALL_ALIGNMENT, span, payload.alignment, len(data) + len(tail))
    layout = _layouts.get(key)
    if layout is None:
        template = Payload(b"", data, len(data), payload.alignment)
        pieces, end, _ = encode_record(offset, tag, [ops, template, tail])
        op_length, root, head, _, pad, pop, _, _, last = pieces
        layout = (end - offset - RECORD_HEAD - 1, op_length + root + head, pad + pop,
                  last[len(tail):] + bytes((STOP,)), end - offset)
        if len(_layouts) >= LAYOUTS_MAX:
            _layouts.clear()
        _layouts[key] = layout
    length, begin, padding, close, size = layout
    tagged = offset ^ tag
    check = CHECK.pack(tagged, crc32(LENGTH_TAG_SPAN.pack(length, tagged, span) + ops), span)
    return b"".join((begin, check, padding, ops, data, tail, close)), offset + size


def encode_record(offset: int, tag: int, parts: Parts, entry: bool = True) -> tuple[list[Any], int, bool]:
    """Lay a record out for its place in the file.

    Parameters
    ----------
    offset : int
        Where the record's MARK will stand; a multiple of 8.
    tag : int
        `file_tag` of the file.
    parts : sequence of (bytes, Payload, bytes, Payload, ..., bytes)
        For an entry the opcodes of key and value, without SETITEM.
    entry : bool
        Whether this is an entry; else a hidden record.

    Returns
    -------
    pieces : list of bytes and Payload
        From Op, behind the MARK, to POP_MARK. Payloads whose data are bytes are given as these.
    end : int
        The offset behind the record; a multiple of 8.
    plain : bool
        Whether all pieces are bytes.
    """
    first: Any = parts[0]
    close = b"s1" if entry else b"1"
    plain = True
    start = offset + (_ENTRY_START if entry else _HIDDEN_START)        # behind a check without padding
    if len(parts) == 1:
        # No payload: the check's padding makes the record's end aligned.
        covered = first
        length = len(first) + len(close)
        pad = -(start + length) % RECORD_ALIGNMENT
        pieces: list[Any] = [first, close]
        end = start + pad + length
    else:
        # The check's padding makes the first payload aligned, further fillers those behind it and the end.
        payload: Any = parts[1]
        covered = first + payload.head
        at = start + len(covered)
        pad = (payload.residue - at) % payload.alignment
        if CHECK.size + pad > 255:
            pad = (payload.residue - at - 3) % payload.alignment
            if CHECK.size + pad <= 255:          # only the long form is 3 bytes longer
                pad += payload.alignment
            if CHECK.size + pad <= BIG_PAYLOAD:
                at += 3
            else:
                # I11: the check would be a big payload itself. Leave it short, and pad before the payload.
                pad = 0
                covered = first + _filler(_gap(at - len(payload.head), payload)) + payload.head
                at = start + len(covered)
        end = at + pad + payload.nbytes
        data = payload.data
        plain = type(data) is bytes
        pieces = [covered, data if plain else payload]
        for i in range(2, len(parts) - 1, 2):
            between: Any = parts[i]
            payload = parts[i + 1]
            between += _filler(_gap(end + len(between), payload)) + payload.head
            data = payload.data
            plain = plain and type(data) is bytes
            pieces += (between, data if type(data) is bytes else payload)
            end += len(between) + payload.nbytes
        last: Any = parts[-1]
        end += len(last) + len(close)
        filler = _END_FILLERS[-end % RECORD_ALIGNMENT]
        end += len(filler)
        pieces.append(last + filler + close)
    length = end - offset - RECORD_HEAD - 1         # I11: `end` is a multiple of 8, as `offset` is
    if len(covered) > SPAN_MAX:
        covered = covered[:SPAN_MAX]
    span = len(covered)
    tagged = offset ^ tag
    crc = crc32(LENGTH_TAG_SPAN.pack(length, tagged, span) + covered)
    check = CHECK.pack(tagged, crc, span)
    n = CHECK.size + pad
    head = _SHORT_HEADS[n] if n < 256 else bytes_head(n)
    return [_OP_LENGTH.pack(LIVE, length), ROOT if entry else b"", head, check, bytes(pad), b"0", *pieces], end, plain


class Record:
    """What a record's head says.

    Attributes
    ----------
    offset, end : int
        Of its MARK, and behind its POP_MARK, in bytes from the start of the file.
    live : bool
        Whether its body runs.
    entry : bool
        Whether its body is an entry; else it is hidden.
    content : int
        Where key and value, or the hidden opcodes, start.
    covered : int
        Behind what the check value covers: where the first payload starts, if it starts within `SPAN_MAX`.
    body_end : int
        Behind key and value: the offset of SETITEM (entry) or POP_MARK (hidden).
    """

    __slots__ = ("offset", "end", "live", "entry", "content", "covered", "body_end")

    def __init__(self, offset: int, end: int, live: bool, entry: bool, content: int, covered: int,
                 body_end: int) -> None:
        self.offset = offset
        self.end = end
        self.live = live
        self.entry = entry
        self.content = content
        self.covered = covered
        self.body_end = body_end


def decode_record(buf: Buffer, base: int, offset: int, tag: int, first: int = MARK) -> Record:
    """Read the head of the record at `offset` and check it.

    Parameters
    ----------
    buf : buffer
        Bytes of the file from offset `base` on, up to the end of the file.
    base, offset : int
        In bytes from the start of the file.
    tag : int
        `file_tag` of the file.
    first : int
        The record's first byte: MARK, or STOP if it is to be published.

    Raises
    ------
    CorruptError
        If no whole record stands there.
    """
    at = offset - base
    size = len(buf)
    if at + RECORD_HEAD > size:
        raise CorruptError("the file ends inside a record's head", None, offset)
    mark, op, length = RECORD.unpack_from(buf, at)
    if mark != first or op != LIVE and op != DEAD or length <= CHECK.size + 3:
        raise CorruptError(f"no record: found bytes 0x{mark:02x} 0x{op:02x}", None, offset)
    body = at + RECORD_HEAD
    close = body + length
    if close >= size:
        raise CorruptError(f"the file is cut short: a record of {length} bytes, {max(0, size - body)} left",
                           None, offset)
    if buf[close] != POP_MARK:
        raise CorruptError("a record does not end where its length says", None, offset)
    entry = buf[body] == BINGET and buf[body + 1] == 0
    pos = body + 2 if entry else body
    if buf[pos] == SHORT_BINBYTES:
        n = buf[pos + 1]
        pos += 2
    elif buf[pos] == BINBYTES:
        n = int.from_bytes(buf[pos + 1:pos + 5], "little")
        pos += 5
    else:
        raise CorruptError("a record without its check value", None, offset)
    content = pos + n + 1
    if n < CHECK.size or content > close or buf[content - 1] != POP:
        raise CorruptError("a record with a malformed check value", None, offset)
    tagged, crc, span = CHECK.unpack_from(buf, pos)
    if tagged != offset ^ tag:
        raise CorruptError("a record that belongs to another place or file", None, offset)
    if content + span > close or crc != crc32(buf[content:content + span],
                                              crc32(LENGTH_TAG_SPAN.pack(length, tagged, span))):
        raise CorruptError("a record whose check value does not match", None, offset)
    body_end = close
    if entry:
        body_end = close - 1
        if buf[body_end] != SETITEM:
            raise CorruptError("an entry without its SETITEM", None, offset)
    return Record(offset, base + close + 1, op == LIVE, entry, base + content, base + content + span, base + body_end)


def split_payloads(pieces: Iterable[Union[bytes, Payload]]) -> list[Union[bytes, Payload]]:
    """Join adjacent opcodes, so that opcodes and payloads alternate and opcodes stand at both ends."""
    parts: list[Union[bytes, Payload]] = []
    pending: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, Payload):
            parts += (b"".join(pending), piece)
            pending = []
        else:
            pending.append(piece)
    parts.append(b"".join(pending))
    return parts


def drop_parts(key: Parts, replaced: bool = False) -> list[Union[bytes, Payload]]:
    """Return the parts of a hidden record that takes a key, given by its parts, out of the dictionary."""
    return join_parts(join_parts([DROP], key), [REPLACED if replaced else DROPPED])


def join_parts(a: Parts, b: Parts) -> list[Union[bytes, Payload]]:
    """Return the parts of `a` followed by those of `b`."""
    joined = [*a, *b[1:]]
    joined[len(a) - 1] += b[0]          # type: ignore[operator]
    return joined
