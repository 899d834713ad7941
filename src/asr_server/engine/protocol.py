"""The contract of an engine: a batch of rows that moves in steps. `conformance_test` holds every engine to it.

One row is one span of speech. Rows join with `admit`, move with `step`, leave when they are done or with `drop`. An
aligner places the words of a span in time; `engine/aligning.py` combines it with an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from asr_server.core.audio import MAX_GAP_S, PAD_MS
from asr_server.core.errors import AsrError
from asr_server.schedule.model import Batch
from asr_server.text.languages import model_languages


class _BesideJson:
    """Marks a field that pydantic leaves out of JSON; see `wire`. This module must work without pydantic and numpy."""

    def __get_pydantic_core_schema__(self, *_: object) -> object:
        from pydantic_core.core_schema import any_schema, plain_serializer_function_ser_schema

        return any_schema(serialization=plain_serializer_function_ser_schema(lambda samples: None))


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]  # of a row: float32 (n,), mono, 16 kHz, finite, in [-1, 1]
else:
    Samples = Annotated[Any, _BesideJson()]

# The reason shown for an option that the operator has set.
AS_SET = "as set"


@dataclass(frozen=True, slots=True)
class Option:
    """A line of the plan as `/health` shows it."""

    name: str
    active: bool
    value: str  # "" if the option is not active or has no value
    reason: str  # why it is active or not, for operators


class Finish(StrEnum):
    """The reason why a row ended."""

    END = "end"  # the model ended its answer
    LOOP = "loop"  # the answer began to repeat itself and was stopped; one turn of the loop is kept
    BUDGET = "budget"  # the token budget for this much audio was used up: the text may be cut short


@dataclass(frozen=True, slots=True)
class Written:
    """Text that another model wrote, in words and not in token ids."""

    text: str
    language: str = ""  # that model's name of the language, "" if it named none


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """The work for one row."""

    audio: Samples
    language: str | None = None  # the model's name of the language to force; None to detect it
    context: str = ""  # text for the system turn (prompt, hotwords); control tokens in it are taken out
    # Token ids that guess the answer. The engine verifies them, so they save steps and do not change the answer. The
    # exception: formats shorter than float32 may round two nearly equally likely tokens differently in another pass.
    draft: tuple[int, ...] = ()
    temperature: float = 0.0  # 0 is greedy
    seed: int = 0  # makes sampling repeatable
    # Key under which the work on closed windows of 8 s is kept for the next, longer utterance with the same key and
    # context.
    session: str | None = None
    last: bool = False  # made in a pause or at the end of speech: its answer may be the session's last
    # The forced prefix: token ids that the answer begins with, whatever the model would choose. They are words that
    # were already sent, which must not change.
    prefix: tuple[int, ...] = ()
    stream: bool = False  # hand out the tokens of every step, with text; otherwise only of some steps
    # `draft` as text of another model, whose token ids mean nothing to this one
    draft_text: Written | None = None
    prefix_text: Written | None = None  # `prefix` as text of another model
    languages: tuple[str, ...] = ()  # if none is forced, the model detects one of these; empty: any


def in_tokens(utterance: Utterance, encode: Callable[[Written, bool], tuple[int, ...]]) -> Utterance:
    """Return the utterance with the text of another model converted to the engine's own token ids.

    `encode` returns the ids of an answer with that text; if the language is forced, without the ids that name it.
    """
    draft, prefix, forced = utterance.draft_text, utterance.prefix_text, utterance.language is not None
    if draft is None and prefix is None:
        return utterance
    return replace(
        utterance,
        draft=encode(draft, forced) if draft is not None else utterance.draft,
        prefix=encode(prefix, forced) if prefix is not None and prefix.text else utterance.prefix,
        draft_text=None,
        prefix_text=None,
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """The delta of one step."""

    ids: tuple[int, ...]  # new token ids
    logprobs: tuple[float, ...]  # their natural logarithms of probability
    # The whole characters that became certain with them, if the utterance asked for text. The joined texts of all
    # deltas are the hypothesis' text, unless a loop in it was folded.
    text: str = ""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The answer for one row."""

    text: str
    language: str  # the model's name, "" for no speech
    ids: tuple[int, ...]  # all generated tokens without the end token
    # natural logarithms (<= 0), one for each id; empty if the engine's traits say that it has no scores
    logprobs: tuple[float, ...]
    finish: Finish
    audio_tokens: int  # tokens of the audio in the row's prompt
    prompt_tokens: int  # all tokens of the row's prompt
    passes: int  # forward passes of the language model that the answer took, its prefill included; 0 without scores
    # The model's probability of "no speech" in the place of the language's name; None if the language was forced.
    no_speech_prob: float | None = None
    # The length of `text` after each of `ids`: ids[:n] stand for text[: offsets[n - 1]]. Empty if the text was cleaned
    # up so much that it no longer maps to the ids.
    offsets: tuple[int, ...] = ()
    pieces: tuple[bytes, ...] = ()  # the bytes that each of `ids` writes, none for ids that name the language

    @property
    def mean_logprob(self) -> float:
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else 0.0

    @property
    def language_logprob(self) -> float:
        """The log-probability of the tokens that name the language; 0 when it was forced, or the engine has no
        scores."""
        named = next((n for n, piece in enumerate(self.pieces) if piece), len(self.pieces))
        return sum(self.logprobs[:named])


