"""The effect of the estimate of the end of a turn on live sessions: splits inside sentences, delays, word errors.

Decisions: recordings of one sentence each have a pause of 300 to 1,500 ms put into them, at the quietest place of three
parts of it, and are given to the state machine of a session alone, whose answers come at once. Live: whole recordings
and such with one pause are streams at the speed of speech, told to sessions that end an utterance by pauses alone, by
the estimate, and by a flush alone; here the machine that runs it decides how late a final is.
"""

from __future__ import annotations

import itertools
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

from asr_server.audio.segmentation import SpeechProbability
from asr_server.features.moonshine import package
from asr_server.features.turns import SmartTurn
from asr_server.live.machine.events import (
    Audio,
    EndOfTurnEstimated,
    EndOfTurnRules,
    EstimateEndOfTurn,
    Transcribe,
    TranscribeResult,
    TurnConfig,
    UtteranceEnded,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import Frame, LiveMachineConfig
from E2Etest.drive import recordings
from E2Etest.drive.process import running
from tools.bench.engines import percentiles

RATE = 16_000
KINDS = ("jfk", "librivox", "phone", "film", "goforward", "something")
SENTENCES = ("jfk", "librivox", "goforward", "something", "film_5", "film_7", "phone_tt", "phone_vm", "phone_privacy")
RULES = ("pause", "semantic", "manual")
PAUSES_MS = (300, 500, 700, 1_000, 1_500)
AT_ONCE = 3
_FRAME = 512
_BEHIND_S = 3.5
_PIECE_S = 0.04
_MODEL = SmartTurn()


@dataclass(frozen=True)
class Stream:
    """int16 (n,) in which `words` are said, the last of them up to `end_s`."""

    pcm: np.ndarray
    words: list[str]
    end_s: float


@dataclass
class Heard:
    """The result of one stream. `after_s`: from the end of the speech to its final."""

    texts: list[str] = field(default_factory=list)
    after_s: float | None = None
    taken_back: int = 0


def measure() -> dict[str, object]:
    """Splits, delays and word errors by rule, with whole recordings and with those that have a pause inside."""
    clips = recordings.real_clips(*KINDS)
    plain = [_stream(recordings.waveform(clip.path), clip.text) for clip in clips]
    paused = [_stream(_with_pause(recordings.waveform(clip.path), n), clip.text) for n, clip in enumerate(clips)]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(
            Path(folder) / "log", MODEL_ID=package.MODEL_ID, ENDPOINTING="auto", PRELOAD="true", IDLE_TIMEOUT="0"
        ) as server,
    ):
        server.transcribe(recordings.wav(plain[0].pcm))  # loads the model
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
        "decisions": {rule: _decisions(rule) for rule in RULES[:2]},
        **found,
        "target": "splits at most a quarter of those by pauses; end of speech to final p50 0.3 s, p95 1.2 s; word "
        "errors at most 2 points over files; 0 taken back",
    }


def _decisions(rule: str) -> dict[str, object]:
    """Splits inside sentences, and how long after the end of the speech it is decided."""
    rules = TurnConfig(end_of_turn=EndOfTurnRules() if rule == "semantic" else None)
    splits, delays_ms, count = 0, list[float](), 0
    for clip in recordings.real_clips(*SENTENCES):
        audio = recordings.waveform(clip.path)
        for part, pause_ms in itertools.product((0.3, 0.45, 0.6), PAUSES_MS):
            ends, speech_s = _ended(_paused(audio, int(part * len(audio)), len(audio) * 3 // 20, pause_ms), rules)
            splits += sum(bool(end_s < speech_s - 0.2) for end_s, _ in ends)
            delays_ms += [1_000 * (at_s - speech_s) for end_s, at_s in ends if end_s >= speech_s - 0.2][:1]
            count += 1
    return {"streams": count, "splits": splits, "end_to_decision_ms": percentiles([delays_ms])}


def _ended(audio: np.ndarray, rules: TurnConfig) -> tuple[list[tuple[float, float]], float]:
    """Return for each utterance where it ended and when that was decided, and the end of the speech, in seconds."""
    stream = _stream(audio, "")
    machine = LiveMachine(LiveMachineConfig(rules=rules))
    whole = stream.pcm[: len(stream.pcm) // _FRAME * _FRAME]
    scores = SpeechProbability().push(whole.astype(np.float32) / np.float32(32_768))
    found = []
    for number, score in enumerate(scores.tolist()):
        event = Audio(whole[number * _FRAME : (number + 1) * _FRAME].tobytes())
        block = machine.block(event)
        assert block is not None, "an event is a frame"
        actions = machine.receive(event, [Frame(block.samples(), score)])
        for action in actions:  # what follows from an answer comes behind
            match action:
                case EstimateEndOfTurn(position_samples=position, audio=heard):
                    actions += machine.receive(EndOfTurnEstimated(position, _MODEL.probability(heard)))
                case Transcribe(ticket=ticket):
                    actions += machine.receive(TranscribeResult(ticket, "words"))
                case UtteranceEnded(end_samples=end):
                    found.append((end / RATE, (number + 1) * _FRAME / RATE))
    return found, stream.end_s


def _stream(audio: np.ndarray, text: str) -> Stream:
    voiced = np.flatnonzero(SpeechProbability().push(audio) > 0.5)
    end_s = (voiced[-1] + 1) * _FRAME / RATE
    pcm = np.concatenate([audio, np.zeros(int(_BEHIND_S * RATE), np.float32)])
    return Stream((pcm * 32_767).astype(np.int16), recordings.plain_words(text), end_s)


def _with_pause(audio: np.ndarray, number: int) -> np.ndarray:
    """The recording with silence at the quietest place of its middle half."""
    return _paused(audio, len(audio) // 4, len(audio) // 2, PAUSES_MS[number % len(PAUSES_MS)])


def _paused(audio: np.ndarray, begin: int, length: int, pause_ms: int) -> np.ndarray:
    """The recording with silence at the quietest place of this part of it."""
    power = np.convolve(np.square(audio), np.ones(960), "same")
    place = begin + int(power[begin : begin + length].argmin())
    return np.concatenate([audio[:place], np.zeros(pause_ms * RATE // 1_000, np.float32), audio[place:]])


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
