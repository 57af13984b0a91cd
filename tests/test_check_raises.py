"""The tool that continuous integration asks whether every `raise` was reached."""

import io
import subprocess
import sys

import pytest

pytest.importorskip("coverage")
import check_raises  # noqa: E402

MODULE = """
def f(x):
    if x > 1:
        raise ValueError(
            "too much")
    if x < 0:
        raise KeyError("too little")
    return x
"""


@pytest.fixture
def measured(tmp_path):
    """Run a line of code under coverage, beside a package of one module; return the data file and the package."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(MODULE)

    def run(code):
        (tmp_path / "script.py").write_text("from contextlib import suppress\nfrom package import f\n" + code)
        data = tmp_path / "data"
        subprocess.run([sys.executable, "-m", "coverage", "run", f"--source={package}", f"--data-file={data}",
                        tmp_path / "script.py"], check=True, cwd=tmp_path)
        return data, package
    return run


def report(data, package, least):
    out = io.StringIO()
    code = check_raises.main([str(data), "--package", str(package), "--least", str(least)], out)
    return code, out.getvalue()


def test_a_raise_that_never_ran_is_told(measured):
    code, text = report(*measured("f(1)\nwith suppress(ValueError):\n    f(2)\n"), least=50)
    assert code == 1
    assert 'never raised: __init__.py:7: raise KeyError("too little")' in text
    assert "1 of 2 raise statements" in text and "ValueError" not in text


def test_too_few_lines_are_told(measured):
    data, package = measured("for x in 1, 2, -1:\n    with suppress(ValueError, KeyError):\n        f(x)\n")
    code, text = report(data, package, least=100)
    assert code == 0
    assert text.endswith("100.00 % of 6 lines ran (at least 100 %); 0 of 2 raise statements never did\n")
    (package / "more.py").write_text("def never():\n    return 1\n")
    code, text = report(data, package, least=100)
    assert code == 1 and "more.py                  0 of     2 lines" in text
    assert report(data, package, least=50)[0] == 0


def test_every_raise_of_the_package_is_known():
    assert len([r for path in check_raises.PACKAGE.rglob("*.py") for r in check_raises.raises(path)]) > 50
