"""The sequences of stores that change what keys a file has, and what they are.

A `Writer` is an `Index` that also writes. The invariants named at the stores are those of docs/format.md.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Optional, Union

import numpy as np

from . import format as fmt
from . import table as tables
from .arrays import KEY_MAX, ArrayInfo, EncodedArray, GrowableInfo, MaskedInfo, decode_info, payload_pieces
from .errors import CorruptError, FormatError
from .format import CELL_MAX, Payload, Record
from .index import COMMIT, DEAD, INDEX, LIVE, MEMO, STOP, SYNCED, Index
from .judging import BLOCK
from .literals import hash_form, key_parts
from .store import File
from .table import Table, bits_for, block_parts, hash_key, hash_ops, make_slots, modulus, open_table, slots_for
from .values import Encoded, encode, encode_hole

_STOP = bytes((fmt.STOP,))
_MARK = bytes((fmt.MARK,))
GATHER = 1 << 20                # small records of a batch are written in pieces of about this size
GATHERED_MAX = 1 << 16          # larger ones by themselves


class Batch:
    """What was written behind the STOP since `Writer.begin_batch`, and does not count yet.

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
    hashes : dict of int to int
        Offsets of its entries, and the hashes of their keys, if the file has an index block.
    buffer : bytearray
        Bytes that are not written yet, up to the STOP at `end`.
    buffer_at : int
        Offset of the first of them.
    whole : bool
        Whether the index knows all that was written. An exception out of nowhere, Ctrl-C for instance, can come
        in between.
    broken : bool
        Whether one did, so that the batch cannot be published.
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
        self.hashes: dict[int, int] = {}
        self.buffer = bytearray()
        self.buffer_at = end + 1
        self.whole = True
        self.broken = False


