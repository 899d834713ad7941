"""The entry point: settings in, app out. Everything is built here once, and nothing heavy is imported."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from loguru import logger
from prometheus_client import CollectorRegistry

from asr_server import __version__, feature_list
from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_wire import DecodeLimits
from asr_server.core import idle
from asr_server.core.idle import end_when_idle
from asr_server.core.settings import Settings, superseded
from asr_server.engine import core as engine_core
from asr_server.engine import plan
from asr_server.engine.catalog import Catalog
from asr_server.engine.client import EngineClient, ModelDrafts
from asr_server.engine.core import OnFailure, Watch, by_name
from asr_server.engine.feature import END_OF_TURN, EndOfTurnModel, Plan
from asr_server.jobs import route as jobs
from asr_server.jobs.database import Postgres, Sqlite
from asr_server.jobs.record import RecordFormat
from asr_server.jobs.runner import JobKind, JobRunner, RecordingJobs
from asr_server.jobs.store import JobLimits, JobStore
from asr_server.live import route as live
from asr_server.live.inference import Engines
from asr_server.live.session_stats import LiveMetrics
from asr_server.live.sessions import LiveSessions
from asr_server.net import errors
from asr_server.net.access import PROBES, AccessRules, EphemeralKeys
from asr_server.net.edge import Edge
from asr_server.net.request_log import RequestMetrics
from asr_server.ops import health, metrics_route, page
from asr_server.ops.engine_metrics import EngineMetrics, ModelMetrics
from asr_server.ops.health import not_live
from asr_server.processes import sandbox
from asr_server.recordings import route as recordings
from asr_server.recordings.pipeline import (
    PipelineResources,
    RecordingPipeline,
    RequestProcessor,
    TranscriptTranslator,
    refuse_document,
)
from asr_server.recordings.segmenter import RecordingMetrics
from asr_server.recordings.span import ContextCheck
from asr_server.schedule.admission import FIRST_GUESS_SPEED, FIRST_GUESS_SPEED_GPU, Admission
from asr_server.schedule.job import DEFAULT
from asr_server.server_feature import CoreParts
from asr_server.services import FeatureParts, Machinery, Services

# Batches of spans that one recording may have in flight: enough that the next batch never waits for the decoder.
_LOOK_AHEAD = 2
# Characters; a random key of this length has 96 bits even in hex digits.
_LEAST_KEY_LENGTH = 24
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
# For the curl commands on the API's page.
_EXAMPLE_BASE, _EXAMPLE_FILE = "http://127.0.0.1:8100", "@talk.mp3"
_Schema = dict[str, Any]
_REFUSALS = {
    401: "No key, or none of this server's.",
    403: "A page or a name that the server does not answer to.",
    429: "No room now; `Retry-After` says when to try again.",
}

SERVER_FEATURES = feature_list.server_features()


def create_app(settings: Settings, on_failure: OnFailure = lambda error: None) -> FastAPI:
    """Return the app for these settings. Raises `PlanError`.

    When the engine has failed for good, its thread calls `on_failure`, before any caller gets the error: the process
    has to end.
    """
    resolved = feature_list.resolve(settings)
    rules = AccessRules.of(settings, feature_list.open_paths())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        _log_plan(settings, resolved)
        registry = metrics_route.new_registry()
        watch = Watch(EngineMetrics(registry), ModelMetrics(registry).on_state, on_failure)
        built = machinery(settings, resolved, watch, registry)
        app.state.services = services = _services(settings, resolved, built, registry, rules.ephemeral_keys)
        metrics_route.register_gauges(services)
        await services.jobs.start()
        tasks = [
            asyncio.create_task(_make_ready(services)),
            asyncio.create_task(end_when_idle(built.idle_owners, settings.idle_timeout)),
            asyncio.create_task(idle.keep_heap_trimmed()),
        ]
        try:
            yield
        finally:
            services.draining = True
            for task in tasks:
                task.cancel()
            await services.jobs.close()
            await built.close()

    app = _routed(lifespan, rules)
    app.state.model_id = resolved.model_id
    return app


def _routed(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]], rules: AccessRules) -> FastAPI:
    """Return the app without its services; `lifespan` puts them into `app.state.services`. `rules`: who gets in."""
    app = FastAPIOffline(
        title="asr-server",
        version=__version__,
        description="Speech to text on Qwen3-ASR, and text to speech, over the protocols that OpenAI's clients speak.",
        docs_url=None,  # `ops.page` has one that asks for the key
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy, a redirect would name an internal address
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,  # the names of methods in generated clients
    )
    for router in (health.router, metrics_route.router, health.models_router, recordings.router, jobs.router):
        app.include_router(router)
    for feature in SERVER_FEATURES:
        for router in feature.routers:
            app.include_router(router)
    app.include_router(live.router)
    app.include_router(page.router)
    app.state.health_sections = tuple(feature.health for feature in SERVER_FEATURES)
    app.router.default = errors.not_found
    errors.install_handlers(app)
    app.add_middleware(Edge, rules=rules)
    _document_what_is_ours(app, rules)
    return app


def _document_what_is_ours(app: FastAPI, rules: AccessRules) -> None:
    """Add the access check's responses, the need for a key, summaries and examples to the schema.

    Remove FastAPI's own 422: this server answers wrong values with a 400 and its own error body.
    """
    make, keyed = app.openapi, bool(rules.api_keys)
    refusals = {str(status): {"description": words, "content": _ERROR} for status, words in _REFUSALS.items()}

    @functools.cache
    def openapi() -> dict[str, Any]:
        schema = make()
        for path, operations in schema["paths"].items():
            for verb, operation in operations.items():
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
                if path not in PROBES:
                    operation["responses"] = {**refusals, **operation["responses"]}
                needs_key = keyed and path not in PROBES and not path.startswith(rules.open_paths)
                operation |= {"security": [{"key": []}]} if needs_key else {}
                _add_summary_and_example(verb, path, operation, schema["components"]["schemas"], keyed=needs_key)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        if keyed:
            schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this as the way to change the schema


def _add_summary_and_example(verb: str, path: str, operation: _Schema, schemas: _Schema, *, keyed: bool) -> None:
    """Use the first sentence of the description as the summary, and append a curl command to the description.

    `schemas`: the components that the operation refers to. `keyed`: the operation needs a key.
    """
    description = " ".join(operation["description"].split("\n\n", 1)[0].split())
    operation["summary"] = re.split(r"(?<=\.)\s", description, maxsplit=1)[0]
    key = ' -H "Authorization: Bearer $ASR_API_KEY"' if keyed else ""
    url = _EXAMPLE_BASE + re.sub(r"{(\w+)}", lambda found: found[1].upper(), path)
    arguments = _curl_body(operation, schemas)
    if not arguments and verb != "get":
        arguments = ["-X", verb.upper()]
    operation["description"] += f"\n\n```sh\n{shlex.join(['curl', url, *arguments])}{key}\n```"


def _curl_body(operation: _Schema, schemas: _Schema) -> list[str]:
    """Return curl's arguments for a body with the required fields and the fields that have an example. A field without
    an example is a file."""
    content: _Schema = operation.get("requestBody", {}).get("content", {})
    if not content:
        return []
    kind = next(iter(content))
    schema = _resolved(content[kind]["schema"], schemas)
    fields = {name: _resolved(field, schemas) for name, field in schema.get("properties", {}).items()}
    shown = {
        name: field["examples"][0] if "examples" in field else _EXAMPLE_FILE
        for name, field in fields.items()
        if name in schema.get("required", ()) or "examples" in field
    }
    if kind == "multipart/form-data":
        return [part for name, value in shown.items() for part in ("-F", f"{name}={value}")]
    if kind == "application/json":
        return ["-H", f"Content-Type: {kind}", "-d", json.dumps(shown)] if shown else []
    return ["-H", "Content-Type: audio/mpeg", "--data-binary", _EXAMPLE_FILE]


def _resolved(schema: _Schema, schemas: _Schema) -> _Schema:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


async def drain(app: FastAPI) -> None:
    """Drain the server before its sockets are closed: report unready and wait until load balancers have noticed. Then
    end the requests that only watch a job, send every live session its final and close it in order, and let every
    speech session finish its sentence."""
    services: Services = app.state.services
    services.draining = True
    if not not_live(services):  # a failed engine accepts nothing, and was unready before
        await asyncio.sleep(services.settings.drain_delay_s)
    services.jobs.drain()
    await asyncio.gather(services.live.drain(), *(parts.drain() for parts in services.features))


def machinery(
    settings: Settings, resolved: Plan, watch: Watch = engine_core.NOBODY, registry: CollectorRegistry | None = None
) -> Machinery:
    """Build the parts that process requests. A model is loaded by its first job."""
    registry = registry or CollectorRegistry()
    if resolved.is_active("engine_process"):
        from asr_server.engine import remote  # its messages take memory

        core = remote.build(settings, resolved, watch)
    else:
        core = engine_core.build(settings, resolved, watch)
    thread = core.thread
    admission = Admission(
        settings.max_queue_audio_s,
        time_limit_s=settings.request_timeout,
        engine_s=thread.with_recordings_s,
        speed=FIRST_GUESS_SPEED_GPU if resolved.device.startswith("cuda") else FIRST_GUESS_SPEED,
    )
    limits = DecodeLimits(max_audio_s=settings.max_audio_s)
    decoder = Decoder(limits, idle_timeout_s=settings.idle_timeout, registry=registry)
    parts = CoreParts(settings, resolved, thread, core.speaking, decoder, watch.on_failure, registry)
    features = [feature.build(parts) for feature in SERVER_FEATURES if feature.build is not None]
    clients = {name: EngineClient(thread, model.traits, name) for name, model in by_name(resolved).items()}
    speculative = resolved.is_active("use_speculative")
    drafting = ModelDrafts(clients[resolved.fast_model_id]) if speculative else None
    client = clients[DEFAULT] = EngineClient(thread, resolved.traits, drafting=drafting)
    resources = PipelineResources(
        decoder,
        client,
        admission,
        settings.request_timeout,
        _LOOK_AHEAD * resolved.max_batch,
        others={name: each for name, each in clients.items() if name != DEFAULT},
        split_signal=next((parts.split_signal for parts in features if parts.split_signal is not None), None),
        steps={option: step for parts in features for option, step in parts.steps.items()},
        check=_context_check(features),
        longest_s=settings.longest_run_s,
        metrics=RecordingMetrics(registry),
    )
    pipeline = RecordingPipeline(resources)
    translators = (parts.translator for parts in features if parts.translator is not None)
    translator = next(translators, TranscriptTranslator())
    writers = (parts.write_document for parts in features if parts.write_document is not None)
    write_document = next(writers, refuse_document)
    processor = RequestProcessor(pipeline, translator, write_document)
    return Machinery(core.infos, thread, clients, drafting, admission, decoder, features, pipeline, processor)


def _context_check(features: Sequence[FeatureParts]) -> ContextCheck:
    return next((parts.context_check for parts in features if parts.context_check is not None), ContextCheck())


def _services(
    settings: Settings, resolved: Plan, built: Machinery, registry: CollectorRegistry, ephemeral_keys: EphemeralKeys
) -> Services:
    clients = dict(built.clients)
    accurate = clients.pop(DEFAULT)
    fast = clients[resolved.fast_model_id] if resolved.is_active("dual_model") else accurate
    engines = Engines(fast, accurate, LiveMetrics(registry), clients, check=_context_check(built.features))
    return Services(
        **vars(built),
        settings=settings,
        plan=resolved,
        catalog=Catalog.of(resolved, settings.aliases),
        live=LiveSessions(settings, engines, built.admission, _end_of_turn(resolved)),
        jobs=_jobs(settings, RecordingJobs(built.processor), built.features),
        ephemeral_keys=ephemeral_keys,
        registry=registry,
        request_metrics=RequestMetrics(registry),
        started_s=time.monotonic(),
    )


def _end_of_turn(resolved: Plan) -> EndOfTurnModel | None:
    if not resolved.is_active(END_OF_TURN):
        return None
    return next(feature.end_of_turn for feature in resolved.features if feature.end_of_turn is not None)()


def _jobs(settings: Settings, recordings: JobKind, features: Sequence[FeatureParts]) -> JobRunner:
    kinds = (recordings, *(kind for parts in features for kind in parts.jobs))
    records = RecordFormat(one for kind in kinds for one in kind.request_types)
    limits = JobLimits(settings.job_ttl, settings.longest_run_s, settings.max_jobs, several_keys=len(settings.keys) > 1)
    url, max_bytes = settings.jobs_database_url.get_secret_value(), int(settings.jobs_database_mb * 2**20)
    database = Postgres(url, settings.state_dir, max_bytes) if url else Sqlite(settings.state_dir, limits.ttl_s)
    store = JobStore(database, limits, records)
    return JobRunner(kinds, store, next((parts.follow_ups for parts in features if parts.follow_ups), None))


async def _make_ready(services: Services) -> None:
    if services.settings.preload:
        try:
            await asyncio.wrap_future(services.thread.load())
            for parts in services.features:
                await parts.warm_up()
        except Exception as error:  # the reason stays visible in /health and /readyz; the next request tries again
            logger.opt(exception=error).error("preload failed")
    services.ready = True


def _log_plan(settings: Settings, resolved: Plan) -> None:
    """Log the plan, who has access, and warnings for the operator."""
    logger.info("engine", engine=resolved.engine, model=resolved.model_id)
    if plan.FAKE in (resolved.engine, resolved.value("speech"), resolved.value("speech_clone_model")):
        logger.warning("the answers are scripted: this engine is for tests only")
    for option in resolved.options:
        if option.active:
            logger.info("option", name=option.name, value=option.value, reason=option.reason)
    logger.info("access", keys=len(settings.keys), anonymous=not settings.keys, host=settings.host)
    if any(len(key) < _LEAST_KEY_LENGTH for key in settings.keys):
        logger.warning("a key is short enough to be guessed", least=_LEAST_KEY_LENGTH)
    if unused := superseded():
        advice = "; ".join(f"{name}: {instead}" for name, instead in unused.items())
        logger.warning("settings without effect", settings=advice)
    if not sandbox.filters_calls():
        logger.warning("decoders are confined only by limits: no system call filter on this kernel or machine")
