"""Other processes for the tests: fresh interpreters that answer line by line, and forked children."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

import mmapdict

ROOT = os.path.dirname(os.path.dirname(mmapdict.__file__))
TESTS = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 60  # seconds; only a test that fails waits for so long

PRELUDE = """
import gc, os, pickle, sys, time
import numpy as np
path = sys.argv[1]
def plain():
    with open(path, "rb") as f:
        return pickle.load(f)
def tell(*words):
    print(*words, flush=True)
def hear():
    line = sys.stdin.readline()
    if not line:
        os._exit(3)     # nobody waits any more
    return line.strip()
"""
WITH_MMAPDICT = PRELUDE + """
import mmapdict
if "MMAPDICT_TEST_BLOCKS" in os.environ:
    import blocks
"""
WITHOUT_MMAPDICT = PRELUDE + "sys.modules['mmapdict'] = None\n"       # to import it would be an error


def environment():
    """Environment variables for a child: the package under test can be imported, and what helps the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((ROOT, TESTS)), "PYTHONWARNINGS": "",
            "PYTHONDONTWRITEBYTECODE": "1"}


class Child:
    """A Python interpreter that runs beside the test.

    Parameters
    ----------
    path : path-like
        In the child it is `path`.
    code : str
        Runs behind `WITH_MMAPDICT`: it may call `tell`, `hear` and `plain`.
    *arguments : object
        ``sys.argv[2:]`` of the child.
    prelude : str
    options : sequence of str
        For the interpreter.
    """

    def __init__(self, path, code, *arguments, prelude=WITH_MMAPDICT, options=()):
        self._errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, *options, "-c", prelude + code, os.fspath(path), *map(str, arguments)], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment())
        self._heard = b""

    def tell(self, line):
        """Send one line."""
        self.process.stdin.write(str(line).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self):
        """Return the next line that the child prints."""
        while b"\n" not in self._heard:
            ready = select.select([self.process.stdout], [], [], PATIENCE)[0]
            data = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                raise AssertionError("the child says nothing more; its errors:\n" + self.errors())
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def rest(self):
        """Return the whole lines that a child that has ended printed and that nobody heard yet."""
        self._heard += self.process.stdout.read()
        return self._heard.decode().split("\n")[:-1]

    def errors(self):
        """Return what the child printed as errors so far."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def kill(self):
        """Kill the child, as the system would: without a chance to do anything."""
        self.process.kill()
        self.process.wait()

    def finish(self):
        """Wait for the end of the child; it must have gone well, and without a word of complaint."""
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        assert (code, self.errors()) == (0, "")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.kill()
        for stream in self.process.stdin, self.process.stdout, self._errors:
            try:
                stream.close()
            except BrokenPipeError:
                pass


def run(path, code, *arguments, prelude=WITH_MMAPDICT, options=(), patience=PATIENCE, complaints=False):
    """Run code in a fresh interpreter, wait for its end, and return what it printed.

    Parameters
    ----------
    path, code, arguments, prelude, options
        As for `Child`.
    patience : float
        How long to wait, in seconds.
    complaints : bool
        Whether it may print errors as well.
    """
    with Child(path, code, *arguments, prelude=prelude, options=options) as child:
        output = child.process.communicate(timeout=patience)[0]
        errors = "" if complaints else child.errors()
        assert (child.process.returncode, errors) == (0, ""), child.errors()
        return output.decode()


def fork(function, *arguments, patience=PATIENCE):
    """Call a function in a forked child, which is ended after `patience` seconds; return its number at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)     # the test runner's threads do no harm in the child
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(patience)
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def join(*pids):
    """Wait for forked children, all of which must have gone well."""
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(pids)


def in_fork(function, *arguments):
    """Call a function in a forked child and wait for it."""
    join(fork(function, *arguments))


def wait_until(condition):
    """Wait for a condition that nothing signals."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


def descriptors():
    """Number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def maps(path):
    """Number of maps of a file in this process."""
    with open("/proc/self/maps") as file:
        return sum(line.rstrip("\n").endswith(os.fspath(path)) for line in file)
