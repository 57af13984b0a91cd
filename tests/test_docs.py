"""docs/format.md and docs/api.md say what the code does: tables, opcodes, example, signatures; and all links lead
somewhere.
"""

import builtins
import importlib.util
import inspect
import io
import pathlib
import pickle
import pickletools
import re
import sys

import pytest

import listing
import mmapdict
from mmapdict import arrays, literals
from mmapdict import format as fmt

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
PACKAGE = sorted((ROOT / "mmapdict").glob("*.py"))
TEXTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "tests" / "data").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
INVARIANT = re.compile(r"\bI([1-9][0-9]?)\b")


def load_maker():
    """The script that made the golden files, as a module."""
    path = ROOT / "tests" / "data" / "v1" / "make.py"
    spec = importlib.util.spec_from_file_location("golden_make", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("golden_make", module)
    spec.loader.exec_module(module)
    return module


def section(title, text=SPEC):
    """What stands under a heading, up to the next one of its rank or above."""
    found = None
    for heading in re.finditer(r"^(#+) (.*)$", text, re.M):
        if heading.group(2) == title:
            end = re.compile(r"^#{1,%d} " % len(heading.group(1)), re.M).search(text, heading.end())
            found = text[heading.end():end.start() if end else len(text)]
    assert found is not None, title
    return found


def table(title, number=0):
    """The rows of a table under a heading, as dicts."""
    tables = re.findall(r"(?:^\|.*\|\n)+", section(title), re.M)
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in tables[number].splitlines()]
    heads, dashes, *rows = lines
    assert set("".join(dashes)) == {"-"} and all(len(row) == len(heads) for row in rows)
    return [dict(zip(heads, row)) for row in rows]


def constant(field):
    """The name in the code of a field's offset."""
    return field.upper().replace(" ", "_") + "_OFFSET"


# -- tables --------------------------------------------------------------------------------------------------------

def test_header_fields_stand_where_the_code_has_them():
    rows = table("Header")
    at = 0
    for row in rows:
        assert int(row["offset"]) == at, row
        at += int(row["size"])
    assert at == fmt.HEADER_SIZE
    fields = {row["field"]: int(row["offset"]) for row in rows if hasattr(fmt, constant(row["field"]))}
    in_code = {name for name in vars(fmt) if name.endswith("_OFFSET") and name != "BLOCK_OFFSET"}
    assert {constant(field) for field in fields} == in_code
    for field, offset in fields.items():
        assert offset == getattr(fmt, constant(field))
    by_name = {row["field"]: row for row in rows}
    assert int(by_name["zero"]["offset"]) == fmt.BLOCK_OFFSET
    assert by_name["BINBYTES"]["allowed values"] == "42, size %d" % fmt.BLOCK_SIZE


def test_a_new_header_has_the_values_of_the_table():
    rows = {row["field"]: row for row in table("Header")}
    file_id, boot_id = bytes(range(16)), bytes(range(16, 32))
    head = fmt.encode_header(file_id, boot_id)

    def field(name):
        start = int(rows[name]["offset"])
        return head[start:start + int(rows[name]["size"])]

    assert field("PROTO") == bytes.fromhex(rows["PROTO"]["allowed values"])
    assert field("BINBYTES") == b"\x42" + fmt.BLOCK_SIZE.to_bytes(4, "little")
    assert b"".join(map(field, ("POP", "EMPTY_DICT", "BINPUT"))) == bytes.fromhex(
        "".join(rows[name]["allowed values"] for name in ("POP", "EMPTY_DICT", "BINPUT")))
    assert "`%s`" % field("magic").decode() in rows["magic"]["allowed values"]
    assert int.from_bytes(field("version"), "little") == int(rows["version"]["allowed values"]) == fmt.VERSION
    assert field("file id") == file_id and field("boot id") == boot_id
    numbers = {"commit": 0, "stop": 256, "live": 0, "dead": 0, "memo": 64, "index": 0, "state": 0, "synced": 0}
    for name, value in numbers.items():
        assert int.from_bytes(field(name), "little") == value, name
    assert not any(field("reserved")) and not any(field("zero"))
    said = re.search(r"A new file is this header, with (.*?): (\d+) bytes", SPEC, re.S)
    assert said.group(1).split() == "commit, live and dead 0, stop 256, memo 64, and a STOP".split()
    assert int(said.group(2)) == len(head) + 1


