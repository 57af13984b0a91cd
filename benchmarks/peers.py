"""mmapdict and its peers, each behind one small adapter, so that all of them can do the same work.

An adapter does what a careful user of the library would do, without fsync anywhere; each change outlives a killed
process when the call returns. Modules are imported when an adapter is used, not before:
what an import costs is part of what a fresh process pays, and a peer that is not installed is skipped.
"""

from __future__ import annotations

import abc
import errno
import gc
import importlib
import importlib.metadata
import importlib.util
import os
import pickle
import shutil
import sys
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy

from .adapter import PROTOCOL, Peer, Unable, as_object, from_array, from_bytes, from_object, to_array, to_bytes

LMDB_MOST = 1 << 36  # bytes; address space, not disk

# -- mmapdict ----------------------------------------------------------------------------------------------------------


class Mmapdict(Peer):
    """Ours."""

    name, module, maps = "mmapdict", "mmapdict", True
    look = 'value = mmapdict.open(path, "r")[key]'
    remark = "to load everything to memory is plain `pickle.load` of its file"

    def open(self) -> None:
        self._d = importlib.import_module("mmapdict").open(self.path, {"w": "x", "a": "r+"}.get(self.mode, self.mode))

    def close(self) -> None:
        self._d.close()

    def put(self, key: str, value: Any) -> None:
        self._d[key] = value

    def fill(self, items: Mapping[str, Any]) -> None:
        with self._d.batch():
            self._d.update(items)

    def delete(self, key: str) -> None:
        del self._d[key]

    def prune(self, keys: Iterable[str]) -> Generator[None, None, None]:
        with self._d.batch():
            yield from super().prune(keys)

    def compact(self) -> None:
        self._d.vacuum()

    def get(self, key: str) -> Any:
        return self._d[key]

    def find(self, key: str, timeout_s: float) -> Any:
        if key not in self._d:
            self._d.wait(timeout_s)
        return self._d.get(key)

    def keys(self) -> list[str]:
        return list(self._d)

    def read_all(self) -> dict[str, Any]:
        return dict(self._d.items())

    def load_all(self) -> dict[str, Any]:
        with self.path.open("rb") as file:
            return dict(pickle.load(file))


# -- Those that write all of it again ----------------------------------------------------------------------------------


class Whole(Peer):
    """A file that is written at once: to change one key is to write all of them."""

    whole = True
    compacts = "each change writes the whole file again"
    _values: dict[str, Any]

    @abc.abstractmethod
    def save(self, path: Path) -> None:
        """Write all values to `path`."""

    @abc.abstractmethod
    def load(self, mapped: bool) -> dict[str, Any]:
        """Return all values of the file."""

    def open(self) -> None:
        self._values = {}
        if self.mode == "r":
            self._stamp = self._look()
        if self.mode != "w":
            self.attach()

    def attach(self) -> None:
        """Make the values of the file ready for `get`."""
        self._values = self.load(self.mode == "r")

    def close(self) -> None:
        self._values = {}

    def put(self, key: str, value: Any) -> None:
        self._values[key] = value
        self._replace()

    def fill(self, items: Mapping[str, Any]) -> None:
        self._values.update(items)
        self._replace()

    def delete(self, key: str) -> None:
        del self._values[key]
        self._replace()

    def prune(self, keys: Iterable[str]) -> Generator[None, None, None]:
        for key in keys:
            del self._values[key]
        self._replace()
        yield

    def get(self, key: str) -> Any:
        return self._values[key]

    def find(self, key: str, timeout_s: float) -> Any:
        if (stamp := self._look()) != self._stamp:
            self._stamp = stamp
            self.attach()
        return super().find(key, timeout_s)

    def keys(self) -> list[str]:
        return list(self._values)

    def load_all(self) -> dict[str, Any]:
        return self.load(False)

    def _replace(self) -> None:
        new = self.path.with_name("new")
        self.save(new)
        os.replace(new, self.path)

    def _look(self) -> tuple[int, int, int]:
        status = os.stat(self.path)
        return status.st_ino, status.st_size, status.st_mtime_ns


class Pickle(Whole):
    """The floor for values: a plain pickle of the dict."""

    name, module = "pickle", "pickle"
    look = 'value = pickle.load(open(path, "rb"))[key]'

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            pickle.dump(self._values, file, PROTOCOL)

    def load(self, mapped: bool) -> dict[str, Any]:
        with self.path.open("rb") as file:
            return dict(pickle.load(file))


