"""Logs: rows of named values, written one by one while a program runs, and read as columns.

One log is one item of a file: plain `pickle.load` gives a dict of numpy arrays, one for each name.
"""
from __future__ import annotations

import csv
import datetime
import errno
import io
import json
import math
import os
import pathlib
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Optional

import numpy as np

from .arrays import Column, GrowableInfo
from .errors import BusyError
from .growables import check_column
from .mapping import open as open_file
from .rows import Rows, Table

ATTEMPTS = 20               # to write rows while others change the columns
TEXT_LEAST = 8              # characters that a column of texts has room for, at least
ROWS_AT_ONCE = 4096         # that are imported in one step


class Log(Table):
    """A log: rows of named values.

    Made by `mmapdict.log`. A name gets its column, and that its dtype, with its first value:

    ================================  =====================  =================
    value                             column                 a missing value
    ================================  =====================  =================
    float                             float64                NaN
    int                               int64                  the column becomes float64, NaN
    bool                              bool                   the column becomes float64, NaN
    str                               text, as long as the longest  ``""``
    datetime, date, timedelta         datetime64, timedelta64  NaT
    numpy scalar                      its dtype              as above
    list or array of numbers          array of that shape    NaN, as above
    ================================  =====================  =================

    None is a missing value. Names that come later are missing in the rows before. A column of ints that gets a float
    becomes float64, and one of texts gets room for a longer one: then the rows are copied, once.

    Parameters
    ----------
    where : path or MmapDict
    name : object
        Key of the log in the file: several logs can stand in one, and several processes write to them.
    mode : str
    **options
        As for `mmapdict.open`.

    Examples
    --------
    >>> with Log("doctest.mmapdict", mode="w") as log:
    ...     for epoch in range(3):
    ...         log.add(epoch=epoch, loss=1 / (epoch + 1))
    ...     log.add(epoch=3, loss=0.25, note="best")
    ...     log["loss"].tolist(), log.min("loss"), log[-1]
    ([1.0, 0.5, 0.3333333333333333, 0.25], 0.25, {'epoch': 3, 'loss': 0.25, 'note': 'best'})
    """

    def __init__(self, where: Any, name: Any = "log", mode: str = "a", **options: Any) -> None:
        super().__init__(where, name, mode, **options)
        self._packing: Any = None               # for rows of numbers: the columns, their names and types, and a Struct

    # -- writing ------------------------------------------------------------------------------------------------

    def add(self, values: Optional[Mapping[str, Any]] = None, /, **named: Any) -> None:
        """Add one row. When the call returns it is seen by others, and the death of this process cannot take it back.

        Parameters
        ----------
        values : mapping of str to value, optional
            For names that are no identifiers.
        **named
            The others.

        Raises
        ------
        TypeError, ValueError
            A value does not fit its column. Nothing is written.
        OSError, ReadOnlyError, BusyError
        """
        row = {**values, **named} if values else named
        if not row:
            raise ValueError("a row without values")
        self._add([row])

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add several rows, in one step."""
        found = [dict(row) for row in rows]
        if found:
            self._add(found)

    def _add(self, rows: list[Any]) -> None:
        with self.d.exclusive():                # so that nobody changes the columns in between
            for _ in range(ATTEMPTS):
                info = self._info()
                block = None if info is None else self._pack(rows, info)
                if block is None and info is not None:
                    block = self._encode(rows, info)
                if block is not None:
                    self._append(block)
                    return
                self._make_columns(rows, info)
            raise BusyError(errno.EAGAIN, f"the columns of {self.name!r} do not keep still", self.d.path)

    def _pack(self, rows: list[Any], info: GrowableInfo) -> Optional[Rows]:
        """Do as `_encode`, faster, for one row of just the ints and floats that the columns have; else None."""
        if self._packing is None or self._packing[0] is not info.tree:
            columns: Any = info.tree
            kinds = [column.dtype.char if not column.shape and column.dtype.isnative else "?"
                     for column in columns.values()]
            plain = all(kind in "dl" and column.dtype.itemsize == 8 and column.offset == 8 * i
                        for i, (kind, column) in enumerate(zip(kinds, columns.values())))
            pack = struct.Struct("=" + "".join(kinds).replace("l", "q")).pack if plain else None
            types = [int if kind == "l" else float for kind in kinds]
            self._packing = info.tree, list(columns), types, pack
        _, names, types, pack = self._packing
        row = rows[0]
        if pack is None or len(rows) > 1 or len(row) != len(names):
            return None
        values = [row.get(name) for name in names]
        if list(map(type, values)) != types:
            return None
        try:
            return np.frombuffer(pack(*values), np.uint8).view(self._row_dtype(info))
        except struct.error:                    # an int of more than 64 bits
            return None

    def _encode(self, rows: list[Any], info: GrowableInfo) -> Optional[Rows]:
        """Return rows as the file has them; None: columns are missing, or do not do."""
        tree: Any = info.tree
        block = np.zeros(len(rows), self._row_dtype(info))
        for i, (name, column) in enumerate(tree.items()):
            kind = column.dtype.kind
            target = block[str(i)]
            for j, row in enumerate(rows):
                value = row.get(name)
                t = type(value)
                if t is float and kind == "f" or t is int and kind in "if" and -2**53 <= value <= 2**53 \
                        and column.dtype.itemsize == 8 and not column.shape:
                    target[j] = value
                elif value is None:
                    if not _has_missing(column.dtype):
                        return None
                    target[j] = _missing(column.dtype)
                else:
                    new = _column_of(name, value)
                    if new.shape != column.shape:
                        raise ValueError(f"{name!r} has values of shape {column.shape}, and this one has {new.shape}")
                    if not _fits(new.dtype, column.dtype, name):
                        return None
                    if kind == "f" and t is int and abs(value) > 2**53:
                        raise TypeError(f"{name!r} is a column of {column.dtype}, which cannot hold {value} exactly")
                    target[j] = np.array(value, float) if isinstance(value, (list, tuple)) and kind == "f" else value
        if any(name not in tree for row in rows for name in row if row[name] is not None):
            return None
        return block

    def _make_columns(self, rows: list[Any], info: Optional[GrowableInfo]) -> None:
        """Make the table, or give it columns that can hold these rows."""
        old: dict[str, Column] = {} if info is None else dict(info.tree)       # type: ignore[arg-type]
        new = {name: Column(column.shape, 0, column.dtype, 0) for name, column in old.items()}
        for row in rows:
            for name, value in row.items():
                if type(name) is not str:
                    raise TypeError(f"a column's name is a text, not {name!r}")
                if value is None:
                    continue
                column = _column_of(name, value)
                known = new.get(name)
                if known is None:
                    new[name] = column
                elif known.shape != column.shape:
                    raise ValueError(f"{name!r} has values of shape {known.shape}, and this one has {column.shape}")
                elif not _fits(column.dtype, known.dtype, name):
                    known.dtype = _wider(known.dtype, column.dtype, name)
        before = 0 if info is None else info.count
        for name, column in new.items():
            if (before and name not in old or any(row.get(name) is None for row in rows)) \
                    and not _has_missing(column.dtype):
                column.dtype = np.dtype(float)
        if not new:
            raise ValueError("a row of nothing but None in a log that has no columns yet")
        if info is None:
            self._create(new)
            return
        places = {name: str(i) for i, name in enumerate(old)}

        def convert(rows: Rows, out: Rows) -> None:
            for i, (name, column) in enumerate(new.items()):
                out[str(i)] = rows[places[name]] if name in old else _missing(column.dtype)

        self._rearrange(new, convert)

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order in which they came."""
        return list(self._tree())

    def __contains__(self, name: object) -> bool:
        return name in self._tree()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows()

    def __getitem__(self, index: Any) -> Any:
        """Return a column (a str), a row (an int) as a dict, or some rows (a slice, a mask) as a dict of arrays.

        Columns and slices are views of the file: no value is copied, and what is logged later is not in them.
        """
        tree = self._tree()
        if isinstance(index, str):
            if index not in tree:
                raise KeyError(index)
            return tree[index]
        if isinstance(index, (int, np.integer)):
            n = len(next(iter(tree.values()), ()))
            if not -n <= index < n:
                raise IndexError(f"row {index} of {n}")
            return {name: _plain(column[index]) for name, column in tree.items()}
        return {name: column[index] for name, column in tree.items()}

    def rows(self, index: Any = slice(None)) -> Iterator[dict[str, Any]]:
        """Return an iterator over rows, as dicts of Python values."""
        tree = self[index]
        lists = [column.tolist() if column.ndim == 1 and column.dtype.kind != "M" else list(map(_plain, column))
                 for column in tree.values()]
        return (dict(zip(tree, values)) for values in zip(*lists))

    def last(self, name: Optional[str] = None) -> Any:
        """Return the last row, or the last value of a column that is not missing; None if there is none."""
        if name is None:
            return self[-1] if len(self) else None
        column = self[name]
        there = np.flatnonzero(_is_there(column))
        return _plain(column[there[-1]]) if len(there) else None

    def min(self, name: str) -> Any:
        """Return the least value of a column, missing ones left out; None if there is none."""
        return self._extreme(name, np.min)

    def max(self, name: str) -> Any:
        """Return the greatest value of a column, missing ones left out; None if there is none."""
        return self._extreme(name, np.max)

    def _extreme(self, name: str, of: Callable[[Any], Any]) -> Any:
        column = self[name]
        column = column[_is_there(column)]
        if column.dtype.kind in "US":
            column = np.sort(column)[[0, -1]] if len(column) else column
            return _plain(column[0 if of is np.min else -1]) if len(column) else None
        return _plain(of(column)) if len(column) else None

    def where(self, condition: Optional[Callable[[dict[str, Any]], Any]] = None, **equal: Any) -> dict[str, Any]:
        """Return the rows for which something holds, as a dict of arrays.

        Parameters
        ----------
        condition : function, optional
            Called with the dict of columns; returns an array of bools, or indices.
        **equal
            Names, and the values that they are to have.

        Examples
        --------
        >>> with Log("doctest.mmapdict", mode="w") as log:
        ...     log.extend({"epoch": i, "loss": 1 / (i + 1)} for i in range(5))
        ...     log.where(lambda c: c["loss"] < 0.3)["epoch"].tolist()
        [3, 4]
        """
        tree = self._tree()
        index: Any = slice(None) if condition is None else condition(tree)
        found = {name: column[index] for name, column in tree.items()}
        for name, value in equal.items():
            if name not in found:
                raise KeyError(name)
            keep = found[name] == value
            found = {other: column[keep] for other, column in found.items()}
        return found

    def follow(self, timeout: Optional[float] = None) -> Iterator[dict[str, Any]]:
        """Yield new rows as they are logged, by any process, each time as a dict of arrays; first those that are there.

        Parameters
        ----------
        timeout : float, optional
            In seconds: end when nothing came for so long. None: go on for ever.
        """
        seen, end = 0, math.inf
        while True:
            tree = self._tree()
            n = len(next(iter(tree.values()), ()))
            if n > seen:
                yield {name: column[seen:] for name, column in tree.items()}
            now = time.monotonic()
            if n > seen or end == math.inf:
                end = math.inf if timeout is None else now + timeout
            elif now >= end:                    # other items change all the time
                return
            seen = n
            if not self.d.wait(None if timeout is None else max(0.0, end - now)):
                return

    # -- other forms --------------------------------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame; columns of arrays become columns of objects."""
        import pandas

        return pandas.DataFrame({name: column if column.ndim == 1 else list(column)
                                 for name, column in self._tree().items()})

    def to_json(self, path: Any) -> None:
        """Write a JSON file: an object of lists, one for each column.

        Missing values become null, times and bytes become texts. Infinite numbers become ``Infinity``, which Python's
        json reads.
        """
        content = {name: [_json(value) for value in column.tolist()] if column.dtype.kind not in "mM"
                   else [None if np.isnat(value) else str(value) for value in column]
                   for name, column in self._tree().items()}
        pathlib.Path(path).write_text(json.dumps(content), encoding="utf-8")

    def to_csv(self, path: Any) -> None:
        """Write a CSV file with a line of names first. Missing values are empty, arrays are lists in one cell."""
        tree = self._tree()
        lists = [["" if missing else value for value, missing in zip(
                  map(str, column) if column.dtype.kind in "mM" else map(_json, column.tolist()), ~_is_there(column))]
                 for column in tree.values()]
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(tree)
        writer.writerows(zip(*lists))
        pathlib.Path(path).write_bytes(text.getvalue().encode())

    def read_json(self, path: Any) -> None:
        """Add the rows of a JSON file: an object of lists of one length, or a list of objects.

        Raises
        ------
        ValueError
            It is neither. Nothing is added.
        """
        try:
            content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except ValueError as exc:
            raise ValueError(f"{os.fspath(path)}: no JSON: {exc}") from exc
        if isinstance(content, dict) and all(isinstance(column, list) for column in content.values()):
            sizes = {name: len(column) for name, column in content.items()}
            if len(set(sizes.values())) > 1:
                raise ValueError(f"{os.fspath(path)}: lists of different lengths: {sizes}")
            content = [dict(zip(content, values)) for values in zip(*content.values())]
        if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
            raise ValueError(f"{os.fspath(path)}: expected an object of lists, or a list of objects")
        self.extend(content)

    def read_csv(self, path: Any) -> None:
        """Add the rows of a CSV file whose first line has the names; spaces around names and values are left out.

        A column of whole numbers becomes int64, one of numbers float64, others texts; what is empty is missing.
        """
        text = pathlib.Path(path).read_bytes().decode("utf-8-sig")
        lines = [[cell.strip() for cell in line] for line in csv.reader(io.StringIO(text, newline="")) if line]
        if not lines:
            raise ValueError(f"{os.fspath(path)}: no line of names")
        names = lines[0]
        if len(set(names)) < len(names):
            raise ValueError(f"{os.fspath(path)}: a name is there twice: {names}")
        for number, line in enumerate(lines[1:], 2):
            if len(line) != len(names):
                raise ValueError(f"{os.fspath(path)}: {len(line)} values in line {number}, expected {len(names)}")
        columns = [_parsed([line[i] for line in lines[1:]]) for i in range(len(names))]
        self.extend(dict(zip(names, values)) for values in zip(*columns))


