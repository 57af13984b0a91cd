"""The symbolic machine against real unpicklers: the same globals, the same memo, errors where they have errors."""

import collections
import copyreg
import datetime
import decimal
import fractions
import io
import pickle
import pickletools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapdict import format as fmt
from mmapdict.errors import CorruptError
from mmapdict.machine import ARGUMENT_WIDTHS, SPARSE_MEMO, TEXT_STEP, trace
from mmapdict.pickling import encode_pickled

PROTOCOLS = range(6)

leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=60), st.binary(max_size=300),
                   st.dates(), st.decimals(), st.fractions(), st.just(collections.OrderedDict), st.just(len),
                   st.sampled_from([np.arange(3), np.float32(2.5), np.dtype("u2"), bytearray(b"x" * 20)]))
hashable = st.recursive(st.one_of(st.integers(), st.text(max_size=5), st.dates()),
                        lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
values = st.recursive(leaves, lambda inner: st.one_of(
    st.lists(inner, max_size=6), st.tuples(inner, inner, inner, inner), st.tuples(inner), st.sets(hashable, max_size=4),
    st.dictionaries(hashable, inner, max_size=4), inner.map(lambda x: [x, x, (x, [x])])), max_leaves=25)


class Stub:
    """Stands for every global: it takes whatever an unpickler does to it."""

    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __setstate__(self, state):
        pass

    def __setitem__(self, key, value):
        pass

    def append(self, item):
        pass

    add = append


class Recorder(pickle._Unpickler):
    """The standard library's unpickler in Python, which notes what it would import."""

    def __init__(self, stream):
        super().__init__(io.BytesIO(stream))
        self.found = []

    def find_class(self, module, name):
        if self.proto < 3 and self.fix_imports:
            module, name = pickle._compat_pickle.NAME_MAPPING.get(
                (module, name), (pickle._compat_pickle.IMPORT_MAPPING.get(module, module), name))
        self.found.append((module, name))
        return Stub

    def get_extension(self, code):
        raise pickle.UnpicklingError("an extension")


def nesting(x):
    """How deep builtin containers are nested."""
    if isinstance(x, dict):
        return 1 + max((max(nesting(k), nesting(v)) for k, v in x.items()), default=0)
    if isinstance(x, (list, tuple, set, frozenset)):
        return 1 + max(map(nesting, x), default=0)
    return 0


def bare(value, base=64):
    parts, _ = encode_pickled(value, base)
    return b"".join(part if isinstance(part, bytes) else part.head + bytes(part.data) for part in parts)


@settings(max_examples=150, deadline=None)
@given(values, st.sampled_from(PROTOCOLS))
def test_a_pickle_of_any_protocol_is_followed_to_its_end(value, protocol):
    stream = pickle.dumps(value, protocol)
    found = trace(b"behind" + stream + b"before", 6, proto=0)
    recorder = Recorder(stream)
    recorder.load()
    assert found.end == 6 + len(stream) and found.stopped and found.stack == 1
    assert [pair[1:] for pair in found.globals] == recorder.found
    assert found.memo == set(recorder.memo) and found.memo_max == max(recorder.memo, default=-1)
    assert found.repeated is None
    assert found.depth + found.late >= nesting(value)
    ops = {at: op.name for op, _, at in pickletools.genops(stream)}
    assert {ops[at - 6] for at, _, _ in found.globals} <= {"GLOBAL", "STACK_GLOBAL", "INST"}
    if protocol >= 2:
        assert found.proto == protocol


@settings(max_examples=100, deadline=None)
@given(values, st.integers(64, 1 << 30))
def test_a_value_as_it_stands_in_a_file_leaves_one_object(value, base):
    ops = bare(value, base)
    for buf in (ops, memoryview(ops)):
        found = trace(buf)
        assert (found.stack, found.end, found.stopped) == (1, len(ops), False)
        assert not found.memo or (min(found.memo), found.memo_max + 1 - base) == (base, len(found.memo))
    for end in range(len(ops)):
        try:
            assert trace(ops, 0, end).end == end
        except CorruptError as exc:
            assert 0 <= exc.offset < end


@settings(max_examples=400, deadline=None)
@given(values, st.sampled_from(PROTOCOLS), st.data())
def test_what_an_unpickler_loads_is_followed_and_what_is_followed_imports_the_same(value, protocol, data):
    stream = bytearray(pickle.dumps(value, protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        what = data.draw(st.sampled_from(["set", "op", "cut", "double"]))
        if what == "cut":
            del stream[at:at + data.draw(st.integers(1, 3))]
        elif what == "double":
            stream[at:at] = stream[at:at + data.draw(st.integers(1, 9))]
        elif stream:
            ops = [ord(op.code) for op in pickletools.opcodes if op.code != "\x96"]
            stream[at] = data.draw(st.integers(0, 255) if what == "set" else st.sampled_from(ops))
        if not stream:
            return
    if b"\x96" in stream:
        return                          # an unpickler in Python takes the size that it declares
    stream = bytes(stream)
    recorder = Recorder(stream)
    try:
        recorder.load()
    except Exception:
        recorder.memo = None
    try:
        found = trace(stream, proto=0)
    except CorruptError as exc:
        assert 0 <= exc.offset <= len(stream)
        # An unpickler may also let things pass that no pickler writes.
        assert recorder.memo is None or any(
            word in str(exc) for word in ("would take", "frame", "without a memo index", "FRAME", "key that has no"))
        return
    if recorder.memo is not None:
        assert [(m, n) for _, m, n in found.globals] == recorder.found
        assert found.memo == set(recorder.memo) and found.stopped


def test_arguments_have_the_lengths_of_pickletools():
    for op in pickletools.opcodes:
        if op.arg is None:
            assert ARGUMENT_WIDTHS[ord(op.code)] == 0
        elif op.arg.n >= 0:
            assert ARGUMENT_WIDTHS[ord(op.code)] == op.arg.n


@pytest.mark.parametrize("ops, names", [
    (b"\x8c\x02os\x8c\x06system\x93", ("os", "system")),
    (b"X\x02\0\0\0os\x8d\x06" + bytes(7) + b"system\x93", ("os", "system")),
    (b"U\x02osT\x06\0\0\0system\x93", ("os", "system")),
    (b"S'os'\nVsystem\n\x93", ("os", "system")),
    (b'S"o\\x73"\nVsyste\\u006d\n\x93', ("os", "system")),
    (b"\x8c\x02os\x94q\x05\x8c\x06systemr\x06\0\0\x000\x8c\x01xh\x050h\x05j\x06\0\0\x00\x93", ("os", "system")),
    (b"\x8c\x02os2\x93", ("os", "os")),
    (b"cos\nsystem\n", ("os", "system")),
    (b"\x8c\x01o\x8c\x01s\x86\x8c\x06system\x93", (None, "system")),
    (b"\x8c\x02osK\x01\x93", ("os", None)),
    (b"C\x02os\x8c\x06system\x93", (None, "system")),
    (b"\x82\x05", ("copyreg", "extension 5")),
    (b"\x83\x05\x01", ("copyreg", "extension 261")),
    (b"\x84\x05\0\0\x01", ("copyreg", "extension 16777221")),
    (b"\x8c\x03\xff\xff\xff\x8c\x06system\x93", (None, "system")),
    (b"\x8c\x02osX\x70\x17\0\0" + b"n" * 6000 + b"\x93", ("os", None)),
])
def test_the_name_of_a_global_is_known_however_it_is_spelled(ops, names):
    assert trace(ops).globals[-1][1:] == names
    assert len(trace(ops).globals) == 1


def test_inst_and_obj_take_what_is_above_mark():
    found = trace(b"(K\x01K\x02icollections\nOrderedDict\n.")
    assert (found.globals, found.stack) == ([(5, "collections", "OrderedDict")], 1)
    assert trace(b"(cdecimal\nDecimal\nK\x01o.").stack == 1


@pytest.mark.parametrize("proto, names", [(0, ("builtins", "range")), (2, ("builtins", "range")),
                                          (3, ("__builtin__", "xrange"))])
def test_the_names_of_python_2_become_those_of_python_3_as_an_unpickler_does_it(proto, names):
    assert trace(b"c__builtin__\nxrange\n.", proto=proto).globals == [(0, *names)]
    assert trace(b"\x80" + bytes((proto,)) + b"c__builtin__\nxrange\n.").globals == [(2, *names)]


@pytest.mark.parametrize("ops, offset, message", [
    (b"N\xff", 1, "unknown opcode 0xff"),
    (b"K\x01K", 2, "BININT1 of 2 bytes runs past the end"),
    (b"NJ\x01\0", 1, "BININT of 5 bytes runs past the end"),
    (b"N\x8e" + b"\xff" * 8 + b"x", 1, "BINBYTES8 of 18446744073709551624 bytes runs past the end"),
    (b"N\x96" + b"\xff" * 8 + b"x", 1, "BYTEARRAY8 of"),
    (b"NX\x05\0\0\0abcd", 1, "BINUNICODE of 10 bytes runs past the end, 9 left"),
    (b"NX\x05\0", 1, "BINUNICODE of 5 bytes runs past"),
    (b"NC", 1, "SHORT_BINBYTES of 2 bytes"),
    (b"\x8b\xff\xff\xff\xff", 0, "LONG4 with a negative size"),
    (b"N\x86", 1, "TUPLE2 with too few objects"),
    (b"N(K\x01\x86", 4, "TUPLE2 with too few objects"),
    (b"NN(b", 3, "BUILD with too few objects"),
    (b"Nb", 1, "BUILD with too few objects"),
    (b"N(R", 2, "REDUCE with too few objects"),
    (b"]s", 1, "SETITEM with too few objects"),
    (b"0", 0, "POP with too few objects"),
    (b"N(.", 2, "STOP with too few objects"),
    (b".", 0, "STOP with too few objects"),
    (b"(\x94", 1, "MEMOIZE with too few"), (b"2", 0, "DUP with too few"), (b"\x93", 0, "STACK_GLOBAL with too few"),
    (b"(K\x01e", 3, "APPENDS with too few objects"), (b"(]e", 2, "APPENDS with too few objects"),
    (b"\x98", 0, "READONLY_BUFFER with too few"), (b"(o", 1, "OBJ with too few"), (b"Q", 0, "BINPERSID with too few"),
    (b"]t", 1, "TUPLE without its MARK"), (b"1", 0, "POP_MARK without its MARK"), (b"o", 0, "OBJ without its MARK"),
    (b"ios\nx\n", 0, "INST without its MARK"),
    (b"}(NNNu", 5, "SETITEMS with a key that has no value"), (b"(]d", 2, "DICT with a key that has no value"),
    (b"(Nd", 2, "DICT with a key"), (b"}(]u", 3, "SETITEMS with a key"),
    (b"Nh\x05", 1, "BINGET of memo index 5, which was not put"),
    (b"Nj\x05\0\0\0", 1, "LONG_BINGET of memo index 5"), (b"Ng5\n", 1, "GET of memo index 5"),
    (b"Ng-5\n", 1, "GET without a memo index"), (b"Np\n", 1, "PUT without a memo index"),
    (b"Ng" + b"9" * 100 + b"\n", 1, "GET without a memo index"),
    (b"Ng5", 1, "GET without the end of its line"), (b"cos\nsystem", 0, "GLOBAL without the end of its line"),
    (b"I12", 0, "INT without the end of its line"),
    (b"\x80\x04Nr\xff\xff\xff\xff.", 3, "LONG_BINPUT to memo index 4294967295, with 1 objects memoised"),
    (b"\x80\x04Np4294967295\n.", 3, "PUT to memo index 4294967295"),
    (b"NqAr\xff\xff\xff\xff.", 3, "would take 68719476720 bytes"),
    (b"\x80\x09N.", 0, "PROTO 9"), (b"\x95" + bytes(7), 0, "FRAME of 9 bytes runs past"),
    (b"\x95\x05" + bytes(7) + b"N.", 0, "FRAME of 5 bytes, 2 left"),
    (b"\x95\x02" + bytes(7) + b"K\x01\x95\x01" + bytes(7) + b"J\0\0\0\0", 20, "BININT of 5 bytes runs out of its"),
    (b"\x95\x0e" + bytes(7) + b"\x95\x01" + bytes(7) + b"NNNNN", 9, "FRAME inside of a frame"),
])
def test_what_no_unpickler_would_run_is_refused_where_it_stands(ops, offset, message):
    for buf in (ops, memoryview(ops)):
        with pytest.raises(CorruptError) as caught:
            trace(buf)
        assert caught.value.offset == offset and message in caught.value.message


def test_the_end_given_counts_not_that_of_the_buffer():
    assert trace(b"K\x01\x8c\x05abcde", 0, 2).stack == 1
    for end in (1, 3, 4, 8):
        with pytest.raises(CorruptError, match="past the end"):
            trace(b"K\x01\x8c\x05abcde", 0, end)
    with pytest.raises(ValueError, match="no range"):
        trace(b"K\x01", 1, 3)


def test_memo_indices_of_a_value_count_from_its_first():
    high = b"r" + (10**9).to_bytes(4, "little")
    assert trace(b"N" + high).memo_max == 10**9
    with pytest.raises(CorruptError, match="would take"):
        trace(b"\x80\x04N" + high + b".")
    assert trace(b"\x80\x04N" + high + b".", sparse=True).memo_max == 10**9
    dense = pickle.dumps([[] for _ in range(SPARSE_MEMO * 2)], 3)
    assert trace(dense).memo_max == 2 * SPARSE_MEMO


def test_an_index_that_is_put_twice_is_told():
    assert trace(b"Nq\x01q\x02q\x01").repeated == 1
    assert trace(b"N" + b"q\x02q\x01").repeated is None


def test_memo_entries_from_before_can_be_given_and_are_not_counted():
    found = trace(b"h\x00h\x01", given=(0, 1))
    assert (found.stack, found.memo, found.memo_max) == (2, set(), -1)
    with pytest.raises(CorruptError, match="not put"):
        trace(b"h\x02", given=(0, 1))


def test_opcodes_can_be_refused():
    assert trace(b"h\x00", given=(0,)).stack == 1
    with pytest.raises(CorruptError, match="BINGET may not stand here") as caught:
        trace(b"Nh\x00", given=(0,), refuse=bytes((fmt.BINGET, fmt.STOP)))
    assert caught.value.offset == 1


def test_objects_and_marks_that_are_left_are_counted():
    assert trace(b"").stack == 0
    assert trace(b"NN").stack == 2
    found = trace(b"N(N(")
    assert (found.stack, found.marks) == (4, 2)
    assert trace(b"N(0").stack == 1             # POP takes a MARK, too
    assert trace(b"(NN1N").stack == 1


@pytest.mark.parametrize("make", [lambda x: (x,), lambda x: (x, 1, 2, 3, 4), lambda x: [x], lambda x: {1: x},
                                  lambda x: frozenset((x,)), lambda x: (x, x)])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_depth_of_containers_is_exact(make, protocol):
    x = 1
    for depth in range(1, 9):
        x = make(x) if not isinstance(x, (list, dict)) or make(1).__class__ is not frozenset else x
        found = trace(pickle.dumps(x, protocol))
        if make(1).__class__ is frozenset and protocol < 4:
            assert found.depth >= depth         # made by a call
        else:
            assert (found.depth, found.late) == (depth, 0)
    assert trace(bare(x)).depth == 8


def test_depth_survives_the_memo():
    ops = b"N" + b"\x85q\x01" * 50 + b"0h\x01\x85"
    assert trace(ops).depth == 51
    assert trace(b"N" + b"\x85" * 1000 + b"\x94" + b"\x85" * 1000).depth == 2000


def test_objects_that_grow_inside_of_others_are_counted_as_late():
    # Lists 1 to n, empty; then each is put into the next, the outermost first.
    n = 200
    ops = b"".join(b"]q" + bytes((i,)) for i in range(n))
    ops += b"".join(b"h" + bytes((i,)) + b"h" + bytes((i - 1,)) + b"a0" for i in reversed(range(1, n)))
    found = trace(ops)
    assert found.depth < 5 and found.depth + found.late >= n
    loop = []
    loop.append(loop)
    assert trace(pickle.dumps(loop)).depth <= 2


@pytest.mark.parametrize("n", [0, 1, 2, 999, 1000, 1001, 2000, 2001, 2002, 5000])
@pytest.mark.parametrize("item", [b"K\x07", b"M\x07\x07", b"J1234", b"G12345678", b"N", b"\x88", b"\x8c\x01a",
                                  b"C\x03abc", b"\x8a\x01\x05", b"\x8c" + bytes((60,)) + b"a" * 60, b")",
                                  b"X\1\0\0\0a"])
def test_long_runs_are_counted_right(item, n):
    deep = int(item == b")")
    for ops, left in ((b"(" + item * n + b"t", 1), (item * n, n), (b"](" + item * n + b"e", 1),
                      (b"(" + item * n, n + 1),
                      (b"(" + item * n + b"1", 0), (b"\x8f(" + item * n + b"\x90", 1), (b"(" + item * n + b"d", 1)):
        if n % 2 and ops.endswith(b"d"):
            with pytest.raises(CorruptError, match="no value"):
                trace(ops)
            continue
        found = trace(ops)
        assert (found.stack, found.end) == (left, len(ops))
        if ops[-1:] in (b"t", b"e", b"\x90", b"d") and ops[-len(item):] != item:
            assert found.depth == 1 + (deep if n else 0)


@pytest.mark.parametrize("ops", [b"\x8c\x02\xff\xff", b"X\2\0\0\0\xc3\xc3", b"\x8d\1" + bytes(7) + b"\x80",
                                 b"U\x01\xe9", b"T\1\0\0\0\xe9"])
def test_texts_are_looked_at_if_asked_for(ops):
    assert trace(b"](N" + ops + b"e").stack == 1
    for buf in (b"](N" + ops + b"e", memoryview(b"](N" + ops + b"e")):
        with pytest.raises(CorruptError, match="that is not (UTF-8|ASCII)") as caught:
            trace(buf, texts=True)
        assert caught.value.offset == 3
    assert trace(b"](X\3\0\0\0\xed\xa0\x80\x8c\x03\xed\xa0\x80e", texts=True).stack == 1


@pytest.mark.parametrize("tail", ["\ud800é", "é😀", "😀x", "\udfff\ud800"])
@pytest.mark.parametrize("before", range(5))
def test_a_character_may_lie_across_two_pieces_of_a_long_text(before, tail):
    def ops(data):
        return b"X" + len(data).to_bytes(4, "little") + data

    data = b"a" * (TEXT_STEP - before) + (tail * 3).encode("utf-8", "surrogatepass")
    assert trace(ops(data), texts=True).stack == 1
    for bad in data[:TEXT_STEP - 1] + b"\xff" + data[TEXT_STEP:], data + b"\xc3", b"\x80" + data:
        with pytest.raises(CorruptError, match="not UTF-8"):
            trace(ops(bad), texts=True)


@given(values)
def test_texts_of_a_pickler_are_texts(value):
    ops = bare(value)
    assert trace(ops, texts=True).end == trace(ops).end


def test_what_was_found_before_an_error_can_be_had():
    found = []
    with pytest.raises(CorruptError):
        trace(b"cos\nsystem\ncos\npath\n\xff", found=found)
    assert found == [(0, "os", "system"), (11, "os", "path")]


def test_big_texts_and_bytes_are_noted():
    sizes = [4096, 4097, 70000]
    stream = pickle.dumps([kind(b"x" * n) for n in sizes for kind in (bytes, bytes.decode)] + [1 << 80000], 4)
    found = trace(stream)
    assert [(end - start) for _, start, end in found.payloads] == [4097, 4097, 70000, 70000, 10001]
    assert [stream[op:op + 1] for op, _, _ in found.payloads] == [b"B", b"X", b"B", b"X", b"\x8b"]
    assert all(stream[start:end] == b"x" * (end - start) for _, start, end in found.payloads[:4])


@pytest.mark.parametrize("ops, fillers", [
    (b"NC\x02ab0", [(1, 6)]), (b"C\x010N", []), (b"B\x01\0\0\0x0C\x000N", [(0, 7), (7, 10)]), (b"C\x01aN00N", []),
    (b"\x8e" + (5000).to_bytes(8, "little") + bytes(5000) + b"0N", [(0, 5010)]), (b"(C\x01a0t", [(1, 5)]),
    (b"C\x01aC\x01b00N", [(0, 8)]), (b"C\x01aC\x01b0C\x01c00N", [(0, 12)]), (b"C\x01a(00N", []), (b"\x8a\x01a0N", []),
    (b"C\x01ar\0\0\0\x000N", []), (b"\x8c\x01a0N", []),
])
def test_bytes_that_are_thrown_away_are_noted(ops, fillers):
    assert trace(ops).fillers == fillers


def test_big_payloads_cost_nothing():
    huge = memoryview(bytearray(1 << 20))
    ops = b"\x8e" + (1 << 20).to_bytes(8, "little")
    assert trace(ops + bytes(huge) + b"0N").stack == 1
    nothing = trace(ops[:1] + (1 << 62).to_bytes(8, "little"), 0, 0)
    assert nothing.stack == 0


def test_extension_codes_of_the_registry_are_flagged():
    copyreg.add_extension("decimal", "Decimal", 240)
    try:
        stream = pickle.dumps(decimal.Decimal, 2)
    finally:
        copyreg.remove_extension("decimal", "Decimal", 240)
    assert [g[1:] for g in trace(stream).globals] == [("copyreg", "extension 240")]


def test_numbers_and_dates_are_calls():
    found = trace(pickle.dumps([fractions.Fraction(1, 3), datetime.date(2020, 1, 1)], 4))
    assert [g[1:] for g in found.globals] == [("fractions", "Fraction"), ("datetime", "date")]
    assert found.depth == 3


def test_protocol_5_buffers():
    buffers = []
    stream = pickle.dumps([np.arange(10), bytearray(b"x" * 9)], 5, buffer_callback=buffers.append)
    assert buffers and trace(stream).stack == 1
