"""What stands before all routes, of a server and of a gateway: log, headers, other sites' pages, faults, access."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from asr_server.api import errors
from asr_server.api.edge.access import Access, AccessRules
from asr_server.api.edge.browser_headers import BrowserHeaders
from asr_server.api.edge.request_log import RequestLog

# What a page of another origin may read of an answer, beside the body.
_EXPOSED = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "server-timing",
    "content-disposition",
    "x-subtitle-timing",
    "x-untranslated",
    "x-translation-error",
    "location",
)


def install_middleware(app: FastAPI, rules: AccessRules) -> None:
    """From the innermost, which is met last, to the outermost, which sees every answer."""
    app.add_middleware(Access, rules=rules)
    app.add_middleware(errors.Unexpected)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=sorted(rules.origins.allowed),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=_EXPOSED,
    )
    app.add_middleware(BrowserHeaders)
    app.add_middleware(RequestLog)
