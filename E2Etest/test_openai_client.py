"""The unmodified OpenAI client against this server, with strict validation of what comes back."""

import io

import httpx
import openai
import pytest

from E2Etest.recordings import demo

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0, _strict_response_validation=True)


@pytest.mark.parametrize("model", ["whisper-1", "gpt-4o-transcribe", "demo"])
def test_every_kind_of_file_argument(client, sample, model):
    """Path, open file, bytes, BytesIO, and tuples with and without a telling name."""
    audio, words = sample
    path = demo.sample().recording
    with path.open("rb") as opened:
        for file in (path, opened, audio, io.BytesIO(audio), ("a.wav", audio, "audio/wav"), ("ohne-ämter", audio)):
            result = client.audio.transcriptions.create(file=file, model=model)
            assert result.text == words
            assert result.usage.type == "duration"


def test_text_formats_are_strings(client, sample):
    """The client hands text, srt and vtt through as str."""
    for response_format, start in (("text", sample[1]), ("srt", "1\n00:00:"), ("vtt", "WEBVTT\n\n")):
        result = client.audio.transcriptions.create(file=sample[0], model="whisper-1", response_format=response_format)
        assert isinstance(result, str)
        assert result.startswith(start)


def test_verbose_json_passes_strict_validation(client, sample):
    """Every required field of the verbose form is there and of its type."""
    result = client.audio.transcriptions.create(
        file=sample[0],
        model="whisper-1",
        response_format="verbose_json",
        timestamp_granularities=["segment"],
        language="en",
        prompt="",
        temperature=0,
    )
    assert (result.language, result.text, result.task) == ("english", sample[1], "transcribe")
    assert result.segments[0].end <= result.duration + 0.01


def test_log_probabilities_are_real_and_only_when_asked_for(client, sample):
    """The tokens' bytes write the text, their scores are log-probabilities; without asking there are none."""
    plain = client.audio.transcriptions.create(file=sample[0], model="whisper-1")
    scored = client.audio.transcriptions.create(file=sample[0], model="whisper-1", include=["logprobs"])
    assert plain.logprobs is None
    assert bytes(int(b) for entry in scored.logprobs for b in entry.bytes).decode().strip() == sample[1]
    assert all(entry.logprob <= 0 for entry in scored.logprobs)
    assert any(entry.logprob < 0 for entry in scored.logprobs)


def test_errors_arrive_as_the_clients_own(client, sample):
    """Class, status, code, param and request id survive the client."""
    with pytest.raises(openai.BadRequestError) as bad:
        client.audio.transcriptions.create(file=b"x" * 100, model="whisper-1")
    assert (bad.value.code, bad.value.param, bad.value.type) == ("invalid_audio", "file", "invalid_request_error")
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError) as unknown:
        client.audio.transcriptions.create(file=sample[0], model="nobody")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


def test_models(client):
    """The list and one entry."""
    assert {"demo", "whisper-1"} <= {m.id for m in client.models.list().data}
    assert client.models.retrieve("whisper-1").object == "model"


async def test_the_async_client(server, sample):
    """The same over asyncio."""
    async with openai.AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none", http_client=httpx.AsyncClient()) as c:
        result = await c.audio.transcriptions.create(file=sample[0], model="whisper-1")
    assert result.text == sample[1]
