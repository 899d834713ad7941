"""Requests made from the schema that the server publishes, right and wrong ones, by schemathesis."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from E2Etest.fuzz.effort import FACTOR, SCHEMA_S, SEED

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.guarantee("fuzzing")]

# Not asked: whether all that fits the schema is accepted (no random file is a recording, and the text of a form has no
# types), and whether `Allow` names the methods of all routes of a path (it names those of the first).
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,ignored_auth,unsupported_method,use_after_free"
)


@pytest.mark.timeout(0)
def test_no_request_of_the_schema_breaks_it(guarded, tmp_path, note):
    """Every operation answers with a status, a type and a body that the schema has, and none without a key."""
    command = [
        Path(sys.executable).with_name("schemathesis"),
        "run",
        str(_schema(guarded, tmp_path)),
        *("--url", guarded.base),
        *("--header", f"Authorization: Bearer {guarded.key}"),
        *("--max-time", str(int(SCHEMA_S * FACTOR))),
        *("--request-timeout", "60"),
        *("--checks", CHECKS),
        *("--seed", SEED),
        "--continue-on-failure",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6_000:]
    operations = [op for path in guarded.client.get("/openapi.json").json()["paths"].values() for op in path]
    assert int(done.stdout.partition("Tested: ")[2].split()[0]) == len(operations)
    made = int(re.search(r"(\d+) generated", done.stdout)[1])
    note(f"{made} requests from the schema for {len(operations)} operations")


def _schema(guarded, folder):
    """Write the schema without those of event streams, which are of the whole text: Schemathesis takes the schema of a
    stream for that of one event (ST108)."""
    schema = guarded.client.get("/openapi.json").json()
    for methods in schema["paths"].values():
        for operation in methods.values():
            for response in operation["responses"].values():
                response.get("content", {}).get("text/event-stream", {}).pop("schema", None)
    path = folder / "openapi.json"
    path.write_text(json.dumps(schema), encoding="utf-8")
    return path
