"""Verify: every rule of the format that a file breaks, and where.

Nothing is written or unpickled, and nothing locked but a damaged file. What cannot be seen is damage inside the bytes
of arrays, of long texts and of long bytes objects, unless the file is sealed: these have no checksums, because they may
change in place.
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Set
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from . import format as fmt
from . import judging, seals
from .arrays import ArrayInfo, GrowableInfo
from .errors import BusyError, CorruptError
from .finding import VERSION_MAX, Finder, check_start
from .format import Record
from .judging import dirty_fillers, judge_block, judge_hidden, judge_key, judge_value
from .literals import shown
from .machine import trace
from .store import boot_id, full_path, raw_bytes

__all__ = ["Fault", "Report", "verify"]

# How often and how long, in seconds, a writer is waited for that changes the file meanwhile.
ATTEMPTS = 12
PATIENCE = 2.0
LISTED = 100                        # faults that the text of a report names


class Fault(NamedTuple):
    """A rule of the format that is broken.

    Attributes
    ----------
    offset : int
        Where, in bytes from the start of the file.
    kind : str
        "header", "cut", "record", "alignment", "padding", "key", "value", "globals", "memo", "hidden", "order",
        "index" or "seal".
    message : str
    key : object
        Of the entry that it concerns, as far as it is known; else None.
    """

    offset: int
    kind: str
    message: str
    key: Any = None

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {shown(self.key)}"
        return f"offset {self.offset}{key}: {self.kind}: {self.message}"


class Report:
    """What `verify` found.

    Attributes
    ----------
    path : str
    faults : list of Fault
    notes : list of str
        What is no fault, but worth knowing: a writer was inside, for instance.
    keys : int
        The number of keys.
    records : int
        The number of records, dead and hidden ones included.
    size : int
        Of the file, in bytes.
    sealed : bool
        Whether the file is sealed. Then all of it was compared with its checksums.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.keys = self.records = self.size = 0
        self.sealed = False

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def __bool__(self) -> bool:
        raise TypeError("what shall it mean that a report is true? Use report.ok")

    def __repr__(self) -> str:
        return f"<Report on {self.path!r}: {'ok' if self.ok else _counted(len(self.faults), 'fault')}>"

    def __str__(self) -> str:
        lines = [str(fault) for fault in self.faults[:LISTED]]
        if len(self.faults) > LISTED:
            lines.append(f"... and {_counted(len(self.faults) - LISTED, 'more fault')}")
        lines += [f"note: {note}" for note in self.notes]
        verdict = "OK" if self.ok else _counted(len(self.faults), "fault")
        lines.append(f"{self.path}: {verdict}; {_counted(self.keys, 'key')}, {_counted(self.records, 'record')}, "
                     f"{self.size:,} bytes, {'sealed' if self.sealed else 'not sealed'}")
        return "\n".join(lines)


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def verify(path: Any) -> Report:
    """Check a file against every rule of the format; list all faults.

    Parameters
    ----------
    path : str, bytes or os.PathLike

    Returns
    -------
    Report
        Print it, or look at its `ok` and `faults`.

    Raises
    ------
    FormatError
        It is no mmapdict file at all, or one of a newer version.
    OSError
        It cannot be read.

    Notes
    -----
    It may be written to at the same time: no fault of a healthy writer's file is reported. O(records), and if the
    file is sealed O(bytes).
    """
    name = full_path(path)
    deadline = time.monotonic() + PATIENCE
    for attempt in range(ATTEMPTS):
        with raw_bytes(name) as view:
            check = _Check(name, view, False)
            report = check.run()
            moved = check.moved()
        if not moved and not check.broken:
            return report
        if check.odd or not moved:
            # Either a writer died, or the file is damaged; what stands behind damage is searched for also where a
            # writer may cut the file off. So keep writers out.
            with suppress(BusyError), raw_bytes(name, alone=True) as view:
                alone = _Check(name, view, True)
                if alone.odd or check.broken:
                    return alone.run()
        if attempt == ATTEMPTS - 1 or time.monotonic() > deadline:
            break
        time.sleep(min(0.001 * 2 ** attempt, 0.1))
    report.notes.append("a writer was inside all the time: the header and the order of records were not judged, and "
                        "what stands behind the header's STOP was not searched")
    return report


