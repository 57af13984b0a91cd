"""A writer that is killed anywhere, and loads that began before it wrote: only states that existed are ever seen.

Every store of an operation is recorded. What a killed writer leaves is any prefix of them, a long write also cut
inside. What a plain load sees that was half way through is the old bytes up to some place and, from there on, newer
ones.
"""

import io
import os
import pickle
import random

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import faults
import mmapdict
from budget import slow_examples
from judge import fingerprint
from mmapdict import birth

# -- operations, on a MmapDict and on the dict that is its model --------------------------------------------------


def put(d, key, value):
    """Assign; in a dict, as in a file, a replaced item moves to the end and keeps the first of equal keys."""
    if isinstance(d, dict):
        key = next((k for k in d if k == key), key)
        d.pop(key, None)
    d[key] = value


def create(d, key, shape, dtype, **options):
    if isinstance(d, dict):
        hole = np.zeros(shape, dtype, options.get("order", "C"))
        put(d, key, np.ma.array(hole, mask=np.zeros_like(hole, np.ma.make_mask_descr(hole.dtype)))
            if options.get("mask") else hole)
    else:
        d.create(key, shape, dtype, **options)


def ior(d, other):
    d |= other


def assign(key, value):
    return lambda d: put(d, key, value)


def delete(key):
    return lambda d: d.__delitem__(key)


SHARED = [1.5, "text"]
RECURSIVE = [SHARED, SHARED]
BIG = bytes(range(256)) * 300
MASKED = np.ma.array([[1, 2], [3, 4]], mask=[[0, 1], [1, 0]], dtype="<i4", fill_value=9, hard_mask=True)
ARRAY = np.arange(6.0).reshape(2, 3)
ITEMS = {"a": 1, "b": ARRAY, "c": [SHARED, SHARED], ("d", 2): MASKED}
PLAIN = {"a": 1, "b": "two"}

# name: (items of the file before, operation, the steps that it is made of for readers)
OPERATIONS = {
    "set new": (ITEMS, assign("new", {"x": RECURSIVE, "y": RECURSIVE}), None),
    "set in an empty file": ({}, assign("new", 1), None),
    "replace, same kind": (ITEMS, assign("c", [SHARED, SHARED, 2]), None),
    "replace an array": (ITEMS, assign("b", ARRAY + 1), None),
    "replace, other kind": (ITEMS, assign("b", "text"), None),
    "replace by equal key": ({1: "int", "z": 0}, assign(True, "true"), None),
    "delete": (ITEMS, delete("a"), None),
    "delete an array": (ITEMS, delete("b"), None),
    "create": (ITEMS, lambda d: create(d, "hole", (3, 5), "<f4"), None),
    "create masked": (ITEMS, lambda d: create(d, "hole", (3, 5), "<i2", mask=True, order="F"), None),
    "create sparse": (ITEMS, lambda d: create(d, "hole", 100, "u1", sparse=True), None),
    "create nothing": (ITEMS, lambda d: create(d, "hole", (0, 2), "u1"), None),
    "clear": (ITEMS, lambda d: d.clear(), None),
    "pop": (ITEMS, lambda d: d.pop("c"), None),
    "popitem": (ITEMS, lambda d: d.popitem(), None),
    "setdefault": (ITEMS, lambda d: d.setdefault("new", ARRAY), None),
    "update": (PLAIN, lambda d: d.update({"a": 2, "c": 3}), [assign("a", 2), assign("c", 3)]),
    "ior": (PLAIN, lambda d: ior(d, {"b": ARRAY, "c": 3}), [assign("b", ARRAY), assign("c", 3)]),
    "first array": (PLAIN, assign("array", ARRAY), None),
    "first masked array": (PLAIN, assign("array", MASKED), None),
    "first masked array after an array": ({"a": ARRAY}, assign("array", MASKED), None),
    "foreign byte order": (PLAIN, assign("array", ARRAY.astype(">f8")), None),
    "big value": (PLAIN, assign("big", BIG), None),
    "big array": (PLAIN, assign("big", np.frombuffer(BIG, "u1").reshape(300, 256).T), None),
    "big key": (PLAIN, assign(("k", BIG, "k" * 5000), 1), None),
    "replace at a big key": ({"k" * 70000: 1}, assign("k" * 70000, 2), None),
}
BIG_ONES = [name for name in OPERATIONS if "big" in name]
SMALL_ONES = [name for name in OPERATIONS if "big" not in name]


