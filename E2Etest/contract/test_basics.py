"""The state, the schema and its examples, and a chunked upload over the limit."""

import json
import os
import re
import shlex
import shutil
import subprocess

import openai
import pytest

from asr_server import demo
from E2Etest.drive.process import refusal

pytestmark = pytest.mark.demo_server


def test_health_has_every_documented_field(server):
    """The fields of the native API, each option of the plan with a reason."""
    health = server.health()
    assert {"gpu_name", "gpu_allocated_mb", "gpu_reserved_mb", "cuda", "version", "uptime_s", "queue"} <= set(health)
    assert {"final", "partial", "interactive", "bulk", "audio_waiting_s", "audio_limit_s"} <= set(health["queue"])
    assert all(option["reason"] for option in health["plan"])


def test_the_docs_page_needs_no_other_host(server):
    """Swagger and its scripts come from this server."""
    page = server.client.get("/docs").text
    assert "://" not in page.replace(server.base, "")
    script = page.split('src="')[1].split('"')[0]
    assert server.client.get(script).status_code == 200


@pytest.fixture(scope="module")
def schema(server):
    return server.client.get("/openapi.json").json()


def test_the_schema_has_the_form_and_typed_answers(schema):
    post = schema["paths"]["/v1/audio/transcriptions"]["post"]
    form = post["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["file"]["format"] == "binary"
    assert set(form["required"]) == {"file"}
    assert "application/json" in post["responses"]["200"]["content"]
    assert "HTTPValidationError" not in str(schema)


def test_every_answer_is_described_and_every_operation_has_a_name(schema):
    """Clients generated from the schema return what is answered, and have methods with names; the richest form of an
    answer is tried first, since the others would lose fields of it."""
    operations = [one for path in schema["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)
    for one in operations:
        for status, answer in one["responses"].items():
            if status.startswith("2") and status != "204":
                assert answer.get("content"), one["operationId"]
                assert all(kind.get("schema") for kind in answer["content"].values()), one["operationId"]
    post = schema["paths"]["/v1/audio/transcriptions"]["post"]
    forms = post["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert [form["$ref"].rpartition("/")[2][:7] for form in forms] == ["Diarize", "Verbose", "Transcr"]


@pytest.mark.slow("runs an example of every operation")
def test_every_operation_has_a_summary_and_an_example_that_works(start, tmp_path):
    """The summary is a sentence. The example is a curl command, which is run if it needs no id."""
    shutil.copy(demo.sample().recording, tmp_path / "talk.mp3")
    with start() as server:  # of its own: examples store a voice, and load what speaks
        for path, operations in server.client.get("/openapi.json").json()["paths"].items():
            for verb, one in operations.items():
                assert re.fullmatch(r"[A-Z].{8,110}\.", one["summary"]), (verb, path)
                (example,) = re.findall(r"```sh\n(curl .*)\n```", one["description"])
                assert path.split("{")[0] in example
                if "{" in path:
                    continue
                command = shlex.split(example.replace("http://127.0.0.1:8100", server.base))
                command[1:1] = ["--silent", "--output", os.devnull, "--write-out", "%{http_code}"]
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
                # Translation, cloning and others may be off.
                assert int(done.stdout) < 300 or done.stdout in {"501", "503"}, (done.stdout, example)


def test_generators_of_clients_accept_the_schema(schema):
    """Every reference leads somewhere. Names of types are unique without the module that they stand in, values that
    never change are texts, since generators write others wrongly, and the bytes of a job's result come before its
    texts, which would spoil them."""
    found = set(re.findall(r'"\$ref": ?"([^"]+)"', json.dumps(schema)))
    assert found <= {f"#/components/schemas/{name}" for name in schema["components"]["schemas"]}
    assert [name for name in schema["components"]["schemas"] if "__" in name] == []
    assert set(re.findall(r'"const": ([^",}]+)', json.dumps(schema))) == set()
    result = schema["paths"]["/v1/jobs/{job_id}/result"]["get"]["responses"]["200"]["content"]
    assert next(iter(result.values()))["schema"]["format"] == "binary"


def test_options_in_a_query_are_described(schema):
    """Generated clients have no others. A body that is a recording has a type that all of them can send."""
    paths = schema["paths"]
    named = {path: {one["name"] for one in paths[path]["post"]["parameters"]} for path in ("/v1/listen", "/asr")}
    assert named["/v1/listen"] >= {"model", "language", "keyterm", "diarize"}
    assert named["/asr"] >= {"task", "output", "language"}
    assert "application/octet-stream" in paths["/v1/listen"]["post"]["requestBody"]["content"]


WHOLE = "/v1/audio/transcriptions"


def test_an_upload_over_the_cap_without_a_length(server):
    """A chunked body is refused while it is read, and the answer arrives."""

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(64):
            yield bytes(256 * 1024)

    answer = server.client.post(WHOLE, content=body(), headers={"content-type": "multipart/form-data; boundary=b"})
    assert refusal(answer) == (413, "file_too_large", "file")


def test_azures_client_names_its_deployment_as_it_likes(server, sample):
    """The official client, which sends the name as the model too."""
    client = openai.AzureOpenAI(
        azure_endpoint=server.base, api_key="any", api_version="2025-04-01-preview", azure_deployment="ours"
    )
    assert client.audio.transcriptions.create(file=("a.wav", sample[0]), model="ours").text == sample[1]
