"""After each test: the server is alive, and nothing in its log is a fault of ours. After all: how slow it ever was."""

import re
import time
from contextlib import contextmanager

import pytest

# Five seconds are promised, of a machine that has nothing else to do.
HANG_S = 30.0


class Tally:
    """Times every example."""

    def __init__(self) -> None:
        self.tries, self.slowest_s, self.tell = 0, 0.0, None

    @contextmanager
    def __call__(self):
        began_s = time.monotonic()
        yield
        self.tries += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        assert self.slowest_s < HANG_S


@pytest.fixture(scope="session")
def _tallied():
    """The tally of the whole run, which the last test tells of."""
    tally = Tally()
    yield tally
    if tally.tries:
        tally.tell(f"{tally.tries} examples by hypothesis, the slowest {tally.slowest_s:.1f} s")


@pytest.fixture
def timed(_tallied, figure):
    """Around each example: `with timed():`."""
    _tallied.tell = figure
    return _tallied


@pytest.fixture(autouse=True)
def _unhurt(guarded):
    before = len(guarded.log())
    yield
    assert guarded.client.get("/livez").status_code == 200
    written = guarded.log()[before:]
    faults = re.findall(r"^.* ERROR .*$|^Traceback.*$|^[\w.]+(?:Error|Exception)\b.*$", written, re.MULTILINE)
    assert faults == []
