"""An engine whose rows share passes: who gets a slot, whose prompt is run, what a step decodes, who fails.

Libraries are imported by `load`, not before. Every method is called from one thread.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asr_server.core import idle
from asr_server.core.environment import prefer
from asr_server.core.errors import AsrError, EngineFailed
from asr_server.engine import faults, memory
from asr_server.schedule.ports import Outcome, RowFailed

if TYPE_CHECKING:
    from asr_server.engine.row_runtime import RowRuntime

# Passes without a failure after which twice as many rows are tried: those of about one short answer.
_RECOVERY_PASSES = 64
# Rows that may be seated before one that has no room yet: about those that are in a batch when it comes.
_MOST_OVERTAKING = 32

P = TypeVar("P")
R = TypeVar("R")


class RowLimit:
    """The most rows that may decode together at this time: fewer than `planned` after memory ran out, and while the row
    that makes steps fail is looked for."""

    def __init__(self, planned: int) -> None:
        self._planned = self._fit = planned
        self.isolating: int | None = None  # a further limit, while the row at fault is looked for
        self._succeeded = 0

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return min(self.isolating or self._fit, self._fit)

    def ran_out(self, rows: int) -> None:
        """Memory was too short for a pass of `rows`."""
        self._fit, self._succeeded = max(1, min(self._fit, rows // 2)), 0

    def succeeded(self) -> None:
        """A pass was made. What took the memory may be gone: from time to time more rows are tried."""
        if self._fit == self._planned:
            return
        self._succeeded += 1
        if self._succeeded == _RECOVERY_PASSES:
            self._fit, self._succeeded = min(self._planned, 2 * self._fit), 0


@dataclass(slots=True, eq=False)
class Admitted(Generic[P, R]):
    """An admitted item."""

    key: int
    prepared: P  # the item as the runtime takes it
    urgent: bool = False  # it goes before work that is not
    row: R | None = None  # None while it has no slot
    lacks_room: bool = False  # it could not be seated, and others may go before it
    overtaken: int = 0  # rows that were seated before it meanwhile


W = TypeVar("W", bound=Admitted[Any, Any])
T = TypeVar("T", bound="RowRuntime[Any, Any]")


class RowEngine(ABC, Generic[T, W]):
    """Implements `schedule.ports.Batch` over a runtime `T`, with works `W`.

    `most_rows`: as planned before the memory is known. `records`: steps are recorded as CUDA graphs. `on_progress` is
    called from inside of passes that may take long, on the thread that makes them; `on_load_progress` while a load
    makes progress; during a download on another thread.
    """

    warm_up_steps = 3  # of each batch at the end of a load

    def __init__(
        self, most_rows: int, records: bool, on_progress: Callable[[], None], on_load_progress: Callable[[], None]
    ) -> None:
        self._records, self._on_progress, self._on_load_progress = records, on_progress, on_load_progress
        self._runtime: T | None = None
        self._work: dict[int, W] = {}
        self._row_limit = RowLimit(most_rows)
        # Rows whose prompts are run together while one that makes this fail is looked for; None at all other times.
        self._prefill_rows: int | None = None
        self._begin_s: float | None = None  # of the last step

    @abstractmethod
    def _loader(self) -> Callable[[], T]:
        """Find and check the checkpoint, import the libraries, and return what loads it. Raises `ModelUnavailable`."""

    @abstractmethod
    def _warm_up_batches(self, runtime: T) -> Iterable[Sequence[Any]]:
        """Return batches of items to run once before the model counts as loaded."""

    @abstractmethod
    def _publish(self) -> None:
        """Publish the facts about the engine."""

    @abstractmethod
    def _decode(self, runtime: T) -> Iterator[Outcome]:
        """Make a step of all rows that decode, or fail the one that prevents it."""

    @abstractmethod
    def _hand_out(self, runtime: T) -> Iterator[Outcome]:
        """Hand out what rows have finished."""

    def _begun(self, runtime: T, work: W) -> Iterator[Outcome]:
        """Hand out what came with the end of a row's prompt."""
        yield from ()

    @property
    def loaded(self) -> bool:
        """True if the weights are in memory."""
        return self._runtime is not None

    @property
    def free_slots(self) -> int:
        """Return how many more rows the next steps can start; 0 while as much waits as one step may prefill."""
        return self._slots_beside([work for work in self._work.values() if waits(work) and not work.lacks_room])

    @property
    def urgent_slots(self) -> int:
        """Return how many more urgent ones the next steps can start: those are prefilled first."""
        return self._slots_beside([work for work in self._work.values() if waits(work) and work.urgent])

    def _slots_beside(self, waiting: Sequence[W]) -> int:
        runtime = self._runtime
        if waiting and runtime is not None:
            tokens = sum(runtime.tokens(work.prepared) if work.row is None else work.row.input.left for work in waiting)
            if tokens >= runtime.prefill_policy.tokens(self._begin_s):
                return 0
        return max(0, self._row_limit.rows - len(self._work))

    def load(self) -> None:
        """Find, check and load the checkpoint, plan the memory, and run ordinary shapes once.

        Raises `ModelUnavailable`, `EngineOutOfMemory`, `EngineFailed`.
        """
        prefer("HF_HUB_DISABLE_TELEMETRY", "1")  # the hub is asked for weights and told nothing else
        # OpenMP threads spin at every barrier by default. A decode step has hundreds of barriers: with another busy
        # process on the same cores that made a 7 s clip take 2.6 s instead of 40 ms (2 cores, 2026-11). Read at the
        # first import of torch.
        prefer("OMP_WAIT_POLICY", "PASSIVE")
        # Passes and what is kept of sessions vary in size for hours: without it, freed memory of a GPU falls to pieces.
        prefer("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        load = self._loader()
        self._on_load_progress()  # the libraries are in memory: on a slow disk they take as long as the weights
        idle.share_heaps()
        try:
            runtime = self._runtime = load()
        except Exception as error:
            raise faults.load_failure(error) from error
        runtime.report_to(self._on_progress)
        self._row_limit = RowLimit(runtime.capacity.rows)
        # The libraries bring half a million objects that stay: left among the others, each full collection of garbage
        # would walk them in the middle of a step.
        gc.collect()
        gc.freeze()
        try:
            self._warm_up(runtime)
        except EngineFailed:
            raise  # unloading would fail too
        except Exception:
            self.unload()
            raise
        self._publish()

    def _warm_up(self, runtime: T) -> None:
        """Run what first passes set up, which would otherwise be waited for, and count against ENGINE_HANG_S. Raises
        the error that a row which is alone fails with."""
        for items in self._warm_up_batches(runtime):
            self._run_batch(items)
        if self._records:
            runtime.record(self._on_load_progress)
            # Steps that are replayed have operations around them that others have not.
            for items in islice(self._warm_up_batches(runtime), 1):
                self._run_batch(items)

    def _run_batch(self, items: Sequence[Any]) -> None:
        """Make the first steps of a batch, and drop its rows."""
        for key, item in enumerate(items):
            if self.free_slots > 0:
                self.admit(key, item)
        for _ in range(self.warm_up_steps):
            self._on_load_progress()
            for outcome in self.step():
                if isinstance(outcome, RowFailed):
                    raise outcome.error
        for key in list(self._work):
            self.drop(key)

    def unload(self) -> None:
        """Free the weights, the cache, and what the C library holds back."""
        self._runtime = None
        self._work.clear()
        gc.unfreeze()
        gc.collect()
        memory.give_back()
        self._publish()

    @abstractmethod
    def admit(self, key: int, item: Any, urgent: bool = False) -> None:
        """Take a row in; its prompt is run with one of the next steps. Raises what is wrong with the item."""

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Decode for every row whose prompt was run and hand out what they finished; then run prompts, urgent rows
        first, for about `begin_s` if that is given."""
        runtime = self._runtime
        assert runtime is not None, "step() before load()"
        self._begin_s = begin_s
        if runtime.decoder.decoding:
            yield from self._decode(runtime)
            yield from self._hand_out(runtime)
        yield from self._seat(runtime)
        if len(runtime.decoder.decoding) < len(runtime.decoder.rows):
            yield from self._prefill(runtime, runtime.prefill_policy.tokens(begin_s))
            yield from self._hand_out(runtime)

    def drop(self, key: int) -> None:
        """Forget a row at once."""
        work = self._work.pop(key, None)
        if work is not None:
            self._take_out(work)

    def _take_out(self, work: W) -> None:
        """Give a row's slot back; its work waits for another."""
        if work.row is not None and self._runtime is not None and work.row in self._runtime.decoder.rows:
            self._runtime.drop(work.row)
        work.row = None

    def _fail(self, key: int, error: AsrError) -> RowFailed:
        self.drop(key)
        return RowFailed(key, error)

    def _seat(self, runtime: T) -> Iterator[Outcome]:
        """Give slots to what waits, urgent rows first and else in the order of admission, while it fits.

        A long row has room once others have left. Until then some that fit go before it.
        """
        waiting = (work for work in self._work.values() if work.row is None)
        passed = list[W]()
        for work in sorted(waiting, key=lambda work: not work.urgent):
            if len(runtime.decoder.rows) >= self._row_limit.rows:
                return
            if not runtime.decoder.fits(runtime.row_tokens(work.prepared)):
                passed.append(work)
            for other in passed:
                other.lacks_room = other.overtaken < _MOST_OVERTAKING
                if not other.lacks_room:
                    return  # it is the next, and keeps others from being admitted until then
            if work in passed:
                continue
            work.lacks_room = False
            for other in passed:
                other.overtaken += 1

            def seat(work: W = work) -> None:
                work.row = runtime.seat(work.key, work.prepared, urgent=work.urgent)

            failure = runtime.attempt(seat)
            if failure is not None:
                yield self._fail(work.key, failure)

    def _may_queue(self, running: Set[Any] = frozenset()) -> bool:
        """Return True if queuing a step delays no prompt of an urgent row; `running` prompts do not count."""
        return not any(work.urgent and waits(work) and work.row not in running for work in self._work.values())

    def _prefill(self, runtime: T, tokens: int) -> Iterator[Outcome]:
        parts = runtime.decoder.next_input(tokens)[: self._prefill_rows]
        failure = runtime.attempt(lambda: runtime.prefill(parts, ahead=self._may_queue({row for row, _ in parts})))
        if failure is None:
            self._prefill_rows = None
            for row in (row for row, _ in parts if row.input is None):
                yield from self._begun(runtime, self._work[row.key])
            return
        # Tried again with half of the rows, down to the one that is at fault.
        self._prefill_rows = len(parts) // 2 or None
        if len(parts) == 1:
            yield self._fail(parts[0][0].key, failure)


def waits(work: Admitted[Any, Any]) -> bool:
    """True if its prompt is not run to its end."""
    return work.row is None or work.row.input is not None
