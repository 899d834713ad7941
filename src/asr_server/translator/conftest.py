"""A scripted endpoint and translators on it. The server is the one that the tests of the whole product start."""

from contextlib import asynccontextmanager

import pytest

from asr_server.text import target_languages
from asr_server.translator.endpoint import ChatEndpoint, EndpointConfig
from asr_server.translator.lines import TranslationConfig
from asr_server.translator.translator import Translator
from E2Etest.scripted_llm import ScriptedLlm

KEY = "sk-canary-0123456789"


@pytest.fixture
def llm():
    with ScriptedLlm() as server:
        yield server


@pytest.fixture
def translating(llm):
    """A context with a translator on the scripted endpoint."""

    @asynccontextmanager
    async def build(*, batch=5, concurrency=2, max_retries=2, timeout_s=10.0, base_url=llm.base_url):
        endpoint = ChatEndpoint(EndpointConfig(base_url, "scripted", KEY, timeout_s, concurrency, max_retries))
        try:
            yield Translator(endpoint, batch=batch, concurrency=concurrency)
        finally:
            await endpoint.close()

    return build


@pytest.fixture
def config():
    """Make the configuration of a translation."""

    def build(target="de", *, limit_s=20.0, **rest):
        return TranslationConfig(target_languages.find(target), 0.1, limit_s, **rest)

    return build
