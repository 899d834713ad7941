"""Engines and their aligners by name. Each is imported when it is asked for, so its libraries are needed only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asr_server.engine.aligning import AligningEngine
from asr_server.engine.plan import FAKE, MOONSHINE, QWEN, Plan
from asr_server.engine.protocol import Aligner, Engine

OnProgress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """How to build one kind of engine, and the aligner beside it where the plan names one."""

    engine: Callable[[Plan, OnProgress], Engine]
    aligner: Callable[[Plan, OnProgress], Aligner]


def _qwen(plan: Plan, on_progress: OnProgress) -> Engine:
    from asr_server.engine.qwen.engine import QwenEngine

    return QwenEngine(plan, on_progress)


def _qwen_aligner(plan: Plan, on_progress: OnProgress) -> Aligner:
    from asr_server.engine.qwen.aligner import QwenAligner

    return QwenAligner(plan, on_progress)


def _moonshine(plan: Plan, on_progress: OnProgress) -> Engine:
    from asr_server.engine.moonshine.engine import MoonshineEngine

    return MoonshineEngine(plan, on_progress)


def _fake(plan: Plan, on_progress: OnProgress) -> Engine:
    from asr_server.engine.fake import FakeEngine

    return FakeEngine(plan, on_progress)


def _fake_aligner(plan: Plan, on_progress: OnProgress) -> Aligner:
    from asr_server.engine.fake import FakeAligner

    return FakeAligner(plan)


ENGINES = {
    QWEN: Entry(_qwen, _qwen_aligner),
    MOONSHINE: Entry(_moonshine, _qwen_aligner),
    FAKE: Entry(_fake, _fake_aligner),
}


def build(plan: Plan, on_progress: OnProgress = lambda: None) -> Engine:
    """The engine that the plan names. It calls `on_progress`, on its thread, inside of passes that may take long."""
    return ENGINES[plan.engine].engine(plan, on_progress)


def build_aligning(plan: Plan, *, idle_timeout_s: float, on_progress: OnProgress = lambda: None) -> AligningEngine:
    """The same with its aligner beside it."""
    return AligningEngine(
        build(plan, on_progress),
        ENGINES[plan.engine].aligner(plan, on_progress) if plan.aligner_id else None,
        pass_tokens=pass_tokens(plan.device),
        idle_timeout_s=idle_timeout_s,
    )


def pass_tokens(device: str) -> int:
    """Tokens of one aligner pass, for which rows that decode wait: on a CPU no more than a step may prefill."""
    return 8192 if device.startswith("cuda") else 1024