def test_states():
    said = {row["field"]: row for row in table("Header")}["state"]["allowed values"]
    found = re.findall(r"(\d) ([a-z ]+)", said)
    assert found == [(str(fmt.NORMAL), "normal"), (str(fmt.REPLACING), "about to be replaced"),
                     (str(fmt.SUPERSEDED), "superseded")]


def test_opcodes_have_the_bytes_of_pickletools_and_of_the_code():
    rows = table("Opcodes")
    codes = {op.name: ord(op.code) for op in pickletools.opcodes}
    named = {row["opcode"]: int(row["byte"], 16) for row in rows}
    assert len(named) == len(rows)
    for name, byte in named.items():
        assert codes[name] == byte, name
        assert getattr(fmt, name, byte) == byte, name
    in_code = {name for name in codes if hasattr(fmt, name)}
    assert in_code - {"MEMOIZE", "FRAME"} <= set(named)
    assert fmt.LIVE == named["BINFLOAT"] and fmt.DEAD == named["BINBYTES8"]


def test_opcodes_named_in_the_text_exist():
    names = {op.name for op in pickletools.opcodes}
    ours = {"MARK", "MUST", "NOT", "SHOULD", "MAY", "PUT", "XOR", "CRC", "ASCII", "UTF", "CPU", "ARM", "FRAME", "JSON",
            "SHA"}
    for word in set(re.findall(r"\b[A-Z][A-Z0-9_]{2,}\b", SPEC[:SPEC.index("## Example")])):
        assert word in names or word in ours or INVARIANT.fullmatch(word), word


def test_record_table():
    rows = {row["field"]: row for row in table("Record")}
    head = fmt.RECORD.pack(fmt.MARK, fmt.LIVE, 0x0102030405060708)
    assert len(head) == fmt.RECORD_HEAD == int(rows["body"]["offset"])
    for name, start in (("MARK", 0), ("Op", 1), ("length", 2)):
        assert int(rows[name]["offset"]) == start
    assert head[2:] == bytes(range(8, 0, -1)) and int(rows["length"]["size"]) == 8
    assert rows["Op"]["allowed values"] == "%02x live, %02x dead" % (fmt.LIVE, fmt.DEAD)
    assert rows["MARK"]["allowed values"].startswith("%02x;" % fmt.MARK)
    assert rows["MARK"]["allowed values"].endswith("%02x" % fmt.STOP)
    assert rows["POP_MARK"]["allowed values"] == "%02x" % fmt.POP_MARK


def test_check_table():
    rows = table("Check value")
    at = 0
    for row in rows[:3]:
        assert int(row["offset"]) == at
        at += int(row["size"])
    assert [row["field"] for row in rows] == ["tag", "crc", "span", "zeros"]
    assert int(rows[3]["offset"]) == at == fmt.CHECK.size
    assert fmt.CHECK.pack(1, 2, 3) == (1).to_bytes(8, "little") + (2).to_bytes(4, "little") + (3).to_bytes(2, "little")
    assert fmt.LENGTH_TAG_SPAN.pack(1, 2, 3) == b"".join(
        n.to_bytes(size, "little") for n, size in ((1, 8), (2, 8), (3, 2)))


def test_alignment_table():
    rows = [row for row in table("Alignment") if row["payload"].startswith("array")]
    sizes = [int(size) for row in rows for size in re.findall(r"size < (\d+)", row["payload"])]
    multiples = [int(row["starts at a multiple of"].split(",")[0]) for row in rows]
    for size, below, above in zip(sizes, multiples, multiples[1:]):
        assert fmt.array_payload(b"", size - 1, 1).alignment == below
        assert fmt.array_payload(b"", size, 1).alignment == above
    assert fmt.array_payload(b"", 8, 32).alignment == 32
    assert fmt.array_payload(b"", 8, 2).alignment == multiples[0]


