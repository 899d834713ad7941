"""A live session that others may read: a link without a key gives its committed words, as events and as WebVTT.

docs/use/websocket.md has the routes.
"""

from asr_server.engine.feature import Feature

FEATURE = Feature("sharing", server=f"{__name__}.route", open_paths=("/v1/live/shared/",))
