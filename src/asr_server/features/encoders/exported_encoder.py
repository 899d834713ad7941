"""The common part of encoders that were exported to files: their origin, and how far they are from torch's.

An exported encoder belongs to one checkpoint. Its file states a hash of the weights of that checkpoint's encoder, and
when it is loaded its output is compared with torch's in float32, on windows that are always the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from safetensors import safe_open

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr import hf_layout, loading
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.windows import Encoder, LoadedEncoder, Window, WindowedAudio
from asr_server.engine.torch.linear import MakeLinear, plain

# The key under which a file says what it is.
METADATA_KEY = "asr_server.encoder"
INPUTS, OUTPUT = ("pieces", "widths", "tokens"), "embeddings"

_PREFIX = "thinker.audio_tower."
# In float32 the largest difference of a number from torch's. In formats of fewer bits the length of the difference
# relative to the length of torch's: with 8-bit matrices the demonstration model differs by 0.020, random weights of the
# released shape by 0.033 (2026-11-23).
EXACT_BOUND, SHORT_BOUND = 1e-3, 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """The device and format in which embeddings are needed."""

    device: torch.device
    dtype: torch.dtype
    threads: int  # the most that may compute on a CPU


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an exported encoder."""

    weights: str  # hash of the checkpoint's encoder weights
    format: str  # of its numbers

    def dumps(self) -> str:
        """Return the origin as metadata of a file."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str, file: str) -> Origin:
        """Read the origin from the metadata of a file. Raises `ModelUnavailable`."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ModelUnavailable(f"{file} is no encoder that `asr-server export` made.") from error

    def check(self, directory: Path, file: str) -> None:
        """Raise `ModelUnavailable` unless it is of the checkpoint in `directory`."""
        if self.weights != weights_hash(directory):
            raise ModelUnavailable(
                f"{file} holds the encoder of another checkpoint than {directory.name}: export it again."
            )


@dataclass(frozen=True, slots=True)
class Deviation:
    """The distance of embeddings from torch's."""

    largest: float  # the largest difference
    relative: float  # the length of all differences divided by that of torch's embeddings

    def __str__(self) -> str:
        return (
            f"its numbers differ from torch's in float32 by at most {self.largest:.1e}, overall by {self.relative:.1e}"
        )

    def check(self, origin: Origin, file: str) -> None:
        """Raise `ModelUnavailable` where it is more than the format explains."""
        exact = origin.format == "float32"
        found, bound = (self.largest, EXACT_BOUND) if exact else (self.relative, SHORT_BOUND)
        if not found <= bound:  # also where it is no number
            raise ModelUnavailable(f"{file} cannot be used: {self}; at most {bound:g} is allowed. Export it again.")


class ExportedEncoder(Encoder):
    """An encoder from `file`, made by `asr-server export`."""

    file: Path
    origin: Origin


def measured(option: str, encoder: ExportedEncoder, directory: Path, parts: loading.Parts) -> LoadedEncoder:
    """Return the encoder that an option names, compared with that of `parts`, which is of no use afterwards, and what
    was measured. Raises `ModelUnavailable`."""
    file, reason = str(encoder.file), compared(encoder, directory, parts.tower)
    logger.info("option", name=option, value=file, reason=reason)
    figures = (Option(option, True, file, reason),)
    return LoadedEncoder(encoder, partial(WindowedAudio, encoder), figures, uses_tower=False)


@torch.inference_mode()
def compared(encoder: ExportedEncoder, directory: Path, tower: Any) -> str:
    """Compare the encoder with torch's, made from the layers of the SDK's `tower`, and return what was found.

    Raises `ModelUnavailable`.
    """
    name = str(encoder.file)
    encoder.origin.check(directory, name)
    windows = fixed_windows(encoder)
    expected = exact_encoder(tower, directory)(windows)
    found = deviation(expected, encoder(windows))
    found.check(encoder.origin, name)
    return f"{encoder.origin.format}; {found}; 8 s of audio take {1000 * seconds(encoder, windows[0]):.0f} ms"


def seconds(encoder: Encoder, window: Window) -> float:
    """Return the least that one window took in three calls."""
    took = []
    for _ in range(3):
        began_s = time.perf_counter()
        encoder([window])[0].cpu()
        took.append(time.perf_counter() - began_s)
    return min(took)


def weights_hash(directory: Path) -> str:
    """SHA-256 of the encoder's weights as they are stored, with their names and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_stored(directory), key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def exact_encoder(tower: Any, directory: Path, make_linear: MakeLinear = plain) -> WindowedEncoder:
    """Return the encoder in float32 with the weights as they are stored, in place of those of `tower`, on the CPU."""
    tower = tower.to("cpu", torch.float32)
    tower.load_state_dict(dict(_stored(directory)))
    return WindowedEncoder(tower, make_linear)


def _stored(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            for stored in weights.keys():  # noqa: SIM118 - it is no dict
                name = stored
                for pattern, replacement in hf_layout.KEYS.items():
                    name = re.sub(pattern, replacement, name)
                if name.removeprefix("model.").startswith(_PREFIX):
                    yield name.removeprefix("model.").removeprefix(_PREFIX), weights.get_tensor(stored)


def fixed_windows(encoder: Encoder) -> list[Window]:
    """Return a whole window, the beginning of one, and a clip that is shorter than a piece."""
    generator = torch.Generator().manual_seed(0)
    frames = encoder.window_frames
    long, short = (torch.rand(128, count, generator=generator) * 2 - 1 for count in (frames + frames // 3, 37))
    return [*encoder.windows(long), *encoder.windows(short)]


def deviation(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Deviation:
    """Return the deviation of embeddings (tokens, output_dim) of some windows."""
    want, got = (torch.cat([own.float().cpu() for own in parts]) for parts in (expected, found))
    if want.shape != got.shape:
        return Deviation(float("inf"), float("inf"))
    difference = got - want
    return Deviation(float(difference.abs().max()), float(difference.norm() / want.norm()))


@contextmanager
def failures(file: str) -> Iterator[None]:
    """Turn what a library raises about a file into `ModelUnavailable`."""
    try:
        yield
    except ModelUnavailable:
        raise
    except Exception as error:  # neither library's exceptions have a common base class
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ModelUnavailable(f"{file} cannot be loaded: {reason}") from error


def tensors(encoder: Encoder, windows: Sequence[Window]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the inputs of the exported graph: pieces (W, P, 128, 100) in float32, the others (W,) in int64."""
    size = encoder.piece_frames
    count = max(-(-window.mel.shape[1] // size) for window in windows)
    pieces = torch.zeros(len(windows), 128, count * size)
    for row, window in zip(pieces, windows, strict=True):
        row[:, : window.mel.shape[1]] = torch.as_tensor(window.mel)
    widths = [min(size, window.mel.shape[1]) if window.whole else size for window in windows]
    return (
        pieces.unflatten(2, (count, size)).transpose(1, 2).contiguous(),
        torch.tensor(widths),
        torch.tensor([window.tokens for window in windows]),
    )
