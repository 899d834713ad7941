"""The contract of an engine: a batch of rows that moves in steps. `conformance_test` holds every engine to it.

One row is one span of speech. Rows join with `admit`, move with `step`, leave when they are done or with `drop`.
An aligner places the words of a span in time; `engine/aligning.py` puts it beside an engine.
An engine fits `scheduling.ports.Batch`, and adds what it says about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from asr_server.audio.segmentation.config import SegmentationConfig
from asr_server.core.errors import AsrError
from asr_server.scheduling.ports import Batch
from asr_server.text.languages import model_languages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SEGMENTATION = SegmentationConfig()


@dataclass(frozen=True, slots=True)
class Option:
    """One line of the plan as `/health` shows it."""

    name: str
    active: bool
    value: str
    reason: str


class Finish(StrEnum):
    """Why a row ended."""

    END = "end"  # the model ended its answer
    LOOP = "loop"  # the answer began to repeat itself and was stopped; one turn of the loop is kept
    BUDGET = "budget"  # the token budget for this much audio was used up: the text may be cut short


@dataclass(frozen=True, slots=True)
class Written:
    """What another model has written: its text, and its name of the language, "" where it knows none."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """One row's work.

    `audio`: float32 (n,), mono, 16 kHz, finite, in [-1, 1]. `language`: the model's name of the language to force, or
    None. `context`: text for the system turn (prompt, hotwords); control tokens in it are taken out. `draft`: token ids
    that the answer may turn out to be: verified, so it saves steps and does not change the answer, unless two tokens
    are nearly equally likely and the engine's number format rounds them differently in another pass: in float32 it does
    not. `temperature`: 0 is greedy. `seed`: makes sampling repeatable. `session`: a key under which the work on closed
    8 s windows is kept for the next, longer utterance of the same key and context; the same holds for it. `last`: no
    longer one is to come, so what was kept can go. `prefix`: token ids that the answer begins with, whatever the model
    would say: words that were given out and are not taken back. `stream`: deltas carry text.
    `draft_text`, `prefix_text`: the same in the words of another model, whose tokens mean nothing to this one.
    """

    audio: NDArray[np.float32]
    language: str | None = None
    context: str = ""
    draft: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    session: str | None = None
    last: bool = False
    prefix: tuple[int, ...] = ()
    stream: bool = False
    draft_text: Written | None = None
    prefix_text: Written | None = None
    languages: tuple[str, ...] = ()  # names of which the model detects one, where none is forced; empty: of all


def in_tokens(utterance: Utterance, encode: Callable[[Written, bool], tuple[int, ...]]) -> Utterance:
    """The utterance with the words of another model as token ids of the engine's own.

    `encode`: the ids of an answer with these words, without those that name the language if that is forced.
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
    """The delta of one step: new token ids and their natural log-probabilities.

    `text`: the whole characters that became certain with them, where the utterance asked for it. All pieces joined are
    the hypothesis' text, unless a loop was folded in that.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The answer for one row.

    `language` is the model's name, "" for no speech. `ids` are all generated tokens without the end token, `logprobs`
    (natural logarithm, <= 0) one for each, or none where the engine's traits say that it has no scores. `audio_tokens`
    and `prompt_tokens` are what the row's prompt was made of. `passes`: forward passes of the language model that the
    answer took, its prefill included; 0 without scores. `no_speech_prob`: the probability that the model gave to "no
    speech" where it names the language; None when the language was forced.
    `offsets`: for each of `ids` the length of `text` with it, so that ids[:n] stand for text[: offsets[n - 1]]; empty
    when the text was cleaned up so far that it no longer maps. `pieces`: the bytes that each of `ids` writes, nothing
    for those that name the language.
    """

    text: str
    language: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    audio_tokens: int
    prompt_tokens: int
    passes: int
    no_speech_prob: float | None = None
    offsets: tuple[int, ...] = ()
    pieces: tuple[bytes, ...] = ()

    @property
    def mean_logprob(self) -> float:
        """Mean over the generated tokens; 0 when there are none."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class AlignItem:
    """One span whose words are to be placed in time.

    `audio`: float32 (n,), mono, 16 kHz, finite, in [-1, 1]. `text`: what is said in it, as the model wrote it.
    `language`: the model's name of its language. `speech_regions`: samples [from, to) where speech was found, ordered
    and disjoint; empty if that is not known.
    """

    audio: NDArray[np.float32]
    text: str
    language: str
    speech_regions: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AlignedPiece:
    """A word, or a character of a script without blanks, and where it sounds, in milliseconds of the item's audio."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where the words of an item sound: monotone and inside its audio; a piece may have no length.

    The pieces are the words as the aligner splits them: letters, digits and apostrophes only, in the order of the text.
    Empty when the text has none.
    """

    pieces: tuple[AlignedPiece, ...]


class AlignerState(StrEnum):
    """Where the aligner is in its life."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says about itself. Memory in MiB; the GPU's is 0 without one, the rest until the model is loaded.

    `slots`: rows that fit together. `kv_budget_mb`: what keys and values may take in all, `kv_cache_mb`: what those of
    rows take, `sessions_mb`: what is kept for live sessions. `downloaded_mb`: what a download of the model has
    brought while it is under way. `aligner_error`: why the aligner could not be loaded, "" when it could or was not
    asked for. `model_revision`: the commit that was loaded last, "" for models that are not from the hub.
    `model_on_disk`: whether loading needs no download, as of the start or the last load. `options`: what only loading
    could decide, in place of the plan's options of the same names.
    """

    name: str
    model_id: str
    device: str
    dtype: str
    model_revision: str = ""
    model_on_disk: bool = True
    gpu_name: str = ""
    gpu_allocated_mb: int = 0
    gpu_reserved_mb: int = 0
    slots: int = 0
    kv_budget_mb: int = 0
    kv_cache_mb: int = 0
    sessions_mb: int = 0
    downloaded_mb: int = 0
    aligner_id: str = ""
    aligner_state: AlignerState = AlignerState.UNLOADED
    aligner_error: str = ""
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What distinguishes one engine from another for those who prepare its work.

    `languages`: the model's names of those it knows. `max_audio_s`: the most audio that a row should have;
    `max_pause_s`: the longest pause in it; `margin_ms`: silence that should be kept before and behind its speech.
    `uses_context`: whether a prompt and hotwords change its answers. `aligns`: whether it has an aligner beside it.
    `scores`: whether its answers have log-probabilities and count their passes; drafts help those engines only.
    """

    languages: tuple[str, ...] = model_languages()
    max_audio_s: float = 120.0
    max_pause_s: float = _SEGMENTATION.max_gap_s
    margin_ms: int = _SEGMENTATION.pad_ms
    uses_context: bool = True
    aligns: bool = True
    scores: bool = True
    detects_among: bool = True  # the detection of the language can be limited to several


