"""Text to speech: routes, sockets, engines and encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from asr_server.engine.feature import Asked, Feature, SharedModel
from asr_server.engine.protocol import Option
from asr_server.features.speech_output.engines import protocol
from asr_server.server_feature import ServerFeature, ServerHook

if TYPE_CHECKING:
    from asr_server.engine.feature import OnProgress


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


def _build(model: SharedModel, on_progress: OnProgress, on_load_progress: OnProgress) -> protocol.SpeechEngine:
    from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
    from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel

    assert isinstance(model, SpeechModel), "a model of another feature"
    return QwenSpeechEngine(model, on_progress, on_load_progress)


def _server() -> ServerFeature:
    from asr_server.features.speech_output import build, operations, route, speech_jobs, speech_socket

    return ServerFeature(
        routers=[route.router, speech_jobs.router, speech_socket.router],
        health=operations.speech_health,
        build=build.build,
    )


FEATURE = Feature(
    "speech_output",
    options=_options,
    conflicts=_conflicts,
    shared_models=_models,
    build_shared=_build,
    pack_shared=protocol.pack,
    unpack_shared=protocol.unpack,
    extends=(ServerHook(_server),),
)
