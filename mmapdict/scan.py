"""Scan: what a plain `pickle.load` of a file would import. Nothing is imported, called or unpickled to find out."""
from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from . import format as fmt
from .errors import CorruptError, FormatError
from .format import Record
from .judging import judge_hidden
from .literals import decode_literal, shown
from .machine import Trace, trace
from .store import full_path, raw_bytes
from .trust import Trust

__all__ = ["Global", "ScanReport", "scan"]

ATTEMPTS = 10                       # at a file that grows meanwhile
# Values may name these, because mmapdict looks at what is to be done with them. A plain unpickler does anything with
# them: call any method of an object, or write over a file.
_ONLY_BY_RULE = frozenset((("builtins", "getattr"), ("operator", "methodcaller"), ("numpy", "memmap")))


class Global(NamedTuple):
    """A module's attribute that a plain `pickle.load` of the file looks up, and so may run.

    Attributes
    ----------
    module, name : str or None
        None: it is computed when the file is loaded, or cannot be a name; whatever it is, it is not allowed.
    times : int
        How often.
    offset : int
        Of the first opcode that does it, in bytes from the start of the file.
    key : object
        Of the first entry of an mmapdict file in which it is looked up; None if that is in no entry.
    in_entries : bool
        Whether it is looked up in entries of an mmapdict file.
    allowed : bool
        Whether mmapdict unpickles it without being asked to, and a plain `pickle.load` may do so as well. What the
        format itself needs (`dict.clear`, for instance) is allowed where it stands exactly as the format has it.
    """

    module: Optional[str]
    name: Optional[str]
    times: int
    offset: int
    key: Any
    in_entries: bool
    allowed: bool

    @property
    def full_name(self) -> str:
        """Module and name, "?" for what is not known."""
        return f"{'?' if self.module is None else self.module}.{'?' if self.name is None else self.name}"

    def __str__(self) -> str:
        where = f" of key {shown(self.key)}" if self.in_entries else ""
        times = "once" if self.times == 1 else f"{self.times:,} times"
        return (f"{'allowed    ' if self.allowed else 'NOT ALLOWED'}  {ascii(self.full_name)[1:-1]}  {times}, first at "
                f"offset {self.offset}{where}")


