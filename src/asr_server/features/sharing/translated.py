"""The captions of a shared session in another language: each sentence is translated once, for all readers of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from asr_server.core.errors import AsrError, SlowReader
from asr_server.features.sharing.captions import Caption, Captions, Reader
from asr_server.features.translation.lines import Reason, Translated
from asr_server.text import languages, scripts
from asr_server.text.languages import LanguageTag
from asr_server.text.sentences import SentenceStream

# Those before them are shown as they were said: a late translation would be behind all that follows.
_MAX_WAITING = 20
# An utterance may begin before the one before it has its final.
_MAX_OPEN = 4
# Decides about abbreviations while the language is not known.
_USUAL_LANGUAGE = "en"

# Texts, the name of their language ("" where it is not one), and the outcome of each. Raises `AsrError`.
Translate = Callable[[Sequence[str], str], Awaitable[list[Translated]]]


@dataclass(slots=True)
class _Utterance:
    """An utterance as far as it was taken."""

    sentences: SentenceStream
    taken: int = 0  # characters
    lines: list[Translated] = field(default_factory=list)  # of its sentences

    def take(self, caption: Caption) -> list[str]:
        """Return the sentences that are complete with this caption, whose text begins with those of before."""
        found = self.sentences.push(caption.text[self.taken :])
        self.taken = len(caption.text)
        return found + self.sentences.flush() if caption.is_final else found


class TranslatedCaptions:
    """Translates committed sentences of a session in their order, by a task that begins with the first reader.

    What the speaker says waits for nothing here: the task takes what is kept for all readers, as a reader does.
    A caption keeps its number. A sentence that could not be translated stays as it was said, and its caption says why.
    """

    def __init__(self, source: Captions, target: LanguageTag, translate: Translate) -> None:
        self.captions = Captions(is_behind=True)
        self._source, self._target, self._translate = source, target, translate
        self.reader = Reader(source)  # at its end, all that it was given is translated first
        self._seen = 0  # the number of the newest caption that was taken
        self._open: dict[int, _Utterance] = {}  # by their numbers
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to translate, unless that has happened."""
        if self._task is None:
            self._source.readers.add(self.reader)
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while not await self._follow():
                pass
        finally:
            self._source.readers.discard(self.reader)
            self.captions.is_behind = False
            for reader in self.captions.readers:
                reader.wake_soon()

    async def _follow(self) -> bool:
        """Translate captions as they come. Returns False if some were dropped before they were taken."""
        try:
            async for _ in self.reader.captions():
                await self._catch_up()
        except SlowReader:
            self.reader.skip()
            return False
        return True

    async def _catch_up(self) -> None:
        while captions := self._source.after(self._seen):
            self._seen = captions[-1].number
            found = []
            for caption in captions:
                found.append((caption, self._utterance(caption).take(caption)))
                await asyncio.sleep(0)  # the first time, there is an hour of speech to divide
            lines = iter(await self._translated([(caption, text) for caption, texts in found for text in texts]))
            for caption, texts in found:
                self._open[caption.utterance].lines += [next(lines) for _ in texts]
                if texts or caption.is_final:
                    self._put(caption)
            while len(self._open) > _MAX_OPEN:
                del self._open[next(iter(self._open))]

    def _utterance(self, caption: Caption) -> _Utterance:
        language = languages.code(caption.language) or _USUAL_LANGUAGE
        return self._open.setdefault(caption.utterance, _Utterance(SentenceStream(language)))

    async def _translated(self, sentences: Sequence[tuple[Caption, str]]) -> list[Translated]:
        late, asked = sentences[:-_MAX_WAITING], sentences[-_MAX_WAITING:]
        lines = [Translated(text, False, Reason.TIME) for _, text in late]
        if asked:
            spoken = {caption.language for caption, _ in asked}
            try:
                lines += await self._translate([text for _, text in asked], spoken.pop() if len(spoken) == 1 else "")
            except AsrError:
                lines += [Translated(text, False, Reason.ENDPOINT) for _, text in asked]
        return lines

    def _put(self, caption: Caption) -> None:
        """Show the sentences so far of the utterance of a caption. One without words stays as it is."""
        lines = self._open[caption.utterance].lines or [Translated(caption.text, False, Reason.NO_WORDS)]
        text = scripts.join(line.text for line in lines)
        reason = next((line.reason.value for line in lines if not line.translated), "")
        made = replace(caption, text=text, reason=reason)
        if any(line.translated for line in lines):
            made = replace(made, language=self._target.name, tag=self._target.tag)
        self.captions.put(made)
        if caption.is_final:
            del self._open[caption.utterance]
