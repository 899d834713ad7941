"""Locates and checks checkpoints: a model's name becomes a directory that can be loaded, or an error that says what to
do."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_server import demo
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr import hf_layout

OnDownload = Callable[[int], None]

DEMO = "demo"
MODEL_TYPE = "qwen3_asr"
_ALIGNER = "forced_aligner"
_WATCH_S = 1.0
_NEEDED = ("config.json", "tokenizer_config.json")
_SDK_NEEDED = ("preprocessor_config.json",)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested checkpoint."""

    setting: str  # the variable that names it
    value: str
    aligner: bool = False  # it must be an aligner
    revision: str = ""  # of a hub id, "" for the one in the cache, or the newest
    update: bool = False  # ask the hub even if there is one in the cache

    def __str__(self) -> str:
        return f"{self.setting}={self.value}" + (f" ({self.revision})" if self.revision else "")


# Raises `ModelUnavailable` unless the directory holds what is wanted.
Check = Callable[[Path, Wanted], object]


def locate(
    name: str,
    on_download: OnDownload | None = lambda size_bytes: None,
    *,
    aligner: bool = False,
    revision: str = "",
    update: bool = False,
) -> Path:
    """Return the local directory of a model or an aligner: the bundled one, or what `find` returns, which describes the
    arguments. Raises `ModelUnavailable`, also if the checkpoint cannot be loaded."""
    wanted = Wanted("FORCED_ALIGNER_ID" if aligner else "MODEL_ID", name, aligner, revision, update)
    if name == DEMO:
        return demo.aligner_path() if aligner else demo.checkpoint_path()
    return find(wanted, _check, on_download)


def local(name: str, *, aligner: bool = False, revision: str = "") -> Path | None:
    """Return the directory of a model or an aligner if it is on this machine and whole. Does not contact the hub."""
    try:
        return locate(name, None, aligner=aligner, revision=revision)
    except ModelUnavailable:
        return None


def find(wanted: Wanted, check: Check, on_download: OnDownload | None) -> Path:
    """Return the directory that `check` finds whole: one given by path, or the snapshot of a hub id.

    A snapshot in the cache is used as it is unless an update is wanted, so that the model never changes by itself.
    While a download grows, `on_download` is called about once a second, on another thread, with the bytes downloaded so
    far. If it is None, the hub is not contacted. Raises `ModelUnavailable`.
    """
    if os.path.isdir(wanted.value):  # pathlib raises if a directory is not accessible
        directory = Path(wanted.value)
    elif not is_hub_id(wanted.value):
        raise ModelUnavailable(f"{wanted}: there is no such directory, and it is no hub id (owner/name).")
    else:
        directory = _snapshot(wanted, check, on_download)
    check(directory, wanted)
    return directory


def revision_of(directory: Path) -> str:
    return directory.name if directory.parent.name == "snapshots" else ""


def is_hub_id(name: str) -> bool:
    return not name.startswith((".", "/", "~")) and name.count("/") == 1


def at_revision(name: str) -> tuple[str, str]:
    """Split `owner/name@revision`. The revision is "" if there is none, or if `name` is not a hub id."""
    model_id, _, revision = name.partition("@")
    return (model_id, revision) if is_hub_id(name) and not os.path.isdir(name) else (name, "")


def check(directory: Path, name: str) -> None:
    """Raise `ModelUnavailable` unless `directory` holds a whole model or aligner."""
    path = directory / "config.json"
    config = read_json(path, Wanted("MODEL_ID", name)) if path.is_file() else {}
    aligner = _is_aligner(config)
    _check(directory, Wanted("FORCED_ALIGNER_ID" if aligner else "MODEL_ID", name, aligner))


def problem(directory: Path, name: str) -> str:
    """Return why the checkpoint cannot be loaded, "" if it can."""
    try:
        check(directory, name)
    except ModelUnavailable as error:
        return error.message
    return ""


