"""Logs: rows of named values, written one by one while a program runs, and read as columns.

One log is one item of a file: plain `pickle.load` gives a dict of numpy arrays, one for each name.
"""
from __future__ import annotations

import csv
import datetime
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

from . import growables
from .arrays import Column, GrowableInfo, Tree
from .growables import check_column
from .mapping import open as open_file
from .rows import Rows, Table

TEXT_LEAST = 8              # characters that a column of texts has room for, at least


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

    None is a missing value, and so are NaT, pandas' NA, and NaN among texts. Names that come later are missing in the
    rows before. A column of ints that gets a float becomes float64, and one of texts gets room for a longer one, twice
    as much as before: then the rows are copied.

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

    _what = "log"
    _caches = (*Table._caches, "_packing")

    def __init__(self, where: Any, name: Any = "log", *, mode: str = "a", **options: Any) -> None:
        super().__init__(where, name, mode, **options)
        self._packing: Any = None               # for rows of numbers: the columns, their names and types, and a Struct

    @staticmethod
    def _is_mine(tree: Tree) -> bool:
        return isinstance(tree, dict) and all(isinstance(column, Column) for column in tree.values())

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

    def extend(self, rows: Any) -> None:
        """Add several rows, in one step.

        Parameters
        ----------
        rows : iterable of mappings, mapping of str to list, or pandas.DataFrame
            Rows, or columns of one length.
        """
        if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
            rows = rows.to_dict("records")
        if isinstance(rows, Mapping):
            rows = _rows_of(rows, repr(self.name))
        found = []
        for row in rows:
            if not isinstance(row, Mapping):
                raise TypeError(f"a row is a dict, not {row!r}")
            found.append(dict(row))
        if found:
            self._add(found)

    def _add(self, rows: list[Any]) -> None:
        with self.d._mutex, self._alone():          # so that nobody changes the columns in between
            info = self._info()
            block = None if info is None else self._pack(rows, info)
            if block is None:
                old: Any = {} if info is None else info.tree
                new = _columns(rows, old, 0 if info is None else info.count)
                if info is not None and new is old:
                    block = _encode(rows, old, self._row_dtype(info))
                else:
                    if not new:
                        raise ValueError("a row of nothing but None in a log that has no columns yet")
                    block = _encode(rows, new, growables.row_dtype(new, growables.arrange_columns(new)))
                    self._change_columns(old, new)
            self._append(block)

    def _change_columns(self, old: dict[str, Column], new: dict[str, Column]) -> None:
        """Make the table, or give its rows other columns."""
        if not old:
            self._create(new)
            return
        found = self._tree()
        for name, column in old.items():
            dtype = new[name].dtype
            if column.dtype.kind + dtype.kind in _LOSSY and dtype != column.dtype and not _fits(found[name], dtype):
                raise TypeError(f"{name!r} would have to become {dtype}, which cannot hold exactly the {column.dtype} "
                                "that are there; log them as texts, or each row with one")
        places = {name: str(i) for i, name in enumerate(old)}

        def convert(rows: Rows, out: Rows) -> None:
            for i, (name, column) in enumerate(new.items()):
                out[str(i)] = rows[places[name]] if name in old else _missing(column.dtype)

        self._rearrange(new, convert)

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
        if isinstance(index, (int, np.integer)):
            return iter([self[index]])
        tree = self[index]
        lists = [column.tolist() if column.ndim == 1 and column.dtype.kind != "M" else list(map(_plain, column))
                 for column in tree.values()]
        return (dict(zip(tree, values)) for values in zip(*lists))

    def last(self, name: Optional[str] = None) -> Any:
        """Return the last row, or the last value of a column that is not missing; None if there is none."""
        if name is None:
            return self[-1] if len(self) else None
        tree = self._tree()
        if not tree:
            return None
        column = tree[name]
        there = np.flatnonzero(_is_there(column))
        return _plain(column[there[-1]]) if len(there) else None

    def min(self, name: str) -> Any:
        """Return the least value of a column, missing ones left out; None if there is none."""
        return self._extreme(name, np.min)

    def max(self, name: str) -> Any:
        """Return the greatest value of a column, missing ones left out; None if there is none."""
        return self._extreme(name, np.max)

    def _extreme(self, name: str, of: Callable[[Any], Any]) -> Any:
        tree = self._tree()
        if not tree:
            return None
        column = tree[name][_is_there(tree[name])]
        if column.dtype.kind in "US":
            column = np.sort(column)[[0, -1]] if len(column) else column
            return _plain(column[0 if of is np.min else -1]) if len(column) else None
        return _plain(of(column)) if len(column) else None

    def where(self, condition: Any = None, **equal: Any) -> dict[str, Any]:
        """Return the rows for which something holds, as a dict of arrays.

        Parameters
        ----------
        condition : function or mapping, optional
            Called with the dict of columns; returns a bool for each row, or numbers of rows. Or names that are no
            identifiers, and their values.
        **equal
            Names, and the values that they are to have. None, and NaN: the value is missing.

        Raises
        ------
        KeyError
            There is no such column.
        TypeError
            The function returns something else.

        Examples
        --------
        >>> with Log("doctest.mmapdict", mode="w") as log:
        ...     log.extend({"epoch": i, "loss": 1 / (i + 1)} for i in range(5))
        ...     log.where(lambda c: c["loss"] < 0.3)["epoch"].tolist()
        [3, 4]
        """
        tree: dict[str, Any] = self._tree()
        if isinstance(condition, Mapping):
            equal = {**condition, **equal}
        elif condition is not None:
            index = condition(tree)
            n = len(next(iter(tree.values()), ()))
            if not isinstance(index, slice):
                index = np.asarray(index)
                if index.ndim != 1 or index.dtype.kind not in "biu" or index.dtype.kind == "b" and len(index) != n:
                    raise TypeError(f"a condition gives a bool for each of {n} rows, or numbers of rows, not {index!r}")
            tree = {name: column[index] for name, column in tree.items()}
        for name, value in equal.items():
            there = _is_there(tree[name])
            keep = ~there if _is_missing(value) or value != value else there & (tree[name] == value)
            tree = {other: column[keep] for other, column in tree.items()}
        return tree

    def follow(self, timeout: Optional[float] = None, first: int = 0) -> Iterator[dict[str, Any]]:
        """Yield new rows as they are logged, by any process, each time as a dict of arrays; first those that are there.

        Parameters
        ----------
        timeout : float, optional
            In seconds: end when nothing came for so long. None: go on for ever.
        first : int
            Number of the first row: ``len(log)`` to see new ones only.

        Notes
        -----
        If the log is started anew, its rows come from the first one on.
        """
        seen, end, last = first, math.inf, None
        while True:
            place, tree = self._place(), self._tree()
            n = len(next(iter(tree.values()), ()))
            if last is not None and (n < seen or place != last[0] and not _has_row(tree, seen - 1, last[1])):
                seen = 0                        # another log
            if n > seen:
                yield {name: column[seen:] for name, column in tree.items()}
            if n and n >= seen:
                last = place, {name: np.array(column[n - 1]) for name, column in tree.items()}
            now = time.monotonic()
            if n > seen or end == math.inf:
                end = math.inf if timeout is None else now + timeout
            elif now >= end:                    # other items change all the time
                return
            seen = max(seen, n) if last is None else n
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
        if isinstance(content, dict):
            content = _rows_of(content, os.fspath(path))
        if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
            raise ValueError(f"{os.fspath(path)}: expected an object of lists, or a list of objects")
        self.extend(content)

    def read_csv(self, path: Any, delimiter: str = ",") -> None:
        """Add the rows of a CSV file whose first line has the names; spaces around names and values are left out.

        What is empty is missing. A column of whole numbers becomes int64 (but not if one starts with a needless 0), one
        of numbers float64, of ``True`` and ``False`` bool, of ISO dates and times datetime64; others become texts.

        Raises
        ------
        ValueError
            There are no names, one twice, or a line has more or fewer values. Nothing is added.
        """
        text = pathlib.Path(path).read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            lines = [[cell.strip() for cell in line] for line in reader if line]
        except csv.Error as exc:
            raise ValueError(f"{os.fspath(path)}, line {reader.line_num}: {exc}") from exc
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


