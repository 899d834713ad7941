"""OpenAI's Agents SDK for Python: the models of its voice pipeline, for files, for realtime sessions and for speech."""

import asyncio
import sys
import wave

import numpy as np
from agents import set_tracing_disabled
from agents.voice import AudioInput, StreamedAudioInput, STTModelSettings, TTSModelSettings
from agents.voice.models.openai_stt import OpenAISTTModel
from agents.voice.models.openai_tts import OpenAITTSModel
from openai import AsyncOpenAI

recording, server = sys.argv[1:]
RATE = 24_000
# The pauses of the recording are shorter: it is one turn.
TURN = {"type": "server_vad", "silence_duration_ms": 1_500}
NO_TRACE = {"trace_include_sensitive_data": False, "trace_include_sensitive_audio_data": False}


def samples() -> np.ndarray:
    """Return the recording at the rate of realtime sessions, by linear interpolation."""
    with wave.open(recording) as audio:
        rate, found = audio.getframerate(), np.frombuffer(audio.readframes(audio.getnframes()), np.int16)
    places = np.arange(len(found) * RATE // rate) * rate / RATE
    return np.interp(places, np.arange(len(found)), found).astype(np.int16)


async def first_turn(listener: OpenAISTTModel, audio: np.ndarray) -> str:
    """Return the text of the first turn of a session, which is sent as fast as speech."""
    source = StreamedAudioInput()
    session = await listener.create_session(source, STTModelSettings(turn_detection=TURN), **NO_TRACE)

    async def send() -> None:
        for block in np.array_split(np.concatenate([audio, np.zeros(4 * RATE, np.int16)]), 150):
            await source.add_audio(block)
            await asyncio.sleep(len(block) / RATE)

    sending = asyncio.create_task(send())
    text = await anext(aiter(session.transcribe_turns()))
    sending.cancel()
    await session.close()
    return text


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{server}/v1", api_key="none")
    listener = OpenAISTTModel("gpt-4o-transcribe", client)
    audio = samples()
    heard = await listener.transcribe(AudioInput(audio, frame_rate=RATE), STTModelSettings(), **NO_TRACE)
    print(f"# file\n{heard}")
    print(f"# realtime\n{await asyncio.wait_for(first_turn(listener, audio), 300)}")
    speaker = OpenAITTSModel("gpt-4o-mini-tts", client)
    spoken = b"".join([block async for block in speaker.run(heard, TTSModelSettings(voice="alloy"))])
    if len(spoken) < 2 * RATE:
        raise RuntimeError(f"{len(spoken)} bytes of speech")


asyncio.run(main())
