"""The tables of the docs, made from the code. `python -m tools.docs_tables` rewrites them, and the settings in the
schema of the Helm chart; tests compare them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pydantic import BaseModel, SecretStr

from asr_server import feature_list
from asr_server.core.settings import Settings
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.cpu import CpuShare
from asr_server.features.speech_output import speech_socket
from tools import chart_schema, realtime_events

DOCS = Path(__file__).parents[1] / "docs"


def settings_table() -> str:
    """Every setting with its default and meaning."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = (
            str(field.default) if field.annotation is SecretStr else getattr(field.default, "value", field.default)
        )
        shown = str(default).lower() if isinstance(default, bool) else default
        rows.append(f"| `{name.upper()}` | {'' if shown in ('', None) else f'`{shown}`'} | {field.description} |")
    return "\n".join(rows)


# Those whose options have a page of their own are not on the page of engines.
ENGINE_FEATURES = tuple(feature for feature in feature_list.FEATURES if feature.name != "turns")


def options_table() -> str:
    """The active options of the plan with default settings on a server without a GPU."""
    machine = Capabilities(
        gpu=False,
        torch_cuda=False,
        packages=frozenset(("openvino",)),
        cpu_flags=frozenset(("avx512_vnni", "avx512_bf16")),
        cpu=CpuShare(4, "the control group's quota is 4 CPUs"),
    )
    options = feature_list.resolve(Settings(_env_file=None, speech="espeak"), machine, ENGINE_FEATURES).options
    rows = ["| option | value |", "| --- | --- |"]
    rows += [f"| `{option.name}` | `{option.value}` |" for option in options if option.active]
    return "\n".join(rows)


def client_events() -> str:
    """Return the table of the events that a realtime client may send."""
    return _events("meaning", realtime_events.CLIENT)


def server_events() -> str:
    """Return the table of the events that a realtime session sends."""
    return _events("content", realtime_events.SERVER)


def _events(heading: str, meanings: dict[str, str]) -> str:
    rows = [f"| event | {heading} |", "| --- | --- |"]
    return "\n".join(rows + [f"| `{name}` | {meaning} |" for name, meaning in meanings.items()])


def speech_client_messages() -> str:
    """Return the table of the messages that a client of the speech socket may send."""
    return _messages({name: _meaning(model) for name, model in speech_socket.MODELS.items()})


def speech_server_messages() -> str:
    """Return the table of the messages that the speech socket sends."""
    return _messages(speech_socket.SERVER)


def _meaning(model: type[BaseModel]) -> str:
    """Return the docstring of a message as a phrase."""
    text = " ".join((model.__doc__ or "").split())
    return text[:1].lower() + text[1:].removesuffix(".")


def _messages(meanings: dict[str, str]) -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings.items()]
    return "\n".join(["| `type` | meaning |", "| --- | --- |", *rows])


TABLES = {
    "settings": ("run/configuration.md", settings_table),
    "options": ("run/engine-options.md", options_table),
    "client events": ("use/realtime.md", client_events),
    "server events": ("use/realtime.md", server_events),
    "speech client messages": ("use/speech.md", speech_client_messages),
    "speech server messages": ("use/speech.md", speech_server_messages),
}


def replaced(page: str, name: str, table: str) -> str:
    """`page` with the named table put between its markers."""
    marked = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    assert marked.search(page), f"no markers for {name}"
    return marked.sub(lambda m: f"{m[1]}{table}\n{m[2]}", page)


def main() -> None:
    """Rewrite all tables, and the schema."""
    for name, (file, table) in TABLES.items():
        path = DOCS / file
        path.write_text(replaced(path.read_text(encoding="utf-8"), name, table()), encoding="utf-8")
    schema = json.loads(chart_schema.SCHEMA.read_text(encoding="utf-8"))
    chart_schema.SCHEMA.write_text(chart_schema.written(chart_schema.with_settings(schema)), encoding="utf-8")


if __name__ == "__main__":
    main()
