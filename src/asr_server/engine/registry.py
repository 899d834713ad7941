"""Engines by name. A creator imports its engine when it is asked for, so that a missing library stops only its own."""

from __future__ import annotations

from collections.abc import Callable

from asr_server.engine.plan import Plan
from asr_server.engine.protocol import Engine


def _qwen(plan: Plan) -> Engine:
    from asr_server.engine.qwen.engine import QwenEngine

    return QwenEngine(plan)


CREATORS: dict[str, Callable[[Plan], Engine]] = {"qwen": _qwen}


def build(plan: Plan) -> Engine:
    """The engine that the plan names."""
    return CREATORS[plan.engine](plan)
