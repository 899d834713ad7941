"""The Ray Serve application. A Serve config names it: `import_path: asr_server_ray.application:build`.

The app's replicas have all protocols and the state of live sessions; the engine's replicas have the models. So a
replica of the engine that ends costs its rows time, and no session.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from dataclasses import replace
from typing import Any

import loguru
import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from asr_server import app as server
from asr_server.core import logger
from asr_server.core import settings as settings_module
from asr_server.core.settings import Settings, SettingsError
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import Engine, Option
from asr_server.engine_core import ElsewhereEngines, by_name
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server.services import Services
from asr_server_ray import apps, routing, scaling
from asr_server_ray.app_router import AppRouter
from asr_server_ray.capacity import FleetCapacity
from asr_server_ray.engine import MAX_ROWS, ClusterEngine, Fleet
from asr_server_ray.engine_router import EngineRouter
from asr_server_ray.messages import Described
from asr_server_ray.options import ClusterOptions, conflicts
from asr_server_ray.replica import EngineReplica
from asr_server_ray.replica_connections import ReplicaConnections
from asr_server_ray.rows import Sender

NAME = "asr-server"
# The app logs its requests itself, without what Ray Serve's log has of their addresses.
QUIET = LoggingConfig(enable_access_log=False)
# Between two publications of a replica, and between two checks of it: one that has ended is replaced after a check.
_PUBLISH_S = _HEALTH_S = 1.0
# The time for the last rows of an engine replica, and the time after which Ray Serve kills it.
_ROWS_DRAIN_S, _ENGINE_DRAIN_S = 25.0, 30.0
# The time for an app: its live sessions end within 30 s, and its requests have 30 s after that.
_OPEN_REQUESTS_S, APP_DRAIN_S = 30.0, 60.0
# Between two messages to the replicas with the live sessions that have ended.
_TELL_ENDED_S = 5.0
# Requests and sockets at one app. Its own limits refuse work long before.
_APP_REQUESTS = 4_096
_ANY_SESSIONS = 1_000_000


_REASONS = {
    "gateway_mode": "not in a cluster: Ray Serve supervises the processes",
    "engine_process": "not in a cluster: the replicas are processes of their own",
    "use_granian": "not in a cluster: Ray Serve's proxy has the sockets",
}


class ServedEngine(EngineReplica):
    """An engine replica that listens at the address of its node."""

    # Ray Serve awaits both.
    async def __init__(self, settings: Settings, shares: int) -> None:  # type: ignore[misc]
        super().__init__(settings, shares)
        await self.listen(ray.util.get_node_ip_address())

    async def __del__(self) -> None:
        await self.drain(_ROWS_DRAIN_S)


class App:
    """The app of a server whose engines are replicas elsewhere."""

    # Ray Serve awaits it.
    async def __init__(  # type: ignore[misc]
        self, settings: Settings, options: ClusterOptions, engine: DeploymentHandle[Any]
    ) -> None:
        logger.configure(settings.log_level, as_json=settings.log_json)
        # The replicas have loaded their models when they answer, and the app begins to send rows.
        self._settings = settings.model_copy(update={"preload": True})
        self._options, self._engine = options, engine
        self._described: Described = await engine.describe.remote()
        self._app: FastAPI | None = None

    def __serve_build_asgi_app__(self) -> FastAPI:
        context = serve.get_replica_context()
        described, name = self._described, context.replica_id.unique_id

        def build_engines(on_progress: Any) -> dict[str, Engine]:
            def fleet() -> Fleet:
                return Fleet(ReplicaConnections(routing.OF_PROCESS), lambda: routing.OF_PROCESS.stats, described)

            return {
                model: ClusterEngine(fleet(), Sender(name, model, self._waiting_s), on_progress)
                for model in by_name(described.plan)
            }

        resolved = _plan_of_app(described, self._options)
        elsewhere = ElsewhereEngines(resolved, build_engines, functools.partial(FleetCapacity, routing.OF_PROCESS))
        self._app = server.create_app(self._settings, elsewhere=elsewhere)
        self._app.add_middleware(_WithoutRequestId)
        apps.OF_PROCESS.own = name
        # The router of this handle learns which apps run.
        self._apps = serve.get_deployment_handle(context.deployment).options()
        self._watching = asyncio.create_task(self._watch(name))
        # The objects of the libraries stay: each full collection of garbage would walk them. Where a model is loaded,
        # its engine does this.
        gc.collect()
        gc.freeze()
        return self._app

    async def _watch(self, name: str) -> None:
        """Tell the engine replicas which live sessions have ended, and drain this app when it is stopped.

        Ray Serve has no hook for that: from a replica that it stops it keeps new requests, waits until the requests and
        sockets that the replica has are done, and only then calls it.
        """
        ended: list[str] = []
        told_s = time.monotonic()
        while not apps.OF_PROCESS.own_is_stopped:
            await asyncio.sleep(_PUBLISH_S)
            if (services := self._services) is None:
                continue
            ended += routing.OF_PROCESS.keep_streams(services.live.ids)
            if ended and time.monotonic() - told_s >= _TELL_ENDED_S:
                await self._tell_ended(name, ended)
                ended, told_s = [], time.monotonic()
        loguru.logger.info("the app is stopped")
        await self.drain()

    async def _tell_ended(self, name: str, ended: list[str]) -> None:
        try:
            told = self._engine.broadcast("end_streams", name, ended)
            await told.results_async(timeout_s=_TELL_ENDED_S, return_exceptions=True)
        except Exception as error:  # the replicas find out a minute later
            loguru.logger.debug("the engine replicas were not told of ended sessions", reason=str(error)[:200])

    async def drain(self) -> None:
        """Take no more work, send live sessions elsewhere, and return when the open requests have ended."""
        if self._app is None or (services := self._services) is None:
            return
        await server.drain(self._app)
        give_up_s = time.monotonic() + _OPEN_REQUESTS_S
        while (services.admission.held_s or services.of(SpeechProcessor).texts) and time.monotonic() < give_up_s:  # noqa: ASYNC110
            await asyncio.sleep(_PUBLISH_S / 10)

    @property
    def _services(self) -> Services | None:
        return getattr(self._app.state, "services", None) if self._app is not None else None

    def _waiting_s(self) -> float:
        services = self._services
        return services.thread.snapshot().waiting_s if services is not None else 0.0


class _WithoutRequestId:
    """Leaves `X-Request-ID` to Ray Serve's proxy, which hands the app the caller's or its own, and answers with it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on."""

        async def send_without(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {
                    **message,
                    "headers": [one for one in message["headers"] if one[0].lower() != b"x-request-id"],
                }
            await send(message)

        await self._app(scope, receive, send_without)


def _plan_of_app(described: Described, options: ClusterOptions) -> Plan:
    """Return the plan of a replica, for as many rows as all of them may have."""
    slots = max(1, *(info.slots for info in described.stats.engines.values()))
    many = f"up to {options.most_replicas}" if options.max_replicas else str(options.replicas)
    option = Option("cluster", True, many, "replicas of the engine in a Ray Serve application; each has what is shown")
    served = (
        replace(one, active=False, reason=_REASONS[one.name]) if one.name in _REASONS else one
        for one in described.plan.options
    )
    return replace(described.plan, max_batch=min(MAX_ROWS, slots * options.most_replicas), options=(option, *served))


def build(arguments: dict[str, Any]) -> serve.Application:
    """Return the application with these `ClusterOptions` and the settings of this process's environment.

    Raises `SettingsError`, and `ValueError` for the options.
    """
    settings, options = settings_module.load(), ClusterOptions.model_validate(arguments)
    if found := list(conflicts(settings, options)):
        raise SettingsError("\n".join(found))
    return application(settings, options)


def application(settings: Settings, options: ClusterOptions) -> serve.Application:
    """Return the application with both deployments."""
    scale: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.replicas,
                max_replicas=options.max_replicas,
                upscale_delay_s=options.upscale_delay_s,
                downscale_delay_s=options.downscale_delay_s,
                policy=AutoscalingPolicy(policy_function=scaling.policy),
            )
        }
    engine: Any = serve.deployment(
        ServedEngine,
        name="engine",
        **scale,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        request_router_config=RequestRouterConfig(
            request_router_class=EngineRouter, request_routing_stats_period_s=_PUBLISH_S
        ),
        health_check_period_s=_HEALTH_S,
        graceful_shutdown_timeout_s=_ENGINE_DRAIN_S,
        logging_config=QUIET,
    )
    app: Any = serve.deployment(
        serve.ingress()(App),
        name="app",
        num_replicas=options.apps,
        max_ongoing_requests=_APP_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        request_router_config=RequestRouterConfig(request_router_class=AppRouter),
        health_check_period_s=_HEALTH_S,
        graceful_shutdown_timeout_s=APP_DRAIN_S + settings.drain_delay_s,
        logging_config=QUIET,
    )
    served: serve.Application = app.bind(settings, options, engine.bind(_of_replica(settings, options), options.shares))
    return served


def _of_replica(settings: Settings, options: ClusterOptions) -> Settings:
    """Return the settings of a replica: a thread for each CPU if torch computes on them, and no limit of sessions."""
    changes = {"max_live_sessions": _ANY_SESSIONS}
    if not (options.gpus or settings.cpu_threads or settings.model_id in ("fake", "moonshine-tiny-en")):
        changes["cpu_threads"] = max(1, int(options.cpus))
    return settings.model_copy(update=changes)
