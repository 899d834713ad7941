"""`asr-server size --server`: how many servers a load needs, by the figures of a running one at `/health`."""

from __future__ import annotations

import math
from typing import Any

import httpx
from pydantic import BaseModel, Field, ValidationError

from asr_server.cli.failure import Failure, no_server
from asr_server.client.connection import client_options

_TIMEOUT_S = 10.0


class _Capacity(BaseModel):
    streams: int = Field(ge=0)
    streams_measured: bool
    audio_s_per_s: float = Field(ge=0, allow_inf_nan=False)
    audio_measured: bool


class _Health(BaseModel):
    model_id: str
    capacity: _Capacity


def plan(server: str, key: str, live: int, recordings_s_per_s: float) -> dict[str, Any]:
    """Return the figures. The parts of a server for live sessions and for recordings are added, so that both fit.

    Raises `NoServer`, and `Failure` if the server does not say, or can take nothing.
    """
    found = _health(server, key).capacity
    wanted = ((live, found.streams), (recordings_s_per_s, found.audio_s_per_s))
    if any(load and not capacity for load, capacity in wanted):
        raise Failure("no_capacity", "the server says that it can take none of that now.")
    needed = math.ceil(sum(load / capacity for load, capacity in wanted if load))
    guesses = [
        f"The server's figure for {name} is a guess: it has had none yet."
        for name, load, measured in (
            ("live sessions", live, found.streams_measured),
            ("recordings", recordings_s_per_s, found.audio_measured),
        )
        if load and not measured
    ]
    return {"server": server, "needed_replicas": needed, "capacity": found.model_dump(), "estimates": guesses}


def _health(server: str, key: str) -> _Health:
    try:
        with httpx.Client(**client_options(server, key, _TIMEOUT_S)) as client:
            answer = client.get("/health")
    except httpx.TransportError as error:
        raise no_server(server) from error
    try:
        return _Health.model_validate_json(answer.content)
    except ValidationError:
        reason = f"it answered {answer.status_code}" if answer.status_code != httpx.codes.OK else "an older server"
        raise Failure("no_capacity", f"{server}/health does not say what the server can take ({reason}).") from None
