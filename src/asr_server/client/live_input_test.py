"""The input that a peer gets over connections that break anywhere, and servers of a session that moves anywhere."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.client.live_input import CarriedPlace, ControlFrame, LiveInput, ReplayBuffer

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


@pytest.mark.parametrize("received", [0, 7, 40, 100])
def test_a_peer_that_has_fewer_bytes_than_were_sent_gets_the_rest(received):
    """The rest begins with exactly the byte that it lacks."""
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
    """A connection may be too slow for what is recorded."""
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
    assert buffer.controls[-1].text == "999"
    assert 10 < len(buffer.controls) < 100


def test_what_the_peer_has_not_been_given_is_counted():
    """The count is in bytes. For a peer that has nothing it is all that is held."""
    buffer = ReplayBuffer()
    buffer.append(bytes(1_000))
    buffer.append_control(ControlFrame(1_000, "x"))
    assert buffer.unsent_bytes > 1_000
    assert len(buffer.next_frame()) == 1_000
    assert 0 < buffer.unsent_bytes < buffer.held_bytes
    assert buffer.next_frame() == "x"
    assert buffer.unsent_bytes == 0
    buffer.resume(0, 0)
    assert buffer.unsent_bytes > 1_000


_INPUT_STEPS = ["audio", "audio", "action", "send", "send", "cut", "continue", "move"]


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
        self.input.drop(CarriedPlace("", *_counts(self.server[: self.finished])))

    def move(self):
        """Move to a server that has the newest continuation alone."""
        del self.server[self.finished :]
        self.cut()


def _counts(received):
    actions = sum(isinstance(one, str) for one in received)
    return len(received) - actions, actions


@_SETTINGS
@given(st.integers(0, 2**32), st.lists(st.sampled_from(_INPUT_STEPS), min_size=10, max_size=60))
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
    held.drop(CarriedPlace("", 0, 1))
    assert held.holds(0, 1)
    assert held.next_frame() is None


def test_a_frame_that_servers_do_not_count_stays_in_its_place_until_the_audio_before_it_is_finished():
    """Whatever their counts of actions say; a server that has the audio has it too."""
    held = LiveInput(100_000, CarriedPlace("", 10, 2))
    held.add_audio(b"1234")
    held.add_uncounted("left")
    held.add_uncounted("left")
    assert [held.next_frame() for _ in range(3)] == [b"1234", "left", None]
    assert held.add_action("flush").number == 3
    held.go_on(12, 2)
    assert [held.next_frame() for _ in range(4)] == [b"34", "left", "flush", None]
    held.go_on(14, 2)
    assert [held.next_frame() for _ in range(2)] == ["flush", None]
    held.drop(CarriedPlace("", 14, 2))
    held.go_on(14, 2)
    assert (held.next_frame(), held.received_bytes, held.actions) == ("flush", 14, 3)