DEFAULT_TRAITS = EngineTraits()


class Engine(Batch, Protocol):
    """A `Batch` with typed items: `admit` takes an `Utterance`, `Delta` carries `Tokens` and `Done` a `Hypothesis`.

    `load` raises `ModelUnavailable` with what to do; `admit` runs the front end, the row's prefill is the next step's;
    `step` prefills what was admitted and decodes for every other row.
    """

    @property
    def info(self) -> EngineInfo:
        """As last published: safe from any thread, never waits."""


class Aligner(Protocol):
    """Places words in time, many items in one forward pass. All but `locate` are called from the engine thread."""

    @property
    def aligner_id(self) -> str:
        """The name it was asked for."""

    @property
    def loaded(self) -> bool:
        """Whether `align` may be called."""

    def locate(self) -> None:
        """Find the checkpoint, fetching it if need be; may take minutes. Raises `ModelUnavailable`. Any thread."""

    def load(self) -> None:
        """Load what was located. Raises `ModelUnavailable` or `EngineOutOfMemory`."""

    def unload(self) -> None:
        """Give the memory back."""

    def cost(self, item: AlignItem) -> int:
        """Tokens that the item takes in a pass; good to a few, known without the weights."""

    def align(self, items: Sequence[AlignItem]) -> list[Alignment | AsrError]:
        """An alignment, or the error of that item alone, for each. Never raises for an item's sake."""
