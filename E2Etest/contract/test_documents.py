"""Paragraphs, and transcripts as documents: by the routes of recordings, as jobs, and of texts that are sent."""

import io
import json

import docx
import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import events, refusal

pytestmark = pytest.mark.demo_server

ROUTE = "/v1/text/documents"
CUT = {"chunking_strategy": json.dumps({"type": "server_vad", "silence_duration_ms": 400})}
SEGMENTS = [
    {"start": 0, "end": 2, "text": "And so my fellow Americans", "speaker": "Ann"},
    {"start": 2.6, "end": 4, "text": "ask not.", "speaker": "Ann", "translation": "fragt nicht."},
    {"start": 4.5, "end": 5, "text": "Why? *", "speaker": "Ben"},
]


@pytest.fixture(scope="module")
def three():
    """The sample three times, with a pause of less and one of more than 2 s."""
    pcm = recordings.samples()
    short, long = np.zeros(16_000, np.int16), np.zeros(4 * 16_000, np.int16)
    return recordings.wav(np.concatenate([pcm, short, pcm, long, pcm]))


def _places(paragraphs):
    return [(one["first_segment"], one["last_segment"]) for one in paragraphs]


def test_verbose_json_has_paragraphs_beside_its_segments(server, three, sample):
    """Less than 2 s lie between the first two segments, which are one paragraph. Words have numbers."""
    body = server.transcribe(three, response_format="verbose_json", **CUT).json()
    assert len(body["segments"]) == 3
    assert _places(body["paragraphs"]) == [(0, 1), (2, 2)]
    assert [one["text"].split() for one in body["paragraphs"]] == [2 * sample[1].split(), sample[1].split()]
    assert "first_word" not in body["paragraphs"][0]
    both = {"timestamp_granularities[]": ["segment", "word"], "response_format": "verbose_json", **CUT}
    first, second = server.transcribe(three, **both).json()["paragraphs"]
    assert (first["first_word"], second["first_word"]) == (0, first["last_word"] + 1)
    only_words = {"timestamp_granularities[]": "word", "response_format": "verbose_json"}
    assert "paragraphs" not in server.transcribe(three, **only_words).json()


def test_streams_have_paragraphs_in_their_last_event(server, three):
    """OpenAI's with verbose_json, and our own, which have no numbers of segments."""
    for path, form in (("", {"stream": "true", "response_format": "verbose_json"}), ("/stream", {})):
        sent = events(server.post(f"/v1/audio/transcriptions{path}", three, **form))
        (found,) = [event for event in sent if "paragraphs" in event]
        assert found.get("type") == "transcript.text.done" or found["is_final"]
        assert len(found["paragraphs"]) == 2


def test_a_recording_becomes_a_document(server, three, sample):
    """Markdown and DOCX have a name, and the text in two paragraphs."""
    said = sample[1].split()
    plain = server.transcribe(three, response_format="markdown")
    assert plain.headers["content-type"] == "text/markdown; charset=utf-8"
    assert plain.headers["content-disposition"] == 'attachment; filename="transcript.md"'
    first, second = plain.text.strip().split("\n\n")
    assert first.split()[1:] == 2 * said
    assert second.split()[1:] == said
    file = docx.Document(io.BytesIO(server.transcribe(three, response_format="docx").content))
    assert [one.text.split()[1:] for one in file.paragraphs] == [2 * said, said]


def test_a_job_gives_a_document(server, sample):
    state, result = server.job(sample[0], response_format="docx")
    assert state["status"] == "succeeded"
    assert docx.Document(io.BytesIO(result.content)).paragraphs[0].text.split()[1:] == sample[1].split()


def _sent(server, **fields):
    answer = server.client.post(ROUTE, json={"segments": SEGMENTS, "language": "en", **fields})
    assert answer.status_code == 200, answer.text
    return answer


def test_segments_that_are_sent_come_back_as_paragraphs(server):
    """Joined up to another speaker, or as they are."""
    found = _sent(server).json()["paragraphs"]
    assert _places(found) == [(0, 1), (2, 2)]
    assert found[0] == {
        "start": 0.0,
        "end": 4.0,
        "text": "And so my fellow Americans ask not.",
        "speaker": "Ann",
        "first_segment": 0,
        "last_segment": 1,
    }
    assert _places(_sent(server, joined=True).json()["paragraphs"]) == [(0, 0), (1, 1), (2, 2)]
    assert _sent(server, segments=[]).json() == {"paragraphs": []}


def test_segments_that_are_sent_become_a_document(server):
    """A document has a title, facts, translations and a note."""
    written = _sent(server, format="markdown", title="Talk", facts="1961 · 0:05", note="Cut off.").text
    assert written == (
        "# Talk\n\n1961 · 0:05\n\n**0:00 Ann** And so my fellow Americans ask not.\n\n> fragt nicht.\n\n"
        "**0:04 Ben** Why? \\*\n\n*Cut off.*\n"
    )


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"format": "odt"}, "format"),
        ({"segments": [{"start": 0, "end": "soon", "text": "a"}]}, "segments.0.end"),
        ({"segments": [{"start": -1, "end": 1, "text": "a"}]}, "segments.0.start"),
        ({"segments": [{"start": 0, "end": 1, "text": "a" * 10_001}]}, "segments.0.text"),
        ({"title": "a" * 501}, "title"),
    ],
)
def test_what_is_no_transcript_is_refused(server, wrong, param):
    answer = server.client.post(ROUTE, json={"segments": SEGMENTS, **wrong})
    assert refusal(answer) == (400, "invalid_value", param)
