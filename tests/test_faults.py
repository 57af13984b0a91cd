"""Stores that fail: the error comes through, file and object are as before or after, and work on afterwards."""

import errno
import gc
import mmap
import os
import pickle
import resource
import subprocess
import sys
import types
from contextlib import suppress

import numpy as np
import pytest

import faults
import mmapdict
import systems
from children import in_fork
from mmapdict import birth, store
from operations import ARRAY, GROWING, MASKED, SHARED, SINGLE, Grow, assign, content, create, delete, prepare, put


def descriptors(expected=None, collect=True):
    """How many descriptors are open; those of garbage do not count."""
    if not os.path.isdir("/proc/self/fd"):
        return 0
    if collect and len(os.listdir("/proc/self/fd")) != expected:
        gc.collect()                # slow
    return len(os.listdir("/proc/self/fd"))


def plain(path):
    with open(path, "rb") as f:
        return pickle.load(f)


# -- one store fails ----------------------------------------------------------------------------------------------


def states_of(name):
    """The items before an operation, what they can be after it, and it."""
    items, operation, steps = {**SINGLE, **GROWING}[name]
    model = {key: value.rows if isinstance(value, Grow) else value for key, value in items.items()}
    states = [content(model)]
    for step in steps or [operation]:
        step(model)
        states.append(content(model))
    return items, operation, states


def check_consistent(d, states):
    """The mapping and the file hold the same, which is one of `states`."""
    found = content(plain(d.path))
    assert found in states
    assert content(d) == found
    assert len(d) == len(found)
    assert {key: tuple(faults_print) for key, faults_print in content({k: d[k] for k in found}).items()} == found
    return found


def check_fault(path, name, fault, other):
    """Do an operation while a store fails; return whether the fault came about."""
    items, operation, states = states_of(name)
    prepare(path, items)
    with mmapdict.open(path, "r+") as d:
        held = d["b"] if isinstance(d.get("b"), np.ndarray) else None
        other.refresh(path)
        fault.arm()
        try:
            operation(d)
        except OSError as exc:
            assert fault.error is OSError and exc.errno == errno.ENOSPC
        except KeyboardInterrupt:
            assert fault.error is KeyboardInterrupt
        else:
            # A fault that is not told of was in something that need not succeed.
            assert content(d) == states[-1]
        finally:
            raised, armed = fault.raised, fault.armed
            fault.armed = armed and fault.lasting
        found = check_consistent(d, states)
        if fault.armed and raised:
            # Nothing can be stored: every change says so, and looking goes on.
            for change in (lambda x: x.__setitem__("x", 1), lambda x: x.pop("b", None), lambda x: x.clear()):
                after = dict(plain(path))
                change(after)
                if content(after) != found:
                    with pytest.raises((OSError, KeyboardInterrupt)):
                        change(d)
                    found = check_consistent(d, [found, content(after)])
        fault.disarm()
        if held is not None:
            assert (held == ARRAY).all()
        # Others are not locked out, and see the same.
        assert content(other.d) == found
        other.d["from another"] = 1
        assert d["from another"] == 1
        d["afterwards"] = [SHARED, SHARED]
        found = {**found, **content({"from another": 1, "afterwards": [SHARED, SHARED]})}
        check_consistent(d, [found])
        assert content(other.d) == found
        faults.check_header(path.read_bytes())
    return raised


class Other:
    """A second handle of the file, whose stores do not fail."""

    def __init__(self):
        self.d = None

    def refresh(self, path):
        self.close()
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(birth, "File", store.File)
            self.d = mmapdict.open(path, "r+")

    def close(self):
        if self.d is not None:
            self.d.close()


@pytest.fixture
def other():
    other = Other()
    yield other
    other.close()


MOVES_AGAIN = {"resize longer where rows were taken away", "extend a full array", "big append to a full array"}


