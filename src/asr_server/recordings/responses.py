"""Finished answers as HTTP responses."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from asr_server.net.disconnect import while_connected
from asr_server.net.request_log import log_fields, server_timing
from asr_server.recordings.pipeline import RunOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import UploadFile
    from starlette.types import Receive, Scope, Send

    from asr_server.jobs.content import Content
    from asr_server.recordings.requests import Request as RecordingRequest
    from asr_server.recordings.requests import Result
    from asr_server.services import Services


async def respond(request: Request, services: Services, wanted: RecordingRequest, file: UploadFile) -> Response:
    """Process the request while the client is connected. Raises `Cancelled` when it leaves before the answer."""
    options = RunOptions(caller=request.state.caller.share, owner=request.state.caller.owner)
    work = services.processor.process(file.file, wanted, options)
    result, transcript = await while_connected(request.receive, work)
    request.state.log.update(log_fields(transcript))
    if result.untranslated is not None:
        request.state.log["untranslated"] = result.untranslated
    duration = {"X-Audio-Duration": f"{transcript.duration_ms / 1000:.3f}"}
    return render(result, duration | server_timing(request, transcript.timings))


def render(result: Result, headers: Mapping[str, str] | None = None) -> Response:
    """The result with its headers and those given."""
    return Response(result.content, media_type=result.media_type, headers={**_headers(result), **(headers or {})})


async def send_content(result: Result, content: Content) -> Response:
    """The same with its content from elsewhere, which is closed at the end and may be larger than the memory."""
    headers = {**_headers(result), "Content-Length": str(content.size_bytes)}
    return _ContentResponse(content, result.media_type, headers)


class _ContentResponse(StreamingResponse):
    def __init__(self, content: Content, media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(content.pieces(), media_type=media_type, headers=headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or end when the client leaves."""
        with closing(self._content):
            await super().__call__(scope, receive, send)


def _headers(result: Result) -> dict[str, str]:
    known = {
        "Content-Disposition": result.file_name and f'attachment; filename="{result.file_name}"',
        "X-Subtitle-Timing": result.time_source,
        "X-Untranslated": None if result.untranslated is None else str(result.untranslated),
        "X-Translation-Error": result.translation_error,
    }
    return {name: value for name, value in known.items() if value is not None}
