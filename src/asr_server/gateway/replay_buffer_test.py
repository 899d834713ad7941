"""What a live client has sent, kept to be sent again. The laws over whole sessions are in `replay_laws_test`."""

import json

from asr_server.gateway.replay_buffer import Kind, ReplayBuffer


def _act(journal, kind, **wishes):
    journal.take_act(kind, json.dumps({"action": kind.value, **wishes}))
    while journal.next_frame() is not None:
        pass
    journal.answered(kind)


def test_a_null_in_a_forgotten_configuration_changes_nothing():
    """As for the worker that it was sent to: what is null is left out, and what is left out stays."""
    journal = ReplayBuffer(16_000)
    _act(journal, Kind.CONFIG, language="de", hotwords=["lamp"])
    _act(journal, Kind.CONFIG, language=None, use_server_vad=False)
    journal.forget(0)
    wanted = {"action": "config", "language": "de", "hotwords": ["lamp"], "use_server_vad": False}
    assert json.loads(journal.restart()) == wanted


def test_actions_count_among_what_is_held():
    """They are kept as audio is: a client that sends nothing else is stopped by the same bound."""
    journal = ReplayBuffer(16_000)
    for _ in range(100):
        _act(journal, Kind.CONFIG, hotwords=["x" * 1_000])
    assert journal.held_bytes > 100 * 1_000
    journal.forget(0)
    assert journal.held_bytes == 0


def test_what_comes_after_a_reset_is_sent_after_it():
    """Also where the reset throws an odd byte away, behind which the worker was to be asked something."""
    journal = ReplayBuffer(16_000)
    journal.take_audio(b"abc", 0.0)
    journal.ask_settled()
    journal.take_act(Kind.RESET, '{"action": "reset"}')
    journal.take_audio(b"de", 0.0)
    frames = list(iter(journal.next_frame, None))
    assert frames == [b"ab", '{"action": "settled"}', '{"action": "reset"}', b"de"]
