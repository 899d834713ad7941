"""Profiles in files: those that come with the server, those that were measured, and the results of `make gpu`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from asr_server_sizing import fit
from asr_server_sizing.fit import Point
from asr_server_sizing.profile import AUDIO_TOKENS_PER_S, PROMPT_TOKENS, TOKENS_PER_S, Profile

# A larger file is not one of measurements.
_MAX_FILE_BYTES = 1_000_000
_SHAPES = {"0.6b": "Qwen/Qwen3-ASR-0.6B", "1.7b": "Qwen/Qwen3-ASR-1.7B"}
_PROFILE = TypeAdapter(Profile)
_PROFILES = TypeAdapter(tuple[Profile, ...])


class ProfileError(ValueError):
    """The file has no measurements that can be used; the message says why."""


def known() -> tuple[Profile, ...]:
    """Return the profiles that come with the server."""
    return _PROFILES.validate_json(Path(__file__).with_name("profiles.json").read_bytes())


def read(path: Path) -> Profile:
    """Return the profile in a file that `write` or `make gpu` has made. Raises `ProfileError`, `OSError`."""
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ProfileError("it is too large for a file of measurements")
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        raise ProfileError("it is not JSON") from None
    try:
        if isinstance(parsed, dict) and "step_over_bandwidth" in parsed:
            return _of_gpu_file(_GpuFile.model_validate(parsed), path.name)
        return _PROFILE.validate_python(parsed)
    except ValidationError as error:
        first = error.errors()[0]
        raise ProfileError(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None


def write(profile: Profile, path: Path) -> None:
    """Write a profile for `read`. Raises `OSError`."""
    path.write_text(json.dumps(asdict(profile), indent=2) + "\n", encoding="utf-8")


class _Callers(BaseModel):
    last_answer_s: float = Field(gt=0, lt=3600)


class _Step(BaseModel):
    step_ms: float = Field(gt=0, lt=60_000)


class _Throughput(BaseModel):
    span_s: float = Field(gt=0, le=120)
    one: _Callers = Field(alias="1_callers")
    eight: _Callers = Field(alias="8_callers")
    many: _Callers = Field(alias="32_callers")


class _Steps(BaseModel):
    not_recorded: dict[str, _Step]
    recorded: dict[str, _Step] = {}


class _GpuFile(BaseModel):
    """The part of the results of `make gpu` that is used here."""

    date: str = Field(min_length=10, max_length=40)
    card: str = Field(min_length=1, max_length=100)
    shape: str
    pass_tokens: int = Field(8192, gt=0)  # the most of one pass over prompts; files up to 2026-11-26 do not say it
    throughput: _Throughput
    step_over_bandwidth: _Steps


def _of_gpu_file(found: _GpuFile, name: str) -> Profile:
    """Return the profile of results of `make gpu`. Raises `ProfileError`."""
    if found.shape not in _SHAPES:
        raise ProfileError(f"shape: {found.shape!r} is not a released one")
    steps = found.step_over_bandwidth.recorded or found.step_over_bandwidth.not_recorded
    try:
        decode = [Point(1, int(rows.partition("_")[0]), step.step_ms / 1000) for rows, step in steps.items()]
        step_costs = fit.line(decode)
        prefill = [
            _prompts(callers, timed, found.throughput.span_s, found.pass_tokens, step_costs)
            for callers, timed in ((1, found.throughput.one), (8, found.throughput.eight), (32, found.throughput.many))
        ]
        costs = fit.costs(decode, prefill)
    except ValueError as error:
        raise ProfileError(str(error)) from None
    most = max(int(point.each) for point in decode)
    return Profile(
        model=_SHAPES[found.shape],
        hardware=found.card,
        source=f"make gpu: {name}",
        measured_on=found.date[:10],
        slots=most,
        measured_rows=most,
        steps=costs,
        assumptions=(
            f"Weights were random and answers forced to {TOKENS_PER_S} tokens per second of speech.",
            "Partials take as many passes as those of the demonstration model, 2.6 on average.",
        ),
    )


def _prompts(callers: int, timed: _Callers, span_s: float, pass_tokens: int, step_costs: tuple[float, float]) -> Point:
    """Return the rest of the measured time of spans after their decode steps are subtracted."""
    tokens = callers * (span_s * AUDIO_TOKENS_PER_S + PROMPT_TOKENS)
    answer = max(1, round(span_s * TOKENS_PER_S)) - 1
    decoding_s = answer * (step_costs[0] + callers * step_costs[1])
    return Point(math.ceil(tokens / pass_tokens), tokens, timed.last_answer_s - decoding_s)
