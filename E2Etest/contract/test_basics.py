"""The schema and its examples, and a chunked upload over the limit."""

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


def test_generators_of_clients_accept_the_schema(server):
    """Names of operations and types are words. Constant values are texts. Of answers with several forms the richest is
    first, since others would lose fields; of a job's result the bytes are first, since texts would spoil them."""
    schema = server.client.get("/openapi.json").json()
    whole = json.dumps(schema)
    types = schema["components"]["schemas"]
    assert set(re.findall(r'"\$ref": ?"([^"]+)"', whole)) <= {f"#/components/schemas/{name}" for name in types}
    assert [name for name in types if "__" in name] == []
    assert set(re.findall(r'"const": ([^",}]+)', whole)) == set()
    paths = schema["paths"]
    operations = [one for path in paths.values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)
    for one in operations:
        for status, answer in one["responses"].items():
            if status.startswith("2") and status != "204":
                assert answer.get("content"), one["operationId"]
                assert all(kind.get("schema") for kind in answer["content"].values()), one["operationId"]
    post = paths["/v1/audio/transcriptions"]["post"]
    forms = post["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert [form["$ref"].rpartition("/")[2][:7] for form in forms] == ["Diarize", "Verbose", "Transcr"]
    assert post["requestBody"]["content"]["multipart/form-data"]["schema"]["required"] == ["file"]
    result = paths["/v1/jobs/{job_id}/result"]["get"]["responses"]["200"]["content"]
    assert next(iter(result.values()))["schema"]["format"] == "binary"
    # Generated clients have no other options. The type of the body is one that all of them can send.
    named = {path: {one["name"] for one in paths[path]["post"]["parameters"]} for path in ("/v1/listen", "/asr")}
    assert named["/v1/listen"] >= {"model", "language", "keyterm", "diarize"}
    assert named["/asr"] >= {"task", "output", "language"}
    assert "application/octet-stream" in paths["/v1/listen"]["post"]["requestBody"]["content"]


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


def test_an_upload_over_the_cap_without_a_length(server):
    """A chunked body is refused while it is read, and the answer arrives."""

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(64):
            yield bytes(256 * 1024)

    media_type = {"content-type": "multipart/form-data; boundary=b"}
    answer = server.client.post("/v1/audio/transcriptions", content=body(), headers=media_type)
    assert refusal(answer) == (413, "file_too_large", "file")


def test_azures_client_names_its_deployment_as_it_likes(server, sample):
    """The official client, which sends the name as the model too."""
    client = openai.AzureOpenAI(
        azure_endpoint=server.base, api_key="any", api_version="2025-04-01-preview", azure_deployment="ours"
    )
    assert client.audio.transcriptions.create(file=("a.wav", sample[0]), model="ours").text == sample[1]
