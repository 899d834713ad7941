"""Recordings by their URLs: a form with `url` in place of a file, whose content the server gets."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.url_input import recordings

    return ServerFeature(build=recordings.build)


FEATURE = Feature("url_input", extends=(ServerHook(_server),))
