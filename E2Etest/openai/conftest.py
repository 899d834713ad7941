"""The servers of the session, and what each client found on them. A client runs once, when it is first asked about."""

import functools

import pytest

from tools.clients.openai import clients
from tools.clients.openai.rig import standing


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """A function from a client to its results by case name."""
    place = tmp_path_factory.mktemp("openai")
    with standing(place) as told:
        yield functools.cache(lambda client: clients.run(client, told, place))
