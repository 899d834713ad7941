"""The figures of the real source may only get better; and what is counted, on a small source of its own."""

import ast
import re
from functools import cache

import pytest

from tools.structure import parts
from tools.structure.figures import Figure, figures, is_forward
from tools.structure.ratchet import ROOT, improved, problems, recorded, table
from tools.structure.source import closure, cycles, read

FILES = {
    "README.md": "Two words\n",
    "docs/page.md": "one more word\n",
    "docs/log/old.md": "not counted\n",
    ".gitignore": "build/\n*.log\n",
    "build/any": "",
    "run.log": "",
    "src/asr_server/__init__.py": '"""The server."""\n',
    "src/asr_server/route.py": '''"""Of the route."""
from typing import TYPE_CHECKING

from asr_server.engine import client
import asr_server.case

if TYPE_CHECKING:
    from asr_server.engine.torch import Engine
else:
    from asr_server import errors


class Answer:
    def close(self):
        """Whether it is so."""
        self.engine.close(self.row)

    def open(self):
        if self.row:
            from asr_server import feature
        return client


class _Row:
    pass
''',
    "src/asr_server/route_test.py": "import asr_server.feature\n",
    "src/asr_server/case.py": '''"""A use case."""
from dataclasses import dataclass
from asr_server.engine.client import ask


@dataclass
class Answer:
    """An answer. `text`: what was said. `rate`: its speed."""

    text: str
    rate: float  # in words a second
    size: int


class _Row:
    pass
'''
    + "\n" * 400,
    "src/asr_server/errors.py": '"""Errors."""\n# A reason.\nA = 1  # another\nB = 2\n',
    "src/asr_server/feature.py": '"""A feature."""\nfrom asr_server import route\n',
    "src/asr_server/settings.py": "class Settings(BaseSettings):\n    port: int = 1\n    host: str = ''\n",
    "src/asr_server/engine/__init__.py": '"""The engine."""\n',
    "src/asr_server/engine/client.py": '"""The contract."""\nfrom asr_server import errors\n',
    "src/asr_server/engine/torch.py": '"""An engine."""\n',
}
PARTS = {
    "concurrent": ["errors"],
    "contract": ["engine.client"],
    "paths": {name: {"use_case": ["route", "engine.client"], "engine": ["engine.torch"]} for name in parts.PATHS},
    "not_core": {"feature": ["feature"], "engine": ["engine"]},
}


@cache
def _source():
    return read(ROOT)


