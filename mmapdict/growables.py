"""Arrays that grow: how they are laid out, and how rows are added, taken away and given back.

A growable value is one or several arrays over the same bytes. Their number of rows is a cell of its own that all of
them fetch: rows are written where nobody looks, and then the cell is stored. docs/format.md has the grammar, and says
why the room of a published record never grows, and is given back without moving what stands behind it (I18).
"""
from __future__ import annotations

import errno
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from . import format as fmt
from .arrays import (BYTES_OF_ROWS, COPY_MAX, COUNT, GROWS, ROWS_HEAD, TREE_DEPTH, Column, GrowableInfo, Tree,
                     columns_of, decode_info, encode_dtype)
from .errors import BusyError
from .format import Payload
from .literals import encode_literal, key_parts
from .store import ZERO_STEP, File, ordered_cells
from .values import Encoded

if TYPE_CHECKING:
    from .writer import Writer

Parts = list[Union[bytes, Payload]]

_CLOSE = b"0C\x02\0\x000"         # POP, and a filler; behind it stand SETITEM and POP_MARK
LAST = len(_CLOSE)
ROWS_LEAST = 4096               # bytes of room that an array without a hint gets
STEP_FREE = 64 << 20            # bytes: a smaller array gets twice the room when it is full, a larger one half again
COUNT_MAX = 1 << 48             # rows
GROWING_MAX = 1 << 12           # arrays that a handle keeps in mind
OWN_STEP = 1 << 20              # bytes
STORE_MAX = 1 << 12             # bytes of rows that are stored through the map; to write more is faster
INLINE_MAX = 1 << 16            # bytes of rows that are written with their record; more are copied inside the kernel


_EXACT = {"e": 1 << 11, "f": 1 << 24, "d": 1 << 53}        # up to here floats of that kind hold every int


# -- laying out -------------------------------------------------------------------------------------------------------

def check_column(shape: tuple[int, ...], dtype: np.dtype[Any], axis: int = 0) -> Column:
    """Return a column for rows of that shape; a dtype that is a sub-array gives it further axes.

    Raises
    ------
    TypeError
        The dtype holds objects, or cannot be told exactly by plain text.
    ValueError
        There is no such axis, or numpy can have no such array.
    """
    element = np.empty((), dtype)
    shape, dtype = shape + element.shape, element.dtype
    if encode_dtype(dtype) is None:
        why = "it holds Python objects" if dtype.hasobject else "it has metadata or a type of its own"
        raise TypeError(f"an array of dtype {dtype!r} cannot be mapped: {why}")
    if not -1 - len(shape) <= axis <= len(shape):
        raise ValueError(f"axis {axis}: rows of shape {shape} make an array of {len(shape) + 1} axes")
    column = Column(shape, axis if axis >= 0 else axis + len(shape) + 1, dtype, 0)
    try:
        # Nobody could load a file with an array that numpy cannot make, so ask it; all strides 0: no memory.
        np.ndarray(column.shape_of(1), dtype, bytes(dtype.itemsize), 0, (0,) * (len(shape) + 1))
        if column.nbytes >= 1 << 55:
            raise OverflowError("a row has too many bytes")
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"an array of rows of shape {shape}, dtype {dtype} cannot be: {exc}") from exc
    return column


def arrange_columns(tree: Tree) -> int:
    """Give the columns of a tree their places in a row; return how many bytes a row has.

    Those whose dtype asks for the widest alignment come first, so that as little as possible is between them.
    """
    columns = sorted(columns_of(tree), key=lambda column: -column.dtype.alignment)
    at = 0
    for column in columns:
        at += -at % column.dtype.alignment
        column.offset = at
        at += column.nbytes
    return at + -at % max((column.dtype.alignment for column in columns), default=1)


