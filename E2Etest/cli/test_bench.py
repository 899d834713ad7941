"""`asr-server bench` against a server."""

import json
import time

import pytest

from asr_server.engine.fake_script import FakeScript
from E2Etest.cli.commands import command

pytestmark = pytest.mark.integration


@pytest.mark.nightly
def test_figures_are_of_this_server_and_fit_each_other(cli_server, sample):
    """As many requests as wished for reach the server, and the one before; ranks grow; live words come late by more
    than nothing."""
    before = cli_server.log().count("method=POST")
    done = command("bench", "--server", cli_server.base, "--requests", 6, "--callers", 3, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    files, live = found["files"], found["live"]
    assert cli_server.log().count("method=POST") - before == 7
    assert (files["answered"], files["failed"], files["unfinished"]) == (6, {}, 0)
    ranks = list(files["wait_s"].values())
    assert ranks == sorted(ranks)
    assert files["took_s"] >= files["wait_s"]["max"] > 0
    assert files["audio_s_per_s"] == pytest.approx(6 * found["recording_s"] / files["took_s"], rel=0.01)
    assert found["recording_s"] == pytest.approx((len(sample[0]) - 44) / 32_000, abs=0.01)
    assert live["partials"] >= 1
    assert live["finals"] >= 1
    assert live["partial_lag_s"]["p50"] > 0


@pytest.mark.nightly
def test_it_ends_when_its_time_is_over(cli_server, long_talk):
    """Four minutes of audio again and again, live too: a second each."""
    began_s = time.monotonic()
    arguments = ["--file", long_talk, "--seconds", 1, "--requests", 10_000, "--json"]
    done = command("bench", "--server", cli_server.base, *arguments)
    assert time.monotonic() - began_s < 90
    files = json.loads(done.stdout)["files"]
    assert files["answered"] + files["unfinished"] < 100
    cli_server.wait_for(lambda health: health["queue"]["audio_held_s"] == 0)


@pytest.mark.nightly
def test_refusals_are_counted_and_fail_it(start):
    """A server that holds two recordings at a time."""
    with start(script=FakeScript(step_s=0.02), MAX_QUEUE_AUDIO_S="8", MAX_BATCH="1") as server:
        done = command("bench", "--server", server.base, "--callers", 8, "--requests", 16, "--live", 0)
    assert done.returncode == 1
    assert "failed (rate_limit_exceeded)" in done.stdout


def test_without_a_server_there_is_nothing_to_measure():
    """Exit code 3, one line."""
    done = command("bench", "--server", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
