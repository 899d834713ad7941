"""The code predictor's passes recorded once as CUDA graphs: the rest of a frame is then one call of the driver instead
of about a thousand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from asr_server.engine.qwen.step_graphs import Capture, Computed


class FrameGraphs:
    """`compute` of tensors like `inputs` (n, size), for powers of two of up to `rows` rows. Rows are padded."""

    def __init__(
        self,
        compute: Callable[..., Computed],
        inputs: Sequence[torch.Tensor],
        rows: int,
        capture: Capture,
        on_each: Callable[[], None],
    ) -> None:
        self._recorded: dict[int, tuple[list[torch.Tensor], Callable[[], None], Computed]] = {}
        # The largest first: the others find room in its memory.
        for count in sorted({min(1 << n, rows) for n in range(rows.bit_length() + 1)}, reverse=True):
            on_each()
            given = [part.new_zeros(count, part.shape[-1]) for part in inputs]
            self._recorded[count] = given, *_record(compute, given, capture)

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, *inputs: torch.Tensor) -> Computed:
        """Return what `compute` gives for the rows of `inputs`; the next run overwrites it."""
        count = len(inputs[0])
        given, replay, computed = self._recorded[min(size for size in self._recorded if size >= count)]
        for kept, new in zip(given, inputs, strict=True):
            kept[:count].copy_(new)
        replay()
        first, second = computed
        return first[:count], second[:count]


def _record(
    compute: Callable[..., Computed], given: Sequence[torch.Tensor], capture: Capture
) -> tuple[Callable[[], None], Computed]:
    return capture(lambda: compute(*given))
