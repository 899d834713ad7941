"""Channels that may be people: each is transcribed by itself."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.stereo import channels
    from asr_server.services import FeatureParts

    parts = FeatureParts(signal=channels.channel_signal)
    return ServerFeature(build=lambda core: parts)


FEATURE = Feature("stereo", extends=(ServerHook(_server),))
