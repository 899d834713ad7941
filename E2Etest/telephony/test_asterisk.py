"""Calls through Asterisk itself, where it is installed: one channel plays a recording, the other sends it here."""

import shutil
import subprocess
import uuid
from contextlib import contextmanager

import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import ready, until
from E2Etest.drive.session import pcm_of
from E2Etest.telephony import phones
from E2Etest.telephony.conftest import bridged

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("asterisk") is None, reason="needs Asterisk, 22.8 or later for chan_websocket"),
]
SECRET = "sesame-of-this-test"
EARLY_MODULES = ("res_sorcery_config", "res_sorcery_memory")
MODULES = (
    *("pbx_config", "res_clioriginate", "app_playback", "app_dial", "format_sln", "codec_ulaw", "codec_resample"),
    *("res_timing_timerfd", "bridge_simple", "res_audiosocket", "app_audiosocket", "res_http_websocket"),
    *("res_websocket_client", "chan_websocket"),
)
DIALPLAN = """
[calls]
exten => talk,1,Answer()
 same => n,Wait(1)
 same => n,Playback({recording})
 same => n,Wait(1)
exten => audiosocket,1,Answer()
 same => n,AudioSocket({call},127.0.0.1:{audiosocket_port})
exten => plain,1,Dial(WebSocket/asr/c(ulaw))
exten => json,1,Dial(WebSocket/asr/c(slin16)f(json))
"""
CLIENT = """
[asr]
type = websocket_client
uri = ws://127.0.0.1:{port}/asterisk
protocols = media
connection_type = per_call_config
username = asterisk
password = {secret}
tls_enabled = no
"""


@contextmanager
def _asterisk(folder, bridge, call, samples):
    """Asterisk, which has no other configuration. Yields a function that runs one of its commands."""
    (folder / "recording.sln").write_bytes(phones.at_rate(samples, 8_000).tobytes())
    values = {"recording": folder / "recording", "call": call, "port": bridge.port, "secret": SECRET}
    values["audiosocket_port"] = bridge.audiosocket_port
    own = "".join(f"ast{name}dir => {folder}\n" for name in ("etc", "db", "spool", "run", "log"))
    loaded = [*(f"preload => {name}.so\n" for name in EARLY_MODULES), *(f"load => {name}.so\n" for name in MODULES)]
    for name, content in {
        "asterisk": f"[directories]\n{own}",
        "modules": f"[modules]\nautoload = no\n{''.join(loaded)}",
        "extensions": DIALPLAN.format(**values),
        "websocket_client": CLIENT.format(**values),
        "logger": "[logfiles]\nconsole => notice,warning,error\n",
    }.items():
        (folder / f"{name}.conf").write_text(content)
    program = ["asterisk", "-C", str(folder / "asterisk.conf")]

    def command(text):
        return subprocess.run([*program, "-rx", text], capture_output=True, text=True, check=False, timeout=20)

    with (
        (folder / "output").open("wb") as output,
        subprocess.Popen([*program, "-f"], stdout=output, stderr=output) as process,
    ):
        try:
            until(lambda: "booted" in command("core waitfullybooted").stdout, state=(folder / "output").read_text)
            yield command
        finally:
            command("core stop now")
            process.wait(timeout=60)


@pytest.mark.parametrize("way", ["audiosocket", "plain", "json"])
def test_a_call_through_asterisk(tmp_path, way):
    """`AudioSocket()`, and `Dial(WebSocket/...)` with events in either form and a password."""
    (clip,) = recordings.real_clips("librivox_0920")
    spoken = recordings.Spoken(pcm_of(clip.path), recordings.plain_words(clip.text), errors=4)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    call = str(uuid.uuid4())
    with (
        ready(tmp_path / "log", MODEL_ID="moonshine-tiny-en") as english,
        bridged(english.base, "--secret-file", str(secret), "-l", "en") as bridge,
        _asterisk(tmp_path, bridge, call, spoken.samples) as command,
    ):
        command(f"channel originate Local/talk@calls extension {way}@calls")
        messages = bridge.wait_for(lambda messages: any(m["type"] == "call_ended" for m in messages))
    assert messages[-1]["reason"] == "hangup"
    assert messages[0]["type"] == "call_started"
    if way == "audiosocket":
        assert messages[0]["call"] == call
    spoken.check(" ".join(message["text"] for message in messages if message["type"] == "text"))
