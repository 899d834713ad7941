"""The remote engine: a server with OpenAI's transcriptions runs the model, `vllm serve` or another asr-server."""

from __future__ import annotations

from asr_server.engine.feature import Feature
from asr_server.features.remote_engine import options

FEATURE = Feature("remote_engine", options=options.options, conflicts=options.conflicts, elsewhere=options.resolve)
