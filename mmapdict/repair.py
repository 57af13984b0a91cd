"""Repair: what is whole in a damaged file, copied into a new one; and a report of what was saved and lost.

Nothing of the original is written, and nothing in it is run. A record proves itself: its tag is made of its own offset
and the file's id, and its check value covers its length and its opcodes. So records are found again behind any damage,
and those of another file, or of an older copy that is stored as a value, are not taken for this one's.

What cannot be seen is damage inside the bytes of arrays, and of texts and bytes objects over 4096 bytes: only a seal
has checksums of these.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from . import format as fmt
from .birth import new_file, replacement
from .copying import Builder, stored_parts
from .errors import CorruptError, FormatError
from .finding import HEAD_MAX, VERSION_MAX, Finder, Head
from .format import Record
from .judging import CLEAR, DROP, REPLACE, SEAL, WITHOUT_SUCCESSOR, judge_hidden, judge_key, judge_value
from .literals import shown
from .seals import check, decode_seal
from .store import OFFSET_MAX, full_path, raw_bytes
from .verify import check_file

__all__ = ["Lost", "RepairReport", "repair"]

LISTED_MAX = 20                 # how many keys and losses the text of a report names
# Header cells that the next writer puts right, if verify has nothing else to say of them.
_HINTS = {fmt.STOP_OFFSET, fmt.LIVE_OFFSET, fmt.DEAD_OFFSET, fmt.MEMO_OFFSET, fmt.SYNCED_OFFSET}


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
        builder.add(key, entry)
        report.saved.append(key)
    builder.finish(2)


# -- searching --------------------------------------------------------------------------------------------------

class _Search:
    """Finds what counts in the bytes of a damaged file."""

    def __init__(self, view: memoryview, report: RepairReport) -> None:
        self.view = view
        self.size = len(view)
        self.report = report
        self.damaged = False            # anything of the structure
        self.broken = False             # a record, or what should be one
        self.said = 0                   # the offset of the STOP by the header, if it makes sense
        self.stop = 0                   # the same, if the file reaches so far
        self.items: dict[Any, _Item] = {}
        self.unsure: dict[Any, _Item] = {}          # whole, but for the byte that says whether they count
        self.seal: Optional[Record] = None
        # Entries that were taken out for a successor.
        self.taken: dict[Any, _Item] = {}
        self.announced: Optional[Record] = None     # says that a successor follows at once, and none has

    def run(self) -> dict[Any, _Item]:
        """Return what counts, in the order of the file; the report gets the rest."""
        recognised = self._read_header()
        for record, sure in self._records():
            self.seal = None                # one that is not the last record holds no more
            self._take(record, sure)
        if self.announced is not None:
            self.damaged = self.broken = True
            self._note(f"at offset {self.announced.offset}: {WITHOUT_SUCCESSOR}")
        self._decide_unsure()
        self._bring_back()
        if not recognised and not self.items:
            raise FormatError(self._foreign(), self.report.path)
        if self.seal is not None:
            self._check_seal(self.seal)
        if not self.damaged and not self.report.lost and not self.report.doubtful:
            faults = [fault for fault in check_file(self.report.path, self.view).faults
                      if fault.kind != "order" and not (fault.kind == "header" and fault.offset in _HINTS)]
            self.report.whole = not faults
            self.report.notes += map(str, faults)
        counted = self._cell(fmt.LIVE_OFFSET)
        if self.report.whole and not self._cell(fmt.COMMIT_OFFSET) & 1 and counted != len(self.items):
            self._note(f"the header counts {counted} keys, there are {len(self.items)}: the next writer puts it right; "
                       "or an entry was damaged so that it looks deleted")
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
        tag = fmt.file_tag(head[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET])
        if self.size > fmt.HEADER_SIZE:
            stop = self._cell(fmt.STOP_OFFSET)
            if fmt.HEADER_SIZE <= stop <= OFFSET_MAX and stop % fmt.RECORD_ALIGNMENT == 0:
                self.said = stop
                self.stop = stop if stop < self.size else 0
        else:
            self.report.lost.append(Lost(self.size, max(self._cell(fmt.STOP_OFFSET), self.size), None, "cut off by the "
                                         "end of the file, inside its header, with all records"))
        # In an empty file only leftovers could agree on anything.
        empty = self.stop == fmt.HEADER_SIZE and self.view[fmt.HEADER_SIZE] == fmt.STOP
        agreed = None if empty else Finder(self.view, tag).agreed_tag()
        if agreed is not None and agreed != tag:
            self.damaged = True
            self._note("the file's id in the header was damaged; the records agree on another")
        self.finder = Finder(self.view, tag if agreed is None else agreed)
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

    # -- the records --------------------------------------------------------------------------------------------

    def _records(self) -> Iterator[tuple[Record, bool]]:
        """Yield the whole records that were published, and whether it is known which of them are live."""
        at = fmt.HEADER_SIZE
        while at < self.size:
            first = self.view[at]
            if first == fmt.STOP and self._is_end(at):
                return
            record = self.finder.decode(at)
            sure = True
            if record is None:
                head = self.finder.look(at, self.finder.tag)
                if head is not None and head.sound and head.op not in (fmt.LIVE, fmt.DEAD) and self._closes(head):
                    record = Record(at, head.end, True, head.entry, head.content, head.covered,
                                    head.end - 1 - head.entry)
                    sure = False
                elif at == self.stop and head is None and not self._cell(fmt.COMMIT_OFFSET) & 1 \
                        and self.finder.next_record(at, self.size) is None:
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
        self.damaged = self.broken = True
        self._note("the STOP at the end of the records was damaged or missing")
        if self.size <= at < self.said:
            self.report.lost.append(Lost(at, self.said, None, "cut off by the end of the file: the header speaks of "
                                         "records up to there"))

    def _is_end(self, at: int) -> bool:
        """Whether the STOP at the offset `at` is the end of what counts.

        It is for every reader. But after a power cut it may be one that was replaced by a MARK, while what came
        later is on the disk: then the header speaks of more, or something before it is damaged as well.
        """
        if at == self.said or not self.broken and at > self.said:
            return True
        if self.finder.decode(at) is not None:
            return False
        if self.finder.next_record(at, self.stop if self.stop > at else self.size) is not None:
            return False
        if self.said > at:
            self.report.lost.append(Lost(at, self.said, None, "the header speaks of records here; none is whole"))
        return True

    def _closes(self, head: Head) -> bool:
        """Whether a record ends as it should, where its length says."""
        end = head.end
        return end <= self.size and self.view[end - 1] == fmt.POP_MARK \
            and (not head.entry or self.view[end - 2] == fmt.SETITEM)

    def _pass_damage(self, at: int, head: Optional[Head]) -> int:
        """Report what stands at the offset `at`, and is no whole record, as lost; return where to go on."""
        self.damaged = self.broken = True
        view, size = self.view, self.size
        limit = self.stop if self.stop > at else size
        # A value may hold anything, records too: where the damaged one's own end is credible, go on there.
        if head is not None and (head.sound or head.end < size and self._closes(head) and (
                view[head.end] == fmt.STOP or self.finder.decode(head.end) is not None)):
            end = head.end
        else:
            cut = head is not None and head.covered > size and size < head.end <= self.said
            end = self.finder.next_record(at, limit) or (head.end if head is not None and cut else limit)
        key, why = self._describe(at, end, head)
        self.report.lost.append(Lost(at, end, key, why))
        return end

    def _describe(self, at: int, end: int, head: Optional[Head]) -> tuple[Any, str]:
        """Return the key of a damaged record, as far as it can be told, and what is wrong with it."""
        if head is None and self.size - at < HEAD_MAX:
            return None, f"cut off by the end of the file: {self.size - at} bytes are there"
        if head is None:
            what = "zeros" if not any(self.view[at:min(end, at + 4096)]) else "no record that can be made out"
            return None, f"{what}, {end - at} bytes"
        key = self.finder.guess_key(head)
        kind = "" if head.entry else "no key, a hidden record; if it deleted keys, these are back: "
        if head.end > self.size and (head.sound or head.covered > self.size):
            return key, f"{kind}cut off by the end of the file: {self.size - at} of {head.end - at} bytes are there"
        if head.sound:
            return key, f"{kind}it does not end where its length says"
        return key, f"{kind}its check value does not match: its key, or what describes its value, is damaged"

    def _take(self, record: Record, sure: bool) -> None:
        """Apply a record, as an unpickler would."""
        if record.entry:
            self.announced = None
        if not record.live:
            return
        if not record.entry:
            self._take_hidden(record)
            return
        key = None
        try:
            key, at = judge_key(self.view, record)
            judge_value(self.view, record, at)
        except CorruptError as exc:
            self.report.lost.append(Lost(record.offset, record.end, key, exc.message))
        else:
            if sure:
                self.items[key] = _Item(record, at)
                self.unsure.pop(key, None)
            else:
                self.unsure[key] = _Item(record, at)

    def _take_hidden(self, record: Record) -> None:
        try:
            kind, key = judge_hidden(self.view, record)
        except CorruptError as exc:
            self.damaged = True
            self._note(f"a hidden record at offset {record.offset} was left out: {exc.message}")
            return
        if kind == SEAL:
            self.seal = record
        elif kind == CLEAR:
            self.items.clear()
            self.unsure.clear()
            self.taken.clear()
        elif kind in (DROP, REPLACE):
            item = self.items.pop(key, None)
            self.unsure.pop(key, None)
            if kind == DROP:
                self.taken.pop(key, None)
            else:
                self.announced = record
                if item is not None:
                    self.taken[key] = item

    def _bring_back(self) -> None:
        """Bring back entries whose successors are lost.

        The record that takes an entry out can reach the disk, and the successor that was published with it not (I14).
        """
        if not self.broken and not self.report.lost:
            return
        for key, item in self.taken.items():
            if key not in self.items:
                self.items[key] = item
                self._note(f"{shown(key)} is as it was at offset {item.record.offset}: what took its place is lost, or "
                           "was deleted")
        self._sort()

    def _sort(self) -> None:
        """Put the items in the order of their records, after some were brought back."""
        self.items = dict(sorted(self.items.items(), key=lambda pair: pair[1].record.offset))

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
            for difference in check(seal, self.view, live):
                if difference.kind == "changed" and difference.offset in keys:
                    self.report.doubtful.append(keys[difference.offset])
                elif difference.kind == "missing":
                    self._bring_back_sealed(difference.offset, difference.end)

    def _bring_back_sealed(self, offset: int, end: int) -> None:
        """Bring back an entry that was there when the file was sealed, and looks deleted: nobody deletes from it."""
        record = self.finder.decode(offset)
        if record is None or record.live or not record.entry or record.end != end:
            return                                      # what is damaged was noted, and hidden records are made anew
        with suppress(CorruptError):
            key, at = judge_key(self.view, record)
            judge_value(self.view, record, at)
            if key not in self.items:
                self.items[key] = _Item(record, at)
                self._sort()
                self.report.doubtful.append(key)
                self.damaged = True
                self._note(f"{shown(key)}, at offset {offset}, looked deleted, but was there when it was sealed")

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
        self._sort()