class Writer(Index):
    """An index that changes the file. The caller holds the lock.

    Attributes
    ----------
    batch : Batch or None
        What was written behind the STOP and does not count yet.
    """

    encode = staticmethod(encode)
    encode_hole = staticmethod(encode_hole)

    def __init__(self, file: File, durable: bool = False) -> None:
        super().__init__(file, durable)
        self.batch: Optional[Batch] = None
        self.growing: dict[Any, Any] = {}   # what `growables` knows of growable arrays
        self.reserved: set[Any] = set()     # keys of those of which rows are handed out that are not published
        self._groups_stored = 0             # so many groups of globals the block knows of
        self._table_from = tables.INDEX_FROM       # so many keys the file has to have before a block is made

    # -- coming up to date --------------------------------------------------------------------------------------

    def _may_be_memo(self, memo: int) -> bool:
        """Whether the memo's high-water mark makes sense: each index took an opcode of 5 bytes."""
        return fmt.MEMO_START <= memo <= fmt.MEMO_START + (self.end - fmt.HEADER_SIZE) // 5

    def begin(self) -> None:
        """Come up to date under a fresh lock; mend what a writer left that died inside a sequence (I5)."""
        cells = self.file.cells
        if cells[fmt.VERSION_OFFSET >> 3] != fmt.VERSION:
            raise FormatError(f"was turned into format version {cells[fmt.VERSION_OFFSET >> 3]} by another program; "
                              f"this mmapdict writes version {fmt.VERSION}", self.file.path, fmt.VERSION_OFFSET)
        if cells[fmt.STATE_CELL] != fmt.NORMAL:
            # I13: the path leads here, so whoever was about to replace this file died before, or this is a copy
            # of one that was replaced.
            self.file.store_cell(fmt.STATE_CELL, fmt.NORMAL)
        self.check_end()
        if self._restarted():
            # Power may have been cut since: cells and records can be of different times (I4).
            self.recover(restarted=True)
            self.file.store_cell(SYNCED, self.end)                  # I14
            boot = self.file.boot
            self.file.store_cell(fmt.BOOT_CELL, boot[0])            # I4: half of it stored is another boot again
            self.file.store_cell(fmt.BOOT_CELL + 1, boot[1])
            self.file.sync()            # neither this, nor what is dead by now, is undone by another power cut
            return
        if cells[COMMIT] & 1:
            self.recover()
            return
        self.walk()
        stale = cells[STOP] != self.end or not self._may_be_memo(cells[MEMO]) \
            or cells[SYNCED] > self.end
        if not self._header_checked:
            self._header_checked = True
            stale = stale or cells[LIVE] != self.count() \
                or cells[COMMIT] == self._walked_at and cells[DEAD] != self._walked_dead \
                or cells[INDEX] != 0 and (self.table is None or self.table.is_of_a_copy and not self.sealed) \
                or self.table is None and self._last_block > 0
            if self.file.read(self.end + 1, 1) not in (b"", b"\0"):
                with suppress(OSError):
                    self._cut_leftovers()
        # No writer is inside. What waits for the disk has a record behind it that takes it out (I14); another older
        # record that is live, or one that waits no more, is there because its replacer died.
        twice = any(map(self.is_live, chain.from_iterable(self._shadowed.values())))
        dropped = self._dropped[self._judged:]
        self._judged = len(self._dropped)
        if stale or twice or any(by < cells[SYNCED] for offset, by in dropped if self.is_live(offset)):
            self.recover()              # the header is older than the records, or damaged (I4)
        elif self.table is not None and self.offsets:
            self._take_into_table()
        self._ordered_to = -1           # others may have added keys

    def _take_into_table(self) -> None:
        """Give entries a slot that somebody stored who knows of no index blocks."""
        table = self.table
        assert table is not None
        if table.cells[tables.USED] + len(self.offsets) >= table.full:
            self._renew_table()
            return
        file = self.file
        commit = file.cells[COMMIT]
        file.store_cell(COMMIT, commit + 1 & CELL_MAX)              # I5
        for key, offset in self.offsets.items():
            table.insert(hash_key(key, table.modulo), offset)       # I17
        self._note_in_table(self.base if self._waiting or self._all_wait else 0)
        self._cover(self.end)
        self.offsets.clear()
        file.store_cell(COMMIT, commit + 2 & CELL_MAX)              # I5

    def _cut_leftovers(self) -> None:
        """Cut off what stands behind the STOP and never counted.

        Where something was synced, on the disk too: after a power cut who looks for what is whole could take it for
        something that counts.
        """
        self.file.truncate(self.end + 1)                            # I3
        if self.file.cells[SYNCED]:
            self.file.sync()

    def put(self, key: Any, parts: list[Union[bytes, Payload]], value: Union[Encoded, EncodedArray],
            sparse: bool = False) -> int:
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
        ops: Any = parts[0]
        if batch is None:
            self._renew_table_if_full()
        found: list[tuple[int, int]] = []
        h, place, free, form = 0, -1, -1, ops
        known = key in self.offsets
        if self.table is not None and not known:
            if type(key) is not str or len(parts) > 1:
                form = hash_form(key)
            h, found, free = self._look(form)
        table = self.table                      # None if it proved damaged
        usual = type(key) is str and len(parts) == 1 and len(ops) <= KEY_MAX \
            and type(value) is EncodedArray and value.template.small and fmt.ARRAYS in self.groups
        if usual and not known and not found and (batch is not None or table is not None and not self.offsets
                                                  and self.seal is None and not self.durable):
            assert type(value) is EncodedArray
            return self._put_small(key, ops, value, h, free)
        if table is None or known:
            old = self.find(key)
        else:
            old, place, free = self._choose(found, free, key, form)
            table = self.table
        if old is not None and type(key) is not str:
            # As in a dict, the first of several equal keys (1, 1.0, True) stays.
            _, kept, _, _, _ = self.read_head(old)
            if key_parts(kept) != parts:
                key, parts = kept, key_parts(kept)
                ops = parts[0]
        memo = file.cells[MEMO] if batch is None else batch.memo
        if value.memo and memo + value.memo > fmt.MEMO_END:
            raise OverflowError("the file has no memo indices left; copy its items into a new file")
        older = [] if old is None else self._all_live(key, old)
        # What is on the disk stays live until its successor is there too (I14). A record that takes it out comes with
        # the successor: it must not come back, neither to a loader that has run it nor after a power cut, if the
        # successor is deleted before its own death is on the disk.
        waits = bool(older) and (self.durable or self._must_wait(key) or min(older) < file.cells[SYNCED]
                                 or batch is not None and key in batch.waits)
        if waits and batch is not None:
            batch.waits.add(key)
            batch.dropped.add(key)
        if not waits and type(value) is EncodedArray and value.template.small and fmt.ARRAYS in self.groups \
                and len(parts) == 1 and len(ops) <= KEY_MAX:
            offset, template = self.end if batch is None else batch.end, value.template
            record, end = fmt.encode_small(offset, file.tag, ops + template.ops, template.payload, value.data,
                                           template.tail)
            self._write_behind(record, end)
        else:
            offset, end, groups = self._write_entry(parts, value, memo, sparse, waits)
            self.groups.update(groups)
        if batch is None:
            if place >= 0 and not waits:
                free = place                    # the slot of the one that dies now
            last = self._ordered_to == self.end
            self._publish(end, memo + value.memo if value.memo else 0, dict.fromkeys(older, key),
                          file.cells[LIVE] + (old is None), 0, () if table is None else ((h, offset, free),))
            if last:
                self._order.append(offset)
                self._ordered_to = end
        else:
            self._note(batch, end, memo + value.memo, dict.fromkeys(older, key))
            self._order.append(offset)
            if older:
                self._gone[key] = offset        # live until the batch counts
            if table is not None:
                batch.hashes[offset] = h if free >= 0 else hash_key(key, table.modulo)
        self._count += old is None
        if table is None or batch is not None:
            self.forget(key)                    # its place is the new record's, also if the old one is dead
            self.offsets[key] = offset
        if batch is not None:
            batch.whole = True
        return offset

    def _put_small(self, key: str, ops: bytes, value: EncodedArray, h: int, free: int) -> int:
        """Do as `put`, faster, where a new key with a small array needs nothing but its record and a slot.

        Parameters
        ----------
        key : str
        ops : bytes
            Its literal.
        value : EncodedArray
        h, free : int
            If there is an index block: the hash of the key, and a free slot for it.
        """
        file, table, batch = self.file, self.table, self.batch
        offset = self.end if batch is None else batch.end
        template = value.template
        record, end = fmt.encode_small(offset, file.tag, ops + template.ops, template.payload, value.data,
                                       template.tail)
        self._write_behind(record, end)
        if batch is not None:
            batch.whole = False
            batch.end = end
            if table is not None:
                batch.hashes[offset] = h
            self._order.append(offset)
            self.offsets[key] = offset
            self._count += 1
            batch.whole = True
            return offset
        assert table is not None
        cells, slots, store, store_slot = file.cells, table.cells, file.store_cell, table.store_cell
        commit = cells[COMMIT]
        store(COMMIT, commit + 1 & CELL_MAX)                        # I5: odd while a writer is inside
        file.store_byte(offset, fmt.MARK)                           # I2: the publish
        self.end = self.base = end
        store(STOP, end)                                            # I4: a hint; the walk is the truth
        store_slot(tables.USED, slots[tables.USED] + 1 & CELL_MAX)  # I17
        store_slot(free, h & ~table.low | offset >> 3)              # I17
        store(LIVE, cells[LIVE] + 1 & CELL_MAX)                     # I4
        store_slot(tables.UPTO, end)                                # I17: the last store of a sequence
        store(COMMIT, commit + 2 & CELL_MAX)                        # I5: even again, and moved
        if self._counted_at == commit:
            self._counted_at = commit + 2
            self._count += 1
        if self._ordered_to == offset:
            self._order.append(offset)
            self._ordered_to = end
        return offset

    def _look(self, ops: bytes) -> tuple[int, list[tuple[int, int]], int]:
        """Look a key up in the table, by its `hash_form`; return its hash, and what `Table.look` does."""
        table = self.table
        assert table is not None
        h = hash_ops(ops, table.modulo)
        try:
            return h, *table.look(h)
        except CorruptError:
            self._distrust()
            self._walk()
            return 0, [], -1

    def _choose(self, found: list[tuple[int, int]], free: int, key: Any,
                ops: bytes) -> tuple[Optional[int], int, int]:
        """Choose from what `_look` has found for a key with the `hash_form` `ops`.

        Returns
        -------
        (int or None, int, int)
            The offset of the key's record, the slot of that, and a slot that is free or that of a dead one.
        """
        try:
            newest, place = None, -1
            if found:
                least = max(self._gone.get(key, 0), self._cleared)
                for offset, i in found:
                    if (newest is None or offset > newest) and offset >= least and self._is_entry(offset, key, ops):
                        newest, place = offset, i
                    elif not self.is_live(offset) and self.read_head(offset)[1] == key:
                        free = i                # no other key's: in a copy its own entry might be live
            return newest, place, free
        except CorruptError:
            self._distrust()
            self._walk()
            return self.find(key), -1, -1

    def let_go(self) -> None:
        """Let go of the maps."""
        super().let_go()
        self.growing.clear()

    def step(self) -> int:
        """Take note, in the header, of a change that was made by one store; return the new commit."""
        commit = self.file.cells[COMMIT]
        new: int = commit + 2 & CELL_MAX
        self.file.store_cell(COMMIT, new)           # I5: even stays even, for a single store needs no mending
        if self._counted_at == commit:
            self._counted_at = new
        return new

    def _must_wait(self, key: Any) -> bool:
        """Whether a record of `key` waits for the disk, so that later ones have to (I14)."""
        return self._all_wait or key in self._waiting

    def _all_live(self, key: Any, newest: int) -> list[int]:
        """Return the offsets of the live records of `key`, from the oldest to the `newest`, the one that counts."""
        return [*filter(self.is_live, self._shadowed.get(key, ())), newest]

    def _write_entry(self, parts: list[Union[bytes, Payload]], value: Union[Encoded, EncodedArray], memo: int,
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
            from .pickling import shift_memo            # arrays do without

            # Indices below are the file's own: its globals.
            entry = [shift_memo(p, memo - value.base, fmt.MEMO_START) if isinstance(p, bytes) else p for p in entry]
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
        self._write_behind(b"".join(pieces) if plain else pieces, end, sparse, value.fill)
        return offset, end, groups

    def _write_hidden(self, parts: list[Union[bytes, Payload]]) -> int:
        """Write a hidden record behind the STOP; return the offset of the STOP behind it."""
        offset = self.end if self.batch is None else self.batch.end
        pieces, end, plain = fmt.encode_record(offset, self.file.tag, parts, entry=False)
        pieces.append(_STOP)
        self._write_behind(b"".join(pieces) if plain else pieces, end)
        self._hidden_waste += end - offset
        return end

    def _write_behind(self, records: Union[bytes, list[Any]], end: int, sparse: bool = False,
                      fill: Any = None) -> None:
        """Write records behind the STOP, with a STOP of their own at `end`, all but their first MARK.

        I3: nothing is stored at or before the STOP, so every reader goes on seeing the file as it was; a write
        that fails leaves nothing but bytes that no reader looks at.
        """
        file, batch, at = self.file, self.batch, self.end + 1
        if batch is not None:
            if batch.end > self.end:
                at = batch.end                      # only the batch's first MARK is the one that publishes
                records = _MARK + records if isinstance(records, bytes) else [_MARK, *records]
            if isinstance(records, bytes) and len(records) <= GATHERED_MAX:
                if len(batch.buffer) > GATHER:
                    self._write_batch(batch)
                if not batch.buffer:
                    batch.buffer_at = at
                del batch.buffer[at - batch.buffer_at:]         # the STOP, and what an exception left unfinished
                batch.buffer += records
                return
            self._write_batch(batch)
        try:
            if isinstance(records, bytes):
                file.make_room(end + 1)
                file.write(at, records)
            elif all(type(piece) is bytes or piece.data is not None for piece in records):
                file.make_room(end + 1)
                file.allocate(at, end + 1)
                file.write(at, _buffers(records))
            else:
                self._write_hole(at, records, end, sparse, fill)
            # The map that the publish needs, and an array's views: if there is no room for it, nothing has happened.
            w = file.windows[-1]
            if not w.start < at or end >= w.end:
                file.window(self.end, end + 1)
        except BaseException:
            with suppress(OSError):
                file.truncate(at)               # I3: gives the room back
            raise

    def _write_batch(self, batch: Batch) -> None:
        """Write what was gathered of a batch; if that fails, it stays gathered."""
        if not batch.buffer:
            return
        file, end = self.file, batch.end
        file.make_room(end + 1)
        file.write(batch.buffer_at, bytes(batch.buffer[:end + 1 - batch.buffer_at]))        # I3
        file.window(self.end, end + 1)
        batch.buffer.clear()

    def is_live(self, offset: int) -> bool:
        """Whether the record at `offset` is live at this moment: one look at its Op."""
        if self.batch is not None and offset >= self.end:
            self._write_batch(self.batch)
        return self.file.byte(offset + 1) == fmt.LIVE

    def read_head(self, offset: int, ops: bytes = b"") -> tuple[Record, Any, int, memoryview, int]:
        """Return the record at `offset`; as `Index.read_head`."""
        if self.batch is not None and offset >= self.end:
            self._write_batch(self.batch)
        return super().read_head(offset, ops)

    def _write_hole(self, at: int, pieces: list[Any], end: int, sparse: bool, fill: Any) -> None:
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
        if fill is not None:
            fill(file, first + sum(map(len, before)))               # I3: behind the STOP
        file.make_room(end + 2)                 # else each hole would need a map of its own

    def _publish(self, end: int, memo: int, older: dict[int, Any], live: int, dead: int = 0,
                 slots: Iterable[tuple[int, int, int]] = (), block: int = 0, cover: bool = True) -> None:
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
        slots : iterable of (int, int, int)
            Hash and offset of each entry that is published, and a slot for it; -1: any.
        block : int
            Offset of an index block that is published, and has these entries already; 0: none.
        cover : bool
            Whether the index block is to cover what is published. Not a seal: who opens the file has to see that.
        """
        file, cells = self.file, self.file.cells
        summed = self.durable and (cells[SYNCED] == self.end or block > 0)      # so is the block's sum right
        if self.durable:
            file.sync()                                             # I15: all of it is on the disk before the publish
        by = self.end
        commit, store = cells[COMMIT], file.store_cell
        store(COMMIT, commit + 1 & CELL_MAX)                        # I5: odd while a writer is inside
        if memo:
            store(MEMO, memo)                            # I8: raised before the publish
        file.store_byte(by, fmt.MARK)                               # I2: the publish
        self.end = end
        store(STOP, end)                                 # I4: a hint; the walk is the truth
        if self.seal is not None:
            sealed = self.sealed
            self._unseal()                                          # I16: a record stands behind it by now
            if sealed and self.table is not None:
                file.sync()                                         # and its death is on the disk before what it covers
        if block:
            self._change_table(block)
        waiting: dict[int, Any] = {}
        if older:
            # I14: those that are on the disk stay live for now; a record was published that takes them out.
            synced = self.end if self.durable else cells[SYNCED]
            waits = {key for offset, key in older.items() if offset < synced}
            waiting = {offset: key for offset, key in older.items() if key in waits or self._must_wait(key)}
            killed = [offset for offset in older if offset not in waiting]
            for offset in killed:
                self._kill(offset)
            if self.table is not None:
                self.table.log_deaths([*killed, *waiting])
        table = self.table
        if table is not None:
            more = 0
            for h, offset, i in slots:
                more += table.insert(h, offset) if i < 0 else table.set_slot(i, h, offset)          # I17
            if summed:
                table.store(tables.SUM, table.cells[tables.SUM] + more & CELL_MAX)              # I17
        if live != cells[LIVE]:
            store(LIVE, live)                            # I4
        if dead:
            store(DEAD, cells[DEAD] + dead & CELL_MAX)              # I4
        if table is not None and cover:
            if older or block or len(self.groups) != self._groups_stored:
                self._note_in_table(by if waiting or older and cells[SYNCED] else 0)
            self._cover(end)
        store(COMMIT, commit + 2 & CELL_MAX)                        # I5: even again, and moved
        self._counted_at = commit + 2 if self._counted_at == commit else -1
        if self.durable:
            file.sync()                                             # I15: the publish is on the disk before a kill
            # What another handle left to wait does so no longer.
            others = [offset for offset, _ in self._superseded() if offset not in waiting]
            self._kill_superseded([*waiting, *others], end, summed)
            self._dropped.clear()
            self._judged = 0
            # Their deaths wait for the next sync, which is the next durable commit's first.
            self._all_wait = False
            self._waiting = {*waiting.values(), *(self._waiting if others else ())}
            if table is not None:
                self._set_waits(by if self._waiting else 0)
        elif waiting:
            self._dropped += [(offset, by) for offset in waiting]
            self._waiting.update(waiting.values())
            batch = self.batch
            self._gone.update((key, by if batch is None else self.offsets.get(key, end)) for key in waiting.values())

    def _kill_superseded(self, offsets: list[int], synced: int, summed: bool = False) -> None:
        """Kill records whose successors are on the disk, as everything before the offset `synced` is (I14).

        `summed` says whether the sum of the index block is right.
        """
        file = self.file
        commit = file.cells[COMMIT]
        if offsets:
            file.store_cell(COMMIT, commit + 1 & CELL_MAX)          # I5: what is live until then waits no more
        if synced > file.cells[SYNCED]:
            if self.table is not None and not summed and not self.sealed:
                self.table.count()                                  # I17
            file.store_cell(SYNCED, synced)                         # I4, I14
        if not offsets:
            return
        for offset in offsets:
            self._kill(offset)
        file.store_cell(COMMIT, commit + 2 & CELL_MAX)              # I5
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
            self._all_wait = False
        self._settle()
        self.file.sync()            # nor what is dead by now: who repairs would bring it back
        if synced == self.end and self.table is not None:
            self._set_waits(0)

    def deaths_are_on_disk(self) -> None:
        """Take note that the disk was synced, and no record waits: the next deletion of any key need not wait."""
        self._waiting.clear()
        self._all_wait = False

    def _kill(self, offset: int) -> None:
        # I6: one byte; a replacement is published. I12: the record's bytes stay, arrays over them may be alive.
        self.file.store_byte(offset + 1, fmt.DEAD)
        dead = self.file.cells[DEAD] + fmt.RECORD_HEAD + self._length(offset) + 1
        self.file.store_cell(DEAD, dead & CELL_MAX)                           # I4

    def remove(self, key: Any, offset: int) -> None:
        """Kill the live record of `key`, which is at `offset`."""
        if self.batch is not None:
            self._remove_later(self.batch, key, offset)
            return
        file, cells = self.file, self.file.cells
        if self._must_wait(key) and self._remove_by_record(key, offset):
            return
        *older, _ = self._all_live(key, offset)
        commit = cells[COMMIT]
        file.store_cell(COMMIT, commit + 1 & CELL_MAX)              # I5
        if self.sealed:
            self._unseal()                                          # I16: before anything that it vouches for
            file.sync()                                             # on the disk too, else it would seem damaged
        for superseded in older:
            self._kill(superseded)
        self._kill(offset)
        if self.table is not None:
            self.table.log_deaths([offset])
        file.store_cell(LIVE, cells[LIVE] - 1 & CELL_MAX)                     # I4
        file.store_cell(COMMIT, commit + 2 & CELL_MAX)              # I5
        if self._counted_at == commit:
            self._counted_at = commit + 2
            self._count -= 1
        self.forget(key)
        file.tell(self.end)
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
        self._publish(end, 0, {o: key for o in self._all_live(key, offset)}, self.file.cells[LIVE] - 1)
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
            self._cleared = end
        else:
            self._publish(end, 0, older, 0)
        self.offsets.clear()
        self._shadowed.clear()
        self._order.clear()
        self._counted_at, self._count = self.file.cells[COMMIT], 0
        if self.batch is not None:
            self.batch.whole = True

    def recover(self, restarted: bool = False) -> None:
        """Walk the whole file, finish what a dead writer began, and store the header anew.

        I9: what was published counts. Of a key that is live twice the older record is killed, and so are the
        entries before a live record that takes them out; else a later deletion would bring them back.
        """
        file = self.file
        self._forget_all()
        records = self._walk()                                      # before any store: it may find damage
        current = set(self.offsets.values())
        older = [record for record in records if record.entry and record.live and record.offset not in current]
        if restarted:
            # What stands behind the STOP does not count. After another power cut it could be taken for something that
            # does, by who looks for what is whole in a damaged file.
            file.truncate(self.end + 1)                             # I3
        if restarted or older:
            # What is read after a start is on the disk; but containers start by themselves.
            file.sync()                                             # I14: what superseded them is on the disk
        file.store_cell(COMMIT, file.cells[COMMIT] | 1)             # I5
        for record in older:
            file.store_byte(record.offset + 1, fmt.DEAD)            # I9
            record.live = False
        self._mend_table(records, restarted)
        if self.table is not None and not self.sealed:
            self.table.lose_log()               # the dead writer may have logged less than it killed
        memo = fmt.MEMO_START
        live = [record.offset for record in records if record.live and record.entry]
        dead = sum(record.end - record.offset for record in records if not record.live)
        described = self.describe(live)
        infos: list[Any] = [None] * len(live) if described is None else described[1]
        for offset, info in zip(live, infos):
            if isinstance(info, (ArrayInfo, MaskedInfo)):
                continue
            record, _, at, view, base = self.read_head(offset)
            with suppress(CorruptError):                # one bad value does not stop all writers
                info = decode_info(view, base, at, record.body_end)
                if isinstance(info, GrowableInfo):
                    memo = max(memo, info.memo + 2)
                elif info is None:
                    from .pickling import highest_memo          # arrays do without

                    memo = max(memo, highest_memo(view[at - base:record.body_end - base]))
        self._shadowed.clear()
        self._waits_no_more()
        self.offsets = dict(sorted(self.offsets.items(), key=lambda item: item[1]))
        file.store_cell(STOP, self.end)                             # I4
        file.store_cell(LIVE, len(self.offsets))                    # I4
        file.store_cell(DEAD, dead)                                 # I4
        file.store_cell(MEMO, memo)                                 # I8
        if file.cells[SYNCED] > self.end:
            file.store_cell(SYNCED, self.end)                       # I4: nonsense
        commit = file.cells[COMMIT] + 1 & CELL_MAX
        file.store_cell(COMMIT, commit)                             # I5
        self._counted_at, self._count = commit, len(self.offsets)
        waits = False
        if self.table is not None:
            self.offsets.clear()
            waits = bool(self.table.cells[tables.WAITS])
        if older or waits:
            file.sync()                                             # I14: no key's older record is live on the disk
        if waits:
            self._set_waits(0)

    # -- seals --------------------------------------------------------------------------------------------------

    def add_seal(self, parts: list[Union[bytes, Payload]]) -> None:
        """Publish a hidden record that is a seal."""
        offset = self.end
        end = self._write_hidden(parts)
        if not self.durable:
            self.file.sync()                                        # I15: a file to be kept is on the disk whole
        self._publish(end, 0, {}, self.file.cells[LIVE], cover=False)
        self.seal = offset

    def _unseal(self) -> None:
        """Kill the seal, if there is one. The caller has made commit odd."""
        if self.sealed:
            self._kill(self.seal)       # type: ignore[arg-type]
        self._forget_seal()

    def unseal(self) -> None:
        """Kill the seal, if there is one."""
        if not self.sealed:
            return
        file, commit = self.file, self.file.cells[COMMIT]
        file.store_cell(COMMIT, commit + 1 & CELL_MAX)              # I5
        self._unseal()                                              # I16
        file.store_cell(COMMIT, commit + 2 & CELL_MAX)              # I5
        if self._counted_at == commit:
            self._counted_at = commit + 2
        if self.durable:
            file.sync()                                             # I15

    # -- several changes in one step ----------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """Let all changes from now on be written behind the STOP, where they do not count, until `commit`."""
        self.count()
        self.batch = Batch(self.end, self.file.cells[MEMO])

    def _note(self, batch: Batch, end: int, memo: int, older: dict[int, Any]) -> None:
        """Take note of a record that was written for the batch, up to the offset `end`, and of those it supersedes."""
        batch.whole = False
        batch.end = end
        batch.memo = max(batch.memo, memo)
        for offset, key in older.items():
            if offset >= self.end and key not in batch.waits:
                self.file.store_byte(offset + 1, fmt.DEAD)          # I3: behind the STOP; it was looked at, so written
                batch.hashes.pop(offset, None)
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
        self._gone[key] = batch.end
        batch.whole = True

    def commit(self) -> None:
        """Make all changes since `begin_batch` count, in one step."""
        batch = self.batch
        assert batch is not None
        if batch.end == self.end:
            self.batch = None
            return
        file, table, block = self.file, self.table, 0
        if len(self.offsets) >= self._table_from if table is None else self._is_full(table, len(batch.hashes)):
            block = self._add_block(batch)
        self._write_batch(batch)
        if file.read(batch.end, 1) != _STOP:
            file.write(batch.end, _STOP)            # I3: cut off by a later write, which failed
        slots = () if table is None or block else [(h, offset, -1) for offset, h in batch.hashes.items()]
        self._publish(batch.end, batch.memo, batch.older, self._count, batch.dead, slots, block)
        self.batch = None
        if self.table is not None:
            self.offsets.clear()

    def _add_block(self, batch: Batch) -> int:
        """Add a new index block to a batch; return its offset, or 0 if there is no room and the old one will do."""
        self._write_batch(batch)                # its own records: if there is no room for these, it fails
        block, waste = batch.end, self._hidden_waste
        try:
            batch.end = self._write_hidden(self._block_parts())
            self._write_batch(batch)
        except OSError:
            batch.end = block
            batch.buffer.clear()
            table = self.table
            if table is not None and (table.cells[tables.USED] + len(batch.hashes) >= table.mask
                                      or not table.can_hold(block)):
                raise
            block = 0
        self._hidden_waste = waste
        return block

    def abandon(self) -> None:
        """Forget the changes since `begin_batch`; the index is of no use any more.

        Arrays that were handed out keep their place, else a later record would share it with them: all records
        are published dead (I12).
        """
        batch, self.batch = self.batch, None
        assert batch is not None
        file = self.file
        if file.read(self.end, 1) != _STOP:
            return          # an exception came right behind the publish: it counts, the next writer does the rest (I9)
        if not batch.handed_out:
            with suppress(OSError):                                 # what is behind the STOP may stay (I3)
                self._cut_leftovers()
            return
        at, commit = self.end, file.cells[COMMIT]
        dead = file.cells[DEAD] + batch.end - at
        self._write_batch(batch)
        while at < batch.end:
            file.store_byte(at + 1, fmt.DEAD)                       # I3: behind the STOP
            at += fmt.RECORD_HEAD + 1 + self._length(at)
        file.write(batch.end, _STOP)                                # I3
        if self.durable:
            file.sync()                                             # I15
        file.store_cell(COMMIT, commit + 1 & CELL_MAX)              # I5
        file.store_byte(self.end, fmt.MARK)                         # I2
        file.store_cell(STOP, batch.end)                            # I4
        file.store_cell(DEAD, dead & CELL_MAX)                      # I4
        if self.table is not None:
            self.table.store(tables.UPTO, batch.end)                # I17: there are no entries in it
        file.store_cell(COMMIT, commit + 2 & CELL_MAX)              # I5

    # -- the index block ----------------------------------------------------------------------------------------

    def _is_full(self, table: Table, more: int = 1) -> bool:
        """Whether a block should be replaced before so many more entries are stored."""
        return table.cells[tables.USED] + more > table.full or self.end > table.last

    def _renew_table_if_full(self) -> None:
        table = self.table
        if self.seal is not None:               # what comes may fail, and nothing shall have happened then
            return
        if len(self.offsets) >= self._table_from if table is None else self._is_full(table):
            self._renew_table()

    def _renew_table(self) -> None:
        """Publish a new index block that has all entries; if there is no room, do as long as possible without."""
        block, last = self.end, self._ordered_to == self.end
        try:
            end = self._write_hidden(self._block_parts())
        except OSError:
            table = self.table
            if table is None:
                self._table_from = 2 * len(self.offsets)
            elif table.cells[tables.USED] >= table.mask - (table.mask >> 4) or not table.can_hold(block) \
                    or self.offsets:
                self._give_table_up()
            return
        self._hidden_waste -= end - block
        self._publish(end, 0, {}, self.file.cells[LIVE], block=block)
        self.offsets.clear()
        if last:
            self._ordered_to = self.end

    def _give_table_up(self) -> None:
        """Go on without an index block: what is behind it is found by walking."""
        file, table = self.file, self.table
        assert table is not None
        commit = file.cells[COMMIT]
        file.store_cell(COMMIT, commit + 1 & CELL_MAX)              # I5
        file.store_cell(INDEX, 0)                                   # I4
        self._kill(table.offset)
        file.store_cell(COMMIT, commit + 2 & CELL_MAX)              # I5
        self._forget_all()
        self.walk()
        self._table_from = 2 * len(self.offsets)

    def _block_parts(self) -> list[Union[bytes, Payload]]:
        """Return the parts of a new index block: with the slots of the old one, and of all entries that have none."""
        table, batch, file = self.table, self.batch, self.file
        modulo = modulus(file.file_id)
        bits = bits_for(self.end if batch is None else batch.end)
        cells = {tables.UPTO: self.end, tables.HIDDEN: self._hidden_waste, tables.INODE: file.identity[1],
                 **{tables.GROUP_CELLS[group]: offset for group, offset in self.groups.items()}}
        slots = np.zeros(0, np.uint64)
        if table is not None:
            old = np.uint64(table.low)
            slots = table.taken()
            if file.cells[LIVE] < len(slots) // 2:
                slots = slots[self.ops_at(((slots & old) << np.uint64(3)).astype(np.int64)) == fmt.LIVE]
            bits = max(bits, table.bits)
            slots = slots & ~np.uint64((1 << bits) - 1) | slots & old
            cells[tables.WAITS], cells[tables.DEATHS] = table.cells[tables.WAITS], table.cells[tables.DEATHS]
            cells.update((i, table.cells[i]) for i in range(tables.DEATHS_LOG, tables.FIRST_SLOT))
        if table is None or batch is None:
            entries = {offset: hash_key(key, modulo) for key, offset in self.offsets.items()}
            superseded = [(offset, self.read_head(offset)[1]) for offset, _ in self._superseded()]
            superseded += [] if batch is None else batch.older.items()
            entries.update((offset, hash_key(key, modulo)) for offset, key in superseded if table is None)
        else:
            entries = batch.hashes
        if table is None and self._dropped:
            cells[tables.WAITS] = min(by for _, by in self._dropped)
        slots = np.concatenate((slots, make_slots(list(entries.values()), list(entries), bits)))
        return block_parts(slots, slots_for(len(slots)), bits, cells)

    def _change_table(self, block: int) -> None:
        """Let the index block at the offset `block`, which was published, take the place of the old one."""
        old, self.table = self._table_at, open_table(self.file, block)
        assert self.table is not None
        self._table_at = block
        self._other_boot = False
        self.file.store_cell(INDEX, block)                          # I4: a hint, as all the header is
        if old and self._is_block(old):
            self._kill(old)                                         # I6: good or not, it is needed no more

    def _is_block(self, offset: int) -> bool:
        """Whether a live index block stands at `offset`, good or not."""
        hidden = self._hidden_kind(offset)
        return hidden is not None and hidden[0] == BLOCK

    def _note_in_table(self, by: int) -> None:
        """Store what is behind the block, but for entries; with `by`, that the record there takes out what waits."""
        table = self.table
        assert table is not None
        if by and not table.cells[tables.WAITS]:
            table.store(tables.WAITS, by)                           # I17, I14
        table.store(tables.HIDDEN, self._hidden_waste)              # I17
        for group, cell in tables.GROUP_CELLS.items():
            table.store(cell, self.groups.get(group, 0))            # I17: 0 also where a power cut has left another
        self._groups_stored = len(self.groups)

    def _cover(self, upto: int) -> None:
        """Take note that all entries before the offset `upto` have a slot: I17, the last store of a sequence."""
        table = self.table
        assert table is not None
        self.base = upto
        table.store_cell(tables.UPTO, upto)

    def _set_waits(self, by: int) -> None:
        assert self.table is not None
        self.table.store(tables.WAITS, by)                          # I17

    def _mend_table(self, records: list[Record], restarted: bool) -> None:
        """Make the header's index block say what the walk has found, or give it up. The commit is odd."""
        entries = [record.offset for record in records if record.entry]
        blocks = [record for record in records
                  if record.live and not record.entry and self._is_block(record.offset)]
        file, at = self.file, self.file.cells[INDEX]
        table = open_table(file, at) if any(record.offset == at for record in blocks) else None
        if table is not None and (restarted and not table.is_sound(self.end)
                                  or not np.isin(table.offsets(), np.array(entries, np.int64)).all()):
            table = None
        missing: list[tuple[int, int]] = []
        if table is not None:
            hashes = [hash_key(key, table.modulo) for key in self.offsets]
            wanted = make_slots(hashes, list(self.offsets.values()), table.bits)
            lacks = ~np.isin(wanted, table.taken())
            missing = [(h, offset) for h, offset, lack in zip(hashes, self.offsets.values(), lacks.tolist()) if lack]
            if len(table.taken()) + len(missing) >= table.mask or not table.can_hold(self.end):
                table = None
        if table is not None and self.sealed and not missing and len(blocks) == 1:
            self.table, self._table_at, self._other_boot = table, at, False
            self.base = table.cells[tables.UPTO]                    # nothing that is sealed is stored into (I16)
            return
        stale = [record for record in blocks if table is None or record.offset != table.offset]
        if blocks:
            stale[:0] = [record for record in records if record.offset == self.seal and record.live]        # I16
        for record in stale:
            file.store_byte(record.offset + 1, fmt.DEAD)            # I9
            record.live = False
        if table is None:
            if at:
                file.store_cell(INDEX, 0)                           # I4
            self._table_at = 0
            return
        self.table, self._table_at, self._other_boot = table, at, False
        table.count()
        for h, offset in missing:
            table.insert(h, offset)                                 # I17
        table.count()
        table.store(tables.INODE, file.identity[1])                 # I17
        self._note_in_table(0)
        self._cover(self.end)


def _buffers(pieces: list[Any]) -> Iterator[Any]:
    for piece in pieces:
        if isinstance(piece, Payload):
            yield from payload_pieces(piece)
        else:
            yield piece
