"""What can be asked about a recording, as plain dataclasses, and the form that says it. Sends nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

Form = dict[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """How a recording is listened to. "" leaves a choice to the server.

    `language`: of the recording. `model`: a name from /v1/models; the default means the model that is there.
    """

    language: str = ""
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    model: str = "whisper-1"

    @property
    def fields(self) -> Form:
        """The form's text fields, none of them empty."""
        named = {"model": self.model, "language": self.language, "prompt": self.prompt}
        return {name: value for name, value in named.items() if value} | {"hotwords": list(self.hotwords)}


@dataclass(frozen=True, slots=True)
class FileOptions(RecordingOptions):
    """Text. `response_format` (text, json, verbose_json, srt, vtt) is for whole answers, not for streams."""

    response_format: str = "text"

    route: ClassVar[str] = "/v1/audio/transcriptions"
    task: ClassVar[str] = "transcription"

    @property
    def form(self) -> Form:
        """All fields of a request for a whole answer."""
        return self.fields | {"response_format": self.response_format}


@dataclass(frozen=True, slots=True)
class SubtitleOptions(RecordingOptions):
    """A subtitle file. `format`: srt or vtt. `mode`: accurate (times from the sound) or fast (estimated).

    `max_line_chars`: widest line in columns; `max_lines`: most lines of a cue.
    """

    format: str = "srt"
    mode: str = "accurate"
    max_line_chars: int = 42
    max_lines: int = 2

    route: ClassVar[str] = "/v1/audio/subtitles"
    task: ClassVar[str] = "subtitles"

    @property
    def form(self) -> Form:
        """All fields of the request."""
        return self.fields | {
            "format": self.format,
            "mode": self.mode,
            "max_line_chars": str(self.max_line_chars),
            "max_lines": str(self.max_lines),
        }


@dataclass(frozen=True, slots=True)
class TranslationOptions(RecordingOptions):
    """A transcript or subtitles in the language `to`: a tag or an English name. `bilingual`: along with the source.

    `glossary`: terms and how they are translated. The other fields are those of the options above.
    """

    to: str = "en"
    response_format: str = "text"
    bilingual: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict)
    mode: str = "accurate"
    max_line_chars: int = 42
    max_lines: int = 2

    route: ClassVar[str] = "/v1/audio/translations"
    task: ClassVar[str] = "translation"

    @property
    def form(self) -> Form:
        """All fields of the request: `language` is the target there."""
        fields = self.fields
        source = fields.pop("language", "")
        return (
            fields
            | ({"source_language": source} if source else {})
            | ({"glossary": json.dumps(dict(self.glossary))} if self.glossary else {})
            | {
                "language": self.to,
                "response_format": self.response_format,
                "bilingual": str(self.bilingual).lower(),
                "mode": self.mode,
                "max_line_chars": str(self.max_line_chars),
                "max_lines": str(self.max_lines),
            }
        )


Options = FileOptions | SubtitleOptions | TranslationOptions
