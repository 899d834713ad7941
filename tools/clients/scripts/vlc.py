"""VLC plays the recording with subtitles of the server, without a screen. Its log tells which reader it chose for them,
and each cue that it would have drawn."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import subtitles

recording, server = sys.argv[1:]
READERS = {"srt": "detected SubRIP format", "vtt": 'using demux module "webvtt"'}
# VLC refuses to be root.
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}

for wanted, reader in READERS.items():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        file = subtitles.written(recording, server, wanted, folder)
        shutil.copy(recording, folder / "recording.wav")
        command = ["vlc", "-I", "dummy", "-vv", "--no-audio", "--play-and-exit"]
        command += ["--sub-file", str(file), str(folder / "recording.wav")]
        environment = {**os.environ, "HOME": name}
        log = subprocess.run(command, stderr=subprocess.PIPE, timeout=120, env=environment, **NOBODY).stderr.decode()
        drawn = log.count("no vout found, dropping subpicture") if reader in log else 0
        print(f"# reads {wanted}\n{drawn} of {file.read_text().count(' --> ')} cues")
