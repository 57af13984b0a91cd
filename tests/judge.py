"""An independent judge of the files: it loads them by pickle alone and says whether all readers agree.

It shares no code with mmapdict, so that a mistake in the one is not repeated in the other. It runs on every numpy that
mmapdict supports; fingerprints made under one version can be compared with those of another.
"""

import hashlib
import io
import pickle
import pickletools
import struct
import types
import warnings

import numpy

MAGIC = b"mmapdict"
HEADER_SIZE = 256
REPR_MODULES = frozenset(["datetime", "decimal", "fractions", "uuid"])
LONG_TEXT = 200
NAMES = {numpy.bool_: "bool_", numpy.longdouble: "longdouble", numpy.clongdouble: "clongdouble"}  # not in every numpy
FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType, numpy.ufunc, type(numpy.sum))
NUMPY_FUNCTIONS = [numpy.sum, numpy.linalg.norm, numpy.fft.fft]     # no value names them unless it is allowed to
EXTENDED_BYTES = 10  # bytes of an x87 long double that hold the number; the others are padding of any content


class _Token(str):
    """A finished piece of a fingerprint on the work stack (a str on that stack would be a value)."""


class _Untracked:
    """A child that is not an object of the value itself, so that its identity says nothing."""

    def __init__(self, value):
        self.value = value


def plain(path):
    """Load a file as anybody would, with nothing but Python and numpy."""
    with open(path, "rb") as file:
        return pickle.load(file)


def is_mmapdict_file(path):
    """Whether the file at `path` begins with the header of an mmapdict file.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    bool
    """
    with open(path, "rb") as file:
        head = file.read(HEADER_SIZE)
    return len(head) == HEADER_SIZE and head[:2] == b"\x80\x04" and head[8:16] == MAGIC


