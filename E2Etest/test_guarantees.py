"""docs/change/guarantees.md: every guarantee has a test, and no figure exceeds its bound."""

import re
from pathlib import Path

import pytest

from tools import guarantees
from tools.guarantees import PAGE, Measurement
from tools.guarantees.table import GUARANTEES, BoundKind

HERE = Path(__file__).parent
MARKER = re.compile(r'mark\.guarantee\("([\w-]+)"\)')


def _markers(path):
    return set(MARKER.findall(path.read_text(encoding="utf-8")))


def test_the_markers_are_those_of_the_table():
    """No guarantee without a test, and no marker without a guarantee."""
    assert set().union(*map(_markers, HERE.rglob("test_*.py"))) == set(GUARANTEES)


def test_the_page_is_that_of_recorded_results_within_their_bounds():
    """The links of the page lead to tests that have the marker (else: python -m tools.guarantees --render)."""
    recorded = guarantees.load()
    assert guarantees.page(recorded) == PAGE.read_text(encoding="utf-8")
    assert guarantees.violations(recorded) == []
    for name, record in recorded.items():
        assert record.files
        assert all(name in _markers(HERE.parent / file) for file in record.files), name


def test_bounds_are_asserted_and_stated_in_the_sentence():
    """Only a time may have a more generous limit in its test."""
    for name, guarantee in GUARANTEES.items():
        assert re.findall(r"{(\w+)}", guarantee.sentence) == list(guarantee.bounds), (
            name
        )  # as the page lists the figures
        for bound in guarantee.bounds.values():
            assert bound.limit == bound.asserted or (bound.kind is BoundKind.TIME and bound.limit < bound.asserted)


def test_a_measurement_is_recorded_and_asserted():
    """The highest value stays; above the limit of the tests it fails."""
    one = Measurement("E2Etest/chaos/test_a.py::test_b", "drain")
    one.measured("unready_s", 0.5)
    one.measured("unready_s", 0.25)
    with pytest.raises(AssertionError, match=r"not ready: 5\.5 s, limit 5 s"):
        one.measured("unready_s", 5.5)
    assert one.values == {"unready_s": 5.5}
