"""Entries of one file -> entries of another: what stands in a record, laid out anew for another place.

`stored_parts` cuts an entry into the opcodes and payloads that `format.encode_record` takes: the fillers of the old
place go, memo indices are numbered anew, and the bytes of arrays and of long texts are slices of the old file's map,
not copies. `Builder` writes a whole file of them.
"""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import numpy as np

from . import format as fmt
from . import table as tables
from .arrays import (ArrayInfo, GrowableInfo, MaskedInfo, decode_info, encode_array, hole_parts, masked_parts,
                     payload_pieces, raw_bytes)
from .errors import CorruptError
from .format import Payload, Record
from .growables import growable_parts, whole_room
from .judging import judge_pickled
from .literals import key_parts
from .pickling import shift_memo
from .store import File
from .table import GROUP_CELLS, INODE, UPTO, bits_for, block_parts, hash_key, make_slots, modulus, slots_for
from .values import encode

Parts = list[Union[bytes, Payload]]

COPY_FROM = 1 << 20             # payloads of this size are copied inside the kernel
GATHER = 1 << 20                # smaller things are written in pieces of about this size
DIRECT_FROM = 1 << 16           # payloads of this size are not gathered
_MARK = bytes((fmt.MARK,))


class Stored(NamedTuple):
    """What an entry consists of, ready to be laid out in another file.

    Attributes
    ----------
    parts : list of (bytes, Payload, ..., bytes)
        Of key and value. The payloads' data are slices of the map that they were read from.
    groups : int
        Which groups of hidden globals it needs: ARRAYS, ARRAYS | MASKS or 0.
    memo : int
        How many memo indices it uses.
    """

    parts: Parts
    groups: int
    memo: int


class MappedPayload(Payload):
    """A payload whose bytes are those of a file from `offset` on."""

    __slots__ = ("offset",)

    def __init__(self, head: bytes, data: memoryview, alignment: int, residue: int, offset: int) -> None:
        super().__init__(head, data, len(data), alignment, residue)
        self.offset = offset


def stored_parts(view: memoryview, base: int, record: Record, key: Any, at: int, memo: int) -> Stored:
    """Cut an entry into opcodes and payloads.

    Parameters
    ----------
    view : memoryview
        Bytes of the file from offset `base` on.
    record : Record
        Of the entry.
    key : object
    at : int
        Where its value starts, in bytes from the start of the file.
    memo : int
        The first memo index that it may use.

    Raises
    ------
    CorruptError
        If the value is no array, though it starts as one, or if its opcodes are not those of a value.
    """
    # No pickled value starts with BINGET, all arrays do.
    info = decode_info(view, base, at, record.body_end, record.covered) if view[at - base] == fmt.BINGET else None
    if info is None:
        ops = view[at - base:record.body_end - base]
        parts, used = _pickled_parts(ops, at, memo)
        return Stored(fmt.join_parts(key_parts(key), parts), 0, used)
    if isinstance(info, GrowableInfo):
        return Stored(fmt.join_parts(key_parts(key), _growable_parts(view, base, info, memo)), fmt.ARRAYS, 2)
    found = _array_parts(view, base, info) if isinstance(info, ArrayInfo) else _masked_parts(view, base, info)
    if found is None:
        # Written by another program, in a way that this one would not.
        encoded = encode(_copied(view, base, info), memo)
        return Stored(fmt.join_parts(key_parts(key), encoded.parts), encoded.groups, encoded.memo)
    groups = fmt.ARRAYS if isinstance(info, ArrayInfo) else fmt.ARRAYS | fmt.MASKS
    return Stored(fmt.join_parts(key_parts(key), found), groups, 0)


# -- arrays -----------------------------------------------------------------------------------------------------

def _array_parts(view: memoryview, base: int, info: ArrayInfo) -> Optional[Parts]:
    parts = hole_parts(info.shape, info.dtype, info.order)
    if parts is None:
        return None
    payload: Any = parts[1]
    start = info.offset - base
    data = view[start:start + payload.nbytes]           # with the zeros that make its size a multiple of 8
    if len(data) < payload.nbytes or any(data[info.nbytes:]):
        return None
    parts[1] = _mapped(payload.head, data, payload.alignment, 0, info.offset)
    return parts


