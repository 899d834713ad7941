"""The supported events of the realtime protocol and their meaning: the tables of docs/use/realtime.md."""

from __future__ import annotations

CLIENT: dict[str, str] = {
    "session.update": "the changed keys of `session`",
    "input_audio_buffer.append": "`audio` in base64, at most 15 MiB",
    "input_audio_buffer.commit": "ends the turn; needs 100 ms of audio since the last commit or clear",
    "input_audio_buffer.clear": "discards the open turn",
    "conversation.item.retrieve": "`item_id`",
    "conversation.item.delete": "`item_id`",
}

_PLACE = "`item_id`, `content_index` 0"
SERVER: dict[str, str] = {
    "session.created": "`session`",
    "session.updated": "the effective `session`",
    "input_audio_buffer.speech_started": "`item_id`, `audio_start_ms`, including the prefix",
    "input_audio_buffer.speech_stopped": "`item_id`, `audio_end_ms`, including the margin",
    "input_audio_buffer.committed": "`item_id`, `previous_item_id` (null for the first)",
    "input_audio_buffer.cleared": "the open turn was discarded",
    "conversation.item.added": "the `item` of the turn, `previous_item_id`",
    "conversation.item.done": "the same, at once",
    "conversation.item.retrieved": "the `item` with its transcript",
    "conversation.item.deleted": "`item_id`",
    "conversation.item.input_audio_transcription.delta": f"{_PLACE}, `delta`: committed words",
    "conversation.item.input_audio_transcription.completed": (
        f"{_PLACE}, `transcript`, `usage` (seconds of audio), `languages`, `logprobs` if requested"
    ),
    "conversation.item.input_audio_transcription.failed": f"{_PLACE}, `error`",
    "error": "`error` with `code`, `param` and `event_id`; the session continues",
}
