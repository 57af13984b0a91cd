"""The same comes back where the system offers less, and says no in other words: macOS, Windows, sandboxes, odd disks.

Each switch of `systems` alone, and all that a system has together, in this process and with others at the same file.
"""

import errno
import mmap
import os
import resource
import tempfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import faults
import judge
import mmapdict
import systems
from budget import slow_examples
from children import WITH_MMAPDICT, Child, in_fork
from mmapdict import birth, store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

SHARED = ["shared"]
WHOLE = ["macOS", "Windows", "a sandbox", "nothing at all"]
PINNED = {"open files stay", "Windows"}             # where an open file cannot be replaced


def content(items):
    return judge.fingerprint_items(items)


def stored(value):
    """What is expected of a stored value: it is copied, in C order unless it is Fortran's."""
    return np.array(value, order="K" if value.flags.forc else "C") if type(value) is np.ndarray else value


class Checked:
    """A mapping and a dict that go through the same; after each step all readers agree with the dict."""

    def __init__(self, path, mode, **options):
        self.d, self.model = mmapdict.open(path, mode, **options), {}
        self.other = mmapdict.open(path, "r")

    def look(self):
        expected = content(self.model)
        assert content(judge.plain(self.d.path)) == expected
        assert content(self.d) == content(self.other) == expected
        assert len(self.d) == len(self.other) == len(expected)
        with open(self.d.path, "rb") as f:
            faults.check_header(f.read())

    def put(self, key, value):
        self.d[key] = value
        self.model.pop(key, None)
        self.model[key] = stored(value)
        self.look()

    def create(self, key, shape, dtype, **options):
        hole = self.d.create(key, shape, dtype, **options)
        expected = np.zeros(shape, dtype, options.get("order", "C"))
        if options.get("mask"):
            expected = np.ma.array(expected, mask=np.zeros(shape, bool))
        self.model[key] = expected
        self.look()
        for array in hole, expected:
            array[...] = 3
        self.look()

    def delete(self, key):
        del self.d[key], self.model[key]
        self.look()

    def close(self):
        self.other.close()
        self.d.close()


def go_through(path, **options):
    """Do some of everything; return what the file holds in the end."""
    x = Checked(path, "x", **options)
    d, model = x.d, x.model
    x.put("a", 1)
    x.put("array", np.arange(3000))
    x.create("hole", 5000, "u1")
    x.create("sparse", (300, 70), "f4", sparse=True, order="F")
    x.create("masked", 700, ">i4", mask=True)
    x.put("strided", np.arange(40_000).reshape(200, -1)[:, ::3])
    x.put("fortran", np.asfortranarray(np.arange(600.0).reshape(20, -1)))
    x.put("bytes", bytes(range(256)) * 300)
    x.put("text", "é" * 5000)
    x.put("odd", np.ones(5001, "u1"))
    x.put("list", [SHARED, SHARED, {"z": np.float32(1.5), "w": np.arange(50)}])
    x.put("array", np.arange(30_000, dtype=">u2"))
    x.delete("hole")
    assert d.pop("a") == model.pop("a")
    key, value = d.popitem()
    assert judge.fingerprint(value) == judge.fingerprint(model.pop(key))
    del value                                           # where open files stay, an array keeps its map
    assert d.setdefault("a", 5) == model.setdefault("a", 5)
    x.look()
    before = content(d)
    with d.batch():
        d["in batch"] = np.arange(2000)
        d["array"] = "replaced"
        del d["text"]
        d.create("late hole", 4000, "u1")[:] = 9
        d["list"] = [SHARED, SHARED]
        assert content(judge.plain(path)) == content(x.other) == before
    for key in "array", "text", "list":
        model.pop(key, None)
    model.update({"in batch": np.arange(2000), "array": "replaced", "late hole": np.full(4000, 9, "u1"),
                  "list": [SHARED, SHARED]})
    x.look()
    with pytest.raises(ZeroDivisionError):
        with d.batch():
            d["never"] = np.arange(5000)
            del d["array"]
            d["never"] = 1 / 0
    x.look()
    x.put(("more", 1), np.arange(9))
    d.flush()
    d.sync()
    d.clear()
    model.clear()
    x.look()
    for i in range(60):
        d[i] = model[i] = np.full(i * 11, i) if i % 3 else "s" * i
    x.look()
    for i in range(0, 60, 2):
        del d[i], model[i]
    x.look()
    x.close()
    return model


