"""All that a reader and a writer may do with a file that may be anything, and a judgement of how they took it.

`exercise` raises `Wrong` if an undocumented error comes out, a wrong value, or if two readers see two mappings.
`run_all` calls it for many mutants in forked children, which may neither take much memory or time nor run code.
"""

import contextlib
import faulthandler
import io
import json
import mmap
import os
import pickle
import resource
import signal
import struct
import sys
import tempfile
import types
import warnings
from typing import Any, NamedTuple

import numpy as np

import judge
import mmapdict
from fuzz import canary, mutators

MEMORY = 3 << 29            # bytes more than the process had
CPU_S = 20                  # of one mutant
PLAIN_S = 0.3               # plain pickle may hang
PATIENCE_S = 120            # of one mutant, on a machine that does other things too
FRESH = object()
VALUE = b"\x80value"         # behind it stand the opcodes of one value, in place of a file


class Wrong(Exception):
    """Something that no file may bring about."""


def step(name):
    """A context in which only the documented errors may come up."""
    return _Step(name)


class _Step:
    def __init__(self, name):
        self.name = name
        self.refused = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None or issubclass(kind, Wrong) or not issubclass(kind, Exception):
            return False
        if not issubclass(kind, mmapdict.MmapDictError):
            raise Wrong("%s: %s: %s" % (self.name, kind.__name__, error)) from error
        str(error), repr(error)
        self.refused = error
        return True


# -- mmapdict as a reader -----------------------------------------------------------------------------------------

def touch(value):
    """Look at a value as a program would that expected another one."""
    if isinstance(value, np.ndarray):
        repr(value.dtype), value.shape, value.flags.writeable
        if isinstance(value, np.ma.MaskedArray) and value is not np.ma.masked:
            touch(value.mask), touch(value.data)
            value.fill_value
        plain = value.view(np.ndarray)
        if value.size:
            if value.ndim <= 32:
                # A date far away, or a text of code points that there are none, can be no Python object.
                with contextlib.suppress(ValueError, OverflowError):
                    plain.item(0), plain.item(value.size - 1)
            plain.ravel("K")[-1:].tobytes()


def read(path, mode="r"):
    """Do all that a reader can do.

    Returns
    -------
    (list, dict, int)
        Keys, values by the number of the key, and how many were refused; None if the file was refused.
    """
    with step("open") as opening:
        d = mmapdict.open(path, mode)
    if opening.refused:
        return None
    with d:
        refused = 0
        with step("looking") as looking:
            keys = list(d)
            if len(d) != len(keys) or len(set(keys)) != len(keys):
                raise Wrong("%d keys in a mapping of %d" % (len(keys), len(d)))
            if list(reversed(d)) != keys[::-1]:
                raise Wrong("other keys backwards")
            repr(d), d.info(), d.commit, d.wait(0), d.get("no such key"), ("no", "such") in d
        if looking.refused:
            raise Wrong("a file that was opened, and cannot be listed: %s" % looking.refused)
        values = {}
        for i, key in enumerate(keys):
            with step("entry") as entry:
                d.entry(key)
            with step("value of %r" % (key,)) as loading:
                try:
                    if key not in d:
                        raise KeyError(key)
                    values[i] = d[key]
                except KeyError as error:
                    raise Wrong("a key that is listed and not there: %s" % error) from error
                touch(values[i])
            refused += loading.refused is not None
            if entry.refused and not loading.refused:
                raise Wrong("a value without an entry: %s" % entry.refused)
        for name in ("entries", "copy"):
            with step(name):
                getattr(d, name)()
        return keys, values, refused


# -- plain pickle as a reader -------------------------------------------------------------------------------------

class Named(Exception):
    """A file names what this reader does not hand out."""


PLAIN = {name for name in mutators.HARMLESS if name[0] in ("builtins", "collections", "datetime", "decimal", "uuid",
                                                           "numpy", "numpy.ma", "fractions", "types", "zlib", "lzma",
                                                           "bz2")}


