"""Full disks and other limits: an OSError that says which, nothing lost, nothing half, and work goes on.

What could end in a signal runs in a forked child: where a page has no block, a store into the map is a SIGBUS.
"""

import errno
import gc
import mmap
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile

import numpy as np
import pytest

import faults
import judge
import mmapdict
from children import in_fork
from conftest import check_left_file
from mmapdict import store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

KIB, MIB = 1 << 10, 1 << 20
SHARED = ["shared"]
OLD = {"a": 1, "array": np.arange(3000), "masked": np.ma.array(np.arange(9.0), mask=[1, 0, 0] * 3), "text": "x" * 5000,
       "list": [SHARED, SHARED], "small": np.arange(3, dtype="i2")}


def content(items):
    return judge.fingerprint_items(items)


def same(found, expected):
    """Whether the items are the same. A key that was half replaced may stand at its old place."""
    return sorted(found) == sorted(expected)


def plain(path):
    return judge.plain(path)


def check(d, expected):
    """The mapping, plain pickle.load and the header's fields agree, and hold what is expected."""
    assert content(plain(d.path)) == content(d) == content(expected)
    assert len(d) == len(expected)
    with open(d.path, "rb") as f:
        faults.check_header(f.read())


def touch_all(d):
    """Set every element of every array through the map, to what it is: each page must have its place."""
    for value in d.values():
        if isinstance(value, np.ndarray):
            data = np.ma.getdata(value)
            data[...] = data.copy()
            if np.ma.getmask(value) is not np.ma.nomask:
                mask = np.ma.getmask(value)
                mask[...] = mask.copy()


def prepare(path, items=OLD, **options):
    d = mmapdict.open(path, "w", **options)
    for key, value in items.items():        # one by one: btrfs takes its room for metadata early
        d[key] = value
    return d


# -- disks that are small -----------------------------------------------------------------------------------------

# Kind: the size in MiB, what makes the file system in an image (None: it lives in memory), options of the mount.
DISKS = {
    "tmpfs": (6, None, "size=6m"),
    "ext4": (24, ["mkfs.ext4", "-q", "-F", "-m0", "-b4096"], "loop"),
    "ext4, blocks of 1 KiB": (16, ["mkfs.ext4", "-q", "-F", "-m0", "-b1024"], "loop"),
    "xfs": (320, ["mkfs.xfs", "-q", "-f"], "loop"),
    "btrfs": (128, ["mkfs.btrfs", "-q", "-f"], "loop"),
}
# A byte that changes gets a new place there, if there is one: no change at all is sure of success on a full disk.
COPIES_ON_WRITE = {"btrfs"}


