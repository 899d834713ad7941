"""curl: the recording itself as the body, from standard input, with the fields in the query; and the form of
whisper-asr-webservice."""

import subprocess
import sys

recording, server = sys.argv[1:]
BODY = ("-X", "POST", "-T", "-", "-H", "Content-Type: audio/wav")


def answer(*arguments: str) -> str:
    with open(recording, "rb") as audio:
        command = ["curl", "--silent", "--show-error", "--fail-with-body", *arguments]
        return subprocess.run(command, stdin=audio, capture_output=True, check=True, text=True).stdout


print("# body, text\n" + answer(*BODY, f"{server}/v1/audio/transcriptions?response_format=text"))
print("# body, srt\n" + answer(*BODY, f"{server}/v1/audio/subtitles"))
print("# ASR webservice, vtt\n" + answer("-F", f"audio_file=@{recording}", f"{server}/asr?output=vtt"))
