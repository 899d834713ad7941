"""The Helm chart: what the real Helm renders is valid and fits the server, and what does not fit is refused."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from asr_server import __version__
from asr_server.core.settings import Settings
from asr_server.ops import health
from tools import chart_schema

ROOT = Path(__file__).parents[1]
CHART = chart_schema.CHART
SCHEMA = json.loads(chart_schema.SCHEMA.read_text("utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]["asr"]
TOOLS = Path(sys.prefix) / "tools" / "bin"

BLOCKS = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "run" / "scaling.md").read_text("utf-8"), re.DOTALL)
OF_THE_PAGE = [yaml.safe_load(block) for block in BLOCKS]
ADAPTER = yaml.safe_load((CHART / "files" / "adapter-rules.yml").read_text("utf-8"))["rules"]["external"]
KEYS = {"secretSettings": {"API_KEYS": {"secret": "asr", "key": "keys"}}}
MONITORED = {
    "serviceMonitor": {"enabled": True, "labels": {"a": "b"}, "keySecret": "metrics", "keySecretKey": "key"},
    "prometheusRule": {"enabled": True, "labels": {"a": "b"}},
    "dashboard": {"enabled": True, "labels": {"a": "b"}},
}
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# Every value differs from the chart's own.
EVERYTHING = {
    **KEYS,
    **MONITORED,
    "image": {"repository": "a.example:5000/b", "digest": f"sha256:{'0' * 64}", "pullSecrets": ["pull"]},
    "gpu": {"resource": "nvidia.com/mig-1g.10gb", "runtimeClassName": "nvidia"},
    "settings": {"MAX_UPLOAD_MB": 20_000_000, "IDLE_TIMEOUT": 0.5, "NUMA_NODE": 0, "KEY_RATE": 1, "PRELOAD": None},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    "extraVolumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
    "extraVolumeMounts": [{"name": "certificates", "mountPath": "/certificates", "readOnly": True}],
    "initContainers": [{"name": "wait", "image": "debian:12.11", "command": ["true"], "securityContext": CONFINED}],
    "trustedProxies": "10.0.0.0/8",
    "models": {"existingClaim": "models"},
    "voices": {"createClaim": True, "accessMode": "ReadWriteOncePod", "storageClassName": "fast", "size": "2Gi"},
    "probes": {"startupSeconds": 605},
    "termination": {"drainDelaySeconds": 30, "gracePeriodSeconds": 75},
    "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1},
    "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"c": "d"}, "sessionAffinity": "ClientIP"},
    "ingress": {"enabled": True, "className": "x", "annotations": {"e": "f"}, "hosts": ["a.example"], "tlsSecret": "t"},
    "autoscaling": {"kind": "hpa", "streamsInUse": 0.6, "waitingSeconds": 2_000_000, "seriesLabels": {"job": "asr"}},
    "disruptionBudget": {"maxUnavailable": "50%"},
    "nodeSelector": {"g": "h"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "high",
    "serviceAccount": {"create": True, "name": "asr", "annotations": {"m": "n"}},
    "podAnnotations": {"i": "j"},
    "podLabels": {"k": "l"},
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}], "egress": [{"ports": [{"port": 443}]}]},
    "fullnameOverride": "speech",
}
KEDA = {**KEYS, **MONITORED, "autoscaling": {"kind": "keda", "prometheusAddress": "http://prometheus:9090"}}
BARE = {
    "settings": {"ALLOW_ANONYMOUS": True},
    "gpu": {"enabled": False},
    "resources": {"limits": None},
    "replicas": 1,
    "models": {"createClaim": True},
    "state": {"createClaim": True},
    "serviceAccount": {"create": True},
    "termination": {"drainDelaySeconds": 0, "gracePeriodSeconds": 45},
    "disruptionBudget": {"enabled": False},
    "topologySpread": [],
}
SETS = {"least": KEYS, "everything": EVERYTHING, "keda": KEDA, "bare": BARE}
SETS |= {f"page {number}": {**KEYS, **values} for number, values in enumerate(OF_THE_PAGE)}

SCALED = {"replicas": 1, "state": {"createClaim": True}, "autoscaling": {"kind": "hpa"}}
REFUSED = [
    ({}, "secretSettings.API_KEYS names no Secret"),
    ({"settings": {"PRELAOD": True}}, "Additional property PRELAOD is not allowed"),
    ({"settings": {"MAX_JOBS": 0}}, "settings.MAX_JOBS: Must be greater than or equal to 1"),
    ({"settings": {"API_KEYS": "sk-1"}}, "Additional property API_KEYS is not allowed"),
    ({"settings": {"PORT": 8100}}, "Additional property PORT is not allowed"),
    ({"image": {"tag": "latest"}}, "image.tag: Must not validate the schema"),
    ({**KEYS, "termination": {"drainDelaySeconds": 31}}, "gracePeriodSeconds must be at least"),
    ({**KEYS, "state": {"existingClaim": "a"}}, "the directory belongs to one server"),
    ({**KEYS, **SCALED}, "the directory belongs to one server"),
    ({**KEYS, "autoscaling": {"minReplicas": 11}}, "is more than autoscaling.maxReplicas"),
    ({**KEYS, "autoscaling": {"kind": "keda"}}, "needs autoscaling.prometheusAddress"),
    ({**KEYS, "serviceMonitor": {"enabled": True}}, "/metrics needs one of the API_KEYS"),
    ({**KEYS, "ingress": {"enabled": True}}, "ingress.hosts is empty"),
    ({**KEYS, "rollingUpdate": {"maxSurge": 0}}, "cannot both be 0"),
]


def _run(*command, given):
    return subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)


def _helm(values):
    return _run(TOOLS / "helm", "template", "asr", CHART, "--namespace", "speech", "--values", "-", given=values)


@functools.cache
def _rendered(name):
    """The objects of one of the sets of values."""
    done = _helm(SETS[name])
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@pytest.fixture(params=SETS)
def objects(request):
    """The objects of one set of values by kind, and by kind and name if the name is not the release's."""
    found = _rendered(request.param)
    (name,) = (each["metadata"]["name"] for each in found if each["kind"] == "Deployment")
    by_kind = {}
    for each in found:
        own = each["metadata"]["name"] == name
        by_kind[each["kind"] if own else f"{each['kind']} {each['metadata']['name']}"] = each
    assert len(by_kind) == len(found)
    return by_kind


