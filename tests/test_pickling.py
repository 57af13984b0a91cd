"""Pickles made fit to stand inside another: the same value, its own memo indices, public names, no frames."""

import copyreg
import io
import pickle
import pickletools
import random
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import judge
import strategies
from mmapdict import CorruptError, pickling
from mmapdict import format as fmt
from mmapdict.trust import Trust

BASES = [0, 64, 255, 256, 65_536, 1 << 31]


def same(a, b):
    return judge.fingerprint(a) == judge.fingerprint(b)


def join(parts):
    """The opcodes of parts, payloads included."""
    return b"".join(part.head + bytes(part.data) if isinstance(part, fmt.Payload) else part for part in parts)


def load(ops, base=0):
    """Run opcodes between others, as in a file: their memo starts at `base`, and there is something on the stack."""
    if base > 1 << 20:
        ops, base = b"".join(pickling.shift_memo(part, 64 - base) for part in [ops]), 64
    found = pickle.loads(b"\x80\x04](" + ops + b"K\x01e.")
    assert type(found) is list and len(found) == 2 and found[1] == 1
    return found[0]


def original(value):
    """The pickle before it is rewritten."""
    out = io.BytesIO()
    pickling._Pickler(out, 4).dump(value)
    return out.getvalue()


def opcodes(ops):
    """[(name, argument)] of opcodes without PROTO and STOP."""
    return [(op.name, argument) for op, argument, _ in pickletools.genops(b"\x80\x04" + ops + b".")][1:-1]


def check_rewritten(value, base):
    stream = original(value)
    parts, memo = pickling.rewrite(stream, base)
    ops = join(parts)
    assert same(load(ops, base), pickle.loads(stream))

    # Only what is fetched is put, under consecutive indices from `base` on, and before it is fetched.
    put, got = [], set()
    for name, argument in opcodes(ops):
        assert name not in ("PROTO", "FRAME", "STOP", "MEMOIZE", "BINPUT", "BINGET", "PUT", "GET")
        if name == "LONG_BINPUT":
            put.append(argument)
        elif name == "LONG_BINGET":
            assert argument in put
            got.add(argument)
    assert put == list(range(base, base + memo)) and set(put) == got

    # Payloads are the long texts and bytes, and nothing else is long.
    assert len(parts) % 2
    for n, part in enumerate(parts):
        assert isinstance(part, fmt.Payload) == bool(n % 2)
    for payload in parts[1::2]:
        assert payload.nbytes == len(payload.data) > fmt.BIG_PAYLOAD
        assert (payload.residue + payload.nbytes) % 8 == 0
    arguments = [argument for _, argument in opcodes(ops) if isinstance(argument, (bytes, str))]
    sizes = [len(a) if type(a) is bytes else len(a.encode("utf-8", "surrogatepass")) for a in arguments]
    assert [payload.nbytes for payload in parts[1::2]] == [n for n in sizes if n > fmt.BIG_PAYLOAD]
    return parts, memo


# -- the same value -------------------------------------------------------------------------------------------------

@given(strategies.values(), st.sampled_from(BASES))
def test_rewritten_pickles_give_the_same_value(value, base):
    check_rewritten(value, base)


@given(strategies.plain_values(), st.sampled_from(BASES))
def test_rewritten_pickles_of_plain_values_are_those_of_pickle(value, base):
    parts, _ = check_rewritten(value, base)
    assert same(load(join(parts), base), pickle.loads(pickle.dumps(value, 4)))
    assert same(pickling.decode_pickled(join(parts)), value)
    assert same(pickling.encode_pickled(value, base)[1], pickling.rewrite(pickle.dumps(value, 4), base)[1])


