"""Mutation testing: faults that are put in on purpose, each of which a test must catch.

`catalogue.json` states each fault as exact replacements of text. When the code moves, `python -m tools.mutants
--check` lists what no longer applies.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CATALOGUE = Path(__file__).parent / "catalogue.json"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: what it does wrong, the pairs of texts to replace, each of which occurs once in `file`, and the tests
    that catch it: files, or functions in files as `file::name`."""

    id: str
    what: str
    file: str
    replace: list[tuple[str, str]]
    tests: list[str]

    def problem(self, root: Path = ROOT) -> str:
        """Return why the fault cannot be put in, "" if it can."""
        path = root / self.file
        if not path.exists():
            return f"{self.file} does not exist"
        source = path.read_text(encoding="utf-8")
        for old, new in self.replace:
            if source.count(old) != 1 or old == new:
                return f"in {self.file} this text occurs {source.count(old)} times: {old!r}"
        try:
            if path.suffix == ".py":
                ast.parse(self.applied(source))
        except SyntaxError as error:  # what cannot be imported tests nothing
            return f"{self.file} is no Python with it: {error}"
        missing = [test for test in self.tests if not _exists(test, root)]
        return f"no such tests: {', '.join(missing)}" if missing else ""

    def applied(self, source: str) -> str:
        """The text of the file with the fault."""
        for old, new in self.replace:
            source = source.replace(old, new)
        return source


def catalogue() -> list[Mutant]:
    """All faults, in the order of the catalogue."""
    return [Mutant(**entry) for entry in json.loads(_CATALOGUE.read_text(encoding="utf-8"))["faults"]]


def _exists(test: str, root: Path) -> bool:
    name, _, function = test.partition("[")[0].partition("::")  # a parametrised case too
    path = root / name
    if not path.is_file():
        return False
    return not function or bool(
        re.search(rf"^(async )?def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