def test_limits():
    values = {row["limit"]: int(row["value"]) for row in table("Limits")}
    assert values == {
        "size of the header": fmt.HEADER_SIZE, "alignment of records": fmt.RECORD_ALIGNMENT,
        "most bytes that a crc covers": fmt.SPAN_MAX,
        "largest payload that need not end on a multiple of 8": fmt.BIG_PAYLOAD,
        "first memo index of values": fmt.MEMO_START, "memo indices in a file, fewer than": fmt.MEMO_END,
        "nesting of tuples in a key": literals.KEY_DEPTH,
        "dimensions of an array that every supported numpy loads": 32}


def test_memo_indices():
    rows = table("Globals")
    found = {int(row["index"]): (row["object"].split(",")[0], row["group"]) for row in rows}
    assert found == {0: ("the mapping", "header"), fmt.NDARRAY: ("numpy.ndarray", "arrays"),
                     fmt.DTYPE: ("numpy.dtype", "arrays"), fmt.NO_ROWS: ("((0", "arrays"),
                     fmt.UINT8: ('numpy.dtype("u1")', "arrays"), fmt.MASKED_ARRAY: ("numpy.ma.MaskedArray", "masks"),
                     fmt.NOMASK: ("numpy.ma.nomask", "masks")}
    free = set(range(64)) - set(found)
    said = "Indices 5 to 7 and 10 to 63 are reserved"
    assert said in SPEC and free == {5, 6, 7, *range(10, 64)}


# -- runs of opcodes -----------------------------------------------------------------------------------------------

def spelled(ops):
    """Opcodes in the notation of the text."""
    names = []
    for op, argument, _ in pickletools.genops(ops + b"."):
        names.append(op.name if argument is None else "%s %r" % (op.name, argument))
    return names[:-1]


def said_opcodes(title, name):
    """The opcodes after a name in an indented block of the text."""
    found = re.search(r"^    %s +(.*(?:\n            · .*)*)" % name, section(title), re.M).group(1)
    return [part.strip() for part in found.replace("\n", " ").split("·")]


@pytest.mark.parametrize("name, ops", [
    ("arrays", fmt.GROUPS[fmt.ARRAYS]), ("masks", fmt.GROUPS[fmt.MASKS]), ("clear", fmt.CLEAR)])
def test_hidden_opcodes(name, ops):
    assert said_opcodes("Globals", name) == spelled(ops)


def test_the_recipes_of_arrays():
    build = said_opcodes("Arrays", "build")
    assert build[:5] == spelled(arrays._BUILD)
    assert build[5:] == ["shape", "dtype", "order", "[filler]", "data", *spelled(arrays._BUILT)]
    buffer = said_opcodes("Arrays", "buffer")
    head, payload, tail = arrays.hole_parts((2, 3), arrays.np.dtype(">i4"), "F")
    assert buffer == ["BINGET 1", "MARK", "shape", "dtype", "bytes", "[BININT1 0", "NONE", "SHORT_BINUNICODE 'F']",
                      "TUPLE", "NEWOBJ"]
    assert head.startswith(b"h\x01(") and spelled(tail) == ["TUPLE", "BUILD", "BININT1 0", "NONE",
                                                            "SHORT_BINUNICODE 'F'", "TUPLE", "NEWOBJ"]
    assert payload.nbytes == 24
    assert said_opcodes("Arrays", "dtype") == ["BINGET 2", "literal", "TUPLE1", "REDUCE"]
    ops = arrays.encode_dtype(arrays.np.dtype("<f8")).ops
    assert spelled(ops) == ["BINGET 2", "SHORT_BINUNICODE '<f8'", "TUPLE1", "REDUCE"]


def test_the_recipe_of_masked_arrays():
    said = said_opcodes("Masked arrays", "masked")
    start, options = spelled(arrays._MASKED), spelled(arrays._MASKED_OPTIONS)
    assert said == [*start, "array", "mask", *options, "fill", "NEWFALSE", "hard", "TUPLE", "REDUCE"]
    parts = arrays.masked_parts([b"D"], None, [b"N"], True)
    assert parts == [arrays._MASKED + b"Dh\x09" + arrays._MASKED_OPTIONS + b"N\x89\x88tR"]


