"""The table of commands."""

import importlib
import os
import shlex
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

from asr_server.cli.conftest import tls
from asr_server.cli.listening import certificate_error
from asr_server.cli.main import COMMANDS, EXTRAS, command_module, main
from asr_server.core.settings import Settings
from asr_server.recordings.requests import MAX_CLIPS_BYTES

MODEL_LIBRARIES = {"torch", "transformers", "qwen_asr", "qwen_tts", "onnxruntime", "openvino", "librosa"}
# What a program imports, and the heavy libraries that this does not load.
IMPORTED = [
    ("import asr_server.app", MODEL_LIBRARIES | {"av", "asyncpg", "sqlite3", "openai", "babel"}),
    (
        "import asr_server.client.files, asr_server.client.jobs, asr_server.client.live",
        {"numpy", "torch", "fastapi", "starlette", "pydantic", "uvicorn", "av", "onnxruntime", "babel"},
    ),
    (
        "from asr_server.cli.main import main\n"
        "for command in ([], ['transcribe'], ['subtitles'], ['speak'], ['evaluate']):\n"
        "    try: main([*command, '--help'])\n    except SystemExit: pass",
        {"torch", "httpx", "uvicorn", "websockets", "rich", "pydantic", "numpy", "huggingface_hub"},
    ),
]
# Command lines that are refused, each with a part of the message.
REFUSED = {
    "transcribe a.wav --jobs 0": "",
    "transcribe a.wav --output x --beside": "",
    "transcribe a.wav --server http://a --local": "",
    "transcribe a.wav --api-key secret": "",
    "transcribe a.wav --known-speaker Ann": "",
    "transcribe a.wav --known-speaker =a.wav": "",
    "translate a.wav --to de --term kitchen": "",
    "evaluate talks --folders speakers": "is not one of language, speaker",
    "subtitles a.wav --max-line-chars 1": "",
    "demo --port 99999": "",
    "live --file a.wav --speed nan": "",
    "live --file a.wav --speed 1e-300": "",
    "live --file a.wav --device 1": "--device is for --mic",
    "live --file a.wav --format text,srt": "one format",
    "speak text --speed 0.2": "",
    "transcribe none.wav --stream --format srt": "--format",
    "transcribe none.wav --stream --beside": "--beside",
    "transcribe none.wav --stream --output x": "--output",
    "transcribe none.wav --stream --jobs 2": "--jobs",
    "transcribe none.wav --stream --job": "--stream",
    "transcribe none.wav --local --job": "--local",
    "align none.wav 'a text' --output a.docx": "--format",
    "subtitles none.wav --bilingual": "--to",
    "subtitles none.wav --format text": "srt",
    "transcribe none.wav --format srt,txt": "--output",
    "transcribe none.wav --format json,verbose_json": "verbose_json",
    "translate none.wav --to de --format text,srt": "vtt",
    "transcribe none.wav https://a.example/b.mp3": "curl -L https://a.example/b.mp3 | asr-server transcribe -",
    "transcribe a.wav --num-speakers 2": "--num-speakers needs --speakers",
    "transcribe a.wav --speakers --num-speakers ²": "1 to 40",
    "transcribe a.wav --known-speaker Ann=/dev/null": "--known-speaker needs --speakers",
    "transcribe a.wav --speakers --num-speakers 2 --min-speakers 1": "exact",
    "transcribe a.wav --speakers --min-speakers 3 --max-speakers 2": "more than",
    "transcribe a.wav --speakers --channel-mode split --max-speakers 2": "contradicts --channel-mode split",
    "transcribe a.wav --speakers --format json": "json does not show",
    "transcribe a.wav --speakers --known-speaker a=b --known-speaker c=d --known-speaker e=f --known-speaker g=h "
    "--known-speaker i=j": "at most 4",
    "transcribe a.wav --speakers --known-speaker Ann=/nowhere.wav": "cannot be read",
    "transcribe a.wav --speakers --known-speaker Ann=/dev/zero": f"{MAX_CLIPS_BYTES:_} bytes",  # a device has no end
    "subtitles a.wav --speaker-style none": "--speaker-style needs",
    "subtitles a.wav --speakers --speaker-style dash --to de": "not for translations",  # a cue is one text
    "export onnx --model demo --output /nowhere/x": "--output /nowhere/x",
    "export tensorrt --onnx /nowhere/x --output x": "/nowhere/x: there is no such file",
    f"export tensorrt --onnx {__file__} --output x --max-windows 0": "--max-windows is from 1 to 256",
    "trnscribe a.wav": "Did you mean transcribe?",
    "talk.mp3": "Did you mean asr-server transcribe talk.mp3?",
    "models lst": "Did you mean list?",
    "transcribe a.wav --fromat srt": "asr-server transcribe: unknown option --fromat. Did you mean --format?",
    "transcribe a.wav --format=str": "Did you mean srt?",
    "transcribe a.wav --language Germna": "--language: 'Germna' is not a language. Did you mean German?",
    "subtitles a.wav --mode fats": "--mode: 'fats' is not one of accurate, fast. Did you mean fast?",
}


