"""How right are the speakers of live words, and how many people with a stored voice are named while they speak?

Conversations of real people are streamed at the speed of speech to a server with the English model. Before each, the
voice of everybody in it is stored from phrases that are not said in it. Silence at the end lets all labels settle.

BENCH_CONVERSATIONS is how many (6).
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from asr_server.client.live import Line, LiveClient, LiveOptions
from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.moonshine import package
from asr_server.features.speakers.diarization.live import HORIZON_S
from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess, ready
from E2Etest.speakers.conversations import Conversation, SpokenWord, conversation
from E2Etest.speakers.measures import SpeakerWords, aligned, speaker_words
from E2Etest.speakers.voices import SENTENCES, Phrase, voices

# The algorithm was chosen on others.
FIRST_SEED = 100
SECONDS = 120
# What a voice is stored from, if there is as much without the last phrase.
ENROLLED_S = 4.0
_CHUNK_SAMPLES = SAMPLE_RATE // 10


@dataclass(frozen=True)
class Heard:
    """Words by their first final and by their last labels; how many of the people were named, and by another's name."""

    at_final: SpeakerWords
    settled: SpeakerWords
    people: int
    named: int
    misnamed: int

    def __add__(self, other: Heard) -> Heard:
        return Heard(
            self.at_final + other.at_final,
            self.settled + other.settled,
            self.people + other.people,
            self.named + other.named,
            self.misnamed + other.misnamed,
        )


def measure() -> dict[str, object]:
    """Words with the wrong speaker, when they are final and when they are settled, and people who are named."""
    count = int(os.environ.get("BENCH_CONVERSATIONS", "6"))
    with tempfile.TemporaryDirectory() as folder, ready(Path(folder) / "log", MODEL_ID=package.MODEL_ID) as server:
        seeds = range(FIRST_SEED, FIRST_SEED + count)
        each = [heard(server, seed, voices()) for seed in seeds]
        in_sentences = [heard(server, seed, SENTENCES) for seed in seeds]
    return {
        "question": "Live speakers and names in conversations of 2 to 4 real people of 2 minutes",
        "seeds": [FIRST_SEED, FIRST_SEED + count - 1],
        "all": figures(reduce(add, each)),
        "people_who_speak_in_sentences": figures(reduce(add, in_sentences)),
        "each": [figures(one) for one in [*each, *in_sentences]],
        "target": "words with the wrong speaker at most 4 %",
    }


def heard(server: ServerProcess, seed: int, among: Collection[str]) -> Heard:
    """One conversation between some of these people. The voices that were stored for it are deleted again."""
    stored = {name: _enrolled(voices()[name]) for name in among}
    rest = {name: voices()[name][stored[name] :] for name in among}
    talk = conversation(seed, 2 + seed % 3, SECONDS, among=rest)
    identities = [_store(server, name, voices()[name][: stored[name]]) for name in talk.speakers]
    try:
        first, last = _streamed(server, talk)
    finally:
        for identity in identities:
            assert server.client.delete(f"/v1/speakers/{identity}").is_success
    labels = [_label(talk, last, name) for name in talk.speakers]
    return Heard(
        speaker_words(talk.words, first),
        speaker_words(talk.words, last),
        len(labels),
        sum(label == name for label, name in zip(labels, talk.speakers, strict=True)),
        sum(label in voices() and label != name for label, name in zip(labels, talk.speakers, strict=True)),
    )


def figures(found: Heard) -> dict[str, object]:
    """Return the figures as counts, since conversations are few."""
    return {
        "words": found.settled.recognized,
        "wrong_at_final": found.at_final.wrong_speaker,
        "wrong_when_settled": found.settled.wrong_speaker,
        "people": found.people,
        "named": found.named,
        "misnamed": found.misnamed,
    }


def _enrolled(phrases: tuple[Phrase, ...]) -> int:
    """Return how many phrases a voice is stored from."""
    seconds = np.cumsum([len(phrase.audio) / SAMPLE_RATE for phrase in phrases])
    return min(int(np.searchsorted(seconds, ENROLLED_S)) + 1, len(phrases) - 1)


def _store(server: ServerProcess, name: str, phrases: tuple[Phrase, ...]) -> str:
    pcm = (np.concatenate([phrase.audio for phrase in phrases]) * 32767).astype(np.int16)
    answer = server.client.post(
        "/v1/speakers",
        data={"name": name, "consent": "published recordings"},
        files={"files[]": ("voice.wav", recordings.wav(pcm))},
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _streamed(server: ServerProcess, talk: Conversation) -> tuple[list[SpokenWord], list[SpokenWord]]:
    """The words with the labels of each first final, and with the last ones."""
    silence = np.zeros(int((HORIZON_S + 2) * SAMPLE_RATE), np.float32)
    pcm = (np.concatenate([talk.mono(), silence]) * 32767).astype("<i2")
    first: dict[int, Line] = {}
    last: dict[int, Line] = {}
    with LiveClient(server.base, LiveOptions(language="en", words="fast", speakers=True)) as client:
        sender = threading.Thread(target=_send, args=(client, pcm))
        sender.start()
        for line in client.lines():
            if line.final and line.text:
                first.setdefault(line.utterance, line)
                last[line.utterance] = line
            if line.ending == "flush":
                break
        else:
            raise RuntimeError("the server ended the session before all of it was heard")
        sender.join()
        assert not client.speakers_lost, client.speakers_lost
    timed = {number: line for number, line in last.items() if line.words}
    return _words(first, timed), _words(last, timed)


def _send(client: LiveClient, pcm: np.ndarray) -> None:
    began_s = time.monotonic()
    for at in range(0, len(pcm), _CHUNK_SAMPLES):
        time.sleep(max(0.0, began_s + at / SAMPLE_RATE - time.monotonic()))
        client.send(pcm[at : at + _CHUNK_SAMPLES].tobytes())
    client.flush()


def _words(lines: dict[int, Line], timed: dict[int, Line]) -> list[SpokenWord]:
    """The words of finals in order, with their speakers and estimated times."""
    found = []
    for number, line in sorted(timed.items()):
        speakers = [run.speaker for run in lines[number].speakers for _ in run.text.split()]
        assert len(speakers) == len(line.words), (line.text, line.words)
        for word, speaker in zip(line.words, speakers, strict=True):
            times_s = word.start_ms / 1000, word.end_ms / 1000
            found += [SpokenWord(text, speaker, *times_s) for text in recordings.plain_words(word.text)]
    return found


def _label(talk: Conversation, words: list[SpokenWord], name: str) -> str | None:
    """Return the label of most of the words of a person."""
    pairs = aligned(talk.words, words)
    labels = Counter(words[j].speaker for i, j in pairs if talk.words[i].speaker == name)
    return labels.most_common(1)[0][0] if labels else None
