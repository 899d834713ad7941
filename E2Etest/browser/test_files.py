"""A user uploads recordings to the page, reads the transcripts, and saves them."""

import json
import re
import zipfile

import docx
import numpy as np
import pytest
import srt
import webvtt
from playwright.sync_api import expect

from E2Etest.browser.conftest import file, opened
from E2Etest.browser.storing import kept, until_kept
from E2Etest.drive import recordings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WRONG = {
    "bad.wav": (lambda: b"no sound" * 100, "isn't an audio or video file"),
    "empty.wav": (lambda: b"", "The file is empty"),
    "silent.mp4": (recordings.silent_video, "video has no sound"),
    "silence.wav": (lambda: recordings.wav(np.zeros(32_000, np.int16)), "No speech was found"),
    "short.wav": (lambda: recordings.wav(np.zeros(100, np.int16)), "too short to hold a word.*0.1 s"),
}


@pytest.mark.slow("transcribes six files and saves one in eight formats")
def test_recordings_are_given_read_and_saved(browser, page_server, sample, tmp_path):
    """Several files are uploaded at once, from the panel and dropped on another one. An error is shown next to its
    file."""
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        expect(page.locator("#files-limits")).to_have_text(re.compile("4 MB and 2 hours"))
        _gives_one_that_is_too_large(page)
        _gives_several(page, sample, tmp_path)
        _drops_two_on_another_panel(page, sample)
        page.goto(f"{page_server.base}/#t/{kept(page)[0]['id']}")
        _saves_every_format(page, sample, tmp_path)


def _gives(page, *files):
    page.set_input_files("#files-input", list(files))


def _texts(page):
    return [" ".join(row["text"] for row in one["rows"]) for one in kept(page)]


def _gives_one_that_is_too_large(page):
    sent = []
    page.on("request", lambda request: sent.append(request.url) if "/v1/audio" in request.url else None)
    _gives(page, *[file("long.wav", recordings.wav(np.zeros(3_000_000, np.int16)))] * 2)
    expect(page.locator("#files-queue li").nth(1)).to_contain_text("The server takes 4 MB at most.")
    assert sent == []
    page.click("#files-clear")
    expect(page.locator("#files-work")).to_be_hidden()


def _gives_several(page, sample, tmp_path):
    broken = [file(name, content()) for name, (content, _) in WRONG.items()]
    _gives(page, file("one.wav", sample[0]), *broken, file("two.wav", sample[0]))
    expect(page.locator("#files-summary")).to_have_text("2 of 7 files finished · 5 failed")
    for at, (_, said) in enumerate(WRONG.values(), start=1):
        expect(page.locator("#files-queue li").nth(at)).to_contain_text(re.compile(said))
        expect(page.locator("#files-queue li").nth(at).get_by_role("link")).to_have_count(0)  # it has no transcript
    two, one = kept(page)
    for transcript in (one, two):
        assert (transcript["state"], transcript["sound"]) == ("complete", len(sample[0]))
        words = transcript["rows"][0]["words"]
        assert "".join(word["text"] for word in words) == sample[1]
        assert all(0 < word["confidence"] <= 1 for word in words)
    assert (one["title"], one["language"], one["languageCode"]) == ("one", "English", "en")
    with page.expect_download() as download:
        page.click("#files-zip")
    download.value.save_as(tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        assert archive.testzip() is None
        assert archive.read("one/one.txt").decode().strip() == sample[1]
        assert {name.split("/")[0] for name in archive.namelist()} == {"one", "two"}


def _drops(page, target, contents):
    """Drop files with these bytes, or text; whether the page has taken it upon itself."""
    return page.evaluate(
        f"""contents => {{
            const data = new DataTransfer();
            contents.forEach((bytes, i) => data.items.add(new File([new Uint8Array(bytes)], `${{i}}.wav`)));
            if (!contents.length) data.items.add("words", "text/plain");
            const options = {{ dataTransfer: data, bubbles: true, cancelable: true }};
            {target}.dispatchEvent(new DragEvent("dragenter", options));
            return !{target}.dispatchEvent(new DragEvent("drop", options));
        }}""",
        contents,
    )


def _drops_two_on_another_panel(page, sample):
    """A field still receives text that is dragged into it."""
    page.click("#tab-status")
    assert not _drops(page, "document.getElementById('files-hotwords')", [])
    assert _drops(page, "document.body", [list(sample[0])] * 2)
    until_kept(page, lambda found: [one["state"] for one in found] == ["complete"] * 4)
    expect(page.locator("#files")).to_be_visible()
    assert _texts(page) == [sample[1]] * 4


def _saves_every_format(page, sample, folder):
    """The menu works with the keyboard, and each file is what its name says."""
    expect(page.locator("#reader-sound")).to_be_visible()
    files = {}
    for at in range(8):
        page.focus("#reader-export")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Copy", exact=True)).to_be_focused()
        for _ in range(2 + at):
            page.keyboard.press("ArrowDown")
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        title, _, ending = download.value.suggested_filename.partition(".")
        files[ending] = folder / f"{title}.{ending}"
        download.value.save_as(files[ending])
    assert set(files) == {"txt", "times.txt", "srt", "vtt", "docx", "md", "csv", "json"}
    assert " ".join(cue.content for cue in srt.parse(files["srt"].read_text())).replace("\n", " ") == sample[1]
    assert " ".join(cue.text for cue in webvtt.read(files["vtt"])).replace("\n", " ") == sample[1]
    body = json.loads(files["json"].read_text(encoding="utf-8"))
    assert (body["text"], body["language"]) == (sample[1], "English")
    assert sample[1] in docx.Document(files["docx"]).paragraphs[-1].text
    for ending in ("txt", "md", "csv"):
        assert sample[1] in files[ending].read_text(encoding="utf-8")
