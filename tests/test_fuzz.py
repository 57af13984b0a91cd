"""Hostile and damaged bytes: only right values or the documented errors come out, and nothing else happens.

`fuzz/exercise.py` says what everything that opens a file is asked to do, and what must not happen; `fuzz/mutators.py`
changes files. A number is enough to make a mutant again: ``python -m fuzz.exercise 1234 1235`` in this folder.
"""

import os
import pathlib
import random
import signal
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import judge
import mmapdict
from budget import slow_examples
from fuzz import canary, exercise, mutators

pytestmark = [pytest.mark.leaves_damaged_file,
              pytest.mark.skipif(not hasattr(os, "fork"), reason="the harness works in forked children")]
CORPUS = pathlib.Path(__file__).parent / "fuzz" / "corpus"
MUTANTS = 100_000
AT_ONCE, FEW = 250, 125


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return exercise.make_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.fixture(scope="module")
def expected(seeds):
    return {name: exercise.expected_of(data) for name, data in seeds.items()}


def told(seeds, wrong):
    """What was wrong, with the numbers that make it happen again."""
    return "\n".join("mutant %d: %s\n    %s" % (n, mutators.numbered(seeds, n)[1].story[:200], what) for n,
                     what in wrong)


@pytest.mark.parametrize("first", range(0, 2 * FEW, FEW))
def test_mutants(first, seeds, expected, tmp_path):
    counts, wrong = exercise.run_all(exercise.numbered(seeds, expected, range(first, first + FEW)), tmp_path)
    assert not wrong, told(seeds, wrong)
    assert sum(counts.values()) == FEW
    for kind in ("refused", "partly", "read"):         # the mutators reach everything
        assert sum(n for outcome, n in counts.items() if outcome.startswith(kind)) > FEW / 50, counts


def value_work(first, n, seeds):
    files = list(seeds.values())
    return [(i, mutators.Mutant(exercise.VALUE + mutators.mutate_value(random.Random(i), files), "", True, ""), None)
            for i in range(first, first + n)]


@pytest.mark.parametrize("first", range(0, 2 * FEW, FEW))
def test_values(first, seeds, tmp_path):
    """Opcodes that nobody wrote, as a handle reads them that trusts nobody."""
    work = value_work(first, FEW, seeds)
    counts, wrong = exercise.run_all(work, tmp_path)
    assert not wrong, [(work[n - first][1].data[:300], what) for n, what in wrong]
    assert counts["read"] > FEW / 25 and counts["refused"] > FEW / 5


@pytest.mark.slow
@pytest.mark.parametrize("part", range(slow_examples(100)))
def test_more_values(part, seeds, tmp_path):
    work = value_work(1_000_000 + 1000 * part, 1000, seeds)
    _, wrong = exercise.run_all(work, tmp_path)
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize("part", range(slow_examples(MUTANTS // AT_ONCE)))
def test_more_mutants(part, seeds, expected, tmp_path):
    first = 1_000_000 + part * AT_ONCE
    _, wrong = exercise.run_all(exercise.numbered(seeds, expected, range(first, first + AT_ONCE)), tmp_path)
    assert not wrong, told(seeds, wrong)


mutations = st.lists(st.tuples(st.sampled_from(["damage", "forge", "without_meaning"]), st.integers(0, 2**32)),
                     min_size=1, max_size=4)


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), mutations), min_size=1, max_size=20))
def test_any_changes(changes, seeds, expected, tmp_path):
    """As `test_mutants`, with as few changes as show what is wrong."""
    names, work = sorted(seeds), []
    for number, (which, steps) in enumerate(changes):
        name = names[which % len(names)]
        mutant = mutators.Mutant(seeds[name], mutators.SAME, False, "")
        for kind, seed in steps:
            change = getattr(mutators, kind)(mutant.data or b"\0", random.Random(seed), list(seeds.values()))
            promise = change[1] if kind == "without_meaning" and mutant.promise and len(change) == 3 else ""
            promise = promise and min(promise, mutant.promise, key=(mutators.REFUSED_OR_SAME, mutators.SAME).index)
            mutant = mutators.Mutant(change[0], promise, mutant.forged or kind == "forge", change[-1])
        work.append((number, mutant, expected[name]))
    _, wrong = exercise.run_all(work, tmp_path)
    assert not wrong, [(mutants[1].story, what) for n, what in wrong for mutants in [work[n]]]


def test_the_corpus(tmp_path):
    """What a coverage-guided fuzzer found to reach most of the code, once more."""
    files = sorted(CORPUS.iterdir())
    assert len(files) > 20 and sum(path.stat().st_size for path in files) < 300_000
    work = [(n, mutators.Mutant(path.read_bytes(), "", True, path.name), None) for n, path in enumerate(files)]
    _, wrong = exercise.run_all(work, tmp_path)
    assert not wrong, [(files[n].name, what) for n, what in wrong]


