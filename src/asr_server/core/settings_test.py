"""Settings from the environment."""

import base64
import os

import pytest

from asr_server.core import settings
from asr_server.core.settings import ListedHosts


@pytest.fixture(autouse=True)
def _no_dotenv(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


KEY = f"whsec_{base64.b64encode(bytes(range(24))).decode()}"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"IDLE_TIMEOUT": "soon", "DEVICE": "tpu"}, r"DEVICE='tpu'.*cuda.*\n.*IDLE_TIMEOUT='soon'.*number"),
        # `/health` could not show it, and no buffer can be sized by it.
        *(
            ({name: value}, f"{name}=.*finite")
            for name in ("MAX_QUEUE_AUDIO_S", "MAX_UPLOAD_MB", "IDLE_TIMEOUT", "ENGINE_HANG_S")
            for value in ("inf", "Infinity", "nan", "1e999")
        ),
        # Whoever wrote a list without keys wanted keys, as in `$ONE,$TWO` where both are empty.
        *(({"API_KEYS": value}, "it contains no key") for value in (",", " ", " , ,")),
        # A key that cannot be sent.
        *(({"API_KEYS": value}, "API_KEYS") for value in ("canary key", "good,canaryé", "ek_canary", 'canary"quoted"')),
        *(
            ({"JOBS_DATABASE_URL": url}, "JOBS_DATABASE_URL")
            for url in ("mysql://canary@db/asr", "canary", "postgresql://canary@db:port/asr")
        ),
        # TLS that cannot work.
        ({"SSL_CERTFILE": f"{__file__},/no/such.pem"}, "SSL_CERTFILE.* /no/such.pem: there is no such file"),
        *(({"SSL_CERTFILE": files}, "SSL_CERTFILE=.*one file, or two") for files in (",", ",".join([__file__] * 3))),
        ({"SSL_CERTFILE": "/no/such.pem"}, "SSL_CERTFILE.*no such file, or its directory is not readable"),
        # Origins that no browser sends, so that they would never match.
        *(
            ({"ALLOWED_ORIGINS": origin}, "ALLOWED_ORIGINS")
            for origin in ("app.example.com", "https://app.example.com/", "https://a b", "https://user@a")
        ),
        ({"LOG_LEVEL": "loud"}, "LOG_LEVEL='LOUD'"),
        ({"WEBHOOK_HOSTS": "hooks.example.com"}, "WEBHOOK_SECRET=.*needs a key"),
        ({"WEBHOOK_SECRET": "whsec_canary=="}, "WEBHOOK_SECRET=.*24 to 64"),
        ({"WEBHOOK_SECRET": "whsec_!"}, "WEBHOOK_SECRET="),
        ({"WEBHOOK_HOSTS": "*example.com", "WEBHOOK_SECRET": KEY}, "WEBHOOK_HOSTS=.*no host name"),
        ({"URL_HOSTS": "10.0.0.1/8"}, "URL_HOSTS=.*host bits"),
        *(({"URL_HOSTS": f"ok.test,{host}"}, "URL_HOSTS=.*no host name") for host in ("a:b", "*:80", "*.a:80", "**")),
        *(({"MODEL_ID": value}, "MODEL_ID=.*Model: a hub id") for value in (",", " , ")),
    ],
)
def test_a_wrong_value_stops_the_start_and_a_secret_is_not_shown(monkeypatch, values, reason):
    """The message has each variable, its value and what was expected."""
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(settings.SettingsError, match=reason) as refused:
        settings.load()
    assert "canary" not in str(refused.value)


def test_what_prints_the_settings_shows_no_secret():
    given = settings.load(api_keys="canary", jobs_database_url="postgresql://asr:canary@db/asr", webhook_secret=KEY)
    assert not [secret for secret in ("canary", KEY) if secret in repr(given) + str(given)]


def test_a_child_process_gets_the_same_settings_and_secrets():
    """Wherever they came from; asterisks in place of a key would be a wrong key."""
    environment = settings.environment_of(settings.load(webhook_secret=KEY, model_id="m", preload=True))
    assert {"WEBHOOK_SECRET": KEY, "MODEL_ID": "m", "PRELOAD": "true"}.items() <= environment.items()


def test_a_server_that_others_can_reach_needs_keys_or_consent():
    """Beyond loopback the start is refused by a message that names API_KEYS and ALLOW_ANONYMOUS, which allow it."""
    for host in ["127.0.0.1", "127.8.8.8", "::1", "localhost"]:
        assert settings.load(host=host).host == host, host
    for host in ["0.0.0.0", "::", "192.168.1.5", "asr.example.com", "", "127.1", "localhost.evil"]:
        with pytest.raises(settings.SettingsError, match="API_KEYS") as refused:
            settings.load(host=host)
        assert "ALLOW_ANONYMOUS=true" in str(refused.value), host
        assert "Value error" not in str(refused.value), host
        assert settings.load(host=host, api_keys="sk-1").keys == ("sk-1",), host
        assert settings.load(host=host, allow_anonymous=True).keys == (), host


def test_lists_are_read():
    """Origins are those that browsers send. Hosts are names, addresses and networks."""
    good = "https://App.example.com, http://localhost:3000,null"
    assert settings.load(allowed_origins=good).origins == {"https://app.example.com", "http://localhost:3000", "null"}
    several = f"{KEY}, {base64.b64encode(b'k' * 64).decode()}"
    assert settings.load(webhook_secret=several).webhook_keys == (bytes(range(24)), b"k" * 64)
    listed = ListedHosts.of("MinIO.lan:9000, *.Example.com,10.1.2.0/24,127.0.0.1, ::1")
    assert listed.patterns == {"minio.lan:9000", "*.example.com"}
    assert [str(network) for network in listed.networks] == ["10.1.2.0/24", "127.0.0.1/32", "::1/128"]


def test_settings_of_other_servers_and_misspelt_ones_are_named_with_what_is_meant(monkeypatch, tmp_path):
    """Both are found in the environment and in `.env`, in any case. Variables of other programs are ignored."""
    assert settings.superseded() == {}
    monkeypatch.setenv("WS_FLUSH_SILENCE_MS", "400")
    (tmp_path / ".env").write_text("ws_window_max_s=30\nPORT=8100\nIDEL_TIMEOUT=0\nCOMPOSE_PROJECT_NAME=asr\n")
    assert settings.superseded() == {
        "WS_FLUSH_SILENCE_MS": "set VAD_MIN_SILENCE_MS",
        "WS_WINDOW_MAX_S": "set WS_UTTERANCE_MAX_S",
        "IDEL_TIMEOUT": "it is no setting, and IDLE_TIMEOUT is one",
    }
    assert (settings.load().port, settings.load(port=4321).port) == (8100, 4321)  # arguments win


def test_variables_of_the_hubs_library_in_the_file_reach_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "")
    monkeypatch.delenv("HF_ENDPOINT")
    monkeypatch.setenv("HF_TOKEN", "mine")
    (tmp_path / ".env").write_text("HF_ENDPOINT=http://127.0.0.1:9\nHF_TOKEN=other\n")
    settings.load()
    assert (os.environ["HF_ENDPOINT"], os.environ["HF_TOKEN"]) == ("http://127.0.0.1:9", "mine")
