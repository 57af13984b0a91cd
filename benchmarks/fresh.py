"""What a fresh process pays: the start of Python and numpy, then the import of a library, then one array.

The script imports nothing of this package: what `mmapdict` or a peer imports would be there already, and cost nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from .harness import ROOT, clock

_ALONE = "import numpy\n"
_LOOK = """\
import sys, time
import numpy
path, key = sys.argv[1:]
started = time.perf_counter()
import {module}
imported = time.perf_counter()
{look}
first = float(value[0])
done = time.perf_counter()
print([done - started, done - imported, first])
"""


class Broken(Exception):
    """The process ended with an error; the argument is the last line that it wrote."""


@dataclass(frozen=True)
class Fresh:
    """Seconds of one process."""

    whole: float  # from before it started to after it had ended
    beyond: float  # from the end of its ``import numpy`` to the array, import of the library included
    apart: float  # the same without the import
    first: float  # what it read: the first element


def look(module: str, lines: str, path: str, key: str) -> Fresh:
    """Let a new process import `module` and run `lines`, which read `key` of the store at `path` into `value`."""
    seconds, output = _run(_LOOK.format(module=module, look=lines), path, key)
    return Fresh(seconds, *json.loads(output))


def alone() -> float:
    """Seconds of a process that imports numpy and does nothing."""
    return _run(_ALONE)[0]


def _run(script: str, *args: str) -> tuple[float, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling is for the first process of all, which is not counted
    start = clock()
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, env=environment)
    seconds = clock() - start
    if done.returncode:
        raise Broken((done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1])
    return seconds, done.stdout
