"""The installed package whose shared library contains the models."""

from __future__ import annotations

import platform
import sys

from asr_server.core.bundled_package import DISTRIBUTION, VERSION, installed

EMBEDDED = "embedded"
# The name of the model that makes its voice prints. Stored prints are compared with those of the same model only.
VOICE_MODEL = "pyannote community-1"
MACHINES = ("x86_64", "aarch64")


def missing() -> str:
    """Return why the models cannot be used on this machine; "" if they can."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"{DISTRIBUTION} {VERSION} has the models for Linux on x86-64 and arm64 only"
    return "" if installed() else f"the package {DISTRIBUTION}=={VERSION} is not installed"
