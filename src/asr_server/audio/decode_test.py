"""Formats that the decoder reads, and the samples that come out."""

import io
from contextlib import aclosing

import av
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from asr_server.audio.conftest import (
    FILMS,
    FORMATS,
    LIMITS,
    decoded,
    encode,
    film,
    is_tone,
    open_bytes,
    pcm16,
    read_all,
    tone,
    wav,
)
from asr_server.audio.decode import Decoder, Progress
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import ShuttingDown

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.slow("decodes a file of every format")
async def test_reads_every_format(decoder):
    """A tone comes back from each container and codec with its pitch, level and length."""
    for container, codec, rate_hz, channels, slack_s in FORMATS:
        with encode(container, codec, tone(1.5, rate_hz, channels), rate_hz) as file:
            assert is_tone(await decoded(decoder, file), 1.5, slack_s), (container, codec)


async def test_a_file_comes_in_blocks_with_its_length(decoder):
    """No block has more than 2 s, however long the file claims to be."""
    progress = Progress()
    with encode("ogg", "libopus", tone(9.3, 48_000), 48_000) as file:
        async with aclosing(decoder.stream(file, progress)) as blocks:
            lengths = [len(block) async for block in blocks]
    assert max(lengths) <= 2 * SAMPLE_RATE
    assert progress.decoded_s == sum(lengths) / SAMPLE_RATE == pytest.approx(9.3, abs=0.01)
    assert progress.claimed_s == pytest.approx(9.3, abs=0.1)


@pytest.mark.parametrize("from_hz", [16_000, 24_000, 44_100])
async def test_another_rate_may_be_asked_for(decoder, from_hz):
    """A file at 16 kHz, which needs no decoder otherwise, is decoded too. Sound above 8 kHz is kept."""
    pitch_hz = 10_000.0 if from_hz > 16_000 else 440.0
    wave = 0.5 * np.sin(2 * np.pi * pitch_hz * np.arange(2 * from_hz) / from_hz).astype(np.float32)
    progress = Progress(rate_hz=24_000)
    with wav(pcm16(wave[None]), from_hz) as file:
        samples = await decoded(decoder, file, progress)
    assert len(samples) == 48_000
    assert (progress.decoded_s, progress.claimed_s) == (2.0, 2.0)
    assert abs(float(np.abs(np.fft.rfft(samples)).argmax()) / 2 - pitch_hz) < 1
    assert np.abs(samples[4_800:-4_800]).max() == pytest.approx(0.5, rel=0.02)


async def test_a_plain_wav_needs_no_process():
    """The last block is marked as the last."""
    registry, progress, wave = CollectorRegistry(), Progress(), tone(5.0, SAMPLE_RATE)
    decoder = Decoder(LIMITS, registry=registry)
    with wav(pcm16(wave)) as file:
        blocks = [(block, progress.is_complete) async for block in decoder.stream(file, progress)]
        assert [(len(block), end) for block, end in blocks] == [(65_536, False), (5 * SAMPLE_RATE - 65_536, True)]
        assert np.abs(np.concatenate([block for block, _ in blocks]) - wave[0]).max() < 1e-4
        assert progress.claimed_s == progress.decoded_s == 5.0
        assert registry.get_sample_value("asr_decoded_audio_seconds_total") == 5.0
        assert decoder.fork_server.pid is None
        assert decoder.memory.held == 0
        await decoder.close()
        with pytest.raises(ShuttingDown):
            await decoded(decoder, file)


async def test_the_end_of_a_file_may_be_in_the_buffer_of_its_writer(decoder):
    with wav(bytes(SAMPLE_RATE), riff_bytes=0xFFFF_FFFF, data_bytes=0xFFFF_FFFF) as file:
        file.write(bytes(SAMPLE_RATE))
        assert len(await decoded(decoder, file)) == SAMPLE_RATE


async def test_floats_that_are_no_samples(decoder):
    """NaN and infinities become silence. A clip may pass 1.0; the largest float does not overflow."""
    wave = tone(0.5, SAMPLE_RATE)[0] * 10
    bad = wave.copy()
    bad[100:110] = [np.nan, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.0, np.nan, np.inf, np.nan]
    with wav(bad.tobytes(), bits=32, tag=3) as file:
        samples = await decoded(decoder, file)
    assert np.abs(samples[110:] - wave[110:]).max() < 1e-6
    assert samples[100:110].tolist() == [0, 0, 0, 0, 1, -1, 0, 0, 0, 0]
    with wav(np.full(8_000, 3e38, np.float32).tobytes(), 44_100, bits=32, tag=3) as file:
        assert np.isfinite(await decoded(decoder, file)).all()


