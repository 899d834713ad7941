"""The Ray Serve application: each replica is a whole server. A Serve config names it as
`import_path: asr_server_ray.application:application`, and sets the number of replicas, their GPUs and autoscaling.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from loguru import logger
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from asr_server import app as server
from asr_server.core import logger as log
from asr_server.core import settings as settings_module
from asr_server.ops.health import not_live
from asr_server_ray import replicas
from asr_server_ray.router import Router

# Requests and sockets at one replica. The server's own limits refuse work long before that.
_MOST_REQUESTS = 4_096
# Live sessions end within 30 s of a stop, and open requests have 30 s more.
_STOP_S = 60.0
_LOOK_S = 1.0
# Ray Serve leaves a replica out for a moment while it changes the configuration of its deployment.
_ABSENT_LOOKS = 3


class Server:
    """One server with its own model, with the settings of its process's environment."""

    async def __init__(self) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        settings = settings_module.load(preload=True)
        log.configure(settings.log_level, as_json=settings.log_json)
        self._app = server.create_app(settings)
        self._app.add_middleware(_ForRay, app=self._app)

    def __serve_build_asgi_app__(self) -> FastAPI:
        self._watching = asyncio.create_task(self._drain_when_stopped())
        return self._app

    def check_health(self) -> None:
        """Raise if the engine has failed or hangs: Ray Serve then replaces the replica."""
        if reason := not_live(self._app.state.services):
            raise RuntimeError(reason)

    async def _drain_when_stopped(self) -> None:
        """Drain the server once Ray Serve sends it no more requests: Ray Serve does not notify a replica that it stops,
        and waits for the replica's open sockets.
        """
        context = serve.get_replica_context()
        # The router of this handle learns which replicas run.
        self._handle = serve.get_deployment_handle(context.deployment).options()
        own, was_running, absent = context.replica_id.unique_id, False, 0
        while absent < _ABSENT_LOOKS:
            await asyncio.sleep(_LOOK_S)
            is_running = own in replicas.running
            was_running |= is_running
            absent = absent + 1 if was_running and not is_running else 0
        logger.info("the replica is stopped")
        await server.drain(self._app)


class _ForRay:
    """Ends the start-up once the model is loaded, and leaves `X-Request-ID` to Ray Serve's proxy, which adds it."""

    def __init__(self, inner: Any, app: FastAPI) -> None:
        self._inner, self._app = inner, app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_changed(message: dict[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                while not self._app.state.services.ready:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S / 10)
            if message["type"] == "http.response.start":
                headers = [header for header in message["headers"] if header[0].lower() != b"x-request-id"]
                message = {**message, "headers": headers}
            await send(message)

        await self._inner(scope, receive, send_changed)


# Decorated here, so that Ray pickles the class by its name and not by its value.
application: serve.Application = serve.deployment(
    serve.ingress()(Server),
    name="server",
    max_ongoing_requests=_MOST_REQUESTS,
    graceful_shutdown_timeout_s=_STOP_S,
    request_router_config=RequestRouterConfig(request_router_class=Router),
    logging_config=LoggingConfig(enable_access_log=False),  # the server logs its requests itself
).bind()
