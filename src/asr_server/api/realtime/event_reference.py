"""Every event of the realtime protocol here, with what it does or holds: the tables of docs/realtime.md. Data only."""

from __future__ import annotations

CLIENT: dict[str, str] = {
    "session.update": "changes the keys of `session` that it names; answered by `session.updated`",
    "transcription_session.update": "the same in the flat beta shape",
    "input_audio_buffer.append": "`audio`: the next audio in base64, at most 15 MiB; no answer",
    "input_audio_buffer.commit": "ends the turn here; needs 100 ms of audio since the last commit",
    "input_audio_buffer.clear": "throws the open turn away; answered by `input_audio_buffer.cleared`",
    "conversation.item.retrieve": "`item_id`; answered by `conversation.item.retrieved`",
    "conversation.item.delete": "`item_id`; answered by `conversation.item.deleted`",
}

_ORDER = "`item_id`, `previous_item_id` (null for the first)"
_PLACE = "`item_id`, `content_index` 0"
SERVER: dict[str, str] = {
    "session.created": "the first event, unasked: `session`",
    "session.updated": "the whole effective `session`",
    "transcription_session.created": "beta: the first event",
    "transcription_session.updated": "beta: the whole effective session",
    "input_audio_buffer.speech_started": "`item_id`, `audio_start_ms`, the prefix included",
    "input_audio_buffer.speech_stopped": "`item_id`, `audio_end_ms`: the end of what the model is given",
    "input_audio_buffer.committed": f"the turn has all its audio: {_ORDER}",
    "input_audio_buffer.cleared": "the open turn is gone",
    "conversation.item.added": "the `item` of the turn, `previous_item_id`",
    "conversation.item.done": "the same, at once: an item has nothing more to come but its transcript",
    "conversation.item.created": "beta: in place of both",
    "conversation.item.retrieved": "the `item`, with its transcript if there is one; the audio is not kept",
    "conversation.item.deleted": "`item_id`",
    "conversation.item.input_audio_transcription.delta": f"{_PLACE}, `delta`: certain words, never taken back",
    "conversation.item.input_audio_transcription.completed": (
        f"{_PLACE}, `transcript`, `usage` (seconds of audio), `languages`, `logprobs` where asked for"
    ),
    "conversation.item.input_audio_transcription.failed": f"{_PLACE}, `error`: no transcript for this turn",
    "error": "`error` with `code`, `param` and the `event_id` of the client's event; the session goes on",
}