def describe_dtype(dtype):
    """Text of a dtype that is the same under every numpy, with all that `==` on dtypes may overlook.

    Parameters
    ----------
    dtype : numpy.dtype

    Returns
    -------
    str
        Byte order, unit, item size, and for each field its name, title, offset and dtype.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return "%s*%s" % (describe_dtype(base), tuple(int(n) for n in shape))
    if dtype.names is None:
        return dtype.str
    fields = []
    for name in dtype.names:
        field = dtype.fields[name]
        title = field[2] if len(field) > 2 else None
        fields.append("%s/%s@%d:%s" % (ascii(name), ascii(title), field[1], describe_dtype(field[0])))
    kind = "record" if issubclass(dtype.type, numpy.record) else "struct"
    aligned = " aligned" if dtype.isalignedstruct else ""
    return "%s%s %d {%s}" % (kind, aligned, dtype.itemsize, ", ".join(fields))


def _hash_content(array, digest):
    """Feed the items of `array`, in C order, to `digest`; padding, whose content is free, is left out."""
    dtype = array.dtype
    if dtype.names is not None:
        for name in dtype.names:
            _hash_content(array[name], digest)
        return
    array = numpy.array(array, order="C", copy=True, subok=False, ndmin=1)
    if dtype.char in "gG" and numpy.finfo(numpy.longdouble).nmant == 63:
        real = array.reshape(-1).view(dtype.str.replace("c32", "f16").replace("c24", "f12"))
        parts = real.view(numpy.uint8).reshape(real.size, real.itemsize)
        parts = parts[:, -EXTENDED_BYTES:] if dtype.str.startswith(">") else parts[:, :EXTENDED_BYTES]
        digest.update(parts.tobytes())
    else:
        digest.update(array.tobytes())


def _contiguity(array):
    return "C" * array.flags.c_contiguous + "F" * array.flags.f_contiguous or "strided"


def _array_parts(array, name):
    """Tokens and children of an array that is not masked."""
    head = "%s %s %s %s" % (name, describe_dtype(array.dtype), array.shape, _contiguity(array))
    if array.dtype.hasobject or array.dtype.kind == "T":
        return [_Token(head + " [")] + [item for item in array.ravel().tolist()] + [_Token("]")]
    digest = hashlib.sha256()
    _hash_content(array, digest)
    return [_Token(head + " " + digest.hexdigest())]


def _masked_parts(array):
    """Tokens and children of a masked array."""
    data = numpy.ma.getdata(array)
    parts = [_Token("%s %s (" % (type(array).__qualname__, "hard" if array.hardmask else "soft"))]
    parts.append(_Untracked(data.view(numpy.ndarray)))
    if numpy.ma.getmask(array) is numpy.ma.nomask:
        parts.append(_Token("nomask"))
    else:
        parts.append(_Untracked(numpy.ma.getmask(array).view(numpy.ndarray)))
    parts.append(_Token("fill"))
    parts.append(_Untracked(numpy.asarray(array.fill_value)))
    parts.append(_Token(")"))
    return parts


def _leaf(obj):
    """The token of a value without parts, or None."""
    kind = type(obj)
    if obj is None or obj is Ellipsis or obj is NotImplemented or kind is bool:
        return repr(obj)
    if obj is numpy.ma.masked:
        return "masked"
    if isinstance(obj, numpy.dtype):
        return "dtype " + describe_dtype(obj)
    if isinstance(obj, numpy.generic):
        digest = hashlib.sha256()
        _hash_content(numpy.asarray(obj), digest)
        return "scalar %s %s" % (describe_dtype(obj.dtype), digest.hexdigest())
    if kind is int:
        return "int " + hex(obj)
    if kind is float:
        return "float %s" % struct.pack(">d", obj).hex()
    if kind is complex:
        return "complex %s" % struct.pack(">dd", obj.real, obj.imag).hex()
    if kind is str:
        if len(obj) <= LONG_TEXT:
            return "str " + ascii(obj)
        return "str %d %s" % (len(obj), hashlib.sha256(obj.encode("utf-8", "surrogatepass")).hexdigest())
    if kind is bytes:
        if len(obj) <= LONG_TEXT:
            return "bytes " + repr(obj)
        return "bytes %d %s" % (len(obj), hashlib.sha256(obj).hexdigest())
    if kind in (range, slice) or kind.__module__ in REPR_MODULES:
        return "%s %r" % (kind.__qualname__, obj)
    if isinstance(obj, FUNCTIONS):
        lasting = [name for known, name in NAMES.items() if obj is known]
        return "global " + (lasting[0] if lasting else getattr(obj, "__qualname__", obj.__name__))
    return None


def _parts(obj):
    """Tokens and children of a value with parts, and whether its identity counts."""
    kind = type(obj)
    if kind is tuple:
        return [_Token("tuple %d (" % len(obj)), *obj, _Token(")")], False
    if kind is list:
        return [_Token("list %d [" % len(obj)), *obj, _Token("]")], True
    if kind is dict:
        parts = [_Token("dict %d {" % len(obj))]
        for key, value in obj.items():
            parts += [key, value]
        return parts + [_Token("}")], True
    if kind in (set, frozenset):
        members = sorted(" ".join(fingerprint(item)) for item in obj)
        return [_Token("%s {%s}" % (kind.__name__, ", ".join(members)))], kind is set
    if kind is bytearray:
        return [_Token("bytearray %d %s" % (len(obj), hashlib.sha256(obj).hexdigest()))], True
    if isinstance(obj, numpy.ma.MaskedArray):
        return _masked_parts(obj), True
    if isinstance(obj, numpy.ndarray):
        # A mapped array and the plain one that pickle makes are the same value.
        plain = issubclass(kind, numpy.memmap)      # mapped by whoever maps it: an array all the same
        return _array_parts(obj.view(numpy.ndarray), "ndarray" if plain else kind.__qualname__), True
    reduced = obj.__reduce_ex__(4)
    if isinstance(reduced, str):
        return [_Token("%s %s" % (kind.__qualname__, reduced))], True
    function, arguments = reduced[:2]
    rest = [_Untracked(item if index == 0 else None if item is None else list(item))
            for index, item in enumerate(reduced[2:5])]
    return [_Token(kind.__qualname__ + " <"), function, _Untracked(arguments), *rest, _Token(">")], True


def fingerprint(value):
    """The value as a flat list of texts: equal lists mean equal values of equal types, shared and nested alike.

    Parameters
    ----------
    value : object
        Anything that can be pickled. Arrays count with dtype (byte order, titles, offsets), shape, order and content;
        whether they may be written to, and whether they are mapped, does not count.

    Returns
    -------
    list of str
        JSON can hold it. It does not depend on the versions of Python and numpy.

    Notes
    -----
    Without recursion, so that a deeply nested value is no problem. A mutable object that is met again becomes a
    reference to its first place.
    """
    tokens = []
    seen = {}  # id -> (number, object): the object is held, else its id could be given to another one
    stack = [value]
    while stack:
        obj = stack.pop()
        if type(obj) is _Token:
            tokens.append(str(obj))
            continue
        tracked = type(obj) is not _Untracked
        if not tracked:
            obj = obj.value
        leaf = _leaf(obj)
        if leaf is not None:
            tokens.append(leaf)
            continue
        if tracked and id(obj) in seen:
            tokens.append("ref %d" % seen[id(obj)][0])
            continue
        parts, has_identity = _parts(obj)
        if tracked and has_identity:
            seen[id(obj)] = (len(seen), obj)
        stack.extend(reversed(parts))
    return tokens


def fingerprint_items(mapping):
    """Fingerprints of all keys and values of `mapping`, in its order, each value for itself.

    Parameters
    ----------
    mapping : mapping

    Returns
    -------
    list of [list of str, list of str]
    """
    return [[fingerprint(key), fingerprint(value)] for key, value in mapping.items()]


def assert_same_items(found, expected, what):
    """Compare two results of `fingerprint_items`; name the first difference.

    Parameters
    ----------
    found, expected : list of [list of str, list of str]
    what : str
        Where `found` comes from, for the message.

    Raises
    ------
    AssertionError
        If keys, their order, or a value differ.
    """
    found_keys = [item[0] for item in found]
    expected_keys = [item[0] for item in expected]
    if found_keys != expected_keys:
        raise AssertionError("%s: other keys or another order\nfound    %s\nexpected %s"
                             % (what, found_keys, expected_keys))
    for (key, found_value), (_, expected_value) in zip(found, expected):
        if found_value != expected_value:
            same = 0
            while found_value[same:same + 1] == expected_value[same:same + 1]:
                same += 1
            around = slice(max(0, same - 3), same + 3)
            raise AssertionError("%s: the value of key %s differs at part %d\nfound    %s\nexpected %s"
                                 % (what, key, same, found_value[around], expected_value[around]))


def _refuse(module, name):
    if module.partition(".")[0] == "mmapdict":
        raise pickle.UnpicklingError("the file names %s.%s: it cannot be loaded without mmapdict" % (module, name))
    if module.startswith(("numpy.core", "numpy._core")):
        raise pickle.UnpicklingError("the file names %s.%s, which does not exist under every numpy" % (module, name))


class _CUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        _refuse(module, name)
        return super().find_class(module, name)


class _PythonUnpickler(pickle._Unpickler):
    def find_class(self, module, name):
        _refuse(module, name)
        return super().find_class(module, name)


class _Nowhere(io.TextIOBase):
    def write(self, text):
        return len(text)


def load_every_way(path):
    """Load a file by each unpickler, with warnings as errors, and compare what they give.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    dict
        What ``pickle.load`` gives.

    Raises
    ------
    AssertionError
        If two of them disagree, or it is not a dict.
    Exception
        Whatever an unpickler, or `pickletools.dis`, raises for the file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open(path, "rb") as file:
            data = file.read()
        pickletools.dis(data, out=_Nowhere())
        from_memory = _CUnpickler(io.BytesIO(data)).load()
        if type(from_memory) is not dict:
            raise AssertionError("%s holds a %s, not a dict" % (path, type(from_memory).__qualname__))
        expected = fingerprint_items(from_memory)
        del from_memory
        with open(path, "rb") as file:
            assert_same_items(fingerprint_items(_PythonUnpickler(file).load()), expected, "pure-Python unpickler")
        assert_same_items(fingerprint_items(pickle.loads(data)), expected, "pickle.loads")
        with open(path, "rb") as file:
            loaded = pickle.load(file)
        assert_same_items(fingerprint_items(loaded), expected, "pickle.load")
    return loaded
