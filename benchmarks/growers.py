"""mmapdict and its peers with data that grow: rows of one array, rows of a log, samples of named arrays.

As in `peers`, each adapter does what a careful user of the library would do: what was added outlives a killed process
when the call returns, and nothing is synced. "sqlite3 defaults" is the exception, which waits for the disk.
"""

from __future__ import annotations

import abc
import importlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy
from numpy.typing import NDArray

from .adapter import Unable
from .peers import LMDB_MOST

WIDTH = 64  # float32 of a row
SHAPE = (8, 16)  # of each array of a sample, float32
NBYTES = 4 * SHAPE[0] * SHAPE[1]
PATHS = ("conv1.weight.grad", "conv2.weight.grad", "head.weight.grad")
METRICS = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "rate")
PACKED = struct.Struct("<q5d")  # a row of them
ROWS_A_CHUNK = 256

Array = NDArray[numpy.float32]
Sample = Mapping[str, Array]
Items = Sequence[tuple[str, Sample]]


class Grower(abc.ABC):
    """Something that grows, in a folder of its own.

    Parameters
    ----------
    folder : path of an existing folder
    mode : {"w", "r"}
        A new one; one that is there, to read.
    most : int
        How many rows or samples will come, for those who have a use for that.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path, mode: str = "w", most: int = 0) -> None:
        self.path, self.mode, self.most = folder / "store", mode, most
        self.open()

    @abc.abstractmethod
    def open(self) -> None:
        """Open what `path` and `mode` say."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close it; everything is in the folder then."""


class InMmapdict(Grower):
    """With a handle of mmapdict."""

    name = "mmapdict"

    def open(self) -> None:
        self._d = importlib.import_module("mmapdict").open(self.path, {"w": "x"}.get(self.mode, self.mode))

    def close(self) -> None:
        self._d.close()


class InH5py(Grower):
    """With a file of h5py."""

    name = "h5py"

    def open(self) -> None:
        self._file = importlib.import_module("h5py").File(self.path, self.mode, libver="latest")

    def close(self) -> None:
        self._file.close()

    def grow(self, name: str, rows: Any) -> None:
        """Add rows to a dataset that can be resized."""
        data = self._file[name]
        before = len(data)
        data.resize(before + len(rows), axis=0)
        data[before:] = rows


class InZarr(Grower):
    """With a group of zarr, not compressed."""

    name = "zarr"

    def open(self) -> None:
        self._group = importlib.import_module("zarr").open_group(self.path, mode=self.mode)

    def close(self) -> None:
        """Nothing is open."""

    def make(self, name: str, shape: tuple[int, ...], dtype: str, chunk: int) -> None:
        """Make an array of no rows, `chunk` of them in a file."""
        self._group.create_array(name, shape=(0, *shape), chunks=(chunk, *shape), dtype=dtype, compressors=None)


