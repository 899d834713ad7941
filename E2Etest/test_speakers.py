"""Who said what, in conversations of real people, through the whole server with the English model."""

from functools import reduce
from operator import add

import numpy as np
import pytest

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.moonshine import package
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.speakers.conversations import SpokenWord, conversation, film_music, usual
from E2Etest.speakers.measures import diarization_error, speaker_words
from E2Etest.speakers.voices import SENTENCES, SEVERAL, voices
from tools.bench.speakers import FIRST_SEED, diarized, transcribed_words

pytestmark = [pytest.mark.accuracy, pytest.mark.integration]

# Of 2, 3 and 4 people, in 2 to 4 minutes each. `make bench` measures twenty, of up to 10 minutes.
SEEDS = range(FIRST_SEED, FIRST_SEED + 3)


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    """A server with the English model loaded."""
    with ready(tmp_path_factory.mktemp("speakers") / "log", MODEL_ID=package.MODEL_ID) as server:
        yield server


def _diarized(server, audio):
    """The speakers and the words of diarized_json for float32 (n,)."""
    file = recordings.wav((audio * 32767).astype(np.int16))
    answer = server.transcribe(file, response_format="diarized_json")
    assert answer.status_code == 200, answer.text
    segments = answer.json()["segments"]
    words = [
        SpokenWord(text, part["speaker"], part["start"], part["end"])
        for part in segments
        for text in recordings.plain_words(part["text"])
    ]
    return {part["speaker"] for part in segments}, words


@pytest.mark.nightly
def test_two_people_are_two_speakers_and_words_are_given_to_who_said_them(english):
    """Without being told how many there are."""
    talk = conversation(seed=50, speakers=2, seconds=40)
    speakers, words = _diarized(english, talk.mono())
    assert speakers == {"A", "B"}
    result = speaker_words(talk.words, words)
    assert result.recognized > 0.4 * len(talk.words)
    assert result.rate <= 0.1


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_conversations_of_two_to_four_people():
    """The right number, and at most 8 % of errors, on conversations on which nothing was chosen."""
    talks = [usual(seed) for seed in SEEDS]
    turns = [diarized(talk, "embedded").turns for talk in talks]
    assert [len({turn.speaker for turn in found}) for found in turns] == [len(talk.speakers) for talk in talks]
    errors = [diarization_error(talk.speech, found, 0.25) for talk, found in zip(talks, turns, strict=True)]
    assert reduce(add, errors).rate <= 0.08


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_words_of_people_who_speak_in_sentences(english):
    """The English model dates digits too badly to be measured by them: docs/use/speakers.md has that figure."""
    talk = usual(FIRST_SEED, among=SENTENCES)
    words = speaker_words(talk.words, transcribed_words(english, talk))
    assert words.recognized > 0.5 * len(talk.words)
    assert words.rate <= 0.04


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("speaker", sorted({clip.voice for clip in recordings.real_clips()} - {SEVERAL}))
def test_one_person_is_one_speaker(english, speaker):
    """With pauses of a second, whoever it is."""
    pause = np.zeros(SAMPLE_RATE, np.float32)
    alone = np.concatenate([part for phrase in voices()[speaker] for part in (phrase.audio, pause)])
    assert _diarized(english, alone)[0] == {"A"}


@pytest.mark.nightly
def test_music_has_one_speaker_at_most(english):
    """A recogniser may hear words in it."""
    assert len(_diarized(english, np.tile(film_music(), 3))[0]) <= 1
