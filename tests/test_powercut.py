"""The power is cut at any moment: nothing that was promised to be on the disk is lost.

`powercut` says what may be on a disk then. The first part shows, on disks whose writers are simple and make mistakes,
that it finds them.
"""

import itertools
import os
import pickle
import random
import shutil

import numpy as np
import pytest

import faults
import mmapdict
import powercut
from budget import slow_examples
from mmapdict import birth
from mmapdict.errors import CorruptError
from mmapdict.repair import repair
from operations import (ARRAY, GROWING, ITEMS, MASKED, OPERATIONS, SHARED, Model, Objection, assign, check_plain,
                        content, create, delete, load, load_c, load_file, load_python, prepare, quick, random_change,
                        together)
from powercut import Event, Platter

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux's /proc")

# -- the simulation ---------------------------------------------------------------------------------------------------


def images(platter, cuts=100, seed=0):
    """Yield what may be on the disk at this moment."""
    rng = random.Random(seed)
    yield from (platter.cut(cut.choose, cut.grain) for cut in powercut.corners(platter))
    for _ in range(cuts):
        cut = powercut.random_cut(rng)
        yield platter.cut(cut.choose, cut.grain)


def at_end(events, before=b"", **options):
    platter = Platter(events, {"/d/f": before}, {"/d/f": 0})
    return [image.get("/d/f") for image in images(platter.advance(len(events)), **options)]


def test_without_barrier_anything_between_before_and_after_is_left():
    events = [Event("write", 0, 0, b"B" * 1024), Event("write", 0, 0, b"C" * 512)]
    found = at_end(events, b"A" * 1024)
    assert {b"A" * 1024, b"B" * 1024, b"C" * 512 + b"B" * 512, b"A" * 512 + b"B" * 512, b"C" * 512 + b"A" * 512,
            b"B" * 512 + b"A" * 512} <= set(found)
    assert any(b"A" in data[:512] and b"C" in data[:512] for data in found), "no sector is torn"
    assert any({data[i:i + 8] for i in range(0, 512, 8)} - {b"A" * 8, b"B" * 8, b"C" * 8} for data in found)
    assert all(set(data) <= set(b"ABC") and b"C" not in data[512:] for data in found)


def test_after_a_barrier_only_what_came_later_is_in_doubt():
    events = [Event("write", 0, 0, b"B" * 1024), Event("sync", 0), Event("write", 0, 1016, b"C" * 8)]
    assert {b"B" * 1024, b"B" * 1016 + b"C" * 8} < set(at_end(events, b"A" * 1024))
    assert all(data[:1016] == b"B" * 1016 for data in at_end(events, b"A" * 1024))


def test_cells_that_say_how_long_something_is_are_whole():
    cells = [Event("write", 0, at, b"B" * 8, whole=whole) for at, whole in ((8, True), (16, False))]
    found = at_end(cells, b"A" * 24, cuts=300)
    assert {data[8:16] for data in found} == {b"A" * 8, b"B" * 8}
    assert {data[16:] for data in found} > {b"A" * 8, b"B" * 8}


def test_the_barrier_of_another_file_helps_nothing():
    events = [Event("write", 0, 0, b"B"), Event("names", data={"/d/other": 1}), Event("sync", 1)]
    assert set(at_end(events, b"A")) == {b"A", b"B"}


def test_sizes_and_contents_have_their_own_moments():
    events = [Event("size", 0, 2000), Event("write", 0, 1996, b"BBBB"), Event("size", 0, 1000)]
    found = at_end(events, b"A" * 100, cuts=300)
    assert {len(data) for data in found} == {100, 1000, 2000}
    assert {data[1996:] for data in found} >= {b"", bytes(4), b"BBBB"}
    assert all(data[:100] == b"A" * 100 for data in found)


def test_new_places_hold_anything_until_the_barrier_and_old_ones_do_not():
    write = Event("write", 0, 512, b"B" * 1024)
    odd = [data for data in at_end([write], b"A" * 512) if set(data) - set(b"AB\0")]
    assert odd and all(data[:512] == b"A" * 512 for data in odd)
    assert not [data for data in at_end([write, Event("sync", 0)], b"A" * 512) if set(data) - set(b"AB")]
    assert not [data for data in at_end([write], b"A" * 2048) if set(data) - set(b"AB")]
    reserved = Event("allocate", 0, 512, end=1536)
    assert not [data for data in at_end([reserved, write], b"A" * 512) if set(data) - set(b"AB\0")]


