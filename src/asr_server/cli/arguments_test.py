"""The key, and the values of shared arguments."""

import argparse

import pytest

from asr_server.cli import arguments
from asr_server.cli.failure import UsageError


def _key(file=None):
    return arguments.key(argparse.Namespace(api_key_file=file))


def test_a_key_file_wins_over_the_environment(monkeypatch, tmp_path):
    """Its line end is none of it."""
    monkeypatch.setenv("ASR_API_KEY", "from-the-environment")
    (tmp_path / "key").write_text("from-the-file\n")
    assert _key() == "from-the-environment"
    assert _key(tmp_path / "key") == "from-the-file"


@pytest.mark.parametrize("content", [b"", b"\n", b"secret one", b"secr\x00et", "sécret".encode(), b"\xff secret"])
def test_what_can_be_no_key_is_refused_and_not_shown(tmp_path, content):
    """A header cannot hold it."""
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(UsageError) as refusal:
        _key(tmp_path / "key")
    assert "cret" not in str(refusal.value)


def test_a_missing_key_file_is_no_key_left_out(tmp_path):
    """A request without the key would only be refused by the server."""
    with pytest.raises(UsageError, match="No such file"):
        _key(tmp_path / "none")


def test_a_target_is_its_tag():
    """However it was written; files are named after it."""
    assert [arguments.tongue(text) for text in ("German", "de", "pt-BR")] == ["de", "de", "pt-BR"]