def _tree_ops(tree: Tree, memo: int, row_nbytes: int, depth: int = 0) -> bytes:
    if not isinstance(tree, Column):
        if depth >= TREE_DEPTH:
            raise ValueError(f"columns in dicts that are nested more than {TREE_DEPTH} deep")
        return b"}(" + b"".join(encode_literal(name) + _tree_ops(part, memo, row_nbytes, depth + 1)
                                for name, part in tree.items()) + b"u"
    dtype = encode_dtype(tree.dtype)
    assert dtype is not None
    sizes = [encode_literal(n) for n in tree.shape]
    sizes.insert(tree.axis, _get(memo))
    return (GROWS[:2] + b"((" + b"".join(sizes) + b"t" + dtype.ops + _get(memo + 1)
            + encode_literal(ROWS_HEAD + tree.offset) + encode_literal(tree.strides(row_nbytes)) + b"t\x81")


def _get(memo: int) -> bytes:
    return b"j" + memo.to_bytes(4, "little")


def _put(memo: int) -> bytes:
    return b"r" + memo.to_bytes(4, "little") + b"0"


def whole_room(tree: Tree, nbytes: int) -> int:
    """Return how many bytes for rows there have to be: numpy makes no array that starts behind its buffer's end.

    They end at a multiple of 8.
    """
    room = max(nbytes, *(column.offset for column in columns_of(tree)))
    return room + -room % 8


def tail_ops(tree: Tree, memo: int, row_nbytes: int) -> bytes:
    """Return the opcodes that stand behind the rows, and two fillers.

    The first of them ends `LAST` bytes before the value does, at a multiple of 8: a bytes object that begins before,
    when room was given back, ends there too.
    """
    ops = b"\x85R" + _put(memo + 1) + _tree_ops(tree, memo, row_nbytes)
    n = -(len(ops) + 2) % 8
    return ops + b"C" + bytes((n,)) + bytes(n) + _CLOSE


def growable_parts(tree: Tree, row_nbytes: int, count: int, room: int, rows: Any, memo: int) -> Parts:
    """Return the parts of a growable value.

    Parameters
    ----------
    tree : Column or dict
        Arranged.
    row_nbytes : int
    count : int
    room : int
        Bytes for rows, a multiple of 8.
    rows : buffer of `room` bytes, or None
        None: zeros that are reserved.
    memo : int
        The first of two memo indices.
    """
    itemalignment = max(column.dtype.alignment for column in columns_of(tree))
    alignment = fmt.array_payload(None, room, itemalignment).alignment
    head = b"\x8e" + (ROWS_HEAD + room).to_bytes(8, "little") + bytes(ROWS_HEAD)
    return [GROWS, Payload(COUNT, count.to_bytes(8, "little"), 8, 8), _put(memo) + BYTES_OF_ROWS[1:],
            Payload(head, rows, room, max(alignment, ROWS_HEAD)), tail_ops(tree, memo, row_nbytes)]


def encode_growable(tree: Tree, capacity: int = 0, rows: Optional[memoryview] = None, count: int = 0,
                    memo: int = fmt.MEMO_START) -> Encoded:
    """Turn a new growable value into opcodes.

    Parameters
    ----------
    tree : Column or dict
    capacity : int
        How many rows to make room for; 0: a few.
    rows : memoryview of bytes, optional
        The first ones.
    count : int
        How many these are.
    memo : int

    Raises
    ------
    OverflowError
        More than 2^55 bytes.
    """
    row_nbytes = arrange_columns(tree)
    n = 0 if rows is None else len(rows)
    room = max(capacity * row_nbytes, n, ROWS_LEAST if not capacity else 0) if row_nbytes else 0
    room = whole_room(tree, room)
    if room >= 1 << 55:
        raise OverflowError(f"room for {capacity} rows of {row_nbytes} bytes is more than a file can have")
    check_count(count)
    if room <= INLINE_MAX:
        data = bytes(rows or b"") + bytes(room - n)
        return Encoded(growable_parts(tree, row_nbytes, count, room, data, memo), fmt.ARRAYS, 2, memo)

    def fill(file: File, at: int) -> None:
        if rows is not None:
            file.write(at, rows)

    return Encoded(growable_parts(tree, row_nbytes, count, room, None, memo), fmt.ARRAYS, 2, memo, fill)


