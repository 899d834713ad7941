"""The pages of the docs say which other programs ran."""

from tools.clients import page
from tools.clients.catalogue import CLIENTS


def test_the_page_names_the_versions_that_ran():
    """A client whose pin changes must run again."""
    rows = page.read()
    assert set(rows) <= {client.name for client in CLIENTS}
    pinned = {client.name: client.pinned for client in CLIENTS if client.pinned}
    assert {name: rows[name].version for name in pinned} == pinned
