"""The models of the engine thread: the batch of each, when it is loaded and unloaded, and its state for others to read.

Used on the engine thread. That thread's own lock guards the holds on the idle timers, and changes of `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from asr_server.core.errors import AsrError, EngineOutOfMemory
from asr_server.core.idle import IdleTimer
from asr_server.schedule.job import DEFAULT, AnyJob, Priority, RequestClock


@dataclass(frozen=True, slots=True)
class RowDelta:
    """A row has new output; more will come."""

    key: int  # the row's, as given to `admit`
    value: Any


@dataclass(frozen=True, slots=True)
class RowDone:
    """A row is finished and has left the batch."""

    key: int  # the row's, as given to `admit`
    value: Any  # its answer


@dataclass(frozen=True, slots=True)
class RowFailed:
    """Only this row failed, and has left the batch."""

    key: int  # the row's, as given to `admit`
    error: Exception


Outcome = RowDelta | RowDone | RowFailed


class Batch(Protocol):
    """A batch of rows that moves in steps. Methods are called only from the engine thread."""

    @property
    def loaded(self) -> bool:
        """True if rows may be admitted."""

    @property
    def fits(self) -> bool:
        """True if a load seems to fit into free memory now, or if that is not known."""

    @property
    def free_slots(self) -> int:
        """Return how many more rows may be admitted now. This is 0 while as many rows wait inside as a step can begin:
        jobs that wait in the queue can still be overtaken."""

    @property
    def urgent_slots(self) -> int:
        """Return how many more urgent rows may be admitted now. Urgent rows overtake the others that wait inside. This
        is 0 while as many urgent rows wait inside as a step can begin."""

    def load(self) -> None:
        """Load the model, which may take long. Raises if that fails, and may be called again later."""

    def unload(self) -> None:
        """Free the model's memory. Only called with no rows in the batch."""

    def admit(self, key: int, item: Any, urgent: bool = False) -> None:
        """Add a row to the batch. Its work begins with one of the next steps; urgent rows begin first. Raises if `item`
        itself is at fault."""

    def step(self, begin_s: float | None = None) -> Iterable[Outcome]:
        """Advance every row that has begun by one step, then begin others. Raises only if the row at fault is
        unknown.

        Yields each outcome as soon as it is known: outcomes of rows that had begun come before the first of the others.
        `begin_s`: about how long the rows that have begun can wait while others begin; None leaves this to the batch.
        """

    def drop(self, key: int) -> None:
        """Remove a row between steps; unknown keys are ignored."""


class ModelState(StrEnum):
    """The state of a model in memory."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


# Called with the name of a model, its new state, and how many seconds the change took.
OnState = Callable[[str, ModelState, float], None]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """The state of a model, for other threads to read."""

    state: ModelState
    load_error: str  # why the last load failed, "" if it did not
    rows: int  # in its batch


@dataclass(slots=True, eq=False)
class ServedModel:
    """A model and its batch."""

    name: str
    batch: Batch
    idle: IdleTimer  # counts the time since its last work or lease
    on_state: OnState
    heartbeat: IdleTimer  # counts the time since the thread last made progress
    request_clock: RequestClock
    rows: dict[int, AnyJob] = field(default_factory=dict)  # the jobs in the batch by key
    # May be read from any thread: each is one reference that is replaced as a whole.
    state: ModelState = ModelState.UNLOADED
    load_error: str = ""
    load_began_s: float = 0.0
    load_ended_s: float = 0.0

    @property
    def has_bulk_only(self) -> bool:
        return bool(self.rows) and all(job.priority is Priority.BULK for job in self.rows.values())

    def load(self) -> None:
        began_s = self.idle.clock()
        self.load_error = ""
        self._change(ModelState.LOADING, began_s)
        try:
            with self.request_clock.loading():
                self.batch.load()
        except Exception as error:
            self.load_error = error.message if isinstance(error, AsrError) else type(error).__name__
            self._change(ModelState.FAILED, began_s)
            raise
        self.load_began_s, self.load_ended_s = began_s, self.idle.clock()
        self._change(ModelState.LOADED, began_s)

    def unload(self) -> None:
        if not self.batch.loaded:
            return
        began_s = self.idle.clock()
        self.batch.unload()
        self._change(ModelState.UNLOADED, began_s)

    def _change(self, state: ModelState, began_s: float) -> None:
        # Before the state changes: without a load in progress, an old heartbeat counts as a hang.
        self.heartbeat.touch()
        self.state = state  # before the callback, which may look at it
        self.on_state(self.name, state, self.idle.clock() - began_s)


class ServedModels(dict[str, ServedModel]):
    """The models by name; at least one."""

    @property
    def rows(self) -> list[AnyJob]:
        return [job for model in self.values() for job in model.rows.values()]

    def ensure_loaded(self, name: str) -> None:
        """Load a model unless it is loaded. While memory is short, unload the least recently used of the other models
        without rows. Raises the error of a failed load."""
        model = self[name]
        while not model.batch.loaded:
            others = [other for other in self.values() if other is not model and other.batch.loaded and not other.rows]
            if not others or model.batch.fits:
                try:
                    model.load()
                    return
                except EngineOutOfMemory:
                    if not others:
                        raise
            min(others, key=lambda other: other.idle.used_s).unload()


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The state of the engine thread at one moment, for other threads to read."""

    models: Mapping[str, ModelStatus]  # by name
    running: int  # rows in all batches
    depth: dict[str, int]  # waiting jobs by class
    waiting_s: float  # seconds of audio of the waiting jobs
    heartbeat_age_s: float  # seconds since the thread last made progress
    busy: bool  # the thread is in a turn, so it should make progress
    alive: bool  # the thread has not ended
    failure: str = ""  # why it ends, "" if the engine has not failed

    @property
    def state(self) -> ModelState:
        return self.models[DEFAULT].state

    @property
    def load_error(self) -> str:
        return self.models[DEFAULT].load_error

    @property
    def loading(self) -> bool:
        return any(model.state is ModelState.LOADING for model in self.models.values())

    def is_stuck(self, longest_s: float, *, aligner_loads: bool) -> bool:
        return self.busy and self.heartbeat_age_s > longest_s and not (self.loading or aligner_loads)
