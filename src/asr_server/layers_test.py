"""The layers of docs/ARCHITECTURE.md, checked on the source: who may import whom, and how large a module may be."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
PACKAGE = "asr_server"

# The layer of each package. Imports point down; packages of one layer import each other only by the pairs below.
LAYERS = {
    "core": 0,
    "text": 0,
    "demo": 0,
    "web": 0,
    "audio": 1,
    "subtitle": 1,
    "scheduling": 1,
    "translator": 1,
    "speakers": 1,
    "live": 2,
    "engine": 2,
    "service": 3,
    "features": 3,
    "api": 4,
    "gateway": 4,
    "engine_core": 5,
    "server": 5,
    "client": 5,
    "bridge": 5,
    "cli": 5,
    "__main__": 5,
}
SAME_LAYER = {
    ("text", "core"),
    ("speakers", "audio"),  # its child process is confined like a decoder's
    ("gateway", "api"),  # the gateway uses the errors, bodies and actions of the api
    ("cli", "server"),
    ("server", "engine_core"),
    ("cli", "client"),
    ("cli", "bridge"),
    ("bridge", "client"),
    ("__main__", "cli"),
}
# Libraries that are heavy or belong to one task, and the only packages and modules that may import them.
ONLY_IN = {
    "tools": set(),  # not in the wheel
    "asr_server_ray": set(),
    "asr_server_sizing": set(),
    "torch": {"engine"},
    "transformers": {"engine.qwen.sdk", "engine.speech.qwen.sdk"},
    "qwen_asr": {"engine.qwen.sdk"},
    "qwen_tts": {"engine.speech.qwen.sdk"},
    "fastapi": {"api", "server", "gateway"},
    "starlette": {"api", "gateway"},
    "uvicorn": {"cli"},
    "granian": {"cli.granian_server"},
    "av": {"audio"},
    "onnxruntime": {
        "audio",
        "speakers",
        "features.piper",
        "features.turns",
        "engine.moonshine",
        "engine.qwen.onnx_encoder",
        "engine.qwen.onnx_export",
    },
    "onnx": {"engine.qwen.onnx_export"},
    "tensorrt": {"engine.qwen.trt_encoder", "engine.qwen.trt_export"},
    "flatbuffers": {"engine.moonshine"},
    "asyncio": {
        "audio",
        "speakers",
        "engine.client",
        "engine.speech.client",
        "engine.remote",
        "engine.row_calls",
        "service",
        "api",
        "server",
        "gateway",
        "translator",
        "bridge.speech_session",
    }
    | {
        f"cli.{name}"
        for name in (
            "live",
            "batch",
            "remote_backend",
            "local_backend",
            "local_speech",
            "job",
            "bench",
            "measurement",
        )
    }
    | {"cli.doctor", "cli.http_protocol", "cli.socket_protocol", "cli.granian_server"},
    "ray": set(),
    "websockets": {"client", "gateway", "bridge", "cli.socket_protocol"},
    "wyoming": {"bridge"},
    "asyncpg": {"service.jobs.database"},
    "openai": {"translator"},
    "babel": {"text"},
    "wcwidth": {"text"},
    "budoux": {"text"},
    "sentencex": {"text.sentences"},
    "num2words": {"text.number_words"},
    "rich": {"cli"},
    "prometheus_client": {"api.metrics", "api.ops", "gateway"},
}
VAGUE_NAMES = {"utils", "helpers", "helper", "manager", "common", "misc"}
HEAVY = (
    "torch",
    "transformers",
    "qwen_asr",
    "qwen_tts",
    "onnxruntime",
    "librosa",
    "av",
    "asyncpg",
    "openai",
    "babel",
    "prometheus_client",
)
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 600, 50


@dataclass(frozen=True)
class Module:
    """A module of the package: `nodes` are those of its syntax tree that a test here looks at."""

    source: str
    docstring: str | None
    nodes: list[ast.AST]

    def of(self, *kinds):
        """The nodes of these kinds."""
        return [node for node in self.nodes if isinstance(node, kinds)]


LOOKED_AT = (ast.Import, ast.ImportFrom, ast.If, ast.Attribute, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def _modules():
    """Every module by its path below the package. Each tree is walked once, which takes longer than to parse it."""
    return _modules_below(ROOT)


@cache
def _modules_with_extras():
    """The modules of the distributions in extras too, each by its path below them."""
    return {**_modules(), **_modules_below(ROOT.parents[1] / "extras")}


def _modules_below(folder):
    paths = [p for p in folder.rglob("*.py") if not p.name.endswith("_test.py") and p.name != "conftest.py"]
    return {path.relative_to(folder).with_suffix("").parts: _module(path.read_text(encoding="utf-8")) for path in paths}


def _module(source):
    tree = ast.parse(source)
    return Module(source, ast.get_docstring(tree), [n for n in ast.walk(tree) if isinstance(n, LOOKED_AT)])


def _imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module
            if node.module == PACKAGE:
                yield from (f"{PACKAGE}.{alias.name}" for alias in node.names)


def _may_import(package, other):
    return other == package or LAYERS[other] < LAYERS[package] or (package, other) in SAME_LAYER


def test_imports_point_down():
    """No package imports one above it or beside it."""
    found = [
        f"{'/'.join(parts)} imports {name}"
        for parts, module in _modules().items()
        if parts[0] in LAYERS
        for name in _imports(module.nodes)
        if name.startswith(f"{PACKAGE}.") and (other := name.split(".")[1]) in LAYERS
        if not _may_import(parts[0], other)
    ]
    assert not found


def _runtime_imports(module):
    """The imports of a module without those for type checking only."""
    skipped = {
        id(inner)
        for node in module.of(ast.If)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return list(_imports(node for node in module.nodes if id(node) not in skipped))


def test_the_packages_of_the_api_have_no_cycles():
    """`edge`, `http`, `live`, `realtime`, `speech_socket`, `ops` and `metrics` can be read one after the other."""
    graph = {}
    for parts, module in _modules().items():
        if parts[0] == "api" and len(parts) > 2:
            found = {name.split(".")[2] for name in _runtime_imports(module) if name.startswith(f"{PACKAGE}.api.")}
            graph.setdefault(parts[1], set()).update(found - {parts[1]})
    assert {"edge", "http", "live", "realtime", "speech_socket", "ops", "metrics"} == set(graph)
    TopologicalSorter({name: found & set(graph) for name, found in graph.items()}).prepare()


def test_libraries_are_imported_only_where_the_table_allows():
    """A heavy library stays behind the one package that needs it."""
    found = [
        f"{'/'.join(parts)} imports {name}"
        for parts, module in _modules().items()
        for name in _imports(module.nodes)
        if (library := name.partition(".")[0]) in ONLY_IN
        if not {".".join(parts[:depth]) for depth in (1, 2, 3, 4)} & ONLY_IN[library]
    ]
    assert not found


def test_only_settings_read_the_environment():
    """`os.environ` anywhere else would be a setting that no table lists."""
    found = [
        "/".join(parts)
        for parts, module in _modules_with_extras().items()
        if parts != ("core", "settings")
        if {node.attr for node in module.of(ast.Attribute)} & {"environ", "getenv"}
    ]
    assert not found


def test_every_package_has_a_layer_and_every_module_a_telling_name():
    """A new package is put into the table; a module is named after its subject."""
    packages = {parts[0] for parts in _modules()} - {"__init__"}
    assert packages <= set(LAYERS), packages - set(LAYERS)
    assert not {parts[-1] for parts in _modules()} & VAGUE_NAMES


def test_modules_and_functions_stay_within_their_size():
    """Docstrings do not count for functions."""
    for parts, module in _modules_with_extras().items():
        assert module.source.count("\n") <= MAX_MODULE_LINES, parts
        for node in module.of(ast.FunctionDef, ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= MAX_FUNCTION_LINES, f"{parts}: {node.name} has {lines} lines"


def test_every_module_has_a_docstring():
    """Its first line says what the module is for."""
    assert not [parts for parts, module in _modules_with_extras().items() if not module.docstring]


@pytest.mark.parametrize(("entry", "heavy"), [("server", HEAVY), ("gateway.app", (*HEAVY, "numpy"))])
def test_the_server_imports_nothing_heavy(entry, heavy):
    """Importing the entry point loads no model library: that keeps the start fast and the idle memory small."""
    code = f"import sys, {PACKAGE}.{entry}; print([m for m in {heavy!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
