"""Whole live sessions on two servers against a simple model, in any order of audio, actions, cuts and moves.

Promised are: no audio is lost and none is transcribed twice; a committed word is never taken back; numbers and times
only grow; every action has its answer; a final is what the engine says of its audio; the finals are those of a session
that was never interrupted, where it has not moved; and a session that is over leaves no place, no lease, no audio and
no request.
"""

import asyncio
import wave
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asr_server import demo
from asr_server.audio.vad import SpeechProbability
from asr_server.core import settings as server_settings
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE, s_to_samples
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.client import EngineClient
from asr_server.engine.fake import FakeEngine
from asr_server.engine.protocol import Utterance
from asr_server.features.handover.continuation import ShownUtterance
from asr_server.features.handover.handover import ContinuationIssued, MoveRequested
from asr_server.features.handover.session_handover_test import handover_of, moving
from asr_server.live.inbox import RefusedAction
from asr_server.live.inference import Engines
from asr_server.live.machine.events import (
    Audio,
    Checkpoint,
    Configure,
    Configured,
    Ending,
    Final,
    Flush,
    GetCheckpoint,
    Partial,
    Reset,
    ResetDone,
)
from asr_server.live.options import LiveSessionOptions
from asr_server.live.sessions import LiveSessions
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import Priority
from asr_server.schedule.quota import Quota
from asr_server.schedule.thread import EngineThread
from asr_server.text import scripts

_OWNER = "ann"
_LIMIT_S = 30.0
_SPEECH = 0.5  # the probability from which a frame begins an utterance
_ONSET_SAMPLES = s_to_samples(1.0)  # voice detection without history hears speech that late
_BORDER_SAMPLES = s_to_samples(0.2)  # before and after its speech, an utterance has some of the pauses
_PIECES = st.lists(st.sampled_from([1, 3, 640, 4_095, 30_000]), min_size=1, max_size=3)
_ANSWERS = {GetCheckpoint: Checkpoint, Reset: ResetDone, Configure: Configured}


def _recording():
    with wave.open(str(demo.sample().recording)) as recording:
        return recording.readframes(recording.getnframes())


SPEECH = _recording()


class Server:
    """One that answers by the fake engine: a number of words that follows from the length of the audio."""

    def __init__(self):
        values = server_settings.load(_env_file=None, model_id="fake", ws_utterance_max_s=5)
        self.engine = FakeEngine(plan.resolve(values, Capabilities(gpu=False, torch_cuda=False)))
        self.thread = EngineThread(self.engine, idle_timeout_s=0)
        self.client = EngineClient(self.thread)
        self.admission, self.quota = Admission(1_000.0), Quota(0, 0)
        self.live = LiveSessions(values, Engines(self.client, self.client), self.admission)

    async def answer(self, samples):
        """Return the engine's answer on this audio."""
        asked = Utterance(np.frombuffer(samples, "<i2").astype(np.float32) / 32_768)
        return (await self.client.transcribe(asked, priority=Priority.FINAL)).hypothesis.text

    async def check(self):
        """Assert that open sessions alone hold places, leases and audio."""
        count = len(self.live)
        assert (self.quota.live, self.thread._live_leases) == (count, count)
        if count == 0:
            assert (self.admission.held_s, self.live._shared.memory.held_bytes) == (0, 0)
            await until(lambda: not self.thread.snapshot().running and not sum(self.thread.snapshot().depth.values()))
            assert not self.engine._rows

    async def close(self):
        """Sessions that still wait are ended with it."""
        await self.live.drain()
        await self.check()
        self.thread.close()
        self.live._shared.detector._thread.shutdown()


async def until(condition):
    """Wait for the threads of the server."""
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110 - another thread works
            await asyncio.sleep(0.001)