class Disk:
    """A file system of its own, mostly filled by a ballast.

    Attributes
    ----------
    kind : str
    folder : pathlib.Path
    path : pathlib.Path
        For the file under test.
    """

    def __init__(self, kind, folder):
        self.kind, self.folder, self.path = kind, folder, folder / "file"
        self.block = os.statvfs(folder).f_frsize

    @property
    def cow(self):
        return self.kind in COPIES_ON_WRITE

    def free(self):
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def leave(self, n):
        """Leave not much more than `n` bytes free."""
        self.relieve()
        fd = os.open(self.folder / "ballast", os.O_RDWR | os.O_CREAT)
        try:
            size = self.free() - n
            while size > 0:
                try:
                    os.posix_fallocate(fd, 0, size)
                    break
                except OSError as exc:
                    assert exc.errno == errno.ENOSPC
                    size -= max(size // 50, self.block)
        finally:
            os.close(fd)
        if not n:
            self.fill()

    def fill(self):
        """Take the very last block."""
        for size in (64 * KIB, KIB, 1):
            try:
                with open(self.folder / "ballast", "ab", buffering=0) as f:
                    while True:
                        f.write(bytes(size))
            except OSError as exc:
                assert exc.errno == errno.ENOSPC

    def relieve(self):
        """Take the ballast away."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def clean(self):
        """Check the file that a test left, and remove everything."""
        self.relieve()
        if self.path.exists():
            check_left_file(self.path)
        for name in os.listdir(self.folder):
            if name != "lost+found":
                os.unlink(self.folder / name)


def mount(kind, folder, image, options=None):
    """Mount a new file system of a kind; skip the test where that is not possible or not permitted."""
    size, make, usual = DISKS[kind]
    if shutil.which("mount") is None or make is not None and shutil.which(make[0]) is None:
        pytest.skip("no %s here" % (make[0] if make else "mount"))
    source = "tmpfs"
    if make is not None:
        with open(image, "wb") as f:
            f.truncate(size * MIB)
        subprocess.run([*make, image], check=True, capture_output=True)
        source = image
    done = subprocess.run(["mount", "-t", kind.partition(",")[0], "-o", options or usual, source, folder], check=False,
                          capture_output=True)
    if done.returncode:
        pytest.skip("mounting is not permitted here")


def unmount(folder):
    gc.collect()
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module", params=DISKS)
def mounted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mounted")
    image = folder.with_name(folder.name + ".image")
    mount(request.param, folder, image)
    yield Disk(request.param, folder)
    unmount(folder)
    image.unlink(missing_ok=True)


@pytest.fixture
def disk(mounted):
    mounted.clean()
    yield mounted
    mounted.clean()


@pytest.fixture
def own_disk(tmp_path):
    """Mount a file system with options for one test: ``own_disk(kind, options)``."""
    folders = []

    def make(kind, options=None):
        folder = tmp_path / ("disk%d" % len(folders))
        folder.mkdir()
        mount(kind, folder, tmp_path / "image", options)
        folders.append(folder)
        return Disk(kind, folder)

    yield make
    for folder in folders:
        unmount(folder)
    (tmp_path / "image").unlink(missing_ok=True)


def batch(d):
    with d.batch():
        d["a"] = "in a batch"
        d["new array"] = np.arange(2000)
        del d["text"]
        d["new list"] = [SHARED, SHARED]
        d.create("hole", 20000, "u1")


def emptying_batch(d):
    with d.batch():
        d.clear()
        d["only"] = np.arange(3000)


def in_model(operation):
    """What an operation makes of OLD, if it happens: a dict does the same."""
    class Model(dict):
        def batch(self):
            return self

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

        def create(self, key, shape, dtype, mask=False, sparse=False):
            zeros = np.zeros(shape, dtype)
            self[key] = np.ma.array(zeros, mask=np.zeros(shape, bool)) if mask else zeros

        def vacuum(self):
            pass

        def __setitem__(self, key, value):
            self.pop(key, None)                 # the order is that of the file
            super().__setitem__(key, value.copy() if type(value) is np.ndarray else value)

        def update(self, *args, **kwargs):
            for key, value in dict(*args, **kwargs).items():
                self[key] = value

    model = Model(OLD)
    operation(model)
    return dict(model)


OPERATIONS = {
    "set a small value": lambda d: d.__setitem__("new", 1),
    "set an array": lambda d: d.__setitem__("new", np.arange(9000)),
    "set a strided array": lambda d: d.__setitem__("new", np.arange(18000)[::2]),
    "set bytes": lambda d: d.__setitem__("new", bytes(70000)),
    "set shared values": lambda d: d.__setitem__("new", [SHARED, SHARED, "y" * 30000]),
    "replace": lambda d: d.__setitem__("array", np.arange(9000)),
    "setdefault": lambda d: d.setdefault("new", np.arange(9000)),
    "create": lambda d: d.create("new", 70000, "u1"),
    "create masked": lambda d: d.create("new", 30000, "u1", mask=True),
    "batch": batch,
    "batch that empties": emptying_batch,
    "clear": lambda d: d.clear(),
    "delete": lambda d: d.__delitem__("array"),
    "pop": lambda d: d.pop("array"),
    "vacuum": lambda d: d.vacuum(),
}
NEED_NO_ROOM = {"delete", "pop"}
NEED_MUCH = {"set an array", "set a strided array", "set bytes", "replace", "setdefault", "create", "create masked",
             "vacuum"}
if not hasattr(mmapdict.MmapDict, "vacuum"):
    del OPERATIONS["vacuum"]


def rooms(disk):
    """Amounts of free room: none, a few blocks, and enough in the end."""
    return [0, *(n * disk.block for n in (1, 2, 3, 5, 9, 17, 40)), 4 * MIB]


def try_with_any_room(disk, name, **options):
    """Do an operation with more and more room until it happens."""
    operation, refused = OPERATIONS[name], 0
    before, after = content(OLD), content(in_model(operation))
    for room in rooms(disk):
        with prepare(disk.path, **options) as d:
            # Vacuum wants no array to be alive; else arrays that were handed out stay what they are.
            held = None if name == "vacuum" else d["array"]
            disk.leave(room)
            try:
                operation(d)
                found = after
            except OSError as exc:
                assert exc.errno == errno.ENOSPC, exc
                # Where the last store, which only tidies up, needs a block too, it may have happened.
                found = after if disk.cow and same(content(d), after) else before
                refused += 1
            assert same(content(plain(disk.path)), content(d)) and same(content(d), found)
            if not disk.cow:
                touch_all(d)
            if held is not None:
                assert (held == OLD["array"]).all()
            disk.relieve()
            assert set(os.listdir(disk.folder)) - {"lost+found"} == {"file"}
            if found is before:
                operation(d)                    # there is room again
            del held
            d["more"] = 1                       # completes what was broken off
            check(d, {**in_model(operation), "more": 1})
    assert found is after
    return refused


@pytest.mark.parametrize("name", OPERATIONS)
def test_with_any_amount_of_room_an_operation_happens_or_is_refused(name, disk):
    def child():
        refused = try_with_any_room(disk, name)
        if not disk.cow:
            assert not refused if name in NEED_NO_ROOM else refused or name not in NEED_MUCH

    in_fork(child)


@pytest.mark.parametrize("name", ["set an array", "replace", "batch", "delete", "clear"])
def test_a_durable_operation_with_any_amount_of_room(name, disk):
    in_fork(lambda: try_with_any_room(disk, name, durable=True))


TABLE = np.arange(6000).reshape(-1, 2)
MORE = -np.arange(40_000).reshape(-1, 2)


def append_in_exclusive(d):
    """Small rows, which may be stored through the map."""
    with d.exclusive():
        for row in MORE[:500]:
            d.append("rows", row)


def extend(d):
    with d.extend("rows", 500) as rows:
        rows[...] = MORE[:500]


def extend_far(d):
    with d.extend("rows", len(MORE)) as rows:
        rows[...] = MORE


# What is done to an array of 3000 rows that has room for 4000, what there is then, and whether that takes a place.
GROWTH = {
    "append": (lambda d: d.append("rows", MORE[:500]), [*TABLE, *MORE[:500]], False),
    "append in exclusive": (append_in_exclusive, [*TABLE, *MORE[:500]], False),
    "append far": (lambda d: d.append("rows", MORE), [*TABLE, *MORE], True),
    "extend": (extend, [*TABLE, *MORE[:500]], False),
    "extend far": (extend_far, [*TABLE, *MORE], True),
    "longer": (lambda d: d.resize("rows", 23_000), [*TABLE, *np.zeros((20_000, 2), int)], True),
    "fewer": (lambda d: d.resize("rows", 10), TABLE[:10], False),
    "trim": (lambda d: d.trim("rows"), TABLE, False),
}


def grow_with_any_room(disk, name):
    """Change the number of rows with more and more room until it happens; return how often it was refused."""
    operation, after, _ = GROWTH[name]
    after, refused, happened = np.array(after), 0, False
    for room in rooms(disk):
        with prepare(disk.path) as d:
            d.create_growable("rows", 2, "i8", capacity=4000)
            d.append("rows", TABLE)
            held = d["rows"]
            disk.leave(room)
            try:
                operation(d)
                happened = True
            except OSError as exc:
                assert exc.errno == errno.ENOSPC, exc
                happened = False
                refused += 1
            found = plain(disk.path)["rows"]
            assert (found == d["rows"]).all()
            if happened:
                assert np.array_equal(found, after)
            elif name == "append in exclusive":         # row by row: some may be there
                assert len(TABLE) <= len(found) < len(after) and (found == after[:len(found)]).all()
            else:
                # Where the last store, which only tells of the change, needs a block too, it may have happened.
                assert np.array_equal(found, TABLE) or disk.cow and np.array_equal(found, after)
            if not disk.cow:
                touch_all(d)
            assert np.array_equal(held, TABLE)
            disk.relieve()
            if not happened:
                d.resize("rows", len(TABLE))
                operation(d)                # there is room again
            d["more"] = 1
            assert np.array_equal(plain(disk.path)["rows"], after) and np.array_equal(d["rows"], after)
            assert content({key: d[key] for key in OLD}) == content(OLD)
            assert d.verify().ok
            del held
    assert happened
    return refused


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow) if name in ("extend far", "longer", "fewer") else name
    for name in GROWTH])
def test_with_any_amount_of_room_rows_are_added_or_refused(name, disk):
    if disk.cow and name.startswith("extend"):
        pytest.skip("every store may need a new block there")

    def child():
        refused = grow_with_any_room(disk, name)
        if not disk.cow:
            assert bool(refused) == GROWTH[name][2]

    in_fork(child)


def test_a_disk_filled_by_small_items_to_its_very_end(disk):
    """Whatever is refused, the state is whole; arrays that were handed out can be set, and keys deleted."""
    def child():
        model = dict(OLD)
        with prepare(disk.path) as d:
            disk.leave(300 * KIB)
            for size in (3000, 100, 1):         # the last ones fit between the blocks
                for i in range(10**6):
                    key, value = (size, i), np.full(size, i, "i4") if i % 2 else "v" * size
                    try:
                        d[key] = value
                    except OSError as exc:
                        assert exc.errno == errno.ENOSPC
                        break
                    model[key] = value
                disk.fill()
            assert len(model) > 40
            check(d, model)
            if not disk.cow:
                touch_all(d)
                for key in ["a", (3000, 1), (3000, 2)]:
                    del d[key], model[key]
                assert d.pop((3000, 4)) == model.pop((3000, 4))
                check(d, model)
            for operation in (lambda: d.update(big=np.ones(MIB, "u1")), lambda: d.create("big", MIB, "u1"), d.sync):
                try:
                    operation()
                except OSError as exc:
                    assert exc.errno == errno.ENOSPC
            check(d, model)
            with mmapdict.open(disk.path, "r+") as other:
                check(other, model)
            disk.relieve()
            del model["array"]
            d["array"] = model["array"] = np.arange(3001)
            check(d, model)
            disk.leave(0)
        with mmapdict.open(disk.path, "r") as d:
            check(d, model)
            disk.relieve()
        with mmapdict.open(disk.path) as d:
            d["more"] = model["more"] = np.arange(5000)
            check(d, model)
            d.clear()
            check(d, {})

    in_fork(child)


def test_a_write_that_finds_the_disk_full_half_way(disk, monkeypatch):
    """Where room is not found beforehand, the system stores a part and says so; the rest is the error."""
    def child():
        with prepare(disk.path) as d:
            disk.leave(MIB)
            before = os.stat(disk.path).st_blocks
            for value in (np.ones(2 * MIB, "u1"), np.ones((2 * MIB, 2), "u1")[:, 0], bytes(2 * MIB)):
                with pytest.raises(OSError) as caught:
                    d["new"] = value
                assert caught.value.errno == errno.ENOSPC
                check(d, OLD)
                assert os.stat(disk.path).st_blocks <= before + 128, "the room was not given back"
            with pytest.raises(OSError):
                d.create("new", 2 * MIB, "u1")
            check(d, OLD)
            d["small"] = np.arange(7)
            check(d, {**OLD, "small": np.arange(7)})

    monkeypatch.setattr(store, "HAVE_FALLOCATE", False)
    in_fork(child)


def test_a_hole_is_filled_although_the_disk_is_full_by_then(disk):
    """Data and mask, up to the last element, and the items around them."""
    if disk.cow:
        pytest.skip("every store may need a new block there")

    def child():
        with prepare(disk.path) as d:
            holes = [d.create(("hole", n, mask), n, "u1", mask=mask) for n in (1, 1000, 5000, 600_000)
                     for mask in (False, True)]
            d["behind"] = np.arange(10)
            disk.leave(0)
            for hole in holes:
                np.ma.getdata(hole)[:] = 7
                if np.ma.getmask(hole) is not np.ma.nomask:
                    hole[::2] = np.ma.masked
            touch_all(d)
            del d["array"]
            assert int(d["hole", 600_000, True].sum()) == 7 * 300_000
            d.sync()
        assert (plain(disk.path)["hole", 1000, False] == 7).all()

    in_fork(child)


@pytest.mark.skipif("vacuum" not in OPERATIONS, reason="there is none")
def test_after_a_vacuum_arrays_are_set_although_the_disk_is_full_by_then(disk):
    """A reader keeps the old file: no block of the new one may be shared with it."""
    if disk.cow:
        pytest.skip("every store may need a new block there")

    def child():
        d = prepare(disk.path)
        d["big"], d["junk"] = np.ones(1_200_000, "u1"), np.ones(50_000)
        d.create("hole", 500_000, "u1")
        with mmapdict.open(disk.path, "r") as reader:
            old = reader["big"]
            del d["junk"]
            d.vacuum()
            disk.leave(0)
            touch_all(d)
            d["big"][:] = 2
            d["hole"][:] = 3
            d.sync()
            assert (old == 1).all() and (reader["big"] == 2).all()
        d.close()

    in_fork(child)


def test_no_file_is_made_on_a_full_disk_and_none_is_lost(disk):
    def child():
        prepare(disk.path).close()
        disk.leave(0)
        other = disk.folder / "other"
        for mode in ("a", "x", "w"):
            for path in (other, disk.path):
                try:
                    mmapdict.open(path, mode).close()
                except OSError as exc:
                    assert exc.errno == (errno.EEXIST if mode == "x" and path == disk.path else errno.ENOSPC)
                    assert exc.filename == os.fspath(path)
                assert {*os.listdir(disk.folder)} <= {"file", "other", "ballast", "lost+found"}
                found = plain(disk.path)
                assert content(found) == content(OLD) or mode == "w" and found == {}
                if other.exists():
                    assert plain(other) == {}
                    other.unlink()

    in_fork(child)


@pytest.mark.parametrize("durable", [False, True])
def test_a_batch_refused_half_way_can_go_on_without_what_was_refused(disk, durable):
    """An error that the block itself deals with does not end the batch."""
    def child():
        model = dict(OLD)
        with prepare(disk.path, durable=durable) as d:
            disk.leave(256 * KIB)
            with d.batch():
                d["one"] = 1
                for refuse in (lambda: d.update(big=bytes(8 * MIB)), lambda: d.create("big", 8 * MIB, "u1")):
                    with pytest.raises(OSError) as caught:
                        refuse()
                    assert caught.value.errno == errno.ENOSPC
                del d["a"]
                assert "big" not in d and d["one"] == 1
                assert content(plain(disk.path)) == content(OLD)
            del model["a"]
            model["one"] = 1
            check(d, model)
            with pytest.raises(OSError):
                with d.batch():
                    d["two"] = 2
                    d["big"] = bytes(8 * MIB)
            check(d, model)

    if not disk.cow:
        in_fork(child)


# -- no inodes, no right to write ---------------------------------------------------------------------------------

@pytest.mark.parametrize("kind, options", [("tmpfs", "size=6m,nr_inodes=2"), ("tmpfs", "size=6m,nr_inodes=3"),
                                           ("ext4", None)])
def test_no_inode_for_a_new_file(kind, options, own_disk):
    """Making, replacing and vacuuming a file need one; nothing else does."""
    disk = own_disk(kind, options)
    prepare(disk.path).close()
    count = 0
    with pytest.raises(OSError) as caught:
        while True:
            (disk.folder / ("taken%d" % count)).touch()
            count += 1
    assert caught.value.errno == errno.ENOSPC
    names = sorted(os.listdir(disk.folder))
    for attempt in (lambda: mmapdict.open(disk.folder / "other"), lambda: mmapdict.open(disk.path, "w")):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.ENOSPC
        assert sorted(os.listdir(disk.folder)) == names and content(plain(disk.path)) == content(OLD)
    with mmapdict.open(disk.path) as d:
        del d["a"]
        d["a"] = 1
        model = {**{k: v for k, v in OLD.items() if k != "a"}, "a": 1}
        if "vacuum" in OPERATIONS:
            with pytest.raises(OSError) as caught:
                d.vacuum()
            assert caught.value.errno == errno.ENOSPC
        check(d, model)
        assert sorted(os.listdir(disk.folder)) == names
        if count and "vacuum" in OPERATIONS:
            os.unlink(disk.folder / "taken0")
            d.vacuum()
        d["b"] = model["b"] = 2
        check(d, model)


def test_a_read_only_file_system(own_disk):
    disk = own_disk("tmpfs")
    prepare(disk.path).close()
    subprocess.run(["mount", "-o", "remount,ro", disk.folder], check=True)
    with mmapdict.open(disk.path, "r") as d:
        check(d, OLD)
        assert not d["array"].flags.writeable
    for mode, path in [("r+", disk.path), ("a", disk.path), ("w", disk.path), ("a", disk.folder / "other"),
                       ("x", disk.folder / "other"), ("w", disk.folder / "other")]:
        with pytest.raises(OSError) as caught:
            mmapdict.open(path, mode)
        assert caught.value.errno == errno.EROFS and caught.value.filename == os.fspath(path)
    with pytest.raises(FileExistsError):
        mmapdict.open(disk.path, "x")
    assert os.listdir(disk.folder) == ["file"]


@pytest.fixture
def strangers_folder():
    """A folder that every user can reach (unlike pytest's own)."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


def as_nobody(function):
    """Call a function in a child that has no rights of its own."""
    def child():
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        function()

    in_fork(child)


def test_a_file_that_may_be_read_only(strangers_folder):
    path = strangers_folder / "file"
    prepare(path).close()
    os.chmod(path, 0o444)

    def child():
        with mmapdict.open(path, "r") as d:
            check(d, OLD)
        for mode in ("r+", "a", "w"):
            with pytest.raises(PermissionError):
                mmapdict.open(path, mode)

    as_nobody(child)
    assert os.listdir(strangers_folder) == ["file"]


def test_a_file_that_may_be_written_in_a_folder_that_may_not(strangers_folder):
    """Changes in the file are possible; what makes a new file beside it is refused, and nothing happens."""
    path = strangers_folder / "file"
    prepare(path).close()
    os.chmod(path, 0o666)
    os.chmod(strangers_folder, 0o555)

    def child():
        with pytest.raises(PermissionError):
            mmapdict.open(path, "w")
        with mmapdict.open(path, "r+", durable=True) as d:
            check(d, OLD)
            d["new"] = np.arange(5)
            with d.batch():
                d["more"] = 1
                del d["a"]
            if "vacuum" in OPERATIONS:
                with pytest.raises(PermissionError):
                    d.vacuum()
            d.sync()
            model = {**OLD, "new": np.arange(5), "more": 1}
            del model["a"]
            check(d, model)

    as_nobody(child)
    assert os.listdir(strangers_folder) == ["file"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives files away")
def test_a_folder_in_which_files_may_be_made_but_not_listed(strangers_folder):
    folder = strangers_folder / "drop"
    folder.mkdir()
    os.chmod(folder, 0o333)

    def child():
        path = folder / "file"
        with mmapdict.open(path, "w") as d:
            d.update(OLD)
            d.sync()
        with mmapdict.open(path, "w", durable=True) as d:
            d["a"] = 1
            d.sync()
            if "vacuum" in OPERATIONS:
                d.vacuum()
            check(d, {"a": 1})

    as_nobody(child)
    assert os.listdir(folder) == ["file"]


# -- limits of the process ----------------------------------------------------------------------------------------

def limited(kind, value, function):
    """Call a function in a child with a lower limit."""
    def child():
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
        function()

    in_fork(child)


BIG = {
    "batch": lambda d: big_batch(d, lambda: d.__setitem__("big", np.ones(4 * MIB, "u1"))),
    "batch of bytes": lambda d: big_batch(d, lambda: d.__setitem__("big", bytes(4 * MIB))),
    "batch with a hole": lambda d: big_batch(d, lambda: d.create("big", 4 * MIB, "u1")),
    "batch with a sparse hole": lambda d: big_batch(d, lambda: d.create("big", 4 * MIB, "u1", sparse=True)),
}


def big_batch(d, refuse):
    with d.batch():
        d["a"] = 2
        del d["text"]
        refuse()


@pytest.mark.parametrize("name", BIG)
def test_a_limit_of_the_file_size_in_a_batch(name, tmp_path):
    def child():
        with mmapdict.open(tmp_path / "file") as d:
            for _ in range(2):
                with pytest.raises(OSError) as caught:
                    BIG[name](d)
                assert caught.value.errno == errno.EFBIG
                check(d, OLD)
            with d.batch():
                d["small"] = 1
            check(d, {**OLD, "small": 1})

    prepare(tmp_path / "file").close()
    limited(resource.RLIMIT_FSIZE, MIB, child)


@pytest.mark.skipif("vacuum" not in OPERATIONS, reason="there is none")
def test_a_limit_of_the_file_size_in_a_vacuum(tmp_path):
    path = tmp_path / "file"
    model = {**OLD, "big": np.arange(100_000)}
    with prepare(path, model) as d:
        d["big"] = model["big"] = np.arange(100_001)

    def child():
        with mmapdict.open(path) as d:
            with pytest.raises(OSError) as caught:
                d.vacuum()
            assert caught.value.errno == errno.EFBIG
            check(d, model)
            assert os.listdir(tmp_path) == ["file"]
            del d["a"], model["a"]
            check(d, model)

    limited(resource.RLIMIT_FSIZE, 500_000, child)


@pytest.mark.parametrize("operation", ["batch", "batch that empties", *["vacuum"] * ("vacuum" in OPERATIONS)])
def test_too_few_descriptors_for_an_operation(operation, tmp_path):
    """Each number of free descriptors: it happens, or EMFILE and nothing did."""
    path = tmp_path / "file"
    outcomes = []

    def child():
        before, after = content(OLD), content(in_model(OPERATIONS[operation]))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for spare in range(12):
            with prepare(path) as d:
                held = []
                resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard[1]))
                try:
                    while True:
                        held.append(os.open(path, os.O_RDONLY))
                except OSError as exc:
                    assert exc.errno == errno.EMFILE
                for _ in range(spare):
                    os.close(held.pop())
                try:
                    OPERATIONS[operation](d)
                    found = after
                except OSError as exc:
                    assert exc.errno == errno.EMFILE
                    found = before
                while held:
                    os.close(held.pop())
                resource.setrlimit(resource.RLIMIT_NOFILE, hard)
                assert content(plain(path)) == content(d) == found
                assert os.listdir(tmp_path) == ["file"]
                if found is before:
                    OPERATIONS[operation](d)
                check(d, in_model(OPERATIONS[operation]))
            outcomes.append(found is after)
        assert outcomes[-1]

    in_fork(child)


@pytest.mark.parametrize("name", ["batch with a hole", "batch with a sparse hole"])
def test_no_address_space_in_a_batch(name, tmp_path, monkeypatch):
    """The map of what was written cannot be had: nothing was published, and the room is given back."""
    path = tmp_path / "file"
    prepare(path).close()
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")

    def child():
        with mmapdict.open(path) as d:
            with pytest.raises(OSError) as caught:
                big_batch(d, lambda: d.create("big", 3 << 30, "u1", sparse="sparse" in name))
            assert caught.value.errno in (errno.ENOMEM, errno.ENOSPC)
            check(d, OLD)
            assert os.stat(path).st_blocks * 512 < 8 * MIB
            with d.batch():
                d["small"] = 1
            check(d, {**OLD, "small": 1})

    if shutil.disk_usage(tmp_path).free < 4 << 30 and "sparse" not in name:
        pytest.skip("the disk is too small to come so far")
    limited(resource.RLIMIT_AS, 2 << 30, child)


# -- a quota, and a disk that fails -------------------------------------------------------------------------------

class Failing(faults.Fault):
    """Raises another error than ENOSPC."""

    number = errno.EDQUOT

    def fail(self):
        self.raised += 1
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number, lasting, durable", [(errno.EDQUOT, False, False), (errno.EDQUOT, True, True),
                                                      (errno.EIO, False, True)])
