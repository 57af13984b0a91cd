"""What may stand in a record: one judgement for all that look at files without running them."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from . import format as fmt
from . import table as tables
from .arrays import ArrayInfo, GrowableInfo, Info, MaskedInfo, columns_of, decode_info
from .errors import CorruptError
from .format import Buffer, Record
from .literals import check_inert, check_key, decode_literal, skip_filler

if TYPE_CHECKING:
    from .machine import Trace          # imported where it is used: who reads arrays judges no values

# Not in pickled values: what ends the pickle, or counts or takes what is not theirs; the indices of others; what takes
# lines of text, extension codes, and what plain pickle.load cannot load (persistent ids, buffers from elsewhere).
_NOT_IN_VALUES = (bytes((fmt.PROTO, fmt.FRAME, fmt.STOP, fmt.MEMOIZE, fmt.BINPUT, fmt.BINGET))
                  + b"ILFSVPgpciQ\x82\x83\x84\x96\x97\x98")
# Memo indices that the groups put, and those before whom they stand may fetch.
PUT_BY = {fmt.ARRAYS: frozenset((fmt.NDARRAY, fmt.DTYPE, fmt.NO_ROWS, fmt.UINT8)),
          fmt.MASKS: frozenset((fmt.MASKED_ARRAY, fmt.NOMASK))}
_GIVEN = frozenset((0,)).union(*PUT_BY.values())

WITHOUT_SUCCESSOR = "a key is taken out, because its next value follows at once, and none does: it is lost"
GROUP, CLEAR, DROP, REPLACE, SEAL, BLOCK, INERT = "group", "clear", "drop", "replace", "seal", "index block", "inert"


# What a hidden record is: its kind, and the number of its group, or the key that it drops.
Hidden = tuple[str, Any]


def judge_hidden(view: memoryview, record: Record, base: int = 0) -> Hidden:
    """Return what a hidden record does.

    Parameters
    ----------
    view : memoryview
        The file from offset `base` on.
    record : Record
    base : int

    Raises
    ------
    CorruptError
        It is of no kind of this format, and not inert either: no reader may pass over it.
    """
    start, end = record.content - base, record.body_end - base
    content = bytes(view[start:min(end, start + fmt.SPAN_MAX)])
    for group, ops in fmt.GROUPS.items():
        if content == ops:
            return GROUP, group
    if content == fmt.CLEAR:
        return CLEAR, None
    if content.startswith(fmt.DROP):
        key, at = _key(view, start + len(fmt.DROP), end, base)
        behind = at + len(fmt.DROPPED)
        tail = bytes(view[at:behind])
        if tail not in (fmt.DROPPED, fmt.REPLACED) or skip_filler(view, behind, end) != end:
            raise CorruptError("a deletion that does not end behind its key", None, base + at)
        return DROP if tail == fmt.DROPPED else REPLACE, key
    check_inert(view, start, end)
    kind = SEAL if content.startswith(fmt.SEAL) else BLOCK if tables.is_block(view, base, record) else INERT
    return kind, None


def judge_key(view: memoryview, record: Record) -> tuple[Any, int]:
    """Return the key of an entry, and where its value starts.

    Raises
    ------
    CorruptError
        What stands there is no key.
    """
    return _key(view, record.content, record.body_end)


def _key(view: memoryview, start: int, end: int, base: int = 0) -> tuple[Any, int]:
    key, at = decode_literal(view, start, end)
    try:
        check_key(key)
    except TypeError as exc:
        raise CorruptError(str(exc), None, base + start) from exc
    return key, at


def judge_value(view: memoryview, record: Record, at: int) -> tuple[list[Union[ArrayInfo, GrowableInfo]], int, Trace]:
    """Judge the value of an entry, which starts at `at`; nothing of it is run.

    Returns
    -------
    arrays : list of ArrayInfo or GrowableInfo
        The array, or the data and the mask of a masked one; none if it is a pickled value.
    groups : int
        Which groups of globals have to stand before it.
    found : Trace

    Raises
    ------
    CorruptError
        No unpickler can load it, or its opcodes are not those of a value: they would do something to others, or can
        do so at another place.
    """
    from .machine import trace

    if view[at] == fmt.BINGET:
        info = decode_info(view, 0, at, record.body_end, record.covered)
        if info is None:
            raise CorruptError("neither an array nor a pickled value", None, at)
        return (_arrays(view, info, at), fmt.ARRAYS | fmt.MASKS if isinstance(info, MaskedInfo) else fmt.ARRAYS,
                trace(view, at, record.body_end, given=_GIVEN))
    return [], 0, judge_pickled(view, at, record.body_end, True)


def judge_pickled(buf: Buffer, start: int, end: int, texts: bool = False) -> Trace:
    """Judge the opcodes of a pickled value, as `judge_value`; texts are looked at only if `texts` says so."""
    from .machine import trace

    found = trace(buf, start, end, refuse=_NOT_IN_VALUES, texts=texts)
    if found.stack != 1 or found.marks:
        what = "a mark" if found.stack == 1 else f"{found.stack} objects"
        raise CorruptError(f"the opcodes of a value push {what}", None, start)
    if found.repeated is not None:
        raise CorruptError(f"memo index {found.repeated} is put twice", None, start)
    if found.memo and found.memo_max - min(found.memo) >= len(found.memo):
        raise CorruptError("a value's memo indices do not follow each other", None, start)
    for offset, module, name in found.globals:
        if module is None or name is None:
            raise CorruptError("a global whose names are no constant texts", None, offset)
    return found


def _arrays(view: memoryview, info: Info, at: int) -> list[Union[ArrayInfo, GrowableInfo]]:
    if isinstance(info, GrowableInfo):
        try:
            for column in columns_of(info.tree):
                np.ndarray(column.shape_of(info.count), column.dtype, view, info.start + column.offset,
                           column.strides(info.row_nbytes))
        except (ValueError, OverflowError, TypeError) as exc:
            raise CorruptError(f"numpy can have no such array: {exc}", None, at) from exc
        return [info]
    parts: list[Any] = [info] if isinstance(info, ArrayInfo) else [part for part in (info.data, info.mask)
                                                                   if part is not None]
    try:
        for part in parts:                  # O(1); numpy refuses shapes that it cannot have
            np.ndarray(part.shape, part.dtype, view, part.offset, None, part.order)
    except (ValueError, OverflowError, TypeError) as exc:
        raise CorruptError(f"numpy can have no such array: {exc}", None, at) from exc
    return parts


def judge_block(view: memoryview, record: Record, end: int, entries: list[int], current: dict[Any, Record],
                groups: dict[int, int], takes_out: int, synced: bool) -> Iterator[tuple[int, str, Any]]:
    """Yield where an index block does not say what the records do: an offset, what is wrong, and the key.

    Parameters
    ----------
    view : memoryview
        The bytes of the file, from its start on.
    record : Record
        Of the block.
    end : int
        Where the records end.
    entries : list of int
        Offsets of all entries, dead ones too.
    current : dict
        The entries that count, by their keys.
    groups : dict of int to int
        The groups of globals that the file has, and the offsets of their records.
    takes_out : int
        Offset of the first record that takes out an entry which is live; 0: there is none.
    synced : bool
        Whether all records were on the disk when the block's slots were summed up.
    """
    try:
        start, bits, n = tables.decode_block(view, 0, record)
    except CorruptError as exc:
        yield record.offset, exc.message, None
        return
    cells = np.frombuffer(view, "<u8", tables.FIRST_SLOT + n, start)
    front = cells[:tables.FIRST_SLOT].tolist()
    slots = cells[tables.FIRST_SLOT:]
    upto = front[tables.UPTO]

    def unlike(cell: int, name: str, expected: Any) -> tuple[int, str, Any]:
        return start + 8 * cell, f"{name} is {front[cell]}, expected {expected}", None

    if upto > end or upto % fmt.RECORD_ALIGNMENT or upto < fmt.HEADER_SIZE:
        yield unlike(tables.UPTO, "upto", f"the offset of a record, {end} at most")
    if 0 < takes_out < upto and not 0 < front[tables.WAITS] <= takes_out:
        yield unlike(tables.WAITS, "waits", f"{takes_out} at most, and not 0")
    for group, cell in tables.GROUP_CELLS.items():
        there = groups.get(group, 0)
        if front[cell] != there and (front[cell] or there < upto):
            yield unlike(cell, "the offset of a group of globals", there)
    counted = {entry.offset: key for key, entry in current.items()}
    low = np.uint64((1 << bits) - 1)
    places = np.flatnonzero(slots)
    taken = slots[places]
    sound = True
    strays = ~np.isin((taken & low) << np.uint64(3), np.array(entries, np.uint64))
    for place in places[strays].tolist():
        sound = False
        yield start + 8 * (tables.FIRST_SLOT + place), "a slot that leads to no entry", None
    free = np.flatnonzero(slots == 0)
    if not len(free):
        yield start, "no slot is free", None
        return
    place_of = dict(zip(taken.tolist(), places.tolist()))
    modulo = tables.modulus(bytes(view[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET]))
    for offset, key in counted.items():
        if offset < upto:
            h = tables.hash_key(key, modulo)
            home = h >> 65 - n.bit_length()
            at = place_of.get(h & ~int(low) | offset >> 3)
            # As in a ring: the first free slot behind its home ends the search for it.
            i = int(np.searchsorted(free, home))
            last = int(free[i]) if i < len(free) else int(free[0]) + n
            if at is None or (at if at >= home else at + n) > last:
                sound = False
                yield start + 8 * (tables.FIRST_SLOT + home), f"no slot from here on leads to the record {offset}", key
    if sound and front[tables.USED] != len(taken):
        yield unlike(tables.USED, "used", len(taken))
    if sound and synced and front[tables.SUM] != int(taken.sum(dtype=np.uint64)):
        yield unlike(tables.SUM, "sum", int(taken.sum(dtype=np.uint64)))


def dirty_fillers(view: memoryview, fillers: list[tuple[int, int]]) -> list[int]:
    """Return where, in fillers, zeros should stand and do not."""
    found = []
    for start, end in fillers:
        zeros = bytes(view[start + {fmt.SHORT_BINBYTES: 2, fmt.BINBYTES: 5}.get(view[start], 9):end - 1])
        if any(zeros):
            found.append(end - 1 - len(zeros.lstrip(b"\0")))
    return found
