"""LiveKit Agents with this server as its ears: python livekit_stt.py recording.wav [SERVER] [KEY]

Needs `pip install livekit-agents livekit-plugins-openai`; `make clients` runs it with version 1.8.9 of both.
In an agent, `speech` is what goes into `AgentSession(stt=speech, ...)`. Without `use_realtime` LiveKit cuts the audio
into utterances with its own voice detector and sends each as a file.
"""

import asyncio
import sys
import wave

from livekit import rtc
from livekit.plugins import openai

recording = sys.argv[1]
server = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8100"
key = sys.argv[3] if len(sys.argv) > 3 else "none"


async def main() -> None:
    speech = openai.STT(
        base_url=f"{server}/v1",
        api_key=key,
        model="whisper-1",
        language="en",
        use_realtime=False,
    )
    with wave.open(recording) as audio:
        count = audio.getnframes()
        frame = rtc.AudioFrame(audio.readframes(count), audio.getframerate(), audio.getnchannels(), count)
    heard = await speech.recognize([frame])
    print(heard.alternatives[0].text)
    await speech.aclose()


asyncio.run(main())
