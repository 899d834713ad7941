"""The process of eSpeak NG: lost, refused, and failing on a sentence."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from asr_server.core.errors import ModelUnavailable, SpeechFailed
from asr_server.features.speech_output.engines.espeak import package, process
from asr_server.features.speech_output.engines.espeak.package import Library
from asr_server.features.speech_output.engines.espeak.process import EspeakProcess
from asr_server.features.speech_output.engines.espeak.worker import Clause, SpeakRequest
from E2Etest.drive.procfs import family, wait_until_gone

HELLO = SpeakRequest("Hello there.", "en-US+m3")


def spoken(one, request=HELLO):
    return np.concatenate(list(one.speak(request)))


@pytest.mark.parametrize(
    ("text", "voice", "endings"),
    [
        ("Well, who is it? Nobody!", "en-us", [",", "?", "!"]),
        ("He said: come in; now.", "en-us", [":", ";", "."]),
        ("Go — “quickly,” they said", "en-us", [",", ",", ""]),
        ("Ask Mr. Smith. Then come back.", "en-us", ["", ".", "."]),
        ("Что? Да.", "ru", ["?", "."]),
        ("好，什么？", "cmn", [",", "?"]),
    ],
)
def test_clauses_have_the_sign_that_ends_them(shared, text, voice, endings):
    """The sign says how they are intoned. The dot of an abbreviation ends nothing."""
    assert [clause.ending for clause in shared.clauses(text, voice) if clause.phonemes] == endings


def test_phonemes_are_those_of_the_voices_language(shared):
    assert shared.clauses("Hello there.", "en-us") == [Clause("həlˈoʊ ðˈɛɹ", ".")]
    assert shared.clauses("Hello there.", "de")[0].phonemes != "həlˈoʊ ðˈɛɹ"
    assert "".join(clause.phonemes for clause in shared.clauses("...", "en-us")) == ""


def test_a_sentence_is_the_same_in_another_process(shared, request):
    time.sleep(1.1)  # so that it is another second than that of `shared`, whose number the library would take as seed
    another = EspeakProcess(package.find())
    request.addfinalizer(another.end)
    for voice in ("m3", "m5", "f2", "f4"):
        wanted = SpeakRequest("Hello there, see the six ships.", f"en-US+{voice}")
        np.testing.assert_array_equal(spoken(shared, wanted), spoken(another, wanted))


@pytest.mark.parametrize("voice", ["no-such-language+m3", "/etc/passwd"])
def test_a_voice_that_is_not_there_fails_its_own_sentence(shared, voice):
    with pytest.raises(SpeechFailed, match="sentence"):
        spoken(shared, SpeakRequest("Hello.", voice))
    assert len(spoken(shared))


@pytest.mark.parametrize(
    "library", [Library("/no/such.so", package.find().data), Library(package.find().path, Path("/"))]
)
def test_what_cannot_be_loaded_is_refused(library):
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        EspeakProcess(library)


def test_the_child_that_speaks_ends_with_its_process(espeak):
    """Killed in the middle of a sentence: nothing goes on speaking."""
    speaking = espeak.speak(SpeakRequest("This is a long sentence. " * 40, "en-US+m3"))
    next(speaking)  # the pipe is full before the end, and so the child waits
    _, child = family(espeak.pid)
    os.kill(espeak.pid, signal.SIGKILL)
    with pytest.raises(SpeechFailed, match="lost"):
        list(speaking)
    wait_until_gone(child, 10)


def test_a_process_that_hangs_is_ended(espeak, monkeypatch):
    monkeypatch.setattr(process, "_MESSAGE_S", 0.2)
    os.kill(espeak.pid, signal.SIGSTOP)
    with pytest.raises(SpeechFailed):
        spoken(espeak)
    assert not espeak.is_running
