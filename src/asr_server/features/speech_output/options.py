"""The options `speech` and `speech_clone_model`: what speaks on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

from asr_server.core.settings import Settings
from asr_server.engine import machine_options
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Asked, Placement, SharedModel
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr import checkpoint
from asr_server.features.speech_output.engines import protocol
from asr_server.features.speech_output.engines.espeak import package
from asr_server.features.speech_output.engines.espeak.package import ESPEAK
from asr_server.features.speech_output.engines.protocol import FAKE
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel
from asr_server.features.speech_output.engines.registry import NAMES

OFF, AUTO = "off", "auto"
SPEECH, OTHERS, CLONE = "speech", "speech_other_languages", "speech_clone_model"
_SCRIPTED = "tones by a script; for tests only"
_QWEN_REASON = (
    "Qwen3-TTS by its SDK, a sentence at a time, on the thread of the recogniser, whose accelerator it shares"
)


def options(asked: Asked) -> Iterator[Option]:
    """Yield the options; `engines.registry.build` takes their values."""
    settings, added = _without_feature(asked)
    yield from _beside(_speech(settings), added)
    clone = settings.speech_clone_model
    if clone:
        yield Option(CLONE, True, clone, _SCRIPTED if clone == FAKE else _QWEN_REASON)
    else:
        yield Option(CLONE, False, "", "not set; no voice is imitated")


def conflicts(asked: Asked) -> Iterator[str]:
    """Yield a sentence for what was asked for by name and cannot run."""
    settings, added = _without_feature(asked)
    wanted, clone = settings.speech, settings.speech_clone_model
    if wanted == ESPEAK and (reason := package.missing()):
        yield f"SPEECH={ESPEAK}: {reason}; or unset it."
    elif wanted not in (OFF, AUTO, *NAMES):
        yield from _qwen_conflicts(f"SPEECH={wanted}", wanted, asked.capabilities)
    if clone and clone != FAKE:
        yield from _qwen_conflicts(f"SPEECH_CLONE_MODEL={clone}", clone, asked.capabilities)
    if clone and not _speech(settings).active:
        yield f"SPEECH_CLONE_MODEL={clone} needs an engine for the other voices, and SPEECH={wanted} has none."
    if added is not None and not added.active:
        yield f"SPEECH={added.value}: {added.reason}; or unset it."


def _without_feature(asked: Asked) -> tuple[Settings, Option | None]:
    """Return the settings without the engines that another feature adds, and the option of these.

    Where they were asked for by name and cannot run, the option is inactive with the reason.
    """
    settings = asked.settings
    for speech in protocol.added(asked.features):
        is_named = speech.takes(settings.speech)
        if not is_named and settings.speech != AUTO:
            continue
        value = settings.speech if is_named and settings.speech != speech.name else speech.default
        reason = speech.missing(value)
        if reason and not is_named:
            continue
        option = Option(SPEECH, not reason, value, reason or speech.reason)
        return settings.model_copy(update={"speech": AUTO}), option
    return settings, None


def _beside(own: Option, added: Option | None) -> Iterator[Option]:
    """Yield the option of a feature's engines and that of the engine without the feature, `own`."""
    if added is None:
        yield own
        return
    yield added
    reason = f"for what `{SPEECH}` does not speak: {own.reason}"
    yield Option(OTHERS, own.active, own.value, reason)


def models(asked: Asked, placement: Placement) -> dict[str, SharedModel]:
    """Return the models of Qwen3-TTS by the names of their options. They run as the recogniser does.

    The machine can run them: `conflicts` has looked.
    """
    settings, capabilities = asked.settings, asked.capabilities
    wanted = {SPEECH: _speech(_without_feature(asked)[0]).value, CLONE: settings.speech_clone_model}
    names = {name: value for name, value in wanted.items() if value and value not in NAMES}
    if not names:
        return {}
    device, _ = machine_options.device(settings.device, capabilities, [])
    dtype, _ = machine_options.dtype(settings, device, capabilities)
    threads = machine_options.threads(settings.cpu_threads, capabilities, placement.share, torch=True)
    return {
        name: SpeechModel(value, setting=name.upper(), device=device, dtype=dtype, cpu_threads=int(threads.value))
        for name, value in names.items()
    }


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
