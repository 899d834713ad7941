"""Voices made of recordings, by the real decoder; people are tones."""

import asyncio
from contextlib import ExitStack
from unittest.mock import AsyncMock

import numpy as np
import pytest

from asr_server.audio.conftest import wav
from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_wire import DecodeLimits
from asr_server.core.errors import DeadlineExceeded, SpeakersUnavailable
from asr_server.features.speakers import reference_audio
from asr_server.features.speakers.diarization.conftest import ToneSpeakers, tone
from asr_server.features.speakers.enrolment import Enrolment
from asr_server.features.speakers.voices import VoiceStore

ANN, BOB = 440, 1_000
CANDIDATE = {"name": "Ann", "consent": "by letter", "owner": "ann"}


@pytest.fixture
async def decoder():
    made = Decoder(DecodeLimits(max_audio_s=600.0))
    yield made
    await made.close()


@pytest.fixture
def speakers():
    return ToneSpeakers()


@pytest.fixture
def enrolment(speakers, decoder, tmp_path):
    return Enrolment(speakers, decoder, VoiceStore(tmp_path), time_limit_s=20.0)


@pytest.fixture
def recording():
    """Makes a WAV file of samples; closed at the end."""
    with ExitStack() as files:
        yield lambda *parts: files.enter_context(wav(np.concatenate(parts).tobytes()))


async def test_a_word_of_somebody_else_is_no_second_voice(enrolment, recording):
    """And one person is not two because the diariser says so."""
    alone = await enrolment.enrol([recording(tone(ANN, 4))], **CANDIDATE)
    beside = await enrolment.enrol([recording(tone(ANN, 4), tone(BOB, 0.8))], **CANDIDATE)
    assert beside.voice_print @ alone.voice_print == pytest.approx(1, abs=1e-3)
    await enrolment.enrol([recording(tone(ANN, 3), tone(ANN + 31.25, 3))], **CANDIDATE)


async def test_one_voice_is_computed_at_a_time_and_within_the_limit(decoder, tmp_path, speakers, recording):
    """Who waits has the same limit; the place of one that is over is free."""
    computing = []

    async def hang(samples, count):
        computing.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            assert len(computing) == 1
            computing.pop()

    speakers.diarize = hang
    enrolment = Enrolment(speakers, decoder, VoiceStore(tmp_path), time_limit_s=0.2)
    outcomes = await asyncio.gather(
        *(enrolment.enrol([recording(tone(ANN, 3))], **CANDIDATE) for _ in range(3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == 3 * [DeadlineExceeded]
    assert not computing


async def test_a_lost_process_is_not_the_fault_of_the_recording(enrolment, speakers, tmp_path, recording):
    speakers.diarize = AsyncMock(side_effect=SpeakersUnavailable("The process was lost."))
    with pytest.raises(SpeakersUnavailable) as raised:
        await enrolment.enrol([recording(tone(ANN, 3))], **CANDIDATE)
    assert raised.value.param is None
    assert VoiceStore(tmp_path).voices("ann") == []


async def test_nobody_waits_for_all_recordings_of_another(enrolment, speakers, recording):
    """A second caller has a place while the first has one under way and another waiting."""
    going, go, real = asyncio.Event(), asyncio.Event(), speakers.diarize

    async def slow(samples, count=None):
        if not going.is_set():
            going.set()
            await go.wait()
        return await real(samples, count)

    speakers.diarize = slow
    ann, bob = ({"name": name, "consent": "by letter", "owner": name, "caller": name} for name in ("ann", "bob"))
    first = [asyncio.create_task(enrolment.enrol([recording(tone(ANN, 3))], **ann)) for _ in range(2)]
    await going.wait()
    async with asyncio.timeout(10):
        await enrolment.enrol([recording(tone(BOB, 3))], **bob)
    assert not any(task.done() for task in first)
    go.set()
    await asyncio.gather(*first)


async def test_a_recording_over_full_scale_keeps_its_form():
    """Samples of float files may be of any size: they are scaled down, not cut off."""

    class Loud:
        async def stream(self, source, progress, caller):
            for _ in range(2):
                progress.decoded_samples += 16_000
                yield np.linspace(-4, 2, 16_000, dtype=np.float32)

    found = await reference_audio.decoded(Loud(), None, "", (1.0, 60.0))
    assert np.allclose(found[:16_000], np.linspace(-1, 0.5, 16_000), atol=1e-6)
