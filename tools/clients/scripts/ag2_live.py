"""AG2, which AutoGen became: its configurations for files, for realtime sessions and for speech."""

import asyncio
import sys
import wave

import numpy as np
from ag2.events import RecordedAudioEvent, TranscriptionCompletedEvent
from ag2.live import LiveAgent
from ag2.live import openai as parts
from ag2.live.stt import VoiceInput
from openai import AsyncOpenAI

recording, server = sys.argv[1:]
RATE = 24_000
# The pauses of the recording are shorter: it is one turn.
TURN = {"type": "server_vad", "silence_duration_ms": 1_500}


class Nobody:
    """The listener that a configuration for files reports its events to."""

    async def send(self, event: object) -> None:
        """Leave the event alone."""


async def first_turn(client: AsyncOpenAI, audio: np.ndarray) -> str:
    """Return the text of the first turn of a session, which is sent as fast as speech."""
    listening = parts.InputConfig(transcription={"model": "gpt-4o-transcribe"}, turn_detection=TURN)
    agent = LiveAgent("listener", config=parts.RealTimeConfig("gpt-realtime", input=listening, client=client))
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def keep(event: TranscriptionCompletedEvent) -> None:
        heard.put_nowait(event.content)

    async with agent.run() as context:
        with context.stream.where(TranscriptionCompletedEvent).sub_scope(keep):
            for block in np.array_split(np.concatenate([audio, np.zeros(4 * RATE, np.int16)]), 150):
                await context.send(RecordedAudioEvent(block.tobytes()))
                await asyncio.sleep(len(block) / RATE)
            return await asyncio.wait_for(heard.get(), 120)


async def main() -> None:
    with wave.open(recording) as file:
        rate, found = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    client = AsyncOpenAI(base_url=f"{server}/v1", api_key="none")
    voice = VoiceInput(found.tobytes(), rate, 1)
    print("# events\n" + await parts.STTConfig("whisper-1", client=client).transcribe(voice, Nobody()))
    places = np.arange(len(found) * RATE // rate) * rate / RATE
    samples = np.interp(places, np.arange(len(found)), found).astype(np.int16)
    print("# realtime\n" + await first_turn(client, samples))
    spoken = await parts.TTSConfig("tts-1", client=client).synthesize("Turn on the lights.")
    if len(spoken) < RATE:
        raise RuntimeError(f"{len(spoken)} bytes of speech")


asyncio.run(main())