@pytest.mark.parametrize("value", [
    None, True, False, 0, 255, 256, 65535, 65536, -1, 2**31 - 1, -2**31, 2**31, 2**63, 2**2040, 0.5, "", "a" * 255,
    "a" * 256, b"", b"a" * 255, b"a" * 256, (), (1,), [], [1], {}, {"a": 1}])
def test_literals_use_the_opcodes_of_their_row(value):
    names = {None: "None, bool", bool: "None, bool"}
    rows = {row["type"]: row["opcodes"] for row in table("Literals")}
    row = rows[names.get(value if value is None else type(value), type(value).__name__)]
    ops = spelled(literals.encode_literal(value))
    own = ops[:1] + ops[-1:] if isinstance(value, (tuple, list, dict)) else ops
    for name in own:
        assert name.split()[0] in row, (name, row)


# -- the example ---------------------------------------------------------------------------------------------------

def example_rows():
    block = re.search(r"<!-- example: .*? -->\n```\n(.*?)\n```\n<!-- end of example -->", SPEC, re.S)
    return block.group(1).splitlines()


def test_the_example_is_what_the_code_writes(tmp_path):
    path = tmp_path / "example.mmapdict"
    load_maker().make("example", path)
    data = path.read_bytes()
    assert listing.bytes_of(example_rows()) == data
    assert example_rows() == listing.beside(data)
    assert data == (ROOT / "tests" / "data" / "v1" / "example.mmapdict").read_bytes()
    assert "%d bytes" % len(data) in section("Example")


def test_the_example_shows_the_listing_of_pickletools(tmp_path):
    path = tmp_path / "example.mmapdict"
    load_maker().make("example", path)
    shown = [row[44:] for row in example_rows() if row[44:] and not row[44:].startswith("  ")]
    lines = [line.partition(":")[2].strip() for line in listing.dis(path.read_bytes())]
    assert shown == lines


# -- invariants ----------------------------------------------------------------------------------------------------

def defined_invariants():
    return [int(number) for number in re.findall(r"^- \*\*I(\d+)\*\* ", section("Invariants"), re.M)]


def test_invariants_are_numbered_without_gaps():
    assert defined_invariants() == list(range(1, 19))


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.name)
def test_invariants_named_in_the_code_are_in_the_text(path):
    named = {int(number) for number in INVARIANT.findall(path.read_text(encoding="utf-8"))}
    assert named <= set(defined_invariants())


@pytest.mark.parametrize("number", range(1, 17))
def test_every_invariant_is_named_where_it_is_kept_or_tested(number):
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE]
    assert any(str(number) in INVARIANT.findall(text) for text in texts)


def test_invariants_named_in_the_text_are_defined():
    assert {int(number) for number in INVARIANT.findall(SPEC)} == set(defined_invariants())


# -- the reference of the API --------------------------------------------------------------------------------------

API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
TITLES = re.findall(r"^### (?:`(.+)`|(\w+))$", API, re.M)
NAMED = {head.partition("(")[0]: head for head, _ in TITLES if head}
WORDS = {word for _, word in TITLES if word}
PUBLIC = [name for name in dir(mmapdict.MmapDict) if not name.startswith("_")]


def said_signature(head):
    """The signature in a heading, without types."""
    made = {}
    exec("def made%s: pass" % head[head.index("("):], {"float": float, "slice": slice}, made)
    return inspect.signature(made["made"])


def bare_signature(function, method=False):
    """The signature of a function as the text has it: no types, no self, and `...` for a default without a meaning."""
    signature = inspect.signature(function)
    parameters = [parameter.replace(annotation=parameter.empty,
                                    default=... if type(parameter.default) is object else parameter.default)
                  for parameter in list(signature.parameters.values())[method:]]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def fields_of(title):
    """The fields in the table under a heading."""
    rows = re.findall(r"^\| (`.+?) \|", section(title, API), re.M)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_method_is_in_the_reference_with_its_signature(name):
    head = NAMED[name]
    member = inspect.getattr_static(mmapdict.MmapDict, name)
    if "(" in head:
        assert said_signature(head) == bare_signature(member, method=True)
    else:
        assert isinstance(member, property)


