"""The captions of one shared session: its committed words, kept once for all of its readers.

A reader has no queue, only a place among the captions. When it is woken, it takes the newer ones. So a late, a
returning and a slow reader differ only in their place, and all three are bounded by the captions that are kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from asr_server.core.errors import InvalidInput
from asr_server.net.event_stream import frame
from asr_server.net.loop_time import slice_queue
from asr_server.subtitle import cue_segmentation
from asr_server.subtitle.alignment import estimate
from asr_server.subtitle.cues import Cue, CueConfig, render_vtt
from asr_server.text import languages

# About an hour of speech. The characters bound the memory; the finals bound the time that a reader needs to catch up.
_KEPT_FINALS, _KEPT_CHARACTERS = 400, 100_000
# The event loop time of one reader for a caption: of its tasks and of its write to the socket.
_READER_S = 0.0002


class EndReason(StrEnum):
    """The reasons for which the stream of a reader ends without an error."""

    SESSION = "session"  # the session has ended on this server
    REVOKED = "revoked"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Caption:
    """The committed text of an utterance. A later caption of the same utterance begins with this text."""

    utterance: int
    text: str
    start_s: float  # since the session began
    end_s: float
    language: str  # the model's name of the language, "" if it is not known
    is_final: bool = False
    number: int = 0  # counts the captions of a session, from 1 on

    @cached_property
    def frame(self) -> str:
        """The event of the stream, written once for all readers. Its id is the number."""
        content = {
            "type": "final" if self.is_final else "words",
            "utterance": self.utterance,
            "text": self.text,
            "start": round(self.start_s, 3),
            "end": round(self.end_s, 3),
            "language_code": languages.code(self.language),
        }
        return f"id: {self.number}\n{frame(content)}"

    @cached_property
    def cues(self) -> list[Cue]:
        """Its text as cues, whose times are estimated between its beginning and its end."""
        start_ms, end_ms = round(1000 * self.start_s), round(1000 * self.end_s)
        words = estimate(self.text, self.language, [(start_ms, max(end_ms, start_ms + 1))])
        return cue_segmentation.cues([cue_segmentation.Passage(self.text, words)], CueConfig(), end_ms)


def vtt(finals: Iterable[Caption]) -> str:
    return render_vtt(cue for final in finals for cue in final.cues)


class Captions:
    """The newest finals of a session and its open utterance, and the readers. For one event loop."""

    def __init__(self) -> None:
        self.readers: set[Reader] = set()
        self.newest = 0  # the number of the newest caption
        self.dropped = 0  # the number of the newest final that is no longer kept, 0 for none
        self.open: Caption | None = None  # of an utterance without a final
        self.finals: deque[Caption] = deque()
        self._characters = 0  # of the finals

    def put(self, caption: Caption) -> None:
        """Keep a caption, which gets the next number, and wake the readers."""
        self.newest += 1
        caption = replace(caption, number=self.newest)
        if not caption.is_final:
            self.open = caption
        else:
            if self.open is not None and self.open.utterance == caption.utterance:
                self.open = None
            self.finals.append(caption)
            self._characters += len(caption.text)
            while len(self.finals) > _KEPT_FINALS or self._characters > _KEPT_CHARACTERS:
                dropped = self.finals.popleft()
                self.dropped, self._characters = dropped.number, self._characters - len(dropped.text)
        for reader in self.readers:
            reader.wake_soon()

    def after(self, number: int) -> list[Caption]:
        """Return the kept captions that are newer than the caption of this number, in the order of numbers."""
        kept = self.finals if self.open is None else (*self.finals, self.open)
        return sorted((one for one in kept if one.number > number), key=lambda one: one.number)


class Reader:
    """One reader of a session. `after`: the number of the newest caption that the reader has, 0 for none."""

    def __init__(self, captions: Captions, after: int = 0) -> None:
        self._captions = captions
        self.is_complete = after >= captions.dropped  # no final is missing between those it has and gets
        self._after = max(min(after, captions.newest), captions.dropped)
        self.end_reason: EndReason | None = None  # None until the stream is ended
        self._is_called = False  # a wake-up is scheduled
        self._woken = asyncio.Event()

    def wake_soon(self) -> None:
        """Wake the reader in one of the next rounds of the event loop.

        Each round wakes only a few readers: all of them at once would delay the speaker's own messages for as long as
        they take together.
        """
        if not self._is_called:
            self._is_called = True
            slice_queue().soon(self._wake, _READER_S)

    def end(self, reason: EndReason) -> None:
        """End the stream: at once if the link is no longer valid, otherwise after the captions that are kept."""
        self.end_reason = self.end_reason or reason
        self._woken.set()

    async def captions(self) -> AsyncGenerator[Caption, None]:
        """Yield the kept captions and then new ones, until the stream is ended.

        Words that the reader has not taken when newer ones come are left out, since the newer text begins with them.
        Raises `slow_reader` if a final was dropped that the reader had not taken.
        """
        while True:
            if self._after < self._captions.dropped:
                raise InvalidInput(
                    "The client did not read for so long that texts were dropped which it has not read.",
                    code="slow_reader",
                )
            new = self._captions.after(self._after)
            for caption in new:
                if self.end_reason in (EndReason.REVOKED, EndReason.EXPIRED):
                    return
                self._after = caption.number
                yield caption
            if not new:
                if self.end_reason is not None:
                    return
                self._woken.clear()
                await self._woken.wait()

    def _wake(self) -> None:
        self._is_called = False
        self._woken.set()
