"""Where another server can go on with a live session, which its client carries there. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Run = Mapping[str, str | None]  # {"speaker", "text"}: text of one speaker


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """What a client may configure in the middle of a session. `language`: the model's name of it, "" for none."""

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
class Continuation:
    """A session that gets the audio from byte `received_bytes` on, and the client's actions after the first `actions`,
    continues this one.

    `issuer`: names the session object that issued it, in one process. `utterances`: so many are finished. `samples`:
    the position in the session's time, at 16 kHz. `carried_over`: words that the client was shown before their audio
    moved into the next utterance. `first_speaker`: the index of the first letter that no speaker has. `configured`:
    what the client has configured; None for what its query says.
    """

    session_id: str
    issuer: str
    utterances: int = 0
    samples: int = 0
    received_bytes: int = 0
    actions: int = 0
    carried_over: str = ""
    first_speaker: int = 0
    configured: TurnSettings | None = None


@dataclass(frozen=True, slots=True)
class ShownUtterance:
    """What the client has been shown of an utterance without a final: its number, its committed words, the end of the
    audio that they are based on, and whose they are. Number 0 is that of none."""

    utterance: int = 0
    committed: str = ""
    end_s: float = 0.0
    speakers: tuple[Run, ...] = ()
