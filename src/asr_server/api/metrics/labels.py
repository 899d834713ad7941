"""How requests are labelled. Imports nothing: a gateway logs requests too, and has no metrics of its own."""

from __future__ import annotations

from enum import StrEnum


class Transport(StrEnum):
    """Where a caller comes in."""

    HTTP = "http"
    SOCKET = "socket"


# What no route, method or code of ours is: a caller's own words never become a label.
OTHER = "other"
NO_ROUTE = "-"
