"""Checks of deploy/ and docs/run/cluster/ that need no containers and no cluster."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from asr_server.core.settings import Settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"


def _read(name):
    return yaml.safe_load((ROOT / "docs" / "run" / "cluster" / name).read_text(encoding="utf-8"))


def _service():
    return _read("rayservice.yaml")["spec"]


@pytest.mark.parametrize("name", ["serve.yaml", "local.yaml", "rayservice.yaml"])
def test_the_application_and_its_deployment_exist(name):
    """Ray imports it by this path, and sets options of the deployment with this name."""
    config = yaml.safe_load(_service()["serveConfigV2"]) if name == "rayservice.yaml" else _read(name)
    (application,) = config["applications"]
    module, _, variable = application["import_path"].partition(":")
    source = (ROOT / "extras" / "asr-server-ray" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert f"\n{variable}: " in source
    (deployment,) = application["deployments"]
    assert f'    name="{deployment["name"]}",\n' in source


def test_the_version_of_ray_is_that_of_the_requirements():
    """KubeRay compares it with the image."""
    pin = f"ray[serve]=={_service()['rayClusterConfig']['rayVersion']}"
    project = tomllib.loads((ROOT / "extras" / "asr-server-ray" / "pyproject.toml").read_text(encoding="utf-8"))
    assert pin in project["project"]["dependencies"]


def test_the_settings_exist_and_every_mount_has_its_volume():
    """On the head and on the workers."""
    cluster = _service()["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            names = {variable["name"] for variable in container["env"]} - {"HF_HOME"}
            assert {name.lower() for name in names} <= set(Settings.model_fields)
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_servers_that_share_an_engine_have_its_socket_and_the_names_that_the_proxy_knows():
    """The compose file and the units agree with the proxy. A live session's id begins with the server's name."""
    proxy = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    names = re.findall(r'^    server (\w+) "', proxy, re.MULTILINE)
    services = yaml.safe_load((DEPLOY / "compose.scale.yaml").read_text(encoding="utf-8"))["services"]
    socket, common = services["engine"]["command"][-1], services["engine"]["environment"]
    engine, server = _unit("asr-engine.service"), _unit("asr-server@.service")
    assert server["ENGINE_PROCESS"].removeprefix("unix:") in engine["ExecStart"]
    assert set(services) == {"engine", "proxy", *names}
    for number, name in enumerate(names, 1):
        own = services[name]["environment"]
        assert (own["SERVER_NAME"], own["ENGINE_PROCESS"]) == (name, f"unix:{socket}")
        assert {key: own[key] for key in common if key not in ("PRELOAD", "IDLE_TIMEOUT")}.items() <= common.items()
        assert f"engine:{Path(socket).parent}" in services[name]["volumes"]
        assert services["proxy"]["environment"][name.upper()] == f"{name}:{own['PORT']}"
        assert server["SERVER_NAME"].replace("%i", str(number)) == name
        assert f"presetenv {name.upper()} 127.0.0.1:{server['PORT'].replace('%i', str(number))}\n" in proxy
    known = {name.upper() for name in Settings.model_fields} | {"HF_HOME", "FORWARDED_ALLOW_IPS", "ExecStart"}
    assert {*common, *services["asr1"]["environment"], *engine, *server} <= known


def _unit(name):
    """Return the settings and the command of a unit."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    lines = re.findall(r"^(?:Environment=|(?=ExecStart))(.*)$", text, re.MULTILINE)
    return dict(pair.split("=", 1) for line in lines for pair in re.split(r" (?=\w+=)", line))
