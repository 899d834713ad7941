"""The host: memory nodes that the engine's threads are bound to, and Granian in place of uvicorn."""

from __future__ import annotations

from collections.abc import Iterator

from asr_server.engine.feature import Asked, Feature, Placement
from asr_server.engine.protocol import Option
from asr_server.features.host import numa

_REASONS = {
    True: "as set; HTTP and WebSockets are read and written in Rust",
    False: "not set; uvicorn serves",
}


def _options(asked: Asked) -> Iterator[Option]:
    chosen = asked.settings.use_granian
    yield Option("use_granian", chosen, "", _REASONS[chosen])


def _conflicts(asked: Asked) -> Iterator[str]:
    if asked.settings.use_granian and "granian" not in asked.capabilities.packages:
        yield "USE_GRANIAN: Granian is not installed: pip install '.[granian]', or unset it."


def _placement(asked: Asked) -> Placement:
    return numa.placement(asked.settings.numa_node, numa.probe())


FEATURE = Feature("host", options=_options, conflicts=_conflicts, placement=_placement)
