"""Which lines, and which `raise` statements, of the package did the tests not reach? For continuous integration.

    python -m coverage run --source=mmapdict --data-file=cov -m pytest ...     (or several of these)
    python -m coverage combine --data-file=cov cov.*
    python tests/check_raises.py cov

Prints the share of lines of each module that ran, and every `raise` that never did. The end is 1, not 0, if fewer than
`LEAST` percent ran in all, or if there is such a `raise`. What runs only on other systems is no excuse:
test_portable.py runs it here.
"""

import argparse
import ast
import pathlib
import sys

import coverage

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "mmapdict"
LEAST = 95.0


def raises(path):
    """The `raise` statements of a file: pairs of line and text.

    Parameters
    ----------
    path : pathlib.Path

    Returns
    -------
    list of (int, str)
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = [node.lineno for node in ast.walk(ast.parse(text, str(path))) if isinstance(node, ast.Raise)]
    return [(line, lines[line - 1].strip()) for line in sorted(found)]


def examine(data_file, package=PACKAGE):
    """Compare a coverage data file with the package's source.

    Parameters
    ----------
    data_file : path-like
    package : pathlib.Path

    Returns
    -------
    modules : dict of str to (int, int)
        Name to how many lines ran, and how many there are that could.
    missed : list of (str, int, str)
        Each `raise` that no test reached: file, line and text.
    """
    measured = coverage.Coverage(data_file=str(data_file))
    measured.load()
    modules, missed = {}, []
    for path in sorted(package.rglob("*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        name = str(path.relative_to(package))
        modules[name] = len(statements) - len(missing), len(statements)
        missed += [(name, line, text) for line, text in raises(path) if line in missing]
    return modules, missed


def main(argv=None, out=sys.stdout):
    """Print the report; return 0 if all is as it should be, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_file")
    parser.add_argument("--least", type=float, default=LEAST, metavar="PERCENT")
    parser.add_argument("--package", type=pathlib.Path, default=PACKAGE)
    options = parser.parse_args(argv)
    modules, missed = examine(options.data_file, options.package.resolve())
    for name, (ran, n) in modules.items():
        print("%-20s %5d of %5d lines, %5.1f %%" % (name, ran, n, 100 * ran / n if n else 100), file=out)
    ran, n = (sum(column) for column in zip(*modules.values()))
    share = 100 * ran / n if n else 100.0
    for name, line, text in missed:
        print("never raised: %s:%d: %s" % (name, line, text), file=out)
    total = sum(len(raises(path)) for path in options.package.rglob("*.py"))
    print("%.2f %% of %d lines ran (at least %g %%); %d of %d raise statements never did"
          % (share, n, options.least, len(missed), total), file=out)
    return 0 if share >= options.least and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
