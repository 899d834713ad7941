"""Speech by the flite program, which reports phones; the phones of each word spoken by itself locate it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import soundfile

from asr_server.core.audio import SAMPLE_RATE
from asr_training.speech import NEUTRAL_RATE, Speech, SpokenWord, SynthesisUnavailable, WordsNotPlaced, at_16k
from asr_training.voices import Style, Voice


def flite_speech(voice: Voice, style: Style, text: str, path: Path) -> Speech:
    """Untrimmed speech at 16 kHz through the file `path`. Of `style` only the rate is used: flite's pitch is fixed."""
    stretch = NEUTRAL_RATE / style.rate
    command = ["flite", "-voice", voice.name, "--setf", f"duration_stretch={stretch:.3f}"]
    result = subprocess.run([*command, "-psdur", "-t", text, "-o", str(path)], capture_output=True, text=True)
    if result.returncode != 0:
        raise SynthesisUnavailable(f"flite: {result.stderr.strip()}")
    samples, rate = soundfile.read(path, dtype="float32")
    phones = [(name, float(end)) for name, end in (pair.rsplit(":", 1) for pair in result.stdout.split())]
    return Speech(at_16k(samples, rate), _words_of_phones(phones, text.split()))


def _words_of_phones(phones: Sequence[tuple[str, float]], words: Sequence[str]) -> tuple[SpokenWord, ...]:
    begins = [0.0, *(end for _, end in phones)]
    sounding = [(begin, end) for begin, (name, end) in zip(begins, phones, strict=False) if name != "pau"]
    counts = [_phone_count(word) for word in words]
    if sum(counts) != len(sounding):
        raise WordsNotPlaced(" ".join(words))
    placed, used = [], 0
    for word, count in zip(words, counts, strict=True):
        begin, end = sounding[used][0], sounding[used + count - 1][1]
        placed.append(SpokenWord(word, int(begin * SAMPLE_RATE), int(end * SAMPLE_RATE)))
        used += count
    return tuple(placed)


@cache
def _phone_count(word: str) -> int:
    result = subprocess.run(["flite", "-ps", "-t", word, "-o", "none"], capture_output=True, text=True, check=True)
    return sum(phone != "pau" for phone in result.stdout.split())
