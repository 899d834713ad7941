"""What can be checked of the packaging without building an image (that is `test_image.py`)."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import babel
import pytest
import yaml

from asr_server import __version__
from asr_server.cli.conftest import tls
from asr_server.features.speech_output import spoken_form
from E2Etest.cli.commands import command
from E2Etest.drive.process import running
from tools import requirements

ROOT = Path(__file__).parents[1]
IMAGES = ["gpu", "cpu", "slim"]


def _read(name):
    return (ROOT / name).read_text(encoding="utf-8")


_, *_PARTS = re.split(r"^FROM (\S+) AS (\S+)\n", _read("Dockerfile"), flags=re.MULTILINE)
# The stages of the Dockerfile by name, in order: the first line, and those that follow.
STAGES = {name: (base, lines) for base, name, lines in zip(_PARTS[::3], _PARTS[1::3], _PARTS[2::3], strict=True)}
COMPOSE = yaml.safe_load(_read("docker-compose.yml"))


def _image(name):
    """All lines of an image: those of the stage that every image begins with, and its own."""
    base, own = STAGES[name]
    return STAGES[base][1] + own


def _environment(name):
    found = re.findall(r"^ENV ((?:.*\\\n)*.*)$", _image(name), re.MULTILINE)
    return dict(re.findall(r"(\w+)=(\S+)", "\n".join(found)))


def test_the_images_are_the_last_stages_of_the_dockerfile():
    """`docker build .` makes the last, and the compose file names each. What they copy is in the tree and let through
    by .dockerignore."""
    images = {name: own for name, (base, own) in STAGES.items() if base == "server"}
    assert list(images) == ["cpu", "slim", "gpu"]
    assert {re.findall(r"^[A-Z].*", own, re.MULTILINE)[-1] for own in images.values()} == {"USER 10001"}
    assert list(STAGES)[-1] == "gpu"
    assert {service["build"]["target"] for service in COMPOSE["services"].values()} == set(IMAGES)
    allowed = {line[1:] for line in _read(".dockerignore").splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY ([^-].+) \S+$", _read("Dockerfile"), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source.removeprefix("./") in allowed, source


@pytest.mark.parametrize("command", ["hadolint Dockerfile", "actionlint -no-color .github/workflows/*.yml"])
def test_the_linters_find_nothing(command):
    """The linters read the workflows too, whose jobs run only at GitHub."""
    done = subprocess.run(
        f"{Path(sys.executable).parent}/{command}", cwd=ROOT, shell=True, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_release_publishes_the_images_and_runs_what_this_repository_has():
    """The workflow builds the targets of the Dockerfile, and each command for a version finds exactly one."""
    jobs = yaml.safe_load(_read(".github/workflows/release.yml"))["jobs"]
    assert jobs["images"]["strategy"]["matrix"]["target"] == jobs["manifests"]["strategy"]["matrix"]["target"]
    assert sorted(jobs["images"]["strategy"]["matrix"]["target"]) == sorted(IMAGES)
    script = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    (version_of,) = re.findall(r'version="\$\((.*)\)"', script)
    (hatchling,) = re.findall(r'pip install "\$\((.*)\)"', script)
    (notes,) = re.findall(r"^(awk .*) > notes.md$", script, re.MULTILINE)

    def printed(command):
        return subprocess.check_output(
            ["bash", "-c", command], cwd=ROOT, text=True, env={**os.environ, "VERSION": __version__}
        )

    assert printed(version_of).strip() == __version__
    assert printed(hatchling).split() == requirements.required(["dev"])[-1:]
    assert f"## [{__version__}]" not in printed(notes)
    assert len(printed(notes)) > 100


@pytest.mark.nightly
def test_the_health_check_finds_a_server_with_tls(tmp_path):
    """The check reads the server's settings, and exits with 0 for a live server, with 1 for another protocol."""
    secured = tls(tmp_path)
    with running(tmp_path / "log", **secured) as server:
        found = [command("healthcheck", PORT=str(server.port), **given).returncode for given in (secured, {})]
    assert found == [0, 1]


