"""Where the model's files are: in an installed distribution, whose record has their digests. Its code is not used."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from asr_server.core.bundled_package import DISTRIBUTION, VERSION, installed
from asr_server.core.errors import ModelUnavailable

__all__ = ["DISTRIBUTION", "LANGUAGE", "MODEL_ID", "REMEDY", "VERSION", "ModelFiles", "installed", "locate"]

MODEL_ID = "moonshine-tiny-en"
LANGUAGE = "English"
_DIRECTORY = "moonshine_voice/assets/tiny-en"
REMEDY = f"pip install --force-reinstall --no-deps {DISTRIBUTION}=={VERSION}"
_NO_WHEEL = (
    f"{DISTRIBUTION} {VERSION} exists for Linux on x86-64 (glibc 2.34 or later) and on arm64, macOS and Windows."
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The three files of the model."""

    encoder: Path
    decoder: Path
    tokenizer: Path

    @property
    def size_bytes(self) -> int:
        """Their size on disk."""
        return sum(path.stat().st_size for path in (self.encoder, self.decoder, self.tokenizer))


def locate() -> ModelFiles:
    """The files, each with the digest that the distribution's record gives. Raises `ModelUnavailable`."""
    if not installed():
        raise ModelUnavailable(
            f"MODEL_ID={MODEL_ID}: the package {DISTRIBUTION}=={VERSION} is not installed: {REMEDY}. Where no wheel of "
            "it exists for this machine, set MODEL_ID=demo or the name of a Qwen3-ASR model."
        )
    found = {path.name: path for path in _checked()}
    try:
        return ModelFiles(found["encoder_model.ort"], found["decoder_model_merged.ort"], found["tokenizer.bin"])
    except KeyError as missing:
        raise _damaged(f"it lacks {missing.args[0]}") from None


def _checked() -> Iterator[Path]:
    for file in metadata.files(DISTRIBUTION) or ():
        if file.parent.as_posix() != _DIRECTORY or file.hash is None:
            continue
        path = Path(str(file.locate()))
        try:
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, file.hash.mode).digest()
        except OSError as error:
            raise _damaged(f"{path.name} cannot be read ({error.strerror})") from error
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            raise _damaged(f"{path.name} is not the file that was installed")
        yield path


def _damaged(what: str) -> ModelUnavailable:
    return ModelUnavailable(f"MODEL_ID={MODEL_ID}: the package {DISTRIBUTION} is damaged: {what}. Run: {REMEDY}")
