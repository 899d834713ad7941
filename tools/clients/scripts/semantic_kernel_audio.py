"""Semantic Kernel: audio to text and text to audio by OpenAI's services."""

import asyncio
import sys

from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.open_ai import OpenAIAudioToText, OpenAITextToAudio
from semantic_kernel.contents import AudioContent

recording, server = sys.argv[1:]


async def main() -> None:
    client = AsyncOpenAI(base_url=f"{server}/v1", api_key="none")
    listener = OpenAIAudioToText(ai_model_id="whisper-1", async_client=client)
    text = (await listener.get_text_contents(AudioContent.from_audio_file(recording)))[0].text
    print(f"# file\n{text}")
    speaker = OpenAITextToAudio(ai_model_id="tts-1", async_client=client)
    (audio,) = await speaker.get_audio_contents(text)
    if len(audio.data) < 10_000:
        raise RuntimeError(f"{len(audio.data)} bytes of speech")


asyncio.run(main())
