"""The file-compatibility job: files written under each numpy are read under each other one.

    python tests/compat/run.py

Makes a virtual environment for each numpy (``.venv-compat-...`` beside ``setup.cfg``), writes the files in each, and
reads them in each, by plain pickle and by mmapdict. A numpy for which there is no interpreter is skipped, and says so;
without a single pair of different versions the job fails, since it would have shown nothing.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Requirement of numpy, and the newest Python for which it has wheels (None: no bound).
VERSIONS = {"newest": ("numpy", None), "1.26.4": ("numpy==1.26.4", (3, 12)), "1.23.5": ("numpy==1.23.5", (3, 11))}
OLDEST_PYTHON = (3, 10)


def python_version(interpreter):
    """The version of an interpreter, or None if it does not run (a version manager's stand-in may exist and fail)."""
    probe = [interpreter, "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        result = subprocess.run(probe, capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    fields = result.stdout.split()
    if result.returncode != 0 or len(fields) != 2:
        return None
    return tuple(int(field) for field in fields)


def find_interpreter(newest):
    """The first interpreter that is not newer than `newest`: the running one, else one on PATH."""
    names = [sys.executable, "python3.12", "python3.11", "python3.10", "python3"]
    for name in names:
        path = shutil.which(name)
        version = python_version(path) if path else None
        if version and version >= OLDEST_PYTHON and (newest is None or version <= newest):
            return path
    return None


def environment(name, requirement, newest):
    """Interpreter of a virtual environment with the numpy and the project in it, or None if none can be made."""
    folder = ROOT / (".venv-compat-" + name)
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if stamp.exists():
        return python
    base = find_interpreter(newest)
    if base is None:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--only-binary=numpy", requirement], check=True)
    subprocess.run([*install, "--no-deps", "-e", str(ROOT)], check=True)
    stamp.touch()
    return python


def run(python, script, *arguments):
    """Run one of the scripts beside this file; whether it succeeded."""
    return subprocess.run([str(python), str(HERE / script), *map(str, arguments)]).returncode == 0


def main():
    """Do the job; the exit code."""
    pythons = {}
    for name, (requirement, newest) in VERSIONS.items():
        python = environment(name, requirement, newest)
        if python is None:
            print("SKIPPED: numpy %s needs a Python %d.%d to %d.%d, and none was found"
                  % (name, *OLDEST_PYTHON, *newest), flush=True)
            continue
        pythons[name] = python
        about = "import sys, numpy; print('numpy', numpy.__version__, 'on Python', sys.version.split()[0])"
        print("%s: " % name, end="", flush=True)
        subprocess.run([str(python), "-c", about], check=True)

    faults = pairs = 0
    with tempfile.TemporaryDirectory() as scratch:
        for writer in pythons:
            folder = pathlib.Path(scratch) / writer
            folder.mkdir()
            if not run(pythons[writer], "write_files.py", folder):
                print("FAILED: writing under numpy %s" % writer, flush=True)
                faults += 1
                continue
            for reader in pythons:
                pairs += reader != writer
                for how, flags in [("pickle", []), ("mmapdict", ["--mmapdict"])]:
                    good = run(pythons[reader], "read_files.py", *flags, folder)
                    faults += not good
                    print("%-6s written %-7s read %-7s by %s"
                          % ("ok" if good else "FAILED", writer, reader, how), flush=True)
    if pairs == 0:
        print("FAILED: no two different numpy versions could be compared", flush=True)
        return 1
    print("%d pairs of versions, %s" % (pairs, "%d faults" % faults if faults else "no fault"), flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
