"""Builds the parts of speech output: the engine on its thread, the encoder, the cache."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from loguru import logger

from asr_server.features.speech_output.cache import SpeechCache
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.engines import registry
from asr_server.features.speech_output.engines.client import SpeechEngineClient
from asr_server.features.speech_output.options import CLONE, OTHERS, SPEECH
from asr_server.features.speech_output.script import SpeechEngines
from asr_server.features.speech_output.session import SessionLimits
from asr_server.features.speech_output.sessions import SpeechSessions
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server.schedule.admission import Admission
from asr_server.schedule.capacity import FIRST_GUESS_SPEED
from asr_server.schedule.job import DEFAULT
from asr_server.schedule.model import ModelState
from asr_server.schedule.thread import EngineThread

if TYPE_CHECKING:
    from asr_server.core.errors import EngineFailed
    from asr_server.core.settings import Settings
    from asr_server.engine.feature import Plan
    from asr_server.features.speech_output.engines.protocol import SpeechEngine
    from asr_server.features.speech_output.observer import SpeechObserver
    from asr_server.schedule.ports import Batch


# The options of engines, in the order in which the engines are preferred.
_OPTIONS = (SPEECH, OTHERS, CLONE)


@dataclass(frozen=True, slots=True)
class Speech:
    """The parts of speech output."""

    processor: SpeechProcessor
    sessions: SpeechSessions
    encoder: AudioEncoder
    thread: EngineThread | None  # of the engine, None where the server does not speak

    async def close(self) -> None:
        """End the engine and the encoder."""
        if self.thread is not None:
            await asyncio.to_thread(self.thread.close)
        await self.encoder.close()


@dataclass(frozen=True, slots=True)
class SharedThread:
    """The engine thread of recognition, and the speech engines on it by the names of their options."""

    thread: EngineThread
    engines: Mapping[str, Batch]


def build_speech(
    settings: Settings,
    resolved: Plan,
    shared: SharedThread,
    watch: SpeechObserver | None = None,
    on_failure: Callable[[EngineFailed], None] = lambda error: None,
) -> Speech:
    """Build the parts; the engine is loaded by its first sentence. `on_failure`: as for `EngineThread`."""
    wanted = {name: value for name in _OPTIONS if (value := resolved.value(name)) and name not in shared.engines}
    built = {
        name: registry.build(value, settings.fake_engine_script, resolved.features) for name, value in wanted.items()
    }
    own = {_key(name, n): engine for name, engines in built.items() for n, engine in enumerate(engines)}
    thread = _own_thread(own, settings.idle_timeout, watch, on_failure) if own else None
    clients = {
        name: [_client(shared.thread, cast("SpeechEngine", engine), name)] for name, engine in shared.engines.items()
    }
    if thread is not None:
        for name, engines in built.items():
            keys = [_name(own, _key(name, n)) for n in range(len(engines))]
            clients[name] = [_client(thread, engine, key) for engine, key in zip(engines, keys, strict=True)]
    speaking: SpeechEngines | str = resolved.reason(SPEECH)
    if SPEECH in clients:
        clones = clients.get(CLONE)
        named = (*clients[SPEECH], *clients.get(OTHERS, ()))
        speaking = SpeechEngines(named, clones[0] if clones else None)
    admission = Admission(
        settings.max_queue_speech_s,
        # The only key of a server shares it with nobody.
        share_s=math.inf if len(settings.keys) == 1 else settings.max_queue_speech_s / 2,
        time_limit_s=settings.request_timeout,
        engine_s=lambda: (thread if thread is not None else shared.thread).work.with_recordings_s,
        first_guess_speed=min((engine.traits.first_guess_speed for engine in own.values()), default=FIRST_GUESS_SPEED),
    )
    encoder = AudioEncoder(idle_timeout_s=settings.idle_timeout)
    cache = SpeechCache(int(settings.audio_cache_mb * 2**20))
    processor = SpeechProcessor(speaking, encoder, admission, cache, settings, settings.request_timeout, watch)
    limits = SessionLimits(settings.max_speech_chars, settings.request_timeout, settings.speech_socket_idle_s)
    return Speech(processor, SpeechSessions(processor, limits, watch), encoder, thread)


def _own_thread(
    engines: Mapping[str, SpeechEngine],
    idle_timeout_s: float,
    watch: SpeechObserver | None,
    on_failure: Callable[[EngineFailed], None],
) -> EngineThread:
    """Return a thread for engines that use no accelerator, so that they never wait for a step of recognition."""
    named = {_name(engines, name): engine for name, engine in engines.items()}
    return EngineThread(
        named.pop(DEFAULT),
        others=named,
        idle_timeout_s=idle_timeout_s,
        on_state=_log_state,
        watch=watch,
        on_failure=on_failure,
    )


def _key(option: str, number: int) -> str:
    """Return a name of one of the engines of an option."""
    return option if number == 0 else f"{option}/{number}"


def _name(engines: Mapping[str, SpeechEngine], key: str) -> str:
    """Return the name of an engine on the thread, where the first one is the default."""
    return DEFAULT if key == next(iter(engines)) else key


def _client(thread: EngineThread, engine: SpeechEngine, name: str) -> SpeechEngineClient:
    return SpeechEngineClient(thread, engine.traits, engine.info.model_id, name)


def _log_state(model: str, state: ModelState, took_s: float) -> None:
    named = {"model": model} if model else {}
    logger.info("speech engine", state=state.value, took_s=round(took_s, 3), **named)
