"""Builds what turns texts into speech: the engine on its thread, the encoder, the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.audio.encoding.client import AudioEncoder
from asr_server.engine.speech import registry
from asr_server.engine.speech.client import SpeechClient
from asr_server.scheduling.admission import Admission
from asr_server.scheduling.model import ModelState
from asr_server.scheduling.thread import EngineThread
from asr_server.service.speech.cache import SpeechCache
from asr_server.service.speech.script import SpeechEngines
from asr_server.service.speech.session import SessionLimits
from asr_server.service.speech.sessions import SpeechSessions
from asr_server.service.speech.synthesis import SpeechProcessor

if TYPE_CHECKING:
    from asr_server.core.errors import EngineFailed
    from asr_server.core.settings import Settings
    from asr_server.engine.plan import Plan
    from asr_server.service.speech.observer import SpeechObserver

# The option, and the name on the thread of the engine that imitates voices.
_CLONE = "speech_clone_model"


@dataclass(frozen=True, slots=True)
class Speech:
    """`thread`: that of the engine, None where the server is silent."""

    processor: SpeechProcessor
    sessions: SpeechSessions
    encoder: AudioEncoder
    thread: EngineThread | None

    async def close(self) -> None:
        """End the engine and the encoder."""
        if self.thread is not None:
            await asyncio.to_thread(self.thread.close)
        await self.encoder.close()


def build_speech(
    settings: Settings,
    resolved: Plan,
    *,
    watch: SpeechObserver | None = None,
    on_failure: Callable[[EngineFailed], None] = lambda error: None,
) -> Speech:
    """Build it; the engine is loaded by its first sentence. `on_failure`: as of the engine thread."""
    thread: EngineThread | None = None
    engines: SpeechEngines | str = resolved.reason("speech")
    if resolved.is_active("speech"):
        thread, engines = _engines(settings, resolved, watch, on_failure)
    admission = Admission(
        settings.max_queue_speech_s,
        time_limit_s=settings.request_timeout,
        engine_s=(lambda: thread.recordings_s) if thread is not None else lambda: 0.0,
    )
    encoder = AudioEncoder(idle_timeout_s=settings.idle_timeout)
    cache = SpeechCache(int(settings.audio_cache_mb * 2**20))
    processor = SpeechProcessor(engines, encoder, admission, cache, settings, settings.request_timeout, watch)
    limits = SessionLimits(settings.max_speech_chars, settings.request_timeout, settings.speech_socket_idle_s)
    return Speech(processor, SpeechSessions(processor, encoder, limits), encoder, thread)


def _engines(
    settings: Settings, resolved: Plan, watch: SpeechObserver | None, on_failure: Callable[[EngineFailed], None]
) -> tuple[EngineThread, SpeechEngines]:
    """On a thread of their own, so that they never wait for a step of recognition."""
    script = settings.fake_engine_script
    named = registry.build(resolved.value("speech"), script)
    clone = registry.build(resolved.value(_CLONE), script) if resolved.is_active(_CLONE) else None
    others = {_CLONE: clone} if clone is not None else {}
    thread = EngineThread(
        named,
        others=others,
        idle_timeout_s=settings.idle_timeout,
        on_state=_log_state,
        watch=watch,
        on_failure=on_failure,
    )
    imitating = SpeechClient(thread, clone.traits, clone.info.model_id, _CLONE) if clone is not None else None
    return thread, SpeechEngines(SpeechClient(thread, named.traits, named.info.model_id), imitating)


def _log_state(model: str, state: ModelState, took_s: float) -> None:
    named = {"model": model} if model else {}
    logger.info("speech engine", state=state.value, took_s=round(took_s, 3), **named)
