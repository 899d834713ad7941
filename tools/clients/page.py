"""docs/change/clients.md: what each client tried, and with what result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.clients.catalogue import CLIENTS
from tools.clients.running import Trial

PAGE = Path(__file__).parents[2] / "docs" / "change" / "clients.md"
_START = "| client | version | what worked | date |\n| --- | --- | --- | --- |\n"


@dataclass(frozen=True)
class Row:
    """One line of the table. `date` is when the client ran."""

    version: str
    worked: str
    date: str

    def line(self, name: str) -> str:
        return f"| {name} | {self.version} | {self.worked} | {self.date} |"


def row(version: str, note: str, trials: list[Trial], date: str) -> Row:
    """Return the row of a client for one run."""
    worked = "; ".join(trial.what if trial.right else f"**not {trial.what}**" for trial in trials)
    return Row(version, worked + (f" ({note})" if note else ""), date)


def read() -> dict[str, Row]:
    """The rows of the page, by client."""
    table = PAGE.read_text(encoding="utf-8").partition(_START)[2]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\|.*\|$", table, re.MULTILINE)]
    return {name: Row(*others) for name, *others in cells}


def write(rows: Mapping[str, Row]) -> None:
    """Put the rows into the page, in the order of the catalogue; the text around the table stays."""
    text = PAGE.read_text(encoding="utf-8")
    head, start, rest = text.partition(_START)
    after = re.sub(r"\A(?:\|.*\n)*", "", rest)
    lines = [rows[client.name].line(client.name) for client in CLIENTS if client.name in rows]
    PAGE.write_text(head + start + "\n".join(lines) + "\n" + after, encoding="utf-8")
