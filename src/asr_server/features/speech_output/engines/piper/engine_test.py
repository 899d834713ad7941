"""The engine `piper`: whose turn it is, what is lost with eSpeak NG's process, and texts of other languages."""

import os
import signal

import numpy as np
import pytest

from asr_server.core.errors import SpeechFailed
from asr_server.features.speech_output.engines.conformance_test import samples
from asr_server.features.speech_output.engines.espeak.process import EspeakProcess
from asr_server.features.speech_output.engines.espeak.worker import Clause
from asr_server.features.speech_output.engines.piper import voice
from asr_server.features.speech_output.engines.piper.conftest import small_graph
from asr_server.features.speech_output.engines.piper.engine import MAX_PHONEMES, PiperEngine, utterances
from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.schedule.model import RowDelta, RowDone, RowFailed

VOICE = "en_us-small-low"
LONG = Sentence("This is a sentence that is long enough to be spoken in several pieces, one after another.", VOICE)
SHORT = Sentence("A short one.", VOICE)


@pytest.fixture
def engine(voice_file):
    made = PiperEngine(voice.read(voice_file("en_US-small-low", small_graph())), "small")
    made.load()
    yield made
    made.unload()


def kill(child):
    """End a child, and return when it has ended; it is still to be waited for by its owner."""
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def outcomes(engine, steps=200):
    return [outcome for _ in range(steps) for outcome in engine.step()]


def test_who_has_heard_least_is_next(engine):
    engine.admit(1, LONG)
    while not any(isinstance(outcome, RowDelta) for outcome in engine.step()):
        pass
    engine.admit(2, SHORT)
    assert [outcome.key for outcome in outcomes(engine) if isinstance(outcome, RowDone)] == [2, 1]


def test_a_lost_process_costs_one_sentence(engine, monkeypatch):
    """Sentences that have their phonemes go on, and the next one starts a process again."""
    (first,) = samples(engine, SHORT)
    kill(engine.process.pid)
    np.testing.assert_array_equal(samples(engine, SHORT)[0], first)
    kill(engine.process.pid)
    with monkeypatch.context() as patched:
        patched.setattr(EspeakProcess, "is_running", True)  # it is lost while it is asked
        engine.admit(1, SHORT)
        (failed,) = outcomes(engine)
    assert isinstance(failed, RowFailed)
    assert isinstance(failed.error, SpeechFailed)
    np.testing.assert_array_equal(samples(engine, SHORT)[0], first)


def test_words_of_another_script_are_spoken(engine):
    """The voice speaks those phonemes of their language that it has."""
    plain, mixed = samples(engine, Sentence("I say.", VOICE), Sentence("I say Привет.", VOICE))
    assert len(mixed) > len(plain) + 50  # a phoneme has eight samples of the voice's rate


def test_no_piece_of_work_is_long(engine):
    """A hostile text is many pieces: the rows next to it go on."""
    engine.admit(1, Sentence("9" * 400, VOICE))
    pieces = [one for one in outcomes(engine) if isinstance(one, RowDelta)]
    assert max(len(one.value) for one in pieces) < 3 * 96 * 4  # samples of three windows
    engine.admit(1, Sentence("aя" * 200, VOICE))
    assert not list(engine.step())
    engine.admit(2, SHORT)
    assert next(one for one in outcomes(engine, 500) if isinstance(one, RowDone)).key == 2


def test_a_voice_that_reads_letters_gets_letters(voice_file):
    """No phonemes are asked for, and capital letters are small ones."""
    made = PiperEngine(voice.read(voice_file(network=small_graph(), phoneme_type="text", espeak={})), "letters")
    made.load()
    first, second = samples(made, *(Sentence(text, made.traits.voices[0].id, "en") for text in ("Hallo.", "hallo.")))
    np.testing.assert_array_equal(first, second)
    assert made.process is None
    made.unload()


KNOWN = frozenset("abcde ,.!ˈ_^$\u0303")


def spoken(*clauses):
    return ["".join(one) for one in utterances([Clause(*one) for one in clauses], KNOWN)]


@pytest.mark.parametrize(
    ("clauses", "found"),
    [
        ([("ab", ","), ("cˈde", "!")], ["ab, cˈde!"]),
        # The signs of the start, the end and the gaps are no phonemes; letters with marks are taken apart.
        ([("a^x_b$", "?"), ("(fr)ã", ".")], ["ab a\u0303."]),
        ([], []),
        ([("", "!"), ("xyz", ".")], []),
    ],
)
def test_clauses_are_the_phonemes_that_the_voice_knows_and_their_signs(clauses, found):
    assert spoken(*clauses) == found


def test_utterances_are_bounded():
    """Utterances end between two clauses, else between two words, else anywhere."""
    assert [len(one) for one in spoken(*[("abcd " * 15, ",")] * 4)] == [151, 151]
    words = spoken(("abcd " * 100, "."))
    assert max(map(len, words)) <= MAX_PHONEMES
    assert {one.split()[-1] for one in words} <= {"abcd", "abcd."}
    assert [len(one) for one in spoken(("a" * 450, ""))] == [200, 200, 50]
