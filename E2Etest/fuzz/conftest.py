"""After each test: the server is alive, and nothing in its log is a fault of ours. After all: how slow it ever was."""

import re
import time
from contextlib import contextmanager

import pytest


class Tally:
    """Times every example. `measured` and `note` are those of the test that runs, or of the last one."""

    def __init__(self) -> None:
        self.tries, self.measured, self.note = 0, None, None

    @contextmanager
    def __call__(self):
        began_s = time.monotonic()
        yield
        self.tries += 1
        self.measured("slowest_s", time.monotonic() - began_s)


@pytest.fixture(scope="session")
def _tallied():
    """The tally of the whole run, which the last test notes."""
    tally = Tally()
    yield tally
    if tally.tries:
        tally.note(f"{tally.tries} examples by hypothesis")


@pytest.fixture
def timed(_tallied, measured, note):
    """Around each example: `with timed():`."""
    _tallied.measured, _tallied.note = measured, note
    return _tallied


@pytest.fixture(autouse=True)
def _unhurt(guarded):
    before = len(guarded.log())
    yield
    assert guarded.client.get("/livez").status_code == 200
    written = guarded.log()[before:]
    faults = re.findall(r"^.* ERROR .*$|^Traceback.*$|^[\w.]+(?:Error|Exception)\b.*$", written, re.MULTILINE)
    assert faults == []
