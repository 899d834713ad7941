"""`GET /metrics`: everything that is counted, for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response

from asr_server.api.dependencies import ServicesDep
from asr_server.api.ops import snapshots

if TYPE_CHECKING:
    from prometheus_client import Metric

    from asr_server.api.metrics.metrics import Metrics
    from asr_server.api.ops.snapshots import SampleCollector

router = APIRouter(tags=["operations"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'asr_model_state{state="loaded"} 1.0\n'}}}},
)
async def metrics(services: ServicesDep) -> Response:
    """All metrics in Prometheus' text format. Never waits for the engine."""
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    readings = snapshots.SampleCollector(snapshots.read(services))
    # Some thousand lines are milliseconds of work, which the event loop has better uses for.
    body = await asyncio.to_thread(generate_latest, _CombinedCollector(services.metrics, readings))
    return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class _CombinedCollector:
    """What was counted and what was read, as the encoder wants it: it asks for nothing but this."""

    def __init__(self, metrics: Metrics, readings: SampleCollector) -> None:
        self._metrics = metrics
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        yield from self._metrics.registry.collect()
        yield from self._readings.collect()
