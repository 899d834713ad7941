"""`asr-server speakers`, and the client behind it. People are tones."""

import pytest

from asr_server.features.speakers.diarization.conftest import ToneSpeakers, tone
from E2Etest.cli.commands import run
from E2Etest.drive import recordings


@pytest.mark.nightly
def test_a_voice_is_added_listed_and_deleted(start, tmp_path):
    """`add` prints the id, `list` a line for each voice; after `delete` there is none."""
    for name, hertz in (("ann.wav", 440), ("ann2.wav", 440), ("bob.wav", 1_000)):
        (tmp_path / name).write_bytes(recordings.wav(tone(hertz, 3)))
    (tmp_path / "key").write_text("sk-speakers")
    with start(speakers=ToneSpeakers(), API_KEYS="sk-speakers") as server:

        def speakers(*arguments):
            return run("speakers", *arguments, "--server", server.base, "--api-key-file", "key", cwd=tmp_path)

        added = speakers("add", "Ann\x1b", "ann.wav", "--consent", "note")
        assert (added.returncode, added.stdout) == (1, "")
        assert added.stderr.startswith("asr-server speakers: invalid_value: ")
        added = speakers("add", "Ann", "ann.wav", "ann2.wav", "--consent", "by letter")
        assert (added.returncode, added.stderr) == (0, "")
        identity = added.stdout.strip()
        listed = speakers("list").stdout
        assert listed.startswith(f"{identity}  20")
        assert listed.endswith("  Ann  (by letter)\n")
        refused = speakers("add", "Both", "ann.wav", "bob.wav", "--consent", "note")
        assert (refused.returncode, refused.stderr.split(":")[1]) == (1, " invalid_reference")
        assert speakers("delete", identity).returncode == 0
        assert speakers("list").stdout == ""
        said = "asr-server speakers: speaker_not_found: There is no voice of this id.\n"
        assert speakers("delete", identity).stderr == said
        missing = speakers("add", "Ann", "no.wav", "--consent", "x")
        said = "asr-server speakers: no_such_file: no.wav: No such file or directory.\n"
        assert (missing.returncode, missing.stderr) == (1, said)
    assert run("speakers", "list", "--server", "http://127.0.0.1:1").returncode == 3
