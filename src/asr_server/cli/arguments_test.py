"""The key, and the values of shared arguments."""

import argparse

import pytest

from asr_server.cli import arguments
from asr_server.cli.failure import UsageError


def _key(file=None):
    return arguments.key(argparse.Namespace(api_key_file=file))


def test_a_key_file_wins_over_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ASR_API_KEY", "from-the-environment")
    (tmp_path / "key").write_text("from-the-file\n")
    assert _key() == "from-the-environment"
    assert _key(tmp_path / "key") == "from-the-file"


def test_an_invalid_key_is_refused_and_not_shown(tmp_path):
    for content in [b"", b"\n", b"secret one", b"secr\x00et", "sécret".encode(), b"\xff secret"]:
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(UsageError) as refusal:
            _key(tmp_path / "key")
        assert "cret" not in str(refusal.value)
    with pytest.raises(UsageError, match="No such file"):  # a request without the key would only be refused
        _key(tmp_path / "none")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://127.0.0.1:8100/", "http://127.0.0.1:8100"),
        ("localhost:8202", "http://localhost:8202"),
        (":8202", "http://127.0.0.1:8202"),
        ("[::1]:8202", "http://[::1]:8202"),
        ("https://asr.example/speech/", "https://asr.example/speech"),
    ],
)
def test_an_address_may_be_short(given, address):
    """A host and a port, or a port of this machine, are enough."""
    assert arguments.server_address(given) == address


@pytest.mark.parametrize(
    "given", ["", "localhost", "localhost:http", "ftp://a:1", "http://a:81000", "http://a?b", ":0"]
)
def test_what_is_no_address_is_refused(given):
    """A host alone could mean port 80 or the server's own."""
    with pytest.raises(argparse.ArgumentTypeError, match="is not an address like"):
        arguments.server_address(given)


def test_the_server_is_named_by_option_or_environment(monkeypatch):
    """The option wins. What is wrong in the environment is named after its variable."""
    monkeypatch.delenv("ASR_SERVER_URL", raising=False)
    assert arguments.server(argparse.Namespace(server=None)) == "http://127.0.0.1:8100"
    monkeypatch.setenv("ASR_SERVER_URL", "asr.example:8202/")
    assert arguments.server(argparse.Namespace(server=None)) == "http://asr.example:8202"
    assert arguments.server(argparse.Namespace(server="http://other")) == "http://other"
    monkeypatch.setenv("ASR_SERVER_URL", "nowhere")
    with pytest.raises(UsageError, match="ASR_SERVER_URL: 'nowhere' is not"):
        arguments.server(argparse.Namespace(server=None))
