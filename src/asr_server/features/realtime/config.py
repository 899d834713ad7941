"""The configuration of a realtime session: checked, merged with updates, and turned into a `TurnConfig`.

It is kept in the GA format of the wire, because an update names only what it changes. docs/use/realtime.md is its page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from asr_server.audio.g711 import Companding
from asr_server.core.errors import InvalidInput
from asr_server.live.machine.events import EndOfTurnRules, TurnConfig
from asr_server.live.machine.framing import INPUT_RATES_HZ
from asr_server.recordings.requests import MAX_TEXT_CHARS, RecordingRequest
from asr_server.text import languages

if TYPE_CHECKING:
    from asr_server.engine.catalog import Catalog
    from asr_server.services import Services

LOGPROBS = "item.input_audio_transcription.logprobs"

_MAX_PATH_CHARS = 200
_TELEPHONE_HZ = 8_000
_LAWS = {"audio/pcmu": Companding.MU, "audio/pcma": Companding.A}
# A turn ends at once from this probability on, if its end can be estimated.
_SURE = {"low": 0.9, "medium": 0.8, "auto": 0.8, "high": 0.5}
# The longest pause within a turn, by OpenAI's numbers.
_SEMANTIC_SILENCE_MS = {"low": 8_000, "medium": 4_000, "auto": 4_000, "high": 2_000}
# Fields that a client may send back as it received them; they change nothing.
_READ_ONLY = frozenset({"id", "object", "expires_at", "client_secret", "modalities"})
# Objects whose `type` decides their other keys, and the type if none is named.
_DEFAULT_TYPES = {"turn_detection": "server_vad", "format": "audio/pcm"}


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class RealtimeAudioFormat(_Part):
    """The format of the audio. OpenAI takes PCM at 24 kHz only; G.711 has 8 kHz and names no rate."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: int | None = None

    @model_validator(mode="after")
    def _fits(self) -> RealtimeAudioFormat:
        if self.rate not in (INPUT_RATES_HZ if self.law is None else (None, _TELEPHONE_HZ)):
            raise ValueError(f"rate must be one of {', '.join(map(str, INPUT_RATES_HZ))}, and 8000 with G.711")
        return self

    @property
    def law(self) -> Companding | None:
        """The G.711 companding law; None for PCM."""
        return _LAWS.get(self.type)

    @property
    def rate_hz(self) -> int:
        return self.rate or _TELEPHONE_HZ

    @property
    def bytes_per_ms(self) -> float:
        return self.rate_hz / 1000 * (2 if self.law is None else 1)


class RealtimeTranscription(_Part):
    """The model, the languages and the hints of a transcription."""

    model: str
    language: str | None = None
    languages: list[str] | None = Field(None, max_length=100)
    keywords: list[Annotated[str, Field(max_length=200)]] | None = Field(None, max_length=1_000)
    prompt: str | None = Field("", max_length=MAX_TEXT_CHARS)
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class NoiseReduction(_Part):
    """Accepted, because clients send it. It has no effect."""

    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class RealtimeServerVad(_Part):
    """A turn ends by a pause. The last three concern spoken responses, which this server does not give."""

    type: Literal["server_vad"]
    threshold: float = Field(ge=0, le=1)
    prefix_padding_ms: int = Field(ge=0, le=10_000)
    silence_duration_ms: int = Field(ge=0, le=60_000)
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | None = Field(None, ge=5_000, le=30_000)