def log(where: Any, name: Any = "log", mode: str = "a", **options: Any) -> Log:
    """Open, or begin, the log of a file.

    Parameters
    ----------
    where : path or MmapDict
    name : object
        Its key in the file.
    mode : str
        As for `mmapdict.open`.
    **options
        As well: ``durable=True`` for logs that survive a power cut row by row.

    Returns
    -------
    Log
    """
    return Log(where, name, mode, **options)


def compare(paths: Iterable[Any], column: str, x: Optional[str] = None, name: Any = "log") -> dict[str, Any]:
    """Return one column of several logs.

    Parameters
    ----------
    paths : iterable of paths
        Of files; they may be written to at this moment.
    column : str
    x : str, optional
        Another column to go with it.
    name : object
        Of the log in each file.

    Returns
    -------
    dict
        For each path (as a str) the array; with `x` a pair of arrays. Files without that log or column are left out.

    Examples
    --------
    >>> for i in range(2):
    ...     with log(f"doctest{i}.mmapdict", mode="w") as run:
    ...         run.extend({"epoch": e, "loss": 1.0 / (1 + e + i)} for e in range(2))
    >>> {path: loss.tolist() for path, loss in compare(["doctest0.mmapdict", "doctest1.mmapdict"], "loss").items()}
    {'doctest0.mmapdict': [1.0, 0.5], 'doctest1.mmapdict': [0.5, 0.3333333333333333]}
    """
    found: dict[str, Any] = {}
    for path in paths:
        with open_file(path, "r") as d:
            tree = Log(d, name)._tree()
            if column in tree and (x is None or x in tree):
                found[os.fsdecode(path)] = tree[column] if x is None else (tree[x], tree[column])
    return found


