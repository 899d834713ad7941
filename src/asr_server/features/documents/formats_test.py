"""Documents that the command line makes of an answer."""

import io

import docx

from asr_server.cli import formats
from asr_server.cli.failure import Exit
from asr_server.cli.formats import Format
from asr_server.cli.main import main
from asr_server.core.transcript import Segment, Transcript
from asr_server.recordings.render import render
from asr_server.recordings.requests import TranscriptionRequest


def test_documents_are_made_among_other_formats():
    wanted = (Format.TEXT, Format.MARKDOWN, Format.DOCX)
    segment = Segment(65_000, 66_000, "Yes.", "English", (), 0.0, 0.0, speaker="Ann")
    request = TranscriptionRequest(**formats.answer_options(wanted, speakers=True))
    answer = render(Transcript("Yes.", "English", 66_000, (segment,)), request).content.decode()
    found = formats.convert(answer, request.response_format, wanted)
    assert (found[Format.TEXT], found[Format.MARKDOWN]) == ("Ann: Yes.\n", "**1:05 Ann** Yes.\n")
    assert [one.text for one in docx.Document(io.BytesIO(found[Format.DOCX])).paragraphs] == ["1:05  Ann: Yes."]


def test_a_format_that_is_no_text_needs_a_file(capsys, tmp_path):
    recording = tmp_path / "a.wav"
    recording.write_bytes(b"RIFF")
    assert main(["transcribe", str(recording), "--format", "docx"]) == Exit.USAGE
    assert "docx is no text: say --beside, or --output FILE." in capsys.readouterr().err
