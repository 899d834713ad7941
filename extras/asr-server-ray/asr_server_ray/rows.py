"""A row at an engine replica: sent again to another one if its replica goes, with the words that were handed out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from loguru import logger

from asr_server.core.errors import AsrError, TranscriptionFailed
from asr_server.engine.handed_out import HandedOut
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
    given = HandedOut(on_tokens)
    for lost in count(1):
        try:
            async for answer in replicas.answers(sender.call(_resumed(item, given), is_live=is_live)):
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


def _resumed(item: Utterance | AlignItem, given: HandedOut) -> Utterance | AlignItem:
    return item if isinstance(item, AlignItem) else given.resumed(item)
