"""Translations of recordings and texts by a scripted endpoint that fails, waits or answers something else."""

import json
from dataclasses import replace

import openai
import pytest

from asr_server.features.translation.conftest import HOPELESS, refusal, right

KEY = "sk-canary-0123456789"
TARGET = {"language": "de"}
TEXT_ROUTE = "/v1/text/translations"


@pytest.fixture(scope="module")
def translating(start, llm):
    with start(OPENAI_BASE_URL=llm.base_url, OPENAI_API_KEY=KEY, TRANSLATE_MODEL="scripted") as server:
        yield server


@pytest.fixture(autouse=True)
def _right_again(llm):
    llm.restart(right)


def _post(server, audio, **fields):
    return server.post("/v1/audio/translations", audio, model="demo", **fields)


def test_a_failure_is_an_error_or_the_source(translating, llm, sample):
    """502 with its code; or, when asked for, the transcript with the code in a header."""
    llm.script = HOPELESS["broken"]
    texts = {"texts": ["Turn on the lights."], "target_language": "de"}
    for failed in (_post(translating, sample[0], **TARGET), translating.client.post(TEXT_ROUTE, json=texts)):
        assert (failed.status_code, failed.json()["error"]["code"]) == (502, "translation_failed")
    kept = _post(translating, sample[0], source_on_failure="true", **TARGET)
    assert (kept.status_code, kept.json()["text"], kept.json()["language"]) == (200, sample[1], "English")
    assert (kept.headers["x-translation-error"], kept.headers["x-untranslated"]) == ("translation_failed", "1")


def test_an_endpoint_that_does_not_let_us_in_is_not_knocked_at_again(translating, llm, sample):
    """501, which OpenAI's clients are told not to repeat; one question was asked."""
    llm.script = lambda call: refusal(401, f"wrong key {KEY}")
    client = translating.openai(max_retries=2)
    with pytest.raises(openai.InternalServerError) as caught:
        client.audio.translations.create(file=("a.wav", sample[0]), model="demo", extra_body=TARGET)
    assert (caught.value.status_code, caught.value.code) == (501, "translation_unavailable")
    assert len(llm.calls) == 1
    assert KEY not in caught.value.response.text


@pytest.mark.slow("waits for an endpoint that does not answer")
def test_a_caller_who_leaves_takes_the_question_along(translating, llm, sample):
    """The endpoint sees the end of its connection soon after the client is gone."""
    llm.script = lambda call: replace(right(call), wait_s=60.0)
    llm.hung_up.clear()
    with pytest.raises(openai.APITimeoutError):
        translating.openai().audio.translations.create(
            file=("a.wav", sample[0]), model="demo", extra_body=TARGET, timeout=3.0
        )
    assert llm.hung_up.wait(20)


def test_the_longest_body_is_read_and_no_longer_one(translating):
    """The allowed characters fit into a body if each is written as a pair of escapes. A longer body is refused."""
    texts = ["\U0001f600" * 2000] * 200
    allowed = json.dumps({"texts": texts, "target_language": "xx"})
    for content, status in ((allowed, 400), (allowed + " " * 200_000, 413)):
        assert translating.client.post(TEXT_ROUTE, content=content).status_code == status
