"""Webhooks: when a job with a `callback_url` has ended, its state is sent there, signed."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.webhooks import webhooks

    return ServerFeature(build=webhooks.build)


FEATURE = Feature("webhooks", extends=(ServerHook(_server),))
