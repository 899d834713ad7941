"""A live session that others may read: a link without a key gives its committed words, as events and as WebVTT.

docs/use/websocket.md has the routes.
"""

from asr_server.engine.feature import Feature
from asr_server.server_feature import OpenPaths, ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.sharing import route

    return route.SERVER


FEATURE = Feature("sharing", extends=(ServerHook(_server), OpenPaths("/v1/live/shared/")))
