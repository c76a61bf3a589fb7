"""Lower rooms never import higher ones, and what only some rooms may do stays there."""

import ast
import importlib
from pathlib import Path

import calibrators
from tests.fixtures.house import MODULES, PACKAGE
from tests.fixtures.tables import each

HOUSE = [
    {"errors"},
    {"documents"},
    {"stats"},
    {"limits"},
    {"config"},
    {"model"},
    {"data", "ranges"},
    {"quantization"},
    {"evidence"},
    {"backends"},
    {"calibration"},
    {"evaluate"},
    {"check"},
    {"ptq"},
    {"reporting"},
    {"runs"},
    {"pipeline"},
    {"cli"},
]
RANK = {room: rank for rank, rooms in enumerate(HOUSE) for room in rooms}


def imports(path):
    """Yield every module that a file imports when it runs (not under TYPE_CHECKING)."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in hidden:
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and id(node) not in hidden:
            yield node.module or ""


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@each("path", MODULES)
def test_imports_point_downwards(path):
    here = room(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "trtcal" and len(parts) > 1 and here != "__init__":
            assert parts[1] == here or RANK[parts[1]] < RANK[here], f"{here} imports {name}"


@each("path", MODULES)
def test_only_backends_import_runtimes(path):
    runtimes = {"onnxruntime", "tensorrt", "tensorrt_rtx", "pycuda", "polygraphy"}
    used = {name.split(".")[0] for name in imports(path)} & runtimes
    alone = PACKAGE / "runs" / "bundle" / "verifying.py"  # on a device, without the rest of trtcal
    assert not used or room(path) == "backends" or path == alone


def test_calibrators_know_nothing_of_trtcal():
    for path in Path(calibrators.__file__).parent.rglob("*.py"):
        assert not any(name.split(".")[0] == "trtcal" for name in imports(path))


def test_every_room_has_a_place_in_the_house():
    assert {room(path) for path in MODULES} - {"__init__"} == set(RANK)


def test_the_top_of_the_package_has_at_most_twenty_entries():
    entries = {path.name for path in PACKAGE.iterdir()} - {"py.typed", "__pycache__"}
    assert len(entries) <= 20, sorted(entries)


def test_only_documents_writes_files():
    writers = {"write_text", "write_bytes"}
    for path in MODULES:
        called = {
            node.func.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert not called & writers or room(path) in ("documents", "backends"), path


@each("path", sorted((PACKAGE.parent / "benchmarks").glob("*.py")))
def test_every_benchmark_can_be_started(path):
    importlib.import_module(f"benchmarks.{path.stem}")
