"""The report on the times of tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import test_times

TESTS = """
import time

import pytest

def test_plain():
    time.sleep(0.3)

@pytest.mark.slow("it waits")
def test_marked():
    time.sleep(0.3)

@pytest.fixture
def server():
    time.sleep(0.5)

def test_first_of_its_fixture(server):
    pass
"""


@pytest.mark.slow("starts pytest and a worker")
def test_only_an_own_time_without_a_reason_is_reported(tmp_path, monkeypatch):
    """A worker sends the reasons to the process that appends to the file of all parts of `make test`."""
    (tmp_path / "some_test.py").write_text(TESTS)
    (tmp_path / "plugin.py").write_text("from tools import test_times\n\ntest_times.SLOW_S = 0.2\n")
    times = tmp_path / "times"
    times.write_text("0\n")
    monkeypatch.setenv("TEST_TIMES", str(times))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")
    options = ["-p", "plugin", "-p", "tools.test_times", "-p", "no:cacheprovider", "-c", "/dev/null", "-n", "1"]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *options, f"--rootdir={tmp_path}", tmp_path], check=True)
    found = {test: reason for _, test, reason in map(json.loads, times.read_text().splitlines()[1:])}
    assert found == {
        "some_test.py::test_plain": "",
        "some_test.py::test_marked": "it waits",
        "some_test.py::test_first_of_its_fixture": "its fixtures",
    }


def test_the_slowest_ten_are_named_and_those_that_need_a_mark():
    """The slowest comes first."""
    times = [test_times.Time(float(n), f"test_{n}", "it waits" if n > 4 else "") for n in range(12)]
    said = test_times.report(times).splitlines()
    assert [line.split()[-1] for line in said[1:11]] == [f"test_{n}" for n in range(11, 1, -1)]
    assert said[11].startswith("over 3 s without")
    assert [line.split() for line in said[12:]] == [["4.0", "s", "test_4"]]