def test_every_command_has_a_module_and_help(capsys):
    for name, purpose in COMMANDS.items():
        assert callable(command_module(name).add_arguments)
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code == 0, name
        assert purpose[1:] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", EXTRAS)
def test_a_command_whose_distribution_is_not_installed_says_what_to_install(name, capsys, monkeypatch):
    """In one line, and exits with 2 as for wrong arguments, whatever follows the name."""
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    for arguments in ([name], [name, "--help"]):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"asr-server {name}: not installed;")
        assert line.endswith(f"pip install ./extras/{EXTRAS[name]}.")


@pytest.mark.parametrize(
    "line", [pytest.param(one, marks=[pytest.mark.torch] * ("tensorrt" in one)) for one in REFUSED]
)
def test_wrong_arguments_exit_with_2(line, capsys):
    """Before anything is read. A line says what is wrong, with what was probably meant, and one where to read more."""
    try:
        code = main(shlex.split(line))
    except SystemExit as end:
        code = end.code
    error, *hint = capsys.readouterr().err.splitlines()
    assert (code, error.startswith("asr-server")) == (2, True)
    assert REFUSED[line] in error
    assert all(more.endswith(" --help") for more in hint)
    assert len(hint) <= 1


def test_a_port_in_use_is_reported_in_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        assert main(["serve", "--host", "127.0.0.1", "--port", port, "--model", "demo"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in (port, "in use", "--port", "PORT"))


def test_a_certificate_that_cannot_be_used_is_reported_in_one_line(capsys, monkeypatch, tmp_path):
    """The report comes before anything is built; a locked key is not asked for on the terminal."""
    both, locked = tls(tmp_path)["SSL_CERTFILE"], tmp_path / "locked.pem"
    certificate, _, key = both.partition(",")
    subprocess.run(["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", key, "-out", locked], check=True)
    assert certificate_error(Settings(_env_file=None, ssl_certfile=both)) == ""
    for file, said in ((locked, "passphrase"), (Path(__file__), "belong together")):
        monkeypatch.setenv("SSL_CERTFILE", f"{certificate},{file}")
        assert main(["serve", "--port", "0", "--model", "demo"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"SSL_CERTFILE={certificate},{file}" in error
        assert said in error


@pytest.mark.parametrize("fault", [None, PermissionError(13, "Permission denied")], ids=["latin-1", "unreadable"])
def test_a_dotenv_file_that_cannot_be_read_is_reported_in_one_line(fault, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path(".env").write_bytes(b"MODEL_ID=d\xe9mo\n")
    if fault:
        monkeypatch.setattr("dotenv.main.open", Mock(side_effect=fault), raising=False)
    assert main(["healthcheck"]) == 2
    assert ".env in the working directory" in capsys.readouterr().err


def _saying(tmp_path, run):
    """Return the source of a program with one command, which runs this."""
    (tmp_path / "said.py").write_text(
        "import sys; from asr_server.cli.failure import complain\n"
        "def add_arguments(parser): parser.set_defaults(run=run)\n"
        f"def run(_): {run}\n"
    )
    code = "from asr_server.cli import main; import sys; main.COMMANDS['said'] = 'x'; sys.exit(main.main(['said']))"
    return f"import asr_server.cli as c; c.__path__.append({str(tmp_path)!r}); {code}"


def test_characters_that_the_locale_cannot_encode_are_question_marks(tmp_path):
    environment = {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _saying(tmp_path, "print('caf\\xe9 \\u5f55')")]
    assert subprocess.run(command, env=environment, capture_output=True, check=True).stdout == b"caf\xe9 ?\n"


def test_ctrl_c_while_a_command_is_imported_exits_with_130(monkeypatch, capsys):
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=KeyboardInterrupt))
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "asr-server doctor: stopped, and no file was written.\n"


def test_a_full_disk_is_one_line(tmp_path):
    """Whatever was to be written to standard output: no traceback, also none when the interpreter flushes."""
    command = [sys.executable, "-c", _saying(tmp_path, "print('words')")]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered, check=False)
    assert (done.returncode, done.stderr) == (1, "asr-server said: cannot_write: No space left on device.\n")


@pytest.mark.parametrize(("closed", "printed"), [(">&-", b""), ("2>&-", b"words\n"), (">&- 2>&-", b"")])
def test_closed_outputs_get_nothing(tmp_path, closed, printed):
    """Text for a closed output is not printed elsewhere: no error among the text. The command runs all the same."""
    start = _saying(tmp_path, r"sys.stdout.buffer.write(b'words\n'); complain('said', 'an error'); return 7")
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, start], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (7, printed)


def test_numpy_computes_on_one_thread_in_every_command():
    """The threads of OpenBLAS start when numpy is imported, whatever command runs."""
    code = (
        "import contextlib, os; from asr_server.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['--version'])\n"
        "import numpy; print(len(os.listdir('/proc/self/task')))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "1"


@pytest.mark.slow("imports the server in a process of its own")
@pytest.mark.parametrize(("code", "heavy"), IMPORTED, ids=["server", "client", "help"])
def test_what_starts_often_loads_nothing_heavy(code, heavy):
    """Heavy imports would slow down each start and take memory while idle."""
    code = f"import sys\n{code}\nprint([*{heavy}.intersection(sys.modules)])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"
