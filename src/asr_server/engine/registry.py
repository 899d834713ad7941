"""Engines by name. A creator imports its engine when it is asked for, so that a missing library stops only its own."""

from __future__ import annotations

from collections.abc import Callable

from asr_server.engine.aligning import AligningEngine
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import Engine

OnProgress = Callable[[], None]


def _qwen(plan: Plan, on_progress: OnProgress) -> Engine:
    from asr_server.engine.qwen.engine import QwenEngine

    return QwenEngine(plan, on_progress)


CREATORS: dict[str, Callable[[Plan, OnProgress], Engine]] = {"qwen": _qwen}


def build(plan: Plan, on_progress: OnProgress = lambda: None) -> Engine:
    """The engine that the plan names. It calls `on_progress`, on its thread, inside of passes that may take long."""
    return CREATORS[plan.engine](plan, on_progress)


def build_aligning(plan: Plan, *, idle_timeout_s: float, on_progress: OnProgress = lambda: None) -> AligningEngine:
    """The same with its aligner beside it."""
    from asr_server.engine.qwen.aligner import QwenAligner

    return AligningEngine(
        build(plan, on_progress),
        QwenAligner(plan, on_progress),
        pass_tokens=pass_tokens(plan.device),
        idle_timeout_s=idle_timeout_s,
    )


def pass_tokens(device: str) -> int:
    """Tokens of one aligner pass, for which rows that decode wait: on a CPU no more than a step may prefill."""
    return 8192 if device.startswith("cuda") else 1024
