"""The passes of a loaded model over rows: prepare, seat, prefill, step, drop, and what a failure means."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loguru import logger

from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory
from asr_server.engine import faults, memory
from asr_server.engine.rows import NoRoom, Rows, Slotted

if TYPE_CHECKING:
    from asr_server.engine.torch.passes import Capture

P = TypeVar("P")
R = TypeVar("R", bound=Slotted)
# Records passes with a `Capture`, calling a function before each, and returns how many.
Recorder = Callable[["Capture", Callable[[], None]], int]


class RowRuntime(ABC, Generic[P, R]):
    """Weights with what runs them over rows `R`, each made of a prepared item `P`. Lives as long as the weights do.

    `slow`: the parts that call their `on_layer` inside of passes that may take long. `recorders`: what records more
    passes than the decoder's, and returns how many.
    """

    def __init__(
        self, decoder: Rows[R], planned: memory.Capacity, slow: Sequence[Any], recorders: Sequence[Recorder] = ()
    ) -> None:
        self._recorders = recorders
        self.decoder, self.capacity = decoder, planned
        self.prefill_policy = memory.PrefillPolicy()
        self._slow = slow
        self.refused = False  # the device cannot record the decoder's passes

    @abstractmethod
    def tokens(self, prepared: P) -> int:
        """Return the tokens that the row's prefill has to run."""

    @abstractmethod
    def row_tokens(self, prepared: P) -> int:
        """Return the tokens that the row is expected to come to in all."""

    @abstractmethod
    def seat(self, key: int, prepared: P, *, urgent: bool) -> R:
        """Give a prepared row that fits a slot."""

    @abstractmethod
    def _forget(self) -> bool:
        """Drop what is kept and not needed for an answer; true if there was anything."""

    @property
    def dtype(self) -> str:
        """Return the number format of the language model."""
        return str(self.decoder.model.dtype).removeprefix("torch.")

    def attempt(self, run: Callable[[], object]) -> AsrError | None:
        """Run passes. Returns why they failed, None if they did not. Raises `EngineFailed`.

        Where memory runs out, what is kept and not needed is given back and they are run once more. That happens
        outside of `except`: there the traceback would keep all tensors of the failed pass.
        """
        for first in (True, False):
            try:
                with self.decoder.computing():
                    run()
                return None
            except Exception as error:  # whatever one row provokes, the others go on
                failure = self._failure(error)
            if isinstance(failure, EngineFailed):
                raise failure
            short = isinstance(failure, EngineOutOfMemory) and not self.is_full(failure)
            if not (first and short and self._give_back()):
                break
        return failure

    @staticmethod
    def is_full(failure: AsrError) -> bool:
        """True if rows became longer than there is room for."""
        return isinstance(failure.__cause__, NoRoom)

    def _failure(self, error: Exception) -> AsrError:
        """Return the error that an exception of a pass means."""
        return faults.failure(error)

    def _give_back(self) -> bool:
        """Free what is not needed for an answer. Returns whether there may be more memory now."""
        held = self._forget()
        memory.give_back()
        return held or self.decoder.device != "cpu"

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """Call `on_progress` inside of every pass that may take long, from now on.

        On a CPU only: on a GPU a pass is queued in milliseconds, and each call would be a share of them.
        """
        if self.decoder.device == "cpu":
            for part in self._slow:
                part.on_layer = on_progress

    def record(self, on_each: Callable[[], None]) -> None:
        """Record passes as CUDA graphs, before the first row. Raises `EngineFailed`.

        Those that cannot be recorded are run as without a recorder, and a warning says so.
        """
        from asr_server.engine.torch.passes import CudaCapture

        began_s, capture, counts = time.perf_counter(), CudaCapture(self.decoder.model.device), list[int]()

        def record(recorder: Recorder) -> None:
            counts.append(recorder(capture, on_each))

        for recorder in (self.decoder.record, *self._recorders):
            failure = self.attempt(partial(record, recorder))
            if failure is not None:
                logger.opt(exception=failure.__cause__).warning("passes are not recorded", reason=failure.message)
                self.refused |= recorder == self.decoder.record
        took_s = round(time.perf_counter() - began_s, 1)
        logger.info("passes are recorded as CUDA graphs", count=sum(counts), took_s=took_s)

    def prefill(self, parts: Sequence[tuple[R, int]], *, ahead: bool = False) -> None:
        """Run that many tokens of the prompts of those rows; see `Rows.next_input` and `Rows.prefill`."""
        began_s = time.perf_counter()
        with self.decoder.computing():
            self._encode(parts)
            self.decoder.prefill(parts, ahead=ahead)
        self.prefill_policy.note_prefill(sum(count for _, count in parts), time.perf_counter() - began_s)

    def _encode(self, parts: Sequence[tuple[R, int]]) -> None:
        """Make the embeddings that these parts of prompts lack."""

    def step(self, *rows: R, ahead: bool = False) -> None:
        """Run one forward pass for all rows that decode, or for some; see `Rows.step`."""
        began_s = time.perf_counter()
        with self.decoder.computing():
            self.decoder.step(*rows, ahead=ahead)
        self.prefill_policy.note_step(time.perf_counter() - began_s)

    def drop(self, row: R) -> None:
        """Take a row out of the batch. Raises `EngineFailed`."""
        try:
            with self.decoder.computing():
                self.decoder.drop(row)
        except Exception as error:
            raise self._failure(error) from error
