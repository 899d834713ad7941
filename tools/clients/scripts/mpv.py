"""mpv plays the recording with subtitles of the server; a script of its own prints each text that it shows."""

import re
import subprocess
import sys
from pathlib import Path

import subtitles

recording, server = sys.argv[1:]
SHOWN = "mp.observe_property('sub-text', 'string', function(_, text) if text and text ~= '' then print(text) end end)"
QUIET = ["--msg-level=all=no,shown=info", "--no-term-osd", "--term-status-msg="]

Path("shown.lua").write_text(SHOWN)
for wanted in ("srt", "vtt"):
    file = subtitles.written(recording, server, wanted, Path())
    command = ["mpv", "--no-config", "--no-video", "--ao=null", "--speed=2", "--script=shown.lua", *QUIET]
    played = subprocess.run(
        [*command, f"--sub-file={file}", recording], capture_output=True, text=True, check=True, timeout=120
    )
    print(f"# shows {wanted}\n" + "\n".join(re.findall(r"^\[shown\] (.*)", played.stdout, re.MULTILINE)))
