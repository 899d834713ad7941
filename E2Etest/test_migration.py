"""docs/start/migration.md: the command lines and the socket exchange of the earlier server, as its documents show them.

They run against a server with the fake engine, or the one at `E2E_BASE_URL`.
"""

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import srt

from asr_server.features.translation.conftest import ScriptedLlm
from E2Etest.drive import recordings
from E2Etest.drive.process import RunningServer

pytestmark = [pytest.mark.integration, pytest.mark.any_server]

PAGE = (Path(__file__).parents[1] / "docs" / "start" / "migration.md").read_text(encoding="utf-8")
SECTION = re.search(r"^## From the earlier.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)[0]
ADDRESS = "http://localhost:8100"


@pytest.fixture(scope="module")
def server(request):
    """One that can translate, without keys."""
    if "E2E_BASE_URL" in os.environ:
        with closing(RunningServer()) as running:
            yield running
        return
    start = request.getfixturevalue("start")
    with ScriptedLlm() as llm, start(OPENAI_BASE_URL=llm.base_url, TRANSLATE_MODEL="scripted") as own:
        yield own


@pytest.fixture(scope="module")
def folder(tmp_path_factory, spoken):
    """Where the lines run; with the recording that they name."""
    folder = tmp_path_factory.mktemp("lines")
    (folder / "recording.wav").write_bytes(recordings.wav(spoken.samples))
    return folder


@pytest.fixture(scope="module")
def curl(server, folder):
    """A function that runs the page's lines for a path, and gives what each printed or wrote."""
    lines = re.findall(r"^curl .*$", SECTION, re.MULTILINE)
    key = ["-H", f"Authorization: Bearer {server.key}"] if server.key else []

    def run(path):
        own = [line for line in lines if f"{ADDRESS}{path} " in f"{line} "]
        assert own, path
        return list(map(answered, own))

    def answered(line):
        command = ["bash", "-c", f'{line.replace(ADDRESS, server.base)} "$@"', "bash", *key]
        printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=100).stdout
        file = re.search(r" -o (\S+)", line)
        return (folder / file[1]).read_text(encoding="utf-8") if file else printed

    return run


@pytest.mark.smoke
def test_health_has_its_fields(curl):
    """State, model and GPU."""
    (answer,) = map(json.loads, curl("/health"))
    assert answer["status"] == "ok"
    assert isinstance(answer["model_loaded"], bool)
    assert answer["model_id"]
    assert {"cuda", "gpu_name", "gpu_allocated_mb", "gpu_reserved_mb"} <= set(answer)


@pytest.mark.smoke
def test_a_recording_needs_a_file_alone(curl, spoken):
    """Text and language; with `return_timestamps` the words with their times in order."""
    plain, timed = map(json.loads, curl("/v1/audio/transcriptions"))
    for answer in (plain, timed):
        spoken.check(answer["text"])
        assert answer["language"] == "English"
    assert "words" not in plain
    spoken.check(" ".join(word["word"] for word in timed["words"]))
    starts = [word["start"] for word in timed["words"]]
    assert starts == sorted(starts)


def test_the_stream_has_numbered_events_and_an_end(curl, spoken):
    """`text`, `language`, `is_final` and `chunk_index` in each event with text, then `done`; the partial texts join."""
    (body,) = curl("/v1/audio/transcriptions/stream")
    *events, done = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]
    assert done == {"done": True}
    texts = [event for event in events if "text" in event]
    assert all({"language", "is_final", "chunk_index"} <= set(event) for event in texts)
    assert [event["chunk_index"] for event in texts] == list(range(len(texts)))
    assert [event["is_final"] for event in texts] == [False] * (len(texts) - 1) + [True]
    (joined,) = re.findall(r"^ +(text = .*is_final.*)$", SECTION, re.MULTILINE)
    found = {"events": events}
    exec(joined, found)
    spoken.check(found["text"])


@pytest.mark.nightly
def test_subtitles_in_both_modes(curl, spoken):
    """Numbered cues in order, with text; the words of all are those that were said."""
    for text in curl("/v1/audio/subtitles"):
        cues = list(srt.parse(text, ignore_errors=False))
        assert [cue.index for cue in cues] == list(range(1, len(cues) + 1))
        times = [time for cue in cues for time in (cue.start, cue.end)]
        assert times == sorted(times)
        spoken.check(" ".join(cue.content for cue in cues))


@pytest.mark.nightly
def test_translations_as_text_and_as_subtitles(curl):
    """In json to Chinese, in srt to English."""
    text, cues = curl("/v1/audio/translations")
    if "translation_unavailable" in text:
        pytest.skip("the server has no endpoint for translations")
    assert json.loads(text)["text"]
    assert re.match(r"1\n00:00:0\d,\d{3} --> ", cues)


def test_no_line_is_left_out():
    """Every line of the section is for a path that a test above asks for."""
    paths = re.findall(rf"^curl .*{ADDRESS}(\S+)", SECTION, re.MULTILINE)
    assert len(paths) == len(re.findall(r"^curl ", SECTION, re.MULTILINE)) == 8
    names = "transcriptions", "transcriptions/stream", "subtitles", "translations"
    assert set(paths) == {"/health", *(f"/v1/audio/{name}" for name in names)}


@pytest.mark.websocket
def test_the_program_for_the_socket_works_as_written(server, folder, spoken):
    """It prints the states, and the whole text at last."""
    if server.key:
        pytest.skip("the page's program sends no key")
    (program,) = (b for b in re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL) if "websockets" in b)
    program = re.sub(r"ws://localhost:8100/ws/transcribe", server.live_url, program)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True, timeout=100
    )
    first, second, *_, text, last = done.stdout.splitlines()
    assert [first, second, last] == ["connected", "configured", "buffer_reset"]
    spoken.check(text)
