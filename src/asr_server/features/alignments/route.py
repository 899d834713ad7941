"""`POST /v1/audio/alignments`: a recording and its text in, the words with times and scores out."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData, UploadFile

from asr_server.core.errors import InvalidInput
from asr_server.core.transcript import Transcript
from asr_server.engine.client import EngineClient
from asr_server.engine.core import by_name
from asr_server.features.alignments.alignments import Alignments, check_length
from asr_server.features.alignments.files import render
from asr_server.features.alignments.requests import MAX_CHARS, AlignmentFormat, AlignmentRequest
from asr_server.net import body
from asr_server.net.errors import content
from asr_server.processes.caller_work import in_thread
from asr_server.recordings import forms
from asr_server.recordings.pipeline import RunOptions
from asr_server.recordings.requests import DEFAULT_MODEL, Result
from asr_server.recordings.route import Usage, answered
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import CallerDep, FeatureParts, Services, ServicesDep
from asr_server.subtitle.alignment import letters
from asr_server.text import languages


class AlignmentForm(BaseModel):
    """The fields of the form, besides the recording."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str = Field(
        description="What is said, as a field or as a file in UTF-8. A line of it is a segment.",
        examples=["Dinner is ready."],
    )
    model: str = Field("", description="A name from /v1/models; empty: the model that is loaded.")
    language: str = Field("", description="Of the recording: ISO code, locale, English name, `auto` or empty (detect).")
    response_format: AlignmentFormat = Field(AlignmentFormat.JSON, description="Format of the answer.")


class AlignedSegmentBody(BaseModel):
    """A line of the text. Times are null if nothing of it was heard."""

    text: str
    start: float | None = Field(description="Seconds.")
    end: float | None = Field(description="Seconds.")
    score: float = Field(description="Mean of its words.")


class AlignedWordBody(BaseModel):
    """A word of the text, with its punctuation. Times are null if it was not heard."""

    word: str
    start: float | None = Field(description="Seconds.")
    end: float | None = Field(description="Seconds.")
    score: float = Field(description="How well the letters that were heard in its place agree with it, 0 to 1.")
    source: Literal["aligned", "estimated"] | None = Field(
        description="Measured, or spread over the speech it lies in."
    )


class AlignmentBody(BaseModel):
    """`response_format=json`."""

    task: Literal["align"]
    language: str = Field(description="What was heard: the English name in lower case, or `auto` for no speech.")
    language_code: str
    duration: float = Field(description="Seconds.")
    score: float = Field(description="Mean of all words.")
    segments: list[AlignedSegmentBody]
    words: list[AlignedWordBody]
    usage: Usage


router = APIRouter(tags=["audio"])

_MAX_BYTES = 4 * MAX_CHARS + 3  # UTF-8 has at most four bytes per character, and may begin with a byte order mark
# The smallest speech that is accepted is Speex in its lowest mode, 2.15 kbit/s.
_LEAST_BYTES_PER_S = 250


@router.post(
    "/v1/audio/alignments",
    response_model=AlignmentBody,
    responses={
        200: {
            "description": "The words in the format asked for.",
            **content({"text/plain": "start\tend\tscore\ttext\n320\t610\t1\tturn\n"}),
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(AlignmentForm),
)
async def create_alignment(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Find when each word of a text is said in a recording, and how well it was heard."""
    run = RunOptions(caller=caller.share, owner=caller.owner)
    async with forms.received(request, services, _request) as (wanted, file):
        return await answered(request, _align(services, file, wanted, run))


async def _align(
    services: Services, file: UploadFile, wanted: AlignmentRequest, run: RunOptions
) -> tuple[Result, Transcript]:
    # The size of the file limits the length of the recording before anything is transcribed.
    if file.size is not None:
        check_length(wanted.text, file.size / _LEAST_BYTES_PER_S)
    if not await in_thread(letters, wanted.text):
        raise InvalidInput("The text has no letters and no digits.", param="text")
    aligned = await services.of(Alignments).align(services.pipeline, file.file, wanted, run)
    return await in_thread(render, aligned, wanted.answer), aligned.transcript


def _request(form: FormData) -> AlignmentRequest:
    """Return the request of a form. Raises the leaves of `InvalidInput`."""
    file = body.upload(form, "text")
    given = body.scalars(form, frozenset(AlignmentForm.model_fields))
    fields = body.validated(AlignmentForm, {"text": "", **given} if file is None else {**given, "text": _decoded(file)})
    if len(fields.text) > MAX_CHARS:
        raise InvalidInput(
            f"The text has more than {MAX_CHARS} characters.", code="string_above_max_length", param="text"
        )
    if not fields.text.strip():
        raise InvalidInput(
            "The field 'text' is required, and has what is said in the recording.",
            code="missing_required_parameter",
            param="text",
        )
    return AlignmentRequest(
        text=fields.text,
        model=fields.model or DEFAULT_MODEL,
        language=languages.normalize(fields.language) or "",
        answer=fields.response_format,
    )


def _decoded(file: UploadFile) -> str:
    """Return the file's text, or of a long file the beginning, which is also too long. Raises `invalid_value`."""
    content = file.file.read(_MAX_BYTES + 1)
    try:
        return content.decode("utf-8-sig", "replace" if len(content) > _MAX_BYTES else "strict")
    except UnicodeDecodeError:
        raise InvalidInput("The file of the text is not UTF-8.", param="text") from None


def _build(core: CoreParts) -> FeatureParts:
    engines = {name: EngineClient(core.thread, model.traits, name) for name, model in by_name(core.plan).items()}
    return FeatureParts([Alignments(core.decoder, engines)])


SERVER = ServerFeature(routers=[router], build=_build)
