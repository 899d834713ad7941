"""How long a recording may take: its limit counts from its last progress, and what is finished is not lost."""

import asyncio
from dataclasses import replace

import pytest

from asr_server.audio.decode import Decoder
from asr_server.core.conftest import raises, until
from asr_server.core.errors import DeadlineExceeded, InvalidInput
from asr_server.engine.protocol import DEFAULT_TRAITS, Finish
from asr_server.recordings.pipeline import RecordingStep, RunOptions, SegmentDone, SegmentLabelled
from asr_server.recordings.pipeline_test import SAMPLE, Made, file_of
from asr_server.recordings.requests import TranscriptionRequest

LIMIT_S = 20.0
SHORT = replace(DEFAULT_TRAITS, max_audio_s=12.0)  # so that a minute has several spans
SHOWN = RunOptions(streams=True)


@pytest.fixture
async def slow(monkeypatch):
    """A pipeline whose answers take a part of the limit each, by the clock of requests and that of the event loop."""
    made, loop = [], asyncio.get_running_loop()

    def build(share, **limits):
        def answer(samples):
            one.thread.request_clock.passed_s += share * LIMIT_S
            return Finish.END

        one = Made(answer, timeout_s=LIMIT_S, traits=SHORT, **limits)
        one.batch.free_slots = 1
        clock = one.thread.request_clock
        clock.passed_s, now_s = 0.0, clock.now_s
        clock.now_s = lambda: now_s() + clock.passed_s
        time_s = loop.time
        monkeypatch.setattr(loop, "time", lambda: time_s() + clock.passed_s)
        made.append(one)
        return one

    yield build
    for one in made:
        await one.close()


@pytest.fixture
def talk():
    with file_of(*[SAMPLE] * 17) as file:
        yield file


@pytest.mark.parametrize("options", [RunOptions(), SHOWN, RunOptions(deltas=True)])
async def test_a_recording_that_moves_on_is_not_cut(slow, talk, options):
    made = slow(0.4)  # the thread may give two answers before the event loop runs again
    transcript = await made.transcribe(talk, options=options)
    assert len(transcript.segments) > 4
    assert made.thread.request_clock.passed_s > 2 * LIMIT_S


async def test_a_recording_has_a_limit_however_it_moves_on(slow, talk):
    made = slow(0.6, longest_s=2 * LIMIT_S)
    with pytest.raises(DeadlineExceeded):
        await made.transcribe(talk, options=SHOWN)
    assert 2 <= sum(isinstance(event, SegmentDone) for event in made.events) <= 4


async def test_a_job_has_its_time_for_all_of_it(slow, talk):
    with pytest.raises(DeadlineExceeded):
        await slow(0.6).transcribe(talk, options=RunOptions(timeout_s=LIMIT_S))


class _OneSpeaker(RecordingStep):
    """Labels every segment with speaker A, after `end`."""

    def __init__(self):
        self.ended = asyncio.Event()

    async def end(self):
        self.ended.set()

    async def mapped(self, segments):
        await self.ended.wait()
        return [replace(segment, speaker="A") for segment in segments]


async def _prepare(request, options):
    return lambda signal, group: _OneSpeaker()


def _by_speakers(**options):
    return TranscriptionRequest(speakers=True), RunOptions(streams=True, steps=[_prepare], **options)


async def test_what_is_finished_gets_its_speakers_though_time_is_up(slow, talk):
    made = slow(0.6)
    with pytest.raises(DeadlineExceeded):
        await made.transcribe(talk, *_by_speakers(timeout_s=2 * LIMIT_S))
    done = [event.segment for event in made.events if isinstance(event, SegmentDone)]
    labelled = [event.segment for event in made.events if isinstance(event, SegmentLabelled)]
    assert labelled == [replace(segment, speaker="A") for segment in done if segment.text] != []
    await until(lambda: not made.batch.rows)


async def test_what_is_finished_gets_its_speakers_though_the_rest_is_damaged(slow, talk, monkeypatch):
    whole = Decoder.stream

    async def damaged(self, source, progress=None, caller=""):
        async for block in whole(self, source, progress, caller):
            yield block
            if progress.decoded_s > 30:
                raise InvalidInput("The file is damaged.", code="invalid_audio")

    monkeypatch.setattr(Decoder, "stream", damaged)
    made = slow(0.1)
    with raises("invalid_audio"):
        await made.transcribe(talk, *_by_speakers())
    assert {event.segment.speaker for event in made.events if isinstance(event, SegmentLabelled)} == {"A"}


async def test_a_recording_continues_where_an_answer_stopped(slow, talk):
    """From the last word of the earlier answer: the same segments follow, with the times of the recording."""
    first = await slow(0.0).transcribe(talk, options=SHOWN)
    stopped = first.segments[2]
    made = slow(0.0)
    rest = await made.transcribe(talk, TranscriptionRequest(start=stopped.end_ms / 1000 - 0.1), SHOWN)
    assert rest.segments == first.segments[3:]
    assert rest.duration_ms == first.duration_ms
    assert len(made.batch.seen) == len(rest.segments)
    assert [rest.coverage[0].start_ms, rest.coverage[-1].end_ms] == [stopped.end_ms - 100, rest.duration_ms]
