"""A server on a GPU; and `make gpu` without one: it says so, and its code runs on a CPU, and says that as well."""

import json
import os
import subprocess
import sys

import pytest

from E2Etest.drive.process import ready
from tools.gpu.carry import MOST_BYTES, tracked


def _run(*arguments):
    """Its GPUs, if this machine has any, are hidden from it."""
    return subprocess.run(
        [sys.executable, "-m", "tools.gpu", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""},
    )


@pytest.mark.nightly
def test_without_a_gpu_nothing_is_measured_and_it_fails(tmp_path):
    """With a reason, and no file that could be taken for a result."""
    done = _run("--out", str(tmp_path / "gpu.json"))
    assert done.returncode == 1
    assert "Nothing was measured" in done.stderr
    assert not (tmp_path / "gpu.json").exists()


@pytest.mark.nightly
@pytest.mark.timeout(2700)
def test_its_parts_run_on_a_cpu(tmp_path):
    """The demonstration model runs all parts, the optional ones too. The file says that no GPU was measured."""
    from tools.gpu.__main__ import MORE, PARTS  # it imports torch, which takes seconds

    out = tmp_path / "gpu.json"
    cpu = ("--device", "cpu", "--shape", "demo", "--seconds", "3600", "--out", str(out))
    done = _run(*cpu, *MORE)
    assert done.returncode == 0, done.stderr
    equal = json.loads(out.read_text())["float32_equals_package"]
    assert equal["equal_with_8_rows"] == equal["clips"]
    done = _run(*cpu)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["measured_on_a_gpu"], found["device"]) == (False, "cpu")
    assert (found["failed"], found["not_begun"], list(found["took_s"])) == ([], [], list(PARTS))
    loads = [found["server"]["one_process"]["1"], found["server"]["two"]["1"], found["short_clips"]["1"]]
    assert all(load["errors"] == {} and load["answers"] for load in loads), loads
    # The thread that is timed is the one that computes, in whichever process it is.
    assert all(load["engine_thread"]["step"][0] for load in loads), loads
    live = found["live"]["1"]
    assert live["errors"] == {}
    assert min(live[name]["count"] for name in ("partials_ms", "finals_ms")) > 0


def test_a_machine_that_is_lent_takes_the_tree_and_the_packages():
    """The packages have 15.5 MiB. (`make gpu-carry` says what they are.)"""
    assert sum(path.stat().st_size for path in tracked()) <= MOST_BYTES - 15.5 * 2**20


@pytest.mark.integration
@pytest.mark.requires_gpu
def test_a_gpu_hears_the_words_and_reports_its_memory(tmp_path, sample):
    """In float32 a GPU hears the same words as a CPU."""
    with ready(tmp_path / "log", DEVICE="cuda", DTYPE="float32") as server:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        health = server.health()
    assert health["cuda"]
    assert health["gpu_name"]
    assert health["gpu_allocated_mb"] > 0
