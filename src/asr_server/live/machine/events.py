"""The events that a live session takes and the actions that it returns: data only.

Positions are samples at 16 kHz since the session began, `[start, end)`; audio is float32 (n,), mono, in [-1, 1].
Utterances are numbered from 1. Actions must be performed in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from asr_server.core.transcript import Token

Samples = NDArray[np.float32]
NO_SAMPLES: Samples = np.zeros(0, np.float32)


class ResultKind(Enum):
    """The use of a result of the engine."""

    PARTIAL = "partial"  # shown and replaced: should be fast
    FINAL = "final"  # kept: should be accurate


class Ending(Enum):
    """The reason why an utterance ended."""

    PAUSE = "pause"  # the speaker was silent for long enough
    CUT = "cut"  # it reached the maximum length; if not in a pause, the next utterance begins with the next sample
    FLUSH = "flush"  # the caller asked
    CLOSE = "close"  # no more audio will come


@dataclass(frozen=True, slots=True)
class EndOfTurnRules:
    """The length of pauses if a model estimates, from the sound before them, whether the speaker has finished.

    An estimate is requested once in each pause. Until it arrives, and if the end is likely but not sure, the pause rule
    of the `TurnConfig` applies.
    """

    sure: float = 0.8  # the utterance ends at once from this probability on
    longest_ms: int = 2_000  # a pause may last this long if the end is unlikely


@dataclass(frozen=True, slots=True)
class TurnConfig:
    """The options that may change in the middle of a session. A change applies from the next utterance on.

    A change from or to `manual` applies at once, also to the open utterance.
    """

    manual: bool = False  # only the caller ends utterances: all speech between two flushes is one
    language: str | None = None  # the model's name of a language to force, or None
    context: str = ""  # names and terms to listen for
    threshold: float = 0.5  # speech probability at which speech begins
    min_silence_ms: int = 500  # a shorter pause does not end an utterance
    # but this pause does, if the text so far ends with a sentence; None: the text does not count
    sentence_silence_ms: int | None = None
    prefix_ms: int = 0  # of audio before the speech, if more than the margin
    model: str = ""  # the name of the model that transcribes, "" for the default
    end_of_turn: EndOfTurnRules | None = None  # None: only pauses decide


# -- events: what the session is given --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audio:
    """The next bytes: 16-bit little-endian mono PCM at the session's input rate, cut anywhere, also inside a sample."""

    pcm: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """End the open utterance now. Answered by exactly one `Final` with `Ending.FLUSH`, empty if nothing was said."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Discard the open utterance and all buffered audio. Finals of utterances that ended before still come."""


@dataclass(frozen=True, slots=True)
class Configure:
    """A whole new configuration, and perhaps another input rate, which applies from the next byte on."""

    rules: TurnConfig
    input_rate_hz: int | None = None
    asked_language: str = ""  # as the client wrote it, for the answer; "" if it named none


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The connection broke, and the client may come back: transcribe all audio so far, and leave the utterance open."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the open utterance, if there is one. No more audio or actions of the client follow."""


@dataclass(frozen=True, slots=True)
class TranscribeResult:
    """The engine's result for a `Transcribe`."""

    ticket: int
    text: str
    language: str = ""  # the model's name, "" for no speech
    ids: tuple[int, ...] = ()  # all token ids
    # for each id, the length of `text` up to the end of that id; empty if text and ids do not map
    offsets: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()  # one for each id, natural, <= 0
    pieces: tuple[bytes, ...] = ()  # the bytes that each id writes; empty for the ids that name the language
    truncated: bool = False  # the model looped or found no end, so words may be missing, and a final is requested again
    detached: bool = False  # made in pieces without the prefix, so it need not begin with it


@dataclass(frozen=True, slots=True)
class TranscribeFailed:
    """The engine has no result for a `Transcribe`: a stable error code and a message for people."""

    ticket: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class EndOfTurnEstimated:
    """The answer to an `EstimateEndOfTurn`. It is ignored once that pause is over."""

    position_samples: int
    probability: float | None  # None for no answer


@dataclass(frozen=True, slots=True)
class GetCheckpoint:
    """A request for the position up to which audio is finished. Answered by exactly one `Checkpoint`."""


Event = (
    Audio
    | Flush
    | Reset
    | Configure
    | Interrupted
    | Close
    | GetCheckpoint
    | EndOfTurnEstimated
    | TranscribeResult
    | TranscribeFailed
)


