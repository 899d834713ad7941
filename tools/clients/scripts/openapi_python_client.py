"""openapi-python-client: the client that it generates from the server's schema calls every operation."""

import importlib
import json
import pkgutil
import subprocess
import sys
import typing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import generated

recording, server = sys.argv[1:]
# The generator knows no types of audio.
CONFIG = {
    "content_type_overrides": {
        **dict.fromkeys(("audio/*", "audio/mpeg", "audio/pcm"), "application/octet-stream"),
    }
}

Path("config.json").write_text(json.dumps(CONFIG))
subprocess.run(
    [
        *(str(Path(sys.executable).with_name("openapi-python-client")), "generate", "--overwrite", "--meta", "none"),
        *("--path", str(generated.schema_of(server)), "--config", "config.json", "--output-path", "made"),
        "--fail-on-warning",
    ],
    check=True,
    stdout=sys.stderr,
    env={"PATH": str(Path(sys.executable).parent)},
)
sys.path.insert(0, "")
api = importlib.import_module("made.api")
made = importlib.import_module("made.client")
types = importlib.import_module("made.types")
operations = {
    found.name.rpartition(".")[2]: importlib.import_module(found.name)
    for found in pkgutil.walk_packages(api.__path__, "made.api.")
    if not found.ispkg
}
client = made.AuthenticatedClient(server, token=generated.KEY, timeout=120)
answers: dict[str, Any] = {}
audio = Path(recording).read_bytes()


def sent(name: str, fields: dict[str, Any]) -> Any:
    """Return the body of an operation; files get a name."""
    body = typing.get_type_hints(operations[name].sync_detailed)["body"]
    kind = next(one for one in typing.get_args(body) or (body,) if one is not types.Unset)
    if kind is types.File:
        return types.File(fields["file"])
    form = kind.from_dict(fields)
    files = [getattr(form, "file", None), getattr(form, "audio_file", None), *(getattr(form, "files", None) or ())]
    for number, file in enumerate(filter(None, files)):
        file.file_name = f"{number}.wav"
    return form


def call(name: str, wanted: str = "", caller: Any = client, body: Any = None, **arguments: Any) -> Any:
    """Call an operation, note its answer under `wanted` or its name, and return it."""
    bodies = {} if body is None else {"body": sent(name, body)}
    response = operations[name].sync_detailed(client=caller, **arguments, **bodies)
    answer = response.parsed
    kind = type(answer).__name__
    if isinstance(answer, types.File):
        content = answer.payload.read()
        answer = json.loads(content) if content.startswith(b"{") else generated.sizes(content)
    elif hasattr(answer, "to_dict"):
        answer = answer.to_dict()
    answers[wanted or name] = {"status": int(response.status_code), "type": kind, "answer": answer}
    return answer if response.status_code < HTTPStatus.BAD_REQUEST else {}


for name in ("health", "livez", "readyz", "metrics", "list_voices", "create_client_secret"):
    call(name, body={} if name == "create_client_secret" else None)
models = call("list_models")
call("retrieve_model", model_id=models["data"][0]["id"])

verbose = {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
call("create_transcription", body={"file": audio, **verbose})
call("create_transcription", "json", body={"file": audio})
call("stream_transcription", body={"file": audio})
call("create_subtitles", body={"file": audio})
call("create_alignment", body={"file": audio, "text": generated.TEXT})
call("create_translation", body={"file": audio, "language": "de", "response_format": "verbose_json"})
call("transcribe", body={"audio_file": audio})
call("detect_language", body={"audio_file": audio})
call("listen", body={"file": audio}, model="nova-3", punctuate=True)
call("translate_texts", body={"texts": [generated.TEXT], "target_language": "de"})
call("create_document", body={"segments": [{"start": 0, "end": 1, "text": generated.TEXT}]})

job = call("create_job", body={"file": audio, **verbose})["id"]
for name in ("job_events", "retrieve_job", "job_result", "cancel_job", "delete_job"):
    call(name, job_id=job)
spoken = call("create_speech_job", body={"input": generated.TEXT, "response_format": "mp3"})["id"]
call("job_events", "events of a text", job_id=spoken)
call("job_result", "audio of a text", job_id=spoken)

voice = call("create_speaker", body={"name": "Anna", "consent": generated.CONSENT, "files": [audio]})
call("list_speakers")
for name in ("retrieve_speaker", "delete_speaker"):
    call(name, speaker_id=voice["id"])

for name in ("create_speech", "stream_speech", "stream_samples"):
    call(name, body={"input": generated.TEXT, "response_format": "wav"})
call("speak_as", body={"input": generated.TEXT, "response_format": "wav", "file": audio})

call("retrieve_model", "unknown model", model_id="nobody")
call("create_transcription", "unknown language", body={"file": audio, "language": "klingon"})
call("list_models", "wrong key", made.AuthenticatedClient(server, token="none-of-them"))
generated.tell(answers)
