"""Fixtures: those of the engines."""

from asr_server.engine.conftest import alone, clips, make_engine, run, speech

__all__ = ["alone", "clips", "make_engine", "run", "speech"]
