"""Speak what a language model answers while it answers: python speak_answer.py QUESTION answer.wav [SERVER] [KEY]

Needs `pip install openai websockets`. The model is OPENAI_MODEL at OPENAI_BASE_URL. When the user interrupts, send
{"type": "cancel"} and throw away what is not played yet; the socket then takes the next answer.
"""

import json
import os
import sys
import threading
import wave

import openai
from websockets.sync.client import connect

question, file = sys.argv[1:3]
server = sys.argv[3] if len(sys.argv) > 3 else "http://127.0.0.1:8100"
headers = {"Authorization": f"Bearer {sys.argv[4]}"} if len(sys.argv) > 4 else {}


def ask(socket):
    messages = [{"role": "user", "content": question}]
    model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    for chunk in openai.OpenAI().chat.completions.create(model=model, messages=messages, stream=True):
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            socket.send(json.dumps({"type": "text", "text": piece}))
    socket.send(json.dumps({"type": "end"}))


url = f"{server.replace('http', 'ws', 1)}/ws/speech"
with wave.open(file, "wb") as audio, connect(url, additional_headers=headers) as socket:
    audio.setparams((1, 2, 24_000, 0, "NONE", ""))
    asking = threading.Thread(target=ask, args=(socket,))
    asking.start()
    for frame in socket:
        message = {"type": "audio"} if isinstance(frame, bytes) else json.loads(frame)
        if message["type"] == "audio":
            audio.writeframes(frame)
        elif message["type"] == "sentence":
            print(message["text"])
        elif message["type"] == "error":
            raise SystemExit(message["error"]["message"])
    asking.join()
