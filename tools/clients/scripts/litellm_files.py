"""LiteLLM's library: `transcription`."""

import os
import sys
from pathlib import Path

# Without this LiteLLM downloads a list of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

recording, server = sys.argv[1:]


def transcribe(**options: object) -> litellm.TranscriptionResponse:
    with Path(recording).open("rb") as file:
        return litellm.transcription("openai/whisper-1", file, api_base=f"{server}/v1", api_key="none", **options)


print(f"# json\n{transcribe().text}")
detailed = transcribe(response_format="verbose_json", timestamp_granularities=["word"])
print("# words\n" + " ".join(word["word"] for word in detailed.words))
for wanted in ("text", "srt", "vtt"):
    print(f"# {wanted}\n{transcribe(response_format=wanted).text}")
