"""The features of this server, each in a folder of its own with its code, its tests and its page of the docs.

A feature can be deleted together with its line in `FEATURES`: all tests still pass, except those of features that build
on it.
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

# The features read a client's input in this order.
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
    """Return the plan for these settings, by default on this machine and with all features. Raises `PlanError`."""
    resolved = plan.resolve(settings, machine or capabilities.probe(), FEATURES if features is None else features)
    places = {name: place for place, name in enumerate(_SERVER_OPTIONS)}
    return replace(resolved, options=tuple(sorted(resolved.options, key=lambda option: places.get(option.name, -1))))


def server_features() -> tuple[ServerFeature, ...]:
    return tuple(importlib.import_module(feature.server).SERVER for feature in FEATURES if feature.server)


def open_paths() -> tuple[str, ...]:
    return tuple(prefix for feature in FEATURES for prefix in feature.open_paths)


def bundled_models() -> Bundled:
    """Return how to find the models that features bring, by their values of MODEL_ID."""
    return {feature.model.model_id: feature.model.stored for feature in FEATURES if feature.model is not None}
