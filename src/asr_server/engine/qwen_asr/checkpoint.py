"""Locates and checks checkpoints: a model's name becomes a directory that can be loaded, or an error that says what to
do."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """A checkpoint that is looked for."""

    setting: str  # the variable that names it
    value: str
    aligner: bool = False  # it is to be an aligner
    revision: str = ""  # of a hub id, "" for the one in the cache, or the newest
    update: bool = False  # ask the hub even if there is one in the cache

    def __str__(self) -> str:
        return f"{self.setting}={self.value}" + (f" ({self.revision})" if self.revision else "")


# Raises `ModelUnavailable` unless the directory holds what is wanted.
Check = Callable[[Path, Wanted], object]


def locate(
    model_id: str, on_download: OnDownload = lambda size_bytes: None, *, revision: str = "", update: bool = False
) -> Path:
    """Return the local directory of a model: the bundled one, a directory given by path, or a hub snapshot.

    A snapshot in the cache is taken as it is, so that the model never changes by itself; `update` fetches the newest.
    `revision`: commit, tag or branch. `on_download` is called about once a second, on another thread, with the bytes
    that a download has brought so far, whenever there are more. Raises `ModelUnavailable` when there is no model, or
    when what is there cannot be loaded by the SDK.
    """
    wanted = Wanted("MODEL_ID", model_id, revision=revision, update=update)
    return _located(wanted, demo.checkpoint_path(), on_download)


def on_disk(model_id: str, *, revision: str = "") -> bool:
    """True if the model is on this machine and whole. Asks no hub."""
    wanted = Wanted("MODEL_ID", model_id, revision=revision)
    if model_id != DEMO and not os.path.isdir(model_id):
        return is_hub_id(model_id) and cached(wanted) is not None
    return not problem(demo.checkpoint_path() if model_id == DEMO else Path(model_id), model_id)


def locate_aligner(aligner_id: str, on_download: OnDownload = lambda size_bytes: None, *, revision: str = "") -> Path:
    """Return the directory of a checked aligner, downloaded if it has to be. Raises `ModelUnavailable`."""
    wanted = Wanted("FORCED_ALIGNER_ID", aligner_id, aligner=True, revision=revision)
    return _located(wanted, demo.aligner_path(), on_download)


def local(name: str, *, aligner: bool = False, revision: str = "") -> Path | None:
    """Return the directory of a model or an aligner if it is on this machine and whole. Asks no hub."""
    wanted = Wanted("FORCED_ALIGNER_ID" if aligner else "MODEL_ID", name, aligner=aligner, revision=revision)
    if name != DEMO and not os.path.isdir(name):
        return cached(wanted) if is_hub_id(name) else None
    try:
        return locate_aligner(name) if aligner else locate(name)
    except ModelUnavailable:
        return None


def revision_of(directory: Path) -> str:
    """Return the commit of a hub snapshot, "" for other directories."""
    return directory.name if directory.parent.name == "snapshots" else ""


def _located(wanted: Wanted, bundled: Path, on_download: OnDownload) -> Path:
    name = wanted.value
    if name == DEMO:
        directory = bundled
    elif os.path.isdir(name):  # pathlib raises where a directory is closed
        directory = Path(name)
    elif not is_hub_id(name):
        raise ModelUnavailable(f"{wanted}: there is no such directory, and it is no hub id (owner/name).")
    else:
        directory = fetch(wanted, on_download)
    _check(directory, wanted)
    return directory


def is_hub_id(name: str) -> bool:
    """True if a name has the shape owner/name, and is no path."""
    return not name.startswith((".", "/", "~")) and name.count("/") == 1


def check(directory: Path, name: str) -> None:
    """Raise `ModelUnavailable` unless `directory` holds a whole model or aligner that the SDK loads."""
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


def fetch(wanted: Wanted, on_download: OnDownload, check: Check | None = None) -> Path:
    """Return the snapshot of a hub id: the one in the cache if `check` finds it whole and nothing newer is wanted, else
    a download, which is not checked. Raises `ModelUnavailable`."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.file_download import repo_folder_name

    blobs = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=wanted.value, repo_type="model"), "blobs")
    try:
        if not wanted.update and (found := cached(wanted, check)):
            return found
        with _growth_of(blobs, on_download):
            return Path(snapshot_download(wanted.value, revision=wanted.revision or None))
    except (
        Exception
    ) as error:  # the hub client has dozens of error types; the operator needs the way out, and the cause
        if isinstance(error, OSError) and error.filename:
            raise ModelUnavailable(f"{wanted}: the hub's cache (HF_HOME) cannot be used: {error.strerror}.") from error
        raise ModelUnavailable(
            f"{wanted}: the checkpoint is not in the local cache and could not be downloaded "
            f"({type(error).__name__}). Check the name and the network, or download it elsewhere and set "
            f"{wanted.setting} to its directory."
        ) from error


def cached(wanted: Wanted, check: Check | None = None) -> Path | None:
    """Return the whole snapshot in the cache, without a question to the hub. `check` raises `ModelUnavailable` where it
    is not whole; without one it is to be a recogniser or an aligner."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        directory = Path(snapshot_download(wanted.value, revision=wanted.revision or None, local_files_only=True))
        (check or _check)(directory, wanted)
    except (LocalEntryNotFoundError, ModelUnavailable):
        return None
    return directory


@contextmanager
def _growth_of(directory: Path, report: OnDownload) -> Iterator[None]:
    """Report, until the block ends, by how many bytes the files of a directory have grown, whenever they have.

    The hub's client reports the bytes of a file to the terminal alone.
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


def missing_weights(directory: Path, wanted: Wanted) -> list[str]:
    """Return the names of weight files that are not there."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = set(read_json(index, wanted).get("weight_map", {}).values())
        return sorted(name for name in shards if not (directory / name).is_file())
    return [] if (directory / "model.safetensors").is_file() else ["model.safetensors"]


def read_json(path: Path, wanted: Wanted) -> dict[str, Any]:
    """Return the object in a file. Raises `ModelUnavailable`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelUnavailable(f"{wanted}: {path.name} is damaged. Download the checkpoint again.") from error
    if not isinstance(content, dict):
        raise ModelUnavailable(f"{wanted}: {path.name} is damaged. Download the checkpoint again.")
    return content
