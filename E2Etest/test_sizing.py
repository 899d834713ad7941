"""docs/run/cluster.md: its plan for 10,000 live sessions is what the command prints today."""

import json
import re
from pathlib import Path

import pytest

from asr_server.cli.main import main
from asr_server.core.settings import Settings
from asr_server_sizing import files
from asr_server_sizing.planning import rank
from asr_server_sizing.simulation import Servers, Speaker, Trace, simulate
from asr_server_sizing.speech import LiveRules

PAGE = (Path(__file__).parents[1] / "docs" / "run" / "cluster.md").read_text(encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["0.6B", "1.7B"])
def test_the_plan_of_the_page_is_that_of_the_command(model, tmp_path, monkeypatch, capsys):
    """Replicas, what bounds them, and when partials come."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAX_LIVE_SESSIONS", "400")
    load = ["--live", "10000", "--recordings", "50", "--spare", "0"]
    assert main(["size", "--gpu", "h100", "--model", model, "--json", *load]) == 0
    found = json.loads(capsys.readouterr().out)
    row = re.search(
        rf"^\| {model} \| ([\d,]+) \| ([\d,]+) \| ([a-zA-Z_ ]+?) \| (\d+) / (\d+) ms \|", PAGE, re.MULTILINE
    )
    assert row is not None
    stated = int(row[1].replace(",", "")), int(row[2].replace(",", "")), row[3]
    one = found["one_replica"]
    assert stated == (found["needed_replicas"], one["live"], found["bound_by"])
    assert {"p50": int(row[4]) / 1000, "p95": int(row[5]) / 1000} == one["partial_s"]


@pytest.mark.parametrize(("profile", "name"), zip(files.known(), ("0.6B", "1.7B"), strict=True))
def test_the_partials_of_one_speaker_on_the_page_are_simulated_so(profile, name):
    """Half a minute of speech without a pause."""
    servers = Servers(1, profile, LiveRules.of(Settings(_env_file=None)))
    lags_s = simulate(servers, Trace(40.0, 2.0, [Speaker(0.0, [(1.0, 31.0)])])).lags.partials_s
    row = re.search(
        rf"^\| (?:H100, partials of one speaker, .*, |\.\.\. ){name} \| (\d+) / (\d+) ms \|", PAGE, re.MULTILINE
    )
    assert row is not None
    assert [int(row[1]), int(row[2])] == [round(1000 * rank(lags_s, share)) for share in (0.5, 0.95)]
