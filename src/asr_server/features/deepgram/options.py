"""The options in the query of `/v1/listen`, and which of them this server supports.

The names follow https://developers.deepgram.com/reference (October 2026). An option that would change an answer
and is not supported is refused. Options of Deepgram's own business (`tag`, `mip_opt_out`, `version`) are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import QueryParams

from asr_server.audio import sniff
from asr_server.core.errors import InvalidInput
from asr_server.net import body
from asr_server.recordings.requests import MAX_TEXT_CHARS

# Options that would change an answer and are not supported.
_NOT_SERVED = (
    *("replace", "search", "summarize", "topics", "intents", "sentiment", "detect_entities", "callback"),
    *("custom_topic", "custom_intent", "dictation", "measurements", "diarize_model"),
)
# Supported only for recordings: live text cannot be taken back.
_NOT_LIVE = ("diarize", "redact", "profanity_filter", "numerals")
_OFF = ("", "false", "0")
_LISTS = ("keyterm", "keywords", "redact")
# Deepgram's names of the personal data that can be found by its form, and this server's names.
REDACTED = {
    "pci": "card",
    "credit_card": "card",
    "numbers": "number",
    "true": "number",
    "email_address": "email",
    "phone_number": "phone",
    "ip_address": "ip",
}


class ListenOptions(BaseModel):
    """Options of recordings and live audio. Unknown options are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field("", max_length=200)  # names of Deepgram's models mean the default model
    language: str = Field("", max_length=60)
    detect_language: bool = False
    keyterm: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()  # each perhaps with a weight, which is ignored
    diarize: bool = False
    utterances: bool = False
    smart_format: bool = False  # the model writes numbers and punctuation by itself
    punctuate: bool = False
    numerals: bool = False
    profanity_filter: bool = False
    redact: tuple[str, ...] = Field((), max_length=20)

    @property
    def asked_language(self) -> str:
        """The language to transcribe in, "" if it is detected."""
        return "" if self.detect_language or self.language.lower() == "multi" else self.language

    @property
    def text_fields(self) -> list[tuple[str, str]]:
        """The fields of this server's form that change how the text is written. Raises `unsupported_value`."""
        fields = [("text_format", "written")] * self.numerals + [("profanity", "mask")] * self.profanity_filter
        for kind in self.redact:
            if kind.lower() in _OFF:
                continue
            if kind not in REDACTED:
                raise InvalidInput(
                    f"'redact' is served with {', '.join(REDACTED)}.", code="unsupported_value", param="redact"
                )
            fields.append(("redact", REDACTED[kind]))
        return fields

    @property
    def hotwords(self) -> str:
        """The expected words as a context for the model."""
        words = [word.partition(":")[0].strip() for word in self.keywords]
        return ", ".join(filter(None, (*self.keyterm, *words)))[:MAX_TEXT_CHARS]


class LiveListenOptions(ListenOptions):
    """Options of live audio."""

    encoding: Literal["linear16", "mulaw", "alaw"] | None = None  # None: linear16; a file is refused
    sample_rate: Literal["8000", "16000", "24000", "44100", "48000"] = "16000"
    channels: Literal["1"] = "1"
    interim_results: bool = False
    endpointing: str = ""  # milliseconds of a pause; with `false`, pauses end nothing
    utterance_end_ms: int | None = Field(None, ge=1, le=60_000)
    vad_events: bool = False

    def is_file(self, begin: bytes) -> bool:
        """Return True if the audio begins like a container, and the query does not say that it is raw."""
        return self.encoding is None and sniff.locate(lambda count, at: begin[at : at + count]) is not None

    @property
    def pause_ms(self) -> int | None:
        """The pause that ends an utterance; None if the query names no length. Raises `invalid_value`."""
        if self.endpointing.lower() in ("", "true", "false"):
            return None
        if not _PAUSE.fullmatch(self.endpointing) or int(self.endpointing) > _LONGEST_PAUSE_MS:
            raise InvalidInput(
                f"'endpointing' must be milliseconds, at most {_LONGEST_PAUSE_MS}, or false.", param="endpointing"
            )
        # Deepgram's default of 10 ms ends an utterance between words that belong together.
        return max(int(self.endpointing), _SHORTEST_PAUSE_MS)

    @property
    def is_manual(self) -> bool:
        return self.endpointing.lower() == "false"


_SHORTEST_PAUSE_MS, _LONGEST_PAUSE_MS = 200, 10_000
_PAUSE = re.compile(r"[0-9]{1,5}")


def read(query: QueryParams, kind: type[ListenOptions]) -> ListenOptions:
    """Return the options. Raises `invalid_value`, and `unsupported_value` for options that are not supported."""
    refused = (*_NOT_SERVED, "multichannel", *(_NOT_LIVE if kind is LiveListenOptions else ()))
    for name in refused:
        if query.get(name, "").lower() not in _OFF:
            raise InvalidInput(f"'{name}' is not served.", code="unsupported_value", param=name)
    given: dict[str, str | Sequence[str]] = {name: value for name, value in query.items() if value}
    given |= {name: tuple(query.getlist(name)) for name in _LISTS if name in query}
    return body.validated(kind, given)
