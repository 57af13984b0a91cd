"""Repair: what is whole in a damaged file, copied into a new one; and a report of what was saved and lost.

Nothing of the original is written, and nothing in it is run. A record proves itself: its tag is made of its own offset
and the file's id, and its check value covers its length and its opcodes. So records are found again behind any damage,
and those of another file, or of an older copy that is stored as a value, are not taken for this one's.

What cannot be seen is damage inside the bytes of arrays, and of texts and bytes objects over 4096 bytes: only a seal
has checksums of these.
"""
from __future__ import annotations

import codecs
import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, Optional
from zlib import crc32

import numpy as np

from . import format as fmt
from .arrays import ArrayInfo, decode_info
from .birth import new_file, replacement
from .copying import Builder, stored_parts
from .errors import CorruptError, FormatError
from .format import Record
from .literals import check_key, decode_literal, skip_filler, shown
from .machine import ARGUMENT, trace
from .seals import check, decode_seal, is_seal
from .store import OFFSET_MAX, full_path, raw_bytes

__all__ = ["Lost", "RepairReport", "repair"]

# In values no opcode may come that is none of a value's.
_NOT_IN_VALUES = bytes((fmt.PROTO, fmt.FRAME, fmt.STOP, fmt.MEMOIZE, fmt.BINPUT, fmt.BINGET))
# Versions above this are no versions, but damage.
VERSION_MAX = 15
SCAN_STEP = 8 << 20             # bytes that are searched at once
STARTS_MAX = 1 << 20            # starts of records, and ids, that are compared if the header's id is damaged
IDS_MAX = 1 << 16
HEADERS_MAX = 64                # headers before each of them that it may belong to
TEXT_STEP = 1 << 20
LISTED_MAX = 20                 # how many keys and losses the text of a report names
_HEAD_MAX = fmt.RECORD_HEAD + len(fmt.ROOT) + 5 + fmt.CHECK.size
_WORDS = -(-_HEAD_MAX // 8)
_INNER = fmt.HEADER_HEAD + b"\0" + fmt.MAGIC
_TEXTS = (fmt.SHORT_BINUNICODE, fmt.BINUNICODE, fmt.BINUNICODE8)
# Runs of opcodes among which is no text.
_TEXTLESS = re.compile(
    rb"(?s:G.{8}|K.|M..|[Jrj].{4}|[N\x88\x89()\]}taesu0Rb\x81\x85\x86\x87\x8f\x90\x91\x93]){1,1000}")
_decoder: Any = codecs.getincrementaldecoder("utf-8")
_U: Any = np.uint64
# How a record begins: MARK, or STOP if it is not published, and Op.
_STARTS = [_U(first | op << 8) for first in (fmt.MARK, fmt.STOP) for op in (fmt.LIVE, fmt.DEAD)]


class Lost(NamedTuple):
    """Something that could not be saved.

    Attributes
    ----------
    offset : int
        Where it starts in the damaged file.
    end : int or None
        Where it ends, if that is known.
    key : object
        The key, as far as it can be told; None if it is not known (or is None).
    why : str
    """

    offset: int
    end: Optional[int]
    key: Any
    why: str

    def __str__(self) -> str:
        where = f"offset {self.offset}" + ("" if self.end is None else f" to {self.end}")
        return f"{where}{'' if self.key is None else ', key ' + shown(self.key)}: {self.why}"


class RepairReport:
    """What `repair` found and did.

    Attributes
    ----------
    path : str
        The damaged file.
    output : str or None
        The repaired one; None if nothing was written, because nothing was wrong.
    original : str or None
        Where the damaged file is now, if the repaired one has taken its place.
    whole : bool
        Whether nothing was wrong. The rest tells of the file as it is, then.
    saved : list
        The keys that are in the repaired file, in its order.
    lost : list of Lost
    doubtful : list
        Keys that were saved, though their bytes are not those that were sealed.
    notes : list of str
        What else was found.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.output: Optional[str] = None
        self.original: Optional[str] = None
        self.whole = False
        self.saved: list[Any] = []
        self.lost: list[Lost] = []
        self.doubtful: list[Any] = []
        self.notes: list[str] = []

    def __repr__(self) -> str:
        return (f"<RepairReport of {self.path!r}: "
                + ("whole" if self.whole else f"{len(self.saved)} saved, {len(self.lost)} lost") + ">")

    def __str__(self) -> str:
        if self.whole:
            lines = [f"{self.path}: whole, {len(self.saved)} keys; nothing was written"]
        else:
            lines = [f"{self.path}: damaged",
                     f"saved {len(self.saved)} keys to {self.output}",
                     *_some("  ", self.saved, shown),
                     f"lost {len(self.lost)}" + (":" if self.lost else ""),
                     *_some("  ", self.lost, str)]
            if self.original is not None:
                lines.append(f"the damaged file is {self.original} now")
        if self.doubtful:
            lines += [f"not as they were sealed, {len(self.doubtful)}:", *_some("  ", self.doubtful, shown)]
        return "\n".join(lines + self.notes)


def _some(indent: str, items: list[Any], text: Any) -> Iterator[str]:
    for item in items[:LISTED_MAX]:
        yield indent + text(item)
    if len(items) > LISTED_MAX:
        yield f"{indent}... and {len(items) - LISTED_MAX} more"


def repair(path: Any, output: Any = None, *, replace: bool = False) -> RepairReport:
    """Write what is whole in a damaged file into a new one, and say what was saved and what was lost.

    Parameters
    ----------
    path : str, bytes or os.PathLike
    output : str, bytes or os.PathLike, optional
        Of the new file. By default it stands beside the damaged one: ``run.repaired.mmapdict`` for
        ``run.mmapdict``. Nothing is written if the file is whole.
    replace : bool
        Put the new file in the place of the damaged one, which is kept beside it as ``run.damaged.mmapdict``.

    Returns
    -------
    RepairReport
        Print it.

    Raises
    ------
    FormatError
        It is no mmapdict file, or one of a newer version.
    FileExistsError
        There is a file of the new one's name, or (with `replace`) of the name that the damaged one would get.
    BusyError
        A writer is inside.
    OSError
        The new file cannot be written. The damaged one is as it was.

    Notes
    -----
    The damaged file is only read; writers are kept out meanwhile. O(bytes). No value is unpickled.

    Damage inside the bytes of an array does not show, unless the file was sealed. If a disk has sectors that cannot
    be read, copy the file with a tool that goes on behind them (``ddrescue``) first, and repair the copy.
    """
    name = full_path(path)
    if replace:
        if output is not None:
            raise TypeError("either an output, or replace=True")
        name = os.path.realpath(name)
    stem, extension = os.path.splitext(name)
    report = RepairReport(name)
    with raw_bytes(name, alone=True) as view:
        found = _Search(view, report).run()
        if report.whole:
            report.saved = list(found)
        elif replace:
            kept = f"{stem}.damaged{extension}"
            with replacement(name, None, keep=kept) as file:
                _build(view, found, report, Builder(file))
            report.output, report.original = name, kept
        else:
            target = f"{stem}.repaired{extension}" if output is None else full_path(output)
            with new_file(target, like=name) as file:
                _build(view, found, report, Builder(file))
            report.output = target
    return report


class _Item(NamedTuple):
    """An entry that counts: its record and where its value starts."""

    record: Record
    at: int


def _build(view: memoryview, found: dict[Any, _Item], report: RepairReport, builder: Builder) -> None:
    for key, item in found.items():
        record = item.record
        try:
            entry = stored_parts(view, 0, record, key, item.at, builder.memo)
        except CorruptError as exc:
            report.lost.append(Lost(record.offset, record.end, key, exc.message))
            continue
        builder.add(entry)
        report.saved.append(key)
    builder.finish(2)


# -- searching --------------------------------------------------------------------------------------------------

class _Head(NamedTuple):
    """The start of a record that is this file's, as its tag says; the rest of it may be damaged.

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


class _Search:
    """Finds what counts in the bytes of a damaged file.

    Each byte is searched once for the start of a record, and each start is looked at once, so the time is linear in
    the file's size whatever it holds.
    """

    def __init__(self, view: memoryview, report: RepairReport) -> None:
        self.view = view
        self.size = len(view)
        self.report = report
        self.damaged = False            # anything of the structure
        self.broken = False             # a record, or what should be one
        self.tag = 0
        self.said = 0                   # the offset of the STOP by the header, if it makes sense
        self.stop = 0                   # the same, if the file reaches so far
        self.items: dict[Any, _Item] = {}
        self.unsure: dict[Any, _Item] = {}          # whole, but for the byte that says whether they count
        self.seal: Optional[Record] = None
        self._scanned = fmt.HEADER_SIZE
        self._starts: deque[int] = deque()

    def run(self) -> dict[Any, _Item]:
        """Return what counts, in the order of the file; the report gets the rest."""
        recognised = self._read_header()
        for record, sure in self._records():
            self.seal = None                # one that is not the last record holds no more
            self._take(record, sure)
        self._decide_unsure()
        if not recognised and not self.items:
            raise FormatError(self._foreign(), self.report.path)
        if self.seal is not None:
            self._check_seal(self.seal)
        self.report.whole = not self.damaged and not self.report.lost and not self.report.doubtful
        counted = self._cell(fmt.LIVE_OFFSET)
        if self.report.whole and not self._cell(fmt.COMMIT_OFFSET) & 1 and counted != len(self.items):
            self._note(f"the header counts {counted} keys, there are {len(self.items)}")
        return self.items

    def _note(self, text: str) -> None:
        self.report.notes.append(text)

    # -- the header ---------------------------------------------------------------------------------------------

    def _read_header(self) -> bool:
        """Take what can be used of the header; return whether it is one of ours, as far as it is there."""
        head = bytes(self.view[:fmt.HEADER_SIZE + 1])
        recognised = True
        try:
            fmt.check_header(head, self.size, self.report.path)
        except (FormatError, CorruptError) as exc:
            opcodes = head[:fmt.BLOCK_OFFSET] == fmt.HEADER_HEAD
            magic = head[fmt.MAGIC_OFFSET:fmt.VERSION_OFFSET] == fmt.MAGIC
            version = int.from_bytes(head[fmt.VERSION_OFFSET:fmt.FILE_ID_OFFSET], "little")
            if opcodes and magic and fmt.VERSION < version <= VERSION_MAX:
                raise
            self.damaged = True
            self._note(f"the header was damaged: {exc.message}")
            recognised = opcodes or magic or self.size > 2 and fmt.HEADER_HEAD.startswith(head[:fmt.BLOCK_OFFSET])
        self.tag = fmt.file_tag(head[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET])
        if self.size > fmt.HEADER_SIZE:
            stop = self._cell(fmt.STOP_OFFSET)
            if fmt.HEADER_SIZE <= stop <= OFFSET_MAX and stop % fmt.RECORD_ALIGNMENT == 0:
                self.said = stop
                self.stop = stop if stop < self.size else 0
        self._find_tag()
        return recognised

    def _cell(self, offset: int) -> int:
        return int.from_bytes(self.view[offset:offset + 8], "little")

    def _foreign(self) -> str:
        """Say what the file looks like."""
        with suppress(CorruptError):
            try:
                fmt.check_header(bytes(self.view[:fmt.HEADER_SIZE + 1]), self.size, self.report.path)
            except FormatError as exc:
                return exc.message
        return "not an mmapdict file, and no record of one is in it"

    def _find_tag(self) -> None:
        """If no record bears the header's id, take the one that the records agree on that hold the most bytes.

        A file that is itself a value of this one has records, too; but these bear the id and the offsets of the
        header that they stand behind.
        """
        if self.size < fmt.HEADER_SIZE + _HEAD_MAX or self._decode(fmt.HEADER_SIZE, self.tag) is not None:
            return
        if any(self._find(at, self.tag) is not None for at in self._scan_all(self.tag)):
            return
        inner = self._inner_headers()
        begins = [begin for begin, _ in inner]
        covered: dict[int, int] = {}
        ends: dict[int, int] = {}
        for at in islice(self._scan_all(None), STARTS_MAX):
            tag = self._tag_at(at) ^ at
            if at < ends.get(tag, 0) or tag not in covered and len(covered) >= IDS_MAX:
                continue
            i = bisect_left(begins, at)
            if any(at - begin ^ inside == tag ^ at for begin, inside in inner[max(0, i - HEADERS_MAX):i]):
                continue
            record = self._find(at, tag)
            if record is not None:
                covered[tag] = covered.get(tag, 0) + record.end - at
                ends[tag] = record.end
        if covered:
            self.damaged = True
            self.tag = max(covered, key=covered.__getitem__)
            self._note("the file's id in the header was damaged; the records agree on another")

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

    # -- where records start ------------------------------------------------------------------------------------

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
        while start + _HEAD_MAX <= self.size:
            found, start = self._scan(start, tag)
            yield from found

    def _next_record(self, at: int, limit: int) -> Optional[int]:
        """Return the offset of the first whole record behind the offset `at` and before `limit`, or None."""
        starts = self._starts
        while True:
            while starts:
                if starts[0] >= limit:
                    return None
                if starts[0] > at and self._find(starts[0], self.tag) is not None:
                    return starts[0]
                starts.popleft()
            start = max(self._scanned, at - at % 8)
            if start >= limit or start + _HEAD_MAX > self.size:
                return None
            found, self._scanned = self._scan(start, self.tag)
            starts.extend(found)

    def _tag_at(self, at: int) -> int:
        """Return the tag of what looks like the start of a record."""
        at += fmt.RECORD_HEAD
        at += 2 * (self.view[at:at + 2] == fmt.ROOT)
        at += 2 if self.view[at] == fmt.SHORT_BINBYTES else 5
        return self._cell(at)

    def _decode(self, at: int, tag: int) -> Optional[Record]:
        """Return the record at `at`, whatever its first byte is, or None."""
        try:
            return fmt.decode_record(self.view, 0, at, tag, self.view[at])
        except CorruptError:
            return None

    def _find(self, at: int, tag: int) -> Optional[Record]:
        """Return the record at `at`, where something looks like one, or None; no long checks of what is none."""
        head = self._look(at, tag)
        return self._decode(at, tag) if head is not None and head.sound else None

    def _look(self, at: int, tag: int) -> Optional[_Head]:
        """Return what stands at `at` if its tag says that it is a record of the file, though perhaps a damaged one."""
        view, size = self.view, self.size
        if at + _HEAD_MAX > size:
            return None
        _, op, length = fmt.RECORD.unpack_from(view, at)
        pos = at + fmt.RECORD_HEAD
        entry = view[pos:pos + 2] == fmt.ROOT
        pos += 2 * entry
        if view[pos] == fmt.SHORT_BINBYTES:
            pos, n = pos + 2, view[pos + 1]
        elif view[pos] == fmt.BINBYTES:
            pos, n = pos + 5, int.from_bytes(view[pos + 1:pos + 5], "little")
        else:
            return None
        tagged, crc, span = fmt.CHECK.unpack_from(view, pos)
        if tagged != at ^ tag:
            return None
        content = pos + n + 1
        sound = n >= fmt.CHECK.size and span <= fmt.SPAN_MAX and content + span <= size and crc == crc32(
            view[content:content + span], crc32(fmt.LENGTH_TAG_SPAN.pack(length, tagged, span)))
        return _Head(op, at + fmt.RECORD_HEAD + length + 1, entry, content, content + span, sound)

    # -- the records --------------------------------------------------------------------------------------------

    def _records(self) -> Iterator[tuple[Record, bool]]:
        """Yield the whole records that were published, and whether it is known which of them are live."""
        at = fmt.HEADER_SIZE
        while at < self.size:
            first = self.view[at]
            if first == fmt.STOP and self._is_end(at):
                return
            record = self._decode(at, self.tag)
            sure = True
            if record is None:
                head = self._look(at, self.tag)
                if head is not None and head.sound and head.op not in (fmt.LIVE, fmt.DEAD) and self._closes(head):
                    record = Record(at, head.end, True, head.entry, head.content, head.covered,
                                    head.end - 1 - head.entry)
                    sure = False
                elif at == self.stop and head is None and not self._cell(fmt.COMMIT_OFFSET) & 1 \
                        and self._next_record(at, self.size) is None:
                    break                               # only the STOP itself is damaged
                else:
                    at = self._pass_damage(at, head)
                    continue
            if first == fmt.STOP:
                self._note(f"the record at offset {at} was not published, or that did not reach the disk; "
                           "it counts, because the file is damaged before it or was longer")
                self.damaged = True
            elif first != fmt.MARK or not sure:
                self._note(f"the first two bytes of the record at offset {at} were damaged")
                self.damaged = True
            yield record, sure
            at = record.end
        self.damaged = True
        self._note("the STOP at the end of the records was damaged or missing")
        if self.size <= at < self.said:
            self.report.lost.append(Lost(at, self.said, None, "cut off by the end of the file: the header speaks of "
                                         "records up to there"))

    def _is_end(self, at: int) -> bool:
        """Whether the STOP at the offset `at` is the end of what counts.

        It is for every reader. But after a power cut it may be one that was replaced by a MARK, while what came
        later is on the disk: then the header speaks of more, or something before it is damaged as well.
        """
        if at == self.stop or not self.broken and at > self.stop:
            return True
        if self._decode(at, self.tag) is not None:
            return False
        if self._next_record(at, self.stop if self.stop > at else self.size) is not None:
            return False
        if self.stop > at:
            self.report.lost.append(Lost(at, self.stop, None, "the header speaks of records here; none is whole"))
        return True

    def _closes(self, head: _Head) -> bool:
        """Whether a record ends as it should, where its length says."""
        end = head.end
        return end <= self.size and self.view[end - 1] == fmt.POP_MARK \
            and (not head.entry or self.view[end - 2] == fmt.SETITEM)

    def _pass_damage(self, at: int, head: Optional[_Head]) -> int:
        """Report what stands at the offset `at`, and is no whole record, as lost; return where to go on."""
        self.damaged = self.broken = True
        view, size = self.view, self.size
        limit = self.stop if self.stop > at else size
        # A value may hold anything, records too: where the damaged one's own end is credible, go on there.
        if head is not None and (head.sound or head.end < size and self._closes(head) and (
                view[head.end] == fmt.STOP or self._decode(head.end, self.tag) is not None)):
            end = head.end
        else:
            cut = head is not None and head.covered > size and size < head.end <= self.said
            end = self._next_record(at, limit) or (head.end if head is not None and cut else limit)
        key, why = self._describe(at, end, head)
        self.report.lost.append(Lost(at, end, key, why))
        return end

    def _describe(self, at: int, end: int, head: Optional[_Head]) -> tuple[Any, str]:
        """Return the key of a damaged record, as far as it can be told, and what is wrong with it."""
        if head is None and self.size - at < _HEAD_MAX:
            return None, f"cut off by the end of the file: {self.size - at} bytes are there"
        if head is None:
            what = "zeros" if not any(self.view[at:min(end, at + 4096)]) else "no record that can be made out"
            return None, f"{what}, {end - at} bytes"
        key = None
        if head.entry:
            with suppress(CorruptError, TypeError):
                key, _ = decode_literal(self.view, head.content, min(head.end, self.size))
                check_key(key)
        kind = "" if head.entry else "no key, a hidden record; if it deleted keys, these are back: "
        if head.end > self.size and (head.sound or head.covered > self.size):
            return key, f"{kind}cut off by the end of the file: {self.size - at} of {head.end - at} bytes are there"
        if head.sound:
            return key, f"{kind}it does not end where its length says"
        return key, f"{kind}its check value does not match: its key, or what describes its value, is damaged"

    def _take(self, record: Record, sure: bool) -> None:
        """Apply a record, as an unpickler would."""
        if not record.live:
            return
        if not record.entry:
            self._take_hidden(record)
            return
        key, view = None, self.view
        try:
            key, at = decode_literal(view, record.content, record.body_end)
            check_key(key)
            self._check_value(record, at)
        except (TypeError, ValueError) as exc:          # ValueError: also an int of too many digits for a message
            why = exc.message if isinstance(exc, CorruptError) else str(exc)
            self.report.lost.append(Lost(record.offset, record.end, key, why))
        else:
            if sure:
                self.items[key] = _Item(record, at)
                self.unsure.pop(key, None)
            else:
                self.unsure[key] = _Item(record, at)

    def _take_hidden(self, record: Record) -> None:
        view, start, end = self.view, record.content, record.body_end
        if is_seal(view, 0, record):
            self.seal = record
        elif view[start:end] == fmt.CLEAR:
            self.items.clear()
            self.unsure.clear()
        elif view[start:start + len(fmt.DROP)] == fmt.DROP:
            try:
                key, at = decode_literal(view, start + len(fmt.DROP), end)
                check_key(key)
                if view[at:at + len(fmt.DROPPED)] != fmt.DROPPED \
                        or skip_filler(view, at + len(fmt.DROPPED), end) != end:
                    raise CorruptError("it does not end behind its key")
            except (CorruptError, TypeError) as exc:
                self.report.lost.append(Lost(record.offset, record.end, None, f"a deletion that is damaged: {exc}"))
            else:
                self.items.pop(key, None)
                self.unsure.pop(key, None)

    def _check_seal(self, record: Record) -> None:
        """Report values whose bytes are not those that were sealed."""
        try:
            seal = decode_seal(self.view, 0, record)
        except CorruptError as exc:
            self.damaged = True
            self._note(f"the file was sealed, but {exc}; damage inside of values does not show")
            return
        if seal is not None:
            keys = {item.record.offset: key for key, item in self.items.items()}
            live = [(item.record.offset, item.record.end) for item in self.items.values()]
            self.report.doubtful = [keys[difference.offset] for difference in check(seal, self.view, live)
                                    if difference.kind == "changed" and difference.offset in keys]

    def _check_value(self, record: Record, at: int) -> None:
        """Raise CorruptError unless an unpickler can load the value; its classes apart."""
        view = self.view
        if view[at] == fmt.BINGET:
            info = decode_info(view, 0, at, record.body_end, record.covered)
            parts = [info] if isinstance(info, ArrayInfo) else [] if info is None else [info.data, info.mask]
            try:
                for part in parts:
                    if part is not None:        # O(1); numpy refuses shapes that it cannot have
                        np.ndarray(part.shape, part.dtype, view, part.offset, None, part.order)
            except (ValueError, OverflowError, TypeError) as exc:
                raise CorruptError(f"numpy can have no such array: {exc}", None, at) from exc
            if info is not None:
                return
        found = trace(view, at, record.body_end, refuse=_NOT_IN_VALUES)
        if found.stack != 1:
            raise CorruptError("a value's opcodes do not push one object", None, at)
        if found.memo and found.memo_max - min(found.memo) >= len(found.memo):
            raise CorruptError("a value's memo indices do not follow each other", None, at)
        if record.covered < record.body_end:
            self._check_texts(at, record.body_end)

    def _check_texts(self, at: int, end: int) -> None:
        """Raise CorruptError unless all texts in a value are UTF-8; its opcodes were traced before.

        One that is not would be an error for whoever loads the file. The check value vouches for those that it covers.
        """
        view = self.view
        while at < end:
            run = _TEXTLESS.match(view, at, end)
            if run:
                at = run.end()
                continue
            op, width = view[at], ARGUMENT[view[at]]
            start = at + 1 + abs(width)
            behind = start + int.from_bytes(view[at + 1:start], "little") if width < 0 else start
            if op in _TEXTS:
                decoder = _decoder("surrogatepass")
                try:
                    for i in range(start, behind, TEXT_STEP):
                        decoder.decode(bytes(view[i:min(i + TEXT_STEP, behind)]))
                    decoder.decode(b"", True)
                except UnicodeDecodeError as exc:
                    raise CorruptError("a text is not UTF-8", None, at) from exc
            at = behind

    def _decide_unsure(self) -> None:
        """Keep entries whose Op is damaged, unless the header counts one key less."""
        if not self.unsure:
            return
        where = ", ".join(str(item.record.offset) for item in self.unsure.values())
        commit, live = self._cell(fmt.COMMIT_OFFSET), self._cell(fmt.LIVE_OFFSET)
        if not commit & 1 and live == len(self.items) and not self.report.lost:
            self._note(f"whether the records at offset {where} count is damaged; they do not, by the header's count")
            return
        self._note(f"whether the records at offset {where} count is damaged; they may have been deleted: "
                   + ", ".join(map(shown, self.unsure)))
        self.items.update(self.unsure)
        self.items = dict(sorted(self.items.items(), key=lambda item: item[1].record.offset))
