"""The wheel, built from what the images copy: its files, its metadata, and that it runs from an empty directory."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from fnmatch import fnmatch
from pathlib import Path

import pytest

from asr_server import __version__

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]
INFO = f"asr_server-{__version__}.dist-info"
# What is in the package's directory for its tests only.
FOR_TESTS = ("*_test.py", "conftest.py", "*_test.mjs", "package.json", "words.flac")


def _run(*command, **options):
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Path of the wheel. Built from a copy, because a build leaves files behind that the next build would take."""
    sources, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    for name in " ".join(copied).split():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, sources)
    _run("pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, sources)
    return next(out.iterdir())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A directory with the wheel and nothing else, and an environment in which Python takes it from there."""
    directory = tmp_path_factory.mktemp("installed")
    _run("pip", "install", "--no-deps", "--no-index", "--target", directory, wheel)
    return directory, {**os.environ, "PYTHONPATH": str(directory)}


def _names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_package_with_its_data_and_without_tests(wheel):
    """Every file below src/asr_server but those for tests: modules, checkpoints, page. No other package."""
    package = ROOT / "src" / "asr_server"
    files = {path for path in package.rglob("*") if path.is_file() and path.parent.name != "__pycache__"}
    needed = {path for path in files if not any(fnmatch(path.name, pattern) for pattern in FOR_TESTS)}
    assert {"model.safetensors", "hello.wav", "index.html", "app.py"} <= {path.name for path in needed}
    expected = {str(path.relative_to(package.parent)) for path in needed}
    assert {name for name in _names(wheel) if not name.startswith(f"{INFO}/")} == expected


def test_the_metadata_name_version_licence_requirements_and_command(wheel):
    """The version is that of the code, the requirements are those of requirements.txt, and the licence is inside."""
    assert f"{INFO}/licenses/LICENSE" in _names(wheel)
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{INFO}/METADATA").decode())
        commands = archive.read(f"{INFO}/entry_points.txt").decode()
    assert (metadata["Name"], metadata["Version"]) == ("asr-server", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    files = [ROOT / "requirements-slim.txt", ROOT / "requirements-qwen.txt"]
    required = [line for file in files for line in file.read_text("utf-8").splitlines() if line[:1].isalnum()]
    assert metadata.get_all("Requires-Dist") == required
    assert commands.split() == ["[console_scripts]", "asr-server", "=", "asr_server.cli.main:main"]


def test_the_command_runs_from_the_wheel_alone(installed, tmp_path):
    """The module and the console script print their help, and the code is that of the wheel."""
    directory, environment = installed
    where = {"env": environment, "cwd": tmp_path}
    assert "serve" in _run("asr_server", "--help", **where)
    done = subprocess.run(
        [directory / "bin" / "asr-server", "--help"], capture_output=True, text=True, check=True, **where
    )
    assert "serve" in done.stdout
    code = "import asr_server; print(asr_server.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **where)
    assert Path(done.stdout.strip()) == directory / "asr_server" / "__init__.py"
