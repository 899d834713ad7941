"""A translated transcript to the bytes of an answer: what the transcript's own answer has, and more."""

from __future__ import annotations

from typing import Any

from asr_server.features.translation.translations import TranslatedCues, TranslatedTranscript
from asr_server.recordings import render
from asr_server.recordings.requests import ResponseFormat, Result, TranslationRequest
from asr_server.subtitle.cue_config import CueConfig
from asr_server.text import joining, languages


def render_cues(found: TranslatedCues, request: TranslationRequest, cue_config: CueConfig) -> Result:
    """The cues as SRT or VTT, with new line breaks; where bilingual, the source above each translation."""
    cues = found.laid_out(cue_config, bilingual=request.bilingual)
    return _result(render.render_cues(cues, request.output.response_format), render.TEXT, found)


def render_transcript(found: TranslatedTranscript, request: TranslationRequest) -> Result:
    """The transcript as json, verbose_json or text; where bilingual, the source text beside each translation."""
    if request.output.response_format is ResponseFormat.TEXT:
        text = _pairs(found) if request.bilingual else f"{render.text(found.transcript)}\n"
        return _result(text.encode(), render.TEXT, found)
    is_verbose = request.output.response_format is ResponseFormat.VERBOSE_JSON
    content = (render.verbose if is_verbose else render.plain)(found.transcript, request.output) | _facts(found)
    if is_verbose:
        content |= {"task": "translate", "language": content["language"].lower()}
        for segment, line, source in zip(content["segments"], found.lines, found.source.segments, strict=True):
            segment |= {"translated": line.translated, "reason": line.reason.value}
            segment["compression_ratio"] = source.compression_ratio  # it shows loops of the recognition
    if request.bilingual:
        content["source_text"] = found.source.text
        for segment, source in zip(content.get("segments", []), found.source.segments, strict=is_verbose):
            segment["source_text"] = source.text
    return _result(render.dump(content), render.JSON, found)


def _result(content: bytes, media_type: str, found: TranslatedCues | TranslatedTranscript) -> Result:
    error = found.failure.code if found.failure else None
    return Result(content, media_type, untranslated=found.untranslated, translation_error=error)


def _facts(found: TranslatedTranscript) -> dict[str, Any]:
    """The language of the text, which for silence is the target's, and how much of it could not be translated."""
    language = found.transcript.language or found.target.name
    is_target = language == found.target.name
    code = found.target.tag if is_target else languages.code(language)
    return {
        "language": language,
        "language_code": code,
        "languages": [{"code": code}],
        "source_language": found.source.language,
        "untranslated": found.untranslated,
    }


def _pairs(found: TranslatedTranscript) -> str:
    """A block for each segment: the source, behind its speaker if that is known, and the translation below it if there
    is one."""
    sources = (joining.dialogue([(segment.speaker or "", segment.text)]) for segment in found.source.segments)
    blocks = [
        f"{source}\n{line.text}\n" if line.translated else f"{source}\n"
        for source, line in zip(sources, found.lines, strict=True)
    ]
    return "\n".join(blocks) or "\n"
