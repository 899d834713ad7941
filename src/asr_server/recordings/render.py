"""Renders a transcript as the bytes of an answer, in one of the response formats, and divides it into paragraphs.

A paragraph has one speaker and no pause of `PAUSE_MS` inside. Once it has `FULL_CHARS` characters or `FULL_MS`, it is
full and ends with its current sentence. If no sentence ends before `MOST_CHARS` or `MOST_MS`, as in Thai or in a text
without punctuation, it ends at its longest pause since it was full.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from asr_server.core.transcript import CoverageKind, Segment, TimeSource, Transcript
from asr_server.recordings.requests import CueLayout, RecordingRequest, ResponseFormat, Result
from asr_server.subtitle import cue_segmentation
from asr_server.subtitle.cue_segmentation import Passage
from asr_server.subtitle.cues import Cue, CueConfig, render_srt, render_vtt
from asr_server.text import languages, scripts
from asr_server.text.sentences import sentences
from asr_server.text.words import SENTENCE_MARKS, ends_sentence

JSON = "application/json"
# OpenAI's clients parse anything that looks like JSON; the text formats must not.
TEXT = "text/plain; charset=utf-8"


def render(transcript: Transcript, request: RecordingRequest) -> Result:
    """Render the transcript in the requested format, which must not be a document."""
    match request.response_format:
        case ResponseFormat.JSON:
            return Result(dump(plain(transcript, request)), JSON)
        case ResponseFormat.VERBOSE_JSON:
            content = verbose(transcript, request)
            if "segment" in request.listed:
                words = "word" in request.listed
                content["paragraphs"] = [one.listed(words=words) for one in paragraphs_of(transcript)]
            if "cue" in request.listed:
                content["cues"] = _listed(cues(transcript, cue_config(request)))
            return Result(dump(content), JSON)
        case ResponseFormat.TEXT:
            return Result(f"{text(transcript)}\n".encode(), TEXT)
        case ResponseFormat.DIARIZED_JSON:
            return Result(dump(_diarized(transcript)), JSON)
        case ResponseFormat.SRT | ResponseFormat.VTT as subtitle_format:
            return Result(render_cues(cues(transcript, cue_config(request)), subtitle_format), TEXT)
        case document:
            raise ValueError(f"{document} is written by `WriteDocument`")


def cue_config(request: RecordingRequest) -> CueConfig:
    """Return the limits of cues with the caller's layout."""
    layout = request if isinstance(request, CueLayout) else CueLayout()
    return CueConfig(
        max_line_columns=layout.max_line_chars, max_lines=layout.max_lines, speaker_style=layout.speaker_style
    )


def cues(transcript: Transcript, config: CueConfig) -> list[Cue]:
    """Return the words of all segments as cues, in order. A segment without words has no cue."""
    passages = [Passage(segment.text, segment.words, segment.speaker or "") for segment in transcript.segments]
    return cue_segmentation.cues(passages, config, transcript.duration_ms)


def paragraphs_of(transcript: Transcript) -> list[Paragraph]:
    """Return the paragraphs of the transcript. A text of two hours takes 0.1 s."""
    return paragraphs(transcript.segments, languages.code(transcript.language))


def time_source(segments: Iterable[Segment]) -> str:
    """Return where the times of the words come from: "aligned", "estimated", or "mixed"; "estimated" for no words."""
    sources = {word.source for segment in segments for word in segment.words}
    return "mixed" if len(sources) > 1 else next(iter(sources), TimeSource.ESTIMATED).value


def render_cues(cues: Sequence[Cue], response_format: ResponseFormat) -> bytes:
    """Return the cues as an SRT or VTT file."""
    write = render_vtt if response_format is ResponseFormat.VTT else render_srt
    return write(cues).encode()


def text(transcript: Transcript) -> str:
    """Return the text; with speakers, a line for each run of segments of one speaker."""
    if not any(segment.speaker for segment in transcript.segments):
        return transcript.text
    return scripts.dialogue((segment.speaker or "", segment.text) for segment in transcript.segments)


def plain(transcript: Transcript, request: RecordingRequest) -> dict[str, Any]:
    """Return the content of a json answer."""
    content: dict[str, Any] = {
        "text": transcript.text,
        "language": transcript.language or "auto",
        "language_code": languages.code(transcript.language),
        "languages": language_codes(transcript),
        "usage": usage(transcript),
    }
    content |= {"logprobs": logprobs(transcript.segments)} if "logprobs" in request.listed else {}
    return content | ({"words": [word.listed() for word in transcript.words]} if "word" in request.listed else {})


def language_codes(transcript: Transcript) -> list[dict[str, str]]:
    """Return OpenAI's list for its newer models: the language by its code, or nothing if none was found."""
    code = languages.code(transcript.language)
    return [{"code": code}] if code else []


