"""The summary and the example of each operation on the page of the API, made from its description and its schema."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

_BASE = "http://127.0.0.1:8100"
_FILE = "@talk.mp3"

Schema = dict[str, Any]


def add_summary_and_example(verb: str, path: str, operation: Schema, schemas: Schema, *, keyed: bool) -> None:
    """Make the first sentence of the description the summary, and append a curl command to it.

    `schemas`: the components that the operation refers to. `keyed`: the operation needs a key.
    """
    description = " ".join(operation["description"].split("\n\n", 1)[0].split())
    operation["summary"] = re.split(r"(?<=\.)\s", description, maxsplit=1)[0]
    key = ' -H "Authorization: Bearer $ASR_API_KEY"' if keyed else ""
    url = _BASE + re.sub(r"{(\w+)}", lambda found: found[1].upper(), path)
    arguments = _body(operation, schemas)
    if not arguments and verb != "get":
        arguments = ["-X", verb.upper()]
    operation["description"] += f"\n\n```sh\n{shlex.join(['curl', url, *arguments])}{key}\n```"


def _body(operation: Schema, schemas: Schema) -> list[str]:
    """Return curl's arguments for a body with the required fields, and those that have an example."""
    content: Schema = operation.get("requestBody", {}).get("content", {})
    if not content:
        return []
    kind = next(iter(content))
    schema = _resolved(content[kind]["schema"], schemas)
    fields = {name: _resolved(field, schemas) for name, field in schema.get("properties", {}).items()}
    shown = {
        name: _example(field)
        for name, field in fields.items()
        if name in schema.get("required", ()) or "examples" in field
    }
    if kind == "multipart/form-data":
        return [part for name, value in shown.items() for part in ("-F", f"{name}={value}")]
    if kind == "application/json":
        return ["-H", f"Content-Type: {kind}", "-d", json.dumps(shown)] if shown else []
    return ["-H", "Content-Type: audio/mpeg", "--data-binary", _FILE]


def _example(field: Schema) -> Any:
    """Return the stated example of a field; without one it is a file."""
    return field["examples"][0] if "examples" in field else _FILE


def _resolved(schema: Schema, schemas: Schema) -> Schema:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
