"""The figures: what each counts, and its aim.

The aims were set beside a table that was counted without this program, at commit 2bde6ad8. There it counts the same
modules and lines (522, 59.2k), settings (89), largest fan-out (42), cycles (3, one of 7 modules) and modules under 80
lines with one importer (55). It counts in another way

- 142 forwards (152), 34.6 % of functions with one statement (34), 150 modules with one importer (159), 26.6k lines of
  the core (25.5k), and 66.8k words of docs (64.7k, without pages in folders),
- 52 repeated names of public classes, where 68 was with private ones and `asr_training`,
- 139 modules (15.6k lines) from the route of an upload to its text, 143 of a live session and 128 of speech, where 97
  (12.5k), 90 and 68 did not follow imports. The imports of the routes alone reach 91, 94 and 103.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.structure.parts import concurrent, core, path
from tools.structure.source import Function, Module, Source, cycles

# A docstring that begins with one of these has no subject and verb of its own.
_BEGINNING = re.compile(r"(The same|What|Whether|Those|That|Of|Whose|Who|It|Which|Where|When|Why|How|For|From)\b(?!')")
# The modules that put the product together may import more than others.
_COMPOSITION = ("app", "feature_list")


@dataclass(frozen=True)
class Figure:
    """One figure of the table."""

    name: str
    value: float
    aim: float | None  # None: no more than today
    title: str
    found: list[str]  # what was counted, for `--list`
    rises: bool = False  # True if more is better


def figures(source: Source) -> list[Figure]:
    """Count everything. Raises LookupError where `parts.toml` names a module that is gone."""
    return [*_sizes(source), *_paths(source), *_imports(source), *_functions(source), *_texts(source)]


def _counted(name: str, found: list[str], aim: float | None, title: str) -> Figure:
    return Figure(name, len(found), aim, title, found)


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1)


def _lines(name: str, source: Source, modules: list[str], aim: float, title: str) -> Figure:
    found = [f"{source.size([module]):5} {module}" for module in modules]
    return Figure(name, round(source.size(modules) / 1000, 1), aim, title, found)


def _sizes(source: Source) -> Iterator[Figure]:
    """Modules with `__init__.py`, and lines of all kinds, in thousands."""
    modules = list(source.modules)
    yield _counted("modules", modules, 260, "modules of asr_server")
    yield _lines("lines", source, modules, 46, "... their lines, in thousands")
    yield _counted("core_modules", core(source), 115, "modules of the core (parts.toml)")
    yield _lines("core_lines", source, core(source), 22, "... their lines, in thousands")
    ignored = [line.strip("/\n") for line in (source.root / ".gitignore").read_text("utf-8").splitlines()] + [".git"]
    root = [item.name for item in sorted(source.root.iterdir())]
    kept = [name for name in root if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]
    yield _counted("root_entries", kept, 22, "files and folders at the root, except what git ignores")


def _paths(source: Source) -> Iterator[Figure]:
    """Modules that are loaded by imports; those under TYPE_CHECKING and in functions are not followed."""
    for name, aim, to_engine in (("upload", 48, 30), ("live", 45, None), ("speech", 40, None)):
        yield _counted(name, path(source, name), aim, f"modules from the route to the text: {name}")
        yield _counted(f"{name}_to_engine", path(source, name, True), to_engine, "... down to the engine's contract")
    yield _lines("upload_lines", source, path(source, "upload"), 8, "lines of the path of an upload, in thousands")


def _imports(source: Source) -> Iterator[Figure]:
    """All imports count: those in functions and those under TYPE_CHECKING too."""
    importers = Counter(name for imports in source.imports.values() for name in imports)
    features = source.imports.get("feature_list", ())  # the list alone imports a feature
    once = [name for name, count in importers.items() if count == 1 and name not in features]
    single = sorted((source.size([name]), name) for name in once)
    found = [f"{size:5} {name}" for size, name in single]
    yield _counted("single_importers", found, 31, "modules with one importer")
    for limit, aim in ((80, None), (60, 0)):
        small = [line for line, (size, _) in zip(found, single, strict=True) if size < limit]
        yield _counted(f"single_importers_under_{limit}", small, aim, f"... under {limit} lines")
    groups = [" ".join(group) for group in cycles(source.imports)]
    yield _counted("import_cycles", groups, 0, "groups of modules that import each other, also lazily")
    fan_out = sorted(((len(i), name) for name, i in source.imports.items() if name not in _COMPOSITION), reverse=True)
    found = [f"{count:5} {name}" for count, name in fan_out]
    uses = [(name, i) for name in core(source) for i in source.imports[name]]
    named = sorted(f"{name} imports {i}" for name, i in uses if i.startswith("features."))
    yield _counted("feature_imports", named, 0, "imports of features by the core")
    yield Figure(
        "fan_out", fan_out[0][0], 20, "most modules that one module imports, except app.py and feature_list.py", found
    )


def _functions(source: Source) -> Iterator[Figure]:
    """Functions, methods and nested functions; a docstring is no statement, and a protocol's methods have none."""
    functions = [(module.name, node) for module in source.modules.values() for node in module.functions]
    short = [f"{name}: {node.name}" for name, node in functions if len(_body(node)) <= 1]
    yield _counted("one_statement_functions", short, 1_000, "functions of at most one statement")
    forwards = [f"{name}: {node.name}" for name, node in functions if is_forward(node)]
    yield _counted("forwards", forwards, 40, "functions that are one call with their own parameters")
    names = Counter(node.name for module in source.modules.values() for node in module.classes)
    repeated = [name for name, count in sorted(names.items()) if count > 1 and not name.startswith("_")]
    yield _counted("repeated_class_names", repeated, 0, "names of public classes that stand in several places")


