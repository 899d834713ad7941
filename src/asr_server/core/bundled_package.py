"""The installed package that contains the bundled models: the English recogniser, and those that tell voices apart."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "moonshine-voice"
# Later releases fetch the weights at run time instead of containing them.
VERSION = "0.1.0"


def installed() -> bool:
    """Whether it is there in the version that contains the weights."""
    try:
        return metadata.version(DISTRIBUTION) == VERSION
    except metadata.PackageNotFoundError:
        return False