@pytest.mark.parametrize("name", IMAGES)
def test_the_images_install_by_hash_and_write_only_where_they_may(name):
    """Everything but torch from the lock file; the volumes exist and are the user's; the rest can be read-only."""
    installs = STAGES.get(f"build-{name}", STAGES[name])[1]
    beyond = {"slim": "qwen", "cpu": "speech", "gpu": "speech"}[name]
    assert re.findall(r"sed -i '/\^# section: (\w+)/,\$d' requirements.lock ", installs) == [beyond]
    assert f"\n# section: {beyond}\n" in _read("requirements.lock")
    assert " --no-deps --require-hashes -r requirements.lock\n" in installs
    text = _image(name)
    made = re.search(r"mkdir (/models) (/state) /run/asr && chown asr /models /state /run/asr", text)
    assert yaml.safe_load(re.search(r"^VOLUME (.*)$", text, re.MULTILINE)[1]) == list(made.groups())
    settings = _environment(name)
    assert (settings["HF_HOME"], settings["STATE_DIR"]) == made.groups()
    assert settings["HOST"] == "0.0.0.0"
    assert not set(settings) & {"API_KEYS", "ALLOW_ANONYMOUS"}


def test_compose_starts_with_two_commands_for_this_machine_alone():
    """8100 on loopback, so no key is asked for, unless variables say otherwise; a GPU that is missing is no CPU."""
    servers = {name: service for name, service in COMPOSE["services"].items() if name != "wyoming"}
    assert set(servers) == {"asr", "asr-cpu", "asr-slim"}
    for name, service in servers.items():
        assert service["ports"] == ["${ASR_BIND:-127.0.0.1}:${ASR_PORT:-8100}:8100"]
        assert service["image"] == f"${{ASR_IMAGE:-asr-server:{service['build']['target']}}}"
        # A `.env` that is also a server's outside may have others, and would win over the image's own.
        places = _environment(service["build"]["target"])
        places = {name: places[name] for name in ("HOST", "PORT", "HF_HOME", "STATE_DIR")}
        device = {"DEVICE": "cuda"} if name == "asr" else {}
        assert service["environment"] == {"ALLOW_ANONYMOUS": "${ALLOW_ANONYMOUS:-true}", **places, **device}
        assert [volume.split(":") for volume in service["volumes"]] == [["models", "/models"], ["state", "/state"]]
        assert set(COMPOSE["volumes"]) == {"models", "state"}
        assert service["env_file"] == [{"path": ".env", "required": False}]


PROJECT = tomllib.loads(_read("pyproject.toml"))["project"]


def _pinned(lines):
    """Packages and versions of requirements. Only the client of the hub may be one of several."""
    assert lines
    exact = [line for line in lines if not line.startswith("huggingface-hub>=")]
    pins = [re.fullmatch(r"([A-Za-z0-9_.-]+)==([^\s;]+)(?:;.*)?", line).groups() for line in exact]
    return {name.lower().replace("_", "-"): version for name, version in pins}


def _locked(section):
    """Packages and versions of a section of the lock file, every one with its hashes."""
    lock = re.split(rf"^# section: {section}\n", _read("requirements.lock"), flags=re.MULTILINE)[1]
    lock = lock.partition("\n# section: ")[0]
    locked = dict(re.findall(r"^([a-z0-9.-]+)==(\S+) (?:;.* )?\\\n(?=    --hash=sha256:)", lock, re.MULTILINE))
    assert len(locked) == len(re.findall(r"^[a-z0-9.-]+==", lock, re.MULTILINE))
    return locked


