"""The links of this server's live sessions, and the part of a session that gives its readers what it commits.

A link is kept in memory, by the digest of its token, and ends with its session. A session that is resumed is the same
session, and keeps its links. One that goes on at another server, or in another process of this one, has ended here for
its readers.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import InvalidValue, Overloaded, SessionNotFound
from asr_server.features.sharing.captions import Caption, Captions, EndReason, Reader, vtt
from asr_server.features.sharing.segments import Segments
from asr_server.features.sharing.translated import Translate, TranslatedCaptions
from asr_server.live.machine.events import Final, Partial, ResetDone
from asr_server.live.options import Opening, PartRequest, PartSession, SessionPart
from asr_server.live.outbox import Message, Outgoing
from asr_server.processes.threads import in_thread
from asr_server.schedule.siblings import Siblings
from asr_server.text import languages
from asr_server.text.languages import LanguageTag

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from asr_server.live.machine.utterance import Frame

_TOKEN_BYTES = 24
_MAX_LINKS = 16  # of a session
MAX_LANGUAGES = 4  # of a session: each final is translated into each of them
# A reader takes about 100 kB with its connection, and 0.2 ms of the event loop for each text. A key has at most as many
# as are left, so that there are always some for another key.
_MAX_READERS_OF_SESSION, _MAX_READERS = 500, 2_000
_RETRY_S = 30
# So that players find the end of a playlist, and readers that were cut off the last texts.
_KEPT_AFTER_END_S, _MAX_ENDED_LINKS = 60, 200
# What is said before the first words of an utterance are there, and the longest time until its final.
_FIRST_WORDS_S, _LONGEST_UTTERANCE_S = 5.0, 60.0


@dataclass(eq=False, slots=True)
class Link:
    """A link to one session. It ends at its expiry, when it is revoked, and a minute after its session."""

    session: SharedPart
    captions: Captions
    translations: dict[str, TranslatedCaptions]  # by tags: the languages that it offers
    expiry: asyncio.TimerHandle
    readers: set[Reader] = field(default_factory=set)
    segments: dict[str, Segments] = field(default_factory=dict)  # by tags, "" for the language of the speaker
    is_ended: bool = False  # its session is

    def captions_in(self, language: str) -> Captions:
        """Return the captions in a language, "" for that of the speaker. Raises `InvalidInput` and its kinds."""
        if not language:
            return self.captions
        tag = languages.find(language, param="language").tag
        if tag not in self.translations:
            offered = ", ".join(self.translations) or "none"
            raise InvalidValue(f"The link has no captions in this language. It offers: {offered}.", param="language")
        self.translations[tag].begin()
        return self.translations[tag].captions

    async def segments_in(self, language: str) -> Segments:
        """Return the segments of now in a language. Raises as `captions_in`."""
        captions = self.captions_in(language)
        name = language and languages.find(language).tag
        segments = self.segments.setdefault(name, Segments())
        # It makes the cues, which finals keep. In a thread: the first request has those of many finals to make.
        await in_thread(vtt, segments.new(captions.finals, self.session.settled_s))
        untranslated = (one.start_s for one in self.captions.finals if one.number > captions.newest)
        settled_s = min(self.session.settled_s, *untranslated, math.inf)
        segments.advance(captions.finals, settled_s, is_complete=self.is_ended and not captions.is_behind)
        return segments

    def close(self, reason: EndReason) -> None:
        """End its readers."""
        self.expiry.cancel()
        self.is_ended = reason is EndReason.SESSION
        for reader in self.readers:
            reader.end(reason)


@dataclass(frozen=True, slots=True)
class IssuedLink:
    """A new link. Nothing else knows its token."""

    token: str
    expires_at_s: float  # Unix time


class Sharing:
    """The shared sessions of this server. For one event loop."""

    def __init__(self) -> None:
        self.sessions: dict[str, SharedPart] = {}  # by the ids of all sessions that can be shared
        self._links: dict[str, Link] = {}  # by the digests of their tokens: their times do not tell a token
        self._ended: dict[str, None] = {}  # digests of links whose sessions have ended, in that order
        self._readers = Counter[SharedPart | str]()  # by sessions, and by their owners
        self._all_readers = 0

    async def read_opening(self, socket: WebSocket, opening: Opening) -> Opening:
        """Add the part to a session of `WS /ws/transcribe`. It costs nothing until the session has a link."""
        owner, siblings = socket.state.caller.owner, socket.app.state.services.admission.siblings
        return opening.with_part(PartRequest(lambda session: SharedPart(session, owner, self, siblings)))

    def share(
        self, session_id: str, owner: str, expires_s: float, translators: Mapping[LanguageTag, Translate] | None = None
    ) -> IssuedLink:
        """Return a new link to a session. `translators`: by the languages that the link offers.

        Raises `SessionNotFound`, also for another owner's, and `Overloaded`.
        """
        session = self._session(session_id, owner)
        if len(session.links) >= _MAX_LINKS:
            raise Overloaded(f"A session has {_MAX_LINKS} links at most: revoke one first.", retry_after_s=_RETRY_S)
        if session.captions is None:
            session.captions = Captions()
        wanted = {language.tag: (language, translate) for language, translate in (translators or {}).items()}
        if len(session.translations.keys() | wanted.keys()) > MAX_LANGUAGES:
            message = f"The links of a session offer {MAX_LANGUAGES} languages at most: revoke one first."
            raise Overloaded(message, retry_after_s=_RETRY_S)
        for tag in wanted.keys() - session.translations.keys():
            session.translations[tag] = TranslatedCaptions(session.captions, *wanted[tag])
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        name = digest(token)
        timer = asyncio.get_running_loop().call_later(expires_s, self._close, session, name, EndReason.EXPIRED)
        offered = {tag: session.translations[tag] for tag in wanted}
        self._links[name] = session.links[name] = Link(session, session.captions, offered, timer)
        session.siblings.note_session(name, kept=True)
        return IssuedLink(token, time.time() + expires_s)

    def revoke(self, session_id: str, owner: str, token: str) -> None:
        """End a link of a session. Raises `SessionNotFound`, also for a link of another session."""
        session, name = self._session(session_id, owner), digest(token)
        if name not in session.links:
            raise SessionNotFound("The session has no such link.", param="token")
        self._close(session, name, EndReason.REVOKED)

    def link(self, token: str) -> Link:
        """Return the link of a token. Raises `SessionNotFound`."""
        link = self._links.get(digest(token))
        if link is None:
            raise SessionNotFound("The link is not valid: it has ended with its session, expired or been revoked.")
        return link

    @contextmanager
    def reading(self, token: str, after: int, language: str = "") -> Iterator[Reader]:
        """Give the link one more reader until the block ends. Raises as `Link.captions_in`, `SessionNotFound` and
        `Overloaded`.

        `after`: the number of the newest caption that it has, 0 for none.
        """
        link = self.link(token)
        session, owner = link.session, link.session.owner
        left = _MAX_READERS - self._all_readers
        if self._readers[session] >= _MAX_READERS_OF_SESSION or self._readers[owner] >= left:
            raise Overloaded("The session has as many readers as it may; try again later.", retry_after_s=_RETRY_S)
        captions = link.captions_in(language)
        reader = Reader(captions, after)
        if link.is_ended:
            reader.end(EndReason.SESSION)
        self._readers.update((session, owner))
        self._all_readers += 1
        link.readers.add(reader)
        captions.readers.add(reader)
        try:
            yield reader
        finally:
            self._readers -= Counter((session, owner))
            self._all_readers -= 1
            link.readers.remove(reader)
            captions.readers.remove(reader)

    def end(self, session: SharedPart) -> None:
        """Forget a session that has ended, and end its links, which can be read for a minute more."""
        if self.sessions.get(session.id) is session:
            del self.sessions[session.id]
        loop = asyncio.get_running_loop()
        for name, link in session.links.items():
            link.close(EndReason.SESSION)
            ends_s = min(link.expiry.when(), loop.time() + _KEPT_AFTER_END_S)
            link.expiry = loop.call_at(ends_s, self._forget, name)
            self._ended[name] = None
        for translation in session.translations.values():
            translation.reader.end(EndReason.SESSION)
        session.links.clear()
        session.translations.clear()
        while len(self._ended) > _MAX_ENDED_LINKS:
            self._forget(next(iter(self._ended)))

    def _forget(self, name: str) -> None:
        del self._ended[name]
        self._remove(name).expiry.cancel()

    def _close(self, session: SharedPart, name: str, reason: EndReason) -> None:
        self._remove(name)
        session.links.pop(name).close(reason)
        offered = {tag for link in session.links.values() for tag in link.translations}
        for tag in session.translations.keys() - offered:
            session.translations.pop(tag).reader.end(reason)

    def _remove(self, name: str) -> Link:
        link = self._links.pop(name)
        link.session.siblings.note_session(name, kept=False)
        return link

    def _session(self, session_id: str, owner: str) -> SharedPart:
        session = self.sessions.get(session_id)
        if session is None or session.owner != owner:
            raise SessionNotFound("No session of this id is open here.", param="session_id")
        return session


class SharedPart(SessionPart):
    """The part of one session. It stands last, so that it has the texts as the speaker gets them.

    `siblings`: other processes that serve the port, which pass on what is asked of its links.
    """

    def __init__(self, session: PartSession, owner: str, sharing: Sharing, siblings: Siblings | None = None) -> None:
        self.id, self.owner = session.id, owner
        self.siblings = siblings or Siblings()
        self.links: dict[str, Link] = {}
        self.translations: dict[str, TranslatedCaptions] = {}  # by tags: the languages that its links offer
        self.captions: Captions | None = None  # None before the first link: what was said before is not kept
        self._begin, self._sharing = session.begin, sharing
        self._samples = 0  # that it has heard
        self._open_s: dict[int, float] = {}  # where utterances begin that have words and no final
        sharing.sessions[self.id] = self

    @property
    def settled_s(self) -> float:
        """Return the time of the session before which no final will begin that the readers lack.

        One may all the same where the engine is late, as an utterance is known with its first words alone.
        """
        heard_s = samples_to_s(self._begin.samples + self._samples)
        settled_s = min(heard_s - _FIRST_WORDS_S, *self._open_s.values(), math.inf)
        return max(settled_s, heard_s - _LONGEST_UTTERANCE_S, 0.0)

    def on_frame(self, frame: Frame) -> None:
        """Count its samples, as the clock of the session does."""
        self._samples += len(frame.samples)

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Give the committed words to the readers; the message stays as it is."""
        self._note_open(outgoing.message)
        if self.captions is not None and (caption := self._caption(outgoing.message, self.captions.open)) is not None:
            self.captions.put(caption)
        return outgoing

    def close(self) -> None:
        """End the links: the session is over."""
        self._sharing.end(self)

    def _note_open(self, message: Message) -> None:
        match message:
            case Partial() if message.committed or message.tentative:
                start_s = samples_to_s(self._begin.samples + message.start_samples)
                self._open_s.setdefault(message.utterance, start_s)
            case Final():  # they come in order
                self._open_s = {n: start_s for n, start_s in self._open_s.items() if n > message.utterance}
            case ResetDone():
                self._open_s.clear()

    def _caption(self, message: Message, shown: Caption | None) -> Caption | None:
        """Return the caption of a message that has words which the readers lack. `shown`: that of the open utterance.

        A reset takes the open utterance from the speaker. Readers keep the words that they have seen, as a final.
        """
        match message:
            case Partial(committed=text) if text:
                made = self._made(message, text)
                return made if shown is None or not shown.has_text_of(made) else None
            case Final(text=text) if text:
                return self._made(message, text)
            case ResetDone() if shown is not None:
                return Caption(shown.utterance, shown.text, shown.start_s, shown.end_s, shown.language, True)
        return None

    def _made(self, message: Partial | Final, text: str) -> Caption:
        begin = self._begin
        return Caption(
            begin.utterances + message.utterance,
            text,
            samples_to_s(begin.samples + message.start_samples),
            samples_to_s(begin.samples + message.end_samples),
            message.language,
            isinstance(message, Final),
        )


def digest(token: str) -> str:
    """Return what a link is known by within the server."""
    return hashlib.sha256(token.encode()).hexdigest()
