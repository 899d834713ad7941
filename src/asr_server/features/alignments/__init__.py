"""Text to times: a recording and its text in, the words with times and scores out.

docs/use/http-api.md has the route.
"""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.alignments import route

    return route.SERVER


FEATURE = Feature("alignments", extends=(ServerHook(_server),))
