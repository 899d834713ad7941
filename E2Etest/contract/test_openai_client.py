"""Every case of OpenAI's Python client, in the version of the development environment. Other clients run nightly."""

from contextlib import ExitStack

import pytest

from asr_server.net import event_stream
from asr_server_fake.script import FakeScript
from tools.clients.openai import clients, rig

CLIENT = clients.CLIENTS[0]
SERVERS = rig.SERVERS | {"absent": {"script": FakeScript(load_failures=1_000), "MODEL_ID": rig.ABSENT}}


@pytest.mark.slow("runs every case of the official client, in one process of its own")
@pytest.mark.timeout(300)
def test_the_client_sees_what_every_case_says(start, tmp_path, monkeypatch):
    """No case fails, none is missing, and none is performed that the table does not name."""
    monkeypatch.setattr(event_stream, "PING_S", rig.PING_S)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(start(**options)) for name, options in SERVERS.items()}
        found = clients.run(CLIENT, rig.facts(servers, tmp_path), tmp_path)
    assert {result.case: result.seen for result in found.values() if not result.ok} == {}
    assert {name: result.item for name, result in found.items()} == {
        case.name: case.item for case in clients.cases_of(CLIENT)
    }
