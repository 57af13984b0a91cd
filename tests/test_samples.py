"""Per-sample stores: `SampleStore`, `samples`."""

import contextlib
import os

import numpy as np
import pytest

import judge
import mmapdict
from children import fork, join
from judge import plain
from mmapdict import ClosedError, ReadOnlyError, SampleStore

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def sample(i, n=3):
    return {"fc1": {"grad": np.full((2, n), i, "f4"), "index": i}, "loss": i / 2}


@pytest.fixture
def store(path):
    with mmapdict.samples(path, mode="w") as made:
        yield made


@contextlib.contextmanager
def unchanged(store):
    """All bytes up to the STOP stay as they are."""
    def content():
        with open(store.d.path, "rb") as file:
            return file.read(store.d.info()["used"])

    before = content()
    yield
    assert content() == before


def checked(store, numbers, name=str):
    """The store has these samples and no others, as every unpickler finds them."""
    loaded = judge.load_every_way(store.d.path)[store.name]
    ids = [name(i) for i in numbers]
    assert list(loaded) == ["ids", "values"] and len(store) == len(ids) and list(store) == ids
    assert [i.decode() if isinstance(i, bytes) else i for i in loaded["ids"].tolist()] == ids == store.ids.tolist()
    for values in loaded["values"], store.rows(slice(None)):
        assert values["fc1"]["grad"].shape == (len(ids), 2, 3) and values["fc1"]["grad"].dtype == "f4"
        assert (values["fc1"]["grad"] == np.array(numbers)[:, None, None]).all()
        assert values["fc1"]["index"].tolist() == list(numbers)
        assert (values["loss"] == np.array(numbers) / 2).all()
    for i in numbers:
        assert name(i) in store and store[name(i)]["fc1"]["index"] == i and (store[name(i)]["fc1"]["grad"] == i).all()


# -- ids --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", [int, str, lambda i: f"image é {i * 10**i}", lambda i: -i * 2**56],
                         ids=["int", "str", "longer and longer", "large"])
def test_ids(store, path, name):
    numbers = [5, 3, 70, 4, 1, 100, 0]
    for i in numbers:
        store.add(name(i), sample(i))
    checked(store, numbers, name)
    with SampleStore(path, mode="r") as reader:
        checked(reader, numbers, name)
        assert name(2) not in reader
        with pytest.raises(KeyError):
            reader[name(2)]


@pytest.mark.parametrize("data_id", ["", "a" * 8, "a" * 9, "é" * 40, "\U0001f600", " x "], ids=repr)
def test_texts_as_ids(store, data_id):
    store.add("first", {"a": 1})
    store.add(data_id, {"a": 2})
    assert list(store) == ["first", data_id] and data_id in store and store[data_id]["a"] == 2
    with unchanged(store), pytest.raises(KeyError):
        store.add(data_id, {"a": 3})


@pytest.mark.parametrize("data_id", [2**63 - 1, -2**63, 0, np.int32(7), np.uint64(9)], ids=repr)
def test_ints_as_ids(store, data_id):
    store.add(1, {"a": 1})
    store.add(data_id, {"a": 2})
    assert list(store) == [1, data_id] and store[data_id]["a"] == 2 and store[int(data_id)]["a"] == 2


@pytest.mark.parametrize("data_id", [None, 1.0, True, b"x", (1,), 2**63, -2**63 - 1, "a\0b"], ids=repr)
def test_ids_that_are_refused(store, data_id):
    with unchanged(store), pytest.raises(TypeError):
        store.add(data_id, sample(1))
    assert len(store) == 0 and "samples" not in store.d
    store.add("text" if isinstance(data_id, str) else 5, sample(1))
    with unchanged(store), pytest.raises(TypeError):
        store.add(data_id, sample(1))
    assert len(store) == 1


def test_ids_of_one_kind(store):
    store.add(1, {"a": 1})
    with unchanged(store), pytest.raises(TypeError, match="ints as ids"):
        store.add("1", {"a": 1})
    assert "1" not in store
    with SampleStore(store.d, "texts") as texts:
        texts.add("1", {"a": 1})
        with unchanged(store), pytest.raises(TypeError, match="texts as ids"):
            texts.add(1, {"a": 1})
        assert 1 not in texts and list(store.d) == ["samples", "texts"]


def test_numpy_ids_in_a_store(store):
    store.add(1, {"a": 1})
    assert store[np.int64(1)]["a"] == 1
    assert all(data_id in store for data_id in store.ids)
    with SampleStore(store.d, "texts") as texts:
        texts.add("a", {"a": 1})
        assert all(data_id in texts for data_id in texts.ids)