# -- values and columns ----------------------------------------------------------------------------------------------

def _column_of(name: str, value: Any) -> Column:
    """Return the column that a first value asks for."""
    if isinstance(value, (str, bytes)) and value[-1:] in ("\0", b"\0"):
        raise TypeError(f"{name!r}: {value!r} ends with a zero character, which numpy's texts cannot")
    if isinstance(value, str):
        width = max(TEXT_LEAST, 1 << max(0, len(value) - 1).bit_length())
        return Column((), 0, np.dtype(f"U{width}"), 0)
    if isinstance(value, bool):
        return Column((), 0, np.dtype(bool), 0)
    if isinstance(value, int):
        if not -2**63 <= value < 2**63:
            raise TypeError(f"{name!r}: {value} has more than 64 bits")
        return Column((), 0, np.dtype("i8"), 0)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        raise TypeError(f"{name!r}: a time with a time zone; store it as UTC without one")
    if isinstance(value, (datetime.date, datetime.timedelta)):
        value = np.datetime64(value) if isinstance(value, datetime.date) else np.timedelta64(value)
    array: Any = np.asarray(value)
    if array.dtype.hasobject and isinstance(value, (list, tuple)):
        with suppress(TypeError, ValueError):
            array = np.array(value, float)      # None in it is NaN
    if isinstance(value, np.ma.MaskedArray) or array.dtype.kind not in "biufcmMUS" or array.dtype.hasobject:
        raise TypeError(f"{name!r}: a value of type {type(value).__name__} cannot stand in a log: expected a number, "
                        "a text, a time, or an array of them")
    dtype = array.dtype.newbyteorder("=")
    if dtype in ("M8", "m8"):
        raise TypeError(f"{name!r}: a time without a unit")
    return check_column(array.shape, dtype)


