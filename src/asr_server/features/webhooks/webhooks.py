"""Sends the state of a job that has ended to its `callback_url`.

A message is thin: the body of `GET /v1/jobs/{id}`, without the result, which is fetched with a key. A message has the
same id at each attempt, so a receiver can recognise a repeated one. Signatures follow Standard Webhooks with symmetric
keys: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from asr_server.core.errors import AsrError, InvalidInput
from asr_server.core.settings import ListedHosts
from asr_server.jobs.record import FollowUpState, JobRecord
from asr_server.jobs.route import job_body
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import FeatureParts

if TYPE_CHECKING:
    from asr_server.net.outgoing import OutgoingClient

_LIMIT_S = 15.0
_GONE = 410  # the receiver wants no more


def signed_headers(message_id: str, timestamp_s: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Return the headers of a message, with a signature by each key. `timestamp_s`: of this attempt, in Unix time."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    digests = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{digest}" for digest in digests),
    }


class Webhooks:
    """Sends messages to the hosts that the operator lists, signed with the operator's keys.

    Without a `client`, callbacks are refused, and pending ones from before a restart are dropped.
    """

    field: ClassVar[str] = "callback_url"

    def __init__(self, client: OutgoingClient | None, keys: tuple[bytes, ...]) -> None:
        self._client, self._keys = client, keys

    def check(self, url: str) -> None:
        """Raise `invalid_value` for an invalid URL, `address_not_allowed` for a host that is not listed, and
        `unsupported_value` without webhooks."""
        try:
            if self._client is None:
                raise InvalidInput(
                    "This server sends no webhooks (WEBHOOK_HOSTS, WEBHOOK_SECRET).", code="unsupported_value"
                )
            self._client.check(url)
        except AsrError as error:
            error.param = self.field
            raise

    async def send(self, record: JobRecord, url: str) -> FollowUpState:
        """Send the message once. Raises the errors of `check`, since the list may have changed, and `url_failed`."""
        if self._client is None:
            return FollowUpState.FAILED
        self.check(url)
        now = int(time.time())
        message = {
            "type": f"job.{record.state.value}",
            "timestamp": datetime.fromtimestamp(record.ended_at, UTC).isoformat(),
            "data": job_body(record),
        }
        body = json.dumps(message, ensure_ascii=False).encode()
        headers = signed_headers(f"msg_{record.id}", now, body, self._keys)
        headers["Content-Type"] = "application/json"
        status = await self._client.post(url, headers, body, limit_s=_LIMIT_S)
        if status == _GONE:
            return FollowUpState.FAILED
        return FollowUpState.DONE if 200 <= status < 300 else FollowUpState.WAITING


def _build(parts: CoreParts) -> FeatureParts:
    # Import the client only if the feature is on.
    settings = parts.settings
    if not settings.webhook_hosts:
        return FeatureParts(follow_ups=Webhooks(None, ()))
    from asr_server.net.outgoing import OutgoingClient, OutgoingRules

    client = OutgoingClient(OutgoingRules(ListedHosts.of(settings.webhook_hosts), "WEBHOOK_HOSTS"))
    webhooks = Webhooks(client, settings.webhook_keys)
    return FeatureParts(follow_ups=webhooks, close=client.close)


SERVER = ServerFeature(build=_build)
