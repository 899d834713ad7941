"""Translations of recordings and texts by a scripted endpoint that fails, waits or answers something else."""

import json
import re
from dataclasses import replace

import numpy as np
import openai
import pytest

from asr_server.features.translation.conftest import HOPELESS, MENDABLE, completion, refusal, right, translation
from E2Etest.drive import recordings

KEY = "sk-canary-0123456789"
TARGET = {"language": "de"}
TEXT_ROUTE = "/v1/text/translations"
TEXTS = ["Turn on the lights.", "And close the door, please.", "Thank you very much."]


@pytest.fixture(scope="module")
def translating(start, llm):
    """A server that translates through the scripted endpoint."""
    with start(OPENAI_BASE_URL=llm.base_url, OPENAI_API_KEY=KEY, TRANSLATE_MODEL="scripted") as server:
        yield server


@pytest.fixture(autouse=True)
def _right_again(llm):
    llm.restart(right)


@pytest.fixture(scope="module")
def two():
    """The sample twice, with a pause between: two segments."""
    pause = np.zeros(3 * 16_000, np.int16)
    return recordings.wav(np.concatenate([recordings.samples(), pause, recordings.samples()]))


def _post(server, audio, **fields):
    files = {"file": ("a.wav", audio)}
    return server.client.post("/v1/audio/translations", files=files, data={"model": "demo", **fields})


def _clocks(file):
    return re.findall(r"[\d:.,]+ --> [\d:.,]+", file)


def _texts(file):
    """What each cue says, without its layout."""
    return [" ".join(cue.split("\n")) for cue in re.findall(r" --> \S+\n(.+?)\n\n", file, re.DOTALL)]


@pytest.mark.parametrize("response_format", ["srt", "vtt"])
def test_subtitles_have_the_times_of_the_transcription(translating, two, sample, response_format):
    """The same cues at the same times as the transcription's file, with the other words, alone or below the source."""
    plain = translating.transcribe(two, response_format=response_format).text
    other = _post(translating, two, response_format=response_format, **TARGET).text
    both = _post(translating, two, response_format=response_format, bilingual="true", **TARGET).text
    assert len(_clocks(plain)) == 2
    assert _clocks(other) == _clocks(both) == _clocks(plain)
    own, foreign = sample[1].split(), translation(sample[1]).split()
    assert [words.split() for words in _texts(plain)] == [own, own]
    assert [words.split() for words in _texts(other)] == [foreign, foreign]
    assert [words.split() for words in _texts(both)] == [own + foreign, own + foreign]


@pytest.mark.slow("waits for an endpoint that does not answer")
@pytest.mark.parametrize("name", ["merged", "cut-off", "timed", "broken-once", "chinese", "page", "cut-body", "busy"])
def test_no_answer_of_the_endpoint_breaks_a_file(translating, llm, two, sample, name):
    """The file has two cues at their times, each with its translation or its own words.

    `translator_test` has all answers."""
    llm.script = {**MENDABLE, **HOPELESS}[name]
    clocks = _clocks(translating.transcribe(two, response_format="srt").text)
    answer = _post(translating, two, response_format="srt", source_on_failure="true", **TARGET)
    assert answer.status_code == 200
    assert _clocks(answer.text) == clocks
    own = translation(sample[1]) if name in MENDABLE else sample[1]
    assert [words.split() for words in _texts(answer.text)] == [own.split(), own.split()]
    assert answer.headers["x-untranslated"] == ("0" if name in MENDABLE else "2")


def test_a_failure_is_an_error_or_the_source(translating, llm, sample):
    """502 with its code; or, when asked for, the transcript with the code in a header."""
    llm.script = HOPELESS["broken"]
    failed = _post(translating, sample[0], **TARGET)
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


def test_neither_words_nor_key_are_in_the_log(translating, llm, sample):
    """After an answer and a failure that repeats both: no key, no word of either language, at the debug level."""
    _post(translating, sample[0], **TARGET)
    assert llm.calls[0].headers["authorization"] == f"Bearer {KEY}"
    llm.script = lambda call: refusal(500, f"key {KEY} may not ask about {call.lines}")
    assert _post(translating, sample[0], **TARGET).status_code == 502
    log = translating.log()
    assert "untranslated=" in log
    assert KEY not in log
    assert sample[1] not in log
    assert translation(sample[1]) not in log


def _translated(server, **body):
    return server.client.post(TEXT_ROUTE, json={"texts": TEXTS, "target_language": "de", **body})


def test_texts_are_sent_in_batches_and_come_back_in_their_order(translating, llm):
    answer = _translated(translating, texts=TEXTS * 8)
    assert answer.json()["translations"] == [translation(text) for text in TEXTS] * 8
    assert sorted(len(call.lines) for call in llm.calls) == [4, 20]


def test_a_text_that_cannot_be_translated_stays_with_its_reason(translating, llm):
    """The others have their translations; one without words is not sent."""
    llm.script = lambda call: completion(
        json.dumps({name: text if text == TEXTS[1] else translation(text) for name, text in call.lines.items()})
    )
    body = _translated(translating, texts=[TEXTS[0], "...", TEXTS[1]]).json()
    assert body["translations"][1:] == ["...", TEXTS[1]]
    assert body["reasons"][1:] == ["no_words", "unchanged"]
    assert (body["translations"][0], body["untranslated"]) == (translation(TEXTS[0]), 1)


def test_an_endpoint_that_fails_is_an_error(translating, llm):
    """502 with its code, and none of the texts in the message or the log."""
    llm.script = HOPELESS["broken"]
    answer = _translated(translating)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "translation_failed")
    assert TEXTS[0] not in answer.text + translating.log()


def test_the_longest_body_is_read_and_no_longer_one(translating):
    """The allowed characters fit into a body if each is written as a pair of escapes. A longer body is refused."""
    texts = ["\U0001f600" * 2000] * 200
    allowed = json.dumps({"texts": texts, "target_language": "xx"})
    for content, status in ((allowed, 400), (allowed + " " * 200_000, 413)):
        assert translating.client.post(TEXT_ROUTE, content=content).status_code == status
