"""Models on this machine: which ones, how large, and whether complete. Downloads nothing, loads no weights."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asr_server import demo
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr import checkpoint
from asr_server.engine.weights import StoredWeights

# The released models of this architecture that can be downloaded.
RELEASED = ("Qwen/Qwen3-ASR-0.6B", "Qwen/Qwen3-ASR-1.7B", "Qwen/Qwen3-ForcedAligner-0.6B")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model on this machine."""

    name: str  # a value of MODEL_ID
    directory: Path
    size_bytes: int
    problem: str  # why it cannot be loaded, "" when it can
    downloaded: bool = False  # it is in the hub's cache
    has_digests: bool = False  # its files were compared with digests, so they need no other check
    is_here: bool = True  # False for a model of a package that is not installed


# Functions that find the models of features, by their values of MODEL_ID.
Bundled = Mapping[str, Callable[[], CachedModel]]


@dataclass(frozen=True, slots=True)
class Weights:
    """The content of weight files."""

    tensors: int
    parameters: int
    formats: tuple[str, ...]  # number formats, the most frequent first


def listed(bundled: Bundled = MappingProxyType({})) -> list[CachedModel]:
    """Return the models that came with the server, and the checkpoints of this architecture in the hub's cache, whole
    or not."""
    cached = [found for repo in _cached_repos() if _ours(found := _stored(repo))]
    others = [stored for find in bundled.values() if (stored := find()).is_here]
    own = _in_directory(checkpoint.DEMO, demo.checkpoint_path())
    return [own, *others, *sorted(cached, key=lambda stored: stored.name)]


def find(model_id: str, revision: str = "", bundled: Bundled = MappingProxyType({})) -> CachedModel | None:
    """Return the model with that name, hub id or directory, or None if it would have to be downloaded first.

    `revision`: a commit, tag or branch of a hub id.

    Raises `ModelUnavailable` if the name is neither a directory nor a hub id.
    """
    if model_id == checkpoint.DEMO:
        return _in_directory(model_id, demo.checkpoint_path())
    if model_id in bundled:
        return bundled[model_id]()
    if os.path.isdir(model_id):  # pathlib raises if a directory is not accessible
        return _in_directory(model_id, Path(model_id))
    if not checkpoint.is_hub_id(model_id):
        raise ModelUnavailable(f"MODEL_ID={model_id}: there is no such directory, and it is no hub id (owner/name).")
    repo = _cached_repo(model_id)
    return _stored(repo, revision) if repo and (not revision or _revision(repo, revision)) else None


def verify(stored: CachedModel) -> Weights | None:
    """Check the files, and read the header of every weight file, whose tensors must lie inside the file.

    Returns None for weights in other file formats, whose digests were checked. Raises `ModelUnavailable`, naming what
    is wrong.
    """
    wanted = checkpoint.Wanted("MODEL_ID", stored.name)
    if stored.has_digests:
        if stored.problem:
            raise ModelUnavailable(f"{wanted}: {stored.problem}")
        return None
    checkpoint.check(stored.directory, stored.name)
    try:
        held = StoredWeights(stored.directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(
            f"{wanted}: its weights are damaged or were cut short ({error}). Download the checkpoint again."
        ) from error
    for name, file_name in checkpoint.weight_map(stored.directory, wanted).items():
        if name not in held:
            raise ModelUnavailable(f"{wanted}: {file_name} lacks {name}. Download the checkpoint again.")
    parameters = Counter[str]()
    for weight in held.values():
        parameters[weight.format] += weight.numbers.size
    return Weights(len(held), parameters.total(), tuple(name for name, _ in parameters.most_common()))


def remove(model_id: str) -> int:
    """Delete a model from the hub's cache and return how many bytes that freed. Raises `ModelUnavailable`."""
    repo = None if model_id == checkpoint.DEMO or os.path.isdir(model_id) else _cached_repo(model_id)
    if repo is None:
        raise ModelUnavailable(f"{model_id} is not in the hub's cache; only what was downloaded there is removed.")
    from huggingface_hub import scan_cache_dir

    # Delete only this repository: the library selects by commits, and a copy of the repository has the same ones.
    cache = replace(scan_cache_dir(), repos=frozenset({repo}))
    strategy = cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
    strategy.execute()
    return int(strategy.expected_freed_size)


def cache_directory() -> Path:
    """Return the directory of downloads, which may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _cached_repos() -> list[Any]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return [repo for repo in scan_cache_dir().repos if repo.repo_type == "model" and repo.revisions]
    except CacheNotFound:
        return []
    except OSError as error:
        raise ModelUnavailable(f"The hub's cache (HF_HOME) cannot be read: {error.strerror}.") from None


def _cached_repo(model_id: str) -> Any:
    return next((repo for repo in _cached_repos() if repo.repo_id == model_id), None)


def _stored(repo: Any, wanted: str = "") -> CachedModel:
    # The engine takes `main`, or the latest revision if there is no `main`.
    revision = _revision(repo, wanted or "main") or max(repo.revisions, key=lambda r: r.last_modified)
    found = _in_directory(repo.repo_id, Path(revision.snapshot_path), int(repo.size_on_disk))
    return replace(found, downloaded=True)


def _revision(repo: Any, name: str) -> Any:
    return repo.refs.get(name) or next((found for found in repo.revisions if found.commit_hash == name), None)


def _in_directory(name: str, directory: Path, size_bytes: int | None = None) -> CachedModel:
    if size_bytes is None:
        size_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    problem = checkpoint.problem(directory, name).removeprefix(f"MODEL_ID={name}: ")
    return CachedModel(name, directory, size_bytes, problem)


def _ours(stored: CachedModel) -> bool:
    """True if the checkpoint is whole or, by its config or else by its name, belongs to this family."""
    if not stored.problem:
        return True
    try:
        config = json.loads((stored.directory / "config.json").read_text(encoding="utf-8"))
        return str(config["model_type"]).startswith(checkpoint.MODEL_TYPE)
    except (OSError, ValueError, KeyError, TypeError):
        return checkpoint.MODEL_TYPE in stored.name.lower().replace("-", "_")
