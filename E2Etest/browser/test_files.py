"""A user uploads recordings to the page, reads the transcripts, and saves them."""

import re
import zipfile

import docx
import numpy as np
import pytest
from playwright.sync_api import expect

from E2Etest.browser.looking import audit
from E2Etest.browser.person import button, claim, file, go, hides, opened, press, shows
from E2Etest.browser.storing import kept, texts, until_kept
from E2Etest.drive import recordings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WRONG = {
    "bad.wav": (lambda: b"no sound" * 100, "isn't an audio or video file"),
    "empty.wav": (lambda: b"", "The file is empty"),
    "silent.mp4": (recordings.silent_video, "video has no sound"),
    "silence.wav": (lambda: recordings.wav(np.zeros(32_000, np.int16)), "No speech was found"),
    "short.wav": (lambda: recordings.wav(np.zeros(100, np.int16)), "too short to hold a word.*0.1 s"),
}
# Drops files with these bytes, or text; whether the page has taken it upon itself.
DROP = """([target, contents]) => {
    const data = new DataTransfer();
    contents.forEach((bytes, i) => data.items.add(new File([new Uint8Array(bytes)], `${i}.wav`)));
    if (!contents.length) data.items.add("words", "text/plain");
    const options = { dataTransfer: data, bubbles: true, cancelable: true };
    const element = document.querySelector(target);
    element.dispatchEvent(new DragEvent("dragenter", options));
    return !element.dispatchEvent(new DragEvent("drop", options));
}"""
ITEMS = "#files-queue li"


def _gives(page, *files):
    page.set_input_files("#files-input", list(files))


@pytest.mark.slow("transcribes six files and saves one")
def test_recordings_are_given_read_and_saved(browser, page_server, sample, tmp_path, look):
    """Several files are uploaded at once, from the panel and dropped on another one. An error is shown next to its
    file."""
    with opened(browser, page_server.base, "files", ["Failed to load resource"]) as page:
        shows(page, "#files-limits", like="4 MB and 2 hours")
        sent = []
        page.on("request", lambda request: sent.append(request.url) if "/v1/audio" in request.url else None)
        _gives(page, *[file("long.wav", recordings.wav(np.zeros(3_000_000, np.int16)))] * 2)
        shows(page, f"{ITEMS} >> nth=1", like="The server takes 4 MB at most.")
        assert sent == []
        page.click("#files-clear")
        hides(page, "#files-work")
        broken = [file(name, content()) for name, (content, _) in WRONG.items()]
        _gives(page, file("one.wav", sample[0]), *broken, file("two.wav", sample[0]))
        shows(page, "#files-summary", "2 of 7 files finished · 5 failed")
        for at, (_, said) in enumerate(WRONG.values(), start=1):
            shows(page, f"{ITEMS} >> nth={at}", like=said)
        expect(page.locator(ITEMS).get_by_role("link")).to_have_count(2)  # the others have no transcript
        look(page, "files-queue")
        two, one = kept(page)
        for found in (one, two):
            assert (found["state"], found["sound"]) == ("complete", len(sample[0]))
            words = found["rows"][0]["words"]
            assert "".join(word["text"] for word in words) == sample[1]
            assert all(0 < word["confidence"] <= 1 for word in words)
        assert (one["title"], one["language"], one["languageCode"]) == ("one", "English", "en")
        with page.expect_download() as download:
            page.click("#files-zip")
        with zipfile.ZipFile(download.value.path()) as archive:
            assert archive.read("one/one.txt").decode().strip() == sample[1]
            assert {name.split("/")[0] for name in archive.namelist()} == {"one", "two"}
        # Two are dropped on another panel. A field there still receives text that is dragged into it.
        page.click("#tab-status")
        assert not page.evaluate(DROP, ["#files-hotwords", []])
        assert page.evaluate(DROP, ["body", [list(sample[0])] * 2])
        until_kept(page, lambda found: [texts(one) for one in found] == [[sample[1]]] * 4)
        shows(page, "#files")
        go(page, f"t/{one['id']}")
        _saves(page, sample[1], tmp_path, look)


def _saves(page, said, folder, look):
    """The menu works with the keyboard. One file is made by the page, and one by the server."""
    shows(page, "#reader-sound")
    for at, name in ((0, "one.txt"), (4, "one.docx")):
        page.focus("#reader-export")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Copy", exact=True)).to_be_focused()
        if at == 0:
            look(page, "export")
        press(page, *["ArrowDown"] * (2 + at))
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        assert download.value.suggested_filename == name
        download.value.save_as(folder / name)
    assert (folder / "one.txt").read_text(encoding="utf-8").strip() == said
    assert said in docx.Document(folder / "one.docx").paragraphs[-1].text


@pytest.mark.nightly
def test_work_that_stops_is_continued(browser, page_server, scripted):
    """The words so far are shown while a file is transcribed. A reload or a cancellation loses none of them, and what
    is missing is transcribed from the stored sound."""
    once, pause = recordings.samples(), np.zeros(6 * 16_000, np.int16)
    words = recordings.sample()[1]
    long, short = recordings.wav(np.concatenate([once, pause] * 3)), recordings.wav(once)
    with opened(browser, page_server.base, "files", ["Failed to load resource", "ERR_"]) as page:
        # An aligner would wait until all spans are transcribed.
        claim(page, page_server.health(), "aligner", active=False)
        scripted(step_s=0.4)
        _gives(page, file("talk.wav", long))
        for part in ("sound", "progress", "cancel"):
            shows(page, f"#reader-{part}")
        shows(page, "#reader-rows", like="kitchen")
        shows(page, "#reader-state-text", like=r"Transcribing, 0:0\d of 0:\d\d · about \d+ \w+ left")
        assert float(page.locator("#reader-progress").get_attribute("value")) > 0.1
        assert audit(page) == []
        assert 0 < len(kept(page)[0]["rows"]) < 3
        page.reload()
        (talk,) = until_kept(page, lambda found: found[0]["state"] == "cut")
        page.click("#tab-files")
        shows(page, "#files-interrupted-text", like="when the page was closed")
        page.click("#files-continue")
        shows(page, f"{ITEMS} >> nth=0", like="Transcribing, 0:")
        button(page, "Cancel talk.wav").click()
        (cut,) = until_kept(page, lambda found: (found[0]["error"] or {}).get("code") == "cancelled")
        assert (cut["id"], cut["state"]) == (talk["id"], "cut")
        assert cut["rows"][: len(talk["rows"])] == talk["rows"]
        page_server.wait_for(lambda health: not health["queue"]["running"])
        _gives(page, file("next.wav", short), file("last.wav", short))
        button(page, "Cancel last.wav").click()
        scripted()
        button(page, "Transcribe talk.wav again").click()
        expect(page.locator(ITEMS).filter(has_text=re.compile("Finished"))).to_have_count(2)
        shows(page, f"{ITEMS}:has-text('last.wav')", like="Cancelled")
        found = until_kept(page, lambda found: [one["state"] for one in found] == ["complete"] * 2)
        assert (found[1]["id"], texts(found[1]), texts(found[0])) == (talk["id"], [words] * 3, [words])
        page.click("#files-clear")
        hides(page, "#files-work")
