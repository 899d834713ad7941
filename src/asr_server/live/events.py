"""What a live session may be told (events) and what it may ask for (effects). Nouns only: no behaviour, no wire.

Positions are samples at 16 kHz since the session began, `[start, end)`; audio is float32 (n,), mono, in [-1, 1].
Utterances are numbered from 1. The order of effects is the order in which they must be performed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from asr_server.core.transcript import Token

Samples = NDArray[np.float32]


class Detection(Enum):
    """Who decides where an utterance begins and ends."""

    VOICE = "voice"  # the voice detector
    LOUDNESS = "loudness"  # loud against the noise floor: the fallback without a voice detector
    MANUAL = "manual"  # the caller: everything between two flushes is one utterance


class ResultKind(Enum):
    """What an answer of the engine is wanted for."""

    PARTIAL = "partial"  # shown and replaced: wanted fast
    FINAL = "final"  # kept: wanted accurate


class Ending(Enum):
    """Why an utterance ended."""

    PAUSE = "pause"  # the speaker was silent for long enough
    CUT = "cut"  # it reached the longest length; if not in a pause, the next utterance goes on with the next sample
    FLUSH = "flush"  # the caller asked
    CLOSE = "close"  # no more audio will come


@dataclass(frozen=True, slots=True)
class TurnConfig:
    """What may change in the middle of a session; a change holds from the next utterance on.

    Only from and to `Detection.MANUAL` the change holds at once, also for the utterance that is open.

    `language`: the model's name of a language to force, or None. `context`: names and terms to listen for.
    `threshold`: speech probability at which speech begins. `min_silence_ms`: a shorter pause does not end an utterance.
    `sentence_silence_ms`: but this one does, if the text so far ends as a sentence does; None: the text does not count.
    `prefix_ms`: audio before the first frame of speech that belongs to the utterance, as far as no other has it.
    """

    detection: Detection = Detection.VOICE
    language: str | None = None
    context: str = ""
    threshold: float = 0.5
    min_silence_ms: int = 500
    sentence_silence_ms: int | None = None
    prefix_ms: int = 300


# -- events: from the shell to the session ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audio:
    """The next bytes: 16-bit little-endian mono PCM at the session's input rate, cut anywhere, also inside a sample."""

    pcm: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """End the open utterance now. Answered by exactly one `Final` with `Ending.FLUSH`, empty if nothing was said."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Throw the open utterance and all buffered audio away. Finals of utterances that ended before still come."""


@dataclass(frozen=True, slots=True)
class Configure:
    """New rules, whole, and perhaps another input rate. The rate holds from the next byte on."""

    rules: TurnConfig
    input_rate_hz: int | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The caller was cut off and may come back: transcribe what there is, and leave the utterance open."""


@dataclass(frozen=True, slots=True)
class Close:
    """No more audio comes: end the open utterance, if there is one. Later audio is counted as discarded."""


@dataclass(frozen=True, slots=True)
class TranscribeResult:
    """The engine's answer to a `Transcribe`.

    `ids`: all token ids, `logprobs` (natural, <= 0) one for each. `offsets`: for each id the length of `text` once
    that id is there; empty when text and ids do not map. `language`: the model's name, "" for no speech. `pieces`: the
    bytes that each id writes, nothing for those that name the language. `truncated`: the model looped or found no end,
    so words may be missing, and a final would be made with more care. `detached`: made in pieces and not behind the
    prefix.
    """

    ticket: int
    text: str
    language: str = ""
    ids: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    pieces: tuple[bytes, ...] = ()
    truncated: bool = False
    detached: bool = False


@dataclass(frozen=True, slots=True)
class TranscribeFailed:
    """The engine could not answer a `Transcribe`: a stable error code and a message for people."""

    ticket: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class GetCheckpoint:
    """Up to where is the audio done with? Answered by exactly one `Checkpoint`."""


Event = Audio | Flush | Reset | Configure | Interrupted | Close | GetCheckpoint | TranscribeResult | TranscribeFailed


# -- effects: from the session to the shell --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Transcribe:
    """Ask the engine; answer with `TranscribeResult` or `TranscribeFailed` of the same ticket. At most one is under
    way in a session.

    `audio`: the utterance from its start at `start_samples`. `prefix`: ids with which the answer must begin.
    `draft`: ids that the answer may turn out to be.
    """

    ticket: int
    kind: ResultKind
    utterance: int
    start_samples: int
    audio: Samples
    language: str | None
    context: str
    prefix: tuple[int, ...]
    draft: tuple[int, ...]

    @property
    def end_samples(self) -> int:
        """The position behind the last sample."""
        return self.start_samples + len(self.audio)


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The answer to this ticket is not wanted any more; one that still comes is ignored."""

    ticket: int


@dataclass(frozen=True, slots=True)
class UtteranceStarted:
    """An utterance opened; its audio begins at `start_samples`, the prefix included."""

    utterance: int
    start_samples: int


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    """An utterance has all its audio now, `[start, end)`; its `Final` follows, perhaps after other effects.

    One without any, that never `UtteranceStarted`, answers a flush when none was open.
    """

    utterance: int
    start_samples: int
    end_samples: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class Partial:
    """The open utterance as far as it is understood: `committed` only grows, `tentative` may change.

    The whole text is `committed + tentative`. `end_samples`: the audio up to which the text was made.
    """

    utterance: int
    committed: str
    tentative: str
    language: str
    start_samples: int
    end_samples: int

    @property
    def text(self) -> str:
        """The whole utterance so far."""
        return self.committed + self.tentative


@dataclass(frozen=True, slots=True)
class Final:
    """The utterance's text for good; begins with everything that was committed. Finals come in the order of numbers.

    `tokens`: those that wrote the text. `trouble`: why the engine gave no answer; the text is then what was known.
    """

    utterance: int
    text: str
    language: str
    start_samples: int
    end_samples: int
    ending: Ending
    tokens: tuple[Token, ...] = ()
    trouble: SessionError | None = None


@dataclass(frozen=True, slots=True)
class ResetDone:
    """The answer to `Reset`. `utterance`: the number of the one thrown away, None if none was open."""

    utterance: int | None


@dataclass(frozen=True, slots=True)
class Configured:
    """The answer to `Configure`: the rules of the next utterance."""

    rules: TurnConfig


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The answer to `GetCheckpoint`. A fresh session that is fed from `end_samples` on says what this one will say.

    All before it is silence, discarded, or in utterances that have their `Final`; `utterance` is the last number
    given away there.
    """

    end_samples: int
    utterance: int


@dataclass(frozen=True, slots=True)
class SessionError:
    """Something failed and the session goes on. If a final failed, its `Final` follows with what is known of it."""

    code: str
    message: str
    utterance: int
    param: None = None


Action = (
    Transcribe
    | CancelRequest
    | UtteranceStarted
    | UtteranceEnded
    | Partial
    | Final
    | ResetDone
    | Configured
    | Checkpoint
    | SessionError
)
