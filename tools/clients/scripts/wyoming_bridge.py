"""wyoming-openai: a client of the `wyoming` package before it and the server behind it, for each of its ways to ask."""

import asyncio
import sys
import wave

import program
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeVoice

recording, server = sys.argv[1:]
FORMAT = (16_000, 2, 1)
# Its names of what it thinks the server is, for speech; and for recordings of the model, of a stream or of a session.
WAYS = {
    "file": ["--stt-models", "gpt-transcribe", "--tts-backend", "SPEACHES"],
    "stream": ["--stt-streaming-models", "gpt-4o-transcribe", "--tts-backend", "KOKORO_FASTAPI"],
    "realtime": ["--stt-realtime-models", "gpt-4o-transcribe", "--tts-backend", "OPENAI"],
}


async def until(client: AsyncTcpClient, kind: str) -> Event:
    """Return the next event of this kind."""
    while event := await asyncio.wait_for(client.read_event(), 120):
        if event.type == kind:
            return event
    raise RuntimeError(f"closed before {kind}")


async def talk(port: int) -> str:
    """Return the text of the recording, after a sentence in the first voice that is offered."""
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Describe().event())
        voice = Info.from_event(await until(client, "info")).tts[0].voices[0]
        await client.write_event(Synthesize("Turn on the lights.", SynthesizeVoice(voice.name)).event())
        await until(client, "audio-chunk")
        await until(client, "audio-stop")
        await client.write_event(Transcribe(language="en").event())
        await client.write_event(AudioStart(*FORMAT).event())
        with wave.open(recording) as audio:
            while block := audio.readframes(1_600):
                await client.write_event(AudioChunk(*FORMAT, block).event())
        await client.write_event(AudioStop().event())
        return Transcript.from_event(await until(client, "transcript")).text


async def main() -> None:
    for what, options in WAYS.items():
        port = program.free_port()
        command = [sys.executable, "-m", "wyoming_openai", "--uri", f"tcp://127.0.0.1:{port}", "--languages", "en"]
        command += ["--stt-openai-url", f"{server}/v1", "--tts-openai-url", f"{server}/v1", "--tts-models", "tts-1"]
        with program.running([*command, "--stt-backend", "OPENAI", *options], f"tcp://127.0.0.1:{port}"):
            print(f"# {what}\n{await talk(port)}")


asyncio.run(main())
