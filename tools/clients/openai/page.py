"""The page of what each client saw: a table for each item, a column for each client. Made from results alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from tools.clients.openai.cases import CASES, SECTIONS, Case
from tools.clients.openai.clients import CLIENTS, Client, Result, cases_of

PAGE = Path(__file__).parents[3] / "docs" / "change" / "openai-compatibility.md"

_HEAD = """# OpenAI's clients

This page shows how OpenAI's clients, unmodified, work with this server and the demonstration model; cases that need a
slow or overloaded server run on its fake engine. The Python clients validate every answer against their types
(`_strict_response_validation`). `make clients` writes the page; a test runs every case again and compares the results.

"yes": the behaviour was observed. "no": it was not. "–": the client has no such feature.

## Language and usage

An answer states the language as each of OpenAI's models does:

- `verbose_json` has `language`, the English name in lower case, as `whisper-1` has it: `english`.
- `json` and the last event of a stream have `languages`, a list of codes, as `gpt-transcribe` has it: `[{"code":
  "en"}]`, or `[]` if no language was found. `verbose_json` has it too.
- `json` has two more fields, which OpenAI's models do not have: `language`, the English name as clients of
  [the earlier server](../start/migration.md) expect it (`English`), and `language_code`. A code in `language` would
  break these clients, and OpenAI's have no such field there.

`usage` of a whole answer is `{"type": "duration", "seconds": 9}`: the length of the recording in seconds, rounded up.
OpenAI's reference has 9 for a recording of 8.47 s. The last event of a stream counts tokens, since its type has no
other form. The `completed` events of [realtime sessions](../use/realtime.md) have the seconds of the turn with three
decimals.
"""

Seen = Mapping[Client, Mapping[str, Result]]


def write(seen: Seen) -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(item, list(cases), seen) for item, cases in groupby(CASES, lambda c: c.item))])


def verdict(case: Case, client: Client, seen: Seen) -> str:
    """One cell."""
    if case not in cases_of(client):
        return "–"
    result = seen[client].get(case.name)
    return "yes" if result is not None and result.ok else "no"


def _section(item: int, cases: list[Case], seen: Seen) -> str:
    heads = [f"{'Python' if c.language == 'python' else 'JavaScript'} {c.version}" for c in CLIENTS]
    rows = [f"| {c.says} | {' | '.join(verdict(c, client, seen) for client in CLIENTS)} |" for c in cases]
    rule = " | ".join(["---"] * (len(heads) + 1))
    return "\n".join([f"## {SECTIONS[item]}\n", f"| | {' | '.join(heads)} |", f"| {rule} |", *rows, ""])