# What is stored in other ways than by these is stored by some of SINGLE.
ROWS = {"append", "append to a trimmed array", "resize shorter", "resize longer", "resize longer than the room",
        "extend", "trim", *MOVES_AGAIN}


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("name", [*SINGLE, *(name if name in ROWS else pytest.param(name, marks=pytest.mark.slow)
                                             for name in GROWING)])
def test_every_store_fails_once_and_for_good(name, error, step, tmp_path, monkeypatch, other, request):
    """Or, with a step, every store in one way or another."""
    path = tmp_path / "file"
    fault = faults.Fault(error=error).install(monkeypatch)
    before = descriptors()
    ways = [("before", False), ("part", False), ("after", False)]
    if error is OSError:
        ways = [("before", False), ("part", True), ("before", True), ("after", False)]
    for first, (fault.how, fault.lasting) in enumerate(ways):
        for fault.at in range(first % step, 50, step):
            if not check_fault(path, name, fault, other):
                break
        assert fault.at < 47 and (fault.at > 3 or name in GROWING)
    other.close()
    other.d = None
    assert descriptors(before) == before
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_every_store_of_the_mending_fails(error, tmp_path, monkeypatch):
    """The writer that comes after a killed one fails, and so does the one after it."""
    path = tmp_path / "file"
    recorder = faults.Recorder()
    with monkeypatch.context() as patch:
        recorder.install(patch)
        for key in "replace an array", "clear":
            items, operation, states = states_of(key)
            prepare(path, items)
            with mmapdict.open(path, "r+") as d:
                before = path.read_bytes()
                recorder.take()
                operation(d)
            stores = recorder.take()
            for n in range(len(stores)):
                data = faults.replay(before, stores[:n])
                if faults.cell(data, faults.COMMIT) % 2:
                    check_mending(path, data, error)


def check_mending(path, data, error):
    expected = content(pickle.loads(data))
    for at in range(60):
        faults.overwrite(path, data)
        with pytest.MonkeyPatch.context() as patch:
            fault = faults.Fault(at=at, error=error).install(patch)
            with mmapdict.open(path, "r+") as d:
                fault.arm()
                try:
                    d["more"] = 1
                except (OSError, KeyboardInterrupt):
                    check_consistent(d, [expected, {**expected, **content({"more": 1})}])
                fault.disarm()
                d["more"] = 1
                check_consistent(d, [{**expected, **content({"more": 1})}])
                faults.check_header(path.read_bytes())
                for key in list(d):
                    del d[key]
                    assert key not in plain(path)
            if not fault.raised:
                return
    pytest.fail("there is no end of stores")


@pytest.mark.parametrize("name", ["flush", "sync"])
def test_a_disk_that_reports_an_error_at_sync(name, tmp_path, monkeypatch):
    fault = faults.Fault().install(monkeypatch)
    with mmapdict.open(tmp_path / "file", "w") as d:
        d["a"] = 1
        fault.arm()
        with pytest.raises(OSError) as caught:
            getattr(d, name)()
        assert caught.value.errno == errno.ENOSPC
        fault.disarm()
        getattr(d, name)()
        assert dict(d) == {"a": 1}


def test_closing_succeeds_although_spare_room_cannot_be_given_back(tmp_path, monkeypatch):
    before = descriptors()
    fault = faults.Fault(lasting=True).install(monkeypatch)
    d = mmapdict.open(tmp_path / "file", "w")
    d["a"] = 1
    fault.arm()
    d.close()
    assert fault.raised and d.closed
    assert descriptors(before) == before
    assert plain(tmp_path / "file") == {"a": 1}


# -- other calls of the system fail -------------------------------------------------------------------------------


