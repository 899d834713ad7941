"""Mutation testing: faults that are put in on purpose, each of which a test must catch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: `replace` are pairs of texts, each of which occurs once in `file`; `tests` are those that catch it."""

    id: str
    file: str
    replace: list[tuple[str, str]]
    tests: list[str]

    def problem(self, root: Path = ROOT) -> str:
        """Why the fault cannot be put in, "" if it can."""
        path = root / self.file
        if not path.exists():
            return f"{self.file} does not exist"
        source = path.read_text(encoding="utf-8")
        if any(source.count(old) != 1 for old, _ in self.replace):
            return f"a text to replace does not occur once in {self.file}"
        missing = [test for test in self.tests if not (root / test.split("::")[0]).exists()]
        return f"no such tests: {', '.join(missing)}" if missing else ""


def catalogue() -> list[Mutant]:
    """All faults, in the order of the catalogue."""
    return [Mutant(**entry) for entry in json.loads((Path(__file__).parent / "catalogue.json").read_text("utf-8"))]
