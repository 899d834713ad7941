"""Sends the results of jobs to their `output_url`."""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import TYPE_CHECKING, ClassVar

from asr_server.core.errors import InvalidInput, UnsupportedValue
from asr_server.jobs.follow_ups import EndedJob
from asr_server.jobs.record import FollowUpState
from asr_server.jobs.store import ATTEMPT_S
from asr_server.services import FeatureParts

if TYPE_CHECKING:
    from asr_server.net.outgoing import OutgoingClient
    from asr_server.server_feature import CoreParts

# Answers that another attempt does not change: the URL is not signed for this, or its time is over.
_REFUSED = frozenset({400, 401, 403, 404, 405, 410, 411, 413})


class ResultUrls:
    """Sends results. `client`: None where the operator has not turned this on."""

    field: ClassVar[str] = "output_url"

    def __init__(self, client: OutgoingClient | None) -> None:
        self._client = client

    def check(self, url: str) -> None:
        """Raise `UnsupportedValue` where results are not sent, and `InvalidValue` for what is no URL."""
        if self._client is None:
            raise UnsupportedValue("This server sends no results to URLs (URL_OUTPUT=false).", param=self.field)
        try:
            self._client.host_of(url)
        except InvalidInput as error:
            error.param = self.field
            raise

    async def send(self, job: EndedJob, url: str) -> FollowUpState:
        """Send the result once. A job without one has nothing to send. Raises `AddressRefused` and `UrlFailed`."""
        if self._client is None or (result := job.record.result) is None:
            return FollowUpState.FAILED
        with closing(await job.content()) as content:
            async with aclosing(content.pieces()) as pieces:
                # Storage that takes presigned URLs needs the length.
                headers = {"Content-Type": result.media_type, "Content-Length": str(content.size_bytes)}
                status = await self._client.send("PUT", url, headers, pieces, limit_s=ATTEMPT_S)
        if status in _REFUSED:
            return FollowUpState.FAILED
        return FollowUpState.DONE if 200 <= status < 300 else FollowUpState.WAITING


def build(parts: CoreParts) -> FeatureParts:
    """Build the feature's part of the server. What sends requests is imported where it is on."""
    settings = parts.settings
    if not settings.url_output:
        return FeatureParts(follow_ups=[ResultUrls(None)])
    from asr_server.net.outgoing import OutgoingClient, OutgoingRules

    client = OutgoingClient(OutgoingRules(settings.permitted_hosts))
    return FeatureParts(follow_ups=[ResultUrls(client)], close=client.close)
