"""Evaluates an aligner and prints JSON: `python -m asr_training.alignment.evaluate --checkpoint DIR`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from asr_training.alignment.held_out import AlignerSets
from asr_training.speech import SynthesisUnavailable
from asr_training.utterances import Utterance

if TYPE_CHECKING:
    from asr_training.alignment.boundary_errors import Boundaries
    from asr_training.alignment.network import AlignerNetwork


def main(arguments: list[str] | None = None) -> int:
    """Evaluate and return the exit status."""
    parser = argparse.ArgumentParser(prog="asr_training.alignment.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("demo-work"), help="folder for the held-out phrase corpus")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    from asr_training.alignment.network import AlignerNetwork

    aligner = AlignerNetwork.load(options.checkpoint)
    aligner.network.model.eval()
    try:
        report = evaluate(aligner, AlignerSets.open(options.work, options.seed))
    except SynthesisUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2, ensure_ascii=False))
    return 0


def evaluate(aligner: AlignerNetwork, held_out: AlignerSets) -> dict[str, dict[str, dict[str, float]]]:
    """Boundary errors of the aligner and of the simple estimate, for each set and for all together."""
    from asr_training.alignment.boundary_errors import predicted_boundaries

    every: list[Utterance] = []
    predicted, report = [], {}
    for name, items in held_out.sets():
        boundaries = predicted_boundaries(aligner, items)
        report[name] = _both(items, boundaries)
        every += items
        predicted += boundaries
    report["all"] = _both(every, predicted)
    return report


def _both(items: Sequence[Utterance], predicted: Sequence[Boundaries]) -> dict[str, dict[str, float]]:
    from asr_training.alignment.boundary_errors import BoundaryErrors, estimated_boundaries

    estimated = [estimated_boundaries(item) for item in items]
    both = {"aligner": BoundaryErrors.of(items, predicted), "estimate": BoundaryErrors.of(items, estimated)}
    return {name: {key: round(value, 1) for key, value in asdict(errors).items()} for name, errors in both.items()}


if __name__ == "__main__":
    sys.exit(main())
