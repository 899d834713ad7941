"""Clients that are generated from the schema call every operation of a running server; nothing of an answer is lost."""

import json

import pytest

from asr_server.core.audio import SPEECH_RATE
from E2Etest.drive import recordings
from tools.clients import running
from tools.clients.catalogue import CLIENTS

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

GENERATED = {
    client.short_name: client
    for client in CLIENTS
    if client.scripts[0] in {"openapi_python_client.py", "openapi_generator_python.py", "generated_typescript.py"}
}
REFUSED = {
    "unknown model": (404, "model_not_found"),
    "unknown language": (400, "unsupported_language"),
    "wrong key": (401, "invalid_api_key"),
}


@pytest.fixture(scope="module", params=GENERATED)
def record(request, guarded, tmp_path_factory):
    """Return the answers to a generated client by the ids of the operations, with three refusals."""
    name = request.param
    recording = tmp_path_factory.mktemp("generated") / "recording.wav"
    audio, words = recordings.sample()
    recording.write_bytes(audio)
    try:
        trials = running.trials(GENERATED[name], recording, guarded.base, words, ASR_API_KEY=guarded.key)
    except running.NotInstalled as reason:
        pytest.skip(str(reason))
    assert [trial.what for trial in trials if not trial.right] == []
    return json.loads((running.BUILD / name / "run" / "answers.json").read_text(encoding="utf-8"))


def test_every_operation_is_called_and_answers(record, guarded):
    """No operation of the schema is left out, and all but the three refusals succeed."""
    schema = guarded.client.get("/openapi.json").json()
    # Those of shared sessions need a session that is open, which is a WebSocket.
    called = (methods for path, methods in schema["paths"].items() if not path.startswith("/v1/live/"))
    operations = {one["operationId"] for methods in called for one in methods.values()}
    assert operations <= set(record)
    refused = {name: found for name, found in record.items() if found["status"] >= 400}
    assert {name: (one["status"], one["answer"]["error"]["code"]) for name, one in refused.items()} == REFUSED


def test_the_content_is_there(record, sample):
    """Texts, segments, words, lists, the states and results of jobs, and audio."""
    answers = {name: found["answer"] for name, found in record.items()}
    words = sample[1].split()
    for name in ("create_transcription", "job_result"):
        assert " ".join(one["text"] for one in answers[name]["segments"]) == sample[1]
        assert [one["word"] for one in answers[name]["words"]] == words
        times = [time for one in answers[name]["words"] for time in (one["start"], one["end"])]
        assert times == sorted(times)
    assert answers["json"]["text"] == answers["transcribe"].strip() == sample[1]
    assert sample[1] in answers["stream_transcription"]
    assert " --> " in answers["create_subtitles"]
    assert [one["word"] for one in answers["create_alignment"]["words"]] == ["Turn", "on", "the", "lights."]
    assert answers["create_translation"]["segments"][0]["text"] == answers["create_translation"]["text"] != sample[1]
    assert answers["translate_texts"]["translations"] != []
    assert [one["text"] for one in answers["create_document"]["paragraphs"]] == ["Turn on the lights."]
    assert answers["retrieve_job"]["status"] == answers["cancel_job"]["status"] == "succeeded"
    assert "succeeded" in answers["job_events"]
    assert {voice["id"] for voice in answers["list_voices"]["voices"]} > {"alloy"}
    assert answers["list_speakers"]["data"][0]["name"] == answers["retrieve_speaker"]["name"] == "Anna"
    assert answers["create_client_secret"]["value"].startswith("ek_")
    for name in ("create_speech", "speak_as"):
        assert (answers[name]["begin"], answers[name]["bytes"] > SPEECH_RATE) == ("RIFF", True)
    assert answers["stream_samples"]["bytes"] > SPEECH_RATE
    assert answers["audio of a text"]["bytes"] > 1_000
    assert "Turn on the lights." in answers["stream_speech"]
    assert "asr_http_requests_total" in answers["metrics"]