def check_reopened(path, model, cut=True):
    with mmapdict.open(path, "r") as d:
        assert content(d) == content(model) == content(judge.plain(path))
    with mmapdict.open(path, "r+") as d:
        used = d.info()["used"]
        assert used == os.stat(path).st_size if cut else used <= os.stat(path).st_size
        d["last"] = model["last"] = np.arange(4)
        assert content(d) == content(model) == content(judge.plain(path))


def start_anew(path):
    with mmapdict.open(path, "w") as d:
        assert dict(d) == {} == judge.plain(path)
        d["a"] = 1
    assert judge.plain(path) == {"a": 1}


@pytest.mark.parametrize("name", systems.SWITCHES)
def test_everything_comes_back_the_same(name, tmp_path, monkeypatch):
    systems.apply(monkeypatch, name)
    path = tmp_path / "file"
    check_reopened(path, go_through(path))
    start_anew(path)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("name", [*WHOLE, "F_FULLFSYNC", "F_FULLFSYNC refused", "no fdatasync", "no boot id",
                                  "syncs that leave maps out", "folders that are not synced"])
def test_everything_comes_back_the_same_when_it_is_durable(name, tmp_path, monkeypatch):
    systems.apply(monkeypatch, name)
    path = tmp_path / "file"
    check_reopened(path, go_through(path, durable=True))


# -- several processes --------------------------------------------------------------------------------------------

OTHER = """
import judge
d = mmapdict.open(path)
tell("ready", len(d))
while True:
    word = hear()
    if word == "end":
        break
    if word == "count":
        d["count"] = d.get("count", 0) + 1
        tell(d["count"])
    elif word == "fill":
        for i in range(100):
            d["child", i] = np.full(i, i)
        tell("filled")
    elif word == "sum":
        tell(sum(int(a.sum()) for k, a in d.items() if k[0] == "parent"))
    elif word == "hole":
        d["hole"][:] = 7
        tell("done")
    elif word == "batch":
        with d.batch():
            d["half"] = np.arange(1000)
            d.pop("a", None)
            tell("inside")
            hear()
    elif word == "wait":
        tell("waiting")
        tell(d.wait(60), len(d))
d.close()
"""


def child_of(name, path, code=OTHER):
    return Child(path, code, prelude=systems.PRELUDE % ([name],))


@pytest.mark.parametrize("name", systems.SWITCHES)
def test_another_process_under_the_same_system_takes_turns(name, tmp_path, monkeypatch):
    path = tmp_path / "file"
    systems.apply(monkeypatch, name)
    with mmapdict.open(path, "x") as d, child_of(name, path) as child:
        assert child.hear() == "ready 0"
        d["a"] = 1
        child.tell("count")
        assert child.hear() == "1" and d["count"] == 1
        child.tell("fill")
        for i in range(100):
            d["parent", i] = np.full(i, i)
        assert child.hear() == "filled"
        assert len(d) == 202 and all(int(d["child", i].sum()) == i * i for i in range(100))
        child.tell("sum")
        assert int(child.hear()) == sum(i * i for i in range(100))
        hole = d.create("hole", 3000, "u1")
        child.tell("hole")
        assert child.hear() == "done" and (hole == 7).all()
        child.tell("wait")
        assert child.hear() == "waiting"
        d["now"] = 1
        assert child.hear() in ("True 204", "True 203")      # it may have missed the hole's moment
        child.tell("batch")
        assert child.hear() == "inside"
        assert "half" not in judge.plain(path) and "half" not in d and "a" in d
        child.kill()                                         # the lock goes with it; what it wrote counts for nothing
        d["after"] = 1
        assert "half" not in d and d["a"] == 1 and content(d) == content(judge.plain(path))
        del hole


