"""Keys -> offsets of records, and the sequences of stores that change them.

An `Index` is what one handle knows of a file: a cache that can be rebuilt at any time by walking the records.
Others may change the file meanwhile: records that were added are found by walking on from the STOP that was
reached, records that were killed by a look at their Op byte.

The invariants named at the stores are those of docs/format.md.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Optional, Union

from . import format as fmt
from .arrays import KEY_MAX, decode_info, payload_pieces
from .errors import CorruptError, FormatError
from .finding import Finder
from .format import Payload, Record
from .judging import CLEAR, DROP, GROUP, REPLACE, SEAL, judge_hidden
from .literals import check_key, decode_literal, key_parts
from .pickling import highest_memo, shift_memo
from .store import File
from .values import Encoded

_COMMIT = fmt.COMMIT_OFFSET >> 3
_LIVE = fmt.LIVE_OFFSET >> 3
_DEAD = fmt.DEAD_OFFSET >> 3
_MEMO = fmt.MEMO_OFFSET >> 3
_SYNCED = fmt.SYNCED_OFFSET >> 3
_BOOT = fmt.BOOT_ID_OFFSET >> 3
_STOP_CELL = fmt.STOP_OFFSET >> 3
_STOP = bytes((fmt.STOP,))
_MARK = bytes((fmt.MARK,))
REMEDY = "mmapdict.repair(path) copies what is whole"
_PLAIN = frozenset((str, int, bytes, float, bool, type(None)))


class Batch:
    """What was written behind the STOP since `Index.begin_batch`, and does not count yet.

    Attributes
    ----------
    end : int
        Where the next record goes.
    memo : int
        The memo mark that comes with it.
    older : dict of int to object
        Offsets of published records that it supersedes, and their keys.
    replaced : set
        These keys.
    dropped : set
        Keys that it takes out, and perhaps puts in again.
    waits : set
        Keys whose older records, those of the batch too, have to wait for the disk (I14).
    dead : int
        Size of its own records that are dead already, in bytes.
    cleared : bool
        Whether it empties the dictionary.
    handed_out : bool
        Whether an array was handed out whose bytes are in it.
    whole : bool
        Whether the index knows all that was written. An exception out of nowhere, Ctrl-C for instance, can come
        in between.
    """

    def __init__(self, end: int, memo: int) -> None:
        self.end = end
        self.memo = memo
        self.older: dict[int, Any] = {}
        self.replaced: set[Any] = set()
        self.dropped: set[Any] = set()
        self.waits: set[Any] = set()
        self.dead = 0
        self.cleared = False
        self.handed_out = False
        self.whole = True


class Index:
    """The keys of a file and where their records are.

    Parameters
    ----------
    file : File

    Attributes
    ----------
    offsets : dict
        Key to the offset of its newest record. The order is that of the file, but for `shadowed` keys.
    end : int
        Offset of the STOP, as far as this index has walked.
    groups : dict of int to int
        Which groups of hidden globals the file has, and the offsets of their records.
    durable : bool
        Whether each change is on the disk before the operation returns.
    batch : Batch or None
        What was written behind the STOP and does not count yet.
    seal : int or None
        Offset of the last record, if that was a live seal when it was found.
    """

    def __init__(self, file: File, durable: bool = False) -> None:
        self.file = file
        self.durable = durable
        self.batch: Optional[Batch] = None
        self._forget_all()

    def _forget_all(self) -> None:
        """Know nothing of the file, as before the first walk."""
        self.offsets: dict[Any, int] = {}
        self.end = fmt.HEADER_SIZE
        self.groups: dict[int, int] = {}
        # Keys of which an older record was live when the newer was found: the writer is, or died, in between.
        self._shadowed: dict[Any, list[int]] = {}
        # Entries that were live when a record was found that takes them out, and that record's offset. Some wait there
        # until what supersedes them is on the disk (I14).
        self._dropped: list[tuple[int, int]] = []
        self._judged = 0                # so many of them were seen to wait rightly, under the lock
        # Keys of which a record waits for the disk. Later ones must wait too: on the disk, what takes the first out may
        # be there already.
        self._waiting: set[Any] = set()
        self.seal: Optional[int] = None
        self._hidden_waste = 0
        self._counted_at = -1
        self._count = 0
        self._header_checked = False
        self._walked_at, self._walked_dead = self.file.cells[_COMMIT], 0

    # -- following ----------------------------------------------------------------------------------------------

    def walk(self) -> list[Record]:
        """Take in all records behind the STOP that was reached before; return them.

        Raises
        ------
        CorruptError
            With the path and the offset at which the file breaks a rule.
        """
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
                    return found
                try:
                    record = fmt.decode_record(w.view, w.start, self.end, file.tag)
                except CorruptError:
                    if w.end >= file.status().st_size:
                        raise
                    w = file.map_window(self.end)           # it may run past what was mapped
                    record = fmt.decode_record(w.view, w.start, self.end, file.tag)
                self._hidden_waste += 0 if record.entry or not record.live else record.end - record.offset
                self._forget_seal()                 # it vouches for what stands before it only
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

    def _take(self, record: Record, view: memoryview, base: int) -> None:
        if record.entry:
            try:
                key, _ = decode_literal(view, record.content - base, record.body_end - base)
                if type(key) not in _PLAIN or key != key:
                    check_key(key)
            except (CorruptError, TypeError) as exc:
                raise CorruptError(f"an entry whose key is damaged: {exc}", None, record.offset) from exc
            old = self.offsets.get(key)
            if old is not None:
                if self.is_live(old):
                    self._shadowed.setdefault(key, []).append(old)
                else:
                    del self.offsets[key]               # its place is the new record's
            self.offsets[key] = record.offset
        else:
            try:
                kind, what = judge_hidden(view, record, base)
            except CorruptError as exc:
                raise CorruptError(exc.message, None, record.offset) from exc
            if kind == GROUP:                       # I10: only what is the same byte by byte is relied on
                self.groups.setdefault(what, record.offset)
                self._hidden_waste -= record.end - record.offset
            elif kind == CLEAR:
                self._drop_all(record.offset)
            elif kind in (DROP, REPLACE):
                self._drop(what, record.offset)
            elif kind == SEAL:
                self.seal = record.offset

    def _drop(self, key: Any, by: int) -> None:
        """Take note that the record at offset `by` takes `key` out; what it has live is dead, or about to be."""
        old = self.offsets.pop(key, None)
        if old is not None:
            self._dropped += [(offset, by) for offset in (*self._shadowed.pop(key, ()), old)]
        self._waiting.add(key)          # what is dead already may not be so on the disk

    def _drop_all(self, by: int) -> None:
        older = chain(self.offsets.values(), chain.from_iterable(self._shadowed.values()))
        self._dropped += [(offset, by) for offset in older]
        self._waiting.update(self.offsets)
        self.offsets.clear()
        self._shadowed.clear()

    def is_live(self, offset: int) -> bool:
        """Whether the record at `offset` is live at this moment: one look at its Op."""
        return self.file.byte(offset + 1) == fmt.LIVE

    def find(self, key: Any) -> Optional[int]:
        """Return the offset of the live record of `key`, or None. `walk` was called before.

        A record that was killed since may have been replaced: the replacement was published first (I6), so a
        second walk finds it.
        """
        offset = self.offsets.get(key)
        while offset is not None and not self.is_live(offset):
            self.walk()
            newer = self.offsets.get(key)
            if newer == offset:
                self.forget(key)
                return None
            offset = newer
        return offset

    def forget(self, key: Any) -> None:
        """Take note that the record of `key` is dead."""
        self.offsets.pop(key, None)
        self._shadowed.pop(key, None)

    def snapshot(self) -> list[tuple[Any, int]]:
        """Return all keys and the offsets of their records, in the order of the file, as of one moment.

        While others go on changing the file without a pause, the moment may be a short while.
        """
        commit = self.file.cells[_COMMIT]
        for _ in range(20):
            self.walk()
            dead = [key for key, offset in self.offsets.items() if not self.is_live(offset)]
            after = self.file.cells[_COMMIT]
            if after == commit and not after & 1 or not dead and not self.walk():
                break
            commit = after
        for key in dead:
            self.find(key)
        if self._shadowed:
            self._settle()
        return list(self.offsets.items())

    def last(self) -> Optional[tuple[Any, int]]:
        """Return the last key, in the order of the file, and the offset of its record; None if there is no key.

        The caller holds the lock. O(1), but for keys that others removed: each of them costs once.
        """
        if self._shadowed:
            self._settle()
        while self.offsets:
            key, offset = next(reversed(self.offsets.items()))
            if self.is_live(offset):
                return key, offset
            self.forget(key)
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
        """Return the number of keys. O(1) while nobody else has deleted or added any."""
        commit = self.file.cells[_COMMIT]
        if commit != self._counted_at:
            self._count = len(self.snapshot())
            self._counted_at = commit if not commit & 1 else -1
        return self._count

    # -- reading ------------------------------------------------------------------------------------------------

    def read_head(self, offset: int) -> tuple[Record, Any, int, memoryview, int]:
        """Return the record at `offset`, its key, where its value starts, and the window's bytes and start."""
        w = self.file.window(offset, offset + fmt.RECORD_HEAD)
        first = fmt.MARK if offset != self.end else fmt.STOP        # what a batch begins with
        try:
            record = fmt.decode_record(w.view, w.start, offset, self.file.tag, first)
        except CorruptError:
            w = self.file.map_window(offset)
            record = fmt.decode_record(w.view, w.start, offset, self.file.tag, first)
        key, at = decode_literal(w.view, record.content - w.start, record.body_end - w.start)
        return record, key, w.start + at, w.view, w.start

    # -- changing: the caller holds the lock --------------------------------------------------------------------

    def _may_be_memo(self, memo: int) -> bool:
        """Whether the memo's high-water mark makes sense: each index took an opcode of 5 bytes."""
        return fmt.MEMO_START <= memo <= fmt.MEMO_START + (self.end - fmt.HEADER_SIZE) // 5

    def begin(self) -> None:
        """Come up to date under a fresh lock; mend what a writer left that died inside a sequence (I5)."""
        cells = self.file.cells
        if cells[fmt.VERSION_OFFSET >> 3] != fmt.VERSION:
            raise FormatError(f"was turned into format version {cells[fmt.VERSION_OFFSET >> 3]} by another program; "
                              f"this mmapdict writes version {fmt.VERSION}", self.file.path, fmt.VERSION_OFFSET)
        if cells[fmt.STATE_OFFSET >> 3] != fmt.NORMAL:
            # I13: the path leads here, so whoever was about to replace this file died before, or this is a copy
            # of one that was replaced.
            self.file.store_cell(fmt.STATE_OFFSET, fmt.NORMAL)
        self.check_end()
        if self._restarted():
            # Power may have been cut since: cells and records can be of different times (I4).
            self.recover(restarted=True)
            self.file.store_cell(fmt.SYNCED_OFFSET, self.end)           # I14
            boot = self.file.boot
            self.file.store_cell(fmt.BOOT_ID_OFFSET, boot[0])           # I4: half of it stored is another boot again
            self.file.store_cell(fmt.BOOT_ID_OFFSET + 8, boot[1])
            self.file.sync()            # neither this, nor what is dead by now, is undone by another power cut
            return
        if cells[_COMMIT] & 1:
            self.recover()
            return
        self.walk()
        stale = cells[_STOP_CELL] != self.end or not self._may_be_memo(cells[_MEMO]) \
            or cells[_SYNCED] > self.end
        if not self._header_checked:
            self._header_checked = True
            stale = stale or cells[_LIVE] != self.count() \
                or cells[_COMMIT] == self._walked_at and cells[_DEAD] != self._walked_dead
            if self.file.read(self.end + 1, 1) not in (b"", b"\0"):
                with suppress(OSError):
                    self._cut_leftovers()
        # No writer is inside. What waits for the disk has a record behind it that takes it out (I14); another older
        # record that is live, or one that waits no more, is there because its replacer died.
        twice = any(map(self.is_live, chain.from_iterable(self._shadowed.values())))
        dropped = self._dropped[self._judged:]
        self._judged = len(self._dropped)
        if stale or twice or any(by < cells[_SYNCED] for offset, by in dropped if self.is_live(offset)):
            self.recover()              # the header is older than the records, or damaged (I4)

    def _restarted(self) -> bool:
        """Whether the system has been started since the file was last written to: power may have been cut."""
        cells = self.file.cells
        return (cells[_BOOT], cells[_BOOT + 1]) != self.file.boot

    def check_end(self) -> None:
        """Raise CorruptError if the records end too early, and that cannot come from a power cut.

        A writer would go on there, and destroy what is behind.
        """
        cells = self.file.cells
        if cells[_STOP_CELL] <= self.end:
            return
        self.walk()                                 # a publish comes before its cell
        stop = cells[_STOP_CELL]
        if stop > self.end and (self.end < cells[_SYNCED] or not self._restarted()) \
                and self._next_behind(stop) is not None:
            raise CorruptError(f"the records end here, but the header says that they go on up to {stop}, and some "
                               f"there are whole; {REMEDY}", self.file.path, self.end)

    def _next_behind(self, stop: int) -> Optional[int]:
        """Return the offset of the first whole record between the STOP that was reached and the offset `stop`."""
        stop = min(stop, self.file.status().st_size)
        if stop <= self.end:
            return None
        finder = Finder(self.file.window(0, stop).view[:stop], self.file.tag)
        return self.end if finder.find(self.end) is not None else finder.next_record(self.end, stop)

    def _cut_leftovers(self) -> None:
        """Cut off what stands behind the STOP and never counted.

        Where something was synced, on the disk too: after a power cut who looks for what is whole could take it for
        something that counts.
        """
        self.file.truncate(self.end + 1)                            # I3
        if self.file.cells[_SYNCED]:
            self.file.sync()

    def _superseded(self) -> Iterator[tuple[int, int]]:
        """Yield the offsets of live records that do not count, and of the records that took their place."""
        for key, older in self._shadowed.items():
            for offset in older:
                if self.is_live(offset):
                    yield offset, self.offsets[key]
        for offset, by in self._dropped:
            if self.is_live(offset):
                yield offset, by

    def put(self, key: Any, parts: list[Union[bytes, Payload]], value: Encoded, sparse: bool = False) -> int:
        """Add an entry, and kill the one that it replaces.

        Parameters
        ----------
        key : object
        parts : list of (bytes, Payload, ..., bytes)
            The opcodes of the key.
        value : Encoded
        sparse : bool
            Whether payloads without data get no place on the disk.

        Returns
        -------
        int
            The offset of the record.
        """
        file, batch = self.file, self.batch
        old = self.find(key)
        if old is not None and type(key) is not str:
            # As in a dict, the first of several equal keys (1, 1.0, True) stays.
            _, kept, _, _, _ = self.read_head(old)
            if key_parts(kept) != parts:
                key, parts = kept, key_parts(kept)
        memo = file.cells[_MEMO] if batch is None else batch.memo
        if value.memo and memo + value.memo > fmt.MEMO_END:
            raise OverflowError("the file has no memo indices left; copy its items into a new file")
        older = [] if old is None else self._all_live(key, old)
        # What is on the disk stays live until its successor is there too (I14). A record that takes it out comes with
        # the successor: it must not come back, neither to a loader that has run it nor after a power cut, if the
        # successor is deleted before its own death is on the disk.
        waits = bool(older) and (self.durable or key in self._waiting or min(older) < file.cells[_SYNCED]
                                 or batch is not None and key in batch.waits)
        if waits and batch is not None:
            batch.waits.add(key)
            batch.dropped.add(key)
        array = value.array
        ops: Any = parts[0]
        groups: dict[int, int] = {}
        if not waits and array is not None and array.template.small and fmt.ARRAYS in self.groups and len(parts) == 1 \
                and len(ops) <= KEY_MAX:
            offset, template = self.end if batch is None else batch.end, array.template
            record, end = fmt.encode_small(offset, file.tag, ops + template.ops, template.payload, array.data,
                                           template.tail)
            self._write_behind(record, end)
        else:
            offset, end, groups = self._write_entry(parts, value, memo, sparse, waits)
        if batch is None:
            self._publish(end, memo + value.memo if value.memo else 0, {offset: key for offset in older},
                          file.cells[_LIVE] + (old is None))
        else:
            self._note(batch, end, memo + value.memo, {offset: key for offset in older})
        self.groups.update(groups)
        if old is None:
            self._count += 1
        else:
            self.forget(key)
        self.offsets[key] = offset
        if batch is not None:
            batch.whole = True
        return offset

    def _all_live(self, key: Any, newest: int) -> list[int]:
        """Return the offsets of the live records of `key`, from the oldest to the `newest`, the one that counts."""
        return [*filter(self.is_live, self._shadowed.get(key, ())), newest]

    def _write_entry(self, parts: list[Union[bytes, Payload]], value: Encoded, memo: int,
                     sparse: bool, drop: bool) -> tuple[int, int, dict[int, int]]:
        """Write an entry of any kind behind the STOP, and before it the globals that the file has not yet.

        With `drop`, a record that takes the key out stands before it too.

        Returns
        -------
        (int, int, dict)
            The entry's offset, that of the STOP behind it, and the groups of globals that were written.
        """
        file = self.file
        entry = fmt.join_parts(parts, value.parts)
        if value.memo and value.base != memo:
            entry = [shift_memo(p, memo - value.base) if isinstance(p, bytes) else p for p in entry]
        offset = self.end if self.batch is None else self.batch.end
        hidden: list[Any] = []
        groups: dict[int, int] = {}
        if drop:
            start = offset
            pieces, offset, _ = fmt.encode_record(offset, file.tag, fmt.drop_parts(parts, True), entry=False)
            hidden += (*pieces, _MARK)
            self._hidden_waste += offset - start
        for group, ops in fmt.GROUPS.items():
            if value.groups & group and group not in self.groups:
                # I10: published with the first entry that needs it, before it.
                groups[group] = offset
                pieces, offset, _ = fmt.encode_record(offset, file.tag, [ops], entry=False)
                hidden += (*pieces, _MARK)
        pieces, end, plain = fmt.encode_record(offset, file.tag, entry)
        pieces = [*hidden, *pieces, _STOP]
        self._write_behind(b"".join(pieces) if plain else pieces, end, sparse)
        return offset, end, groups

    def _write_hidden(self, parts: list[Union[bytes, Payload]]) -> int:
        """Write a hidden record behind the STOP; return the offset of the STOP behind it."""
        offset = self.end if self.batch is None else self.batch.end
        pieces, end, plain = fmt.encode_record(offset, self.file.tag, parts, entry=False)
        pieces.append(_STOP)
        self._write_behind(b"".join(pieces) if plain else pieces, end)
        self._hidden_waste += end - offset
        return end

    def _write_behind(self, records: Union[bytes, list[Any]], end: int, sparse: bool = False) -> None:
        """Write records behind the STOP, with a STOP of their own at `end`, all but their first MARK.

        I3: nothing is stored at or before the STOP, so every reader goes on seeing the file as it was; a write
        that fails leaves nothing but bytes that no reader looks at.
        """
        file, at = self.file, self.end + 1
        if self.batch is not None and self.batch.end > self.end:
            at = self.batch.end                     # only the batch's first MARK is the one that publishes
            records = _MARK + records if isinstance(records, bytes) else [_MARK, *records]
        try:
            if isinstance(records, bytes):
                file.make_room(end + 1)
                file.write(at, records)
            elif all(type(piece) is bytes or piece.data is not None for piece in records):
                file.make_room(end + 1)
                file.allocate(at, end + 1)
                file.write(at, _buffers(records))
            else:
                self._write_hole(at, records, end, sparse)
            # The map that the publish needs, and an array's views: if there is no room for it, nothing has happened.
            w = file.windows[-1]
            if not w.start < at or end >= w.end:
                file.window(self.end, end + 1)
        except BaseException:
            with suppress(OSError):
                file.truncate(at)               # I3: gives the room back
            raise

    def _write_hole(self, at: int, pieces: list[Any], end: int, sparse: bool) -> None:
        """Reserve zeros from the first payload on and write the opcodes before, between and behind."""
        file = self.file
        runs: list[tuple[int, list[bytes]]] = [(at, [])]
        for piece in pieces:
            if type(piece) is Payload:
                at += piece.nbytes
                runs.append((at, []))
            else:
                runs[-1][1].append(piece)
                at += len(piece)
        first, before = runs[0]
        file.reserve(first + sum(map(len, before)), end + 1, sparse)
        for start, run in runs:
            file.write(start, run)
        file.make_room(end + 2)                 # else each hole would need a map of its own

    def _publish(self, end: int, memo: int, older: dict[int, Any], live: int, dead: int = 0) -> None:
        """Make what was written behind the STOP count, and kill the records that it supersedes.

        Parameters
        ----------
        end : int
            The offset of the new STOP.
        memo : int
            The new memo mark; 0: it stays.
        older : dict of int to object
            Offsets of the live records that are superseded, and their keys.
        live : int
            The number of keys then.
        dead : int
            How many bytes of what is published are dead records.
        """
        file, cells = self.file, self.file.cells
        if self.durable:
            file.sync()                                             # I15: all of it is on the disk before the publish
        by = self.end
        commit = cells[_COMMIT]
        file.store_cell(fmt.COMMIT_OFFSET, commit + 1)              # I5: odd while a writer is inside
        if memo:
            file.store_cell(fmt.MEMO_OFFSET, memo)                  # I8: raised before the publish
        file.store_byte(self.end, fmt.MARK)                         # I2: the publish
        self.end = end
        file.store_cell(fmt.STOP_OFFSET, end)                       # I4: a hint; the walk is the truth
        self._unseal()                                              # I16: a record stands behind it by now
        # I14: those that are on the disk stay live for now; a record was published that takes them out.
        synced = self.end if self.durable else cells[_SYNCED]
        waits = {key for offset, key in older.items() if offset < synced}
        waiting = {offset: key for offset, key in older.items() if key in waits or key in self._waiting}
        for offset in older:
            if offset not in waiting:
                self._kill(offset)
        if live != cells[_LIVE]:
            file.store_cell(fmt.LIVE_OFFSET, live)                  # I4
        if dead:
            file.store_cell(fmt.DEAD_OFFSET, cells[_DEAD] + dead)   # I4
        commit += 2
        file.store_cell(fmt.COMMIT_OFFSET, commit)                  # I5: even again, and moved
        self._counted_at = commit if self._counted_at == commit - 2 else -1
        if self.durable:
            file.sync()                                             # I15: the publish is on the disk before a kill
            # What another handle left to wait does so no longer.
            others = [offset for offset, _ in self._superseded() if offset not in waiting]
            self._kill_superseded([*waiting, *others], end)
            self._dropped.clear()
            self._judged = 0
            # Their deaths wait for the next sync, which is the next durable commit's first.
            self._waiting = {*waiting.values(), *(self._waiting if others else ())}
        else:
            self._dropped += [(offset, by) for offset in waiting]
            self._waiting.update(waiting.values())

    def _kill_superseded(self, offsets: list[int], synced: int) -> None:
        """Kill records whose successors are on the disk, as everything before the offset `synced` is (I14)."""
        file = self.file
        commit = file.cells[_COMMIT]
        if offsets:
            file.store_cell(fmt.COMMIT_OFFSET, commit + 1)          # I5: what is live until then waits no more
        if synced > file.cells[_SYNCED]:
            file.store_cell(fmt.SYNCED_OFFSET, synced)              # I4, I14
        if not offsets:
            return
        for offset in offsets:
            self._kill(offset)
        file.store_cell(fmt.COMMIT_OFFSET, commit + 2)              # I5
        if self._counted_at == commit:
            self._counted_at = commit + 2

    def settle(self, synced: int) -> None:
        """Take note that all records before the offset `synced` are on the disk, and kill those they supersede."""
        synced = min(synced, self.end)
        self._kill_superseded([offset for offset, by in self._superseded() if by < synced], synced)
        self._dropped = [(offset, by) for offset, by in self._dropped if self.is_live(offset)]
        self._judged = len(self._dropped)
        if synced == self.end:
            self._waiting.clear()
        self._settle()
        self.file.sync()            # nor what is dead by now: who repairs would bring it back

    def waste(self) -> int:
        """Return how many bytes stand in records that a new file with the same content would not have."""
        superseded = sum(fmt.RECORD_HEAD + 1 + self._length(offset) for offset, _ in self._superseded())
        seal = fmt.RECORD_HEAD + 1 + self._length(self.seal) if self.seal is not None and self.sealed else 0
        return int(self.file.cells[_DEAD]) + superseded + self._hidden_waste - seal

    def waits_for_disk(self) -> bool:
        """Whether there are live records that do not count, because what supersedes them is not on the disk (I14)."""
        return not self.file.cells[_COMMIT] & 1 and any(True for _ in self._superseded())

    def deaths_are_on_disk(self) -> None:
        """Take note that the disk was synced, and no record waits: the next deletion of any key need not wait."""
        self._waiting.clear()

    def _length(self, offset: int) -> int:
        """Return the length of the body of the record at `offset`."""
        w = self.file.window(offset, offset + fmt.RECORD_HEAD)
        length: int = fmt.RECORD.unpack_from(w.view, offset - w.start)[2]
        return length

    def _kill(self, offset: int) -> None:
        # I6: one byte; a replacement is published. I12: the record's bytes stay, arrays over them may be alive.
        self.file.store_byte(offset + 1, fmt.DEAD)
        dead = self.file.cells[_DEAD] + fmt.RECORD_HEAD + self._length(offset) + 1
        self.file.store_cell(fmt.DEAD_OFFSET, dead)                 # I4

    def remove(self, key: Any, offset: int) -> None:
        """Kill the live record of `key`, which is at `offset`."""
        if self.batch is not None:
            self._remove_later(self.batch, key, offset)
            return
        file, cells = self.file, self.file.cells
        if key in self._waiting and self._remove_by_record(key, offset):
            return
        *older, _ = self._all_live(key, offset)
        commit = cells[_COMMIT]
        file.store_cell(fmt.COMMIT_OFFSET, commit + 1)              # I5
        if self.sealed:
            self._unseal()                                          # I16: before anything that it vouches for
            file.sync()                                             # on the disk too, else it would seem damaged
        for superseded in older:
            self._kill(superseded)
        self._kill(offset)
        file.store_cell(fmt.LIVE_OFFSET, cells[_LIVE] - 1)          # I4
        file.store_cell(fmt.COMMIT_OFFSET, commit + 2)              # I5
        if self._counted_at == commit:
            self._counted_at = commit + 2
            self._count -= 1
        self.forget(key)
        if self.durable:
            file.sync()                                             # I15

    def _remove_by_record(self, key: Any, offset: int) -> bool:
        """Remove a key of which a record waits for the disk: the last one must wait as well (I14).

        Else its death could reach the disk, and that of an older one, or what took that out, not. False: there is no
        room; but none waits any more.
        """
        try:
            end = self._write_hidden(fmt.drop_parts(key_parts(key)))
        except OSError:
            self.file.sync()
            self.settle(self.end)
            return False
        self._publish(end, 0, {o: key for o in self._all_live(key, offset)}, self.file.cells[_LIVE] - 1)
        self._count -= 1
        self.forget(key)
        return True

    def clear(self) -> None:
        """Remove all keys in one step.

        I7: a hidden record that empties the dictionary is published before anything is killed, and stays: a
        reader that is half way through the file, and has run entries that are dead by now, empties its own.
        """
        snapshot = self.snapshot()
        if not snapshot:
            return
        end = self._write_hidden([fmt.CLEAR])
        older = {o: key for key, offset in snapshot for o in self._all_live(key, offset)}
        if self.batch is not None:
            self._note(self.batch, end, 0, older)
            self.batch.cleared = True
        else:
            self._publish(end, 0, older, 0)
        self.offsets.clear()
        self._shadowed.clear()
        self._counted_at, self._count = self.file.cells[_COMMIT], 0
        if self.batch is not None:
            self.batch.whole = True

    def recover(self, restarted: bool = False) -> None:
        """Walk the whole file, finish what a dead writer began, and store the header anew.

        I9: what was published counts. Of a key that is live twice the older record is killed, and so are the
        entries before a live record that takes them out; else a later deletion would bring them back.
        """
        file = self.file
        self._forget_all()
        records = self.walk()                                       # before any store: it may find damage
        current = set(self.offsets.values())
        older = [record for record in records if record.entry and record.live and record.offset not in current]
        if restarted:
            # What stands behind the STOP does not count. After another power cut it could be taken for something that
            # does, by who looks for what is whole in a damaged file.
            file.truncate(self.end + 1)                             # I3
        if restarted or older:
            # What is read after a start is on the disk; but containers start by themselves.
            file.sync()                                             # I14: what superseded them is on the disk
        file.store_cell(fmt.COMMIT_OFFSET, file.cells[_COMMIT] | 1)     # I5
        for record in older:
            file.store_byte(record.offset + 1, fmt.DEAD)            # I9
            record.live = False
        memo, dead = fmt.MEMO_START, 0
        for record in records:
            if not record.live:
                dead += record.end - record.offset
            elif record.entry:
                _, _, at, view, base = self.read_head(record.offset)
                with suppress(CorruptError):            # one bad value does not stop all writers
                    if decode_info(view, base, at, record.body_end) is None:
                        memo = max(memo, highest_memo(view[at - base:record.body_end - base]))
        self._shadowed.clear()
        self._dropped.clear()
        self._judged = 0
        self._waiting.clear()
        self.offsets = dict(sorted(self.offsets.items(), key=lambda item: item[1]))
        file.store_cell(fmt.STOP_OFFSET, self.end)                  # I4
        file.store_cell(fmt.LIVE_OFFSET, len(self.offsets))         # I4
        file.store_cell(fmt.DEAD_OFFSET, dead)                      # I4
        file.store_cell(fmt.MEMO_OFFSET, memo)                      # I8
        if file.cells[_SYNCED] > self.end:
            file.store_cell(fmt.SYNCED_OFFSET, self.end)            # I4: nonsense
        commit = file.cells[_COMMIT] + 1
        file.store_cell(fmt.COMMIT_OFFSET, commit)                  # I5
        self._counted_at, self._count = commit, len(self.offsets)
        if older:
            file.sync()                                             # I14: no key's older record is live on the disk

    # -- seals --------------------------------------------------------------------------------------------------

    @property
    def sealed(self) -> bool:
        """Whether the last record is a seal: nothing has changed since it was made."""
        return self.seal is not None and self.is_live(self.seal)

    def add_seal(self, parts: list[Union[bytes, Payload]]) -> None:
        """Publish a hidden record that is a seal."""
        offset = self.end
        end = self._write_hidden(parts)
        if not self.durable:
            self.file.sync()                                        # I15: a file to be kept is on the disk whole
        self._publish(end, 0, {}, self.file.cells[_LIVE])
        self.seal = offset

    def _unseal(self) -> None:
        """Kill the seal, if there is one. The caller has made commit odd."""
        if self.sealed:
            self._kill(self.seal)       # type: ignore[arg-type]
        self._forget_seal()

    def _forget_seal(self) -> None:
        if self.seal is not None and not self.is_live(self.seal):
            self._hidden_waste -= fmt.RECORD_HEAD + 1 + self._length(self.seal)     # it is among the dead bytes now
        self.seal = None

    def unseal(self) -> None:
        """Kill the seal, if there is one."""
        if not self.sealed:
            return
        file, commit = self.file, self.file.cells[_COMMIT]
        file.store_cell(fmt.COMMIT_OFFSET, commit + 1)              # I5
        self._unseal()                                              # I16
        file.store_cell(fmt.COMMIT_OFFSET, commit + 2)              # I5
        if self._counted_at == commit:
            self._counted_at = commit + 2
        if self.durable:
            file.sync()                                             # I15

    # -- several changes in one step ----------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """Let all changes from now on be written behind the STOP, where they do not count, until `commit`."""
        self.count()
        self.batch = Batch(self.end, self.file.cells[_MEMO])

    def _note(self, batch: Batch, end: int, memo: int, older: dict[int, Any]) -> None:
        """Take note of a record that was written for the batch, up to the offset `end`, and of those it supersedes."""
        batch.whole = False
        batch.end = end
        batch.memo = max(batch.memo, memo)
        for offset, key in older.items():
            if offset >= self.end and key not in batch.waits:
                self.file.store_byte(offset + 1, fmt.DEAD)          # I3: behind the STOP
                batch.dead += fmt.RECORD_HEAD + 1 + self._length(offset)
            else:
                batch.older[offset] = key
                batch.replaced.add(key)

    def _remove_later(self, batch: Batch, key: Any, offset: int) -> None:
        older = {o: key for o in self._all_live(key, offset)}
        end = batch.end
        # A loader that is half way, and has run an entry that will be dead, must lose it again.
        if key in batch.waits or not batch.cleared and key not in batch.dropped \
                and (key in batch.replaced or any(o < self.end for o in older)):
            end = self._write_hidden(fmt.drop_parts(key_parts(key)))
            batch.dropped.add(key)
        self._note(batch, end, 0, older)
        self._count -= 1
        self.forget(key)
        batch.whole = True

    def commit(self) -> None:
        """Make all changes since `begin_batch` count, in one step."""
        batch = self.batch
        assert batch is not None
        if batch.end == self.end:
            self.batch = None
            return
        file = self.file
        if file.read(batch.end, 1) != _STOP:
            file.write(batch.end, _STOP)            # I3: cut off by a later write, which failed
        self._publish(batch.end, batch.memo, batch.older, self._count, batch.dead)
        self.batch = None

    def abandon(self) -> None:
        """Forget the changes since `begin_batch`; the index is of no use any more.

        Arrays that were handed out keep their place, else a later record would share it with them: all records
        are published dead (I12).
        """
        batch, self.batch = self.batch, None
        assert batch is not None
        file = self.file
        if not batch.handed_out:
            with suppress(OSError):                                 # what is behind the STOP may stay (I3)
                self._cut_leftovers()
            return
        at, commit = self.end, file.cells[_COMMIT]
        dead = file.cells[_DEAD] + batch.end - at
        while at < batch.end:
            file.store_byte(at + 1, fmt.DEAD)                       # I3: behind the STOP
            at += fmt.RECORD_HEAD + 1 + self._length(at)
        file.write(batch.end, _STOP)                                # I3
        if self.durable:
            file.sync()                                             # I15
        file.store_cell(fmt.COMMIT_OFFSET, commit + 1)              # I5
        file.store_byte(self.end, fmt.MARK)                         # I2
        file.store_cell(fmt.STOP_OFFSET, batch.end)                 # I4
        file.store_cell(fmt.DEAD_OFFSET, dead)                      # I4
        file.store_cell(fmt.COMMIT_OFFSET, commit + 2)              # I5


def _buffers(pieces: list[Any]) -> Iterator[Any]:
    for piece in pieces:
        if isinstance(piece, Payload):
            yield from payload_pieces(piece)
        else:
            yield piece
