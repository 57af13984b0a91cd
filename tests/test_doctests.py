"""Every example in the docstrings, in README.md and in docs/ gives what it says."""

import doctest
import importlib
import pathlib
import pkgutil

import pytest

import mmapdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = ["mmapdict"] + sorted(
    "mmapdict." + module.name for module in pkgutil.iter_modules(mmapdict.__path__) if module.name != "__main__")
TEXTS = ["README.md"] + sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert result.failed == 0


@pytest.mark.parametrize("name", TEXTS)
def test_examples_in_texts(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(ROOT / name), module_relative=False, optionflags=FLAGS, encoding="utf-8")
    assert result.failed == 0
