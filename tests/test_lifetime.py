"""Descriptors, maps and memory: what is held, for how long, and that all of it goes, also at the interpreter's exit."""

import gc
import os
import resource
import subprocess
import sys
import weakref

import numpy as np
import pytest

import mmapdict
from children import descriptors, environment, in_fork, maps, run

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture
def filled(path):
    with mmapdict.open(path, "x") as d:
        d["a"], d["f"] = np.arange(1000), np.asfortranarray(np.ones((20, 30)))
        d["m"] = np.ma.array(np.arange(50), mask=np.arange(50) % 2)
        d["r"] = np.zeros(10, [("x", "i4"), ("y", "f8", 2)])
        d["v"] = [1, 2]
        d.create_growable("g", (3, 2), "f4", axis=1, capacity=40)
        d.append("g", np.arange(60.0).reshape(3, 10, 2))
        mmapdict.Log(d, "t").extend({"x": i, "y": [i / 2, i]} for i in range(20))
    return path


@pytest.fixture(autouse=True)
def everything_goes():
    """After each test as many descriptors are open as before."""
    gc.collect()
    before = descriptors()
    yield
    gc.collect()
    assert descriptors() == before


# --- descriptors and maps --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["r", "r+", "a", "w"])
def test_close_gives_everything_back(filled, mode):
    before = descriptors()
    for _ in range(5):
        d = mmapdict.open(filled, mode)
        if mode != "r":
            d["b"], d["c"] = np.arange(5), "text"
            d.create("h", 100)
            del d["h"]
            d.append("n", [1, 2])
            d.trim("n")
            with d.extend("n", 3) as rows, d.exclusive():
                rows[0] = 5
            del rows
        list(d.items()), len(d), repr(d), d.wait(0), list(d.watch(0)), d.info(), d.flush(), d.sync()
        assert descriptors() > before and maps(filled) > 0
        d.close()
        assert descriptors() == before and maps(filled) == 0


def test_a_dropped_handle_gives_everything_back_without_the_garbage_collector(filled):
    before = descriptors()
    gc.disable()
    try:
        with pytest.warns(ResourceWarning):
            for _ in range(50):
                mmapdict.open(filled, "r")["a"][0]
                mmapdict.open(filled, "a")["a"][0]
                d = mmapdict.open(filled, "a")
                d["b"] = list(d.items())
                d.update(c=np.ones(4))
                d.pop("c"), d.wait(0), repr(d), d.entries()
                with pytest.raises(KeyError):
                    d["missing"]
                del d
        assert descriptors() == before and maps(filled) == 0
    finally:
        gc.enable()


def test_no_array_is_part_of_a_cycle(filled):
    gc.disable()
    try:
        with mmapdict.open(filled, "a") as d:
            arrays = [d[key] for key in "afmrg"] + [d["a"][::2], d["f"].T, d["m"].mask, d["r"]["y"], d.create("h", 5)]
            arrays += [*d["t"].values(), d["g"][:, 2]]
            gone = [weakref.ref(array) for array in arrays]
            roots = [weakref.ref(window.root) for window in d._file.windows]
            del arrays
            assert not any(array() is not None for array in gone)
        assert not any(root() is not None for root in roots)
    finally:
        gc.enable()


@pytest.mark.leaves_damaged_file
@pytest.mark.parametrize("what", ["empty", "foreign", "cut", "damaged", "folder", "missing", "newer"])
def test_a_failing_open_leaves_nothing_open_though_its_error_is_kept(filled, what):
    data = filled.read_bytes()
    filled.unlink()
    content = {"empty": b"", "foreign": b"not a pickle" * 50, "cut": data[:-30],
               "damaged": data[:300] + b"?" + data[301:], "newer": data[:16] + b"\xff" + data[17:]}
    if what == "folder":
        filled.mkdir()
    elif what != "missing":
        filled.write_bytes(content[what])
    before, kept = descriptors(), []
    for _ in range(10):
        for mode in ("r", "r+") if what == "missing" else ("r", "r+", "a", "x"):
            with pytest.raises((mmapdict.MmapDictError, OSError)) as told:
                mmapdict.open(filled, mode)
            kept.append((told.value, told.tb))
    assert descriptors() == before and maps(filled) == 0


def test_a_failing_operation_leaves_nothing_open(filled):
    before, kept = descriptors(), []
    with mmapdict.open(filled, "a") as d:
        d["x"] = 1
        for _ in range(20):
            for change in (lambda: d.__setitem__("y", lambda: 0), lambda: d.__setitem__([], 1), lambda: d["missing"],
                           lambda: d.create("a", 3), lambda: d.create("z", 2**61, "u1"), lambda: d.update(5)):
                with pytest.raises(Exception) as told:
                    change()
                kept.append(told.value)
        assert maps(filled) <= 8
    kept.clear()                                # an error's traceback holds what its functions worked with
    assert descriptors() == before and maps(filled) == 0


# --- arrays outlive what they came from ------------------------------------------------------------------------------