@pytest.mark.parametrize("seed", range(20))
def test_big_values_with_many_frames_and_shared_parts(seed):
    """Values of several frames: their boundaries, and what stands outside of them, do not matter."""
    draw = random.Random(seed)
    shared = [[], {}, "s" * draw.choice([10, 300, 5000]), b"b" * draw.choice([10, 70_000]), ("t", ["u"]), np.arange(9)]
    value = []
    for n in range(draw.choice([3000, 12_000])):
        value.append(draw.choice([n, str(n), float(n), draw.choice(shared), [n, draw.choice(shared)], bytes(n % 90)]))
    shared[0].append(value)
    shared[1]["again"] = shared
    stream = original(value)
    assert sum(op.name == "FRAME" for op, _, _ in pickletools.genops(stream)) > 1 or len(stream) < 65_536
    check_rewritten(value, draw.choice(BASES))


def test_recursive_values():
    recursive = []
    recursive.append((recursive, {"k": recursive}))
    parts, memo = check_rewritten(recursive, 70)
    found = load(join(parts))
    assert found[0][0] is found and found[0][1]["k"] is found
    own = (set(), [])
    own[1].append(own)
    parts, _ = check_rewritten(own, 70)
    found = load(join(parts))
    assert found[1][0] is found


def test_nothing_is_memoised_that_nobody_fetches():
    assert pickling.encode_pickled([1, "a", b"b", {"c": (1.5, None)}, "d"], 64)[1] == 0
    shared = []
    assert pickling.encode_pickled([shared, shared, shared], 64)[1] == 1


def test_more_memo_entries_than_a_byte_can_name():
    parts = [[n] for n in range(700)]
    rewritten, memo = check_rewritten(parts + parts, 64)
    assert memo == 700
    found = load(join(rewritten))
    assert all(a is b for a, b in zip(found[:700], found[700:], strict=True))


def test_a_file_without_memo_indices_left_is_refused():
    shared = []
    stream = original([shared, shared])
    assert pickling.rewrite(stream, fmt.MEMO_END - 1)[1] == 1
    with pytest.raises(OverflowError, match="memo"):
        pickling.rewrite(stream, fmt.MEMO_END)
    assert pickling.rewrite(original([1, 2]), fmt.MEMO_END)[1] == 0


def test_opcodes_of_old_protocols_are_refused():
    """They never come from a pickler of protocol 4; their arguments have no length of their own."""
    for stream in (pickle.dumps(int, 0), b"\x80\x04cbuiltins\nint\n.", b"\x80\x04I1\n."):
        with pytest.raises(pickle.PicklingError):
            pickling.rewrite(stream, 64)


def test_lengths_of_all_opcodes_are_those_of_pickletools():
    """Every opcode that a pickler of protocol 4 may write is passed over as pickletools does."""
    counted = {1: b"\x02ab", 4: b"\x02\0\0\0ab", 8: b"\x02" + bytes(7) + b"ab"}
    arguments = {"uint1": bytes(1), "uint2": bytes(2), "uint4": bytes(4), "uint8": bytes(8), "int4": b"\xff" * 4,
                 "float8": bytes(8), "string1": counted[1], "string4": counted[4], "unicodestring1": counted[1],
                 "unicodestring4": counted[4], "unicodestring8": counted[8], "bytes1": counted[1],
                 "bytes4": counted[4], "bytes8": counted[8], "bytearray8": counted[8], "long1": counted[1],
                 "long4": counted[4]}
    seen = 0
    for op in pickletools.opcodes:
        if op.arg is not None and op.arg.name not in arguments:
            continue
        ops = op.code.encode("latin-1") + (b"" if op.arg is None else arguments[op.arg.name])
        for before in (b"", b"N", b"K\x01]"):
            found = list(pickling._interesting(memoryview(before + ops + b"\x94")))
            assert found[-1][:3] == (len(before + ops), len(before + ops) + 1, fmt.MEMOIZE), op.name
        seen += 1
    assert seen > 50


# -- moving the memo ------------------------------------------------------------------------------------------------