@pytest.mark.parametrize("name", WHOLE)
def test_a_lock_that_another_holds_is_waited_for_no_longer_than_asked(name, tmp_path, monkeypatch):
    path = tmp_path / "file"
    systems.apply(monkeypatch, name)
    with mmapdict.open(path, "x", timeout=0.05) as d, child_of(name, path) as child:
        assert child.hear() == "ready 0"
        d["a"] = 1
        child.tell("batch")
        assert child.hear() == "inside"
        with pytest.raises(mmapdict.BusyError):
            d["b"] = 2
        assert dict(d) == {"a": 1}
        child.tell("go on")
        child.tell("count")
        assert child.hear() == "1"
        d["b"] = 2
        assert set(d) == {"half", "count", "b"}
        child.tell("end")
        child.finish()


@pytest.mark.parametrize("name", WHOLE)
def test_a_limit_of_the_file_size_is_an_error_and_nothing_is_lost(name, tmp_path, monkeypatch):
    path = tmp_path / "file"
    systems.apply(monkeypatch, name)

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        with mmapdict.open(path) as d:
            for refuse in (lambda: d.update(big=np.ones(400_000, "u1")), lambda: d.create("big", 400_000, "u1"),
                           lambda: d.update(big=bytes(400_000)), lambda: d.create("big", 400_000, "u1", sparse=True)):
                with pytest.raises(OSError) as caught:
                    refuse()
                assert caught.value.errno in (errno.EFBIG, errno.ENOSPC)
                assert content(d) == content(judge.plain(path)) == content({"a": 1})
            d["b"] = np.arange(1000)
            del d["a"]

    with mmapdict.open(path) as d:
        d["a"] = 1
    in_fork(child)
    assert list(judge.plain(path)) == ["b"]


# -- files that are open ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", sorted(PINNED))
def test_where_an_open_file_stays_it_is_not_replaced_and_nobody_is_cut_off(name, tmp_path, monkeypatch):
    systems.apply(monkeypatch, name)
    path = tmp_path / "file"
    with mmapdict.open(path) as d:
        d["a"] = 1
        with pytest.raises(PermissionError):
            mmapdict.open(path, "w")
        assert dict(d) == judge.plain(path) == {"a": 1}
        d["b"] = np.arange(2000)
        array = d.create("c", 3000, "u1")
        model = content(d)
        assert d.info()["used"] <= os.stat(path).st_size
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(PermissionError):                # an array keeps its map
        mmapdict.open(path, "w")
    array[:] = 0
    assert content(judge.plain(path)) == model
    del array
    assert os.listdir(tmp_path) == ["file"]
    with mmapdict.open(path, "w") as d:
        assert dict(d) == {}


@pytest.mark.skipif(not hasattr(mmapdict.MmapDict, "vacuum"), reason="there is none")
@pytest.mark.parametrize("name", systems.SWITCHES)
def test_a_vacuum_happens_or_is_refused(name, tmp_path, monkeypatch):
    """It is refused where nobody can tell whether others may still write to the old file."""
    systems.apply(monkeypatch, name)
    path = tmp_path / "file"
    blind = not getattr(store, "HAVE_SHARES", True) or name in ("shares refused", "a sandbox", "no /proc", *PINNED)
    with mmapdict.open(path) as d:
        d.update({i: np.arange(i * 20) for i in range(50)})
        for i in range(25):
            del d[i]
        model = content(d)
        try:
            d.vacuum()
            happened = True
        except OSError:
            happened = False
        assert happened is not blind
        assert content(d) == content(judge.plain(path)) == model
        assert os.listdir(tmp_path) == ["file"]
        d["more"] = 1
        assert judge.plain(path)["more"] == 1
    with mmapdict.open(path) as d:
        assert content(d)[:-1] == model


