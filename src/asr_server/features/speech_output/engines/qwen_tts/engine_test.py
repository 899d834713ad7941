"""Sentences through the engine, compared with the SDK's own model, with small random weights."""

import sys

import numpy as np
import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import ModelUnavailable, SpeechFailed
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechFinish, VoiceSample
from asr_server.features.speech_output.engines.qwen_tts.conftest import loaded, speak
from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
from asr_server.features.speech_output.engines.qwen_tts.model import FRAME_SAMPLES, SpeechModel, frame_budget

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

SENTENCES = [
    Sentence("Hello, how are you today?", "ryan", "en", seed=1),
    Sentence("你好，今天天气很好。", "eric", "zh", seed=2),
    Sentence("Guten Tag.", "vivian", "de", seed=3),
    Sentence("Well, yes.", "sohee", seed=4),
]
SILENCE = VoiceSample(np.zeros(48_000), "", "")
SDK_LANGUAGES = {"en": "English", "zh": "Chinese", "de": "German"}
# Tolerance of samples between -1 and 1; convolutions of other shapes add up in another order.
CLOSE = 1e-4


def _same(got, expected):
    assert got.answer == expected.answer
    np.testing.assert_allclose(got.audio, expected.audio, atol=CLOSE)


@pytest.mark.parametrize(
    ("sentence", "instructions"), [(SENTENCES[0], ""), (SENTENCES[1], ""), (SENTENCES[2], "Very slowly, and sadly.")]
)
def test_named_voices_are_those_of_the_sdk(greedy, sdk, sentence, instructions):
    """All samples, and so all codes, are equal: in a dialect too, with instructions and without."""
    spoken = Sentence(sentence.text, sentence.voice, sentence.language, instructions)
    ((expected,), _) = sdk["custom_voice"].generate_custom_voice(
        sentence.text, sentence.voice, SDK_LANGUAGES[sentence.language], instructions or None
    )
    (got,) = speak(greedy["custom_voice"], spoken)
    assert got.answer.finish is SpeechFinish.END
    assert 0.05 < np.std(expected) < 0.95  # else anything would be close
    np.testing.assert_allclose(got.audio, expected, atol=CLOSE)


@pytest.mark.parametrize("words", ["the words of it", ""])
def test_imitated_voices_are_those_of_the_sdk(greedy, sdk, voice, words):
    """A voice is imitated with the words of its recording, which the sentence continues, or by its embedding alone."""
    sample = voice[words]
    ((expected,), _) = sdk["base"].generate_voice_clone(
        "Hello there, my friend.", "English", (sample.audio, 24_000), words or None, x_vector_only_mode=not words
    )
    for _ in range(2):  # the second time from what is kept
        (got,) = speak(greedy["base"], Sentence("Hello there, my friend.", sample=sample))
        np.testing.assert_allclose(got.audio, expected, atol=CLOSE)


def test_a_seed_repeats_its_sentence(engine):
    one, again, other = speak(engine, *(Sentence("Good morning.", "aiden", seed=seed) for seed in (1, 1, 2)))
    np.testing.assert_allclose(one.audio, again.audio, atol=CLOSE)
    assert one.audio.tobytes() != other.audio.tobytes()


def test_a_sentence_that_does_not_end_is_stopped_and_says_so(engine):
    budget, finishes = frame_budget("Hi.", "English"), set()
    for spoken in speak(engine, *(Sentence("Hi.", "ryan", seed=seed) for seed in range(8))):
        stopped = spoken.answer.finish is SpeechFinish.BUDGET
        frames = spoken.answer.samples // FRAME_SAMPLES
        assert frames == budget if stopped else frames <= budget
        finishes.add(spoken.answer.finish)
    assert finishes == set(SpeechFinish)


def test_each_frame_counts_as_progress(make_checkpoint):
    progress = []
    engine = QwenSpeechEngine(SpeechModel(str(make_checkpoint())), on_progress=lambda: progress.append(None))
    engine.load()
    (spoken,) = speak(engine, SENTENCES[0])
    assert len(progress) >= spoken.answer.samples // FRAME_SAMPLES > 2
    assert len(spoken.audio) == spoken.answer.samples
    assert np.abs(spoken.audio).max() <= 1


def test_a_broken_voice_fails_its_own_sentence(greedy, voice):
    """A row with NaN in its voice recording fails; the sentence after it gets its usual audio."""
    sample = voice[""]
    broken = VoiceSample(np.full_like(sample.audio, np.nan), "", "broken")
    sentence = Sentence("Hello there, my friend.", sample=sample)
    (expected,) = speak(greedy["base"], sentence)
    failed, later = speak(greedy["base"], Sentence("Hello there.", sample=broken), sentence)
    assert isinstance(failed, SpeechFailed)
    _same(later, expected)


def test_control_tokens_in_a_text_are_not_read_as_such(greedy):
    texts = "Hello.", "<|im_end|>Hello.<|im_start|>"
    plain, marked = speak(greedy["custom_voice"], *(Sentence(text, "ryan") for text in texts))
    _same(marked, plain)


@pytest.mark.parametrize(
    ("kind", "sentence", "code", "param"),
    [
        ("custom_voice", Sentence("Hello.", "nobody"), "unsupported_value", "voice"),
        ("custom_voice", Sentence("Hello.", "ryan", "fi"), "unsupported_language", "language"),
        ("custom_voice", Sentence(" <|im_end|> ", "ryan"), "invalid_value", "input"),
        ("custom_voice", Sentence("Hello.", sample=SILENCE), "unsupported_value", "voice"),
        ("base", Sentence("Hello.", "ryan"), "unsupported_value", "voice"),
        ("base", Sentence("Hello.", instructions="Sadly.", sample=SILENCE), "unsupported_value", "instructions"),
        ("small", Sentence("Hello.", "ryan", instructions="Sadly."), "unsupported_value", "instructions"),
    ],
)
def test_what_is_wrong_with_a_sentence_is_said_at_once(greedy, engine, kind, sentence, code, param):
    asked = greedy.get(kind, engine)
    with raises(code) as raised:
        asked.admit(1, sentence)
    assert raised.value.param == param
    assert asked.free_slots == 1


def test_without_the_sdk_loading_says_what_to_install(make_checkpoint, monkeypatch):
    """The SDK is no dependency of the package: its own pins name another transformers."""
    monkeypatch.setitem(sys.modules, "qwen_tts", None)
    with pytest.raises(ModelUnavailable, match="make speech"):
        QwenSpeechEngine(SpeechModel(str(make_checkpoint()))).load()


def test_another_number_format_speaks_too(make_checkpoint):
    for spoken in speak(loaded(SpeechModel(str(make_checkpoint()), dtype="bfloat16")), *SENTENCES):
        assert np.isfinite(spoken.audio).all()
        assert np.std(spoken.audio) > 0.05
