"""Input that is sent over breaking connections, to sessions that may be lost at any time."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.client.live_input import LiveInput

_SETTINGS = settings(max_examples=200, deadline=None, derandomize=True)
_STEPS = ["audio", "audio", "action", "send", "send", "cut", "finish", "reopen"]


class _Session:
    """A caller and a server. `given`: the caller's bytes and actions in order. `server`: those that the present session
    received, from index `begin`. `finished`: the number of items in `given` that have their final."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.input = LiveInput(1_000_000)
        self.given, self.server, self.begin, self.finished = [], [], 0, 0
        self.half = b""  # of a sample, which is sent with the rest of it, also if an action comes between them

    def audio(self):
        pcm = self.rng.randbytes(self.rng.randrange(50))
        self.input.add_audio(pcm)
        pcm = self.half + pcm
        whole = len(pcm) // 2 * 2
        self.given += pcm[:whole]
        self.half = pcm[whole:]

    def action(self):
        text = f"action {len(self.given)}"
        self.given.append(text)
        self.input.add_action("flush", text)

    def send(self):
        while (frame := self.input.next_frame()) is not None:
            self.server += frame if isinstance(frame, bytes) else [frame]

    def cut(self):
        """Break the connection. The server received only part of what was sent."""
        del self.server[self.rng.randint(max(0, self.finished - self.begin), len(self.server)) :]
        assert self.input.resume(*_counts(self.server))

    def finish(self):
        """Give some of the received audio its final. An action right after it may have its answer."""
        places = [place for place, one in enumerate(self.server) if isinstance(one, int)]
        if not places:
            return
        place = self.rng.choice(places) // 2 * 2 + 1
        if self.begin + place < self.finished or place >= len(self.server):
            return
        sizes = _counts([*self.given[: self.begin], *self.server[:place]])
        self.input.finished(sizes[0])
        self.finished = self.begin + place

    def reopen(self):
        """Begin a new session, which gets everything that is not finished."""
        assert self.input.reopen([])
        position = self.input.begin
        self.begin = self.finished = next(
            (place for place in range(len(self.given) + 1) if _counts(self.given[:place])[0] == position), 0
        )
        self.server = []


def _counts(received):
    actions = sum(isinstance(one, str) for one in received)
    return len(received) - actions, actions


@_SETTINGS
@given(st.integers(0, 2**32), st.lists(st.sampled_from(_STEPS), min_size=10, max_size=60))
def test_each_server_gets_audio_and_actions_once_and_in_order(seed, steps):
    """A resumed session gets everything after what it received. A new session gets everything without a final."""
    session = _Session(seed)
    for step in steps:
        getattr(session, step)()
        assert session.server == session.given[session.begin :][: len(session.server)]
    session.send()
    assert session.server == session.given[session.begin :]


def _sent(held):
    frames = []
    while (frame := held.next_frame()) is not None:
        frames.append(frame)
    return frames


def test_a_new_session_gets_no_action_that_was_answered():
    """An answer belongs to the oldest action of its kind. The configuration comes first."""
    held = LiveInput(1_000_000)
    held.add_audio(b"12")
    for text in ("flush 1", "flush 2"):
        held.add_action("flush", text)
    held.add_audio(b"34")
    _sent(held)
    assert held.answered("flush") == "flush 1"
    assert held.answered("reset") is None
    held.finished(2)
    assert held.reopen([("config", "config")])
    assert _sent(held) == ["config", "flush 2", b"34"]
    assert held.resume(0, 2)
    assert _sent(held) == [b"34"]


def test_what_a_reset_discarded_is_not_sent_to_a_new_session():
    """A reset also discards the half of a sample before it."""
    held = LiveInput(1_000_000)
    held.add_audio(b"123")
    held.add_action("reset", "reset")
    held.add_audio(b"45")
    _sent(held)
    held.discarded()
    assert held.reopen([])
    assert (held.begin, _sent(held)) == (2, [b"45"])


def test_nothing_is_finished_that_was_not_sent():
    """The server rounds its times, so they may lie slightly after the audio that it received."""
    held = LiveInput(1_000_000)
    held.add_audio(b"1234")
    _sent(held)
    held.add_audio(b"56")
    held.finished(6)
    assert held.reopen([])
    assert _sent(held) == [b"56"]


def test_what_was_dropped_beyond_the_limit_is_known():
    """Audio and actions: a server that needs them cannot go on."""
    held = LiveInput(100_000)
    held.add_audio(bytes(60_000))
    assert held.resume(0, 0)
    for _ in range(4):
        held.add_action("flush", "x")
        held.trim()
    assert not held.resume(0, 0)
    assert not held.resume(60_000, 0)
    assert not held.reopen([])
    assert held.next_frame() is None
    assert held.resume(60_000, 1)
