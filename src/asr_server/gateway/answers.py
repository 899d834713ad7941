"""What the gateway answers itself: health, probes and models, with the fields they have without a gateway.

None of it starts the worker or keeps it from being idle.
"""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
from fastapi import APIRouter
from fastapi.responses import JSONResponse

from asr_server import __version__
from asr_server.api.schemas import (
    ErrorBody,
    HealthBody,
    LiveBody,
    ModelBody,
    ModelList,
    OptionBody,
    ProbeBody,
    QueueBody,
)
from asr_server.core.settings import Settings
from asr_server.engine.plan import Plan
from asr_server.gateway.life import State
from asr_server.gateway.worker import Link, Worker
from asr_server.service.catalog import Catalog, Model

_ASK_S = 3.0  # a probe of the worker's that takes longer has failed


class Answers:
    """The routes, and what they know."""

    def __init__(self, settings: Settings, plan: Plan, worker: Worker) -> None:
        self._settings, self._plan, self._worker = settings, plan, worker
        self._catalog = Catalog(plan.model_id)
        self._began_s = time.monotonic()

    def router(self) -> APIRouter:
        """To be put before the proxy."""
        router = APIRouter()
        router.add_api_route("/health", self.health)
        router.add_api_route("/livez", self.livez)
        router.add_api_route("/readyz", self.readyz)
        router.add_api_route("/v1/models", self.list_models)
        router.add_api_route("/v1/models/{model_id:path}", self.retrieve_model, responses={404: {"model": ErrorBody}})
        return router

    async def health(self) -> JSONResponse:
        """The worker's state as it tells it; while there is none, that there is none."""
        _, body = await self._ask("/health")
        state = self._worker.state
        body = body or self._without_worker(state)
        body |= {"mode": "gateway", "worker": state.value, "uptime_s": round(time.monotonic() - self._began_s, 3)}
        if self._worker.draining:
            body["status"] = "draining"
        return JSONResponse(body)

    def _without_worker(self, state: State) -> dict[str, Any]:
        silent = state is State.RUNNING  # there is one, and it does not answer
        nothing = QueueBody(
            live=0,
            interactive=0,
            bulk=0,
            running=0,
            audio_waiting_s=0.0,
            audio_held_s=0.0,
            audio_limit_s=self._settings.max_queue_audio_s,
        )
        return HealthBody(
            status="degraded" if silent or state is State.FAILED else "ok",
            mode="gateway",
            model_id=self._plan.model_id,
            model_loaded=False,
            model_state="unloaded",
            model_error="",
            cuda=self._plan.device.startswith("cuda"),
            gpu_name="",
            gpu_allocated_mb=0,
            gpu_reserved_mb=0,
            slots=0,
            kv_budget_mb=0,
            kv_cache_mb=0,
            sessions_mb=0,
            aligner_id=self._plan.aligner_id,
            aligner_state="unloaded",
            aligner_error="",
            live=LiveBody(sessions=0, waiting=0),
            jobs=0,
            queue=nothing,
            plan=[OptionBody(name=o.name, active=o.active, value=o.value, reason=o.reason) for o in self._plan.options],
            version=__version__,
            uptime_s=0.0,
        ).model_dump()

    async def livez(self) -> JSONResponse:
        """Whether this process and the worker's engine move. A worker that sleeps is no fault."""
        return await self._probe("/livez", "")

    async def readyz(self) -> JSONResponse:
        """Whether new work is taken now: a worker that sleeps is started for it."""
        without = {State.FAILED: "the worker process does not stay up"}
        if self._settings.preload:
            without[State.STARTING] = "the model is being loaded"
        reason = "draining" if self._worker.draining else without.get(self._worker.state, "")
        return await self._probe("/readyz", reason)

    async def _probe(self, path: str, reason: str) -> JSONResponse:
        if not reason:
            status, body = await self._ask(path)
            if body is not None:
                return JSONResponse(body, status)
            reason = "the worker process does not answer" if self._worker.link is not None else ""
        told = ProbeBody(status="failed" if reason else "ok", reason=reason).model_dump()
        return JSONResponse(told, 503 if reason else 200)

    async def _ask(self, path: str) -> tuple[int, dict[str, Any] | None]:
        """The worker's answer; None when there is no worker, or it does not answer."""
        if (link := self._worker.link) is None:
            return 0, None
        status, body = await ask(link, path)
        if body is None:
            await self._worker.lost(link)  # perhaps it has just died, and there is none any more
        return status, body

    async def list_models(self) -> ModelList:
        """Every served name, aliases included."""
        return ModelList(data=[_body(model) for model in self._catalog.all()])

    async def retrieve_model(self, model_id: str) -> ModelBody:
        """One name."""
        return _body(self._catalog.find(model_id))


async def ask(link: Link, path: str) -> tuple[int, dict[str, Any] | None]:
    """A JSON answer of the worker's; None when it does not answer, as when it is just ending."""
    limits = dict.fromkeys(("connect", "read", "write", "pool"), _ASK_S)
    request = httpx.Request("GET", f"http://worker{path}", extensions={"timeout": limits})
    try:
        answer = await link.http.handle_async_request(request)
        try:
            return answer.status_code, json.loads(b"".join([piece async for piece in answer.stream]))  # type: ignore[union-attr]  # async here
        finally:
            await answer.aclose()
    except (httpx.TransportError, ValueError):
        return 0, None


async def has_work(link: Link) -> bool:
    """Whether the worker has work that no open request shows."""
    _, body = await ask(link, "/health")
    if not body:
        return False
    queue = body["queue"]
    return bool(body["jobs"]) or any(queue[name] for name in ("live", "interactive", "bulk", "running", "audio_held_s"))


def _body(model: Model) -> ModelBody:
    return ModelBody(id=model.id, created=model.created, owned_by=model.owned_by)
