"""Operations that change a file, each on a MmapDict and on the dict that is its model, and records of what they store.

For the tests that stop a writer anywhere: `test_crash` (it is killed), `test_halfway` (somebody reads meanwhile),
`test_powercut` (the disk loses what was not synced).
"""

import contextlib
import io
import pickle

import numpy as np

import faults
import mmapdict
from judge import fingerprint


class Model(dict):
    """A dict that remembers, if it is asked to, what it was between the changes of a batch.

    Attributes
    ----------
    between : list of dict
    """

    def __init__(self, items=()):
        super().__init__(items)
        self.between = []


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


class Grow:
    """Stands for a growable array among the items that `prepare` stores.

    Parameters
    ----------
    rows : numpy.ndarray
        What it has.
    more : numpy.ndarray, optional
        Rows that it had behind those, and that were taken away.
    axis, capacity : int
    trimmed : bool
    """

    def __init__(self, rows, more=None, axis=0, capacity=0, trimmed=False):
        self.rows, self.more, self.axis, self.capacity, self.trimmed = rows, more, axis, capacity, trimmed

    def store(self, d, key):
        shape = self.rows.shape
        d.create_growable(key, shape[:self.axis] + shape[self.axis + 1:], self.rows.dtype, axis=self.axis,
                          capacity=self.capacity)
        d.append(key, self.rows)
        if self.more is not None:
            d.append(key, self.more)
            d.resize(key, shape[self.axis])
        if self.trimmed:
            assert d.trim(key) > 0


class Logged(Grow):
    """Stands for a log among the items that `prepare` stores.

    Parameters
    ----------
    **columns : list
    """

    def __init__(self, **columns):
        super().__init__(in_rows(columns))
        self.columns = columns

    def store(self, d, key):
        mmapdict.Log(d, key).extend(dict(zip(self.columns, values)) for values in zip(*self.columns.values()))


def in_rows(columns):
    """Arrays of these values of which one element does not follow the other, as in a table."""
    return {name: np.stack([values] * 2, 1)[:, 0] for name, values in columns.items()}


def log(key, row, **columns):
    """Add a row to a log; `columns` are what there is then."""
    def perform(d):
        if isinstance(d, dict):
            put(d, key, in_rows(columns))
        else:
            mmapdict.Log(d, key).add(row)
    return perform


def append(key, rows, axis=0):
    def perform(d):
        if isinstance(d, dict):
            put(d, key, np.concatenate([d[key], rows], axis).astype(d[key].dtype) if key in d else rows)
        else:
            d.append(key, rows)
    return perform


def resize(key, n):
    def perform(d):
        if isinstance(d, dict):
            old = d[key]
            new = np.zeros((n, *old.shape[1:]), old.dtype)
            new[:len(old)] = old[:n]
            put(d, key, new)
        else:
            d.resize(key, n)
    return perform


def extend(key, rows, fail=False):
    """Reserve rows, fill them one by one, and publish them; with `fail`, raise `Failure` inside."""
    def perform(d):
        if not isinstance(d, dict):
            with contextlib.suppress(Failure), d.extend(key, len(rows)) as new:
                # By a write, which the recorders see, and not through the map, which they do not.
                file = d._file
                if rows.size:
                    file.write(new.offset, [rows])
                if fail:
                    raise Failure
        elif not fail:
            append(key, rows)(d)
    return perform


def trim(d):
    if not isinstance(d, dict):
        assert d.trim("g") > 0


def ior(d, other):
    d |= other


def assign(key, value):
    return lambda d: put(d, key, value)


def delete(key):
    return lambda d: d.__delitem__(key)


class Failure(Exception):
    """Raised inside a batch, by a user."""


@contextlib.contextmanager
def batch(d):
    """A batch of a MmapDict, or of the dict that is its model: all or nothing."""
    if isinstance(d, dict):
        before = dict(d)
        try:
            yield
        except BaseException:
            d.clear()
            d.update(before)
            raise
    else:
        with d.batch():
            yield


