"""Text to speech: routes, sockets, engines and encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from asr_server.engine.feature import Asked, Feature, SharedModel
from asr_server.engine.protocol import Option

if TYPE_CHECKING:
    from asr_server.engine.feature import OnProgress
    from asr_server.features.speech_output.engines.protocol import SpeechEngine


# The options are imported when they are asked for: child processes import this package for less.
def _options(asked: Asked) -> Iterable[Option]:
    from asr_server.features.speech_output import options

    return options.options(asked)


def _conflicts(asked: Asked) -> Iterable[str]:
    from asr_server.features.speech_output import options

    return options.conflicts(asked)


def _models(asked: Asked) -> Mapping[str, SharedModel]:
    from asr_server.features.speech_output import options

    return options.models(asked)


def _build(model: SharedModel, on_progress: OnProgress, on_load_progress: OnProgress) -> SpeechEngine:
    from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
    from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel

    assert isinstance(model, SpeechModel), "a model of another feature"
    return QwenSpeechEngine(model, on_progress, on_load_progress)


FEATURE = Feature(
    "speech_output",
    options=_options,
    conflicts=_conflicts,
    shared_models=_models,
    build_shared=_build,
    server=f"{__name__}.build",
)
