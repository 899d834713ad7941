"""The Qwen3 forced aligner: words in, milliseconds out, many spans in one pass. Libraries are imported by `load`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory
from asr_server.engine import faults, memory
from asr_server.engine.feature import OPENVINO, Plan
from asr_server.engine.protocol import AlignItem, Alignment
from asr_server.engine.qwen_asr import checkpoint

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.aligner_runtime import AlignerRuntime

_SAMPLES_PER_TOKEN = SAMPLE_RATE / 13
_BYTES_PER_TOKEN = 4
# Scripts from here on are split into single characters, two stamps after each.
_FIRST_IDEOGRAPH = "\u2e80"


class QwenAligner:
    """Implements `engine.protocol.Aligner` over the SDK's weights and text splitting.

    `on_progress` is called from inside of passes that may take long, on the thread that makes them; `on_load_progress`
    while a download makes progress, on another thread.
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
        """Find and check the checkpoint, fetching it if need be; one that was found once is not looked for again.

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
            self._runtime = _load(self._directory, self._plan, lambda share: self._on_load_progress())
        except EngineOutOfMemory as error:
            raise EngineOutOfMemory("No memory is left for the aligner; lower KV_BUDGET_MB or MAX_BATCH.") from error
        self._runtime.report_to(self._on_progress)

    def unload(self) -> None:
        """Free the weights and what the libraries hold back."""
        self._runtime = None
        gc.collect()
        memory.give_back()

    def cost(self, item: AlignItem) -> int:
        """Tokens of the audio and of the text, and two stamps a word."""
        words = len(item.text.split()) + sum(char >= _FIRST_IDEOGRAPH for char in item.text)
        return int(len(item.audio) / _SAMPLES_PER_TOKEN + len(item.text.encode()) / _BYTES_PER_TOKEN) + 2 * words

    def align(self, items: Sequence[AlignItem]) -> Iterator[list[Alignment | AsrError] | None]:
        """Align all items together, or in halves where that fails, down to the item that is at fault. See
        `engine.protocol.Aligner`. Raises `EngineFailed`."""
        assert self._runtime is not None, "align() before load()"
        try:
            for part in self._runtime.align(items):
                yield None if part is None else list(part)
            return
        except EngineFailed:
            raise
        except AsrError as error:  # whatever an item provokes, the others are aligned
            failure = error
        if len(items) == 1:
            yield [failure]
            return
        half, found = len(items) // 2, list[Alignment | AsrError]()
        for some in (items[:half], items[half:]):
            for results in self.align(some):
                if results is None:
                    yield None
                else:
                    found += results
        yield found


def _load(directory: Path, plan: Plan, on_progress: Callable[[float], None]) -> AlignerRuntime:
    """Load a checked aligner. `on_progress` is called while graphs are made. Raises `ModelUnavailable`,
    `EngineOutOfMemory`."""
    from asr_server.engine.qwen_asr import files
    from asr_server.engine.qwen_asr.aligner_runtime import AlignerRuntime

    try:
        found = files.read(directory)
        stamps = files.stamps(found)
        if plan.runtime == OPENVINO:
            from asr_server.engine.qwen_asr import compiled_aligner

            return AlignerRuntime(found, stamps, compiled_aligner.load(found, plan, on_progress))
        from asr_server.engine.qwen_asr import torch_model

        return AlignerRuntime(found, stamps, torch_model.load_aligner(directory, plan))
    except Exception as error:
        raise faults.failure(error, "the aligner") from error
