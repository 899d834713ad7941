"""The conversations on which speakers are measured."""

import numpy as np
import pytest

from asr_server.core.audio import SAMPLE_RATE
from E2Etest.speakers.conversations import Sound, conversation, film_music
from E2Etest.speakers.voices import speech_of, voices


def test_there_are_eight_voices_with_all_their_words():
    """What is said in the recordings, also in the one that is cut at its pauses."""
    assert len(voices()) == 8
    assert [len(phrase.words) for phrase in voices()["jfk"]] == [5, 2, 7, 8]
    assert all(phrase.words and phrase.speech for phrases in voices().values() for phrase in phrases)


def test_a_conversation_has_pauses_overlaps_and_different_levels():
    """Everybody speaks. The reference says where: the track of a speaker is loud there, and silent elsewhere."""
    talk = conversation(seed=3, speakers=4, seconds=120)
    assert 120 <= talk.seconds <= 150
    assert {part.speaker for part in talk.speech} == {word.speaker for word in talk.words} == set(talk.speakers)
    inside = np.zeros(talk.tracks.shape, bool)
    for part in talk.speech:
        inside[talk.speakers.index(part.speaker), int(part.start_s * SAMPLE_RATE) : int(part.end_s * SAMPLE_RATE)] = 1
    power = talk.tracks**2
    assert power[inside].sum() > 0.99 * power.sum()
    counts = inside.sum(axis=0)
    assert 0.01 < (counts == 2).sum() / (counts > 0).sum() < 0.1
    assert 0.05 < (counts == 0).mean() < 0.3
    assert counts.max() == 2
    levels_db = [10 * np.log10(power[i][inside[i]].mean()) for i in range(4)]
    assert 2 < max(levels_db) - min(levels_db) < 13


@pytest.mark.parametrize("sound", list(Sound))
def test_a_seed_is_a_conversation(sound):
    """The same samples, turns and words each time; the sound changes neither turns nor words."""
    one, again, plain = (conversation(7, 2, 30, kind) for kind in (sound, sound, Sound.ROOM))
    assert np.array_equal(one.mono(), again.mono())
    assert (one.speech, one.words) == (plain.speech, plain.words)
    assert (sound is Sound.ROOM) == np.array_equal(one.mono(), plain.mono())
    assert conversation(8, 2, 30).words != plain.words


def test_through_the_telephone_the_words_stay_where_they_are():
    """The codec neither moves nor loses speech: what voice detection finds begins and ends at the same times."""
    talk = conversation(7, 1, 30, Sound.TELEPHONE)
    before, after = (speech_of(conversation(7, 1, 30, sound).tracks[0]) for sound in (Sound.ROOM, Sound.TELEPHONE))
    assert talk.mono().dtype == np.float32
    assert np.abs(np.array(before) - np.array(after)).max() < 0.15


def test_nobody_speaks_in_the_music():
    """Ten seconds."""
    assert len(film_music()) == 10 * SAMPLE_RATE
    assert speech_of(film_music()) == []
