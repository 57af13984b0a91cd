"""Keys -> offsets of records.

An `Index` is what one handle knows of a file: where its index block is, if it has one, and the records behind what that
covers. Others may change the file meanwhile: records that were added are found by walking on from the STOP that was
reached, records that were killed by a look at their Op byte.
"""
from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import format as fmt
from . import table as tables
from .arrays import ArrayInfo, GrowableInfo, MaskedInfo
from .errors import CorruptError
from .format import Record
from .judging import BLOCK, CLEAR, DROP, GROUP, REPLACE, SEAL, WITHOUT_SUCCESSOR, Hidden, judge_hidden
from .literals import check_key, decode_literal, encode_literal, hash_form
from .store import File, Window, poll_delays
from .table import Offsets, Table, hash_ops, open_table

if TYPE_CHECKING:
    from .bulk import Heads         # imported where it is used: one key is found without

COMMIT = fmt.COMMIT_CELL
LIVE = fmt.LIVE_CELL
DEAD = fmt.DEAD_CELL
SYNCED = fmt.SYNCED_CELL
STOP = fmt.STOP_CELL
INDEX = fmt.INDEX_CELL
MEMO = fmt.MEMO_CELL
_BOOT = fmt.BOOT_CELL
REMEDY = "mmapdict.repair(path) copies what is whole"
_PLAIN = frozenset((str, int, bytes, float, bool, type(None)))
# An entry up to its tag: MARK and Op; the length; BINGET 0, SHORT_BINBYTES and its size; the tag.
_ENTRY = struct.Struct("<H8xIQ")
_LIVE_ENTRY, _DEAD_ENTRY = fmt.MARK | fmt.LIVE << 8, fmt.MARK | fmt.DEAD << 8
_ENTRY_CHECK = int.from_bytes(fmt.ROOT + bytes((fmt.SHORT_BINBYTES,)), "little")
_CONTENT = _ENTRY.size - 8 + 1          # and the size of the check: behind that, and its POP
ATTEMPTS = 20


class Moment:
    """What a file says of itself at one moment.

    Attributes
    ----------
    upto : int
        Where its index block has come to.
    deaths : int
        How many entries have died.
    live : int
        How many count, by the header.
    log : list of int
        Offsets of the last of them, as `Table.log` has them.
    """

    __slots__ = ("upto", "deaths", "live", "log")

    def __init__(self, upto: int, deaths: int, live: int, log: list[int]) -> None:
        self.upto, self.deaths, self.live, self.log = upto, deaths, live, log

    def died_since(self, deaths: int) -> Optional[list[int]]:
        """Return the offsets of the entries that died since there were so many dead; None: not all are known."""
        if self.deaths - deaths > tables.LOG_SIZE:
            return None
        return [self.log[i % tables.LOG_SIZE] for i in range(deaths, self.deaths)]


