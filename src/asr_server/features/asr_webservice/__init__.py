"""The API of whisper-asr-webservice, as Bazarr and others call it. docs/use/http-api.md has its routes."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.asr_webservice import route

    return ServerFeature(routers=[route.router])


FEATURE = Feature("asr_webservice", extends=(ServerHook(_server),))
