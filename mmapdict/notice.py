"""To be told by the system when a file is written to, where it can do that: inotify, on Linux.

It tells of writes, and of what happens to the file's name; not of what is stored through a map. So whoever waits has to
look by himself now and then.
"""
from __future__ import annotations

import os
import select
import sys
import time
import weakref
from collections.abc import Generator
from contextlib import suppress
from itertools import islice
from typing import Any, Optional

from .store import poll_delays

PACE = 1.5e-3                   # seconds between two looks, as long as each shows something new
SLOW = 20e-3                    # between two looks, where writes are told
AFTER_WRITE = 50                # looks in quick succession when something was written, some 10 ms
IN_MODIFY, IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF = 0x2, 0x4, 0x400, 0x800
IN_CLOEXEC, IN_NONBLOCK = 0o2000000, 0o4000
EVENTS_SIZE = 4096


class Notice:
    """Tells when a file is written to, replaced or removed.

    Parameters
    ----------
    path : str

    Raises
    ------
    OSError
        The system has no such thing, or no more of them: a user may have 128.
    """

    def __init__(self, path: str) -> None:
        if sys.platform != "linux":
            raise OSError("no inotify")
        import ctypes                   # not every Python has it, and to load it takes longer than to open a file

        libc: Any = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.close = weakref.finalize(self, os.close, self._fd)
        if libc.inotify_add_watch(self._fd, os.fsencode(path), IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF
                                  | IN_MOVE_SELF) < 0:
            error = ctypes.get_errno()
            self.close()
            raise OSError(error, os.strerror(error), path)

    def wait(self, timeout: float) -> bool:
        """Wait until something happens, `timeout` seconds at most; say whether it did."""
        poll = select.poll()            # one for each thread
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(max(1, int(timeout * 1000))):
            return False
        try:
            os.read(self._fd, EVENTS_SIZE)
        except BlockingIOError:         # another thread was faster
            return False
        return True


class Noticing:
    """What a handle knows of when it has to look at its file; threads that wait share it.

    Attributes
    ----------
    path : str
    seen_at : float
        When a change was seen last, in seconds of `time.monotonic`.
    notice : Notice or None
        None: not asked for yet, or there is none.
    asked : bool
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.seen_at = -PACE
        self.notice: Optional[Notice] = None
        self.asked = False

    def rests(self) -> Generator[None, float, None]:
        """Rest until there may be a change, each time it is sent how long at most, in seconds.

        Where the system tells of writes, it sleeps until there is one, and only now and then in vain: a commit without
        a write is one of a few that need not be seen at once. Elsewhere it sleeps 0.1 ms at first and 1 ms after a
        while. Who sees changes in quick succession sleeps 1.5 ms in between.
        """
        most = yield
        pace = self.seen_at + PACE - time.monotonic()
        if pace > 0:
            time.sleep(min(pace, most))
            most = yield
        if not self.asked:
            self.asked = True
            with suppress(OSError, ImportError, AttributeError):
                self.notice = Notice(self.path)
                most = yield                        # what came before it was asked for is not told
        while self.notice is not None:
            if self.notice.wait(min(SLOW, most)):
                for delay in islice(poll_delays(), AFTER_WRITE):    # a write is followed by what makes it count
                    most = yield
                    time.sleep(min(delay, most))
            most = yield
        for delay in poll_delays():
            time.sleep(min(delay, most))
            most = yield
