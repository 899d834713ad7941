"""The memory that is free and needed: of the machine, of weights, of rows, of a step.

torch is imported where memory of a GPU is asked for.
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
    """Rows became longer than there is room for together."""


def free_bytes(device: str = "cpu") -> int:
    """Return the bytes that the kernel and the container's limit leave, or those that are free on a GPU."""
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
    """Return True if the weights in a directory, and those in another that stay in float32, seem to fit into the free
    memory beside the activations of a pass. `device`, `dtype` and `quantize`: as in the plan."""
    # In 8 bits the layers are there twice while they are made, which takes as much as once in 16 bits.
    item_bytes = 4 if dtype == "float32" and not quantize else 2
    needed = parameters(directory) * item_bytes + PASS_BYTES
    needed += parameters(in_float32) * 4 if in_float32 is not None else 0
    return free_bytes(device) >= needed


def parameters(directory: Path) -> int:
    # Their formats may differ from the loaded one, so bytes would be misleading. Only headers of the files are read.
    return sum(weight.numbers.size for weight in StoredWeights(directory).values())


def mapped_bytes(weights: Mapping[int, int]) -> int:
    """Bytes of weights that are mapped from their files: the kernel counts them as free, and the engine needs them.

    `weights`: the bytes of each by its address.
    """
    files = list(_mapped_files())
    return sum(nbytes for at, nbytes in weights.items() if any(start <= at < end for start, end in files))


def _mapped_files() -> Iterator[tuple[int, int]]:
    """Addresses [from, to) at which this process maps files. (Weights in the hub's cache have no ending.)"""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, path = line.split(maxsplit=5)
        if path.startswith("/"):
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)


def give_back() -> None:
    """Return freed memory to the driver and the system; worth its cost only where a model is loaded or unloaded."""
    torch = sys.modules.get("torch")  # where nothing has loaded it, it holds nothing
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    idle.trim_heap()


# Tokens of the row that is planned for: 30 s of audio (390), 360 new tokens, 146 for the prompt around it.
ROW_TOKENS = 896
# Rows have room for a multiple of this many tokens, as `ROW_TOKENS` is.
_EVEN = 128
# The share of the memory that is free after the weights which keys and values may take without KV_BUDGET_MB;
# the rest is for activations, and on a CPU for everybody else, such as the aligner and the process that tells speakers
# apart, which takes 150 MB. On a GPU the aligner's memory is left out before. Rows take half of it at most, live
# sessions the rest.
_SHARE = {"cuda": 0.6, "cpu": 0.25}

# How long rows that decode wait for prompts where no live work is near.
_PATIENCE_S = 3.0
# Most tokens of prompts in one step, for the memory that their activations take.
MOST_TOKENS = 4096
# Fewer take hardly less time.
_LEAST_TOKENS = 32
# How much of the earlier measurements each new one leaves.
_KEPT = 0.8
# Below this a token counts as free.
_LEAST_TOKEN_S = 1e-6


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rows and bytes that fit."""

    rows: int  # the most rows; of rows with more than `ROW_TOKENS` tokens fewer may fit
    rows_bytes: int  # for keys and values of rows
    prefix_cache_bytes: int  # for what is kept of live sessions between their partials
    token_bytes: int  # keys and values of one token

    @property
    def tokens(self) -> int:
        return self.rows_bytes // self.token_bytes

    @property
    def share(self) -> int:
        """Return how many tokens of each row fit where all rows are there, and one token more. Kernels copy masks of
        uneven widths."""
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
    # All of that half, not what the rows need as planned: where memory is left, a long prompt takes nobody's place.
    rows_bytes = max(rows * row_bytes, budget // 2)
    return Capacity(rows, rows_bytes, max(0, budget - rows_bytes), token_bytes)


def capacity_now(plan: Plan, token_bytes: int, reserved_bytes: int, weights: Mapping[int, int]) -> Capacity:
    """Return what fits beside `weights`, which are all that was loaded: the bytes of each by its address."""
    give_back()  # torch keeps what loading has freed, and a GPU counts it as used
    left = max(0, free_bytes(plan.device) - mapped_bytes(weights))
    return capacity(plan, free_bytes=left, token_bytes=token_bytes, reserved_bytes=reserved_bytes)


class PrefillPolicy:
    """Learns how long prefills and decode steps take, and how many tokens of prompts one step may therefore run.

    Rows that decode, and live work that comes, wait while a step prefills. How many tokens that time is for has to be
    measured: a GPU prefills a hundred times as many as a small CPU. A pass is taken to cost what a decode step costs,
    and the same for each token of a prompt. A token's time is that of the whole prefill: an encoder's part of it grows
    alike.
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
        """Return how many tokens a step may prefill in `limit_s`, at least 32; None: in as long as is fair to rows that
        decode.

        The fixed cost of a pass is not counted: the shorter the parts, the more it would take from them. Before
        anything is measured the number is 32 too.
        """
        if not self._tokens:
            return _LEAST_TOKENS
        limit_s = _PATIENCE_S if limit_s is None else limit_s
        return max(_LEAST_TOKENS, min(MOST_TOKENS, int(limit_s / max(_LEAST_TOKEN_S, self._seconds / self._tokens))))
