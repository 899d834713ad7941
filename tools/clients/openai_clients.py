"""OpenAI's clients in the versions that are tested, installed on demand and once beside the virtual environment's own
packages: exactly what `openai/python/pins.txt` and `openai/javascript/package-lock.json` say. Runs none of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).parent / "openai"
_CACHE = Path(sys.prefix) / "clients"
_PINS = _HERE / "python" / "pins.txt"
_PACKAGES = _HERE / "javascript" / "package.json"
_ALIAS = "npm:openai@"
# Older than the one in the development environment, newest first.
OLDER_PYTHON = ("2.54.0", "1.109.1")


class ClientsError(RuntimeError):
    """A client cannot be installed or did not run to its end; the message says why."""


def javascript_packages() -> dict[str, str]:
    """Version to the name under which npm installs it, newest first."""
    dependencies = json.loads(_PACKAGES.read_text(encoding="utf-8"))["dependencies"]
    found = {at.removeprefix(_ALIAS): name for name, at in dependencies.items() if at.startswith(_ALIAS)}
    return dict(sorted(found.items(), key=lambda item: _by_number(item[0]), reverse=True))


def python(number: str) -> Path:
    """A directory with that version and what it needs, for PYTHONPATH. Raises `ClientsError`."""
    with _prepared(f"openai-python-{number}", [_PINS]) as (place, fresh):
        if fresh:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            wanted = ["--target", str(place), "--constraint", str(_PINS), f"openai[realtime]=={number}"]
            _execute([*pip, *wanted], place, f"openai {number} for Python cannot be installed")
    return place


def javascript() -> Path:
    """A directory whose `node_modules` hold all versions of the lock file. Raises `ClientsError`."""
    lock = _PACKAGES.with_name("package-lock.json")
    with _prepared("openai-javascript", [_PACKAGES, lock]) as (place, fresh):
        if fresh:
            for file in (_PACKAGES, lock):
                shutil.copy(file, place)
            command = [program("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            _execute(command, place, "openai for JavaScript cannot be installed")
    return place


def program(name: str) -> str:
    """Return the path of a program that comes with Node. Raises `ClientsError`."""
    found = shutil.which(name)
    if found is None:
        raise ClientsError(f"'{name}' is not installed: OpenAI's JavaScript clients are tested with Node 20 or later.")
    return found


def _by_number(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number.split("."))


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
