"""Labels of requests. A module of its own without imports, since a gateway uses them without the metrics."""

from __future__ import annotations

from enum import StrEnum


class Transport(StrEnum):
    """The transport of a request."""

    HTTP = "http"
    SOCKET = "socket"


# The label for unknown routes, methods and codes: text of a caller never becomes a label.
OTHER = "other"
NO_ROUTE = "-"