@pytest.fixture
def small(tmp_path):
    """A repository of a few lines."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read(tmp_path)


@pytest.mark.slow("parses every module")
def test_no_figure_gets_worse():
    """What got better is recorded, so that it stays. `python -m tools.structure` prints the same table."""
    found = figures(_source())
    print(table(found, recorded()))
    assert problems(found, recorded()) == []
    assert recorded().keys() == {figure.name for figure in found}


@pytest.mark.parametrize("name", parts.PATHS)
def test_a_path_leads_to_the_engine(name):
    """It prints its modules. What runs in a child process alone is named where it is started, and not on the path."""
    source = _source()
    modules = parts.path(source, name)
    print(*modules, sep="\n")
    lines = [line for module in source.modules.values() for line in module.lines if '"asr_server.' in line]
    children = {child for line in lines for child in re.findall(r'"asr_server\.([a-z_.]+)"', line)} & set(
        source.modules
    )
    assert children
    assert not children & set(modules)
    to_engine = set(parts.path(source, name, to_engine=True))
    assert {"engine.client", "engine.speech.client"} & to_engine
    assert to_engine < set(modules)


def test_everything_is_counted_as_its_title_says(small, monkeypatch):
    """The value of each figure, counted by hand."""
    monkeypatch.setattr(parts, "_PARTS", PARTS)
    found = {figure.name: figure for figure in figures(small)}
    assert {name: figure.value for name, figure in found.items()} == {
        "modules": 9,
        "lines": 0.5,
        "core_modules": 5,
        "core_lines": 0.4,
        "root_entries": 4,
        "upload": 5,
        "upload_to_engine": 4,
        "live": 5,
        "live_to_engine": 4,
        "speech": 5,
        "speech_to_engine": 4,
        "upload_lines": 0.4,
        "single_importers": 4,
        "single_importers_under_80": 3,
        "single_importers_under_60": 3,
        "import_cycles": 1,
        "feature_imports": 0,
        "fan_out": 5,
        "one_statement_functions": 1,
        "forwards": 1,
        "repeated_class_names": 1,
        "concurrent_comments": 50.0,
        "docstring_fragments": 2,
        "fields_in_prose": 1,
        "settings": 2,
        "docs_words": 0.0,
    }
    assert found["docs_words"].found == ["     2 README.md", "     3 docs/page.md"]
    assert found["repeated_class_names"].found == ["Answer"]
    assert found["import_cycles"].found == ["feature route"]
    assert found["fields_in_prose"].found == ["case: Answer.text"]


def test_a_part_that_has_moved_is_an_error(small):
    """A list that names what is gone would make the figures smaller than they are."""
    with pytest.raises(LookupError, match=r"parts\.toml names what is not there: .*schedule"):
        parts.concurrent(small)


def test_imports_run_unless_they_are_in_functions_or_for_the_type_checker(small):
    """Both count among all imports."""
    assert small.loaded["route"] == {"engine.client", "case", "errors"}
    assert small.imports["route"] == {"engine.client", "case", "errors", "engine.torch", "feature"}


def test_a_closure_stops_where_it_is_told():
    """The module is reached, and what only it imports is not."""
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert closure(graph, ["a"], ["b"]) == {"a", "b"}
    assert closure(graph, ["d"]) == {"a", "b", "c", "d"}


def test_a_cycle_is_the_largest_group():
    """Two cycles with a module in common are one group; what leads to it or away from it is in none."""
    edges = {"a": "b", "b": "ac", "c": "bd", "d": "", "e": "a", "f": "g", "g": "fa"}
    graph = {name: frozenset(others) for name, others in edges.items()}
    assert cycles(graph) == [["a", "b", "c"], ["f", "g"]]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a): return g(a)", True),
        ("async def f(self, a, *b, **c):\n 'Text.'\n await self.g.h(a.x, *b, k=self.k, **c)", True),
        ("def close(self): self.file.close()", True),
        ("def f(a): return g(a, 1)", False),
        ("def f(a): return g(a + a)", False),
        ("def f(a): return g(b)", False),
        ("def f(a): return g(h(a))", False),
        ("def f(a):\n g(a)\n return g(a)", False),
        ("def f(a): return a", False),
    ],
)
def test_a_forward_passes_on_what_it_was_given(source, expected):
    """One call, with parameters or their attributes and nothing else."""
    assert is_forward(ast.parse(source).body[0]) is expected


@pytest.mark.parametrize(
    ("value", "rises", "said"),
    [
        (100, False, ""),
        (99, False, ""),
        (101, False, "worse"),
        (97, False, "record"),
        (99, True, "worse"),
        (103, True, "record"),
    ],
)
def test_a_figure_may_not_get_worse_and_a_better_one_is_recorded(value, rises, said):
    """A recorded one of 100 has a slack of 2 in the direction of its aim, and none in the other."""
    figure = Figure("x", value, None, "", [], rises)
    found = problems([figure], {"x": 100})
    assert [said in line for line in found] == [True] * bool(said)
    assert improved([figure], {"x": 100}) == {"x": 100 if said == "worse" else value}


def test_a_new_figure_has_to_be_recorded():
    """A file without it would let it grow."""
    figure = Figure("new", 5, 0, "", [])
    assert "record 5" in problems([figure], {"gone": 1})[0]
    assert improved([figure], {"gone": 1}) == {"new": 5}