class SemanticVad(_Part):
    """A turn ends after a short pause where the speaker has finished, or after a long one elsewhere."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool | None = None
    interrupt_response: bool | None = None


class RealtimeAudioInput(_Part):
    """The input audio. With `turn_detection` null a commit ends a turn. With `transcription` null there is none."""

    format: RealtimeAudioFormat
    transcription: RealtimeTranscription | None
    noise_reduction: NoiseReduction | None
    turn_detection: Annotated[RealtimeServerVad | SemanticVad, Field(discriminator="type")] | None


class RealtimeAudio(_Part):
    """Input only: the server does not speak."""

    input: RealtimeAudioInput


class Config(_Part):
    """A whole configuration."""

    type: Literal["transcription"]
    audio: RealtimeAudio
    include: list[Literal["item.input_audio_transcription.logprobs"]] | None = None

    @property
    def input(self) -> RealtimeAudioInput:
        return self.audio.input

    @property
    def logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())


@dataclass(frozen=True, slots=True)
class ServerDefaults:
    """The configuration that sessions begin with on this server."""

    catalog: Catalog
    rules: TurnConfig
    judges_pauses: bool = False  # whether the end of a turn can be estimated

    @classmethod
    def of(cls, services: Services) -> ServerDefaults:
        """Return the defaults that the settings and the catalog give."""
        rules = services.live.turn_config()
        return cls(services.catalog, rules, services.live.judges_pauses)

    def initial(self, model: str | None = None) -> Config:
        """Return the configuration of a session that asks for nothing. An unknown `model` is ignored."""
        bare = {"audio": {"input": {"transcription": None, "noise_reduction": None}}, "include": None}
        try:
            name = self.catalog.find(model or "").id
        except InvalidInput:
            name = self.catalog.default
        wanted = {"format": {}, "turn_detection": {}, "transcription": {"model": name}}
        return self.checked(merge(bare, {"type": "transcription", "audio": {"input": wanted}}, self._new_objects()))

    def updated(self, config: Config, patch: Mapping[str, Any]) -> Config:
        """Return `config` changed by `patch`; a null clears. Raises `InvalidInput` with a path.

        For a session that also answers (`realtime`), only the fields of its input count.
        """
        if patch.get("type") == "realtime":
            patch = _heard(patch)
        wanted = {name: value for name, value in patch.items() if name not in _READ_ONLY}
        try:
            merged = merge(config.model_dump(), wanted, self._new_objects())
        except RecursionError:
            raise InvalidInput("The session is nested too deeply.", param="session") from None
        return self.checked(merged)

    def rules_of(self, config: Config) -> TurnConfig:
        """Return the rules by which the live session detects turns and transcribes under this configuration."""
        turn_detection, transcription = config.input.turn_detection, config.input.transcription
        rules = self.rules
        if transcription is not None:
            prompt, keywords = transcription.prompt or "", transcription.keywords or []
            rules = replace(
                rules,
                language=_forced(transcription),
                context=RecordingRequest(prompt=prompt, hotwords=tuple(keywords)).context,
                model=self.catalog.find(transcription.model).resident,
            )
        match turn_detection:
            case None:
                return replace(rules, manual=True, end_of_turn=None)
            case SemanticVad(eagerness=eagerness):
                if self.judges_pauses:
                    end = EndOfTurnRules(_SURE[eagerness], _SEMANTIC_SILENCE_MS[eagerness])
                    return replace(rules, end_of_turn=end)
                return replace(
                    rules, min_silence_ms=_SEMANTIC_SILENCE_MS[eagerness], sentence_silence_ms=rules.min_silence_ms
                )
            case RealtimeServerVad():
                return replace(
                    rules,
                    end_of_turn=None,
                    threshold=turn_detection.threshold,
                    min_silence_ms=turn_detection.silence_duration_ms,
                    prefix_ms=turn_detection.prefix_padding_ms,
                )

    def _new_objects(self) -> dict[str, dict[str, Any]]:
        """Return the initial fields of the objects that an update can add, by their type or name."""
        return {
            "server_vad": {
                "type": "server_vad",
                "threshold": self.rules.threshold,
                "prefix_padding_ms": 300,  # OpenAI's default; the model's margin is the minimum
                "silence_duration_ms": self.rules.min_silence_ms,
            },
            "semantic_vad": {"type": "semantic_vad"},
            "audio/pcm": {"type": "audio/pcm", "rate": 24_000},
            "transcription": {"model": self.catalog.default},
        }

    def checked(self, values: Mapping[str, Any]) -> Config:
        """Return the configuration of these values. They may come from an ephemeral key, which a server with other
        models may have issued. Raises `InvalidInput`."""
        try:
            config = Config.model_validate(values)
        except ValidationError as error:
            raise _input_error(error) from None
        transcription = config.input.transcription
        if transcription is None:
            return config
        place = ("audio", "input", "transcription")
        model = self.catalog.find(transcription.model, _path((*place, "model"))).resident
        if sum(map(len, transcription.keywords or ())) > MAX_TEXT_CHARS:
            path = _path((*place, "keywords"))
            raise InvalidInput(f"The keywords are longer than {MAX_TEXT_CHARS} characters together.", param=path)
        for name, value in [
            ("language", transcription.language),
            *(("languages", each) for each in transcription.languages or ()),
        ]:
            try:
                self.catalog.language(value, model)
            except InvalidInput as error:
                raise InvalidInput(error.message, code=error.code, param=_path((*place, name))) from None
        return config


def _heard(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a session's update that a transcription session has."""
    audio = patch.get("audio")
    kept = {"audio": {"input": audio["input"]}} if isinstance(audio, Mapping) and "input" in audio else {}
    include = patch.get("include")
    return {**kept, "include": [LOGPROBS]} if isinstance(include, list) and LOGPROBS in include else kept


def merge(old: Mapping[str, Any], patch: Mapping[str, Any], new_objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return `old` changed by `patch` at any depth. An object that changes its `type` begins from `new_objects`."""
    merged = dict(old)
    for name, value in patch.items():
        if isinstance(value, Mapping):
            merged[name] = merge(_base(name, old.get(name), value.get("type"), new_objects), value, new_objects)
        elif not (name == "model" and value is None):  # clients may send a null, which keeps the model
            merged[name] = value
    return merged


def _base(name: str, before: Any, kind: Any, new_objects: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(before, Mapping) and (name not in _DEFAULT_TYPES or kind in (None, before.get("type"))):
        return before
    key = (kind or _DEFAULT_TYPES[name]) if name in _DEFAULT_TYPES else name
    found: Mapping[str, Any] = new_objects.get(key, {}) if isinstance(key, str) else {}
    return found


def _forced(transcription: RealtimeTranscription) -> str | None:
    """Return the one language that is forced, or None if the model chooses among several."""
    named = [transcription.language] if transcription.language else transcription.languages or []
    return languages.normalize(named[0]) if len(named) == 1 else None


def _input_error(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    kind, path = first["type"], _path(tuple(first["loc"]))
    if kind == "missing":
        return InvalidInput(f"Missing required parameter: '{path}'.", code="missing_required_parameter", param=path)
    if kind == "extra_forbidden":
        return InvalidInput(f"Unknown parameter: '{path}'.", code="unknown_parameter", param=path)
    if kind.startswith("union_tag"):
        path = f"{path}.type"
        return InvalidInput(f"Invalid value for '{path}': expected 'server_vad' or 'semantic_vad'.", param=path)
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return InvalidInput(f"Invalid value for '{path}': {first['msg']}.", code=code, param=path)


def _path(parts: tuple[str | int, ...]) -> str:
    """Return the path as OpenAI writes it, `session.audio.input.format`: without pydantic's tags for unions."""
    path = "session"
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in {"server_vad", "semantic_vad"}:
            path += f".{part}"
    return path[:_MAX_PATH_CHARS]
