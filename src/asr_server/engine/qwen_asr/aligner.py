"""The Qwen3 forced aligner: words in, milliseconds out, many spans in one pass. `load` imports the libraries.

The prompt is the audio, then each word followed by two stamps. At these stamps, the head gives the time slots in which
the word begins and ends.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE, samples_to_whole_ms
from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory, InvalidInput, UnsupportedLanguage
from asr_server.engine import faults, memory
from asr_server.engine.feature import OPENVINO, Plan
from asr_server.engine.protocol import AlignedPiece, AlignItem, Alignment
from asr_server.engine.qwen_asr import aligned_words, checkpoint
from asr_server.engine.qwen_asr.aligner_model import AlignerModel, AlignerRow, Scores

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.files import CheckpointFiles, Stamps

_SAMPLES_PER_TOKEN = SAMPLE_RATE / 13
_BYTES_PER_TOKEN = 4
# Scripts from this character on are split into single characters, each followed by two stamps.
_FIRST_IDEOGRAPH = "\u2e80"
# The languages of the released aligner, unless a checkpoint's configuration names others.
LANGUAGES = (
    *("Chinese", "English", "Cantonese", "French", "German", "Italian", "Japanese", "Korean", "Portuguese", "Russian"),
    "Spanish",
)
# The SDK's own limit: beyond it the times collapse.
LONGEST_S = 180.0
# The least probability of a slot. No slot is impossible, so neighbours can overrule a stamp that seems certain.
_LEAST_CERTAINTY = 1e-9
# The prompt around the audio, and the stamps after each word.
_BEFORE, _AFTER, _STAMPS = "<|audio_start|>", "<|audio_end|>", "<timestamp><timestamp>"


class QwenAligner:
    """Implements `engine.protocol.Aligner` over the SDK's weights and text splitting.

    `on_progress` is called inside passes that may take long, on the thread that runs them. `on_load_progress` is called
    while graphs are made and, on another thread, during a download.
    """

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[], None] = lambda: None,
        on_load_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._on_progress = on_progress
        self._on_load_progress = on_load_progress
        self._directory: Path | None = None
        self._runtime: AlignerRuntime | None = None

    @property
    def aligner_id(self) -> str:
        return self._plan.aligner_id

    @property
    def loaded(self) -> bool:
        return self._runtime is not None

    def locate(self) -> None:
        """Find and check the checkpoint, and download it if necessary. One that was found before is only checked again.

        Raises `ModelUnavailable`.
        """
        if self._directory is not None and not checkpoint.problem(self._directory, self._plan.aligner_id):
            return
        self._directory = checkpoint.locate(
            self._plan.aligner_id,
            lambda size_bytes: self._on_load_progress(),
            aligner=True,
            revision=self._plan.aligner_revision,
        )
        logger.info("checkpoint", model=self._plan.aligner_id, revision=checkpoint.revision_of(self._directory))

    def load(self) -> None:
        """Load the located checkpoint. Raises `ModelUnavailable` or `EngineOutOfMemory`."""
        assert self._directory is not None, "load() before locate()"
        try:
            self._runtime = self._load_runtime(self._directory)
        except Exception as error:
            failure = faults.failure(error, "the aligner")
            if isinstance(failure, EngineOutOfMemory):
                failure = EngineOutOfMemory("No memory is left for the aligner; lower KV_BUDGET_MB or MAX_BATCH.")
            raise failure from error

    def _load_runtime(self, directory: Path) -> AlignerRuntime:
        from asr_server.engine.qwen_asr import files

        found = files.read(directory)
        stamps = files.stamps(found)
        model: AlignerModel
        if self._plan.runtime == OPENVINO:
            from asr_server.engine.qwen_asr import compiled_aligner

            model = compiled_aligner.load(found, self._plan, lambda share: self._on_load_progress())
        else:
            from asr_server.engine.qwen_asr import torch_model

            model = torch_model.load_aligner(directory, self._plan)
        model.report_to(self._on_progress)
        return AlignerRuntime(found, stamps, model)

    def unload(self) -> None:
        """Free the weights, and return freed memory to the driver and the system."""
        self._runtime = None
        gc.collect()
        memory.give_back()

    def cost(self, item: AlignItem) -> int:
        """Tokens of the audio and of the text, and two stamps a word."""
        words = len(item.text.split()) + sum(char >= _FIRST_IDEOGRAPH for char in item.text)
        return int(len(item.audio) / _SAMPLES_PER_TOKEN + len(item.text.encode()) / _BYTES_PER_TOKEN) + 2 * words

    def align(self, items: Sequence[AlignItem]) -> Iterator[list[Alignment | AsrError] | None]:
        """Align all items together. If that fails, align them in halves, down to the item at fault. See
        `engine.protocol.Aligner`. Raises `EngineFailed`."""
        assert self._runtime is not None, "align() before load()"
        try:
            yield from self._runtime.align(items)
            return
        except Exception as error:  # whatever one item raises, the others are aligned
            failure = faults.failure(error)
        if isinstance(failure, EngineFailed):
            raise failure
        if len(items) == 1:
            yield [failure]
            return
        # One item is at fault, or the items need too much memory together.
        half, found = len(items) // 2, list[Alignment | AsrError]()
        for some in (items[:half], items[half:]):
            for results in self.align(some):
                if results is None:
                    yield None
                else:
                    found += results
        yield found


class AlignerRuntime:
    """A loaded aligner."""

    def __init__(self, found: CheckpointFiles, stamps: Stamps, model: AlignerModel) -> None:
        self._tokenizer, self._stamps, self._model = found.tokenizer, stamps, model
        self._mel = model.encoder.log_mel(found.mel)
        self._languages = {name.lower() for name in stamps.languages or LANGUAGES}
        self.longest_s = min(LONGEST_S, model.slots * stamps.slot_ms / 1000)

    def align(self, items: Sequence[AlignItem]) -> Iterator[list[Alignment | AsrError] | None]:
        """Align all items. Yields None after each part of the work except the last, then the alignments. Raises
        `UnsupportedLanguage` or `InvalidInput` if an item cannot be aligned, or what a pass raises."""
        rows = [self._row(item) for item in items]
        asked, found = [row for row in rows if row.words], list[Scores]()
        for part in self._model.scores(asked, self._stamps.token) if asked else ():
            if part is None:
                yield None
            else:
                found = part
        scores = iter(found)
        yield [
            self._alignment(item, row.words, next(scores)) if row.words else Alignment(())
            for item, row in zip(items, rows, strict=True)
        ]

    def _row(self, item: AlignItem) -> AlignerRow:
        if item.language.lower() not in self._languages:
            raise UnsupportedLanguage(f"The aligner does not know {item.language or 'this language'}.")
        if len(item.audio) > self.longest_s * SAMPLE_RATE:
            raise InvalidInput(
                f"The aligner takes at most {self.longest_s:g} s of audio at a time.", code="unsupported_value"
            )
        words = aligned_words.words(item.text, item.language)
        before, after = _BEFORE, _AFTER + "".join(word + _STAMPS for word in words)
        return AlignerRow(self._mel(item.audio), tuple(words), self._tokenizer.ids(before), self._tokenizer.ids(after))

    def _alignment(self, item: AlignItem, words: Sequence[str], scores: Scores) -> Alignment:
        """Return the times of the words, in order and within the audio."""
        last_ms, slot_ms = samples_to_whole_ms(len(item.audio)), self._stamps.slot_ms
        inside = scores[:, : int(last_ms / slot_ms) + 2]
        times = [min(max(0, round(slot * slot_ms)), last_ms) for slot in _in_order(scores, inside)]
        return Alignment(tuple(map(AlignedPiece, words, times[::2], times[1::2])))


def _in_order(scores: Scores, inside: Scores) -> NDArray[np.floating]:
    """Return the likeliest slot of each stamp, as the SDK does, if these slots are in order; else the chain's
    medians."""
    likeliest = scores.argmax(-1)
    if (np.diff(likeliest) >= 0).all():
        return likeliest.astype(np.float64)
    weights = np.exp(inside - inside.max(-1, keepdims=True))
    return medians(weights / weights.sum(-1, keepdims=True))


def medians(weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Turn the separate probabilities of stamps, (n, slots), into medians (n,) in fractional slots that never decrease.

    The likeliest slots of the stamps may run backwards, and would then need repair by some rule. Here the stamps form a
    chain instead, t(1) <= t(2) <= ... Each link has the head's probabilities, and no ordered sequence is preferred. The
    forward-backward recursion (Rabiner, Proc. IEEE 77(2), 1989) finds the chain's marginals. The median of a marginal
    is the time with the least expected distance from the truth, and the medians of an ordered chain are in order.

    A certain stamp keeps its slot exactly if its neighbours allow that slot.
    """
    marginal = _marginals(np.log(np.maximum(weights.astype(np.float64), _LEAST_CERTAINTY)))
    reached = marginal.cumsum(axis=1)
    slot = (reached < 0.5).sum(axis=1)
    rows = np.arange(len(slot))
    inside = marginal[rows, slot]
    # A slot stands for the time half a slot to either side of it.
    return slot - 0.5 + (0.5 - (reached[rows, slot] - inside)) / inside


def _marginals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn (n, slots) logarithms into probabilities of each link of the chain.

    The recursion uses logarithms, since the weight of a slot that many neighbours exclude would underflow.
    """
    before, behind = np.zeros_like(logs), np.zeros_like(logs)
    for n in range(1, len(logs)):
        before[n] = np.logaddexp.accumulate(before[n - 1] + logs[n - 1])
        behind[-1 - n] = np.logaddexp.accumulate((behind[-n] + logs[-n])[::-1])[::-1]
    marginal = before + logs + behind
    marginal = np.exp(marginal - marginal.max(axis=1, keepdims=True))
    scaled: NDArray[np.float64] = marginal / marginal.sum(axis=1, keepdims=True)
    return scaled
