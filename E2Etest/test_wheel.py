"""The wheel, built from what the images copy: its files and its metadata. `test_installation.py` runs it."""

import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from asr_server import __version__

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]
INFO = f"asr_server-{__version__}.dist-info"
# What is in the package's directory for its tests only.
FOR_TESTS = ("*_test.py", "conftest.py", "*_test.mjs", "package.json", "words.flac", "*.mka")


def _run(*command, **options):
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of what the images copy."""
    sources = tmp_path_factory.mktemp("sources")
    copied = re.findall(r"^COPY ([^-].+) \S+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    for name in set(" ".join(copied).split()):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, sources)
    return sources


def _built(folder, out):
    _run("pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, folder)
    return next(out.iterdir())


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
    """Path of the wheel."""
    return _built(sources, tmp_path_factory.mktemp("wheel"))


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


@pytest.mark.parametrize(("name", "commands"), [("asr-server-ray", []), ("asr-server-telephony", ["telephony"])])
def test_a_wheel_of_the_extras_holds_its_commands_and_no_tests(name, commands, sources, tmp_path):
    """Each entry point names a module of the wheel; data files are in it."""
    names = _names(wheel := _built(sources / "extras" / name, tmp_path))
    assert not {file for file in names if any(fnmatch(Path(file).name, pattern) for pattern in FOR_TESTS)}
    assert {Path(file).parts[0] for file in names if ".dist-info/" not in file} == {name.replace("-", "_")}
    with zipfile.ZipFile(wheel) as archive:
        entry_points = "".join(archive.read(file).decode() for file in names if file.endswith("/entry_points.txt"))
    modules = dict(line.split(" = ") for line in entry_points.splitlines() if " = " in line)
    assert ("[asr_server.commands]" in entry_points, sorted(modules)) == (bool(commands), commands)
    assert {f"{module.replace('.', '/')}.py" for module in modules.values()} <= set(names)