def _pod(objects):
    return objects["Deployment"]["spec"]["template"]


def _container(objects):
    (container,) = _pod(objects)["spec"]["containers"]
    return container


def test_the_schema_knows_the_settings_of_the_server_and_every_value():
    """Names, types and bounds, and which are secret, are those of the code (else: make docs)."""
    assert chart_schema.SCHEMA.read_text("utf-8") == chart_schema.written(chart_schema.with_settings(SCHEMA))
    sections = {name: part["properties"] for name, part in SCHEMA["properties"].items() if "properties" in part}
    assert set(VALUES) == set(SCHEMA["properties"]) - {"global"}
    for name in sections.keys() - {"settings", "resources"}:
        assert set(VALUES[name]) == set(sections[name]), name


def test_the_chart_has_the_version_of_the_server():
    """Its default image is that of the same release."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_kubernetes_would_accept_every_object():
    """By the schemas of the oldest version that the chart allows and of the newest, and of KEDA and the operator."""
    oldest = re.search(r'kubeVersion: ">=([0-9]+\.[0-9]+)\.0', (CHART / "Chart.yaml").read_text("utf-8"))[1]
    found = [each for name in SETS for each in _rendered(name)]
    kinds = {"ScaledObject", "ServiceMonitor", "PrometheusRule", "PersistentVolumeClaim", "ServiceAccount", "Ingress"}
    assert kinds | {"HorizontalPodAutoscaler"} <= {each["kind"] for each in found}
    different = [json.loads(text) for text in sorted({json.dumps(each, sort_keys=True) for each in found})]
    request = {"objects": different, "versions": [oldest, "1.37"]}
    done = _run(TOOLS / "python", Path(__file__).with_name("kubernetes_objects.py"), given=request)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.nightly
def test_the_server_accepts_the_settings(objects):
    """The ConfigMap has settings of the server only, in texts that the server reads as what was set."""
    data = dict(objects["ConfigMap"]["data"])
    assert data.pop("HF_HOME") == "/models"
    assert all(isinstance(value, str) for value in data.values())
    names = {name.lower() for name in data}
    assert names <= set(Settings.model_fields)
    secret = {each["name"]: "k" * 32 for each in _container(objects).get("env", []) if each["name"] == "API_KEYS"}
    read = Settings(_env_file=None, **{name.lower(): value for name, value in (data | secret).items()})
    assert (read.host, read.port, str(read.state_dir)) == ("0.0.0.0", 8100, "/state")
    gpu = [name for name in _container(objects)["resources"].get("limits", {}) if name.startswith("nvidia.com/")]
    assert (read.device, len(gpu)) in (("cuda", 1), ("cpu", 0))


@pytest.mark.nightly
def test_a_large_number_stays_one():
    """Templates would write it with an exponent, and leave out what is null."""
    (data, _) = (each["data"] for each in _rendered("everything") if each["kind"] == "ConfigMap")
    assert (data["MAX_UPLOAD_MB"], data["IDLE_TIMEOUT"], data["NUMA_NODE"]) == ("20000000", "0.5", "0")
    assert "PRELOAD" not in data


@pytest.mark.nightly
def test_the_probes_ask_routes_of_the_server(objects):
    """On the port where it listens; a start may take as long as the values say, and an end as long as it needs."""
    container = _container(objects)
    routes = {route.path for route in health.router.routes}
    probes = [container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
    assert [probe["httpGet"]["path"] for probe in probes] == ["/readyz", "/livez", "/readyz"]
    assert {probe["httpGet"]["path"] for probe in probes} <= routes
    (port,) = container["ports"]
    assert str(port["containerPort"]) == objects["ConfigMap"]["data"]["PORT"]
    assert {probe["httpGet"]["port"] for probe in probes} == {port["name"]}
    assert {each["targetPort"] for each in objects["Service"]["spec"]["ports"]} == {port["name"]}
    startup_s = probes[0]["periodSeconds"] * probes[0]["failureThreshold"]
    assert 0 <= startup_s - (objects["Deployment"]["spec"]["progressDeadlineSeconds"] - 600) < 10
    # Beside the delay before it, a pod has as long to drain as docker-compose.yml gives the server.
    delay_s, drain_s = objects["ConfigMap"]["data"]["DRAIN_DELAY_S"], COMPOSE["stop_grace_period"].removesuffix("s")
    assert _pod(objects)["spec"]["terminationGracePeriodSeconds"] >= int(delay_s) + int(drain_s)


@pytest.mark.nightly
def test_a_pod_meets_the_restricted_standard(objects):
    """The pod has the restrictions of docker-compose.yml and a system call filter. Its image has an exact version."""
    pod, container = _pod(objects)["spec"], _container(objects)
    assert re.search(r"(:\d+\.\d+\.\d+|@sha256:\w{64})$", container["image"])
    assert ("ServiceAccount" in {kind.split()[0] for kind in objects}) == ("serviceAccountName" in pod)
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"USER {pod['securityContext']['runAsUser']}\n" in (ROOT / "Dockerfile").read_text("utf-8")
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": COMPOSE["read_only"],
        "capabilities": {"drop": COMPOSE["cap_drop"]},
    }
    own = [volume for volume in pod["volumes"] if volume not in EVERYTHING["extraVolumes"]]
    assert {key for volume in own for key in volume} <= {"name", "emptyDir", "persistentVolumeClaim"}


@pytest.mark.nightly
def test_the_server_can_write_where_it_has_to(objects):
    """The volumes of the image, and what else docker-compose.yml makes writable; directories have a bound."""
    volumes = {volume["name"]: volume for volume in _pod(objects)["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in _container(objects)["volumeMounts"]}
    needed = {volume.split(":")[1] for volume in COMPOSE["volumes"]} | {each.split(":")[0] for each in COMPOSE["tmpfs"]}
    added = {mount["mountPath"] for mount in EVERYTHING["extraVolumeMounts"]}
    assert needed | {"/dev/shm"} <= set(mounts) - added <= needed | {"/dev/shm", "/state/speakers"}
    assert all("sizeLimit" in volume["emptyDir"] for volume in mounts.values() if "emptyDir" in volume)
    for path in ("/tmp", "/dev/shm"):
        assert mounts[path]["emptyDir"]["medium"] == "Memory"
    # The chart creates every claim that the values do not name, and Helm keeps it when it uninstalls.
    found = (volume.get("persistentVolumeClaim") for volume in _pod(objects)["spec"]["volumes"])
    claims = {volume["claimName"] for volume in found if volume}
    made = {each["metadata"]["name"]: each for each in objects.values() if each["kind"] == "PersistentVolumeClaim"}
    assert claims - {"models", "asr-state"} == set(made)
    assert all(each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for each in made.values())


@pytest.mark.nightly
def test_the_objects_mean_the_same_pods(objects):
    """Every selector fits the pods, and what scales names the Deployment, which then has no number of its own."""
    labels = _pod(objects)["metadata"]["labels"].items()
    for kind in ("Deployment", "PodDisruptionBudget", "NetworkPolicy"):
        if kind in objects:
            selector = objects[kind]["spec"].get("selector") or objects[kind]["spec"]["podSelector"]
            assert selector["matchLabels"].items() <= labels
    assert objects["Service"]["spec"]["selector"].items() <= labels
    if "ServiceMonitor" in objects:
        wanted = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= objects["Service"]["metadata"]["labels"].items()
    scaler = objects.get("HorizontalPodAutoscaler") or objects.get("ScaledObject")
    assert ("replicas" in objects["Deployment"]["spec"]) == (scaler is None)
    if scaler is not None:
        assert scaler["spec"]["scaleTargetRef"]["name"] == objects["Deployment"]["metadata"]["name"]
    assert _pod(objects)["metadata"]["annotations"]["checksum/settings"]


@pytest.mark.nightly
def test_alerts_and_dashboard_match_their_files():
    """Only the job differs: the operator names it after the Service."""
    objects = {each["kind"]: each for each in _rendered("keda") if each["kind"] in ("Service", "PrometheusRule")}
    (shown,) = (each for each in _rendered("keda") if each["metadata"]["name"].endswith("-dashboard"))
    files = CHART / "files"
    job = f'job="{objects["Service"]["metadata"]["name"]}"'
    alerts = (files / "alerts.yml").read_text("utf-8").replace('up{job="asr-server"}', f"up{{{job}}}")
    assert job in alerts
    assert objects["PrometheusRule"]["spec"] == yaml.safe_load(alerts)
    (dashboard,) = shown["data"].values()
    assert json.loads(dashboard) == json.loads((files / "grafana-dashboard.json").read_text("utf-8"))


@pytest.mark.nightly
def test_both_ways_of_scaling_ask_the_same():
    """KEDA's queries equal the adapter's rules, which define the other metrics."""
    (scaled,) = (each for each in _rendered("keda") if each["kind"] == "ScaledObject")
    (hpa,) = (each for each in _rendered("everything") if each["kind"] == "HorizontalPodAutoscaler")
    matchers = 'namespace="speech",service="asr-asr-server"'
    rules = [rule["metricsQuery"].replace("<<.LabelMatchers>>", matchers) for rule in ADAPTER]
    assert [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]] == rules
    metrics = [metric["external"] for metric in hpa["spec"]["metrics"]]
    assert [metric["metric"]["name"] for metric in metrics] == [rule["name"]["as"] for rule in ADAPTER]
    assert [metric["target"]["averageValue"] for metric in metrics] == ["600m", "2000000"]
    assert {json.dumps(metric["metric"]["selector"]) for metric in metrics} == {'{"matchLabels": {"job": "asr"}}'}


@pytest.mark.nightly
@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_values_that_do_not_fit_are_refused(values, message):
    """Before anything is installed, with a message that names them."""
    done = _helm(values)
    assert done.returncode != 0
    assert message in done.stderr
