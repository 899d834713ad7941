"""The environment of a client, and the directory for temporary files."""

import tempfile

from asr_server.core.environment import client_variable, restore_directory


def test_a_clients_key_is_the_environments_alone(monkeypatch, tmp_path):
    """A server's `.env` gives no key away, and a bad value in it stops no client."""
    monkeypatch.delenv("ASR_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("ASR_API_KEY=theirs\nPORT=nowhere\n")
    assert client_variable("ASR_API_KEY") == ""
    monkeypatch.setenv("ASR_API_KEY", " mine\n")
    assert client_variable("ASR_API_KEY") == "mine"


def test_a_directory_that_has_vanished_is_made_again_for_this_user_alone(tmp_path, monkeypatch):
    """Files can be created in it. The mode of one that is there stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    restore_directory()
    assert (tmp_path / "temporary").stat().st_mode & 0o077 == 0
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    (tmp_path / "temporary").chmod(0o755)
    restore_directory()
    assert (tmp_path / "temporary").stat().st_mode & 0o777 == 0o755
    # It is not made if its parent has vanished: that may be a disk which is not mounted.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk" / "temporary"))
    restore_directory()
    assert not (tmp_path / "disk").exists()
