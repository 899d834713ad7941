"""The file of answers."""

import json
from pathlib import Path

import pytest

from asr_server.cli.evaluate.answers import AnswerFile
from asr_server.cli.evaluate.results import SystemAnswer
from asr_server.cli.failure import Failure, UsageError
from asr_server.cli.formats import Format
from asr_server.cli.recording_files import RecordingSource

SYSTEM = {"server": "http://a", "model": "", "language": None, "prompt": "a prompt", "hotwords": ("Ann",)}
ANSWER = {
    "text": "two wörds",
    "language": "german",
    "language_code": "de",
    "duration": 2.5,
    "words": [{"word": "two", "start": 0.5, "end": 1.0, "source": "aligned"}, {"word": "wörds", "start": 1, "end": 2}],
}
READ = SystemAnswer("two wörds", "de", 2.5, (("two", 0.5, 1.0), ("wörds", 1.0, 2.0)))


def _source(name):
    return RecordingSource(Path("/talks") / name, Path(name))


def _deliver(file, name, content=ANSWER):
    file.deliver(_source(name), {Format.VERBOSE_JSON: json.dumps(content)})


def test_a_second_run_goes_on_where_the_first_ended(tmp_path):
    """A line that was cut off is as if it had never been; names may be bytes that are no text."""
    path, strange = tmp_path / "part", "a\udcff.wav"
    file = AnswerFile(path, SYSTEM)
    assert file.answers == {}
    _deliver(file, strange)
    _deliver(file, "b.wav")
    path.write_bytes(path.read_bytes()[:-9])
    file = AnswerFile(path, SYSTEM)
    assert file.answers == {strange: READ}
    _deliver(file, "c/d.wav")
    file = AnswerFile(path, SYSTEM)
    assert file.answers == {strange: READ, "c/d.wav": READ}


@pytest.mark.parametrize(
    "other", [{**SYSTEM, "server": "http://b"}, {**SYSTEM, "model": "m"}, {**SYSTEM, "hotwords": ()}]
)
def test_answers_of_another_system_are_not_mixed_in(tmp_path, other):
    """The file of the other system stays as it is."""
    path = tmp_path / "part"
    file = AnswerFile(path, SYSTEM)
    _deliver(file, "a.wav")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="another server, model or options"):
        AnswerFile(path, other)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["{}\n[]\n", "no json\n", '{"version": 1}\n{"name": "a", "text": 5}\n'])
def test_another_file_is_refused(tmp_path, content):
    """The command leaves the file as it is."""
    path = tmp_path / "part"
    path.write_text(content)
    with pytest.raises(UsageError, match="no file of answers"):
        AnswerFile(path, SYSTEM)
    assert path.read_text() == content


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    """Before anything is transcribed."""
    with pytest.raises(UsageError, match="cannot be written"):
        AnswerFile(tmp_path / "none" / "part", SYSTEM)


def test_answers_of_other_servers_have_less(tmp_path):
    """OpenAI's has no language code; a language that was not found is none."""
    file = AnswerFile(tmp_path / "part", SYSTEM)
    _deliver(file, "a.wav", {"text": "so", "language": "english"})
    _deliver(file, "b.wav", {"text": "so", "language": "auto", "language_code": ""})
    assert file.answers == {"a.wav": SystemAnswer("so", "english"), "b.wav": SystemAnswer("so")}


@pytest.mark.parametrize("content", [{}, [], {"text": None}, {"text": "a", "words": [{"word": "a"}]}])
def test_an_answer_without_a_text_is_a_failure(tmp_path, content):
    """The other recordings go on, and nothing of it is kept."""
    file = AnswerFile(tmp_path / "part", SYSTEM)
    with pytest.raises(Failure, match="verbose_json"):
        _deliver(file, "a.wav", content)
    file.drop(_source("a.wav"), Failure("no_answer", "None."))
    assert file.answers == {}
    assert file.failed == {"a.wav": "no_answer"}
    assert not (tmp_path / "part").exists()
