"""A live session tells what became of its audio: words, silence, sound, or unheard with the reason.

docs/use/websocket.md has the message.
"""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.live_coverage import sums
    from asr_server.services import FeatureParts

    return ServerFeature(build=lambda core: FeatureParts(read_opening=sums.read_opening))


FEATURE = Feature("live_coverage", extends=(ServerHook(_server),))
