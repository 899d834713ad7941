"""The lines that `serve` prints when it listens."""

import sys
from unittest.mock import Mock

import pytest
from huggingface_hub.errors import CacheNotFound

from asr_server.cli.conftest import Terminal
from asr_server.cli.serve import announce
from asr_server.core.settings import Settings


@pytest.mark.parametrize(
    ("changed", "page"),
    [
        ({}, "http://127.0.0.1:8202/"),
        ({"ssl_certfile": __file__}, "https://127.0.0.1:8202/"),
        ({"host": "::1"}, "http://[::1]:8202/"),
        ({"host": "0.0.0.0", "allow_anonymous": True}, "http://127.0.0.1:8202/"),
    ],
)
def test_a_terminal_shows_the_address_to_open_and_the_missing_model(monkeypatch, tmp_path, changed, page):
    """The lines say what downloads it. An address that stands for all is not one to open."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", Mock(side_effect=CacheNotFound("", cache_dir="")))
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    announce(Settings(_env_file=None, model_id="o/model", device="cpu", **changed), 8202)
    assert page in shown.getvalue().splitlines()[-1]
    assert "o/model is not on this machine yet" in shown.getvalue()
    assert "asr-server models download o/model" in shown.getvalue()
