"""The hooks by which features add to the server: routes, health, and parts that are built together with it.

`Feature.server` names the module whose `SERVER` is the `ServerFeature`. That module is imported only when a server is
built: resolving a plan imports no routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter
    from prometheus_client import CollectorRegistry

    from asr_server.audio.decode import Decoder
    from asr_server.core.errors import EngineFailed
    from asr_server.core.settings import Settings
    from asr_server.engine.feature import Plan
    from asr_server.ops.health import HealthSection
    from asr_server.schedule.model import Batch
    from asr_server.schedule.thread import Scheduler
    from asr_server.services import FeatureParts


@dataclass(frozen=True, slots=True)
class CoreParts:
    """The parts of the core from which features build their own."""

    settings: Settings
    plan: Plan
    thread: Scheduler  # of the recognisers
    models: Mapping[str, Batch]  # the features' models on that thread, by the options that name them
    decoder: Decoder
    on_failure: Callable[[EngineFailed], None]  # a feature calls it when its own engine has failed for good
    registry: CollectorRegistry  # of metrics


@dataclass(frozen=True, slots=True)
class ServerFeature:
    """The additions of one feature to the server. A hook that it does not use keeps its default."""

    routers: Sequence[APIRouter] = ()
    health: HealthSection = lambda services: {}
    build: Callable[[CoreParts], FeatureParts] | None = None  # None if it has no parts
