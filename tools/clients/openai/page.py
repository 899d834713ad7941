"""The page of what each client saw: the cases of each item, and with which clients they hold. From results alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from tools.clients.openai.cases import CASES, JAVASCRIPT, PYTHON, SECTIONS, Case
from tools.clients.openai.clients import CLIENTS, Client, Result, cases_of

PAGE = Path(__file__).parents[3] / "docs" / "change" / "openai-compatibility.md"

_LANGUAGES = {PYTHON: "Python", JAVASCRIPT: "JavaScript"}
_HEAD = """# OpenAI's clients

OpenAI's clients, unmodified, were run against this server with the demonstration model; cases that need a slow or
overloaded server run on its fake engine. The Python clients validate every answer against their types
(`_strict_response_validation`). `make clients` writes the page; a test runs every case again and compares the results.

The clients are {clients}.
Each line below is a behaviour that all of them showed. A line that begins with "Python" or "JavaScript" is about a
feature that only the clients in that language have; "**not**" names clients that did not show the behaviour.

## Language and usage

Answers state the language and their usage as OpenAI's models do:

- `verbose_json` has `language`, the English name in lower case: `english`.
- `json`, `verbose_json` and the last event of a stream have `languages`, a list of codes: `[{{"code": "en"}}]`, or `[]`
  if no language was found.
- `json` also has `language`, the English name (`English`), and `language_code`, for clients of
  [the earlier server](../start/migration.md). OpenAI's models do not have these fields there.
- `usage` of a whole answer is the length of the recording in seconds, rounded up; OpenAI's reference has 9 for 8.47 s.
  The last event of a stream counts tokens. The `completed` events of [realtime sessions](../use/realtime.md) have the
  seconds of the turn with three decimals.
"""

Seen = Mapping[Client, Mapping[str, Result]]


def write(seen: Seen) -> str:
    """The whole page."""
    head = _HEAD.format(clients=", ".join(map(_name, CLIENTS)))
    return "\n".join([head, *(_section(item, list(cases), seen) for item, cases in groupby(CASES, lambda c: c.item))])


def _name(client: Client) -> str:
    return f"{_LANGUAGES[client.language]} {client.version}"


def _section(item: int, cases: list[Case], seen: Seen) -> str:
    return "\n".join([f"## {SECTIONS[item]}\n", *(f"- {line(case, seen)}" for case in cases), ""])


def line(case: Case, seen: Seen) -> str:
    """The sentence of a case, the clients that it is about, and those that did not show it."""
    able = [client for client in CLIENTS if case in cases_of(client)]
    languages = {client.language for client in able}
    only = "" if languages == set(_LANGUAGES) else f"{' and '.join(_LANGUAGES[name] for name in sorted(languages))}: "
    missing = [_name(c) for c in able if (result := seen[c].get(case.name)) is None or not result.ok]
    return f"{only}{case.says}" + (f"; **not**: {', '.join(missing)}" if missing else "")
