"""Encoders that were exported to files: their origin, how far they are from torch's, and the one in ONNX Runtime.

An exported encoder belongs to one checkpoint. Its file holds a hash of the weights of that checkpoint's encoder. When
the file is loaded, its output is compared with torch's in float32, on windows that are always the same.
"""

from __future__ import annotations

import hashlib
import json
import timeit
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from asr_server.core.environment import onnx_session
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.files import CheckpointFiles
from asr_server.engine.qwen_asr.loading import Parts
from asr_server.engine.qwen_asr.windows import Encoder, Window
from asr_server.engine.torch import memory
from asr_server.engine.torch.linear import MakeLinear, plain
from asr_server.engine.weights import Weight

# The key under which a file states its origin.
METADATA_KEY = "asr_server.encoder"
INPUTS, OUTPUT = ("pieces", "widths", "tokens"), "embeddings"

_PREFIX = "thinker.audio_tower."
# In float32, the largest difference of any number from torch's. In formats with fewer bits, the norm of the difference
# over the norm of torch's output: with 8-bit matrices the demonstration model differs by 0.020, random weights of the
# released shape by 0.033 (2026-11-23).
EXACT_BOUND, SHORT_BOUND = 1e-3, 0.1


class Target(NamedTuple):
    """The device and format in which embeddings are needed."""

    device: torch.device
    dtype: torch.dtype
    threads: int  # the most that may compute on a CPU


CPU = Target(torch.device("cpu"), torch.float32, 1)
# Windows of one call on a GPU: the first convolution of a window of the released shape takes 50 MB in float32.
_GPU_WINDOWS = 16


class Origin(NamedTuple):
    """The origin of an exported encoder."""

    weights: str  # hash of the checkpoint's encoder weights
    format: str  # of its numbers


class Deviation(NamedTuple):
    """The distance of embeddings from torch's in float32."""

    largest: float  # the largest difference
    relative: float  # the norm of all differences over the norm of torch's embeddings

    def __str__(self) -> str:
        largest, overall = f"{self.largest:.1e}", f"{self.relative:.1e}"
        return f"its numbers differ from torch's in float32 by at most {largest}, overall by {overall}"


