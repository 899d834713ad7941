"""The FastAPI app: routers, error table, the door before them. Registers, and does nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from asr_server import __version__
from asr_server.api import door, errors, jobs, live, models, ops, page, subtitles, transcriptions, translations
from asr_server.api.access import PROBES, AccessRules
from asr_server.api.metrics import route as metrics
from asr_server.api.realtime import route, secrets

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

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
        description="Speech to text on Qwen3-ASR, over the protocols that OpenAI's clients speak.",
        redoc_url=None,
        lifespan=lifespan,
    )
    for room in (ops, metrics, models, transcriptions, subtitles, translations, jobs, live, secrets, route, page):
        app.include_router(room.router)
    errors.install(app)
    door.put_before(app, rules)
    _document_what_is_ours(app, keyed=bool(rules.ring))
    return app


def _document_what_is_ours(app: FastAPI, *, keyed: bool) -> None:
    """Put the door's answers and the keys into the schema.

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
