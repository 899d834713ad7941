"""The supported events of the realtime protocol and their meaning: the tables of docs/use/realtime.md."""

from __future__ import annotations

CLIENT: dict[str, str] = {
    "session.update": "changes the given keys of `session`; answered by `session.updated`",
    "input_audio_buffer.append": "`audio`: the next audio in base64, at most 15 MiB; no answer",
    "input_audio_buffer.commit": "ends the turn; requires 100 ms of audio since the last commit",
    "input_audio_buffer.clear": "discards the open turn; answered by `input_audio_buffer.cleared`",
    "conversation.item.retrieve": "`item_id`; answered by `conversation.item.retrieved`",
    "conversation.item.delete": "`item_id`; answered by `conversation.item.deleted`",
}

_ORDER = "`item_id`, `previous_item_id` (null for the first)"
_PLACE = "`item_id`, `content_index` 0"
SERVER: dict[str, str] = {
    "session.created": "the first event: `session`",
    "session.updated": "the complete effective `session`",
    "input_audio_buffer.speech_started": "`item_id`, `audio_start_ms`, including the prefix",
    "input_audio_buffer.speech_stopped": "`item_id`, `audio_end_ms`: the end of the audio that the model receives",
    "input_audio_buffer.committed": f"the audio of the turn is complete: {_ORDER}",
    "input_audio_buffer.cleared": "the open turn was discarded",
    "conversation.item.added": "the `item` of the turn, `previous_item_id`",
    "conversation.item.done": "the same, immediately afterwards; only the transcript of the item is still to come",
    "conversation.item.retrieved": "the `item`, with its transcript if there is one; the audio is not kept",
    "conversation.item.deleted": "`item_id`",
    "conversation.item.input_audio_transcription.delta": f"{_PLACE}, `delta`: committed words, which never change",
    "conversation.item.input_audio_transcription.completed": (
        f"{_PLACE}, `transcript`, `usage` (seconds of audio), `languages`, `logprobs` if requested"
    ),
    "conversation.item.input_audio_transcription.failed": f"{_PLACE}, `error`: no transcript for this turn",
    "error": "`error` with `code`, `param` and the `event_id` of the client's event; the session continues",
}
