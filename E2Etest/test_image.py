"""The images, built, and run by runc as docker-compose.yml says: read-only, not as root, without capabilities."""

import json
import re
import shlex
import shutil
import subprocess
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from asr_server import demo
from E2Etest.drive import recordings
from E2Etest.drive.process import START_TIMEOUT_S, Server, free_port, until
from E2Etest.drive.session import pcm_of
from E2Etest.wyoming.client import heard
from tools import image

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(3600),  # the first build downloads everything
    pytest.mark.skipif(bool(image.obstacle()), reason=image.obstacle()),
]

COMPOSE = yaml.safe_load((image.ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
# A model that needs no download, what it understands, and the most MB that the image may have.
SERVERS = {"asr-cpu": ("demo", demo.sample(), 860), "asr-slim": ("moonshine-tiny-en", demo.speech(), 640)}


class Container(Server):
    """A service of the compose file, in the network of this machine. `root`: where the image is mounted."""

    def __init__(self, service, built, root, folder, *, port, **more):
        super().__init__(port, model=more.get("MODEL_ID", ""))
        self.name, self.service, self.image = f"asr-{uuid.uuid4().hex[:8]}", service, image.described(built)
        self.root, self.folder, self.log_path = root, folder, folder / "log"
        environment = dict(line.split("=", 1) for line in self.image["Env"])
        # As Compose does without these variables.
        named = service["environment"].items()
        environment |= {name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value) for name, value in named} | more
        image.output("runc", "spec", "--bundle", str(folder))
        spec = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        spec["root"] = {"path": str(root), "readonly": service["read_only"]}
        spec["linux"]["namespaces"] = [n for n in spec["linux"]["namespaces"] if n["type"] != "network"]
        spec["mounts"] += [*self._tmpfs(), *self._volumes()]
        spec["process"] |= {
            "terminal": False,
            "args": service.get("command", self.image["Cmd"]),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": self.image["WorkingDir"],
            "user": self._user(),
            "noNewPrivileges": "no-new-privileges:true" in service["security_opt"],
        }
        if service["cap_drop"] == ["ALL"]:
            del spec["process"]["capabilities"]
        (folder / "config.json").write_text(json.dumps(spec), encoding="utf-8")
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(["runc", "run", "--bundle", folder, self.name], stdout=log, stderr=log)

    def _tmpfs(self):
        """With Docker's own options."""
        options = ["nosuid", "nodev", "noexec", "mode=1777"]
        return [
            {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": [*options, *limits.split(",")]}
            for place, _, limits in (entry.partition(":") for entry in self.service["tmpfs"])
        ]

    def _volumes(self):
        """A new volume has the owner and the mode that the image gives its folder."""
        for name, place in (volume.split(":") for volume in self.service.get("volumes", ())):
            volume, original = self.folder / name, (self.root / place[1:]).stat()
            volume.mkdir()
            volume.chmod(original.st_mode)
            shutil.chown(volume, original.st_uid, original.st_gid)
            yield {"destination": place, "type": "bind", "source": str(volume), "options": ["bind", "rw"]}

    def _user(self):
        lines = [line.split(":") for line in (self.root / "etc/passwd").read_text(encoding="utf-8").splitlines()]
        (found,) = [line for line in lines if self.image["User"] in (line[0], line[2])]
        return {"uid": int(found[2]), "gid": int(found[3])}

    def run(self, *command, **environment):
        """Run a command in the container: its exit code, and what it wrote."""
        given = [f"--env={name}={value}" for name, value in environment.items()]
        return subprocess.getstatusoutput(shlex.join(["runc", "exec", *given, self.name, *command]))

    def wait_for_log(self, words):
        """Return once the container has written this."""
        until(lambda: words in self.log(), START_TIMEOUT_S, self.log)

    def log(self):
        return self.log_path.read_text(encoding="utf-8")

    def stop(self):
        """SIGTERM, and the exit code within the time after which Compose kills."""
        if self.process.poll() is None:
            image.output("runc", "kill", self.name, "TERM")
        return self.process.wait(timeout=float(self.service.get("stop_grace_period", "10s").removesuffix("s")))

    def remove(self):
        """End it at once, if it still runs."""
        self._clients.close()
        subprocess.run(["runc", "delete", "--force", self.name], check=True)
        self.process.wait(timeout=10)


@contextmanager
def running(service, built, folder, **options):
    """The service in a container of its own; killed at the end if it still runs."""
    mounted = image.output("buildah", "from", "--pull=never", built)
    with ExitStack() as stack:
        stack.callback(image.output, "buildah", "rm", mounted)
        root = Path(image.output("buildah", "mount", mounted))
        container = Container(service, built, root, folder, **options)
        stack.callback(container.remove)
        yield container


@pytest.fixture(scope="module", params=SERVERS)
def server(request, tmp_path_factory):
    """A server of the compose file, ready; built before, or now."""
    service, (model, spoken, most_mb) = COMPOSE[request.param], SERVERS[request.param]
    built = image.build(service["build"]["target"])
    folder, port = tmp_path_factory.mktemp(request.param), free_port()
    with running(service, built, folder, port=port, PORT=str(port), MODEL_ID=model) as container:
        container.built, container.spoken, container.most_mb = built, spoken, most_mb
        container.wait_for_log("Uvicorn running")
        yield container


def test_the_image_is_small_and_nothing_of_the_build_is_left(server):
    """The image has no torch, no pip and no mount, but the bytecode of what is imported at the start."""
    assert not list(server.root.glob("opt/asr/lib/python3*/site-packages/torch"))
    assert server.image["size_mb"] <= server.most_mb
    assert not list(server.root.glob("etc/**/pip*"))
    assert [path.name for path in (server.root / "opt").iterdir()] == ["asr"]
    assert server.run("python3", "-c", "import pip")[0] == 1
    code, written = server.run("python3", "-v", "-c", "import asr_server.app")
    assert code == 0
    assert re.search(r"code object from '/opt/asr\S+\.pyc'", written)
    assert not re.search(r"code object from '/opt/asr\S+\.py'", written)


def test_it_hears_the_words(server):
    """And says in `/health` which model heard them."""
    text = server.transcribe(server.spoken.recording.read_bytes()).json()["text"]
    assert recordings.plain_words(text) == recordings.plain_words(server.spoken.text)
    health = server.health()
    assert (health["status"], health["model_id"], health["model_loaded"]) == ("ok", server.model, True)


@pytest.mark.parametrize(("language", "text"), [("en", "It is 4 o'clock."), ("de", "Es sind 3,5 Grad am 2.4.2026.")])
def test_it_speaks(server, language, text):
    """The voices and the words of numbers are in the image, and its processes may start without privileges."""
    asked = {"input": text, "language": language, "response_format": "pcm"}
    answer = server.client.post("/v1/audio/speech", json=asked)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) > 24_000  # half a second


def test_it_writes_to_its_volumes_and_uploads_only(server):
    """The rest is read-only, the user's own home too."""
    for place in ("/state", "/models", "/tmp"):
        assert server.run("touch", f"{place}/file") == (0, "")
    for place in ("/", "/app", "/home/asr", "/opt/asr", "/usr"):
        code, written = server.run("touch", f"{place}/file")
        assert code != 0
        assert "Read-only file system" in written


def test_it_runs_without_privileges(server):
    """Nobody special, no capability, no way to gain one: the server itself."""
    status = dict(line.split(":\t", 1) for line in server.run("cat", "/proc/1/status")[1].splitlines())
    assert status["Uid"].split() == ["10001"] * 4
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_the_health_check_of_the_image(server):
    """0 while the server is live, 1 where nobody is."""
    kind, *command = server.image["Healthcheck"]["Test"]
    assert kind == "CMD"
    assert server.run(*command)[0] == 0
    assert server.run(*command, PORT="9")[0] == 1


async def test_the_bridge_runs_in_the_image(server, tmp_path):
    """As the compose file has it, on a port of its own: Home Assistant gets a transcript. It ends on SIGTERM."""
    bridge, port = dict(COMPOSE["wyoming"]), free_port()
    address = bridge["command"][-1]
    assert address.startswith("http://")
    bridge["command"] = [*bridge["command"][:-1], server.base, "--port", str(port)]
    with running(bridge, server.built, tmp_path, port=port) as container:
        container.wait_for_log("tcp://")
        found = await heard(port, pcm_of(server.spoken.recording).tobytes())
        # Of live speech the model gets one sentence at a time.
        assert recordings.plain_words(found.text)[-5:] == recordings.plain_words(server.spoken.text)[-5:]
        assert container.stop() == 0


def test_sigterm_ends_it_in_time(server):
    """It is the first process of its container. Exit code 0 within the time that the compose file gives."""
    assert server.stop() == 0
    log = server.log()
    assert "Finished server process [1]" in log
    assert "Traceback" not in log
    assert "telemetry" not in log
