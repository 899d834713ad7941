"""The model's files in an installed distribution, whose record has their digests. Its code is not used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asr_server.core.bundled_package import DISTRIBUTION, VERSION, DamagedPackage, checked_files, installed
from asr_server.core.errors import ModelUnavailable

__all__ = ["DISTRIBUTION", "LANGUAGE", "MODEL_ID", "REMEDY", "VERSION", "ModelFiles", "installed", "locate"]

MODEL_ID = "moonshine-tiny-en"
LANGUAGE = "English"
_DIRECTORY = "moonshine_voice/assets/tiny-en"
REMEDY = f"pip install --force-reinstall --no-deps {DISTRIBUTION}=={VERSION}"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The three files of the model."""

    encoder: Path
    decoder: Path
    tokenizer: Path

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.encoder, self.decoder, self.tokenizer))


def locate() -> ModelFiles:
    """Return the files, whose digests were compared with the distribution's record. Raises `ModelUnavailable`."""
    if not installed():
        raise ModelUnavailable(
            f"MODEL_ID={MODEL_ID}: the package {DISTRIBUTION}=={VERSION} is not installed: {REMEDY}. Where no wheel of "
            "it exists for this machine, set MODEL_ID=demo or the name of a Qwen3-ASR model."
        )
    try:
        found = checked_files(DISTRIBUTION, _DIRECTORY)
        return ModelFiles(found["encoder_model.ort"], found["decoder_model_merged.ort"], found["tokenizer.bin"])
    except KeyError as missing:
        raise _damaged(f"it lacks {missing.args[0]}") from None
    except DamagedPackage as error:
        raise _damaged(str(error)) from error


def _damaged(what: str) -> ModelUnavailable:
    return ModelUnavailable(f"MODEL_ID={MODEL_ID}: the package {DISTRIBUTION} is damaged: {what}. Run: {REMEDY}")
