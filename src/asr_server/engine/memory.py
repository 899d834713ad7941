"""Free and needed memory: of the machine, of weights, of rows, of a step.

torch is imported only when the memory of a GPU is queried.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asr_server.core import idle
from asr_server.engine.weights import StoredWeights

if TYPE_CHECKING:
    from asr_server.engine.feature import Plan

MIB = 1024 * 1024
# Activations of a pass of the released models in 16 bits.
PASS_BYTES = 512 * MIB
CGROUP = Path("/sys/fs/cgroup")


class NoRoom(MemoryError):
    """The rows of the batch became longer than they together have room for."""


def free_bytes(device: str = "cpu") -> int:
    """Return the free bytes of a GPU, or the bytes that the kernel and the container's limit leave."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(min(int(rows["MemAvailable"].split()[0]) * 1024, _left_bytes()))


def _left_bytes() -> float:
    """Return the bytes that a container's limit leaves; files that the kernel caches for it count as free."""
    limit = CGROUP / "memory.max"
    text = limit.read_text().strip() if limit.is_file() else "max"
    if text == "max":
        return math.inf
    used = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    cached = int(used["active_file"]) + int(used["inactive_file"])
    return max(0, int(text) - int((CGROUP / "memory.current").read_text()) + cached)


def would_fit(device: str, dtype: str, directory: Path, *, quantize: str = "", in_float32: Path | None = None) -> bool:
    """Return True if the weights in `directory` seem to fit into the free memory beside the activations of a pass.
    `in_float32`: more weights, which stay in float32. `device`, `dtype` and `quantize`: as in the plan."""
    # 8-bit layers exist twice while they are made, which takes as much memory as once in 16 bits.
    item_bytes = 4 if dtype == "float32" and not quantize else 2
    needed = parameters(directory) * item_bytes + PASS_BYTES
    needed += parameters(in_float32) * 4 if in_float32 is not None else 0
    return free_bytes(device) >= needed


def parameters(directory: Path) -> int:
    # The stored format may differ from the loaded one, so bytes would mislead. Only the files' headers are read.
    return sum(weight.numbers.size for weight in StoredWeights(directory).values())


def mapped_bytes(weights: Mapping[int, int]) -> int:
    """Return the bytes of weights mapped from files. The kernel counts them as free, but the engine needs them.

    `weights`: the bytes of each weight by its address.
    """
    files = list(_mapped_files())
    return sum(nbytes for at, nbytes in weights.items() if any(start <= at < end for start, end in files))


