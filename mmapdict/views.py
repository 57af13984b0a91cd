"""Arrays over a mapped file: `numpy.memmap` objects that are all views of a few shared maps.

`numpy.memmap` opens a descriptor for every array and checks at every slice whether memory is shared. Here one
root array stands for one map, every array is a view of a root, and what an array must know about its file is
found through its root: no descriptor and no state of its own.

An array keeps its root alive, and the root its map: reading it stays safe after the handle is closed. (An array
made straight over an `mmap` object does not pin it: closing the map makes the next read a segmentation fault.)
"""
from __future__ import annotations

import mmap
import weakref
from contextlib import suppress
from typing import Any, Literal, Optional

import numpy as np

__all__ = ["memmap"]

_new = np.ndarray.__new__
_get = np.ndarray.__getitem__
_set = np.ndarray.__setitem__
FLUSH_STEP = 4 << 20            # mmap.flush holds the GIL: in pieces, other threads run in between
HOLE_FROM = 1 << 20             # bytes of an array; what is assigned to a smaller one is small as well
WRITE_FROM = 256 << 10          # bytes that are assigned; fewer are not worth a system call
MADV_POPULATE_WRITE = 23        # Linux >= 5.14; the mmap module has no name for it
# Types of an index that gives a view. A bool is none: it makes a copy.
BASIC = frozenset((int, slice, type(...), type(None), *(np.dtype(code).type for code in "bBhHiIlLqQ")))


class Root(np.ndarray[Any, np.dtype[np.uint8]]):
    """The uint8 array of one whole map.

    Attributes
    ----------
    map : mmap.mmap
        Never the store or a cache: an ndarray is not seen by the garbage collector, a cycle would never go.
    filename, mode : str
        Of the file, as `numpy.memmap` has them.
    identity : (int, int)
        Device and inode: tells the file from another that has its name, or its content.
    start : int
        Offset in the file of the map's first byte.
    address : int
        Of the map in memory.
    file : weakref.ref or None
        To the `store.File` by which holes are filled, if there are some over this map.
    """

    file: Optional[weakref.ref[Any]] = None
    map: mmap.mmap
    filename: str
    mode: str
    identity: tuple[int, int]
    start: int
    address: int

    def __array_finalize__(self, obj: Any) -> None:
        """Slices and views of a root carry nothing."""

    def flush(self) -> None:
        """Write changed pages of the whole map to the disk; `numpy.memmap.flush` asks its base for it."""
        self.map.flush()


def make_root(m: mmap.mmap, start: int, filename: str, mode: str,
              identity: tuple[int, int] = (0, 0)) -> Root:
    """Return the root over the map `m`, whose first byte is byte `start` of the file.

    ``numpy.frombuffer`` pins the map: it cannot be closed while a view lives.
    """
    root = np.frombuffer(m, np.uint8).view(Root)
    root.map, root.start, root.filename, root.mode, root.identity = m, start, filename, mode, identity
    root.address = root.__array_interface__["data"][0]
    return root


def read_only(root: Root) -> Root:
    """Return a view of the root that cannot be written to, and so cannot arrays over it."""
    view = root.view()
    view.flags.writeable = False
    return view


def root_of(array: Any) -> Optional[Root]:
    """Return the root that `array` is a view of, or None if its memory is not a map of ours."""
    while array is not None:
        if type(array) is Root and hasattr(array, "map"):
            return array
        array = getattr(array, "base", None)
    return None


class memmap(np.memmap[Any, np.dtype[Any]]):        # the name is numpy's: it shows in repr and str
    """A `numpy.memmap` that is a view of a file's shared map.

    It behaves as numpy's own: `filename`, `offset`, `mode` and `flush` are there; results of arithmetic,
    reductions, fancy indexing, copies and pickles are plain arrays or scalars. Slices stay views of the file,
    with the offset of their first element. Handed out by `MmapDict`; not to be made by a user.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> memmap:
        """Refuse: only a `MmapDict` hands these out."""
        raise TypeError("arrays of this type are handed out by MmapDict; to map another file, use numpy.memmap")

    def __array_finalize__(self, obj: Any) -> None:
        """Keep numpy's own from running: it costs more than the view itself."""

    @property
    def filename(self) -> Optional[str]:        # type: ignore[override]
        """Path of the file, or None if this array's memory is not the file's."""
        root = root_of(self)
        return None if root is None else root.filename

    @property
    def mode(self) -> Optional[str]:            # type: ignore[override]
        """``"r"`` or ``"r+"``, or None if this array's memory is not the file's."""
        root = root_of(self)
        return None if root is None else root.mode

    @property
    def offset(self) -> Optional[int]:          # type: ignore[override]
        """Bytes from the start of the file to the first element, or None as for `filename`."""
        root = root_of(self)
        if root is None:
            return None
        return int(root.start + self.__array_interface__["data"][0] - root.address)

    @property
    def _mmap(self) -> Optional[mmap.mmap]:
        root = root_of(self)
        return None if root is None else root.map

    def flush(self) -> None:
        """Write this array's changed pages to the disk.

        Notes
        -----
        Other processes see a change at once; this is about the machine losing power. O(pages).
        """
        root = root_of(self)
        if root is None or root.mode == "r" or self.size == 0:
            return
        numpy: Any = np.lib.array_utils if hasattr(np.lib, "array_utils") else np     # moved in numpy 2
        low, high = numpy.byte_bounds(self)
        start = (low - root.address) // mmap.PAGESIZE * mmap.PAGESIZE
        while start < high - root.address:
            root.map.flush(start, min(FLUSH_STEP, root.size - start))
            start += FLUSH_STEP

    def __getitem__(self, index: Any) -> Any:
        result = _get(self, index)
        if type(result) is memmap and type(result.base) not in (memmap, Root, Hole):
            return result.view(np.ndarray)      # fancy indexing made a copy: it is no longer the file's
        return result

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:                       # a += 1, out=a
            return array
        if array.base is self:                  # squeeze: a view of the file, and no result
            return array.view(memmap)
        if type(array) is not np.ndarray:
            array = array.view(np.ndarray)
        return array[()] if return_scalar or array.ndim == 0 else array

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)

    def copy(self, order: Any = "C") -> Any:
        """Return a plain `numpy.ndarray` in memory with the same elements."""
        return self.view(np.ndarray).copy(order)

    def __copy__(self) -> Any:
        return self.view(np.ndarray).copy("K")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.view(np.ndarray).copy("K")


