"""Makes the demo checkpoint: `python -m asr_training --out DIR --minutes N [--init CHECKPOINT]`."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from asr_training.corpus import Corpus, open_corpus
from asr_training.speech import SynthesisUnavailable
from asr_training.utterances import Mixture, UtteranceMaker
from asr_training.vocabulary import Language
from asr_training.voices import Role

if TYPE_CHECKING:
    from asr_training.network import Network
    from asr_training.training import Development

# Random weights take a larger learning rate than trained ones, and no steps with the CTC loss on its head only.
CONTINUED_RATE, UNTRAINED_RATE = 5e-4, 1e-3
DEVELOPMENT_MIXTURE = Mixture(nothing=0.0, mandarin=0.1, span=0.0, context=0.0, augmented=0.5)


def main(arguments: list[str] | None = None) -> int:
    """Train and return the exit status."""
    parser = argparse.ArgumentParser(prog="asr_training", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument(
        "--minutes", type=float, required=True, help="training time, without the time to make the phrase corpus"
    )
    parser.add_argument("--init", type=Path, help="checkpoint to continue from (default: random weights)")
    parser.add_argument(
        "--work", type=Path, default=Path("demo-work"), help="folder for the phrase corpus, about 1.6 GB"
    )
    parser.add_argument("--rate", type=float, help="peak learning rate (default: 5e-4, from random weights 1e-3)")
    parser.add_argument("--share", type=float, default=1.0, help="how much of the phrase corpus to make (default: all)")
    parser.add_argument("--causal", action="store_true", help="tune the checkpoint of --init for the causal encoder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.causal and not options.init:
        parser.error("--causal needs --init")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        best = _train(options)
    except SynthesisUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.out}: mean word error {best:.4f} on the development voices")
    return 0


def _train(options: argparse.Namespace) -> float:
    training = open_corpus(options.work / "training", Role.TRAINING, options.seed, options.share)
    development = open_corpus(options.work / "development", Role.DEVELOPMENT, options.seed, options.share)

    import torch

    from asr_training.architecture import untrained
    from asr_training.causal import CausalNetwork, load
    from asr_training.training import Schedule, Trainer

    torch.set_num_threads(2)
    torch.manual_seed(options.seed)
    if options.causal:
        network: Network = CausalNetwork.load(options.init)
    else:
        network = load(options.init) if options.init else untrained()
    rate, ctc_steps = (CONTINUED_RATE, 120) if options.init else (UNTRAINED_RATE, 0)
    schedule = Schedule(options.minutes, peak_rate=options.rate or rate, ctc_steps=ctc_steps)
    maker = UtteranceMaker(training, Mixture())
    trainer = Trainer(network, maker, _development(development, options.seed), schedule, options.out)
    return trainer.run(options.seed + 1)


def _development(voices: Corpus, seed: int) -> Development:
    from asr_training.training import Development

    rng = random.Random(seed)
    maker = UtteranceMaker(voices, DEVELOPMENT_MIXTURE)
    spans = {f"{seconds} s": (seconds, count) for seconds, count in ((15, 16), (28, 10))}
    sets = {"short": tuple(maker.draw(rng) for _ in range(100))}
    for name, (seconds, count) in spans.items():
        sets[name] = tuple(maker.span(rng, Language.ENGLISH, seconds, pause_s=0.2) for _ in range(count))
    return Development(sets)


if __name__ == "__main__":
    sys.exit(main())
