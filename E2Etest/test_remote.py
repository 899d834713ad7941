"""A server whose model runs at another one (`VLLM_BASE_URL`), here a second one of ours."""

from contextlib import ExitStack

import pytest

from E2Etest.drive.process import events, ready, refusal, running
from E2Etest.drive.session import data, finals
from E2Etest.live.interrupted import laws, spoken

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def front(tmp_path_factory, start):
    """The server in front of the one with the model, which is in this process and needs a key."""
    log = tmp_path_factory.mktemp("front") / "log"
    with (
        start(API_KEYS="sk-remote-0123456789") as model,
        ready(log, VLLM_BASE_URL=f"{model.base}/v1", VLLM_API_KEY=model.key, FORCED_ALIGNER_ID="demo") as server,
    ):
        yield server


def _engine(server):
    return next(option for option in server.health()["plan"] if option["name"] == "engine")


def test_a_recording_is_transcribed_at_the_other_server(front, sample):
    """Whole, streamed and as subtitles; the plan names the server's model."""
    audio, text = sample
    answer = front.transcribe(audio).json()
    assert (answer["text"], answer["language"]) == (text, "English")
    sent = events(front.transcribe(audio, stream="true"))
    assert "".join(event.get("delta", "") for event in sent) == sent[-1]["text"] == text
    assert len(sent) > 2
    assert "-->" in front.transcribe(audio, response_format="srt", mode="fast").text
    assert _engine(front)["active"]
    assert "it serves demo" in _engine(front)["reason"]


def test_it_gives_no_scores(front, sample):
    """Who asks for them is told."""
    assert refusal(front.transcribe(sample[0], **{"include[]": "logprobs"}))[::2] == (400, "include")
    # Words for sound that may be no speech could not be judged.
    assert refusal(front.transcribe(sample[0], vad="advise"))[::2] == (400, "vad")


def test_a_live_session_commits_words_and_has_its_final(front, speech, sample):
    """What is committed is a beginning of all that follows, although the other server cannot be told to keep it."""
    messages = spoken(front, data(speech), (), pace_s=0.05)  # twice as fast as it was spoken
    laws(messages)
    assert len({message["committed"] for message in messages}) > 2
    assert [text for text, *_ in finals(messages)] == [sample[1]]


@pytest.mark.nightly
def test_a_server_that_is_gone_and_back(tmp_path, sample, fake_sample):
    """Meanwhile the caller is told to come again, and `/health` says why; then it works as before."""
    with ExitStack() as stack:
        with ready(tmp_path / "model", **fake_sample) as model:
            url = f"{model.base}/v1"
            server = stack.enter_context(running(tmp_path / "log", VLLM_BASE_URL=url, MODEL_ID="auto"))
            assert server.transcribe(sample[0], model="").json()["text"] == sample[1]
        for _ in range(2):
            refused = server.transcribe(sample[0], model="")
            assert refusal(refused)[:2] == (503, "model_unavailable")
            assert int(refused.headers["retry-after"]) > 0
            assert "cannot be reached" in _engine(server)["reason"]
        assert server.health()["status"] == "degraded"
        with running(tmp_path / "again", port=model.port, **fake_sample):
            assert server.transcribe(sample[0], model="").json()["text"] == sample[1]
            assert _engine(server)["active"]
            assert server.health()["status"] == "ok"
