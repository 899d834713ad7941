"""The features of this server, each in a folder of its own with its code, its tests and its page of the docs.

Each can be deleted with its line in `FEATURES`, and the tests of everything but the features that are built on it still
pass.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

from asr_server.core.settings import Settings
from asr_server.engine import capabilities, plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Feature, Plan
from asr_server.engine.qwen_asr.model_cache import Bundled
from asr_server.features import (
    alignments,
    asr_webservice,
    deepgram,
    documents,
    encoders,
    host,
    hotwords,
    live_opus,
    moonshine,
    realtime,
    remote_engine,
    rewriting,
    sharing,
    speakers,
    stereo,
    translation,
    turns,
    url_input,
    webhooks,
)
from asr_server.features.speech_output import options as speech_output
from asr_server.server_feature import ServerFeature

# What a client sends is read by the features in this order.
FEATURES: tuple[Feature, ...] = (
    encoders.FEATURE,
    moonshine.FEATURE,
    sharing.FEATURE,
    translation.FEATURE,
    speakers.FEATURE,
    stereo.FEATURE,
    rewriting.FEATURE,
    live_opus.FEATURE,
    speech_output.FEATURE,
    realtime.FEATURE,
    alignments.FEATURE,
    asr_webservice.FEATURE,
    deepgram.FEATURE,
    documents.FEATURE,
    url_input.FEATURE,
    webhooks.FEATURE,
    remote_engine.FEATURE,
    host.FEATURE,
    turns.FEATURE,
    hotwords.FEATURE,
)
# `/health` shows these options in this order, after those of the engine.
_SERVER_OPTIONS = (
    *("gateway_mode", "engine_process", "translation", "speakers", "speech", "speech_other_languages"),
    *("speech_clone_model", "text_format", "profanity", "redact"),
    *("models", "dual_model", "use_speculative", "use_vllm", "use_granian", "end_of_turn"),
)


def resolve(
    settings: Settings, machine: Capabilities | None = None, features: tuple[Feature, ...] | None = None
) -> Plan:
    """Return the plan for these settings on this machine, or on another one, with all features. Raises `PlanError`."""
    resolved = plan.resolve(settings, machine or capabilities.probe(), FEATURES if features is None else features)
    places = {name: place for place, name in enumerate(_SERVER_OPTIONS)}
    return replace(resolved, options=tuple(sorted(resolved.options, key=lambda option: places.get(option.name, -1))))


def server_features() -> tuple[ServerFeature, ...]:
    return tuple(importlib.import_module(feature.server).SERVER for feature in FEATURES if feature.server)


def open_paths() -> tuple[str, ...]:
    return tuple(prefix for feature in FEATURES for prefix in feature.open_paths)


def bundled_models() -> Bundled:
    """Return how to find the models that features have, by the values of MODEL_ID that mean them."""
    return {feature.model.model_id: feature.model.stored for feature in FEATURES if feature.model is not None}