def check_count(count: int) -> None:
    """Raise ValueError for more rows than an array can have."""
    if count > COUNT_MAX:
        raise ValueError(f"{count} rows are more than an array can have")


# -- rows -------------------------------------------------------------------------------------------------------------

def is_row(rows: Any, tree: Tree) -> bool:
    """Whether that is one row as it stands in the file."""
    return type(rows) is np.ndarray and type(tree) is Column and rows.shape == tree.shape and rows.dtype is tree.dtype \
        and rows.flags.c_contiguous


def as_rows(rows: Any, column: Column, key: Any) -> tuple[np.ndarray[Any, Any], int]:
    """Return rows as one array of them, contiguous as in C, first axis first; and how many there are.

    Raises
    ------
    ValueError
        The shape does not fit.
    TypeError
        The dtype does not fit.
    """
    dtype = column.dtype
    if type(rows) is np.ndarray and rows.dtype is dtype:
        a = rows
    else:
        a = as_dtype(rows, dtype, key)
    shape = column.shape
    if a.shape == shape:
        return np.ascontiguousarray(a), 1
    if a.ndim == len(shape) + 1:
        n = a.shape[column.axis]
        if a.shape == column.shape_of(n):
            return np.ascontiguousarray(np.moveaxis(a, column.axis, 0) if column.axis else a), n
    where = f" along axis {column.axis}" if column.axis else ""
    raise ValueError(f"{key!r} has rows of shape {shape}{where}: an array of shape {a.shape} is neither one of them "
                     "nor several")


def is_exact(array: Any, dtype: np.dtype[Any]) -> bool:
    """Whether floats of a dtype hold all these ints exactly."""
    most = _EXACT.get(dtype.char, 1 << 53)
    large = array[(array > most) | (array < -most)] if array.ndim else array
    values = large.ravel()
    with np.errstate(over="ignore"):
        floats = values.astype(dtype)
    return all(math.isfinite(x) and int(x) == y for x, y in zip(floats.tolist(), values.tolist()))


def same_times(a: Any, dtype: np.dtype[Any]) -> bool:
    """Whether times of another unit are the same: numpy takes a month for 30.4 days, and goes around at 64 bits."""
    if not np.can_cast(a.dtype, dtype, "same_kind"):
        return False
    try:
        return bool(np.array_equal(a.astype(dtype).astype(a.dtype), a, equal_nan=True))
    except OverflowError:                       # numpy from 2.5 on
        return False


def _records(values: Any, dtype: np.dtype[Any], name: Any) -> np.ndarray[Any, Any]:
    """Return tuples, or lists of them, as records, each field as `as_dtype` does."""
    if not isinstance(values, tuple):
        parts = [_records(part, dtype, name) if isinstance(part, (list, tuple)) else as_dtype(part, dtype, name)
                 for part in values]
        return np.stack(parts) if parts else np.zeros(0, dtype)
    names = dtype.names or ()
    if len(values) != len(names):
        raise TypeError(f"rows of {name!r} have {len(names)} fields, not {len(values)}")
    record = np.zeros((), dtype)
    for field, value in zip(names, values):
        try:
            record[field] = as_dtype(value, dtype[field].base, name)
        except TypeError as exc:
            raise TypeError(f"{exc}, in the field {field!r}") from exc
    return record


