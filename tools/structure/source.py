"""The modules of `asr_server` as syntax trees, and what they import.

Modules have their names below the package: `api.live.route`. `from a.b import c` imports `a.b.c` if that is a module,
and otherwise `a.b`. Tests are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

PACKAGE = "asr_server"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Module:
    """One file, of which every statement was visited once."""

    name: str
    lines: list[str]
    docstring: str
    functions: list[Function]  # nested ones and methods too
    classes: list[ast.ClassDef]
    imports: frozenset[str]  # modules of the package that any statement imports
    loaded: frozenset[str]  # those without the imports in functions and under TYPE_CHECKING


@dataclass(frozen=True)
class Source:
    """All modules of the package by name."""

    root: Path  # of the repository
    modules: Mapping[str, Module]
    imports: Graph
    loaded: Graph

    def size(self, names: Iterable[str]) -> int:
        """Count the lines of these modules, with empty lines and comments."""
        return sum(len(self.modules[name].lines) for name in names)


def read(root: Path) -> Source:
    """Parse every module of the package in the repository at `root`."""
    package = root / "src" / PACKAGE
    paths = (p for p in sorted(package.rglob("*.py")) if not p.name.endswith("_test.py") and p.name != "conftest.py")
    named = {".".join(path.relative_to(package).with_suffix("").parts): path for path in paths}
    named = {name.removesuffix("__init__").removesuffix("."): path for name, path in named.items()}
    modules = {name: _module(name, path.read_text("utf-8"), named) for name, path in named.items()}
    imports = {name: module.imports for name, module in modules.items()}
    return Source(root, modules, imports, {name: module.loaded for name, module in modules.items()})


def _module(name: str, text: str, known: Collection[str]) -> Module:
    tree = ast.parse(text)
    module = Module(name, text.splitlines(), ast.get_docstring(tree) or "", [], [], frozenset(), frozenset())
    imports: set[str] = set()
    loaded: set[str] = set()
    for node, is_loaded in _statements(tree.body):
        if isinstance(node, Function):
            module.functions.append(node)
        elif isinstance(node, ast.ClassDef):
            module.classes.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            targets = {target for target in _targets(node, known) if target in known} - {name}
            imports |= targets
            loaded |= targets if is_loaded else set()
    return replace(module, imports=frozenset(imports), loaded=frozenset(loaded))


def _statements(body: Iterable[ast.AST], is_loaded: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement of `body`, at any depth, with True if it runs when the module is imported."""
    for node in body:
        yield node, is_loaded
        is_typing = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        yield from _statements(
            getattr(node, "body", ()), is_loaded and not is_typing and not isinstance(node, Function)
        )
        for branch in ("orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, branch, ()), is_loaded)


def _targets(node: ast.Import | ast.ImportFrom, known: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.removeprefix(f"{PACKAGE}.") for alias in node.names if is_below(alias.name, PACKAGE))
    elif is_below(node.module or "", PACKAGE):
        module = (node.module or "").removeprefix(PACKAGE).removeprefix(".")
        inner = [f"{module}.{alias.name}".removeprefix(".") for alias in node.names]
        yield from (name if name in known else module for name in inner)


def is_below(name: str, prefix: str) -> bool:
    """True if the module is `prefix` or inside that package."""
    return name == prefix or name.startswith(f"{prefix}.")


def closure(graph: Graph, start: Iterable[str], stop: Collection[str] = ()) -> set[str]:
    """The modules that are reached from `start`. Nothing is followed beyond those in `stop`."""
    reached: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += () if name in stop else graph[name]
    return reached


def cycles(graph: Graph) -> list[list[str]]:
    """The largest groups of modules of which each reaches every other."""
    while ends := {name for name, imports in graph.items() if not imports & graph.keys()}:
        graph = {name: imports for name, imports in graph.items() if name not in ends}
    graph = {name: imports & graph.keys() for name, imports in graph.items()}
    reached = {name: closure(graph, graph[name]) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(group) for group in groups if group)
