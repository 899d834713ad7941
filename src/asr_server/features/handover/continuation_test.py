"""The state that a client carries to another server: what comes back of it, and what is refused."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, replace

import pytest

from asr_server.core.errors import InvalidInput, InvalidValue
from asr_server.features.handover import continuation
from asr_server.features.handover.continuation import Continuation, Offset, ShownUtterance, TurnSettings

_ID = "live_0123abcd." + 22 * "x"
_STATE = Continuation(
    _ID, 16 * "0", 3, 48_000, 96_000, 2, True, "two words", 1, TurnSettings("German", "Müller 😀", True)
)


def _encoded(**changes):
    raw = _STATE.configured
    fields = {"version": 1, **asdict(_STATE), "configured": asdict(raw)}
    return _base64(json.dumps(fields | changes))


def _base64(text):
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _frame(**fields):
    return json.dumps({"action": "continue", "state": _encoded(), **fields})


@pytest.mark.parametrize(
    "state",
    [
        _STATE,
        replace(_STATE, configured=None),
        replace(_STATE, configured=TurnSettings(semantic=True)),
        replace(_STATE, configured=TurnSettings(semantic=False)),
        Continuation(_ID, 16 * "f"),
    ],
)
def test_a_state_comes_back_as_it_was(state):
    """With the position that the client is told beside it."""
    told = continuation.wire_message(state)
    assert continuation.parse_state(told["state"]) == state
    assert (told["received_bytes"], told["actions"]) == (state.received_bytes, state.actions)


def test_the_longest_hotwords_come_back():
    """Also where JSON spells each character with six, or UTF-8 with four."""
    for character in ("\x01", "😀"):
        state = replace(_STATE, configured=TurnSettings(hotwords=16_000 * character))
        assert continuation.parse_state(continuation.wire_message(state)["state"]) == state


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"session_id": "sess_1"},
        {"session_id": "live_" + 61 * "x"},
        {"session_id": _ID + "\n"},
        {"issuer": "x"},
        {"utterances": -1},
        {"utterances": 1.5},
        {"utterances": True},
        {"samples": 2**60},
        {"received_bytes": "7"},
        {"actions": 10**18},
        {"carried_over": 2_001 * "x"},
        {"carried_over": "\ud800"},
        {"first_speaker": 30_000},
        {"configured": {"language": "de"}},
        {"configured": {"language": "de", "hotwords": 16_001 * "x", "manual": True}},
        {"owner": "somebody"},
    ],
)
def test_a_state_with_a_wrong_field_is_refused(changes):
    """By one error, that names the state."""
    with pytest.raises(InvalidValue) as refused:
        continuation.parse_state(_encoded(**changes))
    assert refused.value.param == "state"


@pytest.mark.parametrize(
    "state",
    ["", "a", "====", "ä", _base64("[]"), _base64("null"), _base64("{"), _base64(10_000 * "["), 200_000 * "A"],
)
def test_what_is_no_state_is_refused(state):
    """As the same error."""
    with pytest.raises(InvalidValue):
        continuation.parse_state(state)


def test_a_frame_has_the_state_and_what_the_client_was_shown():
    """Runs that are not the committed text are not believed: whose words these are is then unknown."""
    runs = [{"speaker": "A", "text": "one"}, {"speaker": None, "text": " two"}]
    asked = continuation.parse_frame(_frame(committed="one two", end=1.5, speakers=runs, more=1), _ID, 3)
    assert (asked.state, asked.shown) == (_STATE, ShownUtterance(4, "one two", 1.5, tuple(runs)))
    asked = continuation.parse_frame(_frame(utterance=6, committed="one", speakers=runs), _ID, 3)
    assert asked.shown.utterance == 6
    assert asked.shown.speakers == ({"speaker": None, "text": "one"},)


def test_more_words_than_an_utterance_has_are_not_compared_with_its_texts():
    """That would take time in which nobody else is served; the session goes on without them."""
    assert continuation.parse_frame(_frame(committed=600 * "ab "), _ID, 3).shown.committed
    for text in (601 * "ab ", 601 * "語"):
        assert continuation.parse_frame(_frame(committed=text, end=9.0), _ID, 3).shown == ShownUtterance()


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (_frame(committed=2_001 * "x"), "committed"),
        (_frame(committed=7), "committed"),
        (_frame(end=-1), "end"),
        (_frame(end=float("inf")), "end"),
        (_frame(end="1"), "end"),
        (_frame(speakers=[{"speaker": 1, "text": ""}]), "speakers"),
        (_frame(speakers=[{"speaker": "A"}]), "speakers"),
        (_frame(speakers="A"), "speakers"),
        (_frame(action="flush"), "action"),
        ('{"action":"continue"}', "state"),
        ('{"action":"continue","state":"x"}', "state"),
        (_frame(state=_encoded(session_id="live_ffffffff." + 22 * "x")), "state"),
        ("[]", "action"),
        ("{", None),
        ('{"action":"continue","committed":"\\ud800"}', None),
        (200_000 * " ", None),
    ],
)
def test_a_wrong_frame_is_refused_with_the_field_at_fault(text, param):
    """A state belongs to the session of the query alone."""
    with pytest.raises(InvalidInput) as refused:
        continuation.parse_frame(text, _ID, 3)
    assert refused.value.param == param


def test_numbers_and_times_of_a_message_are_those_of_the_whole_session():
    """Times move in messages with texts, with words, at the end of a turn and when words are settled; others stay."""
    offset, span = Offset(utterances=2, seconds=10.0), {"start": 0.5, "end": 1.25}
    later = {"start": 10.5, "end": 11.25}
    words = {"utterance": 1, "words": [{"word": "yes", "source": "aligned", **span}]}
    assert offset.applied({"utterance": 1, "text": "yes", **span}) == {"utterance": 3, "text": "yes", **later}
    assert offset.applied(words) == {"utterance": 3, "words": [{"word": "yes", "source": "aligned", **later}]}
    assert offset.applied({"type": "turn.likely", "utterance": 1, "end": 1.25})["end"] == 11.25
    assert offset.applied({"status": "settled", "utterance": 1, "seconds": 1.25})["seconds"] == 11.25
    assert offset.applied({"status": "pong"}) == {"status": "pong"}