def test_a_lock_that_cannot_be_had_is_an_oserror(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    with mmapdict.open(tmp_path / "file", "w") as d:
        d["a"] = 1
        with monkeypatch.context() as patch:
            patch.setattr(store, "_flock", refuse)
            with pytest.raises(OSError) as caught:
                d["a"] = 2
            assert caught.value.errno == errno.ENOLCK
            assert dict(d) == {"a": 1}
        d["a"] = 3
        assert dict(d) == plain(d.path) == {"a": 3}


def test_a_path_that_cannot_be_looked_at_leaves_nobody_locked_out(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_find_statx", lambda *arguments: None, raising=False)
    path = tmp_path / "file"
    real = os.stat

    def refuse(what, *arguments, **options):
        if what == os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), what)
        return real(what, *arguments, **options)
    with mmapdict.open(path, "w") as d, mmapdict.open(path) as other:
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", refuse)
            with pytest.raises(PermissionError):
                d["a"] = 1
        assert try_lock(other)
        other["b"] = 2
        d["a"] = 1
        assert dict(d) == dict(other) == {"b": 2, "a": 1}


def try_lock(d):
    """Whether another process could take the writers' lock of the file."""
    code = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'rb'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-c", code, d.path], stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_too_few_descriptors_is_an_oserror_and_nothing_is_leaked(tmp_path):
    path = tmp_path / "file"
    prepare(path, {"a": 1, "b": ARRAY})
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = []
    try:
        for limit in range(3, before + 12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                with mmapdict.open(path, "r+") as d:
                    outcomes.append("opened")
                    assert d["a"] == 1 and (d["b"] == ARRAY).all()
                    d["a"] = 1
                    d.create("hole", 5 << 20, "u1")     # needs a map of its own
                    d.clear()
                    d.update({"a": 1, "b": ARRAY})
            except OSError as exc:
                assert exc.errno == errno.EMFILE
                outcomes.append("failed")
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert descriptors(before) == before
            assert set(plain(path)) <= {"a", "b", "hole"}
            prepare(path, {"a": 1, "b": ARRAY})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcomes[0] == "failed" and outcomes[-1] == "opened"


@pytest.mark.parametrize("windows", [1, 2, 8])
def test_every_map_fails(windows, tmp_path, monkeypatch):
    """For want of memory, while a file is opened, read and written that outgrows each of its maps."""
    monkeypatch.setattr(store, "WINDOWS_MAX", windows)
    monkeypatch.setattr(store, "AHEAD_LEAST", 0)
    path = tmp_path / "file"
    before = descriptors()
    failing = [None]
    count = [0]

    def make_map(*arguments, **options):
        count[0] += 1
        if count[0] == failing[0]:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return mmap.mmap(*arguments, **options)
    monkeypatch.setattr(store, "mmap", systems.Proxy(mmap, mmap=make_map))
    for n in range(1, 60):
        failing[0] = None
        prepare(path, OLD)
        model = dict(OLD)
        failing[0], count[0] = n, 0
        try:
            d = mmapdict.open(path, "r+")
        except OSError as exc:
            assert exc.errno == errno.ENOMEM
            continue
        with d:
            for i in range(6):
                for change in (assign(i, np.full(3000, i)), assign("b", ARRAY + i), delete(i - 1),
                               lambda x: create(x, ("hole", i), 5000, "u1")):       # noqa: B023
                    after = dict(model)
                    with suppress(KeyError):
                        change(after)
                    states = [content(after)]
                    try:
                        with suppress(KeyError):
                            change(d)
                    except OSError as exc:
                        assert exc.errno == errno.ENOMEM
                        states.append(content(model))
                    found = check_consistent_or_no_memory(d, states)
                    if found == states[0]:
                        model = after
        del d
        if count[0] < n:
            break
    assert 3 < n < 59
    assert descriptors(before) == before


def check_consistent_or_no_memory(d, states):
    try:
        return check_consistent(d, states)
    except OSError as exc:
        assert exc.errno == errno.ENOMEM
        return check_consistent(d, states)


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("mode", ["a", "x", "w"])
def test_every_call_fails_while_a_file_is_made(mode, nameless, tmp_path, monkeypatch):
    """No file is left behind, and none that is half written; descriptors are closed."""
    monkeypatch.setattr(birth, "HAVE_TMPFILE", nameless and birth.HAVE_TMPFILE)
    path = tmp_path / "file"
    before = descriptors()
    for error in (OSError, KeyboardInterrupt):
        for lasting in (False, True):
            for at in range(20):
                with monkeypatch.context() as patch:
                    calls = FailingCalls(patch, at, error, lasting)
                    try:
                        mmapdict.open(path, mode).close()
                    except OSError as exc:
                        assert error is OSError and exc.errno == errno.EIO
                        assert exc.filename == os.fspath(path)
                    except KeyboardInterrupt:
                        assert error is KeyboardInterrupt
                    else:
                        assert plain(path) == {}
                assert os.listdir(tmp_path) in ([], ["file"])
                if path.exists():
                    assert plain(path) == {}
                    path.unlink()
                assert descriptors(before) == before
                if not calls.raised:
                    break
            assert not calls.raised and at > 2


class FailingCalls:
    """Lets the n-th call that `birth` makes fail, of those that make something."""

    def __init__(self, monkeypatch, at, error, lasting=False):
        self.at, self.error, self.lasting = at, error, lasting
        self.count = self.raised = 0
        monkeypatch.setattr(birth, "os", self)

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in ("open", "write", "link", "replace", "chmod"):
            return real

        def call(*arguments, **options):
            self.count += 1
            if self.count - 1 == self.at or self.lasting and self.count > self.at:
                self.raised += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO)) if self.error is OSError else self.error()
            return real(*arguments, **options)
        return call


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_every_call_fails_while_a_file_is_replaced(error, tmp_path, monkeypatch):
    path = tmp_path / "file"
    before = descriptors()
    for at in range(20):
        prepare(path, {"old": 1})
        with mmapdict.open(path) as other:
            with monkeypatch.context() as patch:
                calls = FailingCalls(patch, at, error)
                try:
                    mmapdict.open(path, "w").close()
                except (OSError, KeyboardInterrupt):
                    pass
            assert os.listdir(tmp_path) == ["file"]
            found = plain(path)
            assert found in ({}, {"old": 1})
            assert dict(other) == found
            other["more"] = 1
            assert plain(path) == {**found, "more": 1}
            faults.check_header(path.read_bytes())
        path.unlink()
        assert descriptors(before) == before
        if not calls.raised:
            break
    assert 4 < at < 20


