"""Decoding of files with several tracks, chained files, wrong sizes and unsupported codecs."""

from __future__ import annotations

import struct
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
import pytest
from av.stream import Disposition
from numpy.typing import NDArray

from asr_server.audio.conftest import decoded, film, is_tone, open_bytes, pcm16, read_all, tone, wav
from asr_server.audio.decode import Decoder, Progress
from asr_server.audio.decoder_wire import DecodeNote
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.conftest import raises

pytestmark = pytest.mark.asyncio(loop_scope="module")

# PyAV has no encoder for DTS and TrueHD: 0.6 s of a tone at 8 kHz and 0.2 s of silence at 48 kHz, in Matroska.
FIXTURES = Path(__file__).with_name("fixtures")


async def _heard(decoder: Decoder, file: BinaryIO) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """The samples, and what the caller should know."""
    progress = Progress()
    async with aclosing(decoder.stream(file, progress)) as blocks:
        samples = np.concatenate([block async for block in blocks])
    return samples, progress.warnings


async def test_reads_the_codecs_of_films(decoder: Decoder) -> None:
    """DTS and TrueHD are read from Matroska."""
    with (FIXTURES / "dts.mka").open("rb") as file:
        assert is_tone(await decoded(decoder, file), 0.6, 0.05)
    with (FIXTURES / "truehd.mka").open("rb") as file:
        assert len(await decoded(decoder, file)) == pytest.approx(0.2 * SAMPLE_RATE, abs=20)


def _tracks(container: str, *codecs: tuple[str, Disposition]) -> bytearray:
    """A film whose tracks have tones of 300, 600, 900 ... Hz."""
    file = open_bytes(b"")
    with av.open(file, "w", format=container) as out:
        streams = []
        for codec, disposition in codecs:
            stream = out.add_stream(codec, rate=48_000, layout="mono")
            assert isinstance(stream, av.AudioStream)
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
    with file:
        return bytearray(read_all(file))


def _pitch_hz(samples: NDArray[np.float32]) -> int:
    middle = samples[4_000:12_000]
    return round(float(np.abs(np.fft.rfft(middle)).argmax()) * 2)


PLAIN, DEFAULT, COMMENT = Disposition(0), Disposition.default, Disposition.comment


@pytest.mark.parametrize("container", ["matroska", "mp4"])
@pytest.mark.parametrize(
    ("flags", "pitch_hz"),
    [
        ((PLAIN, PLAIN), 300),
        ((PLAIN, DEFAULT), 600),
        ((DEFAULT, DEFAULT), 300),
        ((PLAIN, PLAIN, DEFAULT), 900),
        ((COMMENT, PLAIN), 600),
    ],
)
async def test_the_default_track_is_heard(
    decoder: Decoder, container: str, flags: tuple[Disposition, ...], pitch_hz: int
) -> None:
    """The default flag decides, then the order of the tracks. A track flagged as a commentary comes last."""
    if container == "mp4" and COMMENT in flags:
        pitch_hz = 300
    with open_bytes(_tracks(container, *(("aac", flag) for flag in flags))) as file:
        samples, warnings = await _heard(decoder, file)
    assert _pitch_hz(samples) == pitch_hz
    assert warnings == ()


async def test_another_track_is_heard_where_the_first_cannot_be_decoded(decoder: Decoder) -> None:
    """The answer says so. Where there is no other, the error names container and codec."""
    for codecs in ((("aac", DEFAULT), ("ac3", PLAIN)), (("aac", DEFAULT),)):
        content = _tracks("matroska", *codecs)
        at = content.index(b"\x86\x85A_AAC")
        content[at : at + 8] = b"\x86\x86A_TTA1"
        with open_bytes(bytes(content)) as file:
            if len(codecs) == 1:
                with raises("invalid_audio", match=r"file \(Matroska or WebM, sound in tta\) is not"):
                    await _heard(decoder, file)
                continue
            samples, warnings = await _heard(decoder, file)
        assert _pitch_hz(samples) == 600
        assert warnings == ("sound in tta cannot be decoded: track 2 is heard instead",)


