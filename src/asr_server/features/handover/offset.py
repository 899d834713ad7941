"""The messages of a session that goes on with another one, in the numbers and times of the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
TURN_LIKELY = "turn.likely"  # the type of the message that tells that a speaker has probably finished


@dataclass(frozen=True, slots=True)
class Offset:
    """How many utterances and seconds there were before a session's own first ones."""

    utterances: int = 0
    seconds: float = 0.0

    def time_s(self, seconds: float) -> float:
        """A time of the session's own, as one of the whole."""
        return round(seconds + self.seconds, 3)

    def applied(self, message: Message) -> Message:
        """The message by the numbers and times of the whole."""
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
