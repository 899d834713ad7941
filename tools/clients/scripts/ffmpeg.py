"""FFmpeg: its output is the body of curl's request, since FFmpeg itself sends a body and reads no answer."""

import subprocess
import sys

recording, server = sys.argv[1:]
URL = f"{server}/v1/audio/transcriptions?response_format=text"
KINDS = {"WAV": ("wav", "audio/wav"), "samples": ("s16le", "audio/pcm;rate=16000")}
SAMPLES = ("-ac", "1", "-ar", "16000")

for what, (output, media_type) in KINDS.items():
    convert = ["ffmpeg", "-loglevel", "error", "-i", recording, *SAMPLES, "-f", output, "-"]
    send = ["curl", "--silent", "--show-error", "--fail-with-body", "-X", "POST", "-T", "-"]
    with subprocess.Popen(convert, stdout=subprocess.PIPE) as source:
        command = [*send, "-H", f"Content-Type: {media_type}", URL]
        answer = subprocess.run(command, stdin=source.stdout, capture_output=True, check=True, text=True).stdout
    print(f"# {what}\n{answer}")
