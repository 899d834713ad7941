"""huggingface_hub: `InferenceClient.automatic_speech_recognition` sends the recording itself as the body."""

import sys

from huggingface_hub import InferenceClient

recording, server = sys.argv[1:]
client = InferenceClient(model=f"{server}/v1/audio/transcriptions", token="none")
print(f"# body\n{client.automatic_speech_recognition(recording).text}")