async def test_damage_in_an_mp4_is_silence_of_which_the_place_is_told(decoder):
    """Its times show how long it is. Silence that the file itself has in a track is none."""
    for channels in (decoder.stream, decoder.stream_channels):
        file = encode("mp4", "aac", tone(6.0, 48_000), 48_000)
        progress = await _damaged(file, channels, lambda start_s: 1.5 <= start_s < 3 or 4 <= start_s < 4.5)
        assert np.array(progress.lost_s) == pytest.approx(np.array([(1.5, 3.0), (4.0, 4.5)]), abs=0.05)
        assert progress.decoded_s == pytest.approx(6.0, abs=0.05)
    file = film("mp4", tone(2.0, 48_000), 1.0, 2.0)  # one packet, which leaves no gap that is filled
    progress = await _damaged(file, decoder.stream, lambda start_s: 1.2 < start_s < 1.222)
    assert progress.decoded_s > 4.5
    assert progress.lost_s == []


async def _damaged(file, channels, is_hit):
    """Decode the file with zeros in the packets that start at such times."""
    content, progress = bytearray(read_all(file)), Progress()
    with av.open(io.BytesIO(bytes(content))) as container:
        for packet in container.demux(audio=0):
            if packet.size and is_hit(float(packet.pts * packet.time_base)):
                content[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    with open_bytes(bytes(content)) as damaged:
        async for _ in channels(damaged, progress):
            pass
    return progress


async def test_lost_parts_are_in_order_and_bounded():
    """A child cannot fill memory, and one that begins again tells nothing twice."""
    progress = Progress()
    for begin_s, end_s in ((1, 2), (2, 2.5), (1, 2), (2.2, 3), (5, 4), (float("nan"), 9), (6, float("inf")), (7, 8)):
        progress.note_lost(begin_s, end_s)
    assert progress.lost_s == [(1, 2.5), (7, 8)]
    for second in range(10, 30_000, 2):
        progress.note_lost(second, second + 1)
    assert len(progress.lost_s) == 10_000
    assert progress.lost_s[-1][1] == 29_999


@pytest.mark.parametrize("container", [container for container in FILMS if container != "avi"])
async def test_sound_keeps_its_place_beside_the_picture(decoder, container):
    """A late start and a hole are silent. Jitter is no hole, and a clock that begins at 5 s no late start."""
    for late_s, pause_s, begins_s in [(1.0, 2.0, 0.0), (0.1, 0.1, 0.0), (0.0, 0.0, 5.0), (1.5, 0.0, 5.0)]:
        with film(container, tone(2.0, 48_000), late_s, pause_s, begins_s) as file:
            samples = await decoded(decoder, file)
        loud_s = np.flatnonzero(np.abs(samples) > 0.1) / SAMPLE_RATE
        found = len(samples) / SAMPLE_RATE, loud_s[0], np.diff(loud_s).max()
        silent = (0.0, 0.0) if late_s == 0.1 else (late_s, pause_s)
        assert found == pytest.approx((2.0 + sum(silent), *silent), abs=0.05), (late_s, pause_s, begins_s)


async def test_a_time_that_cannot_be_is_no_gap(decoder):
    with film("matroska", tone(2.0, 48_000), 0.0, 86_400.0) as file:
        assert is_tone(await decoded(decoder, file), 2.0, 0.05)


async def test_a_chain_is_read_to_its_end(decoder):
    """Oggs one after the other, as radio stations send them, are read, also where codec, rate or channels change."""
    links = (("libopus", 48_000, 1), ("libopus", 48_000, 2), ("flac", 44_100, 1))
    mono, stereo, flac = (read_all(encode("ogg", codec, tone(2.0, hz, count), hz)) for codec, hz, count in links)
    with open_bytes(stereo + mono + flac + stereo) as file:
        assert is_tone(await decoded(decoder, file), 8.0, 0.01)
    with open_bytes(mono + stereo[:20] + b"OggS\x00\x02" + bytes(20)) as file:
        assert is_tone(await decoded(decoder, file), 2.0, 0.01)


async def test_damage_keeps_the_rest(decoder):
    """A file with a hole, or cut off, gives what can be decoded, as players do."""
    content = bytearray(read_all(encode("mp3", "libmp3lame", tone(4.0, 44_100), 44_100)))
    with open_bytes(bytes(content[: len(content) // 2])) as file:
        assert is_tone(await decoded(decoder, file), 2.0, 0.1)
    content[len(content) // 2 : len(content) // 2 + 2_000] = bytes(2_000)
    with open_bytes(bytes(content)) as file:
        assert 3.5 * SAMPLE_RATE < len(await decoded(decoder, file)) < 4.1 * SAMPLE_RATE