class PlainReader(pickle.Unpickler):
    """``pickle.load``, for files that name nothing dangerous; notes what they name."""

    def __init__(self, file):
        super().__init__(file)
        self.found = []

    def find_class(self, module, name):
        self.found.append((module, name))
        if (module, name) not in PLAIN:
            raise Named("%s.%s" % (module, name))
        return super().find_class(module, name)


class Plain(NamedTuple):
    """What plain pickle did with a file.

    Attributes
    ----------
    error : str or None
        Which error it raised, or how it died.
    excused : bool
        Whether that is none that reading the opcodes could foretell: a value's own class raises it, it takes too
        much time or memory, or names what is not handed out.
    differs : str or None
        What it sees otherwise than mmapdict.
    named : list of (str, str)
        The globals that it looked up.
    """

    error: Any
    excused: bool
    differs: Any
    named: Any


def read_plain(data, compare):
    """Load a file by plain pickle in a process of its own, which may crash; compare what it gives.

    Parameters
    ----------
    data : bytes
    compare : callable
        Takes the object that was loaded; returns in what it differs, or None.

    Returns
    -------
    Plain
    """
    reading, writing = os.pipe()
    armed, canary.armed[0] = canary.armed[0], False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
        if not pid:
            try:
                faulthandler.disable()
                signal.setitimer(signal.ITIMER_PROF, PLAIN_S)
                for number in (signal.SIGPROF, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE):
                    signal.signal(number, signal.SIG_DFL)
                os.close(reading)
                limit_memory(MEMORY // 2)
                os.write(writing, json.dumps(_load(data, compare)).encode()[:60000])
            finally:
                os._exit(0)
    os.close(writing)
    answer = b""
    with os.fdopen(reading, "rb") as file:
        answer = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    canary.armed[0] = armed
    try:
        return Plain(*json.loads(answer))
    except ValueError:
        return Plain("plain pickle dies: %d" % code, True, None, [])


def _load(data, compare):
    reader = PlainReader(io.BytesIO(data))
    try:
        loaded = reader.load()
    except Exception as error:
        # What is wrong with the opcodes themselves raises one of these; but so does a class that is none.
        excused = not isinstance(error, (pickle.UnpicklingError, EOFError, IndexError)) or "NEWOBJ" in str(error)
        return "%s: %s" % (type(error).__name__, error), excused, None, reader.found
    return None, False, compare(loaded), reader.found


def native(value):
    """numpy's own ``__setstate__`` turns a foreign byte order into the native one, and mmapdict does not."""
    with contextlib.suppress(Exception):
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            return value.astype(value.dtype.newbyteorder("="))
    return value


def is_huge(value):
    """Whether a value would be huge if what is in it several times were written out; `judge` writes tuples out."""
    seen, waiting, n = set(), [value], 0
    while waiting and n < HUGE:
        part = waiting.pop()
        n += 1
        if isinstance(part, (list, dict)):
            if id(part) in seen:
                continue
            seen.add(id(part))
        if isinstance(part, (tuple, list, frozenset, set)):
            waiting += part
        elif isinstance(part, dict):
            waiting += [*part, *part.values()]
    return n >= HUGE


def fingerprint(value):
    """As `judge.fingerprint`; of what cannot be pickled again, that it cannot."""
    if is_huge(value):
        return ["huge"]
    try:
        return judge.fingerprint(value)
    except Exception as error:
        return ["no fingerprint: " + type(error).__name__]


def same(a, b):
    return fingerprint(a) == fingerprint(b) or fingerprint(native(a)) == fingerprint(native(b))


def difference(keys, values, other):
    """Return in what a mapping and a dict differ, or None. Values that were refused are passed over."""
    if type(other) is not dict:
        return "plain pickle makes a %s of it" % type(other).__name__
    if [fingerprint(key) for key in keys] != [fingerprint(key) for key in other]:
        return "keys %.200r, and by plain pickle %.200r" % (keys, list(other))
    for (i, key), value in zip(enumerate(keys), other.values()):
        if i in values and not same(values[i], value):
            return "key %.60r: %.200s, and by plain pickle %.200s" % (key, fingerprint(values[i]), fingerprint(value))
    return None


# -- mmapdict as a writer -----------------------------------------------------------------------------------------

def write(path, keys):
    """Change a file that was readable. What a change said it did must be there afterwards, and nothing else."""
    with step("open to write") as opening:
        d = mmapdict.open(path, "r+")
    if opening.refused:
        return
    expected = list(keys)
    with d:
        def change(name, function, *, gone=FRESH, come=FRESH):
            with step(name) as changing:
                try:
                    function()
                except (KeyError, OverflowError) as error:
                    if isinstance(error, KeyError) or "memo" not in str(error):
                        raise
                    return
            if changing.refused is None:
                if gone is not FRESH and gone in expected:
                    expected.remove(gone)
                if come is not FRESH and come not in expected:
                    expected.append(come)

        new = ("fuzz", "new")
        change("put", lambda: d.__setitem__(new, np.arange(3)), come=new)
        change("put a value", lambda: d.__setitem__("a value", [TEXT, TEXT]), come="a value")
        if keys:
            first, last = keys[0], keys[-1]
            change("replace", lambda: d.__setitem__(first, "replaced"), gone=first, come=first)
            change("delete", lambda: d.__delitem__(last), gone=last)
        change("create", lambda: d.create("hole", (2, 3), "<i2", mask=True), come="hole")
        if "a value" in expected and new in expected:
            with step("batch") as changing:
                with d.batch():
                    d["in a batch"] = np.ones(2)
                    d[new] = 5
                    del d["a value"]
            if changing.refused is None:
                expected.remove("a value")
                expected.append("in a batch")
        change("vacuum", d.vacuum)
        change("seal", d.seal)
        with step("list"):
            if set(d) != set(expected):
                raise Wrong("after changes %r, not %r" % (list(d), expected))
    again = read(path)
    if again is None or set(again[0]) != set(expected):
        raise Wrong("opened again: %r, not %r" % (again and again[0], expected))
    with step("clear") as clearing:
        with mmapdict.open(path, "r+") as d:
            d.clear()
            d["after"] = 1
    if not clearing.refused:
        again = read(path)
        if again is None or again[0] != ["after"]:
            raise Wrong("cleared, and there is %r" % (again and again[0],))


TEXT = "shared"


# -- both, and the tools ------------------------------------------------------------------------------------------

def exercise(path, expected=None, promise="", forged=False):
    """Let everything that reads files have a go at one.

    Parameters
    ----------
    path : str
        A file in a folder that may be written to. It is changed at last.
    expected : list, optional
        `judge.fingerprint_items` of what must be in it.
    promise : str
        `mutators.SAME`, or `REFUSED_OR_SAME`: it may be refused.
    forged : bool
        Whether somebody made check values right. Then only `verify` can be asked to tell.

    Returns
    -------
    str
        "refused", "partly", "read" and what plain pickle made of it.

    Raises
    ------
    Wrong
    """
    data = open(path, "rb").read()
    got = read(path)
    report = call(mmapdict.verify, "verify", path)
    named = call(mmapdict.scan, "scan", path)
    sound = not isinstance(report, Exception) and report.ok
    outcome = "refused" if got is None else "partly" if got[2] else "read"
    if expected is not None and promise:
        if got is None and promise == mutators.SAME or got is not None and (
                got[2] or judge.fingerprint_items(dict(zip(got[0], got[1].values()))) != expected):
            raise Wrong("nothing that counts was changed, and it was %s" % outcome)
    if sound and got is None:
        raise Wrong("verify finds no fault in a file that cannot be opened")
    check_canary()
    plain = read_plain(data, lambda loaded: got and difference(got[0], got[1], loaded))
    if plain.differs and got[2] == 0 and (not forged or sound):
        raise Wrong("two readers%s: %s" % (", and verify finds no fault" if sound else "", plain.differs))
    if sound and plain.error and not plain.excused:
        raise Wrong("verify finds no fault, and plain pickle says %s" % plain.error)
    if not isinstance(named, Exception):
        told = scanned(named)
        missed = {tuple(name) for name in plain.named} - set(told)
        if missed and named.fault is None and not any(None in name for name in told):
            raise Wrong("scan does not tell of %r" % missed)
    check_repair(path, got, sound)
    if got is not None:
        write(path, got[0])
        again = call(mmapdict.verify, "verify", path)
        if sound and not again.ok:
            raise Wrong("a sound file has faults after it was written to: %s" % again)
    check_canary()
    return outcome + ("" if plain.error else ", by plain pickle too") + (", otherwise" if plain.differs else "")


def check_canary():
    if canary.notes:
        raise Wrong("code was run: %s" % "; ".join(canary.notes))


def call(tool, name, *arguments):
    """Return what a tool reports, or its documented error."""
    with step(name) as calling:
        report = tool(*arguments)
        str(report), repr(report)
        return report
    return calling.refused


def scanned(report):
    return [(found.module, found.name) for found in report.globals]


def check_repair(path, got, sound):
    """The repaired file is whole, holds what could be read, and is repaired already."""
    output = path + ".repaired"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(output)
    with open(path, "rb") as file:
        before = file.read()
    report = call(mmapdict.repair, "repair", path, output)
    with open(path, "rb") as file:
        if file.read() != before:
            raise Wrong("repair changed the original")
    if isinstance(report, Exception):
        if got is not None:
            raise Wrong("a file that can be opened, and that repair refuses: %s" % report)
        return
    if report.whole:
        if got is None or os.path.exists(output):
            raise Wrong("repair finds nothing wrong with a file that cannot be opened, or writes another")
        return
    if sound:
        raise Wrong("verify finds no fault, and repair does: %s" % report)
    again = read(output)
    if again is None:
        raise Wrong("repair writes a file that cannot be opened")
    if again[0] != report.saved:
        raise Wrong("repair says that it saved %r, and there is %r" % (report.saved, again[0]))
    found = call(mmapdict.verify, "verify", output)
    if not found.ok:
        raise Wrong("repair writes a file with faults: %s" % found)
    if not call(mmapdict.repair, "repair", output, output + ".again").whole:
        raise Wrong("a repaired file is not whole, says repair")
    _, stop = mutators.read_records(before)
    if got is not None and int.from_bytes(before[mutators.STOP:mutators.STOP + 8], "little") == stop:
        for i, key in enumerate(got[0]):
            if i in got[1]:
                if key not in again[0]:
                    raise Wrong("what could be read was not saved: %.60r" % (key,))
                mine = again[1].get(again[0].index(key), FRESH)
                if mine is FRESH or not same(mine, got[1][i]):
                    raise Wrong("another value was saved for %.60r" % (key,))


# -- values by themselves -----------------------------------------------------------------------------------------

def exercise_value(ops):
    """Let a `Trust` that trusts nobody decode opcodes: a documented error, or what plain pickle makes of them.

    Returns
    -------
    str
        "refused", "read", or "read, otherwise": without the rest of a file plain pickle fails.
    """
    from mmapdict.trust import Trust

    trace_all(ops)
    value = FRESH
    with step("decode") as decoding:
        value = Trust().decode(ops)
        touch(value)
    check_canary()
    if decoding.refused:
        return "refused"
    plain = read_plain(b"\x80\x04" + ops + b".", lambda loaded: None if same(value, loaded)
                       else str(fingerprint(loaded)))
    if plain.differs:
        raise Wrong("decoded as %.300s, and by plain pickle as %.300s" % (fingerprint(value), plain.differs))
    return "read, otherwise" if plain.error else "read"


def trace_all(ops):
    """The symbolic machine copes with everything, and takes what plain pickle takes."""
    from mmapdict import machine

    with step("trace"):
        machine.trace(ops)


# -- in a child ---------------------------------------------------------------------------------------------------

# Audit events of acts that no file may cause, and how many of their first arguments are paths.
ACTS = {"os.system": 0, "os.exec": 0, "os.posix_spawn": 0, "os.spawn": 0, "os.fork": 0, "os.forkpty": 0, "pty.spawn": 0,
        "subprocess.Popen": 0, "os.kill": 0, "os.killpg": 0, "signal.pthread_kill": 0, "os.putenv": 0, "os.unsetenv": 0,
        "os.chdir": 0, "marshal.loads": 0, "code.__new__": 0, "socket.__new__": 0, "socket.connect": 0,
        "shutil.rmtree": 0, "shutil.copyfile": 0, "ctypes.dlopen": 0, "os.remove": 1, "os.rename": 2, "os.link": 2,
        "os.symlink": 2, "os.mkdir": 1, "os.rmdir": 1, "os.chmod": 1, "os.chown": 1, "os.truncate": 1, "os.utime": 1,
        "builtins.input": 0, "builtins.breakpoint": 0, "sys.setprofile": 0, "sys.settrace": 0, "webbrowser.open": 0,
        "urllib.Request": 0, "ftplib.connect": 0, "smtplib.connect": 0, "tempfile.mkstemp": 0}
# Whose modules may be imported because a value of theirs is read.
FAMILIES = ("numpy", "pandas", "scipy", "xarray", "mmapdict", "encodings")


class Watch:
    """Notes acts that no file may cause, once it is armed. It stays until the process ends."""

    def __init__(self, folder):
        self.folder = os.path.realpath(folder)
        sys.addaudithook(self.hear)

    def inside(self, path):
        if isinstance(path, int):
            return True
        path = os.path.realpath(os.fsdecode(path))
        return path == self.folder or path.startswith(self.folder + os.sep) or path.startswith("/proc/self/fd")

    def hear(self, event, args):
        if not canary.armed[0]:
            return
        if event == "import":
            root = args[0].partition(".")[0]
            bad = root not in FAMILIES and root not in sys.modules and not importing()
        elif event in ("exec", "compile"):
            bad = not importing()
        elif event == "open":
            path, mode, flags = args
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            bad = bool(writes) and not (path is None or self.inside(path)) and not importing()
        elif event == "ctypes.dlopen":
            bad = args[0] is not None and not importing()
        elif event == "os.truncate" and args and isinstance(args[0], int):
            bad = False
        elif event in ACTS:
            n = ACTS[event]
            bad = not (n and all(map(self.inside, args[:n]))) and not importing()
        else:
            return
        if bad:
            canary.note("%s%.200r" % (event, args))
            if event in ACTS:
                raise PermissionError("refused by the fuzzer's watch: %s" % event)


def importing():
    """Whether some module that may be imported is being imported at this moment."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def public_state():
    """What a file could change for good: attributes of classes and functions that values are made of."""
    state = {}
    for name in ("numpy", "numpy.ma", "fractions", "decimal", "datetime", "uuid", "collections", "pathlib", "ipaddress",
                 "types", "zoneinfo", "enum", "copyreg", "pickle", "pandas", "xarray",
                 *(m for m in sys.modules if m.startswith("mmapdict"))):
        module = sys.modules.get(name)
        if module is None:
            continue
        for attribute, value in list(vars(module).items()):
            key = name + "." + attribute
            if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
                state[key] = id(value)
            if isinstance(value, type) and value.__flags__ & 1 << 9:           # not immutable
                for own, part in list(vars(value).items()):
                    if not own.startswith(("_abc", "__abstractmethods", "__weakref", "__annotations", "__static",
                                           "__firstline")):
                        lasting = callable(part) or isinstance(part, property)
                        state[key + "." + own] = id(part) if lasting else type(part).__name__
            elif isinstance(value, types.FunctionType):
                state[key + "()"] = (id(value.__code__), repr(value.__defaults__), repr(value.__kwdefaults__))
    return state


def limit_memory(more=MEMORY):
    """Let this process take so many bytes more than it has."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    bound, most = pages * mmap.PAGESIZE + more, resource.getrlimit(resource.RLIMIT_AS)[1]
    if most != resource.RLIM_INFINITY:
        bound = min(bound, most)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def _child(work, folder, progress, log):
    """Exercise numbered pieces of work; note in shared memory how far it is."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    Watch(folder)
    limit_memory()
    path = os.path.join(folder, "file")
    before = public_state()
    canary.armed[0] = True
    for number, mutant, expected in work:
        struct.pack_into("<Q", progress, 0, number)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
        problem = None
        try:
            if mutant.data.startswith(VALUE):
                outcome = exercise_value(mutant.data[len(VALUE):])
            else:
                overwrite(path, mutant.data)
                outcome = exercise(path, expected, mutant.promise, mutant.forged)
        except Wrong as error:
            outcome, problem = "wrong", str(error)
        except MemoryError:
            outcome, problem = "wrong", "much memory is asked for"
        except BaseException as error:
            outcome, problem = "wrong", "out of the harness: %s: %s" % (type(error).__name__, error)
        canary.notes.clear()
        log.write(json.dumps([number, outcome, problem]) + "\n")
        log.flush()
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    canary.armed[0] = False
    after = public_state()
    changed = [name for name in before if name in after and before[name] != after[name]]
    struct.pack_into("<Q", progress, 0, DONE)
    if changed:
        log.write(json.dumps([DONE, "wrong", "what others use was changed for good: %s" % changed[:5]]) + "\n")
        log.flush()


HUGE = 1 << 17
DONE = 2**63


def overwrite(path, data):
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.write(data)
        file.truncate()


def in_child(work, folder):
    """Exercise the work in a forked child; return the lines of its log, and how it died: None, or (number, how)."""
    progress = mmap.mmap(-1, 4096)
    log_path = os.path.join(folder, "log")
    with open(log_path, "w") as log, open(os.path.join(folder, "errors"), "w") as errors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            try:
                os.dup2(errors.fileno(), 2)
                faulthandler.enable(errors)
                warnings.simplefilter("ignore")
                _child(work, folder, progress, log)
                os._exit(0)
            except BaseException as error:
                print(type(error), error, file=errors, flush=True)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(log_path) as log:
        lines = [json.loads(line) for line in log if line.endswith("\n")]
    number, = struct.unpack_from("<Q", progress, 0)
    if code == 0 and number == DONE:
        return lines, None
    how = {-signal.SIGALRM: "it hangs", -signal.SIGPROF: "it hangs, working", -signal.SIGKILL: "killed"}.get(
        code, "it crashes: %d" % code)
    with open(os.path.join(folder, "errors")) as errors:
        return lines, (number, how + "\n" + errors.read()[:2000])


def run_all(work, folder, per_child=200):
    """Exercise many mutants.

    Parameters
    ----------
    work : list of (int, Mutant, expected)
        See `exercise`.
    folder : path-like
        To work in.

    Returns
    -------
    (dict, list of (int, str))
        How often each outcome was seen; the numbers of the mutants that something was wrong with, and what.
    """
    folder = os.fspath(folder)
    by_number = {number: (number, mutant, expected) for number, mutant, expected in work}
    counts, wrong, suspects = {}, [], []
    waiting = list(work)
    while waiting:
        batch = waiting[:per_child]
        lines, death = in_child(batch, folder)
        done = {number for number, _, _ in lines}
        for number, outcome, problem in lines:
            if number != DONE:
                counts[outcome] = counts.get(outcome, 0) + 1
            if problem and number == DONE:
                wrong += find_changer(batch, folder, problem)
            elif problem:
                suspects.append((number, problem))
        if death is None:
            waiting = waiting[len(batch):]
            continue
        number, how = death
        rest = [piece for piece in waiting if piece[0] not in done and piece[0] != number]
        if number in by_number and number not in done:
            suspects.append((number, how))
        elif len(rest) == len(waiting):
            raise RuntimeError("the child does not start: %s" % how)
        waiting = rest
    for number, first in suspects:
        # Once more, alone: what one file does must not be blamed on another.
        lines, death = in_child([by_number[number]], folder)
        problem = death[1] if death else next((p for _, _, p in lines if p), None)
        if problem or "emory" not in first:             # which others may have left in pieces
            wrong.append((number, problem or "in company only: " + first))
    return counts, wrong


def find_changer(batch, folder, problem):
    """Return the first mutant that changes by itself what others use."""
    for piece in batch:
        lines, _ = in_child([piece], folder)
        for number, _, found in lines:
            if number == DONE:
                return [(piece[0], found)]
    return [(batch[0][0], problem)]


# -- seeds --------------------------------------------------------------------------------------------------------

def expected_of(data):
    """What must be in a whole file."""
    return judge.fingerprint_items(pickle.loads(data))


def numbered(seeds, expected, numbers):
    """Return work for `run_all`: the mutants of these numbers."""
    work = []
    for number in numbers:
        name, mutant = mutators.numbered(seeds, number)
        work.append((number, mutant, expected[name]))
    return work


def make_seeds(folder):
    """Return small files with all that a file can hold, as bytes by name."""
    from decimal import Decimal
    import datetime
    import fractions
    import uuid

    def fill(d):
        shared = ["shared"]
        d["dead"] = 1
        d["list"] = [shared, shared, {"k": shared, 1.5: np.float32(2)}]
        d["array"] = np.arange(6, dtype="<i2").reshape(2, 3)
        d[3] = np.arange(3, dtype=">u2")
        d["f"] = np.asfortranarray(np.arange(6.0).reshape(2, 3))
        d["fields"] = np.zeros(2, [("a", "<i4"), ("b", "<f8", (2,))])
        d["masked"] = np.ma.array([1.5, 2.5, 3.5], mask=[0, 1, 0], fill_value=9)
        d["times"] = np.array(["2020-01-01"], "M8[D]")
        d[("tuple", 1, None)] = "t" * 300
        d["set"] = {1, (2, 3), frozenset([4])}
        d["date"] = [datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc), Decimal("1.5"),
                     fractions.Fraction(1, 3), uuid.UUID(int=5), 1j, range(3), slice(1), bytearray(b"x")]
        d["dtype"] = [np.dtype("<f4"), np.array([1, "x"], object), np.float64(1.5), np.datetime64("2020")]
        del d["dead"]
        d["list"] = "replaced"

    def deleted(d):
        d["a"], d["b"], d["c"] = np.ones(3), "b" * 5000, [1, 2, [3]]
        del d["b"]
        d["a"] = 1
        d.clear()
        d["after"], d["big"] = np.full(600, 7.0), bytes(5000)

    def batches(d):
        d["a"], d["b"] = 1, np.ones(3)
        with d.batch():
            d["c"] = [1, [2]]
            del d["a"]
            d["b"] = "replaced"
        with d.batch():
            d["a"] = np.zeros(2)

    makers = {"kinds": fill, "deleted": deleted}
    if hasattr(mmapdict.MmapDict, "batch"):
        makers["batches"] = batches
    if hasattr(mmapdict.MmapDict, "seal"):
        makers["sealed"] = lambda d: (fill(d), d.seal())
    seeds = {}
    for name, maker in makers.items():
        path = os.path.join(os.fspath(folder), name)
        with mmapdict.open(path, "w") as d:
            maker(d)
        with open(path, "rb") as file:
            seeds[name] = file.read()
        os.unlink(path)
    golden = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "v1")
    for name in sorted(os.listdir(golden)):
        if name.endswith(".mmapdict"):
            with open(os.path.join(golden, name), "rb") as file:
                seeds[name[:-9]] = file.read()
    return seeds


def main():
    """``python -m fuzz.exercise FIRST LAST [FOLDER]``: exercise the mutants of these numbers."""
    first, last = map(int, sys.argv[1:3])
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as folder:
        seeds = make_seeds(folder)
        expected = {name: expected_of(data) for name, data in seeds.items()}
        total = {}
        for start in range(first, last, 1000):
            counts, wrong = run_all(numbered(seeds, expected, range(start, min(last, start + 1000))), folder)
            for outcome, n in counts.items():
                total[outcome] = total.get(outcome, 0) + n
            for number, problem in wrong:
                name, mutant = mutators.numbered(seeds, number)
                print("%d %s: %.300s\n    %.700s" % (number, name, mutant.story, problem.replace("\n", "\n    ")),
                      flush=True)
        print(total)


if __name__ == "__main__":
    main()
