"""The share of each module that its own tests cover: `python -m tools.coverage_by_module [PATH ...]`.

The own tests of `x.py` are `x_test.py` beside it; those of a package's `__init__.py` are `PACKAGE_test.py` inside it.
All unit tests run once, and coverage.py records for each line which test modules ran it. A line that ran while pytest
collected the tests counts as covered by each of them, because importing a module runs it. Lines that ran in a child
process are not recorded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "asr_server"
# coverage.py's name for what ran outside any test.
_COLLECTION = ""


@dataclass(frozen=True, slots=True)
class Module:
    """`lines` are executable; `own` and `all` are covered by the own tests, None without any, and by all that ran."""

    path: Path
    lines: int
    own: int | None
    all: int


class _ContextOfTestModule:
    """Pytest plugin that records every line with the path of the test module that runs."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measured.switch_context(str(item.path))
        return (yield)


def modules(paths: list[Path]) -> list[Path]:
    """The Python files below `paths` that are no tests."""
    found = {file.resolve() for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))}
    return sorted(file for file in found if not file.stem.endswith("_test") and file.name != "conftest.py")


def own_tests(module: Path) -> Path:
    """Return the path of a module's own tests, which need not exist."""
    stem = module.parent.name if module.name == "__init__.py" else module.stem
    return module.with_name(f"{stem}_test.py")


def measure(paths: list[Path]) -> tuple[list[Module], int]:
    """Run the tests below `paths`; return the modules that have executable lines, and pytest's exit status."""
    files = modules(paths)
    measured = coverage.Coverage(data_file=None, config_file=False, include=[str(file) for file in files])
    # sys.monitoring, the default of Python 3.14, reports a line once only, and so to one context only.
    measured.set_option("run:core", "ctrace")
    measured.start()
    status = pytest.main([str(path) for path in paths], plugins=[_ContextOfTestModule(measured)])
    measured.stop()
    found = [_module(measured, file) for file in files]
    return [module for module in found if module.lines], int(status)


def _module(measured: coverage.Coverage, file: Path) -> Module:
    _, lines, _, missing, _ = measured.analysis2(str(file))
    tests = own_tests(file)
    ran = measured.get_data().contexts_by_lineno(str(file))
    own = sum(not {_COLLECTION, str(tests)}.isdisjoint(ran.get(line, ())) for line in lines)
    return Module(file, len(lines), own if tests.exists() else None, len(lines) - len(missing))


def table(found: list[Module], root: Path) -> str:
    """Modules with tests of their own, the least covered first, then the modules without."""
    tested = sorted((m for m in found if m.own is not None), key=lambda m: (m.own or 0) / m.lines)
    untested = [m for m in found if m.own is None]
    rows = ["Lines that run in a child process are not counted.", ""]
    rows += [f"{'own tests':>9} {'all tests':>9} {'lines':>6}  module"]
    rows += [f"{_share(m.own, m):>9} {_share(m.all, m):>9} {m.lines:>6}  {_name(m, root)}" for m in tested]
    rows += ["", f"Without a test module of their own: {len(untested)}", ""]
    rows += [f"{'-':>9} {_share(m.all, m):>9} {m.lines:>6}  {_name(m, root)}" for m in untested]
    return "\n".join(rows)


def _share(covered: int | None, module: Module) -> str:
    return f"{100 * (covered or 0) / module.lines:.0f} %"


def _name(module: Module, root: Path) -> str:
    return str(module.path.relative_to(root)) if module.path.is_relative_to(root) else str(module.path)


def main() -> int:
    """Print the table. Return pytest's exit status; no share is too small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[PACKAGE], metavar="PATH", help="default: src/asr_server"
    )
    found, status = measure(parser.parse_args().paths)
    print(table(found, SOURCE))
    return status


if __name__ == "__main__":
    sys.exit(main())
