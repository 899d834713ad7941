"""Finished answers as HTTP responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.responses import Response

from asr_server.net.disconnect import while_connected
from asr_server.net.request_log import log_fields, server_timing
from asr_server.recordings.pipeline import RunOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import UploadFile

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
    return Response(result.content, media_type=result.media_type, headers={**headers_of(result), **(headers or {})})


def headers_of(result: Result) -> dict[str, str]:
    """Return the headers that describe a result."""
    known = {
        "Content-Disposition": result.file_name and f'attachment; filename="{result.file_name}"',
        "X-Subtitle-Timing": result.time_source,
        "X-Untranslated": None if result.untranslated is None else str(result.untranslated),
        "X-Translation-Error": result.translation_error,
    }
    return {name: value for name, value in known.items() if value is not None}
