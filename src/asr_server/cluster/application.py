"""The Ray Serve application. A Serve config names it: `import_path: asr_server.cluster.application:build`.

The app's replicas have all protocols and the state of live sessions; the engine's replicas have the models. So a
replica of the engine that ends costs its rows time, and no session.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from asr_server import server
from asr_server.cluster import routing, scaling
from asr_server.cluster.engine import MAX_ROWS, ClusterEngine, Fleet
from asr_server.cluster.messages import Answer, Described, RowCall
from asr_server.cluster.options import ClusterOptions, conflicts
from asr_server.cluster.replica import EngineReplica
from asr_server.cluster.router import EngineRouter
from asr_server.cluster.rows import ReplicaLost, Sender
from asr_server.core import logger
from asr_server.core import settings as settings_module
from asr_server.core.errors import Overloaded
from asr_server.core.settings import Settings, SettingsError
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import Engine, Option
from asr_server.engine_core import ElsewhereEngines, by_name

NAME = "asr-server"
# The app logs its requests itself, without what Ray Serve's log has of their addresses.
QUIET = LoggingConfig(enable_access_log=False)
# Between two publications of a replica, and between two checks of it: one that has ended is replaced after a check.
_PUBLISH_S = _HEALTH_S = 1.0
# For the last rows; the app itself ends its live sessions in order within 30 s.
_ENGINE_DRAIN_S, _APP_DRAIN_S = 30.0, 60.0
# Requests and sockets at one app. Its own limits refuse work long before.
_APP_REQUESTS = 4_096


_REASONS = {
    "gateway_mode": "not in a cluster: Ray Serve supervises the processes",
    "use_granian": "not in a cluster: Ray Serve's proxy has the sockets",
}


class ServedReplicas:
    """Implements `rows.Replicas` by a handle of Ray Serve."""

    def __init__(self, engine: DeploymentHandle[Any]) -> None:
        self._handle = engine.options(stream=True)

    async def answers(self, call: RowCall) -> AsyncIterator[Answer]:
        """What the replica answers that Ray Serve's router chose."""
        answers = self._handle.answers.remote(call)
        try:
            async for answer in answers:
                yield answer
        except BackPressureError:
            raise Overloaded("All engine replicas are busy.") from None
        except Exception as error:
            routing.OF_PROCESS.broke_off(call)
            raise ReplicaLost(f"{type(error).__name__}: {error}") from error
        finally:
            routing.OF_PROCESS.done(call)
            answers.cancel()


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
        replicas = ServedReplicas(self._engine)

        def build_engines(on_progress: Any) -> dict[str, Engine]:
            fleet = Fleet(replicas, lambda: routing.OF_PROCESS.stats, described)
            return {
                model: ClusterEngine(fleet, Sender(name, model, self._waiting_s), on_progress)
                for model in by_name(described.plan)
            }

        resolved = _plan_of_app(described, self._options)
        self._app = server.create_app(self._settings, elsewhere=ElsewhereEngines(resolved, build_engines))
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
                upscale_delay_s=options.upscale_delay_s,
                downscale_delay_s=options.downscale_delay_s,
                policy=AutoscalingPolicy(policy_function=scaling.policy),
            )
        }
    engine: Any = serve.deployment(
        EngineReplica,
        name="engine",
        **scale,
        # What waits in a replica is little: the app's queue decides the order.
        max_ongoing_requests=MAX_ROWS,
        max_queued_requests=MAX_ROWS,
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
