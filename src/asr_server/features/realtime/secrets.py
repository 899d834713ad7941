"""`POST /v1/realtime/client_secrets` and `transcription_sessions`: a key for a browser, with the session it opens."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from asr_server.core.errors import InvalidInput
from asr_server.features.realtime import shapes
from asr_server.features.realtime.config import ServerDefaults
from asr_server.features.realtime.shapes import Identity
from asr_server.net import body
from asr_server.net.credentials import MAX_LIFETIME_S, EphemeralKey
from asr_server.net.errors import ErrorBody
from asr_server.services import CallerDep, ServicesDep

router = APIRouter(prefix="/v1/realtime", tags=["realtime"])

_MAX_BODY_BYTES = 1024 * 1024


class Expiry(BaseModel):
    """When a key expires."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(default=600, ge=10, le=MAX_LIFETIME_S, description="Seconds from now.")


class SecretRequest(BaseModel):
    """The body of `client_secrets`."""

    expires_after: Expiry = Expiry()
    session: dict[str, Any] | None = Field(None, description="As in `session.update`; see docs/use/realtime.md.")


class SecretBody(BaseModel):
    """A key, and the session that it opens."""

    value: str
    expires_at: int = Field(description="Unix seconds.")
    session: dict[str, Any]


class _BetaSecret(BaseModel):
    model_config = ConfigDict(extra="ignore")

    expires_at: Expiry | None = None
    expires_after: Expiry | None = None


_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 404, 413)}


def _takes(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.get("properties", {}).get("expires_after", {}).pop("$ref", None)
    schema.pop("$defs", None)
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


@router.post("/client_secrets", responses=_ERRORS, openapi_extra=_takes(SecretRequest))
async def create_client_secret(request: Request, services: ServicesDep, caller: CallerDep) -> SecretBody:
    """An ephemeral key for `WS /v1/realtime`, to be given to a browser."""
    wanted = body.validated(SecretRequest, await body.read_json(request, _MAX_BODY_BYTES))
    defaults = ServerDefaults.of(services)
    config = defaults.initial()
    if wanted.session is not None:
        config = defaults.updated(config, wanted.session)
    key = services.ephemeral_keys.issue(config.model_dump(), wanted.expires_after.seconds, caller.owner)
    return SecretBody(value=key.value, expires_at=key.expires_at, session=shapes.ga(config, _identity(key)))


@router.post("/transcription_sessions", responses=_ERRORS)
async def create_transcription_session(request: Request, services: ServicesDep, caller: CallerDep) -> dict[str, Any]:
    """The same in the form of the beta protocol."""
    flat = await body.read_json(request, _MAX_BODY_BYTES)
    wanted = body.validated(_BetaSecret, flat.pop("client_secret", None) or {})
    defaults = ServerDefaults.of(services)
    try:
        config = defaults.updated(defaults.initial(), shapes.from_beta(flat, ""), "")
    except InvalidInput as error:
        raise shapes.with_beta_path(error) from None
    expiry = wanted.expires_at or wanted.expires_after or Expiry()
    key = services.ephemeral_keys.issue(config.model_dump(), expiry.seconds, caller.owner)
    return shapes.beta(config, _identity(key), {"value": key.value, "expires_at": key.expires_at})


def _identity(key: EphemeralKey) -> Identity:
    return Identity(f"sess_{secrets.token_hex(12)}", key.expires_at)