def _growable_parts(view: memoryview, base: int, info: GrowableInfo, memo: int) -> Parts:
    """Cut out a growable array without the room that its rows have not taken."""
    room = whole_room(info.tree, info.count * info.row_nbytes)
    parts = growable_parts(info.tree, info.row_nbytes, info.count, room, None, memo)
    rows: Any = parts[3]
    start = info.start - base
    parts[3] = _mapped(rows.head, view[start:start + room], rows.alignment, 0, info.start)
    return parts


def _mapped(head: bytes, data: memoryview, alignment: int, residue: int, offset: int) -> Payload:
    """Return a payload of a mapped file's bytes; small ones are copied."""
    if len(data) < DIRECT_FROM:
        return Payload(head, bytes(data), len(data), alignment, residue)
    return MappedPayload(head, data, alignment, residue, offset)


def _masked_parts(view: memoryview, base: int, info: MaskedInfo) -> Optional[Parts]:
    data = _array_parts(view, base, info.data)
    mask = None if info.mask is None else _array_parts(view, base, info.mask)
    if data is None or mask is None and info.mask is not None:
        return None
    fill: Parts = [b"N"]
    if info.fill_value is not None:
        # Over zeros, so that nothing unknown is in the gaps of a structure.
        value: Any = np.ndarray((), info.data.dtype, bytearray(max(1, info.data.dtype.itemsize)))
        value[...] = info.fill_value
        encoded = encode_array(value)
        if encoded is None:
            return None
        fill = encoded.parts
        payload: Any = fill[1]
        if payload.nbytes <= fmt.BIG_PAYLOAD:
            fill = [b"".join(p if isinstance(p, bytes) else p.head + raw_bytes(p) for p in fill)]
    return masked_parts(data, mask, fill, info.hard_mask)


def _copied(view: memoryview, base: int, info: Union[ArrayInfo, MaskedInfo]) -> Any:
    """Return an array in memory."""
    if isinstance(info, ArrayInfo):
        raw = view[info.offset - base:info.offset - base + info.nbytes]
        return np.ndarray(info.shape, info.dtype, bytearray(raw) or bytearray(1), 0, None, info.order)
    array = _copied(view, base, info.data).view(np.ma.MaskedArray)
    if info.mask is not None:
        array._mask = _copied(view, base, info.mask)
    array._hardmask = info.hard_mask
    array._fill_value = info.fill_value
    return array


# -- pickled values ---------------------------------------------------------------------------------------------

def _pickled_parts(ops: memoryview, at: int, memo: int) -> tuple[Parts, int]:
    """Cut the opcodes of a pickled value, which start at the offset `at`; also return how many indices it uses."""
    data = bytes(ops) if len(ops) < DIRECT_FROM else ops        # faster
    try:
        found = judge_pickled(data, 0, len(data))
    except CorruptError as exc:
        raise CorruptError(exc.message, None, None if exc.offset is None else at + exc.offset) from exc
    first = min(found.memo, default=memo)
    pieces: Parts = []
    kept = 0                            # from here on the opcodes stay as they are
    for start, end, behind in sorted([*found.payloads, *((start, start, end) for start, end in found.fillers)]):
        if start < kept:
            continue                    # in a filler
        pieces.append(shift_memo(bytes(data[kept:start]), memo - first))
        if start < end:
            pieces.append(_mapped(bytes(data[start:end]), ops[end:behind], fmt.RECORD_ALIGNMENT,
                                  end - behind & fmt.RECORD_ALIGNMENT - 1, at + end))
        kept = behind
    pieces.append(shift_memo(bytes(data[kept:]), memo - first))
    return fmt.split_payloads(pieces), len(found.memo)


# -- a whole file -----------------------------------------------------------------------------------------------

