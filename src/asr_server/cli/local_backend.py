"""This process as the hearer of a batch: the server's own machinery without a server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from asr_server.cli.backend import BackendResult, Duration, Event, Layout, Progress, RequestOptions, WordMode, remarks
from asr_server.cli.failure import Exit, Failure, UsageError
from asr_server.core.errors import AsrError, ModelUnavailable, TranslationUnavailable
from asr_server.core.transcript import Segment, Transcript
from asr_server.service.output import subtitles
from asr_server.service.output.render import Shape, render
from asr_server.service.processor import SubtitleRequest, TranslationRequest
from asr_server.service.recordings.transcriber import Item, TextDelta, TranscriptionStarted
from asr_server.service.requests import TranscribeOptions, WordTimes, context
from asr_server.service.translations import TranslateOptions
from asr_server.subtitle.cue_config import CueConfig
from asr_server.text import languages

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server.server import Machinery

# Nobody else waits: what bounds a server's callers does not bound one's own work.
_UNBOUNDED_S = 1e9


def settings_for_one(model_id: str | None) -> Settings:
    """The environment's settings, but for the bounds that are there for many callers. Raises `SettingsError`."""
    from asr_server.core import settings

    chosen = {"model_id": model_id} if model_id else {}
    return settings.load(idle_timeout=0, request_timeout=_UNBOUNDED_S, max_queue_audio_s=_UNBOUNDED_S, **chosen)


def end_now() -> None:
    """End this process after an interruption, without the interpreter's wait for the engine's thread."""
    sys.stdout.flush()
    os._exit(Exit.INTERRUPTED)


class LocalBackend:
    """Implements `Hearer` with a model of its own, loaded by the first recording."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._machinery: Machinery | None = None

    async def __aenter__(self) -> LocalBackend:
        from asr_server import server
        from asr_server.core import logger
        from asr_server.core.settings import LogLevel
        from asr_server.engine import capabilities, plan

        logger.configure(LogLevel.ERROR, as_json=False)
        self._machinery = server.machinery(self._settings, plan.resolve(self._settings, capabilities.probe()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._machinery is not None
        if kind is asyncio.CancelledError:
            # A model that is being loaded cannot be stopped, and nobody waits for it: `end_now` leaves it behind.
            await self._machinery.decoder.close()
        else:
            await self._machinery.close()

    async def hear(self, recording: BinaryIO, wish: RequestOptions) -> AsyncGenerator[Event, None]:
        """The events of one recording."""
        try:
            work = self._transcript(recording, wish) if wish.layout is None else self._product(recording, wish)
            async with aclosing(work) as events:
                async for event in events:
                    yield event
        except ModelUnavailable as error:
            raise UsageError(error.message) from error
        except AsrError as error:
            raise Failure(error.code, error.message) from error

    async def forget(self, job: str) -> None:
        """There are no jobs here."""

    async def _transcript(self, recording: BinaryIO, wish: RequestOptions) -> AsyncGenerator[Event, None]:
        """As it grows."""
        assert self._machinery is not None
        rules = subtitles.rules(self._settings)
        work = self._machinery.transcriber.stream(recording, _options(wish), pieces=wish.stream)
        async with aclosing(work) as items:
            async for item in items:
                yield _event(item, wish, rules)

    async def _product(self, recording: BinaryIO, wish: RequestOptions) -> AsyncGenerator[Event, None]:
        """Subtitles and translations: progress, then the whole."""
        assert self._machinery is not None
        if wish.target:
            self._check_endpoint()
        news: asyncio.Queue[Event | None] = asyncio.Queue()

        def tell(done_s: float, claimed_s: float) -> None:
            if claimed_s:
                news.put_nowait(Duration(claimed_s))
            news.put_nowait(Progress(done_s))

        task = asyncio.create_task(self._machinery.producer.produce(recording, self._request(wish), tell))
        task.add_done_callback(lambda _: news.put_nowait(None))
        try:
            while (event := await news.get()) is not None:
                yield event
            product = await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        timing = product.body.notes.get("X-Subtitle-Timing", "")
        yield BackendResult(product.body.content.decode(), remarks(wish, timing, product.untranslated or 0))

    def _check_endpoint(self) -> None:
        assert self._machinery is not None
        try:
            self._machinery.translations.check()
        except TranslationUnavailable as error:  # true of all recordings
            raise UsageError(error.message) from error

    def _request(self, wish: RequestOptions) -> SubtitleRequest | TranslationRequest:
        layout = wish.layout or Layout()
        rules = subtitles.rules(self._settings, max_line_columns=layout.max_line_columns, max_lines=layout.max_lines)
        shape = Shape(wish.response_format, cues=rules)
        if wish.target is None:
            return SubtitleRequest(_options(wish), shape)
        from asr_server.text import target_languages

        source = languages.normalize(wish.language)
        translating = TranslateOptions(
            target=target_languages.find(wish.target.tag),
            source=target_languages.find(source) if source else None,
            glossary=wish.target.glossary,
        )
        return TranslationRequest(_options(wish), translating, shape, wish.target.bilingual)


def _options(wish: RequestOptions) -> TranscribeOptions:
    times = wish.layout.times if wish.layout else WordTimes.ALIGNED
    return TranscribeOptions(
        language=languages.normalize(wish.language),
        context=context(wish.prompt, list(wish.hotwords)),
        words=times if wish.response_format.is_subtitles else WordTimes.NONE,
    )


def _event(item: Item, wish: RequestOptions, rules: CueConfig) -> Event:
    match item:
        case TranscriptionStarted():
            return Duration(item.claimed_s) if item.claimed_s else Progress(0.0)
        case TextDelta():
            return WordMode(item.text)
        case Segment():
            return Progress(item.end_ms / 1000)
        case Transcript():
            if wish.stream:
                return BackendResult("\n")
            return BackendResult(render(item, Shape(wish.response_format, cues=rules)).content.decode())
