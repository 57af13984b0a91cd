"""What users of similar tools reported, each tried here: one short test, with the address of the report.

Not here, because what they ask for comes later, needs more than one machine, or is measured in benchmarks/:

    an array that grows     mehta-lab/recOrder 451, zarr-python 2729, 2077 and 701, readdy 220,
                            osl-dynamics 180, numpy 11939, cnpy 16, tifffile 104, logix 108, fms-hf-tuning 22, ray 850,
                            safetensors 354
    room used again         h5py 1100 and 2283
    files from strangers    joblib 977, numpy 12759
    lazy references         dask 11850
    network file systems    python-diskcache 345
    time and memory         rosettasciio 266, safetensors 458, numpy 26532, h5py 2540 and 1055
"""

import errno
import gc
import os
import pathlib
import pickle
import pickletools
import random
import resource
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import judge
import mmapdict
from children import WITHOUT_MMAPDICT, descriptors, fork, in_fork, join, maps, run
from judge import plain
from mmapdict import CorruptError, MmapDict, store
from mmapdict import format as fmt

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs fork and /proc")


@pytest.fixture
def d(path):
    with MmapDict(path, "a") as d:
        yield d


def put(path, *args, **kwargs):
    """Open, update, close."""
    with MmapDict(path, "a") as d:
        d.update(*args, **kwargs)


def is_mapped(array, path):
    """Whether an array's memory is a map of the file, and how it may be accessed there."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as file:
        for line in file:
            low, high = (int(n, 16) for n in line.split()[0].split("-"))
            if low <= address < high:
                return line.rstrip("\n").endswith(str(path)) and line.split()[1]
    return False


def written():
    """How many bytes this process has passed to write calls."""
    with open("/proc/self/io") as file:
        return dict(line.split(": ") for line in file.read().splitlines())["wchar"]


# --- capture and live viewer -----------------------------------------------------------------------------------------

def test_a_time_lapse_of_unknown_length_can_be_looked_at_meanwhile(d, path):
    """https://github.com/UniNE-CHYN/mmappickle/issues/3"""
    d["meta"] = {"lens": 35}
    for t in range(3):
        a = d.create(("scan", t), (5, 64, 200), "u2")
        for i in range(5):
            a[i] = i + 1
            seen = plain(path)
            assert seen[("scan", t)].shape == (5, 64, 200) and (seen["scan", t][i] == i + 1).all()
            assert list(seen) == ["meta"] + [("scan", n) for n in range(t + 1)]


def test_a_writer_can_open_while_a_reader_has_the_file_open(path):
    """https://github.com/h5py/h5py/issues/712"""
    put(path, run0=np.arange(5))
    with MmapDict(path, "r") as r:
        old = r["run0"]
        with MmapDict(path, "a") as w:
            w["run1"] = np.arange(6)
            assert old[4] == 4 and "run1" in r


def test_a_reader_leaves_no_trace(path):
    """https://github.com/h5py/h5py/issues/2289"""
    put(path, a=np.zeros(3))
    before = path.read_bytes(), path.stat().st_mtime_ns
    with MmapDict(path, "r") as r:
        r["a"][:]
    assert before == (path.read_bytes(), path.stat().st_mtime_ns)
    put(path, b=1)


def test_close_of_a_writer_does_not_depend_on_readers(path):
    """https://github.com/h5py/h5py/issues/2259"""
    w = MmapDict(path, "a")
    w["a"] = np.zeros(3)
    with MmapDict(path, "r") as r:
        x = r["a"]
        w.close()
        assert not x.any() and not plain(path)["a"].any()


def test_a_reader_does_not_keep_other_processes_from_writing(path):
    """https://github.com/h5py/h5py/issues/1722"""
    MmapDict(path, "a").close()
    with MmapDict(path, "r") as r:
        in_fork(lambda: put(path, x=1))
        assert r["x"] == 1


def test_readers_stay_open_while_writers_come_and_go(path):
    """https://github.com/h5py/h5py/issues/1459"""
    MmapDict(path, "a").close()
    with MmapDict(path, "r") as r:
        for n in 1, 2:
            in_fork(lambda: put(path, {f"p{n}": n}))
        assert (r["p1"], r["p2"]) == (1, 2)


def test_a_look_at_the_results_of_a_run_that_goes_on(d, path):
    """https://github.com/DeepRank/deeprank/issues/76"""
    for epoch in range(10):
        d[epoch] = {"loss": 1 / (epoch + 1), "pred": np.random.rand(100)}
        assert list(plain(path)) == list(range(epoch + 1))
        with MmapDict(path, "r") as r:
            assert r[epoch]["loss"] == 1 / (epoch + 1)


def test_a_viewer_may_open_during_and_between_scans(d, path):
    """https://github.com/sardana-org/sardana/issues/1124"""
    for s in range(3):
        a = d.create(f"scan{s}", (100, 10), "f4")
        a[:50] = s

        def look():
            with MmapDict(path, "r") as r:
                assert r[f"scan{s}"][0, 0] == s

        in_fork(look)


def test_an_open_and_idle_writer_is_in_nobodys_way(d, path):
    """https://github.com/PyMoDAQ/PyMoDAQ/issues/187"""
    d["scan"] = np.arange(10)
    assert run(path, "print(plain()['scan'].sum())", prelude=WITHOUT_MMAPDICT) == "45\n"


@pytest.mark.parametrize("address", ["https://github.com/PyMoDAQ/PyMoDAQ/issues/78",
                                     "https://github.com/jnwatson/py-lmdb/issues/141"])
