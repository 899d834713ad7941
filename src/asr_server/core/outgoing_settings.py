"""Settings of the requests that the server sends to URLs which callers name."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from pydantic import BaseModel, Field, field_validator


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


class OutgoingSettings(BaseModel):
    """The features that send requests, all of which are off by default, and the hosts that they may reach."""

    url_input: bool = Field(False, description="Take the URL of a recording in place of its bytes.")
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

    @property
    def permitted_hosts(self) -> PermittedHosts:
        """`outgoing_hosts`, as names and networks."""
        return PermittedHosts.of(self.outgoing_hosts)