def test_a_limit_shorter_than_a_header_leaves_no_file(tmp_path):
    code = """
import resource, sys, mmapdict
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for mode in "a", "x", "w":
    try:
        mmapdict.open(sys.argv[1], mode)
    except OSError as exc:
        print(exc.errno)
"""
    done = run(code, tmp_path / "file")
    assert done.stdout.split() == [str(errno.EFBIG)] * 3
    assert os.listdir(tmp_path) == []


def run(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, "-c", code, *map(os.fspath, arguments)], env=environment, check=True,
                          capture_output=True, text=True)


# -- a disk that is full ------------------------------------------------------------------------------------------

DISK = 6 << 20


@pytest.fixture
def small_disk(tmp_path):
    """A folder with a file system of its own, of 6 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % DISK, "tmpfs", folder], capture_output=True,
                              check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip("mounting is not permitted here")
    yield folder
    gc.collect()
    subprocess.run(["umount", "-l", folder], check=True)


# Each takes more room than there is.
TOO_BIG = {
    "set": lambda d: d.__setitem__("new", np.ones(DISK, "u1")),
    "set a strided array": lambda d: d.__setitem__("new", np.ones((DISK, 2), "u1")[:, 0]),
    "set bytes": lambda d: d.__setitem__("new", bytes(DISK)),
    "replace": lambda d: d.__setitem__("b", np.ones(DISK, "u1")),
    "create": lambda d: d.create("new", DISK, "u1"),
    "create masked": lambda d: d.create("new", DISK // 2, "u1", mask=True),
    "setdefault": lambda d: d.setdefault("new", np.ones(DISK, "u1")),
    "big key": lambda d: d.__setitem__("k" * DISK, 1),
    "update": lambda d: d.update(new=np.ones(DISK, "u1")),
}
OLD = {"a": 1, "b": ARRAY, "c": [SHARED, SHARED], "d": MASKED}


def check_full(d, operation, found):
    before = os.stat(d.path).st_blocks
    with pytest.raises(OSError) as caught:
        operation(d)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert content(plain(d.path)) == content(d) == found
    assert os.stat(d.path).st_blocks <= before + 16, "the room was not given back"
    faults.check_header(open_bytes(d.path))


def open_bytes(path):
    with open(path, "rb") as f:
        return f.read()


@pytest.mark.parametrize("name", TOO_BIG)
def test_a_full_disk_is_an_oserror_and_changes_nothing(name, small_disk):
    path = small_disk / "file"
    prepare(path, OLD)
    with mmapdict.open(path) as d:
        d["b"] = ARRAY              # the spare room is there
        check_full(d, TOO_BIG[name], content(OLD))
        d["small"] = 1
        d.create("hole", 1000, "u1")[:] = 7
        assert content(plain(path)) == content({**OLD, "small": 1, "hole": np.full(1000, 7, "u1")})


def test_a_sparse_hole_takes_no_room(tmp_path):
    with mmapdict.open(tmp_path / "file") as d:
        hole = d.create("sparse", 1 << 24, "u1", sparse=True)
        assert os.stat(d.path).st_blocks * 512 < 1 << 20
        hole[12345678] = 1
        assert d["sparse"][12345678] == 1
        d.create("real", 1 << 24, "u1")
        assert os.stat(d.path).st_blocks * 512 >= 1 << 24


@pytest.mark.parametrize("dtype", ["u1", ">f8"])
def test_a_hole_has_its_blocks(dtype, tmp_path):
    with mmapdict.open(tmp_path / "file") as d:
        for n in (1000, 100000, 1 << 21):
            before = os.stat(d.path).st_blocks
            hole = d.create(("hole", n), n, dtype)
            assert os.stat(d.path).st_blocks - before >= (hole.nbytes - 4096) // 512
            assert not hole.any()


@pytest.mark.parametrize("name", TOO_BIG)
def test_a_limit_of_the_file_size_is_an_oserror_and_changes_nothing(name, tmp_path):
    """RLIMIT_FSIZE, in a process of its own: every call that would make the file longer fails."""
    path = tmp_path / "file"
    prepare(path, OLD)

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK // 2, DISK // 2))
        with mmapdict.open(path) as d:
            check_full(d, TOO_BIG[name], content(OLD))
            d["small"] = 1
            assert content(plain(path)) == content(d) == content({**OLD, "small": 1})

    in_fork(child)


def test_small_items_up_to_a_limit_of_the_file_size(tmp_path):
    path = tmp_path / "file"

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
        with mmapdict.open(path) as d:
            model = {}
            for i in range(100000):
                try:
                    d[i] = "x" * (3000 if i < 30 else 1)
                except OSError as exc:
                    assert exc.errno == errno.EFBIG
                    break
                model[i] = d[i]
            assert i > 100
            check_consistent(d, [content(model)])
            del d[3], model[3]
            check_consistent(d, [content(model)])
        faults.check_header(path.read_bytes())

    in_fork(child)


# -- the ways of other systems ------------------------------------------------------------------------------------

class Counted:
    """A function that knows whether it was called."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        return self.function(*arguments, **options)


