"""Is live as right as offline, are committed words kept, and how late do words and finals come? 1 and 8 speakers.

Clips in voices that the model never heard, each with a pause behind it, streamed over the real socket. A word's time is
estimated from its place in the text of its utterance, so the commit lag is good to some 200 ms.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import TIMEOUT_S, data, open_session, pcm_of, receive
from tools.bench.engines import percentiles

CHUNK_SAMPLES = 1_600
PAUSE_SAMPLES = 16_000
MIN_SILENCE_S, TAIL_S, PREFIX_S = 0.5, 0.32, 0.32
SPEAKERS = (1, 8)


@dataclass
class Talk:
    """The messages of one streamed recording."""

    finals: list[str] = field(default_factory=list)
    retracted: int = 0
    cuts: int = 0
    first_ms: list[float] = field(default_factory=list)
    endpoint_ms: list[float] = field(default_factory=list)
    commit_ms: list[float] = field(default_factory=list)


def measure(speed: float = 1.0, continuous_s: float = 1800.0) -> dict[str, object]:
    """Figures of live against offline; `speed` is times real time, so 1 is a person speaking. Takes 40 minutes."""
    chosen = [c for c in recordings.clips() if c.kind in {"phrase", "digits", "dense"}]
    with tempfile.TemporaryDirectory() as folder, ready(Path(folder) / "log") as server:
        by_speakers = {f"speakers_{n}": _figures(_stream_all(server, chosen, n, speed)) for n in SPEAKERS}
        without_pause = _without_pause(server, speed, continuous_s)
        offline = [server.transcribe(c.path.read_bytes()).json()["text"] for c in chosen]
    return {
        "question": "Live against offline, and how late words and finals come",
        "times_real_time": speed,
        "clips": len(chosen),
        "offline_word_error_percent": _error_rate(chosen, offline),
        **by_speakers,
        "without_a_pause": without_pause,
        "target": "word error at most 0.5 points over offline, 0 retracted, endpoint to final p95 300 ms (8: 600 ms)",
    }


def _without_pause(server, speed: float, seconds: float) -> dict[str, object]:
    """Word errors of continuous speech, gaps under 0.25 s: what forced cuts lose or double shows against offline."""
    rng, parts, said, length = np.random.default_rng(0), [], [], 0
    chosen = [c for c in recordings.clips() if c.kind in {"phrase", "digits"}]
    while length < seconds * 16_000:
        clip = chosen[rng.integers(len(chosen))]
        pcm = pcm_of(clip.path)
        loud = np.flatnonzero(np.abs(pcm) > 300)
        parts += [pcm[loud[0] : loud[-1]], np.zeros(int(rng.uniform(800, 4_000)), np.int16)]
        said += clip.text.lower().split()
        length += sum(map(len, parts[-2:]))
    pcm = np.concatenate(parts)
    spoken = talk(server, pcm, speed)
    offline = server.transcribe(recordings.wav(pcm)).json()["text"]
    return {
        "seconds": round(len(pcm) / 16_000),
        "words": len(said),
        "live_errors": recordings.word_errors(said, " ".join(spoken.finals).lower().split()),
        "offline_errors": recordings.word_errors(said, offline.lower().split()),
        "cuts": spoken.cuts,
        "retracted_words": spoken.retracted,
        "commit_lag_ms": percentiles([spoken.commit_ms]),
    }


def _stream_all(server, clips, speakers: int, speed: float) -> list[tuple[recordings.Clip, Talk]]:
    waiting, done, lock = iter(clips), [], threading.Lock()

    def speak() -> None:
        while True:
            with lock:
                clip = next(waiting, None)
            if clip is None:
                return
            pcm = np.concatenate([pcm_of(clip.path), np.zeros(PAUSE_SAMPLES, np.int16)])
            done.append((clip, talk(server, pcm, speed)))

    threads = [threading.Thread(target=speak) for _ in range(speakers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def talk(server, pcm: np.ndarray, speed: float) -> Talk:
    """Stream int16 (n,) at 16 kHz, at `speed` times real time (0: as fast as it is taken)."""
    talk, committed = Talk(), {}
    sent: list[tuple[float, float]] = []  # seconds of audio, time at which the last of it was sent
    with open_session(server) as socket:
        sender = threading.Thread(target=_send, args=(socket, pcm, speed, sent))
        sender.start()
        while True:
            message, now_s = receive(socket), time.monotonic()
            _note(talk, message, now_s, sent, committed)
            if message.get("ending") == "flush":
                break
        sender.join(TIMEOUT_S)
    return talk


def _send(socket, pcm: np.ndarray, speed: float, sent: list[tuple[float, float]]) -> None:
    began_s = time.monotonic()
    for at in range(0, len(pcm), CHUNK_SAMPLES):
        end = min(len(pcm), at + CHUNK_SAMPLES)
        if speed:
            time.sleep(max(0.0, began_s + end / 16_000 / speed - time.monotonic()))
        sent.append((end / 16_000, time.monotonic()))
        socket.send(data(pcm[at:end]))
    socket.send(json.dumps({"action": "flush"}))


def _note(talk: Talk, message: dict, now_s: float, sent, committed: dict[int, str]) -> None:
    number = message["utterance"]
    before = committed.get(number, "")
    if number not in committed and message["text"]:
        talk.first_ms.append(1000 * (now_s - _sent_at(sent, message["start"] + PREFIX_S)))
    if not message["text"].startswith(before):
        talk.retracted += len(before.split())
    for word in range(len(before.split()), len(message["committed"].split())):
        spoken_s = _spoken_s(message, word)
        talk.commit_ms.append(1000 * (now_s - _sent_at(sent, spoken_s)))
    committed[number] = message["committed"]
    if message["is_final"] and message["text"]:
        talk.finals.append(message["text"])
        talk.cuts += message["ending"] == "cut"
        if message["ending"] == "pause":
            talk.endpoint_ms.append(1000 * (now_s - _sent_at(sent, message["end"] - TAIL_S + MIN_SILENCE_S)))


def _spoken_s(message: dict, word: int) -> float:
    """About when a word ended: by its share of the text."""
    words = message["text"].split()
    share = sum(len(w) + 1 for w in words[: word + 1]) / sum(len(w) + 1 for w in words)
    first_s, last_s = message["start"] + PREFIX_S, message["end"] - (TAIL_S if message["is_final"] else 0.0)
    return first_s + share * max(0.0, last_s - first_s)


def _sent_at(sent, audio_s: float) -> float:
    return sent[min(len(sent) - 1, bisect_left(sent, (audio_s, 0.0)))][1]


def _figures(spoken: list[tuple[recordings.Clip, Talk]]) -> dict[str, object]:
    clips, talks = zip(*spoken, strict=True)
    return {
        "word_error_percent": _error_rate(clips, [" ".join(talk.finals) for talk in talks]),
        "retracted_words": sum(talk.retracted for talk in talks),
        "endpoint_to_final_ms": percentiles(talk.endpoint_ms for talk in talks),
        "commit_lag_ms": percentiles(talk.commit_ms for talk in talks),
    }


def _error_rate(clips, texts) -> float:
    pairs = [
        (recordings.units(clip.text, clip.language), recordings.units(text, clip.language))
        for clip, text in zip(clips, texts, strict=True)
    ]
    errors = sum(recordings.word_errors(said, heard) for said, heard in pairs)
    return round(100 * errors / sum(len(said) for said, _ in pairs), 2)
