"""Speakers of recordings and live sessions, and voices that have names."""

from __future__ import annotations

from asr_server.engine.feature import Feature
from asr_server.features.speakers import options

FEATURE = Feature("speakers", options=options.options, conflicts=options.conflicts)