class Builder:
    """Writes entries into a new, empty file, one behind the other.

    Parameters
    ----------
    file : File
        Locked by the caller. Until `finish`, it is an empty mapping to every reader.
    source : File, optional
        Where the payloads come from: big ones are copied by the kernel then. Else they are written from the map.
    sparse : bool
        Whether zeros that have no place on the disk get none in the new file.

    Attributes
    ----------
    memo : int
        The first memo index that the next entry may use.
    end : int
        The offset of the next record.
    """

    def __init__(self, file: File, source: Optional[File] = None, sparse: bool = False) -> None:
        self.file = file
        self.source = source
        self.sparse = sparse
        self.memo = fmt.MEMO_START
        self.end = fmt.HEADER_SIZE
        self._groups: dict[int, int] = {}
        self._modulo = modulus(file.file_id)
        self._hashes: list[int] = []
        self._offsets: list[int] = []
        self._run = bytearray()             # what is to be written behind `_written`
        self._written = self.end
        self._synced = False

    def add(self, key: Any, entry: Stored) -> None:
        """Add the entry of a key, and before it the globals that it needs and the file has not yet (I10)."""
        for group, ops in fmt.GROUPS.items():
            if entry.groups & group and group not in self._groups:
                self._groups[group] = self.end
                self._add([ops], False)
        self.memo += entry.memo             # I8
        self._hashes.append(hash_key(key, self._modulo))
        self._offsets.append(self.end)
        self._add(entry.parts, True)

    def _add_index(self) -> int:
        """Add the index block; return its offset."""
        block, bits = self.end, bits_for(self.end)
        n = slots_for(len(self._offsets))
        cells = {GROUP_CELLS[group]: offset for group, offset in self._groups.items()}
        cells[INODE] = self.file.identity[1]
        # Where it ends is known when it is laid out; only the number differs then.
        parts = block_parts(make_slots(self._hashes, self._offsets, bits), n, bits, cells)
        end = fmt.encode_record(block, self.file.tag, parts, False)[1]
        cells[UPTO] = end
        self._add(block_parts(make_slots(self._hashes, self._offsets, bits), n, bits, cells), False)
        return block

    def _add(self, parts: Parts, entry: bool) -> None:
        pieces, self.end, plain = fmt.encode_record(self.end, self.file.tag, parts, entry)
        run = self._run
        run += _MARK
        if plain:
            run += b"".join(pieces)
        else:
            for piece in pieces:
                if isinstance(piece, MappedPayload):
                    self._add_payload(piece)
                elif isinstance(piece, Payload):
                    for data in payload_pieces(piece):
                        run += data
                else:
                    run += piece
        if len(run) >= GATHER:
            self._flush()

    def _flush(self) -> None:
        if not self._run:
            return
        skip = self._written == fmt.HEADER_SIZE         # I3: the STOP, which the first MARK takes the place of at last
        self.file.write(self._written + skip, bytes(memoryview(self._run)[skip:]))
        self._written += len(self._run)
        self._run.clear()

    def _add_payload(self, payload: MappedPayload) -> None:
        self._flush()
        start, n = self._written, payload.nbytes
        if self.source is None or n < COPY_FROM:
            if not self.sparse:
                self.file.allocate(start, start + n)
            self.file.write(start, [payload.data])
        else:
            self._copy(start, self.source, payload.offset, n)
        self._written += n

    def _copy(self, start: int, source: File, offset: int, n: int) -> None:
        if not self._synced:
            source.sync()                   # what is a hole is told by what is on the disk
            self._synced = True
        delta = start - offset
        for at, end in source.data_ranges(offset, offset + n):
            self.file.copy(at + delta, source, at, end - at)
        if not self.sparse:
            # Behind the copying: where blocks are shared, it would find blocks that are not needed.
            self.file.allocate(start, start + n)

    def finish(self, commit: int) -> None:
        """Store the header and, at last, what makes the entries count."""
        file = self.file
        block = self._add_index() if len(self._offsets) >= tables.INDEX_FROM else 0
        self._run.append(fmt.STOP)
        if self._written > fmt.HEADER_SIZE or len(self._run) > 1:
            self._flush()
        file.store_cell(fmt.LIVE_CELL, len(self._offsets))
        file.store_cell(fmt.MEMO_CELL, self.memo)
        file.store_cell(fmt.STOP_CELL, self.end)
        file.store_cell(fmt.INDEX_CELL, block)
        file.store_cell(fmt.SYNCED_CELL, self.end)    # I14: it gets its name when all of it is on the disk
        file.store_cell(fmt.COMMIT_CELL, commit & fmt.CELL_MAX)
        if self.end > fmt.HEADER_SIZE:
            file.store_byte(fmt.HEADER_SIZE, fmt.MARK)  # I2
