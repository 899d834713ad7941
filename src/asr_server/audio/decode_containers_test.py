"""Files with several tracks, wrong sizes and unsupported codecs, and files that the decoder refuses, and how soon."""

import itertools
import os
import re
import struct
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition

from asr_server.audio.conftest import (
    FILMS,
    LIMITS,
    chunk,
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
from asr_server.audio.decode import Progress
from asr_server.audio.decoder_child import Demuxer
from asr_server.audio.decoder_wire import DecodeNote
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput

pytestmark = pytest.mark.asyncio(loop_scope="package")

# PyAV has no encoder for DTS and TrueHD: 0.6 s of a tone at 8 kHz and 0.2 s of silence at 48 kHz, in Matroska.
FIXTURES = Path(__file__).with_name("fixtures")


async def test_reads_codecs_that_have_no_encoder_here(decoder):
    """DTS and TrueHD are read from Matroska, and AMR-WB: a second in frames of 20 ms."""
    with open_bytes(b"#!AMR-WB\n" + (b"\x44" + bytes(60)) * 50) as file:
        assert len(await decoded(decoder, file)) == SAMPLE_RATE
    with (FIXTURES / "dts.mka").open("rb") as file:
        assert is_tone(await decoded(decoder, file), 0.6, 0.05)
    with (FIXTURES / "truehd.mka").open("rb") as file:
        assert len(await decoded(decoder, file)) == pytest.approx(0.2 * SAMPLE_RATE, abs=20)


def _tracks(*codecs):
    """A film whose tracks have tones of 300, 600, 900 ... Hz."""
    file = open_bytes(b"")
    with av.open(file, "w", format="matroska") as out:
        streams = []
        for codec, disposition in codecs:
            stream = out.add_stream(codec, rate=48_000, layout="mono")
            stream.disposition = disposition
            streams.append(stream)
        tones = [tone(1.1, 48_000, hz=300.0 * (number + 1)) for number in range(len(streams))]
        for at in range(0, 48_000, 1_024):
            for stream, sound in zip(streams, tones, strict=True):
                piece = sound[:, at : at + 1_024]
                frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece), "fltp", "mono")
                frame.sample_rate, frame.pts = 48_000, at
                out.mux(stream.encode(frame))
        for stream in streams:
            out.mux(stream.encode(None))
    return read_all(file)


def _pitch_hz(samples):
    middle = samples[4_000:12_000]
    return round(float(np.abs(np.fft.rfft(middle)).argmax()) * 2)


PLAIN, DEFAULT, COMMENT = Disposition(0), Disposition.default, Disposition.comment


@pytest.mark.parametrize(
    ("flags", "pitch_hz"), [((PLAIN, PLAIN), 300), ((PLAIN, DEFAULT, DEFAULT), 600), ((COMMENT, PLAIN), 600)]
)
async def test_the_default_track_is_heard(decoder, flags, pitch_hz):
    """The default flag decides, then the order of the tracks. A track flagged as a commentary comes last."""
    progress = Progress()
    with open_bytes(_tracks(*(("aac", flag) for flag in flags))) as file:
        assert _pitch_hz(await decoded(decoder, file, progress)) == pitch_hz
    assert progress.warnings == ()


async def test_another_track_is_heard_where_the_first_cannot_be_decoded(decoder):
    """The answer says so. Without another track, the error names container and codec."""
    one, two = (
        re.sub(rb"(?s)\x86\x85A_AAC.", b"\x86\x86A_TTA1", _tracks(("aac", DEFAULT), *others))
        for others in ((), (("ac3", PLAIN),))
    )
    progress = Progress()
    with open_bytes(two) as file:
        assert _pitch_hz(await decoded(decoder, file, progress)) == 600
    assert progress.warnings == ("sound in tta cannot be decoded: track 2 is heard instead",)
    with open_bytes(one) as file, raises("invalid_audio", match=r"file \(Matroska or WebM, sound in tta\) is not"):
        await decoded(decoder, file)


async def test_names_from_a_child_are_text_and_lengths_numbers():
    """A file may have taken over the child that sends them."""
    progress = Progress()
    progress.take(DecodeNote(claim_s=float("nan")))
    progress.take(DecodeNote(source=("\r\n<b>\xff{x}", "a\0b" + "c" * 60, 3)))
    assert progress.warnings == ("sound in ab" + "c" * 29 + " cannot be decoded: track 3 is heard instead",)
    assert (progress.container, progress.claimed_s) == ("bx", 0)


PCM = pcm16(tone(4.0, SAMPLE_RATE))


