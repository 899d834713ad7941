"""Transcripts as DOCX, which is read back: from the route and from a job, and without personal data."""

import io

import docx

from asr_server_fake.script import Rule
from E2Etest.contract import sounds

SECRET = "Write to john@example.com, the card is 4111 1111 one one"
REDACT = {"redact": "email,card"}


def _paragraphs(answer):
    assert answer.status_code == 200, answer.text
    return [one.text for one in docx.Document(io.BytesIO(answer.content)).paragraphs]


def test_no_file_of_a_job_has_what_was_redacted(scripted_server, scripted):
    """Later formats do not have it either. They show what the compressed transcript of the job holds."""
    server = scripted_server
    scripted(Rule(min_s=2.2, text=SECRET), Rule(text="one one one one one one."))
    audio = sounds.content(["speech", 3, [0, 1.5]])
    shown = _paragraphs(server.transcribe(audio, response_format="docx", **REDACT))
    _, result = server.job(audio, response_format="docx", **REDACT)
    assert _paragraphs(result) == shown
    for later in ("text", "srt", "verbose_json", "markdown"):
        shown.append(server.client.get(result.url, params={"response_format": later}).text)
    for text in shown:
        assert "CARD" in text
        assert not [part for part in ("john", "example.com", "4111", "one one") if part in text.lower()], text
    for path in server.state.rglob("*"):
        assert path.is_dir() or b"john" not in path.read_bytes(), path
