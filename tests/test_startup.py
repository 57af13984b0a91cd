"""A process that opens a file and reads an array imports little: it would wait for all of it, however fast the rest is.

What is rarely needed is imported inside of functions. Beside that, the modules that are always imported make no
`typing.NamedTuple`, each of which takes longer than to open a file.
"""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import mmapdict
from children import environment
from mmapdict import format as fmt
from mmapdict import judging, machine

# Of the package: what checks, writes and unpickles. Of others: what takes half a millisecond or more.
NOT_TO_READ = {
    "mmapdict.bulk", "mmapdict.copying", "mmapdict.dictviews", "mmapdict.finding", "mmapdict.libraries",
    "mmapdict.machine", "mmapdict.notice", "mmapdict.pickling", "mmapdict.repair", "mmapdict.rules", "mmapdict.scan",
    "mmapdict.seals", "mmapdict.trust", "mmapdict.vacuum", "mmapdict.values", "mmapdict.verify", "mmapdict.watching",
    "mmapdict.writer",
    "asyncio", "bz2", "ctypes", "dataclasses", "hashlib", "importlib.metadata", "inspect", "logging", "lzma",
    "numpy.ma", "pickletools", "random", "secrets", "select", "shutil", "socket", "subprocess", "tempfile", "threading",
    "traceback", "zoneinfo"}

FRESH = """
import json, sys
import numpy
before = set(sys.modules)
import mmapdict
{code}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run_fresh(code, *arguments):
    """Run a script in a process of its own; return what it printed."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True,
                          env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def imported(code, *arguments):
    """The modules that a fresh process imports beyond numpy, with mmapdict and by `code`."""
    return set(json.loads(run_fresh(FRESH.format(code=code), *arguments)))


def test_to_import_the_package_imports_nothing_that_is_rarely_needed():
    assert imported("") & NOT_TO_READ == set()


@pytest.mark.parametrize("n", [3, 300], ids=["no index block", "an index block"])
def test_to_read_an_array_imports_nothing_that_is_rarely_needed(path, n):
    with mmapdict.open(path, "x") as d:
        for i in range(n):
            d[f"array {i}"] = np.arange(10.0) + i
        assert (d._index.table is not None) == (n == 300)
    found = imported("""
with mmapdict.open(sys.argv[1], "r") as d:
    array = d["array 2"]
    assert array[3] == 5 and array.shape == (10,) and "no array" not in d and len(d) == int(sys.argv[2])
""", path, n)
    assert found & NOT_TO_READ == set()


def test_every_public_name_is_there_and_is_listed():
    assert set(mmapdict.__all__) <= set(dir(mmapdict))
    assert all(getattr(mmapdict, name).__name__ == name for name in mmapdict.__all__)
    everything = {}
    exec("from mmapdict import *", everything)
    assert set(mmapdict.__all__) <= set(everything)


@pytest.mark.parametrize("name", mmapdict.__all__)
def test_every_public_name_is_there_in_a_fresh_process(name):
    run_fresh(f"import mmapdict; mmapdict.{name}")


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="module 'mmapdict' has no attribute 'verifi'"):
        mmapdict.verifi
    with pytest.raises(ImportError):
        exec("from mmapdict import verifi")


@pytest.mark.parametrize("name", ["repair", "scan", "verify"])
@pytest.mark.parametrize("before", [
    "import mmapdict", "from mmapdict import {0}", "import mmapdict.{0}", "from mmapdict.{0} import {0} as other",
    "import importlib; importlib.import_module('mmapdict.{0}')", "import mmapdict.cli"])
def test_a_function_is_not_replaced_by_its_module(name, before):
    code = before.format(name) + f"""
import sys
import mmapdict
from mmapdict import {name}
assert mmapdict.{name} is {name} is sys.modules["mmapdict.{name}"].{name} and callable({name})
"""
    run_fresh(code)


def test_a_method_that_imports_a_module_leaves_the_function_of_its_name(path):
    run_fresh("""
import sys
import mmapdict
with mmapdict.open(sys.argv[1], "x") as d:
    assert d.verify().ok
assert mmapdict.verify(sys.argv[1]).ok
""", path)


def test_allow_is_checked_when_a_file_is_opened(path):
    with pytest.raises(TypeError, match="allow"):
        mmapdict.open(path, "x", allow=["no class"])
    assert not pathlib.Path(path).exists()


def test_the_memo_indices_of_the_groups_are_those_that_their_opcodes_put():
    assert judging.PUT_BY == {group: machine.trace(ops, given=(0,)).memo for group, ops in fmt.GROUPS.items()}
