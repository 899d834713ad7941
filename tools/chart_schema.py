"""The part of the Helm chart's schema about settings, made from the code; `python -m tools.docs_tables` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from pydantic import SecretStr

from asr_server.core.settings import Settings

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "asr-server"
SCHEMA = CHART / "values.schema.json"
# The chart sets these itself, or (TLS) has no place for them.
_OF_THE_CHART = {"HOST", "PORT", "STATE_DIR", "DRAIN_DELAY_S", "SSL_CERTFILE"}
# `format` means nothing to Helm here, `default` is what happens without a value.
_LEFT_OUT = {"title", "default", "format"}


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with the settings, and the names of those that are secret, as they are in the code."""
    described = Settings.model_json_schema()
    secret = {name.upper() for name, field in Settings.model_fields.items() if _is_secret(field.annotation)}
    plain = {
        name.upper(): {key: value for key, value in _inlined(entry, described["$defs"]).items() if key not in _LEFT_OUT}
        for name, entry in described["properties"].items()
        if name.upper() not in secret | _OF_THE_CHART
    }
    properties = schema["properties"]
    settings = {**properties["settings"], "properties": plain}
    secrets = {**properties["secretSettings"], "propertyNames": {"enum": sorted(secret)}}
    return {**schema, "properties": {**properties, "settings": settings, "secretSettings": secrets}}


def _is_secret(annotation: Any) -> bool:
    return SecretStr in (annotation, *get_args(annotation))


def _inlined(entry: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """An enumeration in place of the reference to it; the setting's own description stays."""
    if "$ref" not in entry:
        return entry
    return {**definitions[entry["$ref"].rpartition("/")[2]], **{k: v for k, v in entry.items() if k != "$ref"}}


def written(schema: dict[str, Any]) -> str:
    """Return the schema in the form of the file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
