"""Deepgram's API for speech to text: `POST /v1/listen` for recordings and `WS /v1/listen` for live audio."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.deepgram import listen

    return ServerFeature(routers=[listen.router])


FEATURE = Feature("deepgram", extends=(ServerHook(_server),))
