"""The contract of a speech engine: sentences in, samples out, as rows of a batch that moves in steps.

One row is one sentence. Rows join with `admit`, move with `step`, leave when they are done or with `drop`, as in
`engine/protocol.py`; the engine thread drives both. `conformance_test` holds every speech engine to it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from asr_server.core.audio import SPEECH_RATE as SPEECH_RATE
from asr_server.schedule.admission import FIRST_GUESS_SPEED
from asr_server.schedule.model import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asr_server.engine.feature import Packed

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
    BUDGET = "budget"  # the sentence took the most frames that its length allows: the audio may be cut short


@dataclass(frozen=True, slots=True, eq=False)
class VoiceSample:
    """A recording of a voice to imitate."""

    audio: NDArray[np.float32]  # float32 (n,), mono, 24 kHz, finite, in [-1, 1]
    text: str  # what is said in it, "" if that is not known
    key: str  # a digest of both, by which an engine keeps what it derives from them


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
    samples: int  # the number of samples in all deltas


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that a request can name."""

    id: str
    description: str
    languages: tuple[str, ...] = ()  # codes of the languages it speaks well; empty: all of the engine's
    licence: str | None = None  # of the material it was made from, as its maker says
    model_card: str | None = None  # what its maker says about it


@dataclass(frozen=True, slots=True)
class SpeechTraits:
    """The abilities of a speech engine, for the code that prepares its work."""

    voices: tuple[Voice, ...]  # by their own names
    openai_voices: dict[str, str] = field(default_factory=dict)  # OpenAI's names to the names of `voices`
    languages: tuple[str, ...] = ("en",)  # codes (ISO 639-1, or 639-3 if there is none)
    imitates: bool = False  # it takes a `sample`, and nothing else if `voices` is empty
    follows_instructions: bool = False  # `instructions` change its answers
    changes_speed: bool = False  # `speed` changes its answers; otherwise it is always 1
    # estimated seconds of speech that it makes in a second, for admission before anything was measured
    first_guess_speed: float = FIRST_GUESS_SPEED


class SpeechEngine(Batch):
    """A `Batch` with typed items: `admit` takes a `Sentence`, `RowDelta` carries float32 samples (n,), mono, at
    24 kHz, in [-1, 1], and `RowDone` a `SpokenSentence`.

    A row has the same samples in any batch and order. `load` raises `ModelUnavailable`, which says what to do. `admit`
    raises if the sentence itself is wrong. `drop` stops a row between two steps.
    """

    model_id: str
    traits: SpeechTraits  # known without loading

    @property
    def fits(self) -> bool:
        return True

    @property
    def urgent_slots(self) -> int:
        return self.free_slots


def pack(value: Sentence | SpokenSentence) -> Packed:
    """Return a sentence or an answer as JSON for another process, and its audio separately."""
    if isinstance(value, SpokenSentence):
        return {"spoken": asdict(value)}, None
    sample = value.sample
    fields: dict[str, Any] = {"sentence": asdict(replace(value, sample=None))}
    if sample is None:
        return fields, None
    return fields | {"sample": {"text": sample.text, "key": sample.key}}, sample.audio


def unpack(packed: Packed) -> Sentence | SpokenSentence:
    """Return what `pack` was given."""
    fields, audio = packed
    if "spoken" in fields:
        return SpokenSentence(SpeechFinish(fields["spoken"]["finish"]), fields["spoken"]["samples"])
    voice = fields.get("sample")
    sample = VoiceSample(audio, voice["text"], voice["key"]) if voice is not None and audio is not None else None
    return replace(Sentence(**fields["sentence"]), sample=sample)
