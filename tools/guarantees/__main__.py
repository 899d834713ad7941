"""Measure guarantees and write docs/change/guarantees.md: `python -m tools.guarantees [NAME ...]`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tools import guarantees
from tools.guarantees import PAGE, RESULTS, ROOT, Measurement, combined, load, page, violations
from tools.guarantees.table import GUARANTEES


def _run(names: list[str]) -> tuple[int, dict[str, list[Measurement]]]:
    """pytest's exit code, and the results by guarantee."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [sys.executable, "-m", "pytest", "E2Etest", "-m", "guarantee", "--guarantees", str(path)]
        only = ["--only-guarantees", ",".join(names)] if names else []
        code = subprocess.run([*command, *only], cwd=ROOT, check=False).returncode
        results = [Measurement(**found) for found in json.loads(path.read_text(encoding="utf-8"))]
    by_name: dict[str, list[Measurement]] = {}
    for result in results:
        by_name.setdefault(result.guarantee, []).append(result)
    return code, by_name


def main() -> int:
    """Run the tests and rewrite the page; write nothing when a test fails or a figure exceeds its bound."""
    parser = argparse.ArgumentParser(prog="python -m tools.guarantees", description=guarantees.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(GUARANTEES)}")
    parser.add_argument("--render", action="store_true", help="run nothing; write the page from the recorded results")
    arguments = parser.parse_args()
    records = load()
    if not arguments.render:
        code, by_name = _run(arguments.names)
        if code != 0:
            print("A test failed; the page is unchanged.", file=sys.stderr)
            return code
        records |= {name: combined(results) for name, results in by_name.items()}
    if problems := violations(records):
        print("The page is unchanged:", *problems, sep="\n", file=sys.stderr)
        return 1
    recorded = {name: asdict(records[name]) for name in GUARANTEES}
    RESULTS.write_text(json.dumps(recorded, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(records), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
