"""Installs a client where it is pinned, runs its scripts, and judges what they print.

A script gets the recording and the address of the server. It prints a line `# WHAT` for each thing that it tries, and
below it what came back: the words, subtitles where WHAT ends with ", srt" or ", vtt", or "4 of 4 cues".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from E2Etest.drive.recordings import plain_words
from tools.clients.catalogue import Client

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "clients"
SCRIPTS = Path(__file__).parent / "scripts"
UV = Path(sys.prefix) / "tools" / "bin" / "uv"
EXAMPLES = ROOT / "docs" / "examples" / "python"
INSTALL_TIMEOUT_S = 3600
RUN_TIMEOUT_S = 1800
INTERPRETERS = {".go": ("go", "run"), ".php": ("php",), ".rb": ("ruby",), ".pl": ("perl",), ".mjs": ("node",)}
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
_TIMES = re.compile(r"(\d\d):(\d\d):(\d\d)[.,](\d{3}) --> (\d\d):(\d\d):(\d\d)[.,](\d{3})")


class NotInstalled(RuntimeError):
    """The client's program is not on this machine; the message says which."""


@dataclass(frozen=True)
class Trial:
    """One thing that a client did, and whether what came back is right."""

    what: str
    right: bool
    printed: str


def version(client: Client) -> str:
    """Raises `NotInstalled`."""
    if client.pinned:
        return client.pinned
    try:
        # As somebody else than root, since VLC asks for that.
        said = subprocess.run(client.program, capture_output=True, text=True, check=True, **NOBODY).stdout
    except (OSError, subprocess.CalledProcessError) as fault:
        raise NotInstalled(f"{client.program[0]} is not installed, or not all that the script needs.") from fault
    found = re.search(r"(?<!-)\d+(?:\.\d+)+", said)  # not of a name such as gst-launch-1.0
    if found is None:
        raise NotInstalled(f"{' '.join(client.program)} prints no version.")
    return found[0]


def trials(client: Client, recording: Path, server: str, words: str, **environment: str) -> list[Trial]:
    """Run all scripts of the client. Raises `NotInstalled` and `CalledProcessError`."""
    programs = (*client.needs, *(("node", "npm") if client.npm else ()))
    if missing := [program for program in programs if shutil.which(program) is None]:
        raise NotInstalled(f"{', '.join(missing)} is not installed.")
    python = _environment(client)
    place = BUILD / client.short_name / "run"
    place.mkdir(parents=True, exist_ok=True)
    _install_from_npm(client, place.parent)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "PYTHON"))}
    found = []
    for name in client.scripts:
        script = SCRIPTS / name if (SCRIPTS / name).exists() else EXAMPLES / name
        if script.suffix == ".mjs":  # Node looks for packages beside the script
            script = Path(shutil.copy(script, place))
        command = [*INTERPRETERS.get(script.suffix, (str(python),)), str(script), str(recording), server]
        done = subprocess.run(
            command, cwd=place, env=clean | environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
        )
        (place / f"{name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode != 0:
            raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        found += judged(done.stdout, words)
    return found


def judged(printed: str, words: str) -> list[Trial]:
    """Each section of what a script printed; a script without headings, as the examples are, tried a file."""
    sections = re.split(r"^# (.*)$", printed if printed.startswith("# ") else f"# file\n{printed}", flags=re.MULTILINE)
    pairs = zip(sections[1::2], sections[2::2], strict=True)
    return [Trial(what, _is_right(what, body, words), body.strip()) for what, body in pairs]


def _is_right(what: str, body: str, words: str) -> bool:
    counted = re.fullmatch(r"(\d+) of (\d+) cues", body.strip())
    if counted:
        return counted[1] == counted[2] != "0"
    kind = what.rpartition(", ")[2]
    text = _text_of_cues(body.strip(), kind) if kind in {"srt", "vtt"} else body
    return plain_words(text) == plain_words(words)


def _text_of_cues(body: str, kind: str) -> str:
    """The text of valid subtitles whose cues are in order; "" of others."""
    blocks = [block.splitlines() for block in re.split(r"\n\n+", body)]
    if kind == "vtt":
        if blocks.pop(0) != ["WEBVTT"]:
            return ""
    elif [block.pop(0) for block in blocks] != [str(number) for number in range(1, len(blocks) + 1)]:
        return ""
    separator = "." if kind == "vtt" else ","
    found = [_TIMES.fullmatch(block[0]) for block in blocks]
    if not all(match and match[0].count(separator) == 2 for match in found):
        return ""
    times = [_milliseconds(match.groups()[at : at + 4]) for match in found if match for at in (0, 4)]
    in_order = all(first <= second for first, second in pairwise(times))
    return " ".join(line for block in blocks for line in block[1:]) if in_order else ""


def _milliseconds(parts: tuple[str, ...]) -> int:
    hours, minutes, seconds, milliseconds = (int(part) for part in parts)
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds


def _install_from_npm(client: Client, place: Path) -> None:
    """Put the client's packages of npm into `node_modules` of its directory."""
    stamp, wanted = place / ".npm-packages", "\n".join(client.npm)
    if not client.npm or (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
        return
    (place / "package.json").write_text('{"private": true}', encoding="utf-8")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--save-exact", *client.npm]
    subprocess.run(install, check=True, cwd=place, stdout=subprocess.DEVNULL, timeout=INSTALL_TIMEOUT_S)
    stamp.write_text(wanted, encoding="utf-8")


def _environment(client: Client) -> Path:
    """The client's Python, with its packages; ours for clients that are programs of the system."""
    if not client.packages:
        return Path(sys.executable)
    place = BUILD / client.short_name / "venv"
    python, stamp, wanted = place / "bin" / "python", place / ".packages", "\n".join(client.packages)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    make = [str(UV), "venv", "--no-config", "--no-python-downloads", "--quiet", "--clear", str(place)]
    if subprocess.run([*make, "--python", client.python or sys.executable]).returncode != 0:
        raise NotInstalled(f"Python {client.python} is not installed.")
    # pip takes more than ten minutes to choose the versions of what the largest clients need, and uv takes seconds.
    # Without this project's configuration, which leaves out packages that clients need.
    install = [str(UV), "pip", "install", "--no-config", "--quiet", "--python", str(python), *client.packages]
    subprocess.run(install, check=True, timeout=INSTALL_TIMEOUT_S)
    stamp.write_text(wanted, encoding="utf-8")
    return python
