"""The formats that commands write. One answer of the server is enough for several of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from asr_server.cli.failure import UsageError, shown
from asr_server.cli.parser import unknown_name
from asr_server.recordings.requests import ResponseFormat
from asr_server.subtitle.cues import Cue, parse_srt, parse_vtt, render_srt, render_vtt
from asr_server.text import languages, scripts

Format = ResponseFormat
F = TypeVar("F", bound=StrEnum)
# In the order of the help texts. The first is the default of most commands.
FORMATS = tuple(map(Format, ("text", "json", "verbose_json", "diarized_json", "srt", "vtt", "markdown", "docx")))
CUE_FORMATS = (Format.SRT, Format.VTT)
_SUFFIXES = {Format.TEXT: ".txt", Format.VERBOSE_JSON: ".json", Format.DIARIZED_JSON: ".json", Format.MARKDOWN: ".md"}
# The formats that Whisper's command writes for `all`. Its json lists the segments.
_ALL = (Format.TEXT, Format.VTT, Format.SRT, Format.VERBOSE_JSON)
_JSON_FIELDS = ("text", "language", "language_code", "languages", "usage")


def suffix(wanted: Format) -> str:
    return _SUFFIXES.get(wanted, f".{wanted}")


def parse(text: str) -> list[Format]:
    """Return the formats of a comma-separated argument. `txt` means text, and `all` the formats of Whisper's `all`."""
    found: list[Format] = []
    for name in text.lower().split(","):
        if name == "all":
            found += _ALL
        elif name in (*FORMATS, "txt"):
            found.append(Format.TEXT if name == "txt" else Format(name))
        else:
            raise argparse.ArgumentTypeError(unknown_name(name, [*FORMATS, "all"]))
    return found


def chosen(parsed: argparse.Namespace, allowed: Sequence[Format] = FORMATS) -> list[Format]:
    """Return the formats of `--format`, or the format that the ending of `--output` means, or the first allowed format.

    Raises `UsageError` for a format that is not allowed, and for two formats that would share a file.
    """
    ending = Path(parsed.output or "").suffix.lower()
    by_name = [one for one in allowed if suffix(one) == ending] or allowed
    wanted = list(dict.fromkeys(parsed.format or by_name[:1]))
    for one in wanted:
        if one not in allowed:
            raise UsageError(f"--format {one} is not possible here; choose from {', '.join(allowed)}.")
    same = [one for one in wanted if suffix(one) == suffix(Format.JSON)]
    if len(same) > 1:
        raise UsageError(f"{same[0]} and {same[1]} would be the same file; verbose_json holds all that the others do.")
    return wanted


def of_file(given: str | None, file: Path | None, endings: Mapping[str, F], default: F) -> F:
    """Return the format that `--format` or the file's ending names, or the default for standard output. Raises
    `UsageError`."""
    ending = f".{given}" if given else file.suffix.lower() if file else f".{default}"
    if ending not in endings:
        raise UsageError(f"--output {shown(str(file))} ends like no format; say --format, or {', '.join(endings)}.")
    return endings[ending]


def answer_options(wanted: Sequence[Format], *, speakers: bool = False) -> dict[str, Any]:
    """Return the options of a request whose answer `convert` can turn into all formats."""
    cues = [one for one in wanted if one.is_subtitles]
    if len(wanted) == 1 and not wanted[0].is_document:
        answer = wanted[0]
    elif len(cues) == len(wanted):
        # In SRT a speaker's name is part of the text; VTT marks it.
        answer = Format.VTT if speakers else Format.SRT
    else:
        answer = Format.VERBOSE_JSON
    has_cues = answer is Format.VERBOSE_JSON and bool(cues)
    return {"response_format": answer} | ({"timestamp_granularities": ("segment", "cue")} if has_cues else {})


def convert(answer: str, given: Format, wanted: Sequence[Format]) -> dict[Format, str | bytes]:
    """Return the files' contents from an answer in the format that `answer_options` has chosen."""
    if [given] == list(wanted):
        return {wanted[0]: _ended(answer)}
    if given.is_subtitles:
        parse_cues = parse_vtt if given is Format.VTT else parse_srt
        content, cues = {}, parse_cues(answer)
    else:
        content = json.loads(answer)
        cues = [
            Cue(round(1000 * cue["start"]), round(1000 * cue["end"]), cue["text"], speaker=cue.get("speaker", ""))
            for cue in content.pop("cues", [])
        ]
    return {one: _content(content, cues, one) for one in wanted}


def _content(content: dict[str, Any], cues: Sequence[Cue], wanted: Format) -> str | bytes:
    if wanted.is_subtitles:
        return render(cues, wanted)
    if wanted.is_document:
        return _document(content, wanted)
    if wanted is Format.TEXT:
        turns = [(segment.get("speaker", ""), segment["text"]) for segment in content["segments"]]
        return _ended(scripts.dialogue(turns) if any(speaker for speaker, _ in turns) else content["text"])
    if wanted is Format.DIARIZED_JSON:
        names = ("start", "end", "text", "speaker")
        segments = [
            {"type": "transcript.text.segment", "id": f"seg_{number}", **{name: segment[name] for name in names}}
            for number, segment in enumerate(content["segments"])
        ]
        facts = {name: content[name] for name in ("task", "duration", "text")}
        content = {**facts, "segments": segments, "usage": content["usage"]}
    elif wanted is Format.JSON:
        content = {name: content[name] for name in _JSON_FIELDS}
        # The json format has the model's name of the language, verbose_json the same name in lower case.
        content["language"] = languages.normalize(content["language_code"]) or "auto"
    return _ended(json.dumps(content, ensure_ascii=False))


def _document(content: dict[str, Any], wanted: Format) -> str | bytes:
    """Return a document made of the paragraphs of verbose_json."""
    from asr_server.features.documents.document import FORMATS, Document, DocumentPart, clean

    parts = [
        DocumentPart(round(1000 * one["start"]), clean(one.get("speaker", "")), clean(one["text"]))
        for one in content["paragraphs"]
    ]
    written = FORMATS[wanted.value][0](Document(parts))
    return written if wanted is Format.DOCX else written.decode()


def render(cues: Sequence[Cue], wanted: Format, first: int = 1) -> str:
    """Return the content of a file of cues. `first`: the number of the first cue, if the format numbers cues."""
    return render_srt(cues, first) if wanted is Format.SRT else render_vtt(cues)


def _ended(text: str) -> str:
    return f"{text}\n" if text and not text.endswith("\n") else text
