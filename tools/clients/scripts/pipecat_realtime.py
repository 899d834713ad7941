"""Pipecat: a pipeline with its service for realtime transcription, and its service for speech."""

import asyncio
import sys
import wave

import numpy as np
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.stt import OpenAIRealtimeSTTService
from pipecat.services.openai.tts import OpenAITTSService

recording, server = sys.argv[1:]
RATE = 24_000
BLOCK_S = 0.05
PAUSE_S = 4.0
# The pauses of the recording are shorter: it is one turn.
TURN = {"type": "server_vad", "silence_duration_ms": 1_500}


def speech() -> bytes:
    """Return the recording and a pause at the rate of realtime sessions, by linear interpolation."""
    with wave.open(recording) as audio:
        rate, found = audio.getframerate(), np.frombuffer(audio.readframes(audio.getnframes()), np.int16)
    places = np.arange(len(found) * RATE // rate) * rate / RATE
    return np.interp(places, np.arange(len(found)), found).astype(np.int16).tobytes() + bytes(int(2 * RATE * PAUSE_S))


class Keeper(FrameProcessor):
    """Keeps what comes out of the service before it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.heard = asyncio.Event()
        self.audio_bytes = 0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self.texts.append(frame.text)
            self.heard.set()
        if isinstance(frame, TTSAudioRawFrame):
            self.audio_bytes += len(frame.audio)
        await self.push_frame(frame, direction)


async def main() -> None:
    settings = OpenAIRealtimeSTTService.Settings(model="gpt-4o-transcribe")
    ears = OpenAIRealtimeSTTService(
        api_key="none",
        base_url=f"{server.replace('http', 'ws', 1)}/v1/realtime",
        settings=settings,
        turn_detection=TURN,
    )
    mouth = OpenAITTSService(api_key="none", base_url=f"{server}/v1")
    keeper = Keeper()
    task = PipelineTask(Pipeline([ears, mouth, keeper]), params=PipelineParams(audio_in_sample_rate=RATE))

    async def send() -> None:
        await asyncio.sleep(5)  # the session opens meanwhile
        audio, size = speech(), int(2 * RATE * BLOCK_S)
        for at in range(0, len(audio), size):
            block = audio[at : at + size]
            await task.queue_frame(InputAudioRawFrame(audio=block, sample_rate=RATE, num_channels=1))
            await asyncio.sleep(BLOCK_S)
        await keeper.heard.wait()
        await task.queue_frames([TTSSpeakFrame("Turn on the lights."), EndFrame()])

    async with asyncio.timeout(300):
        await asyncio.gather(PipelineRunner(handle_sigint=False).run(task), send())
    print("# realtime\n" + " ".join(keeper.texts))
    if keeper.audio_bytes < 10_000:
        raise RuntimeError(f"{keeper.audio_bytes} bytes of speech")


asyncio.run(main())
