"""Index blocks in small files: most tests use a few keys, and files get a block with their 64th only."""

import contextlib
import os
import zlib

from mmapdict import table

# In these every second test has a block from the first key on: so what they sweep over is swept with and without.
MODULES = {"test_batch", "test_crash", "test_faults", "test_halfway", "test_kill", "test_limits", "test_many",
           "test_portable", "test_powercut", "test_seals", "test_stateful", "test_sync", "test_vacuum"}
VARIABLE = "MMAPDICT_TEST_BLOCKS"


def use():
    """Let every file have an index block, one that soon has to grow."""
    table.INDEX_FROM, table.SLOTS_MIN = 1, 8


@contextlib.contextmanager
def in_test(module, name, everywhere=False):
    """Do so in a test, if it is one of those, and in the processes that it starts."""
    if not everywhere and (module not in MODULES or zlib.crc32(name.encode()) & 1):
        yield False
        return
    import pytest                   # not in the processes that tests start

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "INDEX_FROM", 1)
        patch.setattr(table, "SLOTS_MIN", 8)
        patch.setenv(VARIABLE, "1")
        if module not in ("test_kill", "test_many"):
            # Files are written anew, byte by byte: the first writer would walk them, and mend what the second must.
            patch.setattr(table.Table, "is_of_a_copy", property(lambda block: False))
        yield True


if VARIABLE in os.environ:          # a process that a test has started
    use()
