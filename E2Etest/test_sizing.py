"""docs/sizing.md: its plan for 10,000 live sessions is what the command prints today."""

import json
import re
from pathlib import Path

import pytest

from asr_server.cli.main import main

PAGE = (Path(__file__).parents[1] / "docs" / "sizing.md").read_text(encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["0.6B", "1.7B"])
def test_the_plan_of_the_page_is_that_of_the_command(model, tmp_path, monkeypatch, capsys):
    """Replicas, and what bounds them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAX_LIVE_SESSIONS", "400")
    load = ["--live", "10000", "--recordings", "50", "--spare", "0"]
    assert main(["size", "--gpu", "h100", "--model", model, "--json", *load]) == 0
    found = json.loads(capsys.readouterr().out)
    row = re.search(rf"^\| {model} \| ([\d,]+) \| ([\d,]+) \| ([a-zA-Z_ ]+?) \|", PAGE, re.MULTILINE)
    assert row is not None
    stated = int(row[1].replace(",", "")), int(row[2].replace(",", "")), row[3]
    assert stated == (found["needed_replicas"], found["one_replica"]["live"], found["bound_by"])