@pytest.mark.parametrize("name", ["kinds", "empty", "cleared"])
def test_tricks(name, seeds, tmp_path):
    """Records that try to run code, to crash the process, or to show two readers two things; first, last and alone."""
    data = seeds[name]
    records, _ = mutators.read_records(data)
    work = []
    for number, (content, entry) in enumerate(mutators.TRICKS):
        for place in {0, len(records)}:
            made = mutators.lay_out(data[:256], [*records[:place], mutators.Record(content, None, entry),
                                                 *records[place:]], b"")
            work.append((len(work), mutators.Mutant(made, "trick %d" % number, True, name), None))
    _, wrong = exercise.run_all(work, tmp_path)
    assert not wrong, [(work[n][1].story, what) for n, what in wrong]


# -- can the harness see anything? --------------------------------------------------------------------------------


def test_mutators_change_documents_only_where_they_mean_to(seeds):
    for data in seeds.values():
        records, stop = mutators.read_records(data)
        assert mutators.lay_out(data[:256], records, data[stop + 1:], False) == data
        assert mutators.mutate(data, random.Random(5)) == mutators.mutate(data, random.Random(5))


def in_harness(monkeypatch, tmp_path, seeds, deed):
    """Let `deed` happen whenever a file is opened; return what the harness says to a file that is whole."""
    really = mmapdict.open

    def hurt(*args, **kwargs):
        deed()
        return really(*args, **kwargs)

    monkeypatch.setattr(mmapdict, "open", hurt)
    work = [(7, mutators.Mutant(seeds["kinds"], "", False, ""), None)]
    _, wrong = exercise.run_all(work, tmp_path)
    return wrong


def raising(error):
    def deed():
        raise error
    return deed


def spin():
    while True:
        pass


DEEDS = {
    "another error": (raising(IndexError("x")), "IndexError"),
    "no memory": (lambda: bytearray(1 << 40), "emory"),
    "much memory": (lambda: [np.empty(1 << 28, "u1") for _ in range(8)], "emory"),
    "crash": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "os.kill"),
    "abort": (os.abort, "crashes"),
    "exit": (lambda: os._exit(3), "crashes"),
    "command": (lambda: os.system("exit 0"), "os.system"),
    "import": (lambda: __import__("this"), "import"),
    "compiled code": (lambda: eval("1 + 1"), "compile"),
    "a call": (canary.touch, "touch"),
    "a file elsewhere": (lambda: open("/dev/null", "w").close(), "open"),
    "a name elsewhere": (lambda: os.symlink("x", "/nowhere/x"), "os.symlink"),
    "a class changed": (lambda: setattr(np.ma.MaskedArray, "mean", 5), "changed for good"),
    "hanging": (spin, "hangs"), "sleeping": (lambda: time.sleep(100), "hangs"),
}


@pytest.mark.parametrize("name", DEEDS)
def test_the_harness_notices(name, monkeypatch, tmp_path, seeds):
    if name in ("hanging", "sleeping"):
        monkeypatch.setattr(exercise, "CPU_S", 0.3)
        monkeypatch.setattr(exercise, "PATIENCE_S", 1 if name == "sleeping" else 5)
    deed, word = DEEDS[name]
    wrong = in_harness(monkeypatch, tmp_path, seeds, deed)
    assert [n for n, _ in wrong] == [7] and word in wrong[0][1]


def test_the_harness_finds_nothing_in_a_whole_file(tmp_path, seeds, expected):
    work = [(n, mutators.Mutant(seeds[name], mutators.SAME, False, name), expected[name])
            for n, name in enumerate(seeds)]
    counts, wrong = exercise.run_all(work, tmp_path)
    assert not wrong and all(outcome in ("read", "read, by plain pickle too") for outcome in counts), (counts, wrong)


@pytest.mark.parametrize("damage", ["value", "key", "order", "lost"])
def test_the_harness_notices_wrong_values(damage, monkeypatch, tmp_path, seeds, expected):
    really = exercise.read

    def wrongly(*args):
        keys, values, refused = really(*args)
        if damage == "value":
            values[1] = "something else"
        elif damage == "key":
            keys[0] = "something else"
        elif damage == "order":
            keys.reverse()
        else:
            keys.pop(), values.popitem()
        return keys, values, refused

    monkeypatch.setattr(exercise, "read", wrongly)
    for promise in ("", mutators.SAME):
        work = [(1, mutators.Mutant(seeds["kinds"], promise, False, ""), expected["kinds"])]
        assert exercise.run_all(work, tmp_path)[1]
    assert judge.fingerprint(1) != judge.fingerprint("something else")
