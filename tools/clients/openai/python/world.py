"""Fixtures of the scenarios: the servers they were told of, clients for them, and the table of cases.

Works with every version of the client; where versions differ, the difference is stated at its place.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

TOLD: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
WORDS: str = TOLD["words"]
VERSION = tuple(int(part) for part in openai.__version__.split("."))
MODEL = "whisper-1"
FREED_WITHIN_S = 3.0
LOGGED_WITHIN = 20  # readings of the log
CLASSES = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "InternalServerError",
    504: "InternalServerError",
}

Scenario = Callable[[], object]


@dataclass(frozen=True)
class Entry:
    """One case to perform. `aside` cases mostly wait, and are waited for together."""

    item: int
    name: str
    perform: Scenario
    aside: str | None


ENTRIES: list[Entry] = []


def case(item: int, name: str, *, aside: str | None = None) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Put a function, plain or async, into the table. Cases of one `aside` line follow each other, beside the rest."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        ENTRIES.append(Entry(item, name, _plain(function), aside))
        return function

    return add


def _plain(function: Callable[[], Any]) -> Scenario:
    if inspect.iscoroutinefunction(function):
        return lambda: asyncio.run(function())
    return function


def client(server: str = "main", **options: Any) -> openai.OpenAI:
    """The client as it is, with strict validation of what comes back, and without retries unless asked for."""
    return openai.OpenAI(**_options(server, options))


def async_client(server: str = "main", **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**_options(server, options))


def _options(server: str, options: dict[str, Any]) -> dict[str, Any]:
    base = {"base_url": TOLD["servers"][server], "api_key": "any", "max_retries": 0}
    return {**base, "_strict_response_validation": True, **options}


def recording(name: str) -> Path:
    return Path(TOLD["recordings"][name])


def create(at: openai.OpenAI | None = None, file: Any = None, **fields: Any) -> Any:
    """`audio.transcriptions.create`, by default of the sample on the main server."""
    at = at or client()
    return at.audio.transcriptions.create(**arguments(file, **fields))


def arguments(file: Any = None, **fields: Any) -> dict[str, Any]:
    """Return the arguments of `create`. A field that this version has no parameter for goes into `extra_body`."""
    known = inspect.signature(openai.resources.audio.Transcriptions.create).parameters
    extra = {name: fields.pop(name) for name in set(fields) - set(known)}
    if extra:
        fields["extra_body"] = {**fields.get("extra_body", {}), **extra}
    return {"file": recording("sample") if file is None else file, "model": MODEL, **fields}


def idle(server: str) -> bool:
    """Return True if the server holds no audio, and nothing waits or runs."""
    with urllib.request.urlopen(TOLD["health"][server]) as answer:
        queue = json.load(answer)["queue"]
    return not any(queue[name] for name in ("final", "partial", "interactive", "bulk", "running", "audio_held_s"))


def check_freed(server: str, left_s: float) -> None:
    """Fail unless the server is idle within `FREED_WITHIN_S` after `left_s` (monotonic)."""
    while not idle(server):
        assert time.monotonic() - left_s < FREED_WITHIN_S, "work goes on after the caller left"
        time.sleep(0.02)


def failure(call: Callable[[], object]) -> openai.APIError:
    """The client's error that `call` ends in."""
    try:
        call()
    except openai.APIError as error:
        return error
    raise AssertionError("no error")


def check_refusal(name: str, error: openai.APIError) -> None:
    """Fail unless the client's error is what the table says of this refusal."""
    wanted = TOLD["refusals"][name]
    assert isinstance(error, openai.APIStatusError), error
    assert type(error).__name__ == CLASSES.get(wanted["status"], "APIStatusError")
    seen = (error.status_code, error.code, error.param, error.type)
    assert seen == tuple(wanted[key] for key in ("status", "code", "param", "type")), seen
    assert isinstance(error.body, dict)
    assert isinstance(error.body["message"], str)
    assert error.body["message"] in str(error)
    assert error.request_id


def name_request() -> tuple[str, dict[str, str]]:
    """An id and the header that gives it to a request and all its retries."""
    name = f"req_{uuid.uuid4().hex}"
    return name, {"x-request-id": name}


def outcomes(server: str, name: str, attempts: int = 1) -> list[str]:
    """Return the outcomes of a named request in the server's log, when there are `attempts` and time for one more."""
    ends: list[str] = []
    for _ in range(LOGGED_WITHIN):
        found, enough = ends, len(ends) >= attempts
        time.sleep(0.3)
        ends = re.findall(rf" id={name} .* outcome=(\S+)", Path(TOLD["logs"][server]).read_text(encoding="utf-8"))
        if enough and ends == found:
            break
    return ends