def arrays_of(d):
    """Arrays and views of every kind, and what must be in them."""
    views = [d["a"], d["a"][10:20], d["a"][::-7], d["a"].reshape(10, 100)[3], d["a"].view("u1"), d["f"],
             d["f"].T[2:4], d["m"], d["m"].mask, d["m"].data, d["m"][3:9], d["r"], d["r"]["y"], d["r"]["y"][:, 1],
             np.asarray(d["a"])[5:], d["g"], d["g"][1, 3:], d["t"]["y"], d["t"]["x"][::3]]
    return [(view, view.copy() if type(view) is np.ma.MaskedArray else np.array(view)) for view in views]


def check_arrays(pairs):
    for view, expected in pairs:
        assert view.shape == expected.shape and view.tobytes() == expected.tobytes()


ENDS = {
    "close": lambda d, path: d.close(),
    "delete": lambda d, path: [d.pop(key) for key in list(d)],
    "replace": lambda d, path: d.update({key: np.zeros(1000) for key in d}),
    "clear": lambda d, path: d.clear(),
    "clear and fill": lambda d, path: (d.clear(), d.update({i: np.full(1000, 7) for i in range(20)})),
    "mode w": lambda d, path: mmapdict.open(path, "w").close(),
    "mode w and fill": lambda d, path: fill_anew(path),
    "removal of the file": lambda d, path: path.unlink(),
    "change by another process": lambda d, path: in_fork(change_all, path),
    "all handles gone": lambda d, path: (d.close(), gc.collect()),
    "growth": lambda d, path: [d.update({("more", i): np.zeros(40_000)}) for i in range(30)],
    "growth of rows": lambda d, path: add_rows(d, 5),
    "growth of rows, to another place": lambda d, path: add_rows(d, 5000),
    "fewer rows, and then others": lambda d, path: (d.resize("g", 0), d.resize("t", 3), add_rows(d, 30)),
    "room given back": lambda d, path: (d.trim("g"), d.trim("t")),
    "other columns": lambda d, path: mmapdict.Log(d, "t").add(x=0.5, z="new"),
    "many holes": lambda d, path: [d.create(("hole", i), 20_000) for i in range(30)],
}


def add_rows(d, n):
    d.append("g", np.full((3, n, 2), 7, "f4"))
    mmapdict.Log(d, "t").extend([{"x": 7, "y": [7, 7]}] * n)


def fill_anew(path):
    with mmapdict.open(path, "w") as d:
        d.update({i: np.full(1000, 7) for i in range(20)})


def change_all(path):
    with mmapdict.open(path, "a") as d:
        for key in list(d):
            d[key] = np.full(3000, 7)
        d.clear()
        d["b"] = bytes(100_000)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_arrays_outlive(filled, mode, end):
    with mmapdict.open(filled, "r+") as d, mmapdict.open(filled, mode) as holder:
        pairs = arrays_of(holder)
        addresses = [view.__array_interface__["data"][0] for view, _ in pairs]
        ENDS[end](d, filled)
        list(holder), holder.get("a")
        check_arrays(pairs)
        assert [view.__array_interface__["data"][0] for view, _ in pairs] == addresses
    check_arrays(pairs)
    del d, holder
    gc.collect()
    check_arrays(pairs)
    if mode == "r+":
        pairs[0][0][0] = 123
        assert pairs[3][0].base is not None and pairs[0][0][0] == 123
    else:
        with pytest.raises(ValueError):
            pairs[0][0][0] = 123


def test_an_array_written_to_after_close_is_written_to_the_file(filled):
    with mmapdict.open(filled, "a") as d:
        array, masked = d["a"], d["m"]
    array[5] = -1
    masked[0] = np.ma.masked
    array.flush()
    with mmapdict.open(filled, "r") as d:
        assert d["a"][5] == -1 and d["m"].mask[0]


def test_after_close_the_file_can_be_opened_renamed_and_removed(filled):
    with mmapdict.open(filled, "a") as d:
        array = d["a"]
    with mmapdict.open(filled, "a") as d:
        d["b"] = 1
    other = filled.rename(filled.with_name("other"))
    with mmapdict.open(other, "r") as d:
        assert d["b"] == 1 and d["a"][1] == 1
    other.unlink()
    assert array[999] == 999


# --- very many arrays ------------------------------------------------------------------------------------------------

def limit_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


MANY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
n = 70_000             # more than the maps that a process may have
"""


def test_very_many_arrays_held_with_few_descriptors(path):
    """A writer and a reader hold what they make and see while the file grows from nothing; then a reader holds all."""
    assert run(path, MANY + """
a = np.arange(4, dtype="u2")
d, r = mmapdict.open(path, "x"), mmapdict.open(path, "r")
held = []
for i in range(n):
    d[i] = a
    held.append(d[i])
    if i % 10 == 0:
        held.append(r[i])
assert all(x[3] == 3 for x in held)
tell(len(held))
d.close(), r.close()
with mmapdict.open(path, "r") as r:
    held += r.values()
