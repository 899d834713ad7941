import pytest

from asr_server_sizing import fit
from asr_server_sizing.fit import Point
from asr_server_sizing.profile import StepCosts


def test_costs_that_made_the_points_are_found():
    """Without noise the fit is exact."""
    decode = [Point(1, rows, 0.002 + 0.0003 * rows) for rows in (1, 8, 32)]
    prefill = [
        Point(passes, tokens, 0.02 * passes + 2e-5 * tokens) for passes, tokens in ((1, 400), (1, 3200), (2, 13000))
    ]
    found = fit.costs(decode, prefill)
    expected = StepCosts(0.002, 0.0003, 0.02, 2e-5)
    assert (found.decode(5), found.prefill(700)) == pytest.approx((expected.decode(5), expected.prefill(700)))


def test_no_cost_is_negative():
    """Points of noise do not make a step that costs less than nothing."""
    assert fit.line([Point(1, 1, 0.01), Point(1, 2, 0.03)]) == pytest.approx(
        (0.0, (100 + 200 / 3) / (100**2 + (200 / 3) ** 2))
    )
    assert fit.line([Point(1, 1, 0.03), Point(1, 9, 0.01)])[1] == 0.0


@pytest.mark.parametrize("points", [[], [Point(1, 4, 0.1)], [Point(1, 4, 0.1), Point(2, 8, 0.2)]])
def test_points_that_do_not_determine_two_costs_are_refused(points):
    """One batch size says nothing of others."""
    with pytest.raises(ValueError, match="differ"):
        fit.line(points)