class Index:
    """The keys of a file and where their records are.

    Parameters
    ----------
    file : File
    durable : bool
        Whether each change is to be on the disk before the operation returns.
    whole : bool
        Walk all records; use no index block.

    Attributes
    ----------
    table : Table or None
        The index block, if there is one that can be relied on.
    base : int
        All entries before this offset are in the table.
    offsets : dict
        Of the entries that are not: key to the offset of its newest record. The order is that of the file, but for
        `shadowed` keys.
    end : int
        Offset of the STOP, as far as this index has walked.
    groups : dict of int to int
        Which groups of hidden globals the file has, and the offsets of their records.
    seal : int or None
        Offset of the last record, if that was a live seal when it was found.
    """

    batch: Any = None           # of a `Writer`

    def __init__(self, file: File, durable: bool = False, whole: bool = False) -> None:
        self.file = file
        self.durable = durable
        self.whole = whole
        self._forget_all()

    def _forget_all(self) -> None:
        """Know nothing of the file, as before the first walk."""
        self.table: Optional[Table] = None
        self._table_at = 0                  # what the header's cell was when it was looked at
        self._other_boot = False            # whether power may have been cut since the table was stored into
        self.base = fmt.HEADER_SIZE
        self.offsets: dict[Any, int] = {}
        self.end = fmt.HEADER_SIZE
        self.groups: dict[int, int] = {}
        # Keys of which an older record was live when the newer was found: the writer is, or died, in between.
        self._shadowed: dict[Any, list[int]] = {}
        # Entries that were live when a record was found that takes them out, and that record's offset. Some wait there
        # until what supersedes them is on the disk (I14).
        self._dropped: list[tuple[int, int]] = []
        self._judged = 0                    # so many of them were seen to wait rightly, under the lock
        # Entries before these offsets do not count, though they may be live: of one key, and of all.
        self._gone: dict[Any, int] = {}
        self._cleared = 0
        # Keys of which a record waits for the disk. Later ones must wait too: on the disk, what takes the first out may
        # be there already.
        self._waiting: set[Any] = set()
        self._all_wait = False
        self.seal: Optional[int] = None
        self._announced = 0                 # the record of which says that a successor follows at once, and none has
        self._last_block = 0                # that was found by walking
        self._hidden_waste = 0
        self._counted_at = -1
        self._count = 0
        self._order: list[int] = []         # offsets, the last one of which is that of the last key
        self._ordered_to = -1
        self._header_checked = False
        self._walked_at, self._walked_dead = self.file.cells[COMMIT], 0

    # -- following ----------------------------------------------------------------------------------------------

    def walk(self) -> list[Record]:
        """Take in all that was published since; return the records that were looked at for that.

        Those that the index block covers are passed over, but where something may wait for the disk (I14).

        Raises
        ------
        CorruptError
            With the path and the offset at which the file breaks a rule.
        """
        if not self.whole:
            self._follow_table()
        try:
            return self._walk()
        except CorruptError:
            if self.table is None:
                raise
        self._distrust()                    # it led to where there is no record
        return self._walk()

    def _walk(self) -> list[Record]:
        file = self.file
        found: list[Record] = []
        try:
            w = file.window(self.end, self.end + 1)
            while True:
                if self.end >= w.end:
                    w = file.map_window(self.end)
                    if self.end >= w.end:
                        raise CorruptError("the file ends without its STOP")
                op = w.view[self.end - w.start]
                if op == fmt.STOP:
                    if self._announced:
                        # They were published together, so it is lost; the old one is still there (I14).
                        raise CorruptError(WITHOUT_SUCCESSOR, None, self._announced)
                    return found
                try:
                    record = fmt.decode_record(w.view, w.start, self.end, file.tag)
                except CorruptError:
                    if w.end >= file.status().st_size:
                        raise
                    w = file.map_window(self.end)           # it may run past what was mapped
                    record = fmt.decode_record(w.view, w.start, self.end, file.tag)
                if record.live and not record.entry and record.offset >= self.base:
                    self._hidden_waste += record.end - record.offset
                self._forget_seal()                 # it vouches for what stands before it only
                if record.entry:
                    self._announced = 0
                if record.live:
                    self._take(record, w.view, w.start)
                else:
                    self._walked_dead += record.end - record.offset
                found.append(record)
                self.end = record.end
        except CorruptError as exc:
            raise CorruptError(f"{exc.message}; before it stand {len(self.offsets)} keys; {REMEDY}", file.path,
                               self.end if exc.offset is None else exc.offset) from exc
        except ValueError as exc:
            raise CorruptError(f"the file ends without its STOP, behind {len(self.offsets)} keys; {REMEDY}", file.path,
                               self.end) from exc

    def _follow_table(self) -> None:
        """Use the index block that the file has now, as far as it has come."""
        cells = self.file.cells
        while cells[INDEX] != self._table_at:
            self._use_table(cells[INDEX])
        table = self.table
        if table is None:
            return
        table.refresh()
        upto = table.cells[tables.UPTO]
        # In a copy that was made while the file was written to, from front to back, the block is newer than the header,
        # and entries before it may be live that a record behind the header's STOP took out.
        upto = min(upto, cells[STOP])
        if self._other_boot:
            upto = min(upto, cells[SYNCED])     # I14: so far it was stored into before the disk was synced
        if upto <= self.base:
            return
        waits = table.cells[tables.WAITS]
        self.base = upto
        self._hidden_waste = table.cells[tables.HIDDEN]
        if upto < self.end:
            self.offsets = {key: offset for key, offset in self.offsets.items() if offset >= upto}
            self._shadowed = {key: older for key, older in self._shadowed.items() if key in self.offsets}
            return
        self.offsets.clear()
        self._shadowed.clear()
        if not waits:
            self._waits_no_more()
        if upto > self.end:
            self._forget_seal()                 # a record stands behind it
            self.end = min(max(self.end, waits), upto) if waits else upto
            self._walked_at = -1                # not all was walked
        for group, cell in tables.GROUP_CELLS.items():
            at = table.cells[cell]
            if at and group not in self.groups and self._hidden_kind(at) == (GROUP, group):
                self.groups[group] = at                 # I10

    def _waits_no_more(self) -> None:
        """Take note that no record waits for the disk, and all deaths are there."""
        self._dropped.clear()
        self._judged = 0
        self._gone.clear()
        self._cleared = 0
        self._waiting.clear()
        self._all_wait = False

    def _use_table(self, at: int) -> None:
        """Use the index block at the offset `at`, if it can be relied on."""
        had = self.table is not None
        table = open_table(self.file, at) if at else None
        self._other_boot = self._restarted()
        if table is not None and not self._is_trusted(table):
            table = None
        if table is None and had:
            self._forget_all()
        self.table = table
        self._table_at = at

    def _is_trusted(self, table: Table) -> bool:
        """Whether what was stored into the block, and the header, are of one time (I4)."""
        cells = self.file.cells
        return not self._other_boot or bool(cells[SYNCED]) and table.is_sound(cells[STOP])

    def _distrust(self) -> None:
        """Do without the index block: it is damaged. All records are walked then.

        Raises
        ------
        CorruptError
            In a batch, which cannot go on.
        """
        at = self._table_at
        if self.batch is not None:
            raise CorruptError("the index block is damaged, which shows in the middle of a batch: nothing of the batch "
                               "is stored; do it again", self.file.path, at)
        self._forget_all()
        self._table_at = at

    def _hidden_kind(self, offset: int) -> Optional[Hidden]:
        """Return what the live hidden record at `offset` is; None: there is none."""
        try:
            record, w = self.file.record(offset)
            return judge_hidden(w.view, record, w.start) if record.live and not record.entry else None
        except CorruptError:
            return None

    def _take(self, record: Record, view: memoryview, base: int) -> None:
        if record.entry:
            if record.offset < self.base:
                return
            try:
                key, _ = decode_literal(view, record.content - base, record.body_end - base)
                if type(key) not in _PLAIN or key != key:
                    check_key(key)
            except (CorruptError, TypeError) as exc:
                raise CorruptError(f"an entry whose key is damaged: {exc}", None, record.offset) from exc
            old = self.offsets.get(key)
            if old is None and self.table is not None:
                old = max((offset for offset in self._live_in_table(key) if offset < record.offset), default=None)
            if old is not None:
                if self.is_live(old):
                    self._shadowed.setdefault(key, []).append(old)
                else:
                    self.offsets.pop(key, None)         # its place is the new record's
            self.offsets[key] = record.offset
        else:
            try:
                kind, what = judge_hidden(view, record, base)
            except CorruptError as exc:
                raise CorruptError(exc.message, None, record.offset) from exc
            if kind == GROUP:                       # I10: only what is the same byte by byte is relied on
                self.groups.setdefault(what, record.offset)
            if kind in (GROUP, BLOCK) and record.offset >= self.base:
                self._hidden_waste -= record.end - record.offset
                if kind == BLOCK:
                    self._last_block = record.offset
            elif kind == CLEAR:
                self._drop_all(record.offset)
            elif kind in (DROP, REPLACE):
                self._drop(what, record.offset)
                if kind == REPLACE:
                    self._announced = record.offset
            elif kind == SEAL:
                self.seal = record.offset

    def _drop(self, key: Any, by: int) -> None:
        """Take note that the record at offset `by` takes `key` out; what it has live is dead, or about to be."""
        old = self.offsets.pop(key, None)
        older = [*self._shadowed.pop(key, ()), *(() if old is None else (old,))]
        if self.table is not None:
            older += [offset for offset in self._live_in_table(key) if offset < by and offset not in older]
        self._dropped += [(offset, by) for offset in older]
        self._gone[key] = by
        self._waiting.add(key)          # what is dead already may not be so on the disk

    def _drop_all(self, by: int) -> None:
        older = {*self.offsets.values(), *chain.from_iterable(self._shadowed.values())}
        if self.table is not None:
            before = self._live_offsets()
            older.update(before[before < by].tolist())
            older.difference_update(offset for offset, _ in self._dropped)
        self._dropped += [(offset, by) for offset in sorted(older)]
        self._all_wait = True
        self._cleared = by
        self.offsets.clear()
        self._shadowed.clear()

    def is_live(self, offset: int) -> bool:
        """Whether the record at `offset` is live at this moment: one look at its Op."""
        return self.file.byte(offset + 1) == fmt.LIVE

    # -- one key ------------------------------------------------------------------------------------------------

    def find(self, key: Any) -> Optional[int]:
        """Return the offset of the live record of `key`, or None. `walk` was called before.

        A record that was killed since may have been replaced: the replacement was published first (I6), so a
        look at what was published since finds it.
        """
        cells = self.file.cells
        while True:
            commit, end = cells[COMMIT], self.end
            offset = self._newest(key)
            if offset is not None:
                return offset
            self.walk()
            if cells[COMMIT] == commit and self.end == end:
                # Whatever was dead had been replaced before, if at all; and what was published before was known.
                return None

    def _newest(self, key: Any) -> Optional[int]:
        """Return the offset of the newest live record of `key`, as far as is known; None: there is none."""
        if self.offsets:
            offset = self.offsets.get(key)
            if offset is not None:
                if self.is_live(offset):
                    return offset
                older = [o for o in self._shadowed.get(key, ()) if self.is_live(o)]
                if older:
                    return older[-1]
        if self.table is None:
            hash(key)                           # as a dict: TypeError
            return None
        try:
            live = self._live_in_table(key)
            return max(live) if live else None
        except CorruptError:
            self._distrust()                    # a slot led to where there is no record
            self._walk()
            return self._newest(key)

    def _live_in_table(self, key: Any) -> list[int]:
        """Return the offsets of the live entries of `key` that count and have a slot."""
        table = self.table
        assert table is not None
        try:
            ops = encode_literal(key) if type(key) is str else hash_form(key)
        except TypeError:
            hash(key)
            return []                           # equal to no key
        found, _ = table.look(hash_ops(ops, table.modulo))
        if len(found) == 1 and not self._gone and not self._cleared:
            offset = found[0][0]
            return [offset] if self._is_entry(offset, key, ops) else []
        least = max(self._gone.get(key, 0), self._cleared)
        return [offset for offset, _ in found if offset >= least and self._is_entry(offset, key, ops)]

    def _is_entry(self, offset: int, key: Any, ops: bytes) -> bool:
        """Whether a live entry of `key`, the literal of which is mostly `ops`, stands at `offset`.

        Raises
        ------
        CorruptError
            No record stands there.
        """
        file = self.file
        w = file.windows[-1]
        if offset < w.start or offset > w.end - 64:
            try:
                w = file.window(offset, offset + _ENTRY.size)
            except ValueError as exc:
                raise CorruptError("an index block that leads behind the end of the file", file.path, offset) from exc
        at = offset - w.start
        begin, check, tagged = _ENTRY.unpack_from(w.view, at)
        if tagged == offset ^ file.tag and check & 0xFFFFFF == _ENTRY_CHECK:
            if begin == _DEAD_ENTRY:
                return False
            at += _CONTENT + (check >> 24)
            if begin == _LIVE_ENTRY and w.view[at:at + len(ops)] == ops:
                return True
        record, found, _, _, _ = self.read_head(offset)
        return record.live and record.entry and bool(found == key)

    def forget(self, key: Any) -> None:
        """Take note that the record of `key` is dead."""
        self.offsets.pop(key, None)
        self._shadowed.pop(key, None)

    def read_head(self, offset: int, ops: bytes = b"") -> tuple[Record, Any, int, memoryview, int]:
        """Return the record at `offset`, its key, where its value starts, and the window's bytes and start.

        If the opcodes of its key are `ops`, the key is not decoded, and None is returned for it.
        """
        # What a batch begins with. A reader may be led to a record that was published since it walked.
        first = fmt.STOP if offset == self.end and self.batch is not None else fmt.MARK
        record, w = self.file.record(offset, first)
        if ops:
            at = record.content - w.start
            if w.view[at:at + len(ops)] == ops:
                return record, None, record.content + len(ops), w.view, w.start
        key, at = decode_literal(w.view, record.content - w.start, record.body_end - w.start)
        return record, key, w.start + at, w.view, w.start

    # -- all keys -----------------------------------------------------------------------------------------------

    def moment(self, patience: int = 0) -> Optional[Moment]:
        """Return the present moment; None: the index block does not cover all, or a writer is inside, or died there.

        With `patience`, sleep up to so many times until a writer has come out: the system may let it wait inside.
        """
        cells = self.file.cells
        for delay in chain(repeat(0.0, ATTEMPTS), islice(poll_delays(), patience)):
            if delay:
                time.sleep(delay)
            commit = cells[COMMIT]
            self.walk()
            table = self.table
            if table is None or self._other_boot:
                return None
            if self.offsets and self.batch is None and cells[COMMIT] == commit and not commit & 1:
                return None                     # a program has been there that leaves index blocks alone
            moment = Moment(table.cells[tables.UPTO], table.cells[tables.DEATHS], cells[LIVE], table.log)
            if cells[COMMIT] == commit and not commit & 1:
                return moment
        return None

    def snapshot(self) -> list[tuple[Any, int]]:
        """Return all keys and the offsets of their records, in the order of the file, as of one moment.

        While others go on changing a file that has no index block without a pause, the moment may be a short while.
        """
        self.walk()
        if self.table is None:
            return self._few_items()
        if self.batch is not None:                      # nobody else is inside
            return list(self._items().items())
        cells = self.file.cells
        items: Optional[list[tuple[Any, int]]] = None
        try:
            while items is None and self.table is not None:
                moment = self.moment()
                if moment is not None and not self.offsets:
                    items = self._items_at(moment)
                    if items is not None and len(items) != moment.live:
                        items = None
                        self._distrust()        # it leads to fewer keys than the header counts, or to more
                    continue
                # A writer is inside, or died there, or one left the index block alone.
                commit, end = cells[COMMIT], self.end
                items = list(self._items().items())
                self.walk()
                if (cells[COMMIT], self.end) != (commit, end):
                    items = None
        except CorruptError:
            if self.table is None:
                raise
            self._distrust()
        return self.snapshot() if items is None else items

    def _items_at(self, moment: Moment) -> Optional[list[tuple[Any, int]]]:
        """Return what counted at a moment that has just been; None: too much has happened since."""
        table, gone, cleared = self.table, dict(self._gone), self._cleared
        assert table is not None
        offsets = table.offsets()
        offsets = offsets[(offsets < moment.upto) & (offsets >= max(cleared, fmt.HEADER_SIZE))]
        live = self.ops_at(offsets) == fmt.LIVE
        now = self.moment()
        died = None if now is None else now.died_since(moment.deaths)
        if died is None:
            return None
        # What died meanwhile counted then; its slot may be another entry's by now.
        more = np.array([offset for offset in died if cleared <= offset < moment.upto], np.int64)
        offsets = np.union1d(offsets[live], more)
        keys = self.heads(offsets).keys
        items = zip(keys, offsets.tolist())
        return [(key, offset) for key, offset in items if offset >= gone.get(key, 0)] if gone else list(items)

    def _few_items(self) -> list[tuple[Any, int]]:
        """Return the `snapshot` of a file without an index block."""
        cells = self.file.cells
        commit = cells[COMMIT]
        for _ in range(ATTEMPTS):
            self.walk()
            dead = [key for key, offset in self.offsets.items() if not self.is_live(offset)]
            after = cells[COMMIT]
            if after == commit and not after & 1 or not dead and not self.walk():
                break
            commit = after
        for key in dead:
            offset = self.find(key)
            if offset is None:
                self.forget(key)
        if self.table is not None:
            return self.snapshot()              # by now it has one
        if self._shadowed:
            self._settle()
        return list(self.offsets.items())

    def _items(self) -> dict[Any, int]:
        """Return what is live and counts among the records that are known, in the order of the file."""
        items: dict[Any, int] = {}
        if self.table is not None:
            offsets = self._live_offsets()
            keys = self.heads(offsets).keys
            gone = self._gone
            if gone:
                items = {key: offset for key, offset in zip(keys, offsets.tolist()) if offset >= gone.get(key, 0)}
            else:
                items = dict(zip(keys, offsets.tolist()))       # as in a dict, the last of two counts
        if self._shadowed:
            self._settle()
        for key, offset in self.offsets.items():
            found = offset if self.is_live(offset) else self._newest(key)
            if found is not None:
                items[key] = found
        return items

    def _live_offsets(self) -> Offsets:
        """Return the offsets of the live entries that the table covers, in the order of the file; `gone` ones too."""
        assert self.table is not None
        offsets = self.table.offsets()
        offsets = offsets[(offsets < self.base) & (offsets >= max(self._cleared, fmt.HEADER_SIZE))]
        live: Offsets = offsets[self.ops_at(offsets) == fmt.LIVE]
        return live

    def ops_at(self, offsets: Offsets) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the Op of each record, at this moment."""
        if not len(offsets):
            return np.zeros(0, np.uint8)
        w = self._all_records()
        return np.frombuffer(w.view, np.uint8)[offsets + (1 - w.start)]

    def describe(self, offsets: list[int]) -> Optional[tuple[Heads, list[Any]]]:
        """Return what the heads of these entries say, and `decode_info` of their values; None: one is damaged."""
        from .bulk import describe

        w = self._all_records()
        view = w.view[:max(self.end, self.base) + 1 - w.start]
        try:
            heads = self.heads(np.array(offsets, np.int64))
            infos = describe(view, w.start, heads)
        except CorruptError:
            return None
        # I10: an unpickler must find the globals that an array's recipe fetches, so they stand before it.
        arrays = self.groups.get(fmt.ARRAYS, self.end)
        masks = max(arrays, self.groups.get(fmt.MASKS, self.end))
        first = {type(None): 0, ArrayInfo: arrays, GrowableInfo: arrays, MaskedInfo: masks}
        if any(offset <= first[type(info)] for info, offset in zip(infos, offsets)):
            return None
        return heads, infos

    def _all_records(self) -> Window:
        """Return a map of all records that are known."""
        return self.file.window(fmt.HEADER_SIZE, max(self.end, self.base) + 1)

    def heads(self, offsets: Offsets) -> Heads:
        """Return what the heads of these entries say."""
        from .bulk import decode_entries

        w = self._all_records()
        # What is behind the STOP may have no place on the disk: a look at it could be a bus error.
        return decode_entries(w.view[:max(self.end, self.base) + 1 - w.start], w.start, offsets, self.file.tag)

    def last(self) -> Optional[tuple[Any, int]]:
        """Return the last key, in the order of the file, and the offset of its record; None if there is no key.

        The caller holds the lock. O(1), but for the first time, and after others have added keys.
        """
        if self._ordered_to != self.end:
            self._order = [offset for _, offset in self.snapshot()]
            self._ordered_to = self.end
        while self._order:
            offset = self._order[-1]
            if self.is_live(offset):
                key = self.read_head(offset)[1]
                if self.find(key) == offset:
                    return key, offset
            self._order.pop()
        return None

    def _settle(self) -> None:
        """Put keys in order of whom an older record was live: the first live record gives a key its place."""
        places = dict(self.offsets)
        for key, older in list(self._shadowed.items()):
            live = [offset for offset in older if self.is_live(offset)]
            if live:
                places[key] = live[0]
                self._shadowed[key] = live
            else:
                del self._shadowed[key]
        self.offsets = dict(sorted(self.offsets.items(), key=lambda item: places[item[0]]))

    def count(self) -> int:
        """Return the number of keys. O(1) if there is an index block, or nobody else has deleted or added any.

        The header's number is not taken from a copy that nobody has written to, nor from before the system's start.
        """
        cells = self.file.cells
        commit = cells[COMMIT]
        if commit != self._counted_at:
            if self.table is not None and not commit & 1 and not self._other_boot and not self.table.is_of_a_copy:
                self._count = cells[LIVE]
                if cells[COMMIT] == commit:
                    self._counted_at = commit
                    return self._count
            self._count = len(self.snapshot())
            self._counted_at = commit if not commit & 1 else -1
        return self._count

    # -- what waits, what is sealed, where it ends ----------------------------------------------------------------

    def _superseded(self) -> Iterator[tuple[int, int]]:
        """Yield the offsets of live records that do not count, and of the records that took their place."""
        for key, older in self._shadowed.items():
            for offset in older:
                if self.is_live(offset):
                    yield offset, self.offsets.get(key, self.end)      # in the table by now: at the end at the latest
        for offset, by in self._dropped:
            if self.is_live(offset):
                yield offset, by

    def _restarted(self) -> bool:
        """Whether the system has been started since the file was last written to: power may have been cut."""
        cells = self.file.cells
        return (cells[_BOOT], cells[_BOOT + 1]) != self.file.boot

    def check_end(self) -> None:
        """Raise CorruptError if the records end too early, and that cannot come from a power cut.

        A writer would go on there, and destroy what is behind.
        """
        cells = self.file.cells
        if cells[STOP] <= self.end:
            return
        self.walk()                                 # a publish comes before its cell
        stop = cells[STOP]
        if stop > self.end and (self.end < cells[SYNCED] or not self._restarted()) \
                and self._next_behind(stop) is not None:
            raise CorruptError(f"the records end here, but the header says that they go on up to {stop}, and some "
                               f"there are whole; {REMEDY}", self.file.path, self.end)

    def _next_behind(self, stop: int) -> Optional[int]:
        """Return the offset of the first whole record between the STOP that was reached and the offset `stop`."""
        stop = min(stop, self.file.status().st_size)
        if stop <= self.end:
            return None
        from .finding import Finder         # only where a file may be damaged

        finder = Finder(self.file.window(0, stop).view[:stop], self.file.tag)
        return self.end if finder.find(self.end) is not None else finder.next_record(self.end, stop)

    @property
    def sealed(self) -> bool:
        """Whether the last record is a seal: nothing has changed since it was made."""
        return self.seal is not None and self.is_live(self.seal)

    def _forget_seal(self) -> None:
        if self.seal is not None and not self.is_live(self.seal):
            self._hidden_waste -= fmt.RECORD_HEAD + 1 + self._length(self.seal)     # it is among the dead bytes now
        self.seal = None

    def waste(self) -> int:
        """Return how many bytes stand in records that a new file with the same content would not have."""
        superseded = sum(fmt.RECORD_HEAD + 1 + self._length(offset) for offset, _ in self._superseded())
        seal = fmt.RECORD_HEAD + 1 + self._length(self.seal) if self.seal is not None and self.sealed else 0
        n = self.count()
        block = 0 if self.table is None else tables.FIRST_SLOT + self.table.mask + 1
        new = 0 if n < tables.INDEX_FROM else tables.FIRST_SLOT + tables.slots_for(n)
        return max(0, int(self.file.cells[DEAD]) + superseded + self._hidden_waste - seal + 8 * (block - new))

    def waits_for_disk(self) -> bool:
        """Whether there are live records that do not count, because what supersedes them is not on the disk (I14)."""
        return not self.file.cells[COMMIT] & 1 and any(True for _ in self._superseded())

    def covered(self) -> int:
        """Return up to where records are known and, if there is an index block, in it."""
        return self.end if self.table is None else min(self.end, self.table.cells[tables.UPTO])

    def _length(self, offset: int) -> int:
        """Return the length of the body of the record at `offset`."""
        w = self.file.window(offset, offset + fmt.RECORD_HEAD)
        length: int = fmt.RECORD.unpack_from(w.view, offset - w.start)[2]
        return length

    def let_go(self) -> None:
        """Let go of the maps."""
        self.table = None
