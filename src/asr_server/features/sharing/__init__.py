"""A live session that others may read: a link without a key gives its committed words, as events and as WebVTT.

docs/use/websocket.md has the routes.
"""

from asr_server.engine.feature import Feature
from asr_server.server_feature import OpenPaths, ServerHook

FEATURE = Feature("sharing", extends=(ServerHook(f"{__name__}.route"), OpenPaths("/v1/live/shared/")))
