"""A growing dictionary of big arrays in one file that is a valid pickle at every instant.

Reading the source, from low to high; each module imports only what stands before it:

- `errors`: every exception
- `format`: the bytes of header and records; pure functions
- `views`: arrays over a mapped file
- `values`: values <-> the opcodes of a record
- `store`: one open file: maps, lock, and every store into it
- `index`: keys -> offsets, and the sequences of stores that change them
- `mapping`: `MmapDict`
- `cli`, `demo`: the command line

The file format is specified in docs/format.md.
"""
from .errors import BusyError, ClosedError, CorruptError, FormatError, MmapDictError, ReadOnlyError
from .mapping import Change, Entry, MmapDict, open
from .views import memmap

__version__ = "0.1.0"

__all__ = ["BusyError", "Change", "ClosedError", "CorruptError", "Entry", "FormatError", "MmapDict", "MmapDictError",
           "ReadOnlyError", "memmap", "open"]
