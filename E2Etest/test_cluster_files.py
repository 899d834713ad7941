"""The files of docs/run/cluster/, as far as they can be checked without a cluster."""

import tomllib
from pathlib import Path

import pytest
import yaml

from asr_server.core.settings import Settings
from asr_server_ray.options import ClusterOptions

ROOT = Path(__file__).parents[1]
# Of Ray and of the hub's client.
_OTHERS = {
    "HF_HOME",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP",
    "RAY_worker_niceness",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S",
}


def _read(name):
    return yaml.safe_load((ROOT / "docs" / "run" / "cluster" / name).read_text(encoding="utf-8"))


def _service():
    return _read("rayservice.yaml")["spec"]


def _serve_configs():
    return {"serve.yaml": _read("serve.yaml"), "rayservice.yaml": yaml.safe_load(_service()["serveConfigV2"])}


def _pods():
    cluster = _service()["rayClusterConfig"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_the_application_and_its_arguments_exist(name):
    """Ray imports it by this path, and hands it these arguments."""
    (application,) = _serve_configs()[name]["applications"]
    module, _, function = application["import_path"].partition(":")
    path = ROOT / "extras" / "asr-server-ray" / f"{module.replace('.', '/')}.py"
    assert f"\ndef {function}(" in path.read_text(encoding="utf-8")
    assert ClusterOptions(**application["args"]).replicas >= 1


def test_the_version_of_ray_is_that_of_the_requirements():
    """KubeRay compares it with the image."""
    pin = f"ray[serve]=={_service()['rayClusterConfig']['rayVersion']}"
    project = tomllib.loads((ROOT / "extras" / "asr-server-ray" / "pyproject.toml").read_text(encoding="utf-8"))
    assert pin in project["project"]["dependencies"]


def test_the_settings_exist_and_every_mount_has_its_volume():
    """On the head and on the workers."""
    for pod in _pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            names = {variable["name"] for variable in container["env"]} - _OTHERS
            assert {name.lower() for name in names} <= set(Settings.model_fields)
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
