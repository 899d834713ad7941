"""The options `speech` and `speech_clone_model`, which choose the speech engines of this machine, and the feature."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from asr_server.core.settings import Settings
from asr_server.engine import machine_options
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Asked, Feature, OnProgress, SharedModel
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr.checkpoint import Wanted, is_hub_id
from asr_server.features.speech_output.engines import piper
from asr_server.features.speech_output.engines.espeak import package
from asr_server.features.speech_output.engines.espeak.package import ESPEAK
from asr_server.features.speech_output.engines.protocol import FAKE
from asr_server.features.speech_output.engines.qwen_tts.checkpoint import local
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel

if TYPE_CHECKING:
    from asr_server.features.speech_output.engines.protocol import SpeechEngine

OFF, AUTO, NAMES = "off", "auto", (ESPEAK, FAKE)
SPEECH, OTHERS, CLONE = "speech", "speech_other_languages", "speech_clone_model"
_SCRIPTED = "tones by a script; for tests only"
_QWEN_REASON = (
    "Qwen3-TTS by its SDK, a sentence at a time, on the thread of the recogniser, whose accelerator it shares"
)


def options(asked: Asked) -> Iterator[Option]:
    """Yield the options; `build.engines_named` takes their values."""
    yield from _speech(asked.settings)
    clone = asked.settings.speech_clone_model
    if clone:
        yield Option(CLONE, True, clone, _SCRIPTED if clone == FAKE else _QWEN_REASON)
    else:
        yield Option(CLONE, False, "", "not set; no voice is imitated")


def conflicts(asked: Asked) -> Iterator[str]:
    """Yield a message for each setting that names an engine that cannot run."""
    wanted, clone = asked.settings.speech, asked.settings.speech_clone_model
    speech = next(_speech(asked.settings))
    if wanted == ESPEAK and (reason := package.missing()):
        yield f"SPEECH={ESPEAK}: {reason}; or unset it."
    elif piper.takes(wanted):
        if not speech.active:
            yield f"SPEECH={speech.value}: {speech.reason}; or unset it."
    elif wanted not in (OFF, AUTO, *NAMES):
        yield from _qwen_conflicts(Wanted("SPEECH", wanted), asked.capabilities)
    if clone and clone != FAKE:
        yield from _qwen_conflicts(Wanted("SPEECH_CLONE_MODEL", clone), asked.capabilities, imitates=True)
    if clone and not speech.active:
        yield f"SPEECH_CLONE_MODEL={clone} needs an engine for the other voices, and SPEECH={wanted} has none."


def models(asked: Asked) -> dict[str, SharedModel]:
    """Return the models of Qwen3-TTS by the names of their options. They run as the recogniser does.

    `conflicts` has already checked that the machine can run them.
    """
    settings, capabilities = asked.settings, asked.capabilities
    wanted = {SPEECH: next(_speech(settings)).value, CLONE: settings.speech_clone_model}
    names = {name: value for name, value in wanted.items() if value and not (value in NAMES or piper.takes(value))}
    if not names:
        return {}
    device, _ = machine_options.device(settings.device, capabilities, [])
    dtype, _ = machine_options.dtype(settings, device, capabilities)
    threads = machine_options.threads(settings.cpu_threads, capabilities, torch=True)
    return {
        name: SpeechModel(value, setting=name.upper(), device=device, dtype=dtype, cpu_threads=int(threads.value))
        for name, value in names.items()
    }


def _qwen_conflicts(wanted: Wanted, capabilities: Capabilities, *, imitates: bool = False) -> Iterator[str]:
    model = wanted.value
    if not os.path.isdir(model) and not is_hub_id(model):
        yield (
            f"{wanted}: there is no such directory, and it is no hub id (owner/name); otherwise set it to "
            f"{AUTO}, {OFF} or {ESPEAK}."
        )
    elif not capabilities.qwen or "qwen-tts" not in capabilities.packages:
        yield f"{wanted}: the packages of Qwen3-TTS are not installed: run `make speech`, or unset it."
    else:
        files = local(wanted)
        if files is not None:
            fits = files.traits.imitates == imitates
        else:  # only the name of a checkpoint that is not on this machine yet tells its kind
            fits = not model.lower().endswith("-customvoice" if imitates else "-base")
        if not fits:
            yield f"{wanted}: SPEECH takes a checkpoint with voices of its own, SPEECH_CLONE_MODEL a Base checkpoint."


def _speech(settings: Settings) -> Iterator[Option]:
    """Yield the option of the engine that speaks, and with Piper also the option of the engine for other languages."""
    wanted = settings.speech
    is_piper = piper.takes(wanted) or (wanted == AUTO and not piper.missing(piper.DEFAULT))
    if is_piper:
        value = piper.DEFAULT if wanted in (AUTO, piper.NAME) else wanted
        reason = piper.missing(value)
        yield Option(SPEECH, not reason, value, reason or piper.REASON)
    if wanted == OFF:
        yield Option(SPEECH, False, "", "SPEECH=off")
    elif wanted == FAKE:
        yield Option(SPEECH, True, FAKE, _SCRIPTED)
    elif is_piper or wanted in (AUTO, ESPEAK):
        missing = package.missing()
        reason = f"SPEECH={wanted}: {missing}" if missing else "eSpeak NG in child processes, on a thread of its own"
        if is_piper:
            reason = f"for what `{SPEECH}` does not speak: {reason}"
        yield Option(OTHERS if is_piper else SPEECH, not missing, "" if missing else ESPEAK, reason)
    else:
        yield Option(SPEECH, True, wanted, _QWEN_REASON)


def _build(model: SharedModel, on_progress: OnProgress, on_load_progress: OnProgress) -> SpeechEngine:
    from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine

    assert isinstance(model, SpeechModel), "a model of another feature"
    return QwenSpeechEngine(model, on_progress, on_load_progress)


FEATURE = Feature(
    "speech_output",
    options=options,
    conflicts=conflicts,
    shared_models=models,
    build_shared=_build,
    server="asr_server.features.speech_output.build",
)
