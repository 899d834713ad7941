"""Home Assistant, the whole server: its Wyoming integration, with the bridge that listens at WYOMING_PORT."""

import os
import sys
import tempfile
import time
from pathlib import Path

import program
import requests

recording, _ = sys.argv[1:]
port = program.free_port()
ours = f"http://127.0.0.1:{port}"
CONFIGURATION = f"""
http:
  server_host: 127.0.0.1
  server_port: {port}
api:
auth:
config:
onboarding:
stt:
"""


def post(path: str, **more: object) -> dict:
    answer = requests.post(ours + path, timeout=900, **more)
    answer.raise_for_status()
    return answer.json()


def signed_in() -> dict[str, str]:
    """The header of the first user, whom onboarding creates."""
    person = {"client_id": ours, "name": "Somebody", "username": "somebody", "password": "somebody", "language": "en"}
    code = post("/api/onboarding/users", json=person)["auth_code"]
    grant = {"grant_type": "authorization_code", "code": code, "client_id": ours}
    return {"Authorization": f"Bearer {post('/auth/token', data=grant)['access_token']}"}


def speech_to_text(headers: dict[str, str]) -> str:
    """The entity of the bridge, once Home Assistant has it."""
    for _ in range(60):
        for state in requests.get(f"{ours}/api/states", headers=headers, timeout=60).json():
            if state["entity_id"].startswith("stt."):
                return str(state["entity_id"])
        time.sleep(1)
    raise RuntimeError("Home Assistant has no entity for speech-to-text.")


folder = Path(tempfile.mkdtemp())
(folder / "configuration.yaml").write_text(CONFIGURATION)
command = [str(Path(sys.executable).with_name("hass")), "--config", str(folder)]
# Home Assistant installs what its integrations need when they start, with the `uv` of its own environment.
path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
with program.running(command, f"{ours}/api/onboarding", PATH=path):
    headers = signed_in()
    flow = post("/api/config/config_entries/flow", json={"handler": "wyoming"}, headers=headers)
    bridge = {"host": "127.0.0.1", "port": int(os.environ["WYOMING_PORT"])}
    made = post(f"/api/config/config_entries/flow/{flow['flow_id']}", json=bridge, headers=headers)
    assert made["type"] == "create_entry", made
    shape = "format=wav; codec=pcm; sample_rate=16000; bit_rate=16; channel=1"
    answer = post(
        f"/api/stt/{speech_to_text(headers)}",
        data=Path(recording).read_bytes(),
        headers={**headers, "X-Speech-Content": f"{shape}; language=en"},
    )
    assert answer["result"] == "success", answer
    print(f"# Wyoming\n{answer['text']}")
