"""The files of answers."""

import json
from pathlib import Path

import pytest

from asr_server.cli.evaluate.references import AnswerFiles, SystemAnswer
from asr_server.cli.failure import Failure
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
# The name of a file may be bytes that are not text.
SOURCES = [RecordingSource(Path("/talks") / name, Path(name)) for name in ("a\udcff.wav", "c/d.wav", "../b.wav")]


def _files(folder, system=SYSTEM):
    return AnswerFiles(folder, system, SOURCES)


def _deliver(files, source, content=ANSWER):
    assert not files.is_done(source)
    files.deliver(source, {Format.VERBOSE_JSON: json.dumps(content)})


def test_a_second_run_continues_where_the_first_ended(tmp_path):
    """No recording is transcribed twice, and all files are in the folder."""
    folder = tmp_path / "part"
    assert _files(folder).read() == {}
    for source in SOURCES[:2]:
        _deliver(_files(folder), source)
    files = _files(folder)
    assert files.read() == {"a\udcff.wav": READ, "c/d.wav": READ}
    assert files.is_done(SOURCES[1])
    _deliver(files, SOURCES[2])
    assert set(_files(folder).read()) == {"a\udcff.wav", "c/d.wav", "../b.wav"}
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("other", [{"server": "http://b"}, {"model": "m"}, {"hotwords": ()}])
def test_answers_of_another_system_are_not_mixed_in(tmp_path, other):
    _deliver(_files(tmp_path), SOURCES[0])
    assert _files(tmp_path, SYSTEM | other).read() == {}
    assert _files(tmp_path).read()


def test_answers_of_other_servers_have_less(tmp_path):
    """OpenAI's has no language code; a language that was not found is empty."""
    files = _files(tmp_path)
    _deliver(files, SOURCES[0], {"text": "so", "language": "english"})
    _deliver(files, SOURCES[1], {"text": " so", "language": "auto", "language_code": ""})
    assert list(files.read().values()) == [SystemAnswer("so", "english"), SystemAnswer("so")]


@pytest.mark.parametrize("content", [{}, [], {"text": None}, {"text": "a", "words": [{"word": "a"}]}])
def test_an_answer_without_a_text_is_a_failure(tmp_path, content):
    files = _files(tmp_path)
    with pytest.raises(Failure, match="verbose_json"):
        _deliver(files, SOURCES[0], content)
    files.drop(SOURCES[0], Failure("no_answer", "None."))
    assert (files.read(), files.failed) == ({}, {"a\udcff.wav": "no_answer"})
