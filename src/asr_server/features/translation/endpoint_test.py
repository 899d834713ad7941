"""The bytes that go over the wire to a chat endpoint, and the errors that its failures become."""

import asyncio
import logging
import time
import traceback
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from asr_server.core.conftest import counts
from asr_server.core.errors import TranslationUnavailable
from asr_server.features.translation.conftest import (
    HOPELESS,
    KEY,
    MENDABLE,
    Answer,
    config,
    endpoint_settings,
    refusal,
    right,
)
from asr_server.features.translation.endpoint import ChatEndpoint, NoResponse, PromptOutcome, PromptRefused
from asr_server.features.translation.prompt import build_prompt
from asr_server.processes.caller_work import current_caller

SECRET = "the words that were said"
PROMPT = build_prompt(["earlier", SECRET, "later"], [1], None, config())


@pytest.fixture
async def make(llm):
    made = []

    def build(registry=None, *, max_retries=2, attempt_s=5.0, **changes):
        settings = endpoint_settings(llm.base_url, **{"request_timeout": attempt_s} | changes)
        made.append(ChatEndpoint(settings, registry, max_retries=max_retries, least_attempt_s=attempt_s))
        return made[-1]

    yield build
    for endpoint in made:
        await endpoint.close()


async def test_a_prompt_is_a_chat_completion_with_a_schema(llm, make):
    registry = CollectorRegistry()
    await make(registry).complete(PROMPT)
    assert counts(registry, "asr_translation_questions_total") == {(PromptOutcome.ANSWERED,): 1}
    (call,) = llm.calls
    assert (call.body["model"], call.body["temperature"]) == ("scripted", 0.1)
    assert call.headers["authorization"] == f"Bearer {KEY}"
    schema = call.body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == list(schema["properties"]) == ["101"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("no-formats", ["json_schema", "json_object", ""]),
        ("not-implemented", ["json_schema", "json_object", ""]),
        ("no-system", ["json_schema", "json_schema"]),
        ("no-temperature", ["json_schema", "json_schema"]),
    ],
)
async def test_what_the_endpoint_does_not_support_is_left_out_and_not_tried_again(llm, make, name, forms):
    """Roles, formats and temperatures are tried once; later prompts begin where the first succeeded."""
    llm.script = MENDABLE[name]
    endpoint = make()
    assert await endpoint.complete(PROMPT)
    assert [call.form for call in llm.calls] == forms
    llm.restart(llm.script)
    await endpoint.complete(PROMPT)
    assert [call.form for call in llm.calls] == forms[-1:]


@pytest.mark.parametrize("refused", [HOPELESS["too-long"], lambda call: refusal(403)])
async def test_a_refusal_of_a_text_counts_for_no_other(llm, make, refused):
    """The next one has its schema again. After an answer a 403 is about the text: filters send it."""
    endpoint = make()
    await endpoint.complete(PROMPT)
    llm.script = refused
    with pytest.raises(PromptRefused):
        await endpoint.complete(PROMPT)
    llm.restart(right)
    await endpoint.complete(PROMPT)
    assert [call.form for call in llm.calls] == ["json_schema"]


@pytest.mark.parametrize(
    ("script", "error", "reason", "calls"),
    [
        (HOPELESS["busy"], NoResponse, "status 429", 3),
        (HOPELESS["broken"], NoResponse, "status 500", 3),
        (HOPELESS["too-long"], PromptRefused, "status 400", 3),  # in every format
        (lambda _: refusal(401), TranslationUnavailable, "OPENAI_API_KEY", 1),
        (lambda _: refusal(403), TranslationUnavailable, "OPENAI_API_KEY", 1),
        (lambda _: refusal(404), TranslationUnavailable, "TRANSLATE_MODEL", 1),
    ],
)
async def test_temporary_failures_are_retried_and_denied_access_is_not(llm, make, script, error, reason, calls):
    """The error has the kind of the failure, or names the setting. The prompt is counted once."""
    registry = CollectorRegistry()
    llm.script = script
    with pytest.raises(error, match=reason):
        await make(registry).complete(PROMPT)
    assert len(llm.calls) == calls
    outcome = PromptOutcome.DENIED if error is TranslationUnavailable else error.outcome
    assert counts(registry, "asr_translation_questions_total") == {(outcome,): 1}


async def test_retry_after_is_respected(llm, make):
    llm.script = lambda call: right(call) if call.number else Answer(b"{}", 429, {"retry-after": "1"})
    began_s = time.monotonic()
    assert await make().complete(PROMPT)
    assert time.monotonic() - began_s >= 1.0


@pytest.mark.parametrize(
    ("changes", "attempt_s", "reason"),
    [({"body": b" " * 2**20 + b" "}, 5.0, "ReadError"), ({"wait_s": 30.0}, 0.3, "TimeoutError")],
)
async def test_an_answer_without_end_or_beginning_is_given_up(llm, make, changes, attempt_s, reason):
    """A translation is a few kilobytes."""
    llm.script = lambda call: replace(right(call), **changes)
    with pytest.raises(NoResponse, match=reason):
        await make(attempt_s=attempt_s, max_retries=0).complete(PROMPT)


async def test_callers_take_turns_at_the_endpoint(llm, make):
    endpoint, order = make(translate_concurrency=1), []

    async def ask(caller):
        current_caller.set(caller)
        await endpoint.complete(PROMPT)
        order.append(caller)

    await asyncio.gather(*map(ask, 20 * "a" + "b"))
    assert order.index("b") <= 2


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
async def test_a_key_that_cannot_be_sent_is_an_error_without_the_key(make, key):
    """Whatever becomes of it, the caller gets one of our errors."""
    with pytest.raises((TranslationUnavailable, NoResponse)) as caught:
        await make(openai_api_key=key, max_retries=0).complete(PROMPT)
    assert key not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_neither_text_nor_key_gets_into_an_error_or_a_log_line(llm, make, caplog, status):
    """Servers repeat both in their messages; nor does the library write them, at its most talkative."""
    llm.script = lambda call: refusal(status, f"key {KEY} may not ask about {SECRET}")
    endpoint = make(max_retries=1)
    logging.getLogger("httpx").setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG), pytest.raises((TranslationUnavailable, NoResponse)) as caught:
        await endpoint.complete(PROMPT)
    output = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(endpoint.settings)
    assert KEY not in output
    assert SECRET not in output
    assert caught.value.__cause__ is None
