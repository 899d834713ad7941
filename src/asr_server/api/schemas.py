"""What goes over the wire, as pydantic models: they check forms, and they are what `/docs` shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from asr_server.audio.spans import SpanRules
from asr_server.service.request import ResponseFormat


def _boolean(value: Any) -> Any:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


Boolean = Annotated[bool, BeforeValidator(_boolean)]


class ChunkingStrategy(BaseModel):
    """OpenAI's `server_vad` object: how the recording is cut where nobody speaks."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["auto", "server_vad"] = "auto"
    threshold: float = Field(default=0.5, ge=0.05, le=1)
    prefix_padding_ms: int = Field(default=300, ge=0, le=2_000)
    silence_duration_ms: int = Field(default=200, ge=32, le=5_000)

    def rules(self) -> SpanRules:
        """The rules of the span cutter; `auto` means its own."""
        if self.type == "auto":
            return SpanRules()
        return SpanRules(
            threshold=self.threshold,
            # The distance at which Silero's own tools let speech end.
            off_threshold=max(0.01, self.threshold - 0.15),
            min_silence_ms=self.silence_duration_ms,
            # A margin is laid on both sides, so it may not be longer than the pause that parts two stretches.
            pad_ms=min(self.prefix_padding_ms, self.silence_duration_ms),
            # Every such pause parts two segments; `auto` packs what lies close together into spans of up to 30 s.
            max_gap_s=0.0,
        )


def _strategy(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class TranscriptionForm(BaseModel):
    """The text fields of a transcription request; unknown fields are ignored, as OpenAI's clients expect."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(description="A name from /v1/models. OpenAI's names mean the model that is loaded.")
    language: str = Field("", description="ISO code, locale, English name, `auto` or empty (detect).")
    prompt: str = Field("", description="Text that helps recognition: names, terms, the topic.", max_length=16_000)
    hotwords: list[str] = Field([], description="Words to listen for, comma-separated or repeated.")
    keywords: list[str] = Field([], description="OpenAI's name for hotwords.")
    response_format: ResponseFormat = Field(ResponseFormat.JSON, description="Shape of the answer.")
    temperature: float = Field(0.0, ge=0, le=1, description="0 is greedy and repeatable; above that, sampling.")
    timestamp_granularities: list[Literal["word", "segment"]] = Field(
        [], description="`segment` with verbose_json. Word times are not in this version."
    )
    include: list[Literal["logprobs"]] = Field([], description="`logprobs`, with json.")
    chunking_strategy: Annotated[ChunkingStrategy, BeforeValidator(_strategy)] = Field(
        ChunkingStrategy(), description="`auto`, or a `server_vad` object: threshold and times of the cuts at pauses."
    )
    stream: Boolean = Field(False, description="Server-sent events, with json and text.")
    return_timestamps: Boolean = Field(False, description="Not in this version.")


class JobProgressBody(BaseModel):
    """How far a job is."""

    done_s: float = Field(description="Seconds of the recording whose text is there.")
    duration_s: float | None = Field(description="Seconds that the recording lasts, once that is known.")
    fraction: float | None = Field(description="The one over the other, 0 to 1.")


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


class JobBody(BaseModel):
    """One job. Times are Unix seconds."""

    id: str
    object: Literal["job"] = "job"
    status: Literal["queued", "running", "succeeded", "failed"]
    created_at: int
    started_at: int | None
    ended_at: int | None
    progress: JobProgressBody
    error: ErrorDetail | None = Field(description="Why it failed.")


class JobDeletedBody(BaseModel):
    """A job is gone."""

    id: str
    object: Literal["job"] = "job"
    deleted: Literal[True] = True


class Usage(BaseModel):
    """Seconds of audio, started ones counted."""

    type: Literal["duration"]
    seconds: int


class LogprobBody(BaseModel):
    """One token of the text."""

    token: str
    logprob: float = Field(description="Natural logarithm.")
    bytes: list[int]


class TranscriptionBody(BaseModel):
    """`response_format=json`."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "text": "turn on the kitchen lights please",
                "language": "English",
                "language_code": "en",
                "usage": {"type": "duration", "seconds": 3},
            }
        }
    )

    text: str
    language: str = Field(description="The model's name of the language; empty for no speech.")
    language_code: str = Field(description="Its ISO code; empty for no speech.")
    usage: Usage
    logprobs: list[LogprobBody] | None = Field(None, description="Only with `include[]=logprobs`.")


class SegmentBody(BaseModel):
    """One span of speech in verbose_json."""

    id: int
    seek: int = Field(description="Start in frames of 10 ms.")
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float = Field(description="Mean natural log-probability of the tokens.")
    compression_ratio: float = Field(description="UTF-8 bytes over their zlib size.")
    no_speech_prob: float = Field(
        description="Probability the model gave to no speech; with a forced language, 1 minus the detector's peak."
    )
    complete: bool = Field(description="False when the token budget ended the text.")


class LanguageBody(BaseModel):
    """A language by its code."""

    code: str


class VerboseTranscriptionBody(BaseModel):
    """`response_format=verbose_json`."""

    task: Literal["transcribe"]
    language: str = Field(description="English name of the language in lower case.")
    language_code: str
    languages: list[LanguageBody]
    duration: float = Field(description="Seconds.")
    text: str
    segments: list[SegmentBody]
    usage: Usage


class ModelBody(BaseModel):
    """One model name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All model names."""

    object: Literal["list"] = "list"
    data: list[ModelBody]


class QueueBody(BaseModel):
    """What waits."""

    live: int
    interactive: int
    bulk: int
    running: int = Field(description="Spans in the batch.")
    audio_waiting_s: float = Field(description="Seconds of audio in the queue.")
    audio_held_s: float = Field(description="Seconds of audio accepted and not yet answered.")
    audio_limit_s: float = Field(description="The bound on audio_held_s.")


class LiveBody(BaseModel):
    """Live and realtime sessions."""

    sessions: int = Field(description="All that are kept.")
    waiting: int = Field(description="Those of them whose client is gone and may come back.")


class OptionBody(BaseModel):
    """One option of the plan."""

    name: str
    active: bool
    value: str
    reason: str


class HealthBody(BaseModel):
    """The state of the server."""

    model_config = ConfigDict(protected_namespaces=())

    status: Literal["ok", "degraded", "draining"]
    mode: Literal["standalone", "gateway", "worker"]
    model_id: str
    model_loaded: bool
    model_state: Literal["unloaded", "loading", "loaded", "failed"]
    model_error: str = Field(description="Why the last load failed; empty when it did not.")
    cuda: bool
    gpu_name: str
    gpu_allocated_mb: int
    gpu_reserved_mb: int
    slots: int = Field(description="Rows that fit together; 0 while no model is loaded.")
    kv_budget_mb: int = Field(description="MiB that keys and values may take: rows and live sessions.")
    kv_cache_mb: int = Field(description="MiB that those of rows take.")
    sessions_mb: int = Field(description="MiB kept for live sessions between partials.")
    queue: QueueBody
    live: LiveBody
    plan: list[OptionBody]
    version: str
    uptime_s: float


class ProbeBody(BaseModel):
    """The answer of a probe."""

    status: Literal["ok", "failed"]
    reason: str = ""
