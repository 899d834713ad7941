"""Completion: the words for a command line, and the scripts in their shells."""

import os
import shutil
import subprocess
import sys

import pytest

from asr_server.cli.complete import candidates
from asr_server.cli.main import main


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tran", ["transcribe", "translate"]),
        ("worker", []),
        ("transcribe --for", ["--format", "--force"]),
        ("transcribe a.wav --output_f", []),
        ("transcribe -f srt,t", ["srt,text"]),
        ("subtitles -f v", ["vtt"]),
        ("transcribe -l Ger", ["German"]),
        ("subtitles --mode ", ["accurate", "fast"]),
        ("speak --voice s", ["sage", "shimmer"]),
        ("speak -f o", ["opus"]),
        ("models v", ["verify"]),
        ("models download --rev", ["--revision"]),
        ("completion z", ["zsh"]),
        ("transcribe ta", []),
        ("transcribe -o ", []),
        ("nothing -", ["-h", "--help", "--version"]),
    ],
)
def test_the_words_that_may_stand_next(line, found):
    """Commands, options, values; none where a file stands, and none of what the help leaves out."""
    assert candidates(line.split(" ")) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_works_in_its_shell(shell, tmp_path, capsys):
    """`asr-server transcribe a.wav --skip` and a tab."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    script, command = tmp_path / "script", tmp_path / "asr-server"
    script.write_text(capsys.readouterr().out)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m asr_server "$@"\n')
    command.chmod(0o755)
    typed = "asr-server transcribe a.wav --skip"
    in_shell = {
        "bash": f"source {script}; COMP_WORDS=({typed}); COMP_CWORD=3; _asr_server; echo ${{COMPREPLY[@]}}",
        "zsh": f"compdef() {{}}; source {script}; words=({typed}); CURRENT=4; "
        "compadd() { print -l -- ${(P)2} }; _asr_server",
        "fish": f"source {script}; complete -C '{typed}'",
    }
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([shell, "-c", in_shell[shell]], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "--skip-existing", done.stderr
