"""Installed packages that are used only for files such as the weights of bundled models; their code never runs."""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from pathlib import Path

# The English recogniser, and the models that distinguish voices. Later releases fetch the weights at run time instead.
DISTRIBUTION = "moonshine-voice"
VERSION = "0.1.0"


class DamagedPackage(ValueError):
    """A file of a package is not the one that was installed; the message says which and why."""


def installed(distribution: str = DISTRIBUTION, version: str = VERSION) -> bool:
    try:
        return metadata.version(distribution) == version
    except metadata.PackageNotFoundError:
        return False


def checked_files(distribution: str, directory: str) -> dict[str, Path]:
    """Return the files of a distribution in one of its directories, by name, after checking the digest of each against
    the distribution's record.

    Raises `DamagedPackage`.
    """
    found = {}
    for file in metadata.files(distribution) or ():
        if file.parent.as_posix() != directory or file.hash is None:
            continue
        path = Path(str(file.locate()))
        try:
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, file.hash.mode).digest()
        except OSError as error:
            raise DamagedPackage(f"{path.name} cannot be read ({error.strerror})") from error
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            raise DamagedPackage(f"{path.name} is not the file that was installed")
        found[path.name] = path
    return found
