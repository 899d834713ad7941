"""Transcripts as documents to read: Markdown and DOCX, in paragraphs with their times and speakers."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook


def _server() -> ServerFeature:
    from asr_server.features.documents import route

    return route.SERVER


FEATURE = Feature("documents", extends=(ServerHook(_server),))
