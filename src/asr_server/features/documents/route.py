"""`POST /v1/text/documents`: the segments of a transcript in, its paragraphs or a readable document out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from asr_server.core.errors import DeadlineExceeded, InvalidInput
from asr_server.core.transcript import Transcript
from asr_server.features.documents.document import FORMATS, Document, DocumentPart, clean
from asr_server.net import body
from asr_server.net.body import while_connected
from asr_server.net.errors import ErrorBody, content
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.render import Paragraph, SpokenPiece, grouped, paragraphs_of
from asr_server.recordings.requests import ResponseFormat, Result
from asr_server.recordings.route import ParagraphBody, headers_of
from asr_server.server_feature import ServerFeature
from asr_server.services import FeatureParts, ServicesDep
from asr_server.text import scripts

router = APIRouter(tags=["text"])

# A day of speech.
_MAX_CHARS = 1_000_000
# JSON is parsed on the event loop: this much takes a few hundredths of a second.
_MAX_BODY_BYTES = 4 * 2**20
_MAX_SEGMENTS, _MAX_SEGMENT_CHARS, _MAX_LINE_CHARS = 20_000, 10_000, 500
_MAX_SECONDS = 10_000_000
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 413, 429, 500, 503, 504)}

Seconds = Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=_MAX_SEGMENT_CHARS)]
Line = Annotated[str, Field(max_length=_MAX_LINE_CHARS)]
T = TypeVar("T")


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
            **content({"text/markdown": "**0:00 A** Turn on the kitchen lights, please.\n", FORMATS["docx"][1]: ""}),
        },
        **_ERRORS,
    },
    openapi_extra=body.json_of(DocumentRequest),
)
async def create_document(request: Request, services: ServicesDep) -> Response:
    """Join segments of a transcript to paragraphs, and write these as a document. Nothing of it is kept."""
    given = await body.read_json(request, _MAX_BODY_BYTES)
    return await while_connected(request.receive, _in_turn(partial(_made, given), services.settings.request_timeout))


async def _in_turn(work: Callable[[], T], limit_s: float) -> T:
    """Run the work in a thread: a long text takes half a second, and live sessions share the event loop. Callers take
    turns. Raises `DeadlineExceeded`."""
    try:
        async with asyncio.timeout(limit_s):
            return await in_thread(work)
    except TimeoutError:
        raise DeadlineExceeded(f"The document was not written within {limit_s:.0f} s.") from None


def _made(given: Any) -> Response:
    wanted = body.validated(DocumentRequest, given)
    _check_length(sum(len(one.text) + len(one.translation) for one in wanted.segments))
    pieces = [
        SpokenPiece(one.text, round(1000 * one.start), round(1000 * one.end), one.speaker, number)
        for number, one in enumerate(wanted.segments)
    ]
    groups = [[piece] for piece in pieces] if wanted.joined else [pieces]
    found = [one for group in groups for one in grouped(group, wanted.language)]
    if wanted.format is DocumentFormat.JSON:
        return JSONResponse({"paragraphs": [one.listed() for one in found]})
    translations = [one.translation for one in wanted.segments]
    parts = [_part(one, translations[one.first_segment : one.last_segment + 1]) for one in found]
    document = Document(parts, clean(wanted.title), clean(wanted.facts), clean(wanted.note))
    result = _written(document, wanted.format.value)
    return Response(result.content, media_type=result.media_type, headers=headers_of(result))


def _part(paragraph: Paragraph, translations: Sequence[str] = ()) -> DocumentPart:
    translation = clean(scripts.join(filter(None, translations)))
    return DocumentPart(paragraph.start_ms, clean(paragraph.speaker or ""), clean(paragraph.text), translation)


def _check_length(chars: int) -> None:
    if chars > _MAX_CHARS:
        raise InvalidInput(f"The text is longer than the {_MAX_CHARS:_} characters of a document.")


def _written(document: Document, kind: str) -> Result:
    """Return the file of that format. Raises `invalid_value`."""
    _check_length(sum(map(len, document.texts)))
    write, media_type, ending = FORMATS[kind]
    return Result(write(document), media_type, file_name=f"transcript.{ending}")


async def write_transcript(transcript: Transcript, response_format: ResponseFormat, limit_s: float) -> Result:
    """Return the document of a transcript within `limit_s`. Raises `invalid_value` and `DeadlineExceeded`."""
    kind = response_format.value
    return await _in_turn(lambda: _written(Document([*map(_part, paragraphs_of(transcript))]), kind), limit_s)


SERVER = ServerFeature(routers=[router], build=lambda core: FeatureParts(write_document=write_transcript))
