"""Synthesises speech with the times of its words, by the synthesiser of each voice."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from asr_training.espeak import espeak_speech
from asr_training.festival import festival_speech
from asr_training.flite import flite_speech
from asr_training.speech import Speech, SpokenWord, SynthesisUnavailable
from asr_training.voices import Engine, Style, Voice


def speak(voice: Voice, style: Style, text: str) -> Speech:
    """Speak `text` and return the clip trimmed to the speech. Raises `SynthesisUnavailable` or `WordsNotPlaced`."""
    if voice.engine is Engine.ESPEAK:
        return _trimmed(espeak_speech(voice, style, text))
    require(voice.engine)
    with tempfile.TemporaryDirectory() as folder:
        speaker = flite_speech if voice.engine is Engine.FLITE else festival_speech
        return _trimmed(speaker(voice, style, text, Path(folder) / "clip.wav"))


def require(engine: Engine) -> None:
    """Raise `SynthesisUnavailable`, with the package to install, if the program of `engine` is missing."""
    program = "text2wave" if engine is Engine.FESTIVAL else engine.value
    if shutil.which(program) is None:
        raise SynthesisUnavailable(f"{program} not found: install the Debian package {engine.value}")


def _trimmed(speech: Speech) -> Speech:
    loudness = np.convolve(np.abs(speech.samples), np.ones(160, np.float32) / 160, "same")
    loud = np.flatnonzero(loudness > max(0.004, 0.02 * float(loudness.max())))
    if len(loud) == 0:
        return speech
    # 10 ms before and 20 ms after, so that soft consonants at the boundaries stay whole.
    first, last = max(0, int(loud[0]) - 160), min(len(speech.samples), int(loud[-1]) + 320)
    length = last - first
    words = [
        SpokenWord(w.text, min(max(w.start - first, 0), length), min(max(w.end - first, 0), length))
        for w in speech.words
    ]
    return Speech(speech.samples[first:last], tuple(words))
