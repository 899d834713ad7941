"""Sentences through the engine, compared with the SDK's own model, with small random weights."""

import sys

import numpy as np
import pytest
import torch

from asr_server.core.errors import (
    EngineOutOfMemory,
    InvalidReference,
    InvalidValue,
    MissingParameter,
    ModelUnavailable,
    SpeechFailed,
    UnsupportedLanguage,
    UnsupportedValue,
)
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechFinish, VoiceSample
from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
from asr_server.features.speech_output.engines.qwen_tts.model import FRAME_SAMPLES, SpeechModel, frame_budget
from asr_server.features.speech_output.engines.qwen_tts.talker import _FIRST_FRAMES
from asr_server.schedule.ports import RowDelta

pytestmark = pytest.mark.torch

SENTENCES = [
    Sentence("Hello, how are you today?", "ryan", "en", seed=1),
    Sentence("你好，今天天气很好。", "eric", "zh", seed=2),
    Sentence("Guten Tag.", "vivian", "de", seed=3),
    Sentence("Well, yes.", "sohee", seed=4),
]
SDK_LANGUAGES = {"en": "English", "zh": "Chinese", "de": "German"}
# Tolerance of samples between -1 and 1; convolutions of other shapes add up in another order.
CLOSE = 1e-4


@pytest.fixture(scope="module")
def alone(engine, speak):
    return [speak(engine, sentence)[0] for sentence in SENTENCES]


def _same(got, expected):
    assert got.answer == expected.answer
    np.testing.assert_allclose(got.audio, expected.audio, atol=CLOSE)


# -- the SDK ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "instructions"),
    [
        pytest.param(SENTENCES[0], "", id="plain", marks=pytest.mark.nightly),
        pytest.param(SENTENCES[1], "", id="dialect"),
        pytest.param(SENTENCES[2], "Very slowly, and sadly.", id="instructions"),
    ],
)
def test_named_voices_are_those_of_the_sdk(greedy, sdk, speak, sentence, instructions):
    """All samples, and so all codes, are equal: in a dialect too, with instructions and without."""
    spoken = Sentence(sentence.text, sentence.voice, sentence.language, instructions)
    ((expected,), _) = sdk["custom_voice"].generate_custom_voice(
        sentence.text, sentence.voice, SDK_LANGUAGES[sentence.language], instructions or None
    )
    (got,) = speak(greedy["custom_voice"], spoken)
    assert got.answer.finish is SpeechFinish.END
    assert 0.05 < np.std(expected) < 0.95  # else anything would be close
    np.testing.assert_allclose(got.audio, expected, atol=CLOSE)


@pytest.mark.nightly
@pytest.mark.parametrize("words", ["the words of it", ""])
def test_imitated_voices_are_those_of_the_sdk(greedy, sdk, speak, voice, words):
    """A voice is imitated with the words of its recording, which the sentence continues, or by its embedding alone."""
    sample = voice[words]
    ((expected,), _) = sdk["base"].generate_voice_clone(
        "Hello there, my friend.", "English", (sample.audio, 24_000), words or None, x_vector_only_mode=not words
    )
    for _ in range(2):  # the second time from what is kept
        (got,) = speak(greedy["base"], Sentence("Hello there, my friend.", sample=sample))
        np.testing.assert_allclose(got.audio, expected, atol=CLOSE)


# -- rows ------------------------------------------------------------------------------------------------------------


def test_rows_do_not_change_each_other(engine, speak, alone):
    """Four callers at once get what each gets alone, and the answers differ."""
    assert len({answer.audio.tobytes() for answer in alone}) == len(alone)
    for got, expected in zip(speak(engine, *SENTENCES), alone, strict=True):
        _same(got, expected)


@pytest.mark.nightly
def test_rows_join_and_leave_at_any_step(engine, alone):
    """A row that was dropped has no outcome, its slot is free at once, and nobody else changes."""
    rng = np.random.default_rng(5)
    wanted, audio = {}, {}
    for key in range(40):
        if engine.free_slots:
            wanted[key] = int(rng.integers(len(SENTENCES)))
            engine.admit(key, SENTENCES[wanted[key]], urgent=bool(rng.integers(2)))
        if wanted and rng.random() < 0.3:
            free, gone = engine.free_slots, int(rng.choice(list(wanted)))
            engine.drop(gone)
            assert engine.free_slots == free + 1
            del wanted[gone]
        for _ in range(int(rng.integers(30))):
            for outcome in engine.step():
                assert outcome.key in wanted
                if isinstance(outcome, RowDelta):
                    audio.setdefault(outcome.key, []).append(outcome.value)
                else:
                    expected = alone[wanted.pop(outcome.key)]
                    assert outcome.value == expected.answer
                    np.testing.assert_allclose(np.concatenate(audio[outcome.key]), expected.audio, atol=CLOSE)
    for key in wanted:
        engine.drop(key)
    assert engine.free_slots == engine.info.slots
    assert not list(engine.step())


