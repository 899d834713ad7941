"""The engine in a process of its own, so that it and the event loop do not wait for each other's interpreter lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from asr_server.engine import machine_options
from asr_server.engine.feature import Asked, Feature, Placement, Plan
from asr_server.engine.plan import FAKE, FAST_FAKE
from asr_server.engine.protocol import Option
from asr_server.server_feature import ServerFeature, ServerHook

if TYPE_CHECKING:
    from asr_server.engine_core import BuildCore
    from asr_server.ops.metric_spec import MetricSample, WorkerEnd
    from asr_server.services import Services

NAME = "engine_process"
_SPEAKS = "Qwen3-TTS runs on the thread of the recogniser, and its rows do not travel to another process yet"


def _is_shared(asked: Asked) -> bool:
    """True if models of features run on the thread of the engine."""
    return any(one.shared is not None and one.shared.resolve(asked, Placement()) for one in asked.features)


def _on_gpu(asked: Asked) -> bool:
    settings = asked.settings
    elsewhere = any(one.elsewhere is not None and one.elsewhere.takes(settings) for one in asked.features)
    names = {FAKE, FAST_FAKE, *(one.model.model_id for one in asked.features if one.model is not None)}
    if elsewhere or settings.model_id in names:
        return False
    return machine_options.device(settings.device, asked.capabilities, [])[0].startswith("cuda")


def _options(asked: Asked) -> Iterator[Option]:
    chosen = asked.settings.engine_process
    if chosen == "auto":
        if not _on_gpu(asked):
            yield Option(NAME, False, "", "auto: without a GPU the engine runs in the process of the server")
        elif _is_shared(asked):
            yield Option(NAME, False, "", f"auto: {_SPEAKS}")
        else:
            yield Option(NAME, True, "", "auto: on a GPU, so that it never waits for the event loop")
    elif chosen:
        yield Option(NAME, True, "", "as set")
    else:
        yield Option(NAME, False, "", "as set; the engine runs in the process of the server")


def _conflicts(asked: Asked) -> Iterator[str]:
    if asked.settings.engine_process is True and _is_shared(asked):
        yield f"ENGINE_PROCESS=true: {_SPEAKS}: unset it, or choose another SPEECH and SPEECH_CLONE_MODEL."


def _builder(resolved: Plan) -> BuildCore | None:
    if not resolved.is_active(NAME):
        return None
    from asr_server.features.engine_process import client

    return client.build


def _server() -> ServerFeature:
    from asr_server.ops.metric_spec import MetricKind, MetricSample, MetricSpec

    ends = MetricSpec(
        "asr_engine_process_ends_total",
        MetricKind.COUNTER,
        "Ended engine processes: `stopped` (the server ended), `crashed`, `hung` (killed: no progress), `late` "
        "(killed: did not start in time).",
        ("cause",),
    )

    def gauges(services: Services) -> Iterator[MetricSample]:
        counts: Mapping[WorkerEnd, int] = {}
        if services.plan.is_active(NAME):
            from asr_server.features.engine_process.client import EngineProcess

            assert isinstance(services.thread, EngineProcess)
            counts = services.thread.ends
        yield MetricSample(ends, {(cause,): count for cause, count in counts.items()})

    return ServerFeature(metrics=(ends,), gauges=gauges, engine=_builder)


FEATURE = Feature(NAME, options=_options, conflicts=_conflicts, extends=(ServerHook(_server),))
