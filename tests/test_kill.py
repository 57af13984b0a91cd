"""Writers that are killed and frozen at random instants: what they said to be done is there, and the next one goes on.

The instants are real ones, so each run looks at other states; tests/test_crash.py looks at every store in turn.
"""

import json
import os

import pytest

from budget import slow_examples
from children import run

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
@pytest.mark.parametrize("mistake", ["publish_early", "publish_late", "make_batches_one_by_one"])
def test_a_sweep_finds_a_writer_that_works_in_the_wrong_order(path, mistake):
    assert sweep(path, 0, 3000, mistake)["wrong"]
