"""`GET /metrics`: everything that is counted, for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from asr_server.api.deps import Services, services
from asr_server.api.metrics import snapshots

if TYPE_CHECKING:
    from prometheus_client import Metric

    from asr_server.api.metrics.meters import Meters
    from asr_server.api.metrics.snapshots import Readings

router = APIRouter(tags=["operations"])
Services_ = Annotated[Services, Depends(services)]


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'asr_model_state{state="loaded"} 1.0\n'}}}},
)
async def metrics(here: Services_) -> Response:
    """All metrics in Prometheus' text format. Never waits for the engine."""
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    readings = snapshots.Readings(snapshots.read(here))
    # Some thousand lines are milliseconds of work, which the event loop has better uses for.
    body = await asyncio.to_thread(generate_latest, _Both(here.meters, readings))
    return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class _Both:
    """What was counted and what was read, as the encoder wants it: it asks for nothing but this."""

    def __init__(self, meters: Meters, readings: Readings) -> None:
        self._meters = meters
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        yield from self._meters.registry.collect()
        yield from self._readings.collect()