class ExportedEncoder(Encoder):
    """An encoder from `file`, made by `asr-server export`. `tower` is torch's encoder, used only for the sizes of its
    windows."""

    origin: Origin
    most_windows: int  # of one call

    def __init__(self, file: Path, tower: Any, target: Target) -> None:
        super().__init__(tower.n_window, tower.n_window_infer)
        self.file, self.target = file, target

    @abstractmethod
    def run(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return embeddings (W, n, output_dim) on the target's device, of inputs that `_tensors` has made."""

    def __call__(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        found = list[torch.Tensor]()
        for start in range(0, len(windows), self.most_windows):
            self.on_layer()
            part = windows[start : start + self.most_windows]
            embeddings = self.run(self._tensors(part)).to(self.target.dtype)
            found += [row[: window.tokens] for row, window in zip(embeddings, part, strict=True)]
        return found

    def _tensors(self, windows: Sequence[Window]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the inputs of the exported graph: pieces (W, P, 128, 100) in float32, the others (W,) in int64."""
        size = self.piece_frames
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


def compared(encoder: ExportedEncoder, parts: Parts) -> str:
    """Compare the encoder with torch's, made from the layers of `parts`, and describe the result. Raises
    `ModelUnavailable`."""
    directory, name = parts.files.directory.name, str(encoder.file)
    if encoder.origin.weights != weights_hash(parts.files):
        raise ModelUnavailable(f"{name} holds the encoder of another checkpoint than {directory}: export it again.")
    found = checked(encoder, exact_encoder(parts), name)
    took_s = seconds(encoder, fixed_windows(encoder)[0])
    return f"{encoder.origin.format}; {found}; 8 s of audio take {1000 * took_s:.0f} ms"


@torch.inference_mode()
def checked(encoder: ExportedEncoder, exact: Encoder, name: str) -> Deviation:
    """Return how far the encoder is from an exact one. Raises `ModelUnavailable` if it is too far for its format."""
    windows = fixed_windows(encoder)
    want, got = (torch.cat([own.float().cpu() for own in one(windows)]) for one in (exact, encoder))
    found = Deviation(float("inf"), float("inf"))
    if want.shape == got.shape:
        found = Deviation(float((got - want).abs().max()), float((got - want).norm() / want.norm()))
    is_exact = encoder.origin.format == "float32"
    distance, bound = (found.largest, EXACT_BOUND) if is_exact else (found.relative, SHORT_BOUND)
    if not distance <= bound:  # also if it is NaN
        raise ModelUnavailable(f"{name} cannot be used: {found}; at most {bound:g} is allowed. Export it again.")
    return found


def seconds(encoder: Encoder, window: Window) -> float:
    return min(timeit.repeat(lambda: encoder([window])[0].cpu(), number=1, repeat=3))


def weights_hash(files: CheckpointFiles) -> str:
    """Return the SHA-256 of the encoder's weights as they are stored, with their names and shapes."""
    digest = hashlib.sha256()
    for name, weight in sorted(_stored(files).items()):
        digest.update(f"{name} {weight.format} {weight.shape}\n".encode())
        digest.update(weight.numbers.tobytes())
    return digest.hexdigest()


def exact_encoder(parts: Parts, make_linear: MakeLinear = plain) -> WindowedEncoder:
    """Return the encoder in float32 with the weights as they are stored, in the tower of `parts`, on the CPU."""
    tower = parts.tower.to("cpu", torch.float32)
    tower.load_state_dict({name: torch.from_numpy(own.floats()) for name, own in _stored(parts.files).items()})
    return WindowedEncoder(tower, make_linear)


def _stored(files: CheckpointFiles) -> dict[str, Weight]:
    return {name.removeprefix(_PREFIX): own for name, own in files.weights().items() if name.startswith(_PREFIX)}


def fixed_windows(encoder: Encoder) -> list[Window]:
    """Return a whole window, the beginning of one, and a clip that is shorter than a piece."""
    generator = torch.Generator().manual_seed(0)
    frames = encoder.window_frames
    long, short = (torch.rand(128, count, generator=generator) * 2 - 1 for count in (frames + frames // 3, 37))
    return [*encoder.windows(long), *encoder.windows(short)]


class OnnxEncoder(ExportedEncoder):
    """An encoder in ONNX Runtime. Raises `ModelUnavailable`.

    On a CPU each window is a call of its own: a larger call is not faster, and 8-bit activations have one scale in a
    call, so that other windows would change the result.
    """

    def __init__(self, file: Path, tower: Any, target: Target) -> None:
        super().__init__(file, tower, target)
        self.most_windows = 1 if target.device.type == "cpu" else _GPU_WINDOWS
        self._session, self.origin = open_encoder(file, target)

    def run(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        (rows,) = self._session.run(None, {name: own.numpy() for name, own in zip(INPUTS, inputs, strict=True)})
        return memory.upload(torch.from_numpy(rows).to(self.target.dtype), self.target.device)


def open_encoder(file: Path, target: Target = CPU) -> tuple[Any, Origin]:
    """Open a file, and return the session and the origin that the file states. Raises `ModelUnavailable`."""
    with failures(file):
        providers: list[Any] = ["CPUExecutionProvider"]
        if target.device.type == "cuda":
            # TF32 would round the inputs of products to 10 bits.
            device = {"device_id": str(target.device.index or 0), "use_tf32": "0"}
            providers.insert(0, ("CUDAExecutionProvider", device))
        session = onnx_session(file, threads=target.threads, providers=providers, keeps_memory=True)
        if len(session.get_providers()) < len(providers):
            raise RuntimeError("ONNX Runtime cannot use the GPU here")
    try:
        return session, Origin(**json.loads(session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, "")))
    except (ValueError, TypeError) as error:
        raise ModelUnavailable(f"{file} is no encoder that `asr-server export` made.") from error


@contextmanager
def failures(file: Path) -> Iterator[None]:
    """Turn a library's exceptions about a file into `ModelUnavailable`."""
    try:
        yield
    except Exception as error:  # neither library's exceptions have a common base class
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ModelUnavailable(f"{file} cannot be loaded: {reason}") from error
