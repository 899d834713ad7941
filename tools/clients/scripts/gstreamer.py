"""GStreamer: its samples are the body of curl's request, since its own elements for HTTP show no answer."""

import subprocess
import sys

recording, server = sys.argv[1:]
PIPELINE = f"filesrc location={recording} ! wavparse ! audioconvert ! audioresample"
SAMPLES = "audio/x-raw,format=S16LE,rate=16000,channels=1"

convert = ["gst-launch-1.0", "--quiet", *PIPELINE.split(), "!", SAMPLES, "!", "fdsink"]
send = ["curl", "--silent", "--show-error", "--fail-with-body", "-X", "POST", "-T", "-"]
send += ["-H", "Content-Type: audio/pcm;rate=16000", f"{server}/v1/audio/transcriptions?response_format=text"]
with subprocess.Popen(convert, stdout=subprocess.PIPE) as source:
    answer = subprocess.run(send, stdin=source.stdout, capture_output=True, check=True, text=True).stdout
print(f"# samples\n{answer}")
