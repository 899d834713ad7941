"""The page of results. E2Etest/browser shows and plays it."""

import base64
import hashlib
import json
import re
from pathlib import Path

from asr_server.cli.evaluate.references import Reference, SystemAnswer
from asr_server.cli.evaluate.results import page, results
from asr_server.cli.recording_files import RecordingSource

EVIL = "<script>alert(1)</script>\"'&</p>${title}"


def _page(folder, *recordings):
    """The page about recordings, each a path, a reference and a text, with words of 1 s each."""
    answers = []
    for path, reference, text in recordings:
        words = tuple((word, second, second + 1) for second, word in enumerate(text.split()))
        source = RecordingSource(path, Path(path.name))
        answers.append((Reference(source, reference, EVIL, EVIL), SystemAnswer(text, EVIL, 5, words)))
    found = results({"server": EVIL, "model": EVIL}, answers, {}, normalise=False, other=None)
    return page(found, folder).decode()


def _data(content):
    return json.loads(re.search(r'id="results">(.*?)</script>', content)[1])


def test_texts_and_names_are_data_of_the_page(tmp_path):
    """They stand in one element, and no text can end it."""
    evil = (tmp_path / f"{EVIL}\udcff.wav".replace("/", "_"), f"{EVIL} x", f"y {EVIL}")
    content = _page(tmp_path, evil)
    assert content.count("<script") == 2
    data = _data(content)
    assert EVIL in data["title"]
    assert data["recordings"][0]["speaker"] == EVIL
    assert data["recordings"][0]["reference"] == f"{EVIL} x"


def test_only_the_script_of_the_page_may_run(tmp_path):
    """Its policy has the hash of it, and allows no requests but for media."""
    content = _page(tmp_path, (tmp_path / "a.wav", "a", "b"))
    script = re.search(r"<script>(.*)</script>", content, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in content
    assert "content=\"default-src 'none';" in content


def test_errors_have_their_time_and_the_address_of_their_recording(tmp_path):
    """The address is relative to the page, and its characters are escaped as addresses need it."""
    content = _page(tmp_path / "out", (tmp_path / "talks" / "a #1%.wav", "one two three", "one too three"))
    (recording,) = _data(content)["recordings"]
    assert recording["audio"] == "../talks/a%20%231%25.wav"
    assert recording["errors"] == [{"said": "two", "heard": "too", "start_s": 1.0, "end_s": 2.0}]
