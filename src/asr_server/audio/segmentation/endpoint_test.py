"""The beginning and the end of utterances of a live session."""

from asr_server.audio.segmentation.endpoint import Endpointer, VoiceActivity

_PAUSE = 4  # frames of the shortest pause that ends an utterance


def _activity(probabilities):
    endpointer = Endpointer(0.5, 32 * _PAUSE)
    found = []
    for probability in probabilities:
        found.append(endpointer.add(probability))
        if found[-1] is VoiceActivity.ENDPOINT:
            endpointer.reset()
    return "".join({"silent": ".", "onset": "O", "voiced": "v", "paused": "h", "endpoint": "E"}[v.value] for v in found)


def test_hysteresis():
    """Speech begins at the threshold after 100 ms and ends when it was left for the whole pause."""
    cases = [
        ([0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], "....OvhhhE."),
        ([1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], "..........O"),  # a click, then speech
        ([1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0], "...OhhhvhhhE"),  # a short pause inside
        ([1, 1, 1, 1, 0.4, 0.4, 0.4, 0.4, 0.4], "...Ovvvvv"),  # between the thresholds speech goes on
        ([1, 1, 1, 1, 0.3, 0.4, 0.4, 0.4], "...OhhhE"),  # and so does a pause
        ([0.4] * 6, "......"),  # but neither begins there
        ([1, 0, 1, 1, 0, 0], "...O" + "hh"),  # a dip in an onset
    ]
    for probabilities, expected in cases:
        assert _activity(probabilities) == expected, probabilities


def test_a_click_is_forgotten_although_pauses_may_be_long():
    """A click and a word 2 s later are two things, with pauses of 8 s."""
    endpointer = Endpointer(0.5, 8_000)
    assert [endpointer.add(p) for p in [1.0] + [0.0] * 60] == [VoiceActivity.SILENT] * 61
    assert [endpointer.add(1.0) for _ in range(4)][-1] is VoiceActivity.ONSET
    assert endpointer.onset_frames == 4
