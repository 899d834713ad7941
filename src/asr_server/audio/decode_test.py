"""Formats that the decoder reads, and the samples that come out."""

from __future__ import annotations

import io
import struct
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
    """The length and the pitch are right, also of a file at 16 kHz that would need no decoder, and what lies above
    8 kHz is kept."""
    pitch_hz = 10_000.0 if from_hz > 16_000 else 440.0
    wave = 0.5 * np.sin(2 * np.pi * pitch_hz * np.arange(2 * from_hz) / from_hz).astype(np.float32)
    progress = Progress(rate_hz=24_000)
    with wav(pcm16(wave[None]), from_hz) as file:
        samples = np.concatenate([block async for block in decoder.stream(file, progress)])
    assert len(samples) == 48_000
    assert (progress.decoded_s, progress.claimed_s) == (2.0, 2.0)
    assert abs(float(np.abs(np.fft.rfft(samples)).argmax()) / 2 - pitch_hz) < 1
    assert np.abs(samples[4_800:-4_800]).max() == pytest.approx(0.5, rel=0.02)


async def test_a_plain_wav_needs_no_process():
    """Its last block is known as such; a file that differs in a detail goes to a child."""
    registry = CollectorRegistry()
    decoder, wave = Decoder(LIMITS, registry=registry), tone(5.0, SAMPLE_RATE)
    try:
        with wav(pcm16(wave)) as file:
            progress = Progress()
            pieces, ends = [], []
            async for block in decoder.stream(file, progress):
                pieces.append(block)
                ends.append(progress.is_complete)
        assert ends == [False, True]
        assert list(map(len, pieces)) == [65_536, 5 * SAMPLE_RATE - 65_536]
        assert np.abs(np.concatenate(pieces) - wave[0]).max() < 1e-4
        assert progress.claimed_s == progress.decoded_s == 5.0
        assert registry.get_sample_value("asr_decoded_audio_seconds_total") == 5.0
        assert decoder.fork_server.pid is None
        assert decoder.memory.held == 0
        with wav(pcm16(tone(1.0, 8_000)), 8_000) as file:
            assert is_tone(await decoded(decoder, file), 1.0)
        assert decoder.fork_server.pid is not None
    finally:
        await decoder.close()
    with wav(pcm16(wave)) as file, pytest.raises(ShuttingDown):
        await decoded(decoder, file)


async def test_a_fragmented_mp4_claims_its_whole_length(decoder):
    """Recorders of live streams write it; its fragments tell the length together."""
    with open_bytes(b"") as file:
        with av.open(file, "w", format="mp4", options={"movflags": "frag_every_frame+empty_moov+delay_moov"}) as out:
            stream = out.add_stream("aac", rate=16_000, layout="mono")
            for at in range(0, 48_000, 1_024):
                frame = av.AudioFrame.from_ndarray(tone(0.064, 16_000), format="fltp", layout="mono")
                frame.sample_rate, frame.pts = 16_000, at
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        progress = Progress()
        async with aclosing(decoder.stream(file, progress)) as blocks:
            await anext(blocks)
            assert progress.claimed_s == pytest.approx(3.0, abs=0.1)


async def test_position_is_ignored_and_kept(decoder):
    """A file is read from its start, wherever it stands, and stays there; unflushed bytes are seen."""
    with wav(pcm16(tone(0.5, SAMPLE_RATE))) as file:
        file.seek(0, 2)
        file.write(bytes(SAMPLE_RATE))  # half a second more, in Python's buffer; the header does not know
        file.seek(4)
        file.write(struct.pack("<I", 0xFFFF_FFFF))
        file.seek(40)
        file.write(struct.pack("<I", 0xFFFF_FFFF))
        assert len(await decoded(decoder, file)) == SAMPLE_RATE
        assert file.tell() == 44


