"""Settings shared by all tests, and the check of every file that a test leaves behind."""

import gc
import os

import hypothesis
import pytest

import blocks
import judge
from budget import slow_examples

# Hundreds of child processes import the package: without this each would compile it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

CHECK_LIMIT = 64 * 2**20  # bytes; the pure-Python unpickler and the disassembly take too long on more

hypothesis.settings.register_profile(
    "default", deadline=None, max_examples=50, print_blob=True, derandomize="CI" in os.environ)
hypothesis.settings.register_profile(
    "slow", deadline=None, max_examples=slow_examples(2000), print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow])


def pytest_configure(config):
    """Choose the hypothesis profile, unless the command line did."""
    if config.getoption("--hypothesis-profile", default=None) is None:
        hypothesis.settings.load_profile("slow" if config.option.markexpr == "slow" else "default")


def pytest_collection_finish(session):
    """Keep what was made so far out of the garbage collector: hundreds of collections would go through all of it."""
    gc.collect()
    gc.freeze()


def check_left_file(path):
    """Load one file by every unpickler and through the mapping; all must agree.

    Parameters
    ----------
    path : path-like

    Raises
    ------
    AssertionError
        If two of them disagree.
    """
    import mmapdict

    expected = judge.fingerprint_items(judge.load_every_way(path))
    with mmapdict.open(path, "r", trusted=True) as mapping:
        found = judge.fingerprint_items(mapping)
    judge.assert_same_items(found, expected, "mmapdict.open")


@pytest.fixture(autouse=True)
def check_left_files(request):
    """After each test that used `tmp_path`, check every mmapdict file below it."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder = request.getfixturevalue("tmp_path")
    yield
    if request.node.get_closest_marker("leaves_damaged_file"):
        return
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
            continue
        if path.stat().st_size <= CHECK_LIMIT and judge.is_mmapdict_file(path):
            check_left_file(path)


@pytest.fixture(autouse=True)
def index_blocks(request):
    """Whether the test has an index block in every file."""
    with blocks.in_test(request.module.__name__, request.node.name) as used:
        yield used


@pytest.fixture
def path(tmp_path):
    """Where a test's file goes."""
    return tmp_path / "file"
