"""The requirements in pyproject.toml, and the lock file made from them.

`python -m tools.requirements NAME ...` prints what these extras and dependency groups require, a line each, for
`pip install --requirement`. `python -m tools.requirements --lock UV` writes requirements.lock with that program.

The lock file has sections, each after a line `# section: NAME`, so that `sed` takes those that an installation needs:
`slim` for the server with its small English model, `qwen` for what Qwen3-ASR adds, and `speech` for what Qwen3-TTS
adds. torch itself is in none.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
_HEAD = """\
# Written by `make lock` from pyproject.toml. torch is not here: it is installed from the index in use.
# The server with Qwen3-ASR:                 sed '/^# section: speech/,$d' requirements.lock
# The server with its English model only:    sed '/^# section: qwen/,$d' requirements.lock
"""
# The extras of the sections.
SLIM, QWEN = ("demo",), ("cpu", "ja", "postgres")
# An extra that has all of another.
_OWN = re.compile(r"asr-server\[([a-z]+)\]")
_PACKAGE = re.compile(r"^([a-z0-9.-]+)==[^\n]*(?:\n    --hash=\S+(?: \\)?)+\n", re.MULTILINE)


def required(names: list[str]) -> list[str]:
    """Return the requirements of extras and dependency groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    known = project["project"]["optional-dependencies"] | project["dependency-groups"]
    found = list[str]()
    for requirement in (one for name in names for one in known[name]):
        own = _OWN.fullmatch(requirement)
        found += required([own[1]]) if own else [requirement]
    return found


def _compiled(uv: str, *arguments: str, known: str) -> dict[str, str]:
    """Package to its lines. A version of the lock file `known` stays while the requirements allow it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lock"
        out.write_text(known, encoding="utf-8")
        command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
        command += ["--no-annotate", "--no-header", "--output-file", str(out), *arguments]
        subprocess.run(command, cwd=ROOT, check=True)
        return {found[1]: found[0] for found in _PACKAGE.finditer(out.read_text(encoding="utf-8"))}


def lock(uv: str) -> None:
    """Write the lock file."""
    known = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    slim = _compiled(uv, "pyproject.toml", *_extras(SLIM), known=known)
    qwen = _compiled(uv, "pyproject.toml", *_extras((*SLIM, *QWEN)), known="".join(slim.values()) + known)
    if slim.items() - qwen.items():
        raise SystemExit("The packages of Qwen3-ASR ask for other versions than the server alone.")
    speech = _compiled(uv, "--no-deps", "--group", "speech", known=known)
    parts = {
        "slim": slim.values(),
        "qwen": [lines for name, lines in qwen.items() if name not in slim],
        "speech": speech.values(),
    }
    LOCK.write_text(_HEAD + "".join(f"# section: {name}\n{''.join(lines)}" for name, lines in parts.items()), "utf-8")


def _extras(names: tuple[str, ...]) -> list[str]:
    return [f"--extra={name}" for name in names]


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    if arguments[:1] == ["--lock"]:
        lock(arguments[1])
    else:
        print("\n".join(required(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
