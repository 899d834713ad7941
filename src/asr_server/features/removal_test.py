"""Each feature can be taken away: without its folder and its line in `FEATURES`, the rest of the server works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asr_server import feature_list

SOURCE = Path(__file__).parents[2]
FEATURES = Path(__file__).parent
# Tests of what features plug into, of the server or of the engine; all of the core's would take minutes.
SERVER = (
    *("app_test.py", "layers_test.py", "live", "jobs/runner_test.py", "ops"),
    *("recordings/forms_test.py", "net/access_test.py"),
)
ENGINE = (
    *("app_test.py", "layers_test.py", "engine/plan_test.py", "engine/client_test.py", "engine/aligning_test.py"),
    *("engine/qwen_asr/engine_test.py", "engine/qwen_asr/model_cache_test.py"),
)
_OF_ENGINE = {"encoders", "moonshine", "remote_engine", "host", "turns"}


def _built_on(name):
    """Return the feature and those that import it, or import one that does."""
    found, more = set(), {name}
    while more:
        found |= more
        imported = re.compile(rf"asr_server\.features(\.| import )({'|'.join(found)})\b")
        files = (path for path in FEATURES.glob("*/**/*.py") if not path.name.endswith("_test.py"))
        using = {path.relative_to(FEATURES).parts[0] for path in files if imported.search(path.read_text())}
        more = using - found
    return found


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [feature.name for feature in feature_list.FEATURES])
def test_the_core_works_without(name, tmp_path):
    """The feature is removed from a copy of the source, with those that are built on it."""
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    package, removed = tmp_path / "src" / "asr_server", _built_on(name)
    listed = package / "feature_list.py"
    lines = listed.read_text().splitlines()
    for each in removed:
        shutil.rmtree(package / "features" / each)
        options = f"from asr_server.features.{each} import options as {each}"
        lines = [line for line in lines if line.strip() not in (f"{each},", f"{each}.FEATURE,", options)]
    listed.write_text("\n".join(lines))
    assert f"{name}.FEATURE" not in listed.read_text()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-c", "/dev/null", "--rootdir", tmp_path]
        + ["-o", "asyncio_mode=auto", "-o", "python_files=*_test.py", "-m", "not nightly"]
        + [str(package / path) for path in (ENGINE if name in _OF_ENGINE else SERVER)],
        env={"PYTHONPATH": f"{tmp_path / 'src'}:{SOURCE.parent}", "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-1_000:]
