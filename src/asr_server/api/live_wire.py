"""The JSON of `WS /ws/transcribe`, both ways: what comes is in `live_actions.py`. Decides nothing."""

from __future__ import annotations

from typing import Any

from asr_server.api import errors as error_table
from asr_server.api.live_actions import Action, Query, parse_action, parse_query, render_error
from asr_server.live.events import SAMPLE_RATE, Configured, Detection, Final, Partial, Settled, Trouble, WasReset
from asr_server.service.live_words import Spoken
from asr_server.service.outbox import Outgoing
from asr_server.service.render import words as render_words
from asr_server.text import languages

__all__ = ["Action", "Query", "parse_action", "parse_query", "render", "render_error"]


def render(outgoing: Outgoing) -> dict[str, Any] | None:
    """The message for the client; None for what this protocol does not tell."""
    match outgoing.message:
        case Partial() as partial:
            return _text(partial, outgoing.lag_ms, partial.committed, partial.tentative)
        case Final() as final:
            return {**_text(final, outgoing.lag_ms, final.text, ""), "ending": final.ending.value}
        case Spoken(utterance=utterance, words=words):
            return {"utterance": utterance, "words": render_words(words)}
        case WasReset():
            return {"status": "buffer_reset"}
        case Configured(rules=rules):
            return {
                "status": "configured",
                "language": rules.language or "auto",
                "use_server_vad": rules.detection is Detection.VOICE,
            }
        case Settled(end_samples=end_samples, utterance=utterance):
            return {"status": "settled", "seconds": end_samples / SAMPLE_RATE, "utterance": utterance}
        case Trouble(code=code, message=message):
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
        "start": round(said.start_samples / SAMPLE_RATE, 3),
        "end": round(said.end_samples / SAMPLE_RATE, 3),
        "language": said.language,
        "language_code": languages.code(said.language),
        "lag_ms": lag_ms,
    }