class InLmdb(Grower):
    """With an environment of lmdb."""

    name = "lmdb"

    def open(self) -> None:
        reading = self.mode == "r"
        self._env: Any = importlib.import_module("lmdb").open(
            str(self.path), map_size=LMDB_MOST, sync=False, metasync=False, readonly=reading, create=not reading
        )
        self._count = 0

    def close(self) -> None:
        self._env.close()

    def number(self) -> bytes:
        """Return the key of the next row."""
        self._count += 1
        return self._count.to_bytes(8, "big")

    def put(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Store records in one transaction."""
        with self._env.begin(write=True) as transaction:
            for key, value in items:
                transaction.put(key, value, append=True)

    def values(self) -> bytes:
        """Return all values, one after the other."""
        with self._env.begin() as transaction:
            return b"".join(transaction.cursor().iternext(keys=False))


class InSqlite(Grower):
    """With a database of sqlite3, a transaction for each statement."""

    name = "sqlite3"
    columns: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ("journal_mode=WAL", "synchronous=OFF")

    def open(self) -> None:
        self._database = importlib.import_module("sqlite3").connect(self.path, isolation_level=None)
        for setting in self.settings:
            self._database.execute(f"PRAGMA {setting}")
        if self.mode == "w":
            self._database.execute(f"CREATE TABLE rows ({self.columns})")
        self._insert = f"INSERT INTO rows VALUES ({', '.join('?' * (1 + self.columns.count(',')))})"

    def close(self) -> None:
        self._database.close()

    def at_once(self, rows: Any) -> None:
        """Insert all of them in one transaction."""
        self._database.execute("BEGIN")
        self._database.executemany(self._insert, rows)
        self._database.execute("COMMIT")


# -- Rows of one array -------------------------------------------------------------------------------------------------


class Rows(Grower):
    """An array of rows of `WIDTH` float32 that grows at its end."""

    @abc.abstractmethod
    def append(self, row: Array) -> None:
        """Add one row, which is in the file when the call returns."""

    @abc.abstractmethod
    def extend(self, rows: Array) -> None:
        """Add several rows in one array, which are in the file when the call returns."""

    def run(self, rows: Sequence[Array]) -> None:
        """Add rows one by one under one lock or in one transaction."""
        raise Unable("has no transaction")

    @abc.abstractmethod
    def read(self) -> Any:
        """Return all rows, as an array."""


class OurRows(InMmapdict, Rows):
    """A growable array, which nobody told how long it will be."""

    def open(self) -> None:
        super().open()
        self._d.create_growable("rows", (WIDTH,), "f4")

    def append(self, row: Array) -> None:
        self._d.append("rows", row)

    def extend(self, rows: Array) -> None:
        self._d.append("rows", rows)

    def run(self, rows: Sequence[Array]) -> None:
        with self._d.exclusive():
            for row in rows:
                self._d.append("rows", row)

    def read(self) -> Any:
        return self._d["rows"]


class H5pyRows(InH5py, Rows):
    """A dataset that can be resized."""

    def open(self) -> None:
        super().open()
        self._file.create_dataset("rows", (0, WIDTH), "f4", maxshape=(None, WIDTH), chunks=(ROWS_A_CHUNK, WIDTH))

    def append(self, row: Array) -> None:
        self.extend(row[None])

    def extend(self, rows: Array) -> None:
        self.grow("rows", rows)
        self._file.flush()

    def run(self, rows: Sequence[Array]) -> None:
        for row in rows:
            self.grow("rows", row[None])
        self._file.flush()

    def read(self) -> Any:
        return self._file["rows"][...]


class ZarrRows(InZarr, Rows):
    """An array and its `append`."""

    def open(self) -> None:
        super().open()
        self.make("rows", (WIDTH,), "f4", ROWS_A_CHUNK)
        self._rows = self._group["rows"]

    def append(self, row: Array) -> None:
        self._rows.append(row[None])

    def extend(self, rows: Array) -> None:
        self._rows.append(rows)

    def read(self) -> Any:
        return self._rows[...]


class LmdbRows(InLmdb, Rows):
    """A record for each row, under its number."""

    def append(self, row: Array) -> None:
        self.put([(self.number(), row.tobytes())])

    def extend(self, rows: Array) -> None:
        self.put([(self.number(), row.tobytes()) for row in rows])

    def run(self, rows: Sequence[Array]) -> None:
        with self._env.begin(write=True) as transaction:
            for row in rows:
                transaction.put(self.number(), row.tobytes(), append=True)

    def read(self) -> Any:
        return numpy.frombuffer(self.values(), "f4").reshape(-1, WIDTH)


class SqliteRows(InSqlite, Rows):
    """A row of the database for each."""

    columns = "data BLOB"

    def append(self, row: Array) -> None:
        self._database.execute(self._insert, (row.tobytes(),))

    def extend(self, rows: Array) -> None:
        self.at_once((row.tobytes(),) for row in rows)

    def run(self, rows: Sequence[Array]) -> None:
        self._database.execute("BEGIN")
        for row in rows:
            self.append(row)
        self._database.execute("COMMIT")

    def read(self) -> Any:
        found = self._database.execute("SELECT data FROM rows ORDER BY rowid")
        return numpy.frombuffer(b"".join(data for data, in found), "f4").reshape(-1, WIDTH)


class MemmapRows(Rows):
    """A numpy.memmap, for whom the number of rows is known beforehand; nobody is told how many are there."""

    name = "memmap"

    def open(self) -> None:
        self._rows: Any = numpy.memmap(self.path, "f4", "w+", shape=(self.most, WIDTH))
        self._count = 0

    def close(self) -> None:
        self._rows = None

    def append(self, row: Array) -> None:
        self._rows[self._count] = row
        self._count += 1

    def extend(self, rows: Array) -> None:
        self._rows[self._count : self._count + len(rows)] = rows
        self._count += len(rows)

    def run(self, rows: Sequence[Array]) -> None:
        for row in rows:
            self.append(row)

    def read(self) -> Any:
        return self._rows[: self._count]


# -- Rows of a log -----------------------------------------------------------------------------------------------------


def metrics(number: int) -> dict[str, float]:
    """Return row `number` of a log: an int and five floats."""
    return {name: (number + 1) / (place + 1) if place else number for place, name in enumerate(METRICS)}


class Logs(Grower):
    """A log of rows of six metrics."""

    @abc.abstractmethod
    def add(self, row: Mapping[str, float]) -> None:
        """Add one row, which is in the file when the call returns."""

    @abc.abstractmethod
    def fill(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Add many rows at once."""

    @abc.abstractmethod
    def losses(self) -> list[float]:
        """Return one column."""


class OurLogs(Logs):
    """A `mmapdict.log`."""

    name = "mmapdict"

    def open(self) -> None:
        self._log = importlib.import_module("mmapdict").log(self.path, mode="x")

    def close(self) -> None:
        self._log.close()

    def add(self, row: Mapping[str, float]) -> None:
        self._log.add(row)

    def fill(self, rows: Sequence[Mapping[str, float]]) -> None:
        self._log.extend(rows)

    def losses(self) -> list[float]:
        return list(self._log["loss"].tolist())


class H5pyLogs(InH5py, Logs):
    """A dataset of records that can be resized."""

    def open(self) -> None:
        super().open()
        self._dtype = numpy.dtype([(name, "f8" if place else "i8") for place, name in enumerate(METRICS)])
        self._file.create_dataset("log", (0,), self._dtype, maxshape=(None,), chunks=(ROWS_A_CHUNK,))

    def add(self, row: Mapping[str, float]) -> None:
        self.fill([row])

    def fill(self, rows: Sequence[Mapping[str, float]]) -> None:
        self.grow("log", numpy.array([tuple(row.values()) for row in rows], self._dtype))
        self._file.flush()

    def losses(self) -> list[float]:
        return list(self._file["log"]["loss"].tolist())


class LmdbLogs(InLmdb, Logs):
    """A record for each row, under its number."""

    def add(self, row: Mapping[str, float]) -> None:
        self.fill([row])

    def fill(self, rows: Sequence[Mapping[str, float]]) -> None:
        self.put([(self.number(), PACKED.pack(*row.values())) for row in rows])

    def losses(self) -> list[float]:
        return [row[1] for row in PACKED.iter_unpack(self.values())]


class SqliteLogs(InSqlite, Logs):
    """A table with a column for each metric, a commit for each row."""

    columns = ", ".join(f"{name} {'REAL' if place else 'INTEGER'}" for place, name in enumerate(METRICS))

    def add(self, row: Mapping[str, float]) -> None:
        self._database.execute(self._insert, tuple(row.values()))

    def fill(self, rows: Sequence[Mapping[str, float]]) -> None:
        self.at_once(tuple(row.values()) for row in rows)

    def losses(self) -> list[float]:
        return [loss for loss, in self._database.execute("SELECT loss FROM rows ORDER BY rowid")]


class SqliteAsItComes(SqliteLogs):
    """The same without a word about journal and disk: each commit waits for the disk."""

    name = "sqlite3 defaults"
    settings = ()


class JsonLogs(Logs):
    """A dict of lists in a file that is written anew with each row."""

    name = "json"

    def open(self) -> None:
        self._columns: dict[str, list[float]] = {name: [] for name in METRICS}

    def close(self) -> None:
        """Nothing is open."""

    def add(self, row: Mapping[str, float]) -> None:
        self.fill([row])

    def fill(self, rows: Sequence[Mapping[str, float]]) -> None:
        for row in rows:
            for name, value in row.items():
                self._columns[name].append(value)
        write_json(self.path, self._columns)

    def losses(self) -> list[float]:
        return list(json.loads(self.path.read_text())["loss"])


class CsvLogs(Logs):
    """A line for each row, at the end of a text."""

    name = "csv"

    def open(self) -> None:
        self._file = self.path.open("w")
        self._file.write(",".join(METRICS) + "\n")

    def close(self) -> None:
        self._file.close()

    def add(self, row: Mapping[str, float]) -> None:
        self._file.write(",".join(map(repr, row.values())) + "\n")
        self._file.flush()

    def fill(self, rows: Sequence[Mapping[str, float]]) -> None:
        for row in rows:
            self.add(row)

    def losses(self) -> list[float]:
        return [float(line.split(",")[1]) for line in self.path.read_text().splitlines()[1:]]


def write_json(path: Path, value: object) -> None:
    """Write a file anew: a reader, and one who comes after a crash, sees the old or the new one."""
    new = path.with_name("new")
    new.write_text(json.dumps(value))
    os.replace(new, path)


# -- Samples of named arrays -------------------------------------------------------------------------------------------


def data_id(number: int) -> str:
    """Return the id of a sample: eight characters."""
    return f"s{number:07d}"


def sample(number: int) -> dict[str, Array]:
    """Return sample `number`, which is the value of all elements of its three arrays."""
    return {path: numpy.full(SHAPE, number, numpy.float32) for path in PATHS}


class Shelf(Grower):
    """Samples of three arrays of one shape, each under an id."""

    @abc.abstractmethod
    def add(self, data_id: str, sample: Sample) -> None:
        """Add one sample, which is in the file when the call returns."""

    def fill(self, items: Items) -> None:
        """Add many at once, in the fastest way there is."""
        for data_id, sample in items:
            self.add(data_id, sample)

    @abc.abstractmethod
    def get(self, data_id: str) -> Sample:
        """Return one sample."""

    def column(self, path: str, ids: Sequence[str]) -> Any:
        """Return one array of all samples, which are `ids`."""
        return numpy.stack([self.get(data_id)[path] for data_id in ids])


class OurShelf(Shelf):
    """A `mmapdict.samples`, with room for all."""

    name = "mmapdict"

    def open(self) -> None:
        mode = {"w": "x"}.get(self.mode, self.mode)
        self._store = importlib.import_module("mmapdict").samples(self.path, mode=mode, capacity=self.most)

    def close(self) -> None:
        self._store.close()

    def add(self, data_id: str, sample: Sample) -> None:
        self._store.add(data_id, sample)

    def fill(self, items: Items) -> None:
        with self._store.d.exclusive():
            super().fill(items)

    def get(self, data_id: str) -> Sample:
        found: Sample = self._store[data_id]
        return found

    def column(self, path: str, ids: Sequence[str]) -> Any:
        return self._store.path(path)


class NpyShelf(Shelf):
    """A file for each array of each sample, all in one folder."""

    name = "npy"

    def open(self) -> None:
        if self.mode == "w":
            self.path.mkdir()

    def close(self) -> None:
        """Nothing is open."""

    def add(self, data_id: str, sample: Sample) -> None:
        for path, array in sample.items():
            numpy.save(f"{self.path}/{data_id}.{path}.npy", array)

    def get(self, data_id: str) -> Sample:
        return {path: numpy.load(f"{self.path}/{data_id}.{path}.npy", mmap_mode="r") for path in PATHS}


class Columns(Shelf):
    """One array for each path, which grows, and one of the ids; where an id stands is found by a dict of all."""

    _places: dict[str, int] | None = None

    @abc.abstractmethod
    def array(self, name: str) -> Any:
        """Return the array of that name."""

    def ids(self) -> Any:
        """Return all ids, as bytes."""
        return self.array("ids")[...]

    def get(self, data_id: str) -> Sample:
        if self._places is None:
            self._places = {name.decode(): place for place, name in enumerate(self.ids().tolist())}
        place = self._places[data_id]
        return {path: self.array(path)[place] for path in PATHS}

    def column(self, path: str, ids: Sequence[str]) -> Any:
        return self.array(path)[...]


class H5pyShelf(InH5py, Columns):
    """A dataset for each path and one of the ids, which can be resized."""

    def open(self) -> None:
        super().open()
        if self.mode == "w":
            self._file.create_dataset("ids", (0,), "S8", maxshape=(None,), chunks=(ROWS_A_CHUNK,))
            for path in PATHS:
                self._file.create_dataset(path, (0, *SHAPE), "f4", maxshape=(None, *SHAPE), chunks=(64, *SHAPE))

    def add(self, data_id: str, sample: Sample) -> None:
        self.fill([(data_id, sample)])

    def fill(self, items: Items) -> None:
        self.grow("ids", numpy.array([data_id for data_id, _ in items], "S8"))
        for path in PATHS:
            self.grow(path, numpy.stack([sample[path] for _, sample in items]))
        self._file.flush()

    def array(self, name: str) -> Any:
        return self._file[name]


class H5pyGroups(InH5py, Shelf):
    """A group for each sample, a dataset for each of its arrays."""

    name = "h5py groups"

    def add(self, data_id: str, sample: Sample) -> None:
        self.fill([(data_id, sample)])

    def fill(self, items: Items) -> None:
        for data_id, sample in items:
            group = self._file.create_group(data_id)
            for path, array in sample.items():
                group.create_dataset(path, data=array)
        self._file.flush()

    def get(self, data_id: str) -> Sample:
        group = self._file[data_id]
        return {path: group[path][...] for path in PATHS}


class ZarrShelf(InZarr, Columns):
    """An array for each path and one of the ids."""

    def open(self) -> None:
        super().open()
        if self.mode == "w":
            self.make("ids", (8,), "u1", ROWS_A_CHUNK)  # it has no texts of bytes that others can read
            for path in PATHS:
                self.make(path, SHAPE, "f4", 64)
        self._arrays = {name: self._group[name] for name in ("ids", *PATHS)}

    def add(self, data_id: str, sample: Sample) -> None:
        self.fill([(data_id, sample)])

    def fill(self, items: Items) -> None:
        ids = numpy.array([data_id for data_id, _ in items], "S8")
        self.array("ids").append(ids.view("u1").reshape(-1, 8))
        for path in PATHS:
            self.array(path).append(numpy.stack([sample[path] for _, sample in items]))

    def array(self, name: str) -> Any:
        return self._arrays[name]

    def ids(self) -> Any:
        return super().ids().view("S8").ravel()


class LmdbShelf(InLmdb, Shelf):
    """A record for each sample: its arrays one after the other; the caller knows names, shape and dtype."""

    def open(self) -> None:
        super().open()
        self._reader: Any = self._env.begin(buffers=True) if self.mode == "r" else None

    def close(self) -> None:
        if self._reader:
            self._reader.abort()
        super().close()

    def add(self, data_id: str, sample: Sample) -> None:
        self.fill([(data_id, sample)])

    def fill(self, items: Items) -> None:
        self.put([(data_id.encode(), b"".join(sample[path].tobytes() for path in PATHS)) for data_id, sample in items])

    def get(self, data_id: str) -> Sample:
        return apart(self._reader.get(data_id.encode()))


class SqliteShelf(InSqlite, Shelf):
    """A row for each sample, a column for each of its arrays; the caller knows shape and dtype."""

    columns = "id TEXT PRIMARY KEY, a BLOB, b BLOB, c BLOB"

    def add(self, data_id: str, sample: Sample) -> None:
        self._database.execute(self._insert, (data_id, *(sample[path].tobytes() for path in PATHS)))

    def fill(self, items: Items) -> None:
        self.at_once((data_id, *(sample[path].tobytes() for path in PATHS)) for data_id, sample in items)

    def get(self, data_id: str) -> Sample:
        found = self._database.execute("SELECT a, b, c FROM rows WHERE id = ?", (data_id,)).fetchone()
        return apart(b"".join(found))


class JsonShelf(Shelf):
    """All data in one file, and a list of dicts that says everything about each array, written anew at each change."""

    name = "json"

    def open(self) -> None:
        self._data = self.path.open("wb" if self.mode == "w" else "rb", buffering=0)
        self._entries: list[dict[str, Any]] = []
        self._mapped: Any = None
        if self.mode == "r":
            self._mapped = numpy.memmap(self.path, mode="r")
            entries = json.loads(self._list.read_text())
            self._places: dict[str, Any] = {}
            for entry in entries:
                self._index(entry)

    @property
    def _list(self) -> Path:
        return self.path.with_name("metadata.json")

    def close(self) -> None:
        self._data.close()
        self._mapped = None

    def add(self, data_id: str, sample: Sample) -> None:
        self.fill([(data_id, sample)])

    def fill(self, items: Items) -> None:
        for data_id, sample in items:
            offset = self._data.tell()
            self._data.write(b"".join(array.tobytes() for array in sample.values()))
            self._entries += self._describe(data_id, offset, sample)
        write_json(self._list, self._entries)

    def _describe(self, data_id: str, offset: int, sample: Sample) -> list[dict[str, Any]]:
        """Return what the list says of a sample, whose arrays begin at `offset`."""
        entries = []
        for number, (path, array) in enumerate(sample.items()):
            layer, parameter, kind = path.split(".")
            entries.append({
                "data_id": data_id, "layer": layer, "parameter": parameter, "kind": kind, "file": "gradients.bin",
                "offset": offset + number * NBYTES, "nbytes": NBYTES, "shape": list(array.shape),
                "dtype": str(array.dtype), "byte_order": "little", "order": "C",
            })  # fmt: skip
        return entries

    def _index(self, entry: dict[str, Any]) -> None:
        """Make one entry of the list ready to be looked up."""
        path = f"{entry['layer']}.{entry['parameter']}.{entry['kind']}"
        self._places.setdefault(entry["data_id"], {})[path] = entry

    def get(self, data_id: str) -> Sample:
        found = {}
        for path, entry in self._places[data_id].items():
            data = self._mapped[entry["offset"] : entry["offset"] + entry["nbytes"]]
            found[path] = data.view(entry["dtype"]).reshape(entry["shape"])
        return found


class CompactShelf(JsonShelf):
    """The same, but of each sample only its id and where its arrays are; the caller knows names, shape and dtype."""

    name = "json compact"

    def _describe(self, data_id: str, offset: int, sample: Sample) -> list[dict[str, Any]]:
        return [{"data_id": data_id, "offsets": [offset + number * NBYTES for number in range(len(sample))]}]

    def _index(self, entry: dict[str, Any]) -> None:
        self._places[entry["data_id"]] = entry["offsets"]

    def get(self, data_id: str) -> Sample:
        found = {}
        for path, offset in zip(PATHS, self._places[data_id], strict=True):
            found[path] = self._mapped[offset : offset + NBYTES].view("f4").reshape(SHAPE)
        return found


def apart(data: Any) -> Sample:
    """Return the arrays of a sample whose bytes stand one after the other."""
    return dict(zip(PATHS, numpy.frombuffer(data, "f4").reshape(-1, *SHAPE), strict=True))


ROWS: dict[str, type[Rows]] = {
    rows.name: rows for rows in (OurRows, H5pyRows, ZarrRows, LmdbRows, SqliteRows, MemmapRows)
}
LOGS: dict[str, type[Logs]] = {
    log.name: log for log in (OurLogs, H5pyLogs, LmdbLogs, SqliteLogs, SqliteAsItComes, JsonLogs, CsvLogs)
}
SHELVES: dict[str, type[Shelf]] = {
    shelf.name: shelf
    for shelf in (OurShelf, NpyShelf, H5pyShelf, H5pyGroups, ZarrShelf, LmdbShelf, SqliteShelf, JsonShelf, CompactShelf)
}
