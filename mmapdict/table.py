"""Index blocks: where the records of keys are, as a hash table in a hidden record that is filled in place.

A block is a bytes object that every unpickler throws away, so no store into it can change what one sees (I17). It is
used straight from the map: to open a file, none of it is read; to look a key up, a few slots.

Each slot is a cell: the upper bits of the key's hash, and offset / 8 of an entry. What a slot says is a hint. Who finds
an offset there looks at the record's Op and key. Every entry that counts and stands before `UPTO` has a slot; slots of
dead entries stay until another entry takes them, or the block is replaced by a larger one.
"""
from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np

from . import format as fmt
from .errors import CorruptError
from .format import CELL_MAX, Payload
from .literals import hash_form
from .store import File, ordered_cells

# The cells in front of the slots; docs/format.md has the table.
BITS, SLOTS, USED, UPTO, SUM, WAITS, HIDDEN, ARRAYS_AT, MASKS_AT, INODE, DEATHS = range(11)
DEATHS_LOG = 11
LOG_SIZE = 53
FIRST_SLOT = DEATHS_LOG + LOG_SIZE
GROUP_CELLS = {fmt.ARRAYS: ARRAYS_AT, fmt.MASKS: MASKS_AT}

INDEX_FROM = 64                     # keys: fewer are found as fast by walking
SLOTS_MIN = 128
# A block of n slots takes up to 27/32 n entries, and is then replaced by one of twice as many: per key it, and the dead
# ones before it, have at most 8 * 2 * 2 / (27/32) = 38 bytes.
FULL = 27, 32
BITS_MIN, BITS_MAX = 33, 56         # of an offset / 8: 33 do for files up to 64 GiB; the others are the hash's
_FACTOR = 0x9E3779B97F4A7C15
_HEAD = fmt.INDEX
_ALIGNMENT = 64
_ROOM = 1 << 20                     # for the hidden records before an entry

Slots = np.ndarray[Any, np.dtype[np.uint64]]
Offsets = np.ndarray[Any, np.dtype[np.int64]]


def modulus(file_id: bytes) -> int:
    """Return the number of 61 bits that makes a file's hashes its own: without it, nobody can make keys collide."""
    return int.from_bytes(file_id[8:16], "little") >> 3 | 1 << 60 | 1


def hash_ops(ops: bytes, modulo: int) -> int:
    """Return the 64-bit hash of a key whose literal, in its `hash_form`, is `ops`."""
    h = int.from_bytes(ops, "little") % modulo
    return (h ^ h >> 29) * _FACTOR & CELL_MAX


def hash_key(key: Any, modulo: int) -> int:
    """Return the 64-bit hash of a key."""
    return hash_ops(hash_form(key), modulo)


def bits_for(end: int) -> int:
    """Return how many bits of a slot hold offset / 8, in a file that has records up to the offset `end`.

    They do for one of eight times that.
    """
    return max(BITS_MIN, (end >> 3).bit_length() + 3)


