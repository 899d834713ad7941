"""Files that the decoder refuses, and how soon."""

from __future__ import annotations

import os
import struct

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
    read_all,
    slow_film,
    tone,
    wav,
)
from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_child import Demuxer
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.conftest import counts, raises
from asr_server.core.errors import InvalidInput

pytestmark = pytest.mark.asyncio(loop_scope="module")


NO_AUDIO = {
    "prose": b"This is not audio at all, whatever the name says. " * 50,
    "hls": b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "concat": b"ffconcat version 1.0\nfile '/etc/passwd'\nfile 'http://127.0.0.1:1/x.mp3'\n",
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "dash": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>file:///</BaseURL></MPD>',
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "id3 and a playlist": b"ID3\x04\x00\x00\x00\x00\x00\x00" + b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
    "one byte": b"R",
    "zeros": bytes(100_000),
    "noise": np.random.default_rng(7).bytes(300_000),
    "png": b"\x89PNG\r\n\x1a\n" + bytes(1000),
    "zip": b"PK\x03\x04" + bytes(1000),
    "cut wav": b"RIFF\x00\x00\x00\x00WAVEfmt ",
    "cut ogg": b"OggS\x00\x02" + bytes(10),
    "cut flac": b"fLaC\x00\x00",
    "cut mp4": b"\x00\x00\x00\x20ftypisom\x00\x00",
    "cut webm": b"\x1a\x45\xdf\xa3\x9f\x42",
    "ogg of rubbish": b"OggS" + np.random.default_rng(8).bytes(5000),
}


async def test_no_audio_is_invalid(decoder: Decoder) -> None:
    """Text, playlists, pictures, noise and cut headers are `invalid_audio` and name the file field."""
    found: dict[str, object] = {}
    for kind, content in NO_AUDIO.items():
        with open_bytes(content) as file:
            try:
                found[kind] = len(await decoded(decoder, file))
            except InvalidInput as error:
                found[kind] = (error.code, error.param)
    assert found == dict.fromkeys(NO_AUDIO, ("invalid_audio", "file"))


async def test_the_shortest_clip_lasts_a_tenth_of_a_second(decoder: Decoder) -> None:
    """A bare header and less than 0.1 s are `audio_too_short`."""
    for count in (0, 1, 160, 1_599):
        with wav(bytes(2 * count)) as file, raises("audio_too_short"):
            await decoded(decoder, file)
    with wav(bytes(3_200)) as file:
        assert len(await decoded(decoder, file)) == 1_600


async def test_video_without_sound(decoder: Decoder) -> None:
    """A film without an audio track is `no_audio_track` in every container."""
    for container in FILMS:
        with film(container, None) as file, raises("no_audio_track"):
            await decoded(decoder, file)


async def test_external_data_is_not_read(decoder: Decoder) -> None:
    """A MOV whose samples lie in another file of this machine gives none of them."""
    with encode("mov", "pcm_s16be", tone(1.0, SAMPLE_RATE), SAMPLE_RATE) as file:
        content = read_all(file)
        assert is_tone(await decoded(decoder, file), 1.0)
        outside = _with_reference(content, f"/proc/{os.getpid()}/fd/{file.fileno()}".encode())
        with open_bytes(outside) as pointing, pytest.raises(InvalidInput):
            await decoded(decoder, pointing)


def _with_reference(mov: bytes, path: bytes) -> bytes:
    """The movie with its data reference turned into a QuickTime alias of `path` (libavformat: mov_read_dref)."""
    record = bytes(10) + b"\x00" + bytes(27) + bytes(12) + b"\x01x" + bytes(62) + bytes(16)
    record += struct.pack(">HH", 1, 1) + bytes(16) + struct.pack(">HH", 2, len(path)) + path
    record += (b"" if len(path) % 2 == 0 else b"\0") + b"\xff\xff\x00\x00"
    alias = struct.pack(">I", 12 + len(record)) + b"alis" + bytes(4) + record
    at = mov.index(b"dref") + 12
    old = int.from_bytes(mov[at : at + 4], "big")
    grown = bytearray(mov[:at] + alias + mov[at + old :])
    for atom in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        size_at = mov.rindex(atom, 0, at) - 4
        size = int.from_bytes(mov[size_at : size_at + 4], "big") + len(alias) - old
        grown[size_at : size_at + 4] = size.to_bytes(4, "big")
    return bytes(grown)


