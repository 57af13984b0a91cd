"""Load the files that ``write_files.py`` wrote and compare them with what it expected.

    python read_files.py FOLDER            by pickle and numpy alone; mmapdict cannot be imported
    python read_files.py --mmapdict FOLDER by mmapdict, under the numpy that runs this
"""

import json
import pathlib
import pickle
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import judge  # noqa: E402


def load_by_pickle(path):
    """What the unpicklers agree upon."""
    return judge.fingerprint_items(judge.load_every_way(path))


def load_by_mmapdict(path):
    """What the mapping gives."""
    import mmapdict

    with mmapdict.open(path, "r", allow=judge.NUMPY_FUNCTIONS if path.stem == "functions" else ()) as mapping:
        return judge.fingerprint_items(mapping)


def main(*arguments):
    """Check every file; the exit code is 1 if one differs."""
    by_mmapdict = arguments[0] == "--mmapdict"
    folder = pathlib.Path(arguments[-1])
    if not by_mmapdict:
        sys.modules["mmapdict"] = None
        try:
            pickle.loads(b"cmmapdict\nopen\n.")
        except ImportError:
            blocked = True
        else:
            blocked = False
        if not blocked:
            raise AssertionError("mmapdict can still be imported: the check would prove nothing")
    load = load_by_mmapdict if by_mmapdict else load_by_pickle
    about = json.loads((folder / "expected.json").read_text(encoding="ascii"))
    faults = 0
    for name, expected in about["files"].items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                judge.assert_same_items(load(folder / (name + ".pickle")), expected, name)
        except Exception as error:
            faults += 1
            print("%s: %s: %s" % (name, type(error).__name__, str(error)[:2000]), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
