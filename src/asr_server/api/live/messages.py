"""The JSON of `WS /ws/transcribe`, both ways: what comes is in `live_actions.py`. Decides nothing."""

from __future__ import annotations

from typing import Any

from asr_server.api import errors as error_table
from asr_server.api.live.actions import Action, Query, parse_action, parse_query, render_error
from asr_server.core.audio import samples_to_s
from asr_server.live.events import (
    Checkpoint,
    Configured,
    Detection,
    Final,
    Partial,
    ResetDone,
    SessionError,
)
from asr_server.service.live_session.final_words import WordTimestamps
from asr_server.service.live_session.outbox import Outgoing
from asr_server.service.output.render import words as render_words
from asr_server.text import languages

__all__ = ["Action", "Query", "parse_action", "parse_query", "render", "render_error"]


def render(outgoing: Outgoing) -> dict[str, Any] | None:
    """The message for the client; None for what this protocol does not tell."""
    match outgoing.message:
        case Partial() as partial:
            return _text(partial, outgoing.lag_ms, partial.committed, partial.tentative)
        case Final() as final:
            return {**_text(final, outgoing.lag_ms, final.text, ""), "ending": final.ending.value}
        case WordTimestamps(utterance=utterance, words=words):
            return {"utterance": utterance, "words": render_words(words)}
        case ResetDone():
            return {"status": "buffer_reset"}
        case Configured(rules=rules):
            return {
                "status": "configured",
                "language": rules.language or "auto",
                "use_server_vad": rules.detection is Detection.VOICE,
            }
        case Checkpoint(end_samples=end_samples, utterance=utterance):
            return {"status": "settled", "seconds": samples_to_s(end_samples), "utterance": utterance}
        case SessionError(code=code, message=message):
            wire = error_table.TABLE[code]
            return {**error_table.envelope(message, wire.type, None, code), "code": code}
        case _:
            return None


def _text(said: Partial | Final, lag_ms: int, committed: str, tentative: str) -> dict[str, Any]:
    final = isinstance(said, Final)
    return {
        "text": said.text,
        "is_partial": not final,
        "is_final": final,
        "committed": committed,
        "tentative": tentative,
        "utterance": said.utterance,
        "start": round(samples_to_s(said.start_samples), 3),
        "end": round(samples_to_s(said.end_samples), 3),
        "language": said.language,
        "language_code": languages.code(said.language),
        "lag_ms": lag_ms,
    }
