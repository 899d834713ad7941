"""The messages that `WS /ws/transcribe` sends."""

from __future__ import annotations

from typing import Any

from asr_server.core.audio import samples_to_s
from asr_server.live.actions import TURN_LIKELY
from asr_server.live.final_words import WordTimestamps
from asr_server.live.machine.events import (
    Checkpoint,
    Configured,
    Detection,
    EndOfTurnLikely,
    Final,
    Partial,
    ResetDone,
    SessionError,
    TurnConfig,
)
from asr_server.live.outbox import Outgoing, PartMessage
from asr_server.net.errors import live_error_message
from asr_server.recordings.render import words as render_words
from asr_server.text import languages


def render(outgoing: Outgoing) -> dict[str, Any] | None:
    """The message by the figures of the machine; None for what this protocol does not send."""
    match outgoing.message:
        case Partial() as partial:
            return _text(partial, outgoing, partial.committed, partial.tentative)
        case Final() as final:
            known = {} if final.end_of_turn is None else {"end_of_turn": round(final.end_of_turn, 3)}
            return {**_text(final, outgoing, final.text, ""), "ending": final.ending.value, **known}
        case EndOfTurnLikely(utterance=utterance, probability=probability, end_samples=end_samples):
            return {
                "type": TURN_LIKELY,
                "utterance": utterance,
                "probability": round(probability, 3),
                "end": round(samples_to_s(end_samples), 3),
            }
        case WordTimestamps(utterance=utterance, words=words):
            return {"utterance": utterance, "words": render_words(words)}
        case ResetDone():
            return {"status": "buffer_reset"}
        case Configured(rules=rules, asked_language=asked):
            return {
                "status": "configured",
                "language": asked or languages.code(rules.language or "") or "auto",
                "language_name": rules.language or "",
                "use_server_vad": rules.detection is Detection.VOICE,
                "endpointing": endpointing(rules),
            }
        case Checkpoint(end_samples=end_samples, utterance=utterance):
            return {"status": "settled", "seconds": samples_to_s(end_samples), "utterance": utterance}
        case SessionError() as error:
            return live_error_message(error)
        case PartMessage() as own:
            return own.wire()
        case _:
            return None


def endpointing(rules: TurnConfig) -> str:
    """Return who ends an utterance, in the words of the query."""
    if rules.detection is Detection.MANUAL:
        return "manual"
    return "pause" if rules.end_of_turn is None else "semantic"


def _text(result: Partial | Final, outgoing: Outgoing, committed: str, tentative: str) -> dict[str, Any]:
    final = isinstance(result, Final)
    message = {
        "text": result.text,
        "is_partial": not final,
        "is_final": final,
        "committed": committed,
        "tentative": tentative,
        "utterance": result.utterance,
        "start": round(samples_to_s(result.start_samples), 3),
        "end": round(samples_to_s(result.end_samples), 3),
        "language": result.language,
        "language_code": languages.code(result.language),
        "lag_ms": outgoing.lag_ms,
    }
    return message | outgoing.details.fields() if outgoing.details is not None else message
