"""How much work the slow tests do: the environment variable MMAPDICT_SLOW_BUDGET scales it (1 is the full work)."""

import os

BUDGET = float(os.environ.get("MMAPDICT_SLOW_BUDGET", "1"))


def slow_examples(full):
    """Number of examples or rounds of a slow test.

    Parameters
    ----------
    full : int
        The number at a budget of 1.

    Returns
    -------
    int
        At least 1.
    """
    return max(1, round(full * BUDGET))
