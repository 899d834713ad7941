"""Pipecat with this server as its ears: python pipecat_stt.py recording.wav [SERVER] [KEY]

Needs `pip install "pipecat-ai[openai]"`; `make clients` runs it with version 1.14.0. In a bot, `speech` stands
in the `Pipeline` behind the transport's input; Pipecat's voice detector ends the utterances, each sent as a file.
"""

import asyncio
import sys
from pathlib import Path

from pipecat.frames.frames import TranscriptionFrame
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.transcriptions.language import Language

recording = sys.argv[1]
server = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8100"
key = sys.argv[3] if len(sys.argv) > 3 else "none"
audio = Path(recording).read_bytes()


async def main() -> None:
    speech = OpenAISTTService(
        base_url=f"{server}/v1",
        api_key=key,
        settings=OpenAISTTService.Settings(model="whisper-1", language=Language.EN),
    )
    async for frame in speech.run_stt(audio):
        if isinstance(frame, TranscriptionFrame):
            print(frame.text)


asyncio.run(main())
