"""`asr-server` with the same decoders, which have two seconds of CPU time for a file. Run as a script."""

from __future__ import annotations

import functools
import sys

from asr_server.audio import decoder_wire
from asr_server.cli.main import main

LIMIT_S = 2.0

if __name__ == "__main__":
    decoder_wire.DecodeLimits = functools.partial(decoder_wire.DecodeLimits, cpu_s=LIMIT_S)  # type: ignore[misc, assignment]
    sys.exit(main(["serve"]))
