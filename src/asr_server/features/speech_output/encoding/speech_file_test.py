"""Files do not depend on how samples are divided, PCM is the samples, and speed changes the duration and no pitch."""

from __future__ import annotations

import itertools

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.conftest import silence, tone
from asr_server.features.speech_output.encoding.formats import EncodingOptions, SpeechFormat
from asr_server.features.speech_output.encoding.speech_file import (
    LoudnessNormalizer,
    SentenceFrame,
    SentenceJoiner,
    SpeechFile,
    Tempo,
    loudness_lufs,
)

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
    """No pause precedes the first sentence or follows the last, and a sentence without sound has none."""
    sentence, pause = tone(200, 0.25), np.zeros(PAUSE_SAMPLES, np.float32)
    found = joined(silence(0), sentence, silence(0), sentence, sentence, silence(0), trim=trim)
    assert np.array_equal(found, np.concatenate([sentence, pause, sentence, pause, sentence]))


def test_a_sentence_of_silence_is_none():
    """Unless nothing is trimmed."""
    assert len(joined(silence(1), silence(1))) == 0
    assert len(joined(silence(1), silence(1), trim=False)) == 2 * 24_000 + PAUSE_SAMPLES


def test_what_is_held_back_has_a_bound():
    """A pause of a minute within a sentence becomes one of ten seconds."""
    joiner = SentenceJoiner(trim=True, pause_ms=0)
    found = sum(len(frame.samples) for frame in joiner.push(tone(200, 0.5), ends_sentence=False))
    for _ in range(60):
        found += sum(len(frame.samples) for frame in joiner.push(silence(1), ends_sentence=False))
    assert found == 12_000
    found = sum(len(frame.samples) for frame in joiner.push(tone(200, 0.5), ends_sentence=True))
    assert found == 240_000 + 12_000


def normalized(sound, target_lufs):
    normalizer = LoudnessNormalizer(target_lufs)
    frames = SentenceJoiner(trim=False, pause_ms=0).push(sound, ends_sentence=True)
    blocks = itertools.chain.from_iterable(map(normalizer.push, frames))
    return np.concatenate([*blocks, *normalizer.finish()])


def ffmpeg_lufs(sound):
    """The momentary loudness of the last 400 ms."""
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=SPEECH_RATE, format="flt", layout="mono", time_base="1/24000")
    graph.link_nodes(source, graph.add("ebur128", "metadata=1"), graph.add("abuffersink")).configure()
    frame = av.AudioFrame.from_ndarray(sound[np.newaxis], format="flt", layout="mono")
    frame.sample_rate, frame.pts = SPEECH_RATE, 0
    graph.push(frame)
    graph.push(None)
    found = None
    while True:
        try:
            found = float(graph.pull().metadata["lavfi.r128.M"])
        except EOFError:
            return found


def test_the_sine_of_the_standard():
    """A full-scale sine of 997 Hz in one channel has -3.01 LUFS (ITU-R BS.1770-5, annex 1)."""
    times = np.arange(24_000) / SPEECH_RATE
    assert loudness_lufs(np.sin(2 * np.pi * 997 * times).astype(np.float32)) == pytest.approx(-3.01, abs=0.02)


@pytest.mark.parametrize("hertz", [60, 200, 1_500, 6_000])
def test_ffmpeg_measures_the_same(hertz):
    sound = tone(hertz, 1, 0.1)
    assert loudness_lufs(sound[-9_600:]) == pytest.approx(ffmpeg_lufs(sound), abs=0.15)


def test_silence_has_no_loudness():
    assert loudness_lufs(silence(0.4)) == -np.inf


@pytest.mark.parametrize("level", [0.03, 0.1, 0.6])
def test_speech_gets_the_loudness_that_is_asked_for(level):
    """One gain does it: the sound is the same but for its level, as is the silence before it."""
    sound = np.concatenate([silence(0.5), tone(200, 2, level)])
    found = normalized(sound, -20.0)
    assert loudness_lufs(found[12_000:]) == pytest.approx(-20.0, abs=0.2)
    assert np.allclose(found, sound * (found[20_000] / sound[20_000]), atol=1e-5)


def test_the_gain_has_a_bound():
    """Noise of almost nothing is not made as loud as speech."""
    sound = tone(200, 1, 0.002)
    assert np.allclose(normalized(sound, -10.0), sound * 10, atol=1e-6)


def test_a_request_shorter_than_the_measurement():
    sound = tone(200, 0.1)
    assert loudness_lufs(normalized(sound, -25.0)) == pytest.approx(-25.0, abs=0.2)
    assert len(normalized(silence(0.1), -25.0)) == 2_400


def test_a_louder_passage_does_not_clip():
    """The passage lowers the gain before its peak, without a step, and for the rest of the request."""
    sound = np.concatenate([tone(200, 1, 0.05), tone(200, 1, 0.5), tone(200, 1, 0.05)])
    found = normalized(sound, -14.0)
    assert np.abs(found).max() == pytest.approx(10 ** (-1 / 20), rel=0.01)
    gains = found[np.abs(sound) > 0.01] / sound[np.abs(sound) > 0.01]
    assert gains[0] > 2 * gains[-1]
    assert np.all(np.diff(gains) < 1e-4)
    assert np.abs(np.diff(gains)).max() < 0.05 * gains[0]


