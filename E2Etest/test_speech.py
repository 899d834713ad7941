"""What the server says, it understands: texts through POST /v1/audio/speech and back through the recognisers."""

import math
from pathlib import Path

import pytest

from asr_server.features.moonshine import package
from asr_server.features.speech_output.spoken_form import spoken_form
from E2Etest.drive import recordings
from E2Etest.drive.process import ready

pytestmark = [pytest.mark.nightly, pytest.mark.accuracy, pytest.mark.integration]


def _lines(name):
    return (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()


ENGLISH, DEMO = package.MODEL_ID, "demo"
SENTENCES = _lines("spoken_sentences.txt")
TEXTS = {ENGLISH: SENTENCES, DEMO: _lines("spoken_phrases.txt")}  # phrases: words that the demonstration model knows
# Of texts that are not checked, measured once (2026-11-23): how many, word errors for each word, and the deviation of a
# text from that, in words of a mean text. English: the sentences at even places. Demo: phrases of another seed.
_OTHERS = {ENGLISH: (100, 0.310, 0.272), DEMO: (200, 0.0126, 0.0517)}


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A server with both recognisers."""
    settings = {"MODEL_ID": f"{ENGLISH},{DEMO}", "SPEECH": "espeak"}
    with ready(tmp_path_factory.mktemp("talker") / "log", **settings) as server:
        yield server


@pytest.fixture(scope="module")
def person(tmp_path_factory):
    """A server that speaks as it does by default: with the packaged voice."""
    with ready(tmp_path_factory.mktemp("person") / "log", MODEL_ID=ENGLISH, SPEECH="auto") as server:
        yield server


def _word_errors(server, model, text, voice="alloy"):
    """Words that were heard wrong, and words."""
    asked = {"input": text, "voice": voice, "language": "en-US", "response_format": "wav"}
    spoken = server.client.post("/v1/audio/speech", json=asked)
    assert spoken.status_code == 200, spoken.text
    heard = server.transcribe(spoken.content, model=model, language="en")
    assert heard.status_code == 200, heard.text
    said, found = (recordings.plain_words(spoken_form(words, "en-US")) for words in (text, heard.json()["text"]))
    return recordings.word_errors(said, found), len(said)


def _heard(server, model, texts, voice="alloy"):
    """The same of several texts."""
    counts = [_word_errors(server, model, text, voice) for text in texts]
    return sum(errors for errors, _ in counts), sum(words for _, words in counts)


def _allowed(model, texts, words):
    """What the other texts let expect, and three standard errors of the difference."""
    others, rate, deviation = _OTHERS[model]
    return words * (rate + 3 * deviation * math.sqrt(1 / others + 1 / texts))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", [ENGLISH, DEMO])
def test_a_hundred_texts_are_understood(talker, model):
    """Half of the texts: the bounds were taken from the other half."""
    texts = TEXTS[model][1::2]
    errors, words = _heard(talker, model, texts)
    allowed = _allowed(model, len(texts), words)
    print(f"{model}: {errors} of {words} words are wrong ({errors / words:.1%}), {allowed:.0f} are allowed")
    assert errors <= allowed


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_packaged_voice_is_understood(person):
    """At most a quarter of the words that are wrong with eSpeak NG."""
    errors, words = _heard(person, ENGLISH, SENTENCES[::3])
    print(f"{errors} of {words} words are wrong ({errors / words:.1%})")
    assert errors <= 0.08 * words
