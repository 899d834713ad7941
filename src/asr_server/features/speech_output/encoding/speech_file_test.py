"""Files do not depend on how samples are divided, PCM is the samples, and speed changes the duration and no pitch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.conftest import silence, tone
from asr_server.features.speech_output.encoding.formats import EncodingOptions, SpeechFormat
from asr_server.features.speech_output.encoding.speech_file import SentenceJoiner, SpeechFile, Tempo

KEPT_SAMPLES = 720  # 30 ms
PAUSE_SAMPLES = 2_400


def joined(*sentences, trim=True):
    joiner = SentenceJoiner(trim=trim, pause_ms=100)
    blocks = [block for sentence in sentences for block in joiner.push(sentence, ends_sentence=True)]
    return np.concatenate([np.zeros(0, np.float32), *blocks])


VOICED = tone(200, 0.25)
PAUSE = np.zeros(PAUSE_SAMPLES, np.float32)
INNER = np.concatenate([VOICED, silence(3), VOICED])
SHORT = np.concatenate([silence(0.02), VOICED, silence(0.01)])


@pytest.mark.parametrize(
    ("sentences", "trim", "parts"),
    [
        # Silence around a sentence is trimmed to 30 ms; silence within it stays, however long it is.
        ([np.concatenate([silence(1), INNER, silence(2)])], True, [np.pad(INNER, KEPT_SAMPLES)]),
        ([SHORT], True, [SHORT]),
        # No pause precedes the first sentence or follows the last, and a sentence without sound has none.
        ([silence(0), VOICED, silence(0), VOICED, VOICED, silence(0)], True, [VOICED, PAUSE, VOICED, PAUSE, VOICED]),
        ([silence(0), VOICED, silence(0), VOICED, silence(0)], False, [VOICED, PAUSE, VOICED]),
        # A sentence of silence is none, unless nothing is trimmed.
        ([silence(1), silence(1)], True, [silence(0)]),
        ([silence(1), silence(1)], False, [silence(1), PAUSE, silence(1)]),
    ],
)
def test_sentences_are_joined_by_pauses(sentences, trim, parts):
    assert np.array_equal(joined(*sentences, trim=trim), np.concatenate(parts))


@pytest.mark.parametrize("speech_level", [0.5, 0.04])
def test_noise_far_below_the_speech_is_silence(speech_level):
    """40 dB below it, or below -60 dBFS. What is 30 dB below it is not, as weak consonants are."""
    rng = np.random.default_rng(1)
    noise = rng.normal(0, max(0.0007, speech_level / 300), 12_000).astype(np.float32)
    consonant = rng.normal(0, speech_level / 30, 2_400).astype(np.float32)
    speech = np.concatenate([tone(200, 0.5, speech_level), consonant])
    found = joined(speech, np.concatenate([noise, speech, noise]))
    assert len(found) == 2 * len(speech) + PAUSE_SAMPLES + 2 * KEPT_SAMPLES


def test_what_is_held_back_has_a_bound():
    """A pause of a minute within a sentence becomes one of ten seconds."""
    joiner = SentenceJoiner(trim=True, pause_ms=0)
    found = sum(map(len, joiner.push(tone(200, 0.5), ends_sentence=False)))
    for _ in range(60):
        found += sum(map(len, joiner.push(silence(1), ends_sentence=False)))
    assert found == 12_000
    found = sum(map(len, joiner.push(tone(200, 0.5), ends_sentence=True)))
    assert found == 240_000 + 12_000


SENTENCES = [
    np.concatenate([silence(0.1), tone(150, 0.3), silence(0.07), tone(170, 0.2), silence(0.2)]),
    tone(210, 0.15),
    silence(0.05),
]
OPTIONS = st.builds(
    EncodingOptions,
    format=st.sampled_from(SpeechFormat),
    speed=st.sampled_from([1.0, 0.3, 0.7, 1.3, 3.1]),
    pause_ms=st.sampled_from([0, 15, 250]),
    trim=st.booleans(),
)


def encoded(options, sentences, cuts=()):
    """`cuts`: at how many samples of a sentence a new piece begins."""
    file, found = SpeechFile(options), b""
    for sentence in sentences:
        pieces = np.split(sentence, sorted(cut for cut in cuts if cut < len(sentence)))
        for place, piece in enumerate(pieces, 1):
            found += file.push(piece, ends_sentence=place == len(pieces))
    return found + file.finish(), file.samples


@settings(max_examples=40)
@given(OPTIONS, st.lists(st.integers(0, 16_000), max_size=30))
def test_how_samples_arrive_changes_no_byte(options, cuts):
    assert encoded(options, SENTENCES, cuts) == encoded(options, SENTENCES)


def test_pcm_is_the_rounded_input_clipped_at_full_scale():
    sound = np.array([-1.5, -1.0, -0.4 / 32_768, 0.6 / 32_768, 0.5, 1.0, 1.5], np.float32)
    file, samples = encoded(EncodingOptions(SpeechFormat.PCM, trim=False), [sound])
    assert np.frombuffer(file, "<i2").tolist() == [-32_768, -32_768, 0, 1, 16_384, 32_767, 32_767]
    assert samples == 7


def test_speed_applies_to_pauses_as_well():
    _, samples = encoded(EncodingOptions(SpeechFormat.PCM, speed=2.0, pause_ms=500), [tone(200, 1), tone(200, 1)])
    assert samples == (2 * 24_000 + 12_000) / 2


def at_speed(speed, sound):
    tempo = Tempo(speed)
    return np.concatenate([*tempo.push(sound), *tempo.finish()])


@pytest.mark.parametrize("speed", [0.25, 0.4, 0.5, 0.8, 1.25, 2.0, 3.0, 4.0])
def test_the_duration_changes_and_the_pitch_does_not(speed):
    """The duration is right to the sample, of little sound too, the pitch within 2 %. The level stays as well."""
    sound = tone(200, 3)
    for length in (0, 1, 100, 5_000, len(sound)):
        found = at_speed(speed, sound[:length])
        assert len(found) == round(length / speed)
    for part in np.array_split(found, 3):
        assert np.abs(np.fft.rfft(part)).argmax() * SPEECH_RATE / len(part) == pytest.approx(200, rel=0.02)
        assert np.std(part) == pytest.approx(np.std(sound), rel=0.1)


@pytest.mark.parametrize("speed", [0.3, 0.7])
def test_pieces_change_no_sample(speed):
    """The filter itself rounds its position at the end of each."""
    sound, tempo = tone(200, 3), Tempo(speed)
    found = [block for begin in range(0, len(sound), 100) for block in tempo.push(sound[begin : begin + 100])]
    assert np.array_equal(np.concatenate([*found, *tempo.finish()]), at_speed(speed, sound))
