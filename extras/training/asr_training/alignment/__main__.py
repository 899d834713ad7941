"""Makes the demo aligner: `python -m asr_training.alignment --out DIR --minutes N [--init CHECKPOINT]`."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from asr_server.demo import checkpoint_path
from asr_training.corpus import open_corpus
from asr_training.speech import SynthesisUnavailable
from asr_training.utterances import Mixture, UtteranceMaker
from asr_training.voices import Role

# No prompts and no silence: the input of the aligner is speech and its words.
TRAINING_MIXTURE = Mixture(nothing=0.0, mandarin=0.15, span=0.5, cut=0.3, context=0.0)
EASY_MIXTURE = Mixture(nothing=0.0, mandarin=0.15, span=0.0, cut=0.1, context=0.0, augmented=0.6)
DEVELOPMENT_MIXTURE = Mixture(nothing=0.0, mandarin=0.15, span=0.4, cut=0.0, context=0.0, augmented=0.5)
DEVELOPMENT_COUNT = 120


def main(arguments: list[str] | None = None) -> int:
    """Train and return the exit status."""
    parser = argparse.ArgumentParser(prog="asr_training.alignment", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument(
        "--minutes", type=float, required=True, help="training time, without the time to make the phrase corpus"
    )
    parser.add_argument(
        "--init", type=Path, help="aligner to continue from (default: the encoder of the demo recogniser)"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("demo-work"), help="folder for the phrase corpus, about 1.6 GB"
    )
    parser.add_argument("--rate", type=float, default=8e-4, help="peak learning rate")
    parser.add_argument("--places-minutes", type=float, default=2.5, help="time to pretrain positions, before all else")
    parser.add_argument("--easy-share", type=float, default=0.25, help="share of the time for single phrases, at first")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        best_ms = _train(options)
    except SynthesisUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.out}: mean boundary error {best_ms:.1f} ms on the development voices")
    return 0


def _train(options: argparse.Namespace) -> float:
    training = open_corpus(options.work / "training", Role.TRAINING, options.seed)
    development = open_corpus(options.work / "development", Role.DEVELOPMENT, options.seed)

    import torch

    from asr_training.alignment.network import AlignerNetwork
    from asr_training.alignment.training import AlignerTrainer
    from asr_training.training import Schedule

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    maker = UtteranceMaker(development, DEVELOPMENT_MIXTURE)
    chosen = tuple(maker.draw(rng) for _ in range(DEVELOPMENT_COUNT))
    aligner = AlignerNetwork.load(options.init) if options.init else AlignerNetwork.of_recogniser(checkpoint_path())
    schedule = Schedule(options.minutes, peak_rate=options.rate, warmup_steps=60, batch_s=40.0, check_minutes=3.0)
    trainer = AlignerTrainer(
        aligner,
        UtteranceMaker(training, TRAINING_MIXTURE),
        UtteranceMaker(training, EASY_MIXTURE),
        chosen,
        schedule,
        options.out,
        options.places_minutes,
        options.easy_share,
    )
    return trainer.run(options.seed + 1)


if __name__ == "__main__":
    sys.exit(main())
