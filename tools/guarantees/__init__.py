"""Guarantees under load, failures and invalid input; `python -m tools.guarantees` measures them and writes the page.

A test that demonstrates a guarantee carries the marker `guarantee("name")`. Its fixture `measured` records a quantity
and asserts its limit; its fixture `note` records anything else that the page should show. The results are kept in
`guarantees.json`; docs/change/guarantees.md is rendered from them and from `table.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

from tools.guarantees.table import GUARANTEES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "change" / "guarantees.md"
RESULTS = Path(__file__).parent / "guarantees.json"


@dataclass(slots=True)
class Measurement:
    """The record of one test. `outcome` is pytest's; `values` are the highest value of each bounded quantity."""

    test: str
    guarantee: str
    outcome: str = "not run"
    notes: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)

    def measured(self, name: str, value: float) -> None:
        """Record a bounded quantity, in the unit of its bound. Raises AssertionError above the asserted limit."""
        bound = GUARANTEES[self.guarantee].bounds[name]
        self.values[name] = max(value, self.values.get(name, value))
        if value > bound.asserted:
            raise AssertionError(f"{bound.quantity}: {bound.shown(value)}, limit {bound.shown(bound.asserted)}")


@dataclass(frozen=True, slots=True)
class Record:
    """The latest measurement of one guarantee: day (ISO), test files, notes, and bounded quantities by name."""

    day: str
    files: list[str]
    notes: list[str]
    values: dict[str, float]


def combined(results: Iterable[Measurement]) -> Record:
    """The record of one guarantee from the results of all its tests."""
    found = list(results)
    values: dict[str, float] = {}
    for name, value in (pair for result in found for pair in result.values.items()):
        # Three digits are what a reader can use, and what is compared with the bound is what the page shows.
        values[name] = max(float(f"{value:.3g}"), values.get(name, float("-inf")))
    files = sorted({result.test.partition("::")[0] for result in found})
    return Record(date.today().isoformat(), files, [note for result in found for note in result.notes], values)


def violations(records: Mapping[str, Record]) -> list[str]:
    """Every recorded figure that exceeds its bound, and every bound without a figure, as one sentence each."""
    problems = []
    for name, guarantee in GUARANTEES.items():
        values = records[name].values if name in records else {}
        for key, bound in guarantee.bounds.items():
            if key not in values:
                problems.append(f"{name}: no figure for {bound.quantity}")
            elif values[key] > bound.limit:
                problems.append(f"{name}: {bound.quantity} is {bound.shown(values[key])}, the bound is {bound}")
    return problems


_HEAD = """\
# Guarantees

What the server guarantees under load, failures and invalid input, and the tests that demonstrate it. `make guarantees`
runs these tests and writes this page. The figures were measured on two CPU cores without a GPU, with the demonstration
model; they are in the order of the bounds. The tests assert more generous limits for times
(`tools/guarantees/table.py`). [guarantees.json](../../tools/guarantees/guarantees.json) has the details.

| guarantee and bound | measured | test |
| --- | --- | --- |"""
_MAX_NOTES = 3


def page(records: Mapping[str, Record]) -> str:
    """docs/change/guarantees.md."""
    rows = []
    for name, guarantee in GUARANTEES.items():
        record = records[name]
        links = ", ".join(f"[{Path(file).stem}](../../{file})" for file in record.files)
        figures = [bound.shown(record.values[key]) for key, bound in guarantee.bounds.items()]
        measured = "; ".join(figures or _notes(record) or ["passed"])
        rows.append(f"| **{guarantee.title}.** {guarantee} | {measured} | {links}, {record.day} |")
    return "\n".join([_HEAD, *rows, ""])


def _notes(record: Record) -> list[str]:
    notes = list(dict.fromkeys(record.notes))
    return notes if len(notes) <= _MAX_NOTES else [f"{len(notes)} cases passed"]


def load() -> dict[str, Record]:
    """The recorded measurements by name of the guarantee."""
    return {name: Record(**found) for name, found in json.loads(RESULTS.read_text(encoding="utf-8")).items()}


def write(path: Path, results: Iterable[Measurement]) -> None:
    """The results of a pytest run, for `main`."""
    path.write_text(json.dumps([asdict(result) for result in results]), encoding="utf-8")
