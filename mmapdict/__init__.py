"""A growing dictionary of big arrays in one file that is a valid pickle at every instant.

>>> import mmapdict, numpy
>>> with mmapdict.open("doctest.mmapdict", "w") as d:
...     d["dark"] = numpy.zeros((480, 640), "u2")
...     scan = d.create(("scan", 0), (480, 640), "u2")
...     scan[7] = 1                                     # is in the file; other processes see it

- `open` opens a file and gives a `MmapDict`, which has all methods and their help
- `verify` checks a file, `repair` copies what is whole of a damaged one, `scan` lists what `pickle.load` would import
- what they report: `Report` and its `Fault`, `RepairReport` and its `Lost`, `ScanReport` and its `Global`
- `log` opens a `Log` of named values, `compare` compares several; `samples` opens a `SampleStore` of arrays by id
- `Entry` is what `MmapDict.entry` returns, `Change` what `MmapDict.watch` yields; `Batch`, `Exclusive` and `Extension`
  are what `batch`, `exclusive` and `extend` return
- `memmap` is the type of the arrays that are handed out
- errors: `MmapDictError`, and of its kind `FormatError`, `CorruptError`, `ReadOnlyError`, `ClosedError`, `BusyError`,
  `UntrustedError`

Reading the source, from low to high; each module imports only what stands before it:

- `errors`: every exception
- `format`: the bytes of header and records; pure functions
- `machine`: opcodes run without doing what they say
- `views`: arrays over a mapped file
- `literals`, `arrays`, `pickling`, `values`: keys and values <-> the opcodes of a record
- `trust`, with its `rules` and those for other `libraries`: what an untrusted value may be made of
- `seals`: checksums
- `judging`, `finding`: what may stand in a record, and where records are in damaged bytes
- `store`: one open file: maps, locks, and every store into it
- `birth`: how a file comes to be, or takes the place of another
- `index`: keys -> offsets, and the sequences of stores that change them
- `copying`, `vacuum`, `repair`: records copied into a new file
- `scan`, `verify`: a file looked at as a whole
- `dictviews`: what `entry`, `keys`, `values` and `items` give
- `growables`: arrays that grow
- `blocks`: what `batch`, `exclusive` and `extend` give
- `mapping`: `MmapDict`
- `rows`, `logs`, `samples`: tables of growable columns
- `cli`, `demo`: the command line

The file format is specified in docs/format.md.
"""
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import (BusyError, ClosedError, CorruptError, FormatError, MmapDictError, ReadOnlyError,
                     UntrustedError)
from .blocks import Batch, Exclusive, Extension
from .mapping import MmapDict, open
from .views import memmap

if TYPE_CHECKING:
    from .dictviews import Entry
    from .logs import Log, compare, log
    from .repair import Lost, RepairReport, repair
    from .samples import SampleStore, samples
    from .scan import Global, ScanReport, scan
    from .verify import Fault, Report, verify
    from .watching import Change

__version__ = "0.1.0"

__all__ = ["Batch", "BusyError", "Change", "ClosedError", "CorruptError", "Entry", "Exclusive", "Extension", "Fault",
           "FormatError", "Global", "Log", "Lost", "MmapDict", "MmapDictError", "ReadOnlyError", "RepairReport",
           "Report", "SampleStore", "ScanReport", "UntrustedError", "compare", "log", "memmap", "open", "repair",
           "samples", "scan", "verify"]

# Names whose modules are imported when they are first asked for: who opens a file and reads an array needs none of
# them, and would wait for them in every new process.
_LATER = {"Change": "watching", "Entry": "dictviews", "Fault": "verify", "Global": "scan", "Log": "logs",
          "Lost": "repair", "RepairReport": "repair", "Report": "verify", "SampleStore": "samples",
          "ScanReport": "scan", "compare": "logs", "log": "logs", "repair": "repair", "samples": "samples",
          "scan": "scan", "verify": "verify"}


if not TYPE_CHECKING:                   # else every misspelt name would be one of the package
    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


class _Package(ModuleType):
    """This module: `repair` and others stay functions when their modules, which have the same names, come."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _LATER.get(name) == name:
            value = getattr(value, name)        # Python makes each module that it imports an attribute of its package
        super().__setattr__(name, value)


import_module(__name__).__class__ = _Package
