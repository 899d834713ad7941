"""`make gpu` on a machine without a GPU: it says so; its code runs on a CPU, and says that as well."""

import json
import os
import subprocess
import sys

import pytest


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
@pytest.mark.timeout(900)
def test_its_parts_run_on_a_cpu(tmp_path):
    """All of them, on the demonstration model; the file says that no GPU was measured."""
    out = tmp_path / "gpu.json"
    done = _run("--device", "cpu", "--shape", "demo", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["measured_on_a_gpu"], found["device"], found["failed"]) == (False, "cpu", [])
    assert found["float32_equals_package"]["equal_with_8_rows"] == found["float32_equals_package"]["clips"]
    loads = {name: found["server"][name]["1"] for name in ("recordings", "streams", "live")}
    assert all(load["errors"] == {} for load in loads.values()), loads
    counts = [loads["recordings"]["answers"], loads["streams"]["first_ms"]["count"]]
    counts += [loads["live"][name]["count"] for name in ("partials_ms", "finals_ms")]
    assert min(counts) > 0