def log(where: Any, name: Any = "log", *, mode: str = "a", **options: Any) -> Log:
    """Open, or begin, the log of a file.

    Parameters
    ----------
    where : path or MmapDict
    name : object
        Its key in the file.
    mode : str
        As for `mmapdict.open`: ``"w"`` starts the file anew, with all that is in it.
    **options
        As well: ``durable=True`` for logs that survive a power cut row by row.

    Returns
    -------
    Log

    Raises
    ------
    ValueError
        A mode in the place of the name, or one for a handle, which has its own.
    """
    return Log(where, name, mode=mode, **options)


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

    Raises
    ------
    KeyError
        No file has it, though one has such a log.

    Examples
    --------
    >>> for i in range(2):
    ...     with log(f"doctest{i}.mmapdict", mode="w") as run:
    ...         run.extend({"epoch": e, "loss": 1.0 / (1 + e + i)} for e in range(2))
    >>> {path: loss.tolist() for path, loss in compare(["doctest0.mmapdict", "doctest1.mmapdict"], "loss").items()}
    {'doctest0.mmapdict': [1.0, 0.5], 'doctest1.mmapdict': [0.5, 0.3333333333333333]}
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"compare takes a list of paths, not {paths!r}")
    found: dict[str, Any] = {}
    others: set[str] = set()
    for path in paths:
        with open_file(path, "r") as d:
            tree = Log(d, name)._tree()
            if column in tree and (x is None or x in tree):
                found[os.fsdecode(path)] = tree[column] if x is None else (tree[x], tree[column])
            others.update(tree)
    if others and not found:
        wanted = " and ".join(repr(part) for part in (column, x) if part is not None)
        raise KeyError(f"no log has {wanted}; there are {sorted(others)}")
    return found


