"""Makes the held-out test clips, the same for the same seed: `python -m asr_training.clips --out DIR`."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from asr_server.core.audio import SAMPLE_RATE
from asr_training import phrases
from asr_training.manifest import Clip, write_manifest
from asr_training.speech import Speech, SynthesisUnavailable, Wave, WordsNotPlaced
from asr_training.synthesis import speak
from asr_training.vocabulary import Language, joined
from asr_training.voices import FESTIVAL_VOICES, HELD_OUT_LOCALES, HELD_OUT_VARIANTS, Engine, Style, Voice

SHORTEST_S, LONGEST_S = 2.0, 8.0
PEAK = 0.6
EDGE_S = 0.25  # quiet before and after the speech
NOISY_EVERY = 5  # every fifth English clip has a quiet background
HELLO = "hello turn on the kitchen lights and play music please"
HELLO_VOICE = Voice(Engine.ESPEAK, "en-us+anika", Language.ENGLISH)

Text = Callable[[random.Random], str]


@dataclass(frozen=True)
class Long:
    """A long recording: at least `seconds`, pauses between phrases drawn from `pauses_s`."""

    name: str
    voice: Voice
    seconds: float
    pauses_s: tuple[float, float]


def _english(name: str) -> Voice:
    return Voice(Engine.ESPEAK, name, Language.ENGLISH)


def _festival(name: str) -> Voice:
    return Voice(Engine.FESTIVAL, name, Language.ENGLISH)


LONG = (
    Long("dense-20s", _english("en-us-nyc+robert"), 19.0, (0.03, 0.2)),
    Long("pauses-60s", _festival("ked_diphone"), 58.0, (0.3, 1.5)),
    Long("dense-30s", _festival("cmu_us_slt_arctic_hts"), 29.0, (0.03, 0.25)),
)


def main(arguments: list[str] | None = None) -> int:
    """Write the clips and return the exit status."""
    parser = argparse.ArgumentParser(prog="asr_training.clips", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hello", type=Path, help="folder for the demo's own recording, hello.wav and hello.txt")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    try:
        clips = [*_english_clips(rng, options.out), *_mandarin_clips(rng, options.out)]
        clips += [*_quiet_clips(rng, options.out), *(_long_clip(rng, long, options.out) for long in LONG)]
        if options.hello:
            write_hello(options.hello)
    except SynthesisUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    write_manifest(options.out, clips)
    return 0


def write_hello(folder: Path) -> None:
    """Write `hello.wav` and `hello.txt`, the bundled recording, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    wave = _at_peak(_with_edges(speak(HELLO_VOICE, Style(rate=120), HELLO).samples))
    soundfile.write(folder / "hello.wav", wave, SAMPLE_RATE, subtype="PCM_16")
    (folder / "hello.txt").write_text(HELLO + "\n")


def _english_clips(rng: random.Random, out: Path) -> list[Clip]:
    # Four phrases for each festival voice, then two for every espeak-ng variant, each with another accent.
    voices = [_festival(name) for name in FESTIVAL_VOICES for _ in range(4)]
    for number, variant in enumerate(HELD_OUT_VARIANTS * 2):
        voices.append(_english(f"{HELD_OUT_LOCALES[number % len(HELD_OUT_LOCALES)]}+{variant}"))
    made = []
    for number, voice in enumerate(voices):
        kind, text = ("digits", phrases.digit_string) if number % 3 == 2 else ("phrase", phrases.command)
        noisy = number % NOISY_EVERY == NOISY_EVERY - 1
        speech = _spoken(rng, voice, text, rng.uniform(SHORTEST_S, 4.0))
        name = f"en-{number:02d}-{voice.name.replace('+', '-')}"
        made.append(_written(out, name, speech, voice, "noisy" if noisy else kind, _hiss(rng) if noisy else 0.0))
    return made


def _mandarin_clips(rng: random.Random, out: Path) -> list[Clip]:
    made = []
    for number, variant in enumerate(HELD_OUT_VARIANTS[::2][:6]):
        voice = Voice(Engine.ESPEAK, f"cmn+{variant}", Language.CHINESE)
        speech = _spoken(rng, voice, phrases.mandarin)
        made.append(_written(out, f"zh-{number:02d}-{variant}", speech, voice, "mandarin"))
    return made


def _quiet_clips(rng: random.Random, out: Path) -> list[Clip]:
    count = 4 * SAMPLE_RATE
    waves = {"silence": np.zeros(count, np.float32), "noise-quiet": _noise(rng, count, 0.003)}
    waves["noise-loud"] = _noise(rng, count, 0.05)
    return [
        _stored(out, Clip(f"{name}.flac", "", None, "none", name.split("-")[0], 4.0), w) for name, w in waves.items()
    ]


def _long_clip(rng: random.Random, long: Long, out: Path) -> Clip:
    pieces, places, words = [np.zeros(int(EDGE_S * SAMPLE_RATE), np.float32)], [], []
    length = len(pieces[0])
    while length < long.seconds * SAMPLE_RATE:
        speech = _spoken(rng, long.voice, phrases.command, shortest_s=0.8, longest_s=5.0)
        pause = np.zeros(int(rng.uniform(*long.pauses_s) * SAMPLE_RATE), np.float32)
        places.append((round(length / SAMPLE_RATE, 2), round((length + len(speech.samples)) / SAMPLE_RATE, 2)))
        words += [word.text for word in speech.words]
        pieces += [speech.samples, pause]
        length += len(speech.samples) + len(pause)
    wave = np.concatenate(pieces)
    kind = "pauses" if "pauses" in long.name else "dense"
    seconds = round(len(wave) / SAMPLE_RATE, 2)
    clip = Clip(f"{long.name}.flac", " ".join(words), Language.ENGLISH, long.voice.name, kind, seconds, tuple(places))
    return _stored(out, clip, _at_peak(wave))


def _spoken(
    rng: random.Random, voice: Voice, text: Text, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S
) -> Speech:
    """The first random text that the voice speaks within the wanted length."""
    while True:
        style = Style(rng.randint(120, 175), rng.randint(35, 65), 50)
        try:
            speech = speak(voice, style, text(rng))
        except WordsNotPlaced:
            continue
        if shortest_s <= len(speech.samples) / SAMPLE_RATE + 2 * EDGE_S <= longest_s:
            return speech


def _written(out: Path, name: str, speech: Speech, voice: Voice, kind: str, hiss: float = 0.0) -> Clip:
    wave = _at_peak(_with_edges(speech.samples))
    if hiss:
        wave = wave + _noise(random.Random(name), len(wave), hiss)
    text = joined(voice.language, [word.text for word in speech.words])
    seconds = round(len(wave) / SAMPLE_RATE, 2)
    return _stored(out, Clip(f"{name}.flac", text, voice.language, voice.name, kind, seconds), wave)


def _stored(out: Path, clip: Clip, wave: Wave) -> Clip:
    soundfile.write(out / clip.file, wave, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return clip


def _with_edges(samples: Wave) -> Wave:
    return np.pad(samples, int(EDGE_S * SAMPLE_RATE))


def _at_peak(samples: Wave) -> Wave:
    return samples * np.float32(PEAK / float(np.abs(samples).max(initial=1e-6)))


def _hiss(rng: random.Random) -> float:
    """A noise level about 15 to 28 dB below the speech."""
    return rng.uniform(0.004, 0.018)


def _noise(rng: random.Random, count: int, level: float) -> Wave:
    return np.random.default_rng(rng.getrandbits(64)).normal(0, level, count).astype(np.float32)


if __name__ == "__main__":
    sys.exit(main())
