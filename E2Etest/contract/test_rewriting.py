"""Numbers in digits or in words, masked words, and personal data that is in no answer."""

import io
import json

import docx
import numpy as np
import pytest

from asr_server.features.translation.conftest import right
from asr_server_fake.script import FakeScript, Rule
from E2Etest.drive import recordings
from E2Etest.drive.process import events, refusal

pytestmark = pytest.mark.demo_server

ROUTE = "/v1/audio/transcriptions"
# A number of a card that begins in the first span and ends in the second, said in two ways; and an address.
BEGIN = "Write to john@example.com, the card is 4111 1111 one one"
END = "one one one one one one, heck."
SECRETS = ("john", "example.com", "4111", "1111", "one one")
RULES = (
    Rule(context="secret", min_s=2.2, text=BEGIN),
    Rule(context="secret", max_s=2.2, text=END),
    Rule(context="amount", text="it is twenty five dollars"),
    Rule(context="digits", text="it is $25"),
    Rule(context="japanese", text="二つ", language="Japanese"),
)
REDACT = {"prompt": "secret", "redact": "email,card"}
WHOLE = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment", "cue"]}


@pytest.fixture(scope="module")
def server(start, llm, tmp_path_factory):
    """A server with a list of words and an endpoint for translations."""
    lists = tmp_path_factory.mktemp("lists")
    (lists / "en.txt").write_text("# words\nheck\n")
    settings = {"OPENAI_BASE_URL": llm.base_url, "TRANSLATE_MODEL": "scripted", "PROFANITY_LISTS": str(lists)}
    with start(script=FakeScript(rules=RULES), **settings) as server:
        yield server


@pytest.fixture(scope="module")
def two():
    """Two spans, of more and of less than 2.2 s."""
    pcm = recordings.samples()
    return recordings.wav(np.concatenate([pcm, np.zeros(3 * 16_000, np.int16), pcm[: 3 * 8_000]]))


def _assert_clean(text):
    assert "CARD" in text
    for secret in SECRETS:
        assert secret not in text.lower(), text


def test_the_script_says_what_is_to_be_hidden(server, two):
    """Without the option all of it is in the answer."""
    text = server.transcribe(two, prompt="secret").json()["text"]
    assert text == f"{BEGIN} {END}"


@pytest.mark.parametrize("response_format", ["json", "text", "srt", "vtt", "markdown"])
def test_text_formats_are_redacted(server, two, response_format):
    """The whole body, whatever its layout."""
    answer = server.transcribe(two, response_format=response_format, **REDACT)
    assert answer.status_code == 200, answer.text
    _assert_clean(answer.text)


def test_verbose_json_is_redacted_and_lists_what_was_masked(server, two):
    """Text, segments, paragraphs, words, cues, and the ids of tokens, which could be read back."""
    answer = server.transcribe(two, **WHOLE, **REDACT, profanity="mask")
    _assert_clean(answer.text)
    body = answer.json()
    assert [segment["text"] for segment in body["segments"]] == [
        "Write to [EMAIL], the card is [CARD]",
        "[CARD], h***.",
    ]
    assert [(one["kind"], one["segment"]) for one in body["masked"]] == [
        ("email", 0),
        ("card", 0),
        ("card", 1),
        ("profanity", 1),
    ]
    assert all(segment["tokens"] == [] for segment in body["segments"])
    masked = [word for word in body["words"] if "masked" in word]
    assert [(word["start"], word["end"]) for word in masked] == [(one["start"], one["end"]) for one in body["masked"]]


def test_what_was_masked_is_listed_without_words(server, two):
    """The list needs the times of words, which are then measured though the answer has none."""
    body = server.transcribe(two, response_format="verbose_json", **REDACT).json()
    assert "words" not in body
    assert len(body["masked"]) == 3


def test_files_of_documents_are_redacted(server, two):
    """Captions are told apart by the text that their readers see."""
    word = server.transcribe(two, response_format="docx", **REDACT).content
    _assert_clean("\n".join(one.text for one in docx.Document(io.BytesIO(word)).paragraphs))


def test_speakers_subtitles_and_deepgrams_answer_are_redacted(server, two):
    """Answers that are rendered elsewhere."""
    by_channel = {"speakers": "true", "channel_mode": "split"}
    _assert_clean(server.transcribe(two, response_format="diarized_json", **by_channel, **REDACT).text)
    _assert_clean(server.post("/v1/audio/subtitles", two, **REDACT).text)
    _assert_clean(_listened(server, two, redact=["pci", "email_address"]).text)


