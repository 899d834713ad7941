"""Wheels: their files, what pip, uv and pipx install into empty environments, that it runs, and for which machines."""

import json
import os
import re
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from asr_server import demo
from E2Etest.drive.process import free_port
from E2Etest.hub import hub
from tools import requirements, sizes

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / ".venv" / "tools" / "bin"
# Files of the package's directory that only the tests use.
FOR_TESTS = ("*_test.py", "conftest.py", "*_test.mjs", "package.json", "words.flac", "*.mka")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Path of the wheel."""
    return sizes.wheel(tmp_path_factory.mktemp("wheel"))


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
    assert {name for name in _names(wheel) if not name.startswith("asr_server-")} == expected


@pytest.mark.parametrize(("name", "commands"), [("asr-server-ray", []), ("asr-server-telephony", ["telephony"])])
def test_a_wheel_of_the_extras_holds_its_commands_and_no_tests(name, commands, tmp_path):
    """Each entry point names a module of the wheel; data files are in it."""
    names = _names(wheel := sizes.wheel(tmp_path, ROOT / "extras" / name))
    assert not {file for file in names if any(fnmatch(Path(file).name, pattern) for pattern in FOR_TESTS)}
    assert {Path(file).parts[0] for file in names if ".dist-info/" not in file} == {name.replace("-", "_")}
    with zipfile.ZipFile(wheel) as archive:
        entry_points = "".join(archive.read(file).decode() for file in names if file.endswith("/entry_points.txt"))
    modules = dict(line.split(" = ") for line in entry_points.splitlines() if " = " in line)
    assert ("[asr_server.commands]" in entry_points, sorted(modules)) == (bool(commands), commands)
    assert {f"{module.replace('.', '/')}.py" for module in modules.values()} <= set(names)


def _installed(installer, wheel, extras, folder):
    """Install into an empty environment below `folder`, and return its commands and what it has beside pip."""
    wanted, environment = f"{wheel}[{','.join(extras)}]", {**os.environ, "PIPX_HOME": str(folder.parent / "pipx")}
    if installer == "pipx":
        folder = folder.parent / "pipx" / "venvs" / "asr-server"
        command = [TOOLS / "pipx", "install", "--quiet"]
        environment |= {"PIPX_BIN_DIR": str(folder.parent / "bin"), "PIPX_DEFAULT_PYTHON": sys.executable}
    else:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip, uv = [folder / "bin" / "pip", "install", "--quiet"], [TOOLS / "uv", "pip", "install", "--python", folder]
        command = pip if installer == "pip" else uv
    subprocess.run([*command, wanted], env=environment, check=True)
    command = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "list", "--format=json"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    names = {package["name"].lower().replace("_", "-").replace(".", "-") for package in listed}
    return folder / "bin", names - {"pip", "setuptools", "asr-server"}


def _locked(*sections):
    """The names of the lock file's packages for this machine."""
    parts = re.split(r"^# section: (\w+)\n", requirements.LOCK.read_text("utf-8"), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = re.findall(r"^([a-z0-9.-]+==\S+(?: ;.*?)?) \\$", "".join(found[name] for name in sections), re.MULTILINE)
    here = (one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate())
    return {one.name.replace(".", "-") for one in here}


def _run(commands, *arguments, **settings):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MODEL"))}
    command = [commands / "asr-server", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, **settings}, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _check(heard, sample):
    assert re.findall(r"\w+", heard.lower()) == re.findall(r"\w+", sample.text.lower())


@pytest.mark.parametrize("installer", ["pip", "uv", "pipx"])
def test_an_empty_environment_gets_what_the_lock_file_has_and_runs_the_quick_start(installer, wheel, tmp_path):
    """The demonstration and the commands after it run without naming a model."""
    commands, names = _installed(installer, wheel, requirements.SLIM, tmp_path / "venv")
    assert names == _locked("slim")
    port = free_port()
    settings = {"STATE_DIR": str(tmp_path / "state")}
    sample = demo.speech()
    _run(commands, "demo", "--once", "--port", port, **settings)
    assert "moonshine-tiny-en" in _run(commands, "doctor", "--all", **settings)
    _check(_run(commands, "transcribe", "--local", sample.recording, **settings), sample)
    server = subprocess.Popen([commands / "asr-server", "serve", "--port", str(port)], env={**os.environ, **settings})
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=9)) as client, sample.recording.open("rb") as file:
            form = {"files": {"file": file}, "data": {"model": "whisper-1"}}
            answer = client.post(f"http://127.0.0.1:{port}/v1/audio/transcriptions", timeout=120, **form)
        _check(answer.json()["text"], sample)
    finally:
        server.terminate()
        server.wait(60)


def test_qwen3_asr_on_a_cpu_is_what_the_lock_file_has_and_runs(wheel, tmp_path):
    """The bundled checkpoint, which needs no download, and one that the newest and the oldest client of the hub fetch.
    The lock file has the newest; the oldest is the one that Qwen3-TTS needs."""
    commands, names = _installed("pip", wheel, [*requirements.SLIM, *requirements.QWEN], tmp_path / "venv")
    assert names == _locked("slim", "qwen")
    sample = demo.sample()
    _check(_run(commands, "transcribe", "--local", "--model", "demo", sample.recording), sample)
    oldest = next(one for one in requirements.required(["speech"]) if one.startswith("huggingface-hub"))
    with hub() as url:
        for n, update in enumerate(([], [commands / "pip", "install", "--quiet", oldest])):
            subprocess.run(update or ["true"], check=True)
            settings = {"HF_ENDPOINT": url, "HF_HUB_CACHE": str(tmp_path / str(n)), "HF_HUB_OFFLINE": "0"}
            _run(commands, "models", "download", "o/model", **settings)
            _check(_run(commands, "transcribe", "--local", "--model", "o/model", sample.recording, **settings), sample)


@pytest.mark.parametrize("extras", sizes.LIMITS)
def test_an_installation_is_no_larger_than_its_limit(extras, wheel, tmp_path):
    """In packages, and in megabytes that are downloaded."""
    packages, megabytes, _ = sizes.measured(wheel, extras, tmp_path)
    most_packages, most_megabytes = sizes.LIMITS[extras]
    assert packages <= most_packages
    assert megabytes <= most_megabytes


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.14"])
def test_every_locked_package_has_a_wheel(python, machine, tmp_path):
    """For the machines that are named in the docs, glibc 2.39, and the oldest and the newest Python."""
    wanted = tmp_path / "wanted.txt"
    text = requirements.LOCK.read_text("utf-8").partition("\n# section: speech\n")[0]
    assert "==" in text
    wanted.write_text(text, encoding="utf-8")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(39, 4, -1)] + [f"manylinux2014_{machine}"]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [f"--python-version={python}", *(f"--platform={one}" for one in platforms)]
    subprocess.run([*command, "--target", tmp_path / "nowhere", "-r", wanted], check=True)