@pytest.mark.parametrize("name", ["set an array", "replace", "delete", "clear", "create masked", "batch",
                                  "batch that empties"])
def test_an_error_of_any_store_comes_through_and_the_state_is_one_that_was(name, number, lasting, durable, path,
                                                                           monkeypatch):
    operation = OPERATIONS[name]
    states = [content(OLD), content(in_model(operation))]
    for at in range(100):
        with monkeypatch.context() as patch:
            fault = Failing(at, lasting=lasting)
            fault.number = number
            fault.install(patch)
            prepare(path).close()
            with mmapdict.open(path, durable=durable) as d:
                fault.arm()
                try:
                    operation(d)
                except OSError as exc:
                    assert exc.errno == number
                else:
                    assert content(d) == states[1]
                found = content(plain(path))
                assert any(same(found, state) for state in states) and content(d) == found
                raised = fault.raised
                fault.disarm()
                with mmapdict.open(path) as other:
                    assert content(other) == found
                    other["other"] = 1
                d["afterwards"] = 2
                assert content(plain(path)) == content(d)
                assert same(content(d), [*found, *content({"other": 1, "afterwards": 2})])
                d.sync()
            with open(path, "rb") as f:
                faults.check_header(f.read())
        if not raised:
            break
    assert 2 < at < 99


