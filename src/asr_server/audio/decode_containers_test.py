"""Decoding of files with several tracks, chained files, wrong sizes and unsupported codecs."""

from __future__ import annotations

import base64
import lzma
import struct
from contextlib import aclosing
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

# PyAV has no encoder for these two: 0.6 s of a tone at 8 kHz and 0.2 s of silence at 48 kHz, in Matroska.
DTS = """
XQAAAAT//////////wANEluTQbEHQxlBmi13kczTLSMK5YllChquJhUw9Obr005W4TfryK3g59c08Ce+xv8LSe3eRZaO+gxQSevvxeZ9QhFpMYeGnvLgwo
ThKNRWef9T5MkteIac4rUi84SlHWY2f4nMWHKTzqAcYphc3YVVmDrwospBfRuh548GhRyGw1KHhwwraTBPf7y9/+kV7s0kA3ZyIkc8hUS1e2flPDFdXN6n
8n3j4tTpm3bKsZhyYypMv7TbJxQuQiPoq+pKGA6Cxi+5KamLz5J6IL4fQE0zNvjVvJPaEoOvPs2+B8etQcsBtuEEfDEp/cS5VMMBmlwcKuAUBVKUwni0qP
tLzYKatY96oUD8OCqCcxYD1VxYkVz17JzCW/OC2N/gks+JZ05rNvTD2tdzm1d2fRctvHO0phZy45dHmlh5Myr0Fy8mCrv2gn3to/oe2/JxnWbFLC45AdEH
e4xPHWbWGaIb+s/mIKEC0ahoe0SldSGWjd+3FyX1cP5fNrCLAg8ql6hKR/utiY/hNkIYFiXZ/hs1uR6Ka3h5HeB4h3/wwssKeB4itiCg6eTrr/owjoxwty
hSDkfCZi1EVfKjBRzCMXohlytY6BYYNVWn1nz0UcXRHWp+5O9yMpt2NUzk9pCc8Eej260ZmChZc3u8dmQ/u1IB69YGe3wbPUnTNnYfy3fWfeKSO++E2+dh
oiBx9rwt1I1gVx/+7B+aQtfI0FWjTJPc+SRXNS6Hm7ualY9ExGvZmtCmio8tVneIRcbQEQS2F9yp5SFDfE1LEq5MXyuVVAUsxW7EuVirOpsvwyhDhd5Twg
lcHtYpSW1R61+00uZgFmwmTYz35Q7nDCjAXmYdVsfuQZ01OyMfhpfwKdGtbQCgcQpdhuxF3Py5Pw3cA0uilSgmeaqjny7WqCHHf5z3xpIBGzoXmjxNq0cQ
0grYWxsCChwPnByyhlsaSq5sqrt/Gu9/xXlcBBm8L11CPKVknIK67pLMRxBlI0AUa6uEh6x+p8yszaU1rMRihlvPTINwK1TnYTgoy/67fQXoW0kiO1W9Hp
pvF4zB9yrh7O5F5jQsx+2F0Qb/swC+Ty9fofqfVSx8YoaW1FWhhLcY7uAomfaQ11b1lWg77J+Uw1I5aGrIRZDa7OzM4EVvDU17Fn6WeOy5tq2ZuUEqFu9/
G67paf7jGY2xnJJZ552AN+gtO5ajPJ3PPj9LKhZVQiPtzpsuHpBmZ6mfsfsl2gAVOO52x9uolxyA0M1xVygkbYwRgfJU1iUkm4wiA9gRFuJxeI1kMpSmaD
oHnq/gb14+1jp7Q1BiWTNONqC7De7DBCsa9uOd3OmEitT21AQLW6foTbs32lNQx4JppMxWsXA6summPp9rhlmxYNa3Hs7e7blJwi/AfiOBWA1roPodEc3z
LaCJIXid/NmoYBDflp7ggwPN77RHGTMBYmqa83SzrbiicqUzSCJebqtOE/fAl/Bef36p8cfkyn3YD5M4Cg6ELGkIElGBdk/55CBHR7oEa3wG6pS/JyQbVl
jk7PodZgXf5vGCKuPhZe+MZLU4CU8pWK8vSvU7JYcUQs5uQCEZPzJuJSHO4KSHVkJYmw47nAC8ZxXaDneLpPjEzbQwp8vPcnxeeiQxtD91xgiSd11V/sz6
DXAUXSAEbzJxAxyS5QXSqXCS2JvqVGkMNDXkWItccDTBsn1QB9P2e1T92dC0xMWdPhnS6StHLePwTEgrvJqSCoUWuggt0LDQpW3dLS/ipfPISf5U7Scxjg
mkYEXTra6tFjYt+M2pWE0EiqiyNPnbCsUUGlgnRS5ITQauBzBbrVFFI9qXHXG8AXIVJjX5W//5x/Wznd3FYXgbSoPkdyQJuMRh/TuBYb9Bs2yjs84LFdiZ
0LrTmAsg+LGUWR2irDPl0ohK8ZEZFlZBc+e1K4ruZntYBW+1SbYeUzsiSwUUXLZeA5vyi7HgiKacMyn04q1hhwUDR3+clObXOIEceeLMtXN7EmBdLMD/yw
K16B5RyLzP3Nz9OIRQwQFuzfLxEzl3mzHzzaAL9iZGw9RvyKttLcw2yfdXpWSNcK9QjwBrGb1+CLniid1Bi5+zGXYGfbJyI99wDZZzl4jm5IvU5+YXa7PO
e7z1eCVxqEXW7BJ+ZfR35iIQLIwpnpyR7/8+iFYOTFvmNM0qbxd9fm9z78+G5QS/PrR3Wemh1C3vlVqLMtbjKMdM3VqOmyA7rZUJhsVSTEUkJpQRQ0lD2S
BPLG10r4bRUIQu1aRfSTkaerLBOOFxK9NxWbtF4Up0/LSpYPDL/cJJZfDZq0gXffXDyOgLS6UjionQ32qDXSygxBE3j67lnF2O73RrRavJFKUQBe+JSK9F
OFO2CP0+YDMm+7X1VLH5yY9mtV2X33t5+upRf/OI0BdhqB7acqJzsxBdZ7uIIkyUGPeQQLsb00C74/au1L6LA+Q5nGvHGbF0hp5p5Nk52yg0WM+qzzAMTW
oXm9zPyjNBwcm2b6Oxve2o8x0Kobo6+8Kk+pMWcWXPcgf1KckRLX4Y8NTjp3YXuDTA/jiTjieqAk47Vb9xbjtcuPx9/mJRTjokoND/WyHaLy0D0vqgb9HX
ohkLnk1/bcnDOG5E10kX78p+Uim/8kb0oyGKcyzVpV+UALBDHLX/OTs26b0CE0Q2ote8h1VTDqDlFZ3YCvS8VrrEyfNiuQlepTWxP5vrJe/hmTomGgr2nU
mwMFc4v2+/fvfwuyCnVv62A57Cn0SSw6H7wSnjue+SnKLP3L9/8n5aLXR57swMHRyAzrHX1ZCui0iV+VrcsZ8htf0Zf/v7knGPsyoxnuYO/RFmwufXuExW
2KgwVTjQ/ute8A3peZDIVxmFVKnxbN994G0JcWb945rkq6x/9VQRHLRskJig+gZqOKRPupjd5fIdyslQvQnKHG3Wh+d6BAFq7aZsUaCVmU7YA0gPUT3uD1
wzpeeKtaUK4L1okDr09Y5iVKHmH8dViVMRVQ0AERws2g5ZeLZo+G4xul+AnYQZshoA11jz1wUOplnfM14L5Eu8Rif2PPVj6nGUMLC1zh2zhB4pck1yRoQF
6Bikvh5EegiDZkL2K+5AwwL+sCl20qZNY39m6JgKQTfawj3BENkd/2oKo70evEfEvv/dPTDg
"""
TRUEHD = """
XQAAAAT//////////wANEluTQbEHQxlBmi13kczTLSMK5YllChquJhUw9Obr005W4TfryK3g59c08CfF0fJD6wlz+Zx3RNUrN9eCGXMKIF9yMq10q5JC+f
MSCb+b+bMupODP+nQpFqR/LaDyiKto0CyNFe2OQlQeEK1m5Tyvw7kYUNl4WCSuPAfgU25j83V/BLkrTFxP7RL4kfw2sCkeIJW0Ga8WCzAIeeOpXzdR/U3n
JeEZ2NhdjHVDjoMvEaXYHNIPlGxVnXtVynMexGZPE7VL/kjpKxK5//2t8gYq3655F07MSlr3REt+XaZoebqJXsC0ejTowkVTx6bep5U4qhosE7mmsRY51u
/G3YNpQft4RV7ybZrg4iA4D5r0f1xKh7Y6EGvmTKF1lW1fBd9DsH02O+tjUHK+raphazt4hO/NfNyvVKawUYEszlZUjrRfAGsi+femlhKve/xkP5xlSW7q
V/ulnG130ipuHTrVdxZ3JMlSJGAb+o0/XljxO07aWzhfEUZPuSTQ6yFvyA2huttPyPrmesiCz0Rj48oY+RCZ9bOUF30WRoUsJ6J62ouPS4eRoDeJTLcge2
ZNddfz7iE5pH5VS4dtwHQKUyoMHIbuoaKUAaZWA9Sf8jWMopkv7Gu6wIuQrrYUSb6T9SWQnAQpJYgpZF5izLCvmMdjmgJzNEEvMdBIls/XcQE+1C7/NEcr
MKVwdhzpDvgwSthDsKICs+IllaJGfShesYcelxU8lizMInsklWEEMqcK6mU1rrgRUricC7rSp/MPXXGOBpq6tozw0k1PXeAh8zPsm2jwcuSD73WZOO+xhH
F8QHOT7pfrbcZPRDAlHAt1ECTUe5zoBQBPKaIG9H/a3MriuJN1R+igrU/Sr/yDhYCUmQJHuP/zZoEz8dxTNV1iaLEl+r49D0cSS0GpCqoWmaeN9jS3oF9U
s8EcSfqUTdsldq9p4kAbdrwCgYQiU3g5WEPxmevL2JYXcZm00d+79WemNLkviWQip0F9mfmhwItZLeukypMUc8GZEx4NEdAzGxem5n3JHhJtmjbvxB05nx
2r56t6MHSgVBpsPr75PjSTQSVCgpm8SWNOJGNtfqJdRQo/S0uDvYoca2PN+XzyQJuuWDIbQ0jESDpVTCk8Octe6duAyL/43Iil4qyUC+KvOomNd0sT97Ut
pV8+pq6jxNi7qBVWw0lLW8OB11ldYqBBMEDsppjHyjKstRQzOREExBWlC9DS57cCE6OFcX/u6qhvSCZyicCPDEoddCk2NgiTWZAMKY+XetDZDRBpFGhGur
T5sy50P1Wr9/MCEJ5G2BLSbt9d3XLyaL8gpfCVJvTs6zNdvfj5o9famdAWCAnPB30BQoS0+uC92pjh7T/vYfsdK2quWjmLLhzaytyAiUU/RIWQ6IhoQHe8
qLPs06t3mOb2J9XwmVw7E1bvPCdwoXQOp/oFeEmcAbMjENjWIs4uX0rv7jJNTutRiIeltiY29QagLAlvhbcT8gqm4+UbC81Ct2c7f1HZHYWhIM5ruuzYa9
6WUNhBvnqh44qkEiEnF3aXDfB8UzJ8oOpxbNRoIcQ/PEkkQEWz1HQ9Wtpr3RBKDnCfk8iwgFaUbr9GdRGcozT8qybnjl1Md4qQCS1Gg2vuGcZMQZcTpesD
vBNmC9KskyVoc6/2Xt85vCkb7BLvgbEXbI8B9p1QEHCl0a8ZgT2FIXm/z57IkSOU72FSZvffpxx6F0jajzxFe00pIx3h1RadcUoXbLMZtvlujvHIY4sPGq
MPPMq7+CZeZNsWZMnbP5ZyZxJWWmmgIG3v79E38iNb7Mwzs7/QsQIZTdJ/zR6ahF/k/7IjQndEXn8P1pmX2sc52loT0Ave1T5Ly6HgppGXHx6QMzNKkRJM
tz+sstr4vjJ99FP+sVVQf7m8EY4qakVLf3762bl3x8/62VVZOnTbd//fMhGe
"""


def _unpacked(text: str) -> bytes:
    return lzma.decompress(base64.b64decode(text))


async def _heard(decoder: Decoder, file: BinaryIO) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """The samples, and what the caller should know."""
    progress = Progress()
    async with aclosing(decoder.stream(file, progress)) as blocks:
        samples = np.concatenate([block async for block in blocks])
    return samples, progress.warnings


async def test_reads_the_codecs_of_films(decoder: Decoder) -> None:
    """DTS and TrueHD are read from Matroska."""
    with open_bytes(_unpacked(DTS)) as file:
        assert is_tone(await decoded(decoder, file), 0.6, 0.05)
    with open_bytes(_unpacked(TRUEHD)) as file:
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
        for at in range(0, 48_000, 1_024):
            for number, stream in enumerate(streams):
                piece = tone(2.0, 48_000, hz=300.0 * (number + 1))[:, at : at + 1_024]
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
