"""What Home Assistant says to `asr-server wyoming`: python wyoming_client.py recording.wav [HOST] [PORT]

Needs `pip install wyoming`. Good for trying the bridge before Home Assistant is told of it.
"""

import asyncio
import sys
import wave

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop, wav_to_chunks
from wyoming.client import AsyncTcpClient
from wyoming.error import Error

recording = sys.argv[1]
host = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
port = int(sys.argv[3]) if len(sys.argv) > 3 else 10300


async def main() -> None:
    async with AsyncTcpClient(host, port) as client:
        await client.write_event(Transcribe(language="en").event())
        with wave.open(recording) as audio:
            for event in wav_to_chunks(audio, 1024, start_event=True, stop_event=True):
                assert isinstance(event, AudioStart | AudioChunk | AudioStop)
                await client.write_event(event.event())
        while (event := await client.read_event()) is not None:
            if Transcript.is_type(event.type):
                print(Transcript.from_event(event).text)
                break
            if Error.is_type(event.type):
                raise SystemExit(Error.from_event(event).text)


asyncio.run(main())