def late_locks(change):
    """Locks of single bytes, each of which is refused once before it is given."""
    systems.SWITCHES["locks of bytes"](change)
    module, refused = store.msvcrt, set()

    def locking(descriptor, mode, n):
        identity = os.fstat(descriptor).st_ino
        if mode == module.LK_UNLCK:
            refused.discard(identity)
        elif identity not in refused:
            refused.add(identity)
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        module.locking(descriptor, mode, n)
    change(store, "msvcrt", systems.Proxy(module, locking=Counted(locking)))


LESS = {name: systems.SWITCHES[name] for name in (
    "no pwritev", "no pwrite", "no fallocate", "fallocate not supported", "fallocate refused", "fallocate interrupted",
    "no nameless files", "no links (FAT)", "another byte order", "short writes", "small groups", "few maps")}
LESS["late locks of bytes"] = late_locks


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", LESS)
def test_the_same_comes_back_where_the_system_offers_less(name, in_place, tmp_path, monkeypatch):
    """What takes a call's place is called, too."""
    calls = []

    def change(module, attribute, value):
        if isinstance(value, types.FunctionType):
            value = Counted(value)
        if isinstance(value, Counted):
            calls.append(value)
        monkeypatch.setattr(module, attribute, value, raising=False)

    if not in_place:
        systems.SWITCHES["blocks that move"](change)
    if name == "another byte order":
        change(store, "_OtherOrderCells", Counted(store._OtherOrderCells))
    LESS[name](change)
    path = tmp_path / "file"
    for mode in ("x", "w", "r+", "a"):
        with mmapdict.open(path, mode) as d:
            d.clear()
            model = {}
            for items, operation, _ in SINGLE.values():
                for key in set(model) - set(items):
                    del d[key], model[key]
                for key, value in items.items():
                    put(d, key, value)
                    put(model, key, value)
                operation(d)
                operation(model)
                assert content(d) == content(model)
            check_consistent(d, [content(model)])
    big = np.arange(140_000).reshape(2, -1)
    with mmapdict.open(path) as d, mmapdict.open(path) as other:
        d["big"], d["strided"], d["bytes"] = big, big.T, big.tobytes()
        other.create("hole", 1_234_567, "u1")[:] = 3
        other["both"] = [big, big]
        hole = d["hole"]
        other["big"] = big[::-1]
        assert (hole == 3).all() and (d["strided"] == big.T).all()
    with mmapdict.open(path, "r") as d:
        assert (d["big"] == big[::-1]).all() and d["bytes"] == big.tobytes() and (d["both"][1] == big).all()
        assert content(d) == content(plain(path))
    faults.check_header(path.read_bytes())
    assert os.listdir(tmp_path) == ["file"]
    assert all(call.calls for call in calls)


