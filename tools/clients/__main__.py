"""`python -m tools.clients [NAME ...]`: run the clients, or those named, against a server with the English model, and
write what they did into docs/change/clients.md. Rows of clients that did not run stay, with their date."""

from __future__ import annotations

import datetime
import subprocess
import sys
import tempfile
from pathlib import Path

from asr_server.features.moonshine import package
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import pcm_of
from E2Etest.wyoming.conftest import bridged
from tools.clients import page, running
from tools.clients.catalogue import CLIENTS, Client


def main() -> int:
    """The exit code: 1 if a client failed."""
    sys.stdout.reconfigure(line_buffering=True)
    named = set(sys.argv[1:])
    unknown = named - {client.short_name for client in CLIENTS}
    if unknown:
        print(f"No such client: {', '.join(sorted(unknown))}. There are: {', '.join(c.short_name for c in CLIENTS)}.")
        return 2
    chosen = [client for client in CLIENTS if client.short_name in named or not (named or client.large)]
    with (
        tempfile.TemporaryDirectory() as name,
        ready(Path(name) / "log", MODEL_ID=package.MODEL_ID) as server,
        bridged(server.base) as bridge,
    ):
        results = [_run(client, server.base, Path(name), WYOMING_PORT=str(bridge)) for client in chosen]
    return 0 if all(results) else 1


def _run(client: Client, server: str, folder: Path, **environment: str) -> bool:
    """Run one client, put its row into the page, and say what happened; whether it did not fail."""
    (clip,) = recordings.real_clips(client.clip)
    recording = folder / f"{client.clip}.wav"
    recording.write_bytes(recordings.wav(pcm_of(clip.path)))
    try:
        version = running.version(client)
        trials = running.trials(client, recording, server, clip.text, **environment)
    except running.NotInstalled as reason:
        print(f"{client.name}: not run. {reason}")
        return True
    except (RuntimeError, subprocess.SubprocessError) as fault:
        print(f"{client.name}: failed. {fault}")
        return False
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = {**page.read(), client.name: page.row(version, client.note, trials, today)}
    page.write(rows)
    print(f"{client.name} {version}: {rows[client.name].worked}")
    for trial in trials:
        if not trial.right:
            print(f"  {trial.what}:\n{trial.printed}")
    return all(trial.right for trial in trials)


if __name__ == "__main__":
    sys.exit(main())
