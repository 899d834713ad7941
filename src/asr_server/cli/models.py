"""`asr-server models`: lists, downloads, verifies and removes models."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from asr_server.cli.failure import UsageError

if TYPE_CHECKING:
    from asr_server.core.settings import Settings

EXAMPLES = """\
examples:
  asr-server models list
  asr-server models download Qwen/Qwen3-ASR-0.6B      the newest, also where an older one is in the cache
  asr-server models download piper/de_DE-thorsten-medium     a voice; SPEECH takes the same name
  asr-server models verify Qwen/Qwen3-ASR-0.6B
  asr-server models remove Qwen/Qwen3-ASR-0.6B --yes

exit codes: 0 done; 1 not found, incomplete or not downloaded; 2 wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser(
        "list", help="list the models that are bundled, downloaded and downloadable, and whether they are complete"
    ).set_defaults(run=_list)
    download = actions.add_parser("download", help="download a model into the hub's cache")
    download.add_argument("model", metavar="ID", help="hub id: owner/name")
    _add_revision(download)
    download.set_defaults(run=_download)
    verify = actions.add_parser("verify", help="check the files of a model and the headers of its weights")
    verify.add_argument("model", metavar="ID|DIR", help="hub id, directory, 'demo' or 'moonshine-tiny-en'")
    _add_revision(verify)
    verify.set_defaults(run=_verify)
    remove = actions.add_parser("remove", help="delete a model from the hub's cache")
    remove.add_argument("model", metavar="ID", help="hub id: owner/name")
    remove.add_argument("--yes", action="store_true", help="do not ask")
    remove.set_defaults(run=_remove)


def _add_revision(action: argparse.ArgumentParser) -> None:
    action.add_argument("--revision", default="", metavar="REV", help="commit, tag or branch of a hub id")


def state(settings: Settings) -> tuple[bool, str]:
    """Return whether the model of the settings is on this machine, and a text about it.

    Raises `ModelUnavailable` if the model cannot be loaded.
    """
    from asr_server import feature_list
    from asr_server.core.errors import ModelUnavailable
    from asr_server.engine import plan
    from asr_server.engine.qwen_asr import model_cache

    resolved = feature_list.resolve(settings)
    if resolved.engine == plan.FAKE or resolved.remote is not None:
        return True, resolved.model_id
    model_id, revision = resolved.model_id, resolved.model_revision
    stored = model_cache.find(model_id, revision, feature_list.bundled_models())
    if stored is None:
        download = f"asr-server models download {model_id}" + (f" --revision {revision}" if revision else "")
        when = "it is downloaded now" if settings.preload else f"the first request downloads it, or: {download}"
        return False, f"{model_id} is not on this machine yet; {when}"
    if stored.problem:
        raise ModelUnavailable(f"{model_id}: {stored.problem}")
    model_cache.verify(stored)
    return True, f"{model_id}, {size_text(stored.size_bytes)}, complete"


def size_text(size_bytes: int) -> str:
    """Return a size in decimal units with three figures, as hubs and disks are labelled."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes} B"


def _list(parsed: argparse.Namespace) -> None:
    from asr_server.engine.qwen_asr import model_cache
    from asr_server.feature_list import bundled_models

    found = model_cache.listed(bundled_models())
    absent = [name for name in model_cache.RELEASED if name not in {stored.name for stored in found}]
    width = max(map(len, [*absent, *(stored.name for stored in found)]))
    for stored in found:
        source, size = "downloaded" if stored.downloaded else "bundled", size_text(stored.size_bytes)
        print(f"{stored.name:{width}}  {source:12}  {size:>8}  {stored.problem or 'complete'}")
    for name in absent:
        print(f"{name:{width}}  downloadable  {'':8}  asr-server models download {name}")


def _download(parsed: argparse.Namespace) -> None:
    from asr_server.engine.qwen_asr import checkpoint, model_cache
    from asr_server.feature_list import bundled_models
    from asr_server.features.speech_output.engines.piper import voice

    try:
        if (file := voice.fetch(parsed.model)) is not None:
            print(f"{parsed.model}  {size_text(file.stat().st_size)}  {file.parent}")
            return
        # The hub's library shows a progress bar.
        directory = checkpoint.locate(parsed.model, revision=parsed.revision, update=True)
        stored = model_cache.find(parsed.model, parsed.revision, bundled_models())
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; files that are complete are kept") from None
    if stored:
        print(f"{stored.name}  {size_text(stored.size_bytes)}  {directory}")


def _verify(parsed: argparse.Namespace) -> None:
    from asr_server.core.errors import ModelUnavailable
    from asr_server.engine.qwen_asr import model_cache
    from asr_server.feature_list import bundled_models

    stored = model_cache.find(parsed.model, parsed.revision, bundled_models())
    if stored is None:
        raise ModelUnavailable(f"{parsed.model} is not on this machine: asr-server models download {parsed.model}")
    weights = model_cache.verify(stored)
    content = "its files are those of its package"
    if weights is not None:
        formats = ", ".join(weights.formats)
        content = f"{weights.tensors} tensors, {weights.parameters / 1e6:.1f} million parameters, {formats}"
    print(f"{stored.name} is complete: {content}, {size_text(stored.size_bytes)}")


def _remove(parsed: argparse.Namespace) -> None:
    from asr_server.core.errors import ModelUnavailable
    from asr_server.engine.qwen_asr import model_cache

    if not parsed.yes:
        if not sys.stdin.isatty():
            raise UsageError("standard input is not a terminal, so nobody can confirm; use --yes.")
        if input(f"Delete {parsed.model} from the cache? [y/N] ").strip().lower() not in {"y", "yes"}:
            raise ModelUnavailable("Nothing was deleted.")
    print(f"{parsed.model} is deleted; {size_text(model_cache.remove(parsed.model))} freed.")
