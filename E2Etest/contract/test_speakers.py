"""Speakers in files of jobs, and a lost process that tells them apart. Answers in every format are a conversation."""

from E2Etest.contract import sounds
from E2Etest.contract.scripted_speakers import ScriptedSpeakers
from E2Etest.drive.process import events, refusal


def test_the_recording_of_a_named_voice_is_gone_with_the_job(start, sample):
    voice = sounds.url({"sound_url": ["speech"]})
    named = {"known_speaker_names[]": "canary", "known_speaker_references[]": voice}
    with start(speakers=ScriptedSpeakers([(0, 0.0, 10.0)])) as server:
        state, _ = server.job(sample[0], response_format="diarized_json", **named)
        assert state["status"] == "succeeded"
        left = {path.suffix for path in (server.state / "jobs").glob(f"{state['id']}.*")}
    assert left == {".result", ".transcript"}


def test_a_lost_process_is_an_error_that_says_so(start, sample):
    """Before the first event a status, in a stream an event behind the text."""
    speakers = ScriptedSpeakers([(0, 0.0, 10.0)])
    speakers.is_lost = True
    with start(speakers=speakers) as server:
        answer = server.transcribe(sample[0], response_format="diarized_json")
        assert refusal(answer)[:2] == (503, "speakers_unavailable")
        first, *_, last = events(server.transcribe(sample[0], response_format="diarized_json", stream="true"))
        assert (first["type"], last["error"]["code"]) == ("transcript.text.delta", "speakers_unavailable")
        assert server.transcribe(sample[0]).status_code == 200