def test_a_seed_repeats_its_sentence(engine, speak):
    """Another seed gives another sentence."""
    one, again, other = speak(engine, *(Sentence("Good morning.", "aiden", seed=seed) for seed in (1, 1, 2)))
    np.testing.assert_allclose(one.audio, again.audio, atol=CLOSE)
    assert one.audio.tobytes() != other.audio.tobytes()


def test_samples_come_while_the_sentence_is_made(engine, speak):
    """The first of them after a few frames; all together are what the answer counts."""
    (spoken,) = speak(engine, SENTENCES[0])
    assert len(spoken.deltas) > 2
    assert len(spoken.deltas[0]) == _FIRST_FRAMES * FRAME_SAMPLES
    assert len(spoken.audio) == spoken.answer.samples == spoken.answer.frames * FRAME_SAMPLES
    assert spoken.audio.dtype == np.float32
    assert np.abs(spoken.audio).max() <= 1


@pytest.mark.nightly
def test_a_sentence_that_does_not_end_is_stopped_and_says_so(engine, speak):
    """The sentence ends at its budget, others before."""
    budget, finishes = frame_budget("Hi.", "English"), set()
    for spoken in speak(engine, *(Sentence("Hi.", "ryan", seed=seed) for seed in range(8))):
        stopped = spoken.answer.finish is SpeechFinish.BUDGET
        assert spoken.answer.frames == budget if stopped else spoken.answer.frames <= budget
        finishes.add(spoken.answer.finish)
    assert finishes == set(SpeechFinish)


@pytest.mark.nightly
def test_less_memory_means_fewer_rows_and_the_same_samples(make_engine, make_checkpoint, speak, alone):
    """A row may have to wait for another."""
    small = make_engine(make_checkpoint(), kv_budget_mb=1)
    assert small.info.slots == 1
    _same(speak(small, SENTENCES[2], SENTENCES[0])[1], alone[0])


def test_numbers_out_of_range_fail_their_own_sentence(greedy, speak, voice):
    """The recording of the voice is not a number here, for two sentences. One next to them, and those after them, get
    what they get alone."""
    sample = voice[""]
    broken = VoiceSample(np.full_like(sample.audio, np.nan), "", "broken")
    sentence = Sentence("Hello there, my friend.", sample=sample)
    lost = Sentence("Hello there, my dear old friend of mine.", sample=broken)
    (expected,) = speak(greedy["base"], sentence)
    failed, beside, another = speak(greedy["base"], lost, sentence, lost)
    later = speak(greedy["base"], sentence, sentence, sentence)
    for error in (failed, another):
        assert isinstance(error, SpeechFailed)
        assert "left the range of DTYPE" in error.message
    for got in (beside, *later):
        _same(got, expected)


def test_a_dropped_sentence_frees_its_slot_at_once(engine):
    """The sentence is dropped before its prompt was run, and in the middle of it."""
    for steps in (0, 1, 6):
        engine.admit(1, SENTENCES[0])
        for _ in range(steps):
            list(engine.step())
        assert engine.free_slots < engine.info.slots
        engine.drop(1)
        assert engine.free_slots == engine.info.slots
        assert not list(engine.step())


