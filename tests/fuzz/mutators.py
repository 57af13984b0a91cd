"""Changes to the bytes of a file, from a flipped bit to a forged record: the same numbers give the same mutant.

`mutate` takes a file and returns another one. It works on two levels: on the *document* (a header, a list of records,
and what stands behind STOP), which is then laid out anew with right tags, lengths and check values, so that what is
wrong with it is met by a deep layer; and on the bytes, as a disk or a program gone wild would. It shares no code with
mmapdict.
"""

import pickletools
import random
import struct
import zlib
from typing import NamedTuple

HEADER_SIZE = 256
COMMIT, STOP, LIVE, DEAD, MEMO, STATE = 40, 48, 56, 64, 72, 88
CHECK_SIZE = 14
NASTY = (0, 1, 2, 7, 8, 255, 256, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**56, 2**62, 2**63 - 1, 2**63,
         2**64 - 8, 2**64 - 1)
SAME, REFUSED_OR_SAME = "same", "same or refused"


class Mutant(NamedTuple):
    """A changed file.

    Attributes
    ----------
    data : bytes
    promise : str
        `SAME`: only bytes without a meaning were changed. `REFUSED_OR_SAME`: or some that only a check looks at.
        Empty: there is none.
    forged : bool
        Whether check values were made right again: no accident does that.
    story : str
        What was done.
    """

    data: bytes
    promise: str
    forged: bool
    story: str


# -- documents ----------------------------------------------------------------------------------------------------

class Record:
    """One record, apart from its place.

    Attributes
    ----------
    content : bytes
        What stands between the check value's POP and the closing SETITEM or POP_MARK.
    span : int
        How much of it is covered.
    entry, live : bool
    place : int or None
        What the content's offset in the file is modulo 64, if it matters.
    forged : dict
        Instead of the right thing: "length", "crc", "tag", "span", "size" (of the check value), "close" (bytes).
    at : dict
        Offsets in the file that it was read from: "record", "check", "content", "end"; empty if it is a new one.
    """

    def __init__(self, content, span=None, entry=True, live=True, place=None, at=None):
        self.content = content
        self.span = min(len(content), 4096) if span is None else span
        self.entry = entry
        self.live = live
        self.place = place
        self.forged = {}
        self.at = at or {}

    def copy(self):
        new = Record(self.content, self.span, self.entry, self.live, self.place)
        new.forged = dict(self.forged)
        return new

    def bytes_at(self, offset, tag):
        """The record's bytes from MARK to POP_MARK, laid out for `offset`; its length is a multiple of 8."""
        root, close = (b"h\0", b"s1") if self.entry else (b"", b"1")
        close = self.forged.get("close", close)
        start = offset + 10 + len(root) + 2 + CHECK_SIZE + 1
        if self.place is None:
            pad = -(start + len(self.content) + len(close)) % 8
        else:
            pad = (self.place - start) % 64
        size = self.forged.get("size", CHECK_SIZE + pad)
        head = b"C" + bytes([size]) if size < 256 else b"B" + struct.pack("<I", size & 0xFFFFFFFF)
        length = len(root) + len(head) + CHECK_SIZE + pad + 1 + len(self.content) + len(close) - 1
        length = self.forged.get("length", length)
        span = self.forged.get("span", self.span) & 0xFFFF
        mine = self.forged.get("tag", offset ^ tag)
        crc = zlib.crc32(self.content[:span], zlib.crc32(struct.pack("<QQH", length, mine, span)))
        check = struct.pack("<QIH", mine, self.forged.get("crc", crc), span) + bytes(pad) + b"0"
        return (b"(" + (b"G" if self.live else b"\x8e") + struct.pack("<Q", length) + root + head + check
                + self.content + close)


def read_records(data):
    """Return the records of a file and the offset behind them, which is that of the STOP if the file is whole."""
    found, at = [], HEADER_SIZE
    while data[at:at + 1] == b"(" and data[at + 1:at + 2] in (b"G", b"\x8e") and at + 40 <= len(data):
        length = struct.unpack_from("<Q", data, at + 2)[0]
        end = at + 11 + length
        if end > len(data):
            break
        entry = data[at + 10:at + 12] == b"h\0"
        check = at + (12 if entry else 10)
        size, check = (data[check + 1], check + 2) if data[check:check + 1] == b"C" else \
            (int.from_bytes(data[check + 1:check + 5], "little"), check + 5)
        content, close = check + size + 1, end - (2 if entry else 1)
        if size < CHECK_SIZE or content > close:
            break
        found.append(Record(data[content:close], struct.unpack_from("<H", data, check + 12)[0], entry,
                            data[at + 1:at + 2] == b"G", content % 64,
                            {"record": at, "check": check, "content": content, "close": close, "end": end}))
        at = end
    return found, at


def lay_out(header, records, behind, honest=True):
    """Return the file that holds these records one behind the other, with a header that fits if `honest`."""
    tag = int.from_bytes(header[24:32], "little")
    parts, at, live, dead = [header], HEADER_SIZE, 0, 0
    for record in records:
        part = record.bytes_at(at, tag)
        parts.append(part)
        at += len(part)
        live += record.live and record.entry
        dead += 0 if record.live else len(part)
    data = b"".join([*parts, b".", behind])
    if honest:
        for offset, value in ((STOP, at), (LIVE, live), (DEAD, dead)):
            data = with_number(data, offset, value)
    return data


def with_number(data, offset, value, size=8):
    return data[:offset] + (value % (1 << 8 * size)).to_bytes(size, "little") + data[offset + size:]


