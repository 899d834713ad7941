"""Fixtures: those of the engines."""

from asr_server.engine.conftest import speech

__all__ = ["speech"]
