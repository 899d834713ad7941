"""Speech in `/metrics`, headers and the log: what was spoken is what is counted."""

import re

import pytest

from asr_server.features.speech_output.engines.protocol import SpeechFinish
from asr_server_fake.script import FakeScript, SpeechRule, SpokenScript
from E2Etest.drive.process import until
from E2Etest.exposition import moved, scrape, total, value

URL = "/v1/audio/speech"
TEXT = "Hello there. This one is endless. And 7 more."
SPELLED = "Hello there. This one is endless. And seven more."


def test_one_text_is_counted_once_everywhere(start):
    """Sentences, characters and seconds are counted. The engine stops at its budget for one of the texts."""
    script = FakeScript(speech=SpokenScript((SpeechRule(text="endless", finish=SpeechFinish.BUDGET),), load_s=0.2))
    with start(scripted_speech=True, script=script) as server:
        before = scrape(server)
        first = server.client.post(URL, json={"input": TEXT, "response_format": "opus"})
        # It is counted a moment after its answer.
        until(lambda: moved(before, scrape(server))("asr_http_requests_total", route=URL) == 1)
        after = scrape(server)
    (row,) = [row for row in server.log().splitlines() if first.headers["x-request-id"] in row and "route=" in row]
    line = dict(re.findall(r"(\w+)=(\S+)", row))
    grew = moved(before, after)
    assert grew("asr_speech_answers_total") == grew("asr_speech_answers_total", format="opus", end="done") == 1
    assert grew("asr_speech_sentences_total") == grew("asr_speech_sentences_total", end="done") == 3
    for part in ("wait", "inference", "encoding"):
        assert grew(f"asr_speech_{part}_seconds_count") == 3
    assert grew("asr_speech_first_audio_seconds_count") == 1
    assert 0.2 < grew("asr_speech_first_audio_seconds_sum") < grew("asr_http_request_seconds_sum", route=URL)
    assert grew("asr_speech_wait_seconds_sum") < grew("asr_speech_first_audio_seconds_sum")
    assert grew("asr_speech_characters_total") == len(SPELLED) - 2  # the blanks between sentences
    assert grew("asr_speech_cut_short_total") == 1
    assert float(line["first_audio_ms"]) == pytest.approx(1000 * grew("asr_speech_first_audio_seconds_sum"), abs=0.1)
    assert (line["characters"], line["sentences"]) == (str(len(TEXT)), "3")
    # The answer has pauses, and the silence around sentences is trimmed.
    assert grew("asr_speech_audio_seconds_total") == pytest.approx(float(line["audio_s"]) - 2 * 0.25, abs=0.1)
    assert value(after, "asr_speech_state", state="loaded") == value(after, "asr_speech_encoder_running") == 1
    assert total(after, "asr_speech_texts") == total(after, "asr_speech_held_seconds") == 0
