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


def test_every_recorded_test_still_demonstrates_its_guarantee():
    """The files that the page links to carry the marker."""
    for name, record in guarantees.load().items():
        assert record.files
        assert all(name in _markers(HERE.parent / file) for file in record.files), name


def test_the_page_is_rendered_from_the_recorded_results():
    """Else: python -m tools.guarantees --render."""
    assert guarantees.page(guarantees.load()) == PAGE.read_text(encoding="utf-8")


def test_every_recorded_figure_is_within_its_bound():
    """Times too, although the tests assert more generous limits for them."""
    assert guarantees.violations(guarantees.load()) == []


def test_counts_and_memory_are_asserted_at_their_bound():
    """Only a time may have a more generous limit in its test."""
    bounds = [bound for guarantee in GUARANTEES.values() for bound in guarantee.bounds.values()]
    assert {bound.kind for bound in bounds} == set(BoundKind)
    for bound in bounds:
        assert bound.limit == bound.asserted or (bound.kind is BoundKind.TIME and bound.limit < bound.asserted)


def test_every_bound_is_stated_in_the_sentence():
    """By its name in braces, which the page replaces by the limit."""
    for name, guarantee in GUARANTEES.items():
        assert set(re.findall(r"{(\w+)}", guarantee.sentence)) == set(guarantee.bounds), name


def test_a_measurement_is_recorded_and_asserted():
    """The highest value stays; above the limit of the tests it fails."""
    one = Measurement("E2Etest/chaos/test_a.py::test_b", "drain")
    one.measured("unready_s", 0.5)
    one.measured("unready_s", 0.25)
    with pytest.raises(AssertionError, match=r"not ready: 5\.5 s, limit 5 s"):
        one.measured("unready_s", 5.5)
    assert one.values == {"unready_s": 5.5}
