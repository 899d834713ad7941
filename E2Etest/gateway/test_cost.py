"""What the gateway adds to a request and to a live message, side by side with a server without one, in one run."""

import pytest

from tools.bench import gateway as bench

pytestmark = [
    pytest.mark.performance,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("gateway-cost"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def both(server, gateway, sample):
    """Both with their models loaded."""
    for one in (server, gateway):
        assert one.transcribe(sample[0]).json()["text"] == sample[1]
    return server, gateway


def test_a_request_costs_next_to_nothing_more(both, measured, note):
    """Medians of neighbours in time; the upload that is refused shows the way without the engine's own moods."""
    whole, refused = bench.pairs(*both, bench.request_ms, 30), bench.pairs(*both, bench.refused_ms, 100)
    measured("request_ms", refused["added_ms_p50"])
    note(
        f"a recording of {bench.CLIP_S} s takes {whole['plain_ms_p50']:.1f} ms without the gateway and "
        f"{whole['through_ms_p50']:.1f} ms with it; {refused['added_ms_of_minima']:+.1f} ms between the fastest uploads"
    )


def test_a_live_message_costs_next_to_nothing_more(both, measured):
    """There and back."""
    measured("live_ms", bench.live(*both, rounds=100)["added_ms_p50"])