@dataclass(frozen=True, slots=True, eq=False)
class AlignItem:
    """A span whose words are to be placed in time."""

    audio: Samples
    text: str  # what is said in it, as the model wrote it
    language: str  # the model's name of its language
    # samples [from, to) where speech was found, ordered and disjoint; empty if that is not known
    speech_regions: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AlignedPiece:
    """A word, or a character of a script without blanks, with its time."""

    text: str
    start_ms: int  # from the start of the item's audio
    end_ms: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """The times of the words of an item, monotone and inside its audio; a piece may have no length."""

    # The words as the aligner splits them: letters, digits and apostrophes only, in the order of the text; empty when
    # the text has none.
    pieces: tuple[AlignedPiece, ...]


class AlignerState(StrEnum):
    """The aligner's state."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The facts about an engine. Memory is in MiB; the GPU's is 0 without one, the rest 0 until the model is loaded."""

    name: str
    model_id: str
    device: str
    dtype: str
    model_revision: str = ""  # the commit that was loaded last, "" for models that are not from the hub
    model_on_disk: bool = True  # loading needs no download, as of the start or the last load
    gpu_name: str = ""
    gpu_allocated_mb: int = 0
    gpu_reserved_mb: int = 0
    slots: int = 0  # rows that fit together
    kv_budget_mb: int = 0  # the most that keys and values may take in all
    kv_cache_mb: int = 0  # MiB of the keys and values of rows
    sessions_mb: int = 0  # the state kept for live sessions
    downloaded_mb: int = 0  # the size of the part that a download in progress has fetched
    converted: float = 0.0  # the share of its weights that a first load in progress has converted
    aligner_id: str = ""
    aligner_state: AlignerState = AlignerState.UNLOADED
    aligner_error: str = ""  # why the aligner could not be loaded, "" when it could or was not asked for
    options: tuple[Option, ...] = ()  # decided by loading; they replace the plan's options of the same names


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """The abilities and limits of an engine, for code that prepares its work."""

    languages: tuple[str, ...] = model_languages()  # the languages it knows, by the model's names
    max_audio_s: float = 120.0  # the most audio that a row should have
    max_pause_s: float = MAX_GAP_S  # the longest pause in it
    margin_ms: int = PAD_MS  # silence that should be kept before and after its speech
    uses_context: bool = True  # a prompt and hotwords change its answers
    aligns: bool = True  # it has an aligner
    scores: bool = True  # its answers have log-probabilities and count their passes; drafts only help such engines
    detects_among: bool = True  # the detection of the language can be limited to several


DEFAULT_TRAITS = EngineTraits()


class Engine(Batch, Protocol):
    """A `Batch` with typed items: `admit` takes an `Utterance`, `Delta` carries `Tokens` and `Done` a `Hypothesis`.

    `load` raises `ModelUnavailable`, whose message says what to do. `admit` runs the front end; a later step runs the
    row's prefill. `step` prefills admitted rows and decodes for every other row.
    """

    @property
    def info(self) -> EngineInfo:
        """Return the facts as last published. Any thread may call it; it never waits."""


class Aligner(Protocol):
    """Places words in time, many items in one forward pass. Only `locate` may run outside of the engine thread."""

    @property
    def aligner_id(self) -> str:
        """Return the name by which the plan selects it."""

    @property
    def loaded(self) -> bool:
        """True if `align` may be called."""

    def locate(self) -> None:
        """Find or download the checkpoint, on any thread; may take minutes. Raises `ModelUnavailable`."""

    def load(self) -> None:
        """Load the located checkpoint. Raises `ModelUnavailable` or `EngineOutOfMemory`."""

    def unload(self) -> None:
        """Give the memory back."""

    def cost(self, item: AlignItem) -> int:
        """Return about how many tokens the item takes in a pass. Off by a few at most; needs no weights."""

    def align(self, items: Sequence[AlignItem]) -> Iterator[list[Alignment | AsrError] | None]:
        """Align all items. Yield None after each part of the work except the last, so that other work can run between
        them, then an alignment or an error for each item. Never raises for a failed item."""
