"""A thin process without the model libraries: starts, watches, proxies to and ends a worker that runs the app."""

from collections.abc import Iterator

from asr_server.engine.feature import Asked, Feature
from asr_server.engine.protocol import Option

_REASONS = {
    True: "as set; the model runs in a process of its own, which ends when idle and is started again after a crash",
    False: "not set; one process, which unloads the model when idle",
}


def _options(asked: Asked) -> Iterator[Option]:
    chosen = asked.settings.gateway_mode
    yield Option("gateway_mode", chosen, "", _REASONS[chosen])


FEATURE = Feature("gateway", options=_options)
