"""Text to times: a recording and its text in, the words with times and scores out.

docs/use/http-api.md has the route.
"""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("alignments", extends=(ServerHook(f"{__name__}.route"),))
