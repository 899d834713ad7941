"""The messages of `WS /ws/speech` and their meaning: the tables of docs/use/speech.md."""

from __future__ import annotations

CLIENT: dict[str, str] = {
    "start": (
        "how to speak: `voice`, `language`, `response_format` (`pcm` if it is not given), `speed`, `instructions`, "
        "`seed`, `spell_out`, `pause_ms`, as for `POST /v1/audio/speech`; the first message, or left out; answered by "
        "`started`"
    ),
    "text": "`text`: the next piece of the text, cut anywhere",
    "flush": "speak all that has arrived, also a sentence without an end; answered by `flushed`",
    "cancel": "stop at once and forget all that has arrived; answered by `cancelled`",
    "end": "speak all that has arrived; answered by `done`, and the socket is closed with 1000",
}

SERVER: dict[str, str] = {
    "started": (
        "`id` (in the log), `sample_rate`, `format`, `ignored`: options that the engine has no use for; before "
        "everything else"
    ),
    "sentence": "`index` from 0, `text`, `start_ms`: the binary frames from here on are its audio",
    "sentence_done": "`index`, `duration_ms`: its length with the pause before it",
    "flushed": "everything before the `flush` was sent",
    "cancelled": "`sentences_done`, `sent_ms`: what was sent so far; nothing follows of the cancelled text",
    "done": "`sentences`, `duration_ms`: what was sent in all",
    "error": "`error` with `message`, `type`, `param` and `code`",
}
