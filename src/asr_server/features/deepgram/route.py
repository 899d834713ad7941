"""`POST /v1/listen`: a recording in the body, options in the query."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import FormData

from asr_server.core.errors import MissingParameter, UnsupportedValue
from asr_server.features.deepgram import answers, options
from asr_server.features.deepgram.options import ListenOptions
from asr_server.net import body
from asr_server.net.body import while_connected
from asr_server.net.request_log import log_fields, server_timing
from asr_server.recordings import forms
from asr_server.recordings.pipeline import RunOptions
from asr_server.services import CallerDep, ServicesDep

router = APIRouter(tags=["audio"])

_FILE = {"schema": {"type": "string", "format": "binary"}}
_SCHEMA = {
    "requestBody": {"required": True, "content": {"audio/*": _FILE, "application/octet-stream": _FILE}},
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in ListenOptions.model_json_schema()["properties"].items()
    ],
}


@router.post("/v1/listen", response_model=dict[str, Any], responses=forms.ERRORS, openapi_extra=_SCHEMA)
async def listen(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Transcribe a recording as Deepgram's API does. An address of a recording is refused: nothing is fetched."""
    wanted = options.read(request.query_params, ListenOptions)
    if request.headers.get("content-type", "").lower().startswith("application/json"):
        raise UnsupportedValue("This server fetches no recording: send its bytes as the body.", param="url")
    services.admission.check()
    async with forms.read(request, services) as sent:
        if (file := body.upload(sent, "file")) is None:
            raise MissingParameter("The request has no body: send the recording.", param="file")
        fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")]
        fields += [("timestamp_granularities[]", "segment"), ("language", wanted.asked_language)]
        fields += [("speakers", "true")] * wanted.diarize + [("prompt", wanted.hotwords)]
        form = FormData([("file", file), *fields])
        asked, file = forms.parse(form, services, forms.transcription_request, any_model=True)
        run = RunOptions(caller=caller.share, owner=caller.owner)
        transcript = await while_connected(request.receive, services.pipeline.transcribe(file.file, asked, run))
    request.state.log.update(log_fields(transcript))
    found = answers.recording(
        transcript,
        answers.metadata(request.state.id, services.plan.model_id),
        utterances=wanted.utterances,
        names_language=not wanted.asked_language,
    )
    return JSONResponse(found, headers=server_timing(request, transcript.timings))
