"""The remote engine: a server with OpenAI's transcriptions runs the model, `vllm serve` or another asr-server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr_server.engine.feature import ElsewhereFeature, Feature, Plan
from asr_server.features.remote_engine import options

if TYPE_CHECKING:
    from asr_server.engine.feature import OnProgress
    from asr_server.engine.protocol import Engine


def _build(plan: Plan, on_progress: OnProgress, on_load_progress: OnProgress) -> Engine:
    from asr_server.features.remote_engine.engine import RemoteEngine

    return RemoteEngine(plan, on_progress, on_load_progress)


FEATURE = Feature(
    "remote_engine",
    options=options.options,
    conflicts=options.conflicts,
    elsewhere=ElsewhereFeature(options.ENGINE, takes=options.is_remote, resolve=options.resolve, build=_build),
)
