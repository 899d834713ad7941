"""`POST /v1/text/documents`: the segments of a transcript in, its paragraphs or a document to read out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from asr_server.core.errors import UnsupportedValue
from asr_server.features.documents.client import MEDIA_TYPES, Documents, check_length
from asr_server.features.documents.document import Document, DocumentPart, clean
from asr_server.net import body
from asr_server.net.body import while_connected
from asr_server.net.errors import ErrorBody, content
from asr_server.processes.caller_work import in_thread
from asr_server.recordings import paragraphs
from asr_server.recordings.paragraphs import Paragraph, SpokenPiece
from asr_server.recordings.requests import ResponseFormat
from asr_server.recordings.route import ParagraphBody, headers_of
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import CallerDep, FeatureParts, ServicesDep
from asr_server.text import scripts

router = APIRouter(tags=["text"])

# JSON is read on the event loop: this takes a few hundredths of a second.
_MAX_BODY_BYTES = 4 * 2**20
_MAX_SEGMENTS, _MAX_SEGMENT_CHARS, _MAX_LINE_CHARS = 20_000, 10_000, 500
_MAX_SECONDS = 10_000_000
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 413, 429, 500, 503, 504)}

Seconds = Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=_MAX_SEGMENT_CHARS)]
Line = Annotated[str, Field(max_length=_MAX_LINE_CHARS)]


class DocumentFormat(StrEnum):
    """The formats: `json` has the paragraphs, the others are files."""

    JSON = "json"
    MARKDOWN = "markdown"
    DOCX = "docx"


class DocumentSegment(BaseModel):
    """A part of the transcript, which no paragraph divides."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    start: Seconds
    end: Seconds
    text: Text
    speaker: Line | None = None
    translation: Text = ""


class DocumentRequest(BaseModel):
    """The body."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: DocumentFormat = DocumentFormat.JSON
    segments: list[DocumentSegment] = Field(
        description="In the order of time.",
        examples=[[{"start": 0.0, "end": 1.5, "text": "Dinner is ready."}]],
        max_length=_MAX_SEGMENTS,
    )
    joined: bool = Field(False, description="True: each segment is a paragraph already.")
    language: str = Field("", max_length=60, description="ISO code of the language of the text; empty: not known.")
    title: Line = ""
    facts: Line = Field("", description="A line below the title.")
    note: Line = Field("", description="A line at the end.")


class TextParagraphBody(ParagraphBody):
    """A paragraph of segments that were sent."""

    first_segment: int = Field(description="The number of its first segment, from 0 on.")
    last_segment: int = Field(description="The number of its last segment.")


class ParagraphsBody(BaseModel):
    """`format=json`."""

    paragraphs: list[TextParagraphBody]


@router.post(
    "/v1/text/documents",
    response_model=ParagraphsBody,
    responses={
        200: {
            "description": "The paragraphs, or the file.",
            **content(
                {
                    "text/markdown": "**0:00 A** Turn on the kitchen lights, please.\n",
                    MEDIA_TYPES[ResponseFormat.DOCX]: "",
                }
            ),
        },
        **_ERRORS,
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body.schema_of(DocumentRequest)}},
        }
    },
)
async def create_document(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Join segments of a transcript to paragraphs, and write these as a document. Nothing of it is kept."""
    given = await body.read_json(request, _MAX_BODY_BYTES)
    documents, limit_s = services.of(Documents), services.settings.request_timeout

    async def made() -> Response:
        async with documents.turn(caller.share, limit_s):
            wanted, found = await in_thread(_grouped, given)
            if wanted.format is DocumentFormat.JSON:
                return JSONResponse({"paragraphs": [one.listed() for one in found]})
            result = await documents.written(_document(wanted, found), ResponseFormat(wanted.format.value))
        return Response(result.content, media_type=result.media_type, headers=headers_of(result))

    try:
        return await while_connected(request.receive, made())
    except UnsupportedValue as error:
        error.param = "format"
        raise


def _grouped(given: Any) -> tuple[DocumentRequest, list[Paragraph]]:
    wanted = body.validated(DocumentRequest, given)
    check_length(sum(len(one.text) + len(one.translation) for one in wanted.segments))
    pieces = [
        SpokenPiece(one.text, round(1000 * one.start), round(1000 * one.end), one.speaker, number)
        for number, one in enumerate(wanted.segments)
    ]
    groups = [[piece] for piece in pieces] if wanted.joined else [pieces]
    return wanted, [one for group in groups for one in paragraphs.grouped(group, wanted.language)]


def _document(wanted: DocumentRequest, found: list[Paragraph]) -> Document:
    parts = []
    for one in found:
        translations = (part.translation for part in wanted.segments[one.first_segment : one.last_segment + 1])
        translation = clean(scripts.join(filter(None, translations)))
        parts.append(DocumentPart(one.start_ms, clean(one.speaker or ""), clean(one.text), translation))
    return Document(parts, clean(wanted.title), clean(wanted.facts), clean(wanted.note))


def _build(core: CoreParts) -> FeatureParts:
    documents = Documents(core.settings.idle_timeout)
    return FeatureParts([documents], writer=documents, idle_owners=[documents], close=documents.close)


SERVER = ServerFeature(routers=[router], build=_build)
