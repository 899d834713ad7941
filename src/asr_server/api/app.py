"""The FastAPI app: routers, error table, request log. Registers, and does nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from asr_server import __version__
from asr_server.api import errors, jobs, live, models, ops, page, subtitles, transcriptions, translations
from asr_server.api.metrics import route as metrics
from asr_server.api.middleware import RequestLog
from asr_server.api.realtime import route, secrets

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create(lifespan: Callable[[FastAPI], AsyncIterator[None]] | Lifespan) -> FastAPI:
    """The app without its services; `lifespan` puts them into `app.state.services`."""
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
    app.add_middleware(RequestLog)
    _document_our_errors(app)
    return app


def _document_our_errors(app: FastAPI) -> None:
    """Take FastAPI's 422 out of the schema: no route answers with it, wrong values are a 400 in our envelope."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make()
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this as the way to change the schema
