"""LiteLLM's proxy in front of the server: a file by OpenAI's client, and a realtime session."""

import asyncio
import base64
import json
import sys
import wave
from array import array
from pathlib import Path

import openai
import program
import websockets

recording, server = sys.argv[1:]
KEY = "sk-0123456789abcdef0123456789abcdef"
CONFIG = """
model_list:
  - model_name: speech
    litellm_params: {model: openai/whisper-1, api_base: SERVER/v1, api_key: none}
    model_info: {mode: audio_transcription}
  - model_name: live
    litellm_params: {model: openai/gpt-4o-transcribe, api_base: SERVER/v1, api_key: none}
    model_info: {mode: realtime}
"""


async def realtime(address: str) -> str:
    url = f"ws://{address}/v1/realtime?model=live&intent=transcription"
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}) as session:
        shape = {"format": {"type": "audio/pcm", "rate": 24_000}, "turn_detection": None}
        audio_input = {**shape, "transcription": {"model": "gpt-4o-transcribe", "language": "en"}}
        update = {"type": "transcription", "audio": {"input": audio_input}}
        await session.send(json.dumps({"type": "session.update", "session": update}))
        speech = speech_at_24_khz()
        for at in range(0, len(speech), 48_000):
            chunk = base64.b64encode(speech[at : at + 48_000]).decode()
            await session.send(json.dumps({"type": "input_audio_buffer.append", "audio": chunk}))
        await session.send(json.dumps({"type": "input_audio_buffer.commit"}))
        async for message in session:
            event = json.loads(message)
            if event["type"] == "error":
                raise RuntimeError(event)
            if event["type"] == "conversation.item.input_audio_transcription.completed":
                return str(event["transcript"])
    raise RuntimeError("The session ended without a transcript.")


def speech_at_24_khz() -> bytes:
    """Three samples for each two of the recording, which has 16 kHz, by linear interpolation."""
    with wave.open(recording) as audio:
        samples = array("h", audio.readframes(audio.getnframes()))
    wide = array("h")
    for first, second, third in zip(samples[::2], samples[1::2], samples[2::2], strict=False):
        wide.extend((first, (first + 2 * second) // 3, (2 * second + third) // 3))
    return wide.tobytes()


Path("litellm.yaml").write_text(CONFIG.replace("SERVER", server))
address = f"127.0.0.1:{program.free_port()}"
command = [str(Path(sys.executable).with_name("litellm")), "--config", "litellm.yaml", "--host", "127.0.0.1"]
settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
with program.running(
    [*command, "--port", address.partition(":")[2]], f"http://{address}/health/liveliness", **settings
):
    client = openai.OpenAI(base_url=f"http://{address}/v1", api_key=KEY)
    answer = client.audio.transcriptions.create(file=Path(recording), model="speech")
    print(f"# file by the proxy\n{answer.text}")
    print(f"# realtime by the proxy\n{asyncio.run(realtime(address))}")
