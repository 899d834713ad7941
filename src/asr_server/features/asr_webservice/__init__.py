"""The API of whisper-asr-webservice, as Bazarr and others call it. docs/use/http-api.md has its routes."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("asr_webservice", extends=(ServerHook(f"{__name__}.route"),))