def test_pauses_in_the_first_speech_do_not_count():
    """A text whose first 400 ms of speech are parted by a pause gets the loudness of one without it."""
    sound = np.concatenate([tone(200, 0.2), silence(1.0), tone(200, 2)])
    assert loudness_lufs(normalized(sound, -20.0)[-24_000:]) == pytest.approx(-20.0, abs=0.2)


def test_speech_waits_two_seconds_at_most_for_its_gain():
    """A word and a long silence: not more than that is held back."""
    normalizer, sound = LoudnessNormalizer(-20.0), tone(200, 0.01)
    ready = [len(list(normalizer.push(SentenceFrame(sound, is_speech=number < 5)))) for number in range(300)]
    assert ready[:199] == [0] * 199
    assert sum(ready) >= 299


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
    loudness_lufs=st.sampled_from([None, -30.0, -14.0]),
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
    """Pieces of any size, also empty ones."""
    assert encoded(options, SENTENCES, cuts) == encoded(options, SENTENCES)


@pytest.mark.nightly
@pytest.mark.parametrize("speech_format", SpeechFormat)
@pytest.mark.parametrize("speed", [1.0, 0.25, 0.9, 1.7, 4.0])
def test_long_sentences_sample_by_sample(speech_format, speed):
    """The sentences reach over many pages and frames."""
    sentences = [np.concatenate([sentence] * 8) for sentence in SENTENCES]
    options = EncodingOptions(speech_format, speed=speed, loudness_lufs=-20.0)
    assert encoded(options, sentences, range(1, 40_000, 7)) == encoded(options, sentences)


@given(st.lists(st.floats(-1.5, 1.5, width=32, allow_subnormal=False), max_size=2_000))
@settings(max_examples=20)
def test_pcm_is_the_rounded_input(values):
    """The bytes are 16 bits, little-endian, clipped at full scale, at speed 1 without trimming and loudness."""
    sound = np.array(values, np.float32)
    file, samples = encoded(EncodingOptions(SpeechFormat.PCM, trim=False), [sound])
    expected = [max(-32_768, min(32_767, round(float(value) * 32_768))) for value in sound]
    assert np.frombuffer(file, "<i2").tolist() == expected
    assert samples == len(values)


def test_speed_applies_to_pauses_as_well():
    """The whole request takes half of its time."""
    plain, fast = (
        encoded(EncodingOptions(SpeechFormat.PCM, speed=speed, pause_ms=500), [tone(200, 1), tone(200, 1)])
        for speed in (1.0, 2.0)
    )
    assert plain[1] == 2 * 24_000 + 12_000
    assert fast[1] == plain[1] / 2


def at_speed(speed, sound):
    tempo = Tempo(speed)
    return np.concatenate([*tempo.push(sound), *tempo.finish()])


def pitch_hz(sound):
    """Return the pitch by autocorrelation, between 100 and 400 Hz."""
    spectrum = np.fft.rfft(sound, 2 * len(sound))
    similarity = np.fft.irfft(np.abs(spectrum) ** 2)[: len(sound)]
    shortest, longest = SPEECH_RATE // 400, SPEECH_RATE // 100
    return SPEECH_RATE / (shortest + int(similarity[shortest:longest].argmax()))


@pytest.mark.parametrize("speed", [0.25, 0.4, 0.5, 0.8, 1.25, 2.0, 3.0, 4.0])
def test_the_duration_changes_and_the_pitch_does_not(speed):
    """The duration is right to the sample, the pitch within 2 %. The level stays as well."""
    sound = tone(200, 3)
    found = at_speed(speed, sound)
    assert len(found) == round(len(sound) / speed)
    for part in np.array_split(found, 3):
        assert pitch_hz(part) == pytest.approx(200, rel=0.02)
        assert np.std(part) == pytest.approx(np.std(sound), rel=0.1)


@pytest.mark.parametrize("speed", [0.25, 4.0])
@pytest.mark.parametrize("length", [0, 1, 100, 5_000])
def test_little_sound(speed, length):
    """The result is as long as it should be; nothing of it is lost."""
    assert len(at_speed(speed, tone(200, 1)[:length])) == round(length / speed)


@pytest.mark.parametrize("speed", [0.3, 0.7])
def test_pieces_change_no_sample(speed):
    """The filter itself rounds its position at the end of each."""
    sound, tempo = tone(200, 3), Tempo(speed)
    found = [block for begin in range(0, len(sound), 100) for block in tempo.push(sound[begin : begin + 100])]
    assert np.array_equal(np.concatenate([*found, *tempo.finish()]), at_speed(speed, sound))


def test_words_stay_where_they_are():
    """A sound of the sentence begins and ends when it should, to 60 ms."""
    sound = np.concatenate([np.zeros(12_000, np.float32), tone(200, 0.5)] * 4)
    for speed in (0.5, 1.5, 3.0):
        loud = np.abs(at_speed(speed, sound)) > 0.05
        begins = np.flatnonzero(loud)[np.flatnonzero(np.diff(np.flatnonzero(loud), prepend=-9_999) > 2_000)]
        assert begins == pytest.approx(np.array([12_000, 36_000, 60_000, 84_000]) / speed, abs=1_440)
