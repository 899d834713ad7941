"""The check of released checkpoints, on the bundled ones."""

import re

import pytest

from tools import verify

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


def _run(texts):
    return verify.Run("a", texts, 1, 1, 1)


def test_other_words_in_a_short_recording_are_reported():
    """In a long recording the SDK may hear others; either way the report has both texts."""
    spoken = verify.clips()
    texts = [clip.text for clip in spoken]
    for n, clip in enumerate(spoken):
        lines, equal = verify.report([_run(texts), _run([*texts[:n], "other", *texts[n + 1 :]]), _run(texts)])
        assert equal == (clip.seconds > verify.WINDOW_S)
        assert {"- a: other", f"- a: {texts[n]}"} <= set(lines)
    lines, equal = verify.report([_run(texts)] * 3)
    assert equal
    assert "- a: other" not in lines


@pytest.mark.timeout(900)
def test_the_demonstration_checkpoint_has_the_words_of_the_sdk(capsys, monkeypatch):
    monkeypatch.setenv("CPU_THREADS", "1")
    assert verify.main(["demo", "demo"]) == 0
    printed = capsys.readouterr().out
    sdk, exact, _ = re.findall(r"^\| [^|]*(?:SDK|asr-server).*$", printed, re.MULTILINE)
    assert re.search(r"(\d\d) of \1 up to 8 s", sdk)
    assert re.search(r"(\d\d) of \1 up to 8 s", exact)
    assert re.search(r"[1-9]\d* of \d+ words", printed)
