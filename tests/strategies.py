"""Hypothesis strategies for everything that a mapping can hold: keys, dtypes, arrays, masked arrays, other values."""

import datetime
import decimal
import fractions
import math
import uuid

import numpy
from hypothesis import reject
from hypothesis import strategies as st

NUMPY_2 = int(numpy.__version__.partition(".")[0]) >= 2
DIMENSIONS_MAX = 64 if NUMPY_2 else 32
NBYTES_MAX = 1 << 14

# -- keys -----------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(blacklist_categories=()), max_size=20)  # lone surrogates too
integers = st.one_of(st.integers(), st.integers(-2**70, 2**70), st.sampled_from(
    [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63, 2**64, 2**2100, -2**2100]))


def sized(n, unit):
    """A text or a bytes object of `n` units, no two neighbours alike."""
    return (unit * (n // len(unit) + 1))[:n]


big_texts = st.builds(sized, st.sampled_from([255, 256, 4096, 4097, 5000]),
                      st.sampled_from(["abc", "é日\ud800\U0001f600"]))
big_bytes = st.builds(sized, st.sampled_from([255, 256, 4096, 4097, 5003]), st.just(b"\x00\xff.("))
key_parts = st.one_of(st.none(), st.booleans(), integers, st.floats(allow_nan=False), texts, st.binary(max_size=20))


def keys():
    """Anything that may be a key; long texts and bytes among them."""
    return st.one_of(key_parts, big_texts, big_bytes,
                     st.recursive(key_parts | big_texts, lambda part: st.lists(part, max_size=4).map(tuple),
                                  max_leaves=8))


# -- dtypes ---------------------------------------------------------------------------------------------------------

TIME_UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]
NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "l", "L", "q", "Q", "f2", "f4", "f8", "g", "c8",
           "c16", "G"]


@st.composite
def simple_dtypes(draw):
    """A dtype without fields, in either byte order."""
    kind = draw(st.sampled_from(["number", "number", "S", "U", "V", "M8", "m8"]))
    if kind == "number":
        dtype = numpy.dtype(draw(st.sampled_from(NUMBERS)))
    elif kind in "SUV":
        dtype = numpy.dtype("%s%d" % (kind, draw(st.sampled_from([0, 1, 2, 3, 7, 16, 33]))))
    else:
        unit = draw(st.sampled_from(TIME_UNITS + [None]))
        if unit is None:
            return numpy.dtype(kind)  # in this order alone: numpy forgets to swap the bytes of the other
        dtype = numpy.dtype("%s[%d%s]" % (kind, draw(st.sampled_from([1, 1, 25])), unit))
    return dtype.newbyteorder(draw(st.sampled_from("<>")))


@st.composite
def _structured(draw, parts):
    count = draw(st.integers(0, 4))
    names = draw(st.lists(texts.filter(bool), min_size=count, max_size=count, unique=True))
    formats = [draw(parts) for _ in range(count)]
    spec = {"names": names, "formats": formats}
    if draw(st.booleans()):
        titles = draw(st.lists(st.none() | texts.filter(bool), min_size=count, max_size=count,
                               unique_by=lambda title: title if title else object()))
        if not set(titles) & set(names) and any(titles):
            spec["titles"] = titles
    layout = draw(st.sampled_from(["packed", "aligned", "offsets"]))
    if layout == "offsets" and count:
        spec["offsets"] = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
        end = max(offset + numpy.dtype(part).itemsize for offset, part in zip(spec["offsets"], formats))
        spec["itemsize"] = end + draw(st.integers(0, 9))
    return numpy.dtype(spec, align=layout == "aligned")


@st.composite
def _sub_arrays(draw, parts):
    base = draw(parts.filter(lambda dtype: dtype.itemsize or dtype.names is not None))  # numpy refuses the others
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))
    return numpy.dtype((base, shape))


def _fields(parts):
    structured = _structured(parts)
    return st.one_of(structured, structured, _sub_arrays(parts))


def dtypes():
    """A dtype of any kind without Python objects; a sub-array only inside a structure."""
    parts = st.recursive(simple_dtypes(), _fields, max_leaves=6)
    return st.one_of(simple_dtypes(), _structured(parts))


