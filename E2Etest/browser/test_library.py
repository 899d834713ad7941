"""Transcripts: what the browser has stored is listed, found, renamed and removed, with a way back."""

import re
from contextlib import suppress

import pytest
from playwright.sync_api import Error, expect

from E2Etest.browser.conftest import PHONE, opened
from E2Etest.browser.storing import rows_of, stored, until, words_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Of the page, before its scripts: a browser that stores nothing, as some do in private windows.
NO_DATABASE = "Object.defineProperty(window, 'indexedDB', { get: () => undefined })"


def _two(page):
    stored(page, [words_of("Turn on the kitchen lights please.")], title="Kitchen", createdAt=1000)
    return stored(page, [words_of("The music plays in the other room.")], title="Music", createdAt=2000)


def test_transcripts_are_listed_found_and_removed_with_a_way_back(browser, page_server, shots):
    """Newest first, after a reload too; a search finds titles and rows, and its line opens the reader at the word."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        expect(page.locator("#transcripts-empty")).to_be_visible()
        _two(page)
        page.reload()
        expect(page.locator(".library-title")).to_have_text(["Music", "Kitchen"])
        expect(page.locator("#library-usage")).to_have_text(re.compile("Saved in this browser only · .*B"))
        expect(page.locator(".library-snippet").first).to_have_text("The music plays in the other room.")
        page.get_by_role("button", name="Delete Music").click()
        expect(page.locator(".library-title")).to_have_text(["Kitchen"])
        page.locator(".toast").get_by_role("button", name="Undo").click()
        expect(page.locator(".library-title")).to_have_text(["Music", "Kitchen"])
        page.screenshot(path=shots / "library.png")
        page.fill("#library-query", "LIGHTS")
        expect(page.locator(".library-title")).to_have_text(["Kitchen"])
        expect(page.locator(".library-snippet mark")).to_have_text("lights")
        page.locator(".library-snippet", has_text="kitchen lights").click()
        expect(page.locator("#reader-title")).to_have_text("Kitchen")
        expect(page.locator("#reader-found")).to_have_text("1 of 1")


def test_the_hit_of_a_search_is_in_sight(browser, page_server):
    """The line begins shortly before it, at a word, on a phone too."""
    with opened(browser, page_server.base, "transcripts", viewport=PHONE) as watched:
        page = watched.page
        stored(page, [words_of("Nothing that anyone wants to hear is said for a long time until a nightingale sings.")])
        page.fill("#library-query", "Nightingale")
        expect(page.locator(".library-snippet")).to_contain_text(re.compile("…[a-z].* a nightingale sings"))
        hit, line = (
            page.locator(".library-snippet mark").bounding_box(),
            page.locator(".library-snippet").bounding_box(),
        )
        assert hit["x"] + hit["width"] <= line["x"] + line["width"]


def test_deleting_all_asks_and_takes_only_what_is_listed(browser, page_server):
    """The dialog names it. Cancel deletes nothing, and a transcript that the search left out stays."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        _two(page)
        dialog = page.locator("#library-confirm")
        page.click("#library-remove-all")
        expect(dialog).to_contain_text("Delete 2 transcripts")
        expect(dialog).to_contain_text("Music · Kitchen")
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.locator(".library-title")).to_have_count(2)
        page.fill("#library-query", "lights")
        expect(page.locator("#library-remove-all")).to_have_text("Delete this one")
        page.click("#library-remove-all")
        expect(page.locator("#library-confirm-names")).to_have_text("Kitchen")
        dialog.get_by_role("button", name="Delete").click()
        page.fill("#library-query", "")
        expect(page.locator(".library-title")).to_have_text(["Music"])


def test_a_damaged_record_hides_no_other(browser, page_server):
    """The list says that one cannot be read."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        _two(page)
        stored(page, [words_of("Lost.")], title="damaged", state="unheard of")
        expect(page.locator("#transcripts-notice")).to_have_text("1 stored transcript is damaged and not listed.")
        expect(page.locator(".library-title")).to_have_text(["Music", "Kitchen"])


@pytest.mark.nightly
def test_a_name_is_changed_in_the_list_and_in_the_reader(browser, page_server):
    """Enter keeps it, Escape does not; the other place shows it."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        made = _two(page)
        page.get_by_role("button", name="Rename Music").click()
        page.keyboard.type("not this")
        page.keyboard.press("Escape")
        expect(page.locator(".library-title")).to_have_text(["Music", "Kitchen"])
        page.get_by_role("button", name="Rename Music").click()
        page.keyboard.type("Concert")
        page.keyboard.press("Enter")
        expect(page.locator(".library-title")).to_have_text(["Concert", "Kitchen"])
        page.evaluate("id => { location.hash = `#t/${id}`; }", made)
        expect(page.locator("#reader-title")).to_have_text("Concert")
        page.click("#reader-rename")
        page.keyboard.type("Opera")
        page.keyboard.press("Enter")
        page.click("#reader-back")
        expect(page.locator(".library-title")).to_have_text(["Opera", "Kitchen"])


