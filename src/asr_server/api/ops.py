"""Health and probes: what is published is shown; nothing here waits for the engine or imports its libraries."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from asr_server import __version__
from asr_server.api import probes
from asr_server.api.deps import Services, services
from asr_server.api.schemas import HealthBody, LiveBody, OptionBody, ProbeBody, QueueBody
from asr_server.scheduling.thread import ModelState, Snapshot

router = APIRouter(tags=["operations"])
Services_ = Annotated[Services, Depends(services)]


@router.get("/health")
async def health(here: Services_) -> HealthBody:
    """The whole state in one answer: model, memory, queue, and each option with its reason."""
    snapshot, info = here.thread.snapshot(), here.engine.info
    return HealthBody(
        status=_status(here, snapshot),
        mode="worker" if here.settings.gateway_mode else "standalone",
        model_id=here.plan.model_id,
        model_loaded=snapshot.state is ModelState.LOADED,
        model_state=snapshot.state.value,
        model_error=snapshot.load_error,
        cuda=here.plan.device.startswith("cuda"),
        gpu_name=info.gpu_name,
        gpu_allocated_mb=info.gpu_allocated_mb,
        gpu_reserved_mb=info.gpu_reserved_mb,
        slots=info.slots,
        kv_budget_mb=info.kv_budget_mb,
        kv_cache_mb=info.kv_cache_mb,
        sessions_mb=info.sessions_mb,
        aligner_id=info.aligner_id,
        aligner_state=info.aligner_state.value,
        aligner_error=info.aligner_error,
        queue=_queue(here, snapshot),
        jobs=here.jobs.under_way,
        live=LiveBody(sessions=len(here.live), waiting=here.live.waiting),
        plan=[OptionBody(name=o.name, active=o.active, value=o.value, reason=o.reason) for o in here.plan.options],
        version=__version__,
        uptime_s=round(time.monotonic() - here.started_s, 3),
    )


def _status(here: Services, snapshot: Snapshot) -> Literal["ok", "degraded", "draining"]:
    if here.draining:
        return "draining"
    return "degraded" if snapshot.state is ModelState.FAILED or probes.not_live(here, snapshot) else "ok"


def _queue(here: Services, snapshot: Snapshot) -> QueueBody:
    return QueueBody(
        **snapshot.depth,
        running=snapshot.running,
        audio_waiting_s=round(snapshot.waiting_s, 3),
        audio_held_s=round(here.admission.held_s, 3),
        audio_limit_s=here.admission.limit_s,
    )


@router.get("/livez", responses={503: {"model": ProbeBody}})
async def livez(here: Services_) -> JSONResponse:
    """Whether the event loop and the engine thread move: if not, restart the process."""
    return _probe(probes.not_live(here))


@router.get("/readyz", responses={503: {"model": ProbeBody}})
async def readyz(here: Services_) -> JSONResponse:
    """Whether new work is taken now: if not, send it elsewhere."""
    return _probe(probes.not_ready(here))


def _probe(reason: str) -> JSONResponse:
    body = ProbeBody(status="failed" if reason else "ok", reason=reason)
    return JSONResponse(body.model_dump(), 503 if reason else 200)
