"""What a live client has sent. The invariants over whole sessions are in `live_replay_test`."""

import json

import pytest

from asr_server.features.gateway.client_input import ActionKind, ClientInput
from asr_server.features.handover.continuation import Continuation


def _answered_action(sent, kind, **fields):
    sent.add_action(kind, json.dumps({"action": kind.value, **fields}))
    while sent.buffer.next_frame() is not None:
        pass
    sent.on_answer(kind)


def test_a_null_in_a_dropped_configuration_changes_nothing():
    """As for the worker that it was sent to: null is like a field that is left out, and that stays."""
    sent = ClientInput(16_000, Continuation("live_1", ""))
    _answered_action(sent, ActionKind.CONFIG, language="de", hotwords=["lamp"])
    _answered_action(sent, ActionKind.CONFIG, language=None, use_server_vad=False)
    sent.forget(0)
    expected = {"action": "config", "language": "de", "hotwords": ["lamp"], "use_server_vad": False}
    assert json.loads(sent.restart()) == expected


def test_of_the_two_names_of_endpointing_the_later_counts():
    """A fresh worker gets one of them: with both, `endpointing` would count, and that is the older one here."""
    sent = ClientInput(16_000, Continuation("live_1", ""))
    _answered_action(sent, ActionKind.CONFIG, endpointing="manual", language="de")
    _answered_action(sent, ActionKind.CONFIG, use_server_vad=True)
    sent.forget(0)
    assert json.loads(sent.restart()) == {"action": "config", "language": "de", "use_server_vad": True}


def test_actions_count_among_what_is_held():
    """They are held as audio is: a client that sends nothing else is stopped by the same bound."""
    sent = ClientInput(16_000, Continuation("live_1", ""))
    for _ in range(100):
        _answered_action(sent, ActionKind.CONFIG, hotwords=["x" * 1_000])
    assert sent.buffer.held_bytes > 100 * 1_000
    sent.forget(0)
    assert sent.buffer.held_bytes == 0


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 44_100, 48_000])
def test_a_time_is_the_position_of_a_whole_sample(rate_hz):
    """Also a time in whole milliseconds between two samples, as at 44.1 kHz; a position comes back as it was."""
    sent = ClientInput(rate_hz, Continuation("live_1", "", samples=160_001))
    for ms in range(500):
        assert sent.position(sent.seconds(0) + ms / 1000) % 2 == 0
    assert all(sent.position(sent.seconds(position)) == position for position in range(0, 5_000, 2))


def _all_sent(sent):
    while sent.next_frame() is not None:
        pass


def _with_actions():
    """Two bytes, a flush, an action that was refused, two bytes and a reset: all sent."""
    sent = ClientInput(16_000, Continuation("live_1", ""))
    sent.add_audio(b"12", 0.0)
    sent.add_action(ActionKind.FLUSH, '{"action": "flush"}')
    sent.refuse_action()
    sent.add_audio(b"34", 0.0)
    sent.add_action(ActionKind.RESET, '{"action": "reset"}')
    _all_sent(sent)
    return sent


def test_what_a_worker_has_of_the_actions_is_counted_as_the_client_does():
    """An action that was answered with an error counts there, and no worker sees it."""
    sent = _with_actions()
    assert sent.actions == 3
    assert [sent.worker_has(*has) for has in ((0, 0), (2, 1), (4, 2))] == [(0, 0), (2, 2), (4, 3)]


def test_a_worker_that_is_reached_again_counts_on_from_what_it_has():
    """The reset was lost with the connection, and is sent once more."""
    sent = _with_actions()
    sent.resume(2, 1)
    _all_sent(sent)
    assert [sent.worker_has(*has) for has in ((2, 1), (4, 2))] == [(2, 2), (4, 3)]


def test_actions_that_are_repeated_to_the_next_worker_are_known_when_it_has_all_of_them():
    """Until then others between them may be finished."""
    sent = _with_actions()
    assert sent.restart() is None
    _all_sent(sent)
    assert [sent.worker_has(*has) for has in ((2, 1), (4, 2))] == [None, (4, 3)]