def logprobs(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """Return OpenAI's list of the tokens that wrote the text; a part of a character is shown as U+FFFD."""
    return [
        {"token": t.written.decode(errors="replace"), "logprob": t.logprob, "bytes": list(t.written)}
        for segment in segments
        for t in segment.spoken
    ]


def token_usage(transcript: Transcript) -> dict[str, Any]:
    """Return the number of tokens that the model read and wrote for the recording."""
    text = sum(s.prompt_tokens for s in transcript.segments)
    audio = sum(s.audio_tokens for s in transcript.segments)
    out = sum(len(s.tokens) for s in transcript.segments)
    return {
        "type": "tokens",
        "input_tokens": text + audio,
        "output_tokens": out,
        "total_tokens": text + audio + out,
        "input_token_details": {"text_tokens": text, "audio_tokens": audio},
    }


def verbose(transcript: Transcript, request: RecordingRequest) -> dict[str, Any]:
    """Return the content of a verbose_json answer."""
    content: dict[str, Any] = {
        "task": "transcribe",
        # Whisper's habit, which clients expect here: the English name in lower case, not the code.
        "language": transcript.language.lower() or "auto",
        "language_code": languages.code(transcript.language),
        "languages": language_codes(transcript),
        "duration": transcript.duration_ms / 1000,
        "coverage": coverage(transcript),
        "text": transcript.text,
    }
    if "segment" in request.listed:
        several = len({segment.language for segment in transcript.segments if segment.language}) > 1
        content["segments"] = [
            _segment(i, segment) | ({"language": segment.language.lower()} if several and segment.language else {})
            for i, segment in enumerate(transcript.segments)
        ]
    if "word" in request.listed:
        content["words"] = [word.listed() for word in transcript.words]
    masked = [
        {"kind": word.masked, "segment": number, "start": word.start_ms / 1000, "end": word.end_ms / 1000}
        for number, segment in enumerate(transcript.segments)
        for word in segment.words
        if word.masked
    ]
    if masked:
        content["masked"] = masked
    if transcript.warnings:
        content["warnings"] = list(transcript.warnings)
    return content | {"usage": usage(transcript)}


def coverage(transcript: Transcript) -> dict[str, Any]:
    """Return the seconds of each kind of part, which add up to the duration, and the parts."""
    seconds = {kind.value: transcript.covered_ms(kind) / 1000 for kind in CoverageKind}
    return seconds | {"parts": [part.listed() for part in transcript.coverage]}


def _listed(cues: Iterable[Cue]) -> list[dict[str, Any]]:
    return [
        {"start": cue.start_ms / 1000, "end": cue.end_ms / 1000, "text": "\n".join(cue.lines)}
        | ({"speaker": cue.speaker} if cue.speaker else {})
        for cue in cues
    ]


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    known = {"repaired": segment.repaired, "speaker": segment.speaker}
    return {
        "id": number,
        "seek": segment.start_ms // 10,  # in frames of 10 ms
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        # The tokens of masked words would reveal them.
        "tokens": [] if any(word.masked for word in segment.words) else list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.mean_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
        "complete": segment.complete,
    } | {name: value for name, value in known.items() if value is not None}


def _diarized(transcript: Transcript) -> dict[str, Any]:  # OpenAI's fields and no others
    return {
        "task": "transcribe",
        "duration": transcript.duration_ms / 1000,
        "text": transcript.text,
        "segments": [diarized_segment(i, segment) for i, segment in enumerate(transcript.segments)],
        "usage": usage(transcript),
    }


def diarized_segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{number}",
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        "speaker": segment.speaker,
    }


def usage(transcript: Transcript) -> dict[str, Any]:
    """Return the seconds of audio, rounded up: OpenAI's reference has 9 for a recording of 8.47 s."""
    return {"type": "duration", "seconds": math.ceil(transcript.duration_ms / 1000)}