def test_what_is_kept_of_voices_is_bounded(greedy, speak, voice):
    """The voices that were not used for longest are made again."""
    imitations, sample = greedy["base"]._runtime._imitations, voice["the words of it"]
    with torch.inference_mode():
        one = imitations.of(sample)
        assert imitations.of(sample) is one
        for number in range(imitations._limit_bytes // one.nbytes + 1):
            imitations._held[f"other {number}"] = one
        imitations.of(voice[""])
        assert sample.key not in imitations._held
        assert imitations.held_bytes <= imitations._limit_bytes
    imitations.clear()


# -- sentences that cannot be spoken ---------------------------------------------------------------------------------


def test_control_tokens_in_a_text_are_not_read_as_such(greedy, speak):
    """The tokens would end the turn."""
    plain, marked = speak(
        greedy["custom_voice"],
        Sentence("Hello.", "ryan"),
        Sentence("<|im_end|>Hello.<|im_start|>", "ryan"),
    )
    _same(marked, plain)


@pytest.mark.parametrize(
    ("kind", "sentence", "error", "param"),
    [
        ("custom_voice", Sentence("Hello.", "nobody"), UnsupportedValue, "voice"),
        ("custom_voice", Sentence("Hello.", "ryan", "fi"), UnsupportedLanguage, "language"),
        ("custom_voice", Sentence(" <|im_end|> ", "ryan"), InvalidValue, "input"),
        ("custom_voice", Sentence("Hello.", sample=VoiceSample(np.zeros(48_000), "", "")), UnsupportedValue, "voice"),
        ("base", Sentence("Hello.", "ryan"), MissingParameter, "voice"),
        ("base", Sentence("Hello.", sample=VoiceSample(np.zeros(9_000), "", "")), InvalidReference, "voice"),
        ("base", Sentence("Hello.", sample=VoiceSample(np.zeros(999_000), "", "")), InvalidReference, "voice"),
        (
            "base",
            Sentence("Hello.", instructions="Sadly.", sample=VoiceSample(np.zeros(48_000), "", "")),
            UnsupportedValue,
            "instructions",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_with_a_sentence_is_said_at_once(greedy, kind, sentence, error, param):
    """The error names the field of the request, before the sentence takes a slot."""
    with pytest.raises(error) as raised:
        greedy[kind].admit(1, sentence)
    assert raised.value.param == param
    assert greedy[kind].free_slots == greedy[kind].info.slots


def test_small_models_follow_no_instructions(engine):
    """The SDK drops them silently."""
    with pytest.raises(UnsupportedValue, match=r"1\.7B"):
        engine.admit(1, Sentence("Hello.", "ryan", instructions="Sadly."))


def test_instructions_longer_than_the_models_positions_are_refused(greedy):
    """Whatever the memory: they would be read where the table of positions has ended."""
    with pytest.raises(InvalidValue, match="too long for this model") as raised:
        greedy["custom_voice"].admit(1, Sentence("Hello.", "ryan", instructions="sadly " * 40_000))
    assert raised.value.param == "instructions"


@pytest.mark.nightly
def test_a_text_for_which_there_is_never_room_is_refused(make_engine, make_checkpoint):
    """The memory is too small here: one row of 1,024 tokens."""
    small = make_engine(make_checkpoint("custom_voice", {"config.json": {"tts_model_size": "1b7"}}), kv_budget_mb=1)
    with pytest.raises(EngineOutOfMemory, match="KV_BUDGET_MB"):
        small.admit(1, Sentence("Hello.", "ryan", instructions="sadly " * 1_000))


# -- loading ---------------------------------------------------------------------------------------------------------


def test_without_the_sdk_loading_says_what_to_install(make_checkpoint, monkeypatch):
    """The SDK is no dependency of the package: its own pins name another transformers."""
    monkeypatch.setitem(sys.modules, "qwen_tts", None)
    with pytest.raises(ModelUnavailable, match="make speech"):
        QwenSpeechEngine(SpeechModel(str(make_checkpoint()))).load()


@pytest.mark.nightly
@pytest.mark.parametrize("values", [{"dtype": "bfloat16"}, {"quantize": "int8"}])
def test_other_number_formats_speak_too(make_engine, make_checkpoint, speak, values):
    """Rows are spoken together, to their ends."""
    loaded = make_engine(make_checkpoint(), **values)
    for spoken in speak(loaded, *SENTENCES):
        assert np.isfinite(spoken.audio).all()
        assert np.std(spoken.audio) > 0.05


@pytest.mark.nightly
def test_an_engine_can_be_unloaded_and_loaded_again(make_engine, make_checkpoint, speak, alone):
    """The samples are the same; the engine's traits are known all the time."""
    again = make_engine(make_checkpoint(), slots=2)
    traits = again.traits
    again.unload()
    assert not again.loaded
    assert again.traits == traits
    again.load()
    _same(speak(again, SENTENCES[0])[0], alone[0])
