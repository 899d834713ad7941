"""The hooks by which features add to the server: routes, health, and parts that are built together with it.

`Feature.server` names the module whose `SERVER` is the `ServerFeature`. It is imported where a server, or a command
that runs without a server, is built: to resolve a plan imports no routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asr_server.schedule.ports import SchedulerObserver

if TYPE_CHECKING:
    from fastapi import APIRouter
    from prometheus_client import CollectorRegistry
    from starlette.websockets import WebSocket

    from asr_server.audio.decode import Decoder
    from asr_server.core.errors import EngineFailed
    from asr_server.core.settings import Settings
    from asr_server.engine.feature import Plan
    from asr_server.ops.health import HealthSection
    from asr_server.schedule.job import AnyJob
    from asr_server.schedule.ports import Batch, JobEnd
    from asr_server.schedule.thread import Scheduler
    from asr_server.services import FeatureParts

LiveEndpoint = Callable[["WebSocket"], Awaitable[None]]


class ObserverByItem(SchedulerObserver):
    """Observes an engine thread that features share: jobs by the class of their item, all others by `engine`."""

    def __init__(self, engine: SchedulerObserver) -> None:
        self._engine = engine
        self._by_item: dict[type, SchedulerObserver] = {}

    def add(self, item: type, observer: SchedulerObserver) -> None:
        """Report jobs with items of this class to the observer. Call it before such a job is submitted."""
        self._by_item[item] = observer

    def started(self, job: AnyJob) -> None:
        self._of(job).started(job)

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        self._of(job).ended(job, end, value)

    def stepped(self, rows: int, took_s: float) -> None:
        self._engine.stepped(rows, took_s)

    def _of(self, job: AnyJob) -> SchedulerObserver:
        return self._by_item.get(type(job.item), self._engine)


@dataclass(frozen=True, slots=True)
class CoreParts:
    """The parts of the core from which features build their own."""

    settings: Settings
    plan: Plan
    thread: Scheduler  # of the recognisers
    models: Mapping[str, Batch]  # of features on that thread, by the options that name them
    decoder: Decoder
    observers: ObserverByItem  # of that thread
    on_failure: Callable[[EngineFailed], None]  # for when another engine has failed for good
    registry: CollectorRegistry  # of metrics


@dataclass(frozen=True, slots=True)
class ServerFeature:
    """The additions of one feature to the server. A hook that it does not use keeps its default."""

    routers: Sequence[APIRouter] = ()
    health: HealthSection = lambda services: {}
    live_endpoint: Callable[[LiveEndpoint], LiveEndpoint] = lambda endpoint: endpoint  # wraps that of live sessions
    build: Callable[[CoreParts], FeatureParts] | None = None  # None where it has no parts