def test_reading_asks_for_no_right_to_write(path, monkeypatch, address):
    """Opened for reading only, nothing made beside it; test_processes.py tries it without the rights."""
    put(path, a=np.arange(4))
    flags, os_open = [], os.open
    monkeypatch.setattr(os, "open", lambda p, f, *args, **kw: flags.append(f) or os_open(p, f, *args, **kw))
    with MmapDict(path, "r") as r:
        assert r["a"].sum() == 6 and list(r) == ["a"]
        assert os.listdir(path.parent) == ["file"]
    assert flags and not any(f & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) for f in flags)


def test_hundreds_of_polls_of_a_growing_file_without_a_warning(d, path):
    """https://github.com/czbiohub-sf/shrimPy/pull/30"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(300):
            d[i % 40] = np.full(10, i)
            assert plain(path)[i % 40][0] == i


def test_a_partly_filled_array_has_its_full_size(d, path):
    """https://github.com/pymmcore-plus/ome-writers/pull/95"""
    a = d.create("v", (10, 4, 4), "u2")
    with MmapDict(path, "r") as reader:
        r = reader["v"]
        a[3] = 7
        assert r[3].all() and not r[4].any() and not plain(path)["v"][9].any()


def test_a_process_that_has_the_file_open_goes_on_through_any_change(d, path):
    """https://github.com/coleifer/unqlite-python/issues/5"""
    with MmapDict(path, "r") as r:
        assert "k" not in r
        d["k"] = "v"
        del d["k"]
        d["k"] = "v2"
        assert r["k"] == "v2" and len(r) == 1


def test_an_assignment_is_visible_when_it_returns(d, path):
    """https://github.com/jrl-umi3218/mc_rtc/issues/214"""
    d["step0"] = 1.5
    assert run(path, "print(plain())", prelude=WITHOUT_MMAPDICT) == "{'step0': 1.5}\n"


# --- several writers, locks ------------------------------------------------------------------------------------------

def test_two_processes_that_let_the_file_grow(path):
    """https://github.com/jnwatson/py-lmdb/issues/269"""
    MmapDict(path, "a").close()

    def write(number):
        with MmapDict(path, "a") as d:
            for i in range(50):
                d[number, i] = np.full(5000, i)

    join(fork(write, 0), fork(write, 1))
    loaded = plain(path)
    assert len(loaded) == 100 and all((value == key[1]).all() for key, value in loaded.items())


def test_a_reader_thread_survives_any_number_of_growth_steps(d):
    """https://github.com/jnwatson/py-lmdb/issues/379"""
    d["first"] = np.arange(1000)
    view, stop, sums = d["first"], threading.Event(), []

    def read():
        while not stop.is_set():
            sums.append(int(view.sum() + d["first"].sum()))

    thread = threading.Thread(target=read)
    thread.start()
    for i in range(150):
        d[i] = np.zeros(10_000)
    stop.set()
    thread.join()
    assert set(sums) == {2 * 499500} and (d["first"] == view).all()


def test_nothing_is_left_of_dead_processes(path):
    """https://github.com/cocoindex-io/cocoindex-code/issues/129"""
    put(path, x=1)

    def hang():
        d = MmapDict(path, "a")
        d["x"] = d["x"] + 1
        os.write(told, b"x")
        signal.pause()

    read, told = os.pipe()
    for _ in range(20):
        pid = fork(hang)
        os.read(read, 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(read)
    os.close(told)
    put(path, x=plain(path)["x"] + 1)
    assert plain(path) == {"x": 22} and os.listdir(path.parent) == ["file"]


def test_a_reader_starts_while_a_writer_holds_the_lock(d, path):
    """https://github.com/grantjenks/python-diskcache/issues/172"""
    d["a"] = 1
    assert d._file.lock()

    def look():
        with MmapDict(path, "r") as r:
            assert list(r.keys()) == ["a"]

    in_fork(look)
    d._file.unlock()


def test_many_processes_that_open_a_new_file_at_once(path):
    """https://github.com/grantjenks/python-diskcache/issues/85"""
    join(*[fork(lambda k=k: put(path, {k: k})) for k in range(16)])
    assert sorted(plain(path)) == list(range(16))


def test_a_write_protected_archive_is_read_without_a_lock(path):
    """https://github.com/LiberTEM/LiberTEM/issues/1231"""
    put(path, a=np.arange(3))
    path.chmod(0o444)
    fcntl = pytest.importorskip("fcntl")
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)        # whoever asks for a lock waits for ever
        with MmapDict(path, "r") as r:
            assert r["a"][:].sum() == 3
            r.flush()


def test_threads_that_make_arrays_in_one_file_at_once(d, path):
    """https://github.com/numpy/numpy/issues/29126"""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: d.create(i, (1000,), "i4").fill(i), range(100)))
    loaded = plain(path)
    assert all((loaded[i] == i).all() for i in range(100))


# --- crash, kill, full disk ------------------------------------------------------------------------------------------

def kill_at_random(seed, function):
    """Kill a child that runs `function(tell)` at some instant after its first word; return its words."""
    read, write = os.pipe()
    pid = fork(function, lambda *words: os.write(write, " ".join(map(str, words)).encode() + b"\n"))
    os.close(write)
    with open(read, "rb") as stream:
        first = stream.readline()
        time.sleep(random.Random(seed).random() / 50)       # a random instant: nothing can signal it
        os.kill(pid, signal.SIGKILL)
        words = (first + stream.read()).decode().split("\n")[:-1]
    os.waitpid(pid, 0)
    return words


def test_a_file_used_as_a_buffer_survives_a_crash(path):
    """https://github.com/h5py/h5py/issues/1807"""
    def write(tell):
        d = MmapDict(path, "a")
        for i in range(10**6):
            d[i] = np.full(100, i)
            tell(i)

    for seed in range(5):
        last = int(kill_at_random(seed, write)[-1])
        loaded = plain(path)
        assert (loaded[last] == last).all() and list(loaded) == list(range(len(loaded)))
        os.remove(path)


