"""The contract of a speech engine: sentences in, samples out, as rows of a batch that moves in steps.

One row is one sentence. Rows join with `admit`, move with `step`, leave when they are done or with `drop`, as in
`engine/protocol.py`; the engine thread drives both. `conformance_test` holds every speech engine to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from asr_server.core.audio import SPEECH_RATE as SPEECH_RATE
from asr_server.scheduling.capacity import FIRST_GUESS_SPEED
from asr_server.scheduling.ports import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The longest text of one row. Longer sentences are cut at a clause and spoken as several.
MAX_SENTENCE_CHARS = 400
# Those of voices that OpenAI's clients send.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)


class SpeechFinish(StrEnum):
    """Why a row ended."""

    END = "end"  # the engine spoke the sentence to its end
    BUDGET = "budget"  # the most frames that a sentence of this length may take: the audio may be cut short


@dataclass(frozen=True, slots=True, eq=False)
class VoiceSample:
    """A recording of a voice to imitate.

    `audio`: float32 (n,), mono, 24 kHz, finite, in [-1, 1]. `text`: what is said in it, "" if that is not known.
    `key`: a digest of both, under which what an engine derives from them is kept.
    """

    audio: NDArray[np.float32]
    text: str
    key: str


@dataclass(frozen=True, slots=True, eq=False)
class Sentence:
    """One row's work.

    `text`: at most `MAX_SENTENCE_CHARS`, without control characters. `voice`: an id of `SpeechTraits.voices`, "" with a
    `sample`. `language`: a code of `SpeechTraits.languages`. `instructions`: how to speak. `seed`: makes sampling
    repeatable. `sample`: a voice to imitate. `speed`: 2 takes half of the time.
    """

    text: str
    voice: str = ""
    language: str = "en"
    instructions: str = ""
    seed: int = 0
    sample: VoiceSample | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class SpokenSentence:
    """The answer for one row, after its last samples. `samples`: how many there were, all deltas together.

    `text_tokens`, `frames`: what the row cost where the engine counts them, else 0.
    """

    finish: SpeechFinish
    samples: int
    text_tokens: int = 0
    frames: int = 0


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
    """What distinguishes one speech engine from another for those who prepare its work.

    `voices`: by their own names; `openai_voices` maps OpenAI's names to those. `languages`: codes (ISO 639-1, or 639-3
    where there is none). `imitates`: whether it takes a `sample`, and nothing else where `voices` is empty.
    `follows_instructions`: whether `instructions` change its answers. `samples_randomly`: whether `seed` does.
    `changes_speed`: whether `speed` does; otherwise it is always 1. `first_guess_speed`: about how many seconds of
    speech it makes in one, for admission before anything was measured.
    """

    voices: tuple[Voice, ...]
    openai_voices: dict[str, str] = field(default_factory=dict)
    languages: tuple[str, ...] = ("en",)
    imitates: bool = False
    follows_instructions: bool = False
    samples_randomly: bool = False
    changes_speed: bool = False
    first_guess_speed: float = FIRST_GUESS_SPEED


@dataclass(frozen=True, slots=True)
class SpeechInfo:
    """What a speech engine says about itself; as last published, safe from any thread."""

    name: str
    model_id: str
    device: str = "cpu"
    dtype: str = ""
    slots: int = 0
    pid: int | None = None


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
