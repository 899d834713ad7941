"""A live session goes on at another server, from what its client carries there."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.handover import handover
    from asr_server.services import FeatureParts

    return ServerFeature(build=lambda core: FeatureParts(read_opening=handover.read_opening))


FEATURE = Feature("handover", extends=(ServerHook(_server),))
