"""Writers that are killed and frozen at random instants: what they said to be done is there, and the next one goes on.

The instants are real ones, so each run looks at other states; tests/test_crash.py looks at every store in turn.
"""

import json
import mmap
import os
import random
import signal
import time

import numpy as np
import pytest

import mmapdict
import sweep as sweeps
from budget import slow_examples
from children import fork, run, wait_until
from judge import plain
from mmapdict import birth

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def sweep(path, seed, states, mistake=None):
    """Run a sweep in a process of its own; return what it counted."""
    code = "import sweep\nsweep.main(path, int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])"
    output = run(path, code, seed, states, *([mistake] if mistake else []), patience=60 + states / 10,
                 complaints=bool(mistake))
    print(output)
    return json.loads(output)


@pytest.mark.parametrize("seed, states", [
    (0, 200), *(pytest.param(seed, slow_examples(2500), marks=pytest.mark.slow) for seed in range(1, 5))])
def test_a_killed_or_frozen_writer_loses_nothing_and_the_next_one_goes_on(path, seed, states):
    counts = sweep(path, seed, states)
    assert counts["states"] >= states
    if states >= 200:               # else it may have missed the instants that matter
        assert all(counts.values()), counts


@pytest.mark.leaves_damaged_file
@pytest.mark.parametrize("mistake", ["publish_early", "publish_late", "make_batches_one_by_one", "count_early"])
def test_a_sweep_finds_a_writer_that_works_in_the_wrong_order(path, mistake):
    assert sweep(path, 0, 3000, mistake)["wrong"]


# -- logs -------------------------------------------------------------------------------------------------------------

BEGUN, DONE, OPEN = range(3)


def row(i, life):
    """A row of which each part follows from its number; what it is now and then needs other columns."""
    values = {"i": i, "square": i * i, "text": f"row {i}", "vector": [i, -i, i / 2], "life": life}
    return {**values, "note": "x" * (life % 30), f"column {life // 90}": float(i)}


def log_on(path, cells, life, slow):
    if slow:
        birth.File = sweeps.SlowFile
    log = mmapdict.Log(path)
    i = len(log)
    assert i == cells[DONE], "the next writer finds another number of rows"
    cells[OPEN] = 1
    while True:
        cells[BEGUN] = i + 1
        log.add(row(i, life))
        i += 1
        cells[DONE] = i


def check_rows(columns, begun, done):
    """Whatever was acknowledged is there, and at most the row that was being added; each row is whole."""
    n = len(columns["i"])
    assert n in (done, begun), f"{n} rows, {done} were acknowledged, {begun} begun"
    i = np.arange(n)
    assert (columns["i"] == i).all() and (columns["square"] == i * i).all() and (np.diff(columns["life"]) >= 0).all()
    assert (columns["text"] == np.char.add("row ", i.astype(str))).all()
    assert (columns["vector"] == np.stack([i, -i, i / 2], 1)).all()
    assert (np.char.str_len(columns["note"]) == columns["life"] % 30).all()
    for name in columns:
        if name.startswith("column "):
            there = columns["life"] // 90 == int(name.split()[1])
            assert (columns[name][there] == i[there]).all() and np.isnan(columns[name][~there]).all()
    return n


@pytest.mark.parametrize("kills", [40, pytest.param(slow_examples(500), marks=pytest.mark.slow)])
def test_a_log_loses_no_row_however_often_its_writer_is_killed(path, kills):
    rng = random.Random(0)
    cells = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
    with mmapdict.Log(path, mode="x") as log:       # imports what the children need
        log.add(row(0, 0))
    cells[BEGUN] = cells[DONE] = 1
    rows = []
    for life in range(kills):
        cells[OPEN] = 0
        pid = fork(log_on, path, cells, life, rng.random() < 0.3)
        try:
            if rng.random() < 0.8:      # else it is often killed while it opens the file
                wait_until(lambda: cells[OPEN] or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
            time.sleep(rng.random() * 0.015)
        finally:
            os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == -signal.SIGKILL, f"the writer ended by itself: {code}"
        rows.append(check_rows(plain(path)["log"], cells[BEGUN], cells[DONE]))
        with mmapdict.Log(path, mode="r") as log:
            assert check_rows(log[:], cells[BEGUN], cells[DONE]) == len(log) == rows[-1]
        cells[BEGUN] = cells[DONE] = rows[-1]
    assert len(set(rows)) > kills // 2, "the log did not go on"
    with mmapdict.Log(path) as log:
        log.add(row(len(log), kills))
        check_rows(log[:], rows[-1] + 1, rows[-1] + 1)
        assert log.d.verify().ok
