"""Recordings for tests: the held-out clips with their words, the bundled sample, and files made on the spot."""

from __future__ import annotations

import io
import json
import re
import struct
import wave
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from rapidfuzz.distance import Levenshtein

from asr_server import demo
from asr_server.audio.g711 import Companding

with suppress(ImportError):  # measurements on machines with GPUs do without it
    import av

word_errors = Levenshtein.distance
AUDIO = Path(__file__).parents[1] / "audio"
REAL = Path(__file__).parents[1] / "real_speech"
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SPELLED = {"mr": "mister", "mrs": "missus", "dr": "doctor", **{str(n): word for n, word in enumerate(_NUMBERS)}}


@dataclass(frozen=True)
class Clip:
    """One held-out recording."""

    path: Path
    text: str
    language: str | None  # None where nobody speaks
    voice: str
    kind: str
    seconds: float


@dataclass(frozen=True)
class Spoken:
    """A recording and its words."""

    samples: np.ndarray  # int16 (n,) at 16 kHz
    words: list[str]
    errors: int  # how many words a server may get wrong

    def check(self, text: str, *, times: int = 1, more_errors: int = 0) -> None:
        """Fail if `text` is not the words, or `times` repetitions of them, within the errors."""
        allowed = times * self.errors + more_errors
        assert word_errors(times * self.words, plain_words(text)) <= allowed, text


def clips() -> list[Clip]:
    """Return all clips of the manifest."""
    rows = json.loads((AUDIO / "manifest.json").read_text(encoding="utf-8"))
    return [Clip(AUDIO / r["file"], r["text"], r["language"], r["voice"], r["kind"], r["seconds"]) for r in rows]


def real_clips(*kinds: str, language: str = "English") -> list[Clip]:
    """Return the recordings of people who speak `language`, all or those whose names begin with one of `kinds`."""
    rows = json.loads((REAL / "manifest.json").read_text(encoding="utf-8"))
    return [
        Clip(_real_path(r["file"]), r["text"], language, r["speaker"], r["file"].split("_")[0], r["seconds"])
        for r in rows
        if r.get("language", "English") == language and (not kinds or r["file"].startswith(kinds))
    ]


def _real_path(name: str) -> Path:
    speech = demo.speech().recording
    return speech if speech.name == name else REAL / name


def plain_words(text: str) -> list[str]:
    """Return the words in lower case, without punctuation; titles and numbers up to ten are written out."""
    words = re.findall(r"[a-z0-9']+", text.lower().replace("\u2019", "'"))
    return [_SPELLED.get(word, word) for word in words]


def units(text: str, language: str | None) -> list[str]:
    """Return the words of a text in lower case; of a Chinese text its characters."""
    return list(text.replace(" ", "")) if language == "Chinese" else text.lower().split()


def sample() -> tuple[bytes, str]:
    """Return the bundled recording (a WAV file) and its words."""
    found = demo.sample()
    return found.recording.read_bytes(), found.text


def samples() -> np.ndarray:
    """Return the bundled recording as int16 (n,) at 16 kHz."""
    with wave.open(str(demo.sample().recording)) as recording:
        return np.frombuffer(recording.readframes(recording.getnframes()), np.int16)


def waveform(path: Path) -> np.ndarray:
    """Return a recording of 16 kHz as float32 (n,)."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray().ravel() for frame in container.decode(audio=0)]
    return np.concatenate(frames).astype(np.float32) / 32768


def wav(pcm: np.ndarray, *, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return int16 (n * channels,) interleaved as a WAV file."""
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.astype("<i2").tobytes())
    return sink.getvalue()


def riff(body: bytes, *, tag: int, rate: int, channels: int, bits: int) -> bytes:
    """Return a WAV file of any format tag: 1 integer PCM, 3 float, 6 A-law, 7 mu-law."""
    block = channels * bits // 8
    header = struct.pack("<HHIIHH", tag, channels, rate, rate * block % 2**32, block, bits)
    chunks = b"fmt " + struct.pack("<I", len(header)) + header + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


def companded(samples: np.ndarray, law: Companding) -> bytes:
    """Return the samples, int16, as G.711, a byte each, by ffmpeg's encoder."""
    encoder = av.CodecContext.create({Companding.MU: "pcm_mulaw", Companding.A: "pcm_alaw"}[law], "w")
    encoder.sample_rate, encoder.layout, encoder.format = 8_000, "mono", "s16"  # the codes are those of any rate
    frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
    frame.sample_rate = 8_000
    return b"".join(bytes(packet) for packet in encoder.encode(frame))


def encoded(
    container: str, codec: str, pcm: np.ndarray | None = None, *, rate: int = 48_000, layout: str = "mono"
) -> bytes:
    """Return int16 (n,) at 16 kHz, by default the bundled recording, in another container and codec."""
    pcm = samples() if pcm is None else pcm
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(pcm[None].copy(), format="s16", layout="mono")
        frame.sample_rate = 16_000
        resampler = av.AudioResampler(format=stream.format, layout=layout, rate=rate, frame_size=stream.frame_size)
        for converted in [*resampler.resample(frame), *resampler.resample(None)]:
            output.mux(stream.encode(converted))
        output.mux(stream.encode(None))
    return sink.getvalue()


def packets(content: bytes) -> list[bytes]:
    with av.open(io.BytesIO(content)) as container:
        return [bytes(packet) for packet in container.demux(audio=0) if packet.size]


def silent_video() -> bytes:
    """Return a Matroska file with pictures and no sound."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="matroska") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for i in range(10):
            frame = av.VideoFrame(32, 32, "yuv420p")
            frame.pts, frame.time_base = i, Fraction(1, 10)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return sink.getvalue()