def _has_missing(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fcmMUS"


def _missing(dtype: np.dtype[Any]) -> Any:
    """Return what stands for a missing value."""
    return {"f": math.nan, "c": math.nan, "U": "", "S": b""}.get(dtype.kind) if dtype.kind not in "mM" \
        else dtype.type("NaT")


def _is_there(column: Any) -> Any:
    """Return where values of a column are not missing."""
    kind = column.dtype.kind
    there = ~np.isnan(column) if kind in "fc" else ~np.isnat(column) if kind in "mM" else column != "" if kind == "U" \
        else np.ones(column.shape, bool)
    return there if there.ndim < 2 else there.reshape(len(there), -1).any(axis=1)


def _fits(value: np.dtype[Any], column: np.dtype[Any], name: str) -> bool:
    """Whether values of one dtype can stand in a column of another."""
    if value.kind in "US" or column.kind in "US":
        return value.kind == column.kind and value.itemsize <= column.itemsize
    if value.kind in "biu" and column.kind == "f" or value.kind == "b" and column.kind in "iu":
        return True                     # what is missing is NaN
    return value == column or value.kind != "b" and np.can_cast(value, column, "safe") \
        or value.kind == column.kind == "f"


def _wider(a: np.dtype[Any], b: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return a dtype for the values of both."""
    kinds = {a.kind, b.kind}
    if len(kinds) == 1 and kinds <= set("USmM") or kinds <= set("biufc"):
        return np.promote_types(a, b)
    raise TypeError(f"{name!r} is a column of {a}, which cannot hold {b}")


def _plain(value: Any) -> Any:
    """Return an element as a Python value; an array stays one, and what is missing is None if no number can say so."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return None if np.isnat(value) else value.item() if not isinstance(value.item(), int) else value
    return value.item()


def _json(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_json, value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, complex):
        return str(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _parsed(cells: list[str]) -> list[Any]:
    """Return the cells of a column of CSV as numbers, if they all are."""
    for kind in (int, float):
        try:
            return [kind(cell) if cell else None for cell in cells]
        except ValueError:
            continue
    return [cell or None for cell in cells]
