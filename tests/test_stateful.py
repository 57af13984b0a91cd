"""Random sequences of operations on real files, beside a plain dict, with other processes looking on.

After every step each handle, plain `pickle.load` here, plain `pickle.load` in a process where mmapdict cannot be
imported, and a reader process agree with the dict in content and order.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (RuleBasedStateMachine, initialize, invariant, precondition, rule,
                                 run_state_machine_as_test)

import judge
import mmapdict
from budget import slow_examples
from children import WITH_MMAPDICT, WITHOUT_MMAPDICT, Child, in_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

TESTS = os.path.dirname(os.path.abspath(judge.__file__))

LOADER = f"""
sys.path.append({TESTS!r})
import json, judge
while True:
    path = json.loads(hear())
    tell(json.dumps(judge.fingerprint_items(plain())))
"""

READER = f"""
sys.path.append({TESTS!r})
import json, judge
d = file = None
while True:
    path = json.loads(hear())
    if path != file:
        if d is not None:
            d.close()
        d, file = mmapdict.open(path, "r"), path
    items = judge.fingerprint_items(d)
    assert len(items) == len(d) == len(list(d))
    tell(json.dumps(items))
"""

# -- what is stored ---------------------------------------------------------------------------------------------------

# Few, so that they meet again; some are equal to others.
KEYS = ["a", "b", "", "é\ud800", b"a", 1, 1.0, True, 0, -0.0, False, 2**70, 2.5, None, (), ("a", 1), ("a", 1.0),
        ("a", True), ("n", (None, b"x")), "k" * 5000, b"y" * 4097]


def key_of(number):
    return KEYS[number]


keys = st.integers(0, len(KEYS) - 1).map(key_of)            # not sampled_from, whose repr would be too long

DTYPES = ["u1", "<i4", ">i4", "f8", "?", "c16", "U3", "S2", "M8[s]", ">f4", "i4,>f4", [("x", "u2", 2), ("y", "U1")]]
dtypes = st.sampled_from(DTYPES).map(np.dtype)
shapes = st.sampled_from([(), (0,), (1,), (3,), (2, 3), (0, 4), (3, 1, 2), (700,), (40, 30)])


def counted(shape, dtype, start):
    """An array whose elements differ from each other and from those of other `start`s."""
    array = np.zeros(shape, dtype)
    flat = array.reshape(-1)
    if dtype.kind not in "?UV":
        flat.view("u1")[:] = (np.arange(array.nbytes) + start) % 53
    elif dtype.names:
        for name in dtype.names:
            flat[name] = counted(flat[name].shape, flat[name].dtype, start)
    elif dtype.kind == "?":
        flat[start % 2::2] = True
    elif dtype.kind == "U":
        flat[:] = [chr(97 + (start + i) % 26) for i in range(flat.size)]
    return array


@st.composite
def arrays(draw):
    array = counted(draw(shapes), draw(dtypes), draw(st.integers(0, 20)))
    layout = draw(st.sampled_from(["C", "F", "reversed", "masked", "nomask"]))
    if layout == "masked":
        mask = np.zeros(array.shape, np.ma.make_mask_descr(array.dtype))
        mask.reshape(-1).view(bool)[::2] = True
        masked = array.view(np.ma.MaskedArray)
        masked._mask, masked._sharedmask = mask, False
        return masked
    if layout == "nomask":
        return np.ma.array(array)
    return np.asfortranarray(array) if layout == "F" else array[::-1] if layout == "reversed" and array.ndim else array


def shared(item):
    return [item, {"again": item}, (item,)]


BIG = [bytes(range(256)) * 40, "é" * 5000, list(range(300)), np.float32(1.5), np.dtype("M8[s]"), {"a": {1, 2}}]


def big_value(number):
    return BIG[number]


values = st.one_of(
    arrays(), arrays(), st.none(), st.integers(), st.text(max_size=5), st.binary(max_size=5),
    st.floats(allow_nan=False), st.lists(st.integers(0, 9), max_size=3).map(shared), arrays().map(shared),
    st.integers(0, len(BIG) - 1).map(big_value))


def stored(value):
    """What is expected of a stored value: arrays are copied, as they are laid out in the file."""
    if type(value) is np.ma.MaskedArray:
        copied = stored(value.data).view(np.ma.MaskedArray)
        order = "F" if copied.flags.f_contiguous and not copied.flags.c_contiguous else "C"
        if value._mask is not np.ma.nomask:
            copied._mask = np.array(value._mask, order=order)
        copied._sharedmask, copied._fill_value = False, value._fill_value
        return copied
    if type(value) is np.ndarray:
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return np.array(value, order=order)
    if type(value) is list and len(value) == 3 and type(value[0]) is np.ndarray:
        return shared(stored(value[0]))
    return value


def sizes(shape):
    """A shape in one of the forms that `create` takes."""
    return shape[0] if len(shape) == 1 else list(shape) if len(shape) == 2 else shape


MOST_ROWS = 8000                            # of an array that grows


class Record:
    """What one record of a growable array has ever shown: all arrays over it, old ones too, are views of its rows.

    Parameters
    ----------
    rows : numpy.ndarray
        Those that it begins with, along the first axis.
    axis : int
        Which axis they are in the mapping.
    place : int
        Where it stands in the file.
    """

    def __init__(self, rows, axis, place):
        self.buffer = np.zeros((MOST_ROWS, *rows.shape[1:]), rows.dtype)
        self.buffer[:len(rows)] = rows
        self.axis, self.place = axis, place
        self.count = self.seen = len(rows)

    def array(self, start=0, stop=None):
        return np.moveaxis(self.buffer[start:self.count if stop is None else stop], 0, self.axis)


class Mapping(RuleBasedStateMachine):
    """Two writing handles and a reading one at one file, and two processes that look on."""

    loader = reader = None                      # shared by all runs: to start an interpreter takes long
    below = None                                # the folder of the test

    def __init__(self):
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.below))
        self.path = self.folder / "file"
        self.model = {}
        self.handles = [None, None]
        self.held = []                          # arrays that were handed out, and what is in them
        self.growable = {}                      # by key a Record, and the array of the model that it has made

    @initialize(mode=st.sampled_from(["a", "w", "x"]))
    def first(self, mode):
        self.handles[0] = mmapdict.open(self.path, mode)
        self.look = mmapdict.open(self.path, "r")

    def teardown(self):
        for handle in [*self.handles, getattr(self, "look", None)]:
            if handle is not None:
                handle.close()
        if hasattr(self, "look"):
            self.check_files()
            judge.assert_same_items(judge.fingerprint_items(judge.load_every_way(self.path)),
                                    judge.fingerprint_items(self.model), "every unpickler")
        self.check_held()
        self.held.clear()
        shutil.rmtree(self.folder)

    # -- helpers

    def handle(self, number):
        """An open handle that writes."""
        if self.handles[number] is None:
            self.handles[number] = mmapdict.open(self.path, "r+" if number else "a")
        return self.handles[number]

    def put(self, key, value):
        kept = next((k for k in self.model if k == key), key)
        self.model.pop(key, None)
        self.model[kept] = stored(value)

    def pick(self, data, label):
        """A key of the model, or one that is equal to it."""
        key = list(self.model)[data.draw(st.integers(0, len(self.model) - 1), label)]
        return data.draw(st.sampled_from([n for n, k in enumerate(KEYS) if k == key]).map(key_of), label)

    def record(self, key):
        """What is known of the growable array at a key; None: there is none, or it was replaced."""
        record, array = self.growable.get(key, (None, None))
        return record if record is not None and self.model.get(key) is array else None

    def growing(self, data):
        """A key of a growable array, or None."""
        found = [key for key in self.model if self.record(key) is not None]
        return found[data.draw(st.integers(0, len(found) - 1), "growable")] if found else None

    def has_record(self, key, record, moved=False):
        """Let a key have the rows of a record; when they moved, it is the last."""
        self.growable[key] = record, record.array()
        if moved:
            kept = next(k for k in self.model if k == key)
            del self.model[key]
            key = kept
        self.model[key] = self.growable[key][1]

    def grown(self, d, key, rows, n=None):
        """Note that a growable array has got rows, or `n` of them."""
        record, place = self.record(key), d.entry(key).record
        n = record.count + len(rows) if n is None else n
        if place != record.place:
            new = Record(record.buffer[:record.count], record.axis, place)
            new.buffer[record.count:n] = rows
            new.count = new.seen = n
            self.has_record(key, new, moved=True)
        else:
            assert n <= record.count or record.count == record.seen, "rows that somebody may look at were written over"
            record.buffer[record.count:n] = rows[:max(0, n - record.count)]
            record.count, record.seen = n, max(record.seen, n)
            self.has_record(key, record)

    def new_rows(self, key, n, start):
        record = self.record(key)
        return counted((n, *record.buffer.shape[1:]), record.buffer.dtype, start)

    def hold(self, handle, key):
        self.held.append((handle[key], self.model[key]))

    numbers = st.integers(0, 1)

    # -- changes

    @rule(number=numbers, key=keys, value=values)
    def set(self, number, key, value):
        self.handle(number)[key] = value
        self.put(key, value)

    @precondition(lambda self: self.model)
    @rule(number=numbers, data=st.data(), value=values)
    def replace(self, number, data, value):
        self.set(number, self.pick(data, "key"), value)

    @precondition(lambda self: self.model)
    @rule(number=numbers, data=st.data())
    def set_to_what_is_stored(self, number, data):
        """From a map of the file into the same file, under the same key or another."""
        source = self.pick(data, "source")
        target = source if data.draw(st.booleans(), "same") else data.draw(keys, "target")
        d = self.handle(number)
        value, expected = d[source], self.model[source]
        d[target] = value
        if target != source or type(value) is not mmapdict.memmap:      # an array that is there already stays
            self.put(target, expected)

    @precondition(lambda self: self.model)
    @rule(number=numbers, data=st.data())
    def delete(self, number, data):
        key = self.pick(data, "key")
        del self.handle(number)[key]
        del self.model[key]

    @rule(number=numbers, key=keys)
    def pop(self, number, key):
        found = self.handle(number).pop(key, "missing")
        assert judge.fingerprint(found) == judge.fingerprint(self.model.pop(key, "missing"))

    @rule(number=numbers)
    def popitem(self, number):
        if self.model:
            assert judge.fingerprint(self.handle(number).popitem()) == judge.fingerprint(self.model.popitem())
        else:
            with pytest.raises(KeyError):
                self.handle(number).popitem()

    @rule(number=numbers, key=keys)
    def delete_what_may_be_missing(self, number, key):
        if key in self.model:
            del self.handle(number)[key], self.model[key]
        else:
            with pytest.raises(KeyError):
                del self.handle(number)[key]

    @rule(number=numbers, key=keys, value=values)
    def setdefault(self, number, key, value):
        found = self.handle(number).setdefault(key, value)
        if key not in self.model:
            self.put(key, value)
        assert judge.fingerprint(found) == judge.fingerprint(self.model[key])

    @rule(number=numbers, items=st.lists(st.tuples(keys, values), max_size=3), as_mapping=st.booleans(), named=values)
    def update(self, number, items, as_mapping, named):
        if as_mapping:
            items = dict(items)
        self.handle(number).update(items if as_mapping else iter(items), a=named)
        for key, value in [*(items.items() if as_mapping else items), ("a", named)]:
            self.put(key, value)

    @rule(number=numbers)
    def clear(self, number):
        self.handle(number).clear()
        self.model.clear()

    @rule(number=numbers, data=st.data(), fails=st.booleans(), steps=st.lists(st.sampled_from(
        ["set", "set", "replace", "delete", "popitem", "setdefault", "update", "create", "clear", "grow",
         "first rows"]), max_size=6))
    def batch(self, number, data, steps, fails):
        """Several changes in one step; nobody else sees anything before its end, or ever, if it fails."""
        d, before, held = self.handle(number), dict(self.model), len(self.held)
        try:
            with d.batch():
                for step in steps:
                    self.in_batch(d, data, step)
                    judge.assert_same_items(judge.fingerprint_items(d), judge.fingerprint_items(self.model), "inside")
                    assert len(d) == len(self.model)
                with open(self.path, "rb") as file:
                    found = judge.pickle.load(file)
                assert judge.fingerprint_items(found) == judge.fingerprint_items(before)
                assert judge.fingerprint_items(self.look) == judge.fingerprint_items(before)
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            self.model = before
            del self.held[held:]

    def in_batch(self, d, data, step):
        if step == "replace" and self.model or step == "delete" and self.model:
            key = self.pick(data, "key")
        else:
            key = data.draw(keys, "key")
        if step in ("set", "replace"):
            value = data.draw(values, "value")
            d[key] = value
            self.put(key, value)
        elif step == "delete":
            assert judge.fingerprint(d.pop(key, "missing")) == judge.fingerprint(self.model.pop(key, "missing"))
        elif step == "popitem" and self.model:
            assert judge.fingerprint(d.popitem()) == judge.fingerprint(self.model.popitem())
        elif step == "setdefault":
            d.setdefault(key, 5)
            self.model.setdefault(key, 5)
        elif step == "update":
            d.update({"a": 1, "b": [2]})
            self.put("a", 1)
            self.put("b", [2])
        elif step == "create" and key not in self.model:
            hole = d.create(key, (3, 2), "i4")
            hole[1] = 7
            self.model[key] = np.array([[0, 0], [7, 7], [0, 0]], "i4")
            self.held.append((hole, self.model[key]))
        elif step == "clear":
            d.clear()
            self.model.clear()
        elif step == "first rows" and key not in self.model:
            rows = counted((3, 2), np.dtype("i4"), 1)
            d.append(key, rows)
            self.has_record(key, Record(rows, 0, d.entry(key).record))
        elif step == "grow":
            key = self.growing(data)
            for call in () if key is None else (lambda: d.append(key, d[key]), lambda: d.extend(key, 1),
                                                lambda: d.resize(key, 0), lambda: d.trim(key)):
                with pytest.raises(mmapdict.BusyError):
                    call()

    @rule(number=numbers)
    def sync(self, number):
        """From now on records that are replaced wait for the next one."""
        self.handle(number).sync()

    @rule(number=numbers)
    def vacuum(self, number):
        d = self.handle(number)
        content = [(repr(key), judge.fingerprint(value)) for key, value in self.model.items()]
        try:
            d.vacuum()
        except mmapdict.BusyError:
            assert self.handles[1 - number] is not None or any(view.flags.writeable for view, _ in self.held)
        else:
            assert d.free_bytes == 0 and len(content) == len(self.model)
            # Arrays that a reader holds are of the old file.
            for key, value in self.model.items():
                record = self.record(key)
                if record is None:
                    self.model[key] = stored(value)
                else:
                    self.has_record(key, Record(record.buffer[:record.count], record.axis, d.entry(key).record))

    @rule(number=numbers)
    def seal(self, number):
        d = self.handle(number)
        try:
            d.seal()
        except mmapdict.BusyError:
            assert self.handles[1 - number] is not None or any(view.flags.writeable for view, _ in self.held)
            return
        assert d.sealed and self.look.sealed
        assert not any(value.flags.writeable for value in d.values() if isinstance(value, np.ndarray))
        assert mmapdict.verify(self.path).faults == []
        self.check_files()
        d.unseal()
        assert not self.look.sealed

    @rule()
    def verify(self):
        assert mmapdict.verify(self.path).faults == []

    @rule(number=numbers, key=keys, shape=shapes, dtype=dtypes, order=st.sampled_from("CF"), mask=st.booleans(),
          sparse=st.booleans(), start=st.integers(0, 20))
    def create(self, number, key, shape, dtype, order, mask, sparse, start):
        d = self.handle(number)
        if key in self.model:
            with pytest.raises(ValueError):
                d.create(key, shape, dtype)
            return
        hole = d.create(key, sizes(shape), dtype, order=order, mask=mask, sparse=sparse)
        expected = np.zeros(shape, dtype, order)
        if mask:
            expected = expected.view(np.ma.MaskedArray)
            expected._mask = np.zeros(shape, np.ma.make_mask_descr(dtype), order)
            expected._sharedmask = False
        self.model[key] = expected
        self.check_plain()
        for array in hole, expected:
            array[...] = counted(shape, dtype, start)
            if mask and array.size and dtype.names is None:
                array[(0,) * array.ndim] = np.ma.masked
        self.held.append((hole, expected))

    # -- arrays that grow

    few = st.sampled_from([0, 1, 2, 5, 40])
    starts = st.integers(0, 20)

    @rule(number=numbers, key=keys, shape=st.sampled_from([(), (3,), (2, 3), (0,)]), dtype=dtypes,
          axis=st.integers(0, 1), capacity=st.integers(0, 30))
    def create_growable(self, number, key, shape, dtype, axis, capacity):
        d, axis = self.handle(number), min(axis, len(shape))
        if key in self.model:
            with pytest.raises(ValueError):
                d.create_growable(key, shape, dtype)
            return
        array = d.create_growable(key, shape, dtype, axis=axis, capacity=capacity)
        self.has_record(key, Record(np.zeros((0, *shape), dtype), axis, d.entry(key).record))
        self.held.append((array, self.model[key]))

    @rule(number=numbers, key=keys, n=few, start=starts)
    def append(self, number, key, n, start):
        """To a key that is missing, or to whatever is there."""
        d = self.handle(number)
        if key not in self.model:
            rows = counted((n, 2), np.dtype("<i4"), start)
            d.append(key, rows)
            self.has_record(key, Record(rows, 0, d.entry(key).record))
        elif self.record(key) is None:
            with pytest.raises(TypeError, match="not growable"):
                d.append(key, [1])
        else:
            self.add(d, key, n, start)

    def add(self, d, key, n, start):
        rows = self.new_rows(key, n, start)
        if self.record(key).count + n <= MOST_ROWS:
            d.append(key, np.moveaxis(rows, 0, self.record(key).axis) if n != 1 else rows[0])
            self.grown(d, key, rows)

    @precondition(lambda self: any(self.record(key) is not None for key in self.model))
    @rule(number=numbers, data=st.data(), n=few, start=starts)
    def add_rows(self, number, data, n, start):
        self.add(self.handle(number), self.growing(data), n, start)

    @precondition(lambda self: any(self.record(key) is not None for key in self.model))
    @rule(number=numbers, data=st.data(), n=few, start=starts, good=st.booleans())
    def extend(self, number, data, n, start, good):
        d, key = self.handle(number), self.growing(data)
        record = self.record(key)
        if record.count + n > MOST_ROWS:
            return
        rows, first = self.new_rows(key, n, start), record.count
        with pytest.raises(ZeroDivisionError) if not good else contextlib.nullcontext(), d.extend(key, n) as new:
            if d.entry(key).record != record.place:
                self.grown(d, key, rows[:0])            # it has moved, and nobody sees more rows
            self.check_plain()
            new[...] = np.moveaxis(rows, 0, record.axis)
            if not good:
                1 / 0
        if good:
            self.grown(d, key, rows)
            self.held.append((new, self.record(key).array(first, first + n)))

    @precondition(lambda self: any(self.record(key) is not None for key in self.model))
    @rule(number=numbers, data=st.data(), n=st.sampled_from([0, 1, 3, 30, 400]))
    def resize(self, number, data, n):
        self.have(self.handle(number), self.growing(data), n)

    def have(self, d, key, n):
        added = max(0, n - self.record(key).count)
        d.resize(key, n)
        self.grown(d, key, np.zeros_like(self.record(key).buffer[:added]), n)

    @precondition(lambda self: any(self.record(key) is not None for key in self.model))
    @rule(number=numbers, data=st.data())
    def trim(self, number, data):
        d, key = self.handle(number), self.growing(data)
        assert d.trim(key) >= 0
        assert d.trim(key) == 0 and d.entry(key).record == self.record(key).place

    @rule(number=numbers, data=st.data(), start=starts, steps=st.lists(st.sampled_from(
        ["add", "add", "add", "have", "trim", "set", "delete", "create", "batch"]), max_size=6), fails=st.booleans())
    def exclusive(self, number, data, start, steps, fails):
        """Several changes, each of which others see at once; an exception takes none of them back."""
        d = self.handle(number)
        with contextlib.suppress(ZeroDivisionError), d.exclusive():
            for step in steps:
                key = self.growing(data)
                if step == "add" and key is not None:
                    self.add(d, key, 2, start)
                elif step == "have" and key is not None:
                    self.have(d, key, start)
                elif step == "trim" and key is not None:
                    d.trim(key)
                elif step == "batch":
                    with d.batch():
                        self.in_batch(d, data, "set")
                        self.in_batch(d, data, "grow")
                elif step in ("set", "delete", "create"):
                    self.in_batch(d, data, step)
                self.check_plain()
            if fails:
                1 / 0
        judge.assert_same_items(judge.fingerprint_items(self.look), judge.fingerprint_items(self.model), "reader")

    @precondition(lambda self: any(self.record(key) is not None for key in self.model))
    @rule(number=numbers, data=st.data(), start=starts)
    def write_into_rows(self, number, data, start):
        """Through an array of any length, old ones too."""
        key = self.growing(data)
        views = [(self.handle(number)[key], self.model[key])]
        views += [pair for pair in self.held if pair[0].flags.writeable and pair[1].base is self.record(key).buffer]
        new = counted(views[start % len(views)][1].shape, self.model[key].dtype, start)
        for array in views[start % len(views)]:
            array[...] = new

    @precondition(lambda self: any(isinstance(value, np.ndarray) for value in self.model.values()))
    @rule(number=numbers, data=st.data(), start=st.integers(0, 20))
    def write_in_place(self, number, data, start):
        """Through a new view, or one that was handed out before."""
        arrays = [key for key, value in self.model.items() if isinstance(value, np.ndarray)]
        key = arrays[data.draw(st.integers(0, len(arrays) - 1), "key")]
        expected = self.model[key]
        views = [view for view, model in self.held if model is expected and view.flags.writeable]
        view = views[start % len(views)] if views and start % 2 else self.handle(number)[key]
        new = counted(expected.shape, expected.dtype, start)
        for array in view, expected:
            np.ma.getdata(array)[...] = new

    @rule(number=numbers, key=keys, value=values)
    def write_in_a_forked_child(self, number, key, value):
        d = self.handle(number)

        def child():
            d[key] = value
            d.pop("a", None)
            assert key == "a" or key in d

        in_fork(child)
        self.put(key, value)
        self.model.pop("a", None)

    # -- handles

    @rule(number=numbers)
    def close(self, number):
        if self.handles[number] is not None:
            self.handles[number].close()
            self.handles[number] = None

    @rule(number=numbers, mode=st.sampled_from(["a", "r+"]), durable=st.booleans())
    def open_anew(self, number, mode, durable):
        self.close(number)
        self.handles[number] = mmapdict.open(self.path, mode, durable=durable)

    @rule(number=numbers)
    def start_anew(self, number):
        """The other handles go on with the new file."""
        self.close(number)
        self.handles[number] = mmapdict.open(self.path, "w")
        self.model.clear()

    @rule()
    def open_the_reader_anew(self):
        self.look.close()
        self.look = mmapdict.open(self.path, "r")

    @precondition(lambda self: any(isinstance(value, np.ndarray) for value in self.model.values()))
    @rule(data=st.data(), number=st.integers(0, 2))
    def hold_an_array(self, data, number):
        arrays = [key for key, value in self.model.items() if isinstance(value, np.ndarray)]
        key = arrays[data.draw(st.integers(0, len(arrays) - 1), "key")]
        self.hold(self.look if number == 2 else self.handle(number), key)

    @rule(key=keys, number=st.integers(0, 2))
    def look_up(self, key, number):
        d = self.look if number == 2 else self.handle(number)
        assert (key in d) is (key in self.model)
        assert judge.fingerprint(d.get(key, "missing")) == judge.fingerprint(self.model.get(key, "missing"))
        if key in self.model:
            assert d.entry(key).kind == ("growable" if self.record(key) is not None else
                                         {np.ndarray: "array", np.ma.MaskedArray: "masked"}.get(
                                             type(self.model[key]), "value"))

    # -- after every step

    @invariant()
    def all_agree(self):
        if not hasattr(self, "look"):
            return
        self.check_files()
        self.check_held()

    def check_plain(self):
        with open(self.path, "rb") as file:
            found = judge.fingerprint_items(judge.pickle.load(file))
        judge.assert_same_items(found, judge.fingerprint_items(self.model), "pickle.load")

    def check_files(self):
        for child in self.loader, self.reader:
            child.tell(json.dumps(str(self.path)))
        others = [json.loads(child.hear()) for child in (self.loader, self.reader)]
        expected = judge.fingerprint_items(self.model)
        for name, handle in [("first", self.handles[0]), ("second", self.handles[1]), ("reader", self.look)]:
            if handle is not None and not handle.closed:
                assert len(handle) == len(self.model)
                assert [repr(key) for key in reversed(handle)] == [repr(key) for key in reversed(self.model)]
                judge.assert_same_items(judge.fingerprint_items(handle), expected, name)
        self.check_plain()
        for name, found in zip(("plain process", "reader process"), others):
            judge.assert_same_items(found, expected, name)
        assert os.listdir(self.folder) == ["file"]

    def check_held(self):
        for view, expected in self.held:
            assert judge.fingerprint(view) == judge.fingerprint(expected)


@pytest.fixture
def onlookers(tmp_path):
    """Start the two processes that look on."""
    with Child("", LOADER, prelude=WITHOUT_MMAPDICT) as loader, Child("", READER, prelude=WITH_MMAPDICT) as reader:
        Mapping.loader, Mapping.reader, Mapping.below = loader, reader, tmp_path
        yield
        Mapping.loader = Mapping.reader = Mapping.below = None


def test_random_operations_beside_a_dict(onlookers):
    run_state_machine_as_test(Mapping, settings=settings(
        max_examples=16, stateful_step_count=40, deadline=None, derandomize=True, print_blob=True, database=None,
        suppress_health_check=list(HealthCheck)))


@pytest.mark.slow
def test_many_random_operations_beside_a_dict(onlookers):
    run_state_machine_as_test(Mapping, settings=settings(
        max_examples=slow_examples(1000), stateful_step_count=100, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck)))
