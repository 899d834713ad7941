"""What the server says, it understands: texts through POST /v1/audio/speech and back through the recognisers."""

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
# Phrases have words that the demonstration model knows.
TEXTS = {ENGLISH: _lines("spoken_sentences.txt"), DEMO: _lines("spoken_phrases.txt")}
# Word errors for each word of other texts, and three standard errors of the difference (measured on 2026-11-23).
ALLOWED = {ENGLISH: 0.310 + 0.115, DEMO: 0.0126 + 0.019}


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A server with both recognisers."""
    settings = {"MODEL_ID": f"{ENGLISH},{DEMO}", "SPEECH": "espeak"}
    with ready(tmp_path_factory.mktemp("talker") / "log", **settings) as server:
        yield server


def _heard(server, model, texts):
    """Words that were heard wrong, and words."""
    errors = words = 0
    for text in texts:
        asked = {"input": text, "voice": "alloy", "language": "en-US", "response_format": "wav"}
        spoken = server.client.post("/v1/audio/speech", json=asked)
        assert spoken.status_code == 200, spoken.text
        heard = server.transcribe(spoken.content, model=model, language="en")
        assert heard.status_code == 200, heard.text
        said, found = (recordings.plain_words(spoken_form(one, "en-US")) for one in (text, heard.json()["text"]))
        errors, words = errors + recordings.word_errors(said, found), words + len(said)
    return errors, words


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", [ENGLISH, DEMO])
def test_a_hundred_texts_are_understood(talker, model):
    """Half of the texts: the bounds were taken from the other half."""
    errors, words = _heard(talker, model, TEXTS[model][1::2])
    print(f"{model}: {errors} of {words} words are wrong ({errors / words:.1%})")
    assert errors <= ALLOWED[model] * words


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_packaged_voice_is_understood(tmp_path):
    """The default voice has at most a quarter of the wrong words of eSpeak NG."""
    with ready(tmp_path / "log", MODEL_ID=ENGLISH, SPEECH="auto") as person:
        errors, words = _heard(person, ENGLISH, TEXTS[ENGLISH][::3])
    print(f"{errors} of {words} words are wrong ({errors / words:.1%})")
    assert errors <= 0.08 * words
