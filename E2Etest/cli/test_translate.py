"""`asr-server translate` and `subtitles --to`, with a scripted endpoint in place of somebody's language model."""

import re

import pytest

from asr_server.features.translation.conftest import ScriptedLlm, translation
from E2Etest.cli.commands import run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def llm():
    with ScriptedLlm() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def endpoint(llm):
    """The settings that lead there."""
    return {"OPENAI_BASE_URL": llm.base_url, "TRANSLATE_MODEL": "scripted"}


@pytest.fixture(scope="module")
def translating(start, endpoint):
    with start(**endpoint) as server:
        yield server


@pytest.mark.nightly
def test_text_is_translated_by_a_server_and_right_here(translating, endpoint, talks, words):
    """The same words, whichever way."""
    served = run("translate", talks / "hello.wav", "--to", "German", "--server", translating.base)
    assert (served.returncode, served.stdout, served.stderr) == (0, f"{translation(words)}\n", "")
    here = run("translate", talks / "hello.wav", "--to", "de", "--local", "--model", "demo", **endpoint)
    assert (here.returncode, here.stdout, here.stderr) == (0, served.stdout, "")


def test_terms_and_the_language_reach_the_endpoint(translating, llm, talks):
    """As the glossary of the request."""
    llm.calls.clear()
    arguments = ["--to", "pt-BR", "--language", "en", "--term", "kitchen=cozinha"]
    assert run("translate", talks / "hello.wav", *arguments, "--server", translating.base).returncode == 0
    sent = str(llm.calls[-1].body["messages"])
    assert "cozinha" in sent
    assert "Portuguese" in sent


@pytest.mark.parametrize(
    "more", [[], ["--job"], pytest.param(["--local", "--model", "demo"], marks=pytest.mark.nightly)]
)
def test_bilingual_subtitles_lie_beside_the_recording_named_by_their_language(
    translating, endpoint, talks, words, more
):
    """The source above its translation, within the lines that were wished for."""
    where = more if "--local" in more else [*more, "--server", translating.base]
    arguments = ["--to", "German", "--bilingual", "--max-line-chars", 30, "--quiet"]
    done = run("subtitles", talks / "hello.wav", *arguments, *where, **endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (cue,) = re.findall(r" --> \S+\n(.+?)\n\n", (talks / "hello.de.srt").read_text(), re.DOTALL)
    assert cue.replace("\n", " ") == f"{words} {translation(words)}"
    assert max(map(len, cue.split("\n"))) <= 30
