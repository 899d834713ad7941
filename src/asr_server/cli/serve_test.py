"""The lines that `serve` prints when it listens."""

import io
import sys
from unittest.mock import Mock

import pytest
from huggingface_hub.errors import CacheNotFound
from loguru import logger

from asr_server.cli.conftest import Terminal
from asr_server.cli.serve import announce
from asr_server.core.settings import Settings


@pytest.fixture(autouse=True)
def no_model(monkeypatch, tmp_path):
    """An empty cache of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    empty = Mock(side_effect=CacheNotFound("", cache_dir=""))
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", empty)


def _settings(**changed):
    return Settings(_env_file=None, **({"model_id": "o/model", "device": "cpu"} | changed))


@pytest.fixture
def log():
    lines = io.StringIO()
    number = logger.add(lines, format="{level} {message} {extra}")
    yield lines
    logger.remove(number)


@pytest.mark.parametrize(
    ("changed", "page"),
    [
        ({}, "http://127.0.0.1:8202/"),
        ({"ssl_certfile": __file__}, "https://127.0.0.1:8202/"),
        ({"host": "::1"}, "http://[::1]:8202/"),
        ({"host": "0.0.0.0", "allow_anonymous": True}, "http://127.0.0.1:8202/"),
    ],
)
def test_a_terminal_shows_the_address_to_open_and_the_missing_model(monkeypatch, changed, page):
    """The lines say what downloads it. An address that stands for all is not one to open."""
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    announce(_settings(**changed), 8202)
    assert page in shown.getvalue().splitlines()[-1]
    assert "o/model is not on this machine yet" in shown.getvalue()
    assert "asr-server models download o/model" in shown.getvalue()


def test_the_log_warns_of_a_model_that_is_not_there(log):
    """The server of `--local` is warned too, whose address nobody opens; a directory that is missing is said so."""
    announce(_settings(), 8202)
    announce(_settings(preload=True), None)
    announce(_settings(model_id="/none"), None)
    missing, ready, loading, wrong = log.getvalue().splitlines()
    # A logger that another test has configured adds fields of its own.
    assert ready.startswith("INFO ready {'page': 'http://127.0.0.1:8202/'")
    assert missing.startswith("WARNING the model is not ready")
    assert "the first request downloads it" in missing
    assert "it is downloaded now" in loading
    assert "there is no such directory" in wrong
