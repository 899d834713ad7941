"""What the gateway asks a worker on its own behalf: state, probes, metrics. None of it is use."""

from __future__ import annotations

import json
from typing import Any

import httpx

from asr_server.core.settings import Settings
from asr_server.gateway.hang_detector import ProbeResult
from asr_server.gateway.worker import WorkerConnection

ANSWER_S = 3.0  # a question that takes longer has failed
_LOADING = "loading"


class WorkerClient:
    """Asked under a name and with a key that the worker's door lets in."""

    def __init__(self, settings: Settings) -> None:
        self._headers = {"host": "localhost"}
        if settings.keys:
            self._headers["authorization"] = f"Bearer {settings.keys[0]}"

    async def raw(self, link: WorkerConnection, path: str) -> tuple[int, bytes]:
        """Status and body; a status of 0 when it does not answer, as when it is just ending."""
        limits = dict.fromkeys(("connect", "read", "write", "pool"), ANSWER_S)
        request = httpx.Request("GET", f"http://worker{path}", headers=self._headers, extensions={"timeout": limits})
        try:
            answer = await link.http.handle_async_request(request)
            try:
                return answer.status_code, b"".join([piece async for piece in answer.stream])  # type: ignore[union-attr]  # async here
            finally:
                await answer.aclose()
        except httpx.TransportError:
            return 0, b""

    async def body(self, link: WorkerConnection, path: str) -> tuple[int, dict[str, Any] | None]:
        """A JSON answer; None when there is none."""
        status, raw = await self.raw(link, path)
        try:
            return status, json.loads(raw)
        except ValueError:
            return 0, None

    async def has_work(self, link: WorkerConnection) -> bool:
        """Whether the worker has work that no open request shows. One that does not say is not known to be idle."""
        status, body = await self.body(link, "/health")
        if not body or status != httpx.codes.OK:
            return True
        queue = body["queue"]
        return bool(body["jobs"]) or any(
            queue[name] for name in ("live", "interactive", "bulk", "running", "audio_held_s")
        )

    async def sign(self, link: WorkerConnection) -> ProbeResult:
        """How the worker is."""
        status, _ = await self.raw(link, "/livez")
        if status == httpx.codes.SERVICE_UNAVAILABLE:
            return ProbeResult.HUNG
        _, body = await self.body(link, "/health") if status else (0, None)
        if not body:
            return ProbeResult.SILENT
        calm = body.get("model_loaded") and body.get("aligner_state") != _LOADING
        return ProbeResult.WELL if calm else ProbeResult.LOADING
