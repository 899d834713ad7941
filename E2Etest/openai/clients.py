"""OpenAI's clients in the versions that are tested: installed on demand beside the virtual environment's own packages,
and run, each in a process of its own, over all scenarios of its language."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from E2Etest.openai.cases import CASES, JAVASCRIPT, PYTHON, Case

_HERE = Path(__file__).parent
_CACHE = Path(sys.prefix) / "clients"
_PINS = _HERE / "python" / "pins.txt"
_PACKAGES = _HERE / "javascript" / "package.json"
RUN_TIMEOUT_S = 300


class ClientsError(RuntimeError):
    """A client cannot be installed or did not run to its end; the message says why."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client. `version` is the newest when it is the one that the development environment has."""

    language: str
    version: str

    def __str__(self) -> str:
        return f"{self.language}-{self.version}"


@dataclass(frozen=True, slots=True)
class Result:
    """What one client found in one case. `seen` is the same in every run that goes well."""

    item: int
    case: str
    ok: bool
    seen: str


def _javascript_packages() -> dict[str, str]:
    """Version to the name under which npm installs it."""
    dependencies = json.loads(_PACKAGES.read_text(encoding="utf-8"))["dependencies"]
    return {target.rpartition("@")[2]: name for name, target in dependencies.items()}


def _by_number(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number.split("."))


CLIENTS = (
    Client(PYTHON, version("openai")),
    Client(PYTHON, "2.54.0"),
    Client(PYTHON, "1.109.1"),
    *(Client(JAVASCRIPT, number) for number in sorted(_javascript_packages(), key=_by_number, reverse=True)),
)


def cases_of(client: Client) -> list[Case]:
    """The cases that this client can perform."""
    return [case for case in CASES if client.language in case.languages]


def run(client: Client, told: dict[str, Any], place: Path) -> dict[str, Result]:
    """All cases of the client against the servers in `told`; by case name. Raises `ClientsError`."""
    file = place / f"{client}.json"
    file.write_text(json.dumps(told), encoding="utf-8")
    command, environment = _python(client) if client.language == PYTHON else _javascript(client)
    done = subprocess.run(
        [*command, str(file)], env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, cwd=place
    )
    if done.returncode != 0:
        raise ClientsError(f"{client} did not run to its end:\n{done.stdout}{done.stderr}")
    results = [Result(**json.loads(line)) for line in done.stdout.splitlines()]
    return {result.case: result for result in results}


def _python(client: Client) -> tuple[list[str], dict[str, str]]:
    environment = _clean_environment()
    if client.version != version("openai"):
        environment["PYTHONPATH"] = str(_installed_python(client.version))
    return [sys.executable, str(_HERE / "python" / "run.py")], environment


def _javascript(client: Client) -> tuple[list[str], dict[str, str]]:
    environment = _clean_environment() | {"OPENAI_PACKAGE": _javascript_packages()[client.version]}
    environment["OPENAI_PACKAGES_AT"] = str(_installed_javascript())
    return [_program("node"), str(_HERE / "javascript" / "run.mjs")], environment


def _clean_environment() -> dict[str, str]:
    """Without the variables that the clients themselves read, and without other people's Python path."""
    return {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_") and k != "PYTHONPATH"}


def _installed_python(number: str) -> Path:
    """A directory with that version and what it needs."""
    with _prepared(f"python-{number}", [_PINS]) as (place, fresh):
        if fresh:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            wanted = ["--target", str(place), "--constraint", str(_PINS), f"openai=={number}"]
            _execute([*pip, *wanted], place, f"openai {number} for Python cannot be installed")
    return place


def _installed_javascript() -> Path:
    """A directory whose `node_modules` hold all versions of the lock file."""
    lock = _PACKAGES.with_name("package-lock.json")
    with _prepared("javascript", [_PACKAGES, lock]) as (place, fresh):
        if fresh:
            for file in (_PACKAGES, lock):
                shutil.copy(file, place)
            command = [_program("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            _execute(command, place, "openai for JavaScript cannot be installed")
    return place


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ClientsError(f"'{name}' is not installed: OpenAI's JavaScript clients are tested with Node 20 or later.")
    return found


@contextmanager
def _prepared(name: str, wanted: list[Path]) -> Iterator[tuple[Path, bool]]:
    """A directory of the cache, and whether it must be filled: it is stamped with what was wanted once that is done."""
    place = _CACHE / name
    stamp = place / ".stamp"
    key = hashlib.sha256(b"".join(path.read_bytes() for path in wanted)).hexdigest()
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = not stamp.exists() or stamp.read_text() != key
        if fresh:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        yield place, fresh
        stamp.write_text(key)


def _execute(command: list[str], place: Path, failure: str) -> None:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClientsError(f"{failure}:\n{done.stdout}{done.stderr}")
