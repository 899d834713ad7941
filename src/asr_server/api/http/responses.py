"""What routes that answer with a finished body have in common: they work while the client is there, and log it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.responses import Response

from asr_server.api.disconnect import while_connected
from asr_server.api.edge.request_log import log_fields, server_timing
from asr_server.service import processor

if TYPE_CHECKING:
    from starlette.datastructures import UploadFile

    from asr_server.api.dependencies import Services


async def respond(request: Request, services: Services, file: UploadFile, wanted: processor.Request) -> Response:
    """The answer to a checked request. Raises `Cancelled` when the client leaves before it is there."""
    product = await while_connected(request.receive, services.producer.produce(file.file, wanted))
    request.state.log.update(log_fields(product.transcript))
    if product.untranslated is not None:
        request.state.log["untranslated"] = product.untranslated
    body = product.body
    return Response(
        body.content,
        media_type=body.media_type,
        headers={**body.notes, **server_timing(request, product.transcript.timings)},
    )
