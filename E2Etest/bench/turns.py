"""What does the estimate of the end of a turn change in live sessions? Splits inside sentences, delays, word errors.

Each recording of real speech is one stream at the speed of speech, with silence behind it; a second set has a pause put
into the middle of each, at its quietest place. The same streams are told to sessions that end an utterance by pauses
alone, by the estimate, and by a flush alone.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from asr_server.audio.vad import SpeechProbability
from asr_server.engine.moonshine import package
from E2Etest import recordings
from E2Etest.bench.engines import percentiles
from E2Etest.bench.real import samples
from E2Etest.process import running

RATE = 16_000
KINDS = ("jfk", "librivox", "phone", "film", "goforward", "something")
RULES = ("pause", "semantic", "manual")
PAUSES_MS = (300, 500, 700, 1_000, 1_500)
AT_ONCE = 3
_FRAME = 512
_BEHIND_S = 3.5
_PIECE_S = 0.04


@dataclass(frozen=True)
class Stream:
    """int16 (n,) in which `words` are said, the last of them up to `end_s`."""

    pcm: np.ndarray
    words: list[str]
    end_s: float


@dataclass
class Heard:
    """What came of one stream. `after_s`: from the end of the speech to its final."""

    texts: list[str] = field(default_factory=list)
    after_s: float | None = None
    taken_back: int = 0


def measure() -> dict[str, object]:
    """Splits, delays and word errors by rule, with whole recordings and with those that have a pause inside."""
    clips = recordings.real_clips(*KINDS)
    plain = [_stream(samples(clip.path), clip.text) for clip in clips]
    paused = [_stream(_with_pause(samples(clip.path), n), clip.text) for n, clip in enumerate(clips)]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "log", MODEL_ID=package.MODEL_ID, PRELOAD="true", IDLE_TIMEOUT="0") as server,
    ):
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        found = {
            name: {rule: _figures(server.live_url, streams, rule) for rule in RULES}
            for name, streams in (("whole", plain), ("with a pause inside", paused))
        }
        found["files"] = {
            name: _errors(streams, [[server.transcribe(recordings.wav(one.pcm)).json()["text"]] for one in streams])
            for name, streams in (("whole", plain), ("with a pause inside", paused))
        }
    return {
        "question": "What does the estimate of the end of a turn change in live sessions?",
        "model": package.MODEL_ID,
        "streams": len(clips),
        "at_once": AT_ONCE,
        **found,
        "target": "splits at most a quarter of those by pauses; end of speech to final p50 0.3 s, p95 1.2 s; word "
        "errors at most 2 points over files; 0 taken back",
    }


def _stream(audio: np.ndarray, text: str) -> Stream:
    voiced = np.flatnonzero(SpeechProbability().probabilities(audio) > 0.5)
    end_s = (voiced[-1] + 1) * _FRAME / RATE
    pcm = np.concatenate([audio, np.zeros(int(_BEHIND_S * RATE), np.float32)])
    return Stream((pcm * 32_767).astype(np.int16), recordings.plain_words(text), end_s)


def _with_pause(audio: np.ndarray, number: int) -> np.ndarray:
    """The recording with silence at the quietest place of its middle half."""
    power = np.convolve(np.square(audio), np.ones(960), "same")
    begin, end = len(audio) // 4, 3 * len(audio) // 4
    place = begin + int(power[begin:end].argmin())
    pause = np.zeros(PAUSES_MS[number % len(PAUSES_MS)] * RATE // 1_000, np.float32)
    return np.concatenate([audio[:place], pause, audio[place:]])


def _figures(url: str, streams: Sequence[Stream], rule: str) -> dict[str, object]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        heard = list(pool.map(lambda stream: _told(url, stream, rule), streams))
    delays = [1_000 * one.after_s for one in heard if one.after_s is not None]
    return {
        "utterances": sum(len(one.texts) for one in heard),
        "errors_percent": _errors(streams, [one.texts for one in heard]),
        "end_to_final_ms": percentiles([delays]) if delays and rule != "manual" else None,
        "taken_back": sum(one.taken_back for one in heard),
    }


def _errors(streams: Sequence[Stream], texts: Sequence[Sequence[str]]) -> float:
    wrong = sum(
        recordings.word_errors(stream.words, recordings.plain_words(" ".join(said)))
        for stream, said in zip(streams, texts, strict=True)
    )
    return round(100 * wrong / sum(len(stream.words) for stream in streams), 1)


def _told(url: str, stream: Stream, rule: str) -> Heard:
    heard, committed = Heard(), dict[int, str]()
    with connect(f"{url}?endpointing={rule}&language=en", max_size=None) as socket:
        socket.recv()
        began_s = time.monotonic()
        sender = threading.Thread(target=_send, args=(socket, stream.pcm, began_s))
        sender.start()
        while True:
            try:
                message = json.loads(socket.recv(timeout=60))
            except (ConnectionClosed, TimeoutError):
                break
            if "utterance" not in message or "text" not in message:
                continue
            number = message["utterance"]
            heard.taken_back += not message["text"].startswith(committed.get(number, ""))
            committed[number] = message["committed"]
            if message["is_final"]:
                if message["text"].strip():
                    heard.texts.append(message["text"])
                if heard.after_s is None and message["end"] >= stream.end_s - 0.1:
                    heard.after_s = time.monotonic() - began_s - stream.end_s
                if message["ending"] == "flush":
                    break
        sender.join()
    return heard


def _send(socket: object, pcm: np.ndarray, began_s: float) -> None:
    size = int(_PIECE_S * RATE)
    for number, at in enumerate(range(0, len(pcm), size)):
        time.sleep(max(0.0, began_s + number * _PIECE_S - time.monotonic()))
        socket.send(pcm[at : at + size].tobytes())
    socket.send('{"action": "flush"}')
