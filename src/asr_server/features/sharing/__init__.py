"""Shared live sessions: with a link, others read the committed words without a key, as events or as WebVTT.

docs/use/websocket.md has the routes.
"""

from asr_server.engine.feature import Feature

FEATURE = Feature("sharing", server=f"{__name__}.route", open_paths=("/v1/live/shared/",))
