"""The process that writes documents, one at a time.

Run as `python -m asr_server.features.documents.worker` with pipes as standard input and output. Its memory and its
time are limited.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

from asr_server.features.documents.document import Document, DocumentPart
from asr_server.features.documents.writers import WRITERS
from asr_server.processes import messages, worker

_MEMORY_BYTES = 2 * 2**30
_REQUEST_CPU_S = 600.0


def main() -> None:
    """Answer requests until the server closes the pipe."""
    worker.prepare()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    worker.serve(sys.stdin.buffer, sys.stdout.buffer, answer, _REQUEST_CPU_S)
    os._exit(0)


def answer(content: dict[str, Any], data: bytes, kept: dict[int, None]) -> bytes:
    """Answer a request with the file."""
    fields = content["document"]
    parts = [DocumentPart(**part) for part in fields.pop("parts")]
    return messages.packed({}, WRITERS[content["format"]](Document(parts, **fields)))


if __name__ == "__main__":
    main()
