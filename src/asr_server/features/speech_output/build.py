"""Builds the parts of speech output: the engines on their threads, and the encoder."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from loguru import logger

from asr_server.features.speech_output import operations, speech_jobs
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.engines import registry
from asr_server.features.speech_output.engines.client import SpeechEngineClient
from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.features.speech_output.options import CLONE, OTHERS, SPEECH
from asr_server.features.speech_output.script import SpeechEngines
from asr_server.features.speech_output.session import SessionLimits
from asr_server.features.speech_output.sessions import SpeechSessions
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import DEFAULT
from asr_server.schedule.model import ModelState
from asr_server.schedule.scheduler import Scheduler
from asr_server.schedule.thread import EngineThread
from asr_server.schedule.time_shares import FIRST_GUESS_SPEED
from asr_server.server_feature import CoreParts
from asr_server.services import FeatureParts

if TYPE_CHECKING:
    from asr_server.features.speech_output.engines.protocol import SpeechEngine
    from asr_server.features.speech_output.synthesis import SpeechObserver


# The options of engines, in the order in which the engines are preferred.
_OPTIONS = (SPEECH, OTHERS, CLONE)


def build(core: CoreParts) -> FeatureParts:
    """Build what speaks. Each engine is loaded by its first sentence."""
    settings = core.settings
    watch = None if core.metrics is None else operations.SpeechMetrics(core.metrics)
    if watch is not None:
        core.observers.add(Sentence, watch)
    own = _own_engines(core)
    thread = _own_thread(own, core, watch) if own else None
    admission = Admission(
        settings.max_queue_speech_s,
        # The only key of a server shares it with nobody.
        share_s=math.inf if len(settings.keys) == 1 else settings.max_queue_speech_s / 2,
        time_limit_s=settings.request_timeout,
        engine_s=lambda: (thread if thread is not None else core.thread).with_recordings_s,
        first_guess_speed=min(
            (engine.traits.first_guess_speed for engines in own.values() for engine in engines),
            default=FIRST_GUESS_SPEED,
        ),
    )
    encoder = AudioEncoder(idle_timeout_s=settings.idle_timeout)
    speaking = _speaking(core, own, thread)
    processor = SpeechProcessor(speaking, encoder, admission, settings, settings.request_timeout, watch)
    limits = SessionLimits(settings.max_speech_chars, settings.request_timeout, settings.speech_socket_idle_s)
    sessions = SpeechSessions(processor, limits, watch)

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


def _own_engines(core: CoreParts) -> Mapping[str, Sequence[SpeechEngine]]:
    """Return the engines that use no accelerator, by their options."""
    wanted = {name: value for name in _OPTIONS if (value := core.plan.value(name)) and name not in core.models}
    script, features = core.settings.fake_engine_script, core.plan.features
    return {name: registry.build(value, script, features) for name, value in wanted.items()}


def _own_thread(
    own: Mapping[str, Sequence[SpeechEngine]], core: CoreParts, watch: SpeechObserver | None
) -> EngineThread:
    """Return a thread for engines that use no accelerator, so that they never wait for a step of recognition."""
    named = {_name(own, name, number): engine for name, engines in own.items() for number, engine in enumerate(engines)}
    return EngineThread(
        named.pop(DEFAULT),
        others=named,
        idle_timeout_s=core.settings.idle_timeout,
        on_state=_log_state,
        watch=watch,
        on_failure=core.on_failure,
    )


def _name(own: Mapping[str, Sequence[SpeechEngine]], option: str, number: int) -> str:
    """Return the name on the thread of one of the engines of an option. The first of all is the default."""
    if number:
        return f"{option}/{number}"
    return DEFAULT if option == next(iter(own)) else option


def _speaking(
    core: CoreParts, own: Mapping[str, Sequence[SpeechEngine]], thread: EngineThread | None
) -> SpeechEngines | str:
    """Return the engines with their threads, or the reason why the server does not speak."""
    clients = {name: [_client(core.thread, cast("SpeechEngine", model), name)] for name, model in core.models.items()}
    if thread is not None:
        for name, engines in own.items():
            clients[name] = [_client(thread, each, _name(own, name, number)) for number, each in enumerate(engines)]
    if SPEECH not in clients:
        return core.plan.reason(SPEECH)
    clones = clients.get(CLONE)
    return SpeechEngines((*clients[SPEECH], *clients.get(OTHERS, ())), clones[0] if clones else None)


def _client(thread: Scheduler, engine: SpeechEngine, name: str) -> SpeechEngineClient:
    return SpeechEngineClient(thread, engine.traits, engine.info.model_id, name)


def _log_state(model: str, state: ModelState, took_s: float) -> None:
    named = {"model": model} if model else {}
    logger.info("speech engine", state=state.value, took_s=round(took_s, 3), **named)