def content(mapping):
    """A mapping as something that `==` compares exactly, the order left away."""
    return {key: tuple(fingerprint(value)) for key, value in mapping.items()}


def quick(mapping):
    """As `content`, and ten times faster: for values that are known to be of few kinds."""
    found = {}
    for key, value in mapping.items():
        if isinstance(value, np.ndarray):
            mask = np.ma.getmaskarray(value).tobytes() if isinstance(value, np.ma.MaskedArray) else None
            found[key] = (type(value).__name__, value.dtype.str, value.shape, np.ma.getdata(value).tobytes("A"), mask)
        else:
            found[key] = repr(value)
    return found


class Case:
    """What one operation did to a file.

    Attributes
    ----------
    before, after : bytes
        The file.
    stores : list of faults.Store
    states : list of dict
        The mapping before it, after each of its steps, and so at last after it.
    """

    def __init__(self, before, stores, states):
        self.before, self.stores, self.states = before, stores, states
        self.after = faults.replay(before, stores)

    def replayed(self):
        """What the file was after 0, 1, ... all stores."""
        return [faults.replay(self.before, self.stores[:n]) for n in range(len(self.stores) + 1)]


def perform(recorder, d, model, operation, steps=None):
    """Do one operation on `d`, whose content is `model`, which becomes what the operation makes of it."""
    with open(d.path, "rb") as f:
        before = f.read()
    recorder.take()
    operation(d)
    states = [dict(model)]
    for step in steps or [operation]:
        step(model)
        states.append(dict(model))
    case = Case(before, recorder.take(), states)
    with open(d.path, "rb") as f:
        assert f.read() == case.after, "a store was made that the recording file did not see"
    return case


@pytest.fixture
def recorder(monkeypatch):
    return faults.Recorder().install(monkeypatch)


def prepare(path, items, leftovers=b""):
    with mmapdict.open(path, "w") as d:
        d.update(items)
    with open(path, "ab") as f:
        f.write(leftovers)
    return dict(items)


def record(recorder, path, name, leftovers=b""):
    items, operation, steps = OPERATIONS[name]
    model = prepare(path, items, leftovers)
    with mmapdict.open(path, "r+") as d:
        return perform(recorder, d, model, operation, steps)


# -- a killed writer ----------------------------------------------------------------------------------------------


class Objection(AssertionError):
    """Raised by the checks below: a reader sees what never was."""


def load(data, way):
    try:
        return way(data)
    except Exception as exc:
        raise Objection("it does not load: %r" % exc) from exc


def load_c(data):
    return pickle.loads(data)


def load_file(path):
    with open(path, "rb") as f:
        return pickle.load(f)


def load_python(data):
    return pickle._Unpickler(io.BytesIO(data)).load()


def find_state(case, mapping, least=0, summary=content):
    """Return which of the case's states `mapping` is."""
    found = summary(mapping)
    for i, state in enumerate(case.states):
        if i >= least and found == summary(state):
            return i
    raise Objection("found %r, which is none of %r" % (dict(mapping), case.states[least:]))


def check_killed(case, path, stores=None, mend=True):
    """See what all readers, and the next writer, make of what a writer leaves that was killed anywhere."""
    reached = 0
    summaries = [content(state) for state in case.states]
    for done, cut, data in faults.prefixes(case.before, case.stores if stores is None else stores):
        reached = find_state(case, load(data, load_c), reached)
        if content(load(data, load_python)) != summaries[reached]:
            raise Objection("the pure-Python unpickler sees another state after %d stores" % done)
        faults.overwrite(path, data)
        if content(load(path, load_file)) != summaries[reached]:
            raise Objection("pickle.load sees another state after %d stores" % done)
        with mmapdict.open(path, "r") as d:
            if content(d) != summaries[reached] or len(d) != len(summaries[reached]):
                raise Objection("mmapdict reads something else after %d stores" % done)
            if list(d) != list(load_c(data)):
                raise Objection("mmapdict has another order after %d stores" % done)
        if path.read_bytes() != data:
            raise Objection("reading changed the file")
        if mend and cut is None:
            check_next_writer(path, summaries[reached])
    if summaries[reached] != summaries[-1]:
        raise Objection("the last state was not reached")


def check_next_writer(path, expected):
    """Write one more key, then delete all keys: nothing that was replaced or removed comes back."""
    expected = dict(expected)
    with mmapdict.open(path, "r+") as d:
        d["one more"] = [SHARED, SHARED]
        expected["one more"] = tuple(fingerprint([SHARED, SHARED]))
        check_plain(path, expected)
        for key in list(d)[:-1][:3]:
            del d[key]
            del expected[key]
            check_plain(path, expected)
        if content(d) != expected:
            raise Objection("the writer itself sees something else")
        d.clear()
        check_plain(path, {})


