"""Access control: the rules of a server, the caller of a request, and the refusal of a socket. `net.edge` checks."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket

from asr_server.core.api_keys import ApiKeys
from asr_server.core.errors import AsrError, ForeignHost, ForeignOrigin
from asr_server.core.hosts import is_loopback
from asr_server.core.settings import Settings
from asr_server.net import credentials, websocket_io
from asr_server.net.ephemeral_keys import EphemeralKeys
from asr_server.net.errors import TABLE, http_response, realtime_error
from asr_server.net.origins import Origins
from asr_server.schedule.quota import Quota

# Probes come from machines without a key. They hold no data.
PROBES = frozenset({"/livez", "/readyz"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    owner: str = ""  # the owner of its jobs and sessions, "" where there are no keys
    session: Mapping[str, Any] | None = None  # the realtime session in the ephemeral key, None for other keys
    share: str = ""  # the name by which fair schedulers count it: the owner, or an address where there are no keys


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules by which access is decided."""

    api_keys: ApiKeys
    ephemeral_keys: EphemeralKeys
    origins: Origins
    quota: Quota

    @classmethod
    def of(cls, settings: Settings) -> AccessRules:
        """Return the rules that the settings ask for."""
        api_keys = ApiKeys(settings.keys)
        origins = Origins(settings.origins, keyless=not api_keys, loopback=is_loopback(settings.host))
        quota = Quota(settings.key_max_requests, settings.key_rate, max_live=settings.max_live_sessions)
        return cls(api_keys, EphemeralKeys(settings.keys), origins, quota)


async def reject_websocket(socket: WebSocket, error: AsrError) -> None:
    """Refuse the handshake with an HTTP status.

    A browser cannot see that status. One that showed a key is accepted, told the error as a realtime event, and closed.
    A page that may not call at all is told nothing: its socket never opens.
    """
    if isinstance(error, ForeignOrigin | ForeignHost) or credentials.by_subprotocol(socket) is None:
        await socket.send_denial_response(http_response(error))
        return
    await socket.accept(subprotocol=credentials.realtime_subprotocol(socket))
    event = {"type": "error", "event_id": f"event_{secrets.token_hex(6)}", "error": realtime_error(error)}
    mapping = TABLE[error.code]
    await websocket_io.close(socket, mapping.ws_close, f"{mapping.type}.{error.code}", event)