@pytest.mark.parametrize("n", range(1, 40, 2))
def test_writes_that_are_cut_short_anywhere_are_finished(n, tmp_path, monkeypatch):
    systems.short_writes(n)(monkeypatch.setattr)
    prepare(tmp_path / "file", OLD)
    with mmapdict.open(tmp_path / "file") as d:
        d["more"] = np.arange(9, dtype=">i2")
        d.create("masked", 4, "u1", mask=True)
        d["both"] = {"a": ARRAY, "b": bytes(5000), "c": SHARED, "d": SHARED}
        check_consistent(d, [content({**OLD, "more": np.arange(9, dtype=">i2"), "both": d["both"],
                                      "masked": np.ma.array(np.zeros(4, "u1"), mask=[0] * 4)})])


def test_a_write_that_stores_nothing_is_an_error_and_no_endless_loop(tmp_path, monkeypatch):
    with mmapdict.open(tmp_path / "file") as d:
        d["a"] = 1
        with monkeypatch.context() as patch:
            systems.short_writes(0)(patch.setattr)
            for value in (2, np.ones(1 << 16)):
                with pytest.raises(OSError) as caught:
                    d["a"] = value
                assert caught.value.errno == errno.EIO
        assert dict(d) == plain(d.path) == {"a": 1}


# -- Ctrl-C at any moment -----------------------------------------------------------------------------------------

