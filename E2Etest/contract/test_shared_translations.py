"""Readers of a shared session in their own languages, with an endpoint that translates as told."""

import threading
from contextlib import ExitStack

import pytest

from asr_server.features.translation.conftest import ScriptedLlm, refusal, right, translation
from asr_server.subtitle.files import parse_vtt
from E2Etest.live.readers import error, reader, say, share, until
from E2Etest.live.session import open_session

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]


@pytest.fixture(scope="module")
def llm():
    """The endpoint."""
    with ScriptedLlm() as found:
        yield found


@pytest.fixture(scope="module")
def translating(start, llm):
    """A server with that endpoint."""
    with start(OPENAI_BASE_URL=llm.base_url, TRANSLATE_MODEL="scripted") as server:
        yield server


def test_every_reader_gets_its_language_and_each_final_is_translated_once(translating, llm, speech):
    """Five readers of German and one of each other kind; the file has the same translation."""
    llm.restart(right)
    with open_session(translating) as socket, ExitStack() as readers:
        link = share(translating, socket, languages=["German", "fr"])
        assert link["languages"] == ["de", "fr"]
        german = [readers.enter_context(reader(translating, link, "de")) for _ in range(5)]
        french, spoken = (readers.enter_context(reader(translating, link, tag)) for tag in ("fr", ""))
        said = say(socket, speech)
        seen = [until(found, "final")[-1] for found in german]
        assert [event["text"] for event in seen] == 5 * [translation(said)]
        assert (seen[0]["language_code"], seen[0]["translated"]) == ("de", True)
        assert until(french, "final")[-1]["language_code"] == "fr"
        last = until(spoken, "final")[-1]
        assert (last["text"], "translated" in last, last["id"]) == (said, False, seen[0]["id"])
        assert len(llm.calls) == 2
        file = translating.client.get(link["captions"], params={"language": "de"}).text
        assert " ".join(cue.text for cue in parse_vtt(file)).split() == translation(said).split()
        assert len(llm.calls) == 2


def test_the_speaker_does_not_wait_for_a_translation(translating, llm, speech):
    """The speaker has the finals while the endpoint has not answered yet; readers have theirs later, in order."""
    answers = threading.Event()

    def slowly(call):
        assert answers.wait(60)
        return right(call)

    llm.restart(slowly)
    with open_session(translating) as socket:
        link = share(translating, socket, languages=["de"])
        with reader(translating, link, "de") as found:
            said = [say(socket, speech), say(socket, speech)]
            answers.set()
            seen = [until(found, "final")[-1]["text"] for _ in said]
    llm.restart(right)
    assert seen == [translation(text) for text in said]


def test_an_endpoint_that_fails_leaves_the_speakers_text_and_its_reason(translating, llm, speech):
    """The speaker's own final does not wait for it."""
    llm.restart(lambda call: refusal(401))
    with open_session(translating) as socket:
        link = share(translating, socket, languages=["de"])
        with reader(translating, link, "de") as found:
            said = say(socket, speech)
            event = until(found, "final")[-1]
    assert (event["text"], event["translated"], event["language_code"]) == (said, False, "en")
    assert event["reason"]


def test_a_language_that_the_link_does_not_offer_is_refused(translating):
    """The owner decides what is translated, as it is the owner's endpoint."""
    with open_session(translating) as socket:
        link = share(translating, socket)
        with reader(translating, link, "de") as code:
            assert code == "invalid_value"
        with reader(translating, link, "no language!") as code:
            assert code == "invalid_language_format"


@pytest.mark.parametrize(
    ("languages", "code"), [(["klingon!"], "invalid_language_format"), (5 * ["de"], "invalid_value")]
)
def test_languages_that_no_link_can_have_are_refused(translating, languages, code):
    """The error names the field."""
    with open_session(translating) as socket:
        answer = translating.client.post(f"/v1/live/{socket.hello['session_id']}/share", json={"languages": languages})
    assert error(answer) == code
    assert answer.json()["error"]["param"].startswith("languages")


def test_without_an_endpoint_no_language_is_offered(live_server):
    """The link is refused, instead of one that never translates."""
    with open_session(live_server) as socket:
        address = f"/v1/live/{socket.hello['session_id']}/share"
        assert error(live_server.client.post(address, json={"languages": ["de"]})) == "translation_unavailable"
