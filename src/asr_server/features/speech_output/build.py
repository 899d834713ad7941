"""Builds the parts of speech output: the engines on their threads, and the encoder."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from asr_server.core.metrics import ReadMetrics
from asr_server.features.speech_output import operations, route, speech_jobs, speech_socket
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.engines import piper
from asr_server.features.speech_output.engines.protocol import FAKE
from asr_server.features.speech_output.operations import SentenceMetrics
from asr_server.features.speech_output.options import CLONE, OTHERS, SPEECH
from asr_server.features.speech_output.script import SpeechEngineClient, SpeechEngines
from asr_server.features.speech_output.session import SpeechSessions
from asr_server.features.speech_output.synthesis import SpeechMetrics, SpeechProcessor
from asr_server.schedule.admission import FIRST_GUESS_SPEED, Admission
from asr_server.schedule.job import DEFAULT
from asr_server.schedule.thread import EngineThread
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import FeatureParts

if TYPE_CHECKING:
    from asr_server.features.speech_output.engines.protocol import SpeechEngine


# The options that name engines, in order of preference.
_OPTIONS = (SPEECH, OTHERS, CLONE)


def build(core: CoreParts) -> FeatureParts:
    """Build speech output. Each engine is loaded when it gets its first sentence."""
    settings = core.settings
    own = _own_engines(core)
    thread = _own_thread(own, core) if own else None
    admission = Admission(
        settings.max_queue_audio_s,
        # The only key of a server need not share it with others.
        share_s=math.inf if len(settings.keys) == 1 else settings.max_queue_audio_s / 2,
        time_limit_s=settings.request_timeout,
        engine_s=(thread or core.thread).with_recordings_s,
        speed=min((engine.traits.first_guess_speed for _, _, engine in own), default=FIRST_GUESS_SPEED),
    )
    encoder = AudioEncoder(idle_timeout_s=settings.idle_timeout)
    engines, metrics = _speaking(core, own, thread), SpeechMetrics(core.registry)
    processor = SpeechProcessor(engines, encoder, admission, settings, settings.request_timeout, metrics)
    core.registry.register(ReadMetrics(lambda: operations.gauges(processor)))
    sessions = SpeechSessions(processor)

    async def close() -> None:
        if thread is not None:
            await asyncio.to_thread(thread.close)
        await encoder.close()

    return FeatureParts(
        [processor, sessions],
        jobs=[speech_jobs.SpeechJobs(processor)],
        idle_owners=[encoder],
        failure=lambda: operations.speech_failure(processor),
        warm_up=processor.warm_up,
        drain=sessions.drain,
        close=close,
    )


def engines_named(name: str, fake_script: Path | None = None) -> tuple[SpeechEngine, ...]:
    """Return the engines that a value of SPEECH names: one of `options.NAMES`, or voices of Piper. Imports their
    libraries."""
    if name == FAKE:
        from asr_server_fake.speech import FakeSpeechEngine

        return (FakeSpeechEngine(fake_script),)
    if piper.takes(name):
        from asr_server.features.speech_output.engines.piper.engine import PiperEngine

        return tuple(PiperEngine(voice, name) for voice in piper.voices(name))
    from asr_server.features.speech_output.engines.espeak.engine import EspeakEngine

    return (EspeakEngine(),)


def _own_engines(core: CoreParts) -> list[tuple[str, str, SpeechEngine]]:
    """Return the option, the name on the thread, and the engine, of each engine that uses no accelerator. The name of
    the first one is `DEFAULT`."""
    own: list[tuple[str, str, SpeechEngine]] = []
    for option in _OPTIONS:
        if (value := core.plan.value(option)) and option not in core.models:
            for number, engine in enumerate(engines_named(value, core.plan.fake_script)):
                name = f"{option}/{number}" if number else option
                own.append((option, name if own else DEFAULT, engine))
    return own


def _own_thread(own: list[tuple[str, str, SpeechEngine]], core: CoreParts) -> EngineThread:
    """Return a thread for engines that use no accelerator, so that they never wait for a step of recognition."""
    (_, _, first), *others = own
    return EngineThread(
        first,
        others={name: engine for _, name, engine in others},
        idle_timeout_s=core.settings.idle_timeout,
        on_state=operations.log_state,
        on_failure=core.on_failure,
    )


def _speaking(
    core: CoreParts, own: list[tuple[str, str, SpeechEngine]], thread: EngineThread | None
) -> SpeechEngines | str:
    """Return the engines with their threads, or the reason why the server does not speak."""
    shared = [(name, name, cast("SpeechEngine", model)) for name, model in core.models.items()]
    clients, sentences = defaultdict(list), SentenceMetrics(core.registry)
    for option, name, engine in (*shared, *own):
        its_thread = core.thread if thread is None or option in core.models else thread
        clients[option].append(SpeechEngineClient(its_thread, engine.traits, engine.model_id, name, sentences))
    if not clients[SPEECH]:
        return core.plan.reason(SPEECH)
    return SpeechEngines((*clients[SPEECH], *clients[OTHERS]), next(iter(clients[CLONE]), None))


SERVER = ServerFeature(
    routers=[route.router, speech_jobs.router, speech_socket.router], health=operations.speech_health, build=build
)