# -- any sequence of operations -----------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", 1, True, 2.5, ("t", 0), b"bytes", None])
VALUES = st.one_of(
    st.builds(lambda n, dtype, step: np.arange(n * step).astype(dtype)[::step], st.sampled_from([0, 1, 7, 600, 2001]),
              st.sampled_from(["u1", "<i4", ">i4", "f8", "M8[s]"]), st.integers(1, 2)),
    st.integers(), st.text(max_size=3), st.binary(max_size=5), st.just("x" * 6000),
    st.lists(st.just(SHARED), max_size=3))
CHANGES = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES), st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("create"), KEYS, st.integers(0, 9000)), st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("clear")))
STEPS = st.one_of(
    CHANGES, CHANGES, st.tuples(st.just("fill"), KEYS, st.integers(0, 9)),     # a batch does not take elements back
    st.tuples(st.just("batch"), st.lists(CHANGES, max_size=4), st.booleans()),
    st.tuples(st.sampled_from(["popitem", "sync", "reopen", "swap", "vacuum"])))


def change(d, model, kind, key=None, value=None):
    """Do the same to a mapping and to a dict, if it makes sense."""
    if kind == "set":
        d[key] = value
        kept = next((k for k in model if k == key), key)
        model.pop(key, None)
        model[kept] = stored(value)
    elif kind == "create" and key not in model:
        d.create(key, value, "u1")[:] = 5
        model[key] = np.full(value, 5, "u1")
    elif kind == "delete" and key in model:
        del d[key], model[key]
    elif kind == "fill" and type(model.get(key)) is np.ndarray:
        d[key][...] = value
        model[key] = np.full_like(model[key], value)
    elif kind == "clear":
        d.clear()
        model.clear()


def walk_through(folder, steps):
    """Go through steps with two handles by turns; all readers agree with the dict after each."""
    path = os.path.join(folder, "file")
    handles, look, model = [mmapdict.open(path), mmapdict.open(path, durable=True)], mmapdict.open(path, "r"), {}
    for kind, *rest in steps:
        d = handles[0]
        if kind == "batch":
            before = dict(model)
            changes, good = rest
            try:
                with d.batch():
                    for one in changes:
                        change(d, model, *one)
                    if not good:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                model = before
        elif kind == "popitem":
            if model:
                key, value = d.popitem()
                assert judge.fingerprint(value) == judge.fingerprint(model.pop(key))
                del value
        elif kind == "sync":
            d.sync()
        elif kind == "reopen":
            d.close()
            handles[0] = mmapdict.open(path, "r+")
        elif kind == "swap":
            handles.reverse()
        elif kind == "vacuum":
            handles[1].close()
            try:
                d.vacuum()
            except mmapdict.BusyError as exc:
                assert exc.errno == errno.ENOTSUP       # it cannot be told who else may write
            handles[1] = mmapdict.open(path)
        else:
            change(d, model, kind, *rest)
        expected = content(model)
        assert content(judge.plain(path)) == content(handles[0]) == content(handles[1]) == content(look) == expected
        assert len(look) == len(handles[1]) == len(expected) and os.listdir(folder) == ["file"]
    for d in *handles, look:
        d.close()
    with open(path, "rb") as f:
        faults.check_header(f.read())


def walk_at_random(examples, below):
    """Walk through random steps, a number of times."""
    @hypothesis.settings(max_examples=examples, derandomize=True, database=None)
    @hypothesis.given(st.lists(STEPS, max_size=30))
    def run(steps):
        with tempfile.TemporaryDirectory(dir=below) as folder:
            walk_through(folder, steps)

    run()


