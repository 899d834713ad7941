"""Engines and their aligners by name. Each is imported when it is asked for, so its libraries are needed only then."""

from __future__ import annotations

from collections.abc import Iterable

from asr_server.engine.aligning import AligningEngine
from asr_server.engine.feature import OnProgress, Plan
from asr_server.engine.plan import FAKE
from asr_server.engine.protocol import Aligner, Engine
from asr_server.schedule.job import RequestClock


def build(plan: Plan, on_progress: OnProgress = lambda: None, on_load_progress: OnProgress = lambda: None) -> Engine:
    """Return the engine that the plan names. The callbacks are those of `Build`."""
    if plan.build is not None:
        return plan.build(plan, on_progress, on_load_progress)
    if plan.engine == FAKE:
        from asr_server_fake.engine import FakeEngine

        return FakeEngine(plan, on_progress)
    from asr_server.engine.qwen_asr.engine import QwenEngine

    return QwenEngine(plan, on_progress, on_load_progress)


def build_aligner(
    plan: Plan, engine: Engine, on_progress: OnProgress = lambda: None, on_load_progress: OnProgress = lambda: None
) -> Aligner | None:
    """Return the aligner that the plan names, for use with `engine`; None if it names none. The callbacks are
    those of `Build`."""
    if not plan.aligner_id:
        return None
    if plan.engine == FAKE:
        from asr_server_fake.engine import FakeAligner

        return FakeAligner(plan)
    for feature in plan.features:
        if feature.model is not None and feature.model.model_id == plan.aligner_id:
            return feature.model.build_aligner(engine)
    from asr_server.engine.qwen_asr.aligner import QwenAligner

    return QwenAligner(plan, on_progress, on_load_progress)


def build_aligning(
    plan: Plan,
    *,
    idle_timeout_s: float,
    on_progress: OnProgress = lambda: None,
    request_clock: RequestClock | None = None,
    beside: Iterable[AligningEngine] = (),
) -> AligningEngine:
    """Build the engine with its aligner, or with that of an engine in `beside` if it is the same one. `request_clock`
    stands still while the aligner is loaded."""
    clock = request_clock or RequestClock()
    engine = build(plan, on_progress, clock.progress)
    same = next(
        (other for other in beside if other.aligner is not None and other.aligner.aligner_id == plan.aligner_id), None
    )
    return AligningEngine(
        engine,
        same.aligner if same is not None else build_aligner(plan, engine, on_progress, clock.progress),
        pass_tokens=pass_tokens(plan.device),
        idle_timeout_s=idle_timeout_s,
        request_clock=clock,
        # Before the libraries start threads of their own, which inherit it.
        prepare=plan.bind or (lambda: None),
        beside=same,
    )


def pass_tokens(device: str) -> int:
    """Tokens of one aligner pass, for which rows that decode wait: on a CPU no more than a step may prefill."""
    return 8192 if device.startswith("cuda") else 1024
