"""Makes held-out clips with the true boundaries of their words: `python -m asr_training.alignment.clips`."""

from __future__ import annotations

import argparse
import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import soundfile

from asr_server.core.audio import SAMPLE_RATE
from asr_training.alignment.held_out import PAUSE_S
from asr_training.alignment.words import FUSED
from asr_training.corpus import Corpus, open_corpus
from asr_training.held_out import UNCUT
from asr_training.speech import Speech, SynthesisUnavailable
from asr_training.utterances import UtteranceMaker
from asr_training.vocabulary import Language, joined
from asr_training.voices import Engine, Role

PEAK = 0.6
KEPT_BITS = 12  # the rest is zero, which halves the files
# Seconds of each clip by synthesiser and language; the longest crosses two windows of the encoder.
KINDS = (
    *((Engine.ESPEAK, Language.ENGLISH, seconds) for seconds in (2.5, 3.0, 3.0, 3.5, 4.0, 19.0)),
    *((Engine.FESTIVAL, Language.ENGLISH, seconds) for seconds in (2.5, 3.0, 4.0)),
    *((Engine.ESPEAK, Language.CHINESE, seconds) for seconds in (2.5, 3.0, 3.5)),
)


def main(arguments: list[str] | None = None) -> int:
    """Write the clips and their manifest, and return the exit status."""
    parser = argparse.ArgumentParser(prog="asr_training.alignment.clips", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("demo-work"), help="folder for the held-out phrase corpus")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        voices = open_corpus(options.work / "held-out", Role.HELD_OUT, 0, takes_share=0.34)
    except SynthesisUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    rng = random.Random(options.seed)
    left = rng.sample(voices.takes, len(voices.takes))
    entries = []
    for number, (engine, language, _) in enumerate(KINDS):
        take = next(take for take in left if (take.voice.engine, take.voice.language) == (engine, language))
        left = [other for other in left if other.voice != take.voice]
        entries.append(_clip(rng, Corpus(voices.samples, (take,)), number, options.out))
    lines = (json.dumps(entry, ensure_ascii=False) for entry in entries)
    (options.out / "manifest.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    return 0


def _clip(rng: random.Random, voices: Corpus, number: int, out: Path) -> dict[str, object]:
    _, language, seconds = KINDS[number]
    maker = UtteranceMaker(voices, UNCUT)
    speech = maker.flow(rng, language, seconds, PAUSE_S)
    while not _all_times_known(speech):
        speech = maker.flow(rng, language, seconds, PAUSE_S)
    (voice,) = voices.of(language)
    name = f"{number:02d}-{voice.name.replace('+', '-')}.flac"
    _write(out / name, speech)
    words = [[w.text, round(w.start * 1000 / SAMPLE_RATE), round(w.end * 1000 / SAMPLE_RATE)] for w in speech.words]
    text = joined(language, [word.text for word in speech.words])
    return {"file": name, "text": text, "language": language, "voice": voice.name, "words_ms": words}


def _all_times_known(speech: Speech) -> bool:
    """Return True if the synthesiser reports the beginning of every word."""
    return not any((a.text, b.text) in FUSED for a, b in pairwise(speech.words))


def _write(path: Path, speech: Speech) -> None:
    scaled = speech.samples * np.float32(PEAK / float(np.abs(speech.samples).max()))
    step = 2 ** (16 - KEPT_BITS)
    quantised = (np.round(scaled * 32767 / step) * step).astype(np.int16)
    soundfile.write(path, quantised, SAMPLE_RATE, format="FLAC", subtype="PCM_16")


if __name__ == "__main__":
    sys.exit(main())
