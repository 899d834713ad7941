"""SpeechRecognition: `recognize_openai`, which sends the recording as WAV."""

import os
import sys

import speech_recognition

recording, server = sys.argv[1:]
os.environ |= {"OPENAI_BASE_URL": f"{server}/v1", "OPENAI_API_KEY": "none"}
recognizer = speech_recognition.Recognizer()
with speech_recognition.AudioFile(recording) as source:
    audio = recognizer.record(source)
print("# file")
print(recognizer.recognize_openai(audio, model="whisper-1", language="en"))