def slots_for(n: int) -> int:
    """Return how many slots a new block for `n` entries has: up to three quarters are taken."""
    return max(SLOTS_MIN, 1 << (4 * n // 3).bit_length())


def make_slots(hashes: list[int], offsets: list[int], bits: int) -> Slots:
    """Return slots of entries with these hashes and offsets."""
    low = np.uint64((1 << bits) - 1)
    return np.array(hashes, np.uint64) & ~low | np.array(offsets, np.uint64) >> np.uint64(3)


def arrange(slots: Slots, n: int) -> Slots:
    """Return a table of `n` slots, a power of two, with the given ones, each at its place or the next free one."""
    slots = np.sort(slots)
    home = (slots >> np.uint64(65 - n.bit_length())).astype(np.int64)
    order = np.arange(len(slots))
    over = 0                # how many, of the last ones, find their place at the beginning
    while True:
        moved = np.concatenate((np.zeros(over, np.int64), home[:len(home) - over]))
        place = np.maximum.accumulate(moved - order) + order
        more = int(np.count_nonzero(place >= n))
        if not more:
            break
        over += more
    table: Slots = np.zeros(n, "<u8")
    table[place] = np.concatenate((slots[len(slots) - over:], slots[:len(slots) - over]))
    return table


def block_parts(slots: Slots, n: int, bits: int, cells: dict[int, int]) -> list[Union[bytes, Payload]]:
    """Return the parts of the hidden record of a block with `n` slots, `slots` among them, and these other cells."""
    front = np.zeros(FIRST_SLOT, "<u8")
    front[BITS], front[SLOTS], front[USED] = bits, n, len(slots)
    front[SUM] = slots.sum(dtype=np.uint64)
    for cell, value in cells.items():
        front[cell] = value & CELL_MAX
    data = front.tobytes() + arrange(slots, n).tobytes()
    return [_HEAD, Payload(fmt.bytes_head(len(data)), data, len(data), _ALIGNMENT), b""]


def is_block(view: memoryview, base: int, record: fmt.Record) -> bool:
    """Whether a hidden record starts as an index block does; `base` is the offset of the view's first byte."""
    start = record.content - base
    return bytes(view[start:start + len(_HEAD)]) == _HEAD


def decode_block(view: memoryview, base: int, record: fmt.Record) -> tuple[int, int, int]:
    """Return the offset of an index block's first cell, how many bits of a slot hold offset / 8, and how many slots.

    Raises
    ------
    CorruptError
        It starts as one, and does not go on so.
    """
    at = record.content - base + len(_HEAD)
    size = {fmt.BINBYTES: 4, fmt.BINBYTES8: 8}.get(view[at], 0)
    start = at + 1 + size
    nbytes = int.from_bytes(view[at + 1:start], "little")
    if not size or (base + start) % 8 or nbytes % 8 or nbytes < 8 * FIRST_SLOT \
            or start + nbytes > record.body_end - base:
        raise CorruptError("an index block without its bytes", None, record.offset)
    bits, n = (int.from_bytes(view[start + 8 * cell:start + 8 * cell + 8], "little") for cell in (BITS, SLOTS))
    if not BITS_MIN <= bits <= BITS_MAX or n < 2 or n & n - 1 or nbytes != 8 * (FIRST_SLOT + n):
        raise CorruptError(f"an index block of {n} slots in {nbytes} bytes", None, record.offset)
    return base + start, bits, n


class Table:
    """An index block of a file.

    Parameters
    ----------
    file : File
    record : Record
        A hidden record that starts as an index block does.

    Raises
    ------
    CorruptError
        It does not go on as one.

    Attributes
    ----------
    offset, end : int
        Of the record.
    start : int
        Offset of the first cell.
    cells : memoryview of 8-byte cells
        The block, as it is in the file at this moment.
    store_cell : function of (int, int)
        Stores a cell of it (I17), as that of `File` one of the header.
    bits : int
        How many bits of a slot hold offset / 8.
    low : int
        All these bits.
    mask : int
        The number of slots - 1.
    shift : int
        A hash shifted right by it is the place of its first slot.
    modulo : int
        What keys are hashed with in this file.
    full : int
        With so many slots taken it is to be replaced by a larger one.
    last : int
        Entries before this offset can have a slot, and those a little behind.
    """

    __slots__ = ("file", "offset", "end", "start", "cells", "store_cell", "bits", "low", "mask", "shift", "modulo",
                 "full", "last", "_epoch")

    def __init__(self, file: File, record: fmt.Record) -> None:
        self.file = file
        self.offset = record.offset
        self.end = record.end
        w = file.window(record.offset, record.end)
        layout = decode_block(w.view, w.start, record)
        self.start, self.bits, n = layout
        self.mask = n - 1
        self.cells: Any = None
        self.store_cell: Any = None
        self._epoch = -1
        self.refresh()
        self.low = (1 << self.bits) - 1
        self.shift = 65 - n.bit_length()
        self.full = n * FULL[0] // FULL[1]
        self.last = (self.low << 3) - _ROOM
        self.modulo = modulus(file.file_id)

    def refresh(self) -> None:
        """Use the file's present maps: else an old one would live on."""
        if self._epoch != self.file.epoch:
            self._epoch = self.file.epoch
            self.cells = ordered_cells(self._bytes())
            if self.file.writable:
                self.store_cell = self.file.cell_store(self.cells, self.start)

    # -- looking up ---------------------------------------------------------------------------------------------

    def look(self, h: int) -> tuple[list[tuple[int, int]], int]:
        """Return offset and slot of each entry with the upper bits of the hash `h`, and the first free slot.

        Raises
        ------
        CorruptError
            There is no free slot.
        """
        cells, low = self.cells, self.low
        tagged = h & ~low
        i, end, turned = (h >> self.shift) + FIRST_SLOT, self.mask + 1 + FIRST_SLOT, False
        found: list[tuple[int, int]] = []
        slot = cells[i]
        while slot:
            slot ^= tagged
            if slot <= low:
                found.append((slot << 3, i))
            i += 1
            if i == end:
                if turned:
                    raise CorruptError("an index block without a free slot", self.file.path, self.offset)
                i, turned = FIRST_SLOT, True
            slot = cells[i]
        return found, i

    @property
    def is_of_a_copy(self) -> bool:
        """Whether it was made in another file, of which this one is a copy.

        If that was written to meanwhile, the parts of the copy are of different times.
        """
        return bool(self.cells[INODE] != self.file.identity[1] & CELL_MAX)

    @property
    def log(self) -> list[int]:
        """Offsets of the entries that died last: that of number i at place i modulo `LOG_SIZE`."""
        cells = self.cells
        log: list[int] = cells[DEATHS_LOG:FIRST_SLOT].tolist() if type(cells) is memoryview \
            else [cells[i] for i in range(DEATHS_LOG, FIRST_SLOT)]
        return log

    def taken(self) -> Slots:
        """Return a copy of the slots that are taken."""
        # Cells that another process stores meanwhile are old or new, never half of each.
        slots: Slots = np.frombuffer(self._bytes(), "<u8", self.mask + 1, 8 * FIRST_SLOT)
        taken: Slots = slots[slots != 0].astype(np.uint64)
        return taken

    def _bytes(self) -> memoryview:
        w = self.file.window(self.offset, self.end)
        at = self.start - w.start
        return w.view[at:at + 8 * (FIRST_SLOT + self.mask + 1)]

    def offsets(self) -> Offsets:
        """Return the offsets in all slots, in the order of the file."""
        offsets: Offsets = ((self.taken() & np.uint64(self.low)) << np.uint64(3)).astype(np.int64)
        offsets.sort()
        return offsets

    def is_sound(self, end: int) -> bool:
        """Whether its checksum is right and all offsets are before `end`. O(slots), but fast."""
        slots = self.taken()
        return len(slots) == self.cells[USED] and len(slots) <= self.mask \
            and int(slots.sum(dtype=np.uint64)) == self.cells[SUM] \
            and (not len(slots) or int((slots & np.uint64(self.low)).max()) << 3 < end)

    # -- changing: the caller holds the lock --------------------------------------------------------------------

    def store(self, cell: int, value: int) -> None:
        """Store one cell, if it is another. I17: it is in a bytes object that is thrown away, and aligned (I11).

        Numbers wrap around, as a damaged one may.
        """
        value &= CELL_MAX
        if self.cells[cell] != value:
            self.store_cell(cell, value)

    def can_hold(self, offset: int) -> bool:
        """Whether a slot has enough bits for `offset`."""
        return offset >> 3 <= self.low

    def set_slot(self, i: int, h: int, offset: int) -> int:
        """Let slot `i` lead to the entry with hash `h` at `offset`; return by how much the sum of all slots changes.

        The header's commit is odd.
        """
        cells, store = self.cells, self.store_cell
        old: int = cells[i]
        slot = h & ~self.low | offset >> 3
        if not old:
            store(USED, cells[USED] + 1 & CELL_MAX)                 # I17
        store(i, slot)                                              # I17: a hint from now on
        return slot - old

    def insert(self, h: int, offset: int) -> int:
        """Let a slot lead to the entry with hash `h` at `offset`, if none does; as `set_slot`."""
        found, free = self.look(h)
        return self.set_slot(free, h, offset) if all(offset != there for there, _ in found) else 0

    def log_deaths(self, offsets: list[int]) -> None:
        """Keep the offsets of entries that died: who follows finds them there."""
        store, deaths = self.store_cell, self.cells[DEATHS]
        if len(offsets) > LOG_SIZE:
            deaths, offsets = deaths + len(offsets) - LOG_SIZE, offsets[-LOG_SIZE:]
        for offset in offsets:
            store(DEATHS_LOG + deaths % LOG_SIZE, offset)           # I17
            deaths += 1
        store(DEATHS, deaths & CELL_MAX)                            # I17

    def lose_log(self) -> None:
        """Let nobody rely on the log of deaths: who follows compares all entries."""
        self.store(DEATHS, self.cells[DEATHS] + LOG_SIZE + 1)       # I17

    def count(self) -> None:
        """Count the slots that are taken, and sum them up, for who opens the file after a start of the system. O(n)."""
        slots = self.taken()
        self.store(USED, len(slots))                                # I17
        self.store(SUM, int(slots.sum(dtype=np.uint64)))            # I17


def open_table(file: File, at: int) -> Optional[Table]:
    """Return the index block whose record is at the offset `at`; None: there is no live and whole one."""
    if at < fmt.HEADER_SIZE or at % fmt.RECORD_ALIGNMENT:
        return None
    try:
        record, w = file.record(at)
        return Table(file, record) if record.live and not record.entry and is_block(w.view, w.start, record) else None
    except CorruptError:
        return None
