"""How well are speakers told apart, how fast and in how much memory, in conversations of real people?

The conversations are those of `E2Etest/speakers`. Turns are found in a process of their own, as in the server, and
words by the whole server with the English model. Beside them is the diariser of the package that the models come from,
with its usual options, on the shortest conversations: it takes about as long as they are.

BENCH_CONVERSATIONS is how many (20), BENCH_SOUND one of room, noise, telephone and music.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from asr_server.features.moonshine import package
from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess, ready
from E2Etest.speakers.conversations import Conversation, Sound, Speech, SpokenWord, usual
from E2Etest.speakers.measures import diarization_error, speaker_words
from E2Etest.speakers.voices import SENTENCES

# The algorithm was chosen on others.
FIRST_SEED = 100
COLLARS_S = (0.0, 0.25)
SHORT_S = 150.0
USUAL_CADENCE = "1"


@dataclass(frozen=True)
class Found:
    """Turns that a diariser found, and what it took."""

    turns: list[Speech]
    wall_s: float
    processor_s: float
    peak_mb: float


def measure() -> dict[str, object]:
    """Number of speakers, diarisation error rate, words with the wrong speaker, speed and memory."""
    count = int(os.environ.get("BENCH_CONVERSATIONS", "20"))
    sound = Sound[os.environ.get("BENCH_SOUND", "room").upper()]
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    talks = [usual(seed, sound) for seed in seeds]
    short = [talk for talk in talks if talk.seconds < SHORT_S]
    return {
        "question": "Speakers in conversations of 2 to 4 real people of 2 to 10 minutes, without their number",
        "sound": sound.value,
        "seeds": [FIRST_SEED, FIRST_SEED + count - 1],
        "turns": figures(talks, [diarized(talk, "embedded") for talk in talks]),
        "words": _words(talks),
        "words_of_people_who_speak_in_sentences": _words([usual(seed, sound, SENTENCES) for seed in seeds]),
        "short_ones": figures(short, [diarized(talk, "embedded") for talk in short]),
        "short_ones_by_the_wheel": figures(short, [diarized(talk, "wheel", USUAL_CADENCE) for talk in short]),
        "target": "right number in 9 of 10; DER at most 8 % with a collar of 0.25 s; words with the wrong speaker at "
        "most 4 %; at least 2.5 times real time; under 600 MB",
    }


def diarized(talk: Conversation, *name: str) -> Found:
    """The turns that one of the diarisers of `speakers_side` finds."""
    command = [sys.executable, "-m", "tools.bench.speakers_side", *name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    samples = talk.mono().astype(np.float32).tobytes()
    done = subprocess.run(command, input=samples, stdout=subprocess.PIPE, env=environment, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return Found([Speech(*turn) for turn in answer.pop("turns")], **answer)


def figures(talks: Sequence[Conversation], found: Sequence[Found]) -> dict[str, object]:
    """Over all conversations together."""
    pairs = list(zip(talks, found, strict=True))
    seconds = sum(talk.seconds for talk in talks)
    counts = [(len(talk.speakers), len({turn.speaker for turn in one.turns})) for talk, one in pairs]
    errors = {}
    for collar_s in COLLARS_S:
        total = reduce(add, (diarization_error(talk.speech, one.turns, collar_s) for talk, one in pairs))
        errors[f"der_percent_collar_{collar_s:g}_s"] = {
            "all": _percent(total.rate),
            "missed": _percent(total.missed_s / total.reference_s),
            "false_alarm": _percent(total.false_alarm_s / total.reference_s),
            "confused": _percent(total.confused_s / total.reference_s),
        }
    return {
        "conversations": len(talks),
        "minutes": round(seconds / 60),
        "right_number_of_speakers": sum(true == heard for true, heard in counts),
        "wrong_numbers": [f"{heard} instead of {true}" for true, heard in counts if true != heard],
        **errors,
        "times_real_time": round(seconds / sum(one.wall_s for one in found), 1),
        "times_processor_time": round(seconds / sum(one.processor_s for one in found), 1),
        "peak_mb": round(max(one.peak_mb for one in found)),
    }


def transcribed_words(server: ServerProcess, talk: Conversation, **fields: object) -> list[SpokenWord]:
    """The words of the server's transcript with their speakers."""
    audio = recordings.wav((talk.mono() * 32767).astype(np.int16))
    options = {"response_format": "verbose_json", "timestamp_granularities[]": "word", "speakers": "true", **fields}
    answer = server.transcribe(audio, **options)
    assert answer.status_code == 200, answer.text
    return [
        SpokenWord(text, word["speaker"], word["start"], word["end"])
        for word in answer.json()["words"]
        for text in recordings.plain_words(word["word"])
    ]


def _words(talks: Sequence[Conversation]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, ready(Path(folder) / "log", MODEL_ID=package.MODEL_ID) as server:
        total = reduce(add, (speaker_words(talk.words, transcribed_words(server, talk)) for talk in talks))
    return {
        "spoken": sum(len(talk.words) for talk in talks),
        "recognized": total.recognized,
        "wrong_speaker_percent": _percent(total.rate),
    }


def _percent(share: float) -> float:
    return round(100 * share, 2)
