"""The cases for OpenAI's clients: every case with its text, and every refusal as it must arrive. No client here.

The scenarios in `python/` and `javascript/` perform the cases by name. A case that does not come back has failed.
"""

from __future__ import annotations

from dataclasses import dataclass

PYTHON, JAVASCRIPT = "python", "javascript"
EITHER = (PYTHON, JAVASCRIPT)
SECTIONS = {
    1: "Recordings and model names",
    2: "Text formats",
    3: "`verbose_json`",
    4: "Speakers",
    5: "Log-probabilities",
    6: "Field spellings of clients",
    7: "Texts beyond ASCII",
    8: "Streaming",
    9: "The bytes of a stream",
    10: "Errors of a stream",
    11: "Clients that disconnect",
    12: "Raw, streamed and asynchronous responses",
    13: "Errors",
    14: "Retries",
    15: "Time limits and idle connections",
    16: "Translations",
    17: "Speech",
    18: "Models",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that a client can see. `item` groups cases; `languages` are those of the clients that can do it."""

    item: int
    name: str
    says: str
    languages: tuple[str, ...] = EITHER


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as the client must hold it; its class follows from the status."""

    item: int
    name: str
    says: str
    status: int
    code: str | None
    param: str | None
    type: str = "invalid_request_error"
    languages: tuple[str, ...] = EITHER

    @property
    def case(self) -> Case:
        """The row of this refusal."""
        where = f", `{self.param}`" if self.param else ""
        named = f"`{self.code}`" if self.code else "no code"
        return Case(self.item, self.name, f"{self.says}: {self.status}, {named}{where}", self.languages)


_SEEN = (
    Case(1, "file-path", "The recording as a path", (PYTHON,)),
    Case(1, "file-open", "... as an open file", (PYTHON,)),
    Case(1, "file-bytes", "... as bytes, without a file name", (PYTHON,)),
    Case(1, "file-bytesio", "... as `BytesIO`", (PYTHON,)),
    Case(1, "file-typed", "... with a name and a media type"),
    Case(1, "file-untold", "... with an uninformative name"),
    Case(1, "file-unicode", "... with a name beyond ASCII"),
    Case(1, "file-stream", "... as a read stream, without a length", (JAVASCRIPT,)),
    Case(1, "file-response", "... as the response of a `fetch`", (JAVASCRIPT,)),
    Case(1, "usage", "The answer has its text and its usage in seconds"),
    Case(1, "aliases", "Every listed name of a model for recordings transcribes"),
    Case(2, "text", "`text` is a string"),
    Case(2, "srt", "`srt` is a string of numbered cues"),
    Case(2, "vtt", "`vtt` is a string that starts with WEBVTT"),
    Case(2, "text-media-type", "All three are `text/plain; charset=utf-8`"),
    Case(2, "json", "`json` is an object"),
    Case(3, "verbose", "Without granularities: segments, no words"),
    Case(3, "verbose-segment", "`segment`: segments, no words"),
    Case(3, "verbose-word", "`word`: words in order within the recording, no segments"),
    Case(3, "verbose-both", "Both: words and segments"),
    Case(3, "verbose-language", "The language is its English name in lower case, the task `transcribe`"),
    Case(4, "diarized", "`diarized_json`: segments with speaker, text and times; the first to speak is A"),
    Case(4, "diarized-stream", "... streamed: deltas, then the segments, then `done`"),
    Case(4, "known-speaker", "A known speaker has their name; the reference may have more than 1 MiB"),
    Case(5, "logprobs", "Requested: each token with its bytes, which make up the text"),
    Case(5, "no-logprobs", "Not requested: none"),
    Case(6, "chunking-auto", '`chunking_strategy="auto"`'),
    Case(6, "chunking-object", "... as an object"),
    Case(6, "chunking-json", "... as a JSON string"),
    Case(6, "lists", "Lists with and without brackets, comma-joined and as JSON"),
    Case(6, "empty-fields", "Empty `language` and `prompt` count as absent"),
    Case(6, "extra-fields", "Fields of other vendors are ignored"),
    Case(6, "languages", "`languages` with one code and with several: one of them is detected"),
    Case(7, "prompt", "A prompt with quotes and line breaks"),
    Case(7, "unicode-text", "Chinese text is the same in every format"),
    Case(8, "stream-events", "Each event has its class; one `done`, at the end"),
    Case(8, "stream-text", "The concatenated deltas are the text of `done` and of the answer without streaming"),
    Case(8, "stream-early", "The first delta arrives long before the end"),
    Case(8, "stream-usage", "`done` counts tokens"),
    Case(8, "stream-logprobs", "Log-probabilities are part of `done`"),
    Case(8, "stream-silence", "Silence: only `done`, with an empty text"),
    Case(9, "raw-headers", "`text/event-stream; charset=utf-8`, not cached, not buffered, not compressed"),
    Case(9, "raw-frames", "Every event is one line of data and a blank line, to the last; no `id`, no `retry`"),
    Case(9, "raw-pings", "`: ping` during silence; the client continues to read"),
    Case(10, "stream-cut", "An error after the first delta arrives as the client's error, with its code"),
    Case(11, "close", "Closing the stream frees the engine within a second"),
    Case(11, "leave-block", "... leaving the `with` block", (PYTHON,)),
    Case(11, "cancel-task", "... cancelling the task that reads a stream", (PYTHON,)),
    Case(11, "cancel-plain", "... cancelling a request that does not stream"),
    Case(16, "translation", "English speech into English, by default, as an object"),
    Case(16, "translation-formats", "`text`, `srt` and `vtt` are strings"),
    Case(16, "translation-verbose", "`verbose_json`: task `translate`, language `english`, segments"),
    Case(12, "raw-response", "The stream of a raw response"),
    Case(12, "streaming-response", "The lines of a streamed response", (PYTHON,)),
    Case(12, "async", "A plain request over asyncio", (PYTHON,)),
    Case(12, "async-stream", "A stream over asyncio", (PYTHON,)),
    Case(12, "async-raw-response", "The stream of a raw response over asyncio", (PYTHON,)),
    Case(12, "async-streaming-response", "The lines of a streamed response over asyncio", (PYTHON,)),
    Case(13, "request-id", "Answers contain their request id"),
    Case(13, "reply-headers", "... the version of the protocol and the processing time"),
    Case(13, "keyless", "A server without keys accepts any key, and none"),
    Case(14, "retry-to-success", "429, then success after `Retry-After`: 2 attempts"),
    Case(14, "retry-503", "503 with one retry after `Retry-After`: 2 attempts"),
    Case(14, "no-retry-400", "400: 1 attempt"),
    Case(14, "no-retry-504", "504: 1 attempt, because of `x-should-retry`"),
    Case(
        15, "timeout", "The client's time limit with one retry: its own error, 2 attempts, both cancelled on the server"
    ),
    Case(15, "idle", "The same client again after ten seconds without a request"),
    Case(17, "speech-formats", "All six formats begin with their first bytes; without `response_format` it is MP3"),
    Case(17, "speech-media-types", "... and have their media types"),
    Case(17, "speech-speed", "`speed` 2 takes half of the time, 0.5 twice as long"),
    Case(17, "speech-voices", "All 13 names of OpenAI's voices, most of which differ"),
    Case(17, "speech-voice-object", "`voice` as an object with `id`"),
    Case(17, "speech-instructions", "`instructions`, which eSpeak NG does not follow: the header `X-Ignored` says so"),
    Case(17, "speech-streaming-response", "A streamed response comes in pieces, which make up the whole"),
    Case(17, "speech-to-file", "... written to a file by the client", (PYTHON,)),
    Case(17, "speech-async", "... over asyncio", (PYTHON,)),
    Case(17, "speech-sse", '`stream_format="sse"`: deltas that make up the audio, then `done` with its usage'),
    Case(17, "speech-models", "Every listed model that speaks does"),
    Case(18, "models-list", "The list contains the model and OpenAI's names for it"),
    Case(18, "models-retrieve", "A single name"),
    Case(18, "models-slash", "A name with a slash"),
)

REFUSALS = (
    Refusal(4, "known-alone", "Known speakers without `diarized_json`", 400, "invalid_value", "known_speaker_names"),
    Refusal(4, "no-data-url", "A reference that is no data URL", 400, "invalid_value", "known_speaker_references"),
    Refusal(10, "stream-of-text", "`stream` with a file that is not audio", 400, "invalid_audio", "file"),
    Refusal(13, "unknown-model", "Unknown model", 404, "model_not_found", "model"),
    Refusal(13, "no-file", "No file", 400, "missing_required_parameter", "file"),
    Refusal(13, "file-as-text", "`file` as a text field", 400, "missing_required_parameter", "file"),
    Refusal(13, "not-audio", "Bytes that are not audio", 400, "invalid_audio", "file"),
    Refusal(13, "text-as-mp3", "Text named a.mp3", 400, "invalid_audio", "file"),
    Refusal(13, "empty-file", "Empty file", 400, "empty_file", "file"),
    Refusal(13, "header-only", "WAV of 44 bytes", 400, "audio_too_short", "file"),
    Refusal(13, "too-short", "Less than 0.1 s", 400, "audio_too_short", "file"),
    Refusal(13, "too-long", "More than `MAX_AUDIO_S`", 400, "audio_too_long", "file"),
    Refusal(13, "too-large", "More than `MAX_UPLOAD_MB`", 413, "file_too_large", "file"),
    Refusal(
        13,
        "too-large-stream",
        "... as a read stream of 40 MB without a length",
        413,
        "file_too_large",
        "file",
        languages=(JAVASCRIPT,),
    ),
    Refusal(13, "language-format", "Language `tlh!`", 400, "invalid_language_format", "language"),
    Refusal(13, "language-unknown", "Language `is`", 400, "unsupported_language", "language"),
    Refusal(13, "format-unknown", "Format `rtf`", 400, "invalid_value", "response_format"),
    Refusal(
        13,
        "granularity-alone",
        "Granularity `word` without `verbose_json`",
        400,
        "invalid_value",
        "timestamp_granularities",
    ),
    Refusal(13, "granularity-unknown", "Granularity `syllable`", 400, "invalid_value", "timestamp_granularities"),
    Refusal(13, "include-alone", "`logprobs` with `text`", 400, "unsupported_value", "include"),
    Refusal(13, "temperature", "Temperature 7", 400, "invalid_value", "temperature"),
    Refusal(13, "json-body", "A JSON body", 400, "unsupported_content_type", None),
    Refusal(13, "unknown-route", "Unknown route", 404, None, None),
    Refusal(13, "wrong-method", "Wrong method", 405, "method_not_allowed", None),
    Refusal(13, "model-absent", "The checkpoint does not exist", 503, "model_unavailable", None, "server_error"),
    Refusal(13, "deadline", "Not completed within `REQUEST_TIMEOUT`", 504, "deadline_exceeded", None, "server_error"),
    Refusal(13, "busy", "The server is overloaded", 429, "rate_limit_exceeded", None, "rate_limit_error"),
    Refusal(17, "speech-no-voice", "A voice that does not exist", 400, "invalid_value", "voice"),
    Refusal(17, "speech-no-text", "No text", 400, "missing_required_parameter", "input"),
    Refusal(17, "speech-format", "Format `m4a`", 400, "invalid_value", "response_format"),
    Refusal(17, "speech-speed-zero", "Speed 0", 400, "invalid_value", "speed"),
    Refusal(17, "speech-long", "More than `MAX_SPEECH_CHARS`", 400, "string_above_max_length", "input"),
    Refusal(17, "speech-model", "A model for recordings", 404, "model_not_found", "model"),
    Refusal(17, "transcription-model", "A recording with a model that speaks", 404, "model_not_found", "model"),
    Refusal(18, "models-unknown", "An unknown name", 404, "model_not_found", "model"),
)

CASES = tuple(sorted((*_SEEN, *(r.case for r in REFUSALS)), key=lambda c: c.item))
