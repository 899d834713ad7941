"""Options of the host: a memory node to bind the engine's threads to, and Granian in place of uvicorn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from asr_server.engine.feature import Asked, Feature, Placement
from asr_server.engine.protocol import Option
from asr_server.features.host import numa

_GRANIAN = {True: "as set; HTTP and WebSockets are read and written in Rust", False: "not set; uvicorn serves"}


def _options(asked: Asked) -> Iterator[Option]:
    node, reason, _ = numa.chosen(asked.settings.numa_node)
    yield Option("numa_node", node is not None, str(node.number) if node is not None else "", reason)
    yield Option("use_granian", asked.settings.use_granian, "", _GRANIAN[asked.settings.use_granian])


def _conflicts(asked: Asked) -> Iterator[str]:
    yield from filter(None, [numa.chosen(asked.settings.numa_node)[2]])
    if asked.settings.use_granian and "granian" not in asked.capabilities.packages:
        yield "USE_GRANIAN: Granian is not installed: pip install '.[granian]', or unset it."


def _placement(asked: Asked) -> Placement | None:
    node, *_ = numa.chosen(asked.settings.numa_node)
    return Placement(node.share, partial(numa.bind, node)) if node is not None else None


FEATURE = Feature("host", options=_options, conflicts=_conflicts, placement=_placement)