# -- values and columns ----------------------------------------------------------------------------------------------

_LOSSY = frozenset(("if", "uf", "ic", "uc", "MM", "mm"))       # kinds of which not all values become the others


def _rows_of(columns: Mapping[str, Any], where: str) -> list[Any]:
    """Return the rows of a dict of columns."""
    lengths = {}
    for name, column in columns.items():
        if isinstance(column, (str, bytes, Mapping)) or not hasattr(column, "__len__"):
            raise ValueError(f"{where}: {name!r} is no list, but {column!r}")
        lengths[name] = len(column)
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{where}: lists of different lengths: {lengths}")
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _columns(rows: list[Any], old: dict[str, Column], before: int) -> dict[str, Column]:
    """Return the columns of a log that can hold these rows, too: `old` itself, if it can."""
    new = dict(old)
    lacking: set[str] = set()                   # where something is missing
    for row in rows:
        for name, value in row.items():
            known = new.get(name)
            t = type(value)
            if known is not None and not known.shape and (t is float and known.dtype.char == "d"
                                                          or t is int and known.dtype.char in "dlq"
                                                          and -2**53 <= value <= 2**53 and known.dtype.itemsize == 8):
                continue
            if type(name) is not str:
                raise TypeError(f"a column's name is a text, not {name!r}")
            if _is_missing(value) or known is not None and known.dtype.kind in "USmM" and t is float and value != value:
                lacking.add(name)
                continue
            array = _as_array(name, value)
            if known is None:
                new[name] = check_column(array.shape, array.dtype)
                continue
            if known.shape != array.shape:
                raise ValueError(f"{name!r} has values of shape {known.shape}, and this one has {array.shape}")
            if not _fits(array, known.dtype):
                new[name] = Column(known.shape, 0, _wider(known.dtype, array.dtype, name), 0)
    for name, column in new.items():
        if not _has_missing(column.dtype) and (name in lacking or before and name not in old
                                               or any(name not in row for row in rows)):
            new[name] = Column(column.shape, 0, np.dtype(float), 0)
    if new.keys() == old.keys() and all(new[name] is column for name, column in old.items()):
        return old
    return {name: Column(column.shape, 0, column.dtype, 0) for name, column in new.items()}


def _encode(rows: list[Any], tree: dict[str, Column], dtype: np.dtype[Any]) -> Rows:
    """Return rows as the file has them; the columns are those of `_columns`."""
    block = np.zeros(len(rows), dtype)
    for i, (name, column) in enumerate(tree.items()):
        target = block[str(i)]
        kind = column.dtype.kind
        for j, row in enumerate(rows):
            value = row.get(name)
            t = type(value)
            if t is float and kind == "f" and column.dtype.itemsize == 8 and not column.shape:
                target[j] = value
            elif _is_missing(value) or kind in "USmM" and t is float:
                target[j] = _missing(column.dtype)
            else:
                array = _as_array(name, value)
                if array.dtype.kind + kind in _LOSSY and not _fits(array, column.dtype):
                    raise TypeError(f"{name!r} is a column of {column.dtype}, which cannot hold {value} exactly")
                target[j] = array
    return block


