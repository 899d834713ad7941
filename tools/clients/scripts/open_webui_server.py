"""Open WebUI, the whole server: its own route for speech, which asks ours."""

import sys
import tempfile
from pathlib import Path

import program
import requests

recording, server = sys.argv[1:]
port = program.free_port()
ours = f"http://127.0.0.1:{port}"
SETTINGS = {
    "AUDIO_STT_ENGINE": "openai",
    "AUDIO_STT_OPENAI_API_BASE_URL": f"{server}/v1",
    "AUDIO_STT_OPENAI_API_KEY": "none",
    "AUDIO_STT_MODEL": "whisper-1",
    "DATA_DIR": tempfile.mkdtemp(),
    # Nothing is downloaded: models for search in documents are not part of this.
    "OFFLINE_MODE": "True",
    "RAG_EMBEDDING_ENGINE": "openai",
    "WEBUI_SECRET_KEY": "only-for-this-run",
}

command = [str(Path(sys.executable).with_name("open-webui")), "serve", "--host", "127.0.0.1", "--port", str(port)]
with program.running(command, f"{ours}/health", **SETTINGS):
    person = {"name": "Somebody", "email": "somebody@example.org", "password": "only-for-this-run-1"}
    token = requests.post(f"{ours}/api/v1/auths/signup", json=person, timeout=60).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    with Path(recording).open("rb") as file:
        form = {"file": ("recording.wav", file, "audio/wav")}
        answer = requests.post(f"{ours}/api/v1/audio/transcriptions", files=form, headers=headers, timeout=120)
    answer.raise_for_status()
    print(f"# file\n{answer.json()['text']}")
