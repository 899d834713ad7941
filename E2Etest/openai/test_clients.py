"""Every case with every client, against the real server; and the page that says so."""

import pytest

from E2Etest.openai import page
from E2Etest.openai.cases import CASES, SECTIONS
from E2Etest.openai.clients import CLIENTS, cases_of

# The first case of a client waits for all cases of that client, and the very first for the clients to be installed.
pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

EVERY = [pytest.param(client, case, id=f"{client}-{case.name}") for client in CLIENTS for case in cases_of(client)]


@pytest.mark.parametrize(("client", "case"), EVERY)
def test_the_client_finds_what_it_expects(found, client, case):
    """The case came back, and as it should be."""
    result = found(client).get(case.name)
    assert result is not None, "the client did not perform this case"
    assert result.item == case.item
    assert result.ok, result.seen


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_nothing_is_performed_that_the_table_does_not_name(found, client):
    """A case that is not in the table would be in no page and in no verdict."""
    assert set(found(client)) == {case.name for case in cases_of(client)}


def test_case_names_are_unique_and_every_item_has_its_heading():
    """A name is a key; items are the sections of the page."""
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.item for case in CASES} == set(SECTIONS)


def test_the_page_is_what_was_seen(found):
    """The committed page has the verdicts of this run (else: make clients)."""
    assert page.PAGE.read_text(encoding="utf-8") == page.write({client: found(client) for client in CLIENTS})