def as_dtype(values: Any, dtype: np.dtype[Any], name: Any) -> np.ndarray[Any, Any]:
    """Return values as an array of a dtype, if nothing gets lost but the last digits of floats; else TypeError."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"rows of {name!r} cannot be masked: fill them, or keep the mask in an array of its own")
    try:
        if dtype.names is not None and not isinstance(values, (np.ndarray, np.void)):
            return _records(values, dtype, name)
        a: np.ndarray[Any, Any] = np.asarray(values)
    except OverflowError as exc:
        raise TypeError(f"rows of {name!r} are {dtype}: {exc}") from exc
    if a.dtype == dtype:
        return a
    kinds = a.dtype.kind + dtype.kind
    fits = not a.size
    cast = a
    if a.dtype.names is None and dtype.names is None and kinds[0] not in "OV" and kinds[1] not in "OV" \
            and (kinds in ("UU", "SS", "MM", "mm") or kinds[0] in "biuf" and kinds[1] in "iufc" or kinds == "cc"):
        with np.errstate(all="ignore"):
            cast = a.astype(dtype)
            if kinds[0] in "iu" and kinds[1] == "f":
                fits = is_exact(a, dtype)
            elif kinds[0] in "iu" and kinds[1] == "c":
                fits = is_exact(a, cast.real.dtype)
            elif kinds[1] in "fc":
                fits = bool((np.isfinite(cast) | ~np.isfinite(a)).all())        # digits may get lost
            elif kinds[1] in "iu" and kinds[0] in "biu":
                fits = bool(((cast == a) & ((cast < 0) == (a < 0))).all())
            elif kinds in ("MM", "mm"):
                fits = same_times(a, dtype)
            elif kinds[0] == kinds[1]:
                fits = bool((cast.astype(a.dtype) == a).all())
    if not fits:
        raise TypeError(f"rows of {name!r} are {dtype}; {a.dtype} cannot be stored there without loss")
    return cast.astype(dtype)


def first_rows(rows: Any) -> tuple[Column, np.ndarray[Any, Any], int]:
    """Return the column of a new array that begins with these rows, and the rows."""
    if isinstance(rows, np.ma.MaskedArray):
        raise TypeError("rows cannot be masked: fill them, or keep the mask in an array of its own")
    a: np.ndarray[Any, Any] = np.atleast_1d(np.asarray(rows))
    return check_column(a.shape[1:], a.dtype), np.ascontiguousarray(a), len(a)


# -- changing: the caller holds the lock ------------------------------------------------------------------------------

class Growing:
    """What a writer knows of a growable array.

    Attributes
    ----------
    offset : int
        Of its record.
    info : GrowableInfo
        Its count, mark and room as they are now.
    commit : int
        The header's, when this was right.
    epoch : int
        Of the file's maps.
    store_count, store_mark, store_size : function of (0, int)
        Store the cell that holds the number of rows; how many have been seen; the bytes of the rows and `ROWS_HEAD`.
    cells : tuple of memoryview
        These three.
    view, start : memoryview, int
        Of the map that has the record, and the offset of its first byte.
    own : int
        Up to here the room is known to have its blocks, so that rows may be stored through the map; -1: they may not.
    """

    __slots__ = ("offset", "info", "commit", "epoch", "cells", "store_count", "store_mark", "store_size", "view",
                 "start", "own")

    def __init__(self, index: Writer, offset: int, info: GrowableInfo) -> None:
        file = index.file
        self.offset = offset
        self.info = info
        self.commit = file.cells[fmt.COMMIT_CELL]
        w = file.window(offset, info.body_end)
        self.view, self.start = w.view, w.start        # the window itself would keep its arrays alive
        self.own = 0
        self.epoch = file.epoch
        places = info.count_at, info.start - ROWS_HEAD, info.capacity_at
        self.cells = tuple(ordered_cells(w.view[at - w.start:at - w.start + 8]) for at in places)
        self.store_count, self.store_mark, self.store_size = map(file.cell_store, self.cells, places)

    def may_store(self, file: File, at: int, end: int) -> bool:
        """Whether rows may be stored at these offsets through the map."""
        if self.own >= 0:
            ahead = min(max(end, at + OWN_STEP), self.info.start + self.info.room)
            self.own = ahead if file.own_blocks(at, ahead) else -1
        return end <= self.own

    def is_right(self, file: File) -> bool:
        """Whether nothing has changed. Who changed it last may have died before it stored the header's commit."""
        info, (count, mark, size) = self.info, self.cells
        return bool(self.commit == file.cells[fmt.COMMIT_CELL] and self.epoch == file.epoch and count[0] == info.count
                    and mark[0] == info.mark and size[0] == info.room + ROWS_HEAD)


