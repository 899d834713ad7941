"""Groq's SDK: its paths begin with /openai/v1."""

import sys
from pathlib import Path

from groq import Groq

recording, server = sys.argv[1:]
client = Groq(base_url=server, api_key="none")
audio = Path(recording)
answer = client.audio.transcriptions.create(file=audio, model="whisper-large-v3-turbo")
print(f"# json\n{answer.text}")
verbose = client.audio.transcriptions.create(
    file=audio, model="whisper-large-v3", response_format="verbose_json", timestamp_granularities=["word", "segment"]
)
print("# words\n" + " ".join(word["word"] for word in verbose.words))
spoken = client.audio.speech.create(model="tts-1", voice="alloy", input=answer.text, response_format="wav")
Path("spoken.wav").write_bytes(spoken.read())
heard = client.audio.transcriptions.create(file=Path("spoken.wav"), model="whisper-large-v3", language="en")
print(f"spoken and heard again: {heard.text}", file=sys.stderr)
