"""A writer that is killed anywhere: only states that existed are ever seen, and the next writer goes on.

Every store of an operation is recorded. What a killed writer leaves is any prefix of them, a long write also cut
inside.
"""

import contextlib
import functools
import itertools
import os
import random

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import faults
import mmapdict
from budget import slow_examples
from judge import fingerprint
from mmapdict import CorruptError, birth, store, writer
from operations import (ARRAY, BIG, ITEMS, MASKED, OPERATIONS, PLAIN, SHARED, Case, Objection, assign, check_paused,
                        check_plain, check_verified, content, create, find_state, load, load_c, load_file, load_python,
                        perform, prepare, put, record, take_last, together)

# -- a killed writer ----------------------------------------------------------------------------------------------


@pytest.fixture
def recorder(monkeypatch):
    return faults.Recorder().install(monkeypatch)


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
        check_verified(path, killed=True)
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


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_writer_killed_anywhere_leaves_the_state_before_or_after(name, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    check_killed(case, tmp_path / "killed")


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_durable_writer_killed_anywhere_leaves_the_state_before_or_after(name, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name, durable=True)
    assert content(case.states[0]) == content(case.states[-1]) or "sync" in [s.kind for s in case.stores]
    check_killed(case, tmp_path / "killed")


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_writer_that_lets_synced_records_live_may_be_killed_anywhere(name, tmp_path, recorder):
    """What was synced is killed only when what takes its place was: by the next `sync`, or by `close`."""
    items, operation, steps = OPERATIONS[name]
    for later in (lambda d: d.sync(), lambda d: d.close(), None):
        path = tmp_path / "written"
        model = prepare(path, items)
        with mmapdict.open(path, "r+") as d:
            d.sync()
            case = perform(recorder, d, model, operation, steps)
            synced = faults.cell(case.before, faults.SYNCED)
            killed = [s for s in case.stores if faults.is_kill(s) and s.offset < synced
                      and case.before[s.offset + 9:s.offset + 11] == b"h\0"]         # no index block
            assert synced >= len(faults.used(case.before)) - 1
            assert not killed or name in ("pop", "popitem") or name.startswith("delete")
            check_killed(case, tmp_path / "killed", mend=later is None)
            if later is not None:
                case = perform(recorder, d, model, later, [lambda model: None])
                assert sum(live and entry for *_, live, entry in list(faults.records(case.after))[:-1]) == len(model)
                check_killed(case, tmp_path / "killed")
                check_paused(case, random.Random(name), 15)


@pytest.mark.parametrize("name", ["set new", "replace an array", "create", "create masked", "clear", "first array"])
def test_what_a_killed_writer_left_behind_the_stop_does_no_harm(name, tmp_path, recorder):
    other = record(recorder, tmp_path / "other", "set new")
    leftovers = [next(s.data for s in other.stores if s.kind == "write"),       # a whole record, from its Op on
                 b"." + bytes(range(256)) * 3,
                 b"(G" + bytes(40)]
    for left in leftovers:
        case = record(recorder, tmp_path / "written", name, left)
        check_killed(case, tmp_path / "killed", mend=left is leftovers[0])


def seal(d):
    if not isinstance(d, dict):
        d.seal()


def unseal(d):
    if not isinstance(d, dict):
        d.unseal()


SEALED = {name: OPERATIONS[name][1] for name in (
    "set new", "replace an array", "delete", "clear", "create", "batch: set and delete", "batch: delete alone",
    "batch: fails with arrays handed out")}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", ["seal", "seal again", "unseal", *SEALED])
def test_a_writer_killed_at_a_sealed_file_leaves_a_seal_that_is_right_or_none(name, durable, tmp_path, recorder):
    path = tmp_path / "written"
    model = prepare(path, ITEMS)
    with mmapdict.open(path, "r+", durable=durable) as d:
        if name != "seal":
            d.seal()
            assert d.sealed
        case = perform(recorder, d, model, {"seal": seal, "seal again": seal, "unseal": unseal, **SEALED}[name])
        assert d.sealed == (name in ("seal", "seal again")) or content(case.states[0]) == content(case.states[-1])
    check_killed(case, tmp_path / "killed")
    check_paused(case, random.Random(name), 100)


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


@pytest.mark.parametrize("name", ["replace an array", "batch: set and delete", "clear"])
def test_a_handle_that_is_closed_beside_a_dead_writer_leaves_it_to_the_next_one(name, tmp_path, recorder):
    """What waits for the disk is not killed then: the counter would be even in between."""
    path = tmp_path / "killed"
    items, operation, steps = OPERATIONS[name]
    written = tmp_path / "written"
    model = prepare(written, items)
    with mmapdict.open(written, "r+") as d:
        d.sync()
        synced = written.read_bytes()
        put(d, "c", 0)
        put(model, "c", 0)
        case = perform(recorder, d, model, operation, steps)
    summaries = [content(state) for state in case.states]
    for data in case.replayed():
        faults.overwrite(path, synced)
        with mmapdict.open(path, "r+") as d:
            put(d, "c", 0)
            assert path.read_bytes() == case.before
            faults.overwrite(path, data)                # somebody else changes the file, and dies
        reached = content(load_c(path.read_bytes()))
        assert reached in summaries
        check_verified(path, killed=True)
        check_next_writer(path, reached)


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
    st.just(("popitem",)), st.just(("clear",)),
    st.builds(lambda k, v: ("setdefault", k, v), KEYS, VALUES))
