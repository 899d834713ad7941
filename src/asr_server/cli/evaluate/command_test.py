"""The command, as far as it asks no server. E2Etest/cli/test_evaluate.py asks one."""

import pytest

from asr_server.cli.main import main

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
        (["talks", "--html", "x", "--json", "./x"], "are the same file"),
        (["talks", "--json", "none/x.json"], "name a file in a directory that exists"),
        (["talks", "--compare", "old.json"], "not a result of asr-server evaluate"),
        (["talks", "--compare", "none.json"], "cannot be read"),
        (["talks", "--local", "--job"], "--job is for a server"),
        (["m.csv", "--folders", "speaker"], "--folders is for a folder"),
        (["talks/a.wav"], "neither a folder nor a manifest"),
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


def test_answers_are_kept_if_the_server_is_gone(folder, capsys):
    """The next run asks for the others only, and --force starts anew."""
    (folder / "talks" / "deep").mkdir()
    for name in ("a.wav", "a.txt"):
        (folder / "talks" / "deep" / name).write_bytes((folder / "talks" / name).read_bytes())
    assert main(["evaluate", "talks", "--server", SERVER, "--vad", "off"]) == 3
    part = folder / "evaluation.json.part"
    part.mkdir(exist_ok=True)
    (part / "kept").write_text("answer")
    assert main(["evaluate", "talks", "--server", SERVER]) == 3
    assert (part / "kept").exists()
    assert main(["evaluate", "talks", "--server", SERVER, "--force"]) == 3
    assert not (part / "kept").exists()