def _listened(server, audio, **query):
    """Return Deepgram's answer."""
    asked = {"keyterm": "secret", "utterances": "true", **query}
    return server.client.post("/v1/listen", params=asked, content=audio, headers={"content-type": "audio/wav"})


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"numerals": "true", "redact": "false"}, "Write to john@example.com, the card is 4111 1111 1 1"),
        (
            {"profanity_filter": "true", "redact": ["numbers", "email_address"]},
            "Write to [EMAIL], the card is [NUMBER]",
        ),
        ({"redact": "pii"}, None),
    ],
)
def test_deepgrams_options_are_ours(server, two, query, text):
    """Kinds that are not found by their form are refused."""
    answer = _listened(server, two, **query)
    if text is None:
        assert answer.json()["error"]["param"] == "redact"
    else:
        assert answer.json()["results"]["utterances"][0]["transcript"] == text


@pytest.mark.parametrize("response_format", ["json", "verbose_json", "srt"])
def test_the_translation_endpoint_gets_the_redacted_text(server, two, llm, response_format):
    """The secret is in no question, and in no answer, which has the source text too."""
    llm.restart(right)
    data = {"language": "de", "bilingual": "true", "response_format": response_format, **REDACT}
    answer = server.post("/v1/audio/translations", two, **data)
    assert answer.status_code == 200, answer.text
    _assert_clean(answer.text)
    assert llm.calls
    _assert_clean(json.dumps([call.body for call in llm.calls]))


def test_the_stored_result_of_a_job_is_redacted(server, two):
    """No file of the job has the secret, and no format in which the result is had later."""
    state, result = server.job(two, response_format="text", **REDACT)
    assert state["status"] == "succeeded"
    _assert_clean(result.text)
    for later in ("srt", "verbose_json", "markdown"):  # of the transcript, whose file is compressed
        answer = server.client.get(result.url, params={"response_format": later})
        assert answer.status_code == 200
        _assert_clean(answer.text)
    for path in server.state.rglob("*"):
        if path.is_file():
            assert b"john" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("", {**REDACT, "stream": "true"}, "redact"),
        ("", {**REDACT, "stream": "true", "response_format": "srt"}, "redact"),
        ("/stream", REDACT, "redact"),
        ("", {**REDACT, "include[]": "logprobs"}, "include"),
        ("", {"text_format": "written", "language": "ja"}, "text_format"),
        ("", {"profanity": "mask", "language": "de"}, "profanity"),
        ("", {"redact": "names"}, "redact"),
        ("", {"text_format": "roman"}, "text_format"),
    ],
)
def test_what_cannot_be_done_is_refused(server, two, path, fields, param):
    """Before the recording is decoded, with the field at fault."""
    answer = server.post(f"{ROUTE}{path}", two, **fields)
    assert refusal(answer)[::2] == (400, param)


def test_a_detected_language_without_rules_is_left_with_a_warning(server, two):
    """The text is as it was, and the answer says so once."""
    fields = {"prompt": "japanese", "text_format": "written", "profanity": "mask", "redact": "phone"}
    body = server.transcribe(two, response_format="verbose_json", **fields).json()
    assert body["text"] == "二つ二つ"
    assert [warning.split("'")[1] for warning in body["warnings"]] == ["text_format", "profanity", "redact"]


@pytest.mark.parametrize(
    ("prompt", "text_format", "text", "words"),
    [
        ("amount", "written", "it is $25", ["it", "is", "$25"]),
        ("digits", "spoken", "it is twenty-five dollars", ["it", "is", "twenty-five", "dollars"]),
        ("amount", "model", "it is twenty five dollars", ["it", "is", "twenty", "five", "dollars"]),
    ],
)
def test_numbers_are_written_as_asked_for(server, two, prompt, text_format, text, words):
    """Text, segments, words and cues have the same words."""
    fields = {"prompt": prompt, "text_format": text_format}
    body = server.transcribe(two, **WHOLE, **fields).json()
    assert body["text"] == f"{text} {text}"
    assert [segment["text"] for segment in body["segments"]] == [text, text]
    assert [word["word"] for word in body["words"]] == 2 * words
    assert " ".join(" ".join(cue["text"].split()) for cue in body["cues"]) == body["text"]


def test_a_stream_has_the_text_of_the_whole_answer(server, two):
    """A stream has the rewritten text of each span as one delta, and nothing is taken back."""
    fields = {"prompt": "secret", "text_format": "written", "profanity": "hide"}
    whole = server.transcribe(two, **fields).json()["text"]
    assert whole == "Write to john@example.com, the card is 4111 1111 1 1 111111, ****."
    for path, form in (("", {"stream": "true"}), ("/stream", {})):
        sent = events(server.post(f"{ROUTE}{path}", two, **fields, **form))
        deltas = [event["delta"] for event in sent if event.get("type") == "transcript.text.delta"]
        segments = [event["text"] for event in sent if event.get("is_final") is False]
        assert "".join(deltas or segments) == whole


def test_without_lists_nothing_can_be_masked(start, two):
    """The reason names the setting."""
    with start() as server:
        answer = server.transcribe(two, profanity="mask")
    assert "PROFANITY_LISTS" in answer.json()["error"]["message"]
