"""Settings of the requests that the server sends to URLs which callers name."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator


@dataclass(frozen=True, slots=True)
class PermittedHosts:
    """Hosts that the operator permits, by their names and by the networks of their addresses."""

    names: frozenset[str] = frozenset()  # in lower case
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, listed: str) -> PermittedHosts:
        """Return the hosts of a comma-separated list. Raises `ValueError` for a network that has bits of a host."""
        names, networks = set(), []
        for item in filter(None, (part.strip().lower() for part in listed.split(","))):
            if "/" in item or ":" in item or item.replace(".", "").isdecimal():
                networks.append(ip_network(item))
            else:
                names.add(item)
        return cls(frozenset(names), tuple(networks))


@dataclass(frozen=True, slots=True)
class WebhookHosts:
    """Host names, `*.` and the end of a name for all that end with it, or `*` for all."""

    patterns: frozenset[str]

    @classmethod
    def of(cls, listed: str) -> WebhookHosts:
        """Return the hosts of a comma-separated list. Raises `ValueError` where `*` stands in another place."""
        patterns = frozenset(filter(None, (part.strip().lower() for part in listed.split(","))))
        for pattern in patterns - {"*"}:
            if "*" in pattern.removeprefix("*."):
                raise ValueError(f"{pattern!r} is no host name, and not of the form *.example.com")
        return cls(patterns)

    def has(self, host: str) -> bool:
        """Return True if the host, in lower case, is one of them."""
        labels = host.split(".")
        ends = {".".join(["*", *labels[number:]]) for number in range(1, len(labels))}
        return not self.patterns.isdisjoint({"*", host, *ends})


class OutgoingSettings(BaseModel):
    """The features that send requests, all of which are off by default, and the hosts that they may reach."""

    url_input: bool = Field(False, description="Take the URL of a recording in place of its bytes.")
    webhook_hosts: str = Field(
        "",
        description="Jobs: comma-separated hosts that callbacks may go to, such as `hooks.example.com`, "
        "`*.example.com`, or `*` for all; empty: there are no callbacks.",
    )
    webhook_secret: SecretStr = Field(
        SecretStr(""),
        description="Jobs: key that callbacks are signed with, `whsec_` and 24 to 64 bytes in base64; while keys "
        "change, both, separated by a comma.",
        validate_default=True,
    )
    outgoing_hosts: str = Field(
        "",
        description="Comma-separated host names, addresses and networks (`minio.lan,10.1.2.0/24`) that URLs of callers "
        "may name besides public hosts at ports 80 and 443; a name that is listed may have any address.",
    )

    @field_validator("outgoing_hosts")
    @classmethod
    def _are_hosts(cls, value: str) -> str:
        PermittedHosts.of(value)
        return value

    @field_validator("webhook_hosts")
    @classmethod
    def _are_patterns(cls, value: str) -> str:
        WebhookHosts.of(value)
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _are_webhook_keys(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        if any(not 24 <= len(key) <= 64 for key in _keys(value)):
            raise ValueError("a key is whsec_ and 24 to 64 random bytes in base64")
        if info.data.get("webhook_hosts") and not _keys(value):
            raise ValueError("WEBHOOK_HOSTS needs a key, as receivers could not tell a callback from a forgery")
        return value

    @property
    def webhook_keys(self) -> tuple[bytes, ...]:
        return _keys(self.webhook_secret)

    @property
    def permitted_hosts(self) -> PermittedHosts:
        return PermittedHosts.of(self.outgoing_hosts)


def _keys(secret: SecretStr) -> tuple[bytes, ...]:
    """Return the keys. Raises `ValueError` for what is not base64."""
    listed = (part.strip() for part in secret.get_secret_value().split(","))
    return tuple(base64.b64decode(key.removeprefix("whsec_"), validate=True) for key in listed if key)
