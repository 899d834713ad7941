"""A row at an engine replica: sent again to another one if its replica goes, with the words that were handed out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from loguru import logger

from asr_server.core.errors import AsrError, TranscriptionFailed
from asr_server.engine.protocol import AlignItem, Alignment, Hypothesis, Tokens, Utterance
from asr_server_ray.messages import Answer, RowCall

# A row that ended with its replica this many times may be what ends them.
_MOST_REPLICAS_LOST = 3
_PAUSE_S = 0.05

_numbers = count(1)


class ReplicaLost(Exception):
    """The replica of a row is gone, or cannot go on."""


class Replicas(Protocol):
    """The engine replicas, as rows see them."""

    def answers(self, call: RowCall) -> AsyncIterator[Answer]:
        """Yield the answers of one of the replicas. Waits for one that can be reached. Raises `ReplicaLost`."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of rows for one model."""

    name: str  # of the app
    model: str
    waiting_s: Callable[[], float] = lambda: 0.0  # seconds of audio that wait at the app

    def call(self, item: Utterance | AlignItem, *, is_live: bool) -> RowCall:
        """Return a new call for a row."""
        return RowCall(next(_numbers), item, self.model, is_live, self.name, self.waiting_s())


async def result(
    replicas: Replicas,
    sender: Sender,
    item: Utterance | AlignItem,
    on_tokens: Callable[[Tokens], None] = lambda tokens: None,
    *,
    is_live: bool = False,
) -> Hypothesis | Alignment:
    """Return the row's result; `on_tokens` gets its tokens as they come, each once. Raises `AsrError`."""
    given = _Given(on_tokens)
    for lost in count(1):
        try:
            async for answer in replicas.answers(sender.call(given.resumed(item), is_live=is_live)):
                if isinstance(answer, AsrError):
                    raise answer
                if not isinstance(answer, Tokens):
                    return answer
                given.hand_out(answer)
            raise ReplicaLost("no result")
        except ReplicaLost as error:
            if lost == _MOST_REPLICAS_LOST:
                raise TranscriptionFailed("Every engine replica that worked on this audio ended.") from error
            logger.warning("a row is sent to another replica", tokens=len(given.ids), reason=str(error)[:200])
        given.begin_again()
        await asyncio.sleep(_PAUSE_S * lost)
    raise AssertionError("unreachable")


class _Given:
    """The tokens of a row that were handed out. A replica that gets them as the prefix sends them again."""

    def __init__(self, on_tokens: Callable[[Tokens], None]) -> None:
        self._on_tokens = on_tokens
        self.ids: tuple[int, ...] = ()
        self._chars = 0
        self._skip_ids = self._skip_chars = 0

    def resumed(self, item: Utterance | AlignItem) -> Utterance | AlignItem:
        """Return the row such that its answer begins with the tokens that were handed out."""
        if isinstance(item, AlignItem) or len(self.ids) <= len(item.prefix):
            return item
        return replace(item, prefix=self.ids, prefix_text=None)

    def begin_again(self) -> None:
        """Expect the tokens of an answer from its beginning."""
        self._skip_ids, self._skip_chars = len(self.ids), self._chars

    def hand_out(self, tokens: Tokens) -> None:
        """Pass on the tokens that are new."""
        new = Tokens(tokens.ids[self._skip_ids :], tokens.logprobs[self._skip_ids :], tokens.text[self._skip_chars :])
        self._skip_ids -= len(tokens.ids) - len(new.ids)
        self._skip_chars -= len(tokens.text) - len(new.text)
        if new.ids or new.text:
            self.ids += new.ids
            self._chars += len(new.text)
            self._on_tokens(new)
