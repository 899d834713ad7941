"""The gateway's own requests to a worker: state, probes and metrics. They do not count as use of the worker."""

from __future__ import annotations

import json
from typing import Any

import httpx

from asr_server.core.settings import Settings
from asr_server.features.gateway.hang_detector import ProbeResult
from asr_server.features.gateway.worker import WorkerConnection

ANSWER_S = 3.0  # a request that takes longer has failed
_LOADING = "loading"


class GatewayWorkerClient:
    """Uses a host name and a key that the worker accepts."""

    def __init__(self, settings: Settings) -> None:
        self._headers = {"host": "localhost"}
        if settings.keys:
            self._headers["authorization"] = f"Bearer {settings.keys[0]}"

    async def raw(self, connection: WorkerConnection, path: str) -> tuple[int, bytes]:
        """Return status and body; the status is 0 when there is no answer, as from a worker that is just ending."""
        limits = dict.fromkeys(("connect", "read", "write", "pool"), ANSWER_S)
        request = httpx.Request("GET", f"http://worker{path}", headers=self._headers, extensions={"timeout": limits})
        try:
            answer = await connection.http.handle_async_request(request)
            try:
                return answer.status_code, b"".join([piece async for piece in answer.stream])  # type: ignore[union-attr]  # async here
            finally:
                await answer.aclose()
        except httpx.TransportError:
            return 0, b""

    async def body(self, connection: WorkerConnection, path: str) -> tuple[int, dict[str, Any] | None]:
        """Return the status and the JSON body, or 0 and None if there is no answer or no JSON."""
        status, raw = await self.raw(connection, path)
        try:
            return status, json.loads(raw)
        except ValueError:
            return 0, None

    async def has_work(self, connection: WorkerConnection) -> bool:
        """True if the worker has work besides open requests. Without an answer it counts as busy."""
        status, body = await self.body(connection, "/health")
        if not body or status != httpx.codes.OK:
            return True
        queue = body["queue"]
        return bool(body["jobs"] or body["speech_queue"]["texts"]) or any(
            queue[name] for name in ("final", "partial", "interactive", "bulk", "running", "audio_held_s")
        )

    async def probe(self, connection: WorkerConnection) -> ProbeResult:
        """Return the state of the worker for a `HangDetector`."""
        status, _ = await self.raw(connection, "/livez")
        if status == httpx.codes.SERVICE_UNAVAILABLE:
            return ProbeResult.HUNG
        _, body = await self.body(connection, "/health") if status else (0, None)
        if not body:
            return ProbeResult.SILENT
        models = body.get("models", ())
        loaded = all(model["state"] == "loaded" for model in models) and body.get("aligner_state") != _LOADING
        return ProbeResult.HEALTHY if loaded else ProbeResult.LOADING
