"""A place from which another server can go on with a live session. Its client carries it there. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asr_server.live.actions import TURN_LIKELY
from asr_server.live.options import SessionBegin

Message = dict[str, Any]
Run = Mapping[str, str | None]  # {"speaker", "text"}: text of one speaker


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """The settings that a client may change in the middle of a session."""

    language: str = ""  # the model's name of it, "" for none
    hotwords: str = ""
    manual: bool = False
    semantic: bool | None = None  # a pause is judged by what was said, or by its length alone; None: as the server does

    @property
    def endpointing(self) -> str:
        """Return the same in the words of a query."""
        if self.manual:
            return "manual"
        return {True: "semantic", False: "pause", None: "auto"}[self.semantic]


@dataclass(frozen=True, slots=True)
class Continuation(SessionBegin):
    """A place in a session, with all that another server needs to go on there. The order of fields is that of the
    state on the wire."""

    carried_over: str = ""  # words that the client was shown before their audio moved into the next utterance
    first_speaker: int = 0  # the index of the first letter that no speaker has
    configured: TurnSettings | None = None  # by the client; None for what its query says


@dataclass(frozen=True, slots=True)
class ShownUtterance:
    """The text that the client has been shown of an utterance without a final."""

    utterance: int = 0  # its number; 0 for none
    committed: str = ""
    end_s: float = 0.0  # the end of the audio that the committed words are based on
    speakers: tuple[Run, ...] = ()  # whose words they are


@dataclass(frozen=True, slots=True)
class Offset:
    """The number of utterances and seconds before a session's own first ones."""

    utterances: int = 0
    seconds: float = 0.0

    def time_s(self, seconds: float) -> float:
        """Return a time of the session's own as one of the whole."""
        return round(seconds + self.seconds, 3)

    def applied(self, message: Message) -> Message:
        """Return the message by the numbers and times of the whole."""
        mapped = dict(message)
        if "utterance" in message:
            mapped["utterance"] += self.utterances
        if "text" in message:
            mapped |= self._times(message)
        if "words" in message:
            mapped["words"] = [{**word, **self._times(word)} for word in message["words"]]
        if message.get("type") == TURN_LIKELY:
            mapped["end"] = self.time_s(message["end"])
        if message.get("status") == "settled":
            mapped["seconds"] += self.seconds
        return mapped

    def _times(self, timed: Message) -> Message:
        return {"start": self.time_s(timed["start"]), "end": self.time_s(timed["end"])}
