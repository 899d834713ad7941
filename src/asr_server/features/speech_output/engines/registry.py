"""Speech engines by name. Each is imported when it is asked for, so its libraries are needed only then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from asr_server.core.audio import SPEECH_RATE
from asr_server.engine.feature import Feature, SharedModel
from asr_server.features.speech_output.encoding.headers import wav_file
from asr_server.features.speech_output.engines.espeak import package, voices
from asr_server.features.speech_output.engines.espeak.package import ESPEAK
from asr_server.features.speech_output.engines.protocol import (
    FAKE,
    Sentence,
    SpeechEngine,
    SpeechFeature,
    SpeechTraits,
    added,
)
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel
from asr_server.schedule.ports import Outcome, RowDelta, RowDone, RowFailed

OnProgress = Callable[[], None]

NAMES = (ESPEAK, FAKE)


def build(name: str, fake_script: Path | None = None, features: Iterable[Feature] = ()) -> tuple[SpeechEngine, ...]:
    """Return the engines of that name: one of `NAMES`, or what a feature takes."""
    if name == FAKE:
        from asr_server.features.speech_output.engines.fake import FakeSpeechEngine

        return (FakeSpeechEngine(fake_script),)
    if (theirs := added_by(name, features)) is not None:
        return theirs.build(name)
    from asr_server.features.speech_output.engines.espeak.engine import EspeakEngine

    return (EspeakEngine(),)


def added_by(name: str, features: Iterable[Feature]) -> SpeechFeature | None:
    """Return the feature whose engines have that name."""
    return next((speech for speech in added(features) if speech.takes(name)), None)


def build_model(
    model: SharedModel, on_progress: OnProgress = lambda: None, on_load_progress: OnProgress = lambda: None
) -> SpeechEngine:
    """Return the engine for a model of Qwen3-TTS. The callbacks are those of `engine.registry.build`."""
    from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine

    assert isinstance(model, SpeechModel), "a model of another feature"
    return QwenSpeechEngine(model, on_progress, on_load_progress)


def spoken(text: str, features: Sequence[Feature]) -> tuple[bytes, float]:
    """Return a text as a WAV file and its seconds, by the engine that `SPEECH=auto` prefers, loaded for it alone.

    Raises `ModelUnavailable` and `SpeechFailed`.
    """
    import numpy as np

    name = next((speech.default for speech in added(features) if not speech.missing(speech.default)), ESPEAK)
    engine, outcomes = build(name, features=features)[0], list[Outcome]()
    engine.load()
    try:
        engine.admit(1, Sentence(text, engine.traits.voices[0].id))
        while not any(isinstance(outcome, RowDone) for outcome in outcomes):
            outcomes += engine.step()
            if outcomes and isinstance(failed := outcomes[-1], RowFailed):
                raise failed.error
    finally:
        engine.unload()
    samples = np.concatenate([outcome.value for outcome in outcomes if isinstance(outcome, RowDelta)])
    return wav_file((samples * 32767).astype("<i2").tobytes()), len(samples) / SPEECH_RATE


def traits(name: str, model: SharedModel | None = None, features: Iterable[Feature] = ()) -> tuple[SpeechTraits, ...]:
    """Return what the engines of that name or model can do. Imports no libraries."""
    if model is not None:
        return (build_model(model).traits,)
    if (theirs := added_by(name, features)) is not None:
        return theirs.traits(name)
    if name == ESPEAK and (library := package.find()) is not None:
        return (voices.traits(library.data),)
    return tuple(engine.traits for engine in build(name))