class Joblib(Whole):
    """One dict in one file, uncompressed, so that its arrays can be mapped."""

    name, module, maps = "joblib", "joblib", True
    look = "value = joblib.load(path)[key]"
    remark = "reads everything on opening, one descriptor for each mapped array; past the limit all is loaded to memory"

    def save(self, path: Path) -> None:
        importlib.import_module("joblib").dump(self._values, path)

    def load(self, mapped: bool) -> dict[str, Any]:
        load = importlib.import_module("joblib").load
        if mapped:
            try:
                return dict(load(self.path, mmap_mode="r"))
            except OSError as exc:
                if exc.errno != errno.EMFILE:
                    raise
            gc.collect()  # the maps made so far
        return dict(load(self.path))


class Npz(Whole):
    """``numpy.savez`` and ``numpy.load``."""

    name, module = "npz", "numpy"
    look = "value = numpy.load(path)[key]"
    remark = "`numpy.savez`, not compressed; `get` reads one member, a copy"

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            numpy.savez(file, **{key: as_object(value) for key, value in self._values.items()})

    def load(self, mapped: bool) -> dict[str, Any]:
        with numpy.load(self.path, allow_pickle=not self.known) as file:
            return {key: from_object(file[key]) for key in file.files}

    def attach(self) -> None:
        if self.mode != "r":
            super().attach()
            return
        self.close()
        self._file = numpy.load(self.path, allow_pickle=not self.known)

    def get(self, key: str) -> Any:
        return from_object(self._file[key]) if self.mode == "r" else self._values[key]

    def keys(self) -> list[str]:
        return list(self._file.files) if self.mode == "r" else super().keys()

    def close(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
        super().close()


class Safetensors(Whole):
    """``safetensors.numpy``."""

    name, module = "safetensors", "safetensors"
    look = 'value = safetensors.safe_open(path, framework="np").get_tensor(key)'
    remark = "maps its file, but gives numpy arrays as copies"

    def save(self, path: Path) -> None:
        save_file = importlib.import_module("safetensors.numpy").save_file
        save_file({key: numpy.ascontiguousarray(to_array(value)) for key, value in self._values.items()}, path)

    def load(self, mapped: bool) -> dict[str, Any]:
        values = importlib.import_module("safetensors.numpy").load_file(self.path)
        return {key: from_array(array) for key, array in values.items()}

    def attach(self) -> None:
        if self.mode != "r":
            super().attach()
            return
        self._file = importlib.import_module("safetensors").safe_open(self.path, framework="np")
        self._names = set(self._file.keys())

    def get(self, key: str) -> Any:
        if self.mode != "r":
            return self._values[key]
        if key not in self._names:
            raise KeyError(key)
        return from_array(self._file.get_tensor(key))

    def keys(self) -> list[str]:
        return list(self._names) if self.mode == "r" else super().keys()

    def close(self) -> None:
        self._file = None
        super().close()


# -- Files and folders -------------------------------------------------------------------------------------------------


class Npy(Peer):
    """One ``.npy`` for each key."""

    name, module, maps = "npy", "numpy", True
    look = 'value = numpy.load(f"{path}/{key}.npy", mmap_mode="r")'
    remark = "one file per key; each `get` opens and maps a file, each mapped array holds a descriptor"

    def open(self) -> None:
        if self.mode == "w":
            self.path.mkdir()

    def put(self, key: str, value: Any) -> None:
        numpy.save(self._file(key), as_object(value), allow_pickle=not self.known)

    def delete(self, key: str) -> None:
        os.unlink(self._file(key))

    def get(self, key: str) -> Any:
        try:
            return numpy.load(self._file(key), mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise KeyError(key) from None
        except ValueError:  # objects cannot be mapped
            if self.known:
                raise
            return from_object(numpy.load(self._file(key), allow_pickle=True))

    def find(self, key: str, timeout_s: float) -> Any:
        try:
            return super().find(key, timeout_s)
        except (ValueError, EOFError):  # half written
            return None

    def keys(self) -> list[str]:
        return [name[:-4] for name in os.listdir(self.path)]

    def load_all(self) -> dict[str, Any]:
        load, allow = numpy.load, not self.known
        return {key: from_object(load(self._file(key), allow_pickle=allow)) for key in self.keys()}

    def _file(self, key: str) -> str:
        return f"{self.path}/{key}.npy"


class Zarr(Peer):
    """One array for each key in a group, not compressed."""

    name, module = "zarr", "zarr"
    look = 'value = zarr.open_group(path, mode="r")[key][...]'
    remark = "not compressed; a folder and two files per key; a key can be seen before its data: the reader looks again"

    def open(self) -> None:
        self._group = importlib.import_module("zarr").open_group(self.path, mode={"a": "r+"}.get(self.mode, self.mode))

    def put(self, key: str, value: Any) -> None:
        self._group.create_array(key, data=to_array(value), compressors=None)

    def delete(self, key: str) -> None:
        del self._group[key]

    def get(self, key: str) -> Any:
        return from_array(self._group[key][...])

    def keys(self) -> list[str]:
        return list(self._group.array_keys())


class H5py(Peer):
    """One dataset for each key, contiguous, in the newest version of the format."""

    name, module = "h5py", "h5py"
    look = 'value = h5py.File(path, "r", libver="latest")[key][()]'
    follows = "no reader while a writer has the file open; SWMR adds no keys"
    remark = "`libver=\"latest\"`, not compressed, `flush` after each put; compacting is a copy to a new file"

    def open(self) -> None:
        self._file = self._open(self.path, {"a": "r+"}.get(self.mode, self.mode))

    def close(self) -> None:
        self._file.close()

    def put(self, key: str, value: Any) -> None:
        self._file.create_dataset(key, data=to_array(value))
        self._file.flush()

    def fill(self, items: Mapping[str, Any]) -> None:
        for key, value in items.items():
            self._file.create_dataset(key, data=to_array(value))
        self._file.flush()

    def delete(self, key: str) -> None:
        del self._file[key]
        self._file.flush()

    def compact(self) -> None:
        new = self.path.with_name("new")
        with self._open(new, "w") as file:
            for key in self._file:
                self._file.copy(key, file)
        self._file.close()
        os.replace(new, self.path)
        self.open()

    def get(self, key: str) -> Any:
        return from_array(self._file[key][()])

    def keys(self) -> list[str]:
        return list(self._file)

    def _open(self, path: Path, mode: str) -> Any:
        return importlib.import_module("h5py").File(path, mode, libver="latest")


# -- Databases ---------------------------------------------------------------------------------------------------------


class Lmdb(Peer):
    """One record for each key."""

    name, module, maps = "lmdb", "lmdb", True
    look = (
        "reader = lmdb.open(path, readonly=True, create=False).begin(buffers=True)\n"
        "value = numpy.frombuffer(reader.get(key.encode()))"
    )
    remark = "keeps no dtype and shape (the caller knows them); views are valid inside a read transaction only"

    def open(self) -> None:
        reading = self.mode == "r"
        self.maps = reading and self.known  # a pickle is not mapped
        self._env: Any = importlib.import_module("lmdb").open(
            str(self.path), map_size=LMDB_MOST, sync=False, metasync=False, readonly=reading, create=not reading
        )
        self._reader: Any = self._env.begin(buffers=True) if reading else None

    def close(self) -> None:
        if self._reader:
            self._reader.abort()
        self._env.close()

    def put(self, key: str, value: Any) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(key.encode(), to_bytes(value, self.known))

    def fill(self, items: Mapping[str, Any]) -> None:
        with self._env.begin(write=True) as transaction:
            for key, value in items.items():
                transaction.put(key.encode(), to_bytes(value, self.known))

    def delete(self, key: str) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.delete(key.encode())

    def prune(self, keys: Iterable[str]) -> Generator[None, None, None]:
        with self._env.begin(write=True) as transaction:
            for key in keys:
                transaction.delete(key.encode())
                yield

    def compact(self) -> None:
        new = self.path.with_name("new")
        new.mkdir()
        self._env.copy(str(new), compact=True)
        self._env.close()
        shutil.rmtree(self.path)
        new.rename(self.path)
        self.open()

    def get(self, key: str) -> Any:
        if self._reader:
            data = self._reader.get(key.encode())
        else:
            with self._env.begin() as transaction:
                data = transaction.get(key.encode())
        if data is None:
            raise KeyError(key)
        return from_bytes(data, self.known)

    def find(self, key: str, timeout_s: float) -> Any:
        self._reader.abort()
        self._reader = self._env.begin(buffers=True)
        return super().find(key, timeout_s)

    def keys(self) -> list[str]:
        return list(self.read_all())

    def read_all(self) -> dict[str, Any]:
        known = self.known
        if not self._reader:
            with self._env.begin() as transaction:
                return {key.decode(): from_bytes(data, known) for key, data in transaction.cursor()}
        return {bytes(key).decode(): from_bytes(data, known) for key, data in self._reader.cursor()}


class Sqlite(Peer):
    """One row for each key, one transaction for each put."""

    name, module = "sqlite3", "sqlite3"
    look = (
        'rows = sqlite3.connect(path).execute("SELECT value FROM items WHERE key = ?", (key,))\n'
        "value = numpy.frombuffer(rows.fetchone()[0])"
    )
    remark = "write-ahead log, `synchronous=OFF`; keeps no dtype and shape (the caller knows them)"

    def open(self) -> None:
        self._database = importlib.import_module("sqlite3").connect(self.path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        if self.mode == "w":
            self._database.execute("CREATE TABLE items (key TEXT PRIMARY KEY, value BLOB)")

    def close(self) -> None:
        self._database.close()

    def put(self, key: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO items VALUES (?, ?)", (key, to_bytes(value, self.known)))

    def fill(self, items: Mapping[str, Any]) -> None:
        self._database.execute("BEGIN")
        rows = ((key, to_bytes(value, self.known)) for key, value in items.items())
        self._database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?)", rows)
        self._database.execute("COMMIT")

    def delete(self, key: str) -> None:
        self._database.execute("DELETE FROM items WHERE key = ?", (key,))

    def prune(self, keys: Iterable[str]) -> Generator[None, None, None]:
        self._database.execute("BEGIN")
        try:
            yield from super().prune(keys)
        finally:
            self._database.execute("COMMIT")

    def compact(self) -> None:
        self._database.execute("VACUUM")

    def get(self, key: str) -> Any:
        row = self._database.execute("SELECT value FROM items WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise KeyError(key)
        return from_bytes(row[0], self.known)

    def keys(self) -> list[str]:
        return [key for key, in self._database.execute("SELECT key FROM items")]

    def read_all(self) -> dict[str, Any]:
        known = self.known
        return {key: from_bytes(data, known) for key, data in self._database.execute("SELECT key, value FROM items")}


class Shelve(Peer):
    """The standard library's, over whichever dbm this Python has."""

    name, module = "shelve", "shelve"
    look = 'value = shelve.open(path, "r")[key]'
    follows = "a reader does not see what an open writer adds"
    compacts = "no way to compact but a copy"
    remark = "over the dbm that this Python prefers; a `get` is an unpickled copy"

    def open(self) -> None:
        shelf = importlib.import_module("shelve")
        flag = {"w": "n", "a": "w"}.get(self.mode, self.mode)
        self._shelf = shelf.open(str(self.path), flag, protocol=PROTOCOL)

    def close(self) -> None:
        self._shelf.close()

    def put(self, key: str, value: Any) -> None:
        self._shelf[key] = value

    def delete(self, key: str) -> None:
        del self._shelf[key]

    def get(self, key: str) -> Any:
        return self._shelf[key]

    def keys(self) -> list[str]:
        return list(self._shelf)

    def compact(self) -> None:
        reorganize = getattr(self._shelf.dict, "reorganize", None)
        if reorganize is None:
            raise Unable(self.compacts)
        reorganize()


class Diskcache(Peer):
    """A Cache that forgets nothing."""

    name, module = "diskcache", "diskcache"
    look = "value = diskcache.Cache(path)[key]"
    remark = "no eviction, `sqlite_synchronous=0`; a `get` is an unpickled copy"

    def open(self) -> None:
        self._cache = importlib.import_module("diskcache").Cache(
            str(self.path), eviction_policy="none", cull_limit=0, size_limit=1 << 40, sqlite_synchronous=0
        )

    def close(self) -> None:
        self._cache.close()

    def put(self, key: str, value: Any) -> None:
        self._cache[key] = value

    def fill(self, items: Mapping[str, Any]) -> None:
        with self._cache.transact():
            super().fill(items)

    def delete(self, key: str) -> None:
        del self._cache[key]

    def prune(self, keys: Iterable[str]) -> Generator[None, None, None]:
        with self._cache.transact():
            yield from super().prune(keys)

    def get(self, key: str) -> Any:
        return self._cache[key]

    def keys(self) -> list[str]:
        return list(self._cache)


OURS = Mmapdict.name
FLOOR = Pickle.name
BARE = ("memmap", "json", "csv")  # what needs no library, and is there only where data grow: see `growers`
PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (Mmapdict, Joblib, Npy, Npz, H5py, Zarr, Lmdb, Sqlite, Shelve, Diskcache, Safetensors, Pickle)
}


def missing(name: str) -> bool:
    """Whether the module of a peer is not installed."""
    module = PEERS[name].module
    return module not in sys.modules and importlib.util.find_spec(module) is None


def version(name: str) -> str:
    """Return the version of an installed peer, "stdlib" if it came with Python."""
    module = PEERS[name].module
    if name == Sqlite.name:
        return str(importlib.import_module(module).sqlite_version)
    if name == Shelve.name:
        names: list[str] = vars(importlib.import_module("dbm"))["_names"]  # in the order of preference
        return f"stdlib ({next(name for name in names if importlib.util.find_spec(_backend(name)))})"
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(module), "__version__", "stdlib"))


def _backend(name: str) -> str:
    """Return the module without which the dbm `name` cannot be imported."""
    return {"dbm.gnu": "_gdbm", "dbm.ndbm": "_dbm", "dbm.sqlite3": "_sqlite3"}.get(name, name)
