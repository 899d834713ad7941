"""Runs every scenario with the client that is importable here; one line of JSON for each case."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby

import failing
import leaving
import speakers
import speech
import streaming
import transcribing
import waiting
from world import ENTRIES, Entry

assert all((failing, leaving, speakers, speech, streaming, transcribing, waiting))  # importing them fills the table
_line = threading.Lock()


def main() -> None:
    """Cases that mostly wait go on beside the others, one line of them per thread."""
    front = [entry for entry in ENTRIES if entry.aside is None]
    beside = sorted((entry for entry in ENTRIES if entry.aside), key=lambda entry: entry.aside or "")
    with ThreadPoolExecutor() as pool:
        lines: list[Future[None]] = []
        for _, entries in groupby(beside, key=lambda entry: entry.aside):
            lines.append(pool.submit(_perform_all, list(entries)))
        _perform_all(front)
        for line in lines:
            line.result()


def _perform_all(entries: list[Entry]) -> None:
    for entry in entries:
        try:
            entry.perform()
            found, seen = True, ""
        except Exception as error:  # whatever a client raises is what this case saw
            found, seen = False, f"{type(error).__name__}: {error}"[:500]
        with _line:
            print(json.dumps({"item": entry.item, "case": entry.name, "ok": found, "seen": seen}), flush=True)


if __name__ == "__main__":
    main()