BATCHES = st.builds(lambda steps, fail: ("batch", steps, fail), st.lists(STEPS, max_size=5), st.booleans())
ALL_STEPS = st.one_of(STEPS, STEPS, BATCHES, st.sampled_from([("reopen",), ("reopen durable",), ("sync",)]))


def as_operation(step):
    name, *arguments = step
    if name == "put":
        return assign(*arguments)
    if name == "create":
        key, mask = arguments
        return lambda d: create(d, key, (2, 3), "<i4", mask=mask) if key not in d else None
    if name == "popitem":
        return take_last()
    if name == "pop":
        return lambda d: d.pop(arguments[0], None)
    if name == "batch":
        steps, fail = arguments
        return together(*map(as_operation, steps), fail=fail)
    if name == "sync":
        return lambda d: None if isinstance(d, dict) else d.sync()
    return lambda d: getattr(d, name)(*arguments)


def check_sequence(folder, steps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder = faults.Recorder().install(monkeypatch)
        path = folder / "written"
        d, model = mmapdict.open(path, "w"), {}
        try:
            for step in steps:
                if step[0].startswith("reopen"):
                    d.close()
                    d = mmapdict.open(path, "a", durable=step[0] != "reopen")
                    continue
                case = perform(recorder, d, model, as_operation(step))
                if case.stores:
                    check_killed(case, folder / "killed")
                    check_paused(case, random.Random(len(case.after)), 40)
        finally:
            d.close()
        check_plain(path, content(model))


@hypothesis.given(st.lists(ALL_STEPS, min_size=1, max_size=5))
@hypothesis.settings(max_examples=50)
def test_random_sequences_killed_anywhere(tmp_path_factory, steps):
    check_sequence(tmp_path_factory.mktemp("crash", numbered=True), steps)


@pytest.mark.slow
@hypothesis.given(st.lists(ALL_STEPS, min_size=3, max_size=12))
@hypothesis.settings(max_examples=slow_examples(400), deadline=None,
                     suppress_health_check=list(hypothesis.HealthCheck))
def test_long_random_sequences_killed_anywhere(tmp_path_factory, steps):
    check_sequence(tmp_path_factory.mktemp("crash", numbered=True), steps)


# -- that these tests can fail ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mistake"), [
    ("replace, same kind", faults.killed_first), ("replace an array", faults.published_first),
    ("set new", faults.published_first), ("first array", faults.without_stop), ("set new", faults.without_stop),
    ("create", faults.published_first), ("set new", faults.without_publish), ("clear", faults.without_publish),
    ("clear", faults.killed_first), ("create", faults.without_body),
    ("batch: set and delete", faults.killed_first), ("batch: clear and set", faults.killed_first),
    ("batch: several new", faults.published_first), ("batch: replace", faults.without_publish)])
