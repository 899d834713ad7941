"""A translated transcript to the body of an answer: the transcript's own body, and what a translation adds to it."""

from __future__ import annotations

from typing import Any

from asr_server.service.output.render import JSON, TEXT, Body, Shape, dump, plain, verbose
from asr_server.service.requests import ResponseFormat
from asr_server.service.translations import TranslatedCues, TranslatedTranscript
from asr_server.subtitle import srt, vtt
from asr_server.text import languages


def render_cues(found: TranslatedCues, shape: Shape, *, bilingual: bool) -> Body:
    """The cues as SRT or VTT, laid out anew; with `bilingual`, the source above each translation."""
    write = vtt.render if shape.response_format is ResponseFormat.VTT else srt.render
    return Body(write(found.laid_out(shape.cues, bilingual=bilingual)).encode(), TEXT, _notes(found))


def render_transcript(found: TranslatedTranscript, shape: Shape, *, bilingual: bool) -> Body:
    """The transcript as json, verbose_json or text; with `bilingual`, the source text beside each translation."""
    if shape.response_format is ResponseFormat.TEXT:
        text = _pairs(found) if bilingual else f"{found.transcript.text}\n"
        return Body(text.encode(), TEXT, _notes(found))
    is_verbose = shape.response_format is ResponseFormat.VERBOSE_JSON
    content = (verbose if is_verbose else plain)(found.transcript, shape) | _facts(found)
    if is_verbose:
        code = content["language_code"]
        content |= {"task": "translate", "language": content["language"].lower(), "languages": [{"code": code}]}
        for segment, line, source in zip(content["segments"], found.lines, found.source.segments, strict=True):
            segment |= {"translated": line.translated, "reason": line.reason.value}
            segment["compression_ratio"] = source.compression_ratio  # it tells of loops in the recognition
    if bilingual:
        content["source_text"] = found.source.text
        for segment, source in zip(content.get("segments", []), found.source.segments, strict=is_verbose):
            segment["source_text"] = source.text
    return Body(dump(content).encode(), JSON, _notes(found))


def _notes(found: TranslatedCues | TranslatedTranscript) -> dict[str, str]:
    notes = {"X-Untranslated": str(found.kept)}
    return notes | ({"X-Translation-Error": found.failure.code} if found.failure else {})


def _facts(found: TranslatedTranscript) -> dict[str, Any]:
    """The language of the text, which for silence is the target's, and how much of it could not be translated."""
    language = found.transcript.language or found.target.name
    is_target = language == found.target.name
    return {
        "language": language,
        "language_code": found.target.tag if is_target else languages.code(language),
        "source_language": found.source.language,
        "untranslated": found.kept,
    }


def _pairs(found: TranslatedTranscript) -> str:
    """A block for each segment: the source, and the translation below it if there is one."""
    blocks = [
        f"{segment.text.strip()}\n{line.text}\n" if line.translated else f"{segment.text.strip()}\n"
        for segment, line in zip(found.source.segments, found.lines, strict=True)
    ]
    return "\n".join(blocks) or "\n"
