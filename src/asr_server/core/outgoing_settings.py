"""Settings of the requests that the server sends to URLs which callers name."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator

_PATTERN = re.compile(r"\*|(?:\*\.)?[^*:]+|[^*:]+:[0-9]+")


@dataclass(frozen=True, slots=True)
class ListedHosts:
    """Hosts that the operator lists. Only those with a port, and networks, may be private: the owner of a name chooses
    its addresses."""

    patterns: frozenset[str]  # in lower case: names, `*.` and the end of a name, `*`, or a name with a port
    networks: tuple[IPv4Network | IPv6Network, ...]

    @classmethod
    def of(cls, listed: str) -> ListedHosts:
        """Return the hosts of a comma-separated list. Raises `ValueError`, also for a network that has bits of a
        host."""
        patterns, networks = set(), []
        for item in filter(None, (part.strip().lower() for part in listed.split(","))):
            if "/" in item or item.count(":") > 1 or item.replace(".", "").isdecimal():
                networks.append(ip_network(item))
            elif _PATTERN.fullmatch(item):
                patterns.add(item)
            else:
                raise ValueError(f"{item!r} is no host name, and not of the form *.example.com or name:port")
        return cls(frozenset(patterns), tuple(networks))

    def match(self, host: str) -> bool:
        """Return True if the host, in lower case, is listed without a port."""
        labels = host.split(".")
        ends = {".".join(["*", *labels[number:]]) for number in range(1, len(labels))}
        return not self.patterns.isdisjoint({"*", host, *ends})


class OutgoingSettings(BaseModel):
    """The features that send requests, all of which are off by default, and the hosts that they may reach."""

    url_hosts: str = Field(
        "",
        description="Comma-separated hosts of recordings that callers may name by URL: `*` for all public ones at "
        "ports 80 and 443, `*.example.com` or `example.com` for some; of an intranet a name with its port, an address "
        "or a network: `minio.lan:9000,10.1.2.0/24`. Empty: URLs are refused.",
    )
    webhook_hosts: str = Field(
        "",
        description="Jobs: hosts that callbacks may go to, listed as in `URL_HOSTS`; empty: there are no callbacks.",
    )
    webhook_secret: SecretStr = Field(
        SecretStr(""),
        description="Jobs: key that callbacks are signed with, `whsec_` and 24 to 64 bytes in base64; while keys "
        "change, both, separated by a comma.",
        validate_default=True,
    )

    @field_validator("url_hosts", "webhook_hosts")
    @classmethod
    def _are_hosts(cls, value: str) -> str:
        ListedHosts.of(value)
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


def _keys(secret: SecretStr) -> tuple[bytes, ...]:
    """Return the keys. Raises `ValueError` for what is not base64."""
    listed = (part.strip() for part in secret.get_secret_value().split(","))
    return tuple(base64.b64decode(key.removeprefix("whsec_"), validate=True) for key in listed if key)
