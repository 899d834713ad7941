"""The FastAPI app: routers, error handlers and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from asr_server import __version__
from asr_server.features.realtime import route as realtime
from asr_server.features.speakers import route as speakers
from asr_server.features.speech_output import operations as speaking
from asr_server.features.speech_output import route as speech
from asr_server.features.speech_output import speech_jobs, speech_socket
from asr_server.features.stereo import two_channels
from asr_server.features.translation import route as translations
from asr_server.features.translation import translations as translating
from asr_server.features.translation.endpoint import PromptOutcome
from asr_server.jobs import route as jobs
from asr_server.live import route as live
from asr_server.net import errors
from asr_server.net.access import PROBES, AccessRules
from asr_server.net.edge import Edge
from asr_server.ops import health, page, server_metrics
from asr_server.ops import metrics_route as metrics
from asr_server.recordings import route as transcriptions

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

METRICS = (*server_metrics.METRICS, *speaking.METRICS, translating.TRANSLATION_QUESTIONS)
# The values of every label come from a closed set, so the number of series is bounded whatever callers send.
LABEL_VALUES: Mapping[str, tuple[str, ...]] = {
    **server_metrics.VALUES,
    "format": speaking.FORMATS,
    "outcome": tuple(dict.fromkeys((*server_metrics.VALUES["outcome"], *PromptOutcome))),
}
GAUGES: tuple[metrics.ReadGauges, ...] = (
    metrics.engine_gauges,
    metrics.work_gauges,
    translating.translation_gauges,
    metrics.live_gauges,
    speaking.speech_gauges,
    metrics.server_gauges,
)

HEALTH_SECTIONS: tuple[health.HealthSection, ...] = (speakers.speakers_health, speaking.speech_health)

_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
_REFUSALS = {
    401: "No key, or none of this server's.",
    403: "A page or a name that the server does not answer to.",
    429: "No room now; `Retry-After` says when to try again.",
}


def create(lifespan: Callable[[FastAPI], AsyncIterator[None]] | Lifespan, rules: AccessRules) -> FastAPI:
    """The app without its services; `lifespan` puts them into `app.state.services`. `rules`: who gets in."""
    app = FastAPIOffline(
        title="asr-server",
        version=__version__,
        description="Speech to text on Qwen3-ASR, and text to speech, over the protocols that OpenAI's clients speak.",
        redoc_url=None,
        redirect_slashes=False,  # the address in a redirect would be the one behind a proxy
        lifespan=lifespan,
    )
    for router in (
        health.router,
        metrics.router,
        health.models_router,
        transcriptions.router,
        translations.router,
        jobs.router,
        speakers.router,
        speech.router,
        speech_jobs.router,
        speech_socket.router,
        realtime.router,
        page.router,
    ):
        app.include_router(router)
    app.include_router(live.router(two_channels.endpoint(live.transcribe)))
    app.state.gauges, app.state.health_sections = GAUGES, HEALTH_SECTIONS
    app.router.default = errors.not_found
    errors.install_handlers(app)
    app.add_middleware(Edge, rules=rules)
    _document_what_is_ours(app, keyed=bool(rules.api_keys))
    return app


def _document_what_is_ours(app: FastAPI, *, keyed: bool) -> None:
    """Put the responses of the access check and the keys into the schema.

    Take FastAPI's 422 out of it: no route answers with it, wrong values are a 400 in our envelope.
    """
    make = app.openapi
    refusals = {str(status): {"description": words, "content": _ERROR} for status, words in _REFUSALS.items()}

    def openapi() -> dict[str, Any]:
        schema = make()
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if path not in PROBES:
                    operation["responses"] = {**refusals, **operation["responses"]}
                    operation |= {"security": [{"key": []}]} if keyed else {}
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        if keyed:
            schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this as the way to change the schema
