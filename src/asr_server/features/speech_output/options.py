"""The options `speech` and `speech_clone_model`: what speaks on this machine. Used by `plan.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from asr_server.core.settings import Settings
from asr_server.engine import machine_options
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Feature
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr import checkpoint
from asr_server.features.speech_output.engines.espeak import package
from asr_server.features.speech_output.engines.espeak.package import ESPEAK
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel
from asr_server.features.speech_output.engines.registry import FAKE, NAMES

OFF, AUTO = "off", "auto"
SPEECH, OTHERS, CLONE = "speech", "speech_other_languages", "speech_clone_model"
# Sentences that share a frame's passes.
_SLOTS = {"cpu": 4, "cuda": 16}
_SCRIPTED = "tones by a script; for tests only"
_QWEN_REASON = "Qwen3-TTS on the thread of the recogniser, whose accelerator it shares"


def options(settings: Settings) -> Iterator[Option]:
    """Yield the options; `speech.registry.build` takes their values."""
    yield _speech(settings)
    clone = settings.speech_clone_model
    if clone:
        yield Option(CLONE, True, clone, _SCRIPTED if clone == FAKE else _QWEN_REASON)
    else:
        yield Option(CLONE, False, "", "not set; no voice is imitated")


def conflicts(settings: Settings, capabilities: Capabilities) -> Iterator[str]:
    """Yield a sentence for what was asked for by name and cannot run."""
    wanted, clone = settings.speech, settings.speech_clone_model
    if wanted == ESPEAK and (reason := package.missing()):
        yield f"SPEECH={ESPEAK}: {reason}; or unset it."
    elif wanted not in (OFF, AUTO, *NAMES):
        yield from _qwen_conflicts(f"SPEECH={wanted}", wanted, capabilities)
    if clone and clone != FAKE:
        yield from _qwen_conflicts(f"SPEECH_CLONE_MODEL={clone}", clone, capabilities)
    if clone and not _speech(settings).active:
        yield f"SPEECH_CLONE_MODEL={clone} needs an engine for the other voices, and SPEECH={wanted} has none."


def with_feature(settings: Settings, features: Sequence[Feature]) -> tuple[Settings, Option | None, list[str]]:
    """Return what a feature adds to speech: the settings without it, its option, and why it cannot run as asked."""
    for speech in (feature.speech for feature in features if feature.speech is not None):
        is_named = speech.takes(settings.speech)
        if not is_named and settings.speech != AUTO:
            continue
        value = settings.speech if is_named and settings.speech != speech.name else speech.default
        reason = speech.missing(value)
        if reason and not is_named:
            continue
        conflicts = [f"SPEECH={value}: {reason}; or unset it."] if reason else []
        return settings.model_copy(update={"speech": AUTO}), Option(SPEECH, True, value, speech.reason), conflicts
    return settings, None, []


def beside(own: Option, added: Option | None) -> Iterator[Option]:
    """Yield the option of a feature's engines and that of the engine without the feature, `own`."""
    if added is None:
        yield own
        return
    yield added
    reason = f"for what `{SPEECH}` does not speak: {own.reason}"
    yield Option(OTHERS, own.active, own.value, reason)


def models(settings: Settings, capabilities: Capabilities) -> dict[str, SpeechModel]:
    """Return the models of Qwen3-TTS by the names of their options. They run as the recogniser does.

    The machine can run them: `conflicts` has looked.
    """
    wanted = {option.name: option.value for option in options(settings) if option.active}
    names = {name: value for name, value in wanted.items() if value not in NAMES}
    if not names:
        return {}
    device, _ = machine_options.device(settings.device, capabilities, [])
    dtype, _ = machine_options.dtype(settings, device, capabilities)
    quantize = machine_options.quantize(settings, device, capabilities, [], torch=True)
    _, node = machine_options.numa_node(settings.numa_node, capabilities, [])
    threads = machine_options.threads(settings.cpu_threads, capabilities, node, torch=True)
    graphs = machine_options.cuda_graphs(settings.use_cuda_graphs, device, quantize, capabilities, [])
    return {
        name: SpeechModel(
            value,
            setting=name.upper(),
            device=device,
            dtype=dtype,
            slots=_SLOTS[device.partition(":")[0]],
            quantize=quantize.value,
            cpu_threads=int(threads.value),
            cuda_graphs=graphs.active,
        )
        for name, value in names.items()
    }


def shared(found: dict[str, SpeechModel], shares: int) -> dict[str, SpeechModel]:
    """Return the models, each with its part of the memory, which they share with others."""
    return {name: replace(model, shares=shares) for name, model in found.items()}


def is_scripted(settings: Settings) -> bool:
    """True if a speech engine has a script."""
    return FAKE in (settings.speech, settings.speech_clone_model)


def _qwen_conflicts(setting: str, model: str, capabilities: Capabilities) -> Iterator[str]:
    if not os.path.isdir(model) and not checkpoint.is_hub_id(model):
        yield (
            f"{setting}: there is no such directory, and it is no hub id (owner/name); otherwise set it to "
            f"{AUTO}, {OFF} or {ESPEAK}."
        )
    elif not capabilities.qwen or "qwen-tts" not in capabilities.packages:
        yield f"{setting}: the packages of Qwen3-TTS are not installed: run `make speech`, or unset it."


def _speech(settings: Settings) -> Option:
    wanted = settings.speech
    if wanted == OFF:
        return Option(SPEECH, False, "", "SPEECH=off")
    if wanted == FAKE:
        return Option(SPEECH, True, FAKE, _SCRIPTED)
    if wanted not in (AUTO, ESPEAK):
        return Option(SPEECH, True, wanted, _QWEN_REASON)
    reason = package.missing()
    if reason:
        return Option(SPEECH, False, "", f"SPEECH={wanted}: {reason}")
    return Option(SPEECH, True, ESPEAK, "eSpeak NG in child processes, on a thread of its own")
