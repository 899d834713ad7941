"""OpenAI's Realtime protocol for transcription: sessions over `WS /v1/realtime`, and keys for browsers."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.realtime import route

    return ServerFeature(routers=[route.router])


FEATURE = Feature("realtime", extends=(ServerHook(_server),))
