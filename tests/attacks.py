"""Opcodes of hostile values, written by hand. Needs nothing of mmapdict.

Each function returns the opcodes that push one object, as they stand in a record: without PROTO and STOP. The memo
starts at 64, as in a file.
"""

import struct

MEMO = 64
REDUCE, NEWOBJ, NEWOBJ_EX, BUILD, POP = b"R", b"\x81", b"\x92", b"b", b"0"


def text(s):
    data = s.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def raw(data):
    return b"B" + struct.pack("<I", len(data)) + data


def number(n):
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<i", len(data)) + data


def push(value):
    """Any plain value; bytes that start with OPS are opcodes already."""
    if isinstance(value, Ops):
        return bytes(value)
    if value is None or value is True or value is False:
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if type(value) is int:
        return number(value)
    if type(value) is float:
        return b"G" + struct.pack(">d", value)
    if type(value) is str:
        return text(value)
    if type(value) is bytes:
        return raw(value)
    if type(value) is tuple:
        return b"(" + b"".join(map(push, value)) + b"t"
    if type(value) is list:
        return b"](" + b"".join(map(push, value)) + b"e"
    if type(value) is dict:
        return b"}(" + b"".join(push(k) + push(v) for k, v in value.items()) + b"u"
    raise TypeError(type(value))


class Ops(bytes):
    """Opcodes that push one object, to stand among plain values."""


def named(module, name):
    return Ops(text(module) + text(name) + b"\x93")


def call(function, *args):
    return Ops(push(function) + push(args) + REDUCE)


def new(cls, *args):
    return Ops(push(cls) + push(args) + NEWOBJ)


def new_ex(cls, args, kwargs):
    return Ops(push(cls) + push(args) + push(kwargs) + NEWOBJ_EX)


def build(made, state):
    return Ops(push(made) + push(state) + BUILD)


def put(made, index=0):
    return Ops(push(made) + b"r" + struct.pack("<I", MEMO + index))


def get(index=0):
    return Ops(b"j" + struct.pack("<I", MEMO + index))


def extend(target, items):
    return Ops(push(target) + b"(" + b"".join(map(push, items)) + b"e")


def fill(target, items):
    return Ops(push(target) + b"(" + b"".join(push(k) + push(v) for k, v in items.items()) + b"u")


# -- numpy ----------------------------------------------------------------------------------------------------------

NDARRAY, DTYPE = named("numpy", "ndarray"), named("numpy", "dtype")


def dtype(spec):
    return call(DTYPE, spec)


def array(shape, spec, data, version=1):
    """An array as numpy's own pickles make it."""
    return build(new(NDARRAY, (0,)), (version, shape, spec if isinstance(spec, Ops) else dtype(spec), False, data))


# -- what must never happen -----------------------------------------------------------------------------------------