async def test_an_error_names_a_container_that_is_not_read(decoder: Decoder) -> None:
    with (
        open_bytes(b".RMF" + bytes(1_000)) as file,
        raises("invalid_audio", match=r"The file \(RealMedia\) is"),
    ):
        await decoded(decoder, file)


async def test_names_from_a_child_are_text() -> None:
    """A file may have taken over the child that sends them."""
    progress = Progress()
    progress.take(DecodeNote(source=("\r\n<b>\xff{x}", "a\0b" + "c" * 60, 3)))
    assert progress.warnings == ("sound in ab" + "c" * 29 + " cannot be decoded: track 3 is heard instead",)
    assert progress.container == "bx"


async def test_a_late_start_in_avi(decoder: Decoder) -> None:
    """The header of a track has it."""
    with film("avi", tone(1.0, 48_000)) as file:
        content = bytearray(read_all(file))
    head = content.index(b"auds") + 20  # scale, rate, start (AVISTREAMHEADER)
    scale, rate = struct.unpack_from("<II", content, head)
    struct.pack_into("<I", content, head + 8, round(1.5 * rate / scale))
    with open_bytes(bytes(content)) as file:
        samples = await decoded(decoder, file)
    assert np.flatnonzero(np.abs(samples) > 0.1)[0] / SAMPLE_RATE == pytest.approx(1.5, abs=0.05)


WAVE = tone(4.0, SAMPLE_RATE)
PCM = pcm16(WAVE)


def _wav(pcm: bytes, **options: int) -> bytes:
    with wav(pcm, **options) as file:
        return read_all(file)


def _chunk(name: bytes, size: int) -> bytes:
    return name + struct.pack("<I", size) + bytes(size + size % 2)


HALF = len(PCM) // 2
WRONG_SIZES = {
    **{f"{size:x}": _wav(PCM, riff_bytes=size, data_bytes=size) for size in (0, 0xFFFF_FFFF, 0x7FFF_FFFF, 0xFFFF_FF00)},
    "half": _wav(PCM, data_bytes=HALF),
    "a tenth": _wav(PCM, riff_bytes=36 + HALF // 5, data_bytes=HALF // 5),
    "chunks follow": _wav(PCM) + _chunk(b"LIST", 40_000) + _chunk(b"id3 ", 999),
    "a chunk follows without padding": _wav(PCM[:-1]) + _chunk(b"LIST", 40_000),
    "joined": _wav(PCM[:HALF]) + _wav(PCM[HALF:]),
    "joined, with chunks": _wav(PCM[:HALF]) + _chunk(b"LIST", 3_000) + _wav(PCM[HALF:]) + _chunk(b"LIST", 3_000),
    "joined, sizes of a stream": b"".join(
        _wav(PCM[at : at + HALF // 4], riff_bytes=0xFFFF_FFFF, data_bytes=0xFFFF_FFFF)
        for at in range(0, 2 * HALF, HALF // 4)
    ),
    "joined, sizes too small": _wav(PCM[:HALF], data_bytes=1_000) + _wav(PCM[HALF:], data_bytes=1_000),
    "joined, two rates": _wav(PCM[:HALF]) + _wav(pcm16(tone(2.0, 44_100)), rate_hz=44_100),
    "joined, two widths": _wav(PCM[:HALF]) + _wav(pcm16(tone(2.0, SAMPLE_RATE, 2)), channels=2),
    "joined, one empty": _wav(b"") + _wav(PCM),
}


@pytest.mark.parametrize("kind", WRONG_SIZES)
async def test_a_wav_is_heard_whole(decoder: Decoder, kind: str) -> None:
    """Recorders break off before they write its size, and programs join files byte by byte."""
    with open_bytes(WRONG_SIZES[kind]) as file:
        samples = await decoded(decoder, file)
    assert is_tone(samples, 4.0), len(samples)
    assert np.abs(samples).max() < 0.45  # no header is heard
