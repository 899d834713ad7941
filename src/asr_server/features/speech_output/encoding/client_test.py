"""Files in the real process: read again by others, dropped, closed. speakers' client has lost and idle processes."""

import asyncio
import io
import os
import wave
from contextlib import AsyncExitStack

import av
import numpy as np
import pytest
import pytest_asyncio
import soundfile

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import EncoderUnavailable, Overloaded, ShuttingDown
from asr_server.features.speech_output.encoding import client as client_module
from asr_server.features.speech_output.encoding import formats
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.encoding.conftest import tone
from asr_server.features.speech_output.encoding.formats import EncodingOptions, SpeechFormat
from asr_server.processes.conftest import assert_confined
from E2Etest.drive.procfs import resident_mb

pytestmark = pytest.mark.asyncio(loop_scope="module")

PCM = EncodingOptions(SpeechFormat.PCM, trim=False)
SOUND = tone(200, 1.5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def encoder():
    encoder = AudioEncoder()
    yield encoder
    await encoder.close()


async def encoded(encoder, options, samples=SOUND):
    """A file of one sentence, and how many samples it says that it has."""
    async with encoder.stream(options) as stream:
        file = await stream.push(samples, ends_sentence=True)
        return file + await stream.finish(), stream.samples


def decoded(file):
    """Decode a file by PyAV, at its rate."""
    with av.open(io.BytesIO(file)) as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
    joined = np.concatenate(frames, axis=1)[0]
    return joined / np.float32(32768) if joined.dtype == np.int16 else joined


@pytest.mark.parametrize("speech_format", [each for each in SpeechFormat if each is not SpeechFormat.PCM])
async def test_ffmpeg_reads_every_format(encoder, speech_format):
    file, samples = await encoded(encoder, EncodingOptions(speech_format, trim=False))
    found = decoded(file)
    rate = 48_000 if speech_format is SpeechFormat.OPUS else SPEECH_RATE  # Opus is always decoded at 48 kHz
    padding = 3_000 if speech_format in {SpeechFormat.MP3, SpeechFormat.AAC, SpeechFormat.M4B} else 0
    assert samples == len(SOUND) <= len(found) * SPEECH_RATE / rate <= len(SOUND) + padding
    middle = found[rate // 4 : rate // 4 + rate]
    assert np.abs(np.fft.rfft(middle)).argmax() == 200
    assert np.std(middle) == pytest.approx(np.std(SOUND), rel=0.05)


async def test_a_wav_stream_is_read_to_its_end(encoder):
    """Python and libsndfile read it, although its length is unknown. There is no file of 4 GiB."""
    numbers = np.rint(SOUND * 32768)
    file, _ = await encoded(encoder, EncodingOptions(SpeechFormat.WAV, trim=False))
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (SPEECH_RATE, 1, 2)
        assert np.array_equal(np.frombuffer(reader.readframes(reader.getnframes()), "<i2"), numbers)
    assert np.array_equal(soundfile.read(io.BytesIO(file), dtype="int16")[0], numbers)
    with pytest.raises(ValueError, match="do not fit"):
        formats.with_length(SpeechFormat.WAV, b"", 2**31 - 20)


@pytest.mark.parametrize("speech_format", formats.STREAMED_FORMATS)
async def test_the_first_sentence_can_be_played_before_the_second_one(encoder, speech_format):
    """Most of it can: encoders and pages hold some back."""
    async with encoder.stream(EncodingOptions(speech_format)) as stream:
        first = await stream.push(SOUND, ends_sentence=True)
    samples = len(first) // 2 if speech_format is SpeechFormat.PCM else len(decoded(first))
    rate = 48_000 if speech_format is SpeechFormat.OPUS else SPEECH_RATE
    assert samples / rate > 0.8 * len(SOUND) / SPEECH_RATE


async def test_a_dropped_file_frees_its_memory(encoder):
    options = EncodingOptions(SpeechFormat.FLAC)
    await encoded(encoder, options)
    before_mib = resident_mb(encoder.pid)
    for _ in range(20):
        async with encoder.stream(options) as stream:
            await stream.push(SOUND)
    assert resident_mb(encoder.pid) < before_mib + 40


@pytest.mark.nightly
async def test_as_many_files_as_there_may_be(encoder):
    """Each file holds back all that one may: the process has memory for them."""
    options = EncodingOptions(SpeechFormat.FLAC, speed=0.25)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(encoder.stream(options)) for _ in range(100)]
        for stream in streams:
            await stream.push(SOUND)
            await stream.push(np.zeros(12 * SPEECH_RATE, np.float32))
        with pytest.raises(Overloaded):
            await encoded(encoder, PCM)
        for stream in streams:
            await stream.push(SOUND, ends_sentence=True)
            await stream.finish()
            assert stream.samples == 4 * (2 * len(SOUND) + 10 * SPEECH_RATE)


async def test_the_process_is_confined(encoder):
    await encoded(encoder, PCM)
    assert_confined(encoder.pid)
    assert os.getpriority(os.PRIO_PROCESS, encoder.pid) >= 5


async def test_samples_that_are_not_finite_fail_their_own_file(encoder):
    async with encoder.stream(PCM) as good, encoder.stream(PCM) as stream:
        with pytest.raises(EncoderUnavailable, match="this answer"):
            await stream.push(np.array([0, np.nan], np.float32))
        with pytest.raises(EncoderUnavailable):
            await stream.push(SOUND)
        assert len(await good.push(SOUND, ends_sentence=True)) == 2 * len(SOUND)


async def test_closing_ends_what_is_under_way_for_good():
    """The process may be being started. A request that comes later is told that the server stops."""
    encoder = AudioEncoder()
    under_way = [asyncio.create_task(encoded(encoder, PCM)) for _ in range(2)]
    await asyncio.sleep(0)
    await encoder.close()
    found = await asyncio.gather(*under_way, return_exceptions=True)
    assert {type(each) for each in found} <= {EncoderUnavailable, ShuttingDown}
    with pytest.raises(ShuttingDown):
        await encoded(encoder, PCM)
    assert encoder.pid is None


async def test_a_flac_file_counts_for_more(encoder, monkeypatch):
    monkeypatch.setattr(client_module, "_MAX_MIB", 20)
    flac = EncodingOptions(SpeechFormat.FLAC)
    async with encoder.stream(flac), encoder.stream(flac):
        with pytest.raises(Overloaded):
            await encoded(encoder, flac)
        await encoded(encoder, PCM)
        assert encoder.streams == 2
    assert encoder.streams == 0


async def test_a_request_has_a_second_of_sound_at_most(encoder, monkeypatch):
    """So that others need not wait long. The end of a sentence comes with its last one."""
    asked = []

    async def ask(stream, action, data=b"", **fields):
        asked.append((len(data) // 4, fields.get("ends_sentence")))
        return b""

    async with encoder.stream(PCM) as stream:
        monkeypatch.setattr(client_module.EncodedStream, "ask", ask)
        await stream.push(np.zeros(5 * SPEECH_RATE // 2, np.float32), ends_sentence=True)
    assert asked == [(SPEECH_RATE, False), (SPEECH_RATE, False), (SPEECH_RATE // 2, True)]
