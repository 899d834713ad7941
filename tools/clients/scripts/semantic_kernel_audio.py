"""Semantic Kernel: its services for audio, with a client of OpenAI's that has the base URL."""

import asyncio
import sys

from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.open_ai import OpenAIAudioToText, OpenAITextToAudio
from semantic_kernel.contents import AudioContent

recording, server = sys.argv[1:]


async def main() -> None:
    client = AsyncOpenAI(base_url=f"{server}/v1", api_key="none")
    heard = OpenAIAudioToText(ai_model_id="whisper-1", async_client=client)
    text = (await heard.get_text_content(AudioContent(uri=recording))).text
    print(f"# file\n{text}")
    spoken = await OpenAITextToAudio(ai_model_id="tts-1", async_client=client).get_audio_content(text)
    if len(spoken.data) < 10_000:
        raise RuntimeError(f"{len(spoken.data)} bytes of speech")


asyncio.run(main())
