"""Voices of the hub by names such as `piper/en_US-joe-medium`."""

from __future__ import annotations

import re
from pathlib import Path

from asr_server.core.errors import ModelUnavailable
from asr_server.features.piper.voice import MODEL_CARD, UnusableVoice

PREFIX = "piper/"
_REPOSITORY = "rhasspy/piper-voices"
_VOICE = re.compile(r"([a-z]{2,3})_([A-Z]{2})-([^-/\s]{1,80})-(x_low|low|medium|high)")


def fetch(name: str) -> Path | None:
    """Download a voice, or what is newer of it, into the hub's cache; return its file, or None for another name.

    Raises `ModelUnavailable`.
    """
    if not name.startswith(PREFIX):
        return None
    from huggingface_hub import hf_hub_download

    try:
        network, *others = _files(name)
        for file in others:
            hf_hub_download(_REPOSITORY, file)
        return Path(hf_hub_download(_REPOSITORY, network))
    except UnusableVoice as error:
        raise ModelUnavailable(f"{name}: {error}.") from None
    except Exception as error:  # the hub client has dozens of error types
        raise ModelUnavailable(
            f"{name}: the voice could not be downloaded ({type(error).__name__}). Check its name and the network, or "
            "download its files elsewhere and set SPEECH to their directory."
        ) from error


def stored(name: str) -> Path:
    """Return the file of a voice that was downloaded. Raises `UnusableVoice`."""
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(_REPOSITORY, file) for file in _files(name)]
    if not all(isinstance(path, str) for path in found):
        raise UnusableVoice(f"the voice is not on this machine: asr-server models download {name}")
    return Path(str(found[0]))


def is_stored(name: str) -> bool:
    """Return whether a voice was downloaded."""
    try:
        return stored(name).is_file()
    except UnusableVoice:
        return False


def _files(name: str) -> list[str]:
    """Return the paths of a voice's files in the repository. Raises `UnusableVoice`."""
    voice = name.removeprefix(PREFIX)
    if (parts := _VOICE.fullmatch(voice)) is None:
        raise UnusableVoice("the name of a voice has a form like en_US-joe-medium")
    language, region, speaker, quality = parts.groups()
    directory = f"{language}/{language}_{region}/{speaker}/{quality}"
    return [f"{directory}/{file}" for file in (f"{voice}.onnx", f"{voice}.onnx.json", MODEL_CARD)]