def check_file(path: str, view: memoryview) -> Report:
    """Check the bytes of a whole file while writers are kept out; as `verify`."""
    return _Check(path, view, True).run()


class _Live(NamedTuple):
    """An entry that counts so far."""

    record: Record
    key: Any


class _Check:
    """One pass over the bytes of a file.

    Parameters
    ----------
    path : str
    view : memoryview
        The whole file.
    alone : bool
        Whether writers are kept out.
    """

    def __init__(self, path: str, view: memoryview, alone: bool) -> None:
        self.view = view
        self.size = len(view)
        self.alone = alone
        self.report = Report(path)
        self.report.size = self.size
        self.broken = False             # whether records cannot be found by walking
        self.tag = 0
        self.commit = self._cell(fmt.COMMIT_OFFSET)
        self.odd = bool(self.commit & 1)
        self.stop = self._cell(fmt.STOP_OFFSET)
        self.known_stop = fmt.HEADER_SIZE <= self.stop < self.size and not self.stop % fmt.RECORD_ALIGNMENT
        self.groups: dict[int, int] = {}
        self.current: dict[Any, Record] = {}
        self.announced: Optional[Record] = None     # says that a successor follows at once, and none has
        self.superseded: list[tuple[_Live, int, bool]] = []     # what took its place, and whether that is another entry
        self.alive: list[tuple[int, int]] = []
        self.keys: dict[int, Any] = {}                      # offset of a live entry -> key
        self.memo: list[tuple[int, int, int, Any]] = []     # first, last, offset, key
        self.dead = 0
        self.seal: Optional[Record] = None
        self.last: Optional[Record] = None
        self.blocks: list[Record] = []
        self.entries: list[int] = []                        # offsets of all entries, dead ones too

    def fault(self, offset: int, kind: str, message: str, key: Any = None) -> None:
        self.report.faults.append(Fault(offset, kind, message, key))

    def _cell(self, offset: int) -> int:
        return int.from_bytes(self.view[offset:offset + 8], "little")

    def moved(self) -> bool:
        """Whether a writer was inside at the beginning, or has been since: not all that was read is of one moment."""
        return not self.alone and (self.odd or self._cell(fmt.COMMIT_OFFSET) != self.commit)

    def run(self) -> Report:
        report = self.report
        if self._header():
            end = self._walk()
            if self.announced is not None:
                self.fault(self.announced.offset, "record", judging.WITHOUT_SUCCESSOR)
            report.keys = len(self.current)
            self._memo_indices()
            if self.alone or not self.moved():
                self._judge_header(end)
            self._seals()
            report.faults.sort(key=lambda fault: fault.offset)
        return report

    # -- the header ---------------------------------------------------------------------------------------------

    def _header(self) -> bool:
        """Check what never changes in a header; return whether records can follow."""
        view, size = self.view, self.size
        head = bytes(view[:fmt.HEADER_SIZE])
        opcodes, magic = head[:fmt.BLOCK_OFFSET], head[fmt.MAGIC_OFFSET:fmt.VERSION_OFFSET]
        tail = head[fmt.HEADER_SIZE - len(fmt.HEADER_TAIL):]
        version = int.from_bytes(head[fmt.VERSION_OFFSET:fmt.FILE_ID_OFFSET], "little")
        known = (opcodes == fmt.HEADER_HEAD) + (magic == fmt.MAGIC) + (tail == fmt.HEADER_TAIL)
        self.tag = fmt.file_tag(head[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET])
        if known < 2 or known == 3 and fmt.VERSION < version <= VERSION_MAX:
            # Either none of ours, or damaged: then its records tell.
            if known == 3 or self._finder().agreed_tag() is None:
                with suppress(CorruptError):            # cut, but ours
                    fmt.check_header(bytes(view[:fmt.HEADER_SIZE + 1]), size, self.report.path)
        if size <= fmt.HEADER_SIZE:
            self.fault(size, "cut", f"the file is cut inside the header: {size} bytes, at least {fmt.HEADER_SIZE + 1} "
                                    "expected")
            return False
        if opcodes != fmt.HEADER_HEAD:
            self.fault(0, "header", f"expected the opcodes {fmt.HEADER_HEAD.hex(' ')}, found {opcodes.hex(' ')}")
        if head[fmt.BLOCK_OFFSET]:
            self.fault(fmt.BLOCK_OFFSET, "header", f"expected a zero, found {head[fmt.BLOCK_OFFSET]:02x}")
        if magic != fmt.MAGIC:
            self.fault(fmt.MAGIC_OFFSET, "header", f"expected the magic {fmt.MAGIC!r}, found {magic!r}")
        if version != fmt.VERSION:
            self.fault(fmt.VERSION_OFFSET, "header", f"expected format version {fmt.VERSION}, found {version}")
        reserved = head[fmt.RESERVED_OFFSET:-len(fmt.HEADER_TAIL)]
        if any(reserved):
            at = len(reserved) - len(reserved.lstrip(b"\0"))
            self.fault(fmt.RESERVED_OFFSET + at, "header", f"reserved bytes are not zero: {reserved[at]:02x}")
        if tail != fmt.HEADER_TAIL:
            self.fault(fmt.HEADER_SIZE - len(fmt.HEADER_TAIL), "header",
                       f"expected the opcodes {fmt.HEADER_TAIL.hex(' ')}, found {tail.hex(' ')}")
        state = self._cell(fmt.STATE_OFFSET)
        if state > fmt.SUPERSEDED:
            self.fault(fmt.STATE_OFFSET, "header", f"state {state}: no such state")
        elif state:
            self.report.notes.append("the file is marked as " + ("about to be replaced" if state == fmt.REPLACING
                                                                 else "superseded: it is a copy of an older one"))
        self._file_id()
        return True

    def _file_id(self) -> None:
        """Where the header's id is not that of the records, go on with theirs."""
        if self.view[fmt.HEADER_SIZE] != fmt.STOP:
            tag = self._finder().agreed_tag()
            if tag is not None and tag != self.tag:
                self.fault(fmt.FILE_ID_OFFSET, "header", "the file id is not the one of the records")
                self.tag = tag

    def _judge_header(self, end: int) -> None:
        """Compare the header with the records, which end at the offset `end`."""
        if not self.broken and self.stop > end:
            self.fault(fmt.STOP_OFFSET, "header", f"stop is {self.stop}, but the records end at {end}: what was behind "
                                                  "is lost, or did not reach the disk before power was cut")
        stale = [*self._stale_cells(end), *self._out_of_order(), *(() if self.broken else self._judge_index(end))]
        restarted = self.view[fmt.BOOT_ID_OFFSET:fmt.SYNCED_OFFSET] != boot_id()
        if self.odd:
            self.report.notes.append("a writer died inside; the next one puts the header and the order of records "
                                     "right")
        elif stale and restarted:
            # Cells and records reach the disk at different times (I4).
            self.report.notes.append("power was cut, or this is a copy that was made while the file was written; the "
                                     "next writer puts right: "
                                     + "; ".join(f"offset {fault.offset}: {fault.message}" for fault in stale))
        else:
            self.report.faults += stale

    def _stale_cells(self, end: int) -> Iterator[Fault]:
        """Yield the cells that are not as the records say."""
        if self.broken:
            return
        least = max([fmt.MEMO_START, *(last + 1 for _, last, _, _ in self.memo)])
        most = fmt.MEMO_START + (end - fmt.HEADER_SIZE) // 5            # each index took an opcode of 5 bytes
        for offset, name, low, high in ((fmt.STOP_OFFSET, "stop", end, max(end, self.stop)),
                                        (fmt.LIVE_OFFSET, "live", len(self.current), len(self.current)),
                                        (fmt.DEAD_OFFSET, "dead", self.dead, self.dead),
                                        (fmt.MEMO_OFFSET, "memo", least, most),
                                        (fmt.SYNCED_OFFSET, "synced", 0, end)):
            if not low <= self._cell(offset) <= high:
                span = f"{low}" if low == high else f"{low} to {high}"
                yield Fault(offset, "header", f"{name} is {self._cell(offset)}; the records say {span}")

    def _judge_index(self, end: int) -> Iterator[Fault]:
        """Yield what the header's index block, or another, says that the records do not (I17)."""
        at = self._cell(fmt.INDEX_OFFSET)
        block = None
        for record in self.blocks:
            if record.offset == at:
                block = record
            else:
                yield Fault(record.offset, "index", f"a live index block; the header names that at {at}")
        if block is None:
            if at:
                yield Fault(fmt.INDEX_OFFSET, "header", f"index is {at}: there is no live index block")
            return
        least = min((by for _, by, _ in self.superseded), default=0)
        for offset, message, key in judge_block(self.view, block, end, self.entries, self.current, self.groups, least,
                                                self._cell(fmt.SYNCED_OFFSET) == end):
            yield Fault(offset, "index", message, key)

    # -- records ------------------------------------------------------------------------------------------------

    def _limit(self) -> int:
        """Return up to where bytes may be looked at: a writer may cut off what stands behind the STOP."""
        return self.stop + 1 if self.known_stop and not self.alone else self.size

    def _finder(self) -> Finder:
        return Finder(self.view[:self._limit()], self.tag)

    def _walk(self) -> int:
        """Check all records; return the offset of the STOP, or of the place where there should be one."""
        view, at = self.view, fmt.HEADER_SIZE
        finder = self._finder()
        while True:
            if at >= self.size:
                self.broken = True
                self.fault(self.size, "cut", "the file ends without its STOP")
                return at
            op = view[at]
            if op == fmt.STOP:
                unpublished = finder.decode(at) if self.known_stop and at < self.stop else None
                if unpublished is None or unpublished.end > self.stop:
                    return at
                self.broken = True
                self.fault(at, "record", "STOP in place of MARK: an unpickler ends here, and the header says that "
                                         f"there are records up to {self.stop}", self._guess_key(at))
            else:
                try:
                    limit = self._limit() if at < self.stop else self.size
                    record = fmt.decode_record(view[:limit], 0, at, self.tag)
                    self._record(record)
                    at = record.end
                    continue
                except CorruptError as exc:
                    if self.known_stop and at >= self.stop and self.moved():
                        return at               # published since, and longer than the file was
                    self.broken = True
                    kind = "cut" if self._runs_out(at) else "record"
                    self.fault(at, kind, exc.message, self._guess_key(at))
            stops = self.known_stop and at < self.stop and view[self.stop] == fmt.STOP
            following = finder.next_record(at, self.stop if stops else finder.size)
            if following is None:
                if stops:
                    return self.stop
                if view[self.size - 1] != fmt.STOP and not any(f.kind == "cut" for f in self.report.faults):
                    self.fault(self.size, "cut", "the file ends without its STOP")
                return at
            self.report.notes.append(f"bytes {at} to {following} belong to no whole record")
            at = following

    def _runs_out(self, at: int) -> bool:
        """Whether the record at `at` is one that the end of the file cuts."""
        if at + fmt.RECORD_HEAD > self.size:
            return True
        mark, op, length = fmt.RECORD.unpack_from(self.view, at)
        return mark == fmt.MARK and op in (fmt.LIVE, fmt.DEAD) and at + fmt.RECORD_HEAD + length >= self.size

    def _guess_key(self, at: int) -> Any:
        """Return the key that a broken record seems to have."""
        finder = self._finder()
        return finder.guess_key(finder.look(at, None))

    def _record(self, record: Record) -> None:
        self.report.records += 1
        self.last = record
        if record.entry:
            self.announced = None
        if record.end % fmt.RECORD_ALIGNMENT:
            self.fault(record.offset, "alignment", f"a record ends at {record.end}, no multiple of "
                                                   f"{fmt.RECORD_ALIGNMENT}")
        if not record.live:
            self.dead += record.end - record.offset
            if record.entry:
                self.entries.append(record.offset)
            elif seals.is_seal(self.view, 0, record):
                self.seal = record
            return
        self.alive.append((record.offset, record.end))
        self._padding(record)
        if record.entry:
            self._entry(record)
        else:
            self._hidden(record)

    def _padding(self, record: Record) -> None:
        start = check_start(self.view, record.offset)
        assert start is not None                # decode_record has read it
        zeros = bytes(self.view[start + fmt.CHECK.size:record.content - 1])
        if any(zeros):
            self.fault(record.content - 1 - len(zeros.lstrip(b"\0")), "padding",
                       "the zeros of a check value are not all zero")
        if record.content - 1 - start > fmt.BIG_PAYLOAD:
            self.fault(record.offset, "padding", f"a check value of {record.content - 1 - start} bytes, at most "
                                                 f"{fmt.BIG_PAYLOAD} expected")

    def _entry(self, record: Record) -> None:
        self.entries.append(record.offset)
        try:
            key, at = judge_key(self.view, record)
        except CorruptError as exc:
            self.fault(record.content if exc.offset is None else exc.offset, "key", f"no key: {exc.message}")
            return
        ops = bytes(self.view[record.content:at])
        if len(ops) > fmt.BIG_PAYLOAD or fmt.POP in ops:
            found = trace(self.view, record.content, at)
            self._big_ends(found.payloads, key)
            self._fillers(found.fillers, key)
        old = self.current.get(key)
        if old is not None:
            self.superseded.append((_Live(old, key), record.offset, True))
        self.current[key] = record
        self.keys[record.offset] = key
        try:
            arrays, groups, found = judge_value(self.view, record, at)
        except CorruptError as exc:
            self.fault(at if exc.offset is None else exc.offset, "value", exc.message, key)
            return
        if arrays:
            for group, name in ((fmt.ARRAYS, "arrays"), (fmt.MASKS, "masks")):
                if groups & group and group not in self.groups:
                    self.fault(at, "globals", f"no record of the group {name!r} stands before this array", key)
            for info in arrays:
                if isinstance(info, GrowableInfo):
                    if info.start % fmt.SMALL_ALIGNMENT:
                        self.fault(info.start, "alignment", "rows of a growable array start at no multiple of "
                                                            f"{fmt.SMALL_ALIGNMENT}", key)
                elif info.nbytes:
                    self._array_ends(info, key)
        else:
            self._big_ends(found.payloads, key)
        self._memo(found.memo, record, key)
        # A pickler throws bytes away, too, of a tuple that holds itself, but has stored them before and fetches them.
        # What a growable array gave back are bytes of any kind.
        given_back = [info.tail[1] for info in arrays if isinstance(info, GrowableInfo)]
        self._fillers([filler for filler in found.fillers if filler[0] not in given_back], key)

    def _fillers(self, fillers: list[tuple[int, int]], key: Any) -> None:
        for offset in dirty_fillers(self.view, fillers):
            self.fault(offset, "padding", "the zeros of a filler are not all zero", key)

    def _array_ends(self, info: ArrayInfo, key: Any) -> None:
        unit = max(fmt.array_payload(None, info.nbytes, info.dtype.alignment).alignment, 1)
        if info.offset % unit:
            self.fault(info.offset, "alignment", f"{info.nbytes} bytes of an array start at no multiple of {unit}", key)
        if info.nbytes > fmt.BIG_PAYLOAD and info.nbytes % fmt.RECORD_ALIGNMENT:
            # Then the bytes object is longer than the array, by the recipe that allows that.
            rounded = -info.nbytes % fmt.RECORD_ALIGNMENT + info.nbytes
            head = fmt.bytes_head(rounded)
            if self.view[info.offset - len(head):info.offset] != head:
                self.fault(info.offset, "alignment", f"{info.nbytes} bytes of an array end at no multiple of "
                                                     f"{fmt.RECORD_ALIGNMENT}", key)

    def _big_ends(self, payloads: list[tuple[int, int, int]], key: Any) -> None:
        for _, start, end in payloads:
            if end % fmt.RECORD_ALIGNMENT:
                self.fault(start, "alignment", f"a text, bytes object or int of {end - start} bytes ends at {end}, no "
                                               f"multiple of {fmt.RECORD_ALIGNMENT}", key)

    def _memo(self, indices: Set[int], record: Record, key: Any) -> None:
        """Take note of the memo indices that a record puts; they follow each other."""
        if not indices:
            return
        first, last = min(indices), max(indices)
        if first < fmt.MEMO_START and record.entry:
            self.fault(record.offset, "memo", f"memo index {first} is reserved: values use those from {fmt.MEMO_START}",
                       key)
        most = fmt.MEMO_START + (record.end - fmt.HEADER_SIZE) // 5         # each index took an opcode of 5 bytes
        if last >= most:
            self.fault(record.offset, "memo", f"memo index {last} asks for gigabytes: there is room for {most} before "
                                              "it", key)
            return
        self.memo.append((first, last, record.offset, key))

    def _memo_indices(self) -> None:
        """I8: no two live records put the same index."""
        self.memo.sort(key=lambda item: item[:3])
        highest, owner = -1, 0
        for first, last, offset, key in self.memo:
            if first <= highest:
                self.fault(offset, "memo", f"memo index {first} is put also by the record at {owner}", key)
            if last > highest:
                highest, owner = last, offset

    def _hidden(self, record: Record) -> None:
        view = self.view
        try:
            kind, what = judge_hidden(view, record)
        except CorruptError as exc:
            self.fault(record.content if exc.offset is None else exc.offset, "hidden",
                       f"a hidden record: {exc.message}")
            return
        if kind == judging.GROUP:
            self.groups.setdefault(what, record.offset)
            self._memo(judging.PUT_BY[what], record, None)
            return
        if kind == judging.CLEAR:
            for key in list(self.current):
                self._take_out(key, record.offset)
            return
        found = trace(view, record.content, record.body_end, given=(0,))
        self._big_ends(found.payloads, what)
        if kind != judging.INERT:           # what that throws away may be something
            self._fillers(found.fillers, what)
        if kind in (judging.DROP, judging.REPLACE):
            self._take_out(what, record.offset)
            if kind == judging.REPLACE:
                self.announced = record
        elif kind == judging.SEAL:
            self.seal = record
        elif kind == judging.BLOCK:
            self.blocks.append(record)

    def _take_out(self, key: Any, by: int) -> None:
        old = self.current.pop(key, None)
        if old is not None:
            self.superseded.append((_Live(old, key), by, False))

    def _out_of_order(self) -> Iterator[Fault]:
        """Yield live entries that do not count and do not wait: what takes those out is not before `synced` (I14)."""
        synced = self._cell(fmt.SYNCED_OFFSET)
        for (record, key), by, replaced in self.superseded:
            if replaced or by < synced:
                yield Fault(record.offset, "order", f"an entry is live, though the record at {by} takes its place", key)

    # -- the seal -----------------------------------------------------------------------------------------------

    def _seals(self) -> None:
        record = self.seal
        if record is None:
            return
        self.report.sealed = record.live and record is self.last
        if not self.report.sealed:
            self.report.notes.append(f"the seal at offset {record.offset} was taken off, or something was stored "
                                     "since: nothing was compared with its checksums")
            return
        try:
            seal = seals.decode_seal(self.view, 0, record)
            assert seal is not None
        except CorruptError as exc:
            self.fault(exc.offset or record.offset, "seal", exc.message)
            return
        before = [item for item in self.alive if item[0] < record.offset]
        for kind, offset, end in seals.check(seal, self.view, before):
            key = self.keys.get(offset)
            if kind == "header":
                self.fault(offset, "seal", f"the header's bytes up to {end} are not those that were sealed")
            elif kind == "missing":
                self.fault(offset, "seal", f"the record that was sealed here, {end - offset} bytes, is gone or damaged",
                           key if key is not None else self._guess_key(offset))
            elif kind == "added":
                self.fault(offset, "seal", "a record that was not there, or was dead, when the file was sealed", key)
            else:
                self.fault(offset, "seal", f"the bytes of this record, up to {end}, are not those that were sealed",
                           key)
