"""The names of a home as hotwords: what the engine is given, through the bridge and the server."""

import asyncio

import pytest

from asr_server.features.wyoming.conftest import TOKEN, FakeHome, home_at
from asr_server_fake.script import FakeScript, Rule
from E2Etest.cli.commands import command
from E2Etest.drive import recordings
from E2Etest.drive.session import data
from E2Etest.wyoming.client import heard
from E2Etest.wyoming.conftest import bridged

pytestmark = pytest.mark.integration
_TRIES = 60


@pytest.fixture(scope="module")
def named_server(start):
    """A server whose engine says which names it was given."""
    with start() as server:
        rules = [Rule(context="Bright Lamp, Chandelier", text="lamp"), Rule(context="Bulb", text="bulb")]
        server.replace_script(FakeScript(rules=(*rules, Rule(text="none"))))
        yield server


@pytest.fixture
def bridge(named_server, tmp_path):
    """A function that starts the bridge of a home: `with bridge(address, "token") as port`."""

    def started(address, token=TOKEN):
        (tmp_path / "token").write_text(token)
        return bridged(named_server.base, "--ha-url", address, "--ha-token-file", tmp_path / "token", log=[])

    return started


async def _said(port):
    return (await heard(port, data(recordings.samples()), language="en")).text


@pytest.mark.slow("starts a server and a bridge")
async def test_names_reach_the_engine_and_a_new_name_does_without_a_restart(bridge):
    """The registry's event is enough."""
    home = FakeHome()
    with home_at(home) as address, bridge(address) as port:
        assert await _said(port) == "lamp"
        home.states["light.kitchen"] = "Bulb"
        home.tell("entity_registry_updated")
        said = [await _said(port)]
        while said[-1] != "bulb" and len(said) < _TRIES:
            await asyncio.sleep(0.1)
            said.append(await _said(port))
        assert set(said) <= {"lamp", "bulb"}
        assert said[-1] == "bulb"


@pytest.mark.slow("starts a server and a bridge")
async def test_a_home_that_does_not_answer_costs_no_transcript(bridge):
    """A home that accepts the connection and says nothing leaves the utterance without its names."""
    home = FakeHome()
    home.answers.clear()
    with home_at(home) as address:
        with bridge(address) as port:
            assert home.tokens == [TOKEN]
            assert await _said(port) == "none"
            assert not home.answers.is_set()
        home.answers.set()


async def test_where_no_home_answers_there_are_transcripts(bridge):
    """The home may start after the bridge."""
    with bridge("http://127.0.0.1:9") as port:
        assert await _said(port) == "none"


@pytest.mark.parametrize(
    ("token", "reason"), [("not-to-be-shown", "refuses the token"), ("", "is empty"), (None, "ASR_HA_TOKEN")]
)
async def test_a_wrong_token_is_told_at_the_start_and_not_shown(token, reason, tmp_path):
    """The command prints one line and exits with 2."""
    arguments = ["wyoming", "--port", 0]
    if token is not None:
        (tmp_path / "token").write_text(token)
        arguments += ["--ha-token-file", tmp_path / "token"]
    with home_at(FakeHome()) as address:
        done = await asyncio.to_thread(command, *arguments, "--ha-url", address)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert "not-to-be-shown" not in done.stderr
