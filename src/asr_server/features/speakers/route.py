"""`/v1/speakers`: voices by name, stored, listed and deleted. Voice prints never leave the server."""

from __future__ import annotations

import asyncio
import re
import unicodedata
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from starlette.datastructures import FormData, UploadFile

from asr_server.core.errors import InvalidInput
from asr_server.features.speakers.diarization.client import SpeakerClient
from asr_server.features.speakers.enrolment import MAX_RECORDINGS, Enrolment
from asr_server.features.speakers.recording_speakers import speaker_step
from asr_server.features.speakers.session_speakers import read_opening
from asr_server.features.speakers.voice_prints import MAX_RECORDING_S, MIN_RECORDING_S
from asr_server.features.speakers.voices import VoiceStore
from asr_server.net import body
from asr_server.net.body import while_connected
from asr_server.net.errors import ErrorBody
from asr_server.recordings import forms
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import CallerDep, FeatureParts, Services, ServicesDep
from asr_server.text.scripts import normal_form


class SpeakerBody(BaseModel):
    """A voice that has a name."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    object: Literal["speaker"] = "speaker"
    name: str
    consent: str = Field(description="On what ground it is stored.")
    created_at: Annotated[int, BeforeValidator(int)] = Field(description="Unix seconds.")
    model: str = Field(description="What computed it; the voice is recognised where the server runs the same.")


class SpeakerListBody(BaseModel):
    """Voices, oldest first."""

    object: Literal["list"] = "list"
    data: list[SpeakerBody]


class SpeakerDeletedBody(BaseModel):
    """A voice is gone."""

    id: str
    object: Literal["speaker"] = "speaker"
    deleted: bool = True


router = APIRouter(prefix="/v1/speakers", tags=["speakers"])
_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": ErrorBody}}
_FILE_FIELD = re.compile(r"files?(\[\d*\])?")
# Zero-width spaces, direction marks and other invisible characters. Joiners stay: some scripts need them.
_INVISIBLE = re.compile(r"[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_JOINERS = "\u200c\u200d"
_LENGTHS = f"{MIN_RECORDING_S:g} to {MAX_RECORDING_S:g} s"


def _one_line(text: str) -> str:
    """Return the text in composed form, without line breaks and invisible characters, so that a name is stored once.

    Raises `ValueError`.
    """
    line = normal_form("NFC", " ".join(_INVISIBLE.sub("", text).split())).strip(_JOINERS)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in line):
        raise ValueError("it has control characters")
    return line


# The length is checked first.
_Line = AfterValidator(_one_line)
_Written = StringConstraints(min_length=1)


class SpeakerForm(BaseModel):
    """`POST /v1/speakers`."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, StringConstraints(max_length=64), _Line, _Written] = Field(
        description="The person's name, which answers show. A voice of the same name is replaced.", examples=["Ann"]
    )
    consent: Annotated[str, StringConstraints(max_length=500), _Line, _Written] = Field(
        description="On what ground the voice is stored: who agreed to it, when and how.",
        examples=["Ann agreed in writing on 1 March 2026."],
    )


_SCHEMA = {
    "type": "object",
    "required": ["name", "consent", "files"],
    "properties": {
        **SpeakerForm.model_json_schema()["properties"],
        "files": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_RECORDINGS,
            "items": {"type": "string", "format": "binary"},
            "description": f"Recordings of {_LENGTHS} in which the person speaks alone: `files[]`, `files` or `file`.",
        },
    },
}


@router.post(
    "",
    status_code=201,
    response_model=SpeakerBody,
    responses=forms.ERRORS,
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _SCHEMA}}}},
)
async def create_speaker(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Store the voice of a person, who is then recognised in this key's recordings where speakers are told apart. The
    recordings are not kept."""
    services.of(Enrolment).check()
    async with forms.read(request, services) as form:
        fields, files = _parse(form)
        sources = [file.file for file in files]
        work = services.of(Enrolment).enrol(sources, fields.name, fields.consent, caller.owner, caller.share)
        voice = await while_connected(request.receive, work)
    return JSONResponse(SpeakerBody.model_validate(voice).model_dump(), 201, {"Location": f"/v1/speakers/{voice.id}"})


@router.get("")
async def list_speakers(services: ServicesDep, caller: CallerDep) -> SpeakerListBody:
    """List the voices that are stored for this key, oldest first."""
    voices = await asyncio.to_thread(services.of(VoiceStore).voices, caller.owner)
    return SpeakerListBody(data=[SpeakerBody.model_validate(voice) for voice in voices])


@router.get("/{speaker_id}", responses=_MISSING)
async def retrieve_speaker(speaker_id: str, services: ServicesDep, caller: CallerDep) -> SpeakerBody:
    """Return one stored voice."""
    return SpeakerBody.model_validate(await asyncio.to_thread(services.of(VoiceStore).voice, caller.owner, speaker_id))


@router.delete("/{speaker_id}", responses=_MISSING)
async def delete_speaker(speaker_id: str, services: ServicesDep, caller: CallerDep) -> SpeakerDeletedBody:
    """Remove a voice with its name and its note. From now on nobody is recognised by it."""
    await asyncio.to_thread(services.of(VoiceStore).delete, caller.owner, speaker_id)
    return SpeakerDeletedBody(id=speaker_id)


def _parse(form: FormData) -> tuple[SpeakerForm, list[UploadFile]]:
    values = body.scalars(form, frozenset(SpeakerForm.model_fields))
    for name in SpeakerForm.model_fields:
        if name not in values:
            raise InvalidInput(f"The field '{name}' is required.", code="missing_required_parameter", param=name)
    fields = body.validated(SpeakerForm, values)
    files = [value for key, value in form.multi_items() if _FILE_FIELD.fullmatch(key) and isinstance(value, UploadFile)]
    if not files:
        raise InvalidInput(
            "The form has no recording: send it with a file name, in a part 'files[]'.",
            code="missing_required_parameter",
            param="files",
        )
    if len(files) > MAX_RECORDINGS:
        raise InvalidInput(f"The form has more than {MAX_RECORDINGS} recordings.", param="files")
    if not all(file.size for file in files):
        raise InvalidInput("A file is empty.", code="empty_file", param="files")
    return fields, files


def _health(services: Services) -> dict[str, str]:
    return {"speakers_state": "loaded" if services.of(Enrolment).is_running else "unloaded"}


def _build(core: CoreParts) -> FeatureParts:
    """Build the parts. If the plan has no speakers, there is no client, and routes and sessions say so."""
    source, settings = core.plan.value("speakers"), core.settings
    client = SpeakerClient(source, idle_timeout_s=settings.idle_timeout) if source else None
    voices = VoiceStore(settings.state_dir)
    enrolment = Enrolment(
        client or core.plan.reason("speakers"), core.decoder, voices, time_limit_s=settings.request_timeout
    )
    parts = FeatureParts((voices, enrolment), read_opening=partial(read_opening, client, voices))
    if client is None:
        return parts
    step = speaker_step(client, core.decoder, voices)
    return replace(parts, steps={"speakers": step}, idle_owners=[client], close=client.close)


SERVER = ServerFeature(routers=[router], health=_health, build=_build)