async def test_floats_that_are_no_samples(decoder):
    """NaN and infinities become silence and leave their neighbours alone. A clip may pass 1.0, which is left to its
    reader; the largest float does not overflow."""
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
    with encode("mp4", "aac", tone(6.0, 48_000), 48_000) as file:
        content = bytearray(read_all(file))
    with av.open(io.BytesIO(bytes(content))) as container:
        packets = [(p.pos, p.size, float(p.pts * p.time_base)) for p in container.demux(audio=0) if p.size]
    hit = [(pos, size) for pos, size, starts_s in packets if 1.5 <= starts_s < 3 or 4 <= starts_s < 4.5]
    for pos, size in hit:
        content[pos : pos + size] = bytes(size)
    for channels in (decoder.stream, decoder.stream_channels):
        progress = Progress()
        with open_bytes(bytes(content)) as file:
            async for _ in channels(file, progress):
                pass
        assert np.array(progress.lost_s) == pytest.approx(np.array([(1.5, 3.0), (4.0, 4.5)]), abs=0.05)
        assert progress.decoded_s == pytest.approx(6.0, abs=0.05)
    with film("mp4", tone(2.0, 48_000), 1.0, 2.0) as file:
        content = bytearray(read_all(file))
    with av.open(io.BytesIO(bytes(content))) as container:
        packets = [(p.pos, p.size, float(p.pts * p.time_base)) for p in container.demux(audio=0) if p.size]
    pos, size = next((pos, size) for pos, size, starts_s in packets if starts_s > 1.2)
    content[pos : pos + size] = bytes(size)  # one packet, which leaves no gap that is filled
    progress = Progress()
    with open_bytes(bytes(content)) as file:
        async for _ in decoder.stream(file, progress):
            pass
    assert progress.decoded_s > 4.5
    assert progress.lost_s == []


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
    """A track that begins late, or has a hole, is silent there: subtitles follow the picture. Jitter is no hole. A part
    of a longer film may begin at 5 s by its own clock: that is no silence."""
    for late_s, pause_s, begins_s in [(1.0, 2.0, 0.0), (0.1, 0.1, 0.0), (0.0, 0.0, 5.0), (1.5, 0.0, 5.0)]:
        with film(container, tone(2.0, 48_000), late_s, pause_s, begins_s) as file:
            samples = await decoded(decoder, file)
        loud_s = np.flatnonzero(np.abs(samples) > 0.1) / SAMPLE_RATE
        found = len(samples) / SAMPLE_RATE, loud_s[0], np.diff(loud_s).max()
        silent = (0.0, 0.0) if late_s == 0.1 else (late_s, pause_s)
        assert found == pytest.approx((2.0 + sum(silent), *silent), abs=0.05), (late_s, pause_s, begins_s)


async def test_a_time_that_cannot_be_is_no_gap(decoder):
    """A damaged time a day ahead does not fill a day with silence."""
    with film("matroska", tone(2.0, 48_000), 0.0, 86_400.0) as file:
        assert is_tone(await decoded(decoder, file), 2.0, 0.05)


async def test_webm_without_duration(decoder):
    """A WebM as MediaRecorder writes it, live and without a duration, is read."""
    with encode("webm", "libopus", tone(3.0, 48_000), 48_000) as file:
        content = bytearray(read_all(file))
    at = content.find(b"\x44\x89\x88")  # Duration, 8 bytes: turned into a Void element
    assert at > 0
    content[at : at + 11] = b"\xec\x89" + bytes(9)
    with open_bytes(bytes(content)) as file:
        assert is_tone(await decoded(decoder, file), 3.0, 0.03)


async def test_a_chain_is_read_to_its_end(decoder):
    """Oggs one after the other, as radio stations send them, are read, also where codec, rate or channels change."""
    links = []
    for codec, rate_hz, channels in (("libopus", 48_000, 1), ("libopus", 48_000, 2), ("flac", 44_100, 1)):
        with encode("ogg", codec, tone(2.0, rate_hz, channels), rate_hz) as file:
            links.append(read_all(file))
    mono, stereo, flac = links
    for chain in ((mono, stereo), (stereo, mono, stereo), (mono, flac, stereo)):
        with open_bytes(b"".join(chain)) as file:
            assert is_tone(await decoded(decoder, file), 2.0 * len(chain), 0.01)
    with open_bytes(mono + stereo[:20] + b"OggS\x00\x02" + bytes(20)) as file:
        assert is_tone(await decoded(decoder, file), 2.0, 0.01)


async def test_damage_keeps_the_rest(decoder):
    """A file with a hole, or cut off, gives what can be decoded, as players do."""
    with encode("mp3", "libmp3lame", tone(4.0, 44_100), 44_100) as file:
        content = bytearray(read_all(file))
    with open_bytes(bytes(content[: len(content) // 2])) as file:
        assert is_tone(await decoded(decoder, file), 2.0, 0.1)
    content[len(content) // 2 : len(content) // 2 + 2_000] = bytes(2_000)
    with open_bytes(bytes(content)) as file:
        assert 3.5 * SAMPLE_RATE < len(await decoded(decoder, file)) < 4.1 * SAMPLE_RATE
