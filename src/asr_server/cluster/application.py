"""The Ray Serve application. A Serve config names it: `import_path: asr_server.cluster.application:build`.

The app's replicas have all protocols and the state of live sessions; the engine's replicas have the models. So a
replica of the engine that ends costs its rows time, and no session.
"""

from __future__ import annotations

import gc
import uuid
from dataclasses import replace
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from asr_server import server
from asr_server.cluster import routing, scaling
from asr_server.cluster.engine import MAX_ROWS, ClusterEngine, Fleet
from asr_server.cluster.messages import Described
from asr_server.cluster.options import ClusterOptions, conflicts
from asr_server.cluster.replica import EngineReplica
from asr_server.cluster.replica_connections import ReplicaConnections
from asr_server.cluster.router import EngineRouter
from asr_server.cluster.rows import Sender
from asr_server.core import logger
from asr_server.core import settings as settings_module
from asr_server.core.settings import Settings, SettingsError
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import Engine, Option
from asr_server.engine_core import ElsewhereEngines, by_name

NAME = "asr-server"
# The app logs its requests itself, without what Ray Serve's log has of their addresses.
QUIET = LoggingConfig(enable_access_log=False)
# Between two publications of a replica. A replica that died is noticed at once where rows are under way.
_PUBLISH_S = 1.0
_HEALTH_S = 5.0
# For the last rows of a replica; the app itself ends its live sessions in order within 30 s.
_ROWS_DRAIN_S, _ENGINE_DRAIN_S, _APP_DRAIN_S = 25.0, 30.0, 60.0
# For so long a replica more, or one less, has to be right before it is added or removed.
_UP_S, _DOWN_S = 30.0, 600.0
# Requests and sockets at one app. Its own limits refuse work long before.
_APP_REQUESTS = 4_096


_REASONS = {
    "gateway_mode": "not in a cluster: Ray Serve supervises the processes",
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
        described, name = self._described, uuid.uuid4().hex

        def build_engines(on_progress: Any) -> dict[str, Engine]:
            def fleet() -> Fleet:
                return Fleet(ReplicaConnections(routing.OF_PROCESS), lambda: routing.OF_PROCESS.stats, described)

            return {
                model: ClusterEngine(fleet(), Sender(name, model, self._waiting_s), on_progress)
                for model in by_name(described.plan)
            }

        resolved = _plan_of_app(described, self._options)
        self._app = server.create_app(self._settings, elsewhere=ElsewhereEngines(resolved, build_engines))
        # What the libraries brought stays: each full collection of garbage would walk it. Where a model is loaded, its
        # engine does this.
        gc.collect()
        gc.freeze()
        return self._app

    def _waiting_s(self) -> float:
        services = getattr(self._app.state, "services", None) if self._app is not None else None
        return services.thread.snapshot().waiting_s if services is not None else 0.0


def _plan_of_app(described: Described, options: ClusterOptions) -> Plan:
    """The plan of a replica, for as many rows as all of them may have."""
    slots = max(1, *(info.slots for info in described.stats.engines.values()))
    many = f"up to {options.most_replicas}" if options.max_replicas else str(options.replicas)
    option = Option("cluster", True, many, "replicas of the engine in a Ray Serve application; each has what is shown")
    served = (replace(one, reason=_REASONS.get(one.name, one.reason)) for one in described.plan.options)
    return replace(described.plan, max_batch=min(MAX_ROWS, slots * options.most_replicas), options=(option, *served))


def build(arguments: ClusterOptions) -> serve.Application:
    """The application with the settings of this process's environment. Raises `SettingsError`."""
    settings = settings_module.load()
    if found := list(conflicts(settings, arguments)):
        raise SettingsError("\n".join(found))
    return application(settings, arguments)


def application(settings: Settings, options: ClusterOptions) -> serve.Application:
    """Both deployments."""
    scale: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.replicas,
                max_replicas=options.max_replicas,
                upscale_delay_s=_UP_S,
                downscale_delay_s=_DOWN_S,
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
        health_check_period_s=_HEALTH_S,
        graceful_shutdown_timeout_s=_APP_DRAIN_S,
        logging_config=QUIET,
    )
    served: serve.Application = app.bind(settings, options, engine.bind(_of_replica(settings, options), options.shares))
    return served


def _of_replica(settings: Settings, options: ClusterOptions) -> Settings:
    """With as many threads as the replica has CPUs, where torch computes on them."""
    if options.gpus or settings.cpu_threads or settings.model_id in ("fake", "moonshine-tiny-en"):
        return settings
    return settings.model_copy(update={"cpu_threads": max(1, int(options.cpus))})