def test_close_is_not_needed(path):
    """https://github.com/h5py/h5py/issues/370"""
    def write():
        d = MmapDict(path, "a")
        d["a"] = np.arange(10**5)
        os._exit(0)

    in_fork(write)
    assert plain(path)["a"][-1] == 10**5 - 1


def test_a_checkpoint_is_replaced_in_one_step(path):
    """https://github.com/Lightning-AI/pytorch-lightning/issues/688"""
    put(path, ckpt=np.zeros(10**4))

    def write(tell):
        d = MmapDict(path, "a")
        for i in range(1, 10**6):
            d["ckpt"] = np.full(10**4, float(i))
            tell(i)

    last = int(kill_at_random(0, write)[-1])
    v = plain(path)["ckpt"]
    assert (v == v[0]).all() and v[0] in (last, last + 1)
    put(path, ckpt=None)
    assert plain(path) == {"ckpt": None}


def test_ctrl_c_inside_an_assignment_leaves_the_state_before(d, path):
    """https://github.com/hammerlab/cohorts/issues/170"""
    class Bad:
        def __reduce__(self):
            raise KeyboardInterrupt

    d["a"] = 1
    with pytest.raises(KeyboardInterrupt):
        d["b"] = [np.zeros(10**5), Bad()]
    assert plain(path) == {"a": 1} and list(d) == ["a"]
    d["b"] = 2
    assert plain(path) == {"a": 1, "b": 2}


def test_a_loop_of_plain_loads_beside_a_busy_writer(path):
    """https://github.com/BSC-ES/autosubmit/issues/105"""
    put(path, jobs=[])

    def write():
        with MmapDict(path, "a") as d:
            for i in range(1500):
                d["jobs"] = list(range(i % 500))

    pid, done = fork(write), (0, 0)
    while done[0] == 0:
        jobs = plain(path)["jobs"]
        assert jobs == list(range(len(jobs)))
        done = os.waitpid(pid, os.WNOHANG)
    assert done[1] == 0 and len(plain(path)["jobs"]) == 499


@pytest.mark.parametrize("address", ["https://github.com/PyTables/PyTables/issues/695",
                                     "https://github.com/numpy/numpy/issues/21964"])
def test_no_room_on_the_disk(path, address):
    """An OSError at the assignment or at `create`, never a signal later; the file is as before, and work goes on."""
    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000_000, 8_000_000))
        with MmapDict(path, "a") as d:
            d["a"] = np.arange(1000)
            for fill in (lambda: d.update(big=np.zeros(10_000_000, "u1")), lambda: d.create("h", 10_000_000, "u1"),
                         lambda: d.update(bytes=bytes(10_000_000)), lambda: d.create("s", 10**7, "u1", sparse=True)):
                with pytest.raises(OSError) as told:
                    fill()
                assert told.value.errno in (errno.EFBIG, errno.ENOSPC) and list(plain(path)) == list(d)
            assert list(d) == ["a"]
            d["b"] = 1
            d.create("ok", 3_000_000, "u1")[:] = 1

    in_fork(child)
    loaded = plain(path)
    assert list(loaded) == ["a", "b", "ok"] and loaded["ok"].all() and loaded["a"][999] == 999


@pytest.mark.parametrize("address", ["https://github.com/bloomberg/memray/issues/116",
                                     "https://github.com/h5py/h5py/issues/725"])
def test_room_for_an_array_is_really_taken_unless_it_is_to_be_sparse(d, path, address):
    """Reserved by default, thin on request; a valid pickle either way."""
    d.create("sparse", (5_000_000,), "u1", sparse=True)
    assert path.stat().st_blocks * 512 < 1_000_000
    d.create("h", (5_000_000,), "u1")
    assert path.stat().st_blocks * 512 >= 5_000_000
    assert not plain(path)["h"].any() and not plain(path)["sparse"].any()


def test_no_change_of_another_process_can_kill_a_reader(d, path):
    """https://github.com/python/cpython/issues/84897"""
    d["a"] = np.ones(10**5)
    with MmapDict(path, "r") as r:
        view = r["a"]

        def change():
            with MmapDict(path, "a") as other:
                del other["a"]
                other.clear()
            MmapDict(path, "w").close()

        in_fork(change)
        assert view.sum() == 10**5 and list(r) == []


def test_a_simulation_goes_on_after_it_was_killed(path):
    """https://github.com/numpy/numpy/issues/12926"""
    def work(tell):
        r = MmapDict(path, "a").create("res", (20,), [("done", "?"), ("v", "f8")])
        for i in range(7):
            r[i] = (True, i)
        tell("seven")
        signal.pause()

    kill_at_random(0, work)
    with MmapDict(path, "a") as d:
        assert d["res"]["done"].sum() == 7 and d["res"]["v"][6] == 6 and d["res"].dtype.names == ("done", "v")


def test_a_long_random_sequence_equals_a_dict(d, path):
    """https://github.com/python/cpython/issues/91228"""
    rng, ref = random.Random(0), {}
    for n in range(3000):
        k = rng.randrange(50)
        if rng.random() < .3 and k in ref:
            del ref[k], d[k]
        else:
            ref[k] = d[k] = bytes(rng.randrange(2000))
        if n % 500 == 0:
            assert plain(path) == ref == dict(d)
    assert plain(path) == ref == dict(d)


def test_a_handle_opened_before_gives_consistent_values(path):
    """https://github.com/numpy/numpy/issues/22435"""
    put(path, d1=np.array([1, 2]), d2=np.array([11, 22]))
    with MmapDict(path, "r") as b:
        before = b["d1"]
        put(path, d1=np.array([33, 33, 33]))
        assert before.tolist() == [1, 2] and b["d1"].tolist() == [33, 33, 33] and b["d2"].tolist() == [11, 22]


