"""The layers of docs/ARCHITECTURE.md, checked on the source: who may import whom, and how large a module may be."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
EXTRAS = ROOT.parents[1] / "extras"  # distributions of their own
PACKAGE = "asr_server"

# The layer of each package. Imports point down, and packages of the highest layer may import each other. How often the
# rest imports features is counted by `tools/structure`.
LAYERS = {
    **dict.fromkeys(("__init__", "core", "text", "demo", "web"), 0),
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
    "onnxruntime": {"core.environment", "audio", "features.speech_output.engines.piper"}
    | {f"features.{name}" for name in ("speakers", "turns", "moonshine", "encoders")},
    "openvino": {"engine.openvino"},
    "onnx": {"features.encoders.onnx_export"},
    "triton": {"engine.torch.fused"},
    "tensorrt": {"features.encoders.trt_encoder"},
    "flatbuffers": {"features.moonshine"},
    # The machine of live sessions, subtitles and texts wait for nothing.
    "asyncio": _WEB - {"live"}
    | {f"live.{name}" for name in ("inbox", "inference", "outbox", "session", "sessions", "speech_detection")}
    | {f"engine.{name}" for name in ("client", "remote", "serve", "wire")}
    | {"core.idle", "audio", "processes", "cli", "client.jobs"},
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
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 600, 50


@cache
def _modules(folder):
    """The source of each module, by its path below the folder, and its statements at any depth."""
    paths = [p for p in folder.rglob("*.py") if not p.name.endswith("_test.py") and p.name != "conftest.py"]
    sources = {path.relative_to(folder).with_suffix("").parts: path.read_text(encoding="utf-8") for path in paths}
    return {parts: (source, list(_statements(ast.parse(source).body))) for parts, source in sources.items()}


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
    """A new package is put into the table."""
    found = [
        f"{'/'.join(parts)} imports {name}"
        for parts, (_, nodes) in _modules(ROOT).items()
        for name in _imports(nodes)
        if name.startswith(f"{PACKAGE}.") and (other := name.split(".")[1]) in LAYERS
        if not _may_import(parts[0], other)
    ]
    assert not found


def test_libraries_are_imported_only_where_the_table_allows():
    found = [
        f"{'/'.join(parts)} imports {name}"
        for parts, (_, nodes) in _modules(ROOT).items()
        for name in _imports(nodes)
        if (library := name.partition(".")[0]) in ONLY_IN
        if not {".".join(parts[:depth]) for depth in (1, 2, 3, 4, 5)} & ONLY_IN[library]
    ]
    assert not found


def test_only_two_modules_read_the_environment():
    """`os.environ` anywhere else would be a setting that no table lists."""
    found = [
        "/".join(parts)
        for parts, (source, _) in {**_modules(ROOT), **_modules(EXTRAS)}.items()
        if parts not in {("core", "settings"), ("core", "environment")}
        if re.search(r"\.(environ|getenv)\b", source)
    ]
    assert not found


def test_modules_and_functions_stay_within_their_size():
    """Docstrings do not count for functions, and every module has one."""
    for parts, (source, nodes) in {**_modules(ROOT), **_modules(EXTRAS)}.items():
        assert source.count("\n") <= MAX_MODULE_LINES, parts
        assert source.startswith('"""'), parts
        for node in (one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= MAX_FUNCTION_LINES, f"{parts}: {node.name} has {lines} lines"
