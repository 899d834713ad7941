"""A recording to text with OpenAI's client: python openai_file.py recording.wav [SERVER] [KEY]"""

import sys

import openai

recording = sys.argv[1]
server = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8100"
key = sys.argv[3] if len(sys.argv) > 3 else "none"
client = openai.OpenAI(base_url=f"{server}/v1", api_key=key)

with open(recording, "rb") as file:
    answer = client.audio.transcriptions.create(file=file, model="whisper-1", response_format="verbose_json")
print(answer.text)
for segment in answer.segments or []:
    print(f"{segment.start:.2f} to {segment.end:.2f} s:{segment.text}")