# --- changing the file in place --------------------------------------------------------------------------------------

def test_each_key_is_there_once_for_every_reader(d, path):
    """https://github.com/zarr-developers/zarr-python/issues/3580"""
    for i in range(50):
        d["x"], d["m"] = np.zeros((i, 2)), i
    assert list(plain(path)) == list(d) == ["x", "m"] and plain(path)["m"] == 49
    live = [op for op, _, _ in pickletools.genops(path.read_bytes()) if op.name == "SETITEM"]
    assert len(live) == 2


def test_delete_pop_and_clear(d, path):
    """https://github.com/zarr-developers/zarr-python/issues/828"""
    d["a"], d["c"] = np.zeros(3), 1
    d.create("h", (5,), "f4")
    del d["h"]
    assert d.pop("c") == 1
    d.clear()
    assert plain(path) == {} and not d


def test_to_change_one_array_of_a_big_file(d, path):
    """https://github.com/safetensors/safetensors/issues/447"""
    d["w1"], d["w2"] = np.zeros((256, 256)), np.ones((256, 256))
    before = int(written())
    d["w1"][5] = 3.0
    assert int(written()) == before
    loaded = plain(path)
    assert (loaded["w1"][5] == 3).all() and (loaded["w2"] == 1).all()


def test_to_add_a_key_costs_its_own_size(d, path):
    """https://github.com/safetensors/safetensors/issues/851"""
    d["base"] = np.zeros(1_000_000)
    before, start = int(written()), path.read_bytes()[256:8_000_000]
    d["step1"] = np.zeros(1000)
    assert int(written()) - before < 10_000 and path.read_bytes()[256:8_000_000] == start


def test_to_reserve_room_is_not_to_write_it(d):
    """https://github.com/h5py/h5py/issues/2459"""
    before = int(written())
    hole = d.create("h", (20_000_000,), "u1")
    assert int(written()) - before < 100_000 and not hole[::1000].any()


def test_a_key_may_get_a_value_of_any_other_kind(d, path):
    """https://github.com/h5py/h5py/issues/500"""
    for v in np.zeros((3, 2)), np.zeros((3, 5), "i1"), "text", None, np.ma.masked_all(4), {"a": 1}, np.array(1):
        d["k"] = v
        assert type(plain(path)["k"]) is type(v) and getattr(d["k"], "shape", None) == getattr(v, "shape", None)


# --- arrays: fidelity and memory -------------------------------------------------------------------------------------

def test_arrays_are_aligned(d):
    """https://github.com/joblib/joblib/issues/563"""
    for i in range(40):
        d["k" * (i + 1)] = np.random.randn(3300)
        d["s" * (i + 1)] = np.random.randn(5)
        for key, alignment in ("k", 64), ("s", 16):
            a = d[key * (i + 1)]
            assert a.flags.aligned and a.ctypes.data % alignment == 0 and a.offset % alignment == 0


def test_byte_order_is_kept(d, path):
    """https://github.com/joblib/joblib/issues/280"""
    d["be"] = np.arange(3, dtype=">i8")
    assert d["be"].dtype == np.dtype(">i8") and (plain(path)["be"] == [0, 1, 2]).all()


def test_arrays_of_foreign_byte_order_are_mapped_and_passed_on(d, path):
    """https://github.com/joblib/joblib/issues/1545"""
    d.create("be", (4,), ">f4")[2] = 1.5
    with MmapDict(path, "r") as r:
        assert r["be"][2] == 1.5 and plain(path)["be"][2] == 1.5 and is_mapped(r["be"], path)
        sent = pickle.loads(pickle.dumps(r["be"]))
        assert sent.tolist() == [0, 0, 1.5, 0]


def test_in_place_work_on_a_fortran_array(d, path):
    """https://github.com/numpy/numpy/issues/10345"""
    d["F"] = np.asfortranarray(np.arange(6.).reshape(2, 3))
    assert d["F"].flags.f_contiguous and plain(path)["F"].flags.f_contiguous
    d["F"][1, 2] = -1
    d["F"].T[0, 1] = -2
    assert plain(path)["F"].tolist() == [[0, 1, 2], [-2, 4, -1]]


def test_values_of_arrays_in_any_layout(d, path):
    """https://github.com/safetensors/safetensors/issues/825"""
    b = np.arange(24.).reshape(2, 3, 4)
    for i, v in enumerate((b, np.asfortranarray(b), b[:, ::2], b[::-1], b.transpose(1, 0, 2), b.T,
                           np.broadcast_to(b[0, 0], (5, 4)))):
        d[i] = v
        assert (d[i] == v).all() and (plain(path)[i] == v).all()


def test_object_arrays_are_ordinary_values(d, path):
    """https://github.com/joblib/joblib/issues/162"""
    d["o"], d["n"] = np.array([1, "a", None], object), np.arange(3)
    assert d["o"].tolist() == [1, "a", None] == plain(path)["o"].tolist() and is_mapped(d["n"], path)
    with pytest.raises(TypeError):
        d.create("h", (3,), object)


def test_an_object_array_hidden_in_a_container(d, path):
    """https://github.com/scikit-learn/scikit-learn/issues/4597"""
    d["rec"] = {"labels": np.array(["a", "b"], object), "X": np.eye(100)}
    assert (d["rec"]["X"] == np.eye(100)).all() and plain(path)["rec"]["labels"][1] == "b"


def test_dates_and_times(d, path):
    """https://github.com/joblib/joblib/issues/188"""
    t = np.array(["2020-01-01T00:00:01", "NaT"], "M8[us]")
    d["t"] = t
    d.create("dt", (3,), "m8[ms]")[1] = np.timedelta64(5, "ms")
    q = plain(path)
    assert q["t"].dtype == t.dtype == d["t"].dtype and np.isnat(q["t"][1]) and q["dt"][1] == np.timedelta64(5, "ms")


