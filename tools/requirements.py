"""The requirements in pyproject.toml, and the lock file made from them.

`python -m tools.requirements NAME ...` prints what these extras and dependency groups require, a line each, for
`pip install --requirement`. `python -m tools.requirements --lock UV` writes requirements.lock with that program.

The lock file has sections, each after a line `# section: NAME`, so that `sed` takes those that an installation needs:
`slim` for the server with its small English model, `qwen` for what Qwen3-ASR on CPUs and PostgreSQL add, `torch` for
what Qwen3-ASR on GPUs adds, and `speech` for what Qwen3-TTS adds. torch itself is in none.
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
# Written by `make lock` from pyproject.toml. torch is not here: it is installed first, from the index in use.
# The server for GPUs:                       sed '/^# section: speech/,$d' requirements.lock
# The server for CPUs, without torch:        sed '/^# section: torch/,$d' requirements.lock
# The server with its English model alone:   sed '/^# section: qwen/,$d' requirements.lock
"""
# qwen-asr asks for it, and nothing of it is imported on CPUs.
_NEVER = 'transformers; python_version < "3"\n'
_PACKAGE = re.compile(r"^([a-z0-9.-]+)==[^\n]*(?:\n    --hash=\S+(?: \\)?)+\n", re.MULTILINE)


def required(names: list[str]) -> list[str]:
    """Return the requirements of extras and dependency groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    known = project["project"]["optional-dependencies"] | project["dependency-groups"]
    return [requirement for name in names for requirement in known[name]]


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
    models = ("pyproject.toml", "--group", "models")
    whole = _compiled(uv, *models, "--extra", "qwen", "--extra", "torch", "--extra", "postgres", known=known)
    with (
        tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraint,
        tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as without,
    ):
        constraint.write("".join(whole.values()))
        constraint.flush()
        without.write(_NEVER)
        without.flush()
        fixed = (*models, "--constraint", constraint.name)
        slim = _compiled(uv, *fixed, known="".join(whole.values()))
        qwen = ("--extra", "qwen", "--extra", "postgres", "--override", without.name)
        cpu = _compiled(uv, *fixed, *qwen, known="".join(whole.values()))
    speech = _compiled(uv, "--no-deps", "--group", "speech", known=known)
    parts = {
        "slim": [lines for name, lines in whole.items() if name in slim],
        "qwen": [lines for name, lines in whole.items() if name in cpu and name not in slim],
        "torch": [lines for name, lines in whole.items() if name not in cpu],
        "speech": speech.values(),
    }
    LOCK.write_text(_HEAD + "".join(f"# section: {name}\n{''.join(lines)}" for name, lines in parts.items()), "utf-8")


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    if arguments[:1] == ["--lock"]:
        lock(arguments[1])
    else:
        print("\n".join(required(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
