"""What a peer gets from a replay buffer over connections that break anywhere."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.live.machine.replay_buffer import ControlFrame, ReplayBuffer

_SETTINGS = settings(max_examples=200, deadline=None, derandomize=True)


class _Peer:
    """Receives frames; `count` is what it says it has received, `heard` what it has made of them.

    `heard` holds the bytes and the control frames in order. A reset discards half a sample, as a server does.
    """

    def __init__(self):
        self.count, self.heard = 0, []

    def receive(self, frame):
        if isinstance(frame, bytes):
            self.count += len(frame)
            self.heard += frame
            return
        if frame.startswith("reset"):
            _discard_half_sample(self.heard)
        self.heard.append(frame)

    @property
    def bytes_heard(self):
        return sum(isinstance(one, int) for one in self.heard)


class _Sender:
    """A buffer, its connection and all that was appended to it. `flight`: frames sent that have not arrived."""

    def __init__(self, rng, peer):
        self.rng, self.peer = rng, peer
        self.buffer = ReplayBuffer()
        self.appended, self.flight = [], []
        self._controls = 0

    def append(self):
        pcm = self.rng.randbytes(self.rng.choice([1, 2, 3, 50, 51]))
        self.appended += pcm
        self.buffer.append(pcm)

    def control(self, kind):
        if kind == "reset":
            self.buffer.align()
            _discard_half_sample(self.appended)
        self._controls += 1
        text = f"{kind} {self._controls}"
        self.appended.append(text)
        self.buffer.append_control(ControlFrame(self.buffer.end, text))

    def send(self):
        if (frame := self.buffer.next_frame()) is not None:
            self.flight.append(frame)

    def arrive(self):
        if self.flight:
            self.peer.receive(self.flight.pop(0))

    def cut(self):
        """Some of what is on its way arrives, also a part of a frame of audio; the rest is lost."""
        for _ in range(self.rng.randrange(3)):
            self.arrive()
        if self.flight and isinstance(self.flight[0], bytes):
            self.peer.receive(self.flight[0][: self.rng.randrange(len(self.flight[0]))])
        while self.flight and isinstance(self.flight[0], str):  # at the place of the cut: whether it arrived is open
            self.arrive()
        self.flight.clear()

    def finish(self):
        for _ in range(10_000):
            self.send()
            if not self.flight:
                return
            self.arrive()


def _discard_half_sample(stream):
    places = [place for place, one in enumerate(stream) if isinstance(one, int)]
    if len(places) % 2:
        del stream[places[-1]]


_STEPS = ["append", "append", "control", "reset", "send", "send", "send", "arrive", "arrive", "cut", "forget"]


@_SETTINGS
@given(st.integers(0, 2**32), st.lists(st.sampled_from(_STEPS), min_size=30, max_size=60))
def test_nothing_is_lost_or_doubled_or_out_of_order_however_often_the_connection_breaks(seed, steps):
    """Any order of sending, arriving, cuts and forgetting what has arrived: the peer has what was appended."""
    sender = _Sender(random.Random(seed), _Peer())
    for step in [*steps, "cut"]:
        if step in ("control", "reset"):
            sender.control(step)
        elif step == "cut":
            sender.cut()
            assert sender.buffer.resume(sender.peer.count) == 0
        elif step == "forget":
            sender.buffer.forget(sender.rng.randrange(sender.peer.bytes_heard + 1))
        else:
            getattr(sender, step)()
    sender.finish()
    assert sender.peer.heard == sender.appended
    assert sender.buffer.lost_bytes == 0


@_SETTINGS
@given(st.integers(0, 2**32), st.lists(st.sampled_from(_STEPS), min_size=20, max_size=40))
def test_a_fresh_peer_gets_everything_that_is_held(seed, steps):
    """From `start` on, however much of it another peer had; and a cut afterwards loses nothing."""
    sender = _Sender(random.Random(seed), _Peer())
    for step in steps:
        if step in ("control", "reset"):
            sender.control(step)
        elif step == "forget":
            sender.buffer.forget(sender.rng.randrange(sender.buffer.end + 1))
            gone = [control for control in sender.buffer.controls if control.position <= sender.buffer.start]
            sender.buffer.remove(gone)
        elif step != "cut":
            getattr(sender, step)()
    assert sender.buffer.start % 2 == 0  # a fresh peer must begin with a whole sample
    sender.flight.clear()
    sender.peer = _Peer()
    sender.buffer.restart()
    for _ in range(4):
        sender.send()
    sender.cut()
    assert sender.buffer.resume(sender.peer.count) == 0
    sender.finish()
    held = sender.buffer.end - sender.buffer.start
    assert sender.peer.bytes_heard == held
    assert sender.peer.heard == (sender.appended[-len(sender.peer.heard) :] if sender.peer.heard else [])
    assert sender.buffer.lost_bytes == 0


@pytest.mark.parametrize("received", [0, 7, 40, 100])
def test_a_peer_that_has_fewer_bytes_than_were_sent_gets_the_rest(received):
    """From exactly the byte that it lacks."""
    audio = bytes(range(100))
    buffer = ReplayBuffer()
    buffer.append(audio)
    assert buffer.next_frame() == audio
    assert buffer.resume(received) == 0
    assert (buffer.next_frame() or b"") == audio[received:]


def test_a_control_frame_behind_the_place_that_was_reached_is_sent_again_and_one_at_it_is_not():
    """Audio arrives in order: what lies behind a byte that did not arrive did not arrive either."""
    buffer = ReplayBuffer()
    for text in ("first", "second", "third"):
        buffer.append(b"12")
        buffer.append_control(ControlFrame(buffer.end, text))
    while buffer.next_frame() is not None:
        pass
    assert buffer.resume(4) == 0
    assert [buffer.next_frame() for _ in range(3)] == [b"12", "third", None]


@_SETTINGS
@given(st.integers(0, 300), st.integers(1, 200), st.integers(0, 300), st.integers(0, 50), st.integers(0, 50))
def test_lost_bytes_are_reported_to_the_byte_and_what_follows_arrives_once(sent, limit, received, more, later):
    """A peer that lacks what is no longer held gets everything from the first byte held, over further cuts too."""
    received = min(received, sent)
    audio = random.Random(1).randbytes(sent + more)
    buffer = ReplayBuffer()
    buffer.append(audio[:sent])
    while buffer.next_frame() is not None:
        pass
    buffer.keep_last(limit)
    start = max(0, sent - limit)
    assert buffer.held_bytes == sent - start
    lost = max(0, start - received)
    assert buffer.resume(received) == lost
    buffer.append(audio[sent:])
    got = buffer.next_frame() or b""
    arrived = got[: min(later, len(got))]  # the next cut
    assert buffer.resume(received + len(arrived)) == 0
    assert arrived + (buffer.next_frame() or b"") == audio[max(start, received) :]
    assert buffer.lost_bytes == lost


def test_audio_that_is_dropped_before_it_was_sent_is_lost():
    """As on a connection too slow for what is recorded."""
    buffer = ReplayBuffer()
    buffer.append(bytes(1_000))
    buffer.keep_last(400)
    assert (buffer.lost_bytes, len(buffer.next_frame())) == (600, 400)
    assert buffer.resume(100) == 0
    assert len(buffer.next_frame()) == 300


def test_control_frames_count_towards_the_bound():
    """A sender that sends nothing else holds no more than one that sends audio; the oldest are dropped in order."""
    buffer = ReplayBuffer()
    for number in range(1_000):
        buffer.append(b"12")
        buffer.append_control(ControlFrame(buffer.end, str(number)))
        buffer.next_frame(), buffer.next_frame()
        buffer.keep_last(1_000_000)
        assert buffer.held_bytes <= 1_000_000
    assert [control.text for control in buffer.sent_controls][-1] == "999"
    assert 10 < len(buffer.controls) < 100


def test_what_the_peer_has_not_been_given_is_counted():
    """In bytes, and after a restart all that is held again."""
    buffer = ReplayBuffer()
    buffer.append(bytes(1_000))
    buffer.append_control(ControlFrame(1_000, "x"))
    assert buffer.unsent_bytes > 1_000
    assert len(buffer.next_frame()) == 1_000
    assert 0 < buffer.unsent_bytes < buffer.held_bytes
    assert buffer.next_frame() == "x"
    assert buffer.unsent_bytes == 0
    buffer.restart()
    assert buffer.unsent_bytes > 1_000
