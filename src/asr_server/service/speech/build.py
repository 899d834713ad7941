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
from asr_server.service.speech.synthesis import SpeechProcessor

if TYPE_CHECKING:
    from asr_server.core.errors import EngineFailed
    from asr_server.core.settings import Settings
    from asr_server.engine.plan import Plan
    from asr_server.service.speech.observer import SpeechObserver


@dataclass(frozen=True, slots=True)
class Speech:
    """`thread`: that of the engine, None where the server is silent."""

    processor: SpeechProcessor
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
        # On a thread of its own, so that it never waits for a step of recognition.
        engine = registry.build(resolved.value("speech"))
        thread = EngineThread(
            engine, idle_timeout_s=settings.idle_timeout, on_state=_log_state, watch=watch, on_failure=on_failure
        )
        engines = SpeechEngines(SpeechClient(thread, engine.traits, engine.info.model_id))
    admission = Admission(
        settings.max_queue_speech_s,
        time_limit_s=settings.request_timeout,
        engine_s=(lambda: thread.recordings_s) if thread is not None else lambda: 0.0,
    )
    encoder = AudioEncoder(idle_timeout_s=settings.idle_timeout)
    cache = SpeechCache(int(settings.audio_cache_mb * 2**20))
    processor = SpeechProcessor(engines, encoder, admission, cache, settings, settings.request_timeout, watch)
    return Speech(processor, encoder, thread)


def _log_state(model: str, state: ModelState, took_s: float) -> None:
    logger.info("speech engine", state=state.value, took_s=round(took_s, 3))
