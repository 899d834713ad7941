"""The links of this server's live sessions, and the part of a session that gives readers its committed words.

A link is kept in memory, by the digest of its token, and ends with its session. A resumed session is the same session
and keeps its links. A new session in place of a lost one needs new links.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import InvalidInput, Overloaded
from asr_server.features.sharing.captions import Caption, Captions, EndReason, Reader
from asr_server.live.machine.events import Final, Partial, ResetDone
from asr_server.live.outbox import Message, Outgoing, SessionPart
from asr_server.processes.caller_work import FairShares

if TYPE_CHECKING:
    from asr_server.live.session import LiveSession

_TOKEN_BYTES = 24
_MAX_LINKS = 16  # of a session
# A reader takes about 100 kB with its connection, and 0.2 ms of the event loop for each text.
_MAX_READERS_OF_SESSION, _MAX_READERS = 500, 2_000
_RETRY_S = 30
# Links of ended sessions are kept, so that readers that were cut off find the last texts.
_KEPT_AFTER_END_S, _MAX_ENDED_LINKS = 60, 200


@dataclass(eq=False, slots=True)
class Link:
    """A link to one session. It ends when it expires or is revoked, or at the latest a minute after its session."""

    part: SharedPart
    expiry: asyncio.TimerHandle
    readers: set[Reader] = field(default_factory=set)
    is_ended: bool = False  # its session has ended

    def close(self, reason: EndReason) -> None:
        """End the streams of its readers."""
        self.expiry.cancel()
        self.is_ended = reason is EndReason.SESSION
        for reader in self.readers:
            reader.end(reason)


class Sharing:
    """The shared sessions of this server. For one event loop."""

    def __init__(self) -> None:
        self._links: dict[bytes, Link] = {}  # by the digest of the token, so that lookup times do not leak tokens
        self._ended: dict[bytes, None] = {}  # digests of links whose sessions have ended, the oldest first
        self._readers = FairShares(_MAX_READERS, _MAX_READERS)  # by the owners of their sessions

    def share(self, session: LiveSession, owner: str, expires_s: float) -> str:
        """Make a link to the owner's session. Return its token, which is not kept. Raises `Overloaded`."""
        part = _part_of(session)
        if part is None:
            # Only now, since words before the first link are not kept. After the other parts, so that readers get the
            # texts as the speaker does.
            part = SharedPart(owner, self)
            session.parts.append(part)
        if len(part.links) >= _MAX_LINKS:
            raise Overloaded(f"A session has {_MAX_LINKS} links at most: revoke one first.", retry_after_s=_RETRY_S)
        server_name = session.id.partition("_")[0]  # a proxy may need it to find this server
        token = f"{server_name}_{secrets.token_urlsafe(_TOKEN_BYTES)}"
        digest = _digest(token)
        timer = asyncio.get_running_loop().call_later(expires_s, self._close, part, digest, EndReason.EXPIRED)
        self._links[digest] = part.links[digest] = Link(part, timer)
        return token

    def revoke(self, session: LiveSession, token: str) -> None:
        """End a link of a session. Raises `session_not_found`, also for a link of another session."""
        part, digest = _part_of(session), _digest(token)
        if part is None or digest not in part.links:
            raise InvalidInput("The session has no such link.", code="session_not_found", param="token")
        self._close(part, digest, EndReason.REVOKED)

    def link(self, token: str) -> Link:
        """Return the link of a token. Raises `session_not_found`."""
        link = self._links.get(_digest(token))
        if link is None:
            raise InvalidInput(
                "The link is not valid: it has ended with its session, expired or been revoked.",
                code="session_not_found",
            )
        return link

    @contextmanager
    def reading(self, token: str, after: int) -> Iterator[Reader]:
        """Give the link one more reader until the block ends. Raises `session_not_found` and `Overloaded`.

        `after`: the number of the newest caption that the reader has, 0 for none.
        """
        link = self.link(token)
        refusal = Overloaded("The session has as many readers as it may; try again later.", retry_after_s=_RETRY_S)
        captions = link.part.captions
        if len(captions.readers) >= _MAX_READERS_OF_SESSION:
            raise refusal
        reader = Reader(captions, after)
        if link.is_ended:
            reader.end(EndReason.SESSION)
        with self._readers.taken_now(link.part.owner, refusal):
            link.readers.add(reader)
            captions.readers.add(reader)
            try:
                yield reader
            finally:
                link.readers.remove(reader)
                captions.readers.remove(reader)

    def end(self, part: SharedPart) -> None:
        """End the links of a session that has ended. They can still be read for a minute."""
        loop = asyncio.get_running_loop()
        for digest, link in part.links.items():
            link.close(EndReason.SESSION)
            ends_s = min(link.expiry.when(), loop.time() + _KEPT_AFTER_END_S)
            link.expiry = loop.call_at(ends_s, self._forget, digest)
            self._ended[digest] = None
        part.links.clear()
        while len(self._ended) > _MAX_ENDED_LINKS:
            self._forget(next(iter(self._ended)))

    def _forget(self, digest: bytes) -> None:
        del self._ended[digest]
        self._links.pop(digest).expiry.cancel()

    def _close(self, part: SharedPart, digest: bytes, reason: EndReason) -> None:
        del self._links[digest]
        part.links.pop(digest).close(reason)


def _part_of(session: LiveSession) -> SharedPart | None:
    return next((part for part in session.parts if isinstance(part, SharedPart)), None)


class SharedPart(SessionPart):
    """The part of a session that has, or had, a link."""

    def __init__(self, owner: str, sharing: Sharing) -> None:
        self.owner = owner
        self.links: dict[bytes, Link] = {}
        self.captions = Captions()
        self._sharing = sharing

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Give the committed words to the readers; the message stays as it is."""
        if (caption := self._caption(outgoing.message, self.captions.open)) is not None:
            self.captions.put(caption)
        return outgoing

    def close(self) -> None:
        self._sharing.end(self)

    def _caption(self, message: Message, shown: Caption | None) -> Caption | None:
        """Return the caption of a message with words that readers lack. `shown`: the caption of the open utterance.

        A reset discards the open utterance for the speaker. Readers keep the words that they have seen, as a final. An
        ended utterance still gets its own final after a reset.
        """
        match message:
            case Partial(committed=text) if text:
                if shown is not None and (shown.utterance, shown.text) == (message.utterance, text):
                    return None
            case Final(text=text) if text:
                pass
            case ResetDone(utterance=discarded) if shown is not None and shown.utterance == discarded:
                return replace(shown, is_final=True)
            case _:
                return None
        start_s, end_s = samples_to_s(message.start_samples), samples_to_s(message.end_samples)
        return Caption(message.utterance, text, start_s, end_s, message.language, isinstance(message, Final))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
