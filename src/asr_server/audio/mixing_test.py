"""Recordings whose channels are kept apart."""

from contextlib import aclosing

import numpy as np
import pytest

from asr_server.audio.conftest import decoded, encode, is_tone, open_bytes, pcm16, read_all, tone, wav
from asr_server.audio.decode import Progress
from asr_server.audio.decoder_wire import MAX_PCM_BYTES
from asr_server.audio.resample import AudioBlock, mix
from asr_server.core.audio import SAMPLE_RATE

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def _channels(decoder, file, progress):
    async with aclosing(decoder.stream_channels(file, progress)) as blocks:
        return [block async for block in blocks]


def _tones(count, rate_hz):
    return np.concatenate([tone(3.0, rate_hz, hz=200.0 * (channel + 1)) for channel in range(count)])


@pytest.mark.parametrize(("count", "rate_hz"), [(1, 24_000), (2, 16_000), (8, 48_000)])
async def test_each_channel_is_what_it_is_alone(decoder, count, rate_hz):
    """Whatever their number and rate, in blocks that take no more memory than those of one channel."""
    wave, progress = _tones(count, rate_hz), Progress()
    with wav(pcm16(wave), rate_hz, channels=count) as file:
        blocks = await _channels(decoder, file, progress)
    assert (progress.file_channels, progress.channels) == (count, count)
    assert progress.decoded_s == pytest.approx(3.0, abs=0.001)
    assert max(block.nbytes for block in blocks) <= MAX_PCM_BYTES
    kept = np.concatenate(blocks, axis=1)
    for channel in range(count):
        with wav(pcm16(wave[channel : channel + 1]), rate_hz) as file:
            alone = await decoded(decoder, file)
        assert np.abs(kept[channel] - alone).max() < 1e-6, channel


async def test_more_than_eight_channels_are_mixed(decoder):
    """The recording is as without the wish to keep them, and the caller is told how many there were."""
    progress = Progress()
    with wav(pcm16(_tones(9, SAMPLE_RATE)), channels=9) as file:
        blocks = await _channels(decoder, file, progress)
        mixed = await decoded(decoder, file)
    assert (progress.file_channels, progress.channels) == (9, 1)
    assert np.array_equal(np.concatenate(blocks, axis=1), mixed[None])


async def test_a_recording_with_other_channels_later_keeps_its_own(decoder):
    """The first Ogg of a chain decides: later mono goes to the first of two channels, later stereo is mixed."""
    mono, stereo = (read_all(encode("ogg", "flac", tone(2.0, SAMPLE_RATE, n), SAMPLE_RATE)) for n in (1, 2))
    for chain, levels in ((stereo + mono, [[0.28, 0.28], [0.28, 0.0]]), (mono + stereo, [[0.28, 0.28]])):
        with open_bytes(chain) as file:
            kept = np.concatenate(await _channels(decoder, file, Progress()), axis=1)
        assert kept.shape[1] == pytest.approx(4 * SAMPLE_RATE, abs=10)
        halves = kept.reshape(len(kept), 2, -1)
        assert np.sqrt(np.mean(halves**2, axis=2)) == pytest.approx(np.array(levels), abs=0.01)


async def test_channels_that_cancel_each_other_leave_the_first_that_is_strong():
    """A balanced line has its voice in opposite phase; a channel with next to nothing in it does not stand for both."""
    voice = np.sin(np.arange(16_000, dtype=np.float32) / 9)
    assert np.array_equal(_mix(voice * 0, voice, -voice), voice)
    assert np.array_equal(_mix(voice, -voice), voice)
    assert np.allclose(_mix(voice, voice / 2), voice * 0.75)


def _mix(*channels, names=()):
    return mix(AudioBlock(np.stack(channels), SAMPLE_RATE, names or ("NONE",) * len(channels)))


async def test_the_voices_of_a_film_are_heard():
    """Most are in the centre. Some programs name no channels: six to eight with bass in the fourth are a film."""
    voice, nothing = tone(1.0, SAMPLE_RATE)[0], np.zeros(SAMPLE_RATE, np.float32)
    for names in (("FL", "FR", "FC", "LFE", "BL", "BR"), ()):
        for place, level in ((0, 0.35), (2, 1.0), (4, 0.15)):
            channels = [nothing, nothing, nothing, tone(1.0, SAMPLE_RATE, hz=60.0)[0], nothing, nothing]
            channels[place] = voice
            assert np.allclose(_mix(*channels, names=names), level * voice, atol=1e-6)
    assert np.array_equal(_mix(voice, voice, nothing, names=("FL", "FR", "LFE")), voice)
    assert np.array_equal(_mix(voice, nothing, nothing, names=("AMBI0", "AMBI1", "AMBI2")), voice)


@pytest.mark.parametrize(
    ("container", "codec"),
    [("ogg", "libopus"), ("ogg", "flac"), ("mp4", "aac"), ("mov", "pcm_s16le"), ("wv", "wavpack")],
)
@pytest.mark.parametrize("count", [6, 8])
async def test_the_channels_of_a_film_have_their_places(decoder, container, codec, count):
    """The centre is heard, and not the bass, in every order of the channels that a container has."""
    voice, bass = tone(1.5, 48_000), 2 * tone(1.5, 48_000, hz=60.0)
    silence = np.zeros_like(voice)
    channels = np.concatenate([silence, silence, voice, bass, *[silence] * (count - 4)])
    with encode(container, codec, channels, 48_000, b="256k") as file:
        assert is_tone(await decoded(decoder, file), 1.5, 0.05)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 32])
async def test_channels_without_names_are_averaged(decoder, count):
    """They may be microphones, and a voice is before each of them."""
    levels = np.linspace(0.2, 1.0, count, dtype=np.float32)[:, None]
    wave = tone(0.5, SAMPLE_RATE, count) * levels
    with wav(pcm16(wave), channels=count) as file:
        samples = await decoded(decoder, file)
    assert np.abs(samples - wave.mean(axis=0)).max() < 1e-4
