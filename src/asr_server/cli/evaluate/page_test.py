"""The page of results. E2Etest/browser plays it."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

from asr_server.cli.evaluate import page
from asr_server.cli.evaluate.references import Reference
from asr_server.cli.evaluate.results import Results, SystemAnswer
from asr_server.cli.recording_files import RecordingSource

EVIL = "<script>alert(1)</script>\"'&</p>${title}"


class _Elements(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, content):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def named(self, tag):
        """The attributes of all elements of a name."""
        return [attributes for name, attributes in self.found if name == tag]


def _page(folder, *recordings, server="http://a"):
    """The page about recordings, each a path, a reference and a text, with words of 1 s each."""
    references, answers = [], {}
    for path, reference, text in recordings:
        references.append(Reference(RecordingSource(path, Path(path.name)), reference, EVIL, EVIL))
        words = tuple((word, second, second + 1) for second, word in enumerate(text.split()))
        answers[references[-1].name] = SystemAnswer(text, EVIL, 5, words)
    system = {"server": server, "model": EVIL}
    found = Results(system, references, answers, {}, normalise=False, other=None)
    return page.render(found, folder).decode()


def test_texts_and_names_are_text(tmp_path):
    """Whatever is in them: no element, attribute or placeholder comes from them, and they are read as they are."""
    plain = _Elements(_page(tmp_path, (tmp_path / "a.wav", "a", "b")))
    content = _page(tmp_path, (tmp_path / f"{EVIL}.wav".replace("/", "_"), f"{EVIL} x", f"y {EVIL}"), server=EVIL)
    evil = _Elements(content)
    kinds = {(tag, *sorted(attributes)) for tag, attributes in evil.found}
    assert kinds <= {(tag, *sorted(attributes)) for tag, attributes in plain.found}
    assert len(evil.named("script")) == 1
    assert EVIL in evil.text


def test_only_the_script_of_the_page_may_run(tmp_path):
    """Its policy has the hash of it, and allows no requests but for media."""
    content = _page(tmp_path, (tmp_path / "a.wav", "a", "b"))
    script = re.search(r"<script>(.*)</script>", content, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [one["content"] for one in _Elements(content).named("meta") if "http-equiv" in one]
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")


def test_errors_have_their_time_and_the_address_of_their_recording(tmp_path):
    """The address is relative to the page, and its characters are escaped as addresses need it."""
    found = _Elements(_page(tmp_path / "out", (tmp_path / "talks" / "a #1%.wav", "one two three", "one too three")))
    assert [one["data-audio"] for one in found.named("section")] == ["../talks/a%20%231%25.wav"]
    (button,) = found.named("button")
    assert button["data-start"] == "1.00"
    assert button["title"] == "at 0:01: said “two”, written “too”"


def test_a_page_has_a_most_of_recordings(tmp_path, monkeypatch):
    """The worst, and it says how many there are; those without errors are not on it."""
    monkeypatch.setattr(page, "MOST_RECORDINGS", 2)
    recordings = [(tmp_path / f"{n}.wav", "a b c d", " ".join("abcd"[:n])) for n in range(1, 5)]
    found = _Elements(_page(tmp_path, *recordings))
    assert [one["data-name"] for one in found.named("section")] == ["1.wav", "2.wav"]
    assert "2 of 3 are shown." in found.text


def test_long_passages_without_errors_are_shortened(tmp_path):
    """The page keeps the words next to an error."""
    words = [f"word{n}" for n in range(200)]
    text = _Elements(_page(tmp_path, (tmp_path / "a.wav", " ".join(words), " ".join([*words, "x"])))).text
    assert "word0 " in text
    assert "word199" in text
    assert "word100" not in text
