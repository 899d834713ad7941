"""The slowest tests of a run, and those over 3 s that no mark explains: a plugin of pytest, `-p tools.test_times`.

    python -m tools.test_times FILE    the same for all parts of `make test`, which append their times to FILE

The first line of FILE is the second at which the run began. Times are reported and never fail a test: machines differ.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

SLOW_S = 3.0
_COUNT = 10


class Time(NamedTuple):
    """What one test took, with the fixtures that it was the first to need. `reason`: why it may take over 3 s."""

    seconds: float
    test: str
    reason: str


class _Collector:
    """Adds up the phases of each test, in the process that collects the reports of all workers."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report):
        """Add a phase of a test. Its own time is that of its call; fixtures that others use too need no reason."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "call" and report.duration <= SLOW_S:
            self._reasons[report.nodeid] = "its fixtures"
        else:
            self._reasons.setdefault(report.nodeid, dict(report.user_properties).get("slow", ""))

    def pytest_terminal_summary(self, terminalreporter):
        """Print the report, or append the times for the report on all parts."""
        times = [Time(seconds, test, self._reasons[test]) for test, seconds in self._seconds.items()]
        if path := os.environ.get("TEST_TIMES"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(one)}\n" for one in times)
        else:
            terminalreporter.write_line(report(times))


def pytest_configure(config):
    """Collect in the process that prints; workers only send the reasons."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector())


def pytest_runtest_setup(item):
    """Send the reason with the reports of a test. Tests of the night may take as long as they need."""
    if mark := item.get_closest_marker("slow"):
        item.user_properties.append(("slow", mark.args[0] if mark.args else ""))
    if item.get_closest_marker("nightly"):
        item.user_properties.append(("slow", "at night"))


def report(times: list[Time]) -> str:
    """Return the slowest tests and those that need a mark."""
    slowest = sorted(times, reverse=True)[:_COUNT]
    lines = ["slowest tests:", *(f"  {one.seconds:6.1f} s  {one.test}" for one in slowest)]
    if unexplained := [one for one in sorted(times, reverse=True) if one.seconds > SLOW_S and not one.reason]:
        lines.append(f'over {SLOW_S:g} s without @pytest.mark.slow("REASON"):')
        lines += [f"  {one.seconds:6.1f} s  {one.test}" for one in unexplained]
    return "\n".join(lines)


def _main() -> int:
    began, *lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    times = [Time(*json.loads(line)) for line in lines]
    print(report(times))
    print(f"{len(times)} tests in {time.time() - float(began):.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
