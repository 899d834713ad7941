"""OVOS: its plugin for a server of speech-to-text, which sends the recording as the body and takes text."""

import sys

from ovos_stt_plugin_server import OVOSHTTPServerSTT
from speech_recognition import AudioFile, Recognizer

recording, server = sys.argv[1:]
with AudioFile(recording) as source:
    audio = Recognizer().record(source)
plugin = OVOSHTTPServerSTT({"url": f"{server}/v1/audio/transcriptions?response_format=text", "timeout": 60})
print(f"# body, text\n{plugin.execute(audio, 'en-US')}")