def _body(node: Function) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def is_forward(node: Function) -> bool:
    """True if the body is one call, awaited or not, whose arguments are parameters or attributes of parameters."""
    body = _body(node)
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr) else None
    call = value.value if isinstance(value, ast.Await | ast.YieldFrom) else value
    if not isinstance(call, ast.Call):
        return False
    own = {parameter.arg for parameter in ast.walk(node.args) if isinstance(parameter, ast.arg)}
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(_root(argument) in own for argument in given)


def _root(node: ast.expr) -> str:
    """The name at the beginning of `a`, `*a` or `a.b.c`, and "" for other expressions."""
    while isinstance(node, ast.Attribute | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _texts(source: Source) -> Iterator[Figure]:
    modules = source.modules.values()
    lines = [line for name in concurrent(source) for line in source.modules[name].lines]
    comments = [line.strip() for line in lines if line.lstrip().startswith("#") or "  # " in line]
    per_100 = _percent(len(comments), len(lines))
    title = "comments in 100 lines of concurrent code (parts.toml)"
    yield Figure("concurrent_comments", per_100, 7, title, comments, rises=True)
    beginnings = [f"{module.name}: {text}" for module in modules for text in _docstrings(module)]
    fragments = [text for text in beginnings if _BEGINNING.match(text.partition(": ")[2])]
    yield _counted("docstring_fragments", fragments, 0, "docstrings that begin with What, Whether, Those, Of, ...")
    prose = [f"{module.name}: {field}" for module in modules for field in _fields_in_prose(module)]
    yield _counted("fields_in_prose", prose, 0, "dataclass fields in `backticks` in the docstring, without a comment")
    bases = {"BaseModel", "BaseSettings"}
    settings = [node for module in modules for node in module.classes if node.name.endswith("Settings")]
    settings = [node for node in settings if bases & {ast.unparse(base) for base in node.bases}]
    names = [ast.unparse(item.target) for node in settings for item in node.body if isinstance(item, ast.AnnAssign)]
    yield _counted("settings", names, None, "settings")
    pages = [Path("README.md"), *(page.relative_to(source.root) for page in sorted(source.root.glob("docs/**/*.md")))]
    words = {
        page: len((source.root / page).read_text("utf-8").split()) for page in pages if page.parts[1:2] != ("log",)
    }
    found = [f"{count:6} {page}" for page, count in words.items()]
    title = "words of README and docs except their log, in thousands"
    yield Figure("docs_words", round(sum(words.values()) / 1000, 1), 25, title, found)


def _docstrings(module: Module) -> Iterator[str]:
    texts = [module.docstring, *(ast.get_docstring(node) or "" for node in (*module.functions, *module.classes))]
    return (text.partition("\n")[0] for text in texts if text)


def _fields_in_prose(module: Module) -> Iterator[str]:
    for node in module.classes:
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            explained = set(re.findall(r"`(\w+)`", ast.get_docstring(node) or ""))
            for field in (item for item in node.body if isinstance(item, ast.AnnAssign)):
                line = module.lines[(field.end_lineno or field.lineno) - 1]
                if ast.unparse(field.target) in explained and "#" not in line:
                    yield f"{node.name}.{ast.unparse(field.target)}"