class ScanReport:
    """What `scan` found.

    Attributes
    ----------
    path : str
    globals : list of Global
        In the order in which a plain `pickle.load` comes to them.
    fault : str or None
        Why the file could not be followed up to its STOP; a `pickle.load` may go on where this did not.
    fault_offset : int or None
        Where.
    end : int
        Up to which offset it was followed.
    is_mmapdict : bool
        Whether it is an mmapdict file, to judge by its header.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.globals: list[Global] = []
        self.fault: Optional[str] = None
        self.fault_offset: Optional[int] = None
        self.end = 0
        self.is_mmapdict = False

    @property
    def ok(self) -> bool:
        """Whether all of the file could be followed, and all that it names is allowed."""
        return self.fault is None and all(found.allowed for found in self.globals)

    def __bool__(self) -> bool:
        raise TypeError("what shall it mean that a report is true? Use report.ok")

    def __repr__(self) -> str:
        return f"<ScanReport on {self.path!r}: {len(self.globals)} globals, {'ok' if self.ok else 'not ok'}>"

    def __str__(self) -> str:
        lines = [str(found) for found in self.globals]
        if self.fault is not None:
            lines.append(f"not followed beyond offset {self.fault_offset}: {self.fault}")
        refused = sum(not found.allowed for found in self.globals)
        verdict = "nothing is imported" if not self.globals and self.ok else \
            f"{len(self.globals)} names, all allowed" if self.ok else \
            f"{refused} of {len(self.globals)} names not allowed" + ("" if self.fault is None else "; damaged")
        lines.append(f"{self.path}: {verdict}")
        return "\n".join(lines)


def scan(path: Any) -> ScanReport:
    """List what a plain `pickle.load` of a file would import, without running anything.

    Parameters
    ----------
    path : str, bytes or os.PathLike
        Of an mmapdict file or any other pickle, of any protocol.

    Returns
    -------
    ScanReport
        Print it, or look at its `ok` and `globals`.

    Raises
    ------
    FormatError
        It is no pickle.
    OSError
        It cannot be read.

    Notes
    -----
    O(opcodes): all of the stream is followed as an unpickler follows it, up to its STOP, the bytes of arrays and dead
    records are passed over as it does. That a name is allowed does not say that all that is done with it is.
    """
    name = full_path(path)
    for attempt in range(ATTEMPTS):
        with raw_bytes(name) as view:
            report, size = _scan(name, view), len(view)
        if report.fault is None or not report.is_mmapdict:
            break
        with raw_bytes(name) as view:
            if len(view) == size:
                break                       # else a writer has added something meanwhile
        time.sleep(0.001 * 2 ** attempt)
    return report


def _scan(path: str, view: memoryview) -> ScanReport:
    report = ScanReport(path)
    report.is_mmapdict = len(view) > fmt.HEADER_SIZE and view[:fmt.BLOCK_OFFSET] == fmt.HEADER_HEAD \
        and view[fmt.MAGIC_OFFSET:fmt.VERSION_OFFSET] == fmt.MAGIC
    found: list[tuple[int, Optional[str], Optional[str]]] = []
    try:
        followed: Trace = trace(view, proto=0, sparse=report.is_mmapdict, found=found)
        if not followed.stopped:
            raise CorruptError("the file ends without a STOP", None, followed.end)
        report.end = followed.end
    except CorruptError as exc:
        if not found and not report.is_mmapdict and not _looks_like_pickle(view):
            raise FormatError(f"no pickle: {exc.message}" if len(view) else "no pickle: it is empty", path,
                              exc.offset) from exc
        report.fault, report.fault_offset = exc.message, exc.offset
        report.end = exc.offset or 0
    records = list(_records(view)) if found and report.is_mmapdict else []
    starts = [record.offset for record in records]
    rows: dict[tuple[Optional[str], Optional[str], bool, bool], list[Any]] = {}
    for offset, module, name in found:
        i = bisect_right(starts, offset) - 1
        record = records[i] if i >= 0 and offset < records[i].end else None
        entry = record is not None and record.entry
        ours = record is not None and not entry and _is_known(view, record)
        row = rows.setdefault((module, name, entry, ours), [0, offset, record])
        row[0] += 1
    trust = Trust()
    for (module, name, entry, ours), (count, offset, record) in rows.items():
        allowed = ours or module is not None and name is not None and _is_allowed(trust, module, name)
        key = _key(view, record) if entry else None
        report.globals.append(Global(module, name, count, offset, key, entry, allowed))
    return report


def _is_allowed(trust: Trust, module: str, name: str) -> bool:
    return (module, name) not in _ONLY_BY_RULE and trust._rule((module, name)) is not None


def _looks_like_pickle(view: memoryview) -> bool:
    """Whether a file starts with PROTO and a protocol, as all pickles since protocol 2 do."""
    return len(view) > 1 and view[0] == fmt.PROTO and view[1] <= 5


def _records(view: memoryview) -> Iterator[Record]:
    """Yield the records that are found by walking, as far as they are whole."""
    at, tag = fmt.HEADER_SIZE, fmt.file_tag(bytes(view[fmt.FILE_ID_OFFSET:fmt.COMMIT_OFFSET]))
    try:
        while view[at] != fmt.STOP:
            record = fmt.decode_record(view, 0, at, tag)
            yield record
            at = record.end
    except (CorruptError, IndexError):
        return


def _key(view: memoryview, record: Record) -> Any:
    try:
        return decode_literal(view, record.content, record.body_end)[0]
    except CorruptError:
        return None


def _is_known(view: memoryview, record: Record) -> bool:
    """Whether a hidden record does exactly what one of this format's does, and nothing else."""
    try:
        judge_hidden(view, record)
    except CorruptError:
        return False
    return True