@pytest.mark.parametrize("data_id", [2**70, "a\0b"])
def test_impossible_ids_in_a_store(store, data_id):
    store.add(1 if isinstance(data_id, int) else "a", {"a": 1})
    assert data_id not in store


def test_longer_ids(store):
    store.add("a", sample(1))
    before = store.rows(slice(None))
    store.add("b" * 100, sample(2))
    store.add("c", sample(3))
    assert store.ids.tolist() == ["a", "b" * 100, "c"] and store["b" * 100]["loss"] == 1
    checked(store, [1, 2, 3], lambda i: {1: "a", 2: "b" * 100, 3: "c"}[i])
    assert before["loss"].tolist() == [0.5]


# -- samples ----------------------------------------------------------------------------------------------------------

def test_duplicates_and_replace(store):
    for i in range(5):
        store.add(i, sample(i))
    view = store[3]["fc1"]["grad"]
    with unchanged(store), pytest.raises(KeyError, match="there already"):
        store.add(3, sample(9))
    with unchanged(store):
        for wrong in sample(9, 4), {"loss": 1.0}, {**sample(9), "loss": "text"}:
            with pytest.raises((TypeError, ValueError)):
                store.add(3, wrong, replace=True)
    store.add(3, {"loss": 4.5, "fc1": {"index": 9, "grad": np.full((2, 3), 9)}}, replace=True)
    assert (view == 9).all() and store[3]["loss"] == 4.5 and len(store) == 5
    store.add(7, sample(7), replace=True)
    assert list(store) == [0, 1, 2, 3, 4, 7] and store[7]["fc1"]["index"] == 7


WRONG = [
    (ValueError, sample(1, 4)), (ValueError, {"fc1": sample(1)["fc1"]}), (ValueError, {**sample(1), "more": 1}),
    (ValueError, {**sample(1), "fc1": {"grad": np.zeros((2, 3), "f4")}}), (ValueError, {**sample(1), "fc1": 1.0}),
    (ValueError, {**sample(1), "loss": {"a": 1}}), (ValueError, {**sample(1), "loss": [0.5]}), (ValueError, {}),
    (ValueError, 5), (TypeError, {**sample(1), "loss": "text"}), (TypeError, {**sample(1), "loss": None}),
    (TypeError, {**sample(1), "fc1": {"grad": np.zeros((2, 3), "f4"), "index": 1.5}}),
    (TypeError, {**sample(1), "loss": np.ma.array(1.0)}), (ValueError, {**sample(1), "loss": np.zeros((2, 3))})]


@pytest.mark.parametrize("error, values", WRONG, ids=repr)
def test_samples_that_differ(store, error, values):
    store.add(0, sample(0))
    with unchanged(store), pytest.raises(error):
        store.add(1, values)
    store.add(1, sample(1))
    checked(store, [0, 1], int)


def samples(numbers):
    """As `sample`, of several."""
    parts = [sample(i) for i in numbers]
    return {"fc1": {name: np.stack([part["fc1"][name] for part in parts]) for name in parts[0]["fc1"]},
            "loss": [part["loss"] for part in parts]}


@pytest.mark.parametrize("name", [int, str, lambda i: f"image é {i * 10**i}"], ids=["int", "str", "longer and longer"])
def test_extend(store, name):
    store.extend([], {})
    assert len(store) == 0
    for numbers in [5, 3], [0], range(10, 18):
        store.extend(map(name, numbers), samples(numbers))
    store.add(name(1), sample(1))
    checked(store, [5, 3, 0, *range(10, 18), 1], name)
    for ids, error in (([20, 3], KeyError), ([20, 20], KeyError), ([20, 1.5], TypeError), ([20], ValueError),
                       ([20, 21, 22], ValueError)):
        with unchanged(store), pytest.raises(error):
            store.extend([name(i) if type(i) is int else i for i in ids], samples([20, 21]))
    with unchanged(store), pytest.raises(ValueError, match="for 2 samples"):
        store.extend([name(20), name(21)], sample(2))
    with unchanged(store), pytest.raises(TypeError):
        store.extend([name(20), b"x"], samples([20, 21]))


def test_the_first_samples_at_once(store):
    for values in {"a": 1}, {"a": [1]}, {"a": [1, 2], "b": {"c": np.zeros((3, 2))}}:
        with unchanged(store), pytest.raises(ValueError, match="for 2 samples"):
            store.extend([1, 2], values)
    assert len(store) == 0 and "samples" not in store.d
    with unchanged(store), pytest.raises(TypeError):
        store.extend([1, "2"], samples([1, 2]))
    store.extend([1, 2], samples([1, 2]))
    checked(store, [1, 2], int)