def test_names_lead_where_they_led_until_the_folder_is_synced():
    born = [Event("names", data={"/d/new": 1}), Event("write", 1, 0, b"N" * 9), Event("sync", 1),
            Event("names", data={"/d/f": 1, "/d/new": None}), Event("sync", 1)]
    platter = Platter([*born, Event("folder", data="/d")], {"/d/f": b"A"}, {"/d/f": 0})
    found = list(images(platter.advance(len(born))))
    assert {image["/d/f"] for image in found} == {b"A", b"N" * 9}
    assert {image.get("/d/new") for image in found} == {None, b"N" * 9}
    assert {tuple(image.items()) for image in images(platter.advance(6))} == {(("/d/f", b"N" * 9),)}


def test_a_file_that_was_not_synced_before_it_was_renamed_may_be_empty():
    events = [Event("names", data={"/d/new": 1}), Event("write", 1, 0, b"N" * 9),
              Event("names", data={"/d/f": 1, "/d/new": None})]
    assert {b"A", b"N" * 9, b""} < set(at_end(events, b"A"))


# A log of numbers: each is eight bytes, and a byte before it says whether it counts. Right: the number, a barrier, the
# byte, a barrier, and then it is acknowledged.

def log_events(numbers, barriers=(True, True), size=520):
    events, acknowledged = [], []
    for i, number in enumerate(numbers):
        at = i * size
        events.append(Event("write", 0, at + 8, bytes([number]) * 8))
        events += [Event("sync", 0)] * barriers[0]
        events.append(Event("write", 0, at, b"1"))
        events += [Event("sync", 0)] * barriers[1]
        acknowledged.append(len(events))
    return events, acknowledged


def log_faults(numbers, barriers=(True, True), size=520):
    """How many cuts leave a log that lacks what was acknowledged, or holds what never was."""
    events, acknowledged = log_events(numbers, barriers, size)
    platter, wrong = Platter(events, {"/d/f": b""}, {"/d/f": 0}), 0
    for count in range(len(events) + 1):
        for image in images(platter.advance(count), 10, seed=count):
            data, i = image["/d/f"], 0
            while data[i * size:i * size + 1] == b"1" and data[i * size + 8:i * size + 16] == bytes([numbers[i]]) * 8:
                i += 1
            wrong += i < sum(count >= n for n in acknowledged) or data[i * size:i * size + 1] == b"1"
    return wrong


@pytest.mark.parametrize("size", [16, 520])
def test_the_simulation_finds_a_missing_barrier_and_nothing_wrong_with_a_right_order(size):
    numbers = [1, 2, 3, 4]
    assert log_faults(numbers, size=size) == 0
    assert log_faults(numbers, (False, True), size) > 0
    assert log_faults(numbers, (True, False), size) > 0
    assert log_faults(numbers, (False, False), size) > 0


# -- what was done, and what must be left of it -----------------------------------------------------------------------


def is_barrier(event):
    return event.kind == "sync"


class Story:
    """What a program did to the file at `path`, and when it knew that this was done.

    Attributes
    ----------
    disk : powercut.Disk
    begun, done : list of int
        How many events there were when each operation began, and when it had returned.
    states : list of list of dict
        The summaries (of `quick`) of what was there after each; before the last one, those that may be there while it
        goes on. None: no file.
    first_life : bool
        Whether there was no power cut before.
    """

    def __init__(self, disk, path, before=None, first_life=True):
        self.disk, self.path, self.first_life = disk, path, first_life
        self.begun, self.done, self.states = [0], [0], [[before]]

    def tell(self, act, *states):
        """Do something after which the last of these states is there."""
        self.begun.append(self.disk.now)
        result = act()
        self.disk.check_seen()
        self.done.append(self.disk.now)
        self.states.append(list(states))
        return result

    def do(self, d, model, operation, steps=None):
        """Do an operation on `d` and on the dict that is its model."""
        self.tell(lambda: operation(d))
        for step in steps or [operation]:
            step(model)
            self.states[-1].append(quick(model))

    def allowed(self, count):
        """Return what may be there if the power is cut after `count` events: what was done, or what is being done."""
        last = max(i for i, done in enumerate(self.done) if done <= count)
        states = self.states[last][-1:]
        if last + 1 < len(self.done) and self.begun[last + 1] < count:
            states += self.states[last + 1]
        return states


