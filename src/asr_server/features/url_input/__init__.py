"""Recordings by their URLs: a form with `url` in place of a file, whose content the server gets."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("url_input", extends=(ServerHook(f"{__name__}.recordings"),))
