"""The features of this server, each in a folder of its own with its code, its tests and its page of the docs.

All but `speakers` and `speech_output`, which `app.py` names too, can be deleted with their line in `FEATURES`, and the
tests of everything else still pass. Features that the engine does not know are named in `app.py` and `http_app.py`.
"""

from __future__ import annotations

from dataclasses import replace

from asr_server.core.settings import Settings
from asr_server.engine import capabilities, plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Feature, Plan
from asr_server.engine.qwen_asr.model_cache import Bundled
from asr_server.features import (
    drafts,
    encoders,
    host,
    moonshine,
    piper,
    remote_engine,
    speakers,
    speech_output,
    turns,
)

FEATURES: tuple[Feature, ...] = (
    encoders.FEATURE,
    moonshine.FEATURE,
    speakers.FEATURE,
    speech_output.FEATURE,
    drafts.FEATURE,
    remote_engine.FEATURE,
    host.FEATURE,
    turns.FEATURE,
    piper.FEATURE,
)
# `/health` shows these options in this order, after those of the engine.
_SERVER_OPTIONS = (
    *("gateway_mode", "translation", "speakers", "speech", "speech_other_languages", "speech_clone_model"),
    *("models", "dual_model", "use_speculative", "use_vllm", "use_granian", "end_of_turn"),
)


def resolve(
    settings: Settings, machine: Capabilities | None = None, features: tuple[Feature, ...] | None = None
) -> Plan:
    """Return the plan for these settings on this machine, or on another one, with all features. Raises `PlanError`."""
    resolved = plan.resolve(settings, machine or capabilities.probe(), FEATURES if features is None else features)
    places = {name: place for place, name in enumerate(_SERVER_OPTIONS)}
    return replace(resolved, options=tuple(sorted(resolved.options, key=lambda option: places.get(option.name, -1))))


def bundled_models() -> Bundled:
    """Return how to find the models that features have, by the values of MODEL_ID that mean them."""
    return {feature.model.model_id: feature.model.stored for feature in FEATURES if feature.model is not None}