# -- opcodes ------------------------------------------------------------------------------------------------------

CODES = {ord(op.code): op for op in pickletools.opcodes}
COUNTED = {0x8c: 1, 0x58: 4, 0x8d: 8, 0x43: 1, 0x42: 4, 0x8e: 8, 0x96: 8, 0x8a: 1, 0x8b: 4, 0x54: 4, 0x55: 1}
FIXED = {code: op.arg.n for code, op in CODES.items() if op.arg is not None and op.arg.n > 0}


def operations(ops):
    """Return the (start, end) of each opcode, as far as they make sense."""
    found, at = [], 0
    while at < len(ops):
        code, end = ops[at], at + 1
        if code in COUNTED:
            width = COUNTED[code]
            end += width + int.from_bytes(ops[at + 1:at + 1 + width], "little")
        elif code in FIXED:
            end += FIXED[code]
        elif code not in CODES or CODES[code].arg is not None:
            break
        if end > len(ops):
            break
        found.append((at, end))
        at = end
    return found


def literal(obj):
    """Opcodes that push plain Python objects; texts with lone surrogates too."""
    if obj is None or obj is True or obj is False:
        return {None: b"N", True: b"\x88", False: b"\x89"}[obj]
    if isinstance(obj, str):
        raw = obj.encode("utf-8", "surrogatepass")
        return b"\x8c" + bytes([len(raw)]) + raw if len(raw) < 256 else b"X" + struct.pack("<I", len(raw)) + raw
    if isinstance(obj, bytes):
        return b"C" + bytes([len(obj)]) + obj if len(obj) < 256 else b"B" + struct.pack("<I", len(obj)) + obj
    if isinstance(obj, float):
        return b"G" + struct.pack(">d", obj)
    if isinstance(obj, int):
        if 0 <= obj < 256:
            return b"K" + bytes([obj])
        size = obj.bit_length() // 8 + 1
        return b"\x8a" + bytes([size]) + obj.to_bytes(size, "little", signed=True)
    if isinstance(obj, tuple):
        return b"(" + b"".join(map(literal, obj)) + b"t"
    if isinstance(obj, list):
        return b"](" + b"".join(map(literal, obj)) + b"e"
    return b"}(" + b"".join(literal(x) for item in obj.items() for x in item) + b"u"


def named(module, name):
    return literal(module) + literal(name) + b"\x93"


# Whatever a stream could name. The canary notes each call; the commands do nothing, should they ever be run.
HARMLESS = [(module, name) for module, names in (
    ("builtins", "bytearray complex dict list tuple set frozenset int float str bytes bool range slice object type "
                 "Ellipsis NotImplemented ValueError dict.clear dict.pop dict.update"),
    ("collections", "OrderedDict deque defaultdict Counter"), ("datetime", "datetime date timedelta timezone"),
    ("decimal", "Decimal"), ("fractions", "Fraction"), ("uuid", "UUID"), ("pathlib", "PurePosixPath"),
    ("array", "array _array_reconstructor"), ("types", "SimpleNamespace"), ("zoneinfo", "ZoneInfo._unpickle"),
    ("ipaddress", "IPv4Address IPv6Network"), ("enum", "Enum"), ("copyreg", "_reconstructor __newobj__ __newobj_ex__"),
    ("numpy", "ndarray dtype take float64 bool_ str_ void record recarray longdouble datetime64 add matrix"),
    ("numpy.ma", "MaskedArray nomask masked"), ("numpy.ma.core", "_mareconstruct"), ("numpy.char", "chararray"),
    ("numpy.dtypes", "StringDType"), ("numpy.random", "Generator"), ("operator", "methodcaller"),
    ("numpy.random._pickle", "__generator_ctor __bit_generator_ctor"), ("zlib", "decompress"), ("lzma", "decompress"),
    ("bz2", "decompress"), ("_codecs", "encode"), ("pandas", "DataFrame Timestamp"), ("scipy.sparse", "csr_matrix"),
    ("xarray", "DataArray")) for name in names.split()]
