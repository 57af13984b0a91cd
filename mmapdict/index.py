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
from .format import Payload, Record
from .literals import check_key, decode_literal, key_parts
from .pickling import highest_memo, shift_memo
from .store import File
from .values import Encoded

_COMMIT = fmt.COMMIT_OFFSET >> 3
_LIVE = fmt.LIVE_OFFSET >> 3
_DEAD = fmt.DEAD_OFFSET >> 3
_MEMO = fmt.MEMO_OFFSET >> 3
_STOP = bytes((fmt.STOP,))
_MARK = bytes((fmt.MARK,))
_PLAIN = frozenset((str, int, bytes, float, bool, type(None)))


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
    """

    def __init__(self, file: File) -> None:
        self.file = file
        self._forget_all()

    def _forget_all(self) -> None:
        """Know nothing of the file, as before the first walk."""
        self.offsets: dict[Any, int] = {}
        self.end = fmt.HEADER_SIZE
        self.groups: dict[int, int] = {}
        # Keys of which an older record was live when the newer was found: the writer is, or died, in between.
        self._shadowed: dict[Any, list[int]] = {}
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
                if record.live:
                    self._take(record, w.view, w.start)
                else:
                    self._walked_dead += record.end - record.offset
                found.append(record)
                self.end = record.end
        except CorruptError as exc:
            raise CorruptError(f"{exc.message}; before it stand {len(self.offsets)} keys", file.path,
                               self.end if exc.offset is None else exc.offset) from exc
        except ValueError as exc:
            raise CorruptError(f"the file ends without its STOP, behind {len(self.offsets)} keys", file.path,
                               self.end) from exc

    def _take(self, record: Record, view: memoryview, base: int) -> None:
        if record.entry:
            try:
                key, _ = decode_literal(view, record.content - base, record.body_end - base)
                if type(key) not in _PLAIN:
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
            content = bytes(view[record.content - base:record.body_end - base])
            if content == fmt.CLEAR:
                self.offsets.clear()
                self._shadowed.clear()
            for group, ops in fmt.GROUPS.items():
                if content == ops:              # I10: only what is the same byte by byte is relied on
                    self.groups.setdefault(group, record.offset)

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
        try:
            record = fmt.decode_record(w.view, w.start, offset, self.file.tag)
        except CorruptError:
            w = self.file.map_window(offset)
            record = fmt.decode_record(w.view, w.start, offset, self.file.tag)
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
        if cells[_COMMIT] & 1:
            self.recover()
            return
        self.walk()
        stale = cells[fmt.STOP_OFFSET >> 3] != self.end or not self._may_be_memo(cells[_MEMO])
        if not self._header_checked:
            self._header_checked = True
            stale = stale or cells[_LIVE] != self.count() \
                or cells[_COMMIT] == self._walked_at and cells[_DEAD] != self._walked_dead
        if self._shadowed:
            # No writer is inside: an older record that is live is one whose replacer died.
            stale = stale or any(map(self.is_live, chain.from_iterable(self._shadowed.values())))
        if stale:
            self.recover()              # the header is older than the records, or damaged (I4)

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
        file = self.file
        old = self.find(key)
        if old is not None and type(key) is not str:
            # As in a dict, the first of several equal keys (1, 1.0, True) stays.
            _, kept, _, _, _ = self.read_head(old)
            if key_parts(kept) != parts:
                key, parts = kept, key_parts(kept)
        memo = file.cells[_MEMO]
        if value.memo and memo + value.memo > fmt.MEMO_END:
            raise OverflowError("the file has no memo indices left; copy its items into a new file")
        array = value.array
        ops: Any = parts[0]
        if array is not None and array.template.small and fmt.ARRAYS in self.groups and len(parts) == 1 \
                and len(ops) <= KEY_MAX:
            offset, template = self.end, array.template
            record, end = fmt.encode_small(offset, file.tag, ops + template.ops, template.payload, array.data,
                                           template.tail)
            self._write_behind(record, end)
        else:
            offset, end = self._write_entry(parts, value, memo, sparse)
        self._publish(end, memo + value.memo if value.memo else 0, old)
        if old is not None:
            self.forget(key)
        else:
            self._count += 1
        self.offsets[key] = offset
        return offset

    def _write_entry(self, parts: list[Union[bytes, Payload]], value: Encoded, memo: int,
                     sparse: bool) -> tuple[int, int]:
        """Write an entry of any kind behind the STOP, and before it the globals that the file has not yet.

        Returns
        -------
        (int, int)
            The entry's offset, and that of the STOP behind it.
        """
        file = self.file
        entry = fmt.join_parts(parts, value.parts)
        if value.memo and value.base != memo:
            entry = [shift_memo(p, memo - value.base) if isinstance(p, bytes) else p for p in entry]
        offset = self.end
        hidden: list[Any] = []
        for group, ops in fmt.GROUPS.items():
            if value.groups & group and group not in self.groups:
                # I10: published with the first entry that needs it, before it. An error after this line makes the
                # handle ask the file anew.
                self.groups[group] = offset
                pieces, offset, _ = fmt.encode_record(offset, file.tag, [ops], entry=False)
                hidden += (*pieces, _MARK)
        pieces, end, plain = fmt.encode_record(offset, file.tag, entry)
        pieces = [*hidden, *pieces, _STOP]
        self._write_behind(b"".join(pieces) if plain else pieces, end, sparse)
        return offset, end

    def _write_behind(self, records: Union[bytes, list[Any]], end: int, sparse: bool = False) -> None:
        """Write records behind the STOP, with a STOP of their own at `end`, all but their first MARK.

        I3: nothing is stored at or before the STOP, so every reader goes on seeing the file as it was; a write
        that fails leaves nothing but bytes that no reader looks at.
        """
        file, at = self.file, self.end + 1
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

    def _publish(self, end: int, memo: int, old: Optional[int]) -> None:
        """Make what was written behind the STOP count, and kill the record that it replaces."""
        file, cells = self.file, self.file.cells
        commit = cells[_COMMIT]
        file.store_cell(fmt.COMMIT_OFFSET, commit + 1)              # I5: odd while a writer is inside
        if memo:
            file.store_cell(fmt.MEMO_OFFSET, memo)                  # I8: raised before the publish
        file.store_byte(self.end, fmt.MARK)                         # I2: the publish
        self.end = end
        file.store_cell(fmt.STOP_OFFSET, end)                       # I4: a hint; the walk is the truth
        if old is None:
            file.store_cell(fmt.LIVE_OFFSET, cells[_LIVE] + 1)      # I4
        else:
            self._kill(old)
        file.store_cell(fmt.COMMIT_OFFSET, commit + 2)              # I5: even again, and moved
        self._counted_at = commit + 2 if self._counted_at == commit else -1

    def _kill(self, offset: int) -> None:
        w = self.file.window(offset, offset + fmt.RECORD_HEAD)
        _, _, length = fmt.RECORD.unpack_from(w.view, offset - w.start)
        # I6: one byte; a replacement is published. I12: the record's bytes stay, arrays over them may be alive.
        self.file.store_byte(offset + 1, fmt.DEAD)
        dead = self.file.cells[_DEAD] + fmt.RECORD_HEAD + length + 1
        self.file.store_cell(fmt.DEAD_OFFSET, dead)                 # I4

    def remove(self, key: Any, offset: int) -> None:
        """Kill the live record of `key`, which is at `offset`."""
        file, cells = self.file, self.file.cells
        commit = cells[_COMMIT]
        file.store_cell(fmt.COMMIT_OFFSET, commit + 1)              # I5
        self._kill(offset)
        file.store_cell(fmt.LIVE_OFFSET, cells[_LIVE] - 1)          # I4
        file.store_cell(fmt.COMMIT_OFFSET, commit + 2)              # I5
        if self._counted_at == commit:
            self._counted_at = commit + 2
            self._count -= 1
        self.forget(key)

    def clear(self) -> None:
        """Remove all keys in one step.

        I7: a hidden record that empties the dictionary is published before anything is killed, and stays: a
        reader that is half way through the file, and has run entries that are dead by now, empties its own.
        """
        offsets = [offset for _, offset in self.snapshot()]
        if not offsets:
            return
        pieces, end, _ = fmt.encode_record(self.end, self.file.tag, [fmt.CLEAR], entry=False)
        self._write_behind(b"".join((*pieces, _STOP)), end)
        file = self.file
        commit = file.cells[_COMMIT]
        file.store_cell(fmt.COMMIT_OFFSET, commit + 1)              # I5
        file.store_byte(self.end, fmt.MARK)                         # I2, I7: from here on the file is empty
        self.end = end
        file.store_cell(fmt.STOP_OFFSET, end)                       # I4
        for offset in offsets:
            self._kill(offset)
        file.store_cell(fmt.LIVE_OFFSET, 0)                         # I4
        file.store_cell(fmt.COMMIT_OFFSET, commit + 2)              # I5
        self.offsets.clear()
        self._shadowed.clear()
        self._counted_at, self._count = commit + 2, 0

    def recover(self) -> None:
        """Walk the whole file, finish what a dead writer began, and store the header anew.

        I9: what was published counts. Of a key that is live twice the older record is killed, and so are the
        entries before a live record that empties the dictionary; else a later deletion would bring them back.
        """
        file = self.file
        self._forget_all()
        records = self.walk()                                       # before any store: it may find damage
        file.store_cell(fmt.COMMIT_OFFSET, file.cells[_COMMIT] | 1)     # I5
        current = set(self.offsets.values())
        memo, dead = fmt.MEMO_START, 0
        for record in records:
            if record.entry and record.live and record.offset not in current:
                file.store_byte(record.offset + 1, fmt.DEAD)        # I9
                record.live = False
            if not record.live:
                dead += record.end - record.offset
            elif record.entry:
                _, _, at, view, base = self.read_head(record.offset)
                with suppress(CorruptError):            # one bad value does not stop all writers
                    if decode_info(view, base, at, record.body_end) is None:
                        memo = max(memo, highest_memo(view[at - base:record.body_end - base]))
        self._shadowed.clear()
        self.offsets = dict(sorted(self.offsets.items(), key=lambda item: item[1]))
        file.store_cell(fmt.STOP_OFFSET, self.end)                  # I4
        file.store_cell(fmt.LIVE_OFFSET, len(self.offsets))         # I4
        file.store_cell(fmt.DEAD_OFFSET, dead)                      # I4
        file.store_cell(fmt.MEMO_OFFSET, memo)                      # I8
        commit = file.cells[_COMMIT] + 1
        file.store_cell(fmt.COMMIT_OFFSET, commit)                  # I5
        self._counted_at, self._count = commit, len(self.offsets)


def _buffers(pieces: list[Any]) -> Iterator[Any]:
    for piece in pieces:
        if isinstance(piece, Payload):
            yield from payload_pieces(piece)
        else:
            yield piece
