"""OpenAI's clients in the versions that are tested, run, each in a process of its own, over all scenarios of its
language. Where they come from is `openai_clients.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tools.clients import openai_clients
from tools.clients.openai.cases import CASES, JAVASCRIPT, PYTHON, Case

_HERE = Path(__file__).parent
RUN_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Client:
    """One client. `version` is the newest when it is the one that the development environment has."""

    language: str
    version: str

    def __str__(self) -> str:
        return f"{self.language}-{self.version}"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one client in one case. `seen` is the same in every run that goes well."""

    item: int
    case: str
    ok: bool
    seen: str


CLIENTS = (
    Client(PYTHON, version("openai")),
    *(Client(PYTHON, number) for number in openai_clients.OLDER_PYTHON),
    *(Client(JAVASCRIPT, number) for number in openai_clients.javascript_packages()),
)


def cases_of(client: Client) -> list[Case]:
    """The cases that this client can perform."""
    return [case for case in CASES if client.language in case.languages]


def run(client: Client, told: dict[str, Any], place: Path) -> dict[str, Result]:
    """All cases of the client against the servers in `told`; by case name. Raises `openai_clients.ClientsError`."""
    file = place / f"{client}.json"
    file.write_text(json.dumps(told), encoding="utf-8")
    command, environment = _python(client) if client.language == PYTHON else _javascript(client)
    done = subprocess.run(
        [*command, str(file)], env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, cwd=place
    )
    if done.returncode != 0:
        raise openai_clients.ClientsError(f"{client} did not run to its end:\n{done.stdout}{done.stderr}")
    results = [Result(**json.loads(line)) for line in done.stdout.splitlines()]
    return {result.case: result for result in results}


def _python(client: Client) -> tuple[list[str], dict[str, str]]:
    environment = _clean_environment()
    if client.version != version("openai"):
        environment["PYTHONPATH"] = str(openai_clients.python(client.version))
    return [sys.executable, str(_HERE / "python" / "run.py")], environment


def _javascript(client: Client) -> tuple[list[str], dict[str, str]]:
    environment = _clean_environment() | {"OPENAI_PACKAGE": openai_clients.javascript_packages()[client.version]}
    environment["OPENAI_PACKAGES_AT"] = str(openai_clients.javascript())
    return [openai_clients.program("node"), str(_HERE / "javascript" / "run.mjs")], environment


def _clean_environment() -> dict[str, str]:
    """Without the variables that the clients themselves read, and without other people's Python path."""
    # The servers have no certificates, and to read all public ones takes each of a hundred clients 40 ms.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "SSL_CERT_")) and k != "PYTHONPATH"}
    return kept | {"SSL_CERT_DIR": str(_HERE)}