# -- arrays ---------------------------------------------------------------------------------------------------------

LAYOUTS = ["C", "F", "strided", "reversed", "transposed", "broadcast", "read-only", "unaligned"]


@st.composite
def shapes(draw, dtype):
    """A shape of 0 to `DIMENSIONS_MAX` dimensions, sizes of 0 included, whose array takes at most `NBYTES_MAX`."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    if draw(st.integers(0, 9)) == 0:
        # Sub-arrays have dimensions of their own, which come on top when numpy takes a field.
        shape += [1] * (draw(st.sampled_from([DIMENSIONS_MAX, 32])) - (12 if dtype.names else 0) - len(shape))
    while math.prod(shape) * dtype.itemsize > NBYTES_MAX:
        shape.remove(max(shape))
        shape.append(1)
    return tuple(shape)


def filled(shape, dtype, seed):
    """An array of pseudo-random elements, padding included.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    seed : int
    """
    array = numpy.zeros(shape, dtype)
    if array.dtype != dtype or array.nbytes == 0:
        return numpy.ndarray(shape, dtype, bytearray(max(1, dtype.itemsize) * math.prod(shape)))    # S0, U0
    data = numpy.random.default_rng(seed).integers(0, 256, array.nbytes, numpy.uint8)
    array.reshape(-1).view(numpy.uint8)[...] = data
    _make_valid(array.reshape(-1))
    return array


def _make_valid(array):
    """Make code points, truth values and times without a unit valid."""
    if array.dtype.names is not None:
        for name in array.dtype.names:
            _make_valid(array[name])
    elif array.dtype.kind == "M" and numpy.datetime_data(array.dtype)[0] == "generic":
        array[...] = numpy.array(-2**63).view("M8")  # NaT; numpy cannot print any other
    elif array.dtype.kind == "b":
        array[...] = array.view(numpy.uint8) & 1
    elif array.dtype.kind == "U" and array.dtype.itemsize:
        codes = numpy.zeros((*array.shape, array.dtype.itemsize // 4), array.dtype.str[0] + "u4")
        codes[...] = numpy.arange(codes.size).reshape(codes.shape) % 0xD800
        array[...] = codes.view(array.dtype).reshape(array.shape)


def laid_out(array, layout):
    """An array with the same shape and, but for "broadcast", the same elements, laid out otherwise in memory."""
    if layout == "F":
        return numpy.array(array, order="F", copy=True)
    if layout == "strided":
        room = numpy.zeros(tuple(3 * n + 1 for n in array.shape[:3]) + array.shape[3:], array.dtype)
        room = room[(slice(1, None, 3),) * min(3, array.ndim)] if array.ndim else room
        room[...] = array
        return room
    if layout == "reversed":
        flipped = (..., *(slice(None, None, -1),) * array.ndim)
        return array[flipped].copy()[flipped]
    if layout == "transposed":
        axes = tuple(range(1, array.ndim)) + (0,) if array.ndim else ()
        return array.transpose(axes).copy().transpose(numpy.argsort(axes).astype(int))
    if layout == "broadcast":
        return numpy.broadcast_to(array[(..., *(slice(0, 1),) * array.ndim)], array.shape) if array.size else array
    if layout == "read-only":
        array.setflags(write=False)
    if layout == "unaligned":
        room = numpy.zeros(array.nbytes + 1, numpy.uint8)
        odd = numpy.ndarray(array.shape, array.dtype, room, 1)
        odd[...] = array
        return odd
    return array


@st.composite
def arrays(draw, dtype=None, layout=None):
    """A plain array that can be mapped.

    Parameters
    ----------
    dtype : strategy, optional
    layout : strategy, optional
        Of one of `LAYOUTS`.
    """
    dtype = draw(dtypes() if dtype is None else dtype)
    array = filled(draw(shapes(dtype)), dtype, draw(st.integers(0, 99)))
    return laid_out(array, draw(st.sampled_from(LAYOUTS) if layout is None else layout))


@st.composite
def masked_arrays(draw, layout=None):
    """A masked array: with and without a mask, a fill value, a hard mask; structured, 0-d, in any layout."""
    data = draw(arrays(layout=layout))
    kind = draw(st.sampled_from(["nomask", "unmasked", "mask", "mask"]))
    mask = numpy.ma.nomask
    if kind != "nomask":
        mask = numpy.zeros(data.shape, numpy.ma.make_mask_descr(data.dtype))
        if kind == "mask":
            mask = filled(data.shape, mask.dtype, draw(st.integers(0, 99)))
        mask = laid_out(mask, draw(st.sampled_from(["C", "F", "strided"]) if layout is None else layout))
    try:
        masked = data.view(numpy.ma.MaskedArray)
    except Exception:  # numpy has no fill value for some structured dtypes, and then no masked array
        reject()
    masked._mask, masked._sharedmask = mask, False
    if data.nbytes and draw(st.booleans()):
        masked._fill_value = numpy.array(data[(0,) * data.ndim], data.dtype)
    if draw(st.booleans()):
        masked.harden_mask()
    return masked


# -- other values ---------------------------------------------------------------------------------------------------


@st.composite
def scalars(draw):
    """A numpy scalar of any kind."""
    dtype = draw(dtypes().filter(lambda dtype: dtype.itemsize))
    return filled((1,), dtype, draw(st.integers(0, 99)))[0]


def hashable_values():
    """Small values without parts, of the standard library."""
    return st.one_of(
        st.none(), st.booleans(), integers, st.floats(), st.complex_numbers(), texts, st.binary(max_size=20),
        st.sampled_from([Ellipsis, NotImplemented, range(3), datetime.date(2000, 2, 29), datetime.timedelta(1, 2, 3),
                         decimal.Decimal("1.50"), fractions.Fraction(-1, 3), uuid.UUID(int=7),
                         datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc), int, len, OSError]))


def numpy_values():
    """Contiguous arrays and masked arrays, scalars, dtypes, ufuncs and functions of numpy."""
    layout = st.sampled_from(["C", "F", "read-only"])
    return st.one_of(arrays(layout=layout), masked_arrays(layout), scalars(), dtypes(), st.sampled_from(
        [numpy.ma.masked, numpy.add, numpy.sin, numpy.sum, numpy.float64, numpy.bool_, numpy.longdouble, numpy.ndarray,
         numpy.linalg.norm, numpy.dtype, numpy.dtype("O"), numpy.pi, numpy.newaxis]))


long_values = st.builds(sized, st.sampled_from([4097, 70_000, 150_001]),
                        st.sampled_from([b"\x00\xff.(", "abc", "é日\ud800"]))


@st.composite
def graphs(draw, leaves):
    """Lists and dicts that hold leaves and each other, also themselves: shared and recursive references."""
    nodes = [draw(st.sampled_from([list, dict]))() for _ in range(draw(st.integers(1, 4)))]
    parts = nodes + draw(st.lists(leaves, max_size=3))
    for node in nodes:
        for n in range(draw(st.integers(0, 4))):
            item = parts[draw(st.integers(0, len(parts) - 1))]      # hypothesis would hash them, and some refuse that
            if type(node) is list:
                node.append(item)
            else:
                node[n] = item
    return nodes[0]


def nested(levels):
    """Lists and tuples and dicts inside each other."""
    value = []
    for n in range(levels):
        value = ([value], (value,), {n: value})[n % 3]
    return value


def plain_values():
    """Values of the standard library alone."""
    leaves = hashable_values() | long_values
    return st.one_of(
        leaves,
        graphs(leaves),
        st.builds(nested, st.integers(0, 60)),
        st.recursive(leaves, lambda part: st.one_of(
            st.lists(part, max_size=4), st.lists(part, max_size=3).map(tuple), st.dictionaries(texts, part, max_size=3),
            st.sets(st.integers() | texts, max_size=3), st.frozensets(st.integers(), max_size=3),
            st.binary(max_size=9).map(bytearray)), max_leaves=8))


def values():
    """Any value that is pickled: containers of everything, arrays included."""
    leaves = hashable_values() | numpy_values() | long_values
    return st.one_of(
        plain_values(), scalars(), dtypes(), graphs(leaves),
        st.lists(leaves, min_size=1, max_size=4), st.dictionaries(texts, leaves, max_size=3))