HALF = len(PCM) // 2
UNKNOWN = {"riff_bytes": 0xFFFF_FFFF, "data_bytes": 0xFFFF_FFFF}
LIST = chunk(b"LIST", bytes(3_000))
FIRST, SECOND = (read_all(wav(half)) for half in (PCM[:HALF], PCM[HALF:]))
WRONG_SIZES = {
    "0": read_all(wav(PCM, riff_bytes=0, data_bytes=0)),
    "unknown": read_all(wav(PCM, **UNKNOWN)),
    "half": read_all(wav(PCM, data_bytes=HALF)),
    "a chunk follows without padding": read_all(wav(PCM[:-1])) + chunk(b"LIST", bytes(40_000)),
    "joined, with chunks": FIRST + LIST + SECOND + LIST,
    "joined, sizes of a stream": read_all(wav(PCM[:HALF], **UNKNOWN)) + read_all(wav(PCM[HALF:], **UNKNOWN)),
    "joined, two widths": FIRST + read_all(wav(pcm16(tone(2.0, SAMPLE_RATE, 2)), channels=2)),
    "joined, one empty": read_all(wav(b"")) + FIRST + SECOND,
}


@pytest.mark.parametrize("kind", WRONG_SIZES)
async def test_a_wav_is_heard_whole(decoder, kind):
    """Recorders break off before they write its size, and programs join files byte by byte."""
    with open_bytes(WRONG_SIZES[kind]) as file:
        samples = await decoded(decoder, file)
    assert is_tone(samples, 4.0), len(samples)
    assert np.abs(samples).max() < 0.45  # no header is heard


AT_LIMIT = int(LIMITS.max_audio_s) * SAMPLE_RATE
REFUSED = [
    (partial(open_bytes, b""), "empty_file"),
    *((partial(wav, bytes(2 * count)), "audio_too_short") for count in (0, 1_599)),
    (partial(wav, bytes(2 * AT_LIMIT + 320)), "audio_too_long"),
    # Silence of a few kilobytes, whether the container claims a duration or not.
    *(
        (partial(encode, container, codec, np.zeros((1, 60 * 48_000), np.float32), 48_000), "audio_too_long")
        for container, codec in (("flac", "flac"), ("ogg", "libopus"), ("webm", "libopus"))
    ),
    *((partial(film, container, None), "no_audio_track") for container in FILMS),
    # Absurd rates and numbers of channels.
    *(
        (partial(wav, bytes(600_000), rate_hz, channels, bits=8), "invalid_audio")
        for rate_hz, channels in ((0, 1), (100, 1), (0xFFFF_FFFF, 1), (16_000, 0xFFFF))
    ),
    # Text, playlists, noise and cut headers.
    *(
        (partial(open_bytes, content), "invalid_audio")
        for content in (
            b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
            b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
            b"ID3\x04\x00\x00\x00\x00\x00\x00" + b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
            bytes(100_000),
            np.random.default_rng(7).bytes(300_000),
            b"RIFF\x00\x00\x00\x00WAVEfmt ",
            b"\x00\x00\x00\x20ftypisom\x00\x00",
            b"\x1a\x45\xdf\xa3\x9f\x42",
            b"OggS" + np.random.default_rng(8).bytes(5000),
        )
    ),
]


@pytest.mark.parametrize(("make", "code"), REFUSED, ids=itertools.count())
async def test_what_is_no_recording_of_an_allowed_length_is_refused(decoder, make, code):
    with make() as file, raises(code) as refusal:
        await decoded(decoder, file)
    assert refusal.value.param == "file"


async def test_the_shortest_and_the_longest_recording_are_read(decoder):
    for count in (1_600, AT_LIMIT):
        with wav(bytes(2 * count)) as file:
            assert len(await decoded(decoder, file)) == count


async def test_external_data_is_not_read(decoder):
    """A MOV whose samples lie in another file of this machine gives none of them."""
    content = read_all(encode("mov", "pcm_s16be", tone(1.0, SAMPLE_RATE), SAMPLE_RATE))
    with open_bytes(content) as file:
        assert is_tone(await decoded(decoder, file), 1.0)
        outside = _with_reference(content, f"/proc/{os.getpid()}/fd/{file.fileno()}".encode())
        with open_bytes(outside) as pointing, pytest.raises(InvalidInput):
            await decoded(decoder, pointing)


def _with_reference(mov, path):
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


async def test_a_gap_is_counted_before_it_is_filled(decoder):
    """Silence that only the times of a container hold is refused without being made."""
    with film("matroska", tone(2.0, 48_000), 0.0, 2_000.0) as file:
        with raises("audio_too_long"):
            await decoded(decoder, file)
        for limit_s, is_longer in ((2_001.0, True), (2_003.0, False)):
            demuxer = Demuxer(file.fileno(), os.fstat(file.fileno()).st_size)
            assert demuxer.is_longer_than(limit_s) is is_longer
