"""The engines of a plan with their thread: shared by the server, commands without a server, and engine processes.

An engine is imported when it is built, so its libraries are needed only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from loguru import logger

from asr_server.core.errors import EngineFailed
from asr_server.core.idle import IdleTimer
from asr_server.core.settings import Settings
from asr_server.engine.aligning import AligningEngine
from asr_server.engine.feature import OnProgress, Plan
from asr_server.engine.plan import FAKE
from asr_server.engine.protocol import Aligner, Engine, EngineInfo
from asr_server.schedule.job import DEFAULT, RequestClock, SchedulerObserver
from asr_server.schedule.model import Batch, ModelState, OnState
from asr_server.schedule.thread import EngineThread, Scheduler

OnFailure = Callable[[EngineFailed], None]

# One in this many slots of the batch is reserved for live work.
_LIVE_SHARE = 8


def log_state(model: str, state: ModelState, took_s: float) -> None:
    """Log the new state of a model, and how long the change took."""
    named = {"model": model} if model else {}
    logger.info("model", state=state.value, took_s=round(took_s, 3), **named)


@dataclass(frozen=True, slots=True)
class Watch:
    """The receivers of reports about the engines."""

    engine: SchedulerObserver = field(default_factory=SchedulerObserver)
    on_state: OnState = log_state  # of every model on the engine thread
    on_failure: OnFailure = lambda error: None


NOBODY = Watch()


@dataclass(frozen=True, slots=True)
class EngineCore:
    """The engines and their thread."""

    infos: Callable[[], Mapping[str, EngineInfo]]  # of the engines that recognise speech, by the names of their models
    speaking: Mapping[str, Batch]  # the engines that speak, by their options
    thread: Scheduler


def build(settings: Settings, resolved: Plan, watch: Watch = NOBODY) -> EngineCore:
    """Build the engines and start their thread; each model is loaded by its first job."""
    heartbeat, clock = IdleTimer(0), RequestClock(patience_s=settings.request_timeout)
    engines: dict[str, AligningEngine] = {}
    for name, model in by_name(resolved).items():
        engines[name] = build_aligning(
            model,
            idle_timeout_s=settings.idle_timeout,
            on_progress=heartbeat.touch,
            request_clock=clock,
            beside=engines.values(),
        )
    speech = speaking(resolved, heartbeat.touch, clock.progress)
    others: dict[str, Batch] = {name: engine for name, engine in engines.items() if name != DEFAULT}
    thread = EngineThread(
        engines[DEFAULT],
        others=others | speech,
        heartbeat=heartbeat,
        request_clock=clock,
        idle_timeout_s=settings.idle_timeout,
        live_reserve=resolved.max_batch // _LIVE_SHARE,
        on_state=watch.on_state,
        poll_idle=lambda: min((s for each in engines.values() if (s := each.poll_idle()) is not None), default=None),
        watch=watch.engine,
        on_failure=watch.on_failure,
    )
    return EngineCore(lambda: {name: engine.info for name, engine in engines.items()}, speech, thread)


def speaking(
    resolved: Plan, on_progress: OnProgress = lambda: None, on_load_progress: OnProgress = lambda: None
) -> dict[str, Batch]:
    """Return the speech engines that share the recogniser's thread, not loaded, by their options."""
    build = next(filter(None, (feature.build_shared for feature in resolved.features)), None)
    return {
        name: build(model, on_progress, on_load_progress)
        for name, model in resolved.speech_models.items()
        if build is not None
    }


def by_name(resolved: Plan) -> dict[str, Plan]:
    # The default model comes first: `/health` lists the models in this order.
    return {DEFAULT: resolved, **{other.model_id: other for other in resolved.others}}


def build_engine(
    plan: Plan, on_progress: OnProgress = lambda: None, on_load_progress: OnProgress = lambda: None
) -> Engine:
    """Return the engine that the plan names. `Build` describes the callbacks."""
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
    """Build the engine with its aligner. If an engine in `beside` has the same aligner, share it. `request_clock`
    stands still while the aligner is loaded."""
    clock = request_clock or RequestClock()
    engine = build_engine(plan, on_progress, clock.progress)
    same = next(
        (other for other in beside if other.aligner is not None and other.aligner.aligner_id == plan.aligner_id), None
    )
    return AligningEngine(
        engine,
        same.aligner if same is not None else build_aligner(plan, engine, on_progress, clock.progress),
        pass_tokens=pass_tokens(plan.device),
        idle_timeout_s=idle_timeout_s,
        request_clock=clock,
        # Bind the thread before the libraries start threads of their own, which inherit the binding.
        prepare=plan.bind or (lambda: None),
        beside=same,
    )


def pass_tokens(device: str) -> int:
    """Return the most tokens of an aligner pass. Rows wait for it: on a CPU, no more than a step may prefill."""
    return 8192 if device.startswith("cuda") else 1024
