"""Puts one fault of the catalogue after the other into a copy of the tree and runs the tests that must catch it.

    python -m E2Etest.mutants [--only ID ...] [--jobs N] [--check | --list]

Exits with 1 if a fault is not caught or cannot be put in. The working tree is never changed.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from E2Etest.mutants import ROOT, Mutant, catalogue

_COPIED = ("src", "E2Etest", "docs", "examples", "pyproject.toml")
_LIMIT_S = 600  # a fault that makes the tests hang is caught


def _copy(root: Path) -> Path:
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(source, root / name)
    return root


def _verdict(mutant: Mutant, root: Path) -> str:
    """ "caught", or what is wrong."""
    if problem := mutant.problem(root):
        return problem
    path = root / mutant.file
    original = path.read_text(encoding="utf-8")
    changed = original
    for old, new in mutant.replace:
        changed = changed.replace(old, new)
    path.write_text(changed, encoding="utf-8")
    try:
        return "caught" if _fails(mutant, root) else "NOT CAUGHT"
    finally:
        path.write_text(original, encoding="utf-8")


def _fails(mutant: Mutant, root: Path) -> bool:
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not soak", "--no-header", *mutant.tests]
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):  # 2: the fault breaks an import, which every test would show
        raise SystemExit(f"{mutant.id}: pytest ended with {done.returncode}:\n{done.stdout.decode()[-2000:]}")
    return done.returncode != 0


def _run(mutants: list[Mutant], jobs: int) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            (Path(directory) / str(number)).mkdir()
            copies.put(_copy(Path(directory) / str(number)))

        def judge(mutant: Mutant) -> str:
            copy = copies.get()
            try:
                return _verdict(mutant, copy)
            finally:
                copies.put(copy)

        for mutant, verdict in zip(mutants, pool.map(judge, mutants), strict=True):
            failed += verdict != "caught"
            print(f"{mutant.id:40} {verdict}", flush=True)
    print(f"{len(mutants) - failed} of {len(mutants)} faults are caught")
    return 1 if failed else 0


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ID", help="only these faults")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--list", action="store_true", help="print the ids and the tests")
    parser.add_argument("--check", action="store_true", help="only check that every fault can be put in")
    parsed = parser.parse_args()
    mutants = [mutant for mutant in catalogue() if not parsed.only or mutant.id in parsed.only]
    if parsed.list:
        print("\n".join(f"{mutant.id:40} {' '.join(mutant.tests)}" for mutant in mutants))
        return 0
    if parsed.check:
        problems = [f"{mutant.id}: {problem}" for mutant in mutants if (problem := mutant.problem())]
        print("\n".join(problems) or f"all {len(mutants)} faults can be put in")
        return 1 if problems else 0
    return _run(mutants, parsed.jobs)


if __name__ == "__main__":
    raise SystemExit(main())
