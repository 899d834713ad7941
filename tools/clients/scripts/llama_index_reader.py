"""LlamaIndex: its reader for Whisper, whose client is given the base URL by the variable OPENAI_BASE_URL."""

import os
import sys
from pathlib import Path

recording, server = sys.argv[1:]
os.environ["OPENAI_BASE_URL"] = f"{server}/v1"

from llama_index.readers.whisper import WhisperReader  # noqa: E402

documents = WhisperReader(model="whisper-1", api_key="none").load_data(Path(recording))
print("# file\n" + " ".join(document.text for document in documents))
