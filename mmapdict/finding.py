"""Records in the bytes of a damaged file: they prove themselves by tag and check value, wherever they stand.

Each byte is searched once for the start of a record, and each start is looked at once, so the time is linear in the
file's size whatever it holds.
"""
from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, Optional
from zlib import crc32

import numpy as np

from . import format as fmt
from .errors import CorruptError
from .format import Record
from .literals import check_key, decode_literal

# Versions above this are no versions, but damage.
VERSION_MAX = 15
SCAN_STEP = 8 << 20             # bytes that are searched at once
STARTS_MAX = 1 << 20            # starts of records, and ids, that are compared if the header's id is damaged
IDS_MAX = 1 << 16
HEADERS_MAX = 64                # headers before each of them that it may belong to
HEAD_MAX = fmt.RECORD_HEAD + len(fmt.ROOT) + 5 + fmt.CHECK.size
_WORDS = -(-HEAD_MAX // 8)
_INNER = fmt.HEADER_HEAD + b"\0" + fmt.MAGIC
_U: Any = np.uint64
# How a record begins: MARK, or STOP if it is not published, and Op.
_STARTS = [_U(first | op << 8) for first in (fmt.MARK, fmt.STOP) for op in (fmt.LIVE, fmt.DEAD)]


class Head(NamedTuple):
    """The start of a record; the rest of it may be damaged.

    Attributes
    ----------
    op, end, entry, content, covered : as in `format.Record`
        The end may lie behind that of the file.
    sound : bool
        Whether the check value is right: length and covered opcodes are as they were written.
    """

    op: int
    end: int
    entry: bool
    content: int
    covered: int
    sound: bool


def check_start(view: memoryview, at: int) -> Optional[int]:
    """Return where the check value of a record at `at` would start; None: there is none."""
    if at + HEAD_MAX > len(view):
        return None
    at += fmt.RECORD_HEAD
    at += len(fmt.ROOT) * (view[at:at + 2] == fmt.ROOT)
    return {fmt.SHORT_BINBYTES: at + 2, fmt.BINBYTES: at + 5}.get(view[at])


class Finder:
    """Finds the records of a file.

    Parameters
    ----------
    view : memoryview
        The bytes of the file, from its start up to where they may be looked at.
    tag : int
        Of the file.
    """

    def __init__(self, view: memoryview, tag: int) -> None:
        self.view = view
        self.size = len(view)
        self.tag = tag
        self._scanned = fmt.HEADER_SIZE
        self._starts: deque[int] = deque()

    def decode(self, at: int, tag: Optional[int] = None) -> Optional[Record]:
        """Return the record at `at`, published or not, whatever its first byte is; None: no whole one stands there."""
        try:
            return fmt.decode_record(self.view, 0, at, self.tag if tag is None else tag, self.view[at])
        except (CorruptError, IndexError):
            return None

    def look(self, at: int, tag: Optional[int]) -> Optional[Head]:
        """Return what stands at `at` if its tag says that it is a record of the file, though perhaps a damaged one.

        With a tag of None, also if it does not.
        """
        view = self.view
        start = check_start(view, at)
        if start is None:
            return None
        tagged, crc, span = fmt.CHECK.unpack_from(view, start)
        if tag is not None and tagged != at ^ tag:
            return None
        _, op, length = fmt.RECORD.unpack_from(view, at)
        body = at + fmt.RECORD_HEAD
        entry = view[body:body + 2] == fmt.ROOT
        short = view[body + 2 * entry] == fmt.SHORT_BINBYTES
        n = view[start - 1] if short else int.from_bytes(view[start - 4:start], "little")
        content = start + n + 1
        sound = n >= fmt.CHECK.size and span <= fmt.SPAN_MAX and content + span <= self.size and crc == crc32(
            view[content:content + span], crc32(fmt.LENGTH_TAG_SPAN.pack(length, tagged, span)))
        return Head(op, body + length + 1, entry, content, content + span, sound)

    def find(self, at: int, tag: Optional[int] = None) -> Optional[Record]:
        """Return the record at `at`, where something looks like one, or None; no long checks of what is none."""
        head = self.look(at, self.tag if tag is None else tag)
        return self.decode(at, tag) if head is not None and head.sound else None

    def guess_key(self, head: Optional[Head]) -> Any:
        """Return the key that a damaged entry seems to have, or None."""
        if head is None or not head.entry:
            return None
        try:
            key, _ = decode_literal(self.view, head.content, min(head.end, self.size))
            check_key(key)
        except (CorruptError, TypeError, IndexError):
            return None
        return key

    def next_record(self, at: int, limit: int) -> Optional[int]:
        """Return the offset of the first whole record behind the offset `at` and before `limit`, or None.

        `at` never goes back.
        """
        starts = self._starts
        while True:
            while starts:
                if starts[0] >= limit:
                    return None
                if starts[0] > at and self.find(starts[0]) is not None:
                    return starts[0]
                starts.popleft()
            start = max(self._scanned, at - at % 8)
            if start >= limit or start + HEAD_MAX > self.size:
                return None
            found, self._scanned = self._scan(start, self.tag)
            starts.extend(found)

    def agreed_tag(self) -> Optional[int]:
        """Return the tag if some record bears it; else the one that the records agree on that hold the most bytes.

        A file that is itself a value of this one has records, too; but these bear the id and the offsets of the
        header that they stand behind.
        """
        if self.decode(fmt.HEADER_SIZE) is not None or any(self.find(at) for at in self._scan_all(self.tag)):
            return self.tag
        inner = self._inner_headers()
        begins = [begin for begin, _ in inner]
        covered: dict[int, int] = {}
        ends: dict[int, int] = {}
        for at in islice(self._scan_all(None), STARTS_MAX):
            start = check_start(self.view, at)
            if start is None:
                continue
            tag = int.from_bytes(self.view[start:start + 8], "little") ^ at
            if at < ends.get(tag, 0) or tag not in covered and len(covered) >= IDS_MAX:
                continue
            i = bisect_left(begins, at)
            if any(at - begin ^ inside == tag ^ at for begin, inside in inner[max(0, i - HEADERS_MAX):i]):
                continue
            record = self.find(at, tag)
            if record is not None:
                covered[tag] = covered.get(tag, 0) + record.end - at
                ends[tag] = record.end
        return max(covered, key=covered.__getitem__) if covered else None

    def _inner_headers(self) -> list[tuple[int, int]]:
        """Return the offset and the tag of each header that stands somewhere in this file, but at its start."""
        found = []
        overlap = fmt.HEADER_SIZE
        for start in range(fmt.HEADER_SIZE, self.size, SCAN_STEP):
            piece = bytes(self.view[start:start + SCAN_STEP + overlap])
            at = piece.find(_INNER)
            while 0 <= at < SCAN_STEP:
                found.append((start + at, fmt.file_tag(piece[at + fmt.FILE_ID_OFFSET:at + fmt.COMMIT_OFFSET])))
                at = piece.find(_INNER, at + 1)
        return found

    def _scan(self, start: int, tag: Optional[int]) -> tuple[list[int], int]:
        """Search a piece of the file, from the multiple of 8 `start` on, for what looks like the start of a record.

        Parameters
        ----------
        tag : int, optional
            Of the file; None: any.

        Returns
        -------
        (list of int, int)
            The offsets, and where the next piece starts.
        """
        count = min(SCAN_STEP, self.size - start) // 8
        words = np.frombuffer(self.view, "<u8", count, start)
        two = words & np.uint64(0xFFFF)
        at = np.flatnonzero((two == _STARTS[0]) | (two == _STARTS[1]) | (two == _STARTS[2]) | (two == _STARTS[3]))
        last = count - _WORDS
        behind = start + 8 * count if start + 8 * count + 8 > self.size else start + 8 * max(1, last + 1)
        at = at[at <= last]
        w1, w2, w3 = words[at + 1], words[at + 2], words[at + 3]
        short = np.uint64(fmt.SHORT_BINBYTES)
        entry = (w1 >> _U(16)) & _U(0xFFFF) == _U(fmt.BINGET)
        op = np.where(entry, w1 >> _U(32), w1 >> _U(16)) & _U(0xFF)
        tags = np.where(entry, np.where(op == short, w1 >> _U(48) | w2 << _U(16), w2 >> _U(8) | w3 << _U(56)),
                        np.where(op == short, w1 >> _U(32) | w2 << _U(32), w1 >> _U(56) | w2 << _U(8)))
        good = ((op == short) | (op == _U(fmt.BINBYTES))) & (w1 & _U(0xFFFF) == _U(0))      # lengths below 2^48
        offsets = at.astype(np.uint64) * _U(8) + _U(start)
        if tag is not None:
            good &= tags == offsets ^ _U(tag)
        found: list[int] = offsets[good].tolist()
        return found, behind

    def _scan_all(self, tag: Optional[int]) -> Iterator[int]:
        start = fmt.HEADER_SIZE
        while start + HEAD_MAX <= self.size:
            found, start = self._scan(start, tag)
            yield from found
