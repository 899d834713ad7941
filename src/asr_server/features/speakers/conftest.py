"""Live sessions over an engine that answers by a script."""

from asr_server.live.conftest import make, speech

__all__ = ["make", "speech"]