tell(len(held), held[-1].tolist(), len(os.listdir("/proc/self/fd")) < 40)
os.remove(path)
""") == "77000\n147000 [0, 1, 2, 3] True\n"


@pytest.mark.parametrize("sparse", [False, True])
def test_thousands_of_holes_held(path, sparse):
    def child():
        limit_descriptors()
        n = 2000 if sparse else 3000
        size = 20_000 if sparse else 500
        with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
            held, seen = [], []
            for i in range(n):
                hole = d.create(i, size, "u1", mask=i % 5 == 0, sparse=sparse)
                hole[0] = i % 200
                held.append(hole)
                seen.append(r[i])
            assert maps(path) < 40 and descriptors() < 50
            for i in range(n):
                assert held[i][0] == seen[i][0] == i % 200
            held.clear()
            seen.clear()
            assert maps(path) < 20

    in_fork(child)
    path.unlink()


def test_maps_and_descriptors_do_not_pile_up_in_a_long_run(path):
    """A capture that lets go of its arrays, and a viewer that does: both stay as they are."""
    with mmapdict.open(path, "x") as d, mmapdict.open(path, "r") as r:
        for i in range(400):
            d.create(("frame", i % 5, i), 100_000, "u1")[:100] = 1
            d["meta"] = {"frame": i}
            assert r["frame", i % 5, i][50] == 1 and r["meta"]["frame"] == i
            if i % 50 == 49:
                d.clear()
                assert maps(path) < 25 and descriptors() < 60


# --- exit ------------------------------------------------------------------------------------------------------------

SCRIPTS = {
    "a handle and views in a module": """
d = mmapdict.open(path, "a")
d["a"], d["v"] = np.arange(10), [1]
a, m, items = d["a"], d.create("m", 3, mask=True), iter(d.items())
next(items)
""",
    "in sys": """
sys.d = mmapdict.open(path, "a")
sys.a = sys.d.create("a", 5)
sys.items = iter(sys.d.values())
next(sys.items)
""",
    "a reader in a module": """
mmapdict.open(path, "x").close()
r = mmapdict.open(path, "r")
changes = r.watch()
""",
    "in a cycle": """
class Holder: pass
h = Holder()
h.me, h.d = h, mmapdict.open(path, "a")
h.d["a"] = np.arange(3)
h.a, h.bound = h.d["a"], h.d.update
gc.disable()
del h
""",
    "a view alone": """
with mmapdict.open(path, "a") as d:
    d["a"] = np.arange(1000)
    a = d["a"][::2]
del d
""",
    "daemon threads at work": """
import threading
d = mmapdict.open(path, "a")
d["a"] = np.arange(3)
started = threading.Barrier(4)
def work(n):
    started.wait()
    while True:
        d[n] = d["a"] + 1
        len(list(d.items()))
        d.wait(0.001)
for n in range(3):
    threading.Thread(target=work, args=[n], daemon=True).start()
started.wait()
time.sleep(0.05)
""",
    "a daemon thread that waits": """
import threading
d = mmapdict.open(path, "a")
threading.Thread(target=d.wait, daemon=True).start()
threading.Thread(target=lambda: list(d.watch()), daemon=True).start()
time.sleep(0.02)
""",
    "atexit": """
import atexit
d = mmapdict.open(path, "a")
atexit.register(lambda: d.close())
atexit.register(d.update, x=np.arange(3))
r = mmapdict.open(path, "r")
atexit.register(lambda: len(r))
""",
    "sys.exit with everything open": """
d = mmapdict.open(path, "a")
with d:
    d["a"] = np.arange(3)
    r = mmapdict.open(path, "r")
    a = r["a"]
    sys.exit(0)
""",
    "a pool of workers that keep it open": """
import multiprocessing, warnings
d = mmapdict.open(path, "a")
d["a"] = np.arange(3)
def work(n):
    global w
    if "w" not in globals():
        w = mmapdict.open(path, "a")
    d["inherited", n] = w["own", n] = n
    return int(d["a"].sum() + w["a"].sum())
if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pool = multiprocessing.get_context("fork").Pool(2)
    assert pool.map(work, range(8)) == [6] * 8
    pool.close()
    pool.join()
    assert len(d) == 17
""",
    "a module that is closed late": """
class Late:
    def __init__(self):
        self.d = mmapdict.open(path, "a")
        self.d["a"] = np.arange(3)
    def __del__(self):
        assert self.d["a"][2] == 2 and list(self.d) == ["a"]
        self.d.close()
late = Late()
""",
    "os._exit": """
d = mmapdict.open(path, "a")
d["a"] = np.arange(3)
a = d["a"]
a[1] = 7
os._exit(0)
""",
    "an unclosed handle that is dropped is told of, and that is all": """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    mmapdict.open(path, "a")["a"] = 1
assert [w.category for w in told] == [ResourceWarning], told
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_interpreter_exits_quietly(path, name):
    script = path.with_name("script.py")
    start = "import gc, os, sys, time\nimport numpy as np\nimport mmapdict\npath = sys.argv[1]\n"
    script.write_text(start + SCRIPTS[name])
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", script, path], capture_output=True, text=True,
                          env={key: value for key, value in environment().items() if key != "PYTHONWARNINGS"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with mmapdict.open(path, "r+") as d:
        d["afterwards"] = 1
    with mmapdict.open(path, "r") as d:
        assert d.info()["size"] == d.info()["used"]         # nothing stands behind the content