# -- actions: what its caller performs --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Transcribe:
    """A request to the engine, to be answered with the `TranscribeResult` or `TranscribeFailed` of its ticket.

    At most one is under way in a session. `committed` and `text` are for an engine that has other tokens.
    """

    ticket: int
    kind: ResultKind
    utterance: int
    start_samples: int  # of the audio: the end of the pause before, then the utterance or its part
    audio: Samples
    language: str | None
    context: str
    prefix: tuple[int, ...]  # ids with which the result must begin
    draft: tuple[int, ...]  # likely ids of the result
    peak_probability: float = 1.0  # the highest speech probability of its frames
    speech: tuple[int, int] | None = None  # from the first frame of speech to the last, without the margins
    model: str = ""
    committed: str = ""  # the text of `prefix`
    text: str = ""  # the text of `draft`
    written_language: str = ""  # of both texts

    @property
    def end_samples(self) -> int:
        return self.start_samples + len(self.audio)


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The result of this ticket is no longer needed. If it still arrives, it is ignored."""

    ticket: int


@dataclass(frozen=True, slots=True, eq=False)
class EstimateEndOfTurn:
    """A request to estimate whether the speaker has finished: a pause has begun at the end of this audio. To be
    answered with the `EndOfTurnEstimated` of its position, or not at all."""

    position_samples: int
    audio: Samples  # (n,), at most the last 8 s of the utterance


@dataclass(frozen=True, slots=True)
class EndOfTurnLikely:
    """The speaker has probably finished the open utterance; its `Final` follows if nothing more is said."""

    utterance: int
    probability: float
    end_samples: int


@dataclass(frozen=True, slots=True)
class UtteranceStarted:
    """An utterance opened."""

    utterance: int
    start_samples: int  # where its audio begins, including the prefix


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    """An utterance has all its audio now, `[start, end)`; its `Final` follows, perhaps after other actions.

    A flush with no open utterance is answered by one without audio, which has no `UtteranceStarted`.
    """

    utterance: int
    start_samples: int
    end_samples: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class Partial:
    """The open utterance as far as it is understood: its committed text, then its tentative text."""

    utterance: int
    committed: str  # only grows
    tentative: str  # may change
    language: str
    start_samples: int
    end_samples: int  # the end of the audio that the text was made from

    @property
    def text(self) -> str:
        return self.committed + self.tentative


@dataclass(frozen=True, slots=True)
class FinalPart:
    """A part of an utterance that was transcribed on its own: the text of `[start, end)`."""

    start_samples: int
    end_samples: int
    text: str


@dataclass(frozen=True, slots=True)
class Final:
    """The final text of an utterance. It begins with all committed text. Finals come in the order of numbers."""

    utterance: int
    text: str
    language: str
    start_samples: int
    end_samples: int
    ending: Ending
    parts: tuple[FinalPart, ...] = ()  # as they were transcribed; long pauses separate them
    tokens: tuple[Token, ...] = ()  # the tokens that wrote the text
    error: SessionError | None = None  # why the engine gave no result; the text is then from earlier results
    end_of_turn: float | None = None  # probability that the speaker had finished, if it was estimated


@dataclass(frozen=True, slots=True)
class ResetDone:
    """The answer to `Reset`."""

    utterance: int | None  # the number of the discarded utterance, None if none was open


@dataclass(frozen=True, slots=True)
class Configured:
    """The answer to `Configure`: the configuration of the next utterance."""

    rules: TurnConfig
    asked_language: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The answer to `GetCheckpoint`: a new session that gets the audio from `end_samples` on continues this one.

    All audio before it is silence, discarded, or in utterances that have their `Final`.
    """

    end_samples: int  # where that audio begins
    utterance: int  # the last number used before


@dataclass(frozen=True, slots=True)
class SessionError:
    """A failure after which the session continues. If a final failed, its `Final` follows with the text so far."""

    code: str
    message: str
    utterance: int
    param: None = None


Action = (
    Transcribe
    | CancelRequest
    | EstimateEndOfTurn
    | EndOfTurnLikely
    | UtteranceStarted
    | UtteranceEnded
    | Partial
    | Final
    | ResetDone
    | Configured
    | Checkpoint
    | SessionError
)
