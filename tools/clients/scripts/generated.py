"""For the scripts of generated clients: the server's schema, and the record of what the operations answered.

A record has for each operation the type of the answer, where the language keeps it, and the answer; and three refusals
by their names. E2Etest/clients/test_generated.py checks it.
"""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

KEY = os.environ.get("ASR_API_KEY", "none")
TEXT = "Turn on the lights."
CONSENT = "She agreed by letter."


def schema_of(server: str) -> Path:
    """Return the schema as a file in the working directory."""
    request = urllib.request.Request(f"{server}/openapi.json", headers={"Authorization": f"Bearer {KEY}"})
    path = Path("openapi.json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        path.write_bytes(answer.read())
    return path


def sizes(answer: bytes) -> dict[str, Any]:
    """Return what the record has of audio: how many bytes there are, and the first ones."""
    return {"bytes": len(answer), "begin": answer[:4].decode("latin-1")}


def tell(answers: dict[str, Any]) -> None:
    """Write the record to answers.json, and print the words that some operations answered."""
    Path("answers.json").write_text(json.dumps(answers, indent=1), encoding="utf-8")
    verbose = answers["create_transcription"]["answer"]
    heard = answers["listen"]["answer"]["results"]["channels"][0]["alternatives"][0]["transcript"]
    print("# segments\n" + " ".join(segment["text"] for segment in verbose["segments"]))
    print("# words\n" + " ".join(word["word"] for word in verbose["words"]))
    print(f"# srt\n{answers['create_subtitles']['answer']}")
    print(f"# job\n{answers['job_result']['answer']['text']}")
    print(f"# body\n{heard}")
