"""Texts through the engine and the encoder: order, bounds, deadlines, admission."""

import asyncio
from dataclasses import replace

import pytest

from asr_server import feature_list
from asr_server.app import machinery
from asr_server.core.audio import SPEECH_RATE
from asr_server.core.conftest import counts, until
from asr_server.core.errors import DeadlineExceeded
from asr_server.core.settings import Settings
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.requests import SpeechRequest
from asr_server.features.speech_output.script import spoken_s
from asr_server.features.speech_output.synthesis import AudioChunk, SentenceBegun, SpeechProcessor
from asr_server.schedule.job import Priority
from asr_server_fake.script import Fault, SpeechRule

pytestmark = pytest.mark.asyncio(loop_scope="package")

SENTENCE = "This is a sentence of the text."
TEXT = " ".join([SENTENCE] * 20)


def request(text=TEXT, **fields):
    return SpeechRequest(**{"input": text, "response_format": SpeechFormat.PCM, "pause_ms": 0, **fields})


async def events_of(processor, wanted, **run):
    events = []

    async def emit(event):
        events.append(event)

    await processor.speak(replace(processor.prepare(wanted), **run), emit)
    return events


def data(events):
    return b"".join(event.data for event in events if isinstance(event, AudioChunk))


async def test_events_have_at_most_64_kib(speech):
    """Whatever the encoder gives at once: a slow reader holds 16 of them."""
    events = await events_of(speech().processor, request("One is here. Two is here.", pause_ms=10_000))
    sizes = [len(event.data) for event in events if isinstance(event, AudioChunk)]
    assert max(sizes) == 65_536
    assert sum(sizes) == 2 * events[-1].samples


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
    events = await events_of(made.processor, request(TEXT))
    now_s += 3_600
    go.set()
    await work
    assert chunks[-1].sentences == 40
    assert data(chunks).startswith(data(events)[: 2 * SPEECH_RATE])


async def test_the_time_limit_ends_the_text(speech):
    made = speech(SpeechRule(text="hangs", fault=Fault.HANG, hang_s=1.0))
    await events_of(made.processor, request("The encoder runs."))
    with pytest.raises(DeadlineExceeded):
        await events_of(made.processor, request("Good. This one hangs."), timeout_s=0.5)
    assert counts(made.registry, "asr_speech_answers_total")["pcm", "late"] == 1
    assert made.processor.texts == made.processor.encoder.streams == 0


async def test_interactive_texts_go_before_jobs(speech):
    """A job's sentences wait for those of who came later; and its first audio is no figure of anybody's wait."""
    made = speech(step_s=0.005)
    job = asyncio.create_task(events_of(made.processor, request(), priority=Priority.BULK))
    await until(lambda: made.registry.get_sample_value("asr_speech_wait_seconds_count") >= 2)
    await events_of(made.processor, request("Short."))
    assert not job.done()
    await job
    assert made.registry.get_sample_value("asr_speech_first_audio_seconds_count") == 1


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
    services = [one for parts in built.features for one in parts.services]
    (admission,) = (one.admission for one in services if isinstance(one, SpeechProcessor))
    with admission.hold() as first, admission.hold() as second:
        for ticket in (first, second):
            admission.measure(ticket, settings.max_speech_chars / 14)
    await built.close()
