"""Deepgram's SDK: a recording, and live audio."""

import sys
import threading
import wave
from pathlib import Path

from deepgram import DeepgramClient
from deepgram.core.events import EventType
from deepgram.environment import DeepgramClientEnvironment

recording, server = sys.argv[1:]
live = server.replace("http", "ws", 1)
environment = DeepgramClientEnvironment(base=server, production=live, agent=live, agent_rest=server)
client = DeepgramClient(api_key="none", environment=environment)
answer = client.listen.v1.media.transcribe_file(request=Path(recording).read_bytes(), model="nova-3", smart_format=True)
print(f"# file\n{answer.results.channels[0].alternatives[0].transcript}")

finals: list[str] = []
options = {"model": "nova-3", "encoding": "linear16", "sample_rate": 16_000}
with client.listen.v1.connect(**options, endpointing="false") as session:

    def keep(message: object) -> None:
        if getattr(message, "type", "") == "Results" and message.is_final:
            finals.append(message.channel.alternatives[0].transcript)

    session.on(EventType.MESSAGE, keep)
    listening = threading.Thread(target=session.start_listening)
    listening.start()
    with wave.open(recording) as audio:
        while block := audio.readframes(1_600):
            session.send_media(block)
    session.send_close_stream()
    listening.join(timeout=120)
print("# live\n" + " ".join(finals))
