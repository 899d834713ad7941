"""Signatures of webhooks, by version 1 of Standard Webhooks with its symmetric scheme.

The specification: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable


def signed_headers(message_id: str, timestamp_s: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Return the headers of a message, with a signature by each key. `timestamp_s`: of this attempt, in Unix time."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    digests = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{digest}" for digest in digests),
    }