@dataclass(eq=False)
class Client:
    """What a client sends and has been told, in the figures of its session; every message is held against the model."""

    server: Server
    wire: bytearray = field(default_factory=bytearray)
    actions: list = field(default_factory=list)  # in order: the position in the wire, and the event
    finals: dict = field(default_factory=dict)
    answers: list = field(default_factory=list)  # the classes of answers to actions
    committed: str = ""  # of the open utterance, with the end of the audio that it is based on
    shown: tuple = (0, 0)  # the number of that utterance and that end
    settled: tuple = (0, 0)  # what was said to be finished: a number and a position in samples
    newest: object = None  # the newest continuation
    connection: object = None
    is_asked_to_move: bool = False
    moves: int = 0
    connections: int = 0
    begins: list = field(default_factory=list)  # at which sample servers began to hear, and whether in speech

    async def connect(self, server, begin=None):
        """Open a session, or go on with it at this server; None of what had not arrived there is left out."""
        self.server, self.place = server, ExitStack()
        at = 0 if begin is None else begin.received_bytes // 2
        # A server that went on before has heard nothing of what this one hears again.
        earlier = [one for one in self.begins if one[0] < at]
        self.begins = [*earlier, (at, begin is not None and begin.in_speech)]
        identity = begin.session_id if begin is not None else ""
        place = self.place.enter_context(server.quota.taken(_OWNER, live=True, resumes=identity))
        rules = server.live.turn_config()
        number, end = self.shown
        is_open = number > self.last
        shown = ShownUtterance(number, self.committed, end / SAMPLE_RATE) if is_open else ShownUtterance()
        asked_rules = rules
        if begin is not None and (asked := begin.configured) is not None:
            rules = server.live.turn_config(manual=asked.manual, context=asked.hotwords)
        options = LiveSessionOptions(
            rules, owner=_OWNER, place=place, asked_rules=asked_rules, **moving(begin, shown, self.last)
        )
        if begin is None:
            self.take(await server.live.open(options))
            self.newest = handover_of(self.connection.session).newest
        else:
            self.take(await server.live.go_on(begin, self.last, options))
            await self.send_again()

    async def resume(self):
        """Go on with the session, which waits."""
        self.place = ExitStack()
        identity = self.session.id
        self.place.enter_context(self.server.quota.taken(_OWNER, live=True, resumes=identity))
        self.take(await self.server.live.resume(identity, self.last, _OWNER))
        assert self.session.received_bytes == len(self.wire)
        assert self.session.received_actions == len(self.actions)

    def take(self, connection):
        """The connection that has the session from now on."""
        self.connection, self.session = connection, connection.session
        self.connections += 1
        self.messages, self.is_asked_to_move = connection.messages(), False
        if connection.is_first:
            self.newest = handover_of(self.session).newest

    async def leave(self, **how):
        """The connection ends."""
        self.server.live.disconnect(self.connection, **how)
        self.place.close()
        self.connection = None

    @property
    def last(self):
        return max(self.finals, default=0)

    @property
    def heard(self):
        """The end of the audio that has finals. One that answers a flush in silence has no audio."""
        return max((end for start, end, _, _ in self.finals.values() if start < end), default=0)

    def heard_without_history(self):
        """Return for each sample whether the voice detection of the server that began last before it hears speech."""
        samples = np.frombuffer(self.wire[: len(self.wire) // 2 * 2], "<i2").astype(np.float32) / 32_768
        found = np.zeros(len(samples), bool)
        for (begin, is_in_speech), (end, _) in pairwise([*self.begins, (len(samples), False)]):
            frames = (len(samples) - begin) // FRAME_SAMPLES
            whole = samples[begin : begin + frames * FRAME_SAMPLES]
            speech = np.repeat(SpeechProbability().push(whole) >= _SPEECH, FRAME_SAMPLES)[: max(0, end - begin)]
            found[begin : begin + len(speech)] = speech
            if is_in_speech:  # the server is told so, and takes what follows for speech
                found[begin : min(end, begin + _ONSET_SAMPLES)] = True
        return found

    async def send(self, pcm):
        self.wire += pcm
        await self.connection.send(Audio(pcm))

    async def act(self, event):
        self.actions.append((len(self.wire), event))
        await self.connection.send(event)

    async def send_again(self):
        """Send what this server says that it lacks."""
        at, actions = self.session.received_bytes, self.session.received_actions
        for position, event in self.actions[actions:]:
            if position > at:
                await self.connection.send(Audio(bytes(self.wire[at:position])))
                at = position
            await self.connection.send(event)
        if at < len(self.wire):
            await self.connection.send(Audio(bytes(self.wire[at:])))

    async def answered(self):
        """Wait until everything is processed and answered."""
        await until(lambda: not self.session._inbox and not self.session.machine.busy)

    async def settle(self):
        """Read all of that too."""
        await self.answered()
        await self.read()

    async def read(self):
        """All messages that wait."""
        while self.connection.outbox.waiting_bytes:
            await self.on_message((await anext(self.messages)).message)

    async def on_message(self, message):
        begin = handover_of(self.session).begin
        match message:
            case Partial() | Final():
                number = message.utterance + begin.utterances
                start, end = (at + begin.samples for at in (message.start_samples, message.end_samples))
                assert number > max(self.last, self.settled[0])
                assert self.settled[1] <= start <= end <= len(self.wire) // 2
                assert self.heard <= start or start == end
                await self.on_text(message, number, start, end)
            case Checkpoint():
                settled = message.utterance + begin.utterances, message.end_samples + begin.samples
                assert settled >= self.settled or self.moves  # another server answers what is repeated there
                assert settled[1] <= len(self.wire) // 2
                self.settled = max(self.settled, settled)
            case ContinuationIssued(continuation=state) | MoveRequested(continuation=state):
                self.is_asked_to_move |= isinstance(message, MoveRequested)
                assert state.session_id == self.session.id
                assert (state.received_bytes, state.actions) >= (self.newest.received_bytes, self.newest.actions)
                # One that a reset discarded has a number and no final.
                discarded = sum(isinstance(event, Reset) for _, event in self.actions)
                assert state.utterances <= self.last + discarded
                self.newest = state
        if isinstance(message, Checkpoint | ResetDone | Configured):
            self.answers.append(type(message))
        if isinstance(message, ResetDone):
            self.committed, self.shown = "", (0, 0)

    async def on_text(self, message, number, start, end):
        before = self.committed if self.shown[0] == number else ""
        assert message.text.startswith(before)
        if isinstance(message, Partial):
            assert message.committed.startswith(before)
            assert self.shown <= (number, end)
            self.committed, self.shown = message.committed, (number, end)
            return
        begin = handover_of(self.session).begin.samples
        parts = [2 * (at + begin) for part in message.parts for at in (part.start_samples, part.end_samples)]
        assert parts == sorted(parts)
        heard = [await self.server.answer(self.wire[at:to]) for at, to in zip(parts[::2], parts[1::2], strict=True)]
        assert message.text == scripts.join(heard)
        self.finals[number] = start, end, message.text, message.ending


class Sessions(RuleBasedStateMachine):
    """One client and two servers, whose places are taken by fresh ones when they have ended."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.servers = [Server(), Server()]
        self.spoken = self.clean_ends = 0
        self.client = Client(self.servers[0])
        self.run(self.client.connect(self.servers[0]))

    def run(self, work):
        return self.loop.run_until_complete(work)

    def is_connected(self):
        return self.client.connection is not None

    @precondition(is_connected)
    @rule(ms=st.sampled_from([60, 400, 1_300, 2_600]), sizes=_PIECES)
    def speak(self, ms, sizes):
        """The next of the recording, in pieces cut anywhere."""
        pcm = (SPEECH * 2)[self.spoken : self.spoken + 32 * ms]
        self.spoken = (self.spoken + 32 * ms) % len(SPEECH)
        self.send(pcm, sizes)

    @precondition(is_connected)
    @rule(ms=st.sampled_from([100, 700, 3_000]), sizes=_PIECES)
    def be_silent(self, ms, sizes):
        """Short, or long enough to end an utterance."""
        self.send(bytes(32 * ms), sizes)

    @precondition(is_connected)
    @rule(is_read=st.booleans(), sizes=_PIECES)
    def say_a_sentence(self, is_read, sizes):
        """With the pause that ends it; its final may be on its way when the connection ends."""
        self.speak(1_300, sizes)
        self.be_silent(1_000, sizes)
        self.run(self.client.answered())
        if is_read:
            self.run(self.client.read())

    def send(self, pcm, sizes):
        at = 0
        for size in [*sizes, len(pcm)]:
            if pcm[at : at + size]:
                self.run(self.client.send(pcm[at : at + size]))
            at += size

    @precondition(is_connected)
    @rule(event=st.sampled_from([Flush(), Flush(), Reset(), GetCheckpoint(), RefusedAction()]))
    def act(self, event):
        """An action between the audio."""
        self.run(self.client.act(event))

    @precondition(is_connected)
    @rule(manual=st.booleans(), hotwords=st.sampled_from(["", "lamp"]))
    def configure(self, manual, hotwords):
        """Another configuration."""
        rules = self.client.server.live.turn_config(manual=manual, context=hotwords)
        self.run(self.client.act(Configure(rules)))

    @precondition(is_connected)
    @rule()
    def read(self):
        """Some of what was said may still be on its way."""
        self.run(self.client.read())

    @precondition(is_connected)
    @rule()
    def settle(self):
        """Everything is answered."""
        self.run(self.client.settle())

    @precondition(is_connected)
    @rule(clean=st.booleans())
    def leave(self, clean):
        """The connection breaks, or the client ends it in order."""
        self.clean_ends += clean
        self.run(self.client.leave(clean=clean))

    @precondition(lambda self: not self.is_connected())
    @rule()
    def resume(self):
        """The client comes back, and has lost nothing."""
        self.run(self.client.resume())

    @rule(is_told=st.booleans())
    def move(self, is_told):
        """The client goes on at the other server; the one before is told so, or keeps the session for a while."""
        if self.is_connected():
            self.run(self.client.leave(clean=False, moved=is_told))
        other = next(server for server in self.servers if server is not self.client.server)
        self.client.moves += 1
        self.run(self.client.connect(other, self.client.newest))

    @rule()
    def end_server(self):
        """The server asks the client to move, which does."""
        self.run(self.drained())

    async def drained(self):
        ending, client = self.client.server, self.client
        draining = asyncio.create_task(ending.live.drain())
        if client.connection is not None:
            while not client.is_asked_to_move:
                await until(lambda: client.connection.outbox.waiting_bytes)
                await client.read()
            await client.leave(clean=False, moved=True)
        await draining
        await ending.close()
        self.servers[self.servers.index(ending)] = Server()
        client.moves += 1
        await client.connect(self.servers[0], client.newest)

    @precondition(is_connected)
    @rule()
    def finish(self):
        """The client ends the session for good; the next one begins."""
        self.run(self.finished())
        self.clean_ends = 0
        self.client = Client(self.client.server)
        self.run(self.client.connect(self.client.server))

    async def finished(self):
        """All was said and answered, as in a session over one connection."""
        client = self.client
        await client.act(Flush())
        await client.settle()
        asked = [_ANSWERS[type(event)] for _, event in client.actions if type(event) in _ANSWERS]
        # An answer may be on its way when a connection breaks, and another server answers what is repeated there.
        assert client.answers == asked or client.connections > 1
        assert len(client.answers) <= len(asked) or client.moves
        flushes = sum(isinstance(event, Flush) for _, event in client.actions)
        endings = [ending for _, _, _, ending in client.finals.values()]
        assert flushes <= endings.count(Ending.FLUSH) <= flushes + self.clean_ends
        await client.leave(clean=True, resumable=False)
        if not self.clean_ends:
            await self.compare(client)

    async def compare(self, client):
        calm = Client(client.server)
        await calm.connect(client.server)
        calm.wire, calm.actions = client.wire, client.actions
        await calm.send_again()
        await calm.settle()
        await calm.leave(clean=True, resumable=False)
        if not client.moves:
            assert calm.finals == client.finals
            return
        # The voice detection of another server begins without history, so that its borders may lie elsewhere, and of
        # speech that is cut in the middle of a word it may hear less.
        lost = np.zeros(len(client.wire) // 2, bool)
        for start, end, _, _ in calm.finals.values():
            lost[start + _BORDER_SAMPLES : max(0, end - _BORDER_SAMPLES)] = True
        for start, end, _, _ in client.finals.values():
            lost[start:end] = False
        heard = lost & client.heard_without_history()
        assert not heard.any(), (np.flatnonzero(heard)[[0, -1]], calm.finals, client.finals)

    @invariant()
    def nothing_is_held_by_nobody(self):
        """On either server."""
        for server in self.servers:
            self.run(server.check())

    def teardown(self):
        """The session, and those that a server still keeps, leave nothing."""
        if not self.is_connected():
            self.run(self.client.resume())
        self.run(self.finished())
        for server in self.servers:
            self.run(server.close())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


TestSessions = Sessions.TestCase
# Without a search for a smaller example: each try of a session that waits for what never comes takes its time.
TestSessions.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
