"""Speech engines by name. Each is imported when it is asked for, so its libraries are needed only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asr_server.engine.speech.espeak import package, voices
from asr_server.engine.speech.espeak.package import ESPEAK
from asr_server.engine.speech.protocol import SpeechEngine, SpeechTraits
from asr_server.engine.speech.qwen.model import SpeechModel

OnProgress = Callable[[], None]

# For tests only.
FAKE = "fake"
NAMES = (ESPEAK, FAKE)


def build(name: str, fake_script: Path | None = None) -> SpeechEngine:
    """The engine of that name, one of `NAMES`."""
    if name == FAKE:
        from asr_server.engine.speech.fake import FakeSpeechEngine

        return FakeSpeechEngine(fake_script)
    from asr_server.engine.speech.espeak.engine import EspeakEngine

    return EspeakEngine()


def build_model(
    model: SpeechModel, on_progress: OnProgress = lambda: None, on_load_progress: OnProgress = lambda: None
) -> SpeechEngine:
    """The engine for a model of Qwen3-TTS. The callbacks are those of `engine.registry.build`."""
    from asr_server.engine.speech.qwen.engine import QwenSpeechEngine

    return QwenSpeechEngine(model, on_progress, on_load_progress)


def traits(name: str, model: SpeechModel | None = None) -> SpeechTraits:
    """What the engine of that name or model can do. Imports no libraries."""
    if model is not None:
        return build_model(model).traits
    if name == ESPEAK and (library := package.find()) is not None:
        return voices.traits(library.data)
    return build(name).traits
