"""Servers in this process, each kind started once; and what is said to them."""

import os
from contextlib import closing

import pytest

from asr_server.features.translation.conftest import ScriptedLlm
from asr_server_fake.script import FakeScript
from E2Etest.drive.process import GUARDED, RunningServer
from E2Etest.drive.session import data, finals, stream


@pytest.fixture(scope="session")
def reach(request):
    """A function: the server at `E2E_BASE_URL` where there is one, else a server as `start` makes it."""
    if "E2E_BASE_URL" in os.environ:
        return lambda **options: closing(RunningServer())
    return request.getfixturevalue("start")


@pytest.fixture(scope="session")
def server(reach):
    with reach(MAX_UPLOAD_MB="4", MAX_AUDIO_S="120") as server:
        yield server


@pytest.fixture(scope="session")
def guarded(start):
    """A server with two keys, an endpoint for translations and a scripted engine that imitates voices."""
    with ScriptedLlm() as llm, start(OPENAI_BASE_URL=llm.base_url, **GUARDED) as server:
        yield server


@pytest.fixture(scope="module")
def llm():
    with ScriptedLlm() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def scripted_server(start):
    """A server with the defaults. A test gives its engine another script by `scripted`."""
    with start() as server:
        yield server


@pytest.fixture
def scripted(scripted_server):
    """A function that gives the engine of `scripted_server` these rules, until the end of the test."""
    yield lambda *rules, **script: scripted_server.replace_script(FakeScript(rules=rules, **script))
    scripted_server.replace_script(FakeScript())


@pytest.fixture(scope="session")
def live_server(reach):
    with reach() as server:
        yield server


@pytest.fixture(scope="session")
def realtime_server(reach):
    """Utterances are cut after 6 s, so that turns of several are seen."""
    with reach(WS_UTTERANCE_MAX_S="6") as server:
        yield server


@pytest.fixture(scope="session")
def said(live_server, speech):
    """The text that is recognised in `speech`: right or wrong, it must be the same however the audio comes."""
    ((text, *_),) = finals(stream(live_server, [data(speech)]))
    assert text
    return text