HOSTILE = [(module, name) for module, names in (
    ("fuzz.canary", "touch Touched Touched.method touched"), ("fuzz.canary_not_imported", "x"), ("this", "s"),
    ("antigravity", "x"), ("posix", "system"), ("os", "system popen putenv remove mkdir"), ("subprocess", "run Popen"),
    ("builtins", "eval exec compile open getattr setattr __import__ vars globals map object.__setattr__ type.__call__ "
                 "print"),
    ("operator", "attrgetter itemgetter call setitem iconcat mul pow"), ("functools", "partial reduce"),
    ("importlib", "import_module"), ("types", "FunctionType CodeType DynamicClassAttribute"),
    ("copyreg", "pickle add_extension"), ("pickle", "loads _loads"), ("marshal", "loads"), ("code", "interact"),
    ("ctypes", "CDLL"), ("io", "open"), ("pathlib", "Path.write_bytes Path.unlink"), ("shutil", "rmtree"),
    ("socket", "socket"), ("numpy", "load save fromfile memmap savetxt ndarray.tofile zeros tile frompyfunc "
                                    "ndarray.__setstate__ lib.format.read_array ma.core.getmask"),
    ("numpy.testing", "runstring"), ("numpy._core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "scalar"),
    ("mmapdict", "open MmapDict"), ("mmapdict.store", "File.truncate"), ("mmapdict.pickling", "pickle.loads"),
    ("sys", "exit setrecursionlimit"), ("signal", "raise_signal"), ("faulthandler", "_sigsegv"),
    ("pandas", "read_pickle"), ("pandas.io.common", "os.system"), ("timeit", "timeit"), ("time", "sleep"),
    ("itertools", "repeat count"), ("gc", "get_objects"), ("weakref", "finalize"), ("_frozen_importlib", "__import__"),
    ("\ud800", "x")) for name in names.split()] + [("", ""), ("numpy", "")]
TEXTS = ["", "a", "x" * 300, "names", "formats", "|u1", "<f8", ">i2", "|O", "touch()", "exit 0",
         "import fuzz.canary_not_imported", "__class__", "__setstate__", "__init__", "__reduce__", "__dict__",
         "__code__", "__globals__", "__defaults__", "append", "view", "tofile", "\ud800", "\0", "é", "9" * 5000,
         "1e999999999", "0x" + "f" * 5000, "_fields", "flags", "hex"]
SPECS = ["|O", "O", "i4,O", "|V2147483647", "|V9999999999", "|S2147483647", "|U1000000000", "<U536870912",
         "(1000000000,)i4", "(2,2)<i4", "", "bogus", "<M8[bogus]", "<M8[25s/7]", "<m8[2147483647as]", "<M8[0s]", "<M8",
         "{}", "T", "i1," * 200, "|V0", "|S0", "<U0", "|b1", "|b2", "<f2", "<f3", "<f16", ">c32", "<i8", ">u2", "<c1",
         "|i1", "=i4", "V", "S", "U", "\ud800", "|V16", None, 5, (), b"<f8", [], {}, ("<i4", (2,)), ("<i4", ()),
         ("<i4", (2**62, 2**62)), ("<i4", (-1,)), ("|V16", {"names": ["a"], "formats": ["<i4"]}), (("<i4", (2,)), (3,)),
         ["<i4"], [("a", "<i4")], {"a": ("<i4", 0)}, {"names": ["a", "a"], "formats": ["<i4", "<i4"]},
         {"names": ["a"], "formats": ["|O"]}, {"names": ["a"], "formats": ["<i4"], "offsets": [2**62]},
         {"names": ["a"], "formats": ["<i4"], "offsets": [-4]}, {"names": ["a"], "formats": ["<i4"], "itemsize": 2**40},
         {"names": ["a"], "formats": ["<i4"], "itemsize": 2}, {"names": ["a"], "formats": ["<i4"], "itemsize": -1},
         {"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]},
         {"names": ["a"], "formats": ["<i4"], "titles": ["a"]}, {"names": ["a"], "formats": ["<i4"], "titles": [5]},
         {"names": ["a"], "formats": ["<i4"], "aligned": True}, {"names": ["a"], "formats": ["<i4"], "aligned": 7},
         {"names": [], "formats": []}, {"names": [], "formats": [], "itemsize": 16}, {"names": ["a"], "formats": []},
         {"names": ["a"], "formats": [("<i4", (2**31,))]}, {"names": [5], "formats": ["<i4"]},
         {"names": "a", "formats": "b"}, {"names": [""], "formats": ["<i4"]},
         {"names": ["a"], "formats": [{"names": ["b"], "formats": ["|O"]}]}]
SHAPES = [(), (0,), (1,), (2**62,), (2**63 - 1,), (2**63,), (2**64,), (-1,), (-4, -4), (2**32, 2**32), (2**60 + 1, 16),
          (2**40, 2**40, 0), (1,) * 64, (1,) * 65, (1,) * 33, (1,) * 3000, (0, 2**62), [3], 3, None, ("3",), (1.0,),
          (True,), ((3,),), (2**31, 2**31, 2), (2**33,), (4, 4)]
KEYS = [None, True, False, 0, 1, 1.0, -1, 2**70, -2**2000, 0.0, -0.0, float("nan"), float("inf"), "", "a", "b",
        "\ud800", b"", b"a", (), (1, "a"), (1, (2, (3,))), ((float("nan"),),), [], {}, [1], (1, [2]), "k" * 300,
        "k" * 5000, b"k" * 5000]


DEEP = {"tuple": (b"(", b"", b"t"), "tuple1": (b"", b")", b"\x85"), "list": (b"](", b"", b"e"),
        "dict": (b"}(N", b"N", b"u"), "mark": (b"(", b"", b"")}


def deep(n, kind):
    """Opcodes that nest something n times, perhaps as the key of a dict or in a set."""
    before, inside, behind = DEEP[kind]
    return before * n + inside + behind * n


def bomb(rng):
    """A few opcodes that ask for much: memory, time, or depth."""
    n = rng.choice(NASTY)
    u32, u64 = struct.pack("<I", n & 0xFFFFFFFF), struct.pack("<Q", n)
    index = struct.pack("<I", rng.choice([2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1]))
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice([b"]r" + index, b"Nr@\0\0\0r" + index, b"\x8e" + u64, b"\x96" + u64, b"\x8d" + u64,
                           b"\x95" + u64 + b"N", b"\x8b" + u32, b"B" + u32, b"X" + u32])
    if kind == 1:
        return deep(rng.choice([50, 99, 100, 101, 500, 5000, 50000]), rng.choice(sorted(DEEP)))
    if kind == 2:
        times = rng.choice([10, 40, 200])
        doubled = b")" + b"2\x86" * times          # hashing it, or writing it out, takes 2 ** times steps
        return rng.choice([doubled, b"}" + doubled + b"Ns", b"\x8f(" + doubled + b"\x90", b"]" + b"2a" * times,
                           b"})" + b"22\x87" * times + b"Ns", named("builtins", "frozenset") + doubled + b"\x85R"])
    if kind == 3:
        module, name, argument = rng.choice([("zlib", "decompress", literal(ZEROS)),
                                             ("builtins", "bytearray", literal(2**24)),
                                             ("builtins", "bytes", literal(2**27)),
                                             ("builtins", "list", named("builtins", "range") + b"J\0\0\x10\0\x85R"),
                                             ("numpy", "ndarray", literal((2**24,)))])
        return repeated_call(module, name, argument, rng.choice([1, 300]))
    if kind == 4:
        module, name, arguments = rng.choice([
            *(("builtins", name, (n,)) for name in ("bytearray", "bytes", "range", "list", "str", "int")),
            ("decimal", "Decimal", ("1e999999999",)), ("fractions", "Fraction", ("1e99999999",)),
            ("collections", "deque", (list(range(5)), n)), ("array", "array", ("d", [0.0, 1.0])),
            ("numpy", "ndarray", ((n,),))])
        return named(module, name) + literal(arguments) + rng.choice([b"R", b"\x81"])
    dtype = named("numpy", "dtype") + literal((rng.choice(SPECS),)) + b"R"
    return named("numpy", "ndarray") + rng.choice([
        b"(" + literal(rng.choice(SHAPES)) + dtype + b"t\x81",
        b"(" + literal(rng.choice(SHAPES)) + dtype + literal(bytes(16)) + b"t\x81",
        literal(((0,),)) + b"\x81(K\x01" + literal((n & 0xFF,)) + dtype + b"\x89" + literal(bytes(n & 0xFF)) + b"tb",
        literal(((0,),)) + b"\x81(K\x01" + literal((n & 0xFF,)) + dtype + b"\x89](" + b"N" * (n & 7) + b"etb"])


def repeated_call(module, name, argument, times):
    """A list of what a global makes of one argument, again and again: each call may be small, all together are not."""
    return (named(module, name) + b"r@\0\0\0" + b"0" + argument + b"\x85r" + struct.pack("<I", 65) + b"0]("
            + (b"j@\0\0\0j" + struct.pack("<I", 65) + b"R") * times + b"e")


ZEROS = zlib.compress(bytes(1 << 24), 9)[:20000]

# Entries and hidden records that try to make two readers see two things, or to reach beyond their record:
# (content, whether it is an entry).
TRICKS = [(literal("a") + b"Nsh\0" + literal("hidden key") + b"K\x05", True),
          (b"h\0" + literal("from a hidden record") + b"K\x05s", False),
          (literal("k") + b"N0" + b"h\0" + literal("k2") + b"K\x01s" + b"N", True),
          (named("builtins", "dict.clear") + b"h\0\x85R", False),
          (named("builtins", "dict.clear") + b"h\0\x85R0", False),
          (literal("cleared by a value") + named("builtins", "dict.clear") + b"h\0\x85R", True),
          (named("builtins", "dict.pop") + b"(h\0" + literal("a") + b"NtR", False),
          (named("builtins", "dict.pop") + b"h\0" + literal("a") + b"N\x87R", False),
          (named("builtins", "dict.pop") + b"h\0" + literal("x") + b"N\x87R", False),
          (named("builtins", "dict.update") + b"h\0" + b"}" + literal("a") + b"K\x07s\x86R", False),
          (named("fuzz.canary", "touch") + b"q\x01" + named("numpy", "dtype") + b"q\x02", False),
          (named("numpy", "matrix") + b"q\x01", False), (literal("memo") + b"Nq\x01", True),
          (literal("memo") + b"Nr\x01\0\0\0", True), (literal("root in the memo") + b"}q\x00", True),
          (literal("memo 64") + b"]r@\0\0\0j@\0\0\0a", True), (literal("stop") + b"N.", True), (b".", False),
          (b"N.N", False), (b"1.", False), (b"0.", False), (literal("mark") + b"1(N", True),
          (literal("pop the root") + b"N000h\0", True), (b"00}q\0", False), (literal("itself") + b"h\0", True),
          (literal("the key again") + b"2", True), (literal("the key twice") + b"22\x86", True),
          (literal("the key from the memo") + b"r@\0\0\0j@\0\0\0", True), (literal("the key in a list") + b"]2a", True),
          (literal("the key as an argument") + b"\x85" + literal("k") + b"N", True),
          (literal("stops early") + b")\x85.", True), (literal("a mark of others") + b"1(N", True),
          (literal("a key and a value") + literal("x") + b"Ns(N", True),
          (b"(h\0" + literal("in a mark") + b"Ns", False), (b"C\x040000", False), (b"B\x04\0\0\x000000", False),
          (b"\x8e" + struct.pack("<Q", 2**40), False), (literal("frame") + b"\x95" + struct.pack("<Q", 1) + b"N", True),
          (literal("proto") + b"\x80\x04N", True), (literal("memoize") + b"]\x94\x94\x940N", True),
          (literal("persistent") + b"NQ", True), (b"P0\n", False), (b"Va\nNs", True),
          (literal("inst") + b"(ifuzz.canary\ntouch\n", True), (b"cfuzz.canary\ntouch\n)R", False),
          (literal("obj") + b"(" + named("fuzz.canary", "Touched") + b"o", True),
          (literal("build") + named("fuzz.canary", "Touched") + b"}" + literal("x") + literal("y") + b"sb", True),
          (literal("build a class") + named("numpy.ma", "MaskedArray") + b"N}" + literal("mean") + literal("pwn")
           + b"s\x86b", True), (literal("build a function") + named("numpy", "take") + b"N}" + literal("__defaults__")
                                + b")s\x86b", True), (literal("getattr") + named("builtins", "getattr") + b"("
                                                      + named("fuzz.canary", "Touched") + literal("method") + b"tR)R",
                                                      True),
          (literal("partial") + named("functools", "partial") + b"(" + named("fuzz.canary", "touch") + b"tR)R", True),
          (literal("methodcaller") + named("operator", "methodcaller") + literal(("tofile", "written by a value"))
           + b"R" + b"(" + named("numpy", "ndarray") + literal(((3,),)) + b"\x81tR", True),
          (literal("objects") + named("numpy", "ndarray") + b"(" + literal((1,)) + named("numpy", "dtype")
           + literal(("O",)) + b"R" + literal(b"AAAAAAAA") + b"t\x81", True),
          (literal("objects 2") + named("numpy", "ndarray") + literal(((0,),)) + b"\x81(K\x01" + literal((1,))
           + named("numpy", "dtype") + literal(("O",)) + b"R\x89" + literal(b"AAAAAAAA") + b"tb", True),
          (literal("objects 3") + named("numpy", "ndarray") + literal(((0,),)) + b"\x81(K\x01" + literal((5,))
           + named("numpy", "dtype") + literal(("O",)) + b"R\x89](NNetb", True),
          (literal("dtype state") + named("numpy", "dtype") + literal(("f8",)) + b"R(K\x03" + literal("<")
           + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb", True),
          (literal("default dict") + named("collections", "defaultdict") + b"(" + named("fuzz.canary", "touch") + b"tR"
           + literal("x") + b"Ns", True), (literal("date") + named("datetime", "datetime") + literal((b"\xff" * 10,))
                                           + b"R", True), (literal("fraction") + named("fractions", "Fraction")
                                                           + b")\x81}" + literal("numerator") + literal("x") + b"sb",
                                                           True),
          (literal("cycle") + b"]r@\0\0\0j@\0\0\0ar" + struct.pack("<I", 65), True),
          (literal("a tuple that holds itself") + b"]r@\0\0\0j@\0\0\0\x85r" + struct.pack("<I", 65) + b"a0j"
           + struct.pack("<I", 65), True), (literal("wide") + b"](" + b"Nr@\0\0\0" * 100 + b"e", True),
          (literal("laughs") + b"".join(b"](" + (b"j" + struct.pack("<I", 63 + i)) * (10 if i > 1 else 0) + b"er"
                                        + struct.pack("<I", 64 + i) + b"0" for i in range(1, 20)) + b"j"
           + struct.pack("<I", 83), True),]


class _Program:
    """Random opcodes that mostly have on the stack what they take."""

    def __init__(self, rng, hostile=True):
        self.rng = rng
        self.names = HARMLESS + HOSTILE if hostile else HARMLESS
        self.out = []
        self.stack = []             # "v" any, "(" a mark, "l" list, "d" dict, "t" tuple, "c" callable, "s" text
        self.memo = []

    def emit(self, ops, *kinds):
        self.out.append(ops)
        self.stack += kinds

    def value(self):
        rng = self.rng
        kind = rng.randrange(14)
        if kind < 3:
            self.emit(literal(rng.choice([None, True, 0, 1, 255, 65536, -1, 2**70, 1.5, float("nan")])), "v")
        elif kind < 5:
            self.emit(literal(rng.choice(TEXTS)), "s")
        elif kind == 5:
            self.emit(literal(rng.choice([b"", b"abc", bytes(16), rng.randbytes(9)])), "v")
        elif kind == 6:
            self.emit(b"]", "l")
        elif kind == 7:
            self.emit(rng.choice([b"}", b"\x8f"]), "d")
        elif kind == 8:
            self.emit(literal(rng.choice([*SHAPES[:12], ("a",), (1, 2, 3)])), "t")
        elif kind < 12:
            self.emit(named(*rng.choice(self.names)), "c")
        elif kind == 12:
            self.emit(bomb(rng), "v")
        else:
            self.emit(literal(rng.choice(SPECS[:30])), "v")

    def step(self):
        rng, stack = self.rng, self.stack
        top = stack[-1:]
        choice = rng.randrange(20)
        if choice < 7 or not stack:
            self.value()
        elif choice == 7:
            self.emit(b"(", "(")
        elif choice == 8 and "(" in stack:
            at = len(stack) - 1 - stack[::-1].index("(")
            below = stack[at - 1] if at else ""
            del stack[at:]
            self.emit(rng.choice({"l": [b"e", b"t", b"l"], "d": [b"u", b"\x90", b"t", b"d"]}.get(below,
                                                                                                 [b"t", b"\x91", b"1",
                                                                                                  b"l", b"d"])),
                      *([] if below in ("l", "d") else ["t"]))
        elif choice == 9 and len(stack) >= 2 and "(" not in stack[-2:]:
            del stack[-2:]
            self.emit(b"\x86", "t")
        elif choice == 10 and "(" not in top:
            stack.pop()
            self.emit(b"\x85", "t")
        elif choice in (11, 12, 13):
            # A call, whole: callable, arguments, REDUCE or NEWOBJ, perhaps a state.
            self.emit(named(*rng.choice(self.names)))
            self.emit(rng.choice([literal(rng.choice([(), (1,), ("a",), ((3,),), (b"abc",), ("exit 0",), ("<f8",),
                                                      ([1, 2],), (1, 2, 3)])), b"(" + named(*rng.choice(self.names))
                                  + literal(rng.choice(TEXTS)) + b"t", b"(" + named(*rng.choice(self.names))
                                  + named(*rng.choice(self.names)) + b"Nt"]))
            if rng.random() < 0.1:
                self.emit(b"}")
            self.emit(rng.choice([b"R", b"R", b"\x81", b"\x92"]), "v")
            if rng.random() < 0.3:
                self.emit(rng.choice([b"}" + literal(rng.choice(TEXTS)) + b"Nsb", b"N}" + literal(rng.choice(TEXTS))
                                      + b"K\x01s\x86b", literal(rng.choice([(), (1, 2), "x", [1],
                                                                            (1, (3,), "f8", False, bytes(24))]))
                                      + b"b"]))
        elif choice == 14 and len(stack) >= 2 and stack[-2] == "l" and top != ["("]:
            stack.pop()
            self.emit(b"a")
        elif choice == 15 and len(stack) >= 3 and stack[-3] == "d" and "(" not in stack[-2:]:
            del stack[-2:]
            self.emit(b"s")
        elif choice == 16 and top != ["("]:
            index = rng.choice([64 + len(self.memo), 64, 65, rng.randrange(80), 2**31, 2**32 - 1])
            self.memo.append(index)
            self.emit(b"r" + struct.pack("<I", index))
        elif choice == 17 and self.memo:
            self.emit(b"j" + struct.pack("<I", rng.choice(self.memo)), "v")
        elif choice == 18:
            self.emit(rng.choice([b"h\x01", b"h\x02", b"h\x03", b"h\x04", b"h\x08", b"h\0", b"2", b"0", b"1"]), "v")
        else:
            self.emit(bytes([rng.choice(list(CODES))]) + rng.randbytes(rng.choice([0, 0, 1, 2, 4])), "v")

    def ops(self, steps):
        for _ in range(steps):
            self.step()
        # Leave one object, mostly.
        if self.rng.random() < 0.8:
            while "(" in self.stack:
                self.emit(b"t")
                at = len(self.stack) - 1 - self.stack[::-1].index("(")
                self.stack[at:] = ["t"]
            while len(self.stack) > 1:
                self.stack.pop()
                self.emit(b"0")
            if not self.stack:
                self.emit(b"N")
        return b"".join(self.out)


def program(rng, hostile=True):
    return _Program(rng, hostile).ops(rng.choice([1, 2, 3, 5, 8, 20]))


# -- changes to the opcodes of a content --------------------------------------------------------------------------

def change_ops(ops, rng):
    """Return other opcodes, and what was done."""
    places = operations(ops)
    if not places:
        return ops + program(rng), "append a program"
    start, end = rng.choice(places)
    op = ops[start:end]
    kind = rng.randrange(13)
    if kind == 0:
        return ops[:start] + ops[end:], "drop %r" % op[:12]
    if kind == 1:
        return ops[:end] + op * rng.choice([1, 1, 2, 100]) + ops[end:], "repeat %r" % op[:12]
    if kind == 2:
        other, until = rng.choice(places)
        return ops[:start] + ops[other:until] + ops[end:], "put one opcode in place of another"
    if kind == 3:
        new = bytes([rng.choice(list(CODES))])
        return ops[:start] + new + ops[start + 1:], "opcode %r for %r" % (new, op[:1])
    if kind == 4:
        new = rng.choice([lambda: program(rng), lambda: bomb(rng), lambda: literal(rng.choice(KEYS)),
                          lambda: named(*rng.choice(HARMLESS + HOSTILE))])()
        return ops[:start] + new + ops[end:], "%r for %r" % (new[:20], op[:12])
    if kind == 5:
        new = rng.choice([lambda: program(rng), lambda: bomb(rng), lambda: b"0", lambda: b"1", lambda: b"(",
                          lambda: b"."])()
        return ops[:start] + new + ops[start:], "insert %r" % new[:20]
    if kind == 6 and b"h\x02" in ops:
        return change_array(ops, rng)
    if kind == 7:
        at = rng.randrange(len(ops))
        return ops[:at] + bytes([ops[at] ^ 1 << rng.randrange(8)]) + ops[at + 1:], "flip a bit at %d" % at
    counted = [place for place in places if ops[place[0]] in COUNTED]
    if kind == 8 and counted:
        start, end = rng.choice(counted)
        width = COUNTED[ops[start]]
        n = int.from_bytes(ops[start + 1:start + 1 + width], "little")
        new = rng.choice([n + 1, n - 1, *NASTY])
        return with_number(ops, start + 1, new, width), "size %d for %d" % (new, n)
    if kind == 9 and counted:
        start, end = rng.choice(counted)
        new = literal(rng.choice(TEXTS))
        return ops[:start] + new + ops[end:], "%r for %r" % (new[:20], ops[start:end][:20])
    memos = [place for place in places if ops[place[0]] in b"hjqr"]
    if kind in (10, 11) and memos:
        start, end = rng.choice(memos)
        width = end - start - 1
        new = rng.choice([0, 1, 2, 3, 4, 8, 9, 63, 64, 65, 66, 1000, 2**20, 2**31, 2**32 - 1])
        return with_number(ops, start + 1, new, width), "memo %d in %r" % (new, ops[start:end])
    at, n = rng.randrange(len(ops)), rng.choice([1, 2, 8, 64])
    return ops[:at] + rng.randbytes(n) + ops[at + n:], "noise of %d bytes at %d" % (n, at)


ARRAY_HEADS = (b"h\x01h\x03\x81(K\x01", b"h\x01(")


def change_array(ops, rng):
    """Give an array another shape or dtype."""
    if rng.random() < 0.5:
        at = ops.index(b"h\x02") + 2
        places = [place for place in operations(ops[at:]) if ops[at + place[0]] == 0x85]
        if places:
            spec = rng.choice(SPECS)
            return ops[:at] + literal(spec) + ops[at + places[0][0]:], "dtype %.40r" % (spec,)
    for head in ARRAY_HEADS:
        at = ops.find(head)
        end = ops.find(b"h\x02", at)
        if 0 <= at < end:
            shape = rng.choice(SHAPES)
            return ops[:at + len(head)] + literal(shape) + ops[end:], "shape %.40r" % (shape,)
    return ops, "nothing"


# -- changes to documents -----------------------------------------------------------------------------------------

def forge(data, rng, others):
    """Change the document; return the file, and what was done."""
    records, stop = read_records(data)
    behind = data[stop + 1:] if rng.random() < 0.5 else b""
    pick = rng.randrange(17)
    story = "nothing"
    at = rng.randrange(len(records)) if records else 0
    if pick < 5 and records:
        old = records[at]
        content, story = change_ops(old.content, rng)
        shift = len(content) - len(old.content)
        span = old.span if rng.random() < 0.5 or old.span != len(old.content) else min(len(content), 4096)
        span = max(0, min(span + (shift if old.span < len(old.content) and rng.random() < 0.5 else 0), len(content),
                          4096))
        records[at] = Record(content, span, old.entry, old.live)
        story = "record %d: %s" % (at, story)
    elif pick == 5:
        content, entry = rng.choice(TRICKS)
        records.insert(rng.randint(0, len(records)), Record(content, None, entry))
        story = "trick %r" % content[:60]
    elif pick in (6, 7):
        content = literal(rng.choice(KEYS[:25])) + program(rng)
        records.insert(rng.randint(0, len(records)), Record(content))
        story = "program %r" % content[:80]
    elif pick == 8:
        content = rng.choice([program(rng), bomb(rng), literal(rng.choice(KEYS))])
        records.insert(rng.randint(0, len(records)), Record(content, None, rng.random() < 0.5))
        story = "hidden or malformed %r" % content[:60]
    elif pick == 9 and records:
        records[at].live = not records[at].live
        story = "record %d %s" % (at, "revived" if records[at].live else "killed")
    elif pick == 10 and records:
        copied = records[at].copy()
        records.insert(rng.randint(0, len(records)), copied)
        story = "record %d twice" % at
    elif pick == 11 and records:
        del records[at]
        story = "record %d dropped" % at
    elif pick == 12 and len(records) > 1:
        other = rng.randrange(len(records))
        records[at], records[other] = records[other], records[at]
        story = "records %d and %d swapped" % (at, other)
    elif pick == 13 and records:
        name = rng.choice(["length", "crc", "tag", "span", "size", "close"])
        values = {"length": [*NASTY, 17, 18, 19, 25], "crc": [0, 2**32 - 1], "tag": NASTY,
                  "span": [0, 1, 4095, 4096, 4097, 65535], "size": [0, 13, 15, 40, 255, 4096, 4097, 2**32 - 1],
                  "close": [b"", b"1", b"s", b"ss1", b"0s1", b"s.", b"11", b"s1."]}
        records[at].forged[name] = rng.choice(values[name])
        story = "record %d: %s %r" % (at, name, records[at].forged[name])
    elif pick == 14 and others:
        other, _ = read_records(rng.choice(others))
        if other:
            taken = rng.choice(other).copy()
            records.insert(rng.randint(0, len(records)), taken)
            story = "a record of another file"
    elif pick == 15:
        whole = rng.choice([data, *others]) if others else data
        inner = rng.choice([whole, whole[HEADER_SIZE:], b"(" + whole[HEADER_SIZE + 1:]])[:20000]
        content = literal("a file in a file") + literal(inner)
        records.insert(rng.randint(0, len(records)), Record(content, min(len(content), 30)))
        story = "a file in a file"
    elif records:
        old = records[at]
        flipped = old.copy()
        flipped.entry = not old.entry
        flipped.place = None
        records[at] = flipped
        story = "record %d %s" % (at, "made hidden" if old.entry else "made an entry")
    return lay_out(data[:HEADER_SIZE], records, behind, rng.random() < 0.8), story


# -- changes to bytes ---------------------------------------------------------------------------------------------

def damage(data, rng, others):
    """Change bytes, as an accident would; return the file, and what was done."""
    n = len(data)
    kind = rng.randrange(13)
    at = rng.randrange(n) if rng.random() < 0.8 else rng.randrange(min(n, 300))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:], "bit at %d" % at
    if kind == 1:
        value = rng.choice([*b"(.G\x8e01rBCJKMRbhjqst\x93\0\xff", rng.randrange(256)])
        return data[:at] + bytes([value]) + data[at + 1:], "byte at %d: %d" % (at, value)
    if kind in (2, 3):
        at -= at % 8 if rng.random() < 0.7 else 0
        size, value = rng.choice([8, 8, 4, 2]), rng.choice(NASTY)
        return with_number(data, at, value, size)[:max(n, at + size)], "%d bytes at %d: %d" % (size, at, value)
    if kind == 4:
        at = rng.randrange(0, 248, 8)
        value = rng.choice([*NASTY, n, n - 1, n - 8, 257, rng.randrange(n), rng.randrange(2**64)])
        return with_number(data, at, value), "header cell at %d: %d" % (at, value)
    if kind == 5:
        return data[:at], "cut at %d" % at
    if kind == 6:
        more = rng.choice([b".", bytes(5000), b"(G" * 100, data[HEADER_SIZE:], rng.randbytes(100)])
        return data + more, "%d bytes more" % len(more)
    if kind == 7:
        size = rng.choice([512, 4096])
        at -= at % size
        return data[:at] + bytes(min(size, n - at)) + data[at + size:], "a sector of zeros at %d" % at
    if kind == 8:
        until = at + rng.choice([1, 2, 8, 64])
        return data[:at] + rng.randbytes(len(data[at:until])) + data[until:], "noise at %d" % at
    if kind == 9:
        until = at + rng.choice([1, 2, 8, 16])
        return data[:at] + data[until:], "%d bytes fall out at %d" % (until - at, at)
    if kind == 10:
        return data[:at] + rng.randbytes(rng.choice([1, 2, 8, 16])) + data[at:], "bytes come in at %d" % at
    if kind == 11:
        size = rng.choice([8, 64, 512])
        source = rng.choice([data, *others]) if others else data
        other = rng.randrange(len(source))
        other -= (other - at) % 8
        piece = source[max(0, other):max(0, other) + size]
        return data[:at] + piece + data[at + len(piece):], "a piece from elsewhere at %d" % at
    records, stop = read_records(data)
    places = [stop, *(r.at["record"] for r in records), *(r.at["record"] + 1 for r in records)]
    at = rng.choice([p for p in places if p < n] or [0])
    value = rng.choice(b".(G\x8e")
    return data[:at] + bytes([value]) + data[at + 1:], "STOP, MARK or Op at %d: %c" % (at, value)


def without_meaning(data, rng, others):
    """Change bytes that say nothing; return the file, the promise, and what was done."""
    records, stop = read_records(data)
    if data[stop:stop + 1] != b".":
        return data, SAME, "nothing"
    kind = rng.randrange(5)
    if kind == 0:
        more = rng.choice([b"", b".", b"(G" + rng.randbytes(50), bytes(300), data[HEADER_SIZE:],
                           rng.randbytes(rng.randrange(200))])
        return data[:stop + 1] + more, SAME, "other bytes behind STOP"
    if kind == 1:
        at = rng.choice([*range(COMMIT, 96, 8), *range(96, 248, 8)])
        return with_number(data, at, rng.choice(NASTY)), SAME, "header cell at %d" % at
    if kind == 2 and records:
        record = rng.choice(records)
        first, last = record.at["check"] + CHECK_SIZE, record.at["content"] - 1
        if first < last:
            at = rng.randrange(first, last)
            return data[:at] + rng.randbytes(1) + data[at + 1:], SAME, "padding of a check value at %d" % at
    dead = [r for r in records if not r.live and r.span < len(r.content)]
    if kind == 3 and dead:
        record = rng.choice(dead)
        at = rng.randrange(record.at["content"] + record.span, record.at["close"])
        return data[:at] + rng.randbytes(1) + data[at + 1:], SAME, "behind what is covered of a dead record, at %d" % at
    dead = [r for r in records if not r.live]
    if dead:
        record = rng.choice(dead)
        at = rng.randrange(record.at["record"] + 10, record.at["end"] - 1)
        return data[:at] + rng.randbytes(1) + data[at + 1:], REFUSED_OR_SAME, "in a dead record at %d" % at
    at = rng.randrange(96, 248)
    return data[:at] + rng.randbytes(1) + data[at + 1:], SAME, "a byte of the header that is not used, at %d" % at


def mutate(data, rng, others=()):
    """Return a `Mutant` of the file `data`.

    Parameters
    ----------
    data : bytes
    rng : random.Random
    others : sequence of bytes
        Files to take pieces from.
    """
    kind = rng.random()
    if kind < 0.12:
        made, promise, story = without_meaning(data, rng, others)
        return Mutant(made, promise, False, story)
    if kind < 0.45:
        made, story = damage(data, rng, others)
        if rng.random() < 0.2:
            made, again = damage(made, rng, others) if made else (made, "")
            story += "; " + again
        return Mutant(made, "", False, story)
    made, story = forge(data, rng, others)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 4])):
        made, again = forge(made, rng, others)
        story += "; " + again
    if rng.random() < 0.1:
        made, again = damage(made, rng, others)
        story += "; " + again
    return Mutant(made, "", True, story)


def value_of(record):
    """Return the opcodes of an entry's value, or nothing if its key is more than one opcode."""
    places = operations(record.content)
    return record.content[places[0][1]:] if record.entry and places and record.content[0] in b"\x8cKMJGN" else b""


def mutate_value(rng, others):
    """Return the opcodes of a value: a program, a bomb, or those of one of the files `others`, changed."""
    kind = rng.randrange(4)
    if kind == 0:
        return program(rng)
    if kind == 1:
        ops = bomb(rng)
        return rng.choice([ops, b"](" + ops + b"e"])
    records = read_records(rng.choice(others))[0] if kind == 2 else [Record(content) for content, _ in TRICKS]
    ops = value_of(rng.choice(records)) if records else b""
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        ops, _ = change_ops(ops, rng)
    return ops


def numbered(seeds, number):
    """Return mutant `number` of the files `seeds`, a dict of names to bytes, and its seed's name."""
    rng = random.Random(number)
    name = rng.choice(sorted(seeds))
    return name, mutate(seeds[name], rng, [seeds[other] for other in sorted(seeds)])
