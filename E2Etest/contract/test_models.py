"""Several models on one server: who picks one gets it, and each shows its own state."""

import httpx
import pytest

from asr_server_fake.script import FakeScript, Rule
from E2Etest.drive import recordings
from E2Etest.drive.process import refusal
from E2Etest.drive.session import data, finals, open_session, receive, stream
from E2Etest.exposition import scrape, value
from E2Etest.realtime.session import COMPLETED
from E2Etest.realtime.session import open_session as open_realtime
from E2Etest.realtime.session import speech as realtime_speech

OTHER = "example/other"
SAID = "the other model said this"


@pytest.fixture(scope="module")
def pair(start):
    """Two models; the second takes half a second to load and answers always the same."""
    script = FakeScript(load_s=0.5, rules=(Rule(model=OTHER, text=SAID),))
    with start(script=script, MODELS=f"demo,{OTHER},moonshine-tiny-en", IDLE_TIMEOUT="0") as server:
        yield server


def _text(server, **fields):
    return server.transcribe(recordings.sample()[0], **fields).json().get("text")


def test_the_audio_of_a_live_session_is_kept_while_its_model_wakes(pair, speech):
    """All of it comes before the model is loaded, which is the first test's work: the final has it all."""
    assert {model["id"]: model["state"] for model in pair.health()["models"]}[OTHER] == "unloaded"
    messages = stream(pair, [data(speech)], model=OTHER)
    ((text, start, end, _),) = finals(messages)
    assert text == SAID
    assert end - start >= 0.9 * len(recordings.samples()) / 16_000
    assert {model["id"]: model["state"] for model in pair.health()["models"]}[OTHER] == "loaded"


def test_a_request_picks_its_model(pair):
    """By its own name; names of other applications mean the default."""
    default = _text(pair)
    assert _text(pair, model=OTHER) == SAID
    assert default not in ("", SAID)
    assert {_text(pair, model=name) for name in ("demo", "whisper-1")} == {default}
    answer = pair.transcribe(recordings.sample()[0], model="example/third")
    assert refusal(answer)[:2] == (404, "model_not_found")


def test_a_language_is_checked_against_the_model_that_is_asked(pair):
    """The English one knows no German, and the default does."""
    audio = recordings.sample()[0]
    assert pair.transcribe(audio, model="demo", language="de").status_code == 200
    answer = pair.transcribe(audio, model="moonshine-tiny-en", language="de")
    assert refusal(answer)[:2] == (400, "unsupported_language")


def test_every_model_is_listed_and_shows_its_state(pair):
    """`/v1/models`, `/health` and the metrics have each by its name, the default first."""
    names = [model["id"] for model in httpx.get(f"{pair.base}/v1/models").json()["data"]]
    assert names[:3] == ["demo", OTHER, "moonshine-tiny-en"]
    assert httpx.get(f"{pair.base}/v1/models/{OTHER}").json()["id"] == OTHER
    _text(pair)
    health = pair.health()
    states = {model["id"]: model["state"] for model in health["models"]}
    assert list(states) == names[:3]
    assert (states["demo"], states["moonshine-tiny-en"], health["model_state"]) == ("loaded", "unloaded", "loaded")
    seen = scrape(pair)
    for name, state in states.items():
        assert value(seen, "asr_models_state", model=name, state=state) == 1


def test_a_realtime_session_may_change_its_model(pair):
    """From the next turn on, as it may its language; a name that there is not is refused."""
    with open_realtime(pair) as talk:
        talk.update(transcription={"model": OTHER}, turn_detection=None)
        talk.say(realtime_speech())
        talk.commit()
        assert talk.until(COMPLETED)[-1].transcript == SAID


def test_an_unknown_model_ends_a_live_session(pair):
    """With the error that a recording gets."""
    with open_session(pair, model="example/third") as socket:
        assert socket.hello["error"]["code"] == "model_not_found"
        with pytest.raises(Exception, match="received"):
            receive(socket)