@given(strategies.values(), st.sampled_from([64, 1000]), st.sampled_from([1, 7, 300, 70_000]))
def test_shifted_opcodes_give_the_same_value(value, base, delta):
    """Part by part, as it is done: a part behind a payload may fetch what one before it put."""
    stream = original(value)
    parts, memo = pickling.rewrite(stream, base)
    shifted = [part if isinstance(part, fmt.Payload) else pickling.shift_memo(part, delta) for part in parts]
    direct, _ = pickling.rewrite(stream, base + delta)
    assert join(shifted) == join(direct)
    back = [part if isinstance(part, fmt.Payload) else pickling.shift_memo(part, -delta) for part in shifted]
    assert join(back) == join(parts)
    assert pickling.highest_memo(join(shifted)) == (base + delta + memo if memo else 0)


def test_parts_that_only_fetch_are_shifted():
    shared = [8]
    parts, memo = pickling.rewrite(original([shared, "x" * 5000, shared, b"y" * 5000, shared]), 64)
    assert memo == 1 and len(parts) == 5
    assert all(b"j\x40\0\0\0" in part for part in parts[2::2])
    for part in parts[2::2]:
        assert b"j\x46\0\0\0" in pickling.shift_memo(part, 6)
    assert pickling.shift_memo(parts[2], 0) is parts[2]


def test_opcodes_without_a_memo_stay_as_they_are():
    ops = join(pickling.rewrite(original(["r", "j", 7]), 64)[0])
    assert pickling.shift_memo(ops, 5) == ops
    assert pickling.highest_memo(ops) == 0


# -- public names ---------------------------------------------------------------------------------------------------

class Outer:
    class Inner:
        """Named by a path."""


@pytest.fixture
def fake(monkeypatch):
    """Modules of numpy that are private, whose contents numpy offers under its own name."""
    def module(name, **contents):
        made = types.ModuleType(name)
        for key, value in contents.items():
            setattr(made, key, value)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def cls(name, where):
        return type(name, (), {"__module__": where})

    offered, hidden = cls("Offered", "numpy._fake"), cls("Hidden", "numpy._fake")
    nested = cls("Offered", "numpy.fake.deep")
    own = cls("_Own", "numpy._fake")
    module("numpy._fake", Offered=offered, Hidden=hidden, _Own=own)
    monkeypatch.setattr(np, "Offered", offered, raising=False)
    monkeypatch.setattr(np, "_Own", own, raising=False)
    module("numpy.fake", Offered=nested)
    module("numpy.fake.deep", Offered=nested)
    return types.SimpleNamespace(offered=offered, hidden=hidden, nested=nested, own=own)


def globals_of(ops):
    """[(module, name)] of the globals in opcodes that spell all of them out."""
    found, texts = [], []
    for name, argument in opcodes(ops):
        if name == "STACK_GLOBAL":
            found.append(tuple(texts[-2:]))
        texts = [*texts, argument] if "BINUNICODE" in name else [] if name != "LONG_BINPUT" else texts
    return found


def test_private_modules_become_public(fake):
    parts, _ = check_rewritten([fake.offered, fake.offered, fake.hidden, fake.nested, {"x": fake.offered}], 64)
    assert globals_of(join(parts)) == [("numpy", "Offered"), ("numpy._fake", "Hidden"), ("numpy.fake", "Offered")]
    parts, _ = check_rewritten([fake.offered(), fake.hidden(), fake.nested()], 64)
    assert globals_of(join(parts)) == [("numpy", "Offered"), ("numpy._fake", "Hidden"), ("numpy.fake", "Offered")]


def test_private_names_are_left_where_they_are_defined(fake):
    """That another module has them too is chance, and will not last."""
    parts, _ = check_rewritten([fake.own], 64)
    assert globals_of(join(parts)) == [("numpy._fake", "_Own")]


def test_names_are_left_alone_if_numpy_means_something_else_by_them(fake, monkeypatch):
    monkeypatch.setattr(np, "Offered", object())
    parts, _ = check_rewritten([fake.offered], 64)
    assert globals_of(join(parts)) == [("numpy._fake", "Offered")]


