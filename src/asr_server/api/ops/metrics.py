"""`GET /metrics`: everything that is counted, for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from asr_server.api.dependencies import Services, get_services
from asr_server.api.ops import snapshots

if TYPE_CHECKING:
    from prometheus_client import Metric

    from asr_server.api.metrics.metrics import Metrics
    from asr_server.api.ops.snapshots import SampleCollector

router = APIRouter(tags=["operations"])
ServicesDep = Annotated[Services, Depends(get_services)]


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
    body = await asyncio.to_thread(generate_latest, _CombinedCollector(services.meters, readings))
    return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class _CombinedCollector:
    """What was counted and what was read, as the encoder wants it: it asks for nothing but this."""

    def __init__(self, meters: Metrics, readings: SampleCollector) -> None:
        self._meters = meters
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        yield from self._meters.registry.collect()
        yield from self._readings.collect()
