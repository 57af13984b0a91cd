"""Readers that are half way through a file while it changes: only states that existed are ever seen.

What a plain load sees that was half way through is the old bytes up to some place and, from there on, newer ones. A
handle that is open looks after every store.
"""

import io
import pickle
import random

import pytest

import faults
import mmapdict
from budget import slow_examples
from operations import (ARRAY, GROWING, ITEMS, MASKED, OPERATIONS, SHARED, SMALL_ONES, Objection, check_paused, content,
                        delete, find_state, load, load_c, perform, pieced, prepare, put, quick, random_change, record)


@pytest.fixture
def recorder(monkeypatch):
    return faults.Recorder().install(monkeypatch)


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
            assert onlooker.summaries[onlooker.reached] == onlooker.summaries[-1]
            assert onlooker.looks > 2 or states[0] == states[-1]


# -- a load that began before -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_load_that_began_before_sees_the_state_before_or_after(name, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    rng = random.Random(name)
    if name in SMALL_ONES:
        check_paused(case)
    check_paused(case, rng, 100)


@pytest.mark.parametrize("name", SMALL_ONES)
def test_a_load_that_began_before_what_was_synced_is_kept_sees_the_state_before_or_after(name, tmp_path, recorder):
    """Until the next `sync`, what takes the place of a record that was synced stands beside it."""
    items, operation, steps = OPERATIONS[name]
    path = tmp_path / "written"
    model = prepare(path, items)
    with mmapdict.open(path, "r+") as d:
        d.sync()
        check_paused(perform(recorder, d, model, operation, steps), random.Random(name), 60)
        check_paused(perform(recorder, d, model, lambda d: d.sync(), [lambda model: None]), random.Random(name), 30)


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
@pytest.mark.parametrize("name", ["replace, same kind", "clear", "delete", "first array", "batch: set and delete"])
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
    # A cell that changes must not straddle two reads, and none does if these are of a multiple of its 8 bytes.
    sizes = [8, 24, *(size for size in SIZES if size % 8 == 0)] if name in GROWING else SIZES
    for data in random.Random(name).sample(case.replayed()[1:], min(slow_examples(4), len(case.stores))):
        check_live(case, data, [unpickler], sizes)


# -- the file is replaced as a whole --------------------------------------------------------------------------------


def with_dead_records(path):
    """Make a file that is worth a vacuum; return what is in it."""
    model = prepare(path, ITEMS)
    with mmapdict.open(path, "r+") as d:
        put(d, "a", ARRAY)
        put(model, "a", ARRAY)
        del d["c"], model["c"]
    return model


def vacuum(path):
    with mmapdict.open(path, "r+") as d:
        d.vacuum()


def start_anew(path):
    mmapdict.open(path, "w").close()


REPLACEMENTS = {"vacuum": (vacuum, lambda model: model), "w": (start_anew, lambda model: {})}


@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_an_open_reader_sees_the_old_file_or_the_new_one_at_every_store(kind, tmp_path, recorder):
    act, outcome = REPLACEMENTS[kind]
    path = tmp_path / "file"
    model = with_dead_records(path)
    onlooker = Onlooker(path, [model, outcome(model)])
    with onlooker.d as d:
        array = d["b"]
        recorder.watch = onlooker.look
        act(path)
        recorder.watch = None
        onlooker.look()
        assert onlooker.summaries[onlooker.reached] == onlooker.summaries[-1]
        assert onlooker.looks > 10 or kind == "w"
        assert (array == ARRAY).all()


class Interrupted(io.FileIO):
    """A file that does something before one of its reads."""

    def __init__(self, path, pause, act):
        super().__init__(path)
        self.pause, self.act, self.reads = pause, act, 0

    def readinto(self, buffer):
        if self.reads == self.pause:
            self.act()
        self.reads += 1
        return super().readinto(buffer)


@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("unpickler", [pickle.Unpickler, pickle._Unpickler])
def test_a_load_goes_on_with_the_file_that_it_began_with(kind, unpickler, tmp_path):
    act, _ = REPLACEMENTS[kind]
    path = tmp_path / "file"
    for size in 16, 512, 8192:
        for pause in 0, 1, 2, 20:
            model = with_dead_records(path)
            raw = Interrupted(path, pause, lambda: act(path))
            with io.BufferedReader(raw, size) as file:
                assert quick(unpickler(file).load()) == quick(model)
                assert raw.reads > pause or size > 16


# -- several operations while one load runs ---------------------------------------------------------------------------


