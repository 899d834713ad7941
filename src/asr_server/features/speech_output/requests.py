"""Requests to speak a text: one model for bodies, forms, the socket's `start` and jobs, which store it."""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from asr_server.core.errors import InvalidInput
from asr_server.features.speech_output.encoding.formats import (
    MAX_PAUSE_MS,
    MAX_SPEED,
    MIN_SPEED,
    STREAMED_FORMATS,
    SpeechFormat,
)
from asr_server.features.speech_output.voice_sample import MAX_SAMPLE_S, MIN_SAMPLE_S
from asr_server.net.body import schema_of

DEFAULT_VOICE = "alloy"
# More than can be said in the longest recording.
MAX_REFERENCE_CHARS = 2_000
# Unicode's categories Cc and Cs, except tabs and line ends.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# Limits of a text that is spoken as a job.
MAX_JOB_CHARS, MAX_CHAPTERS, MAX_TITLE_CHARS = 2_000_000, 1_000, 200
# CommonMark's ATX headings: at most three spaces before. The closing signs (#) are not part of the title.
_HEADING = re.compile(r"^ {0,3}#[ \t]+(?P<title>\S.*)$", re.MULTILINE)
_SPOKEN = re.compile(r"[^\W_]")


def _printable(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("it has control characters")
    return text


def _streamed(audio_format: SpeechFormat) -> SpeechFormat:
    if audio_format not in STREAMED_FORMATS:
        raise ValueError(f"only jobs make {audio_format} files")
    return audio_format


def _voice_name(voice: Any) -> Any:
    return voice["id"] if isinstance(voice, dict) and "id" in voice else voice


_VOICE = {"type": "string", "maxLength": 200}
Text = Annotated[str, AfterValidator(_printable)]
VoiceName = Annotated[
    str,
    BeforeValidator(_voice_name),
    WithJsonSchema({"anyOf": [_VOICE, {"type": "object", "properties": {"id": _VOICE}, "required": ["id"]}]}),
]
StreamedFormat = Annotated[
    SpeechFormat,
    AfterValidator(_streamed),
    WithJsonSchema({"type": "string", "enum": [str(one) for one in STREAMED_FORMATS]}),
]


class SpeechOptions(BaseModel):
    """The way in which a text is spoken."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(default="tts-1", max_length=200, description="Any of OpenAI's names for speech models.")
    voice: VoiceName = Field(
        default=DEFAULT_VOICE, max_length=200, description="OpenAI's names, and those of `GET /v1/audio/voices`."
    )
    instructions: Text = Field(default="", max_length=4_096, description="How to speak, where the engine can.")
    response_format: StreamedFormat = SpeechFormat.MP3
    speed: float = Field(default=1.0, ge=MIN_SPEED, le=MAX_SPEED, description="At the same pitch.")
    language: str | None = Field(
        default=None,
        max_length=60,
        description="A BCP 47 tag or an English name; not given: that of the text's script.",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Another one makes another answer where the engine samples."
    )
    spell_out: bool = Field(default=True, description="Speak numbers, dates and currency in words.")
    pause_ms: int = Field(default=250, ge=0, le=MAX_PAUSE_MS, description="Silence between two sentences.")


class SpeechRequest(SpeechOptions):
    """`POST /v1/audio/speech`."""

    input: Text = Field(description="The text to speak.", examples=["Dinner is ready."])
    stream_format: Literal["audio", "sse"] = "audio"


class CloneRequest(SpeechRequest):
    """`POST /v1/audio/speech/clone`, whose voice is that of its file."""

    ref_text: Text = Field(
        default="",
        max_length=MAX_REFERENCE_CHARS,
        description="What is said in the recording; it helps to imitate the voice.",
    )


# The text fields of the form.
CLONE_FIELDS = frozenset(CloneRequest.model_fields) - {"voice"}


def clone_schema() -> dict[str, Any]:
    """Return the schema of the form, as `/docs` shows it."""
    properties = schema_of(CloneRequest)["properties"]
    file = {
        "type": "string",
        "format": "binary",
        "description": f"A recording of {MIN_SAMPLE_S:g} to {MAX_SAMPLE_S:g} s in which one person speaks.",
    }
    fields = {name: properties[name] for name in sorted(CLONE_FIELDS)}
    schema = {"type": "object", "required": ["file", "input"], "properties": {"file": file, **fields}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


class SpeechJobRequest(SpeechOptions):
    """The options of a text that is spoken as a job. They are stored with the job."""

    task: Literal["speech"] = "speech"
    response_format: SpeechFormat = SpeechFormat.MP3


class Chapter(BaseModel):
    """A chapter of a long text."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    title: Annotated[Text, AfterValidator(str.strip)] = Field(
        default="", max_length=MAX_TITLE_CHARS, description="For players; it is not spoken."
    )
    text: Text = Field(max_length=MAX_JOB_CHARS, description="All that is spoken.")

    @property
    def is_speakable(self) -> bool:
        return _SPOKEN.search(self.text) is not None


