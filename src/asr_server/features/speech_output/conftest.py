"""What speaks, over the scripted engine."""

import asyncio
import math
import time
from types import SimpleNamespace

import pytest_asyncio
from prometheus_client import CollectorRegistry

from asr_server.core.conftest import until
from asr_server.core.settings import SpeechSettings
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.operations import SentenceMetrics
from asr_server.features.speech_output.script import SpeechEngineClient, SpeechEngines
from asr_server.features.speech_output.session import SpeechSessions
from asr_server.features.speech_output.synthesis import SpeechMetrics, SpeechProcessor
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import RequestClock
from asr_server.schedule.thread import EngineThread
from asr_server_fake.script import FakeScript, SpokenScript
from asr_server_fake.speech import FakeSpeechEngine


class HoldingEngine(FakeSpeechEngine):
    """Sentences in `held` wait. `seen`: all that came, in order; `dropped`: those that left before their end."""

    def __init__(self, script):
        super().__init__(script)
        self.held, self.seen, self.dropped, self._texts = set(), [], [], {}

    def admit(self, key, item, urgent=False):
        self._texts[key] = item.text
        self.seen.append(item.text)
        super().admit(key, item, urgent)

    def drop(self, key):
        if key in self._rows:
            self.dropped.append(self._texts[key])
        super().drop(key)

    def step(self, begin_s=None):
        held = {key: self._rows.pop(key) for key in list(self._rows) if self._texts[key] in self.held}
        yield from super().step(begin_s)
        self._rows |= held
        time.sleep(0.001)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def encoder():
    made = AudioEncoder()
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="package")
async def speech(encoder):
    """A function that builds what speaks, over an engine with these rules. All of it must be free at the end."""
    built = []

    def build(
        *rules, limit_s=10_000.0, share_s=math.inf, characters=20_000, timeout_s=60.0, clock=time.monotonic, **fields
    ):
        engine, registry = HoldingEngine(FakeScript(speech=SpokenScript(rules, **fields))), CollectorRegistry()
        clock, watch = RequestClock(clock=clock), SentenceMetrics(registry)
        thread = EngineThread(engine, idle_timeout_s=0.1, watch=watch, request_clock=clock)
        engines = SpeechEngines((SpeechEngineClient(thread, engine.traits, "fake"),))
        settings, admission = SpeechSettings(max_speech_chars=characters), Admission(limit_s, share_s=share_s)
        processor = SpeechProcessor(engines, encoder, admission, settings, timeout_s, SpeechMetrics(registry))
        made = SimpleNamespace(engine=engine, thread=thread, processor=processor, registry=registry, open=[])
        made.sessions = SpeechSessions(processor)
        built.append(made)
        return made

    yield build
    for made in built:
        for session, running in made.open:
            running.cancel()
            await made.sessions.close(session, "")
        await until(lambda made=made: is_free(made))
        await asyncio.to_thread(made.thread.close)


def is_free(made):
    found, processor = made.thread.snapshot(), made.processor
    left = found.running + sum(found.depth.values()) + processor.encoder.streams + processor.texts
    return not (left or processor.admission.held_s or processor.sentences_left)
