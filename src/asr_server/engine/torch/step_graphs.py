"""Decode steps recorded once as CUDA graphs: a step is then one call of the driver instead of six hundred."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from asr_server.engine.torch.passes import Arena, Layout, Pass, TokenSpan, rounded

# Steps of rows up to this length are recorded, five minutes of audio: longer ones are rare, and delay every load.
_WIDEST = 4096
# Hidden states of tokens, and what follows each.
Computed = tuple[torch.Tensor, torch.Tensor]
# Takes a function of tensors that stay where they are. Returns another that runs the same operations on what these
# hold by then, and what it computes into.
Capture = Callable[[Callable[[], Computed]], tuple[Callable[[], None], Computed]]


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A recorded step."""

    numbers: torch.Tensor  # a layout's, which `replay` reads
    replay: Callable[[], None]
    computed: Computed  # what `replay` writes


class StepGraphs:
    """Steps of one token a row, for each padded number of rows and width, over an arena as it is divided now."""

    def __init__(
        self, arena: Arena, compute: Callable[[Pass], Computed], capture: Capture, on_each: Callable[[], None]
    ) -> None:
        self._arena = arena
        self._division = arena.slots, arena.columns
        # The longest rows of each width that passes have; one column of a slot is never a row's.
        longest = {min(rounded(tokens), arena.columns): tokens for tokens in range(1, min(arena.columns, _WIDEST + 1))}
        batches = {min(1 << n, arena.slots) for n in range(arena.slots.bit_length() + 1)}
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        # The largest first: the others find room in its memory.
        for batch in sorted(batches, reverse=True):
            for width, tokens in sorted(longest.items(), reverse=True):
                on_each()
                spans = [TokenSpan(slot, tokens - 1, 1) for slot in range(batch)]
                self._recorded[batch, width] = _record(arena, Layout(arena, spans, [0] * batch), compute, capture)

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, layout: Layout) -> Computed | None:
        """Return what the step computes, which the next one overwrites; None if it was not recorded."""
        if layout.query > 1 or (self._arena.slots, self._arena.columns) != self._division:
            return None
        recorded = self._recorded.get((layout.batch, layout.width))
        if recorded is None:
            return None
        recorded.numbers.copy_(layout.numbers)
        recorded.replay()
        return recorded.computed


def _record(arena: Arena, layout: Layout, compute: Callable[[Pass], Computed], capture: Capture) -> _Recorded:
    numbers = layout.numbers.to(arena.device)
    replay, computed = capture(lambda: compute(Pass(arena, layout, numbers)))
    return _Recorded(numbers, replay, computed)


class CudaCapture:
    """Records on a GPU. All graphs share their memory: no two run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Computed]) -> tuple[Callable[[], None], Computed]:
        """See `Capture`."""
        graph = torch.cuda.CUDAGraph()
        run()  # what a kernel sets up when it is first used cannot be recorded
        # Recorded is what the current GPU is given, and that is the first one. Of another nothing would be recorded.
        with torch.cuda.device(self._device), torch.cuda.graph(graph, pool=self._pool):
            computed = run()
        return graph.replay, computed
