"""Texts through the engine and the encoder: order, bounds, deadlines, cancellation, admission."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from asr_server import feature_list
from asr_server.app import machinery
from asr_server.core.audio import SPEECH_RATE
from asr_server.core.conftest import counts, raises
from asr_server.core.errors import DeadlineExceeded, Overloaded, ShuttingDown, SpeechFailed
from asr_server.core.settings import Settings, SpeechSettings
from asr_server.engine.fake_script import FakeScript, Fault, SpeechRule, SpokenScript
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.client import SpeechEngineClient
from asr_server.features.speech_output.engines.fake import FakeSpeechEngine
from asr_server.features.speech_output.engines.protocol import SpeechFinish
from asr_server.features.speech_output.events import AudioChunk, SentenceBegun
from asr_server.features.speech_output.operations import SentenceMetrics
from asr_server.features.speech_output.requests import SpeechRequest
from asr_server.features.speech_output.script import SpeechEngines, spoken_s
from asr_server.features.speech_output.synthesis import SpeechMetrics, SpeechProcessor
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import Priority, RequestClock
from asr_server.schedule.thread import EngineThread

pytestmark = pytest.mark.asyncio(loop_scope="module")

SENTENCE = "This is a sentence of the text."
TEXT = " ".join([SENTENCE] * 20)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def encoder():
    made = AudioEncoder()
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def speech(encoder):
    """A function that builds what speaks, over an engine with these rules. All of it must be free at the end."""
    built = []

    def build(*rules, limit_s=10_000.0, timeout_s=60.0, clock=time.monotonic, **fields):
        engine, registry = FakeSpeechEngine(FakeScript(speech=SpokenScript(rules, **fields))), CollectorRegistry()
        sentences = SentenceMetrics(registry)
        thread = EngineThread(engine, idle_timeout_s=0, watch=sentences, request_clock=RequestClock(clock=clock))
        engines = SpeechEngines((SpeechEngineClient(thread, engine.traits, "fake"),))
        metrics = SpeechMetrics(registry)
        processor = SpeechProcessor(engines, encoder, Admission(limit_s), SpeechSettings(), timeout_s, metrics)
        built.append((processor, thread))
        return SimpleNamespace(processor=processor, registry=registry, thread=thread)

    yield build
    for processor, thread in built:
        await until_free(processor, thread)
        await asyncio.to_thread(thread.close)


async def until(condition):
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def until_free(processor, thread):
    """Nothing is left of any text."""

    def is_free():
        found = thread.snapshot()
        left = found.running + sum(found.depth.values()) + processor.encoder.streams + processor.texts
        return not (left or processor.admission.held_s or processor.sentences_left)

    await until(is_free)


def request(text=TEXT, **fields):
    return SpeechRequest(**{"input": text, "response_format": SpeechFormat.PCM, "pause_ms": 0, **fields})


async def events_of(processor, wanted, **run):
    """All events, and what `speak` returned."""
    events = []

    async def emit(event):
        events.append(event)

    done = await processor.speak(replace(processor.prepare(wanted), **run), emit)
    return events, done


def data(events):
    return b"".join(event.data for event in events if isinstance(event, AudioChunk))


async def test_each_sentence_is_announced_before_its_audio(speech):
    """With its place in the text; `SpeechDone` is last and counts the samples exactly."""
    text = "One is here. Two is longer than one. Three."
    events, done = await events_of(speech().processor, request(text))
    begun = [event for event in events if isinstance(event, SentenceBegun)]
    assert [text[event.start : event.end] for event in begun] == [event.text for event in begun]
    assert [event.index for event in begun] == [0, 1, 2]
    heard = [data(events[: events.index(event)]) for event in begun]
    assert sorted(heard, key=len) == heard
    assert len(set(heard)) == 3
    assert events[-1] is done
    assert (done.sentences, done.characters, 2 * done.samples) == (3, len(text), len(data(events)))


async def test_the_audio_is_that_of_the_sentences_alone(speech):
    """One after the other: looking ahead changes no sample."""
    processor = speech().processor
    texts = ["One is here.", "Two is longer than one.", "Three."]
    together, _ = await events_of(processor, request(" ".join(texts)))
    alone = [data((await events_of(processor, request(text)))[0]) for text in texts]
    assert data(together) == b"".join(alone)


async def test_events_have_at_most_64_kib(speech):
    """Whatever the encoder gives at once: a slow reader holds 16 of them."""
    pause = request("One is here. Two is here.", pause_ms=10_000)
    events, done = await events_of(speech().processor, pause)
    sizes = [len(event.data) for event in events if isinstance(event, AudioChunk)]
    assert max(sizes) == 65_536
    assert sum(sizes) == 2 * done.samples


async def test_sentences_that_were_cut_short_are_counted(speech):
    """The engine stopped them at its budget; the rest of the text is spoken."""
    rule = SpeechRule(text="endless", finish=SpeechFinish.BUDGET)
    _, done = await events_of(speech(rule).processor, request("One. This is endless. Three. So endless. Five."))
    assert (done.sentences, done.cut_short) == (5, 2)


async def test_an_error_is_raised_before_the_first_event_or_after_audio(speech):
    """So the caller can still choose the status of its answer."""
    processor = speech(SpeechRule(text="BAD", fault=Fault.RAISE)).processor
    for text, heard in (("BAD. Good.", False), ("Good. BAD.", True)):
        events = []

        async def emit(event, events=events):
            events.append(event)

        with pytest.raises(SpeechFailed):
            await processor.speak(processor.prepare(request(text)), emit)
        assert bool(events) == bool(data(events)) == heard


async def test_a_reader_that_does_not_take_stops_the_engine_and_costs_no_time(speech):
    """Three sentences ahead at most. Its wait is no part of the time limit, and the others are not kept out by what is
    not begun."""
    now_s = 1_000.0
    made = speech(timeout_s=60.0, limit_s=90.0, clock=lambda: now_s)
    go, chunks = asyncio.Event(), []

    async def emit(event):
        chunks.append(event)
        await go.wait()

    work = asyncio.create_task(made.processor.speak(made.processor.prepare(request(f"{TEXT} {TEXT}")), emit))
    await until(lambda: chunks and not made.thread.snapshot().running)
    assert made.registry.get_sample_value("asr_speech_wait_seconds_count") == 3
    assert made.processor.admission.held_s < 15
    events, _ = await events_of(made.processor, request(TEXT))
    now_s += 3_600
    go.set()
    done = await work
    assert done.sentences == 40
    assert data(chunks).startswith(data(events)[: 2 * SPEECH_RATE])


@pytest.mark.parametrize("text", ["This one hangs.", "Good. This one hangs."])
async def test_the_time_limit_ends_the_text(speech, text):
    """Wherever it is; what it held is free."""
    made = speech(SpeechRule(text="hangs", fault=Fault.HANG, hang_s=1.0))
    await events_of(made.processor, request("The encoder runs."))
    with pytest.raises(DeadlineExceeded):
        await events_of(made.processor, request(text), timeout_s=0.5)
    assert counts(made.registry, "asr_speech_answers_total")["pcm", "late"] == 1
    assert made.processor.texts == made.processor.encoder.streams == 0


async def test_cancelling_frees_the_engine_at_once(speech):
    """In the middle of a long text, of which no further sentence is spoken."""
    made = speech(step_s=0.1)
    heard = asyncio.Event()

    async def emit(event):
        heard.set()

    work = asyncio.create_task(made.processor.speak(made.processor.prepare(request()), emit))
    await heard.wait()
    assert (made.processor.texts, made.processor.encoder.streams) == (1, 1)
    assert made.processor.sentences_left > 10
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await until_free(made.processor, made.thread)
    assert made.registry.get_sample_value("asr_speech_wait_seconds_count") < 10
    assert ("left",) in counts(made.registry, "asr_speech_sentences_total")
    assert counts(made.registry, "asr_speech_answers_total") == {("pcm", "left"): 1}


async def test_a_server_that_is_full_refuses(speech):
    """By seconds of speech, with the time after which to try again; a job gives way to the rest."""
    made = speech(limit_s=60.0, step_s=0.02)
    long = asyncio.create_task(events_of(made.processor, request()))
    await until(lambda: made.processor.texts)
    with pytest.raises(Overloaded) as refused:
        await events_of(made.processor, request())
    assert refused.value.retry_after_s >= 1
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert await events_of(made.processor, request("Short."))


async def test_interactive_texts_go_before_jobs(speech):
    """A job's sentences wait for those of who came later; and its first audio is no figure of anybody's wait."""
    made = speech(step_s=0.005)
    job = asyncio.create_task(events_of(made.processor, request(), priority=Priority.BULK))
    await until(lambda: made.registry.get_sample_value("asr_speech_wait_seconds_count") >= 2)
    await events_of(made.processor, request("Short."))
    assert not job.done()
    assert made.registry.get_sample_value("asr_speech_first_audio_seconds_count") == 1
    await job
    assert made.registry.get_sample_value("asr_speech_first_audio_seconds_count") == 1
    assert made.registry.get_sample_value("asr_speech_encoding_seconds_count") == 21


async def test_a_server_that_stops_takes_no_more_texts(speech):
    """Those that it has are spoken to their end."""
    made = speech(step_s=0.002)
    under_way = asyncio.create_task(events_of(made.processor, request()))
    await until(lambda: made.processor.texts)
    made.processor.is_draining = True
    with pytest.raises(ShuttingDown):
        made.processor.prepare(request())
    assert (await under_way)[1].sentences == 20


async def test_a_silent_server_says_why(encoder):
    processor = SpeechProcessor("SPEECH=off", encoder, Admission(1.0), SpeechSettings(), 1.0)
    with raises("speech_unavailable", match="SPEECH=off"):
        processor.prepare(request())


async def test_the_first_audio_of_a_text_is_that_of_its_first_sentence(speech):
    """The metric is the time at which the reader received it."""
    processor, heard_s = speech(step_s=0.01).processor, []

    async def emit(event):
        heard_s.append(time.perf_counter())

    prepared, began_s = processor.prepare(request("One is here. Two is here.")), time.perf_counter()
    done = await processor.speak(prepared, emit)
    assert 0 < done.first_audio_ms <= 1_000 * (heard_s[0] - began_s)


async def test_many_texts_at_once_are_each_as_alone(speech):
    """In all formats, with more of them than the engine has rows."""
    processor = speech().processor
    wanted = [request(f"Text number {n}. It has two.", response_format=list(SpeechFormat)[n % 6]) for n in range(24)]
    together = await asyncio.gather(*(events_of(processor, one) for one in wanted))
    for one, (events, _) in zip(wanted[:6], together, strict=False):
        assert data((await events_of(processor, one))[0]) == data(events)
    assert np.unique([len(data(events)) for events, _ in together]).size > 3


async def test_what_is_spoken_does_not_keep_others_out(speech):
    """Of a text under way, what is begun and not yet spoken counts, in seconds of its speech."""
    made, left = speech(), []
    wanted = made.processor.prepare(request(speed=2.0))

    async def emit(event):
        if isinstance(event, SentenceBegun):
            left.append(made.processor.admission.held_s)

    await made.processor.speak(wanted, emit)
    each_s = spoken_s(SENTENCE) / 2
    assert max(left) <= 3.01 * each_s  # the present sentence and two ahead of it
    assert left[-1] == pytest.approx(each_s)


async def test_a_fresh_server_takes_two_long_texts_at_once(tmp_path):
    """The first estimate for espeak on a CPU is many times faster than the one for a recogniser."""
    settings = Settings(_env_file=None, model_id="fake", speech="espeak", state_dir=str(tmp_path))
    built = machinery(settings, feature_list.resolve(settings))
    (admission,) = (
        one.admission for parts in built.features for one in parts.services if isinstance(one, SpeechProcessor)
    )
    try:
        with admission.hold() as first, admission.hold() as second:
            for ticket in (first, second):
                admission.measure(ticket, settings.max_speech_chars / 14)
    finally:
        await built.close()
