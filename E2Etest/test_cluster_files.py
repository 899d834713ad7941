"""The files of docs/run/cluster/, as far as they can be checked without a cluster."""

import tomllib
from pathlib import Path

import pytest
import yaml

from asr_server.core.settings import Settings

ROOT = Path(__file__).parents[1]


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