def dump(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


PAUSE_MS = 2_000
FULL_CHARS = 600
MOST_CHARS = 1_200
# Readers find a passage by its time, and play the recording from there.
FULL_MS = 15_000
MOST_MS = 30_000
# This much text around an end mark decides whether it ends a sentence: words and abbreviations are shorter.
_CONTEXT_CHARS = 60
_MARK = re.compile(f"[{SENTENCE_MARKS}][^\\w\\s]*\\s*")


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """A piece of text that is never divided between paragraphs."""

    text: str  # with the blanks around it
    start_ms: int
    end_ms: int  # may be before the end of an earlier piece
    speaker: str | None
    segment: int  # the number of its segment, from 0 on
    word: int | None = None  # the number of its word among the words of all segments, None if they have no times


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph. Numbers of segments and words count from 0."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str | None  # a letter or a name, None where speakers are not distinguished
    first_segment: int
    last_segment: int  # may also be the first one of the next paragraph
    first_word: int | None = None  # None if the first or the last word has no times
    last_word: int | None = None

    def listed(self, *, segments: bool = True, words: bool = False) -> dict[str, Any]:
        """Return the paragraph as answers list it: times in seconds, and the numbers of its segments and its words."""
        listed: dict[str, Any] = {"start": self.start_ms / 1000, "end": self.end_ms / 1000, "text": self.text}
        listed |= {} if self.speaker is None else {"speaker": self.speaker}
        listed |= {"first_segment": self.first_segment, "last_segment": self.last_segment} if segments else {}
        has_words = words and self.first_word is not None and self.last_word is not None
        return listed | ({"first_word": self.first_word, "last_word": self.last_word} if has_words else {})


def paragraphs(segments: Sequence[Segment], language: str) -> list[Paragraph]:
    """Return the paragraphs of segments that are in order of time. If words have times, a paragraph ends between two
    words, otherwise after an end mark, whose time is estimated.

    `language` is a language tag, "" if unknown. `scripts.join` gives the same text for paragraphs as for segments.
    """
    return grouped(list(_pieces(segments)), language)


def grouped(pieces: Sequence[SpokenPiece], language: str) -> list[Paragraph]:
    """Return the paragraphs of pieces that are in order of time. No piece is divided."""
    breaks = [i for i, (one, other) in enumerate(pairwise(pieces), 1) if _breaks(one, other)]
    return [
        _paragraph(pieces[first:end])
        for start, stop in pairwise([0, *breaks, len(pieces)])
        if start < stop
        for first, end in _divided(pieces[start:stop], start, language)
    ]


def _breaks(one: SpokenPiece, other: SpokenPiece) -> bool:
    return other.speaker != one.speaker or other.start_ms - one.end_ms >= PAUSE_MS


def _pieces(segments: Sequence[Segment]) -> Iterator[SpokenPiece]:
    first_word = 0
    for number, segment in enumerate(segments):
        starts = _word_starts(segment)
        cuts = starts if starts else [0, *(mark.end() for mark in _MARK.finditer(segment.text))]
        cuts = sorted({0, *cuts[1:], len(segment.text)})
        for i, (start, end) in enumerate(pairwise(cuts)):
            if starts:
                word = segment.words[i]
                times, number_of_word = (word.start_ms, word.end_ms), first_word + i
            else:
                times, number_of_word = (_time(segment, start), _time(segment, end)), None
            yield SpokenPiece(segment.text[start:end], *times, segment.speaker, number, number_of_word)
        first_word += len(segment.words)


def _word_starts(segment: Segment) -> list[int]:
    """Return where each word begins in the text, or [] if the text does not have these words."""
    starts, position = [], 0
    for word in segment.words:
        found = segment.text.find(word.text, position)
        if found < 0:
            return []
        starts.append(found)
        position = found + len(word.text)
    return starts


def _time(segment: Segment, offset: int) -> int:
    """Return when the character at `offset` is said, assuming that all characters take the same time."""
    length_ms = segment.end_ms - segment.start_ms
    return segment.start_ms + length_ms * offset // max(1, len(segment.text))


def _divided(turn: Sequence[SpokenPiece], offset: int, language: str) -> Iterator[tuple[int, int]]:
    """Yield the numbers of each paragraph's first piece and of the piece after its last, counted from `offset`.

    `turn`: pieces of one speaker without a long pause.
    """
    text, ends = _text(turn)
    first = i = 0
    full: list[int] = []  # the pieces that a full paragraph may end with
    while i < len(turn) - 1:
        length = ends[i] - (ends[first - 1] if first else 0)
        if length >= FULL_CHARS or turn[i].end_ms - turn[first].start_ms >= FULL_MS:
            full.append(i)
        too_long = length >= MOST_CHARS or turn[i + 1].end_ms - turn[first].start_ms > MOST_MS
        if full and _ends_sentence(text, ends[i], language):
            full = [i]
        elif not too_long:
            i += 1
            continue
        cut = max(full or [i], key=lambda at: (turn[at + 1].start_ms - turn[at].end_ms, at))
        yield offset + first, offset + cut + 1
        first = i = cut + 1
        full = []
    yield offset + first, offset + len(turn)


def _ends_sentence(text: str, end: int, language: str) -> bool:
    """Return True if a sentence of the text ends at `end`, with an end mark and any closing marks."""
    start = max(0, end - _CONTEXT_CHARS)
    if not ends_sentence(text[start:end]):
        return False
    return any(span.end == end - start for span in sentences(text[start : end + _CONTEXT_CHARS], language))


def _text(pieces: Sequence[SpokenPiece]) -> tuple[str, list[int]]:
    """Return the pieces as one text, and the offset at which each one ends, without the blanks after it."""
    parts: list[str] = []
    before: SpokenPiece | None = None
    for piece in pieces:
        if before is None:
            parts.append(piece.text.lstrip())
        elif piece.segment == before.segment:
            parts.append(piece.text)
        else:
            parts[-1] = parts[-1].rstrip()
            parts.append(scripts.joint(parts[-1], piece.text.lstrip()) + piece.text.lstrip())
        before = piece
    offsets = accumulate((len(part) for part in parts), initial=0)
    return "".join(parts).rstrip(), [start + len(part.rstrip()) for start, part in zip(offsets, parts, strict=False)]


def _paragraph(pieces: Sequence[SpokenPiece]) -> Paragraph:
    first, last = pieces[0], pieces[-1]
    return Paragraph(
        first.start_ms,
        max(piece.end_ms for piece in pieces),
        _text(pieces)[0],
        first.speaker,
        first.segment,
        last.segment,
        first.word,
        last.word,
    )
