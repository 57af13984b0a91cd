"""The layers import one way, only the store touches files, and nothing but numpy is needed."""

import ast
import pathlib
import sys

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "mmapdict"

# Low to high; a module imports only from layers before its own, the programs at the top also from each other.
LAYERS = [["errors"], ["format"], ["literals"], ["machine"], ["views"], ["arrays"], ["pickling"], ["rules"],
          ["libraries"], ["trust"], ["values"], ["bulk"], ["seals"], ["store"], ["notice"], ["table"], ["judging"],
          ["finding"], ["birth"], ["index"], ["writer"], ["growables"], ["copying"], ["vacuum"], ["scan"],
          ["verify"], ["repair"], ["dictviews"], ["watching"], ["blocks"], ["mapping"], ["rows"], ["logs"],
          ["samples"], ["__init__"], ["sources", "camera", "capture", "demo", "cli", "__main__"]]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
TOP = len(LAYERS) - 1
LIBRARY = sorted(name for name, rank in RANK.items() if rank < TOP)
SOURCES = sorted(path.stem for path in PACKAGE.glob("*.py"))

FILE_MODULES = {"mmap", "fcntl", "msvcrt", "ctypes", "shutil", "tempfile"}
# An array over a map has numpy.memmap's own flush(), so its module knows the map's type.
MAY_IMPORT = {"views": {"mmap"}, "notice": {"ctypes"}}
# What others than the store may take from os: names, paths and facts about the process, nothing that touches a file.
HARMLESS_OS = {"fspath", "fsencode", "fsdecode", "path", "PathLike", "getpid", "register_at_fork", "strerror",
               "urandom"}
# It reads what the system tells of files, not the files.
MAY_USE_OS = {"notice": {"read", "close"}}
DEMO = {"sources", "camera", "capture", "demo"}
DEMO_ONLY = {"skimage", "scipy", "tifffile"}
# What is imported only when it is asked for by name.
MAY_NEED = {"logs": {"pandas"}}


def parse(name):
    path = PACKAGE / (name + ".py")
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def package_imports(name, tree=None):
    """Pairs of (line, module of the package) that module `name` imports, anywhere in its text."""
    found = []
    for node in ast.walk(tree or parse(name)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "mmapdict":
                    found.append((node.lineno, parts[1] if len(parts) > 1 else "__init__"))
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            if node.level == 0:
                if parts[0] != "mmapdict":
                    continue
                parts = parts[1:]
            if parts and parts[0]:
                found.append((node.lineno, parts[0]))
            else:
                for alias in node.names:
                    found.append((node.lineno, alias.name if alias.name in RANK else "__init__"))
    return found


def outside_imports(name, tree=None):
    """Triples of (line, top module, whether at the top of the file) of what is imported from elsewhere."""
    tree = tree or parse(name)
    inside = {id(node) for function in ast.walk(tree) if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
              for node in ast.walk(function)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        else:
            continue
        for module in names:
            top = module.split(".")[0]
            if top != "mmapdict":
                found.append((node.lineno, top, id(node) not in inside))
    return found


def upward_imports(name, tree=None):
    """Imports of module `name` that do not go down."""
    rank = RANK[name]
    return [(line, target) for line, target in package_imports(name, tree)
            if RANK[target] > rank or (RANK[target] == rank and rank != TOP and target != name)]


def os_uses(tree):
    """Pairs of (line, attribute) of what a module takes from os."""
    aliases = {"os"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases.update(alias.asname for alias in node.names if alias.name == "os" and alias.asname)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [(node.lineno, alias.name) for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            found.append((node.lineno, node.attr))
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_every_module_has_a_layer(name):
    assert name in RANK, "add mmapdict/%s.py to LAYERS" % name


@pytest.mark.parametrize("name", SOURCES)
def test_imports_go_down(name):
    assert upward_imports(name) == []


@pytest.mark.parametrize("text, expected", [
    ("from . import mapping", "mapping"),
    ("from .mapping import MmapDict", "mapping"),
    ("def f():\n    from mmapdict.index import Index", "index"),
    ("import mmapdict", "__init__"),
    ("from mmapdict import open", "__init__"),
])
def test_an_import_that_goes_up_is_seen(text, expected):
    assert [target for _, target in upward_imports("values", ast.parse(text))] == [expected]


@pytest.mark.parametrize("name", [name for name in LIBRARY if name not in ("store", "birth") and name in SOURCES])
def test_only_the_store_touches_files(name):
    tree = parse(name)
    refused = FILE_MODULES - MAY_IMPORT.get(name, set())
    modules = [(line, top) for line, top, _ in outside_imports(name, tree) if top in refused]
    assert modules == []
    assert [use for use in os_uses(tree) if use[1] not in HARMLESS_OS | MAY_USE_OS.get(name, set())] == []
    own_open = any(isinstance(node, ast.FunctionDef) and node.name == "open" for node in tree.body)
    opens = [node.lineno for node in ast.walk(tree)
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"]
    assert own_open or opens == []


@pytest.mark.parametrize("name", SOURCES)
def test_numpy_is_the_only_dependency(name):
    allowed = sys.stdlib_module_names | {"numpy"}
    foreign = [(line, top, at_top) for line, top, at_top in outside_imports(name) if top not in allowed]
    optional = DEMO_ONLY if name in DEMO else MAY_NEED.get(name, set())
    assert [item for item in foreign if item[1] not in optional or item[2]] == []
