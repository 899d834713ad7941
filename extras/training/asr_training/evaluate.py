"""Evaluates a checkpoint and prints JSON: `python -m asr_training.evaluate --checkpoint DIR [--clips DIR]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rapidfuzz.distance.Levenshtein import distance

from asr_server.core.audio import SAMPLE_RATE
from asr_training.held_out import EvaluationItem, HeldOutSets
from asr_training.manifest import Clip, read_manifest
from asr_training.scoring import Pair, error_rate
from asr_training.speech import SynthesisUnavailable, Wave
from asr_training.utterances import Utterance
from asr_training.vocabulary import Language, joined, units

if TYPE_CHECKING:
    from asr_training.network import Network

LONGEST_SPAN_S = 28.0


def main(arguments: list[str] | None = None) -> int:
    """Evaluate and return the exit status."""
    parser = argparse.ArgumentParser(prog="asr_training.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--clips", type=Path, help="folder of test clips with their manifest.json")
    parser.add_argument("--work", type=Path, default=Path("demo-work"), help="folder for the held-out phrase corpus")
    parser.add_argument("--clips-only", action="store_true", help="nothing but the test clips, which need no corpus")
    parser.add_argument("--causal", action="store_true", help="run the encoder causally, whatever it is tuned for")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    import torch

    from asr_training.causal import CausalNetwork, load

    torch.set_num_threads(2)
    network = CausalNetwork.load(options.checkpoint) if options.causal else load(options.checkpoint)
    network.model.eval()
    report: dict[str, object] = {}
    try:
        if not options.clips_only:
            report |= evaluate(network, HeldOutSets.open(options.work, options.seed))
    except SynthesisUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    if options.clips:
        report["clips"] = clip_errors(network, options.clips)
    print(json.dumps(report, indent=2, ensure_ascii=False))
    return 0


def evaluate(network: Network, held_out: HeldOutSets) -> dict[str, float]:
    """Error rates on held-out voices by set, and the shares of correct languages and of empty results for silence."""
    from asr_training.transcription import transcribe

    report: dict[str, float] = {}
    named = right = 0
    for name, items in held_out.sets().items():
        results = transcribe(network, [item.utterance for item in items])
        if name == "nothing":
            report["nothing answered empty"] = sum(not result.text for result in results) / len(results)
        else:
            report[name] = _error(items, [result.text for result in results])
        free = [pair for pair in zip(items, results, strict=True) if not pair[0].utterance.forced]
        named += len(free)
        right += sum(result.language == str(item.utterance.language) for item, result in free)
    report["language right"] = right / named
    return {name: round(value, 4) for name, value in report.items()}


def clip_errors(network: Network, folder: Path) -> dict[str, float]:
    """Error rate of each kind of clip in `folder`, and of each voice. Long clips are cut between phrases."""
    clips = read_manifest(folder)
    pairs = [(clip, _transcribed(network, clip, folder)) for clip in clips]
    groups: dict[str, list[Pair]] = {}
    for clip, pair in pairs:
        groups.setdefault(f"kind {clip.kind}", []).append(pair)
        groups.setdefault(f"voice {clip.voice}", []).append(pair)
    rates = {name: error_rate(group) for name, group in groups.items()}
    spoken = [pair for _, pair in pairs if pair.said]
    silent = [pair for _, pair in pairs if not pair.said]
    whole = {"all": error_rate(spoken), "exactly right": sum(error_rate([pair]) == 0 for pair in spoken) / len(spoken)}
    whole["nothing answered empty"] = sum(not pair.written for pair in silent) / max(1, len(silent))
    return {name: round(rate, 4) for name, rate in (*whole.items(), *sorted(rates.items()))}


def _transcribed(network: Network, clip: Clip, folder: Path) -> Pair:
    from asr_training.transcription import transcribe

    spans = [Utterance(samples, clip.language, ()) for samples in _spans(clip, clip.samples(folder))]
    separator = "" if clip.language is Language.CHINESE else " "
    written = separator.join(result.text for result in transcribe(network, spans))
    return Pair(clip.language, clip.text, written.strip())


def _spans(clip: Clip, samples: Wave) -> list[Wave]:
    """The clip whole, or cut in the pauses between its phrases so that no span is longer than `LONGEST_SPAN_S`."""
    boundaries, last = [0.0], 0.0
    for start_s, end_s in clip.phrases_s:
        if end_s - boundaries[-1] > LONGEST_SPAN_S:
            boundaries.append((last + start_s) / 2)
        last = end_s
    places = [int(boundary * SAMPLE_RATE) for boundary in boundaries] + [len(samples)]
    return [samples[start:end] for start, end in pairwise(places)]


def _error(items: Sequence[EvaluationItem], written: Sequence[str]) -> float:
    """Errors per unit of the complete words, each item against its best reference."""
    errors = total = 0
    for item, text in zip(items, written, strict=True):
        language = item.utterance.language
        said = [units(language, joined(language, words)) for words in item.references()]
        errors += min(distance(reference, units(language, text)) for reference in said)
        total += len(units(language, joined(language, item.utterance.words)))
    return errors / max(1, total)


if __name__ == "__main__":
    sys.exit(main())
