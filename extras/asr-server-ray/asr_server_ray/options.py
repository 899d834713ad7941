"""The options of a cluster, and the settings that do not fit one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from asr_server.core.settings import Settings
from asr_server.features.remote_engine import options as remote_options
from asr_server.features.speech_output.engines.registry import NAMES
from asr_server.features.speech_output.options import AUTO, OFF

_PROXY = "Ray Serve's proxy has the sockets"
# Settings that have no effect in a cluster, and why.
_WITHOUT_EFFECT = {
    "gateway_mode": "Ray Serve supervises the processes",
    "engine_process": "the replicas are processes of their own",
    "use_granian": _PROXY,
    "ssl_certfile": f"{_PROXY}; end TLS in front of it",
    "numa_node": "Ray places the replicas",
    "preload": "replicas load their models before they are used",
}


class ClusterOptions(BaseModel):
    """The arguments of the application."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: int = Field(2, ge=1, le=1_000)
    max_replicas: int = Field(0, ge=0, le=1_000)  # up to which their number follows the load; 0: it stays `replicas`
    apps: int = Field(1, ge=1, le=100)  # replicas of the app
    cpus: float = Field(1.0, gt=0, le=1_024)  # of each engine replica, which computes with as many threads on CPUs
    gpus: float = Field(0.0, ge=0, le=16)  # of each engine replica; a GPU of 0.5 is shared by two
    upscale_delay_s: float = Field(30.0, ge=0, le=3_600)  # how long one more has to be needed before it is started
    downscale_delay_s: float = Field(600.0, ge=0, le=86_400)  # how long one less has to suffice before it is ended

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_replicas and self.max_replicas < self.replicas:
            raise ValueError("max_replicas is less than replicas")
        if self.gpus > 1:
            raise ValueError("gpus: an engine runs on one GPU")
        return self

    @property
    def most_replicas(self) -> int:
        """The largest number of replicas."""
        return max(self.replicas, self.max_replicas)

    @property
    def shares(self) -> int:
        """Replicas on one GPU."""
        return int(1 / self.gpus) if self.gpus else 1


def conflicts(settings: Settings, options: ClusterOptions) -> Iterator[str]:
    """Yield a line for each setting that does not fit a cluster."""
    for name, reason in _WITHOUT_EFFECT.items():
        value = getattr(settings, name)
        if value != Settings.model_fields[name].default:
            yield f"{name.upper()}={value} has no effect in a cluster ({reason}): unset it."
    if remote_options.is_remote(settings):
        yield "USE_VLLM and VLLM_BASE_URL name an engine elsewhere; in a cluster the replicas are that: unset them."
    if settings.speech not in (OFF, AUTO, *NAMES) or settings.speech_clone_model not in ("", *NAMES):
        yield (
            "SPEECH, SPEECH_CLONE_MODEL: in a cluster speech is made beside the app, without a GPU: set SPEECH to "
            "espeak, auto or off, and unset SPEECH_CLONE_MODEL."
        )
    if settings.port == 0:
        yield "PORT=0: Ray Serve's proxy needs a port."
    if settings.device.startswith("cuda:"):
        yield f"DEVICE={settings.device}: Ray gives each replica its GPU: set DEVICE=cuda or unset it."
    if options.gpus and settings.device == "cpu":
        yield "DEVICE=cpu: the replicas are given GPUs: unset one of them."