@pytest.mark.parametrize("name", mmapdict.__all__)
def test_every_name_is_in_the_reference_with_its_signature(name):
    head = NAMED.get("mmapdict." + name)
    if head is not None:
        assert said_signature(head) == bare_signature(getattr(mmapdict, name))
    elif issubclass(getattr(mmapdict, name), mmapdict.MmapDictError):
        assert "| `%s` |" % name in section("Errors", API)
    else:
        assert re.search("`mmapdict.%s[(`]" % name, section(name, API))


def test_the_reference_has_nothing_that_is_not_there():
    names = {name.removeprefix("mmapdict.") for name in NAMED if name.startswith("mmapdict.")}
    assert names <= set(mmapdict.__all__)
    assert set(NAMED) - {"mmapdict." + name for name in names} == set(PUBLIC)
    assert WORDS <= set(mmapdict.__all__)
    assert len(NAMED) + len(WORDS) == len(TITLES) == len(re.findall("^### ", API, re.M))


@pytest.mark.parametrize("name", ["Log", "SampleStore"])
def test_members_of_tables_are_in_the_reference_with_their_signatures(name):
    kind = getattr(mmapdict, name)
    heads = re.findall(r"^\| `(.+?)` \|", section(name, API), re.M)
    assert {head.partition("(")[0] for head in heads} == {member for member in dir(kind) if not member.startswith("_")}
    for head in heads:
        member = inspect.getattr_static(kind, head.partition("(")[0])
        assert said_signature(head) == bare_signature(member, method=True) if "(" in head \
            else isinstance(member, property)
    made = re.search(r"`mmapdict\.(%s\(.*?\))`" % name, section(name, API)).group(1)
    assert said_signature(made) == bare_signature(kind)


@pytest.mark.parametrize("name", ["Change", "Entry", "Fault", "Global", "Lost"])
def test_fields_of_tuples_are_in_the_reference(name):
    kind = getattr(mmapdict, name)
    extra = [key for key, member in vars(kind).items() if isinstance(member, property)]
    assert fields_of(name) == [*kind._fields, *extra]


@pytest.mark.parametrize("name", ["RepairReport", "Report", "ScanReport"])
def test_fields_of_reports_are_in_the_reference(name):
    kind = getattr(mmapdict, name)
    extra = [key for key, member in vars(kind).items() if isinstance(member, property)]
    fields = fields_of(name)
    assert sorted(fields) == sorted([*vars(kind("a path")), *extra])


def test_facts_of_info_are_in_the_reference(tmp_path):
    with mmapdict.open(tmp_path / "a", "x") as d:
        assert fields_of("`info()`") == list(d.info())


def test_errors_and_their_bases_are_in_the_reference():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section("Errors", API), re.M)
    found = {name for name in mmapdict.__all__ if isinstance(getattr(mmapdict, name), type)
             and issubclass(getattr(mmapdict, name), Exception)}
    assert {name for name, _ in rows} == found
    places = [vars(builtins), vars(mmapdict), {"io.UnsupportedOperation": io.UnsupportedOperation,
                                               "pickle.UnpicklingError": pickle.UnpicklingError}]
    for name, bases in rows:
        said = [next(place[base] for place in places if base in place) for base in re.findall(r"`([\w.]+)`", bases)]
        kind = getattr(mmapdict, name)
        shown = kind.__bases__[0].__bases__ if kind.__bases__[0].__name__ == "FileContentError" else kind.__bases__
        assert tuple(said) == shown


# -- links ---------------------------------------------------------------------------------------------------------

def anchors(text):
    """The anchors of a text's headings, as web sites for code make them."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    outside_code = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_code):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        assert to.exists(), target
        assert ROOT in to.parents, target
        if anchor:
            assert anchor in anchors(to.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_the_texts_exist(path):
    for name in re.findall(r"`((?:docs|tests|benchmarks|mmapdict)/[\w./-]+)`", path.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name
