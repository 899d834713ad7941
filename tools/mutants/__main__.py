"""Puts one fault of the catalogue after the other into a copy of the tree and runs the tests that must catch it.

    python -m tools.mutants [--only ID ...] [--jobs N] [--check | --list]
    python -m tools.mutants --draw 60 --seed 1 [--jobs N]

Exits with 1 if a fault is not caught or cannot be put in, or if a test fails without any fault. The working tree is
never changed. Of drawn faults, which are random, some change nothing that anybody could see: those that live are for a
person to judge.
"""

from __future__ import annotations

import argparse
import compileall
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from tools.mutants import ROOT, Mutant, catalogue, drawn

T = TypeVar("T")
_COPIED = ("src", "tools", "extras", "E2Etest", "docs", "pyproject.toml", "README.md")
_LIMIT_S = 600.0  # a fault that makes the tests hang is caught
_BY_DAY = "not nightly and not performance"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the tests of one fault. `detail`: the test that failed, or what is wrong."""

    caught: bool
    detail: str
    took_s: float


def _copy(root: Path) -> Path:
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(source, root / name)
    compileall.compile_dir(root, quiet=2)  # or each run of tests would compile all modules
    return root


def _judge_drawn(mutant: Mutant, root: Path) -> Outcome:
    """Run the tests in stages. A test that also fails without the fault, on a busy machine say, has not caught it."""
    began_s, outcome = time.monotonic(), Outcome(False, "NOT CAUGHT", 0.0)
    for tests in drawn.stages(mutant):
        outcome = _judge(replace(mutant, tests=tests), root, _BY_DAY)
        # Without its parameters: these may have spaces, at which the name of the failed test is cut.
        if outcome.caught and "::" in outcome.detail and _pytest([outcome.detail.partition("[")[0]], root)[0]:
            outcome = Outcome(False, f"NOT CAUGHT, and this fails without it: {outcome.detail}", 0.0)
        if outcome.caught:
            break
    return replace(
        outcome, detail=f"{outcome.detail}  [{mutant.file}, {mutant.what}]", took_s=time.monotonic() - began_s
    )


def _judge(mutant: Mutant, root: Path, marks: str = "") -> Outcome:
    if problem := mutant.problem(root):
        return Outcome(False, problem, 0.0)
    path, began_s = root / mutant.file, time.monotonic()
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.applied(original), encoding="utf-8")
    try:
        code, printed = _pytest(mutant.tests, root, marks)
    except subprocess.TimeoutExpired:
        return Outcome(True, f"the tests hang for {_LIMIT_S:g} s", time.monotonic() - began_s)
    finally:
        path.write_text(original, encoding="utf-8")
    took_s = time.monotonic() - began_s
    match code:
        case 0:
            return Outcome(False, "NOT CAUGHT", took_s)
        case 1 | 2 if marks or code == 1:  # 2: a drawn fault may break an import
            failed = _FAILED.search(printed)
            return Outcome(True, failed[1] if failed else "a test that hangs", took_s)
        case _:  # a fault that breaks an import, say, tests nothing
            return Outcome(False, f"pytest ended with {code}: {printed[-500:]}", took_s)


def _pytest(tests: list[str], root: Path, marks: str = "") -> tuple[int, str]:
    """The exit code and what was printed. The examples of hypothesis are the same in every run."""
    options = ["-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-m", marks, "--hypothesis-seed=1"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    python_path = os.pathsep.join([str(root / "src"), *map(str, (root / "extras").iterdir()), str(root)])
    environment = {**os.environ, "PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def _tests_by_module(mutants: list[Mutant]) -> list[list[str]]:
    tests = sorted({test for mutant in mutants for test in mutant.tests if not mutant.problem()})
    return [list(group) for _, group in groupby(tests, key=lambda test: test.partition("::")[0])]


def _run(mutants: list[Mutant], jobs: int) -> int:
    failed = 0
    width = max(len(mutant.id) for mutant in mutants)
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            (Path(directory) / str(number)).mkdir()
            copies.put(_copy(Path(directory) / str(number)))

        def in_a_copy(work: Callable[[Path], T]) -> T:
            copy = copies.get()
            try:
                return work(copy)
            finally:
                copies.put(copy)

        def judge(mutant: Mutant) -> Outcome:
            return in_a_copy(lambda copy: (_judge if mutant.tests else _judge_drawn)(mutant, copy))

        # A test that fails without any fault would count as catching it.
        for code, printed in pool.map(lambda tests: in_a_copy(partial(_pytest, tests)), _tests_by_module(mutants)):
            if code:
                print(f"tests fail without any fault:\n{printed[-2_000:]}")
                pool.shutdown(cancel_futures=True)
                return 1
        for mutant, outcome in zip(mutants, pool.map(judge, mutants), strict=True):
            failed += not outcome.caught
            said = "caught by" if outcome.caught else "FAULT REMAINS:"
            print(f"{mutant.id:{width}} {outcome.took_s:4.0f} s  {said} {outcome.detail}", flush=True)
    print(f"{len(mutants) - failed} of {len(mutants)} faults are caught")
    return 1 if failed else 0


def _check(mutants: list[Mutant]) -> int:
    problems = [f"{mutant.id}: {problem}" for mutant in mutants if (problem := mutant.problem())]
    print("\n".join(problems) or f"all {len(mutants)} faults can be put in")
    return 1 if problems else 0


def _list(mutants: list[Mutant]) -> int:
    for mutant in mutants:
        print(f"{mutant.id}: {mutant.what}\n    {' '.join(mutant.tests)}")
    return 0


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ID", default=[], help="only these faults")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--list", action="store_true", help="print what each fault does wrong, and its tests")
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="random faults of today's code instead")
    parser.add_argument("--seed", type=int, default=1, help="of the random faults")
    parser.add_argument("--check", action="store_true", help="only check that every fault can be put in")
    parsed = parser.parse_args()
    if unknown := set(parsed.only) - {mutant.id for mutant in catalogue()}:
        parser.error(f"not in the catalogue: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in catalogue() if not parsed.only or mutant.id in parsed.only]
    if parsed.draw:
        mutants = drawn.draw(parsed.draw, parsed.seed)
    if parsed.list:
        return _list(mutants)
    return _check(mutants) if parsed.check else _run(mutants, parsed.jobs)


if __name__ == "__main__":
    raise SystemExit(main())