def test_record_types_come_back_as_they_were(d, path):
    """https://github.com/numpy/numpy/issues/8100"""
    for dt in (np.dtype([("a", "u2"), ("b", "u4")], align=True), np.dtype([("n", [("x", "f8"), ("y", "U3")])]),
               np.dtype([(("Long title", "a"), "<f4"), ("b", ">i2", (2,))]),
               np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [8, 0], "itemsize": 16})):
        d["r"] = np.zeros(2, dt)
        for found in d["r"].dtype, plain(path)["r"].dtype:
            assert judge.describe_dtype(found) == judge.describe_dtype(dt)


def test_dtype_with_metadata_can_be_read_back(d, path):
    """https://github.com/numpy/numpy/issues/14142"""
    dt = np.dtype([("a", float), ("b", np.dtype("S3", metadata={"some": "x"}))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)        # numpy tells that it drops metadata
        d["m"] = np.array([(1, b"abc")], dt)
    assert plain(path)["m"]["b"][0] == b"abc" == d["m"]["b"][0]


def test_numpy_integers_in_a_shape(d, path):
    """https://github.com/numpy/numpy/issues/28334"""
    d.create("s", tuple(np.array([2, 3])), np.int64)
    d.create("s1", np.int64(4), "f4")
    assert plain(path)["s"].shape == (2, 3) and d["s1"].shape == (4,) and type(d.entry("s").shape[0]) is int


def test_arrays_without_elements_and_without_dimensions(d, path):
    """https://github.com/numpy/numpy/issues/12653"""
    d["z"], d["s"] = np.zeros((0, 4), "f4"), np.array(3.5)
    d.create("h", (0, 3), "i2")
    q = plain(path)
    assert q["z"].shape == d["z"].shape == (0, 4) and q["h"].shape == (0, 3) and q["h"].dtype == "i2"
    assert q["s"].shape == d["s"].shape == () and q["s"] == d["s"] == 3.5


def test_an_array_is_always_a_view_of_the_file(path):
    """https://github.com/numpy/numpy/issues/5976"""
    put(path, big=np.zeros(100_000), small=np.zeros(1), inner=1)
    with MmapDict(path, "r") as r:
        assert is_mapped(r["big"], path) and is_mapped(r["small"], path) and r["big"].filename == str(path)


def test_masks_are_mapped_too(path):
    """https://github.com/numpy/numpy/issues/6732"""
    m = np.ma.array(np.arange(10**5), mask=np.arange(10**5) % 7 == 0, fill_value=-9)
    put(path, m=m)
    with MmapDict(path, "r") as reader:
        r = reader["m"]
        assert is_mapped(r.data, path) and is_mapped(r.mask, path) and r.fill_value == -9
    q = plain(path)["m"]
    assert (q.mask == m.mask).all() and q.fill_value == -9


class Tagged(np.ndarray):
    """An array with something more, pickled in its own way."""

    tag = None

    def __reduce__(self):
        return make_tagged, (self.view(np.ndarray).tolist(), self.tag)


def make_tagged(items, tag):
    array = np.array(items).view(Tagged)
    array.tag = tag
    return array


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_are_not_stripped(path):
    """https://github.com/astropy/astropy/issues/19154"""
    d = MmapDict(path, "w", allow=[Tagged, make_tagged])
    d["rec"] = np.rec.array([(1, 2.)], dtype=[("a", "i4"), ("b", "f4")])
    d["mat"], d["own"] = np.matrix([[1, 2]]), make_tagged([1, 2], "x")
    for q in plain(path), d:
        assert type(q["rec"]) is np.recarray and type(q["mat"]) is np.matrix and q["rec"].a[0] == 1
        assert type(q["own"]) is Tagged and q["own"].tag == "x"
    d.close()


def test_results_of_arithmetic_do_not_hold_the_file(d):
    """https://github.com/numpy/numpy/issues/7403"""
    d["x"] = np.arange(3.0)
    a = d["x"]
    assert type(a.sum()) is np.float64 and type(a + 1) is np.ndarray and np.isscalar(np.average(a))
    assert type(a[[0, 1]]) is np.ndarray and type(a[a > 1]) is np.ndarray and type(a[1:]) is mmapdict.memmap


def test_mode_r_maps_shared_and_read_only(path):
    """https://github.com/hyperspy/hyperspy/pull/1471"""
    put(path, a=np.zeros(10_000))
    with MmapDict(path, "r") as r, MmapDict(path, "a") as d:
        assert is_mapped(r["a"], path) == "r--s" and is_mapped(d["a"], path) == "rw-s"


def test_the_mode_decides_whether_arrays_can_be_written_to(d, path):
    """https://github.com/pytorch/pytorch/issues/37581"""
    d["a"] = np.zeros(3)
    with MmapDict(path, "r") as r, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not r["a"].flags.writeable and d["a"].flags.writeable
        with pytest.raises(ValueError):
            r["a"].setflags(write=True)


def test_an_arrays_size_does_not_decide_whether_it_can_be_written_to(d, path):
    """https://github.com/scikit-learn/scikit-learn/issues/5956"""
    for n in 1, 10, 10**6:
        d[n] = np.zeros(n)
        d[n][0] = 1
        assert plain(path)[n][0] == 1


def test_sizes_held_in_small_integers_do_not_overflow(d):
    """https://github.com/numpy/numpy/issues/11224"""
    d.create("h", (np.int32(70_000), np.int32(70_000)), "u1", sparse=True)[-1, -1] = 5
    assert d["h"].shape == (70_000, 70_000) and d["h"][-1, -1] == 5 and d["h"].nbytes == 4_900_000_000


def test_arrays_of_more_than_4_gib(d):
    """https://github.com/numpy/numpy/issues/18784"""
    d.create("h", (5 * 2**30,), "u1", sparse=True)[-1] = 7
    d["behind"] = np.arange(3)
    assert d["h"][-1] == 7 and d["behind"].offset > 5 * 2**30 and d["behind"][2] == 2


def test_data_are_written_in_pieces(d, path, monkeypatch):
    """https://github.com/asdf-format/asdf/issues/520"""
    monkeypatch.setattr(store, "WRITE_MAX", 1000)
    d["a"], d["b"] = np.arange(5000), bytes(range(256)) * 50
    assert (plain(path)["a"] == np.arange(5000)).all() and d["b"] == bytes(range(256)) * 50


# --- handles, close, exit --------------------------------------------------------------------------------------------

def test_thousands_of_arrays_take_no_descriptor_each(path):
    """https://github.com/joblib/joblib/issues/81"""
    put(path, {i: np.arange(10) for i in range(5000)})
    before = descriptors()
    with MmapDict(path, "r") as r:
        keep = [r[i] for i in range(5000)]
        assert descriptors() - before <= 3 and len(keep) == 5000


def test_close_and_with(path):
    """https://github.com/numpy/numpy/issues/13510"""
    with MmapDict(path, "a") as d:
        d["a"] = np.arange(5)
        v = d["a"]
    assert v.sum() == 10
    with pytest.raises(ValueError):
        d["a"]
    d.close()


def test_a_slice_kept_beyond_the_with_block(path):
    """https://github.com/asdf-format/asdf/issues/884"""
    put(path, data=np.arange(10), rec=np.ones(3, "i4,f4"), m=np.ma.array([1, 2], mask=[0, 1]))
    with MmapDict(path, "r") as d:
        s, f, m = d["data"][:][::2], d["rec"]["f0"], d["m"].mask
    del d
    gc.collect()
    assert s.tolist() == [0, 2, 4, 6, 8] and f.tolist() == [1, 1, 1] and m.tolist() == [False, True]


def test_descriptors_after_close_are_as_before(path):
    """https://github.com/asdf-format/asdf/issues/1239"""
    put(path, a=np.arange(3))
    before = descriptors()
    d = MmapDict(path, "r")
    d["a"][0]
    d.close()
    assert descriptors() == before


def test_hundreds_of_arrays_share_a_map(path):
    """https://github.com/asdf-format/asdf/pull/1230"""
    put(path, {i: np.zeros(1000) for i in range(240)})
    with MmapDict(path, "r") as r:
        arrays = [r[i] for i in range(240)]
        assert maps(path) == 1 and len(arrays) == 240


def test_dropped_handles_let_go_without_the_garbage_collector(path):
    """https://github.com/usnistgov/mass/issues/212"""
    put(path, a=np.arange(3))
    gc.disable()
    try:
        before = descriptors()
        with pytest.warns(ResourceWarning):
            for _ in range(200):
                MmapDict(path, "r")["a"][0]
        assert descriptors() == before
    finally:
        gc.enable()


def test_a_failing_open_closes_what_it_opened(tmp_path):
    """https://github.com/KempnerInstitute/KempnerForge/issues/55"""
    (tmp_path / "bad.pkl").write_bytes(b"not a pickle")
    before, keep = descriptors(), []
    for _ in range(100):
        with pytest.raises(mmapdict.FormatError) as told:
            MmapDict(tmp_path / "bad.pkl", "r")
        keep.append(told.value)
    assert descriptors() == before


def test_a_file_that_was_mapped_can_be_written_and_removed_after_close(path):
    """https://github.com/joblib/joblib/issues/1119"""
    put(path, a=np.arange(3))
    r = MmapDict(path, "r")
    a = r["a"]
    del a
    r.close()
    put(path, b=1)
    os.remove(path)


def test_metadata_are_changed_while_arrays_are_in_use(d, path):
    """https://github.com/safetensors/safetensors/issues/164"""
    d["w1"], d["__meta__"] = np.arange(5), {"n": 1}
    w = d["w1"]
    d["__meta__"] = {"author": "x", "n": 2}
    assert plain(path)["__meta__"]["n"] == 2 and w.tolist() == d["w1"].tolist() == [0, 1, 2, 3, 4]


def test_growth_does_not_move_an_array(d):
    """https://github.com/python/cpython/issues/115635"""
    d["a"] = np.arange(10)
    v = d["a"]
    address = v.ctypes.data
    d["b"] = np.zeros(10**6)
    d.create("c", 10**6)
    assert v.ctypes.data == address and (v == np.arange(10)).all() and (d["b"][-1], d["c"][-1]) == (0, 0)


@pytest.mark.parametrize("code", ["import sys; sys.d = d; v = d['a']", "it = iter(d.items()); next(it)"])
def test_exit_with_everything_open_is_silent(path, code):
    """https://github.com/h5py/h5py/issues/2237 and https://github.com/h5py/h5py/issues/1495"""
    run(path, "d = mmapdict.MmapDict(path, 'a'); d['a'] = np.arange(3); " + code, options=["-X", "dev", "-W", "error"])
    assert plain(path)["a"][2] == 2


def test_a_view_of_a_closed_map_is_never_reached(path):
    """https://github.com/numpy/numpy/issues/9537"""
    put(path, a=np.arange(3.0))
    d = MmapDict(path, "r")
    x = d["a"]
    with pytest.raises(BufferError):
        x._mmap.close()
    d.close()
    del d
    gc.collect()
    assert float(x[2]) == 2


# --- keys and dict behaviour -----------------------------------------------------------------------------------------

def test_any_text_is_a_key(d, path):
    """https://github.com/telegraphic/hickle/issues/124"""
    for k in "m/s", "/", "", ".", "a\nb", "é漢", "a\udc80", "k" * 10_000:
        d[k] = k
    assert list(plain(path)) == list(d) and plain(path)["m/s"] == d["m/s"] == "m/s" and d["a\udc80"] == "a\udc80"


def test_empty_values_keep_their_type(d, path):
    """https://github.com/telegraphic/hickle/issues/91"""
    assert plain(path) == {}
    for v in {}, [], (), set(), frozenset(), b"", "", None, bytearray():
        d["v"] = v
        assert type(plain(path)["v"]) is type(d["v"]) is type(v)


def test_keys_keep_type_and_equality(d, path):
    """https://github.com/jsonpickle/jsonpickle/issues/502"""
    keys = 1, "1", (1, 2), b"x", None, 2.5, ("id", 3)
    for k in keys:
        d[k] = repr(k)
    assert plain(path) == {k: repr(k) for k in keys}
    d[True] = "one"
    assert d[1] == "one" and len(d) == 7 and [type(k) for k in plain(path) if k == 1] == [int]


def test_order_is_the_same_for_all(d, path):
    """https://github.com/h5py/h5py/issues/1471 (here what is replaced moves to the end: the order of the file)"""
    for k in "zab":
        d[k] = 1
    d["z"] = np.zeros(100)
    del d["a"]
    d["a"] = 2
    assert list(d) == ["b", "z", "a"] == list(plain(path))


def test_what_is_inside_a_value_is_a_copy_and_array_elements_persist(d, path):
    """https://github.com/piskvorky/sqlitedict/issues/117"""
    d["cfg"], d["arr"] = {"a": 1}, np.zeros(3)
    d["cfg"]["b"] = 2
    d["arr"][1] = 5
    assert d["cfg"] == {"a": 1} and plain(path)["arr"][1] == 5 and "copy" in MmapDict.__doc__


def test_names_that_are_not_utf_8(d, path):
    """https://github.com/h5py/h5py/pull/2878"""
    k = os.fsdecode(b"caf\xe9.tif")
    d[k] = 1
    with MmapDict(path, "r") as r:
        assert plain(path) == {k: 1} and k in r


def test_metadata_have_no_limit(d, path):
    """https://github.com/h5py/h5py/issues/1855"""
    d["meta"] = {"wavelengths": list(range(20_000)), "note": "x" * 10**6}
    assert plain(path)["meta"]["note"][-1] == "x" and d["meta"]["wavelengths"][-1] == 19_999


def test_the_exceptions_are_those_of_a_dict(d):
    """https://github.com/h5py/h5py/issues/1201"""
    for look in (lambda: d["nope"], lambda: d.__delitem__("nope"), lambda: d.pop("nope"), lambda: d.entry("nope")):
        with pytest.raises(KeyError) as told:
            look()
        assert told.value.args == ("nope",)
    assert d.get("nope") is None and d.pop("nope", 7) == 7 and d.setdefault("n", 1) == 1
    with pytest.raises(ValueError):
        d.create("n", 3)


def test_path_objects_and_a_change_of_the_working_directory(tmp_path, monkeypatch):
    """https://github.com/numpy/numpy/issues/11342"""
    monkeypatch.chdir(tmp_path)
    with MmapDict(pathlib.Path("rel.pkl"), mode="a") as d:
        monkeypatch.chdir("/")
        d["a"] = np.arange(3)
        assert d["a"][2] == 2
    assert os.listdir(tmp_path) == ["rel.pkl"]


def test_the_file_is_exactly_the_path_given(tmp_path):
    """https://github.com/python/cpython/issues/84858"""
    with MmapDict(tmp_path / "no_suffix", mode="a") as d:
        d["a"] = 1
        assert os.listdir(tmp_path) == ["no_suffix"]
    assert os.listdir(tmp_path) == ["no_suffix"]


# --- many keys, logs -------------------------------------------------------------------------------------------------

def test_listing_keys_touches_no_value(path):
    """https://github.com/h5py/h5py/pull/305"""
    class Heavy:
        def __reduce__(self):
            return pytest.fail, ("it was loaded",)

    with MmapDict(path, "w", trusted=True) as d:
        d.update({i: Heavy() for i in range(100)})
    with MmapDict(path, "r") as r:
        assert list(r) == list(r.keys()) == list(range(100)) and len(r) == 100 and 5 in r and len(r.entries()) == 100
        assert len(repr(r)) and r.keys() == set(range(100))
    os.remove(path)


def test_a_small_array_takes_little_more_than_its_data(d):
    """https://github.com/m-labs/artiq/issues/405"""
    for i in range(1000):
        d[i] = np.zeros(16, "f4")
    assert (d.info()["used"] - 64_000) / 1000 < 100


def test_flush_after_each_of_many(d, path):
    """https://github.com/HDFGroup/hdf5/issues/3084"""
    before = int(written())
    for i in range(50):
        d[i] = i
        d.flush()
    assert int(written()) - before < 50 * 200 and len(plain(path)) == 50


def test_rows_for_each_example_and_names_for_each_layer(d, path):
    """https://github.com/EleutherAI/bergson/pull/16"""
    g = d.create("grads", (1000,), [("attn", "f2", (16,)), ("mlp", "f2", (64,))])
    g["mlp"][17] = 1
    d["ids"] = np.arange(1000)
    assert plain(path)["grads"]["mlp"][17].all() and d["grads"]["mlp"].shape == (1000, 64)


def test_a_second_job_picks_a_few_of_many(path):
    """https://github.com/pomonam/kronfluence/issues/40"""
    put(path, {("sample", i): {"layer3": np.full(4, i)} for i in range(200)})
    with MmapDict(path, "r") as r:
        assert [int(r[("sample", i)]["layer3"][0]) for i in (5, 99, 150)] == [5, 99, 150]


# --- worker processes ------------------------------------------------------------------------------------------------

def test_a_pickled_handle_is_a_reference(d, path):
    """https://github.com/joblib/joblib/issues/38"""
    d["big"] = np.zeros(10**6)
    with MmapDict(path, "r") as r:
        assert len(pickle.dumps(r)) < 1000
        with pickle.loads(pickle.dumps(r)) as other:
            assert is_mapped(other["big"], path)


def test_a_pickled_array_has_the_right_values(d):
    """https://github.com/numpy/numpy/issues/2049"""
    d["a"] = np.arange(1000)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        sent = pickle.loads(pickle.dumps(d["a"], protocol))
        assert (sent == d["a"]).all() and type(sent) is np.ndarray


def test_a_reshaped_array_arrives_as_it_is(d):
    """https://github.com/joblib/joblib/issues/1703"""
    d["a"] = np.arange(15)
    a = d["a"].reshape(5, 3)
    for view in a, a.T, a[::-1], a[:, 1], np.asfortranarray(a):
        sent = pickle.loads(pickle.dumps(view))
        assert (sent == view).all() and sent.flags.f_contiguous is (view.flags.f_contiguous or view.ndim == 1)


def test_a_fork_while_another_thread_reads(d, path):
    """https://github.com/h5py/h5py/issues/2584"""
    d["a"], stop = np.arange(10), threading.Event()

    def read():
        while not stop.is_set():
            d["a"][:], len(d), list(d)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for n in range(10):
            in_fork(lambda: d.__setitem__(("child", n), 1))
    finally:
        stop.set()
        thread.join()
    d["parent"] = 2
    assert {("child", n) for n in range(10)} | {"parent"} <= set(plain(path))


@pytest.mark.parametrize("when", ["in the parent", "in the worker", "at first use"])
def test_a_loader_with_workers(path, when):
    """https://github.com/pytorch/pytorch/issues/113228"""
    put(path, {i: np.full(10, i) for i in range(20)})
    with MmapDict(path, "r") as parent:
        def work(number):
            d = parent if when == "in the parent" else MmapDict(path, "r")
            if when == "at first use":
                with ThreadPoolExecutor(2) as pool:
                    assert list(pool.map(lambda i: int(d[i][0]), range(20))) == list(range(20))
            assert sum(int(d[i].sum()) for i in range(number, 20, 4)) == sum(10 * i for i in range(number, 20, 4))

        join(*[fork(work, number) for number in range(4)])


# --- pickle compatibility --------------------------------------------------------------------------------------------

ALLOWED = {"numpy", "ndarray", "dtype", "numpy.ma", "MaskedArray", "nomask", "float64", "|u1"}


def test_the_names_in_the_file_are_public_ones(d, path):
    """https://github.com/numpy/numpy/issues/28340 and https://github.com/numpy/numpy/issues/12837"""
    d["a"], d["m"], d["s"] = np.arange(6.).reshape(2, 3), np.ma.array([1, 2], mask=[0, 1]), np.float64(1)
    d["in a list"] = [np.arange(3.0)]
    data = path.read_bytes()
    assert b"numpy._core" not in data and b"numpy.core" not in data
    names = {a for o, a, _ in pickletools.genops(data) if o.name in ("GLOBAL", "SHORT_BINUNICODE", "BINUNICODE")}
    assert {n for n in names if not n.startswith(("<", "|"))} <= ALLOWED | set(d)


def test_protocol_4_opcodes_only(d, path):
    """https://github.com/lucianopaz/compress_pickle/issues/23"""
    d["b"], d["a"], d["l"] = bytearray(b"abc"), np.arange(3), [bytearray(9000), np.arange(2)]
    assert all(op.proto <= 4 for op, _, _ in pickletools.genops(path.read_bytes()))


def test_one_value_whose_class_is_gone(path):
    """https://github.com/lisa-lab/pylearn2/issues/31"""
    code = """
class Gone: pass
with mmapdict.MmapDict(path, "a", allow=[Gone]) as d:
    d["ok"], d["gone"], d["later"] = np.arange(3), Gone(), 5
"""
    run(path, code)
    with MmapDict(path, "r") as r, pytest.raises(mmapdict.UntrustedError, match="Gone"):
        r["gone"]
    with MmapDict(path, "r", trusted=True) as r:
        assert r["ok"][2] == 2 and r["later"] == 5 and list(r) == ["ok", "gone", "later"]
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            r["gone"]
    put(path, ok=1)
    with MmapDict(path, "a") as d:
        del d["gone"]
    assert plain(path) == {"later": 5, "ok": 1}


def test_a_successor_that_was_lost_between_two_sectors_does_not_take_its_predecessor_along(tmp_path):
    """The record that takes a key out is on the disk, and where its successor was to be there are STOPs by chance."""
    path = tmp_path / "file"
    with mmapdict.open(path, "x") as d:
        d["kept"], d["key"] = 1, "old"
        d.sync()
        before = d._index.end
        d["key"] = "new"
        drop = d._index.file.record(before)[0]
        data = bytearray(path.read_bytes())
    data[drop.end:drop.end + 512] = b"." * 512
    data[fmt.STOP_OFFSET:fmt.STOP_OFFSET + 8] = drop.end.to_bytes(8, "little")
    path.write_bytes(data)
    assert pickle.loads(data) == {"kept": 1}
    for mode in "r", "r+":
        with pytest.raises(CorruptError, match="none does: it is lost.*repair"):
            mmapdict.open(path, mode)
    assert [fault.offset for fault in mmapdict.verify(path).faults if fault.kind == "record"] == [before]
    report = mmapdict.repair(path, tmp_path / "repaired")
    assert not report.whole and plain(report.output) == {"kept": 1, "key": "old"}
    path.unlink()
