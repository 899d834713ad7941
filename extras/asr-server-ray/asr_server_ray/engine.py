"""The engine of the app in a cluster: each row is a call to a replica. Called from one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from asr_server.core.errors import AsrError, ModelUnavailable, TranscriptionFailed
from asr_server.engine.protocol import AlignerState, AlignItem, Alignment, EngineInfo, Hypothesis, Tokens, Utterance
from asr_server.features.remote_engine.row_calls import RowCalls
from asr_server.schedule.ports import Outcome, RowDelta, RowDone, RowFailed
from asr_server_ray import rows
from asr_server_ray.messages import Described, ReplicaStats
from asr_server_ray.rows import Replicas, Sender

# The longest wait of a step for an answer. Jobs that arrive meanwhile are admitted after it.
_WAIT_S = 0.005
# The most rows under way at once, however many replicas run. Each row may hold two minutes of audio.
MAX_ROWS = 256
# The part of the slots for live rows in addition to those for all kinds: in a replica they overtake.
_URGENT_SHARE = 4

_News = Tokens | Hypothesis | Alignment


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas as an engine needs them."""

    replicas: Replicas
    stats: Callable[[], Mapping[str, ReplicaStats]]  # as published, by replica; may be read from any thread
    first: Described  # the description that one gave of itself when the app started


class ClusterEngine:
    """Implements `engine.protocol.Engine`; `admit` also takes an `AlignItem`, whose `RowDone` carries an `Alignment`.

    The replicas keep their models, so there is nothing to unload. `on_progress` is called in every step.
    """

    def __init__(self, fleet: Fleet, sender: Sender, on_progress: Callable[[], None] = lambda: None) -> None:
        self._fleet, self._sender, self._on_progress = fleet, sender, on_progress
        self._calls: RowCalls[_News] | None = None

    @property
    def info(self) -> EngineInfo:
        """The sums of memory and slots of all replicas, and the rest from the first of them. Safe from any thread."""
        model = self._sender.model
        found = [stats.engines[model] for stats in self._fleet.stats().values() if model in stats.engines]
        return _together(found or [self._fleet.first.stats.engines[model]])

    @property
    def loaded(self) -> bool:
        """True if rows can be sent."""
        return self._calls is not None

    @property
    def fits(self) -> bool:
        """True: the engine takes no memory here."""
        return True

    @property
    def free_slots(self) -> int:
        """The slots of the replicas without a row. While no replica runs, one row may wait for it."""
        return min(MAX_ROWS, max(1, self.info.slots)) - self._rows

    @property
    def urgent_slots(self) -> int:
        """The slots for urgent rows, which are more: in a replica urgent rows overtake the others that wait there."""
        slots = min(MAX_ROWS, max(1, self.info.slots))
        return slots + max(1, slots // _URGENT_SHARE) - self._rows

    @property
    def _rows(self) -> int:
        return len(self._calls) if self._calls is not None else 0

    def load(self) -> None:
        """Begin to send rows: the replicas have loaded their models."""
        if self._calls is None:
            self._calls = RowCalls("cluster")

    def unload(self) -> None:
        """End all calls."""
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def admit(self, key: int, item: Utterance | AlignItem, urgent: bool = False) -> None:
        """Send a row to a replica."""
        assert self._calls is not None, "admit() before load()"
        if isinstance(item, AlignItem) and not self.info.aligner_id:
            raise ModelUnavailable("This model has no aligner, and FORCED_ALIGNER_ID is not set.")

        async def work(tell: Callable[[_News], None]) -> None:
            tell(await rows.result(self._fleet.replicas, self._sender, item, tell, is_live=urgent))

        self._calls.start(key, work)

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Hand out the answers that have come, after a short wait if there are none."""
        self._on_progress()
        if self._calls is None:
            return
        for key, news in self._calls.news(_WAIT_S if self._rows else 0.0):
            if isinstance(news, Tokens):
                yield RowDelta(key, news)
                continue
            self._calls.end(key)
            if isinstance(news, Exception):
                yield RowFailed(key, news if isinstance(news, AsrError) else _failed(news))
            else:
                yield RowDone(key, news)

    def drop(self, key: int) -> None:
        """Cancel a row's call."""
        if self._calls is not None:
            self._calls.end(key)


def _together(infos: list[EngineInfo]) -> EngineInfo:
    states = {info.aligner_state for info in infos}
    order = (AlignerState.LOADED, AlignerState.UNLOADED, AlignerState.LOADING, AlignerState.FAILED)
    return replace(
        infos[0],
        gpu_allocated_mb=sum(info.gpu_allocated_mb for info in infos),
        gpu_reserved_mb=sum(info.gpu_reserved_mb for info in infos),
        slots=sum(info.slots for info in infos),
        kv_budget_mb=sum(info.kv_budget_mb for info in infos),
        kv_cache_mb=sum(info.kv_cache_mb for info in infos),
        sessions_mb=sum(info.sessions_mb for info in infos),
        aligner_state=next(state for state in order if state in states),
    )


def _failed(error: Exception) -> TranscriptionFailed:
    failure = TranscriptionFailed("The call to the engine replica failed.")
    failure.__cause__ = error
    return failure
