"""What can be checked of the packaging without a container engine."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCKERFILES = ["Dockerfile", "Dockerfile.cpu"]


def _read(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_images_copy_what_exists_and_is_not_ignored(name):
    """Every COPY source is in the tree and let through by .dockerignore."""
    allowed = {line[1:] for line in _read(".dockerignore").splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (.+) \S+$", _read(name), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source.removeprefix("./") in allowed, source


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_images_run_as_nobody_special_and_start_what_is_installed(name):
    """Non-root before the command; the command is the console script, and takes the words it is given."""
    text = _read(name)
    assert text.index("USER asr") < text.index("CMD [")
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)[1]
    script, *arguments = yaml.safe_load(command)
    installed = Path(sys.executable).parent / script
    assert installed.exists()
    done = subprocess.run([installed, *arguments, "--help"], capture_output=True, text=True, check=True)
    assert "--port" in done.stdout


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_health_check_runs_as_written(name, server):
    """The HEALTHCHECK command succeeds against a live server and fails against none."""
    command = yaml.safe_load(re.search(r"HEALTHCHECK .*?CMD (\[.*?\])$", _read(name), re.DOTALL | re.MULTILINE)[1])
    command[0] = sys.executable
    for port, code in ((server.port, 0), (9, 1)):
        run = [part.replace("8000", str(port)) for part in command]
        assert subprocess.run(run, capture_output=True, check=False).returncode == code


def test_compose_maps_the_port_and_keeps_the_models():
    """8100 outside, 8000 inside, a named volume for the weights, .env optional, the Dockerfiles that exist."""
    compose = yaml.safe_load(_read("docker-compose.yml"))
    for service in compose["services"].values():
        assert service["ports"] == ["8100:8000"]
        assert (ROOT / service["build"]["dockerfile"]).exists()
        (volume,) = service["volumes"]
        assert volume.split(":")[0] in compose["volumes"]
        assert service["env_file"] == [{"path": ".env", "required": False}]


def test_every_requirement_is_pinned_and_installed():
    """requirements files name exact versions, and this environment has them."""
    from importlib.metadata import version

    for name in ("requirements.txt", "requirements-dev.txt"):
        lines = [line for line in _read(name).splitlines() if line and not line.startswith(("#", "-r"))]
        assert lines
        for line in lines:
            package, pinned = re.fullmatch(r"([A-Za-z0-9_.-]+)==(\S+)", line).groups()
            assert version(package).split("+")[0] == pinned


def test_the_installed_set_is_consistent():
    """No package misses another or sits beside a version that it excludes."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_ci_runs_the_readmes_test_command():
    """`.ci/run` and the README name the same command."""
    assert "make test" in shlex.split(_read(".ci/run").splitlines()[-1]) or _read(".ci/run").rstrip().endswith(
        "make test"
    )
    assert "make test" in _read("README.md")


def test_the_package_carries_the_demonstration_model():
    """A wheel would hold the checkpoint, the recording and the card: the patterns match the files."""
    import tomllib

    patterns = tomllib.loads(_read("pyproject.toml"))["tool"]["setuptools"]["package-data"]["asr_server.demo"]
    demo = ROOT / "src/asr_server/demo"
    for pattern in patterns:
        assert list(demo.glob(pattern)), pattern
