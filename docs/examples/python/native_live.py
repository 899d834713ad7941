"""Live words by the server's own WebSocket: python native_live.py recording.wav [SERVER] [KEY]

Needs `pip install websockets` alone. The recording, 16-bit mono WAV, stands for a microphone.
"""

import json
import sys
import threading
import wave
from urllib.parse import urlencode

from websockets.sync.client import connect

recording = sys.argv[1]
server = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8100"
key = sys.argv[3] if len(sys.argv) > 3 else ""


def speak(socket, audio):
    while piece := audio.readframes(audio.getframerate() // 10):
        socket.send(piece)
    socket.send(json.dumps({"action": "flush"}))


with wave.open(recording) as audio:
    asked = {"sample_rate": audio.getframerate(), "language": "en"} | ({"token": key} if key else {})
    with connect(f"{server.replace('http', 'ws', 1)}/ws/transcribe?{urlencode(asked)}") as socket:
        speaker = threading.Thread(target=speak, args=(socket, audio))
        speaker.start()
        for message in map(json.loads, socket):
            if "error" in message:
                raise SystemExit(message["error"]["message"])
            if message.get("is_partial"):
                print(f"... {message['committed']} ({message['tentative'].strip()})")
            elif message.get("is_final"):
                print(message["text"])
                if message.get("ending") == "flush":
                    break
        speaker.join()