async def test_absurd_rates_and_channels(decoder: Decoder) -> None:
    """Rates that no recorder has, and 65535 channels, are `invalid_audio`."""
    for rate_hz in (0, 1, 100, 2_000_000, 0xFFFF_FFFF):
        with wav(bytes(40_000), rate_hz) as file, raises("invalid_audio"):
            await decoded(decoder, file)
    with wav(bytes(600_000), channels=0xFFFF, bits=8) as file, raises("invalid_audio"):
        await decoded(decoder, file)


async def test_limit_is_exact(decoder: Decoder) -> None:
    """Audio of `max_audio_s` is taken, and 10 ms more are `audio_too_long`."""
    at_limit = int(LIMITS.max_audio_s) * SAMPLE_RATE
    with wav(bytes(2 * at_limit)) as file:
        assert len(await decoded(decoder, file)) == at_limit
    with wav(bytes(2 * at_limit + 320)) as file, raises("audio_too_long"):
        await decoded(decoder, file)


async def test_bombs_are_too_long(decoder: Decoder) -> None:
    """Hours of silence in a few kilobytes are refused, whether their container claims a duration or not."""
    silence = np.zeros((1, 60 * 48_000), np.float32)
    for container, codec in (("flac", "flac"), ("ogg", "libopus"), ("webm", "libopus")):
        options = {"frame_duration": "60"} if codec == "libopus" else {}
        with encode(container, codec, silence, 48_000, **options) as file:
            assert file.seek(0, 2) < 300_000
            with raises("audio_too_long"):
                await decoded(decoder, file)


async def test_an_index_costs_nothing(decoder: Decoder) -> None:
    """Nothing seeks, so an index is not read: to sort this one would take more CPU time than a first block may."""
    with slow_film() as file:
        assert len(await decoded(decoder, file)) == SAMPLE_RATE


async def test_a_gap_is_counted_before_it_is_filled(decoder: Decoder) -> None:
    """Silence that only the times of a container hold is refused without being made."""
    with film("matroska", tone(2.0, 48_000), 0.0, 2_000.0) as file:
        with raises("audio_too_long"):
            await decoded(decoder, file)
        demuxer = Demuxer(file.fileno(), os.fstat(file.fileno()).st_size)
        assert demuxer.is_longer_than(2_001.0)
        demuxer = Demuxer(file.fileno(), os.fstat(file.fileno()).st_size)
        assert not demuxer.is_longer_than(2_003.0)


@pytest.mark.parametrize(("container", "codec", "rate_hz", "channels"), [row[:4] for row in FORMATS])
async def test_mutations_never_break_the_server(
    decoder: Decoder, container: str, codec: str, rate_hz: int, channels: int
) -> None:
    """Files with flipped bytes decode or are the caller's fault; samples that come are finite."""
    with encode(container, codec, tone(0.5, rate_hz, channels), rate_hz) as file:
        content = read_all(file)
    rng = np.random.default_rng(1)
    for _ in range(6):
        mutated = np.frombuffer(content, np.uint8).copy()
        where = rng.integers(0, len(mutated), 8)
        mutated[where] = rng.integers(0, 256, 8)
        with open_bytes(mutated.tobytes()) as file:
            try:
                samples = await decoded(decoder, file)
            except InvalidInput:
                continue
        assert np.isfinite(samples).all()


async def test_every_file_that_fails_is_counted_by_its_code() -> None:
    """The audio of the other files is counted."""
    registry = CollectorRegistry()
    decoder = Decoder(LIMITS, registry=registry)
    try:
        for body in (b"", NO_AUDIO["prose"], NO_AUDIO["noise"]):
            with open_bytes(body) as file, pytest.raises(InvalidInput):
                await decoded(decoder, file)
        with wav(bytes(64_000)) as file:
            await decoded(decoder, file)
    finally:
        await decoder.close()
    assert counts(registry, "asr_decoder_failures_total") == {("empty_file",): 1, ("invalid_audio",): 2}
    assert registry.get_sample_value("asr_decoded_audio_seconds_total") == pytest.approx(2.0, abs=0.01)