def check_plain(path, expected):
    data = path.read_bytes()
    if content(load(data, load_c)) != expected:
        raise Objection("after the next writer: found %r, expected the keys %r" % (load_c(data), list(expected)))
    faults.check_header(data)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_writer_killed_anywhere_leaves_the_state_before_or_after(name, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    check_killed(case, tmp_path / "killed")


@pytest.mark.parametrize("name", ["set new", "replace an array", "create", "create masked", "clear", "first array"])
def test_what_a_killed_writer_left_behind_the_stop_does_no_harm(name, tmp_path, recorder):
    other = record(recorder, tmp_path / "other", "set new")
    leftovers = [next(s.data for s in other.stores if s.kind == "write"),       # a whole record, from its Op on
                 b"." + bytes(range(256)) * 3,
                 b"(G" + bytes(40)]
    for left in leftovers:
        case = record(recorder, tmp_path / "written", name, left)
        check_killed(case, tmp_path / "killed", mend=left is leftovers[0])


def test_a_state_that_only_a_killed_writer_leaves_is_mended_by_the_next_operation(tmp_path, recorder):
    """The next operation of each kind comes upon each prefix of a replacement and of a clear."""
    path = tmp_path / "killed"
    for name in "replace an array", "clear", "delete":
        case = record(recorder, tmp_path / "written", name)
        for data in case.replayed():
            for operation in (lambda d: d.pop("b", None), lambda d: d.clear(), lambda d: put(d, "b", 5),
                              lambda d: d.setdefault("b", 5), lambda d: create(d, "hole", 3, "u1")):
                faults.overwrite(path, data)
                model = load_c(data)
                with mmapdict.open(path, "r+") as d:
                    operation(d)
                    operation(model)
                    check_plain(path, content(model))


def test_a_killed_replacement_of_a_killed_replacement(tmp_path, recorder):
    """The second writer is killed too, while it mends and then replaces the same key."""
    first = record(recorder, tmp_path / "written", "replace an array")
    path, killed = tmp_path / "second", tmp_path / "killed"
    for data in first.replayed():
        faults.overwrite(path, data)
        model = load_c(data)
        with mmapdict.open(path, "r+") as d:
            case = perform(recorder, d, model, assign("b", "third"))
        check_killed(case, killed)
        check_paused(case, random.Random(1), 100)


def test_a_file_with_the_real_spare_room(tmp_path, monkeypatch, recorder):
    monkeypatch.undo()
    monkeypatch.setattr(birth, "File", type("RecordingFile", (faults.RecordingFile,), {"recorder": recorder}))
    case = record(recorder, tmp_path / "written", "set new")
    assert len(case.after) >= 2**22
    check_killed(case, tmp_path / "killed", mend=False)


@pytest.mark.parametrize("stores", [["in place"], ["pwrite"]])
def test_both_kinds_of_stores_are_seen(stores, tmp_path, monkeypatch, recorder):
    """Where blocks may move, stores into the map are system calls: the sequences are the same."""
    case = record(recorder, tmp_path / "written", "replace an array")
    monkeypatch.setattr(mmapdict.mapping.store, "_stores_in_place", lambda device: False)
    other = record(recorder, tmp_path / "other", "replace an array")
    assert [s[:2] for s in other.stores] == [s[:2] for s in case.stores]
    check_killed(other, tmp_path / "killed")


# -- random sequences ---------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", 1, True, ("t", 0), b"bytes"])
VALUES = st.sampled_from([0, "text", [SHARED, SHARED], {"k": SHARED, "l": SHARED}, ARRAY, ARRAY.astype(">i2"), MASKED,
                          np.array(5, "<u2"), bytes(5000), {"in": ARRAY}])
STEPS = st.one_of(
    st.builds(lambda k, v: ("put", k, v), KEYS, VALUES),
    st.builds(lambda k: ("pop", k), KEYS),
    st.builds(lambda k, mask: ("create", k, mask), KEYS, st.booleans()),
    st.just(("popitem",)), st.just(("clear",)), st.just(("reopen",)),
    st.builds(lambda k, v: ("setdefault", k, v), KEYS, VALUES))


def as_operation(step):
    name, *arguments = step
    if name == "put":
        return assign(*arguments)
    if name == "create":
        key, mask = arguments
        return lambda d: create(d, key, (2, 3), "<i4", mask=mask) if key not in d else None
    if name == "popitem":
        return lambda d: d.popitem() if d else None
    if name == "pop":
        return lambda d: d.pop(arguments[0], None)
    return lambda d: getattr(d, name)(*arguments)


def check_sequence(folder, steps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder = faults.Recorder().install(monkeypatch)
        path = folder / "written"
        d, model = mmapdict.open(path, "w"), {}
        try:
            for step in steps:
                if step == ("reopen",):
                    d.close()
                    d = mmapdict.open(path, "a")
                    continue
                case = perform(recorder, d, model, as_operation(step))
                if case.stores:
                    check_killed(case, folder / "killed")
                    check_paused(case, random.Random(len(case.after)), 40)
        finally:
            d.close()
        check_plain(path, content(model))


@hypothesis.given(st.lists(STEPS, min_size=1, max_size=5))
@hypothesis.settings(max_examples=50)
def test_random_sequences_killed_anywhere(tmp_path_factory, steps):
    check_sequence(tmp_path_factory.mktemp("crash", numbered=True), steps)


@pytest.mark.slow
@hypothesis.given(st.lists(STEPS, min_size=3, max_size=12))
@hypothesis.settings(max_examples=slow_examples(400), deadline=None,
                     suppress_health_check=list(hypothesis.HealthCheck))
def test_long_random_sequences_killed_anywhere(tmp_path_factory, steps):
    check_sequence(tmp_path_factory.mktemp("crash", numbered=True), steps)


# -- handles that are open meanwhile ------------------------------------------------------------------------------

class Onlooker:
    """A reading handle that looks after every store of a writer."""

    def __init__(self, path, states):
        self.d = mmapdict.open(path, "r")
        self.summaries = [content(state) for state in states]
        self.reached = 0
        self.looks = 0
        dict(self.d)                    # what it has looked up once is in its caches

    def look(self):
        """Each way of looking sees a state that is not older than one that was seen before."""
        self.looks += 1
        d = self.d
        found = content({key: d[key] for key in {**self.states_keys()} if key in d})
        self.see(found)
        self.see(content(dict(d)))
        assert len(d) == len(self.summaries[self.reached])
        assert {key for key, _ in d.items()} == set(d) == set(self.summaries[self.reached])

    def states_keys(self):
        return {key: None for summary in self.summaries for key in summary}

    def see(self, found):
        newer = self.summaries[self.reached:]
        if found not in newer:
            raise Objection("an open reader sees the keys %r, whose values never were, or not any more" % list(found))
        self.reached += newer.index(found)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_open_reader_sees_the_state_before_or_after_at_every_store(name, tmp_path, recorder):
    items, operation, steps = OPERATIONS[name]
    path = tmp_path / "written"
    model = prepare(path, items)
    states = [dict(model)]
    for step in steps or [operation]:
        step(model)
        states.append(dict(model))
    with mmapdict.open(path, "r+") as d:
        onlooker = Onlooker(path, states)
        with onlooker.d:
            recorder.watch = onlooker.look
            operation(d)
            recorder.watch = None
            onlooker.look()
            assert onlooker.reached == len(states) - 1
            assert onlooker.looks > 4


# -- a load that began before -------------------------------------------------------------------------------------


def places(data, thorough):
    """Where a load of `data` may pause: everywhere up to its STOP, or, in big files, near the records' ends."""
    stop = len(faults.used(data))
    if thorough or stop <= 4096:
        return range(stop + 1)
    near = {stop, 0}
    for offset, end, *_ in list(faults.records(data))[:-1]:
        near.update(range(offset - 2, min(offset + 100, end)), range(max(offset, end - 20), end + 2))
    return sorted(x for x in near if 0 <= x <= stop)


def check_paused(case, rng=None, tries=0, stores=None):
    """Load the old bytes up to each place, and newer ones from there on.

    A buffered reader reads a file from its start to its end, and nothing twice: whatever the sizes of its reads are,
    the bytes that it has seen when it pauses are a prefix. With `rng`, only `tries` of the pairs of place and number of
    stores are tried, and as many loads that pause three times.
    """
    stores = case.stores if stores is None else stores
    states = [faults.replay(case.before, stores[:n]) for n in range(len(stores) + 1)]
    where = places(case.before, rng is None)
    pairs = [(x, data) for data in states[1:] for x in where]
    for x, data in pairs if rng is None else rng.sample(pairs, min(tries, len(pairs))):
        find_state(case, load(case.before[:x] + data[x:], load_c), summary=quick)
    longest = len(faults.used(states[-1]))
    for _ in range(tries):
        seen, at = b"", 0
        for number in sorted(rng.choices(range(len(states)), k=4)):
            end = rng.choice([rng.randrange(at, longest + 1), rng.choice(where)])
            if end > at:
                seen, at = seen + states[number][at:end], end
        find_state(case, load(seen + states[-1][at:], load_c), summary=quick)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_load_that_began_before_sees_the_state_before_or_after(name, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    rng = random.Random(name)
    if name in SMALL_ONES:
        check_paused(case)
    check_paused(case, rng, 150)


SIZES = (1, 2, 3, 7, 16, 512, 8192)


def check_live(case, after, unpicklers, sizes, every=1):
    """Load by a real buffered reader that is paused at each of its reads while the bytes become `after`."""
    for unpickler in unpicklers:
        for size in sizes:
            pause = 0
            while True:
                raw = faults.LiveBytes(case.before, after, pause)
                try:
                    loaded = unpickler(io.BufferedReader(raw, size)).load()
                except Exception as exc:
                    raise Objection("paused at %r: %r" % (raw.paused_at, exc)) from exc
                find_state(case, loaded, summary=quick)
                if raw.paused_at is None:
                    assert pause >= raw.reads
                    break
                x = raw.paused_at
                assert quick(loaded) == quick(load_c(case.before[:x] + after[x:])), "a load is not what a prefix says"
                pause += every if size < 16 else 1


@pytest.mark.parametrize("unpickler", [pickle.Unpickler, pickle._Unpickler])
@pytest.mark.parametrize("name", ["replace, same kind", "clear", "delete", "first array"])
def test_a_load_paused_at_its_reads(name, unpickler, tmp_path, recorder):
    """Shows that the loads of `check_paused` are what a buffered reader and its unpickler do."""
    case = record(recorder, tmp_path / "written", name)
    every = 5 if unpickler is pickle.Unpickler else 11
    check_live(case, case.after, [unpickler], SIZES, every)
    middle = case.replayed()[len(case.stores) // 2]
    check_live(case, middle, [unpickler], SIZES[3:], every)


@pytest.mark.slow
@pytest.mark.parametrize("unpickler", [pickle.Unpickler, pickle._Unpickler])
@pytest.mark.parametrize("name", SMALL_ONES)
def test_a_load_paused_at_every_read(name, unpickler, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    for data in random.Random(name).sample(case.replayed()[1:], min(slow_examples(4), len(case.stores))):
        check_live(case, data, [unpickler], SIZES)


# -- that these tests can fail ------------------------------------------------------------------------------------


def is_publish(store):
    return store.kind == "byte" and store.data == b"("


def is_kill(store):
    return store.kind == "byte" and store.data == b"\x8e"


def moved(stores, chosen, place):
    """`stores` with the one that `chosen` finds put before the one that `place` finds."""
    rest = [s for s in stores if not chosen(s)]
    at = next(i for i, s in enumerate(rest) if place(s))
    return rest[:at] + [s for s in stores if chosen(s)] + rest[at:]


def killed_first(stores):
    return moved(stores, is_kill, is_publish)


def published_first(stores):
    return moved(stores, is_publish, lambda s: s.kind in ("write", "truncate"))


def without_stop(stores):
    return [s._replace(data=s.data[:-1]) if s.kind == "write" else s for s in stores]


def without_publish(stores):
    return [s for s in stores if not is_publish(s)]


def without_body(stores):
    return [s for s in stores if s.kind != "write"]


@pytest.mark.parametrize(("name", "mistake"), [
    ("replace, same kind", killed_first), ("replace an array", published_first), ("set new", published_first),
    ("first array", without_stop), ("set new", without_stop), ("create", published_first), ("set new", without_publish),
    ("clear", without_publish), ("clear", killed_first), ("create", without_body)])
def test_a_killed_writer_that_makes_a_mistake_is_noticed(name, mistake, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    with pytest.raises(Objection):
        # A byte that is not there: behind it may stand anything.
        check_killed(Case(case.before + b"\xff" * 5000, case.stores, case.states), tmp_path / "killed",
                     mistake(case.stores), mend=False)
    (tmp_path / "killed").unlink()


@pytest.mark.parametrize(("name", "mistake"), [
    ("replace, same kind", killed_first), ("clear", killed_first), ("clear", without_publish),
    ("set new", published_first)])
def test_a_load_that_began_before_a_mistake_notices_it(name, mistake, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    with pytest.raises(Objection):
        check_paused(case, stores=mistake(case.stores))


def test_a_writer_that_does_not_mend_is_noticed(tmp_path, recorder, monkeypatch):
    case = record(recorder, tmp_path / "written", "replace an array")
    monkeypatch.setattr(mmapdict.mapping.Index, "begin", mmapdict.mapping.Index.walk)
    with pytest.raises((Objection, AssertionError)):
        check_killed(case, tmp_path / "killed")
    (tmp_path / "killed").unlink()


# -- the birth and the replacement of a file ----------------------------------------------------------------------


class Death(BaseException):
    """Stands for the end of the process."""


CALLS = ("open", "write", "link", "unlink", "close", "chmod", "replace")


def die_at(monkeypatch, n, after):
    """Let the n-th call of the system that `birth` makes raise `Death`, before or after it was done."""
    count = [0]

    class Os:
        def __getattr__(self, name):
            real = getattr(os, name)
            if name not in CALLS:
                return real

            def call(*arguments, **options):
                count[0] += 1
                if count[0] - 1 == n and not after:
                    raise Death
                result = real(*arguments, **options)
                if count[0] - 1 == n:
                    if name == "open":
                        os.close(result)
                    raise Death
                if count[0] - 1 > n:
                    raise Death             # dead processes do not clean up
                return result
            return call
    monkeypatch.setattr(birth, "os", Os())


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("mode", ["a", "x", "w"])
def test_a_process_that_dies_while_it_makes_a_file_leaves_none_or_a_whole_one(mode, nameless, tmp_path, monkeypatch):
    monkeypatch.setattr(birth, "HAVE_TMPFILE", nameless and birth.HAVE_TMPFILE)
    path = tmp_path / "new"
    seen = set()
    for n in range(20):
        for after in (False, True):
            with monkeypatch.context() as patch:
                die_at(patch, n, after)
                try:
                    mmapdict.open(path, mode).close()
                    finished = True
                except Death:
                    finished = False
            seen.add(path.exists())
            if path.exists():
                assert load_c(path.read_bytes()) == {}
                path.unlink()
        if finished:
            break
    else:
        pytest.fail("it never ended")
    assert seen == {False, True}


def test_a_new_file_has_no_other_name_first(tmp_path, monkeypatch):
    """Where there are files without names: a process that dies leaves nothing."""
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except (AttributeError, OSError):
        pytest.skip("there are none")
    monkeypatch.setattr(birth, "_write_new", lambda *arguments: pytest.fail("a file was made under another name"))
    for mode in ("a", "w", "x"):
        path = tmp_path / mode
        mmapdict.open(path, mode).close()
        mmapdict.open(path, "w").close()
    assert sorted(os.listdir(tmp_path)) == ["a", "w", "x"]


def test_a_process_that_dies_while_it_replaces_a_file_leaves_the_old_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    seen = set()
    for n in range(30):
        for after in (False, True):
            prepare(path, PLAIN)
            reader = mmapdict.open(path, "r")
            writer = mmapdict.open(path, "r+")
            with monkeypatch.context() as patch:
                die_at(patch, n, after)
                try:
                    mmapdict.open(path, "w").close()
                    finished = True
                except Death:
                    finished = False
            found = load_c(path.read_bytes())
            assert found in (PLAIN, {})
            seen.add(len(found))
            assert dict(reader) == found, "a reader does not notice that the file was replaced"
            writer["more"] = 1
            assert dict(reader) == dict(writer) == load_c(path.read_bytes()) == {**found, "more": 1}
            faults.check_header(path.read_bytes())
            reader.close()
            writer.close()
            path.unlink()
        if finished:
            break
    else:
        pytest.fail("it never ended")
    assert seen == {0, 2}


def test_the_stores_into_a_file_that_is_replaced(tmp_path, recorder):
    """Each prefix of them, with the path still leading to the file: nothing has happened."""
    path = tmp_path / "file"
    prepare(path, ITEMS)
    before = path.read_bytes()
    os.link(path, tmp_path / "old")
    recorder.take()
    mmapdict.open(path, "w").close()
    stores = recorder.take()
    assert [s.kind for s in stores].count("cell") >= 2
    assert faults.replay(before, stores) == (tmp_path / "old").read_bytes()
    case = Case(before, stores, [ITEMS])
    check_killed(case, tmp_path / "killed")
