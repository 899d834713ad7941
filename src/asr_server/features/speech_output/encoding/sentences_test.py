"""Trimming at the ends of sentences, and the pauses between them. Silence is exact zeros here, or noise below -60
dBFS."""

import numpy as np
import pytest

from asr_server.features.speech_output.encoding.conftest import silence, tone
from asr_server.features.speech_output.encoding.sentences import SentenceJoiner

KEPT_SAMPLES = 720  # 30 ms
PAUSE_SAMPLES = 2_400


def joined(*sentences, trim=True):
    joiner = SentenceJoiner(trim=trim, pause_ms=100)
    frames = [frame for sentence in sentences for frame in joiner.push(sentence, ends_sentence=True)]
    return np.concatenate([np.zeros(0, np.float32), *(frame.samples for frame in frames)])


def test_silence_around_a_sentence_is_trimmed_to_30_ms():
    """Silence within a sentence stays, however long it is."""
    inner = np.concatenate([tone(200, 0.5), silence(3), tone(200, 0.5)])
    found = joined(np.concatenate([silence(1), inner, silence(2)]))
    assert np.array_equal(found, np.pad(inner, KEPT_SAMPLES))


def test_less_silence_than_that_is_kept():
    sentence = np.concatenate([silence(0.02), tone(200, 0.5), silence(0.01)])
    assert np.array_equal(joined(sentence), sentence)


@pytest.mark.parametrize("speech_level", [0.5, 0.04])
def test_noise_far_below_the_speech_is_silence(speech_level):
    """40 dB below it, or below -60 dBFS. What is 30 dB below it is not, as weak consonants are."""
    rng = np.random.default_rng(1)
    noise = rng.normal(0, max(0.0007, speech_level / 300), 12_000).astype(np.float32)
    consonant = rng.normal(0, speech_level / 30, 2_400).astype(np.float32)
    speech = np.concatenate([tone(200, 0.5, speech_level), consonant])
    found = joined(speech, np.concatenate([noise, speech, noise]))
    assert len(found) == 2 * len(speech) + PAUSE_SAMPLES + 2 * KEPT_SAMPLES


@pytest.mark.parametrize("trim", [True, False])
def test_pauses_are_between_sentences(trim):
    """Neither before the first nor after the last, and none for a sentence without sound."""
    sentence, pause = tone(200, 0.25), np.zeros(PAUSE_SAMPLES, np.float32)
    found = joined(silence(0), sentence, silence(0), sentence, sentence, silence(0), trim=trim)
    assert np.array_equal(found, np.concatenate([sentence, pause, sentence, pause, sentence]))


def test_a_sentence_of_silence_is_none():
    """Unless nothing is trimmed."""
    assert len(joined(silence(1), silence(1))) == 0
    assert len(joined(silence(1), silence(1), trim=False)) == 2 * 24_000 + PAUSE_SAMPLES


def test_what_is_held_back_has_a_bound():
    """A pause of a minute within a sentence becomes one of ten seconds; one at its end takes no more memory."""
    joiner = SentenceJoiner(trim=True, pause_ms=0)
    found = sum(len(frame.samples) for frame in joiner.push(tone(200, 0.5), ends_sentence=False))
    for _ in range(60):
        found += sum(len(frame.samples) for frame in joiner.push(silence(1), ends_sentence=False))
    assert found == 12_000
    assert sum(map(len, joiner._held)) == 240_000
    found = sum(len(frame.samples) for frame in joiner.push(tone(200, 0.5), ends_sentence=True))
    assert found == 240_000 + 12_000
