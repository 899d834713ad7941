"""Every case with every client, against running servers; and the page that says so."""

import pytest

from tools.clients.openai import page
from tools.clients.openai.clients import CLIENTS, cases_of

# The first case of a client waits for all cases of that client, and the very first for the clients to be installed.
pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_the_client_sees_what_every_case_says(found, client):
    """No case fails, none is missing, and none is performed that the table does not name: it would be on no page."""
    results = found(client)
    assert {result.case: result.seen for result in results.values() if not result.ok} == {}
    assert {name: result.item for name, result in results.items()} == {
        case.name: case.item for case in cases_of(client)
    }


def test_the_page_is_what_was_seen(found):
    """The committed page has the verdicts of this run (else: make clients)."""
    assert page.PAGE.read_text(encoding="utf-8") == page.write({client: found(client) for client in CLIENTS})
