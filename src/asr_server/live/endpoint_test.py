"""Where speech begins and ends."""

import pytest

from asr_server.live.endpoint import Endpointer, Voice

_PAUSE = 4  # frames of the shortest pause that ends an utterance


def _voices(probabilities):
    endpointer = Endpointer(0.5, 32 * _PAUSE)
    found = []
    for probability in probabilities:
        found.append(endpointer.add(probability))
        if found[-1] is Voice.ENDPOINT:
            endpointer.reset()
    return "".join({"silent": ".", "onset": "O", "voiced": "v", "hushed": "h", "endpoint": "E"}[v.value] for v in found)


@pytest.mark.parametrize(
    ("probabilities", "voices"),
    [
        ([0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], "....OvhhhE."),
        ([1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], "..........O"),  # a click, then speech
        ([1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0], "...OhhhvhhhE"),  # a short pause inside
        ([1, 1, 1, 1, 0.4, 0.4, 0.4, 0.4, 0.4], "...Ovvvvv"),  # between the thresholds speech goes on
        ([1, 1, 1, 1, 0.3, 0.4, 0.4, 0.4], "...OhhhE"),  # and so does a pause
        ([0.4] * 6, "......"),  # but neither begins there
        ([1, 0, 1, 1, 0, 0], "...O" + "hh"),  # a dip in an onset
    ],
)
def test_hysteresis(probabilities, voices):
    """Begins at the threshold after 100 ms, ends when it was left for the whole pause."""
    assert _voices(probabilities) == voices


def test_a_click_is_forgotten_although_pauses_may_be_long():
    """With pauses of 8 s, a click and a word 2 s later are two things."""
    endpointer = Endpointer(0.5, 8_000)
    assert [endpointer.add(p) for p in [1.0] + [0.0] * 60] == [Voice.SILENT] * 61
    assert [endpointer.add(1.0) for _ in range(4)][-1] is Voice.ONSET
    assert endpointer.onset_frames == 4
