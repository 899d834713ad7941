"""Each feature can be taken away: without its folder and its line in `FEATURES`, the rest of the server works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asr_server import feature_list

SOURCE = Path(__file__).parents[2]
# `app.py` names these still.
_NEEDED = {"speakers", "speech_output"}
NAMES = [feature.name for feature in feature_list.FEATURES if feature.name not in _NEEDED]
# Tests of what the features plug into; all of the core's would take minutes.
TESTS = (
    *("engine/plan_test.py", "engine/fake_test.py", "engine/client_test.py", "engine/aligning_test.py"),
    *("engine/row_test.py", "engine/torch", "engine/qwen_asr/engine_test.py", "engine/qwen_asr/model_cache_test.py"),
    *("features/speech_output/options_test.py", "app_test.py", "layers_test.py", "live"),
)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_the_core_works_without(name, tmp_path):
    """The feature is removed from a copy of the source."""
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    package = tmp_path / "src" / "asr_server"
    shutil.rmtree(package / "features" / name)
    listed = package / "feature_list.py"
    left = [line for line in listed.read_text().splitlines() if line.strip() not in (f"{name},", f"{name}.FEATURE,")]
    listed.write_text("\n".join(left))
    assert f"{name}.FEATURE" not in listed.read_text()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-c", "/dev/null", "--rootdir", tmp_path]
        + ["-o", "asyncio_mode=auto", "-o", "python_files=*_test.py", "-m", "not nightly"]
        + [str(package / path) for path in TESTS],
        env={"PYTHONPATH": f"{tmp_path / 'src'}:{SOURCE.parent}", "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-1_000:]
