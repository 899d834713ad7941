"""A user keeps transcripts in the browser: lists, finds, renames and deletes them, and restores deleted ones."""

import re

import pytest
from playwright.sync_api import expect

from E2Etest.browser.conftest import opened
from E2Etest.browser.storing import stored, words_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.slow("opens two tabs and a dozen views")
def test_transcripts_are_listed_found_renamed_and_removed(browser, page_server):
    """The newest comes first, after a reload and in other tabs too. A deleted transcript can be restored."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        expect(page.locator("#transcripts-empty")).to_be_visible()
        other = page.context.new_page()
        other.goto(f"{page_server.base}/#transcripts")
        stored(other, [words_of("Turn on the kitchen lights please.")], title="Kitchen", createdAt=1000)
        music = stored(other, [words_of("The music plays in the other room.")], title="Music", createdAt=2000)
        _lists(page, "Music", "Kitchen")
        page.reload()
        _lists(page, "Music", "Kitchen")
        expect(page.locator("#library-usage")).to_have_text(re.compile("Saved in this browser only · .*B"))
        _deletes_one_and_takes_it_back(page)
        _renames(page, music)
        _finds(page)
        page.click("#reader-back")
        _deletes_what_the_dialog_names(page, other)
        _lists(other, "New", "Opera")


def _lists(page, *titles):
    expect(page.locator(".library-title")).to_have_text(list(titles))


def _deletes_one_and_takes_it_back(page):
    page.get_by_role("button", name="Delete Music").click()
    _lists(page, "Kitchen")
    page.locator(".toast").get_by_role("button", name="Undo").click()
    _lists(page, "Music", "Kitchen")


def _renames(page, transcript):
    """Enter keeps a name and Escape does not. The reader shows the name, and can change it too."""
    for typed, key, shown in (("not this", "Escape", "Music"), ("Concert", "Enter", "Concert")):
        page.get_by_role("button", name="Rename Music").click()
        page.keyboard.type(typed)
        page.keyboard.press(key)
        _lists(page, shown, "Kitchen")
    page.evaluate("id => { location.hash = `#t/${id}`; }", transcript)
    expect(page.locator("#reader-title")).to_have_text("Concert")
    page.click("#reader-rename")
    page.keyboard.type("Opera")
    page.keyboard.press("Enter")
    page.click("#reader-back")
    _lists(page, "Opera", "Kitchen")


def _finds(page):
    """The search finds titles and rows. A found row opens the reader at the word."""
    page.fill("#library-query", "LIGHTS")
    _lists(page, "Kitchen")
    expect(page.locator(".library-snippet mark")).to_have_text("lights")
    page.locator(".library-snippet", has_text="kitchen lights").click()
    expect(page.locator("#reader-title")).to_have_text("Kitchen")
    expect(page.locator("#reader-found")).to_have_text("1 of 1")


def _deletes_what_the_dialog_names(page, other):
    """Cancel deletes nothing. Delete keeps transcripts that the search hid or that another tab added meanwhile."""
    page.fill("#library-query", "")
    _lists(page, "Opera", "Kitchen")
    dialog = page.locator("#library-confirm")
    page.click("#library-remove-all")
    expect(dialog).to_contain_text("Delete 2 transcripts")
    expect(dialog).to_contain_text("Opera · Kitchen")
    dialog.get_by_role("button", name="Cancel").click()
    _lists(page, "Opera", "Kitchen")
    page.fill("#library-query", "lights")
    expect(page.locator("#library-remove-all")).to_have_text("Delete this one")
    page.click("#library-remove-all")
    stored(other, [words_of("New lights.")], title="New", createdAt=3000)
    _lists(page, "New", "Kitchen")
    dialog.get_by_role("button", name="Delete").click()
    page.fill("#library-query", "")
    _lists(page, "New", "Opera")
