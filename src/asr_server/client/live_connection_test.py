"""The audio and actions that servers get of a session that is cut and handed over anywhere."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.client.live_connection import LiveInput, ReceivedContinuation

_STEPS = ["audio", "audio", "action", "send", "send", "cut", "continue", "move"]


class _Session:
    """`given`: all that the caller has sent, bytes and actions in order. `server`: what the present server has of it.
    `finished`: so much of that is in the newest continuation."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.input = LiveInput(1_000_000)
        self.given, self.server, self.finished = [], [], 0

    def audio(self):
        pcm = self.rng.randbytes(self.rng.randrange(50))
        self.given += pcm
        self.input.add_audio(pcm)

    def action(self):
        text = f"action {len(self.given)}"
        self.given.append(text)
        self.input.add_action(text)

    def send(self):
        while (frame := self.input.next_frame()) is not None:
            self.server += frame if isinstance(frame, bytes) else [frame]

    def cut(self):
        """Some of what was sent may be lost; the same server says what it has."""
        del self.server[self.rng.randint(self.finished, len(self.server)) :]
        assert self.input.holds(*_counts(self.server))
        self.input.go_on(*_counts(self.server))

    def proceed(self):
        self.finished = self.rng.randint(self.finished, len(self.server))
        self.input.drop(ReceivedContinuation("", *_counts(self.server[: self.finished])))

    def move(self):
        """Move to a server that has the newest continuation alone."""
        del self.server[self.finished :]
        self.cut()


def _counts(received):
    actions = sum(isinstance(one, str) for one in received)
    return len(received) - actions, actions


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(_STEPS), min_size=10, max_size=60))
def test_each_server_gets_audio_and_actions_once_and_in_order(seed, steps):
    """A server gets what comes after what it had, or after the newest continuation; an action at the very place of a
    cut too."""
    session = _Session(seed)
    for step in steps:
        {"continue": session.proceed}.get(step, getattr(session, step, None))()
        assert session.server == session.given[: len(session.server)]
    session.send()
    assert session.server == session.given


def test_what_was_dropped_beyond_the_limit_is_known():
    """Audio and actions: a server that needs them cannot go on."""
    held = LiveInput(100_000)
    held.add_audio(bytes(60_000))
    assert held.holds(0, 0)
    for _ in range(4):
        held.add_action("x")
        held.drop(None)
    assert not held.holds(0, 0)
    assert not held.holds(60_000, 0)
    assert held.holds(60_000, 1)


def test_an_action_that_was_taken_back_is_not_counted():
    """The server never had it."""
    held = LiveInput(1_000)
    held.take_back(held.add_action("flush"))
    held.add_action("reset")
    held.drop(ReceivedContinuation("", 0, 1))
    assert held.holds(0, 1)
    assert held.next_frame() is None
