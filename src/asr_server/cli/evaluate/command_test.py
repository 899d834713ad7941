"""The command, as far as it asks no server. E2Etest/cli/test_evaluate.py asks one."""

import sys
from pathlib import Path

import pytest

from asr_server.cli import evaluate
from asr_server.cli.evaluate.answers import AnswerFile
from asr_server.cli.formats import Format
from asr_server.cli.main import build_parser, main
from asr_server.cli.recording_files import RecordingSource

SERVER = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with a recording and its text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASR_SERVER_URL", raising=False)
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.wav").write_bytes(b"RIFF\x00\x01\x00\x00WAVEfmt ")
    (tmp_path / "talks" / "a.txt").write_text("words")
    (tmp_path / "m.csv").write_text("path,text\na.wav,words\n")
    (tmp_path / "old.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["talks", "--json", "old.json"], "old.json exists; --force replaces it"),
        (["talks", "--html", "old.json"], "old.json exists; --force replaces it"),
        (["talks", "--html", "x", "--json", "./x"], "are the same file"),
        (["talks", "--json", "none/x.json"], "name a file in a directory that exists"),
        (["talks", "--json", "talks"], "name a file in a directory that exists"),
        (["talks", "--compare", "old.json"], "no result of asr-server evaluate"),
        (["talks", "--compare", "none.json"], "cannot be read"),
        (["talks", "--compare", "ftp://a"], "is not an address"),
        (["talks", "--compare", "old.json", "--compare-model", "m"], "--compare-model is for a server"),
        (["talks", "--local", "--compare-model", "m"], "--compare-model is for a server"),
        (["talks", "--local", "--job"], "--job is for a server"),
        (["m.csv", "--folders", "speaker"], "--folders is for a folder"),
        (["talks/a.wav"], "neither a folder nor a manifest"),
        (["none"], "neither a folder nor a manifest"),
    ],
)
def test_what_cannot_end_well_is_refused_in_one_line(arguments, said, capsys, folder):
    """Before a server is asked; no file is left behind."""
    before = set(folder.iterdir())
    assert main(["evaluate", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize("folders", ["", "speakers", "speaker/speaker", "speaker/"])
def test_folders_stand_for_languages_and_speakers_only(folders, capsys):
    """Each once."""
    with pytest.raises(SystemExit):
        main(["evaluate", "talks", "--folders", folders])
    assert "is none of language, speaker" in capsys.readouterr().err


def test_without_its_packages_it_says_what_to_install(monkeypatch, capsys):
    """The server's own packages do not have what the command needs."""
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    for name in [name for name in sys.modules if name.startswith("asr_server.cli.evaluate.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("asr_server.cli.evaluate.results", raising=False)
    assert main(["evaluate", "talks"]) == 1
    assert "is not installed: pip install '.[evaluate]'" in capsys.readouterr().err


def test_recordings_without_texts_are_named(folder, capsys):
    """Where none has one, nothing is transcribed."""
    (folder / "talks" / "a.txt").unlink()
    assert main(["evaluate", "talks", "--server", SERVER]) == 1
    error = capsys.readouterr().err
    assert "skipped (no text): talks/a.wav" in error
    assert "there is no recording with a text" in error


def test_answers_are_kept_where_the_server_is_gone(folder, capsys):
    """The next run needs the rest alone, and --force starts anew."""
    (folder / "talks" / "b.wav").write_bytes((folder / "talks" / "a.wav").read_bytes())
    (folder / "talks" / "b.txt").write_text("words")
    part = folder / "evaluation.json.part"
    source = RecordingSource(folder / "talks" / "a.wav", Path("a.wav"))
    system = {"server": SERVER, "model": "", "language": None, "prompt": "", "hotwords": ()}
    AnswerFile(part, system).deliver(source, {Format.VERBOSE_JSON: '{"text": "words"}'})
    kept = part.read_bytes()
    assert main(["evaluate", "talks", "--server", SERVER]) == 3
    error = capsys.readouterr().err
    assert "1 of 2 answers are in evaluation.json.part from a run before" in error
    assert "1 answers are kept in evaluation.json.part; the same command continues from there" in error
    assert part.read_bytes() == kept
    assert main(["evaluate", "talks", "--server", SERVER, "--prompt", "other"]) == 2
    assert "another server, model or options; --force starts anew" in capsys.readouterr().err
    assert main(["evaluate", "talks", "--server", SERVER, "--force"]) == 3
    assert not part.exists()


@pytest.mark.parametrize(
    ("arguments", "systems"),
    [
        ([], [(SERVER, "")]),
        (["--compare", "old.json"], [(SERVER, "")]),
        (["--compare-model", "b"], [(SERVER, ""), (SERVER, "b")]),
        (["--model", "a", "--compare", ":10"], [(SERVER, "a"), ("http://127.0.0.1:10", "a")]),
        (["--model", "a", "--compare", ":10", "--compare-model", "b"], [(SERVER, "a"), ("http://127.0.0.1:10", "b")]),
    ],
)
def test_two_systems_are_asked_where_the_other_is_no_file(arguments, systems, monkeypatch):
    """Each with its model, and its answers are kept in a file of their own."""
    monkeypatch.setenv("ASR_SERVER_URL", SERVER)
    targets = evaluate._targets(build_parser("evaluate").parse_args(["evaluate", "talks", *arguments]))
    assert [(target.system["server"], target.system["model"]) for target in targets] == systems
    assert [target.run.request.model for target in targets] == [model or "whisper-1" for _, model in systems]
    assert len({target.file.path for target in targets}) == len(targets)
