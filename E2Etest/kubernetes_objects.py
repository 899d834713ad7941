"""Run by the Python of the tools: validates Kubernetes objects from standard input, and prints what is wrong as JSON.

Input: `{"objects": [...], "versions": ["1.27", ...]}`. Objects of Kubernetes are validated against its schemas of these
versions, custom resources against the models that were made of their definitions. Unknown fields are wrong.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

_CUSTOM = {model.__name__: model for model in (PrometheusRule, ScaledObject, ServiceMonitor)}


def _wrong_in_version(found: list[dict[str, Any]], version: str) -> list[str]:
    """`kubernetes_validate.validate` reads two megabytes of definitions for each object; here they are read once."""
    place = f"kubernetes-json-schema/v{version}.0-local-strict"
    registry = Resource.from_contents(schema_contents(f"{place}/_definitions.json", version)) @ Registry()
    return [
        f"{version}, {one['kind']}: {'.'.join(map(str, error.path))}: {error.message}"
        for one in found
        for error in Draft202012Validator(_schema(place, one, version), registry=registry).iter_errors(one)
    ]


def _schema(place: str, found: dict[str, Any], version: str) -> Any:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", found["apiVersion"])
    return schema_contents(f"{place}/{found['kind'].lower()}-{group}.json", version)


def _wrong_custom(found: dict[str, Any]) -> list[str]:
    model = _CUSTOM[found["kind"]]
    try:
        known = model.model_validate(found).model_dump(mode="json", by_alias=True, exclude_unset=True)
    except ValueError as error:
        return [f"{found['kind']}: {error}"]
    return [f"{found['kind']}: {path} is unknown" for path in _lost(found, known, "")]


def _lost(found: Any, known: Any, path: str) -> list[str]:
    """Paths of what is in `found` and not in `known`."""
    if isinstance(found, dict) and isinstance(known, dict):
        return [p for key, value in found.items() for p in _lost(value, known.get(key), f"{path}.{key}")]
    if isinstance(found, list) and isinstance(known, list):
        return [p for i, pair in enumerate(zip(found, known, strict=True)) for p in _lost(*pair, f"{path}.{i}")]
    return [] if known is not None else [path]


if __name__ == "__main__":
    request = json.load(sys.stdin)
    own = [each for each in request["objects"] if each["kind"] not in _CUSTOM]
    wrong = [line for version in request["versions"] for line in _wrong_in_version(own, version)]
    wrong += [line for each in request["objects"] if each["kind"] in _CUSTOM for line in _wrong_custom(each)]
    print(json.dumps(wrong))
