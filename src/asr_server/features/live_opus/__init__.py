"""Live audio in Opus: a confined process decodes it before the session gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr_server.engine.feature import Feature
from asr_server.server_feature import CoreParts, ServerFeature, ServerHook

if TYPE_CHECKING:
    from asr_server.services import FeatureParts


def _build(core: CoreParts) -> FeatureParts:
    from asr_server.features.live_opus.sockets import OpusDecoder
    from asr_server.services import FeatureParts

    decoder = OpusDecoder(core.settings.idle_timeout)
    return FeatureParts([decoder], idle_owners=[decoder], close=decoder.close)


def _server() -> ServerFeature:
    from asr_server.features.live_opus import sockets

    return ServerFeature(live_endpoint=sockets.endpoint, build=_build)


FEATURE = Feature("live_opus", extends=(ServerHook(_server),))
