"""LiveKit Agents: realtime transcription and speech of its plugin for OpenAI, without a room."""

import asyncio
import sys
import wave

from livekit import rtc
from livekit.agents import stt
from livekit.agents.utils import http_context
from livekit.plugins import openai

recording, server = sys.argv[1:]
BLOCK_S = 0.05
PAUSE_S = 4.0
# The pauses of the recording are shorter: it is one turn.
TURN = {"type": "server_vad", "silence_duration_ms": 1_500}


async def transcribed() -> str:
    """Return the final transcript of the recording, sent as a microphone would, and of a pause after it."""
    service = openai.STT(
        base_url=f"{server}/v1", api_key="none", model="gpt-4o-transcribe", use_realtime=True, turn_detection=TURN
    )
    stream = service.stream()

    async def send() -> None:
        with wave.open(recording) as audio:
            rate, count = audio.getframerate(), int(audio.getframerate() * BLOCK_S)
            blocks = list(iter(lambda: audio.readframes(count), b""))
        for block in [*blocks, *[bytes(2 * count)] * round(PAUSE_S / BLOCK_S)]:
            stream.push_frame(rtc.AudioFrame(block, rate, 1, len(block) // 2))
            await asyncio.sleep(BLOCK_S)

    sending = asyncio.create_task(send())
    text = ""
    async for event in stream:
        if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT:
            text = event.alternatives[0].text
            break
    await sending
    await stream.aclose()
    await service.aclose()
    return text


async def main() -> None:
    async with http_context.open():
        print(f"# realtime\n{await asyncio.wait_for(transcribed(), 300)}")
        service = openai.TTS(base_url=f"{server}/v1", api_key="none", model="tts-1", voice="alloy")
        samples = sum([event.frame.samples_per_channel async for event in service.synthesize("Turn on the lights.")])
        if samples < 10_000:
            raise RuntimeError(f"{samples} samples of speech")
        await service.aclose()


asyncio.run(main())