PACKAGE = os.path.dirname(mmapdict.__file__)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th moment at which the interpreter would look for a signal.

    It does so, besides at the end of a loop, when it begins a function and after a call of one written in C.
    """

    def __init__(self, at):
        self.at, self.count = at, 0

    def look(self, frame, event, argument):
        if event in ("call", "c_return") and os.path.dirname(frame.f_code.co_filename) == PACKAGE:
            self.count += 1
            if self.count - 1 == self.at:
                raise KeyboardInterrupt

    def run(self, operation, d):
        """Return whether it came so far."""
        before = sys.getprofile()
        sys.setprofile(self.look)
        try:
            with suppress(KeyboardInterrupt):
                operation(d)
        finally:
            sys.setprofile(before)
        return self.count > self.at


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")     # while a generator is closed
@pytest.mark.parametrize("name", ["set new", "replace an array", "delete", "create masked", "clear", "popitem",
                                  "setdefault", "first array"])
def test_an_interrupt_at_any_moment_leaves_the_state_before_or_after(name, tmp_path, other):
    path = tmp_path / "file"
    items, operation, states = states_of(name)
    before = descriptors()
    for at in range(0, 3000, 1 if name == "replace an array" else 3):
        prepare(path, items)
        with mmapdict.open(path, "r+") as d:
            other.refresh(path)
            interrupted = Interrupt(at).run(operation, d)
            found = check_consistent(d, states)
            other.d["from another"] = 1
            d["afterwards"] = 2
            check_consistent(d, [{**found, **content({"from another": 1, "afterwards": 2})}])
            faults.check_header(path.read_bytes())
        if not interrupted:
            break
    assert at > 20 and not interrupted
    other.close()
    other.d = None
    assert descriptors(before) == before


@pytest.mark.parametrize("sparse", [False, True])
def test_no_address_space_for_the_map_of_a_hole(tmp_path, sparse, run_child):
    """The map fails behind the last store into the file: nothing was published, and the room is given back."""
    path = tmp_path / "f"
    mmapdict.open(path, "x").close()
    run_child(path, f"""
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
with mmapdict.open(path) as d:
    d["a"] = 1
    try:
        d.create("h", (3 << 30,), "u1", sparse={sparse})
    except OSError as error:
        assert error.errno == errno.ENOMEM, error
    else:
        raise AssertionError("there was room")
    assert list(d) == ["a"] and os.stat(path).st_blocks * 512 < 1 << 20
    d["b"] = 2
    assert d == {{"a": 1, "b": 2}}
""")
    assert plain(path) == {"a": 1, "b": 2} and path.stat().st_size < 4096


@pytest.fixture
def run_child():
    def run(path, code):
        prelude = "import errno, os, resource, sys; import mmapdict; path = sys.argv[1]\n"
        root = os.path.dirname(os.path.dirname(mmapdict.__file__))
        done = subprocess.run([sys.executable, "-c", prelude + code, str(path)], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
    return run


@pytest.mark.skipif(not store.HAVE_FALLOCATE, reason="nothing can be allocated here")
def test_where_blocks_are_smaller_than_pages_no_page_is_in_part_a_hole(tmp_path, monkeypatch):
    """Setting an element in such a page would need a block, and without one end in a bus error."""
    monkeypatch.setattr(store, "_block_size", lambda fd: 1024)
    with mmapdict.open(tmp_path / "f", "x") as d:
        assert not d._file.in_place
        for i in range(300):
            d[i] = np.full(i, i)
        hole = d.create("h", 5000, "u1")
        hole[:] = 1
        status = os.stat(d.path)
        assert status.st_size % mmap.PAGESIZE == 0 and status.st_blocks * 512 >= status.st_size
        content_before = content(d)
    with mmapdict.open(tmp_path / "f", "r") as d:
        assert content(d) == content_before == content(plain(d.path))


def test_offsets_end_where_a_cell_has_a_byte_to_spare(tmp_path):
    with mmapdict.open(tmp_path / "f", "x") as d:
        with pytest.raises(OSError) as told:
            d.create("h", (1 << 56,), "u1", sparse=True)
        assert told.value.errno == errno.EFBIG and list(d) == []
