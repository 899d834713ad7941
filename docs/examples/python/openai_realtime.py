"""Live words by OpenAI's realtime protocol: python openai_realtime.py recording.wav [SERVER] [KEY]

Needs `pip install "openai[realtime]"`. The recording, 16-bit mono WAV, stands for a microphone.
"""

import base64
import sys
import threading
import wave

import openai

recording = sys.argv[1]
server = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8100"
key = sys.argv[3] if len(sys.argv) > 3 else "none"
client = openai.OpenAI(
    base_url=f"{server}/v1",
    api_key=key,
    # Clients up to 2.24 dial wss:// unless they are told.
    websocket_base_url=f"{server.replace('http', 'ws', 1)}/v1",
)


def speak(connection, audio):
    while piece := audio.readframes(audio.getframerate() // 10):
        connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
    connection.input_audio_buffer.commit()


with wave.open(recording) as audio, client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
    told = {
        "format": {"type": "audio/pcm", "rate": audio.getframerate()},
        "transcription": {"model": "whisper-1", "language": "en"},
        "turn_detection": None,  # or {"type": "server_vad"}: then pauses end the turns, and no commit is needed
    }
    connection.session.update(session={"type": "transcription", "audio": {"input": told}})
    speaker = threading.Thread(target=speak, args=(connection, audio))
    speaker.start()
    for event in connection:
        if event.type == "conversation.item.input_audio_transcription.delta":
            print(event.delta, end="", flush=True)
        elif event.type == "conversation.item.input_audio_transcription.completed":
            print(f"\n{event.transcript}")
            break
        elif event.type == "error":
            raise SystemExit(event.error.message)
    speaker.join()
