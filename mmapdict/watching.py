"""What changed in a file between two looks, found at a cost that grows with the changes and not with the keys.

Entries that were added stand behind the STOP that was reached. Of those that died the index block keeps the last few
offsets. Only who looks too rarely for that, or at a file without an index block, compares all keys.
"""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from . import format as fmt
from .bulk import decode_entries
from .errors import CorruptError
from .index import Index, Moment
from .judging import CLEAR, DROP, REPLACE, judge_hidden
from .literals import decode_literal
from .table import Offsets


PATIENCE = 100                  # times to sleep, some 20 ms all in all, before all keys are compared


class Change(NamedTuple):
    """What happened between two looks: lists of keys, each in the order of the file."""

    added: list[Any]
    replaced: list[Any]
    removed: list[Any]


class Watcher:
    """Knows which entries counted when it looked last.

    Parameters
    ----------
    index : Index
    """

    def __init__(self, index: Index) -> None:
        self._look(index)

    def _look(self, index: Index) -> dict[Any, int]:
        """Take note of all that counts now; return it."""
        self._moment = index.moment()               # before: what happens meanwhile is looked at again
        items = dict(index.snapshot())
        self._keep(index, np.array(list(items.values()), np.int64))
        self._count = len(items)
        return items

    def _keep(self, index: Index, offsets: Offsets) -> None:
        self._index = index
        self._offsets = offsets                     # of the entries that counted, but for those in `_died`
        self._added: list[int] = []                 # and these
        self._died: set[int] = set()
        self._map(index)

    def _map(self, index: Index) -> None:
        """Hold on to a map of the records: another file may take the place of this one."""
        self._end = max(index.end, index.base) + 1
        self._window = index.file.window(fmt.HEADER_SIZE, self._end)

    def _before(self) -> dict[Any, int]:
        """Return what counted at the last look."""
        offsets = np.concatenate((self._offsets, np.array(self._added, np.int64)))
        if self._died:
            offsets = offsets[~np.isin(offsets, np.array(list(self._died), np.int64))]
        w = self._window
        view = w.view[:self._end - w.start]
        return dict(zip(decode_entries(view, w.start, offsets, self._index.file.tag).keys, offsets.tolist()))

    def update(self, index: Index) -> Change:
        """Return what changed since the last look, and look again."""
        if index.file is self._index.file and self._moment is not None:
            now = index.moment(PATIENCE)
            change = None if now is None else self._follow(index, self._moment, now)
            if change is not None:
                return change
        same, before = index.file is self._index.file, self._before()
        after = self._look(index)
        return Change([key for key in after if key not in before],
                      [key for key in after if key in before and not (same and after[key] == before[key])],
                      [key for key in before if key not in after])

    def _follow(self, index: Index, before: Moment, now: Moment) -> Optional[Change]:
        """Return what changed between two moments; None: that cannot be told without comparing all keys."""
        died = now.died_since(before.deaths)
        if died is None:
            return None
        self._index = index                         # after an error of the handle it is another
        self._map(index)
        newest: dict[Any, int] = {}
        try:
            if not self._walk(index, before.upto, now.upto, newest):
                return None
            gone = {offset: index.read_head(offset)[1] for offset in sorted(died) if offset < before.upto}
        except CorruptError:
            return None
        dead = set(died)
        later: list[int] = []
        current = {}
        for key, offset in newest.items():
            if offset not in dead and not index.is_live(offset) and offset not in later:
                # Either it died since, or it was replaced in its own batch and never counted.
                then = index.moment()
                more = None if then is None else then.died_since(now.deaths)
                if more is None:
                    return None
                later = more
                if offset not in later:
                    continue
            if offset not in dead:
                current[key] = offset
        was = set(gone.values())
        count = self._count + len(current) - len(was)
        if count != now.live:
            return None                     # a program has been there that leaves index blocks alone
        self._count = count
        self._moment = now
        self._died.update(gone)
        self._added += current.values()
        if len(self._added) + len(self._died) > 1024 + len(self._offsets) // 4:
            offsets = np.concatenate((self._offsets, np.array(self._added, np.int64)))
            self._keep(index, offsets[~np.isin(offsets, np.array(list(self._died), np.int64))])
        return Change([key for key in current if key not in was], [key for key in current if key in was],
                      list(dict.fromkeys(key for key in gone.values() if key not in current)))

    def _walk(self, index: Index, at: int, end: int, newest: dict[Any, int]) -> bool:
        """Find the newest entries in a part of the file, live or dead; False: it has a record that empties it all."""
        file = index.file
        w = self._window
        while at < end:
            record = fmt.decode_record(w.view, w.start, at, file.tag)
            at = record.end
            if record.entry:
                key, _ = decode_literal(w.view, record.content - w.start, record.body_end - w.start)
                newest.pop(key, None)
                newest[key] = record.offset
            elif record.live:
                kind, what = judge_hidden(w.view, record, w.start)
                if kind == CLEAR:
                    return False
                if kind in (DROP, REPLACE):
                    newest.pop(what, None)
        return True
