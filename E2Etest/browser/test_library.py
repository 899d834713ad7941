"""A user keeps transcripts in the browser: lists, finds, renames and deletes them, and restores deleted ones."""

import pytest
from playwright.sync_api import expect

from E2Etest.browser.person import button, go, opened, press, shows
from E2Etest.browser.storing import stored, words_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def _lists(page, *titles):
    expect(page.locator(".library-title")).to_have_text(list(titles))


@pytest.mark.slow("opens two tabs and a dozen views")
def test_transcripts_are_listed_found_renamed_and_removed(browser, page_server, look):
    """The newest comes first, after a reload and in other tabs too. A deleted transcript can be restored."""
    with opened(browser, page_server.base, "transcripts") as page:
        shows(page, "#transcripts-empty")
        other = page.context.new_page()
        other.goto(f"{page_server.base}/#transcripts")
        page.bring_to_front()  # a browser draws a hidden page seldom
        stored(other, [words_of("Turn on the kitchen lights please.")], title="Kitchen", createdAt=1000)
        music = stored(other, [words_of("The music plays.")], title="Music", createdAt=2000)
        _lists(page, "Music", "Kitchen")
        page.reload()
        _lists(page, "Music", "Kitchen")
        shows(page, "#library-usage", like="Saved in this browser only · .*B")
        look(page, "transcripts")
        button(page, "Delete Music").click()
        _lists(page, "Kitchen")
        button(page.locator(".toast"), "Undo").click()
        _lists(page, "Music", "Kitchen")
        # Enter keeps a name and Escape does not. The reader shows the name, and can change it too.
        for typed, key, shown in (("not this", "Escape", "Music"), ("Concert", "Enter", "Concert")):
            button(page, "Rename Music").click()
            page.keyboard.type(typed)
            press(page, key)
            _lists(page, shown, "Kitchen")
        go(page, f"t/{music}")
        shows(page, "#reader-title", "Concert")
        page.click("#reader-rename")
        page.keyboard.type("Opera")
        press(page, "Enter")
        page.click("#reader-back")
        _lists(page, "Opera", "Kitchen")
        # The search finds titles and rows. A found row opens the reader at the word.
        page.fill("#library-query", "LIGHTS")
        _lists(page, "Kitchen")
        shows(page, ".library-snippet mark", "lights")
        look(page, "transcripts-found")
        page.locator(".library-snippet", has_text="kitchen lights").click()
        shows(page, "#reader-title", "Kitchen")
        shows(page, "#reader-found", "1 of 1")
        page.click("#reader-back")
        _deletes_what_the_dialog_names(page, other)


def _deletes_what_the_dialog_names(page, other):
    """Cancel deletes nothing. Delete keeps transcripts that the search hid or that another tab added meanwhile."""
    page.fill("#library-query", "")
    _lists(page, "Opera", "Kitchen")
    dialog = page.locator("#library-confirm")
    page.click("#library-remove-all")
    expect(dialog).to_contain_text("Delete 2 transcripts")
    expect(dialog).to_contain_text("Opera · Kitchen")
    button(dialog, "Cancel").click()
    _lists(page, "Opera", "Kitchen")
    page.fill("#library-query", "lights")
    shows(page, "#library-remove-all", "Delete this one")
    page.click("#library-remove-all")
    stored(other, [words_of("New lights.")], title="New", createdAt=3000)
    _lists(page, "New", "Kitchen")
    button(dialog, "Delete").click()
    page.fill("#library-query", "")
    _lists(page, "New", "Opera")
    _lists(other, "New", "Opera")