class Hole(memmap):
    """A big `memmap` to be filled: the elements of a big array that is assigned to it are written by `File.fill`.

    That is faster than to store them through the map for the first time, and all else is as in other arrays: what is
    written shows in all maps at once. Its views are none, and an array becomes one only by `make_hole`.

    Attributes
    ----------
    _written_to : int
        Address behind the last part that was written. What is assigned before it goes through the map: that is faster
        the second time.
    """

    _baseclass = memmap                 # for numpy.ma: pickle finds this one by its name
    _written_to: int

    def __array_finalize__(self, obj: Any) -> None:
        self.__class__ = memmap         # type: ignore[assignment]

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(value) not in PLAIN_ARRAYS or value.nbytes < WRITE_FROM or not self._write(index, np.asarray(value)):
            _set(self, index, value)

    def _write(self, index: Any, value: np.ndarray[Any, Any]) -> bool:
        """Write `value` if numpy would copy it byte by byte to one piece of the file; False: it is not done."""
        if type(index) not in BASIC and not (type(index) is tuple and all(type(i) in BASIC for i in index)):
            return False
        target = _get(self, index)
        # Of a structured value numpy may leave out the bytes between the fields.
        if type(target) is not memmap or target.shape != value.shape or target.dtype != value.dtype \
                or target.dtype.names is not None or not target.flags.writeable or np.may_share_memory(target, value):
            return False
        if not (target.flags.c_contiguous and value.flags.c_contiguous):
            if not (target.flags.f_contiguous and value.flags.f_contiguous):
                return False
            value = value.T
        address = target.__array_interface__["data"][0]
        root: Any = root_of(self)
        file = root.file()
        if address < self._written_to or file is None \
                or not file.fill(root.start + address - root.address, value.reshape(-1).view(np.uint8).data):
            return False
        self._written_to = address + value.nbytes
        # Else each page would be a slow fault, twice, if it is changed in place: once to be read, once to be stored to.
        start = (address - root.address) & -mmap.PAGESIZE
        with suppress(OSError, ValueError):         # the kernel does not know it
            root.map.madvise(MADV_POPULATE_WRITE, start, self._written_to - root.address - start)
        return True


for _type in memmap, Hole:
    _type.__name__ = _type.__qualname__ = "memmap"
    _type.__module__ = "mmapdict"

# Types whose instances are nothing but their elements: they are stored, and come back, as arrays.
PLAIN_ARRAYS = (np.ndarray, memmap, Hole, np.memmap)


def make_hole(array: Any, file: Any) -> Any:
    """Return `array`, made a `Hole` of the `store.File` if it is a `memmap` and big enough."""
    if type(array) is memmap and array.nbytes >= HOLE_FROM:
        root: Any = root_of(array)
        root.file = weakref.ref(file)   # the handle must go while arrays live
        hole: Any = array
        hole.__class__ = Hole
        hole._written_to = 0
    return array


def map_array(root: Root, position: int, shape: tuple[int, ...], dtype: np.dtype[Any],
              order: Literal["C", "F"]) -> memmap:
    """Return the array that starts at byte `position` of the root. O(1), no byte of it is read.

    The caller has checked that the dtype holds no objects, that no size is negative and that the bytes are
    the record's: ``ndarray.__new__`` would accept object pointers, and takes -1 for "all the rest".
    """
    return _new(memmap, shape, dtype, root, position, None, order)


def map_strided(root: Root, position: int, shape: tuple[int, ...], dtype: np.dtype[Any],
                strides: tuple[int, ...]) -> memmap:
    """Return the array with these strides whose first element is at byte `position` of the root, as `map_array`."""
    return _new(memmap, shape, dtype, root, position, strides)


def map_masked(root: Root, position: int, shape: tuple[int, ...], dtype: np.dtype[Any], order: Literal["C", "F"],
               mask: Any, fill_value: Any, hard_mask: bool) -> np.ma.MaskedArray[Any, Any]:
    """Return the masked array whose data start at byte `position` of the root and whose mask is `mask`.

    Both are views: setting elements, masking and unmasking reach the file. The constructor of MaskedArray is
    not used because it marks the mask as shared, and the first ``unshare_mask`` would detach it from the file.

    Parameters
    ----------
    mask : numpy.ndarray or numpy.ma.nomask
        A plain array over the root, of the mask dtype that belongs to `dtype`.
    fill_value : numpy.ndarray, shape (), or None
        None: not set.
    """
    x: Any = _new(np.ma.MaskedArray, shape, dtype, root, position, None, order)
    x._mask = mask
    x._sharedmask = False
    x._hardmask = hard_mask
    if fill_value is not None:
        x._fill_value = fill_value
    return x    # type: ignore[no-any-return]