def look(index: Writer, key: Any) -> Growing:
    """Return what there is to know of the growable array of a key, to change it.

    Raises
    ------
    KeyError
    TypeError
        The value is not growable.
    BusyError
        A batch goes on.
    """
    if index.batch is not None:
        raise BusyError(errno.EDEADLK, "rows appear at once, so they cannot be part of a batch: use exclusive()",
                        index.file.path)
    found: Optional[Growing] = index.growing.get(key)
    if found is not None and found.is_right(index.file):
        return found
    offset = index.find(key)
    if offset is None:
        raise KeyError(key)
    record, _, at, view, base = index.read_head(offset)
    info = decode_info(view, base, at, record.body_end)
    if not isinstance(info, GrowableInfo):
        raise TypeError(f"the value of {key!r} is not growable: create_growable or append makes one that is")
    if len(index.growing) >= GROWING_MAX:
        index.growing.clear()
    growing = Growing(index, offset, info)
    index.growing[key] = growing
    return growing


def _check_reserved(index: Writer, key: Any) -> None:
    if key in index.reserved:
        raise BusyError(errno.EDEADLK, f"rows of {key!r} that extend() gave are not published yet", index.file.path)


def reserve(index: Writer, key: Any, n: int, growing: Optional[Growing] = None, capacity: int = 0) -> Growing:
    """See to it that `n` rows can be written behind those that there are, where nobody has ever seen others.

    `growing` is what `look` returns, if that is known. A new place gets room for `capacity` rows at least.
    """
    if index.reserved:
        _check_reserved(index, key)
    if growing is None:
        growing = look(index, key)
    if growing.info.count + n > COUNT_MAX:
        check_count(growing.info.count + n)
    if index.sealed:
        index.unseal()                          # I16
        growing = look(index, key)
    info = growing.info
    if info.count < info.mark or (info.count + n) * info.row_nbytes > info.room:
        growing = _move(index, key, growing, info.count + n, capacity)
    return growing


