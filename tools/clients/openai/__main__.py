"""`python -m tools.clients.openai`: every case with every client, and the page of what they saw."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tools.clients.openai import page
from tools.clients.openai.clients import CLIENTS, run
from tools.clients.openai.rig import standing


def main() -> None:
    """Rewrite the page; say what failed."""
    with tempfile.TemporaryDirectory() as folder, standing(Path(folder)) as told:
        seen = {client: run(client, told, Path(folder)) for client in CLIENTS}
    page.PAGE.write_text(page.write(seen), encoding="utf-8")
    for client, results in seen.items():
        failed = [result for result in results.values() if not result.ok]
        print(f"{client}: {len(results) - len(failed)} of {len(results)}")
        for result in failed:
            print(f"  {result.item} {result.case}: {result.seen}")


if __name__ == "__main__":
    main()
