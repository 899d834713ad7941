"""The features of this server, each in a folder of its own with its code, its tests and its page of the docs.

Delete a folder and its line in `FEATURES`, and the tests of everything else still pass.
"""

from __future__ import annotations

from asr_server.core.settings import Settings
from asr_server.engine import capabilities, plan
from asr_server.engine.feature import Feature
from asr_server.engine.plan import Plan
from asr_server.features import piper, turns

FEATURES: tuple[Feature, ...] = (
    turns.FEATURE,
    piper.FEATURE,
)


def resolve(settings: Settings) -> Plan:
    """Return the plan for these settings on this machine, with all features. Raises `PlanError`."""
    return plan.resolve(settings, capabilities.probe(), FEATURES)