@pytest.mark.parametrize("order", range(6))
def test_texts_of_the_user_that_are_names_as_well(fake, order):
    """pickle memoises texts by identity: a user's may be fetched for a global, and a global's for the user."""
    module, name = fake.offered.__module__, fake.offered.__name__
    mine = [module, name, "numpy._fake", [module], {"Offered": name}]
    value = [
        [fake.offered, module, name, mine], [module, fake.offered, name, mine], [mine, fake.offered, mine],
        [name, module, fake.hidden, fake.offered, fake.offered, module, name],
        [fake.offered, "x" * 5000, module, fake.offered, name, b"y" * 5000, module],
        [(module, fake.offered), {module: fake.hidden, name: fake.offered}, [[module], name]]][order]
    parts, memo = check_rewritten(value, 64)
    assert same(load(join(parts)), value)
    assert set(globals_of(join(parts))) <= {("numpy", "Offered"), ("numpy._fake", "Hidden")}
    shifted = join([part if isinstance(part, fmt.Payload) else pickling.shift_memo(part, 9) for part in parts])
    assert same(load(shifted), value)


def test_names_across_a_frame(fake):
    """A frame may end between the two texts of a global."""
    for n in range(65_400, 65_540, 3):
        value = [*(b"z" * 200 for _ in range(n // 202)), b"q" * (n % 202), fake.offered]
        stream = original(value)
        parts, _ = pickling.rewrite(stream, 64)
        assert globals_of(join(parts)) == [("numpy", "Offered")]
        assert same(load(join(parts)), value)


def test_names_by_a_path(monkeypatch):
    fake_module = types.ModuleType("numpy._paths")
    fake_module.Outer = Outer
    monkeypatch.setitem(sys.modules, "numpy._paths", fake_module)
    monkeypatch.setattr(np, "Outer", Outer, raising=False)
    monkeypatch.setattr(Outer, "__module__", "numpy._paths")
    monkeypatch.setattr(Outer.Inner, "__module__", "numpy._paths")
    parts, _ = check_rewritten([Outer.Inner, Outer], 64)
    assert globals_of(join(parts)) == [("numpy", "Outer.Inner"), ("numpy", "Outer")]


def test_what_warns_when_it_is_looked_for_is_not_looked_for(fake, monkeypatch):
    """numpy keeps names that are going out of use behind a function that warns."""
    def warns(name):
        raise AssertionError("asked for " + name)

    monkeypatch.setattr(np, "__getattr__", warns, raising=False)
    parts, _ = pickling.rewrite(original([fake.hidden, fake.offered]), 64)
    assert globals_of(join(parts)) == [("numpy._fake", "Hidden"), ("numpy", "Offered")]


@pytest.mark.parametrize("value, names", [
    (np.float64(1.5), {("numpy", "float64")}), (np.bool_(True), {("numpy", "bool_")}), (np.bool_, {("numpy", "bool_")}),
    (np.longdouble, {("numpy", "longdouble")}), (np.clongdouble, {("numpy", "clongdouble")}),
    (np.dtype("f8"), {("numpy", "dtype")}), (np.dtype([("a", "i4")], align=True), {("numpy", "dtype")}),
    (np.arange(3), {("numpy", "ndarray"), ("numpy", "dtype")}),
    (np.arange(3, dtype=">i4"), {("numpy", "ndarray"), ("numpy", "dtype")}),
    (np.array([None]), {("numpy", "ndarray"), ("numpy", "dtype")}),
    (np.datetime64("2024-01-01"), {("numpy", "take"), ("numpy", "ndarray"), ("numpy", "dtype")}),
    (np.longdouble(1), {("numpy", "take"), ("numpy", "ndarray"), ("numpy", "dtype")}),
    (np.add, {("numpy", "add")}), (np.sum, {("numpy", "sum")}), (np.ma.masked, {("numpy.ma", "masked")}),
    (np.ma.array([1, 2]), {("numpy.ma", "MaskedArray"), ("numpy", "ndarray"), ("numpy", "dtype"), ("numpy", "bool_")}),
    (np.rec.array([(1,)], [("a", "i4")]), {("numpy", "recarray"), ("numpy", "record"), ("numpy", "dtype"),
                                           ("numpy", "ndarray"), ("copyreg", "_reconstructor")}),
], ids=range(17))
def test_names_of_numpy_values(value, names):
    """Every name is one that numpy 1.23 has too."""
    stream = pickling.rewrite(original(value), 64, spell=True)[0]
    assert set(globals_of(join(stream))) == names


def test_extension_codes_become_names():
    for code in (5, 300, 70_000):
        copyreg.add_extension("test_pickling", "Outer", code)
        try:
            stream = original([Outer, Outer])
            parts, _ = pickling.rewrite(stream, 64)
        finally:
            copyreg.remove_extension("test_pickling", "Outer", code)
        assert any(op.name.startswith("EXT") for op, _, _ in pickletools.genops(stream))
        assert globals_of(join(parts)) == [("test_pickling", "Outer")] * 2
        assert load(join(parts)) == [Outer, Outer]


# -- decoding -------------------------------------------------------------------------------------------------------

@given(strategies.values())
def test_values_are_decoded_whatever_their_memo_indices(value):
    for base in (64, pickling.SPARSE_MEMO + 5, (1 << 32) - 10_000):
        parts, _ = pickling.encode_pickled(value, base)
        assert same(pickling.decode_pickled(join(parts)), pickle.loads(original(value)))


@given(strategies.plain_values())
def test_values_that_were_cut_are_refused(value):
    ops = join(pickling.encode_pickled(value, 64)[0])
    for size in {0, 1, 2, len(ops) // 2, len(ops) - 2, len(ops) - 1}:
        if 0 <= size < len(ops):
            try:
                found = pickling.decode_pickled(ops[:size])
            except CorruptError:
                continue
            assert same(found, load(ops[:size]))                    # the first opcodes are a whole pickle as well


def test_damage_is_told_from_errors_of_the_values_own_classes():
    for ops in (b"", b"N0", b"NN", b"j\x40\0\0\0", b"K", b"X\xff\xff\xff\x7fa", b"t", b"\x93", b"N.", b"(",
                b"\xff", b"c", b"r\x40\0\0\0"):
        with pytest.raises(CorruptError):
            pickling.decode_pickled(ops)
    with pytest.raises(ModuleNotFoundError):
        pickling.decode_pickled(b"\x8c\x0bno_such_mod\x8c\x01x\x93")
    with pytest.raises(AttributeError):
        pickling.decode_pickled(b"\x8c\x08builtins\x8c\x07no_such\x93")


@pytest.mark.parametrize("ops", [
    b"r\x40\0\0\0j\x40\0\0\0", b"2", b"0N", b"1(N", b")\x85.", b"Ns(N", b"\x85N",
    # The length of what is below: the key in the file, the sentinel here.
    b"r\x40\0\0\0\x8c\x08builtins\x8c\x03len\x93j\x40\0\0\0\x85R"])
def test_values_do_not_reach_below_themselves(ops):
    for decode in pickling.decode_pickled, Trust(allow=[len]).decode:
        with pytest.raises(CorruptError):
            decode(ops)


def test_a_memo_index_that_asks_for_gigabytes_is_refused():
    with pytest.raises(CorruptError, match="memo"):
        pickling.decode_pickled(b"](]r\x40\0\0\0]r\0\0\0\x7fe")
    alone = pickling.decode_pickled(b"(]r\0\0\0\x7fj\0\0\0\x7ft")          # numbered anew
    assert alone == ([], []) and alone[0] is alone[1]


@pytest.mark.parametrize("ops", [b"I5\n", b"]V1\n", b"P1\n"])
def test_memo_indices_of_opcodes_that_end_with_their_line_are_not_guessed(ops):
    with pytest.raises(CorruptError, match="an opcode of an old protocol"):
        pickling.indices_put(ops)
