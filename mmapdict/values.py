"""Values <-> the opcodes of a record's body: arrays by their recipes, everything else by pickling."""
from __future__ import annotations

from typing import Any, NamedTuple, Union

import numpy as np

from . import format as fmt
from .arrays import Order, array_parts, encode_array, encode_dtype, encode_masked, masked_parts
from .format import Payload
from .pickling import encode_pickled
from .views import memmap

ARRAY, MASKED, VALUE = "array", "masked", "value"


class Encoded(NamedTuple):
    """A value, ready to be laid out in a record.

    Attributes
    ----------
    parts : list of (bytes, Payload, ..., bytes)
        The opcodes that push the value.
    groups : int
        Which groups of hidden globals it needs: ARRAYS, ARRAYS | MASKS or 0.
    memo : int
        How many memo indices it uses, from `base` on.
    kind : str
        ARRAY, MASKED or VALUE.
    """

    parts: list[Union[bytes, Payload]]
    groups: int
    memo: int
    kind: str
    base: int = 0


def encode(value: Any, base: int) -> Encoded:
    """Turn any picklable value into opcodes.

    Parameters
    ----------
    value : object
    base : int
        The first free memo index.

    Raises
    ------
    Exception
        Whatever pickling `value` raises.
    """
    t = type(value)
    if t is np.ndarray or t is memmap or t is np.memmap:
        dtype = encode_dtype(value.dtype)
        if dtype is not None:
            return Encoded(encode_array(np.asarray(value), dtype), fmt.ARRAYS, 0, ARRAY)
    elif t is np.ma.MaskedArray and value._baseclass is np.ndarray:
        masked = encode_masked(value)
        if masked is not None:
            return Encoded(masked, fmt.ARRAYS | fmt.MASKS, 0, MASKED)
    parts, memo = encode_pickled(value, base)
    return Encoded(parts, 0, memo, VALUE, base)


def encode_hole(shape: tuple[int, ...], dtype: np.dtype[Any], order: Order, mask: bool) -> Encoded:
    """Turn a hole into opcodes: an array (or a masked one) whose bytes are zeros and are not given.

    Raises
    ------
    TypeError
        If the dtype holds objects or cannot be told exactly by plain text.
    """
    ops = encode_dtype(dtype)
    if ops is None:
        why = "it holds Python objects" if dtype.hasobject else "it has metadata or a type of its own"
        raise TypeError(f"an array of dtype {dtype!r} cannot be mapped: {why}")
    data = array_parts(shape, ops, order, dtype.itemsize, None)
    if not mask:
        return Encoded(data, fmt.ARRAYS, 0, ARRAY)
    mask_dtype = np.ma.make_mask_descr(dtype)
    mask_ops = encode_dtype(mask_dtype)
    assert mask_ops is not None
    masks = array_parts(shape, mask_ops, order, mask_dtype.itemsize, None)
    return Encoded(masked_parts(data, masks, b"N", False), fmt.ARRAYS | fmt.MASKS, 0, MASKED)
