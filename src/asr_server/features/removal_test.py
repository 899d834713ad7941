"""Each feature can be taken away: without its folder and its line in `FEATURES`, the rest of the server works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]
FEATURES = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))
# Tests of what the features plug into; all of the core's would take minutes.
TESTS = (
    "live",
    "engine/plan_test.py",
    "engine/speech",
    "features/speech_output/options_test.py",
    "service/speech",
    "server_test.py",
    "layers_test.py",
    "service/live_session",
    "api/live",
    "api/realtime",
)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FEATURES)
def test_the_core_works_without(name, tmp_path):
    """The feature is removed from a copy of the source."""
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    package = tmp_path / "src" / "asr_server"
    shutil.rmtree(package / "features" / name)
    listed = package / "features" / "__init__.py"
    imported = rf"^(from asr_server\.features import .*?)(?:\b{name}, |(?:, )?\b{name}$)"
    left = re.sub(imported, r"\1", listed.read_text(), flags=re.M)
    listed.write_text(re.sub(rf"^ *{name}\.FEATURE,\n", "", left, flags=re.M))
    assert name not in listed.read_text()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-c", "/dev/null", "--rootdir", tmp_path]
        + ["-o", "asyncio_mode=auto", "-o", "python_files=*_test.py", "-m", "not nightly"]
        + [str(package / path) for path in TESTS],
        env={"PYTHONPATH": str(tmp_path / "src"), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-1_000:]
