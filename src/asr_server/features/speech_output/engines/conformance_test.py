"""The contract of `engine.speech.protocol`, held against every speech engine of the registry.

Guarantees of a single engine have tests next to it. `ask` speaks sentences together; `alone` has what each is when the
engine has no other, which no company may change. The longest sentence is spoken once: a person's voice takes a second
for ten of speech.
"""

from dataclasses import replace

import numpy as np
import pytest

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.build import engines_named
from asr_server.features.speech_output.engines import piper
from asr_server.features.speech_output.engines.espeak.package import ESPEAK
from asr_server.features.speech_output.engines.protocol import MAX_SENTENCE_CHARS, Sentence, SpeechFinish
from asr_server.features.speech_output.options import NAMES
from asr_server.schedule.model import RowDelta, RowFailed

TEXTS = (
    "Hello.",
    "Turn on the lights in the kitchen, please.",
    "7",
    "你好",
    '<b>"A & B"</b> \\pau=9\\',
    "!",
    "word " * (MAX_SENTENCE_CHARS // 5),
)


# Piper runs at night, as ten seconds of its speech take a second. Its own tests run by day.
@pytest.fixture(scope="module", params=(*NAMES, pytest.param(piper.DEFAULT, marks=pytest.mark.nightly)))
def engine(request):
    (made,) = engines_named(request.param)
    made.load()
    yield made
    made.unload()


@pytest.fixture(scope="module")
def sentences(engine):
    voices, languages = engine.traits.voices, engine.traits.languages
    return [
        Sentence(text, voices[n % len(voices)].id, languages[n % len(languages)] if n > 4 else "en")
        for n, text in enumerate(TEXTS)
    ]


def ask(engine, *wanted):
    """Return the sentences in the order given, samples and answer, spoken as many at a time as fit."""
    waiting, blocks, done = list(enumerate(wanted)), [[] for _ in wanted], {}
    while len(done) < len(wanted):
        while waiting and engine.free_slots:
            engine.admit(*waiting.pop(0))
        for outcome in engine.step():
            assert outcome.key not in done
            if isinstance(outcome, RowFailed):
                raise outcome.error
            if isinstance(outcome, RowDelta):
                blocks[outcome.key].append(outcome.value)
            else:
                done[outcome.key] = outcome.value
    return [(blocks[key], done[key]) for key in range(len(wanted))]


def samples(engine, *wanted):
    return [np.concatenate(blocks) for blocks, _ in ask(engine, *wanted)]


@pytest.fixture(scope="module")
def alone(engine, sentences):
    return [samples(engine, sentence)[0] for sentence in sentences[:-1]]


@pytest.fixture(scope="module")
def together(engine, sentences):
    """Return what `ask` returns of the sentences, spoken in another order and company."""
    return ask(engine, *reversed(sentences))[::-1]


@pytest.mark.slow("loads a voice and speaks")
def test_sentences_are_spoken_to_their_end_at_24_khz_within_full_scale(together):
    """Float32 (n,), finite, in [-1, 1]; the deltas add up to what the answer counts; none is empty. Another rate would
    give durations that no speaker has: 4 to 40 characters a second, in the longest sentence too."""
    for blocks, answer in together:
        for block in blocks:
            assert (block.dtype, block.ndim) == (np.float32, 1)
            assert len(block)
            assert np.abs(block).max() <= 1.0  # False for NaN
        assert sum(map(len, blocks)) == answer.samples
        assert answer.finish is SpeechFinish.END
    for number in (1, -1):
        assert 4 < len(TEXTS[number]) / (together[number][1].samples / SPEECH_RATE) < 40
    assert together[0][1].samples < together[1][1].samples
    assert max(np.abs(block).max() for block in together[1][0]) > 0.05


def test_rows_do_not_change_each_other(together, alone):
    """Another order and company gives each sentence the samples that it has alone, which differ."""
    assert len({spoken.tobytes() for spoken in alone}) == len(alone)
    for (blocks, _), expected in zip(together, alone, strict=False):
        np.testing.assert_array_equal(np.concatenate(blocks), expected)


def test_a_dropped_row_has_no_outcome_and_its_slot_is_free(engine, sentences, alone):
    """Before its first step, and as a neighbour of one that stays. A key that is not known is ignored."""
    slots = engine.free_slots
    assert slots
    engine.admit(10_001, sentences[1])
    assert engine.free_slots == slots - 1
    engine.drop(10_001)
    engine.drop(10_002)
    assert engine.free_slots == slots
    assert [list(engine.step()), list(engine.step())] == [[], []]  # there are no rows
    if slots > 1:
        engine.admit(10_003, sentences[1])
        list(engine.step())
        engine.drop(10_003)
    np.testing.assert_array_equal(samples(engine, sentences[0])[0], alone[0])


def test_it_speaks_the_same_after_it_was_unloaded(engine, sentences, alone):
    """Unloading twice is no error; slots and traits need no load."""
    traits = engine.traits
    engine.unload()
    engine.unload()
    assert not engine.loaded
    assert getattr(engine, "process", None) is None
    assert engine.traits is traits
    engine.load()
    assert engine.loaded
    np.testing.assert_array_equal(samples(engine, sentences[0])[0], alone[0])


def test_traits_name_what_the_engine_takes(engine):
    traits, ids = engine.traits, [voice.id for voice in engine.traits.voices]
    assert len(ids) == len(set(ids)) > 0
    assert set(traits.openai_voices.values()) <= set(ids)
    assert "en" in traits.languages
    assert len(traits.languages) == len(set(traits.languages))
    spoken = samples(engine, *(Sentence("Hello there.", one) for one in ids))
    assert len({one.tobytes() for one in spoken}) > len(ids) / 2


def test_only_what_the_traits_say_changes_the_samples(engine, sentences):
    """Instructions, seed and speed, where the engine has a use for them; the same request is always the same."""
    plain, traits = replace(sentences[1], text="Turn on the lights."), engine.traits
    others = (plain, replace(plain, instructions="Whisper."), replace(plain, seed=1), replace(plain, speed=2.0))
    first, again, told, seeded, fast = (one.tobytes() for one in samples(engine, plain, *others))
    assert first == again
    assert (len(fast) < 0.7 * len(first)) if traits.changes_speed else (fast == first)
    assert (told != first) == traits.follows_instructions
    assert (seeded != first) == (engine.model_id != ESPEAK)  # which draws nothing