@pytest.mark.parametrize("call", ["put", "batch", "sync", "flush", "close"])
def test_a_disk_that_reports_an_error_when_it_is_asked_to_store(call, tmp_path, monkeypatch):
    """The error comes through where something was promised; what other processes see is whole all the same."""
    path = tmp_path / "file"
    calls = {"put": lambda d: d.__setitem__("new", np.arange(9)), "batch": batch, "sync": lambda d: d.sync(),
             "flush": lambda d: d.flush(), "close": lambda d: d.close()}

    def broken(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    d = prepare(path, durable=True)
    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, broken)
        if call == "close":
            d.close()
        else:
            with pytest.raises(OSError) as caught:
                calls[call](d)
            assert caught.value.errno == errno.EIO
        assert content(plain(path)) in (content(OLD), content(in_model(batch)), content({**OLD, "new": np.arange(9)}))
    if call != "close":
        d["a"] = 5
        assert plain(path)["a"] == d["a"] == 5
        d.close()
    with mmapdict.open(path) as d:
        d["b"] = 6
        assert plain(path)["b"] == 6


def test_a_file_as_long_as_a_file_may_be(own_disk):
    """The file system's own limit (EFBIG): 16 TiB and less on ext4, depending on the blocks."""
    disk = own_disk("ext4, blocks of 1 KiB")

    def child():
        with prepare(disk.path) as d:
            for size in (1 << 44, 1 << 50, (1 << 56) - 1, 1 << 56, 1 << 62):
                with pytest.raises(OSError) as caught:
                    d.create("big", size, "u1", sparse=True)
                assert caught.value.errno in (errno.EFBIG, errno.ENOMEM, errno.ENOSPC)
                check(d, OLD)
            d.create("hole", 64 * MIB, "u1", sparse=True)[12345] = 1
            assert os.stat(disk.path).st_blocks * 512 < MIB
            del d["hole"]
            check(d, OLD)

    in_fork(child)
    os.unlink(disk.path)


@pytest.mark.skipif(mmap.PAGESIZE <= 1024, reason="no blocks are smaller")
def test_blocks_smaller_than_a_page_leave_no_page_in_part_a_hole(own_disk):
    disk = own_disk("ext4, blocks of 1 KiB")

    def child():
        with prepare(disk.path) as d:
            assert not d._file.in_place and not d._file.whole_pages
            for i in range(50):
                d[i] = np.arange(i * 7, dtype="u1")
            status = os.stat(disk.path)
            assert status.st_size % mmap.PAGESIZE == 0
            assert status.st_blocks * 512 >= status.st_size
            disk.leave(0)
            touch_all(d)
            for array in d.values():
                if isinstance(array, np.ndarray) and array.size:
                    np.ma.getdata(array)[...] = 1

    in_fork(child)