def together(*operations, fail=False):
    """Do several operations in a batch; with `fail`, then raise `Failure` inside it."""
    def perform(d):
        with contextlib.suppress(Failure), batch(d):
            for operation in operations:
                operation(d)
                if isinstance(d, Model):
                    d.between.append(dict(d))
            if fail:
                raise Failure
    return perform


def hold(operation, key):
    """Do an operation and keep the array that it made until the file is dropped."""
    def perform(d):
        operation(d)
        if not isinstance(d, dict):
            HELD.append(d[key])
    return perform


HELD = []
SHARED = [1.5, "text"]
RECURSIVE = [SHARED, SHARED]
BIG = bytes(range(256)) * 300
MASKED = np.ma.array([[1, 2], [3, 4]], mask=[[0, 1], [1, 0]], dtype="<i4", fill_value=9, hard_mask=True)
ARRAY = np.arange(6.0).reshape(2, 3)
ITEMS = {"a": 1, "b": ARRAY, "c": [SHARED, SHARED], ("d", 2): MASKED}
PLAIN = {"a": 1, "b": "two"}


def hole(d):
    create(d, "hole", (3, 5), "<f4")


# name: (items of the file before, operation, the steps that it is made of for readers)
SINGLE = {
    "set new": (ITEMS, assign("new", {"x": RECURSIVE, "y": RECURSIVE}), None),
    "set in an empty file": ({}, assign("new", 1), None),
    "replace, same kind": (ITEMS, assign("c", [SHARED, SHARED, 2]), None),
    "replace an array": (ITEMS, assign("b", ARRAY + 1), None),
    "replace, other kind": (ITEMS, assign("b", "text"), None),
    "replace by equal key": ({1: "int", "z": 0}, assign(True, "true"), None),
    "delete": (ITEMS, delete("a"), None),
    "delete an array": (ITEMS, delete("b"), None),
    "create": (ITEMS, hole, None),
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

ROWS = np.arange(6, dtype="<i4").reshape(3, 2)
GROWN = {"a": 1, "g": Grow(ROWS, capacity=8)}
ROOMY = {"a": 1, "g": Grow(ROWS, capacity=60)}
LOGGED = {"a": 1, "log": Logged(x=[1, 2], y=[0.5, 1.5]), "z": 2}
GROWING = {
    "create growable": (PLAIN, lambda d: put(d, "g", ROWS[:0]) if isinstance(d, dict)
                        else d.create_growable("g", 2, "<i4", capacity=9), None),
    "first rows": (PLAIN, append("g", ROWS), None),
    "append": (GROWN, append("g", ROWS[:1] + 10), None),
    "append several": (GROWN, append("g", ROWS + 10), None),
    "append nothing": (GROWN, append("g", ROWS[:0]), None),
    "append to a full array": ({"g": Grow(ROWS, capacity=3), "z": 2}, append("g", ROWS + 10), None),
    "append where rows were taken away": ({"g": Grow(ROWS, ROWS + 10, capacity=12), "z": 2},
                                          append("g", ROWS + 20), None),
    "append to a trimmed array": ({"g": Grow(ROWS, capacity=60, trimmed=True)}, append("g", ROWS + 10), None),
    "append along another axis": ({"g": Grow(ROWS.T, axis=1, capacity=8)}, append("g", ROWS.T + 10, 1), None),
    "append in another byte order": ({"g": Grow(ROWS.astype(">i4"), capacity=8)},
                                     append("g", ROWS.astype(">i4")), None),
    "resize shorter": (GROWN, resize("g", 1), None),
    "resize to nothing": (GROWN, resize("g", 0), None),
    "resize longer": (GROWN, resize("g", 5), None),
    "resize longer than the room": (GROWN, resize("g", 30), None),
    "resize longer where rows were taken away": ({"g": Grow(ROWS, ROWS + 10, capacity=12)}, resize("g", 7), None),
    "extend": (GROWN, extend("g", ROWS + 10), None),
    "extend that fails": (GROWN, extend("g", ROWS + 10, fail=True), None),
    "extend a full array": ({"g": Grow(ROWS, capacity=3)}, extend("g", ROWS + 10), None),
    "trim": (ROOMY, trim, None),
    "trim where rows were taken away": ({"g": Grow(ROWS, ROWS + 10, capacity=60)}, trim, None),
    "trim once more": ({"g": Grow(ROWS, ROWS + 10, capacity=60, trimmed=True), "z": 2},
                       lambda d: None if isinstance(d, dict) else d.trim("g"), None),
    "replace a growable array": (GROWN, assign("g", ARRAY), None),
    "delete a growable array": (GROWN, delete("g"), None),
    "delete a trimmed array": ({"g": Grow(ROWS, capacity=60, trimmed=True), "z": 2}, delete("g"), None),
    "batch beside a growable array": (GROWN, together(assign("x", 1), delete("a")), None),
    "log a row": (LOGGED, log("log", {"x": 3, "y": 2.5}, x=[1, 2, 3], y=[0.5, 1.5, 2.5]), None),
    "log a first row": (PLAIN, log("log", {"x": 3, "y": 2.5}, x=[3], y=[2.5]), [
        log("log", {}, x=np.zeros(0, int), y=np.zeros(0)), log("log", {}, x=[3], y=[2.5])]),
    # Its room is big: it takes long to pause loads everywhere.
    "log a new column, big": (LOGGED, log("log", {"x": 3, "z": 7.0}), [
        log("log", {}, x=[1, 2], y=[0.5, 1.5], z=[np.nan] * 2),
        log("log", {}, x=[1, 2, 3], y=[0.5, 1.5, np.nan], z=[np.nan, np.nan, 7])]),
    "big append to a full array": ({"g": Grow(np.arange(20000.).reshape(-1, 2), capacity=10000)},
                                   append("g", np.ones((3, 2))), None),
    "big first rows": (PLAIN, append("g", np.arange(30000.)),
                       [append("g", np.zeros(0)), append("g", np.arange(30000.))]),
}

# In a batch readers see one step; one that fails is none.
BATCHES = {
    "batch: nothing": (ITEMS, together(), None),
    "batch: one": (ITEMS, together(assign("new", 1)), None),
    "batch: several new": (PLAIN, together(assign("x", [SHARED, SHARED]), assign("y", ARRAY), assign("z", RECURSIVE)),
                           None),
    "batch: replace": (ITEMS, together(assign("a", 2), assign("b", ARRAY + 1), assign("c", [SHARED, SHARED])), None),
    "batch: replace twice": (ITEMS, together(assign("a", 2), assign("a", ARRAY), assign("a", 3)), None),
    "batch: set and delete": (ITEMS, together(assign("new", 2), delete("a"), delete("b")), None),
    "batch: delete alone": (ITEMS, together(delete("a")), None),
    "batch: delete all one by one": (ITEMS, together(*map(delete, ITEMS)), None),
    "batch: set and delete again": (ITEMS, together(assign("new", 1), delete("new")), None),
    "batch: replace and delete": (ITEMS, together(assign("b", 1), delete("b"), assign("x", 1)), None),
    "batch: delete and set": (ITEMS, together(delete("b"), assign("b", ARRAY + 2), delete("a"), assign("a", 3)), None),
    "batch: clear": (ITEMS, together(lambda d: d.clear()), None),
    "batch: clear and set": (ITEMS, together(assign("x", 1), lambda d: d.clear(), assign("a", ARRAY), assign("y", 2)),
                             None),
    "batch: hole": (PLAIN, together(assign("x", 1), hole, assign("y", [SHARED, SHARED])), None),
    "batch: hole first, masked": (PLAIN, together(
        lambda d: create(d, "hole", (3, 5), "<i2", mask=True), assign("a", MASKED)), None),
    "batch: hole that is replaced": (ITEMS, together(hole, assign("hole", ARRAY), delete("a")), None),
    "batch: update, pop, setdefault": (ITEMS, together(
        lambda d: d.update({"x": 1, "y": 2}), lambda d: d.pop("x"), lambda d: d.setdefault("z", ARRAY),
        lambda d: d.popitem()), None),
    "batch: fails": (ITEMS, together(assign("new", 1), assign("a", 2), delete("b"), fail=True), None),
    "batch: fails after a hole": (ITEMS, together(hole, assign("a", 2), fail=True), None),
    "batch: fails with arrays handed out": (ITEMS, together(
        hold(assign("new", ARRAY), "new"), hold(hole, "hole"), assign("a", 2), delete("c"), fail=True), None),
    "batch: fails after clear": (ITEMS, together(lambda d: d.clear(), assign("a", 2), fail=True), None),
    "batch: big": (PLAIN, together(assign("x", BIG), assign("y", np.frombuffer(BIG, "u1")), delete("a")), None),
}
OPERATIONS = {**SINGLE, **GROWING, **BATCHES}
BIG_ONES = [name for name in OPERATIONS if "big" in name]
SMALL_ONES = [name for name in OPERATIONS if "big" not in name]


KEYS = ["a", "b", 1, ("t", 0), "another"]
VALUES = [0, "text", [SHARED, SHARED], {"k": SHARED}, ARRAY, ARRAY.astype(">i2"), MASKED, np.array(5, "<u2"),
          b"b" * 700, np.arange(3000, dtype="u2"), bytes(5000)]


def take_last():
    """Return `popitem`: of a dict, do it after the MmapDict, for it takes the same key.

    The last key in the file may be another than in a dict: while an older record of a key lives on, because it is
    on the disk and the newer is not, the key has its place.
    """
    taken = []

    def popitem(d):
        if d and isinstance(d, dict):
            del d[taken.pop()]
        elif d:
            taken.append(d.popitem()[0])
    return popitem


def random_growth(rng):
    """Return a random operation on a growable array, which is one step."""
    key, n, number = rng.choice(["g", "h"]), rng.choice([0, 1, 2, 30, 600]), rng.randrange(100)
    rows = np.full((n, 2), number, "<i4")

    def grow(d):
        if key not in d:
            return append(key, rows)(d)
        return {"append": append(key, rows), "extend": extend(key, rows), "fail": extend(key, rows, fail=True),
                "resize": resize(key, n), "trim": lambda d: None if isinstance(d, dict) else d.trim(key)}[kind](d)

    kind = rng.choices(["append", "extend", "fail", "resize", "trim"], [6, 3, 1, 3, 2])[0]
    return grow


def random_change(rng, batches=True, fail=True, removals=True, grow=False):
    """Return a random operation that is one step.

    Parameters
    ----------
    rng : random.Random
    batches : bool
        Whether it may be a batch.
    fail : bool
        Whether a batch may fail.
    removals : bool
        Whether it may be a deletion, but for those inside a batch.
    grow : bool
        Whether it is one of a growable array.
    """
    if grow:
        return random_growth(rng)
    kinds = {"put": 8, "pop": 4 * removals, "create": 2, "popitem": removals, "clear": 1, "setdefault": 1,
             "batch": 6 * batches}
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    key, value = rng.choice(KEYS), rng.choice(VALUES)
    shape, options = rng.choice([(2, 3), (400,), ()]), {"mask": rng.random() < 0.3, "sparse": rng.random() < 0.2}
    if kind == "batch":
        changes = [random_change(rng, False) for _ in range(rng.randrange(1, 5))]
        return together(*changes, fail=fail and rng.random() < 0.2)
    return {"put": assign(key, value),
            "pop": lambda d: d.pop(key, None),
            "create": lambda d: None if key in d else create(d, key, shape, "<i4", **options),
            "popitem": take_last(),
            "clear": lambda d: d.clear(),
            "setdefault": lambda d: d.setdefault(key, value)}[kind]


# -- comparing ----------------------------------------------------------------------------------------------------


class Objection(AssertionError):
    """Raised by the checks: somebody sees what never was, or what was promised is gone."""


def content(mapping):
    """A mapping as something that `==` compares exactly, the order left away."""
    return {key: tuple(fingerprint(value)) for key, value in mapping.items()}


def quick(mapping):
    """As `content`, and ten times faster: for values that are known to be of few kinds.

    What stands for an array, or a bytes object, is a tuple: kind, dtype, shape, bytes, and a mask's bytes or None; for
    a table kind, names, number of rows, and the columns.
    """
    found = {}
    for key, value in mapping.items():
        if isinstance(value, np.ndarray):
            mask = np.ma.getmaskarray(value).tobytes() if isinstance(value, np.ma.MaskedArray) else None
            kind = "MaskedArray" if mask is not None else "ndarray"
            found[key] = (kind, value.dtype.str, value.shape, np.ma.getdata(value).tobytes("A"), mask)
        elif type(value) is dict and any(isinstance(column, np.ndarray) for column in value.values()):
            found[key] = ("table", tuple(value), len(next(iter(value.values()))), tuple(quick(value).items()))
        elif isinstance(value, bytes):
            found[key] = ("bytes", None, len(value), value, None)
        else:
            found[key] = repr(value)
    return found


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


def check_plain(path, expected):
    """See that a file is as a quiet writer leaves it, and holds what is expected: a result of `content`."""
    with open(path, "rb") as f:
        data = f.read()
    if content(load(data, load_c)) != expected:
        raise Objection("found %r, expected the keys %r" % (load_c(data), list(expected)))
    faults.check_header(data)
    check_verified(path)


def check_verified(path, killed=False):
    """See that `verify` finds nothing wrong with a file, but for what the next writer does if the last was `killed`."""
    report = mmapdict.verify(path)
    if [fault for fault in report.faults if fault.kind != "order" or not killed]:
        raise Objection(str(report))


# -- recording ----------------------------------------------------------------------------------------------------


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
        return list(faults.after_each(self.before, self.stores))


def perform(recorder, d, model, operation, steps=None):
    """Do one operation on `d`, whose content is `model`, which becomes what the operation makes of it."""
    with open(d.path, "rb") as f:
        before = f.read()
    recorder.take()
    operation(d)
    HELD.clear()
    states = [dict(model)]
    for step in steps or [operation]:
        step(model)
        states.append(dict(model))
    case = Case(before, recorder.take(), states)
    with open(d.path, "rb") as f:
        assert f.read() == case.after, "a store was made that the recording file did not see"
    return case


def prepare(path, items, leftovers=b""):
    with mmapdict.open(path, "w") as d:
        d.update({key: value for key, value in items.items() if not isinstance(value, Grow)})
        growing = {key: value for key, value in items.items() if isinstance(value, Grow)}
        for key, value in growing.items():
            value.store(d, key)
    with open(path, "ab") as f:
        f.write(leftovers)
    return {**items, **{key: value.rows for key, value in growing.items()}}


def record(recorder, path, name, leftovers=b"", **options):
    items, operation, steps = OPERATIONS[name]
    model = prepare(path, items, leftovers)
    with mmapdict.open(path, "r+", **options) as d:
        return perform(recorder, d, model, operation, steps)


def find_state(case, mapping, least=0, summary=content):
    """Return which of the case's states `mapping` is."""
    found = summary(mapping)
    for i, state in enumerate(case.states):
        if i >= least and found == summary(state):
            return i
    raise Objection("found %r, which is none of %r" % (dict(mapping), case.states[least:]))


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
    states = list(faults.after_each(case.before, stores))
    # A cell is read in one piece.
    inside = {s.offset + i for s in stores if s.kind == "cell" and s.offset >= 256 for i in range(1, 8)}
    where = [x for x in places(case.before, rng is None) if x not in inside]
    pairs = [(x, data) for data in states[1:] for x in where]
    for x, data in pairs if rng is None else rng.sample(pairs, min(tries, len(pairs))):
        find_state(case, load(case.before[:x] + data[x:], load_c), summary=quick)
    for _ in range(tries):
        find_state(case, load(pieced(states, rng, where, inside), load_c), summary=quick)


def pieced(files, rng, where=(), inside=()):
    """What a load sees that pauses three times while a file goes through these contents.

    It pauses anywhere, or at one of the places `where`.

    Parameters
    ----------
    files : list of bytes
    rng : random.Random
    where : sequence of int
    inside : set of int
        Where it does not pause.

    Returns
    -------
    bytes
    """
    longest = len(faults.used(files[-1]))
    seen, at = b"", 0
    for number in sorted(rng.choices(range(len(files)), k=4)):
        end = rng.choice([rng.randrange(at, longest + 1), rng.choice(where or [longest])])
        if end > at and end not in inside:
            seen, at = seen + files[number][at:end], end
    return seen + files[-1][at:]
