"""The routes that the gateway answers itself, as the worker would: health, probes, metrics and models.

None of them starts the worker or counts as use of it.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from asr_server import __version__
from asr_server.core.errors import SpeechUnavailable
from asr_server.core.settings import Settings
from asr_server.engine.catalog import Catalog, Model
from asr_server.engine.feature import Plan
from asr_server.features.gateway import metrics
from asr_server.features.gateway.metrics import Exposition
from asr_server.features.gateway.restart_policy import WorkerState
from asr_server.features.gateway.worker import Worker
from asr_server.features.gateway.worker_client import GatewayWorkerClient
from asr_server.features.speech_output.engines import registry
from asr_server.features.speech_output.options import OTHERS, SPEECH
from asr_server.features.speech_output.voice_list import VoiceListBody, model_voices, voice_list
from asr_server.net.errors import ErrorBody
from asr_server.net.websocket_io import refuse_plain_request
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
    SpeechQueueBody,
)
from asr_server.text import languages


class GatewayRoutes:
    """The routes, and the state that they report."""

    def __init__(self, settings: Settings, plan: Plan, worker: Worker, client: GatewayWorkerClient) -> None:
        self._settings, self._plan, self._worker, self._client = settings, plan, worker, client
        self.exposition = Exposition(worker, client, settings.max_live_sessions)
        self.catalog = Catalog.of(plan, settings.aliases)
        self._began_s = time.monotonic()

    def router(self) -> APIRouter:
        """Return the router, which comes before the proxy."""
        router = APIRouter()
        router.add_api_route("/health", self.health)
        router.add_api_route("/livez", self.livez)
        router.add_api_route("/readyz", self.readyz)
        router.add_api_route("/metrics", self.metrics)
        router.add_api_route("/v1/models", self.list_models)
        router.add_api_route("/v1/audio/voices", self.list_voices, responses={501: {"model": ErrorBody}})
        router.add_api_route("/v1/audio/speech/voices", self.list_model_voices)
        router.add_api_route("/v1/models/{model_id:path}", self.retrieve_model, responses={404: {"model": ErrorBody}})
        for path in ("/ws/transcribe", "/ws/speech", "/v1/realtime"):
            router.add_api_route(path, refuse_plain_request)
        return router

    async def health(self) -> JSONResponse:
        """Return the worker's health, or report that there is no worker."""
        _, body = await self._ask("/health")
        state = self._worker.state
        body = body or self._without_worker(state)
        body |= {"mode": "gateway", "worker": state.value, "uptime_s": round(time.monotonic() - self._began_s, 3)}
        limit = self._settings.max_live_sessions  # the worker has none: its sessions are those from here
        body["live"] |= {"limit": limit, "free": max(0, limit - body["live"]["sessions"])}
        if self._worker.draining:
            body["status"] = "draining"
        return JSONResponse(body)

    def _without_worker(self, state: WorkerState) -> dict[str, Any]:
        silent = state is WorkerState.RUNNING  # there is one, and it does not answer
        return HealthBody(
            status="degraded" if silent or state is WorkerState.FAILED else "ok",
            mode="gateway",
            model_id=self._plan.model_id,
            model_revision="",
            languages=[languages.code(name) for name in self._plan.traits.languages],
            model_loaded=False,
            model_state="unloaded",
            model_error="",
            model_on_disk=None,
            models=[
                ModelStateBody(id=plan.model_id, state="unloaded", error="", rows=0, slots=0, kv_budget_mb=0)
                for plan in (self._plan, *self._plan.others)
            ],
            downloaded_mb=0,
            converted=0.0,
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
            speakers_state="unloaded",
            speech_state="unloaded" if self._plan.is_active("speech") else "off",
            speech_model=self._plan.value("speech"),
            speech_error="",
            speech_queue=self._empty_speech_queue(),
            live=LiveBody(sessions=0, waiting=0, limit=0, free=0),
            limits=LimitsBody(
                upload_bytes=self._settings.max_upload_bytes,
                audio_s=self._settings.max_audio_s,
                text_chars=self._settings.max_speech_chars,
                request_s=self._settings.request_timeout,
            ),
            jobs=0,
            queue=self._empty_queue(),
            plan=[OptionBody(name=o.name, active=o.active, value=o.value, reason=o.reason) for o in self._plan.options],
            version=__version__,
            uptime_s=0.0,
        ).model_dump()

    def _empty_queue(self) -> QueueBody:
        return QueueBody(
            final=0,
            partial=0,
            interactive=0,
            bulk=0,
            running=0,
            audio_waiting_s=0.0,
            audio_held_s=0.0,
            audio_limit_s=self._settings.max_queue_audio_s,
        )

    def _empty_speech_queue(self) -> SpeechQueueBody:
        return SpeechQueueBody(texts=0, sentences_left=0, held_s=0.0, limit_s=self._settings.max_queue_speech_s)

    async def livez(self) -> JSONResponse:
        """Report whether this process and the worker's engine make progress. A server without a worker is live."""
        return await self._probe("/livez", "")

    async def readyz(self) -> JSONResponse:
        """Report whether new work is accepted now. A server without a worker is ready: work starts one."""
        return await self._probe("/readyz", self._not_ready())

    def _not_ready(self) -> str:
        """Return why the server is not ready, by what is known without asking the worker; "" if it is ready."""
        without = {WorkerState.FAILED: "the worker process does not stay up"}
        if self._settings.preload:
            without[WorkerState.STARTING] = "the model is being loaded"
        return "draining" if self._worker.draining else without.get(self._worker.state, "")

    async def metrics(self) -> Response:
        """Return the metrics for Prometheus. The server is not ready while a worker runs and does not answer."""
        ready = not self._not_ready() and self._worker.connection is None
        return Response(await self.exposition.text(ready=ready), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _probe(self, path: str, reason: str) -> JSONResponse:
        if not reason:
            status, body = await self._ask(path)
            if body is not None:
                return JSONResponse(body, status)
            reason = "the worker process does not answer" if self._worker.connection is not None else ""
        answer = ProbeBody(status="failed" if reason else "ok", reason=reason).model_dump()
        return JSONResponse(answer, 503 if reason else 200)

    async def _ask(self, path: str) -> tuple[int, dict[str, Any] | None]:
        """The worker's status and body; the body is None if there is no worker or no answer."""
        if (connection := self._worker.connection) is None:
            return 0, None
        status, body = await self._client.body(connection, path)
        if body is None:
            await self._worker.lost(connection)  # perhaps it has just died, and there is none any more
        return status, body

    async def list_models(self) -> ModelList:
        """List every served name, aliases included."""
        return ModelList(data=[_model_body(model) for model in self.catalog.all()])

    async def list_voices(self) -> VoiceListBody:
        """List the voices that speech requests can name. Raises `SpeechUnavailable`."""
        if not (name := self._plan.value(SPEECH)):
            raise SpeechUnavailable(f"This server does not speak: {self._plan.reason(SPEECH)}.")
        traits = registry.traits(name, self._plan.speech_models.get(SPEECH), self._plan.features)
        if others := self._plan.value(OTHERS):
            traits += registry.traits(others)
        return voice_list(traits)

    async def list_model_voices(self, model_id: str = "tts-1") -> list[dict[str, str]]:
        """List the voices of a model. Raises `SpeechUnavailable` and `UnknownModel`."""
        listed = await self.list_voices()
        self.catalog.find_speech(model_id, "model_id")
        return model_voices(listed, model_id)

    async def retrieve_model(self, model_id: str) -> ModelBody:
        """Return the model with this name."""
        return _model_body(self.catalog.retrieve(model_id))


def _model_body(model: Model) -> ModelBody:
    return ModelBody(id=model.id, created=model.created, owned_by=model.owned_by, task=model.task)
