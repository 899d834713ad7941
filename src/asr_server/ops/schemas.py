"""The answers of `/health` and the probes, as pydantic models, which `/docs` shows."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from asr_server.engine.catalog import Task


class QueueBody(BaseModel):
    """The work that waits."""

    final: int
    partial: int
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
    limit: int = Field(description="`MAX_LIVE_SESSIONS`, of which one caller gets at most half.")
    free: int = Field(description="How many more may be opened.")


class LimitsBody(BaseModel):
    """The most that the server accepts."""

    upload_bytes: int = Field(description="Largest request body, `MAX_UPLOAD_MB`.")
    audio_s: float = Field(description="Longest recording, `MAX_AUDIO_S`.")
    text_chars: int = Field(description="Longest text to speak, `MAX_SPEECH_CHARS`.")
    request_s: float = Field(description="Seconds without progress after which a request fails, `REQUEST_TIMEOUT`.")


class OptionBody(BaseModel):
    """One option of the plan."""

    name: str
    active: bool
    value: str
    reason: str


class ModelStateBody(BaseModel):
    """One of the models that are served."""

    id: str
    state: Literal["unloaded", "loading", "loaded", "failed"]
    error: str = Field(description="Why the last load failed; empty when it did not.")
    rows: int = Field(description="Spans in its batch.")
    slots: int = Field(description="Rows that fit together; 0 while it is not loaded.")
    kv_budget_mb: int = Field(description="MiB that its keys and values may take.")


class SpeechQueueBody(BaseModel):
    """Texts that are being spoken."""

    texts: int = 0
    sentences_left: int = Field(default=0, description="Of these texts, those that are not spoken yet.")
    held_s: float = Field(default=0.0, description="Seconds of speech that are accepted and not yet spoken.")
    limit_s: float = Field(default=0.0, description="MAX_QUEUE_AUDIO_S.")


class HealthBody(BaseModel):
    """The state of the server."""

    model_config = ConfigDict(protected_namespaces=())

    status: Literal["ok", "degraded", "draining"]
    mode: Literal["standalone", "gateway"]
    model_id: str
    model_revision: str = Field(description="Commit of the model, from its first load on; empty: not from the hub.")
    languages: list[str] = Field(description="Codes of the languages that the model knows.")
    model_loaded: bool
    model_state: Literal["unloaded", "loading", "loaded", "failed"]
    models: list[ModelStateBody] = Field(description="All models; the first is the default, which `model_id` names.")
    downloaded_mb: int = Field(description="MiB that a download of the model under way has brought; otherwise 0.")
    converted: float = Field(
        description="Share, 0 to 1, of the weights that a first load on a CPU has converted so far; otherwise 0."
    )
    model_error: str = Field(description="Why the last load failed; empty when it did not.")
    model_on_disk: bool | None = Field(
        description="False: the first load downloads it. As of the start or the last load; null: not known."
    )
    cuda: bool
    gpu_name: str
    gpu_allocated_mb: int
    gpu_reserved_mb: int
    slots: int = Field(description="Rows that fit together; 0 while no model is loaded.")
    kv_budget_mb: int = Field(description="MiB that keys and values may take: rows and live sessions.")
    kv_cache_mb: int = Field(description="MiB of the keys and values of rows.")
    sessions_mb: int = Field(description="MiB kept for live sessions between partials.")
    aligner_id: str
    aligner_state: Literal["unloaded", "loading", "loaded", "failed"]
    aligner_error: str = Field(description="Why the aligner could not be loaded; empty when it could.")
    speakers_state: Literal["unloaded", "loaded"] = Field(
        "unloaded", description="Of the process that tells speakers apart."
    )
    speech_state: Literal["off", "unloaded", "loading", "loaded", "failed"] = Field(
        "off", description="Of what speaks. `off`: nothing does; the option `speech` of the plan says why."
    )
    speech_model: str = Field("", description="What speaks; empty: nothing does.")
    speech_error: str = Field("", description="Why its last load failed; empty when it did not.")
    speech_queue: SpeechQueueBody = SpeechQueueBody()
    queue: QueueBody
    live: LiveBody
    limits: LimitsBody
    jobs: int = Field(
        description="Jobs that wait or run; with `JOBS_DATABASE_URL`, that wait for any server or run at this one."
    )
    plan: list[OptionBody]
    version: str
    uptime_s: float


class ProbeBody(BaseModel):
    """The answer of a probe."""

    status: Literal["ok", "failed"]
    reason: str = ""


class ModelBody(BaseModel):
    """One model name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    task: Task = Field(description="What it is for.")


class ModelList(BaseModel):
    """All model names."""

    object: Literal["list"] = "list"
    data: list[ModelBody]
