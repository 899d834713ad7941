"""Words as they are decoded, with OpenAI's client: python openai_stream.py recording.wav [SERVER] [KEY]"""

import sys

import openai

recording = sys.argv[1]
server = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8100"
key = sys.argv[3] if len(sys.argv) > 3 else "none"
client = openai.OpenAI(base_url=f"{server}/v1", api_key=key)

with open(recording, "rb") as file:
    for event in client.audio.transcriptions.create(file=file, model="whisper-1", stream=True):
        if event.type == "transcript.text.delta":
            print(event.delta, end="", flush=True)
print()
