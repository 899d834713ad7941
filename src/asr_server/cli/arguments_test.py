"""The key, and the values of shared arguments."""

import argparse
from dataclasses import replace

import pytest

from asr_server.cli import arguments
from asr_server.cli.failure import UsageError
from asr_server.service.requests import OutputOptions, ResponseFormat, SubtitleRequest, TranslationRequest, WordTimes


def _key(file=None):
    return arguments.key(argparse.Namespace(api_key_file=file))


def test_a_key_file_wins_over_the_environment(monkeypatch, tmp_path):
    """Without the end of its line."""
    monkeypatch.setenv("ASR_API_KEY", "from-the-environment")
    (tmp_path / "key").write_text("from-the-file\n")
    assert _key() == "from-the-environment"
    assert _key(tmp_path / "key") == "from-the-file"


def test_an_invalid_key_is_refused_and_not_shown(tmp_path):
    """A header cannot hold it."""
    for content in [b"", b"\n", b"secret one", b"secr\x00et", "sécret".encode(), b"\xff secret"]:
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(UsageError) as refusal:
            _key(tmp_path / "key")
        assert "cret" not in str(refusal.value)


def test_a_missing_key_file_is_an_error(tmp_path):
    """A request without the key would only be refused by the server."""
    with pytest.raises(UsageError, match="No such file"):
        _key(tmp_path / "none")


def test_a_target_is_its_tag():
    """In any spelling; files are named after it."""
    assert [arguments.target_language(text) for text in ("German", "de", "pt-BR")] == ["de", "de", "pt-BR"]


@pytest.mark.parametrize(
    ("given", "request_"),
    [
        ({}, SubtitleRequest(output=OutputOptions(ResponseFormat.VTT, max_line_chars=30, max_lines=1))),
        ({"mode": "fast", "language": "German"}, SubtitleRequest(language="German", word_times=WordTimes.ESTIMATED)),
        (
            {"to": "de", "bilingual": True, "term": [("a", "b")], "model": "m", "hotword": ["x"]},
            TranslationRequest(target_language="de", bilingual=True, glossary={"a": "b"}, model="m", hotwords=("x",)),
        ),
        ({"local": True, "model": "demo", "prompt": "p"}, SubtitleRequest(prompt="p")),
    ],
)
def test_arguments_become_the_request(given, request_):
    """With a target language a translation. With --local the model is a setting of the worker."""
    output = OutputOptions(ResponseFormat.VTT, max_line_chars=30, max_lines=1)
    defaults = {"language": None, "prompt": "", "hotword": [], "model": "", "local": False, "to": None, "term": []}
    layout = {"format": "vtt", "mode": "accurate", "max_line_chars": 30, "max_lines": 1, "bilingual": False}
    parsed = argparse.Namespace(**{**defaults, **layout, **given})
    assert arguments.cue_request(parsed) == replace(request_, output=output)