def write_files(folder, image):
    """Make the files of a disk in a folder that is emptied before."""
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    for path, data in image.items():
        with open(os.path.join(folder, os.path.basename(path)), "wb") as file:
            file.write(data)


class Checker:
    """Cuts the power in a story and looks at what is left.

    Parameters
    ----------
    machine : powercut.Machine
    folder : path-like
        For the files that are left.
    rng : random.Random
    """

    def __init__(self, machine, folder, rng):
        self.machine, self.rng = machine, rng
        self.folders = [folder / "first", folder / "second"]
        for path in self.folders:
            path.mkdir(exist_ok=True)
        self.cuts = 0

    def cut_at(self, story, platter, cut, depth=0):
        """Cut the power at this moment; with `depth`, now and then again while the next writer goes on."""
        self.cuts += 1
        image = platter.cut(cut.choose, cut.grain)
        try:
            self.look(image, story, platter, depth)
        except Exception as exc:
            after = story.disk.events[max(0, platter.done - 8):platter.done]
            raise Objection("cut after event %d of %d, %s, behind %r: %s" % (
                platter.done, story.disk.now, cut.name, after, exc)) from exc

    def cut_everywhere(self, story, randoms, depth=0):
        """Cut it after each event, in each way that somebody would think of, and `randoms` times at random."""
        platter = Platter.of(story.disk)
        for count in range(story.disk.now + 1):
            platter.advance(count)
            for cut in powercut.corners(platter):
                self.cut_at(story, platter, cut, depth)
            for _ in range(randoms):
                self.cut_at(story, platter, powercut.random_cut(self.rng), depth)

    def cut_somewhere(self, story, cuts, depth=0, first=0, last=None):
        """Cut it at `cuts` random moments."""
        platter = Platter.of(story.disk)
        for count in sorted(self.rng.choices(range(first, (story.disk.now if last is None else last) + 1), k=cuts)):
            platter.advance(count)
            if self.rng.random() < 0.3:
                cut = self.rng.choice(list(powercut.corners(platter)))
            else:
                cut = powercut.random_cut(self.rng)
            self.cut_at(story, platter, cut, depth)

    def look(self, image, story, platter, depth):
        """See that one of the allowed states is there, for every reader, and that the next writer goes on from it."""
        data, allowed = image.get(str(story.path)), story.allowed(platter.done)
        if data is None:
            if None not in allowed:
                raise Objection("the file is gone")
            return
        found = quick(load(data, load_c))
        if found not in allowed:
            raise Objection("found %r, which is none of %r" % (found, allowed))
        if self.rng.random() < 0.1 and quick(load(data, load_python)) != found:
            raise Objection("the pure-Python unpickler sees another state")
        folder = self.folders[depth]
        write_files(folder, image)
        path = folder / os.path.basename(story.path)
        self.machine.start_anew()
        with mmapdict.open(path, "r") as d:
            if quick(d) != found or len(d) != len(found):
                raise Objection("a reader sees something else than pickle: %r, not %r" % (dict(d), found))
            end = d._index.end
        if story.first_life and self.rng.random() < 0.2:
            self.look_at_repaired(path, allowed)
        self.look_at_verified(path, end)
        self.go_on(path, load_c(data), depth)

    def look_at_verified(self, path, end):
        """See that verify finds no fault, but for a header that speaks of records behind the STOP, at `end`."""
        wrong = [str(fault) for fault in mmapdict.verify(path).faults
                 if fault.offset < end and not (fault.offset == faults.STOP and "the records end at" in fault.message)]
        if wrong:
            raise Objection("verify finds %s" % wrong)

    def look_at_repaired(self, path, allowed):
        """See that a repair, which nobody needs, does no harm: it may finish what was being done."""
        report = repair(path, str(path) + ".repaired")
        if not report.whole and quick(load(report.output, load_file)) not in allowed:
            raise Objection("repaired, it is %r, which is none of %r" % (load_file(report.output), allowed))

    def go_on(self, path, model, depth):
        """The machine starts, and the next writer changes and deletes all keys: nothing old comes back."""
        self.machine.start_anew()
        durable = depth > 0 or self.rng.random() < 0.5
        with self.machine.recording() as disk:
            disk.watch(path)
            story = Story(disk, path, quick(model), first_life=False)
            with mmapdict.open(path, "r+", durable=durable) as d:
                keys = list(d)
                self.rng.shuffle(keys)
                for key in keys[:2]:
                    story.do(d, model, assign(key, "again"))
                story.do(d, model, assign("one more", [SHARED, SHARED]))
                check_plain(path, content(model))
                for key in keys[:4]:
                    story.do(d, model, lambda d, key=key: d.pop(key))
                check_plain(path, content(model))
                if quick(d) != quick(model):
                    raise Objection("the next writer sees something else than what it did")
            check_plain(path, content(model))
            if depth:
                self.cut_somewhere(story, 3)


