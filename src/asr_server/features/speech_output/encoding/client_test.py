"""Files in the real process: read again by others, several at once, dropped, lost, idle, closed."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import wave
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import av
import numpy as np
import pytest
import pytest_asyncio
import soundfile

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import EncoderUnavailable, Overloaded, ShuttingDown
from asr_server.core.idle import end_expired
from asr_server.features.speech_output.encoding import client as client_module
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.encoding.conftest import tone
from asr_server.features.speech_output.encoding.formats import (
    STREAMED_FORMATS,
    EncodingOptions,
    SpeechFormat,
    with_length,
)
from asr_server.processes.conftest import assert_confined

pytestmark = pytest.mark.asyncio(loop_scope="module")

PCM = EncodingOptions(SpeechFormat.PCM, trim=False)
SOUND = tone(200, 1.5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def encoder() -> AsyncIterator[AudioEncoder]:
    encoder = AudioEncoder(idle_timeout_s=0.001)
    yield encoder
    await encoder.close()


async def encoded(encoder: AudioEncoder, options: EncodingOptions, samples: np.ndarray = SOUND) -> tuple[bytes, int]:
    """A file of one sentence, and how many samples it says that it has."""
    async with encoder.stream(options) as stream:
        file = await stream.push(samples, ends_sentence=True)
        return file + await stream.finish(), stream.samples


def decoded(file: bytes) -> np.ndarray:
    """Decode a file by PyAV, at its rate."""
    with av.open(io.BytesIO(file)) as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
    joined = np.concatenate(frames, axis=1)[0]
    return joined / np.float32(32768) if joined.dtype == np.int16 else joined


@pytest.mark.parametrize("speech_format", [each for each in SpeechFormat if each is not SpeechFormat.PCM])
async def test_ffmpeg_reads_every_format(encoder: AudioEncoder, speech_format: SpeechFormat) -> None:
    """FFmpeg finds the tone, as long as it was, but for the padding of MP3 and AAC."""
    file, samples = await encoded(encoder, EncodingOptions(speech_format, trim=False))
    found = decoded(file)
    rate = SPEECH_RATE
    if speech_format is SpeechFormat.OPUS:  # always decoded at 48 kHz
        rate = 48_000
        assert len(found) == 2 * samples
    padding = 3_000 if speech_format in {SpeechFormat.MP3, SpeechFormat.AAC, SpeechFormat.M4B} else 0
    assert samples == len(SOUND) <= len(found) * SPEECH_RATE // rate <= len(SOUND) + padding
    middle = found[rate // 4 : rate // 4 + rate]
    assert np.abs(np.fft.rfft(middle)).argmax() == 200
    assert np.std(middle) == pytest.approx(np.std(SOUND), rel=0.05)


async def test_a_wav_stream_is_read_to_its_end(encoder: AudioEncoder) -> None:
    """Python and libsndfile read it, although its length is unknown. There is no file of 4 GiB."""
    numbers = np.rint(SOUND * 32768)
    file, _ = await encoded(encoder, EncodingOptions(SpeechFormat.WAV, trim=False))
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (SPEECH_RATE, 1, 2)
        assert np.array_equal(np.frombuffer(reader.readframes(reader.getnframes()), "<i2"), numbers)
    assert np.array_equal(soundfile.read(io.BytesIO(file), dtype="int16")[0], numbers)
    with pytest.raises(ValueError, match="do not fit"):
        with_length(SpeechFormat.WAV, b"", 2**31 - 20)


@pytest.mark.parametrize("speech_format", STREAMED_FORMATS)
async def test_the_first_sentence_can_be_played_before_the_second_one(
    encoder: AudioEncoder, speech_format: SpeechFormat
) -> None:
    """Most of it can: encoders and pages hold some back."""
    async with encoder.stream(EncodingOptions(speech_format)) as stream:
        first = await stream.push(SOUND, ends_sentence=True)
    if speech_format is SpeechFormat.PCM:
        assert len(first) > len(SOUND)
    else:
        rate = 48_000 if speech_format is SpeechFormat.OPUS else SPEECH_RATE
        assert len(decoded(first)) / rate > 0.8 * len(SOUND) / SPEECH_RATE


@pytest.mark.slow("starts processes that encode")
async def test_many_files_beside_each_other(encoder: AudioEncoder) -> None:
    """A file gets its own bytes, in order."""
    options = [EncodingOptions(speech_format, pause_ms=20) for speech_format in SpeechFormat]

    async def in_parts(number: int) -> bytes:
        async with encoder.stream(options[number % len(options)]) as stream:
            sound = tone(200 + number, 0.3)
            parts = [await stream.push(sound[begin : begin + 2400]) for begin in range(0, len(sound), 2400)]
            return b"".join([*parts, await stream.finish()])

    async def at_once(number: int) -> bytes:
        return (await encoded(encoder, options[number % len(options)], tone(200 + number, 0.3)))[0]

    assert await asyncio.gather(*map(in_parts, range(40))) == [await at_once(number) for number in range(40)]


def resident_mib(encoder: AudioEncoder) -> float:
    pages = Path(f"/proc/{encoder.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def test_a_dropped_file_frees_its_memory(encoder: AudioEncoder) -> None:
    """A FLAC encoder has 7 MiB."""
    options = EncodingOptions(SpeechFormat.FLAC)
    await encoded(encoder, options)
    before_mib = resident_mib(encoder)
    for _ in range(20):
        async with encoder.stream(options) as stream:
            await stream.push(SOUND)
    assert resident_mib(encoder) < before_mib + 40


@pytest.mark.nightly
async def test_as_many_files_as_there_may_be(encoder: AudioEncoder) -> None:
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


async def test_the_process_is_confined(encoder: AudioEncoder) -> None:
    """And gives way to others."""
    await encoded(encoder, PCM)
    assert_confined(encoder.pid)
    assert os.getpriority(os.PRIO_PROCESS, encoder.pid or 0) >= 5


async def test_samples_that_are_not_finite_fail_their_own_file(encoder: AudioEncoder) -> None:
    """The file fails for good; the others go on."""
    async with encoder.stream(PCM) as good, encoder.stream(PCM) as stream:
        with pytest.raises(EncoderUnavailable, match="this answer"):
            await stream.push(np.array([0, np.nan], np.float32))
        with pytest.raises(EncoderUnavailable):
            await stream.push(SOUND)
        assert len(await good.push(SOUND, ends_sentence=True)) == 2 * len(SOUND)


@pytest.mark.slow("starts processes that encode")
async def test_a_lost_process_ends_its_files_and_the_next_one_has_another(encoder: AudioEncoder) -> None:
    async with encoder.stream(PCM) as stream:
        await stream.push(SOUND)
        assert encoder.pid is not None
        os.kill(encoder.pid, signal.SIGKILL)
        with pytest.raises(EncoderUnavailable):
            await stream.finish()
        file, _ = await encoded(encoder, PCM)
        assert len(file) == 2 * len(SOUND)
        with pytest.raises(EncoderUnavailable):  # it is not continued in another process
            await stream.push(SOUND)


async def test_closing_ends_what_is_under_way_for_good() -> None:
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


async def test_a_flac_file_counts_for_more(encoder: AudioEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its encoder takes several times the memory of the others."""
    monkeypatch.setattr(client_module, "_MAX_MIB", 20)
    flac = EncodingOptions(SpeechFormat.FLAC)
    async with encoder.stream(flac), encoder.stream(flac):
        with pytest.raises(Overloaded):
            await encoded(encoder, flac)
        await encoded(encoder, PCM)
        assert encoder.streams == 2
    assert encoder.streams == 0


async def test_a_request_has_a_second_of_sound_at_most(encoder: AudioEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that others need not wait long. The end of a sentence comes with its last one."""
    asked = []

    async def ask(stream: object, action: str, data: bytes = b"", **fields: object) -> bytes:
        asked.append((len(data) // 4, fields.get("ends_sentence")))
        return b""

    async with encoder.stream(PCM) as stream:
        monkeypatch.setattr(client_module.EncodedStream, "ask", ask)
        await stream.push(np.zeros(5 * SPEECH_RATE // 2, np.float32), ends_sentence=True)
    assert asked == [(SPEECH_RATE, False), (SPEECH_RATE, False), (SPEECH_RATE // 2, True)]


async def test_an_idle_process_is_ended_and_one_in_use_is_not(encoder: AudioEncoder) -> None:
    async with encoder.stream(PCM) as stream:
        await asyncio.sleep(0.01)
        await end_expired([encoder])
        await stream.push(SOUND)
    await asyncio.sleep(0.01)
    await end_expired([encoder])
    assert encoder.pid is None