def several(recorder, path, rng, count):
    """Do random operations on a file.

    Returns
    -------
    files : list of bytes
        The file after each store.
    states : list of dict
        Summaries of what was there before, and after each operation.
    removed : dict
        By key, the numbers of the operations that deleted it, each in a step of its own.
    """
    model = prepare(path, {"a": ARRAY, "b": [SHARED, SHARED], 1: "one", ("t", 0): MASKED})
    states, removed = [quick(model)], {}
    with mmapdict.open(path, "r+", durable=rng.random() < 0.2) as d:
        if rng.random() < 0.5:
            d.sync()
        before = path.read_bytes()
        recorder.take()
        for number in range(count):
            if rng.random() < 0.25 and model:
                key = rng.choice(list(model))
                operation = delete(key)
                removed.setdefault(key, []).append(number)
            else:
                operation = random_change(rng, removals=False)
            operation(d)
            operation(model)
            states.append(quick(model))
            if rng.random() < 0.2:
                d.sync()
        stores = recorder.take()
    return list(faults.after_each(before, stores)), states, removed


def was_seen(found, states, removed):
    """Whether a load may give `found`: one of the states, and what was deleted while it ran, as it was before that.

    A key that was replaced and then deleted may have the value from before both: the load had run the old record, and
    found the new one dead.
    """
    for number, state in enumerate(states):
        left = [key for key in found if key not in state]
        if all(found.get(key) == value for key, value in state.items()) and all(
                any(n < number and found[key] in [s.get(key) for s in states[:n + 1]] for n in removed.get(key, ()))
                for key in left):
            return True
    return False


def check_several(recorder, path, rng, count, loads):
    files, states, removed = several(recorder, path, rng, count)
    exact = 0
    for _ in range(loads):
        data = pieced(files, rng)
        found = quick(load(data, load_c))
        if not was_seen(found, states, removed):
            raise Objection("a load sees %r while the file went through %r" % (found, states))
        exact += found in states
    return exact


@pytest.mark.parametrize("seed", range(20))
def test_a_load_that_runs_during_several_operations_sees_a_state_and_perhaps_what_was_deleted_meanwhile(
        seed, tmp_path, recorder):
    assert check_several(recorder, tmp_path / "file", random.Random(seed), 8, 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_loads_that_run_during_many_operations(seed, tmp_path, recorder):
    rng = random.Random(seed)
    for _ in range(slow_examples(30)):
        assert check_several(recorder, tmp_path / "file", rng, rng.randrange(2, 30), 200)


def check_lengths(recorder, path, rng, count, loads):
    """Let loads run while arrays get rows, lose some, move and give room back; return how many values they saw.

    Each array is as it was at some moment; that of another one may be later.
    """
    model = prepare(path, {"a": ARRAY, "b": [SHARED, SHARED]})
    with mmapdict.open(path, "r+", durable=rng.random() < 0.2) as d:
        for _ in range(2):
            random_change(rng, grow=True)(d)
        model = dict(pickle.loads(path.read_bytes()))
        states, before = [quick(model)], path.read_bytes()
        recorder.take()
        for _ in range(count):
            operation = random_change(rng, grow=rng.random() < 0.8, removals=False)
            operation(d)
            operation(model)
            states.append(quick(model))
            if rng.random() < 0.1:
                d.sync()
        stores = recorder.take()
    files = list(faults.after_each(before, stores))
    # A cell is read in one piece.
    inside = {s.offset + i for s in stores if s.kind == "cell" and s.offset >= 256 for i in range(1, 8)}
    seen = set()
    for _ in range(loads):
        found = quick(load(pieced(files, rng, inside=inside), load_c))
        for key in {*found, *states[0], *states[-1]}:
            if found.get(key) not in [state.get(key) for state in states]:
                raise Objection("%r is %r during %r" % (key, found.get(key), [state.get(key) for state in states]))
        seen.update(repr(found.get(key)) for key in "gh")
    return len(seen)


@pytest.mark.parametrize("seed", range(10))
def test_a_load_that_runs_while_arrays_change_their_lengths_sees_rows_that_were_there(seed, tmp_path, recorder):
    assert check_lengths(recorder, tmp_path / "file", random.Random(seed), 12, 100) > 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_loads_that_run_while_arrays_change_their_lengths_many_times(seed, tmp_path, recorder):
    rng = random.Random(seed)
    for _ in range(slow_examples(30)):
        assert check_lengths(recorder, tmp_path / "file", rng, rng.randrange(10, 40), 200) > 2


# -- that these tests can fail ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mistake"), [
    ("replace, same kind", faults.killed_first), ("clear", faults.killed_first), ("clear", faults.without_publish),
    ("set new", faults.published_first)])
def test_a_load_that_began_before_a_mistake_notices_it(name, mistake, tmp_path, recorder):
    case = record(recorder, tmp_path / "written", name)
    with pytest.raises(Objection):
        check_paused(case, stores=mistake(case.stores))
