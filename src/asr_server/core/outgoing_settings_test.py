"""Settings of the requests that the server sends to URLs which callers name."""

import base64

import pytest

from asr_server.core import settings

KEY = f"whsec_{base64.b64encode(bytes(range(24))).decode()}"


@pytest.fixture(autouse=True)
def _no_dotenv(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"WEBHOOK_HOSTS": "hooks.example.com"}, "WEBHOOK_SECRET=.*needs a key"),
        ({"WEBHOOK_SECRET": "whsec_c2hvcnQ="}, "WEBHOOK_SECRET=.*24 to 64"),
        ({"WEBHOOK_SECRET": "whsec_!"}, "WEBHOOK_SECRET="),
        ({"WEBHOOK_HOSTS": "*example.com", "WEBHOOK_SECRET": KEY}, "WEBHOOK_HOSTS=.*no host name"),
        ({"OUTGOING_HOSTS": "10.0.0.1/8"}, "OUTGOING_HOSTS=.*host bits"),
    ],
)
def test_a_wrong_value_stops_the_start_and_a_key_is_not_shown(monkeypatch, values, reason):
    """The message names the setting."""
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(settings.SettingsError, match=reason) as refused:
        settings.load()
    assert "whsec_c2hvcnQ" not in str(refused.value)


def test_several_keys_and_hosts_are_read(monkeypatch):
    """Keys as their bytes; hosts as names, addresses and networks."""
    monkeypatch.setenv("WEBHOOK_SECRET", f"{KEY}, {base64.b64encode(b'k' * 64).decode()}")
    monkeypatch.setenv("OUTGOING_HOSTS", "MinIO.lan, 10.1.2.0/24,127.0.0.1, ::1")
    loaded = settings.load()
    assert loaded.webhook_keys == (bytes(range(24)), b"k" * 64)
    permitted = loaded.permitted_hosts
    assert permitted.names == {"minio.lan"}
    assert [str(network) for network in permitted.networks] == ["10.1.2.0/24", "127.0.0.1/32", "::1/128"]