def test_the_lock_file_has_what_is_required_with_hashes():
    """Every pinned requirement but torch at its version (else: make lock), each package in one section."""
    slim, qwen, speech = map(_locked, ("slim", "qwen", "speech"))
    assert len({**slim, **qwen}) == len(slim) + len(qwen)
    assert _pinned(PROJECT["dependencies"] + requirements.required([*requirements.SLIM])).items() <= slim.items()
    required = _pinned(requirements.required([*requirements.QWEN, "gpu"]))
    assert required.items() - {**slim, **qwen}.items() == {("torch", required["torch"])}
    assert _pinned(requirements.required(["speech"])) == speech


def test_every_extra_that_is_recommended_exists():
    """In messages of the server and on pages."""
    pages = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages if ROOT / "docs" / "log" not in page.parents)
    named = set(",".join(re.findall(r"pip install '\.\[([a-z,]+)\]'", text)).split(","))
    assert {"cpu", "gpu", "demo"} <= named <= set(PROJECT["optional-dependencies"])


def test_requirements_txt_and_the_gpu_image_have_the_torch_of_the_extra():
    """The file has it from the index in use, and the package with its extras; the image in a layer that other changes
    of pyproject.toml do not rebuild."""
    torch, *rest = [line for line in _read("requirements.txt").splitlines() if not line.startswith("#")]
    assert torch in PROJECT["optional-dependencies"]["gpu"]
    assert rest == [".[demo,gpu,ja,postgres]"]
    assert re.findall(r"^ARG TORCH=(.*)$", _read("Dockerfile"), re.MULTILINE) == [torch.removeprefix("torch==")]


@pytest.mark.parametrize(
    "given", ["GPU_DRIVER=", "RUNTIME=torch", "GPU_DRIVER=/proc/driver/nvidia/version", "TORCH_INDEX=x"]
)
def test_serving_installs_torch_for_gpus_and_where_it_is_asked_for(tmp_path, given):
    """The test reads what `make` would run in a new environment on a machine whose driver is given."""
    command = ["make", "-n", "serve", f"VENV={tmp_path}", given]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs, has_index = given != "GPU_DRIVER=", given == "TORCH_INDEX=x"
    assert (" torch==" in planned) is installs
    assert ("--index-url x" in planned, "tools.driver" in planned) == (has_index, installs and not has_index)
    assert "section: speech/,$d" in planned


def test_every_requirement_is_pinned_and_installed():
    """pyproject.toml names exact versions, and this environment has them."""
    extras = requirements.required(["demo", "gpu", "ja", "postgres"])
    extras += requirements.required(["export", "evaluate", "granian", "sdk", "dev"])
    for package, pinned in _pinned(PROJECT["dependencies"] + extras).items():
        assert version(package).split("+")[0] == pinned


@pytest.mark.parametrize("folder", sorted(path.name for path in (ROOT / "extras").iterdir()))
def test_an_extra_distribution_has_the_servers_version(folder):
    """The distribution uses the server's modules, so it requires exactly this version."""
    project = tomllib.loads(_read(f"extras/{folder}/pyproject.toml"))["project"]
    assert (project["name"].removeprefix("asr-"), project["version"]) == (folder.removeprefix("asr-"), __version__)
    assert project["dependencies"][0] == f"asr-server=={__version__}"


def test_the_slim_image_keeps_what_numbers_are_spoken_with(tmp_path):
    """The locales of all languages whose numbers become words, by the command of the Dockerfile; others go."""
    (command,) = re.findall(r"&& (find babel/locale-data .*-delete)", STAGES["build-slim"][1])
    data = tmp_path / "babel" / "locale-data"
    shutil.copytree(Path(babel.__file__).parent / "locale-data", data)
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    kept = {path.stem for path in data.iterdir()}
    languages = {path.stem.partition("_")[0] for path in (Path(babel.__file__).parent / "locale-data").glob("*.dat")}
    assert {name.partition("_")[0] for name in kept} == {"root", *filter(spoken_form.knows, languages)}
    assert {"de", "de_CH", "en_GB", "pt_BR"} <= kept
