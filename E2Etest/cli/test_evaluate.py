"""`asr-server evaluate` on the bundled recordings, with the demonstration model."""

import json
import shutil
import signal

import pytest

from asr_server import demo
from asr_server_fake.script import FakeScript, Rule
from E2Etest.cli.commands import run, started
from E2Etest.drive import recordings

pytestmark = pytest.mark.integration

RIGHT, WRONG = "turn the lights off", "nobody said this again"


@pytest.fixture(scope="module")
def short_clips(tmp_path_factory):
    """A folder of short clips by language, each with its text, and one that is broken."""
    folder = tmp_path_factory.mktemp("clips")
    for clip in (clip for clip in recordings.clips() if clip.kind in ("phrase", "mandarin") and clip.seconds < 6):
        place = folder / clip.language
        place.mkdir(exist_ok=True)
        shutil.copy(clip.path, place)
        (place / clip.path.name).with_suffix(".txt").write_text(clip.text)
    (folder / "English" / "broken.wav").write_bytes(b"RIFF\x00\x01\x00\x00WAVEfmt " + b"\xff" * 300)
    (folder / "English" / "broken.txt").write_text("words")
    return folder


@pytest.mark.nightly
@pytest.mark.accuracy
def test_the_errors_of_a_folder_are_those_of_its_texts(server, short_clips, tmp_path):
    """Errors are listed by language with an interval, and have times. A recording that cannot be read does not end the
    run."""
    results, page = tmp_path / "out.json", tmp_path / "out.html"
    options = ["--folders", "language", "--json", results, "--html", page]
    done = run("evaluate", short_clips, "--server", server.base, *options)
    assert done.returncode == 1
    assert "broken.wav: invalid_audio:" in done.stderr
    found = json.loads(results.read_text())
    assert found["failed"] == {"English/broken.wav": "invalid_audio"}
    assert set(found["languages"]) == {"English", "Chinese"}
    words = found["total"]["words"]
    said = 0
    for one in found["recordings"]:
        reference, text = one["reference"], server.transcribe((short_clips / one["name"]).read_bytes()).json()["text"]
        assert one["text"] == text
        if one["name"].startswith("Chinese"):
            said += recordings.word_errors(list(reference.replace(" ", "")), list(text.replace(" ", "")))
        elif not any(number in reference for number in ("one", "two", "three", "four", "five", "six", "seven")):
            assert one["words"]["errors"] == recordings.word_errors(reference.split(), recordings.plain_words(text))
    assert found["languages"]["Chinese"]["words"]["errors"] == said
    wrong = [error for one in found["recordings"] for error in one["errors"]]
    assert all(0 <= error["start_s"] <= error["end_s"] for error in wrong)
    assert any(error["start_s"] > 0 for error in wrong)
    low, high = words["interval"]
    assert low < words["rate"] < high
    assert "all " in done.stdout
    assert f"{100 * words['rate']:.1f} %" in done.stdout
    assert page.read_text().count('"passages": ') == sum(bool(one["errors"]) for one in found["recordings"])
    assert sorted(tmp_path.iterdir()) == [page, results]


def test_two_servers_are_compared_on_the_same_recordings(start, tmp_path):
    """One server writes what was said, the other does not. A recording that cannot be read does not end the run."""
    (tmp_path / "en").mkdir()
    for number in range(10):
        shutil.copy(demo.sample().recording, tmp_path / "en" / f"{number}.wav")
        # Not the same difference in each, which would have no interval.
        (tmp_path / "en" / f"{number}.txt").write_text(RIGHT + " again" * (number % 2))
    (tmp_path / "broken.wav").write_bytes(b"RIFF\x00\x01\x00\x00WAVEfmt " + b"\xff" * 300)
    (tmp_path / "broken.txt").write_text("words")
    files, options = [tmp_path / "other.json", tmp_path / "both.json"], ["--folders", "language", "--html"]
    for text, file, compared in ((WRONG, files[0], []), (RIGHT, files[1], ["--compare", files[0]])):
        with start(script=FakeScript(rules=(Rule(text=text),))) as server:
            page = file.with_suffix(".html")
            done = run("evaluate", tmp_path, "--server", server.base, "--json", file, *options, page, *compared)
            assert done.returncode == 1
            assert "broken.wav: invalid_audio:" in done.stderr
    found = json.loads(files[1].read_text())
    assert found["failed"] == {"broken.wav": "invalid_audio"}
    assert {one["language"] for one in found["recordings"]} == {"English"}
    assert page.read_text().count('"passages": ') == sum(bool(one["errors"]) for one in found["recordings"]) == 5
    assert found["comparison"]["verdict"].startswith("This one is better by")
    assert found["comparison"]["verdict"] in done.stdout


@pytest.mark.nightly
def test_an_interrupted_run_continues(cli_server, tmp_path):
    """Ctrl-C keeps the answers, and the second run asks only for the others."""
    for number in range(12):
        shutil.copy(demo.sample().recording, tmp_path / f"{number}.wav")
        (tmp_path / f"{number}.txt").write_text(demo.sample().text)
    results, part = tmp_path / "out.json", tmp_path / "out.json.part"
    arguments = ("evaluate", tmp_path, "--server", cli_server.base, "--jobs", "1", "--json", results)
    process = started(*arguments)
    cli_server.wait_for(lambda _: part.exists() and len(list(part.iterdir())) > 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    kept = len(list(part.iterdir()))
    assert process.returncode == 130
    assert f"{kept} of 12 recordings are finished and kept" in errors
    assert not results.exists()
    before = cli_server.log().count("method=POST")
    done = run(*arguments)
    assert done.returncode == 0
    assert f"{12 - kept} done, {kept} skipped" in done.stderr
    assert cli_server.log().count("method=POST") == before + 12 - kept
    assert json.loads(results.read_text())["total"]["recordings"] == 12
    assert not part.exists()
