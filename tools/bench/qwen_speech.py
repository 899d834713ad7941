"""What does a frame of 80 ms cost, beside the SDK's own loop, and its samples? Random weights of a released shape."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.features.speech_output.engines.qwen_tts.codec import StreamState
from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel
from asr_server.features.speech_output.engines.qwen_tts.talker import SpokenRow
from tools.training.released_speech_layout import random_speech_checkpoint

ROUNDS, FRAMES = 5, 4
ROWS = (1, 4)
CHUNKS = (2, 4, 8, 16)
TEXT = "The quick brown fox jumps over the lazy dog, and then it does so once more."
FORMATS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
}


def measure(size: str = "0.6b", formats: tuple[str, ...] = tuple(FORMATS), rounds: int = ROUNDS) -> dict[str, object]:
    """Milliseconds of processor time for a frame: of the SDK's loop in float32, of a step of the engine in each format
    with some rows, and of the codec for each row in chunks of some frames."""
    directory = str(random_speech_checkpoint(size))
    found: dict[str, object] = {
        "question": "A frame of Qwen3-TTS: the SDK's loop and the engine",
        "threads": torch.get_num_threads(),
        "sdk_1_row": _sdk(directory, rounds),
    }
    for name in formats:
        gc.collect()  # of the model before
        engine = QwenSpeechEngine(SpeechModel(directory, slots=max(ROWS), **FORMATS[name]))
        engine.load()
        rows = _seated(engine)
        found[name] = {f"{count}_rows": _step_ms(engine, rows[:count], rounds) for count in ROWS}
        if name == formats[0]:
            found["codec"] = _codec(engine, rounds)
        engine.unload()
    return found


def _median_ms(run: Callable[[], object], rounds: int) -> float:
    took = []
    for _ in range(rounds):
        began_s = time.process_time()
        run()
        took.append(1000 * (time.process_time() - began_s))
    return statistics.median(took)


def _sdk(directory: str, rounds: int) -> float:
    """The SDK's own loop: of two lengths the difference, so that the prompt is left out."""
    from qwen_tts.inference.qwen3_tts_model import Qwen3TTSModel

    model = Qwen3TTSModel.from_pretrained(directory, dtype=torch.float32)
    model.model.speech_tokenizer.decode = lambda codes: ([], 0)

    def speak(frames: int) -> None:
        # The last code of a run has no frame.
        model.generate_custom_voice(TEXT, "ryan", "English", max_new_tokens=frames + 1)

    speak(1)
    short, long = (_median_ms(lambda n=frames: speak(n), rounds) for frames in (1, 1 + FRAMES))
    return round((long - short) / FRAMES, 1)


def _seated(engine: QwenSpeechEngine) -> list[SpokenRow]:
    for key in range(max(ROWS)):
        engine.admit(key, Sentence(TEXT, "ryan", seed=key))
    while len(engine._runtime.decoder.decoding) < max(ROWS):
        list(engine._seat(engine._runtime))
        list(engine._prefill(engine._runtime, engine._runtime.prefill_policy.tokens(None)))
    return [work.row for work in engine._work.values()]


def _step_ms(engine: QwenSpeechEngine, rows: list[SpokenRow], rounds: int) -> float:
    def steps() -> None:
        for _ in range(FRAMES):
            failure = engine._runtime.attempt(lambda: engine._runtime.step(*rows))
            assert failure is None, failure

    return round(_median_ms(steps, rounds) / FRAMES, 1)


def _codec(engine: QwenSpeechEngine, rounds: int) -> dict[str, float]:
    found = {}
    for count in ROWS:
        for frames in CHUNKS:
            codes = torch.randint(2048, (count, frames, 16))
            with torch.inference_mode():
                _, states = engine._runtime._codec(codes, [StreamState() for _ in range(count)])
                took = _median_ms(lambda c=codes, s=states: engine._runtime._codec(c, s), rounds)
            found[f"{count}_rows_{frames}_frames"] = round(took / frames / count, 1)
    return found
