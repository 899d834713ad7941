"""The captions of a shared session in another language: each final is translated once, for all readers of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from asr_server.core.errors import AsrError, SlowReader
from asr_server.features.sharing.captions import Caption, Captions, EndReason, Reader
from asr_server.features.translation.lines import Reason, Translated
from asr_server.text.languages import LanguageTag

# Those before them are shown as they were said: a late translation would be behind all that follows.
_MAX_WAITING = 20

# Texts, the name of their language ("" where it is not one), and the outcome of each. Raises `AsrError`.
Translate = Callable[[Sequence[str], str], Awaitable[list[Translated]]]


class TranslatedCaptions:
    """Translates the finals of a session in their order, by a task that begins with the first reader.

    What the speaker says waits for nothing here: the task takes what is kept for all readers, as a reader does.
    A final keeps its number. One that could not be translated has the text of the speaker, and says why.
    """

    def __init__(self, source: Captions, target: LanguageTag, translate: Translate) -> None:
        self.captions = Captions(is_behind=True)
        self._source, self._target, self._translate = source, target, translate
        self._reader = Reader(source)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to translate, unless that has happened."""
        if self._task is None:
            self._source.readers.add(self._reader)
            self._task = asyncio.create_task(self._run())

    def end(self, reason: EndReason) -> None:
        """End: at the end of the session once all finals are translated, else after those that are at work."""
        self._reader.end(reason)

    async def _run(self) -> None:
        try:
            while not await self._follow():
                pass
        finally:
            self._source.readers.discard(self._reader)
            self.captions.is_behind = False
            for reader in self.captions.readers:
                reader.wake_soon()

    async def _follow(self) -> bool:
        """Translate finals as they come. Returns False if some were dropped before they were taken."""
        try:
            async for _ in self._reader.captions():
                await self._catch_up()
        except SlowReader:
            self._reader.skip()
            return False
        return True

    async def _catch_up(self) -> None:
        while waiting := [one for one in self._source.finals if one.number > self.captions.newest]:
            late, asked = waiting[:-_MAX_WAITING], waiting[-_MAX_WAITING:]
            for caption in late:
                self._put(caption, Translated(caption.text, False, Reason.TIME))
            spoken = {caption.language for caption in asked}
            try:
                lines = await self._translate(
                    [caption.text for caption in asked], spoken.pop() if len(spoken) == 1 else ""
                )
            except AsrError:
                lines = [Translated(caption.text, False, Reason.ENDPOINT) for caption in asked]
            for caption, line in zip(asked, lines, strict=True):
                self._put(caption, line)

    def _put(self, caption: Caption, line: Translated) -> None:
        language = self._target.name if line.translated else caption.language
        code = self._target.tag if line.translated else ""
        self.captions.put(replace(caption, text=line.text, language=language, tag=code, reason=line.reason.value))
