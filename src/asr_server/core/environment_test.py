"""The environment of a client."""

from asr_server.core.environment import client_variable


def test_a_clients_key_is_the_environments_alone(monkeypatch, tmp_path):
    """A server's `.env` gives no key away, and a bad value in it stops no client."""
    monkeypatch.delenv("ASR_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("ASR_API_KEY=theirs\nPORT=nowhere\n")
    assert client_variable("ASR_API_KEY") == ""
    monkeypatch.setenv("ASR_API_KEY", " mine\n")
    assert client_variable("ASR_API_KEY") == "mine"
