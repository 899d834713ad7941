"""Results at URLs: the result of a job with an `output_url` is sent there by PUT, as presigned URLs of S3 take it."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.url_output import results

    return ServerFeature(build=results.build)


FEATURE = Feature("url_output", extends=(ServerHook(_server),))
