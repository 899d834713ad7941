"""The layers of docs/ARCHITECTURE.md, checked on the source: who may import whom, and how large a module may be."""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
PACKAGE = "asr_server"

# The layer of each package. Imports point down, and packages of the highest layer may import each other. How often the
# rest imports features is counted by `tools/structure`.
LAYERS = {
    **dict.fromkeys(("core", "text", "demo", "web"), 0),
    **dict.fromkeys(("processes", "audio", "subtitle", "schedule"), 1),
    "engine": 2,
    **dict.fromkeys(("net", "recordings", "live", "jobs", "ops", "services", "server_feature"), 3),
    **dict.fromkeys(("features", "feature_list", "app", "client", "cli", "__main__"), 3),
}
_HIGHEST = 3
SAME_LAYER = {
    ("text", "core"),
    ("audio", "processes"),  # decoders are children of its fork server
}
# Packages that do no I/O and wait for nothing.
PURE = ("live.machine", "subtitle", "text")
_WEB = {"net", "recordings", "live", "jobs", "ops", "services", "server_feature", "app", "features"}
# Libraries that are heavy or belong to one task, and the only packages and modules that may import them.
ONLY_IN = {
    # The first is not in the wheel.
    **dict.fromkeys(
        ("tools", "asr_server_ray", "asr_server_telephony", "asr_training", "qwen_asr", "ray", "openai"), frozenset()
    ),
    "asr_server_fake": {"engine.core", "features.speech_output.build"},
    "torch": {"engine", "features.encoders", "features.speech_output.engines.qwen_tts"},
    "transformers": {"features.speech_output.engines.qwen_tts"},
    "qwen_tts": {"features.speech_output.engines.qwen_tts.sdk"},
    "fastapi": _WEB,
    "starlette": _WEB,
    "uvicorn": {"cli", "net", "features.host"},
    "granian": {"features.host"},
    "av": {"audio", "features.speech_output.encoding", "features.live_opus"},
    "onnxruntime": {"audio", "features.speech_output.engines.piper"}
    | {f"features.{name}" for name in ("speakers", "turns", "moonshine", "encoders")},
    "openvino": {"engine.openvino"},
    "onnx": {"features.encoders.onnx_export"},
    "triton": {"engine.torch.fused"},
    "tensorrt": {"features.encoders.trt_encoder"},
    "flatbuffers": {"features.moonshine"},
    "asyncio": _WEB
    | {"core.idle", "audio", "processes", "cli", "client.jobs"}
    | {f"engine.{name}" for name in ("client", "remote", "serve", "wire")},
    "websockets": {"client", "features.wyoming", "net.socket_protocol"},
    "wyoming": {"features.wyoming"},
    **dict.fromkeys(("asyncpg", "sqlite3"), frozenset({"jobs.database"})),
    "babel": {"text", "features.speech_output", "features.rewriting.written_form"},
    **dict.fromkeys(("wcwidth", "budoux"), frozenset({"text"})),
    "sentencex": {"text.sentences"},
    "text_to_num": {"features.rewriting.number_words"},
    "stdnum": {"features.rewriting.personal_data"},
    "num2words2": {"features.speech_output.spoken_form"},
    "rich": {"cli"},
    "rapidfuzz": {"cli.evaluate", "features.alignments.matching"},
    "whisper_normalizer": {"cli.evaluate"},
}
VAGUE_NAMES = {"utils", "helpers", "helper", "manager", "common", "misc"}
HEAVY = {"torch", "transformers", "qwen_asr", "qwen_tts", "onnxruntime", "openvino", "librosa", "av", "asyncpg"}
HEAVY |= {"sqlite3", "openai", "babel"}
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 600, 50


@dataclass(frozen=True)
class Module:
    """A module of the package, with its statements at any depth."""

    source: str
    docstring: str | None
    nodes: list[ast.AST]


@cache
def _modules():
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
    return Module(source, ast.get_docstring(tree), list(_statements(tree.body)))


def _statements(body):
    """Yield these statements and those inside of them, without their expressions, which are most of a tree."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(statement, part, ()))


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
    if other == package or LAYERS[package] == _HIGHEST or (other == "features" and package != "engine"):
        return True
    return LAYERS[other] < LAYERS[package] or (package, other) in SAME_LAYER


@pytest.mark.slow("parses every module")
def test_imports_point_down():
    found = [
        f"{'/'.join(parts)} imports {name}"
        for parts, module in _modules().items()
        if parts[0] in LAYERS
        for name in _imports(module.nodes)
        if name.startswith(f"{PACKAGE}.") and (other := name.split(".")[1]) in LAYERS
        if not _may_import(parts[0], other)
    ]
    assert not found


def test_what_is_pure_waits_for_nothing():
    """The state machine of live sessions, subtitles and texts import no event loop."""
    found = [
        "/".join(parts)
        for parts, module in _modules().items()
        if ".".join(parts).startswith(PURE) and "asyncio" in set(_imports(module.nodes))
    ]
    assert not found


def test_libraries_are_imported_only_where_the_table_allows():
    """A heavy library stays behind the one package that needs it."""
    found = [
        f"{'/'.join(parts)} imports {name}"
        for parts, module in _modules().items()
        for name in _imports(module.nodes)
        if (library := name.partition(".")[0]) in ONLY_IN
        if not {".".join(parts[:depth]) for depth in (1, 2, 3, 4, 5)} & ONLY_IN[library]
    ]
    assert not found


def test_only_two_modules_read_the_environment():
    """`os.environ` anywhere else would be a setting that no table lists."""
    found = [
        "/".join(parts)
        for parts, module in _modules_with_extras().items()
        if parts not in {("core", "settings"), ("core", "environment")}
        if re.search(r"\.(environ|getenv)\b", module.source)
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
        for node in (one for one in module.nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= MAX_FUNCTION_LINES, f"{parts}: {node.name} has {lines} lines"


def test_every_module_has_a_docstring():
    assert not [parts for parts, module in _modules_with_extras().items() if not module.docstring]


@pytest.mark.slow("imports the server in a process of its own")
def test_the_server_imports_nothing_heavy():
    """Importing the entry point loads no model library: that keeps the start fast and the idle memory small."""
    code = f"import sys, {PACKAGE}.app; print([*{HEAVY}.intersection(sys.modules)])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