def _snapshot(wanted: Wanted, check: Check, on_download: OnDownload | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.file_download import repo_folder_name

    revision = wanted.revision or None
    try:
        if not wanted.update:
            with suppress(LocalEntryNotFoundError, ModelUnavailable):
                found = Path(snapshot_download(wanted.value, revision=revision, local_files_only=True))
                check(found, wanted)
                return found
        if on_download is None:
            raise ModelUnavailable(f"{wanted}: the checkpoint is not in the local cache.")
        blobs = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=wanted.value, repo_type="model"), "blobs")
        with _growth_of(blobs, on_download):
            return Path(snapshot_download(wanted.value, revision=revision))
    except ModelUnavailable:
        raise
    except Exception as error:  # the client has dozens of error types; the operator needs the way out, and the cause
        if isinstance(error, OSError) and error.filename:
            raise ModelUnavailable(f"{wanted}: the hub's cache (HF_HOME) cannot be used: {error.strerror}.") from error
        raise ModelUnavailable(
            f"{wanted}: the checkpoint is not in the local cache and could not be downloaded "
            f"({type(error).__name__}). Check the name and the network, or download it elsewhere and set "
            f"{wanted.setting} to its directory."
        ) from error


@contextmanager
def _growth_of(directory: Path, report: OnDownload) -> Iterator[None]:
    """Until the block ends, report by how many bytes the files of a directory have grown, whenever they grow.

    The hub's client reports the bytes of a file only to the terminal.
    """
    ended = threading.Event()
    begin = _size(directory)

    def watch() -> None:
        last = begin
        while not ended.wait(_WATCH_S):
            if (size := _size(directory)) > last:
                report(size - begin)
                last = size

    watcher = threading.Thread(target=watch, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()  # a report after the end would be taken for a download under way


def _size(directory: Path) -> int:
    try:
        with os.scandir(directory) as files:
            return sum(file.stat().st_size for file in files)
    except OSError:  # not there yet, or a file has just got its final name
        return 0


def _check(directory: Path, wanted: Wanted) -> None:
    """Raise `ModelUnavailable` unless `directory` holds a complete checkpoint in the layout that the SDK loads."""
    missing = [name for name in _NEEDED if not (directory / name).is_file()]
    if "config.json" in missing:
        raise ModelUnavailable(f"{wanted}: not a checkpoint, it has no config.json.")
    config = read_json(directory / "config.json", wanted)
    _check_architecture(config, wanted)
    of_layout = hf_layout.NEEDED if hf_layout.is_hf(config) else _SDK_NEEDED
    missing += [name for name in of_layout if not (directory / name).is_file()]
    missing += missing_weights(directory, wanted)
    if missing:
        raise ModelUnavailable(
            f"{wanted}: the checkpoint is incomplete, it lacks {', '.join(missing)}. Download it again."
        )


def _check_architecture(config: dict[str, Any], wanted: Wanted) -> None:
    kind = str(config.get("model_type", "unknown"))
    if not kind.startswith(MODEL_TYPE):
        raise ModelUnavailable(f"{wanted}: this is a '{kind}' checkpoint; the server runs Qwen3-ASR ('{MODEL_TYPE}').")
    if "thinker_config" not in config and not hf_layout.is_hf(config):
        raise ModelUnavailable(f"{wanted}: config.json describes neither layout of Qwen3-ASR. Download it again.")
    aligner = _is_aligner(config)
    if aligner and not wanted.aligner:
        raise ModelUnavailable(f"{wanted}: this is a forced aligner; it cannot transcribe.")
    if wanted.aligner and not aligner:
        raise ModelUnavailable(f"{wanted}: this is a speech recogniser; it cannot align. Name a forced aligner.")


def _is_aligner(config: dict[str, Any]) -> bool:
    if hf_layout.is_hf(config):
        return hf_layout.is_aligner(config)
    thinker = config.get("thinker_config")
    return isinstance(thinker, dict) and _ALIGNER in str(thinker.get("model_type", ""))


def weight_map(directory: Path, wanted: Wanted) -> dict[str, str]:
    """Return the file of each tensor, from the index of a checkpoint that is split over several files."""
    index = directory / "model.safetensors.index.json"
    found: dict[str, str] = read_json(index, wanted).get("weight_map", {}) if index.is_file() else {}
    return found


def missing_weights(directory: Path, wanted: Wanted) -> list[str]:
    """Return the names of weight files that are missing."""
    files = set(weight_map(directory, wanted).values()) or {"model.safetensors"}
    return sorted(name for name in files if not (directory / name).is_file())


def read_json(path: Path, wanted: Wanted) -> dict[str, Any]:
    """Return the object in a file. Raises `ModelUnavailable`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ModelUnavailable(f"{wanted}: {path.name} is damaged. Download the checkpoint again.")
    return content
