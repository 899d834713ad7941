"""The middleware of a server and of a gateway."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from asr_server.net import errors
from asr_server.net.access import AccessControl, AccessRules
from asr_server.net.browser_headers import BrowserHeaders
from asr_server.net.head import HeadRequests
from asr_server.net.request_log import RequestLog

# The headers that a page of another origin may read.
_EXPOSED = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "server-timing",
    "content-disposition",
    "x-audio-duration",
    "x-subtitle-timing",
    "x-untranslated",
    "x-translation-error",
    "location",
)


def install_middleware(app: FastAPI, rules: AccessRules) -> None:
    """Add the middleware, from the innermost, which a request reaches last, to the outermost."""
    app.add_middleware(AccessControl, rules=rules)
    app.add_middleware(errors.UnexpectedErrors)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=sorted(rules.origins.allowed),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=_EXPOSED,
    )
    app.add_middleware(BrowserHeaders)
    app.add_middleware(HeadRequests)
    app.add_middleware(RequestLog)