@pytest.fixture
def machine(monkeypatch):
    return powercut.Machine(monkeypatch)


@pytest.fixture
def left(tmp_path):
    """A folder for what is left after power cuts."""
    folder = tmp_path / "left"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def checker(machine, left, request):
    return Checker(machine, left, random.Random(request.node.name))


@pytest.fixture(params=["nameless", "named"])
def births(request, monkeypatch):
    """Both ways in which new files come to be."""
    monkeypatch.setattr(birth, "HAVE_TMPFILE", request.param == "nameless" and birth.HAVE_TMPFILE)


# -- durable=True -----------------------------------------------------------------------------------------------------


def durable_story(machine, path, items, *operations, deaf=None):
    """Tell the story of durable operations, each with its steps or None, on a file that was there."""
    model = prepare(path, items)
    with machine.recording() as disk:
        disk.watch(path)
        story = Story(disk, path, quick(model))
        with mmapdict.open(path, "r+", durable=True) as d:
            disk.deaf = deaf
            for operation, steps in operations:
                story.do(d, model, operation, steps)
    return story


def one_operation(machine, path, name):
    items, operation, steps = OPERATIONS[name]
    return durable_story(machine, path, items, (operation, steps))


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_durable_operation_is_done_or_not_wherever_the_power_is_cut(name, machine, checker, tmp_path):
    checker.cut_somewhere(one_operation(machine, tmp_path / "file", name), 8, depth=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_durable_operation_is_done_or_not_in_every_corner(name, machine, checker, tmp_path):
    checker.cut_everywhere(one_operation(machine, tmp_path / "file", name), slow_examples(4), depth=1)


def test_what_was_replaced_does_not_come_back_when_its_key_is_deleted(machine, checker, tmp_path):
    """Of the two old records the later may not be dead on the disk while the earlier is not."""
    story = durable_story(machine, tmp_path / "file", ITEMS, (assign("b", 1), None), (delete("b"), None))
    checker.cut_everywhere(story, 1)


@pytest.mark.parametrize("mode", ["a", "x", "w"])
def test_a_durable_file_is_born_whole(mode, births, machine, checker, tmp_path):
    path = tmp_path / "file"
    with machine.recording() as disk:
        story = Story(disk, path)
        story.tell(lambda: mmapdict.open(path, mode, durable=True), {}).close()
    checker.cut_everywhere(story, 10)


def random_story(disk, path, rng, length):
    """Tell a story that begins without the file and whose changes are all durable.

    The file is opened again and again, closed in between or not, vacuumed, sealed, and everything in it thrown away now
    and then.
    """
    story, model = Story(disk, path), {}

    def opened(mode):
        return story.tell(lambda: mmapdict.open(path, mode, durable=True), quick(model))
    handles = [opened(rng.choice("awx"))]
    for _ in range(length):
        kind = rng.choices(["change", "reopen", "second handle", "anew", "vacuum", "seal"], [24, 2, 1, 1, 1, 1])[0]
        d = handles[-1]
        if kind == "change":
            story.do(d, model, random_change(rng, grow=rng.random() < 0.5))
        elif kind == "second handle":
            handles.append(opened("a"))
        else:
            while handles:
                story.tell(handles.pop().close, quick(model))
            if kind == "anew":
                model.clear()
            handles.append(opened("w" if kind == "anew" else "a"))
            if kind == "vacuum":
                story.tell(handles[0].unseal, quick(model))
            if kind in ("vacuum", "seal"):
                story.tell(getattr(handles[0], kind), quick(model))
    while handles:
        story.tell(handles.pop().close, quick(model))
    return story


@pytest.mark.parametrize("seed", range(4))
def test_random_durable_changes_survive_power_cuts(seed, machine, checker, tmp_path):
    with machine.recording() as disk:
        story = random_story(disk, tmp_path / "file", random.Random(seed), 25)
    checker.cut_somewhere(story, 40, depth=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_long_random_durable_changes_survive_power_cuts(seed, machine, checker, tmp_path):
    with machine.recording() as disk:
        story = random_story(disk, tmp_path / "file", random.Random(seed), 80)
    checker.cut_somewhere(story, slow_examples(125), depth=1)
    assert checker.cuts >= slow_examples(125)


# -- another file in its place ----------------------------------------------------------------------------------------


def vacuum_story(machine, path, deaf=None):
    """Tell the story of a vacuum, and of a durable change behind it."""
    prepare(path, {**ITEMS, "more": bytes(5000)})
    with machine.recording() as disk:
        disk.watch(path)
        with mmapdict.open(path, "r+", durable=True) as d:
            d["a"], d["more"] = ARRAY, 1
            del d["c"]
            story = Story(disk, path, quick(d))
            story.begun, story.done = [disk.now], [disk.now]
            model = load_file(path)
            disk.deaf = deaf
            story.tell(d.vacuum, quick(model))
            disk.deaf = None
            story.do(d, model, assign("more", 2))
    return story


def test_a_vacuum_leaves_the_old_file_or_the_new_one_under_the_name(births, machine, checker, tmp_path):
    story = vacuum_story(machine, tmp_path / "file")
    checker.cut_somewhere(story, 150, first=story.done[0])


def test_without_its_barriers_a_vacuum_loses_something(births, machine, checker, tmp_path):
    for kind in "sync", "folder":
        path = tmp_path / kind
        story = vacuum_story(machine, path, lambda event: event.kind == kind)
        with pytest.raises(Objection):
            for _ in range(50):
                checker.cut_somewhere(story, 10, first=story.done[0])


def test_a_file_that_is_replaced_leaves_the_old_one_or_the_new_one(births, machine, checker, tmp_path):
    path = tmp_path / "file"
    prepare(path, ITEMS)
    with machine.recording() as disk:
        disk.watch(path)
        story = Story(disk, path, quick(ITEMS))
        story.tell(lambda: mmapdict.open(path, "w").close(), {})
    checker.cut_everywhere(story, 2)


def test_a_repair_leaves_the_damaged_file_under_a_name_and_the_new_one_whole(births, machine, checker, tmp_path):
    path = tmp_path / "file"
    prepare(path, ITEMS)
    whole = path.read_bytes()
    (offset, *_), *_ = [record for record in list(faults.records(whole))[:-1] if record[3]]
    damaged = whole[:offset + 10] + b"\xff" + whole[offset + 11:]
    for replace in False, True:
        for name in tmp_path.iterdir():
            if name.is_file():
                name.unlink()
        path.write_bytes(damaged)
        with machine.recording() as disk:
            disk.watch(path)
            report = repair(path, replace=replace)
            done = disk.now
            with open(report.output, "rb") as file:
                repaired = file.read()
        platter = Platter.of(disk)
        for count in range(done + 1):
            for image in images(platter.advance(count), 5):
                named = {os.path.basename(name): data for name, data in image.items() if not name.endswith("-new")}
                assert named[path.name] == damaged or replace and named[path.name] == repaired
                assert damaged in named.values()
                assert set(named.values()) <= {damaged, repaired}
                if count == done:
                    assert repaired in named.values()
    os.unlink(report.original)


def test_a_seal_that_is_left_by_a_power_cut_is_right(machine, checker, tmp_path):
    path = tmp_path / "file"
    model = prepare(path, ITEMS)
    sealed = []
    with machine.recording() as disk:
        disk.watch(path)
        story = Story(disk, path, quick(model))
        for durable in False, True:
            with mmapdict.open(path, "r+", durable=durable) as d:
                story.tell(d.seal, quick(model))
                sealed.append(disk.now)
                story.tell(d.unseal, quick(model))
                d.sync()
        with mmapdict.open(path, "r+", durable=True) as d:
            d.seal()
            story.do(d, model, assign("a", "new"))
    checker.cut_somewhere(story, 10, first=sealed[0], last=sealed[0])
    checker.cut_somewhere(story, 100, first=sealed[0])
    for count in sealed:
        for image in images(Platter.of(disk).advance(count), 20):
            write_files(checker.folders[0], image)
            assert mmapdict.verify(checker.folders[0] / "file").sealed


# -- sync() without durable -------------------------------------------------------------------------------------------

ABSENT = "absent"
# What a plain load raises for damaged bytes.
PICKLE_ERRORS = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError, ImportError)


class LooseStory:
    """A story in which not everything that was done is on the disk.

    Attributes
    ----------
    begun, done : list of int
        As in a `Story`.
    states : list of list of dict
        The summaries of what was there after each operation; before the last, those that were there while it went on,
        between the changes of a batch too.
    safe : list of int
        After which of the operations everything is on the disk, and known to be: a `sync`, or a durable change that
        said so in the header.
    rows : dict of numpy.ndarray
        Growable arrays as they were when they were synced: what there is of these rows must be right.
    """

    def __init__(self, disk, path, before):
        self.disk, self.path, self.rows = disk, path, {}
        self.begun, self.done, self.states, self.safe = [0], [0], [[before]], [0]

    def do(self, d, model, operation, durable=False):
        """Do something on `d` and on its model."""
        begun = self.disk.now
        operation(d)
        self.disk.check_seen()
        model.between.clear()
        if operation is not sync:
            operation(model)
        self.begun.append(begun)
        self.done.append(self.disk.now)
        self.states.append([*map(quick, model.between), quick(model)])
        if operation is sync or durable and any(event.offset == faults.SYNCED for event in self.disk.events[begun:]):
            self.safe.append(len(self.states) - 1)

    def in_flight(self, count):
        """Return the summaries of what the operation makes that is going on after `count` events."""
        return [state for begun, done, states in zip(self.begun, self.done, self.states) if begun < count < done
                for state in states]

    def allowed(self, count):
        """Return what may be there of each key if the power is cut after `count` events.

        Returns
        -------
        dict
            By key the summaries of its values, the first that which is on the disk for sure. `ABSENT` stands for
            none.
        """
        last = max(i for i in self.safe if self.done[i] <= count)
        states = self.states[last][-1:]
        for i in range(last + 1, len(self.states)):
            if self.begun[i] < count:
                states += self.states[i]
        keys = {key: None for state in states for key in state}
        return {key: [state.get(key, ABSENT) for state in states] for key in keys}


def sync(d):
    d.sync()


def is_one_of(value, values):
    """Whether a value is one of several: the first, or a later one, of which only what a check value covers is sure."""
    return value in values or isinstance(value, tuple) and any(
        isinstance(known, tuple) and value[:3] == known[:3] and uncovered(known) for known in values[1:])


def uncovered(value):
    """Whether a value has bytes that its record's check value does not cover: a payload."""
    return value[0] != "bytes" or value[2] > 4096


class LooseChecker(Checker):
    """Cuts the power in a story that is loose, and repairs what is left if it has to be."""

    def __init__(self, machine, folder, rng):
        super().__init__(machine, folder, rng)
        self.repaired = 0

    def look(self, image, story, platter, depth):
        damaged = image.get(str(story.path))
        if damaged is None:
            raise Objection("the file is gone")
        folder = self.folders[depth]
        write_files(folder, image)
        path = folder / os.path.basename(story.path)
        self.machine.start_anew()
        repaired = False
        try:
            mmapdict.open(path, "r").close()
            load_c(damaged)
        except (CorruptError, *PICKLE_ERRORS):
            self.repaired += 1
            repaired, path = True, repair(path).output
        allowed = story.allowed(platter.done)
        model = load(path, load_file)
        found = quick(model)
        for key, values in allowed.items():
            if not is_one_of(found.get(key, ABSENT), values):
                raise Objection("%r is %r, which is none of %r" % (key, found.get(key, ABSENT), values))
        if not set(found) <= set(allowed):
            raise Objection("there never were the keys %r" % (set(found) - set(allowed)))
        for key, rows in story.rows.items():
            there = model[key][:len(rows)]
            if not np.array_equal(there, rows[:len(there)]):
                raise Objection("of %r rows that were synced are %r" % (key, there))
        now = platter.cut(powercut.kept)[str(story.path)]
        check_whole_records(damaged, now, found, repaired, story.in_flight(platter.done))
        if depth:
            self.second_life(path, model)
        else:
            self.go_on(path, model, depth)

    def second_life(self, path, model):
        """The next writer takes what it finds for safe: it is on the disk."""
        with self.machine.recording() as disk:
            disk.watch(path)
            model = Model(model)
            story = LooseStory(disk, path, quick(model))
            with mmapdict.open(path, "r+") as d:
                for _ in range(self.rng.randrange(1, 8)):
                    story.do(d, model, random_change(self.rng, fail=False))
        self.cut_somewhere(story, 2)


def check_whole_records(damaged, now, found, repaired, in_flight):
    """See that what is whole of a damaged file was brought back.

    What stands behind a STOP was not published, as far as the disk knows: if the file is whole without it, it is not
    there; if it is damaged, and the header says that there is more, it is looked for.

    Parameters
    ----------
    damaged : bytes
        The file after the cut.
    now : bytes
        The file as it was seen before.
    found : dict
        Summary of what was brought back.
    repaired : bool
    in_flight : list of dict
        Summaries of what there may be instead, because it was just being done.
    """
    *records, stop = faults.records(now)
    expected, reached = quick(load_c(now)), True
    whole = {}
    for record in records:
        start, end, live, entry = record
        first = damaged[start:start + 1]
        reached = reached and first == b"("
        if entry and live:
            counts = reached or repaired and first in (b"(", b".") and faults.cell(damaged, faults.STOP) > start
            whole[faults.key_of(now, records, record)] = counts and damaged[start + 1:end] == now[start + 1:end]
    for key, value in expected.items():
        may_be = [value, *[state.get(key, ABSENT) for state in in_flight]]
        if whole[key] and found.get(key, ABSENT) not in may_be:
            raise Objection("%r is whole, and was not brought back: %r" % (key, found.get(key, ABSENT)))


@pytest.fixture
def loose(machine, left, request):
    return LooseChecker(machine, left, random.Random(request.node.name))


def loose_story(machine, path, rng, length):
    """Tell a story whose changes are not durable, but for a `sync`, or a durable change of another handle, at times."""
    model = Model(prepare(path, {"a": ARRAY, "b": 1, ("t", 0): [SHARED, SHARED], "kept": MASKED, "always": "there"}))
    with machine.recording() as disk:
        disk.watch(path)
        story = LooseStory(disk, path, quick(model))
        with mmapdict.open(path, "r+") as d, mmapdict.open(path, "r+", durable=True) as durable:
            story.do(d, model, sync)
            for _ in range(length):
                kind = rng.choices(["change", "sync", "durable"], [12, 2, 2])[0]
                if kind == "change":
                    story.do(d, model, random_change(rng, fail=False))
                elif kind == "sync":
                    story.do(d, model, sync)
                else:
                    story.do(durable, model, random_change(rng), durable=True)
    return story


@pytest.mark.parametrize("seed", range(4))
def test_what_was_synced_is_there_after_a_power_cut_and_what_came_later_as_far_as_it_is_whole(
        seed, machine, loose, tmp_path):
    story = loose_story(machine, tmp_path / "file", random.Random(seed), 25)
    loose.cut_somewhere(story, 40, depth=1)
    assert 0 < loose.repaired < loose.cuts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_what_was_synced_is_there_after_a_power_cut_in_long_stories(seed, machine, loose, tmp_path):
    story = loose_story(machine, tmp_path / "file", random.Random(seed), 60)
    loose.cut_somewhere(story, slow_examples(125), depth=1)


# They give the array a new place.
MOVES = {name for name in GROWING if name.startswith((
    "append to a", "append where", "resize longer ", "extend a full", "big append"))}
SYNCED = [name for name, (items, *_) in GROWING.items()
          if "g" in items and not items["g"].axis and "replace" not in name and "delete" not in name]


@pytest.mark.parametrize("name", SYNCED)
def test_rows_that_were_synced_stay_whatever_comes_behind_them(name, machine, loose, tmp_path):
    """Also if of all that was stored since only rows did not reach the disk."""
    items, operation, _ = GROWING[name]
    path = tmp_path / "file"
    model = Model(prepare(path, items))
    with machine.recording() as disk:
        disk.watch(path)
        story = LooseStory(disk, path, quick(model))
        with mmapdict.open(path, "r+") as d:
            story.do(d, model, sync)
            story.rows["g"] = rows = model["g"].copy()
            story.do(d, model, operation)
            entry = d.entry("g")
            story.do(d, model, assign("other", 1))
    loose.cut_somewhere(story, 5, first=story.done[1])
    platter = Platter.of(disk).advance(story.done[1])
    for count in range(story.done[1], disk.now + 1):
        image = platter.advance(count).cut(
            lambda place, contents: contents[0 if place.kind == "data" and place.start >= entry.offset
                                             and place.end <= entry.offset + entry.nbytes else -1], 8)
        found = load_c(image[str(path)])["g"]
        assert np.array_equal(found[:len(rows)], rows[:len(found)])


def test_rows_of_a_log_that_were_synced_stay_when_it_gets_a_new_column(machine, tmp_path):
    path = tmp_path / "file"
    with mmapdict.Log(path) as log:
        log.extend({"x": i, "y": i / 2} for i in range(5))
    with machine.recording() as disk:
        disk.watch(path)
        with mmapdict.Log(path) as log:
            log.sync()
            first = disk.now
            log.add(x=5, z=1.0)
            entry = log.d.entry("log")
    platter = Platter.of(disk).advance(first)
    for count in range(first, disk.now + 1):
        image = platter.advance(count).cut(
            lambda place, contents: contents[0 if place.kind == "data" and place.start >= entry.offset
                                             and place.end <= entry.offset + entry.nbytes else -1], 8)
        assert load_c(image[str(path)])["log"]["x"][:5].tolist() == [0, 1, 2, 3, 4]


def test_what_was_replaced_before_a_sync_does_not_come_back_when_its_key_is_deleted(machine, loose, tmp_path):
    path = tmp_path / "file"
    model = Model(prepare(path, {"a": 1, "b": 2}))
    with machine.recording() as disk:
        disk.watch(path)
        story = LooseStory(disk, path, quick(model))
        with mmapdict.open(path, "r+") as d:
            for operation in sync, assign("a", 2), sync, delete("a"):
                story.do(d, model, operation)
    loose.cut_everywhere(story, 1)


def test_right_after_sync_everything_is_there(machine, checker, tmp_path):
    """Names, changes of other handles, and elements that were set through maps."""
    path = tmp_path / "file"
    with machine.recording() as disk:
        story = Story(disk, path)
        with mmapdict.open(path) as d, mmapdict.open(path, "r+") as other:
            d["a"] = ARRAY
            other["b"] = 1
            hole = d.create("hole", (1000,), "u2")
            hole[:] = np.arange(1000)
            d.sync()
            disk.check_seen()
            story.done.append(disk.now)
            story.begun.append(0)
            story.states.append([quick(load_file(path))])
            platter = Platter.of(disk).advance(disk.now)
    for cut in powercut.corners(platter):
        checker.cut_at(story, platter, cut)
    for _ in range(50):
        checker.cut_at(story, platter, powercut.random_cut(checker.rng))


def test_flush_makes_elements_survive(machine, tmp_path):
    """That of the handle does, and that of an array."""
    path = tmp_path / "file"
    prepare(path, {"a": np.zeros(5000, "u2"), "b": np.zeros(5000, "u2")})
    with machine.recording() as disk, mmapdict.open(path, "r+") as d:
        disk.watch(path)
        d["a"][:] = 7
        d.flush()
        platter = Platter.of(disk).advance(disk.now)
        for image in images(platter):
            assert (pickle.loads(image[str(path)])["a"] == 7).all()


# -- that these tests can fail ----------------------------------------------------------------------------------------


TOLD = {"set": [assign("new", ARRAY)],
        "replace": [assign("b", "text")],
        "delete": [assign("new", 0), delete("new")],
        "replace and delete": [assign("b", 1), delete("b")],
        "clear": [assign("b", 1), lambda d: d.clear()],
        "create": [lambda d: create(d, "hole", (300,), "u2")],
        "batch": [together(assign("new", 1), delete("a"), assign("b", 2))]}


@pytest.mark.parametrize("name", TOLD)
def test_every_barrier_of_a_durable_operation_is_needed(name, machine, checker, tmp_path):
    """Without any of them, a cut is found that loses something, or brings back what is gone."""
    path, operations = tmp_path / "file", [(operation, None) for operation in TOLD[name]]
    story = durable_story(machine, path, ITEMS, *operations)
    checker.cut_somewhere(story, 20)
    barriers = sum(map(is_barrier, story.disk.events[story.begun[1]:story.done[-1]]))
    assert barriers > len(operations)
    for nth in range(barriers):
        count = itertools.count()
        story = durable_story(machine, path, ITEMS, *operations,
                              deaf=lambda event: is_barrier(event) and next(count) == nth)
        with pytest.raises(Objection):
            for _ in range(200):
                checker.cut_somewhere(story, 10)


def test_without_barriers_a_new_durable_file_may_be_lost_or_empty(machine, checker, tmp_path):
    """The folder's barrier too: a name is not on the disk before."""
    for kind in "sync", "folder":
        for mode in "a", "w":
            path = tmp_path / (kind + mode)
            with machine.recording() as disk:
                disk.deaf = lambda event: event.kind == kind
                story = Story(disk, path)
                story.tell(lambda: mmapdict.open(path, mode, durable=True), {}).close()
            with pytest.raises(Objection):
                for _ in range(50):
                    checker.cut_somewhere(story, 10)