@pytest.mark.parametrize("name", [*WHOLE, "pages of 64 KiB", "blocks smaller than pages", "no links (FAT)"])
def test_random_operations_beside_a_dict(name, tmp_path, monkeypatch):
    systems.apply(monkeypatch, name)
    walk_at_random(20, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", systems.SWITCHES)
def test_many_random_operations_beside_a_dict(name, tmp_path, monkeypatch):
    systems.apply(monkeypatch, name)
    walk_at_random(slow_examples(300), tmp_path)


# -- errors that mean no lack of something: they come through, with the path, and nothing has happened --------------

def change_fcntl(monkeypatch, **replaced):
    monkeypatch.setattr(store, "fcntl", systems.Proxy(store.fcntl, **replaced))


def refuse_map(error):
    def switch(monkeypatch):
        def refused(*arguments, **options):
            raise error
        monkeypatch.setattr(store, "mmap", systems.Proxy(mmap, mmap=refused))
    return switch


def refuse_os(name, number):
    return lambda monkeypatch: monkeypatch.setattr(os, name, systems.refuse(number))


def refuse_cut(monkeypatch):
    cut = os.ftruncate

    def refused(fd, size):
        if size < os.fstat(fd).st_size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        cut(fd, size)
    monkeypatch.setattr(os, "ftruncate", refused)


def refuse_pages(monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", systems.refuse(errno.ENOSPC))


HARD = {
    "create": (refuse_cut, lambda d: d.create("h", 5000, "u1"), errno.EIO),
    "find room": (refuse_os("posix_fallocate", errno.EIO), lambda d: d.create("h", 5000, "u1"), errno.EIO),
    "copy": (refuse_os("copy_file_range", errno.EIO), lambda d: d.vacuum(), errno.EIO),
    "sync the folder": (refuse_os("fsync", errno.EIO), lambda d: d.sync(), errno.EIO),
    "lock": (lambda patch: change_fcntl(patch, flock=systems.refuse(errno.ENOLCK)), lambda d: d.__setitem__("a", 2),
             errno.ENOLCK),
    "far too long": (lambda patch: None, lambda d: d._file.make_room(1 << 57), errno.EFBIG),
}


@pytest.mark.parametrize("name", HARD)
def test_another_error_comes_through_and_nothing_has_happened(name, tmp_path, monkeypatch):
    switch, operation, number = HARD[name]
    path = tmp_path / "file"
    model = {"a": 1, "b": np.arange(400_000)}
    with mmapdict.open(path, timeout=5) as d:
        d.update({"junk": np.arange(200_000), **model})
        del d["junk"]
        with monkeypatch.context() as patch:
            switch(patch)
            with pytest.raises(OSError) as caught:
                operation(d)
            assert caught.value.errno == number
        assert content(d) == content(judge.plain(path)) == content(model)
        assert os.listdir(tmp_path) == ["file"]
        d["c"] = model["c"] = 3
        assert content(judge.plain(path)) == content(model)


@pytest.mark.parametrize("error, number", [(OSError(errno.ENODEV, "No such device"), errno.ENODEV),
                                           (OverflowError("too long for 32 bits"), errno.ENOMEM),
                                           (ValueError("mmap length is greater than file size"), errno.EAGAIN)])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_cannot_be_mapped(error, number, mode, tmp_path, monkeypatch):
    path = tmp_path / "file"
    mmapdict.open(path).close()
    refuse_map(error)(monkeypatch)
    with pytest.raises(OSError) as caught:
        mmapdict.open(path, mode)
    assert caught.value.errno == number and caught.value.filename == os.fspath(path)


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_a_lock_of_the_far_byte_that_fails(number, tmp_path, monkeypatch):
    """A system without such locks is one thing, a lock that fails another."""
    def refused(fd, command, argument=0):
        raise OSError(number, os.strerror(number))

    path = tmp_path / "file"
    mmapdict.open(path).close()
    change_fcntl(monkeypatch, fcntl=refused)
    if number == errno.EIO:
        with pytest.raises(OSError) as caught:
            mmapdict.open(path)
        assert caught.value.errno == number
    else:
        with mmapdict.open(path) as d:
            d["a"] = 1
        assert judge.plain(path) == {"a": 1}


def test_a_full_sync_that_fails_is_not_made_a_weak_one(tmp_path, monkeypatch):
    with mmapdict.open(tmp_path / "file") as d:
        d["a"] = 1
        with monkeypatch.context() as patch:
            systems.full_sync(systems.refuse(errno.EIO))(
                lambda module, name, value: patch.setattr(module, name, value, raising=False))
            with pytest.raises(OSError) as caught:
                d.sync()
            assert caught.value.errno == errno.EIO


def test_small_blocks_for_which_there_is_no_room(tmp_path, monkeypatch):
    systems.apply(monkeypatch, "blocks smaller than pages")
    with mmapdict.open(tmp_path / "file") as d:
        refuse_pages(monkeypatch)
        with pytest.raises(OSError) as caught:
            d["a"] = 1
        assert caught.value.errno == errno.ENOSPC and len(d) == 0


@pytest.mark.parametrize("inside", [True, False])
def test_a_source_that_ends_while_it_is_copied(inside, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "HAVE_COPY_RANGE", inside)
    for name in "one", "two":
        with mmapdict.open(tmp_path / name) as d:
            d["a"] = 1
    one, two = (store.File(os.fspath(tmp_path / name), True) for name in ("one", "two"))
    try:
        with pytest.raises(OSError) as caught:
            two.copy(two.size, one, one.size - 10, 100)
        assert caught.value.errno == errno.EIO and caught.value.filename == one.path
    finally:
        two.truncate(one.size)
        one.close()
        two.close()


@pytest.mark.parametrize("nameless", [True, False])
def test_a_file_that_another_makes_at_the_same_moment(nameless, tmp_path, monkeypatch):
    path = os.fspath(tmp_path / "file")
    monkeypatch.setattr(birth, "HAVE_TMPFILE", nameless and birth.HAVE_TMPFILE)
    with mmapdict.open(path) as d:
        d["a"] = 1
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "lexists", lambda path: False)
        assert not birth.create_file(path, birth.new_content())
    assert judge.plain(path) == {"a": 1} and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("mode", ["a", "w"])
def test_a_new_file_that_cannot_be_written(mode, nameless, tmp_path, monkeypatch):
    path = tmp_path / "file"
    monkeypatch.setattr(birth, "HAVE_TMPFILE", nameless and birth.HAVE_TMPFILE)
    if mode == "w":
        with mmapdict.open(path) as d:
            d["a"] = 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", systems.refuse(errno.EDQUOT))
        with pytest.raises(OSError) as caught:
            mmapdict.open(path, mode)
        assert caught.value.errno == errno.EDQUOT and caught.value.filename == os.fspath(path)
    assert os.listdir(tmp_path) == (["file"] if mode == "w" else [])
    assert mode == "a" or judge.plain(path) == {"a": 1}


def test_a_name_is_given_by_a_link_or_where_there_are_none_by_renaming(tmp_path, monkeypatch):
    one, two = os.fspath(tmp_path / "one"), os.fspath(tmp_path / "two")
    for path in one, two:
        mmapdict.open(path).close()
    for number, error in (errno.EPERM, FileExistsError), (errno.EIO, OSError):
        monkeypatch.setattr(os, "link", systems.refuse(number))
        with pytest.raises(error) as caught:
            birth._link_or_rename(one, two)
        assert caught.value.errno in (errno.EEXIST, errno.EIO) and caught.value.filename == two
    monkeypatch.setattr(os, "link", systems.refuse(errno.ENOTSUP))
    birth._link_or_rename(one, os.fspath(tmp_path / "three"))
    assert sorted(os.listdir(tmp_path)) == ["three", "two"]


def test_the_child_of_a_test_has_the_other_system(tmp_path):
    code = "from mmapdict import store; tell(store.HAVE_PWRITE, store.fcntl, hasattr(os, 'register_at_fork'))"
    with child_of("Windows", tmp_path / "file", code) as child:
        assert child.hear() == "False None False"
    with Child(tmp_path / "file", code, prelude=WITH_MMAPDICT) as child:
        assert child.hear().startswith("True <module 'fcntl'") and store.fcntl is not None
