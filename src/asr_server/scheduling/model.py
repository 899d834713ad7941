"""Loading and unloading the model of a batch, and its state for others to read. Used on the engine thread."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from asr_server.core.errors import AsrError
from asr_server.scheduling.heartbeat import Heartbeat
from asr_server.scheduling.ports import Batch
from asr_server.scheduling.request_clock import RequestClock


class ModelState(StrEnum):
    """Whether the model is loaded."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


# Called with each new state of the model, and how many seconds the change took.
OnState = Callable[[ModelState, float], None]


class Model:
    """The model of one batch.

    `state` and `load_error` may be read from any thread: each is one reference that is replaced as a whole.
    """

    def __init__(
        self,
        batch: Batch,
        on_state: OnState,
        heartbeat: Heartbeat,
        request_clock: RequestClock,
        clock: Callable[[], float],
    ) -> None:
        self._batch = batch
        self._on_state = on_state
        self._heartbeat = heartbeat
        self._request_clock = request_clock
        self._clock = clock
        self._load_began_s = self._load_ended_s = 0.0
        self.state = ModelState.UNLOADED
        self.load_error = ""

    def ensure_loaded(self) -> None:
        """Load the model unless it is loaded. Raises what loading raised."""
        if self._batch.loaded:
            return
        began_s = self._clock()
        self.load_error = ""
        self._change(ModelState.LOADING, 0.0)
        try:
            with self._request_clock.loading():
                self._batch.load()
        except Exception as error:
            self.load_error = error.message if isinstance(error, AsrError) else type(error).__name__
            self._end_of_load(ModelState.FAILED, began_s)
            raise
        self._load_began_s, self._load_ended_s = began_s, self._clock()
        self._end_of_load(ModelState.LOADED, began_s)

    def unload(self) -> None:
        """Unload the model if it is loaded."""
        if not self._batch.loaded:
            return
        began_s = self._clock()
        self._batch.unload()
        self._change(ModelState.UNLOADED, self._clock() - began_s)

    def load_wait_s(self, queued_s: float) -> float:
        """How much of the time since `queued_s` (monotonic) the last load took."""
        return max(0.0, self._load_ended_s - max(self._load_began_s, queued_s))

    def _end_of_load(self, state: ModelState, began_s: float) -> None:
        # Before the state changes: whoever sees that no load is under way takes an old heartbeat for a hang.
        self._heartbeat.tick()
        self._change(state, self._clock() - began_s)

    def _change(self, state: ModelState, took_s: float) -> None:
        self.state = state
        self._on_state(state, took_s)
