"""The floors of the house: who may import whom, read from the source. The table of docs/ARCHITECTURE.md, enforced."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
PACKAGE = "asr_server"

# Floor of each room; imports point down. Rooms of one floor do not import each other, but for the pairs below.
FLOORS = {
    "core": 0,
    "text": 0,
    "demo": 0,
    "web": 0,
    "audio": 1,
    "subtitle": 1,
    "scheduling": 1,
    "translator": 1,
    "live": 2,
    "engine": 2,
    "service": 3,
    "api": 4,
    "gateway": 4,
    "server": 5,
    "client": 5,
    "bridge": 5,
    "cli": 5,
    "__main__": 5,
}
# The gateway answers in the words of the api: its errors, bodies and actions.
SAME_FLOOR = {
    ("text", "core"),
    ("gateway", "api"),
    ("cli", "server"),
    ("cli", "client"),
    ("cli", "bridge"),
    ("bridge", "client"),
    ("__main__", "cli"),
}
# Heavy or telling libraries and the only rooms that may name them.
ONLY_IN = {
    "torch": {"engine", "demo.recipe"},
    "transformers": {"engine.qwen.sdk", "demo.recipe"},
    "qwen_asr": {"engine.qwen.sdk", "demo.recipe"},
    "fastapi": {"api", "server", "gateway"},
    "starlette": {"api", "gateway"},
    "uvicorn": {"cli"},
    "av": {"audio"},
    "onnxruntime": {"audio"},
    "asyncio": {"audio", "service", "api", "server", "gateway", "translator"}
    | {f"cli.{name}" for name in ("live", "batch", "remote", "local", "work", "job", "bench", "load", "doctor")}
    | {"cli.http_protocol"},
    "websockets": {"client", "gateway", "bridge"},
    "wyoming": {"bridge"},
    "openai": {"translator"},
    "babel": {"text"},
    "wcwidth": {"text"},
    "budoux": {"text"},
    "rich": {"cli"},
    "prometheus_client": {"api.metrics", "gateway"},
}
BAD_NAMES = {"utils", "helpers", "helper", "manager", "common", "misc"}
HEAVY = ("torch", "transformers", "qwen_asr", "onnxruntime", "librosa", "av", "openai", "babel", "prometheus_client")


def _modules():
    return [p for p in ROOT.rglob("*.py") if not p.name.endswith("_test.py") and p.name != "conftest.py"]


def _room(path):
    return path.relative_to(ROOT).with_suffix("").parts


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            if node.module == PACKAGE:
                yield from (f"{PACKAGE}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", _modules(), ids=lambda p: "/".join(_room(p)))
def test_imports_point_down_and_libraries_stay_in_their_rooms(path):
    """No module imports a room above it or beside it, nor a library that is not its room's."""
    room = _room(path)
    for name in _imports(path):
        top, _, rest = name.partition(".")
        if top == PACKAGE and rest and rest.split(".")[0] in FLOORS:
            other = rest.split(".")[0]
            if room[0] in FLOORS and other != room[0]:
                allowed = FLOORS[other] < FLOORS[room[0]] or (room[0], other) in SAME_FLOOR
                assert allowed, f"{'/'.join(room)} imports {name}"
        elif top in ONLY_IN:
            places = {".".join(room[:depth]) for depth in (1, 2, 3)}
            assert places & ONLY_IN[top], f"{'/'.join(room)} imports {name}"


@pytest.mark.parametrize("path", _modules(), ids=lambda p: "/".join(_room(p)))
def test_only_settings_read_the_environment(path):
    """`os.environ` anywhere else would be a setting that no table lists."""
    room = _room(path)
    if room in {("core", "settings")} or room[:2] == ("demo", "recipe"):
        return
    names = {n.attr for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Attribute)}
    assert not names & {"environ", "getenv"}, path


def test_every_room_has_a_floor_and_no_module_a_name_that_says_nothing():
    """A new room is put into the table; a module is named after its subject."""
    rooms = {_room(path)[0] for path in _modules()} - {"__init__"}
    assert rooms <= set(FLOORS), rooms - set(FLOORS)
    assert not {path.stem for path in _modules()} & BAD_NAMES


def test_modules_and_functions_stay_within_their_size():
    """No module over 400 lines, no function over 50, docstring not counted."""
    for path in _modules():
        source = path.read_text(encoding="utf-8")
        assert source.count("\n") <= 400, path
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = node.end_lineno - body[0].lineno + 1 if body else 0
                assert lines <= 50, f"{path}: {node.name} has {lines} lines"


def test_every_module_says_what_it_is():
    """The first line of a module is its docstring."""
    for path in _modules():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize(("entry", "heavy"), [("server", HEAVY), ("gateway.app", (*HEAVY, "numpy"))])
def test_the_server_imports_nothing_heavy(entry, heavy):
    """Importing the entry point loads no model library: that is what keeps start fast and idle memory small."""
    code = f"import sys, {PACKAGE}.{entry}; print([m for m in {heavy!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