class SpeechJobBody(SpeechOptions):
    """`POST /v1/audio/speech/jobs`: `input` or `chapters`."""

    response_format: SpeechFormat = SpeechFormat.MP3
    input: Text | None = Field(
        default=None, max_length=MAX_JOB_CHARS, description="The text to speak.", examples=["Dinner is ready."]
    )
    split_chapters: bool = Field(
        default=False,
        description="Divide `input` at Markdown headings of the first level (`# Title`), which are spoken.",
    )
    chapters: tuple[Chapter, ...] | None = Field(default=None, max_length=MAX_CHAPTERS)

    def stored(self) -> tuple[SpeechJobRequest, tuple[Chapter, ...]]:
        """Return the options and the chapters to speak. Raises `InvalidInput`."""
        options = self.model_dump(include=set(SpeechJobRequest.model_fields))
        return SpeechJobRequest.model_validate(options), self._chapters()

    def _chapters(self) -> tuple[Chapter, ...]:
        chapters = self.chapters
        if chapters is None:
            text = self.input or ""
            chapters = markdown_chapters(text) if self.split_chapters else (Chapter(text=text),)
        elif self.input is not None:
            raise InvalidInput("There are both 'input' and 'chapters'.", param="chapters")
        elif silent := [number for number, chapter in enumerate(chapters) if not chapter.is_speakable]:
            raise InvalidInput("A chapter has nothing to speak.", param=f"chapters.{silent[0]}.text")
        if not any(chapter.is_speakable for chapter in chapters):
            raise InvalidInput(
                "There is no text to speak.",
                code="missing_required_parameter",
                param="input" if self.chapters is None else "chapters",
            )
        if sum(len(chapter.text) for chapter in chapters) > MAX_JOB_CHARS:
            raise InvalidInput(
                f"The chapters have more than {MAX_JOB_CHARS} characters.",
                code="string_above_max_length",
                param="chapters",
            )
        if len(chapters) > MAX_CHAPTERS:
            raise InvalidInput(f"The text has more than {MAX_CHAPTERS} chapters.", param="input")
        return chapters


def markdown_chapters(text: str) -> tuple[Chapter, ...]:
    """Return a chapter for each line `# ...`. Its text begins with the words of that line. Text before the first such
    line is a chapter without a title."""
    headings = list(islice(_HEADING.finditer(text), MAX_CHAPTERS + 1))  # one too many is enough to be refused
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    found = [Chapter(text=text[: headings[0].start()] if headings else text)]
    for heading, end in zip(headings, ends, strict=False):
        title = _without_closing_signs(heading["title"])
        spoken = f"{title}\n\n{text[heading.end() : end].strip()}"
        found.append(Chapter.model_construct(title=title[:MAX_TITLE_CHARS], text=spoken))
    return tuple(chapter for chapter in found if chapter.is_speakable)


def _without_closing_signs(title: str) -> str:
    title = title.rstrip(" \t\r")
    words = title.rstrip("#")
    return words.rstrip(" \t") if words.endswith((" ", "\t")) else title