def test_a_killed_writer_that_makes_a_mistake_is_noticed(name, mistake, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    with pytest.raises((Objection, CorruptError)):         # the next writer may notice as well
        # A byte that is not there: behind it may stand anything.
        check_killed(Case(case.before + b"\xff" * 5000, case.stores, case.states), tmp_path / "killed",
                     mistake(case.stores), mend=False)
    (tmp_path / "killed").unlink()


def test_a_writer_that_does_not_mend_is_noticed(tmp_path, recorder, monkeypatch):
    case = record(recorder, tmp_path / "written", "replace an array")
    monkeypatch.setattr(writer.Writer, "begin", lambda index, *arguments: index.walk())
    with pytest.raises((Objection, AssertionError)):
        check_killed(case, tmp_path / "killed")
    (tmp_path / "killed").unlink()


# -- the birth and the replacement of a file ----------------------------------------------------------------------


class Death(BaseException):
    """Stands for the end of the process."""


CALLS = ("open", "write", "pwrite", "pwritev", "ftruncate", "posix_fallocate", "copy_file_range", "link", "unlink",
         "replace", "rename", "fchmod", "fsync", "fdatasync")
TMPFILE = getattr(os, "O_TMPFILE", 0)


class Mortal:
    """Lets a process die at any of the calls and stores that change something.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
    """

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    @contextlib.contextmanager
    def until(self, n, after):
        """Within the block, raise `Death` at the n-th of them, before or after it was done; and at all that follow."""
        with self._monkeypatch.context() as patch:
            count, inside, nameless = itertools.count(), [], set()

            def counted(real, *arguments, **options):
                if inside:
                    return real(*arguments, **options)      # what a store is made of
                number = next(count)
                if number > n or number == n and not after:
                    raise Death                             # dead processes do not clean up
                inside.append(real)
                try:
                    result = real(*arguments, **options)
                finally:
                    inside.clear()
                if number == n:
                    if real is os.open:
                        os.close(result)
                    raise Death
                if real is os.open and arguments[1] & TMPFILE == TMPFILE != 0:
                    nameless.add(result)
                return result

            class Os:
                def close(self, fd):
                    nameless.discard(fd)
                    os.close(fd)

                def __getattr__(self, name):
                    real = getattr(os, name)
                    return functools.partial(counted, real) if name in CALLS else real

            for module in birth, store:
                patch.setattr(module, "os", Os())
            store_byte, cell_store = store.File.store_byte, store.File.cell_store
            patch.setattr(store.File, "store_byte", lambda *of: counted(store_byte, *of))
            patch.setattr(store.File, "cell_store", lambda *of: functools.partial(counted, cell_store(*of)))
            try:
                yield
            finally:
                for fd in nameless:         # the end of a process closes them; those of a `File` go with it
                    os.close(fd)

    def deaths(self, before, act):
        """Call ``before()`` and ``act()``, and die at each of the things that `act` does.

        Yields
        ------
        bool
            Whether `act` ended by itself, which is the last time.
        """
        for n in range(200):
            for after in (False, True):
                before()
                finished = False
                with contextlib.suppress(Death), self.until(n, after):
                    act()
                    finished = True
                yield finished
                if finished:
                    return
        pytest.fail("it never ended")


@pytest.fixture
def mortal(monkeypatch):
    return Mortal(monkeypatch)


@pytest.fixture(params=["nameless", "named"])
def births(request, monkeypatch):
    """Both ways in which new files come to be."""
    monkeypatch.setattr(birth, "HAVE_TMPFILE", request.param == "nameless" and birth.HAVE_TMPFILE)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("mode", ["a", "x", "w"])
def test_a_process_that_dies_while_it_makes_a_file_leaves_none_or_a_whole_one(mode, durable, births, tmp_path, mortal):
    path = tmp_path / "new"
    seen = []

    def open_it():
        mmapdict.open(path, mode, durable=durable).close()
    for _ in mortal.deaths(lambda: clear(tmp_path), open_it):
        seen.append(path.exists())
        if path.exists():
            check_plain(path, {})
    assert seen == sorted(seen) and set(seen) == {False, True}


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


def check_others(path, reader, writer, expected):
    """See that handles that were open meanwhile go on, with the file that is there now."""
    assert content(dict(reader)) == expected, "a reader does not notice that the file was replaced"
    writer["more"] = 1
    expected = {**expected, **content({"more": 1})}
    assert content(dict(reader)) == content(dict(writer)) == expected
    check_plain(path, expected)


def clear(folder):
    """Remove all files: those too that a dead process left under a name of its own."""
    for path in folder.iterdir():
        path.unlink()


class Others:
    """Handles of a file that are open while another process dies."""

    def __init__(self, path, data, writer=True):
        self.path, self.data = path, data
        self.with_writer = writer
        self.handles = []

    def begin(self):
        """Make the file, under another inode, and open the handles."""
        self.close()
        clear(self.path.parent)
        self.path.write_bytes(self.data)
        self.handles = [mmapdict.open(self.path, mode) for mode in ("r", "r+")[:1 + self.with_writer]]
        for d in self.handles:
            dict(d)

    def close(self):
        while self.handles:
            self.handles.pop().close()

    def check(self, expected):
        """See that they go on with the file that is there now."""
        reader = self.handles[0]
        assert content(dict(reader)) == expected, "a reader does not notice that the file was replaced"
        if not self.with_writer:
            self.handles.append(mmapdict.open(self.path, "r+"))
        self.handles[1]["more"] = 1
        expected = {**expected, **content({"more": 1})}
        assert content(dict(reader)) == content(dict(self.handles[1])) == expected
        check_plain(self.path, expected)


def test_a_process_that_dies_while_it_replaces_a_file_leaves_the_old_or_the_new_one(births, tmp_path, mortal):
    path = tmp_path / "file"
    prepare(path, PLAIN)
    seen = []
    with contextlib.closing(Others(path, path.read_bytes())) as others:
        for _ in mortal.deaths(others.begin, lambda: mmapdict.open(path, "w").close()):
            found = load_c(path.read_bytes())
            assert found in (PLAIN, {})
            seen.append(len(found))
            others.check(content(found))
    assert seen == sorted(seen, reverse=True) and set(seen) == {0, 2}


def with_dead_records(path):
    """Make a file that is worth a vacuum; return what is in it."""
    prepare(path, {**ITEMS, "more": BIG})
    with mmapdict.open(path, "r+") as d:
        d["a"], d["more"] = ARRAY, BIG[:100]
        del d["c"]
        return content(d)


def test_a_process_that_dies_while_it_vacuums_leaves_the_file_as_it_was(births, tmp_path, mortal):
    path = tmp_path / "file"
    expected = with_dead_records(path)
    sizes = []

    def vacuum():
        with contextlib.closing(mmapdict.open(path, "r+")) as d:
            d.vacuum()
    with contextlib.closing(Others(path, path.read_bytes(), writer=False)) as others:
        for _ in mortal.deaths(others.begin, vacuum):
            assert content(load_c(path.read_bytes())) == expected
            sizes.append(path.stat().st_size)
            others.check(expected)
    assert min(sizes) == sizes[-1] < max(sizes) - len(BIG) / 2


def test_a_process_that_dies_while_it_repairs_leaves_the_damaged_file_or_the_repaired_one(births, tmp_path, mortal):
    """The damaged one always has a name; the repaired one is never seen before it is whole."""
    path, kept, beside = tmp_path / "file.x", tmp_path / "file.damaged.x", tmp_path / "file.repaired.x"
    prepare(path, ITEMS)
    data = bytearray(path.read_bytes())
    *found, _ = faults.records(bytes(data))
    first, *_ = [offset for offset, _, _, entry in found if entry]
    data[first + 10] ^= 1
    for replace in True, False:
        seen = []

        def begin():
            clear(tmp_path)
            path.write_bytes(data)
        for _ in mortal.deaths(begin, lambda: mmapdict.repair(path, replace=replace)):
            new = path if replace else beside
            done = new.exists() and new.read_bytes() != data
            if done:
                loaded = load_c(new.read_bytes())
                assert len(loaded) == 3 and content(loaded).items() < content(ITEMS).items()
            assert bytes(data) in [name.read_bytes() for name in (path, kept) if name.exists()]
            assert path.exists()
            seen.append(done)
        assert seen == sorted(seen) and set(seen) == {False, True}
        begin()
    clear(tmp_path)


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
