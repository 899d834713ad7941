"""Answers in Deepgram's format. Unknown values are not invented: without scores, a confidence is 0."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING

from asr_server.net.errors import Json
from asr_server.text import languages

if TYPE_CHECKING:
    from asr_server.core.transcript import Transcript, Word

_CHANNEL = [0, 1]  # the first channel of one
_EDGES = " .,;:!?…\"'”’»)(["


Speakers = dict[str, int]  # by their letters or names, in the order in which they begin


def word(found: Word, speakers: Speakers) -> Json:
    """Return a word in lower case without its punctuation, as it is written, and with the number of its speaker."""
    listed: Json = {
        "word": found.text.strip(_EDGES).lower(),
        "start": found.start_ms / 1000,
        "end": found.end_ms / 1000,
        "confidence": round(found.confidence or 0.0, 4),
        "punctuated_word": found.text,
    }
    if found.speaker is None:
        return listed
    return {**listed, "speaker": speakers.setdefault(found.speaker, len(speakers))}


def alternative(text: str, words: Iterable[Word], speakers: Speakers) -> Json:
    """Return the transcript with its words. Its confidence is the mean of the words' confidences."""
    listed = [word(each, speakers) for each in words]
    confidence = fmean(each["confidence"] for each in listed) if listed else 0.0
    return {"transcript": text, "confidence": round(confidence, 4), "words": listed}


def results(text: str, words: Sequence[Word], span_s: tuple[float, float], meta: Json, **flags: bool) -> Json:
    """Return a message of a live session. `span_s`: the start and the end of its audio."""
    start_s, end_s = span_s
    return {
        "type": "Results",
        "channel_index": _CHANNEL,
        "start": round(start_s, 3),
        "duration": round(end_s - start_s, 3),
        **flags,
        "channel": {"alternatives": [alternative(text, words, {})]},
        "metadata": meta,
    }


def metadata(request_id: str, model: str) -> Json:
    """Return the request's metadata, which every message has. The id of a model is made from its name."""
    uuid = hashlib.sha256(model.encode()).hexdigest()[:32]
    return {
        "request_id": request_id,
        "model_info": {"name": model, "version": "", "arch": ""},
        "model_uuid": uuid,
    }


def session_end(meta: Json, duration_s: float) -> Json:
    return {
        "type": "Metadata",
        "transaction_key": "deprecated",
        "request_id": meta["request_id"],
        "sha256": "",
        "created": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": round(duration_s, 3),
        "channels": 1,
        "models": [meta["model_uuid"]],
        "model_info": {meta["model_uuid"]: meta["model_info"]},
    }


def recording(transcript: Transcript, meta: Json, *, utterances: bool, names_language: bool) -> Json:
    """Return the answer for a recording."""
    speakers: Speakers = {}
    channel: Json = {"alternatives": [alternative(transcript.text, transcript.words, speakers)]}
    if names_language and (code := languages.code(transcript.language)):
        channel["detected_language"] = code
    found: Json = {"channels": [channel]}
    if utterances:
        found["utterances"] = [
            {
                "id": f"{meta['request_id']}-{number}",
                "start": segment.start_ms / 1000,
                "end": segment.end_ms / 1000,
                "channel": 0,
                **alternative(segment.text, segment.words, speakers),
                **({"speaker": speakers[segment.speaker]} if segment.speaker in speakers else {}),
            }
            for number, segment in enumerate(transcript.segments)
            if segment.text
        ]
    ended = session_end(meta, transcript.duration_ms / 1000)
    return {"metadata": {name: value for name, value in ended.items() if name != "type"}, "results": found}
