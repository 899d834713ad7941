"""Speech by the festival program, which reports where each word ends. It is used only for held-out voices."""

from __future__ import annotations

import subprocess
from pathlib import Path

import soundfile

from asr_server.core.audio import SAMPLE_RATE
from asr_training.speech import NEUTRAL_RATE, Speech, SynthesisUnavailable, WordsNotPlaced, at_16k, between
from asr_training.voices import Style, Voice


def festival_speech(voice: Voice, style: Style, text: str, path: Path) -> Speech:
    """Untrimmed speech at 16 kHz through the file `path`. Of `style` only the rate is used."""
    labels = path.with_suffix(".words")
    program = "\n".join(
        (
            f"(voice_{voice.name})",
            f"(Parameter.set 'Duration_Stretch {NEUTRAL_RATE / style.rate:.3f})",
            f'(set! spoken (SynthText "{text}"))',
            f'(utt.save.wave spoken "{path}" "riff")',
            f'(utt.save.words spoken "{labels}")',
        )
    )
    result = subprocess.run(["festival", "--pipe"], input=program, capture_output=True, text=True)
    if not path.is_file() or not labels.is_file():
        raise SynthesisUnavailable(f"festival: voice {voice.name}: {result.stderr.strip()}")
    samples, rate = soundfile.read(path, dtype="float32")
    lines = [line.split() for line in labels.read_text().splitlines() if len(line.split()) == 3]
    words = text.split()
    if [line[2] for line in lines] != words:
        raise WordsNotPlaced(text)
    ends = [0.0, *(float(line[0]) for line in lines)]
    return Speech(
        at_16k(samples, rate),
        between([e * SAMPLE_RATE for e in ends[:-1]], ends[-1] * SAMPLE_RATE, words, SAMPLE_RATE),
    )