@pytest.mark.nightly
def test_all_are_removed_with_a_way_back_and_the_rest_of_a_removed_one_goes(browser, page_server):
    """A removal that nobody took back is complete after its time, also when the tab was closed before."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        made = _two(page)
        page.click("#library-remove-all")
        page.click("#library-confirm [value=remove]")
        expect(page.locator(".library-title")).to_have_count(0)
        page.locator(".toast").get_by_role("button", name="Undo").click()
        expect(page.locator(".library-title")).to_have_count(2)
        page.click("#library-remove-all")
        page.click("#library-confirm [value=remove]")
        expect(page.locator(".library-title")).to_have_count(0)
        # As if it had been removed a minute before.
        page.evaluate(
            "async id => (await pageModule('store.js')).store.update(id, { removedAt: Date.now() - 60_000 })", made
        )
        page.reload()
        expect(page.locator("#transcripts-empty")).to_be_visible()
        until(page, "async id => (await (await pageModule('store.js')).store.rows(id)).length === 0", made)


@pytest.mark.nightly
def test_other_tabs_show_what_changes(browser, page_server):
    """A transcript that another tab makes or removes appears and goes without a reload."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        expect(page.locator("#transcripts-empty")).to_be_visible()
        other = page.context.new_page()
        other.goto(f"{page_server.base}/#transcripts")
        _two(other)
        expect(page.locator(".library-title")).to_have_text(["Music", "Kitchen"])
        other.get_by_role("button", name="Delete Kitchen").click()
        expect(page.locator(".library-title")).to_have_text(["Music"])


@pytest.mark.nightly
def test_sound_and_rows_outlive_a_crash_of_the_tab(browser, page_server):
    """Pieces of a recording and its rows are there after the tab was killed, and the recording looks cut off."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        recording = page.context.new_page()
        recording.goto(page_server.base)
        made = stored(recording, [words_of("Turn on the lights.")], state="open", kind="live", title="recording")
        recording.evaluate(
            """async id => {
                const { store } = await pageModule('store.js');
                for (let i = 0; i < 5; i++) await store.appendSound(id, new Blob([new Int16Array(16000).fill(i)]));
            }""",
            made,
        )
        with recording.expect_event("crash"), suppress(Error):
            recording.goto("chrome://crash")
        expect(page.locator(".library-item", has_text="recording")).to_contain_text("Incomplete")
        assert [row["text"] for row in rows_of(page, made)] == ["Turn on the lights."]
        size = page.evaluate("async id => (await (await pageModule('store.js')).store.sound(id)).size", made)
        assert size == 44 + 5 * 32_000


@pytest.mark.nightly
def test_a_browser_that_stores_nothing_says_so(browser, page_server):
    """The page works from memory, and does not claim more."""
    with opened(browser, page_server.base, "status") as watched:
        page = watched.page
        page.add_init_script(NO_DATABASE)
        page.goto(f"{page_server.base}/?again#transcripts")
        expect(page.locator("#library-memory")).to_be_visible()
        _two(page)
        expect(page.locator(".library-title")).to_have_text(["Music", "Kitchen"])


@pytest.mark.nightly
def test_a_full_disk_takes_text_but_no_sound_and_is_reported(browser, page_server):
    """Sound leaves room for text; the page says that the storage is full, and no call throws."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        made = _two(page)
        taken = page.evaluate(
            """async id => {
                const { store } = await pageModule('store.js');
                navigator.storage.estimate = async () => ({ usage: 9e8, quota: 9.1e8 });
                const sound = await store.appendSound(id, new Blob([new Int16Array(16000)]));
                const text = await store.putRows(id, [{ n: 1, start: 0, end: 1, text: "kept", complete: true }]);
                return [sound, text];
            }""",
            made,
        )
        assert taken == [False, True]
        expect(page.locator("#transcripts-notice")).to_contain_text("storage is full")
