"""HAProxy with the block of docs/run/deployment.md: a file, a stream of events, a live WebSocket."""

import json
import re
import sys
import wave
from pathlib import Path

import openai
import program
from websockets.sync.client import connect

recording, server = sys.argv[1:]
page = Path(__file__).parents[3] / "docs" / "run" / "deployment.md"
(block,) = re.findall(r"```haproxy\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
port = program.free_port()
# Only the addresses are others than on the page, and there is no certificate.
for written, here in (
    (":443 ssl crt /etc/ssl/asr.pem", f"127.0.0.1:{port}"),
    ("127.0.0.1:8100", server.removeprefix("http://")),
):
    assert written in block
    block = block.replace(written, here)
Path("haproxy.cfg").write_text(block)


def live(url: str) -> str:
    with wave.open(recording) as audio:
        pcm = audio.readframes(audio.getnframes())
    with connect(url) as socket:
        for at in range(0, len(pcm), 32_000):
            socket.send(pcm[at : at + 32_000])
        socket.send(json.dumps({"action": "flush"}))
        finals = []
        for message in socket:
            event = json.loads(message)
            if event.get("is_final") and event["text"]:
                finals.append(event["text"])
            if event.get("ending") == "flush":
                break
    return " ".join(finals)


with program.running(["haproxy", "-f", "haproxy.cfg"], f"http://127.0.0.1:{port}/readyz"):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    file = Path(recording)
    print("# file\n" + client.audio.transcriptions.create(file=file, model="whisper-1").text)
    events = client.audio.transcriptions.create(file=file, model="whisper-1", stream=True)
    print("# stream\n" + "".join(event.delta for event in events if event.type == "transcript.text.delta"))
    print("# live WebSocket\n" + live(f"ws://127.0.0.1:{port}/ws/transcribe?endpointing=manual"))
