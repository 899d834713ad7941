"""What the server promises under load, faults and bad input; `python -m E2Etest.promises` writes docs/promises.md.

A test shows a promise by the marker `promise("name")`, and tells what it measured with the fixture `figure`. So a
figure on the page was measured by the test beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "promises.md"

# name: (the promise, the bound that its tests hold it to)
PROMISES: dict[str, tuple[str, str]] = {
    "admission": (
        "No more work is taken than can be done, in seconds of audio",
        "under 10 times overload: refused with 429 or 503 and `Retry-After` 1 to 60 in under 100 ms (p99); "
        "accepted p95 at most 1.5 times that at the limit; memory within 10 %",
    ),
    "leavers": (
        "A caller that leaves frees its work",
        "place free within 0.5 s; no task, file or place is left of 100 of 200; the others are answered",
    ),
    "deadlines": ("Work that is late is not done", "504 within 200 ms of the deadline; it never runs"),
    "queue": (
        "The queue outlives every failure",
        "after an engine that raises, hangs, or runs out of memory the next request succeeds; only its row fails",
    ),
    "drain": (
        "SIGTERM loses nothing",
        "unready within 1 s; 16 uploads answered; 4 live sessions get their final and 1001; exit 0 within 30 s",
    ),
    "liveness": (
        "Live is not the same as ready",
        "`/livez` p99 under 100 ms on a saturated engine; not live within 15 s of an engine thread that hangs",
    ),
    "crash": (
        "A worker that dies costs no request",
        "20 kills under load: answered or a retryable 503; ready within load time + 5 s; a crash loop ends in words",
    ),
    "idle-memory": (
        "Who is idle gives the memory back",
        "worker gone and gateway under 80 MB; a server alone under 80 MB before its first request",
    ),
    "gateway-cost": ("The gateway costs next to nothing", "at p50 3 ms a request and 5 ms a live message"),
    "sockets": (
        "No peer of a socket can hold more than its share",
        "2 MiB beyond its audio; a reader that never reads and a half-open socket closed within 40 s; any frame size",
    ),
    "resume": ("A cut loses no word and doubles none", "50 cuts in the middle of speech"),
    "mixing": ("Sessions do not mix", "200 live sessions with their own phrases"),
    "upload-cap": ("An upload is refused while it is read", "413 after at most 1 MiB over the cap; memory +16 MiB"),
    "decoded-cap": (
        "A recording is refused while it is decoded",
        "bombs, lying headers, 10 h of silence in 1 MB: 4xx within 2 s, memory at most twice the cap",
    ),
    "codec": ("A codec that crashes hurts one request", "killed, SEGV, out of time: 400 for that one, service up"),
    "fuzzing": ("No input breaks a route or a socket", "no 5xx, no hang over 5 s, no traceback leaves the server"),
    "nothing-opened": ("Nothing that a caller names is opened", "no read and no connection for any of the payloads"),
    "keys": ("Nobody without a key gets in", "401 on every route and socket, 403 for foreign pages and names"),
    "logs": ("Logs hold nothing that was said, named or secret", "no hit of any canary at any level"),
    "soak": (
        "It stays as it was",
        "20 min at 80 % load with a fault every 30 s: no unexpected error; memory slope under 1 % an hour",
    ),
}


@dataclass(slots=True)
class Shown:
    """What one test showed. `outcome`: pytest's word."""

    test: str
    promise: str
    outcome: str = "not run"
    figures: list[str] = field(default_factory=list)


def page(shown: Iterable[Shown], before: str = "") -> str:
    """The page: rows of `before` stay where nothing was run for them."""
    found = list(shown)
    kept = {line.partition(" | ")[0]: line for line in before.splitlines()}
    rows = []
    for name, (promise, bound) in PROMISES.items():
        own = [one for one in found if one.promise == name]
        rows.append(_row(promise, bound, own) if own else kept.get(f"| {promise}", f"| {promise} | {bound} |  |  |  |"))
    return "\n".join([_HEAD, *rows, ""])


_HEAD = """\
# Promises

What the server keeps to under load, faults and bad input, and the tests that show it: `make promises` runs them all,
the soak included, and writes this page; `make test` runs all but the soak. Since nobody knows how busy the machine is
that runs a test, times and the slope of the soak's memory are told here and asserted with room to spare; all else is
asserted as it stands. Measured on two cores without a GPU, with the demonstration model.

| promise | bound | measured | on | shown by |
| --- | --- | --- | --- | --- |"""


def _row(promise: str, bound: str, shown: list[Shown]) -> str:
    failed = [s.test.rpartition("::")[2] for s in shown if s.outcome != "passed"]
    measured = "; ".join([*(f"**failed: {test}**" for test in failed), *(f for s in shown for f in s.figures)])
    files = sorted({s.test.partition("::")[0] for s in shown})
    links = ", ".join(f"[{Path(file).stem}](../{file})" for file in files)
    return f"| {promise} | {bound} | {measured or 'held'} | {date.today().isoformat()} | {links} |"


def main() -> int:
    """Run the tests, rewrite the page. Returns pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m E2Etest.promises", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(PROMISES)}")
    names = parser.parse_args().names
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        command = [sys.executable, "-m", "pytest", "E2Etest", "-m", "promise", "--promises", told]
        only = ["--only-promises", ",".join(names)] if names else []
        code = subprocess.run([*command, *only], cwd=ROOT, check=False).returncode
        shown = [Shown(**one) for one in json.loads(told.read_text(encoding="utf-8"))]
    PAGE.write_text(page(shown, PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""), encoding="utf-8")
    return code


def write(path: Path, shown: Iterable[Shown]) -> None:
    """For `main`: what a run of pytest has seen."""
    path.write_text(json.dumps([asdict(one) for one in shown]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