def _as_array(name: str, value: Any) -> Any:
    """Return a value as an array of the dtype that a column of such values has."""
    if isinstance(value, (str, bytes)) and value[-1:] in ("\0", b"\0"):
        raise TypeError(f"{name!r}: {value!r} ends with a zero character, which numpy's texts cannot")
    if isinstance(value, str):
        return np.array(value, f"U{max(TEXT_LEAST, 1 << max(0, len(value) - 1).bit_length())}")
    if isinstance(value, int) and not isinstance(value, bool):
        if not -2**63 <= value < 2**63:
            raise TypeError(f"{name!r}: {value} has more than 64 bits")
        return np.array(value, "i8")
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        raise TypeError(f"{name!r}: a time with a time zone; store it as UTC without one")
    if isinstance(value, (datetime.date, datetime.timedelta)):
        value = np.datetime64(value) if isinstance(value, datetime.date) else np.timedelta64(value)
    try:
        array: Any = np.asarray(value)
    except (ValueError, UserWarning) as exc:    # numpy before 1.24 only warns of lists of different lengths
        raise ValueError(f"{name!r}: {value!r} is no array: {exc}") from exc
    if array.dtype.kind in "US" and isinstance(value, (list, tuple)) and array.tolist() != list(value):
        raise TypeError(f"{name!r}: {value!r} is no array of texts, or one ends with a zero character")
    if array.dtype.hasobject and isinstance(value, (list, tuple)):
        with suppress(TypeError, ValueError):
            array = np.array(value, float)      # None in it is NaN
    if isinstance(value, np.ma.MaskedArray) or array.dtype.kind not in "biufcmMUS" or array.dtype.hasobject:
        raise TypeError(f"{name!r}: a value of type {type(value).__name__} cannot stand in a log: expected a number, "
                        "a text, a time, or an array of them")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype in ("M8", "m8"):
        raise TypeError(f"{name!r}: a time without a unit")
    return array


def _is_missing(value: Any) -> bool:
    """Whether a value says that there is none."""
    return value is None or isinstance(value, (np.datetime64, np.timedelta64)) and bool(np.isnat(value)) \
        or type(value).__name__ in ("NaTType", "NAType")


def _has_row(tree: dict[str, Any], number: int, row: dict[str, Any]) -> bool:
    """Whether a row is still what it was, in the columns that it had."""
    for name, value in row.items():
        column = tree.get(name)
        if column is None or number >= len(column) or column.shape[1:] != value.shape:
            return False
        if value.dtype.kind in "SU" or column.dtype.kind in "SU":
            same = column[number] == value
        else:
            same = (column[number] == value) | (column[number] != column[number]) & (value != value)
        if not np.all(same):
            return False
    return True


def _has_missing(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fcmMUS"


def _missing(dtype: np.dtype[Any]) -> Any:
    """Return what stands for a missing value."""
    if dtype.kind in "mM":
        return np.array("NaT", dtype)[()]
    return {"f": math.nan, "c": math.nan, "U": "", "S": b""}.get(dtype.kind)


def _is_there(column: Any) -> Any:
    """Return where values of a column are not missing."""
    kind = column.dtype.kind
    there = ~np.isnan(column) if kind in "fc" else ~np.isnat(column) if kind in "mM" else column != "" if kind == "U" \
        else np.ones(column.shape, bool)
    return there if there.ndim < 2 else there.reshape(len(there), -1).any(axis=1)


def _fits(array: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a value can stand in a column of a dtype."""
    kinds = array.dtype.kind + dtype.kind
    if array.dtype == dtype:
        return True
    if "U" in kinds or "S" in kinds:
        return kinds in ("UU", "SS") and bool(array.dtype.itemsize <= dtype.itemsize)
    if kinds[1] in "fc" and kinds[0] in "iu":
        return growables.is_exact(array, np.empty(0, dtype).real.dtype)
    if kinds in ("MM", "mm"):
        return bool(np.can_cast(array.dtype, dtype, "safe")) and growables.same_times(array, dtype)
    if kinds == "ff":
        with np.errstate(over="ignore"):
            return bool((np.isfinite(array.astype(dtype)) | ~np.isfinite(array)).all())      # digits may get lost
    if kinds[0] in "iu" and kinds[1] in "iu":
        info = np.iinfo(dtype)
        return all(info.min <= n <= info.max for n in array.ravel().tolist())
    return kinds[0] == "b" and kinds[1] in "iuf" or kinds[0] != "b" and np.can_cast(array.dtype, dtype, "safe")


def _wider(a: np.dtype[Any], b: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return a dtype for the values of both."""
    kinds = {a.kind, b.kind}
    if len(kinds) == 1 and kinds <= set("USmM") or kinds <= set("biufc"):
        with suppress(TypeError):               # months and seconds
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
    """Return the cells of a column of CSV as numbers, bools or times, if they all are; what is empty is None."""
    for kind in (_number(int), _number(float), {"True": True, "False": False}.__getitem__, _time):
        try:
            return [kind(cell) if cell else None for cell in cells]
        except (ValueError, KeyError):
            continue
    return [cell or None for cell in cells]


def _time(cell: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(cell)
    if found.tzinfo is not None:
        raise ValueError(cell)                  # it stays a text
    return found


def _number(kind: type) -> Callable[[str], Any]:
    def number(cell: str) -> Any:
        digits = cell.lstrip("+-")
        if digits[:1] == "0" and digits[1:2].isdigit() or "_" in cell:
            raise ValueError(cell)              # 007 is a name
        return kind(cell)
    return number