def _mapped_files() -> Iterator[tuple[int, int]]:
    """Yield the addresses [from, to) of all mapped files, since weights in the hub's cache have no file extension."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, path = line.split(maxsplit=5)
        if path.startswith("/"):
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)


def give_back() -> None:
    """Return freed memory to the driver and the system; worth its cost only when a model is loaded or unloaded."""
    torch = sys.modules.get("torch")  # if nothing has imported it, it holds no memory
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    idle.trim_heap()


# Tokens of the row that memory is planned for: 30 s of audio (390), 360 new tokens, 146 for the prompt around it.
ROW_TOKENS = 896
# Rows have room for a multiple of this many tokens; `ROW_TOKENS` is such a multiple.
_EVEN = 128
# Without KV_BUDGET_MB, keys and values take at most this share of the memory that is free after the weights. The rest
# is for activations and, on a CPU, for everything else, such as the aligner and the process that tells speakers apart,
# which takes 150 MB. On a GPU the aligner's memory is subtracted first. Half of the share is for rows, half for live
# sessions.
_SHARE = {"cuda": 0.6, "cpu": 0.25}

# How long decoding rows wait for prompts if there is no live work.
_PATIENCE_S = 3.0
# The most prompt tokens in one step. Bounds the memory of their activations.
MOST_TOKENS = 4096
# Fewer tokens take hardly less time.
_LEAST_TOKENS = 32
# The weight that earlier measurements keep when a new one is added.
_KEPT = 0.8
# Below this a token counts as free.
_LEAST_TOKEN_S = 1e-6


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rows and bytes that fit."""

    rows: int  # the most rows; fewer may fit if they have more than `ROW_TOKENS` tokens
    rows_bytes: int  # for keys and values of rows
    prefix_cache_bytes: int  # for the state of live sessions between their partials
    token_bytes: int  # keys and values of one token

    @property
    def tokens(self) -> int:
        return self.rows_bytes // self.token_bytes

    @property
    def share(self) -> int:
        """Return how many tokens each row of a full batch has room for, with one token left over. Rounded down to a
        multiple of 128 if it is larger: kernels copy masks of uneven widths."""
        each = max(1, (self.tokens - 1) // self.rows)
        return each - each % _EVEN if each > _EVEN else each


def capacity(plan: Plan, *, free_bytes: int, token_bytes: int, reserved_bytes: int = 0) -> Capacity:
    """Return what fits into `free_bytes`, of which the aligner will take `reserved_bytes`; at least one row.

    `token_bytes`: of the keys and values of a token.
    """
    kind = plan.device.partition(":")[0]
    rest = max(0, free_bytes - reserved_bytes)
    share = int(rest * _SHARE[kind]) if kind == "cuda" else min(rest, int(free_bytes * _SHARE[kind]))
    budget = plan.kv_budget_mb * MIB or share // plan.shares
    row_bytes = ROW_TOKENS * token_bytes
    rows = max(1, min(plan.max_batch, budget // 2 // row_bytes))
    # The whole half, not only what the planned rows need: if memory is left, a long prompt takes no other row's place.
    rows_bytes = max(rows * row_bytes, budget // 2)
    return Capacity(rows, rows_bytes, max(0, budget - rows_bytes), token_bytes)


def capacity_now(plan: Plan, token_bytes: int, reserved_bytes: int, weights: Mapping[int, int]) -> Capacity:
    """Return the capacity beside the loaded `weights`: the bytes of each weight by its address."""
    give_back()  # torch keeps the memory that loading has freed, and a GPU counts it as used
    left = max(0, free_bytes(plan.device) - mapped_bytes(weights))
    return capacity(plan, free_bytes=left, token_bytes=token_bytes, reserved_bytes=reserved_bytes)


class PrefillPolicy:
    """Measures how long prefills and decode steps take, and so bounds the prompt tokens of one step.

    Decoding rows and new live work wait while a step prefills. How many tokens fit into that wait has to be measured: a
    GPU prefills a hundred times as many as a small CPU. The estimate is that a prefill takes as long as a decode step,
    and the same further time for each prompt token. That time includes the encoder, whose part grows in the same way.
    """

    def __init__(self) -> None:
        self._step_s = 0.0
        # Sums over prefills, older ones counting less. Short prefills, which say little, count little in a sum.
        self._tokens = self._seconds = 0.0

    def note_prefill(self, tokens: int, took_s: float) -> None:
        """Note that a pass has prefilled that many tokens."""
        self._tokens = _KEPT * self._tokens + tokens
        self._seconds = _KEPT * self._seconds + max(0.0, took_s - self._step_s)

    def note_step(self, took_s: float) -> None:
        self._step_s = _KEPT * self._step_s + (1 - _KEPT) * took_s if self._step_s else took_s

    def tokens(self, limit_s: float | None) -> int:
        """Return how many tokens a step may prefill in `limit_s`, at least 32. With None, the limit is `_PATIENCE_S`.

        The fixed cost of a pass is not counted: the shorter the parts, the more it would take from them. Before the
        first measurement the number is also 32.
        """
        if not self._tokens:
            return _LEAST_TOKENS
        limit_s = _PATIENCE_S if limit_s is None else limit_s
        return max(_LEAST_TOKENS, min(MOST_TOKENS, int(limit_s / max(_LEAST_TOKEN_S, self._seconds / self._tokens))))