def test_ids_are_found_however_they_came(store, path):
    """Some were sorted, some came since, by this handle and by another."""
    numbers = [i * 7919 % 10_007 for i in range(3000)]
    with SampleStore(path) as other:
        for part in range(0, 3000, 100):
            for number, one in enumerate((store, other)):
                some = numbers[part + 50 * number:part + 50 * number + 50]
                one.extend(some, {"n": np.array(some)})
            for number in numbers[part + 99], numbers[part // 2], numbers[part]:
                assert store[number]["n"] == other[number]["n"] == number
            assert all(numbers[part + 100] not in one for one in (store, other) if part + 100 < 3000)
        with unchanged(store), pytest.raises(KeyError):
            other.add(numbers[1234], {"n": 0})
        store.d.resize("samples", 10)
        assert numbers[10] not in store and numbers[10] not in other and store[numbers[9]]["n"] == numbers[9]
        other.add(-1, {"n": -1})
        assert store[-1]["n"] == -1 and list(store) == [*numbers[:10], -1]


def nested(depth):
    values = {"x": 1}
    for _ in range(depth):
        values = {"d": values}
    return values


@pytest.mark.parametrize("depth", [60, 200, 5000])
def test_dicts_nested_too_deep(store, depth):
    store.d["other"] = 1
    with unchanged(store), pytest.raises(ValueError, match="nested"):
        store.add(1, nested(depth))
    store.add(1, nested(40))
    assert store.d.verify().ok and judge.load_every_way(store.d.path)["samples"]["ids"].tolist() == [1]


def test_ids_of_numpy(store):
    for data_id in np.int64(2**53), np.uint64(2**53 + 1), np.int8(-3):
        store.add(data_id, {"x": 1})
        assert data_id in store and int(data_id) in store and store[data_id]["x"] == 1
        with unchanged(store), pytest.raises(KeyError):
            store.add(np.uint64(data_id) if data_id > 0 else np.int16(data_id), {"x": 2})
    assert list(store) == [2**53, 2**53 + 1, -3] and np.uint64(2**53 + 2) not in store


def test_texts_that_utf8_cannot_hold(store):
    store.add("a", {"x": 1})
    assert "\ud800" not in store
    with unchanged(store), pytest.raises(TypeError, match="UTF-8"):
        store.add("\ud800", {"x": 1})


def test_the_file_is_replaced_by_another_store(store, path):
    for number in range(5):
        other = path.with_name("other")
        with SampleStore(other, mode="w") as made:
            made.extend([f"{number}a", f"{number}b"], {"x": np.arange(2)})
        os.replace(other, path)
        store.d["touched"] = number
        assert f"{number}a" in store and f"{number - 1}a" not in store
        with pytest.raises(KeyError):
            store.add(f"{number}b", {"x": 1})


def test_samples_of_a_sealed_store_are_replaced(path):
    with SampleStore(path) as store:
        store.add(1, {"x": np.zeros(3)})
        store.d.seal()
    with SampleStore(path) as store:
        store.add(1, {"x": np.ones(3)}, replace=True)
        assert not store.d.info()["sealed"] and store[1]["x"].tolist() == [1, 1, 1]
    assert judge.load_every_way(path)["samples"]["values"]["x"].tolist() == [[1, 1, 1]]


def test_room_for_longer_ids(path):
    """Twice as much each time, and as much room for samples as was asked for."""
    with mmapdict.samples(path, capacity=2000) as store:
        for i in 1, 10**7, 10**20, 10**40, 10**30:
            store.add(f"image {i}", {"n": i % 97})
            room = store.d._growable("samples").capacity
            assert 2000 <= room < 2600
        assert store.d["samples"]["ids"].dtype == "S64" and store.d.verify().ok
        places = {store.d.entry("samples").record}
        for i in range(1995):
            store.add(str(i), {"n": 0})
            places.add(store.d.entry("samples").record)
        assert len(places) == 1


def test_capacity_of_a_store_that_exists(path):
    for first in range(0, 3000, 500):
        with mmapdict.samples(path, capacity=3000) as store:
            places = set()
            for i in range(first, first + 500):
                store.add(i, {"n": np.full(100, i)})
                places.add(store.d.entry("samples").record)
            assert len(places) < 3


def test_programs_that_open_for_one_sample(path):
    """What each leaves behind for the next keeps the file from growing with the square of their number."""
    row = {"x": np.zeros(10_000, "u1")}
    for i in range(200):
        with mmapdict.samples(path) as store:
            store.add(i, row)
    assert store.d.closed and os.stat(path).st_size < 200 * 10_000 * 10


class NoArray:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")


@pytest.mark.parametrize("value", [NoArray(), [np.zeros(3), np.zeros(4)]], ids=["no array", "ragged"])
def test_what_is_no_array_is_named(store, value):
    with unchanged(store), pytest.raises(TypeError, match="fc1/grad"):
        store.add(1, {"fc1": {"grad": value}})
    store.add(0, sample(0))
    values = sample(1)
    values["fc1"]["grad"] = value
    with unchanged(store), pytest.raises(TypeError, match="fc1/grad"):
        store.add(1, values)


def test_messages_of_missing_things(store):
    store.add(0, sample(0))
    with pytest.raises(KeyError, match="no array at fc1/no; there are fc1/grad, fc1/index, loss"):
        store.path("fc1", "no")
    with pytest.raises(KeyError, match="the id 7 is there twice"):
        store.extend([5, 7, 6, 7], samples([5, 7, 6, 7]))
    assert store.get(0)["loss"] == 0 and store.get(1) is None and store.get("a", 3) == 3


def test_errors_say_where(store):
    store.add(0, sample(0))
    with pytest.raises(ValueError, match=r"fc1/grad.*\(2, 3\).*\(2, 4\)"):
        store.add(1, sample(1, 4))
    with pytest.raises(ValueError, match=r"fc1 .*grad.*index.*grad"):
        store.add(1, {**sample(1), "fc1": {"grad": np.zeros((2, 3), "f4")}})
    with pytest.raises(TypeError, match="fc1/index"):
        store.add(1, {**sample(1), "fc1": {"grad": np.zeros((2, 3), "f4"), "index": 1.5}})


@pytest.mark.parametrize("values", [{}, {"a": {}}, {"a": ...}, {"a": None}, {1: 2}, {"a": {2: 3}},
                                    {"a": np.ma.array([1])}, {"a": 1, "b": [...]}], ids=repr)
def test_a_first_sample_that_is_refused(store, values):
    with unchanged(store), pytest.raises((TypeError, ValueError)):
        store.add(1, values)
    assert len(store) == 0 and "samples" not in store.d


def test_dtypes(store):
    values = {"b": np.bool_(True), "t": np.array(["ab", "c"]), "d": np.datetime64("2020-01-01T00:00", "s"),
              "c": np.ones(3, ">c16"), "r": np.array([(1, 2.5)], "i4,f8"), "z": np.zeros((0, 3)),
              "é": {"": np.int8(-3)}, "f": np.asfortranarray(np.arange(6).reshape(2, 3))}
    for i in range(20):
        store.add(i, values)
    found, again = store[13], judge.load_every_way(store.d.path)["samples"]["values"]
    for part in found, {name: again[name][13] for name in values if name != "é"}:
        for name in set(values) - {"é"}:
            expected = np.asarray(values[name])
            assert np.asarray(part[name]).dtype == expected.dtype and part[name].tolist() == expected.tolist()
    assert found["é"][""] == -3 and store.path("é", "").dtype == "i1"


# -- reading ----------------------------------------------------------------------------------------------------------

def test_an_empty_store(path):
    with SampleStore(path) as store:
        assert (len(store), list(store), store.ids.tolist(), store.paths) == (0, [], [], [])
        assert store.rows(slice(None)) == {}
        assert list(store.batches(2)) == [] and 1 not in store and "x" not in store
        for call in lambda: store[1], lambda: store["x"], lambda: store.path("a"):
            with pytest.raises(KeyError):
                call()
    assert plain(path) == {}


def test_paths(store):
    for i in range(4):
        store.add(i, sample(i))
    assert store.paths == [("fc1", "grad"), ("fc1", "index"), ("loss",)]
    assert store.path("fc1", "grad").shape == (4, 2, 3) and store.path("loss").tolist() == [0, 0.5, 1, 1.5]
    assert set(store.path("fc1")) == {"grad", "index"}
    store.path("loss")[2] = 7
    assert store[2]["loss"] == 7
    for names in ("no",), ("fc1", "no"), ("loss", "more"):
        with pytest.raises(KeyError):
            store.path(*names)


def test_rows(store):
    for i in range(10):
        store.add(i * 10, sample(i))
    assert store.rows(-1)["fc1"]["index"] == 9 and store.rows([1, 3])["loss"].tolist() == [0.5, 1.5]
    part = store.rows(slice(2, 5))
    part["loss"][0] = 99
    assert store[20]["loss"] == 99 and part["fc1"]["grad"].shape == (3, 2, 3)
    with pytest.raises(IndexError):
        store.rows(10)
    store.add(1000, sample(3))
    assert len(part["loss"]) == 3


def test_batches(store):
    for i in range(23):
        store.add(f"id {i}", sample(i))
    found = list(store.batches(5))
    assert [len(ids) for ids, _ in found] == [5, 5, 5, 5, 3]
    assert [i for ids, _ in found for i in ids] == store.ids.tolist()
    found[0][1]["loss"][1] = 50
    assert store["id 1"]["loss"] == 50

    def shuffled(seed):
        order = []
        for ids, values in store.batches(4, shuffle=True, seed=seed):
            assert [f"id {i}" for i in values["fc1"]["index"]] == ids.tolist()
            order.append(ids.tolist())
        return order

    first = shuffled(1)
    assert sorted(sum(first, [])) == sorted(store) and first == shuffled(1) != shuffled(2)
    assert sorted(sum(shuffled(None), [])) == sorted(store) and [len(ids) for ids in first] == [4] * 5 + [3]
    assert len(list(store.batches(1000))) == 1
    for size in 0, -1:
        with pytest.raises(ValueError):
            list(store.batches(size))


def test_ids_are_found_while_the_store_grows(store, path):
    with SampleStore(path) as other:
        for i in range(2500):
            (store, other)[i % 3 == 0].add((i * 7919) % 2500, {"i": i})
            if i % 100 == 0:
                for one in store, other:
                    assert one[(i * 7919) % 2500]["i"] == i and (i + 1) * 7919 % 2500 not in one
        assert all(store[data_id]["i"] == i for i, data_id in enumerate(other))
        assert sorted(store) == list(range(2500))


def test_mode_r_and_closed(path):
    with SampleStore(path, capacity=10) as store:
        store.add(1, sample(1))
    with SampleStore(path, mode="r") as store:
        checked(store, [1], int)
        for replace in False, True:
            with pytest.raises(ReadOnlyError):
                store.add(1, sample(2), replace=replace)
        with pytest.raises(ReadOnlyError):
            store.add(2, sample(2))
    with pytest.raises(ClosedError):
        store.add(2, sample(2))
    with pytest.raises(FileNotFoundError):
        SampleStore(path.with_name("no"), mode="r")


def test_stores_beside_other_items(path):
    with mmapdict.open(path, "w") as d:
        d["array"], d["value"] = np.zeros(3), 1
        d.append("grows", [1])
        for name in "array", "value", "grows":
            with pytest.raises(TypeError):
                SampleStore(d, name).add(1, sample(1))
        with SampleStore(d, ("train", 1)) as store:
            for i in range(5):
                store.add(i, sample(i))
            d.vacuum()
            store.add(5, sample(5))
            d.trim(("train", 1))
            store.add(6, sample(6))
            with d.exclusive():
                store.add(7, sample(7))
            checked(store, range(8), int)
            d.resize(("train", 1), 3)
            checked(store, range(3), int)
            assert 5 not in store
            store.add(5, sample(5))
            assert list(store) == [0, 1, 2, 5]
        assert d.verify().ok and d.entry(("train", 1)).kind == "table"


# -- room -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, width", [(int, 8), (lambda i: f"image {i:08}", 16)], ids=["int", "str"])
@pytest.mark.parametrize("how", ["capacity", "vacuum"])
def test_bytes_beside_the_data(path, name, width, how):
    n, grad = 1000, np.ones(100, "f4")
    with SampleStore(path, capacity=n if how == "capacity" else 0) as store:
        for i in range(n):
            store.add(name(i), {"fc1": {"grad": grad, "more": grad}, "loss": 1.0})
        if how == "vacuum":
            store.d.trim("samples")
            store.d.vacuum()
    assert os.stat(path).st_size - n * 808 <= n * (12 + width)


# -- processes --------------------------------------------------------------------------------------------------------

def work(path, first, n):
    with SampleStore(path) as store:
        for i in range(first, first + 2 * n, 2):
            store.add(f"{i}" * (1 + i // 50), sample(i))
            with contextlib.suppress(KeyError):
                store.add("both", sample(1000))


@needs_fork
def test_two_processes(path):
    with mmapdict.open(path, "w"):
        pass
    join(fork(work, path, 0, 100), fork(work, path, 1, 100))
    with SampleStore(path, mode="r") as store:
        assert sorted(store) == sorted([*(f"{i}" * (1 + i // 50) for i in range(200)), "both"])
        for i in range(200):
            assert store[f"{i}" * (1 + i // 50)]["loss"] == i / 2
        assert (store.path("fc1", "grad")[:, 1, 2] == store.path("fc1", "index")).all()
