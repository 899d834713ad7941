"""`/health`, the probes `/livez` and `/readyz`, and `/v1/models`: the server's state and the names of its models.

They show published state and never wait for the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from asr_server import __version__
from asr_server.engine.catalog import Model
from asr_server.engine.protocol import AlignerState, EngineInfo, Option
from asr_server.net.errors import ErrorBody
from asr_server.ops.schemas import (
    HealthBody,
    LimitsBody,
    LiveBody,
    ModelBody,
    ModelList,
    ModelStateBody,
    OptionBody,
    ProbeBody,
    QueueBody,
)
from asr_server.schedule.job import DEFAULT
from asr_server.schedule.model import EngineSnapshot, ModelState
from asr_server.services import Services, ServicesDep
from asr_server.text import languages

router = APIRouter(tags=["operations"])

# The fields of the engine's own report that are shown as they are.
_SHOWN = HealthBody.model_fields.keys() & {field.name for field in fields(EngineInfo)} - {"model_id"}
# Returns the fields of `HealthBody` that a feature knows.
HealthSection = Callable[[Services], Mapping[str, Any]]


@router.get("/health")
async def health(request: Request, services: ServicesDep) -> HealthBody:
    """Return the whole state: model, memory, queue, and each option with its reason."""
    snapshot, info = services.thread.snapshot(), services.infos()[DEFAULT]
    readers: tuple[HealthSection, ...] = request.app.state.health_sections
    sections = {name: value for read in readers for name, value in read(services).items()}
    return HealthBody(
        status=_status(services, snapshot),
        mode="gateway" if services.settings.gateway_mode else "standalone",
        model_id=services.plan.model_id,
        models=_models(services, snapshot),
        languages=[languages.code(name) for name in services.plan.traits.languages],
        model_loaded=snapshot.state is ModelState.LOADED,
        model_state=snapshot.state.value,
        model_error=snapshot.load_error,
        cuda=services.plan.device.startswith("cuda"),
        **{name: getattr(info, name) for name in _SHOWN},
        **sections,
        queue=QueueBody(
            **snapshot.depth,
            running=snapshot.running,
            audio_waiting_s=round(snapshot.waiting_s, 3),
            audio_held_s=round(services.admission.held_s, 3),
            audio_limit_s=services.admission.limit_s,
        ),
        jobs=services.jobs.pending,
        live=LiveBody(
            sessions=len(services.live),
            waiting=services.live.waiting,
            limit=services.settings.max_live_sessions,
            free=free_streams(services),
        ),
        limits=LimitsBody(
            upload_bytes=services.settings.max_upload_bytes,
            audio_s=services.settings.max_audio_s,
            text_chars=services.settings.max_speech_chars,
            request_s=services.settings.request_timeout,
        ),
        plan=[OptionBody(name=o.name, active=o.active, value=o.value, reason=o.reason) for o in options_of(services)],
        version=__version__,
        uptime_s=round(time.monotonic() - services.started_s, 3),
    )


def _models(services: Services, snapshot: EngineSnapshot) -> list[ModelStateBody]:
    return [
        ModelStateBody(
            id=info.model_id,
            state=snapshot.models[name].state.value,
            error=snapshot.models[name].load_error,
            rows=snapshot.models[name].rows,
            slots=info.slots,
            kv_budget_mb=info.kv_budget_mb,
        )
        for name, info in services.infos().items()
    ]


def options_of(services: Services) -> list[Option]:
    """Return the options of the plan, with the outcome of options that only loading decides, and measured figures."""
    decided = {option.name: option for option in services.infos()[DEFAULT].options}
    measured = {"use_speculative": _saved(services), "dual_model": _live_times(services)}
    found = [decided.get(option.name, option) for option in services.plan.options]
    return [
        replace(option, reason=f"{option.reason}; so far {effect}")
        if option.active and (effect := measured.get(option.name))
        else option
        for option in found
    ]


def _saved(services: Services) -> str:
    drafting = services.drafting
    if drafting is None or not drafting.spans:
        return ""
    return f"{drafting.saved:.0%} of the decode steps of {drafting.spans} spans were saved"


def _live_times(services: Services) -> str:
    """Return the mean milliseconds on the engine, in words."""
    times = [f"{one.count} {kind.value}s took {one.mean_s * 1000:.0f} ms" for kind, one in services.live.times.items()]
    return " and ".join(times)


def _status(services: Services, snapshot: EngineSnapshot) -> Literal["ok", "degraded", "draining"]:
    if services.draining:
        return "draining"
    return "degraded" if snapshot.state is ModelState.FAILED or not_live(services, snapshot) else "ok"


def free_streams(services: Services) -> int:
    return max(0, services.settings.max_live_sessions - len(services.live))


@router.get("/livez", response_model=ProbeBody, responses={503: {"model": ProbeBody}})
async def livez(services: ServicesDep) -> JSONResponse:
    """Report if the event loop and the engine thread make progress: if not, restart the process."""
    return _probe(not_live(services))


@router.get("/readyz", response_model=ProbeBody, responses={503: {"model": ProbeBody}})
async def readyz(services: ServicesDep) -> JSONResponse:
    """Report if new work is accepted now: if not, send it elsewhere."""
    return _probe(not_ready(services))


def _probe(reason: str) -> JSONResponse:
    body = ProbeBody(status="failed" if reason else "ok", reason=reason)
    return JSONResponse(body.model_dump(), 503 if reason else 200)


models_router = APIRouter(prefix="/v1/models", tags=["models"])


@models_router.get("")
async def list_models(services: ServicesDep) -> ModelList:
    """List every served model, aliases included."""
    return ModelList(data=[_model_body(model) for model in services.catalog.all()])


# `:path`, because clients send the slash of a hub id both encoded and plain.
@models_router.get("/{model_id:path}", responses={404: {"model": ErrorBody}})
async def retrieve_model(model_id: str, services: ServicesDep) -> ModelBody:
    """Return one served model."""
    return _model_body(services.catalog.retrieve(model_id))


def _model_body(model: Model) -> ModelBody:
    return ModelBody(id=model.id, created=model.created, owned_by=model.owned_by, task=model.task)


def not_live(services: Services, snapshot: EngineSnapshot | None = None) -> str:
    """Return why the process should be restarted; "" if it should not. A load, which may take minutes, is no hang."""
    engine = snapshot or services.thread.snapshot()
    aligner_loads = any(info.aligner_state is AlignerState.LOADING for info in services.infos().values())
    stuck = engine.is_stuck(services.settings.engine_hang_s, aligner_loads=aligner_loads)
    reason = engine.failure or ("the engine thread does not move" if stuck or not engine.alive else "")
    return reason or next((found for parts in services.features if (found := parts.failure())), "")


def not_ready(services: Services) -> str:
    """Return why new work should go elsewhere; "" if it is accepted."""
    if services.draining:
        return "draining"
    if not services.ready:
        return "the model is being loaded"
    # A server that is full only for recordings stays ready, or a load balancer would send live sessions nowhere.
    if services.admission.saturated:
        return "saturated"
    snapshot = services.thread.snapshot()
    if snapshot.state is ModelState.FAILED:
        return snapshot.load_error or "the model could not be loaded"
    return not_live(services, snapshot)
