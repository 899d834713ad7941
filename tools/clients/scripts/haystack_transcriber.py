"""Haystack: `RemoteWhisperTranscriber` in a pipeline."""

import sys

from haystack import Pipeline
from haystack.utils import Secret
from haystack_integrations.components.audio.whisper import RemoteWhisperTranscriber

recording, server = sys.argv[1:]
pipeline = Pipeline()
transcriber = RemoteWhisperTranscriber(api_key=Secret.from_token("none"), api_base_url=f"{server}/v1", language="en")
pipeline.add_component("transcriber", transcriber)
found = pipeline.run({"transcriber": {"sources": [recording]}})
print("# file")
print(found["transcriber"]["documents"][0].content)
