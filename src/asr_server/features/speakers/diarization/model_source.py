"""The values of SPEAKERS: the bundled models, a directory with others, or a hub id. Loads nothing."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress

from asr_server.core.bundled_package import DISTRIBUTION, VERSION, installed
from asr_server.core.errors import SpeakersUnavailable

EMBEDDED = "embedded"
# The embedded model that makes voice prints. Stored prints are compared only with prints of the same model.
VOICE_MODEL = "pyannote community-1"
MACHINES = ("x86_64", "aarch64")


def missing_package() -> str:
    """Return why the models cannot be used on this machine; "" if they can."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"{DISTRIBUTION} {VERSION} has the models for Linux on x86-64 and arm64 only"
    return "" if installed() else f"the package {DISTRIBUTION}=={VERSION} is not installed"


# The first of these files that exists is used. `model.onnx`: the released export of pyannote's segmentation 3.0.
SEGMENTATIONS = ("segmentation.onnx", "segmentation.ort", "model.onnx")
EMBEDDINGS = ("embedding.onnx", "embedding.ort")
PLDA, TRANSFORM = "plda.npz", "xvec_transform.npz"


def missing_file(directory: str) -> str:
    """Return which file the directory lacks, as part of a sentence; "" if it lacks none."""
    for names in (SEGMENTATIONS, EMBEDDINGS):
        if not first_of(directory, names):
            return f"it has neither {', '.join(names[:-1])} nor {names[-1]}"
    present = [name for name in (PLDA, TRANSFORM) if os.path.isfile(os.path.join(directory, name))]
    return f"it has only {present[0]}: {PLDA} and {TRANSFORM} belong together" if len(present) == 1 else ""


def located(source: str) -> str:
    """Return the source for `model_files.load`. Download the files of a hub id, unless they are in the hub's cache.

    Raises `SpeakersUnavailable`.
    """
    if source == EMBEDDED or os.path.isdir(source):
        return source
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        with suppress(LocalEntryNotFoundError):
            if not missing_file(directory := snapshot_download(source, local_files_only=True)):
                return directory
        # The optional files first: if the download breaks off, the directory does not look complete.
        commit = os.path.basename(snapshot_download(source, allow_patterns=[PLDA, TRANSFORM]))
        directory = snapshot_download(source, revision=commit, allow_patterns=[*SEGMENTATIONS, *EMBEDDINGS])
    except Exception as error:  # the hub client has dozens of error types
        raise SpeakersUnavailable(
            f"SPEAKERS={source}: the models are not in the local cache and could not be downloaded "
            f"({type(error).__name__}). Check the name and the network, or set SPEAKERS to a directory with them."
        ) from error
    if reason := missing_file(directory):
        raise SpeakersUnavailable(f"SPEAKERS={source}: {reason}.")
    return directory


def first_of(directory: str, names: tuple[str, ...]) -> str:
    """Return the path of the first of these files that exists, "" if none does."""
    return next((path for name in names if os.path.isfile(path := os.path.join(directory, name))), "")
