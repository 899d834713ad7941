"""A prompt or hotwords that the model writes though nobody says them: such answers are made again without."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.hotwords.check import HotwordCheck
    from asr_server.services import FeatureParts

    parts = FeatureParts(context_check=HotwordCheck())
    return ServerFeature(build=lambda core: parts)


FEATURE = Feature("hotwords", extends=(ServerHook(_server),))
