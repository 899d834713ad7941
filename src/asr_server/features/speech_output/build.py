"""Builds the parts of speech output: the engines on their threads, and the encoder."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, cast

from loguru import logger

from asr_server.core.metrics import ReadMetrics
from asr_server.features.speech_output import operations, route, speech_jobs, speech_socket
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.engines import registry
from asr_server.features.speech_output.engines.client import SpeechEngineClient
from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.features.speech_output.operations import SentenceMetrics
from asr_server.features.speech_output.options import CLONE, OTHERS, SPEECH
from asr_server.features.speech_output.script import SpeechEngines
from asr_server.features.speech_output.session import SpeechSessions
from asr_server.features.speech_output.synthesis import SpeechMetrics, SpeechProcessor
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import DEFAULT
from asr_server.schedule.model import ModelState
from asr_server.schedule.thread import EngineThread, Scheduler
from asr_server.schedule.time_shares import FIRST_GUESS_SPEED
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import FeatureParts

if TYPE_CHECKING:
    from asr_server.features.speech_output.engines.protocol import SpeechEngine


# The options of engines, in the order in which the engines are preferred.
_OPTIONS = (SPEECH, OTHERS, CLONE)


def build(core: CoreParts) -> FeatureParts:
    """Build what speaks. Each engine is loaded by its first sentence."""
    settings = core.settings
    sentences = SentenceMetrics(core.registry)
    core.observers.add(Sentence, sentences)
    own = _own_engines(core)
    named = {name: engine for engines in own.values() for name, engine in engines.items()}
    thread = _own_thread(dict(named), core, sentences) if named else None
    admission = Admission(
        settings.max_queue_audio_s,
        # The only key of a server shares it with nobody.
        share_s=math.inf if len(settings.keys) == 1 else settings.max_queue_audio_s / 2,
        time_limit_s=settings.request_timeout,
        engine_s=lambda: (thread if thread is not None else core.thread).with_recordings_s,
        first_guess_speed=min(
            (engine.traits.first_guess_speed for engine in named.values()), default=FIRST_GUESS_SPEED
        ),
    )
    encoder = AudioEncoder(idle_timeout_s=settings.idle_timeout)
    engines, metrics = _speaking(core, own, thread), SpeechMetrics(core.registry)
    processor = SpeechProcessor(engines, encoder, admission, settings, settings.request_timeout, metrics)
    core.registry.register(ReadMetrics(lambda: operations.gauges(processor)))
    sessions = SpeechSessions(processor)

    async def warm_up() -> None:
        if not processor.silent_because:
            await processor.warm_up()

    async def drain() -> None:
        processor.drain()
        await sessions.drain()

    async def close() -> None:
        if thread is not None:
            await asyncio.to_thread(thread.close)
        await encoder.close()

    return FeatureParts(
        [processor, sessions],
        jobs=[speech_jobs.SpeechJobs(processor)],
        idle_owners=[encoder],
        failure=lambda: operations.speech_failure(processor),
        warm_up=warm_up,
        drain=drain,
        close=close,
    )


def _own_engines(core: CoreParts) -> dict[str, dict[str, SpeechEngine]]:
    """Return the engines that use no accelerator, by their options and their names on their thread."""
    own: dict[str, dict[str, SpeechEngine]] = {}
    for option in _OPTIONS:
        if (value := core.plan.value(option)) and option not in core.models:
            engines = registry.build(value, core.settings.fake_engine_script)
            first = option if own else DEFAULT
            own[option] = {f"{option}/{number}" if number else first: each for number, each in enumerate(engines)}
    return own


def _own_thread(named: dict[str, SpeechEngine], core: CoreParts, watch: SentenceMetrics) -> EngineThread:
    """Return a thread for engines that use no accelerator, so that they never wait for a step of recognition."""
    return EngineThread(
        named.pop(DEFAULT),
        others=named,
        idle_timeout_s=core.settings.idle_timeout,
        on_state=_log_state,
        watch=watch,
        on_failure=core.on_failure,
    )


def _speaking(
    core: CoreParts, own: dict[str, dict[str, SpeechEngine]], thread: EngineThread | None
) -> SpeechEngines | str:
    """Return the engines with their threads, or the reason why the server does not speak."""
    clients = {name: [_client(core.thread, cast("SpeechEngine", model), name)] for name, model in core.models.items()}
    if thread is not None:
        for option, engines in own.items():
            clients[option] = [_client(thread, engine, name) for name, engine in engines.items()]
    if SPEECH not in clients:
        return core.plan.reason(SPEECH)
    (clone,) = clients.get(CLONE, (None,))
    return SpeechEngines((*clients[SPEECH], *clients.get(OTHERS, ())), clone)


def _client(thread: Scheduler, engine: SpeechEngine, name: str) -> SpeechEngineClient:
    return SpeechEngineClient(thread, engine.traits, engine.model_id, name)


def _log_state(model: str, state: ModelState, took_s: float) -> None:
    named = {"model": model} if model else {}
    logger.info("speech engine", state=state.value, took_s=round(took_s, 3), **named)


SERVER = ServerFeature(
    routers=[route.router, speech_jobs.router, speech_socket.router], health=operations.speech_health, build=build
)
