"""What can be checked of the packaging without a container engine."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from asr_server.cli.conftest import tls
from E2Etest.process import running

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
    assert f"--uid {re.search(r'^USER ([1-9][0-9]*)$', text, re.MULTILINE)[1]} asr" in text
    assert text.index("\nUSER ") < text.index("\nCMD [")
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)[1]
    script, *arguments = yaml.safe_load(command)
    installed = Path(sys.executable).parent / script
    assert installed.exists()
    done = subprocess.run([installed, *arguments, "--help"], capture_output=True, text=True, check=True)
    assert "--port" in done.stdout


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name):
    """Neither a warning nor a note."""
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), ROOT / name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_health_check_is_the_command_for_it(name):
    """Without a shell, and what it runs is below."""
    command = yaml.safe_load(re.search(r"^HEALTHCHECK .*? CMD (\[.*?\])$", _read(name), re.MULTILINE)[1])
    assert command == ["asr-server", "healthcheck"]


@pytest.mark.nightly
def test_the_health_check_finds_a_server_with_and_without_tls(server, tmp_path):
    """By the settings of the server: 0 when it is live, 1 when nobody is there or the protocol is another."""

    def health(port, **settings):
        environment = {**os.environ, "HOST": "0.0.0.0", "ALLOW_ANONYMOUS": "true", "PORT": str(port), **settings}
        command = [sys.executable, "-m", "asr_server", "healthcheck"]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=False).returncode

    secured = tls(tmp_path)
    assert health(server.port) == 0
    assert health(9) == 1
    assert health(server.port, **secured) == 1
    with running(tmp_path / "log", **secured) as secure:
        assert health(secure.port, **secured) == 0
        assert health(secure.port) == 1


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_images_install_by_hash_and_write_only_where_they_may(name):
    """Everything but torch from the lock file; the volumes exist and are the user's; the rest can be read-only."""
    text = _read(name)
    assert "pip install --no-deps --require-hashes -r requirements.lock" in text
    made = re.search(r"mkdir (/models) (/state) && chown asr /models /state", text)
    assert yaml.safe_load(re.search(r"^VOLUME (.*)$", text, re.MULTILINE)[1]) == list(made.groups())
    settings = dict(re.findall(r"(\w+)=(\S+)", re.search(r"^ENV (HF_HOME.*)$", text, re.MULTILINE)[1]))
    assert (settings["HF_HOME"], settings["STATE_DIR"]) == made.groups()
    assert settings["NUMBA_CACHE_DIR"].startswith("/tmp/")
    assert settings["HOST"] == "0.0.0.0"
    assert not set(settings) & {"API_KEYS", "ALLOW_ANONYMOUS"}


def test_compose_starts_with_two_commands_for_this_machine_alone():
    """8100 on loopback, so no key is asked for; volumes that exist, .env optional, the Dockerfiles that exist."""
    compose = yaml.safe_load(_read("docker-compose.yml"))
    assert set(compose["services"]) == {"asr", "asr-cpu"}
    for service in compose["services"].values():
        assert service["ports"] == ["127.0.0.1:8100:8000"]
        # A `.env` that is also a server's outside may have others, and would win over the image's own.
        image = re.search(r"^ENV (HF_HOME.*)$", _read(service["build"]["dockerfile"]), re.MULTILINE)[1]
        places = dict(re.findall(r"(\w+)=(\S+)", image))
        places = {name: places[name] for name in ("HOST", "PORT", "HF_HOME", "STATE_DIR")}
        assert service["environment"] == {"ALLOW_ANONYMOUS": "true", **places}
        assert (ROOT / service["build"]["dockerfile"]).exists()
        assert [volume.split(":") for volume in service["volumes"]] == [["models", "/models"], ["state", "/state"]]
        assert set(compose["volumes"]) == {"models", "state"}
        assert service["env_file"] == [{"path": ".env", "required": False}]


def test_compose_gives_the_container_nothing_it_does_not_need():
    """A read-only root with a place for uploads, no capability, no way to gain one."""
    for service in yaml.safe_load(_read("docker-compose.yml"))["services"].values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "cap_add", "network_mode", "pid", "devices"} & set(service)


def test_the_lock_file_has_what_is_required_with_hashes():
    """Every pinned requirement but torch at its version, every package with its hashes (else: make lock)."""
    lock = _read("requirements.lock")
    locked = dict(re.findall(r"^([a-z0-9.-]+)==(\S+) \\\n(?=    --hash=sha256:)", lock, re.MULTILINE))
    assert len(locked) == len(re.findall(r"==", lock))
    for line in _read("requirements.txt").splitlines():
        if line and not line.startswith(("#", "torch==")):
            name, version = line.split(";")[0].split("==")
            assert locked[name.lower().replace("_", "-")] == version
    assert "torch" not in locked


def test_every_requirement_is_pinned_and_installed():
    """requirements files name exact versions, and this environment has them."""
    from importlib.metadata import version

    for name in ("requirements.txt", "requirements-dev.txt"):
        lines = [line for line in _read(name).splitlines() if line and not line.startswith(("#", "-r"))]
        assert lines
        for line in lines:
            package, pinned = re.fullmatch(r"([A-Za-z0-9_.-]+)==([^\s;]+)(;.*)?", line).groups()[:2]
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
