"""Values <-> the opcodes of a record's body: arrays by their recipes, everything else by pickling."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, Union

import numpy as np

from . import format as fmt
from .arrays import EncodedArray, Order, encode_array, encode_masked, hole_parts, is_mappable, masked_parts
from .format import Payload
from .views import PLAIN_ARRAYS

_ndarray = np.ndarray
ARRAY, MASKED, GROWABLE, TABLE, VALUE = "array", "masked", "growable", "table", "value"


class Encoded:
    """A value, ready to be laid out in a record.

    Attributes
    ----------
    groups : int
        Which groups of hidden globals it needs: ARRAYS, ARRAYS | MASKS or 0.
    memo : int
        How many memo indices it uses, from `base` on.
    base : int
    parts : list of (bytes, Payload, ..., bytes)
        The opcodes that push the value, and its payloads.
    fill : function of (File, int), optional
        Called with the offset of the first payload without data, before the record is published: it writes there.
    """

    __slots__ = ("groups", "memo", "base", "parts", "fill")

    def __init__(self, parts: Any, groups: int, memo: int = 0, base: int = 0, fill: Any = None) -> None:
        self.fill = fill
        self.parts: list[Union[bytes, Payload]] = parts
        self.groups = groups
        self.memo = memo
        self.base = base


def encode(value: Any, base: int, check: Optional[Callable[[bytes], None]] = None) -> Union[Encoded, EncodedArray]:
    """Turn any picklable value into opcodes.

    Parameters
    ----------
    value : object
    base : int
        The first free memo index.
    check : function of the pickle, optional
        Raises if the value is not to be stored. Arrays that have a record of their own are not asked for.

    Raises
    ------
    Exception
        Whatever pickling `value` raises.
    """
    t = type(value)
    if t in PLAIN_ARRAYS:
        array = encode_array(value if t is _ndarray else np.asarray(value))
        if array is not None:
            return array
    elif issubclass(t, _ndarray) and t is np.ma.MaskedArray and value._baseclass in PLAIN_ARRAYS:
        masked = encode_masked(value)
        if masked is not None:
            return Encoded(masked, fmt.ARRAYS | fmt.MASKS)
    from .pickling import encode_pickled            # not before it is needed: arrays do without

    parts, memo = encode_pickled(value, base, check)
    return Encoded(parts, 0, memo, base)


def encode_hole(shape: tuple[int, ...], dtype: np.dtype[Any], order: Order, mask: bool) -> Encoded:
    """Turn a hole into opcodes: an array (or a masked one) whose bytes are zeros and are not given.

    Raises
    ------
    TypeError
        If the dtype holds objects or cannot be told exactly by plain text.
    ValueError
        If numpy can have no array of this shape: too many dimensions, or too many bytes.

    Notes
    -----
    As in `numpy.zeros`, a sub-array dtype gives further dimensions, and a text without a width has one character.
    """
    element = np.empty((), dtype)
    shape, dtype = shape + element.shape, element.dtype
    if not is_mappable(dtype):
        why = "it holds Python objects" if dtype.hasobject else "it has metadata or a type of its own"
        raise TypeError(f"an array of dtype {dtype!r} cannot be mapped: {why}")
    try:
        # Nobody could load a file with an array that numpy cannot make, so ask it; all strides 0: no memory.
        np.ndarray(shape, dtype, bytes(dtype.itemsize), 0, (0,) * len(shape))
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"an array of shape {shape}, dtype {dtype} cannot be: {exc}") from exc
    data: Any = hole_parts(shape, dtype, order)
    if not mask:
        return Encoded(data, fmt.ARRAYS)
    try:
        np.ndarray.__new__(np.ma.MaskedArray, (), dtype)
    except Exception as exc:        # some structures have no default fill value
        raise TypeError(f"numpy can make no masked array of dtype {dtype!r}: {exc}") from exc
    masks = hole_parts(shape, np.ma.make_mask_descr(dtype), order)
    return Encoded(masked_parts(data, masks, [b"N"], False), fmt.ARRAYS | fmt.MASKS)
