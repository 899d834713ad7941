"""How long does a frame of 80 ms take, beside the SDK's own loop, and its samples? Random weights, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from asr_server.engine.speech.protocol import Sentence
from asr_server.engine.speech.qwen.engine import QwenSpeechEngine, build
from asr_server.engine.speech.qwen.model import SpeechModel
from asr_server.engine.speech.qwen.runtime import SpokenRow
from asr_training.released_speech_layout import random_speech_checkpoint

ROUNDS, FRAMES = 5, 4
ROWS = (1, 4)
CHUNKS = (2, 4, 8, 16)
TEXT = "The quick brown fox jumps over the lazy dog, and then it does so once more."
FORMATS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
}


def measure(size: str = "0.6b", formats: tuple[str, ...] = tuple(FORMATS), rounds: int = ROUNDS) -> dict[str, object]:
    """Milliseconds: of the SDK in float32 and of the engine in each format; of the codec, in float32."""
    directory = random_speech_checkpoint(size)
    found: dict[str, object] = {
        "question": "Frames of Qwen3-TTS, the SDK's loop and the engine",
        "threads": torch.get_num_threads(),
    }
    sdk = _sdk(str(directory))
    took: list[float] = []
    for name in formats:
        engine = build(SpeechModel(str(directory), slots=max(ROWS), **FORMATS[name]))
        engine.load()
        rows = _seated(engine)
        own: dict[str, list[float]] = {f"{count}_rows": [] for count in ROWS}
        for _ in range(rounds):
            took.append(_frame_ms(lambda: sdk(1), lambda: sdk(1 + FRAMES)))
            for count in ROWS:
                own[f"{count}_rows"].append(_step_ms(engine, rows[:count]))
        found[name] = {count: round(statistics.median(values), 1) for count, values in own.items()}
        if name == formats[0]:
            found["codec"] = _codec(engine, rounds)
        engine.unload()
    found["sdk_1_row"] = round(statistics.median(took), 1)
    return found


def _sdk(directory: str) -> Callable[[int], Any]:
    """The SDK's own loop for one row and so many frames."""
    from qwen_tts.inference.qwen3_tts_model import Qwen3TTSModel

    model = Qwen3TTSModel.from_pretrained(directory, dtype=torch.float32)
    model.model.speech_tokenizer.decode = lambda codes: ([], 0)
    return lambda frames: model.generate_custom_voice(
        TEXT, "ryan", "English", max_new_tokens=frames + 1, min_new_tokens=frames + 1
    )


def _frame_ms(short: Callable[[], Any], long: Callable[[], Any]) -> float:
    """Of two runs the difference, so that the prompt is left out."""
    times = []
    for run in (short, long):
        began_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - began_s)
    return 1000 * (times[1] - times[0]) / FRAMES


def _seated(engine: QwenSpeechEngine) -> list[SpokenRow]:
    for key in range(max(ROWS)):
        engine.admit(key, Sentence(TEXT, "ryan", seed=key))
    while len(engine._runtime.talker.rows) < max(ROWS):
        list(engine._begin(engine._runtime, None))
    return [work.row for work in engine._work.values()]


def _step_ms(engine: QwenSpeechEngine, rows: list[SpokenRow]) -> float:
    began_s = time.perf_counter()
    for _ in range(FRAMES):
        failure = engine._runtime.attempt(lambda: engine._runtime.step(rows))
        assert failure is None, failure
    return 1000 * (time.perf_counter() - began_s) / FRAMES


def _codec(engine: QwenSpeechEngine, rounds: int) -> dict[str, float]:
    """Of a frame in chunks of several lengths, for one row and for four."""
    from asr_server.engine.speech.qwen.codec import StreamState

    found = {}
    for count in ROWS:
        for frames in CHUNKS:
            codes, took = torch.randint(2048, (count, frames, 16)), []
            with torch.inference_mode():
                states = [StreamState() for _ in range(count)]
                for _ in range(1 + rounds):
                    began_s = time.perf_counter()
                    _, states = engine._runtime._decoder(codes, states)
                    took.append(1000 * (time.perf_counter() - began_s) / frames)
            found[f"{count}_rows_{frames}_frames"] = round(statistics.median(took[1:]), 1)
    return found
