"""The continuation of a session with two channels, and the first frame of a client that carries it."""

import json

import pytest

from asr_server.core.errors import InvalidInput
from asr_server.features.stereo import channel_continuations


def _of(state, received_bytes, actions):
    return {"state": state, "received_bytes": received_bytes, "actions": actions}


def _frame(**fields):
    return json.dumps({"action": "continue", "state": "first~second", **fields})


@pytest.mark.parametrize(
    ("first", "second", "received_bytes", "actions"),
    [((96, 2), (64, 3), 128, 2), ((64, 3), (96, 2), 128, 2), ((0, 0), (8, 1), 0, 0), ((7, 1), (9, 1), 12, 1)],
)
def test_both_go_on_from_what_either_needs_first(first, second, received_bytes, actions):
    """In whole frames of both channels."""
    joined = channel_continuations.joined(_of("first", *first), _of("second", *second))
    assert joined == _of("first~second", received_bytes, actions)


def test_each_channel_gets_its_state_and_what_was_shown_of_it():
    """By its own numbers. Where nothing was shown the next utterance is meant."""
    shown = [{"utterance": 7, "committed": "turn on", "end": 1.5, "speakers": []}, {"utterance": 4, "committed": "so"}]
    first, second = map(json.loads, channel_continuations.frames(_frame(channels=shown)))
    assert first == {**_expected("first", 4), "committed": "turn on", "end": 1.5}
    assert second == {**_expected("second", 2), "committed": "so"}
    for channels in ([], [{}], [{}, {}]):
        found = [json.loads(frame) for frame in channel_continuations.frames(_frame(channels=channels))]
        assert found == [_expected("first", 0), _expected("second", 0)]


def _expected(state, utterance):
    return {"action": "continue", "state": state, "utterance": utterance, "committed": "", "end": 0.0}


@pytest.mark.parametrize("number", range(1, 9))
def test_a_number_comes_back_as_it_was(number):
    """Odd ones are those of the first channel."""
    channel = (number - 1) % 2
    own = channel_continuations.own_number(number, channel)
    assert channel_continuations.common_number(own, channel) == number


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (_frame(state="first"), "state"),
        (_frame(state="first~second~third"), "state"),
        (_frame(state=400_000 * "A"), None),
        (_frame(channels={}), "channels"),
        (_frame(channels=[{}, {}, {}]), "channels"),
        (_frame(channels=[{"utterance": -1}]), "channels"),
        (_frame(channels=[{"utterance": 10**12}]), "channels"),
        (_frame(channels=[{"committed": 7}]), "channels"),
        (_frame(channels=[{"end": float("inf")}]), "channels"),
        (_frame(action="flush"), "action"),
        ("{", None),
        ("[]", "action"),
    ],
)
def test_a_wrong_frame_is_refused_with_the_field_at_fault(text, param):
    """Before a session is opened; the rest of it is checked by the session of each channel."""
    with pytest.raises(InvalidInput) as refused:
        channel_continuations.frames(text)
    assert refused.value.param == param
