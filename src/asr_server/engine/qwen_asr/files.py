"""The files of a checkpoint except its weights: configuration, tokenizer, template, features, end tokens.

Both layouts are read; see `hf_layout`. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_server.core.errors import AsrError, EngineOutOfMemory, ModelUnavailable
from asr_server.engine import faults
from asr_server.engine.qwen_asr import hf_layout
from asr_server.engine.qwen_asr.frontend import MelSettings
from asr_server.engine.qwen_asr.tokenizer import TextTokenizer
from asr_server.engine.weights import StoredWeights

# The SDK's defaults, for files that do not name these tokens.
_AUDIO_ID = 151_646
_ENDS = ("<|im_end|>", "<|endoftext|>")
# All names of weights begin with this in one of the two layouts.
_MODEL = {r"^model\.thinker\.": "thinker."}


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointFiles:
    """The files of a checkpoint."""

    directory: Path
    config: dict[str, Any]  # config.json, in the SDK's layout
    is_hf: bool  # the files are in the other layout
    tokenizer: TextTokenizer
    mel: MelSettings

    @property
    def thinker(self) -> dict[str, Any]:
        """Return the configuration of encoder and language model."""
        found: dict[str, Any] = self.config["thinker_config"]
        return found

    @property
    def audio_id(self) -> int:
        return int(self.thinker.get("audio_token_id", _AUDIO_ID))

    @property
    def no_speech_id(self) -> int:
        return self.tokenizer.ids("language None")[1]

    @property
    def positions(self) -> int:
        return int(self.thinker["text_config"]["max_position_embeddings"])

    def weights(self) -> StoredWeights:
        """Map the weights, by the SDK's names without the prefix "model."."""
        return StoredWeights(self.directory, {**hf_layout.KEYS, **_MODEL} if self.is_hf else _MODEL)

    def end_ids(self) -> frozenset[int]:
        """Return the tokens that end an answer: the generation config's, or the SDK's built-in ones if the config names
        none. Raises `ModelUnavailable`."""
        file = self.directory / "generation_config.json"
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else self.config
        ends = settings.get("eos_token_id")
        if ends is None:
            numbers = {token: self.tokenizer.number(token) for token in self.tokenizer.added}
            ends = [numbers[token] for token in _ENDS if token in numbers]
        if not ends and ends != 0:
            raise ModelUnavailable("The checkpoint has no eos_token_id in generation_config.json, and no such token.")
        return frozenset(ends if isinstance(ends, list) else [ends])


@dataclass(frozen=True, slots=True)
class Stamps:
    """The time slots of an aligner."""

    token: int  # the slots are read at the places of this token
    slot_ms: float  # how long a slot is
    languages: tuple[str, ...]  # the model's names, () if the checkpoint names none


def stamps(files: CheckpointFiles) -> Stamps:
    """Return the time slots of an aligner. Raises `ModelUnavailable`."""
    config = files.config
    token, slot_ms = config.get("timestamp_token_id"), config.get("timestamp_segment_time")
    if token is None or not slot_ms or not files.thinker.get("classify_num"):
        raise ModelUnavailable(
            f"The aligner in {files.directory.name} does not say what its time slots are; it is of another version."
        )
    return Stamps(int(token), float(slot_ms), tuple(config.get("support_languages") or ()))


def read(directory: Path) -> CheckpointFiles:
    """Read the files of a checked checkpoint. Raises `ModelUnavailable` if they are damaged."""
    with failures(directory):
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        is_hf = hf_layout.is_hf(config)
        if is_hf:
            processor = json.loads((directory / "processor_config.json").read_text(encoding="utf-8"))
            config = hf_layout.sdk_config(config, processor)
        return CheckpointFiles(directory, config, is_hf, TextTokenizer.load(directory), MelSettings.load(directory))


@contextmanager
def failures(directory: Path) -> Iterator[None]:
    """Turn library errors into `EngineOutOfMemory` if memory has run out, else into `ModelUnavailable`."""
    try:
        yield
    except AsrError:
        raise
    except Exception as error:  # each library raises its own kinds
        if isinstance(no_memory := faults.failure(error, "the model"), EngineOutOfMemory):
            raise no_memory from error
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} cannot be loaded ({type(error).__name__}); it is damaged or of "
            "another version. Download it again."
        ) from error