def touching(path):
    """Pairs of (what it is, opcodes), each of which makes or changes a file at `path` if it runs."""
    code = f"open({path!r}, 'w').close()"
    system = named("os", "system")
    touch = f"touch {path}"
    ran = named("builtins", "exec")
    return [
        ("a function", call(system, touch)),
        ("the module where it is defined", call(named("posix", "system"), touch)),
        ("eval", call(named("builtins", "eval"), code)),
        ("exec", call(ran, code)),
        ("open", call(named("builtins", "open"), path, "w")),
        ("getattr", call(call(named("builtins", "getattr"), named("builtins", "object"), "__subclasses__"))),
        ("getattr of a module", call(call(named("builtins", "getattr"), call(named("builtins", "__import__"), "os"),
                                          "system"), touch)),
        ("a dotted name", call(named("builtins", "object.__subclasses__"))),
        ("a dotted name of an allowed class", call(named("numpy", "ndarray.tofile"), array((1,), "u1", b"x"), path)),
        ("a module in a module", call(named("pathlib", "os.system"), touch)),
        ("a module in numpy", call(named("numpy", "os.system"), touch)),
        ("partial", call(call(named("functools", "partial"), system, touch))),
        ("partial by its state", build(new(named("functools", "partial"), system),
                                       (system, (touch,), {}, None))),
        ("attrgetter", call(call(named("operator", "attrgetter"), "__subclasses__"), named("builtins", "object"))),
        ("itemgetter", call(call(named("operator", "itemgetter"), 0), [1])),
        ("methodcaller", call(call(named("operator", "methodcaller"), "tofile", path), array((1,), "u1", b"x"))),
        ("methodcaller with a path", call(call(named("operator", "methodcaller"), "touch"),
                                          call(named("pathlib", "PosixPath"), path))),
        ("methodcaller with another view", call(call(named("operator", "methodcaller"), "view", dtype("|O")),
                                                array((1,), "u8", b"\1" * 8))),
        ("operator.call", call(named("operator", "call"), system, touch)),
        ("a registered reducer", call(named("copyreg", "add_extension"), "os", "system", 7)),
        ("the registry", fill(named("copyreg", "dispatch_table"), {"a": 1})),
        ("_reconstructor", call(named("copyreg", "_reconstructor"), named("subprocess", "Popen"),
                                named("builtins", "object"), None)),
        ("__newobj__", call(named("copyreg", "__newobj__"), named("subprocess", "Popen"))),
        ("map", call(named("builtins", "list"), call(named("builtins", "map"), system, [touch]))),
        ("apply along", call(named("numpy", "apply_along_axis"), system, 0, [touch])),
        ("numpy's runner", call(named("numpy.testing", "rundocs"), path)),
        ("numpy.load", call(named("numpy", "load"), path, None, True)),
        ("numpy.save", call(named("numpy", "save"), path, [1])),
        ("frompyfunc", call(named("numpy", "frompyfunc"), system, 1, 1)),
        ("a ufunc", call(named("numpy", "add"), 1, 2)),
        ("memmap", call(named("numpy", "memmap"), path, "u1", "w+", 0, (1,))),
        ("memmap by new", new(named("numpy", "memmap"), path, "u1", "w+", 0, (1,))),
        ("a class by the old opcode", Ops(b"(" + text(touch) + b"ios\nsystem\n")),
        ("a global by the old opcode", Ops(b"cos\nsystem\n" + push((touch,)) + REDUCE)),
        ("an object by the old opcode", Ops(b"(" + system + text(touch) + b"o")),
        ("an object of the same class", Ops(b"(" + named("builtins", "bytearray") + number(1 << 33) + b"o")),
        ("a code", Ops(b"\x82\x07" + push((touch,)) + REDUCE)),
        ("a code of two bytes", Ops(b"\x83\x07\x00" + push((touch,)) + REDUCE)),
        ("a code of four bytes", Ops(b"\x84\x07\x00\x00\x00" + push((touch,)) + REDUCE)),
        ("a persistent id", Ops(push((system, (touch,), 0)) + b"Q")),
        ("a persistent id of text", Ops(b"Pabc\n")),
        ("a forged deed", Ops(push(system) + push((touch,)) + b"K\x00\x87Q")),
        ("pickle in pickle", call(named("pickle", "loads"), b"\x80\x04cos\nsystem\nX\x01\0\0\0a\x85R.")),
        ("pickle in pandas", call(named("pandas", "read_pickle"), path)),
        ("a query of pandas", call(named("pandas", "eval"), "1")),
        ("numexpr", call(named("pandas.core.computation.eval", "eval"), "@os.system('x')")),
        ("ctypes", call(named("ctypes", "CDLL"), None)),
        ("marshal", call(named("marshal", "loads"), b"x")),
        ("types.FunctionType", call(named("types", "FunctionType"), None, {})),
        ("a code object", call(named("types", "CodeType"))),
        ("webbrowser", call(named("webbrowser", "open"), path)),
        ("a logger", call(named("logging.config", "dictConfig"), {})),
        ("a path that is opened", call(named("zoneinfo", "ZoneInfo.from_file"), path)),
        ("a zone elsewhere", call(named("zoneinfo", "ZoneInfo"), "../../../tmp/x")),
        ("a dict's method", call(named("builtins", "dict.clear"), {1: 2})),
        ("the state of a class", build(named("types", "SimpleNamespace"), {"x": 1})),
        ("the state of a numpy class", build(named("numpy.ma", "MaskedArray"), (None, {"mean": 1}))),
        ("the state of a pandas class", build(named("pandas", "DataFrame"), (None, {"mean": 1}))),
        ("the state of a function", build(named("numpy", "take"), (None, {"__defaults__": (1,)}))),
        ("the state of a ufunc", build(named("numpy", "add"), (None, {"__doc__": "x"}))),
        ("the state of a dtype", build(dtype("f8"), (3, "|", None, None, None, -1, -1, 63))),
        ("the state of a module", build(named("numpy", "ma"), {"array": 1})),
        ("the registry of pickle", named("copyreg", "_extension_registry")),
        ("a module", named("numpy", "linalg")),
        ("warnings", call(named("warnings", "warn"), "x")),
        ("__import__", call(named("builtins", "__import__"), "antigravity")),
        ("a metaclass", call(named("builtins", "type"), "C", (), {})),
        ("the class of an object", call(named("builtins", "type"), 1)),
        ("__class__ among slots", build(new(named("collections", "UserDict")),
                                        (None, {"__class__": named("collections", "UserList")}))),
        ("__class__ of an exception", build(call(named("builtins", "ValueError")),
                                            {"__class__": named("builtins", "KeyError")})),
        ("a module that does not exist", call(named("mmapdict_no_such_module", "f"))),
        ("weakref", call(named("weakref", "finalize"), {}, system, touch)),
        ("contextlib", call(named("contextlib", "ExitStack.callback"), system)),
        ("defaultdict of a function", call(named("collections", "defaultdict"), named("numpy", "take"))),
    ]