def _move(index: Writer, key: Any, growing: Growing, count: int, capacity: int) -> Growing:
    """Give an array a new record with room for `count` rows, and for some that may come."""
    info = growing.info
    least = count * info.row_nbytes
    room = max(ROWS_LEAST, capacity * info.row_nbytes, least + min(least, max(STEP_FREE, least // 2)))
    try:
        return _lay_out(index, key, growing, room)
    except OSError:
        if index.file.cells[fmt.COMMIT_CELL] != growing.commit:
            raise
        return _lay_out(index, key, growing, least)         # there is no room for what may come


def _lay_out(index: Writer, key: Any, growing: Growing, room: int) -> Growing:
    file, memo, info = index.file, index.file.cells[fmt.MEMO_CELL], growing.info
    room = whole_room(info.tree, room)
    if room >= 1 << 55:
        raise OverflowError(f"{room} bytes are more than a file can have")
    n = info.count * info.row_nbytes
    synced = growing.offset < file.cells[fmt.SYNCED_CELL]
    if room <= INLINE_MAX and not synced:
        w = file.window(info.start, info.start + n)
        data = bytes(w.view[info.start - w.start:info.start - w.start + n]) + bytes(room - n)
        value = Encoded(growable_parts(info.tree, info.row_nbytes, info.count, room, data, memo), fmt.ARRAYS, 2, memo)
    else:
        def copy(file: File, at: int) -> None:
            file.copy(at, file, info.start, n)
            if synced:
                file.sync()                     # else a power cut could take from an array what was there before

        parts = growable_parts(info.tree, info.row_nbytes, info.count, room, None, memo)
        value = Encoded(parts, fmt.ARRAYS, 2, memo, copy)
    index.put(key, key_parts(key), value)
    return look(index, key)


def reserve_zeros(index: Writer, key: Any, n: int) -> Growing:
    """Do as `reserve`, and see to it that the rows are zeros."""
    growing = look(index, key)
    before = growing.offset
    if not isinstance(growing.info.tree, Column):
        raise TypeError(f"the value of {key!r} is a table: add rows to it by what made it")
    growing = reserve(index, key, n)
    if growing.offset == before:                # else all the room is new
        info = growing.info
        at = info.start + info.count * info.row_nbytes
        end = at + n * info.row_nbytes
        for start in range(at, end, ZERO_STEP):
            index.file.write(start, bytes(min(ZERO_STEP, end - start)))         # I18: nobody has ever seen this place
        index.file.own_pages(at, end)
    return growing


def publish_rows(index: Writer, key: Any, offset: int, first: int, n: int) -> None:
    """Publish `n` rows behind `first` ones of the record at `offset`, if that is still what it was."""
    try:
        growing = look(index, key)
        same = growing.offset == offset and growing.info.count == first
    except (KeyError, TypeError):
        same = False
    if not same:
        raise BusyError(errno.ESTALE, f"{key!r} was replaced or changed in length before its rows were published",
                        index.file.path)
    publish(index, growing, first + n)


def publish(index: Writer, growing: Growing, count: int) -> None:
    """Let an array have so many rows: I18, one store. Those that are new have been written."""
    if index.durable:
        index.file.sync()                       # I15: they are on the disk before they count
    growing.store_count(0, count)               # I18
    growing.info.count = count
    growing.commit = index.step()
    if index.durable:
        index.file.sync()                       # I15


def append(index: Writer, key: Any, rows: np.ndarray[Any, Any], n: int, growing: Optional[Growing] = None,
           capacity: int = 0) -> None:
    """Add `n` rows, given as one array of them that is contiguous as in C, behind those that there are.

    `growing` and `capacity` are as for `reserve`.
    """
    growing = reserve(index, key, n, growing, capacity)
    info, file = growing.info, index.file
    count, nbytes = info.count, rows.nbytes
    # I18: nobody has ever seen this place, so it may be written to as if it were behind the STOP.
    at = info.start + count * info.row_nbytes
    data = rows.tobytes() if nbytes <= COPY_MAX else bytes_of(rows)
    if file.holding and 0 < nbytes <= STORE_MAX and (at + nbytes <= growing.own
                                                     or growing.may_store(file, at, at + nbytes)):
        file.store_rows(growing.view, growing.start, at, data)
    else:
        file.write(at, data)
    publish(index, growing, count + n)


def append_to(index: Writer, key: Any, column: Column, rows: np.ndarray[Any, Any], n: int,
              growing: Optional[Growing] = None) -> bool:
    """Do as `append`, if the array that was looked at without the lock still has such rows; return whether."""
    # While the lock was waited for the handle may have gone on with another file, which has another index.
    known: Optional[Growing] = index.growing.get(key)
    if known is None or known is not growing or index.batch is not None or not known.is_right(index.file):
        try:
            known = look(index, key)
        except KeyError:
            return False
    tree = known.info.tree
    if tree is not column and (not isinstance(tree, Column) or (tree.shape, tree.axis, tree.dtype) != (
            column.shape, column.axis, column.dtype)):
        return False
    append(index, key, rows, n, known)
    return True


def create_from(index: Writer, key: Any, parts: Parts, tree: Column, rows: np.ndarray[Any, Any], n: int) -> bool:
    """Make a growable array that has these rows, if the key is missing; return whether it was."""
    if index.find(key) is not None:
        return False
    index.put(key, parts, encode_growable(tree, 2 * n, bytes_of(rows), n, index.file.cells[fmt.MEMO_CELL]))
    return True


def bytes_of(rows: np.ndarray[Any, Any]) -> memoryview:
    """Return the bytes of an array that is contiguous as in C."""
    return rows.reshape(-1).view(np.uint8).data if rows.nbytes else memoryview(b"")


def row_dtype(tree: Tree, row_nbytes: int) -> np.dtype[Any]:
    """Return the structured dtype of one row; its fields "0", "1", ... are the columns, in their order."""
    columns = list(columns_of(tree))
    return np.dtype({"names": [str(i) for i in range(len(columns))],
                     "formats": [(column.dtype, column.shape) for column in columns],
                     "offsets": [column.offset for column in columns], "itemsize": row_nbytes})


def rearrange(index: Writer, key: Any, tree: Tree, convert: Callable[[Any, Any], None], capacity: int = 0) -> None:
    """Give the rows of a table other columns.

    Parameters
    ----------
    index : Writer
    key : object
    tree : Column or dict
        The new columns.
    convert : function of (numpy.ndarray, numpy.ndarray)
        Called with some rows as they are and as zeros, of their `row_dtype`: it sets the latter.
    capacity : int
        For so many rows there is room at least, and for as many as before.
    """
    _check_reserved(index, key)
    growing = look(index, key)
    old = growing.info
    row_nbytes = arrange_columns(tree)
    before, after = row_dtype(old.tree, old.row_nbytes), row_dtype(tree, row_nbytes)
    most = max(old.count + old.count // 2, old.capacity if old.row_nbytes else 0, capacity)
    room = whole_room(tree, max(ROWS_LEAST, most * row_nbytes))
    synced = growing.offset < index.file.cells[fmt.SYNCED_CELL]
    memo = index.file.cells[fmt.MEMO_CELL]

    def fill(file: File, at: int) -> None:
        w = file.window(old.start, old.start + old.count * old.row_nbytes)
        step = max(1, ZERO_STEP // row_nbytes)
        for i in range(0, old.count, step):
            n = min(step, old.count - i)
            rows = np.ndarray(n, before, w.view, old.start - w.start + i * old.row_nbytes)
            new = np.zeros(n, after)
            convert(rows, new)
            file.write(at + i * row_nbytes, [new.view(np.uint8).data])
        if synced:
            file.sync()                         # as for a move

    index.put(key, key_parts(key), Encoded(growable_parts(tree, row_nbytes, old.count, room, None, memo), fmt.ARRAYS, 2,
                                           memo, fill))


def resize(index: Writer, key: Any, n: int) -> None:
    """Take rows away from the end, or add zeros there."""
    _check_reserved(index, key)
    growing = look(index, key)
    info = growing.info
    if n > info.count:
        growing = reserve_zeros(index, key, n - info.count)
    elif n < info.count:
        if index.sealed:
            index.unseal()                      # I16
            growing = look(index, key)
            info = growing.info
        # A loader that is half way may have read the larger number: what it is about to read must stay.
        info.mark = max(info.mark, info.count)
        growing.store_mark(0, info.mark)        # I18: before the rows are gone
    else:
        return
    publish(index, growing, n)


def trim(index: Writer, key: Any, keep: bool = False) -> int:
    """Give back the room that rows have not taken; return how many bytes.

    The opcodes that stand behind the room are written once more, behind the rows, and there a bytes object begins that
    has all the rest in it. One store, of the cell that says how many bytes the rows have, makes them count. A loader
    that has read the larger number finds all as it was. With `keep`, room for a quarter more stays, or for an eighth
    of large arrays: so a program that opens the file for a few rows, again and again, finds room for them.
    """
    _check_reserved(index, key)
    growing = look(index, key)
    file, info = index.file, growing.info
    used = max(info.count, info.mark) * info.row_nbytes
    if keep:
        used = min(used + max(ROWS_LEAST, used // (4 if used < STEP_FREE else 8)), info.room)
    used = whole_room(info.tree, used)
    w = file.window(growing.offset, info.body_end)
    tail = bytes(w.view[info.tail[0] - w.start:info.tail[1] - w.start])
    at, end = info.start + used, info.start + info.room
    behind = at + len(tail) + 9
    if behind > end:
        return 0
    if index.sealed:
        index.unseal()                          # I16
        growing = look(index, key)
    file.write(at, tail + b"\x8e" + (info.body_end - LAST - behind).to_bytes(8, "little"))  # I18: nobody looks there
    if index.durable or growing.offset < file.cells[fmt.SYNCED_CELL]:
        file.sync()                             # else a power cut could take from an array what was there before
    growing.store_size(0, ROWS_HEAD + used)     # I18
    info.room, info.tail = used, (at, at + len(tail))
    growing.commit = index.step()
    if index.durable:
        file.sync()                             # I15
    file.punch(behind, end)
    return end - behind
