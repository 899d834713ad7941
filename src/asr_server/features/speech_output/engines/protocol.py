"""The contract of a speech engine: sentences in, samples out, as rows of a batch that moves in steps.

One row is one sentence. Rows join with `admit`, move with `step`, leave when they are done or with `drop`, as in
`engine/protocol.py`; the engine thread drives both. `conformance_test` holds every speech engine to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asr_server.core.audio import SPEECH_RATE as SPEECH_RATE
from asr_server.schedule.ports import Batch
from asr_server.schedule.time_shares import FIRST_GUESS_SPEED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asr_server.engine.feature import Feature

# The name of the engine for tests.
FAKE = "fake"
# The longest text of one row. Longer sentences are cut at a clause and spoken as several.
MAX_SENTENCE_CHARS = 400
# The names of voices that OpenAI's clients send.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)


class SpeechFinish(StrEnum):
    """The reason why a row ended."""

    END = "end"  # the engine spoke the sentence to its end
    BUDGET = "budget"  # the most frames that a sentence of this length may take: the audio may be cut short


@dataclass(frozen=True, slots=True, eq=False)
class VoiceSample:
    """A recording of a voice to imitate."""

    audio: NDArray[np.float32]  # float32 (n,), mono, 24 kHz, finite, in [-1, 1]
    text: str  # what is said in it, "" if that is not known
    key: str  # a digest of both, under which what an engine derives from them is kept


@dataclass(frozen=True, slots=True, eq=False)
class Sentence:
    """The work for one row."""

    text: str  # at most `MAX_SENTENCE_CHARS`, without control characters
    voice: str = ""  # an id of `SpeechTraits.voices`, "" with a `sample`
    language: str = "en"  # a code of `SpeechTraits.languages`
    instructions: str = ""  # how to speak, in words
    seed: int = 0  # makes sampling repeatable
    sample: VoiceSample | None = None  # a voice to imitate
    speed: float = 1.0  # 2 takes half of the time


@dataclass(frozen=True, slots=True)
class SpokenSentence:
    """The answer for one row, after its last samples."""

    finish: SpeechFinish
    samples: int  # how many there were, all deltas together
    text_tokens: int = 0  # what the row cost, where the engine counts it, else 0
    frames: int = 0  # as `text_tokens`


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that a request can name."""

    id: str
    description: str
    languages: tuple[str, ...] = ()  # codes of those it speaks well; all of the engine's if empty
    licence: str = ""  # of what it was made from, as its maker says
    model_card: str = ""  # what its maker says about it


@dataclass(frozen=True, slots=True)
class SpeechTraits:
    """The abilities of a speech engine, for those who prepare its work."""

    voices: tuple[Voice, ...]  # by their own names
    openai_voices: dict[str, str] = field(default_factory=dict)  # OpenAI's names to the names of `voices`
    languages: tuple[str, ...] = ("en",)  # codes (ISO 639-1, or 639-3 where there is none)
    imitates: bool = False  # it takes a `sample`, and nothing else where `voices` is empty
    follows_instructions: bool = False  # `instructions` change its answers
    samples_randomly: bool = False  # `seed` changes its answers
    changes_speed: bool = False  # `speed` changes its answers; otherwise it is always 1
    # about how many seconds of speech it makes in one, for admission before anything was measured
    first_guess_speed: float = FIRST_GUESS_SPEED


@dataclass(frozen=True, slots=True)
class SpeechInfo:
    """The facts about a speech engine, as last published; safe from any thread."""

    name: str
    model_id: str
    device: str = "cpu"
    dtype: str = ""
    slots: int = 0  # sentences that share a step
    pid: int | None = None  # of a child process that speaks; None where there is none


class SpeechEngine(Batch, Protocol):
    """A `Batch` with typed items: `admit` takes a `Sentence`, `RowDelta` carries float32 samples (n,), mono, at
    24 kHz, in [-1, 1], and `RowDone` a `SpokenSentence`.

    A row's samples are those that it has alone, in any batch and order. `load` raises `ModelUnavailable` with what to
    do; `admit` raises what is wrong with one sentence; `drop` stops a row between two steps.
    """

    @property
    def traits(self) -> SpeechTraits:
        """Known without loading."""

    @property
    def info(self) -> SpeechInfo:
        """Never waits."""


@dataclass(frozen=True, slots=True)
class SpeechFeature:
    """Engines of speech that a feature adds, in the order in which they are preferred.

    What they do not speak is spoken by the engine that would run without the feature.
    """

    name: str  # a value of SPEECH, which means `default`
    default: str  # the value that SPEECH=auto means where the engines can run
    takes: Callable[[str], bool]  # whether a value of SPEECH names these engines
    missing: Callable[[str], str]  # why they cannot run, "" if they can
    reason: str  # what `/health` says about them
    traits: Callable[[str], tuple[SpeechTraits, ...]]  # takes a value of SPEECH; imports no libraries
    build: Callable[[str], tuple[SpeechEngine, ...]]  # takes a value of SPEECH
    download: Callable[[str], Path | None]  # of a name that is a value of SPEECH too; None where it is another's


def added(features: Iterable[Feature]) -> Iterator[SpeechFeature]:
    """Yield the engines of speech that features add."""
    for feature in features:
        yield from (one for one in feature.extends if isinstance(one, SpeechFeature))
